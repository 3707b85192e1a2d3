package analyze

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"unicode/utf8"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

// isLogLine reports whether line looks like any server's log: a level, a date or a bracket comes first.
func isLogLine(line []byte) bool {
	if line[0] == '(' { // vLLM puts the process in front: (APIServer pid=7)
		if i := bytes.IndexByte(line[:min(len(line), 64)], ')'); i > 0 {
			line = bytes.TrimLeft(line[i+1:], " ")
		}
	}
	for _, level := range [...]string{"DEBUG", "INFO", "WARNING", "WARN", "ERROR", "CRITICAL"} {
		if rest, ok := bytes.CutPrefix(line, []byte(level)); ok && len(rest) > 0 && (rest[0] == ' ' || rest[0] == ':' || rest[0] == '\t') {
			return true
		}
	}
	if len(line) >= 19 {
		if _, ok := isoInstant(line[:19]); ok {
			return true
		}
	}
	return len(line) > 20 && line[0] == '[' && '0' <= line[1] && line[1] <= '9'
}

var (
	received  = []byte("Received request ")
	details   = []byte(" details: prompt: ")
	prompt    = []byte(": prompt: ")
	tokenIDs  = []byte("prompt_token_ids: [")
	infoLevel = []byte("INFO ")
	dbgLevel  = []byte("DEBUG ")
)

// vllm reads a line of vLLM's request log: "Received request ID: prompt: '…', params: …, prompt_token_ids: […], …"
// up to 0.10, "Request ID details: prompt: '…', prompt_token_ids: […], …" at debug level since then. It reports
// whether the line is one, with a prompt or without.
//
// The request id is a new one each time, and the date has no year.
func (p *parser) vllm(line []byte) bool {
	at := bytes.Index(line, received)
	rest := []byte(nil)
	if at >= 0 {
		rest = line[at+len(received):]
		i := bytes.Index(rest[:min(len(rest), 256)], prompt)
		if i < 0 {
			p.skip(skipNoSize) // since 0.11 this line has no prompt; the details line has
			return true
		}
		rest = rest[i+len(prompt):]
	} else {
		at = bytes.Index(line[:min(len(line), 512)], details)
		if at < 0 {
			return false
		}
		rest = line[at+len(details):]
	}
	r := newRow()
	c := &p.text
	c.reset()
	if bytes.HasPrefix(rest, []byte("None")) {
		rest = rest[4:]
	} else {
		var ok bool
		c.piece(segRaw, true, func(dst []byte) []byte {
			dst, rest, ok = appendPython(dst, rest)
			return dst
		})
		if !ok {
			p.fail("a vLLM log line whose prompt is cut off")
			return true
		}
	}
	ids := int64(0)
	enc := p.enc[:0]
	if i := bytes.Index(rest, tokenIDs); i >= 0 {
		list := rest[i+len(tokenIDs)-1:]
		if end := bytes.IndexByte(list, ']'); end > 0 {
			ints(list[:end+1], func(v uint64) {
				enc = binary.LittleEndian.AppendUint32(enc, uint32(v))
				ids++
			})
		}
	}
	p.enc = enc
	switch {
	case len(c.segs) > 0 && len(c.text) > 0:
		r.kind, r.prompt, r.unit = textContent, runes(c.text), characters
		if ids > 0 {
			r.prompt, r.unit = ids, tokens
		}
		p.enc = c.encode(p.enc[:0])
		enc = p.enc
	case ids > 0:
		r.kind, r.prompt = idContent, ids
	default:
		p.skip(skipNoSize)
		return true
	}
	head := line[:at]
	for _, level := range [...][]byte{infoLevel, dbgLevel} {
		if i := bytes.Index(head, level); i >= 0 {
			if t, ok := vllmInstant(head[i+len(level):]); ok {
				r.start = t
			} else if t, ok := isoInstant(head[i+len(level) : min(len(head), i+len(level)+19)]); ok {
				r.start = t
			}
		}
	}
	if len(head) >= 19 && r.start == noTime {
		if t, ok := isoInstant(head[:19]); ok {
			r.start = t
		}
	}
	p.emit("vLLM request log", &r, enc)
	return true
}

// appendPython appends what a Python string literal at the start of b means, and returns what follows it.
func appendPython(dst, b []byte) (text, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != '\'' && b[0] != '"' {
		return dst, b, false
	}
	quote := b[0]
	for i := 1; i < len(b); {
		c := b[i]
		if c == quote {
			return dst, b[i+1:], true
		}
		if c != '\\' {
			dst = append(dst, c)
			i++
			continue
		}
		if i+1 >= len(b) {
			break
		}
		n := 0
		switch e := b[i+1]; e {
		case 'n':
			dst = append(dst, '\n')
		case 't':
			dst = append(dst, '\t')
		case 'r':
			dst = append(dst, '\r')
		case 'x':
			n = 2
		case 'u':
			n = 4
		case 'U':
			n = 8
		default:
			dst = append(dst, e)
		}
		i += 2
		if n > 0 {
			if i+n > len(b) {
				break
			}
			v, err := strconv.ParseUint(string(b[i:i+n]), 16, 32)
			if err != nil {
				return dst, b, false
			}
			dst = utf8.AppendRune(dst, rune(v))
			i += n
		}
	}
	return dst, nil, false
}

// otlp reads OpenTelemetry spans in OTLP's JSON form, as exporters and collectors write them to files.
func (p *parser) otlp(line []byte) {
	p.spans(line, 0)
}

// spans looks for spans in the lists of an object.
func (p *parser) spans(obj []byte, depth int) {
	if depth > 4 {
		return
	}
	for m := range bodyedit.Members(obj) {
		switch string(m.RawName) {
		case "resourceSpans", "scopeSpans", "instrumentationLibrarySpans", "resource_spans", "scope_spans":
			for e := range bodyedit.Elements(m.Raw) {
				p.spans(e, depth+1)
			}
		case "spans":
			for e := range bodyedit.Elements(m.Raw) {
				p.span(e)
			}
		}
	}
}

func (p *parser) span(raw []byte) {
	f := &p.fields[0]
	f.reset()
	var list []byte
	for m := range bodyedit.Members(raw) {
		switch string(m.RawName) {
		case "attributes":
			list = m.Raw
		case "startTimeUnixNano", "start_time_unix_nano":
			f.set(slotStart, m.Raw)
		case "endTimeUnixNano", "end_time_unix_nano":
			f.set(slotEnd, m.Raw)
		}
	}
	c := &p.text
	c.reset()
	flat := false
	for a := range bodyedit.Elements(list) {
		var key, value []byte
		for m := range bodyedit.Members(a) {
			switch string(m.RawName) {
			case "key":
				key = plain(m.Raw)
			case "value":
				for v := range bodyedit.Members(m.Raw) {
					value = v.Raw
				}
			}
		}
		switch {
		case bytes.HasPrefix(key, []byte("gen_ai.prompt.")):
			// OpenLLMetry: gen_ai.prompt.0.role, gen_ai.prompt.0.content, in order.
			if bytes.HasSuffix(key, []byte(".content")) {
				flat = true
				c.string(segUser, true, value)
			}
		case string(key) == "gen_ai.operation.name":
			for _, other := range [...]string{"invoke_agent", "create_agent", "execute_tool", "embeddings", "invoke_workflow"} {
				if bodyedit.TextIs(value, other) {
					p.skip(skipSpan)
					return
				}
			}
		case string(key) == "gen_ai.usage.input_tokens":
			f.set(slotPrompt, value) // OpenTelemetry: cached tokens are included
		default:
			f.set(p.slot(key), value)
		}
	}
	g := p.facts(f)
	if g.u.prompt < 0 && g.err == nil {
		p.skip(skipSpan)
		return
	}
	if flat && !g.hasText() {
		p.finishFlat(g)
		return
	}
	p.finish("OpenTelemetry spans", g)
}

// finishFlat is finish for a span whose messages are in p.text already.
func (p *parser) finishFlat(g *facts) {
	enc := bytes.Clone(p.text.encode(nil))
	n := len(p.b.rows)
	p.finish("OpenTelemetry spans", g)
	if len(p.b.rows) == n {
		return
	}
	p.b.rows[n].kind = textContent
	p.b.places[n] = place{int64(len(p.b.content)), int32(len(enc))}
	p.b.content = append(p.b.content, enc...)
}
