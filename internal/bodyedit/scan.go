package bodyedit

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// MaxDepth is the deepest nesting that [Scan] accepts, counting the outermost object as 1.
//
// Agent traffic stays far below it (tool schemas reach a few dozen); engines give up at a depth that
// depends on their build, so the router refuses deeper bodies with a clear error instead.
const MaxDepth = 1024

// SyntaxError says that a text is not one well-formed JSON value, and where.
type SyntaxError struct {
	Offset int    // bytes from the start of the text to the place that cannot be right
	Reason string // never contains bytes of the text
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("json at byte %d: %s", e.Offset, e.Reason)
}

// Reasons of a SyntaxError.
const (
	reasonEnd      = "unexpected end"
	reasonObject   = "want an object"
	reasonName     = "want a member name"
	reasonColon    = "want a colon after the member name"
	reasonNext     = "want a comma or the end of the object or array"
	reasonValue    = "want a value"
	reasonNumber   = "malformed number"
	reasonEscape   = "malformed escape in a string"
	reasonControl  = "control character in a string"
	reasonDepth    = "nested too deep"
	reasonTrailing = "something follows the value"
)

func fail(at int, reason string) error { return &SyntaxError{Offset: at, Reason: reason} }

// skipSpace returns the first position at or behind i that is not JSON white space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && b[i] <= ' ' && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

const (
	lsb8 = 0x0101010101010101
	msb8 = 0x8080808080808080
)

// stops marks, in the top bit of each byte of w, exactly the bytes at which a string cannot simply go on: quote,
// backslash and control characters.
func stops(w uint64) uint64 {
	const low7 = 0x7f7f7f7f7f7f7f7f
	q, s := w^(lsb8*'"'), w^(lsb8*'\\')
	// The top bit of a byte of each sum is clear if the byte is 0, or below 0x20; no sum carries into the next byte.
	return ^((q&low7 + low7 | q) & (s&low7 + low7 | s) & (w&low7 + lsb8*0x60 | w)) & msb8
}

// mayStop is stops(w) != 0, in fewer steps: borrows set marks only where there is one below.
func mayStop(w uint64) bool {
	q := w ^ (lsb8 * '"')
	s := w ^ (lsb8 * '\\')
	return ((q-lsb8)&^q|(s-lsb8)&^s|(w-lsb8*0x20)&^w)&msb8 != 0
}

// skipString returns the position behind the string whose opening quote is at i.
func skipString(b []byte, i int) (int, error) {
	i++
next:
	for i+8 <= len(b) {
		w := binary.LittleEndian.Uint64(b[i:])
		if !mayStop(w) {
			i += 8
			continue
		}
		for m := stops(w); m != 0; {
			k := bits.TrailingZeros64(m) - 7 // where the byte begins
			if c := byte(w >> k); c == '"' {
				return i + k>>3 + 1, nil
			} else if c == '\\' && k < 56 && isEscape[byte(w>>(k+8))] {
				m &^= 0x8080 << k // and whatever it escapes; the next word need not wait for this
				continue
			}
			i += k >> 3
			n, err := skipOne(b, i)
			if err != nil {
				return i, err
			}
			i += n
			continue next
		}
		i += 8
	}
	for i < len(b) {
		if b[i] == '"' {
			return i + 1, nil
		}
		n, err := skipOne(b, i)
		if err != nil {
			return i, err
		}
		i += n
	}
	return len(b), fail(len(b), reasonEnd)
}

// skipOne returns the length of the character or escape of a string at i, which is no quote.
func skipOne(b []byte, i int) (int, error) {
	switch c := b[i]; {
	case c == '\\':
		n := escapeLen(b[i:])
		if n == 0 {
			return 0, fail(i, reasonEscape)
		}
		return n, nil
	case c < 0x20:
		return 0, fail(i, reasonControl)
	}
	return 1, nil
}

// isEscape has the bytes that make an escape of two bytes with a backslash in front.
var isEscape = [256]bool{'"': true, '\\': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// escapeLen returns the length in bytes of the escape sequence that b begins with, 0 if it is malformed.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) >= 6 && hex4(b[2:6]) >= 0 {
			return 6
		}
	}
	return 0
}

// hex4 returns the value of four hexadecimal digits, -1 if b is something else.
func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// skipNumber returns the position behind the number that starts at i.
func skipNumber(b []byte, i int) (int, error) {
	start := i
	digits := func() bool {
		from := i
		for i < len(b) && '0' <= b[i] && b[i] <= '9' {
			i++
		}
		return i > from
	}
	if i < len(b) && b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if !digits() {
		return start, fail(i, reasonNumber)
	}
	if i < len(b) && b[i] == '.' {
		i++
		if !digits() {
			return start, fail(i, reasonNumber)
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if !digits() {
			return start, fail(i, reasonNumber)
		}
	}
	return i, nil
}

// skipScalar returns the position behind the string, number or literal that starts at i.
func skipScalar(b []byte, i int) (int, error) {
	if i >= len(b) {
		return i, fail(i, reasonEnd)
	}
	switch c := b[i]; {
	case c == '"':
		return skipString(b, i)
	case c == '-' || '0' <= c && c <= '9':
		return skipNumber(b, i)
	case c == 'n' && i+4 <= len(b) && string(b[i:i+4]) == "null":
		return i + 4, nil
	case c == 't' && i+4 <= len(b) && string(b[i:i+4]) == "true":
		return i + 4, nil
	case c == 'f' && i+5 <= len(b) && string(b[i:i+5]) == "false":
		return i + 5, nil
	}
	return i, fail(i, reasonValue)
}

// skipValue returns the position behind the value that starts at i. depth is the number of containers
// around it.
func skipValue(b []byte, i, depth int) (int, error) {
	if i < len(b) && (b[i] == '{' || b[i] == '[') {
		return skipContainer(b, i, depth)
	}
	return skipScalar(b, i)
}

// skipContainer returns the position behind the object or array that starts at i. It does not recurse: the
// kinds of the open containers are one bit each.
func skipContainer(b []byte, i, outer int) (int, error) {
	var isObject [MaxDepth / 64]uint64
	depth := 0 // open containers, counted from here
	var err error

value: // b[i] begins a value
	if i < len(b) && (b[i] == '{' || b[i] == '[') {
		if outer+depth >= MaxDepth {
			return i, fail(i, reasonDepth)
		}
		bit := uint64(1) << (depth & 63)
		if b[i] == '{' {
			isObject[depth>>6] |= bit
		} else {
			isObject[depth>>6] &^= bit
		}
		depth++
		object := b[i] == '{'
		i = skipSpace(b, i+1)
		if i < len(b) && (object && b[i] == '}' || !object && b[i] == ']') {
			i++
			depth--
			goto after
		}
		if object {
			goto name
		}
		goto value
	}
	if i, err = skipScalar(b, i); err != nil {
		return i, err
	}

after: // a value ends before b[i]
	if depth == 0 {
		return i, nil
	}
	i = skipSpace(b, i)
	if i >= len(b) {
		return i, fail(i, reasonEnd)
	}
	if isObject[(depth-1)>>6]&(1<<((depth-1)&63)) != 0 {
		switch b[i] {
		case ',':
			i = skipSpace(b, i+1)
			goto name
		case '}':
			i++
			depth--
			goto after
		}
	} else {
		switch b[i] {
		case ',':
			i = skipNumbers(b, skipSpace(b, i+1))
			goto value
		case ']':
			i++
			depth--
			goto after
		}
	}
	return i, fail(i, reasonNext)

name: // b[i] begins a member
	if i, err = skipName(b, i); err != nil {
		return i, err
	}
	goto value
}

// skipNumbers returns the position behind the whole numbers at i that have a comma behind them, and behind that comma: lists
// of token and block ids are long. Whatever else is there is for the caller to look at.
func skipNumbers(b []byte, i int) int {
	for i < len(b) && '1' <= b[i] && b[i] <= '9' {
		end := i + 1
		for end < len(b) && b[end]-'0' <= 9 {
			end++
		}
		if end >= len(b) || b[end] != ',' {
			break
		}
		i = skipSpace(b, end+1)
	}
	return i
}

// skipName reads a member name at i and the colon behind it, and returns where the value starts.
func skipName(b []byte, i int) (int, error) {
	if i >= len(b) {
		return i, fail(i, reasonEnd)
	}
	if b[i] != '"' {
		return i, fail(i, reasonName)
	}
	i, err := skipString(b, i)
	if err != nil {
		return i, err
	}
	return skipColon(b, i)
}

// skipColon reads the colon at or behind i and returns where the value starts.
func skipColon(b []byte, i int) (int, error) {
	i = skipSpace(b, i)
	if i >= len(b) {
		return i, fail(i, reasonEnd)
	}
	if b[i] != ':' {
		return i, fail(i, reasonColon)
	}
	return skipSpace(b, i+1), nil
}
