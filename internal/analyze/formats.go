package analyze

import (
	"bytes"
	"encoding/binary"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

// generic reads a line that is known by its members alone: tarik's own minimum, access logs, LiteLLM, Langfuse,
// dumps of requests and responses, traces with text.
func (p *parser) generic(f *fields) {
	g := p.facts(f)
	p.hint(f)
	format := formatOf(f, g)
	if reason := skipReason(f, g, format); reason != "" {
		p.skip(reason)
		return
	}
	p.finish(format, g)
}

// formatOf names the format for the report. It decides nothing.
func formatOf(f *fields, g *facts) string {
	switch {
	case f.has(slotMsec), f.has(slotRequestTime):
		return "nginx access log"
	case f.has(slotStatus) && (f.has(slotBytes) || f.has(slotBytesSent)):
		return "Envoy access log"
	case f.has(slotUsageDetail), f.has(slotType) && f.has(slotStart) && f.has(slotInputText):
		return "Langfuse"
	case f.has(slotStart, slotEnd, slotPrompt):
		return "LiteLLM"
	case f.has(slotRequest), f.has(slotResponse), f.has(slotBody):
		return "request and response dump"
	case g.messages != nil:
		return "request dump"
	case f.has(slotChoices):
		return "response dump"
	case f.has(slotInputText, slotOutputText), f.has(slotPromptText):
		return "text trace"
	case f.has(slotShared):
		return "trace with shared prefixes"
	}
	return "JSON lines"
}

// hint counts members that name other things than conversations; the report says so where nothing better is there.
func (p *parser) hint(f *fields) {
	if f.has(slotRequestID) {
		p.b.hints["request_id"]++
	}
	if f.has(slotTraceID) {
		p.b.hints["trace_id"]++
	}
}

// skipReason says why a line is no model call of interest, "" if it is one.
func skipReason(f *fields, g *facts, format string) string {
	if g.u.prompt < 0 && !g.hasText() && g.err == nil {
		switch {
		case g.method != nil && !bodyedit.TextIs(g.method, "POST"):
			return skipMethod
		case g.path != nil && g.bytes != nil && !modelEndpoint(plain(g.path)):
			return skipEndpoint
		case f.has(slotType) && bodyedit.KindOf(f.v[slotType]) == bodyedit.Text && (f.has(slotStart) || f.has(slotID)):
			return skipSpan // Langfuse's spans and events
		}
	}
	if format == "Langfuse" && f.has(slotType) {
		for _, other := range [...]string{"SPAN", "EVENT", "TRACE", "TOOL", "EMBEDDING", "RETRIEVER", "EVALUATOR", "GUARDRAIL", "AGENT", "CHAIN"} {
			if bodyedit.TextIs(f.v[slotType], other) {
				return skipSpan
			}
		}
	}
	if g.path != nil {
		for _, other := range [...]string{"embeddings", "rerank", "/tokenize", "/moderations"} {
			if bytes.Contains(g.path, []byte(other)) {
				return skipEndpoint
			}
		}
	}
	if n, ok := count(g.status); ok && g.status != nil && n >= 400 {
		return skipFailed
	}
	if bodyedit.TextIs(g.status, "failure") || bodyedit.TextIs(g.status, "error") {
		return skipFailed
	}
	return ""
}

// modelEndpoint reports whether path is one that takes prompts.
func modelEndpoint(path []byte) bool {
	path, _, _ = bytes.Cut(path, []byte{'?'})
	for _, e := range [...]string{"completions", "/messages", "/responses", "/generate", "generateContent", "/converse", "/invoke"} {
		if bytes.Contains(path, []byte(e)) {
			return true
		}
	}
	return false
}

// receipt reads one of tarik's own receipts.
func (p *parser) receipt(f *fields) {
	if n, ok := count(f.v[slotStatus]); ok && n >= 400 {
		p.skip(skipFailed)
		return
	}
	g := p.facts(f)
	g.u.cached = unknown
	for _, s := range [...]slot{slotPLocal, slotPPulled} {
		if n, ok := count(f.v[s]); ok && f.v[s] != nil {
			g.u.cached = max(g.u.cached, 0) + n
		}
	}
	if g.err == nil && g.u.cached > g.u.prompt {
		g.err = errUsageSum
	}
	p.finish("tarik receipts", g)
}

// codex reads a line of a Codex transcript. Each file is one session; token counts come after each call, some of
// them twice with the same totals.
func (p *parser) codex(f *fields) {
	var kind, info []byte
	for m := range bodyedit.Members(f.v[slotPayload]) {
		switch string(m.RawName) {
		case "type":
			kind = m.Raw
		case "info":
			info = m.Raw
		}
	}
	if !bodyedit.TextIs(kind, "token_count") || bodyedit.KindOf(info) != bodyedit.Object {
		p.skip(skipTranscr)
		return
	}
	last, ok := bodyedit.Lookup(info, "last_token_usage")
	total, _ := bodyedit.Lookup(info, "total_token_usage")
	if !ok || bodyedit.KindOf(last) != bodyedit.Object {
		p.skip(skipTranscr)
		return
	}
	s := &p.fields[1]
	s.reset()
	for m := range bodyedit.Members(last) {
		s.set(p.slot(m.RawName), m.Raw)
	}
	g := p.blank(f)
	g.at = f.v[slotTime]
	g.u, g.err = usageOf(s)
	if g.err == nil && g.u.prompt < 0 {
		g.err = errNoShape
	}
	if g.err != nil {
		p.fail(g.err.Error())
		return
	}
	r := newRow()
	r.conv = p.identity([]byte(p.job.source))
	p.b.ids["file"]++
	r.prompt, r.cached, r.output = g.u.prompt, g.u.cached, g.u.output
	r.same = p.salt.sum('s', total)
	if t, ok := instant(g.at, 1e9); ok {
		r.start = t
	}
	p.emit("Codex transcript", &r, nil)
}

// claude reads a line of a Claude Code transcript. One reply is several lines with the same message id and usage.
func (p *parser) claude(f *fields) {
	usageRaw, ok := bodyedit.Lookup(f.v[slotMessage], "usage")
	if !ok || bodyedit.KindOf(usageRaw) != bodyedit.Object {
		p.skip(skipTranscr)
		return
	}
	g := p.blank(f)
	g.at, g.session, g.agent = f.v[slotTime], f.v[slotSession], f.v[slotAgentID]
	s := &p.fields[1]
	s.reset()
	for m := range bodyedit.Members(usageRaw) {
		s.set(p.slot(m.RawName), m.Raw)
	}
	g.u, g.err = usageOf(s)
	if g.err == nil && g.u.prompt < 0 {
		g.err = errNoShape
	}
	if g.err != nil {
		p.fail(g.err.Error())
		return
	}
	r := newRow()
	r.prompt, r.cached, r.output = g.u.prompt, g.u.cached, g.u.output
	p.nameConversation(&r, g)
	if id, ok := bodyedit.Lookup(f.v[slotMessage], "id"); ok {
		r.same = p.salt.sum('s', id)
	}
	m, _ := bodyedit.Lookup(f.v[slotMessage], "model")
	r.model = p.model(m)
	if t, ok := instant(g.at, 1e9); ok {
		r.start = t
	}
	p.emit("Claude Code transcript", &r, nil)
}

// defaultHashBlock is the block size of Mooncake's traces, which do not state it.
const defaultHashBlock = 512

// hashes reads a line of a trace with block ids: all of a prompt's (hash_ids, as Mooncake's), or what changed since
// the conversation's previous line (keep, new).
func (p *parser) hashes(f *fields) {
	g := p.facts(f)
	if g.err != nil {
		p.fail(g.err.Error())
		return
	}
	r := newRow()
	r.prompt, r.cached, r.output, r.dur = g.u.prompt, g.u.cached, g.u.output, g.dur
	r.blockSize = defaultHashBlock
	if n, ok := count(f.v[slotBlockSize]); ok && n > 0 && n <= 1<<20 && f.v[slotBlockSize] != nil {
		r.blockSize = int32(n)
	}
	p.nameConversation(&r, g)
	r.model, r.tenant = p.model(g.model), p.tenant(g.tenant)
	format := "hash trace"
	enc := p.enc[:0]
	var ok bool
	if f.has(slotHashIDs) {
		r.kind = hashContent
		ok = ints(f.v[slotHashIDs], func(v uint64) { enc = binary.LittleEndian.AppendUint64(enc, v) })
	} else {
		r.kind, format = deltaContent, "hash trace by differences"
		keep, isCount := count(f.v[slotKeep])
		ok = isCount && keep < 1<<32
		enc = binary.LittleEndian.AppendUint64(enc, uint64(keep))
		total := int64(0)
		for run := range bodyedit.Elements(f.v[slotNew]) {
			var v [2]uint64
			n := 0
			ok = ok && ints(run, func(x uint64) {
				if n < 2 {
					v[n] = x
				}
				n++
			}) && n == 2 && v[1] < 1<<32
			total += int64(v[1])
			enc = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(enc, v[0]), v[1])
		}
		if ok = ok && total < 1<<26; ok && r.conv == 0 {
			p.enc = enc
			p.fail(badChain)
			return
		}
	}
	p.enc = enc
	if !ok {
		p.fail(badHashes)
		return
	}
	if r.prompt < 0 {
		r.prompt = int64(len(enc)/8) * int64(r.blockSize)
	}
	// Mooncake's timestamps are milliseconds from the start of the trace; others count seconds.
	scale := 1e9
	at := g.start
	if at == nil {
		at = g.at
		if f.has(slotHashIDs) {
			scale = 1e6
		}
	}
	if at != nil {
		if r.start, ok = instant(at, scale); !ok {
			p.fail(badTime)
			return
		}
	}
	p.emit(format, &r, enc)
}

// weka reads a whole session of the kv-cache-tester traces: one object with all requests, and sub-agents among them.
func (p *parser) weka(f *fields) {
	size, ok := count(f.v[slotBlockSize])
	id := f.v[slotID]
	if !ok || size < 1 || size > 1<<20 || id == nil || !scalar(id) {
		p.fail(badShape)
		return
	}
	requests := f.v[slotRequests]
	main := p.identity(id)
	k := uint64(0)
	for raw := range bodyedit.Elements(requests) {
		var inner, at []byte
		sub := false
		for m := range bodyedit.Members(raw) {
			switch string(m.RawName) {
			case "type":
				sub = bodyedit.TextIs(m.Raw, "subagent")
			case "requests":
				inner = m.Raw
			case "t":
				at = m.Raw
			}
		}
		if !sub {
			p.wekaRequest(raw, main, int32(size), 0)
		} else if t, ok := instant(at, 1e9); ok {
			own := p.salt.sum('c', plain(id), binary.AppendUvarint(nil, k))
			for r := range bodyedit.Elements(inner) {
				p.wekaRequest(r, own, int32(size), t)
			}
		}
		k++
	}
}

func (p *parser) wekaRequest(raw []byte, conv uint64, size int32, zero int64) {
	r := newRow()
	r.conv, r.blockSize, r.kind = conv, size, hashContent
	enc := p.enc[:0]
	ok := true
	for m := range bodyedit.Members(raw) {
		good := true
		switch string(m.RawName) {
		case "t":
			r.start, good = instant(m.Raw, 1e9)
			r.start += zero
		case "in":
			r.prompt, good = count(m.Raw)
		case "out":
			r.output, good = count(m.Raw)
		case "api_time":
			if _, _, s, isNumber := decimal(m.Raw); isNumber && s >= 0 && s < 1e8 {
				r.dur = int64(s*1e9 + 0.5)
			}
		case "model":
			r.model = p.model(m.Raw)
		case "hash_ids":
			good = ints(m.Raw, func(v uint64) { enc = binary.LittleEndian.AppendUint64(enc, v) })
		}
		ok = ok && good
	}
	p.enc = enc
	if !ok || r.prompt < 0 {
		p.fail(badShape)
		return
	}
	p.b.ids["conversation"]++
	p.emit("kv-cache-tester trace", &r, enc)
}
