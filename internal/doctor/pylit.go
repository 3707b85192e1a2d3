package doctor

import (
	"errors"
	"strconv"
	"strings"
)

// pyParser reads Python's repr of settings, as vLLM writes them into its log: dicts, lists, tuples, strings, numbers,
// True, False, None, and calls such as KVTransferConfig(kv_role='kv_producer'). Values become map[string]any, []any,
// string, float64, bool and nil; a call becomes the map of its keyword arguments. What it cannot read ends the value
// that it is in, so that a line that was cut short gives what stood before the cut.
type pyParser struct {
	s     string
	i     int
	depth int
}

// maxPyDepth bounds nesting: a log is not trusted.
const maxPyDepth = 32

var errPy = errors.New("not a Python literal")

func (p *pyParser) space() {
	for p.i < len(p.s) && (p.s[p.i] == ' ' || p.s[p.i] == '\t') {
		p.i++
	}
}

func (p *pyParser) eat(c byte) bool {
	p.space()
	if p.i < len(p.s) && p.s[p.i] == c {
		p.i++
		return true
	}
	return false
}

// value reads one value. On an error it returns what it has of it, which may be nil.
func (p *pyParser) value() (any, error) {
	if p.depth++; p.depth > maxPyDepth {
		return nil, errPy
	}
	defer func() { p.depth-- }()
	p.space()
	if p.i >= len(p.s) {
		return nil, errPy
	}
	switch c := p.s[p.i]; {
	case c == '{':
		p.i++
		return p.dict()
	case c == '[':
		p.i++
		return p.list(']')
	case c == '(':
		p.i++
		return p.list(')')
	case c == '\'' || c == '"':
		return p.text(c)
	case c == '<': // <CompilationMode.NONE: 0>
		end := strings.IndexByte(p.s[p.i:], '>')
		if end < 0 {
			return nil, errPy
		}
		v := p.s[p.i : p.i+end+1]
		p.i += end + 1
		return v, nil
	}
	return p.word()
}

func (p *pyParser) text(quote byte) (any, error) {
	var b strings.Builder
	for p.i++; p.i < len(p.s); p.i++ {
		switch c := p.s[p.i]; {
		case c == quote:
			p.i++
			return b.String(), nil
		case c == '\\' && p.i+1 < len(p.s):
			p.i++
			b.WriteByte(p.s[p.i])
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), errPy
}

// word reads a number, a name, a dotted name or a call.
func (p *pyParser) word() (any, error) {
	start := p.i
	for p.i < len(p.s) && !strings.ContainsRune(" \t,:=()[]{}'\"", rune(p.s[p.i])) {
		p.i++
	}
	w := p.s[start:p.i]
	if w == "" {
		return nil, errPy
	}
	if p.i < len(p.s) && p.s[p.i] == '(' {
		p.i++
		return p.arguments(')')
	}
	switch w {
	case "True":
		return true, nil
	case "False":
		return false, nil
	case "None":
		return nil, nil
	}
	if f, err := strconv.ParseFloat(w, 64); err == nil {
		return f, nil
	}
	return w, nil // an unquoted name: torch.bfloat16, auto
}

func (p *pyParser) dict() (any, error) {
	m := map[string]any{}
	for {
		if p.eat('}') {
			return m, nil
		}
		k, err := p.value()
		if err != nil {
			return m, err
		}
		if !p.eat(':') {
			return m, errPy
		}
		v, err := p.value()
		if key, ok := k.(string); ok {
			m[key] = v
		}
		if err != nil {
			return m, err
		}
		if !p.eat(',') && (p.i >= len(p.s) || p.s[p.i] != '}') {
			return m, errPy
		}
	}
}

func (p *pyParser) list(end byte) (any, error) {
	l := []any{}
	for {
		if p.eat(end) {
			return l, nil
		}
		v, err := p.value()
		if err != nil {
			return l, err
		}
		l = append(l, v)
		if !p.eat(',') && (p.i >= len(p.s) || p.s[p.i] != end) {
			return l, errPy
		}
	}
}

// arguments reads NAME=VALUE, … up to end; end 0 is the end of the text. Positional arguments are passed over.
func (p *pyParser) arguments(end byte) (any, error) {
	m := map[string]any{}
	for {
		p.space()
		if p.i >= len(p.s) {
			if end == 0 {
				return m, nil
			}
			return m, errPy
		}
		if end != 0 && p.eat(end) {
			return m, nil
		}
		start := p.i
		for p.i < len(p.s) && (p.s[p.i] == '_' || p.s[p.i] >= 'a' && p.s[p.i] <= 'z' || p.s[p.i] >= 'A' && p.s[p.i] <= 'Z' || p.s[p.i] >= '0' && p.s[p.i] <= '9') {
			p.i++
		}
		name := p.s[start:p.i]
		if name == "" || !p.eat('=') {
			p.i, name = start, ""
		}
		v, err := p.value()
		if name != "" {
			m[name] = v
		}
		if err != nil {
			return m, err
		}
		if !p.eat(',') && (end == 0 || p.i >= len(p.s) || p.s[p.i] != end) {
			p.space()
			if end == 0 && p.i >= len(p.s) {
				return m, nil
			}
			return m, errPy
		}
	}
}

// parsePyDict reads the dict that s begins with, as far as it goes.
func parsePyDict(s string) map[string]any {
	v, _ := (&pyParser{s: s}).value() // as much as there is
	m, _ := v.(map[string]any)
	return m
}

// parsePyArguments reads NAME=VALUE, … as far as it goes.
func parsePyArguments(s string) map[string]any {
	v, _ := (&pyParser{s: s}).arguments(0) // as much as there is
	m, _ := v.(map[string]any)
	return m
}
