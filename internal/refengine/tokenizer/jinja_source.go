package tokenizer

import (
	"fmt"
	"strings"
	"unicode"
)

// Chat templates are written for Python's Jinja2. The template engine underneath understands most of
// the language but not all of it: no conditional expression inside another expression, no line breaks
// inside a tag, no method call on a parenthesis. translate rewrites a template into the part that
// it does understand, with the same meaning, and applies the white-space rules on the way
// (trim_blocks and lstrip_blocks, as Hugging Face sets them).
//
// The result has one piece of the template per line; lines maps each line back to the line of the
// original, for error messages.
func translate(source string) (out string, lines []int, err error) {
	t := translator{line: 1}
	source = strings.ReplaceAll(source, "\r\n", "\n")
	source = strings.ReplaceAll(source, "\r", "\n")
	source = strings.TrimSuffix(source, "\n")
	if err := t.template(source); err != nil {
		return "", nil, fmt.Errorf("line %d: %w", t.line, err)
	}
	return t.out.String(), t.lines, nil
}

type translator struct {
	out   strings.Builder
	lines []int
	line  int // current line of the original
	depth int // of nested expressions
}

// maxTemplateDepth bounds nesting of brackets and blocks: everything here and in the engine below
// recurses along it.
const maxTemplateDepth = 150

// emit adds one piece on a line of its own. The comment between pieces takes the line break.
func (t *translator) emit(piece string) {
	t.out.WriteString(piece)
	t.out.WriteString("{#\n#}")
	t.lines = append(t.lines, t.line)
}

// text adds literal text of the template.
func (t *translator) text(s string) {
	if s != "" {
		t.emit("{{ " + quote(s) + " }}")
	}
}

func (t *translator) template(src string) error {
	lineStart := true // the text before src ended with a line break, or there is none
	trimLeft := false // the tag before ended with "-"
	blocks := 0
	for src != "" {
		open := nextTag(src)
		text := src
		if open >= 0 {
			text = src[:open]
		}
		lines := strings.Count(text, "\n")
		if trimLeft {
			if trimmed := strings.TrimLeftFunc(text, unicode.IsSpace); trimmed != text {
				cut := text[:len(text)-len(trimmed)]
				lineStart = strings.HasSuffix(cut, "\n")
				text = trimmed
			}
			trimLeft = false
		}
		if open < 0 {
			t.text(text)
			return nil
		}
		kind, sign := src[open+1], byte(0)
		if open+2 < len(src) {
			sign = src[open+2]
		}
		switch {
		case sign == '-':
			text = strings.TrimRightFunc(text, unicode.IsSpace)
		case sign != '+' && kind != '{':
			text = stripIndent(text, lineStart)
		}
		t.text(text)
		t.line += lines
		body := src[open+2:]
		if sign == '-' || sign == '+' && kind != '{' {
			body = body[1:]
		}

		if kind == '#' {
			end := strings.Index(body, "#}")
			if end < 0 {
				return fmt.Errorf("comment is not closed")
			}
			t.line += strings.Count(body[:end], "\n")
			var closing byte
			if end > 0 {
				closing = body[end-1]
			}
			src, lineStart, trimLeft = t.afterTag(body[end+2:], closing, true)
			continue
		}

		tokens, rest, closing, err := lexTag(body, kind)
		if err != nil {
			return err
		}
		if kind == '%' && len(tokens) == 1 && tokens[0].text == "raw" {
			var err error
			if src, lineStart, trimLeft, err = t.raw(body, rest, closing); err != nil {
				return err
			}
			continue
		}
		if kind == '{' {
			expr, err := t.expression(group(tokens))
			if err != nil {
				return err
			}
			t.emit("{{ ( " + expr + " ) | _print }}")
		} else {
			change, err := t.statement(tokens)
			if err != nil {
				return err
			}
			if blocks += change; blocks > maxTemplateDepth {
				return fmt.Errorf("blocks nested more than %d deep", maxTemplateDepth)
			}
		}
		t.line += strings.Count(body[:len(body)-len(rest)], "\n")
		src, lineStart, trimLeft = t.afterTag(rest, closing, kind == '%')
	}
	return nil
}

// nextTag returns where the next "{{", "{%" or "{#" starts, or -1.
func nextTag(s string) int {
	for from := 0; ; {
		i := strings.IndexByte(s[from:], '{')
		if i < 0 || from+i+1 >= len(s) {
			return -1
		}
		from += i
		if c := s[from+1]; c == '{' || c == '%' || c == '#' {
			return from
		}
		from++
	}
}

// stripIndent removes blanks between the start of a line and the tag that follows (lstrip_blocks).
func stripIndent(text string, lineStart bool) string {
	from := strings.LastIndexByte(text, '\n') + 1
	if (from > 0 || lineStart) && strings.TrimFunc(text[from:], unicode.IsSpace) == "" {
		return text[:from]
	}
	return text
}

// afterTag applies what the end of a tag says about the text behind it: "-" removes white space,
// and a block or comment takes one line break with it unless it ends with "+" (trim_blocks).
func (t *translator) afterTag(rest string, closing byte, block bool) (src string, lineStart, trimLeft bool) {
	switch {
	case closing == '-':
		return rest, false, true
	case block && closing != '+' && strings.HasPrefix(rest, "\n"):
		t.line++
		return rest[1:], true, false
	}
	return rest, false, false
}

// raw copies everything up to {% endraw %}.
func (t *translator) raw(body, rest string, closing byte) (src string, lineStart, trimLeft bool, err error) {
	t.line += strings.Count(body[:len(body)-len(rest)], "\n")
	for from := 0; ; {
		i := strings.Index(rest[from:], "{%")
		if i < 0 {
			return "", false, false, fmt.Errorf("raw block is not closed")
		}
		from += i
		tag := rest[from+2:]
		var sign byte
		if tag != "" && (tag[0] == '-' || tag[0] == '+') {
			sign, tag = tag[0], tag[1:]
		}
		trimmed := strings.TrimLeftFunc(tag, unicode.IsSpace)
		if !strings.HasPrefix(trimmed, "endraw") {
			from += 2
			continue
		}
		after := strings.TrimLeftFunc(strings.TrimPrefix(trimmed, "endraw"), unicode.IsSpace)
		var end byte
		if after != "" && (after[0] == '-' || after[0] == '+') {
			end, after = after[0], after[1:]
		}
		if !strings.HasPrefix(after, "%}") {
			from += 2
			continue
		}
		text := rest[:from]
		lines := strings.Count(rest[:len(rest)-len(after)], "\n")
		if closing == '-' {
			text = strings.TrimLeftFunc(text, unicode.IsSpace)
		}
		switch sign {
		case '-':
			text = strings.TrimRightFunc(text, unicode.IsSpace)
		case '+':
		default:
			text = stripIndent(text, false)
		}
		t.text(text)
		t.line += lines
		src, lineStart, trimLeft = t.afterTag(after[2:], end, true)
		return src, lineStart, trimLeft, nil
	}
}

// quote writes s as a string literal that the engine's lexer reads back unchanged, whatever is in it.
func quote(s string) string {
	var b strings.Builder
	b.Grow(len(s) + 2)
	b.WriteByte('\'')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '\n':
			b.WriteString(`\n`)
		case c < 0x20 || c == '\'' || c == '"' || c == '\\' || c == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('\'')
	return b.String()
}
