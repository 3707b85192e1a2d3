package api

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// responses serves POST /v1/responses.
func (s *Server) responses(w http.ResponseWriter, r *http.Request) *apiError {
	body, f, err := s.receive(w, r)
	if err == nil {
		err = f.fitResponses()
	}
	if err != nil {
		return err
	}
	q, err := decodeResponses(body, s.rel)
	if err != nil {
		return err
	}
	ids, text, err := s.responsesPrompt(q)
	if err == nil {
		err = q.check()
	}
	if err != nil {
		return err
	}
	out := newOutput(r.Context(), w, f)
	if s.replaced(out, q.stream) {
		return nil
	}
	id := s.responseID(q)
	c := &responseReply{chatReply: s.newChatReply(&q.chatRequest, out, id, ids, text), r: q}
	c.callPrefix = "call_"
	c.reasoning.on = s.reasons(&q.chatRequest)
	seqs, reqs := s.sequences(&q.common, id+"_0", ids, f)
	run, subErr := start(s.opts.Engine, reqs, seqs)
	if subErr != nil {
		return s.engineError(subErr)
	}
	defer run.close()
	if q.stream {
		out.unmarked = true
		out.failure = c.failed
		s.stream(out, func() error { return c.events(run) })
		return nil
	}
	c.whole(run)
	return nil
}

// responseID is the id of a response, also in the engine. X-Request-Id has no part in it.
func (s *Server) responseID(q *responsesRequest) string {
	if q.ownID != "" {
		return q.ownID
	}
	return "resp_" + s.randomHex(16)
}

// responsesPrompt puts the conversation together and returns its ids and, unless the request brought the
// ids, its text. It also settles the limit on the reply.
func (s *Server) responsesPrompt(q *responsesRequest) (ids []int32, text string, err *apiError) {
	if err := s.checkModel(q.model); err != nil {
		return nil, "", err
	}
	if q.instructions != "" {
		q.messages = append(q.messages, chatMessageJSON("system", `"content":`, q.instructions))
	}
	if q.previous != "" {
		before := s.stored.get(q.previous)
		if before == nil {
			return nil, "", responseNotFound(q.previous)
		}
		for _, m := range before.messages {
			if roleOf(m) != "system" { // instructions are of one response only
				q.messages = append(q.messages, m)
			}
		}
		for _, text := range before.texts {
			q.messages = append(q.messages, chatMessageJSON("assistant", `"content":`, text))
		}
	}
	q.messages = append(q.messages, q.input...)
	q.describeMessages()
	if s.rel.exactPrompt {
		if err := q.takeExactPrompt(); err != nil {
			return nil, "", err
		}
	}
	ids, text, err = s.chatPrompt(&q.chatRequest)
	if q.maxTokens == 0 {
		q.maxTokens = s.maxModelLen - len(ids)
	}
	return ids, text, err
}

func roleOf(message json.RawMessage) string {
	var m struct {
		Role string `json:"role"`
	}
	_ = json.Unmarshal(message, &m) // was read before
	return m.Role
}

// responseReply is one response on its way out.
type responseReply struct {
	*chatReply
	r      *responsesRequest
	output []byte // items that are done, joined by commas
	texts  []string

	text           strings.Builder // all that was generated
	tokens         []int32
	probs          [][]engine.TokenLogprob
	reasoning      reasoningCounter
	usage          usage
	finish         engine.FinishReason
	params         json.RawMessage
	sequenceNumber int // of the next event
	outputIndex    int // of the open or next item
	item           openResponseItem
}

// take notes what a step added.
func (c *responseReply) take(d delta) {
	c.text.WriteString(d.text)
	c.tokens = append(c.tokens, d.tokens...)
	c.probs = append(c.probs, d.logprobs...)
	c.reasoning.add(d.text, len(d.tokens))
	c.usage.prompt = len(c.prompt)
	c.usage.completion += len(d.tokens)
	c.s.count(&c.usage, len(c.prompt), d)
	c.finish, c.params = d.finish, d.params
}

func (c *responseReply) whole(run *run) {
	for d, err := range run.deltas(c.out.ctx) {
		if err != nil {
			c.s.failWhole(c.out, err)
			return
		}
		c.take(d)
	}
	c.appendItems()
	object := c.appendResponse(nil, c.status())
	c.keep(object)
	if c.out.wait() == nil {
		c.out.document(http.StatusOK, object)
	}
}

// appendItems makes the output of a whole response: reasoning, text, tool calls.
func (c *responseReply) appendItems() {
	m := chatMessage{content: c.text.String()}
	p := c.parser()
	if p != nil {
		var d messageDelta
		d, m.calls = p.parseWhole(m.content)
		m.content = d.content
		if c.q.includeReason {
			m.reasoning = d.reasoning
		}
	}
	var items []func(status string) []byte
	if m.reasoning != "" {
		items = append(items, func(status string) []byte {
			if status == "completed" {
				status = "" // null, unlike in a stream
			}
			return appendReasoningItem(nil, "rs_"+c.s.randomHex(16), m.reasoning, true, status)
		})
	}
	if m.content != "" || p == nil {
		c.texts = append(c.texts, m.content)
		items = append(items, func(status string) []byte {
			var part []byte
			if m.content != "" {
				part = appendTextPart(nil, m.content, c.appendItemLogprobs(nil))
			}
			return appendMessageItem(nil, "msg_"+c.s.randomHex(16), part, status)
		})
	}
	for _, call := range m.calls {
		items = append(items, func(status string) []byte {
			return appendCallItem(nil, "fc_"+c.s.randomHex(16), call.id, call.name, call.arguments, status)
		})
	}
	for i, item := range items {
		if i == len(items)-1 {
			c.addItem(item(c.itemStatus()))
		} else {
			c.addItem(item("completed"))
		}
	}
}

func (c *responseReply) addItem(item []byte) {
	if len(c.output) > 0 {
		c.output = append(c.output, ',')
	}
	c.output = append(c.output, item...)
}

// status of the response once it is over.
func (c *responseReply) status() string {
	if c.finish == engine.FinishLength {
		return "incomplete"
	}
	return "completed"
}

// itemStatus is the status of the last item.
func (c *responseReply) itemStatus() string {
	if c.s.rel.incomplete {
		return c.status()
	}
	return "completed"
}

// keep stores the response if it was asked for and the server keeps any.
func (c *responseReply) keep(object []byte) {
	if c.r.store && c.s.opts.ResponsesStore {
		c.s.stored.put(c.id, &storedResponse{object: object, messages: c.r.messages, texts: c.texts})
	}
}

// reasoningCounter counts the tokens before </think>.
type reasoningCounter struct {
	on     bool
	tail   string // end of the text so far, as much as could begin the mark
	tokens int
}

func (r *reasoningCounter) add(text string, tokens int) {
	if !r.on {
		return
	}
	r.tail += text
	if strings.Contains(r.tail, thinkEnd) {
		r.on = false
		return
	}
	r.tail = r.tail[max(0, len(r.tail)-len(thinkEnd)):]
	r.tokens += tokens
}
