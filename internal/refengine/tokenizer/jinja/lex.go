package jinja

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind byte

const (
	nameToken     tokenKind = 'n'
	numberToken   tokenKind = '0'
	stringToken   tokenKind = 's' // text is the value, without quotes
	operatorToken tokenKind = 'o'
	groupToken    tokenKind = '(' // text is the opening bracket; inner is what it encloses
)

type tagToken struct {
	kind  tokenKind
	text  string
	inner []tagToken
}

func (t tagToken) is(kind tokenKind, text string) bool { return t.kind == kind && t.text == text }

var errTagOpen = errors.New("tag is not closed")

// lexTag reads the tokens of a tag, whose first two characters are already gone, up to its end.
// closing is the white-space sign before the end, "-", "+" or 0.
func lexTag(body string, kind byte) (tokens []tagToken, rest string, closing byte, err error) {
	end := "%}"
	if kind == '{' {
		end = "}}"
	}
	depth := 0
	for i := 0; ; {
		if i >= len(body) {
			return nil, "", 0, errTagOpen
		}
		c := body[i]
		if depth == 0 {
			if strings.HasPrefix(body[i:], end) {
				return tokens, body[i+2:], 0, nil
			}
			if (c == '-' || c == '+' && kind == '%') && strings.HasPrefix(body[i+1:], end) {
				return tokens, body[i+3:], c, nil
			}
		}
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f':
			i++
		case c == '\'' || c == '"':
			value, n, err := lexString(body[i:])
			if err != nil {
				return nil, "", 0, err
			}
			i += n
			if last := len(tokens) - 1; last >= 0 && tokens[last].kind == stringToken {
				tokens[last].text += value // neighbouring literals are one string
				break
			}
			tokens = append(tokens, tagToken{kind: stringToken, text: value})
		case c >= '0' && c <= '9':
			n := numberLength(body[i:])
			tokens = append(tokens, tagToken{kind: numberToken, text: body[i : i+n]})
			i += n
		default:
			r, w := utf8.DecodeRuneInString(body[i:])
			if r == '_' || unicode.IsLetter(r) {
				n := w
				for n < len(body)-i {
					r, w := utf8.DecodeRuneInString(body[i+n:])
					if r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) {
						break
					}
					n += w
				}
				tokens = append(tokens, tagToken{kind: nameToken, text: body[i : i+n]})
				i += n
				break
			}
			op := operatorAt(body[i:])
			if op == "" {
				return nil, "", 0, fmt.Errorf("unexpected character %q in a tag", r)
			}
			switch op {
			case "(", "[", "{":
				depth++
			case ")", "]", "}":
				depth--
			}
			if depth < 0 {
				return nil, "", 0, fmt.Errorf("unexpected %q", op)
			}
			tokens = append(tokens, tagToken{kind: operatorToken, text: op})
			i += len(op)
		}
	}
}

func operatorAt(s string) string {
	for _, op := range [...]string{"==", "!=", "<=", ">=", "//", "**"} {
		if strings.HasPrefix(s, op) {
			return op
		}
	}
	if strings.IndexByte("+-*/%~|.,:()[]{}=<>", s[0]) >= 0 {
		return s[:1]
	}
	return ""
}

func numberLength(s string) int {
	digits := func(i int) int {
		for i < len(s) && (s[i] >= '0' && s[i] <= '9' || s[i] == '_') {
			i++
		}
		return i
	}
	n := digits(0)
	if n+1 < len(s) && s[n] == '.' && s[n+1] >= '0' && s[n+1] <= '9' {
		n = digits(n + 1)
	}
	if n < len(s) && (s[n] == 'e' || s[n] == 'E') {
		exp := n + 1
		if exp < len(s) && (s[exp] == '+' || s[exp] == '-') {
			exp++
		}
		if end := digits(exp); end > exp {
			n = end
		}
	}
	return n
}

// lexString reads a quoted literal and returns its value and its length in the source. Escapes are
// Python's: an unknown one stands for itself, backslash included.
func lexString(s string) (value string, length int, err error) {
	var b strings.Builder
	for i := 1; i < len(s); {
		c := s[i]
		if c == s[0] {
			return b.String(), i + 1, nil
		}
		i++
		if c != '\\' || i >= len(s) {
			b.WriteByte(c)
			continue
		}
		c = s[i]
		i++
		switch c {
		case '\n':
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case 'r':
			b.WriteByte('\r')
		case 'b':
			b.WriteByte('\b')
		case 'f':
			b.WriteByte('\f')
		case 'v':
			b.WriteByte('\v')
		case 'a':
			b.WriteByte('\a')
		case '\\', '\'', '"':
			b.WriteByte(c)
		case 'x', 'u', 'U':
			n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			if i+n > len(s) {
				return "", 0, fmt.Errorf("escape \\%c is cut off", c)
			}
			code, err := strconv.ParseUint(s[i:i+n], 16, 32)
			if err != nil {
				return "", 0, fmt.Errorf("escape \\%c%s is not hexadecimal", c, s[i:i+n])
			}
			b.WriteRune(rune(code))
			i += n
		case '0', '1', '2', '3', '4', '5', '6', '7':
			code, n := int(c-'0'), 1
			for n < 3 && i < len(s) && s[i] >= '0' && s[i] <= '7' {
				code = code*8 + int(s[i]-'0')
				i++
				n++
			}
			b.WriteRune(rune(code))
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return "", 0, errors.New("string is not closed")
}

// group nests flat tokens by their brackets, which lexTag has checked for depth but not for kind.
func group(tokens []tagToken) []tagToken {
	out, _ := groupUntil(tokens, "")
	return out
}

func groupUntil(tokens []tagToken, closing string) (out, rest []tagToken) {
	for len(tokens) > 0 {
		tok := tokens[0]
		tokens = tokens[1:]
		if tok.kind == operatorToken {
			if tok.text == closing && closing != "" {
				return out, tokens
			}
			if end := map[string]string{"(": ")", "[": "]", "{": "}"}[tok.text]; end != "" {
				tok.kind = groupToken
				tok.inner, tokens = groupUntil(tokens, end)
			}
		}
		out = append(out, tok)
	}
	return out, nil
}
