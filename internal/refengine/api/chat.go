package api

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// chatCompletions serves POST /v1/chat/completions.
func (s *Server) chatCompletions(w http.ResponseWriter, r *http.Request) *apiError {
	body, f, err := s.receive(w, r)
	if err != nil {
		return err
	}
	q, err := decodeChat(body, s.rel)
	if err != nil {
		return err
	}
	if err := s.checkModel(q.model); err != nil {
		return err
	}
	ids, text, err := s.chatPrompt(q)
	if err != nil {
		return err
	}
	if q.maxTokens == 0 {
		q.maxTokens = s.maxModelLen - len(ids)
	}
	if err := q.check(); err != nil {
		return err
	}
	out := newOutput(r.Context(), w, f)
	if s.replaced(out, q.stream) {
		return nil
	}
	c := s.newChatReply(q, out, "chatcmpl-"+s.requestID(r, q.requestID), ids, text)
	c.head = c.appendHead(nil, "chat.completion.chunk")
	seqs, reqs := s.sequences(&q.common, c.id, ids, f)
	run, subErr := start(s.opts.Engine, reqs, seqs)
	if subErr != nil {
		return s.engineError(subErr)
	}
	defer run.close()
	if q.stream {
		s.stream(out, func() error { return c.events(run) })
	} else {
		c.whole(run)
	}
	return nil
}

// reasons reports whether the reply of q begins with reasoning that goes into a field of its own.
func (s *Server) reasons(q *chatRequest) bool {
	return s.opts.ReasoningParser && q.thinking
}

// chatReply is one chat request on its way out.
type chatReply struct {
	s          *Server
	q          *chatRequest
	out        *output
	prompt     []int32
	promptText string
	id         string
	created    int64
	parse      bool   // text is looked through for reasoning or tool calls
	callPrefix string // of the ids of tool calls
	head       []byte // a chunk up to and with "choices":[
	buf        []byte
}

func (s *Server) newChatReply(q *chatRequest, out *output, id string, prompt []int32, text string) *chatReply {
	return &chatReply{
		s: s, q: q, out: out, id: id, created: s.now().Unix(), prompt: prompt, promptText: text, callPrefix: "chatcmpl-tool-",
		parse: q.tools != nil && q.toolChoice != "none" || s.reasons(q),
	}
}

func (c *chatReply) appendHead(b []byte, object string) []byte {
	return appendReplyHead(b, c.id, object, c.created, c.s.opts.ModelName)
}

// appendReplyHead opens a reply or chunk, up to and with "choices":[.
func appendReplyHead(b []byte, id, object string, created int64, model string) []byte {
	b = append(b, `{"id":`...)
	b = appendString(b, id)
	b = append(b, `,"object":"`...)
	b = append(b, object...)
	b = append(b, `","created":`...)
	b = appendInt(b, int(created))
	b = append(b, `,"model":`...)
	b = appendString(b, model)
	return append(b, `,"choices":[`...)
}

func (c *chatReply) parser() *messageParser {
	if !c.parse {
		return nil
	}
	return &messageParser{
		thinking: c.s.reasons(c.q),
		tools:    c.q.tools != nil && c.q.toolChoice != "none",
		single:   !c.q.parallelTools,
		newID:    func() string { return c.callPrefix + c.s.randomHex(16) },
	}
}

// role is who speaks: the assistant, unless the last message is being continued.
func (c *chatReply) role() string {
	if c.q.addPrompt || c.q.lastRole == "" {
		return "assistant"
	}
	return c.q.lastRole
}

// echoed is the last message's text if it is to stand in front of the reply.
func (c *chatReply) echoed() string {
	if c.q.echo && c.q.lastRole == c.role() {
		return c.q.lastContent
	}
	return ""
}

// chatChoice collects one choice of a whole reply.
type chatChoice struct {
	text   strings.Builder
	tokens []int32
	probs  [][]engine.TokenLogprob
	last   delta
}

// chatWhole is all that a request generated.
type chatWhole struct {
	choices []chatChoice
	usage   usage
	prompt  [][]engine.TokenLogprob // of the prompt, if asked for
}

// params is the request's one handle: that of the last choice.
func (w *chatWhole) params() json.RawMessage { return w.choices[len(w.choices)-1].last.params }

// collect waits for all choices.
func (c *chatReply) collect(run *run) (*chatWhole, error) {
	w := &chatWhole{choices: make([]chatChoice, c.q.n)}
	for d, err := range run.deltas(c.out.ctx) {
		if err != nil {
			return nil, err
		}
		ch := &w.choices[d.seq]
		ch.text.WriteString(d.text)
		ch.tokens = append(ch.tokens, d.tokens...)
		ch.probs = append(ch.probs, d.logprobs...)
		ch.last = d
		w.usage.completion += len(d.tokens)
		c.s.count(&w.usage, len(c.prompt), d)
		if d.promptLogprobs != nil {
			w.prompt = d.promptLogprobs
		}
	}
	w.usage.prompt = len(c.prompt)
	return w, nil
}

func (c *chatReply) whole(run *run) {
	q := c.q
	w, err := c.collect(run)
	if err != nil {
		c.s.failWhole(c.out, err)
		return
	}
	b := c.appendHead(c.buf[:0], "chat.completion")
	for i := range w.choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = c.appendChoice(b, i, &w.choices[i])
	}
	b = append(b, `],"service_tier":null,"system_fingerprint":`...)
	b = appendString(b, c.s.fingerprint)
	b = append(b, `,"usage":`...)
	b = c.s.appendUsage(b, w.usage, true)
	b = append(b, `,"prompt_logprobs":`...)
	b = c.s.appendPromptLogprobs(b, w.prompt, q.promptLogprobs >= 0)
	b = append(b, `,"prompt_token_ids":`...)
	b = appendIDs(b, c.q.returned(c.prompt))
	b = append(b, `,"prompt_text":`...)
	b = c.appendPromptText(b)
	b = append(b, ',')
	b = appendParams(b, w.params())
	if c.s.rel.ecParams {
		b = append(b, `,"ec_transfer_params":null`...)
	}
	b = append(b, `,"metrics":null}`...)
	if c.out.wait() == nil {
		c.out.document(http.StatusOK, b)
	}
}

func (c *chatReply) appendPromptText(b []byte) []byte {
	if c.q.returnPromptStr && c.q.exact == nil {
		return appendString(b, c.promptText)
	}
	return append(b, "null"...)
}

// chatMessage is the message of a finished choice.
type chatMessage struct {
	content   string
	reasoning string
	calls     []toolCall
	finish    string
}

// message splits a choice's text.
func (c *chatReply) message(ch *chatChoice) chatMessage {
	m := chatMessage{content: ch.text.String(), finish: string(ch.last.finish)}
	if p := c.parser(); p != nil {
		var d messageDelta
		d, m.calls = p.parseWhole(m.content)
		m.content = d.content
		if c.q.includeReason {
			m.reasoning = d.reasoning
		}
	}
	m.content = c.echoed() + m.content
	if len(m.calls) > 0 && c.q.toolChoice != "named" {
		m.finish = "tool_calls"
	}
	return m
}

func (c *chatReply) appendChoice(b []byte, index int, ch *chatChoice) []byte {
	m := c.message(ch)
	b = append(b, `{"index":`...)
	b = appendInt(b, index)
	b = append(b, `,"message":{"role":`...)
	b = appendString(b, c.role())
	b = append(b, `,"content":`...)
	if m.content == "" && (len(m.calls) > 0 || m.reasoning != "") {
		b = append(b, "null"...)
	} else {
		b = appendString(b, m.content)
	}
	b = append(b, `,"refusal":null,"annotations":null,"audio":null,"function_call":null`...)
	for i, call := range m.calls {
		b = append(b, []string{`,"tool_calls":[`, `,`}[min(i, 1)]...)
		b = append(b, `{"id":`...)
		b = appendString(b, call.id)
		b = append(b, `,"type":"function","function":{"name":`...)
		b = appendString(b, call.name)
		b = append(b, `,"arguments":`...)
		b = appendString(b, call.arguments)
		b = append(b, `}}`...)
	}
	if len(m.calls) > 0 {
		b = append(b, ']')
	}
	b = append(b, `,"reasoning":`...)
	b = appendStringOrNull(b, m.reasoning)
	b = append(b, `},"logprobs":`...)
	b = c.s.appendChatLogprobs(b, &c.q.common, ch.tokens, ch.probs)
	b = append(b, `,"finish_reason":`...)
	b = appendString(b, m.finish)
	b = append(b, `,"stop_reason":`...)
	b = appendRaw(b, ch.last.stopReason)
	b = append(b, `,"token_ids":`...)
	b = appendIDs(b, c.q.returned(ch.tokens))
	b = append(b, `,"routed_experts":null`...)
	if c.s.rel.weightVersions {
		b = append(b, `,"weight_versions":null`...)
	}
	return append(b, '}')
}

// chatStreamChoice is what a stream remembers of one choice.
type chatStreamChoice struct {
	parser *messageParser
	tokens int
	called bool
}

func (c *chatReply) events(run *run) error {
	q, s := c.q, c.s
	choices := make([]chatStreamChoice, q.n)
	for i := range choices {
		choices[i].parser = c.parser()
	}
	h := newHandlePlacer(c.out.f.Handle, s.rel, q.includeUsage)
	run.prepare(c.out)
	var u usage
	u.prompt = len(c.prompt)
	begun := false
	for d, err := range h.deltas(c.out.ctx, run) {
		if err != nil {
			return err
		}
		if !begun {
			begun = true
			if err := c.begin(); err != nil {
				return err
			}
		}
		u.completion += len(d.tokens)
		s.count(&u, len(c.prompt), d)
		if err := c.deltaEvent(&choices[d.seq], d, h); err != nil {
			return err
		}
	}
	return s.endStream(c.out, c.head, &q.common, u, true, h)
}

// begin sends the role chunks, one per choice, and what is echoed.
func (c *chatReply) begin() error {
	for i := range c.q.n {
		b := append(c.buf[:0], c.head...)
		b = append(b, `{"index":`...)
		b = appendInt(b, i)
		b = append(b, `,"delta":{"role":`...)
		b = appendString(b, c.role())
		b = append(b, `,"content":""},"logprobs":null,"finish_reason":null}]`...)
		b = c.appendRunningUsage(b, 0)
		b = append(b, `,"prompt_token_ids":`...)
		b = appendIDs(b, c.q.returned(c.prompt))
		b = append(b, `,"prompt_text":`...)
		b = c.appendPromptText(b)
		c.buf = append(b, '}')
		if err := c.out.event(c.buf); err != nil {
			return err
		}
	}
	text := c.echoed()
	for i := range c.q.n {
		if text == "" {
			break
		}
		b := append(c.buf[:0], c.head...)
		b = append(b, `{"index":`...)
		b = appendInt(b, i)
		b = append(b, `,"delta":{"content":`...)
		b = appendString(b, text)
		b = append(b, `},"logprobs":null,"finish_reason":null}]`...)
		c.buf = append(c.appendRunningUsage(b, 0), '}')
		if err := c.out.event(c.buf); err != nil {
			return err
		}
	}
	return nil
}

func (c *chatReply) appendRunningUsage(b []byte, completion int) []byte {
	if !c.q.continuousUsage {
		return b
	}
	return c.s.appendRunningUsage(b, len(c.prompt), completion, true)
}

// split splits what one step added to a choice.
func (c *chatReply) split(ch *chatStreamChoice, d delta) messageDelta {
	if ch.parser == nil {
		return messageDelta{content: d.text}
	}
	md := ch.parser.push(d.text, d.finish != engine.FinishNone)
	if !c.q.includeReason {
		md.dropReasoning()
	}
	ch.called = ch.called || len(md.calls) > 0
	return md
}

// streamFinish is the finish_reason of a choice whose last delta is d.
func (c *chatReply) streamFinish(ch *chatStreamChoice, d delta) string {
	if ch.called && c.q.toolChoice != "named" && d.finish == engine.FinishStop {
		return "tool_calls"
	}
	return string(d.finish)
}

// deltaEvent sends what one step added to a choice.
func (c *chatReply) deltaEvent(ch *chatStreamChoice, d delta, h *handlePlacer) error {
	q := c.q
	ch.tokens += len(d.tokens)
	final := d.finish != engine.FinishNone
	md := c.split(ch, d)
	if ch.parser != nil && md.empty() && !final && q.logprobs < 0 && !q.returnTokenIDs {
		return nil // the parser waits for more
	}
	b := append(c.buf[:0], c.head...)
	b = append(b, `{"index":`...)
	b = appendInt(b, d.seq)
	b = append(b, `,"delta":`...)
	b = appendMessageDelta(b, md, ch.parser != nil)
	b = append(b, `,"logprobs":`...)
	b = c.s.appendChatLogprobs(b, &q.common, d.tokens, d.logprobs)
	b = append(b, `,"finish_reason":`...)
	if final {
		b = appendString(b, c.streamFinish(ch, d))
		b = append(b, `,"stop_reason":`...)
		b = appendRaw(b, d.stopReason)
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"token_ids":`...)
	b = appendIDs(b, c.q.returned(d.tokens))
	if final && c.s.rel.weightVersions {
		b = append(b, `,"weight_versions":null`...)
	}
	b = append(b, `}]`...)
	b = c.appendRunningUsage(b, ch.tokens)
	if final && !q.includeUsage {
		b = append(b, `,"system_fingerprint":`...)
		b = appendString(b, c.s.fingerprint)
	}
	c.buf = append(h.appendChunk(b, d), '}')
	return c.out.event(c.buf)
}

// appendMessageDelta appends {"content":…} and so on: only what was added, except that without a parser
// content is always there.
func appendMessageDelta(b []byte, d messageDelta, parsed bool) []byte {
	b = append(b, '{')
	from := len(b)
	comma := func() {
		if len(b) > from {
			b = append(b, ',')
		}
	}
	if d.content != "" || !parsed {
		b = append(b, `"content":`...)
		b = appendString(b, d.content)
	}
	if d.reasoning != "" {
		comma()
		b = append(b, `"reasoning":`...)
		b = appendString(b, d.reasoning)
	}
	for i, call := range d.calls {
		if i == 0 {
			comma()
			b = append(b, `"tool_calls":[`...)
		} else {
			b = append(b, ',')
		}
		b = appendCallDelta(b, call)
	}
	if len(d.calls) > 0 {
		b = append(b, ']')
	}
	return append(b, '}')
}

func appendCallDelta(b []byte, call callDelta) []byte {
	b = append(b, '{')
	if call.name != "" {
		b = append(b, `"id":`...)
		b = appendString(b, call.id)
		b = append(b, `,"type":"function",`...)
	}
	b = append(b, `"index":`...)
	b = appendInt(b, call.index)
	b = append(b, `,"function":{`...)
	if call.name != "" {
		b = append(b, `"name":`...)
		b = appendString(b, call.name)
	}
	if call.arguments != "" || call.name == "" {
		if call.name != "" {
			b = append(b, ',')
		}
		b = append(b, `"arguments":`...)
		b = appendString(b, call.arguments)
	}
	return append(b, `}}`...)
}
