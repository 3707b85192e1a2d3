package jinja

import (
	"math"
	"sort"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text is Python's str(), what {{ v }} prints.
func Text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	}
	return represent(v)
}

// represent is Python's repr().
func represent(v any) string {
	var b strings.Builder
	writeRepr(&b, v)
	return b.String()
}

func writeRepr(b *strings.Builder, v any) {
	switch v := v.(type) {
	case nil:
		b.WriteString("Undefined")
	case none:
		b.WriteString("None")
	case bool:
		if v {
			b.WriteString("True")
		} else {
			b.WriteString("False")
		}
	case int:
		b.WriteString(strconv.Itoa(v))
	case float64:
		b.WriteString(floatText(v))
	case number:
		b.WriteString(string(v))
	case string:
		writeReprString(b, v)
	case List:
		b.WriteByte('[')
		for i := range v {
			if i > 0 {
				b.WriteString(", ")
			}
			writeRepr(b, v[i])
		}
		b.WriteByte(']')
	case Object:
		b.WriteByte('{')
		for i := range v {
			if i > 0 {
				b.WriteString(", ")
			}
			writeReprString(b, v[i].Key)
			b.WriteString(": ")
			writeRepr(b, v[i].Value)
		}
		b.WriteByte('}')
	default:
		b.WriteString("<object>")
	}
}

// floatText writes f as Python does: always with a point or an exponent.
func floatText(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		s := strconv.FormatFloat(f, 'e', -1, 64)
		return s
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

func writeReprString(b *strings.Builder, s string) {
	q := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		q = '"'
	}
	b.WriteByte(q)
	for _, r := range s {
		switch {
		case r == rune(q) || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x20 || r == 0x7f || r > 0x7f && r < 0x100 && !unicode.IsPrint(r):
			b.WriteString(`\x` + hex(r, 2))
		case r > 0xff && !unicode.IsPrint(r):
			if r > 0xffff {
				b.WriteString(`\U` + hex(r, 8))
			} else {
				b.WriteString(`\u` + hex(r, 4))
			}
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte(q)
}

func hex(r rune, digits int) string {
	s := strconv.FormatInt(int64(r), 16)
	return strings.Repeat("0", max(0, digits-len(s))) + s
}

// jsonStyle is how json.dumps was asked to write.
type jsonStyle struct {
	indent     int // spaces per level; negative: everything on one line
	item       string
	key        string
	ascii      bool
	sortedKeys bool
}

// writeJSON is Python's json.dumps: keys in order, "<" and "&" as they are.
func writeJSON(b *strings.Builder, v any, style jsonStyle, level int) error {
	switch v := v.(type) {
	case none:
		b.WriteString("null")
	case bool:
		b.WriteString(strconv.FormatBool(v))
	case int:
		b.WriteString(strconv.Itoa(v))
	case float64:
		switch text := floatText(v); text {
		case "nan":
			b.WriteString("NaN")
		case "inf":
			b.WriteString("Infinity")
		case "-inf":
			b.WriteString("-Infinity")
		default:
			b.WriteString(text)
		}
	case number:
		b.WriteString(string(v))
	case string:
		writeJSONString(b, v, style.ascii)
	case List:
		return writeSequence(b, '[', ']', len(v), style, level, func(i int) error {
			return writeJSON(b, v[i], style, level+1)
		})
	case Object:
		if style.sortedKeys {
			v = append(Object(nil), v...)
			sort.SliceStable(v, func(i, j int) bool { return v[i].Key < v[j].Key })
		}
		return writeSequence(b, '{', '}', len(v), style, level, func(i int) error {
			writeJSONString(b, v[i].Key, style.ascii)
			b.WriteString(style.key)
			return writeJSON(b, v[i].Value, style, level+1)
		})
	default:
		return &notJSONError{Kind(v)}
	}
	return nil
}

type notJSONError struct{ kind string }

func (e *notJSONError) Error() string { return e.kind + " cannot be written as JSON" }

func writeSequence(b *strings.Builder, open, closing byte, n int, style jsonStyle, level int, item func(i int) error) error {
	b.WriteByte(open)
	newline := func(level int) {
		if style.indent >= 0 {
			b.WriteByte('\n')
			b.WriteString(strings.Repeat(" ", level*style.indent))
		}
	}
	for i := range n {
		if i > 0 {
			b.WriteString(style.item)
		}
		newline(level + 1)
		if err := item(i); err != nil {
			return err
		}
	}
	if n > 0 {
		newline(level)
	}
	b.WriteByte(closing)
	return nil
}

func writeJSONString(b *strings.Builder, s string, ascii bool) {
	b.WriteByte('"')
	from := 0 // first byte not yet written
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' && (c < utf8.RuneSelf || !ascii) {
			i++
			continue
		}
		b.WriteString(s[from:i])
		r, w := utf8.DecodeRuneInString(s[i:])
		switch r {
		case '"', '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case '\n':
			b.WriteString(`\n`)
		case '\r':
			b.WriteString(`\r`)
		case '\t':
			b.WriteString(`\t`)
		case '\b':
			b.WriteString(`\b`)
		case '\f':
			b.WriteString(`\f`)
		default:
			if r > 0xffff {
				high, low := (r-0x10000)>>10+0xd800, (r-0x10000)&0x3ff+0xdc00
				b.WriteString(`\u` + hex(high, 4) + `\u` + hex(low, 4))
			} else {
				b.WriteString(`\u` + hex(r, 4))
			}
		}
		i += w
		from = i
	}
	b.WriteString(s[from:])
	b.WriteByte('"')
}
