package api

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string the way vLLM writes one: only what JSON requires is escaped,
// so "<" and U+2028 stay as they are. Bytes that are not UTF-8 become U+FFFD.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, w := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && w == 1 {
				b = append(b, s[from:i]...)
				b = append(b, "\uFFFD"...)
				from = i + 1
			}
			i += w
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		b = append(b, s[from:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		case '\b':
			b = append(b, '\\', 'b')
		case '\f':
			b = append(b, '\\', 'f')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		from = i
	}
	b = append(b, s[from:]...)
	return append(b, '"')
}

// appendStringOrNull appends s, null if it is empty.
func appendStringOrNull(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return appendString(b, s)
}

func appendInt(b []byte, n int) []byte { return strconv.AppendInt(b, int64(n), 10) }

// appendIDs appends token ids as a JSON list; nil is null.
func appendIDs(b []byte, ids []int32) []byte {
	if ids == nil {
		return append(b, "null"...)
	}
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	return append(b, ']')
}

// appendFloat appends f as Python prints a float: shortest form that reads back, never without a point
// or an exponent. What JSON cannot say (infinities, NaN) becomes vLLM's stand-in for minus infinity.
func appendFloat(b []byte, f float64) []byte {
	if math.IsInf(f, 0) || math.IsNaN(f) {
		f = noLogprob
	}
	abs := math.Abs(f)
	if abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.AppendFloat(b, f, 'e', -1, 64)
	}
	from := len(b)
	b = strconv.AppendFloat(b, f, 'f', -1, 64)
	if !strings.ContainsRune(string(b[from:]), '.') {
		b = append(b, ".0"...)
	}
	return b
}

// appendRaw appends a JSON value that comes from elsewhere; none is null.
func appendRaw(b []byte, raw json.RawMessage) []byte {
	if len(raw) == 0 {
		return append(b, "null"...)
	}
	return append(b, raw...)
}

// appendCompact appends a JSON value that comes from elsewhere without white space; none is null.
func appendCompact(b []byte, raw json.RawMessage) []byte {
	if isNull(raw) {
		return append(b, "null"...)
	}
	return append(b, compactJSON(raw)...)
}

// compactJSON removes white space outside strings. raw is valid JSON.
func compactJSON(raw json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return raw
	}
	return b.Bytes()
}

// isNull reports whether raw is missing or the JSON null.
func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// pythonJSON rewrites compact or indented JSON with a space after each colon and comma, the form in
// which vLLM hands out the arguments of a tool call. It reports false if raw is not valid JSON.
func pythonJSON(raw string) (string, bool) {
	if !json.Valid([]byte(raw)) {
		return "", false
	}
	b := make([]byte, 0, len(raw)+len(raw)/8)
	inString := false
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		switch {
		case inString:
			b = append(b, c)
			if c == '\\' {
				i++
				b = append(b, raw[i])
			} else if c == '"' {
				inString = false
			}
		case c == '"':
			inString = true
			b = append(b, c)
		case c == ':' || c == ',':
			b = append(b, c, ' ')
		case c != ' ' && c != '\n' && c != '\r' && c != '\t':
			b = append(b, c)
		}
	}
	return string(b), true
}
