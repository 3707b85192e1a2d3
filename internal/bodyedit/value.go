package bodyedit

import (
	"bytes"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Kind is what a raw JSON value is.
type Kind uint8

// The kinds of JSON values. None is no value at all: an absent member.
const (
	None Kind = iota
	Null
	True
	False
	Number
	Text
	Array
	Object
)

// KindOf tells the kind of the well-formed value raw by its first byte.
func KindOf(raw []byte) Kind {
	if len(raw) == 0 {
		return None
	}
	switch c := raw[0]; {
	case c == 'n':
		return Null
	case c == 't':
		return True
	case c == 'f':
		return False
	case c == '"':
		return Text
	case c == '[':
		return Array
	case c == '{':
		return Object
	case c == '-' || '0' <= c && c <= '9':
		return Number
	}
	return None
}

// IsNull reports whether raw is null.
func IsNull(raw []byte) bool { return string(raw) == "null" }

// Bool returns the value of raw if it is true or false.
func Bool(raw []byte) (v, ok bool) {
	switch string(raw) {
	case "true":
		return true, true
	case "false":
		return false, true
	}
	return false, false
}

// Int returns the value of raw if it is written as an integer that fits into 64 bits. 1.0 and 1e3 are not:
// engines that expect an integer break on them.
func Int(raw []byte) (v int64, ok bool) {
	digits := raw
	if len(raw) > 0 && raw[0] == '-' {
		digits = raw[1:]
	}
	if len(digits) == 0 || len(digits) > 19 || digits[0] == '0' && len(digits) > 1 {
		return 0, false
	}
	var u uint64
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		u = u*10 + uint64(c-'0') // 19 digits cannot overflow 64 bits
	}
	negative := len(digits) < len(raw)
	switch {
	case !negative && u <= math.MaxInt64:
		return int64(u), true
	case negative && u <= 1<<63:
		return -int64(u), true
	}
	return 0, false
}

// AppendInts appends the elements of the array raw to dst if all of them are whole numbers from 0 to 2^31-1, written with
// digits only. Otherwise it appends nothing and ok is false. It is for arrays of token and block
// ids, which have thousands of elements: [Elements] with [Int] would look at each three times.
func AppendInts[T int | int32](dst []T, raw []byte) (list []T, ok bool) {
	from := len(dst)
	if len(raw) == 0 || raw[0] != '[' {
		return dst, false
	}
	i := skipSpace(raw, 1)
	if i == len(raw)-1 && raw[i] == ']' {
		return dst, true
	}
	for {
		n, start := uint64(0), i
		for i < len(raw) && raw[i]-'0' <= 9 {
			if n = n*10 + uint64(raw[i]-'0'); n > math.MaxInt32 {
				return dst[:from], false
			}
			i++
		}
		if i == start {
			return dst[:from], false
		}
		dst = append(dst, T(n))
		if i = skipSpace(raw, i); i >= len(raw) {
			return dst[:from], false
		}
		switch {
		case raw[i] == ',':
			i = skipSpace(raw, i+1)
		case raw[i] == ']' && i == len(raw)-1:
			return dst, true
		default:
			return dst[:from], false
		}
	}
}

// Float returns the value of raw if it is a number that fits into a float64.
func Float(raw []byte) (v float64, ok bool) {
	if KindOf(raw) != Number {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	return v, err == nil
}

// String returns the unescaped content of raw if it is a string. Lone surrogates become U+FFFD.
func String(raw []byte) (v string, ok bool) {
	if len(raw) < 2 || raw[0] != '"' || raw[len(raw)-1] != '"' {
		return "", false
	}
	return string(unescaped(raw[1:len(raw)-1], nil)), true
}

// AppendText appends the unescaped content of the string raw to dst; it appends nothing if raw is not a string.
func AppendText(dst, raw []byte) []byte {
	if len(raw) < 2 || raw[0] != '"' || raw[len(raw)-1] != '"' {
		return dst
	}
	return appendUnescaped(dst, raw[1:len(raw)-1])
}

// TextIs reports whether raw is a string with the content want.
func TextIs(raw []byte, want string) bool {
	return len(raw) >= 2 && raw[0] == '"' && nameIs(raw[1:len(raw)-1], want)
}

// unescaped returns raw itself if it has no escapes, else its meaning, written to room.
func unescaped(raw, room []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	return appendUnescaped(room, raw)
}

// appendUnescaped appends the meaning of raw, the inside of a well-formed JSON string.
func appendUnescaped(dst, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:i]...)
		raw = raw[i:]
		n := escapeLen(raw)
		if n == 0 {
			return append(dst, raw...)
		}
		switch c := raw[1]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := hex4(raw[2:6])
			if utf16.IsSurrogate(r) {
				pair := rune(utf8.RuneError)
				if len(raw) >= 12 && raw[6] == '\\' && raw[7] == 'u' {
					if low := hex4(raw[8:12]); low >= 0 {
						pair = utf16.DecodeRune(r, low)
					}
				}
				if r = pair; r != utf8.RuneError {
					n = 12
				}
			}
			dst = utf8.AppendRune(dst, r)
		default: // quote, backslash, slash
			dst = append(dst, c)
		}
		raw = raw[n:]
	}
}

// AppendString appends s as a JSON string, escaping nothing but what JSON demands.
func AppendString(dst []byte, s string) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i := range len(s) {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		}
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}

// StringEnd returns the position behind the JSON string that begins at b[at], -1 if there is none or if it is
// malformed. It serves callers that compare texts they have scanned before.
func StringEnd(b []byte, at int) int {
	if at < 0 || at >= len(b) || b[at] != '"' {
		return -1
	}
	end, err := skipString(b, at)
	if err != nil {
		return -1
	}
	return end
}
