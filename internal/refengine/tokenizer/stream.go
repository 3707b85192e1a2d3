package tokenizer

import "unicode/utf8"

const replacement = "\uFFFD"

// Stream turns the ids of one reply into text as they come.
//
// A token may end in the middle of a character; its bytes wait until the character is complete. The
// texts of all Push calls and of Flush, put together, equal Decode of all ids. A Stream is used by
// one goroutine.
type Stream struct {
	// KeepSpecial makes special tokens appear in the text. By default they are skipped, as the engine
	// does unless the request says skip_special_tokens:false. Set it before the first Push.
	KeepSpecial bool

	t       *Tokenizer
	pending []byte // an incomplete character, at most 3 bytes
	started bool   // some text has come out: a leading space is no longer dropped
}

// NewStream returns a Stream for one reply.
func (t *Tokenizer) NewStream() *Stream { return &Stream{t: t} }

// Push adds the next id and returns the text that it completes, "" if none. Ids outside the
// vocabulary stand for nothing.
func (s *Stream) Push(id int32) string {
	if !s.t.valid(id) || !s.KeepSpecial && s.t.special[id] {
		return ""
	}
	raw := s.t.raw[id]
	if s.t.dropLeadingSpace && !s.started {
		if len(raw) > 0 && raw[0] == ' ' {
			raw = raw[1:]
		}
		s.started = true
	}
	if len(s.pending) == 0 && utf8.ValidString(raw) {
		return raw
	}
	s.pending = append(s.pending, raw...)
	text, rest := decodeLossy(s.pending, false)
	s.pending = append(s.pending[:0], rest...)
	return text
}

// Flush returns what is left at the end of the reply: a replacement character if the last character
// is incomplete, else "".
func (s *Stream) Flush() string {
	text, _ := decodeLossy(s.pending, true)
	s.pending = s.pending[:0]
	return text
}

// decodeLossy turns b into valid UTF-8: each maximal prefix of a character that does not continue as
// one becomes one U+FFFD, and so does each byte that can start none. (Go's own conversions write one
// per byte.) Unless final, an incomplete character at the end is returned as rest.
func decodeLossy(b []byte, final bool) (text string, rest []byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	out := make([]byte, 0, len(b)+len(replacement))
	for len(b) > 0 {
		r, w := utf8.DecodeRune(b)
		if r != utf8.RuneError || w > 1 {
			out = append(out, b[:w]...)
			b = b[w:]
			continue
		}
		if !final && !utf8.FullRune(b) {
			return string(out), b
		}
		out = append(out, replacement...)
		b = b[brokenPrefix(b):]
	}
	return string(out), nil
}

// brokenPrefix returns how many bytes of b, which does not start with a valid character, one
// replacement character stands for: the longest part that could have begun a character, at least 1.
func brokenPrefix(b []byte) int {
	n := 1
	for n < len(b) && n < utf8.UTFMax && !utf8.FullRune(b[:n]) {
		if utf8.FullRune(b[:n+1]) { // the next byte cannot continue it
			break
		}
		n++
	}
	return n
}
