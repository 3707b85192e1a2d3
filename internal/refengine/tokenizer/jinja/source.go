package jinja

import (
	"errors"
	"fmt"
	"regexp"
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
	out    strings.Builder
	lines  []int
	line   int     // current line of the original
	depth  int     // of nested expressions
	blocks []block // that are open
}

// block is a statement that has an end tag.
type block struct {
	keyword string
	line    int
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

// trimming is what a tag says about the text behind it.
type trimming struct {
	lineStart bool // the tag took a line break with it: a line starts here
	trimLeft  bool // the tag ended with "-"
}

func (t *translator) template(src string) error {
	after := trimming{lineStart: true}
	for src != "" {
		open := nextTag(src)
		if open < 0 {
			t.text(trimmedLeft(src, &after))
			break
		}
		text := trimmedLeft(src[:open], &after)
		kind, body := src[open+1], src[open+2:]
		var sign byte
		if body != "" && (body[0] == '-' || body[0] == '+' && kind != '{') {
			sign, body = body[0], body[1:]
		}
		switch {
		case sign == '-':
			text = strings.TrimRightFunc(text, unicode.IsSpace)
		case sign == 0 && kind != '{':
			text = stripIndent(text, after.lineStart)
		}
		t.text(text)
		t.line += strings.Count(src[:open], "\n")
		var err error
		if src, after, err = t.tag(kind, body); err != nil {
			return err
		}
	}
	if n := len(t.blocks); n > 0 {
		t.line = t.blocks[n-1].line
		return fmt.Errorf("%q is not closed", t.blocks[n-1].keyword)
	}
	return nil
}

// trimmedLeft applies what the tag before text asked for.
func trimmedLeft(text string, after *trimming) string {
	if !after.trimLeft {
		return text
	}
	trimmed := strings.TrimLeftFunc(text, unicode.IsSpace)
	after.lineStart = strings.HasSuffix(text[:len(text)-len(trimmed)], "\n")
	return trimmed
}

// tag translates one tag, of which the opening is gone, and returns what follows it.
func (t *translator) tag(kind byte, body string) (rest string, after trimming, err error) {
	if kind == '#' {
		end := strings.Index(body, "#}")
		if end < 0 {
			return "", after, errors.New("comment is not closed")
		}
		t.line += strings.Count(body[:end], "\n")
		var closing byte
		if end > 0 {
			closing = body[end-1]
		}
		rest, after = t.afterTag(body[end+2:], closing, true)
		return rest, after, nil
	}
	tokens, rest, closing, err := lexTag(body, kind)
	if err != nil {
		return "", after, err
	}
	switch {
	case kind == '{':
		var expr string
		if expr, err = t.expression(group(tokens)); err == nil {
			t.emit("{{ ( " + expr + " ) | _print }}")
		}
	case len(tokens) == 1 && tokens[0].is(nameToken, "raw"):
		t.line += strings.Count(body[:len(body)-len(rest)], "\n")
		return t.raw(rest, closing)
	default:
		err = t.statement(group(tokens))
	}
	if err != nil {
		return "", after, err
	}
	t.line += strings.Count(body[:len(body)-len(rest)], "\n")
	rest, after = t.afterTag(rest, closing, kind == '%')
	return rest, after, nil
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

// afterTag reads what the end of a tag says about the text behind it: "-" removes white space, and a
// block or comment takes one line break with it unless it ends with "+" (trim_blocks).
func (t *translator) afterTag(src string, closing byte, block bool) (rest string, after trimming) {
	switch {
	case closing == '-':
		return src, trimming{trimLeft: true}
	case block && closing != '+' && strings.HasPrefix(src, "\n"):
		t.line++
		return src[1:], trimming{lineStart: true}
	}
	return src, trimming{}
}

var endRaw = regexp.MustCompile(`\{%([-+]?)\s*endraw\s*([-+]?)%\}`)

// raw copies everything up to {% endraw %}.
func (t *translator) raw(src string, closing byte) (rest string, after trimming, err error) {
	at := endRaw.FindStringSubmatchIndex(src)
	if at == nil {
		return "", after, errors.New("raw block is not closed")
	}
	text := src[:at[0]]
	if closing == '-' {
		text = strings.TrimLeftFunc(text, unicode.IsSpace)
	}
	switch src[at[2]:at[3]] {
	case "-":
		text = strings.TrimRightFunc(text, unicode.IsSpace)
	case "":
		text = stripIndent(text, false)
	}
	t.text(text)
	t.line += strings.Count(src[:at[1]], "\n")
	var end byte
	if at[4] < at[5] {
		end = src[at[4]]
	}
	rest, after = t.afterTag(src[at[1]:], end, true)
	return rest, after, nil
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
