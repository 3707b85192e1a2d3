package analyze

import (
	"bytes"
	"errors"
	"slices"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

// batch is what a parser made of one job.
type batch struct {
	rows    []row
	places  []place
	content []byte
	lines   int64
	bad     map[string]*Issue // by reason
	skipped map[string]*Issue
	formats map[string]int64
	ids     map[string]int64 // members that named conversations
	hints   map[string]int64 // members that might, and are not used
}

// Reasons for which lines are not used. They never quote the line.
const (
	skipNoSize    = "a log line without a request"
	skipFailed    = "a request that failed"
	skipMethod    = "not a POST"
	skipEndpoint  = "another endpoint"
	skipSpan      = "a span that is no model call"
	skipTranscr   = "a transcript line without token counts"
	badJSON       = "not well-formed JSON"
	badShape      = "JSON without any member known here"
	badText       = "neither JSON nor a known log line"
	badTime       = "a time that cannot be read"
	badCSV        = "a CSV row that does not fit its header"
	badCut        = "the file ends in the middle of a value"
	badMetrics    = "a metrics scrape: its hit rates have another denominator in each engine version (use tarik doctor)"
	badTooLong    = "longer than 64 MiB"
	badNesting    = "logs inside logs, too deep"
	badHashes     = "block ids that are no numbers"
	badShared     = "a shared prefix longer than the prompt"
	badChain      = "block ids that refer to an earlier row, without a conversation"
	maxEnvelopes  = 4 // how deep requests inside log lines are looked for
	maxShapeCache = 4096
)

// parser turns jobs into batches. Each goroutine has its own.
type parser struct {
	names  *names
	salt   salter
	paths  []fieldPath
	slots  map[string]slot // cache by raw name
	models map[string]uint32
	doc    bodyedit.Doc
	fields [maxEnvelopes + 2]fields
	said   facts
	text   content
	enc    []byte
	cells  [][]byte
	quoted []byte

	job  *job
	b    *batch
	line int64
	seq  uint64
}

// fieldPath is the operator's word on where something is.
type fieldPath struct {
	slot slot
	path []string
}

func newParser(n *names, salt []byte, paths []fieldPath) *parser {
	return &parser{
		names: n, salt: salter{salt: salt}, paths: paths,
		slots: map[string]slot{}, models: map[string]uint32{},
	}
}

func (p *parser) slot(name []byte) slot {
	if s, ok := p.slots[string(name)]; ok {
		return s
	}
	s := lookupSlot(name)
	if len(p.slots) < maxShapeCache {
		p.slots[string(name)] = s
	}
	return s
}

// parse reads all records of j.
func (p *parser) parse(j *job) *batch {
	b := &batch{
		bad: map[string]*Issue{}, skipped: map[string]*Issue{}, formats: map[string]int64{},
		ids: map[string]int64{}, hints: map[string]int64{},
	}
	p.job, p.b, p.line, p.seq = j, b, j.firstLine, j.first
	if j.layout == byValue {
		at := 0
		for _, end := range j.ends {
			v := j.data[at:end]
			lead := len(v) - len(bytes.TrimLeft(v, " \t\r\n,[]"))
			p.line += int64(bytes.Count(v[:lead], []byte{'\n'}))
			p.record(v[lead:])
			p.line += int64(bytes.Count(v[lead:], []byte{'\n'}))
			at = end
		}
		if j.unclosed {
			p.fail(badCut)
		}
		return b
	}
	for rest := j.data; len(rest) > 0; p.line++ {
		i := bytes.IndexByte(rest, '\n')
		line := rest
		if i >= 0 {
			line, rest = rest[:i], rest[i+1:]
		} else {
			rest = nil
		}
		if len(line) > maxValue {
			b.lines++
			p.fail(badTooLong)
			continue
		}
		p.record(line)
	}
	if j.tooLong > 0 {
		b.lines++
		p.fail(badTooLong)
	}
	return b
}

func (p *parser) record(line []byte) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return
	}
	p.b.lines++
	if p.job.layout == byRow {
		p.csv(line)
		return
	}
	p.any(line, 0)
}

func (p *parser) fail(reason string) { p.note(p.b.bad, reason) }
func (p *parser) skip(reason string) { p.note(p.b.skipped, reason) }

func (p *parser) note(m map[string]*Issue, reason string) {
	i := m[reason]
	if i == nil {
		i = &Issue{Reason: reason, File: p.job.source, Line: p.line}
		m[reason] = i
	}
	i.Count++
}

// any reads one line of any kind. depth counts the envelopes around it.
func (p *parser) any(line []byte, depth int) {
	if depth > maxEnvelopes {
		p.fail(badNesting)
		return
	}
	if line[0] == '{' {
		p.object(line, depth)
		return
	}
	if p.vllm(line) {
		return
	}
	// A container runtime or a logger may write its own words in front of the JSON.
	if i := bytes.IndexByte(line[:min(len(line), 512)], '{'); i > 0 && line[len(line)-1] == '}' && p.doc.Reset(line[i:]) == nil {
		p.object(line[i:], depth)
		return
	}
	switch {
	case bytes.HasPrefix(line, []byte("# HELP ")), bytes.HasPrefix(line, []byte("# TYPE ")), bytes.HasPrefix(line, []byte("vllm:")):
		p.fail(badMetrics)
	case isLogLine(line):
		p.skip(skipNoSize)
	default:
		p.fail(badText)
	}
}

// object reads one JSON object.
func (p *parser) object(line []byte, depth int) {
	if err := p.doc.Reset(line); err != nil {
		p.fail(badJSON)
		return
	}
	f := &p.fields[0]
	f.reset()
	for i := range p.doc.Count() {
		m := p.doc.At(i)
		f.set(p.slot(m.RawName), m.Raw)
	}
	for _, path := range p.paths {
		if raw := p.follow(line, path.path); raw != nil {
			f.v[path.slot] = nil
			f.set(path.slot, raw)
		}
	}
	switch {
	case f.has(slotSpans):
		p.otlp(line)
	case f.has(slotLog) && bodyedit.KindOf(f.v[slotLog]) == bodyedit.Text && !f.has(slotUsage):
		inner := bytes.TrimSpace(bodyedit.AppendText(nil, f.v[slotLog]))
		if len(inner) == 0 {
			p.skip(skipNoSize)
			return
		}
		p.any(inner, depth+1)
	case f.has(slotRequests, slotBlockSize) && bodyedit.KindOf(f.v[slotRequests]) == bodyedit.Array:
		p.weka(f)
	case f.has(slotData) && bodyedit.KindOf(f.v[slotData]) == bodyedit.Array && !f.has(slotUsage) && !f.has(slotPrompt):
		for e := range bodyedit.Elements(f.v[slotData]) {
			if bodyedit.KindOf(e) == bodyedit.Object {
				p.any(e, depth+1)
			}
		}
	case f.has(slotArm, slotTurnNumber):
		p.receipt(f)
	case f.has(slotType, slotPayload) && bodyedit.KindOf(f.v[slotPayload]) == bodyedit.Object:
		p.codex(f)
	case f.has(slotType, slotSession, slotMessage) && bodyedit.KindOf(f.v[slotMessage]) == bodyedit.Object:
		p.claude(f)
	case f.has(slotHashIDs), f.has(slotKeep, slotNew):
		p.hashes(f)
	default:
		p.generic(f)
	}
}

// follow returns the value at the operator's path: a member of that very name, or members inside each other.
func (p *parser) follow(line []byte, path []string) []byte {
	if len(path) > 1 {
		if raw := p.doc.Get(joinPath(path)); raw != nil {
			return raw
		}
	}
	sp, ok := p.doc.Path(path...)
	if !ok {
		return nil
	}
	return line[sp.Start:sp.End]
}

// identity names a conversation: the value of the first of the members that tarik takes for one.
func (p *parser) identity(parts ...[]byte) uint64 {
	var room [3][]byte
	list := room[:0]
	for _, raw := range parts {
		if raw != nil {
			list = append(list, plain(raw))
		}
	}
	return p.salt.sum('c', list...)
}

// plain is the content of a raw JSON string, or raw itself.
func plain(raw []byte) []byte {
	if len(raw) >= 2 && raw[0] == '"' {
		if bytes.IndexByte(raw, '\\') < 0 {
			return raw[1 : len(raw)-1]
		}
		return bodyedit.AppendText(nil, raw)
	}
	return raw
}

func scalar(raw []byte) bool {
	k := bodyedit.KindOf(raw)
	return k == bodyedit.Text || k == bodyedit.Number
}

func (p *parser) model(raw []byte) uint32 {
	if raw == nil {
		return nameless
	}
	raw = plain(raw)
	if i, ok := p.models[string(raw)]; ok {
		return i
	}
	i := p.names.number("m" + modelName(raw))
	if len(p.models) < maxShapeCache {
		p.models[string(raw)] = i
	}
	return i
}

func (p *parser) tenant(raw []byte) uint32 {
	if raw == nil {
		return nameless
	}
	return p.names.number("t" + hashName(p.salt.sum('t', plain(raw))))
}

// emit adds a row; enc is its encoded content.
func (p *parser) emit(format string, r *row, enc []byte) {
	r.seq = p.seq
	p.seq++
	if r.flags&endStamp != 0 && r.start != noTime && r.dur > 0 {
		r.start -= r.dur
	}
	r.flags &^= endStamp
	p.b.formats[format]++
	p.b.rows = append(p.b.rows, *r)
	p.b.places = append(p.b.places, place{int64(len(p.b.content)), int32(len(enc))})
	p.b.content = append(p.b.content, enc...)
}

func (p *parser) csv(line []byte) {
	p.cells = splitCSV(p.cells[:0], line)
	if len(p.cells) != len(p.job.columns) {
		p.fail(badCSV)
		return
	}
	f := &p.fields[0]
	f.reset()
	p.quoted = p.quoted[:0]
	for i, s := range p.job.columns {
		cell := p.cells[i]
		if _, _, _, number := decimal(cell); !number && len(cell) > 0 {
			// From here on values are JSON.
			at := len(p.quoted)
			p.quoted = bodyedit.AppendString(p.quoted, string(cell))
			cell = p.quoted[at:len(p.quoted):len(p.quoted)]
		}
		f.set(s, cell)
	}
	g := p.facts(f)
	if g.err == nil && g.u.prompt < 0 && !g.hasText() {
		g.err = errors.New(badCSV)
	}
	p.finish("CSV", g)
}

// ints calls f with each number of a JSON array of whole numbers. It reports whether there was nothing else in it.
func ints(raw []byte, f func(uint64)) bool {
	if len(raw) < 2 || raw[0] != '[' {
		return false
	}
	var n uint64
	digits, neg := 0, false
	for _, c := range raw[1:] {
		switch {
		case '0' <= c && c <= '9':
			if digits++; digits > 19 {
				return false
			}
			n = n*10 + uint64(c-'0')
		case c == ',' || c == ']':
			if digits > 0 {
				if neg {
					n = -n
				}
				f(n)
			} else if c == ',' {
				return false
			}
			n, digits, neg = 0, 0, false
		case c == '-' && digits == 0:
			neg = true
		case c != ' ' && c != '\n' && c != '\t' && c != '\r':
			return false
		}
	}
	return true
}

func joinPath(path []string) string {
	n := slices.Clone(path)
	out := n[0]
	for _, s := range n[1:] {
		out += "." + s
	}
	return out
}
