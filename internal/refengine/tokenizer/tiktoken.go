package tokenizer

import (
	"strings"
	"unicode"
)

// The split patterns of published vocabularies. Go's regular expressions have no look-ahead, and a
// hand-written splitter is some twenty times faster than a general engine, so each pattern is known by
// its text and cut by code.
const (
	patternGPT2 = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

	patternLlama3 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|` +
		` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

	patternQwen2 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|` +
		` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

	patternQwen35 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|` +
		` ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

	patternO200k = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// knownPattern returns the splitter for a pattern's text. Two spellings of the same pattern are around:
// with the contractions written out in both cases and with (?i:).
func knownPattern(pattern string) (splitter, bool) {
	const folded = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	pattern = strings.ReplaceAll(pattern, `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])`, folded)
	switch pattern {
	case patternGPT2:
		return splitterFunc(splitGPT2), true
	case patternLlama3:
		return tiktoken{digits: 3}, true
	case patternQwen2:
		return tiktoken{digits: 1}, true
	case patternQwen35:
		return tiktoken{digits: 1, marks: true}, true
	case patternO200k:
		return splitterFunc(splitO200k), true
	case `\p{N}`, `\d`:
		return splitterFunc(splitDigits), true
	}
	return nil, false
}

// tiktoken cuts as the patterns of Llama 3 and Qwen do.
type tiktoken struct {
	digits int  // longest run of numeric characters in one piece
	marks  bool // combining marks belong to words
}

var _ splitter = tiktoken{}

func (p tiktoken) first(s string) int {
	if n := contraction(s, true); n > 0 {
		return n
	}
	word := isLetter
	if p.marks {
		word = isLetterOrMark
	}
	r, w := runeAt(s, 0)
	// [^\r\n\p{L}\p{N}]?\p{L}+
	if r != '\r' && r != '\n' && !isLetter(r) && !isNumber(r) {
		if end := run(s, w, unlimited, word); end > w {
			return end
		}
	}
	if word(r) {
		return run(s, w, unlimited, word)
	}
	if isNumber(r) {
		return run(s, 0, p.digits, isNumber)
	}
	other := isOther
	if p.marks {
		other = func(r rune) bool { return isOther(r) && !unicode.IsMark(r) }
	}
	if n := punctuation(s, other, "\r\n"); n > 0 {
		return n
	}
	return whiteSpace(s)
}

func isLetterOrMark(r rune) bool { return isLetter(r) || unicode.IsMark(r) }

// punctuation matches ` ?[other]+[tail]*`.
func punctuation(s string, other func(rune) bool, tail string) int {
	from := 0
	if s[0] == ' ' {
		from = 1
	}
	end := run(s, from, unlimited, other)
	if end == from {
		return 0
	}
	for end < len(s) && strings.IndexByte(tail, s[end]) >= 0 {
		end++
	}
	return end
}

// whiteSpace matches `\s*[\r\n]+|\s+(?!\S)|\s+` at white space: up to the last line break of the run,
// or else all but the last character unless the text ends there. Anything else is a piece by itself.
func whiteSpace(s string) int {
	end, kept := spaces(s)
	if end == 0 {
		_, w := runeAt(s, 0)
		return w
	}
	if i := strings.LastIndexAny(s[:end], "\r\n"); i >= 0 {
		return i + 1
	}
	if kept > 0 {
		return kept
	}
	return end
}

// splitO200k cuts as the pattern of OpenAI's o200k vocabularies does: words break where a lower-case
// letter is followed by an upper-case one, and take a contraction with them.
func splitO200k(s string) int {
	r, w := runeAt(s, 0)
	starts := [2]int{0, 0}
	n := 1
	if r != '\r' && r != '\n' && !isLetter(r) && !isNumber(r) {
		starts, n = [2]int{w, 0}, 2 // with one other character in front, or else without
	}
	for _, match := range [...]func(s string, from int) int{lowerWord, upperWord} {
		for _, from := range starts[:n] {
			if end := match(s, from); end > from {
				return end + contraction(s[end:], true)
			}
		}
	}
	if isNumber(r) {
		return run(s, 0, 3, isNumber)
	}
	if n := punctuation(s, isOther, "\r\n/"); n > 0 {
		return n
	}
	return whiteSpace(s)
}

// Letters without case and marks count as both.
func isUpperPart(r rune) bool {
	return unicode.In(r, unicode.Lu, unicode.Lt, unicode.Lm, unicode.Lo, unicode.M)
}

func isLowerPart(r rune) bool {
	return unicode.In(r, unicode.Ll, unicode.Lm, unicode.Lo, unicode.M)
}

// lowerWord matches `[upper]*[lower]+` from s[from:] and returns its end, from if there is none.
func lowerWord(s string, from int) int {
	last := from // end of the last character of the upper run that could also be the lower part
	i := from
	for i < len(s) {
		r, w := runeAt(s, i)
		if !isUpperPart(r) {
			break
		}
		i += w
		if isLowerPart(r) {
			last = i
		}
	}
	if end := run(s, i, unlimited, isLowerPart); end > i {
		return end
	}
	return last
}

// upperWord matches `[upper]+[lower]*`.
func upperWord(s string, from int) int {
	end := run(s, from, unlimited, isUpperPart)
	if end == from {
		return from
	}
	return run(s, end, unlimited, isLowerPart)
}
