package tokenizer

import (
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is looked for in the text itself, before normalisation (verbatim) or
// after it, and never produced or broken up by merges.
type addedToken struct {
	text string
	id   int32
	// leftStrip and rightStrip take the white space beside it into the token.
	leftStrip, rightStrip bool
	// wholeWord: it counts only where no word character stands beside it.
	wholeWord bool
}

type addedTokens struct {
	verbatim   matcher
	normalized matcher
}

// matcher finds added tokens in text: leftmost first, and of those at one place the longest.
type matcher struct {
	byFirst [256][]addedToken // by first byte, longest first
	count   int
}

func newMatcher(tokens []addedToken) matcher {
	var m matcher
	for _, tok := range tokens {
		if tok.text == "" {
			continue
		}
		m.byFirst[tok.text[0]] = append(m.byFirst[tok.text[0]], tok)
		m.count++
	}
	for i := range m.byFirst {
		list := m.byFirst[i]
		sort.SliceStable(list, func(i, j int) bool { return len(list[i].text) > len(list[j].text) })
	}
	return m
}

// split calls emit for the parts of text in order: plain text with id -1 (never empty), and added
// tokens with their id.
func (m *matcher) split(text string, emit func(part string, id int32)) {
	if m.count == 0 {
		if text != "" {
			emit(text, -1)
		}
		return
	}
	done := 0 // everything before it has been emitted
	for i := 0; i < len(text); {
		list := m.byFirst[text[i]]
		if list == nil {
			i++
			continue
		}
		tok := findAt(list, text, i)
		if tok == nil {
			i++
			continue
		}
		start, end := i, i+len(tok.text)
		if tok.leftStrip {
			start = done + len(strings.TrimRightFunc(text[done:i], unicode.IsSpace))
		}
		if tok.rightStrip {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
		}
		if start > done {
			emit(text[done:start], -1)
		}
		emit(text[start:end], tok.id)
		done, i = end, end
	}
	if done < len(text) {
		emit(text[done:], -1)
	}
}

// findAt returns the longest token of list that stands at text[i:], or nil. Whether it is a whole
// word is asked of the longest one only: the engine's automaton has chosen by then.
func findAt(list []addedToken, text string, i int) *addedToken {
	for k := range list {
		tok := &list[k]
		if !strings.HasPrefix(text[i:], tok.text) {
			continue
		}
		if tok.wholeWord && (wordBefore(text[:i]) || wordAfter(text[i+len(tok.text):])) {
			return nil
		}
		return tok
	}
	return nil
}

func isWord(r rune) bool {
	return r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r)
}

func wordBefore(s string) bool {
	r, w := utf8.DecodeLastRuneInString(s)
	return w > 0 && isWord(r)
}

func wordAfter(s string) bool {
	r, w := utf8.DecodeRuneInString(s)
	return w > 0 && isWord(r)
}
