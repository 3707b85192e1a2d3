package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// A splitter cuts text into the pieces that merges may not cross.
//
// first returns the length in bytes of the first piece of s, 1 … len(s), for non-empty s. All known
// patterns look only forward, so the rest of the text is enough to decide.
type splitter interface {
	first(s string) int
}

type splitterFunc func(s string) int

func (f splitterFunc) first(s string) int { return f(s) }

var _ splitter = splitterFunc(nil)

// splitAll calls emit for each piece of s after all splitters, each of which cuts what the one
// before it left.
func splitAll(s string, splitters []splitter, emit func(piece string)) {
	if s == "" {
		return
	}
	if len(splitters) == 0 {
		emit(s)
		return
	}
	head, rest := splitters[0], splitters[1:]
	for s != "" {
		n := head.first(s)
		if len(rest) == 0 {
			emit(s[:n])
		} else {
			splitAll(s[:n], rest, emit)
		}
		s = s[n:]
	}
}

// runeAt decodes the rune at s[i:], which must not be empty.
func runeAt(s string, i int) (r rune, width int) {
	if b := s[i]; b < utf8.RuneSelf {
		return rune(b), 1
	}
	return utf8.DecodeRuneInString(s[i:])
}

func isLetter(r rune) bool {
	if r < utf8.RuneSelf {
		return 'a' <= r|0x20 && r|0x20 <= 'z'
	}
	return unicode.IsLetter(r)
}

func isNumber(r rune) bool {
	if r < utf8.RuneSelf {
		return '0' <= r && r <= '9'
	}
	return unicode.IsNumber(r)
}

func isSpace(r rune) bool { return unicode.IsSpace(r) }

func isOther(r rune) bool { return !isLetter(r) && !isNumber(r) && !isSpace(r) }

// run returns the end of the longest run of runes that satisfy is, from s[i:], of at most limit runes.
func run(s string, i, limit int, is func(rune) bool) int {
	for ; i < len(s) && limit > 0; limit-- {
		r, w := runeAt(s, i)
		if !is(r) {
			break
		}
		i += w
	}
	return i
}

const unlimited = int(^uint(0) >> 1)

// spaces returns the end of the white space at the start of s and how much of it `\s+(?!\S)` takes:
// all of it at the end of the text, otherwise all but the last character. kept is 0 if s has one
// space character only (then the pattern does not match) or none.
func spaces(s string) (end, kept int) {
	last := 0
	for end < len(s) {
		r, w := runeAt(s, end)
		if !isSpace(r) {
			break
		}
		last = end
		end += w
	}
	if end == len(s) {
		return end, end
	}
	return end, last
}

// splitGPT2 cuts as the pattern of GPT-2 does, which byte-level pre-tokenizers use by default:
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func splitGPT2(s string) int {
	if n := contraction(s, false); n > 0 {
		return n
	}
	i := 0
	if s[0] == ' ' {
		i = 1
	}
	if i < len(s) {
		switch r, w := runeAt(s, i); {
		case isLetter(r):
			return run(s, i+w, unlimited, isLetter)
		case isNumber(r):
			return run(s, i+w, unlimited, isNumber)
		case !isSpace(r):
			return run(s, i+w, unlimited, isOther)
		}
	}
	end, kept := spaces(s)
	if kept > 0 {
		return kept
	}
	return end
}

// contraction returns the length of an English contraction ('s 't 're 've 'm 'll 'd) at the start of
// s, or 0. With fold, its letters may be of either case.
func contraction(s string, fold bool) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	lower := func(i int) rune {
		if i >= len(s) {
			return 0
		}
		r, _ := runeAt(s, i)
		if !fold {
			return r
		}
		if r == 'ſ' { // the long s folds to s
			return 's'
		}
		return unicode.ToLower(r)
	}
	_, w := runeAt(s, 1)
	first, second := lower(1), lower(1+w)
	switch first {
	case 's', 't', 'm', 'd':
		return 1 + w
	case 'r', 'v':
		if second == 'e' {
			return 3
		}
	case 'l':
		if second == 'l' {
			return 3
		}
	}
	return 0
}

// splitDigits cuts out every single numeric character: the Digits pre-tokenizer with individual_digits.
func splitDigits(s string) int {
	r, w := runeAt(s, 0)
	if isNumber(r) {
		return w
	}
	return run(s, w, unlimited, func(r rune) bool { return !isNumber(r) })
}

// splitDigitRuns cuts between runs of numeric characters and everything else.
func splitDigitRuns(s string) int {
	r, w := runeAt(s, 0)
	numeric := isNumber(r)
	return run(s, w, unlimited, func(r rune) bool { return isNumber(r) == numeric })
}
