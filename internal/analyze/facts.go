package analyze

import (
	"bytes"
	"errors"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

// facts is what one log line says about a request, gathered from its members and from the objects in it.
type facts struct {
	f   *fields // the line's own members
	u   usage
	err error

	conv, session, agent, account []byte // raw values; account is a user id that may contain a session
	tenant, user, model           []byte
	start, end, at                []byte
	dur                           int64
	atEnd                         bool // at is when the request ended
	bytes, shared                 []byte
	status, method, path          []byte

	tools, system, messages, prompt, input, ids []byte // of the request
	replies                                     [][]byte
}

func (g *facts) hasText() bool {
	return g.messages != nil || g.prompt != nil || g.input != nil || g.ids != nil
}

// where says which part of a line is being looked at.
type where uint8

const (
	inLine where = iota
	inRequest
	inResponse
	inMetadata
)

// facts gathers what a line with members f says.
func (p *parser) facts(f *fields) *facts {
	g := p.blank(f)
	p.gather(g, f, inLine, 0)
	return g
}

// blank returns facts that say nothing yet. They are valid until the next call.
func (p *parser) blank(f *fields) *facts {
	g := &p.said
	*g = facts{f: f, u: noUsage(), dur: unknown, replies: g.replies[:0]}
	return g
}

func first(to *[]byte, list ...[]byte) {
	for _, v := range list {
		if *to == nil && v != nil {
			*to = v
		}
	}
}

func firstScalar(to *[]byte, v []byte) {
	if *to == nil && v != nil && scalar(v) {
		*to = v
	}
}

func (p *parser) gather(g *facts, f *fields, at where, depth int) {
	p.gatherNames(g, f)
	if at != inMetadata {
		first(&g.start, f.v[slotStart], f.v[slotStartNano])
		first(&g.end, f.v[slotEnd], f.v[slotEndNano])
		first(&g.at, f.v[slotMsec], f.v[slotTime])
		firstScalar(&g.status, f.v[slotStatus])
		firstScalar(&g.method, f.v[slotMethod])
		firstScalar(&g.path, f.v[slotPath])
		firstScalar(&g.bytes, f.v[slotBytes])
		firstScalar(&g.shared, f.v[slotShared])
		p.gatherDuration(g, f)
	}
	p.gatherUsage(g, f, depth)

	switch at {
	case inLine, inRequest, inMetadata:
		first(&g.tools, f.v[slotTools])
		first(&g.system, f.v[slotSystem])
		first(&g.messages, f.v[slotMessages])
		first(&g.prompt, f.v[slotPromptText])
		first(&g.input, f.v[slotInputText])
		first(&g.ids, f.v[slotTokenIDs])
	}
	switch at {
	case inLine, inResponse, inMetadata:
		for _, s := range [...]slot{slotChoices, slotOutputText} {
			if v := f.v[s]; v != nil && len(g.replies) == 0 {
				g.replies = append(g.replies, v)
			}
		}
		if v := f.v[slotContent]; v != nil && at == inResponse && len(g.replies) == 0 {
			g.replies = append(g.replies, v)
		}
	}

	for _, d := range [...]struct {
		s  slot
		to where
	}{
		{slotRequest, inRequest},
		{slotBody, inRequest},
		{slotResponse, inResponse},
		{slotMetadata, inMetadata},
		{slotHeaders, inMetadata},
	} {
		if v := f.v[d.s]; v != nil {
			p.descend(g, v, d.to, at, depth)
		}
	}
}

// descend gathers from an object in a member, or from a string that holds one.
func (p *parser) descend(g *facts, raw []byte, to, from where, depth int) {
	if depth+1 >= len(p.fields) {
		return
	}
	if bodyedit.KindOf(raw) == bodyedit.Text {
		if len(raw) < 4 || raw[1] != '{' && raw[1] != ' ' && raw[1] != '\\' {
			if to == inResponse && len(g.replies) == 0 {
				g.replies = append(g.replies, raw)
			}
			return
		}
		raw = bytes.TrimSpace(bodyedit.AppendText(nil, raw))
		if _, err := bodyedit.Scan(raw); err != nil {
			return
		}
	}
	if bodyedit.KindOf(raw) != bodyedit.Object {
		return
	}
	if to == inRequest && from == inResponse {
		to = inResponse // response.body
	}
	f := &p.fields[depth+1]
	f.reset()
	for m := range bodyedit.Members(raw) {
		f.set(p.slot(m.RawName), m.Raw)
	}
	p.gather(g, f, to, depth+1)
}

func (p *parser) gatherNames(g *facts, f *fields) {
	if v := f.v[slotConv]; v != nil && bodyedit.KindOf(v) == bodyedit.Object { // OpenAI responses: {"id": …}
		v, _ = bodyedit.Lookup(v, "id")
		firstScalar(&g.conv, v)
	} else {
		firstScalar(&g.conv, v)
	}
	if v := f.v[slotOperator]; v != nil && scalar(v) {
		g.conv = v
	}
	firstScalar(&g.session, f.v[slotSession])
	firstScalar(&g.agent, f.v[slotAgentID])
	firstScalar(&g.tenant, f.v[slotTenant])
	firstScalar(&g.model, f.v[slotModel])
	if v := f.v[slotUser]; v != nil && scalar(v) {
		if bytes.Contains(v, []byte("session_")) {
			first(&g.account, v)
		} else {
			first(&g.user, v)
		}
	}
}

func (p *parser) gatherDuration(g *facts, f *fields) {
	if g.dur >= 0 {
		return
	}
	access := f.has(slotStatus) && (f.has(slotBytes) || f.has(slotBytesSent) || f.has(slotMethod) || f.has(slotPath))
	for _, d := range [...]struct {
		s     slot
		nanos float64
	}{
		{slotDurationMs, 1e6},
		{slotDurationS, 1e9},
		{slotRequestTime, 1e9},
		{slotDuration, 1e9},
	} {
		v := f.v[d.s]
		if v == nil {
			continue
		}
		n := d.nanos
		if d.s == slotDuration && access {
			n = 1e6 // Envoy's %DURATION%
		}
		_, _, x, ok := decimal(plain(v))
		if !ok || x < 0 || x*n > 1e17 {
			continue
		}
		g.dur = int64(x*n + 0.5)
		g.atEnd = g.atEnd || d.s == slotRequestTime
		return
	}
}

func (p *parser) gatherUsage(g *facts, f *fields, depth int) {
	take := func(u usage, err error) {
		if err != nil {
			g.err = err
			return
		}
		if g.u.prompt < 0 {
			g.u.prompt, g.u.cached = u.prompt, u.cached
		} else if g.u.prompt == u.prompt && g.u.cached < 0 {
			g.u.cached = u.cached
		}
		if g.u.output < 0 {
			g.u.output = u.output
		}
	}
	if v := f.v[slotUsageDetail]; v != nil && bodyedit.KindOf(v) == bodyedit.Object {
		take(langfuseUsage(v))
	}
	if v := f.v[slotUsage]; v != nil && bodyedit.KindOf(v) == bodyedit.Object && depth+1 < len(p.fields) {
		s := &p.fields[depth+1]
		s.reset()
		for m := range bodyedit.Members(v) {
			name := p.slot(m.RawName)
			switch { // Langfuse's usage
			case m.Is("input"):
				name = slotPrompt
			case m.Is("output"):
				name = slotOutput
			}
			s.set(name, m.Raw)
		}
		take(usageOf(s))
	}
	take(usageOf(f))
}

// errNoShape marks a line that says nothing about a request.
var errNoShape = errors.New(badShape)

// finish turns facts into a row.
func (p *parser) finish(format string, g *facts) {
	if g.err != nil {
		p.fail(g.err.Error())
		return
	}
	r := newRow()
	r.prompt, r.cached, r.output, r.dur = g.u.prompt, g.u.cached, g.u.output, g.dur
	p.nameConversation(&r, g)
	r.model = p.model(g.model)
	first(&g.tenant, g.user)
	r.tenant = p.tenant(g.tenant)

	scale := 1e9
	for _, t := range [...]struct {
		raw []byte
		end bool
	}{{g.start, false}, {g.at, g.atEnd}, {g.end, true}} {
		if t.raw == nil {
			continue
		}
		v, ok := instant(t.raw, scale)
		if !ok {
			p.fail(badTime)
			return
		}
		r.start = v
		if t.end {
			r.flags |= endStamp
		}
		break
	}
	if r.dur < 0 && g.end != nil && r.start != noTime && r.flags&endStamp == 0 {
		if e, ok := instant(g.end, scale); ok && e >= r.start {
			r.dur = e - r.start
		}
	}
	if n, ok := count(g.shared); ok && g.shared != nil {
		r.shared = n
	}
	enc := p.encodeContent(&r, g)
	if r.prompt < 0 {
		if n, ok := count(g.bytes); ok && g.bytes != nil {
			r.prompt, r.unit = n, bodyBytes
		}
	}
	if r.prompt < 0 && r.kind == noContent {
		p.fail(badShape)
		return
	}
	p.emit(format, &r, enc)
}

// nameConversation finds the conversation's name, in the order in which the router itself looks for one.
func (p *parser) nameConversation(r *row, g *facts) {
	switch {
	case g.conv != nil:
		r.conv = p.identity(g.conv)
		p.b.ids["conversation"]++
	case g.session != nil:
		r.conv = p.identity(g.session, g.agent)
		p.b.ids["session"]++
	case g.account != nil:
		// Anthropic's metadata.user_id: user_…_account_…_session_….
		id := plain(g.account)
		r.conv = p.identity(id[bytes.LastIndex(id, []byte("session_")):])
		p.b.ids["session in metadata.user_id"]++
	}
}

// encodeContent renders what the request and the reply say, and fills in the sizes that follow from it.
func (p *parser) encodeContent(r *row, g *facts) []byte {
	c := &p.text
	c.reset()
	if ids := g.tokenIDs(); ids != nil {
		enc := p.enc[:0]
		ok := ints(ids, func(v uint64) {
			enc = append(enc, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
		})
		p.enc = enc
		if ok && len(enc) > 0 {
			r.kind = idContent
			if r.prompt < 0 {
				r.prompt, r.unit = int64(len(enc)/4), tokens
			}
			return enc
		}
	}
	if !g.hasText() {
		return nil
	}
	if g.tools != nil {
		c.tools(g.tools)
	}
	if g.system != nil {
		c.system(g.system)
	}
	switch {
	case g.messages != nil:
		c.messages(g.messages)
	case g.prompt != nil && bodyedit.KindOf(g.prompt) == bodyedit.Text && g.system == nil && g.tools == nil:
		c.string(segRaw, true, g.prompt)
	case g.prompt != nil:
		c.messages(g.prompt)
	case g.input != nil && bodyedit.KindOf(g.input) == bodyedit.Text && !holdsJSON(g.input) && g.system == nil && g.tools == nil:
		c.string(segRaw, true, g.input)
	case g.input != nil:
		if !c.messages(g.input) && len(c.segs) == 0 {
			c.string(segRaw, true, g.input)
		}
	}
	n := len(c.text)
	if len(c.segs) == 0 {
		return nil
	}
	c.reply()
	for _, v := range g.replies {
		p.replyText(v)
	}
	r.kind = textContent
	if r.prompt < 0 {
		r.prompt, r.unit = runes(c.text[:n]), characters
		r.output, r.cached = unknown, unknown
		if len(c.text) > n {
			r.output = runes(c.text[n:])
		}
	}
	p.enc = c.encode(p.enc[:0])
	return p.enc
}

// tokenIDs returns the token ids of the prompt, if that is how it is given.
func (g *facts) tokenIDs() []byte {
	for _, v := range [...][]byte{g.ids, g.prompt} {
		if bodyedit.KindOf(v) != bodyedit.Array {
			continue
		}
		for e := range bodyedit.Elements(v) {
			switch bodyedit.KindOf(e) {
			case bodyedit.Number:
				return v
			case bodyedit.Array:
				return e
			}
			break
		}
	}
	return nil
}

// replyText appends a reply as the next prompt would have to repeat it.
func (p *parser) replyText(v []byte) {
	c := &p.text
	switch bodyedit.KindOf(v) {
	case bodyedit.Text:
		if list := innerMessages(v); list != nil {
			p.replyText(list)
			return
		}
		k := segAssistant
		if len(c.segs) > 0 && c.segs[0].kind == segRaw {
			k = segRaw // the next prompt goes on without a template
		}
		c.string(k, true, v)
	case bodyedit.Array:
		for e := range bodyedit.Elements(v) {
			if bodyedit.KindOf(e) != bodyedit.Object {
				continue
			}
			if m, ok := bodyedit.Lookup(e, "message"); ok { // chat choices
				c.message(m)
				return
			}
			if t, ok := bodyedit.Lookup(e, "text"); ok && c.segs[0].kind == segRaw { // completion choices
				c.string(segRaw, true, t)
				return
			}
			if _, ok := bodyedit.Lookup(e, "role"); ok { // responses items, OpenTelemetry
				c.message(e)
				continue
			}
			if k, ok := bodyedit.Lookup(e, "type"); ok && (bodyedit.TextIs(k, "function_call") || bodyedit.TextIs(k, "reasoning")) {
				c.message(e)
				continue
			}
			c.part(segAssistant, e) // Anthropic
		}
	case bodyedit.Object:
		if _, ok := bodyedit.Lookup(v, "role"); ok {
			c.message(v)
		} else if m, ok := bodyedit.Lookup(v, "choices"); ok {
			p.replyText(m)
		}
	}
}

// holdsJSON reports whether the string raw looks like a list or an object.
func holdsJSON(raw []byte) bool { return len(raw) > 2 && (raw[1] == '[' || raw[1] == '{') }

// innerMessages returns the list of messages that the string raw holds, nil if it holds something else.
func innerMessages(raw []byte) []byte {
	if !holdsJSON(raw) {
		return nil
	}
	list := bodyedit.AppendText(nil, raw)
	if _, err := bodyedit.Scan(append(append([]byte(`{"v":`), list...), '}')); err != nil {
		return nil
	}
	for e := range bodyedit.Elements(list) {
		if _, ok := bodyedit.Lookup(e, "role"); ok {
			return list
		}
		break
	}
	return nil
}
