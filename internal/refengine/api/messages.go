package api

import (
	"encoding/json"
	"net/http"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// messages serves POST /v1/messages. As in vLLM a message is a chat in Anthropic's words: it is turned into
// a chat request, and the chat's reply is turned back.
func (s *Server) messages(w http.ResponseWriter, r *http.Request) *apiError {
	body, f, err := s.receive(w, r)
	if err == nil {
		err = f.fitMessages()
	}
	if err != nil {
		return err
	}
	q, err := decodeMessages(body, s.rel, false)
	if err != nil {
		return err
	}
	if err := s.answerMessages(w, r, q, f); err != nil && r.Context().Err() == nil {
		writeJSON(w, err.status, err.anthropic())
	}
	return nil
}

// messagesChat is the chat that a message amounts to, ready for the engine.
func (s *Server) messagesChat(m *messagesRequest) (q *chatRequest, ids []int32, text string, err *apiError) {
	if err = s.checkModel(m.model); err != nil {
		return nil, nil, "", err
	}
	if q, err = m.chatRequest(s.rel); err != nil {
		return nil, nil, "", err
	}
	ids, text, err = s.chatPrompt(q)
	return q, ids, text, err
}

func (s *Server) answerMessages(w http.ResponseWriter, r *http.Request, m *messagesRequest, f Faults) *apiError {
	q, ids, text, err := s.messagesChat(m)
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
	c := messagesReply{s.newChatReply(q, out, "chatcmpl-"+s.requestID(r, ""), ids, text)}
	seqs, reqs := s.sequences(&q.common, c.id, ids, f)
	run, subErr := start(s.opts.Engine, reqs, seqs)
	if subErr != nil {
		return s.engineError(subErr)
	}
	defer run.close()
	if q.stream {
		out.unmarked = true
		out.failure = func(e *apiError) error { return out.data("error", e.anthropic()) }
		s.stream(out, func() error { return c.events(run) })
		return nil
	}
	return c.whole(run)
}

// messagesReply is one message on its way out.
type messagesReply struct{ *chatReply }

func (c messagesReply) whole(run *run) *apiError {
	w, err := c.collect(run)
	if err != nil {
		return c.s.engineError(err)
	}
	ch := &w.choices[0]
	m := c.message(ch)
	b := c.appendMessage(nil)
	b = append(b, `"content":[`...)
	b = c.appendBlocks(b, &m)
	b = append(b, `],"model":`...)
	b = appendString(b, c.s.opts.ModelName)
	b = append(b, `,"stop_reason":`...)
	reason, sequence := c.s.stopReason(m.finish, ch.last)
	b = appendString(b, reason)
	if sequence != nil {
		b = append(b, `,"stop_sequence":`...)
		b = append(b, sequence...)
	}
	b = append(b, `,"usage":`...)
	b = c.s.appendMessagesUsage(b, w.usage)
	if params := w.params(); !isNull(params) {
		b = appendParams(append(b, ','), params)
	}
	if c.out.wait() == nil {
		c.out.document(http.StatusOK, append(b, '}'))
	}
	return nil
}

// appendMessage opens a message object.
func (c messagesReply) appendMessage(b []byte) []byte {
	b = append(b, `{"id":`...)
	b = appendString(b, c.id)
	return append(b, `,"type":"message","role":"assistant",`...)
}

// appendBlocks appends a message's content: thinking, text, tool calls.
func (c messagesReply) appendBlocks(b []byte, m *chatMessage) []byte {
	from := len(b)
	open := func(members string) {
		if len(b) > from {
			b = append(b, ',')
		}
		b = append(b, members...)
	}
	if m.reasoning != "" {
		open(`{"type":"thinking","thinking":`)
		b = appendString(b, m.reasoning)
		b = append(b, `,"signature":`...)
		b = append(appendString(b, c.s.randomHex(32)), '}')
	}
	// Clients look at the first block: newer releases send an empty one rather than none.
	if m.content != "" || m.reasoning == "" && len(m.calls) == 0 && c.s.rel.fullMessages {
		open(`{"type":"text","text":`)
		b = append(appendString(b, m.content), '}')
	}
	for _, call := range m.calls {
		open(`{"type":"tool_use","id":`)
		b = appendString(b, call.id)
		b = append(b, `,"name":`...)
		b = appendString(b, call.name)
		b = append(b, `,"input":`...)
		b = append(b, callInput(call.arguments)...)
		b = append(b, '}')
	}
	return b
}

// callInput is the arguments of a finished call as an object; what is none becomes {}.
func callInput(arguments string) json.RawMessage {
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(arguments), &object) != nil || object == nil {
		return json.RawMessage("{}")
	}
	return compactJSON(json.RawMessage(arguments))
}

// stopReason is Anthropic's word for how a message ended, and the stop sequence that it ended with, as JSON.
func (s *Server) stopReason(finish string, last delta) (reason string, sequence json.RawMessage) {
	switch {
	case finish == "tool_calls":
		return "tool_use", nil
	case finish == string(engine.FinishLength):
		return "max_tokens", nil
	case len(last.stopReason) > 0 && last.stopReason[0] == '"' && s.rel.fullMessages:
		return "stop_sequence", last.stopReason
	}
	return "end_turn", nil
}

// appendMessagesUsage appends usage in Anthropic's way: input_tokens are those that no other member counts.
func (s *Server) appendMessagesUsage(b []byte, u usage) []byte {
	details := s.opts.PromptTokensDetails && s.rel.fullMessages
	created := 0
	if s.rel.createdCache {
		created = u.created
	}
	input := u.prompt
	if details {
		input = max(0, input-u.cached-created)
	}
	b = appendInputTokens(b, input, u.completion)
	if details {
		if s.rel.createdCache {
			b = append(b, `,"cache_creation_input_tokens":`...)
			b = appendInt(b, created)
		}
		b = append(b, `,"cache_read_input_tokens":`...)
		b = appendInt(b, u.cached)
	}
	return append(b, '}')
}

// appendInputTokens opens a usage object.
func appendInputTokens(b []byte, input, output int) []byte {
	b = append(b, `{"input_tokens":`...)
	b = appendInt(b, input)
	b = append(b, `,"output_tokens":`...)
	return appendInt(b, output)
}

// countTokens serves POST /v1/messages/count_tokens.
func (s *Server) countTokens(w http.ResponseWriter, r *http.Request) *apiError {
	body, _, err := s.receive(w, r)
	if err != nil {
		return err
	}
	q, err := decodeMessages(body, s.rel, true)
	if err != nil {
		return err
	}
	_, ids, _, err := s.messagesChat(q)
	if err != nil {
		writeJSON(w, err.status, err.anthropic())
		return nil
	}
	b := append([]byte(nil), `{"input_tokens":`...)
	b = appendInt(b, len(ids))
	b = append(b, `,"context_management":{"original_input_tokens":`...)
	writeJSON(w, http.StatusOK, append(appendInt(b, len(ids)), `}}`...))
	return nil
}
