package router

import (
	"net/http"
	"slices"

	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/conv"
	"github.com/tarik-kv/tarik/internal/kvp"
)

// dialect is how one endpoint says what all of them say.
type dialect struct {
	prompt string // member with the messages, items or text
	limit  string // member that bounds the reply's tokens
	// refused are members that make P refuse, or that would have an effect there.
	refused []string
	// ids: the endpoint reports token ids when asked by return_token_ids.
	ids bool
	// usage: a stream reports usage only when asked by stream_options.
	usage bool
	// choices: what is said is in choices, and a stream without any says nothing.
	choices bool
}

var dialects = map[kvp.Endpoint]dialect{
	kvp.Chat: {
		prompt: "messages", limit: "max_tokens", ids: true, usage: true, choices: true,
		refused: []string{"stream_options", "max_completion_tokens", "min_tokens", "return_token_ids"},
	},
	kvp.Completions: {
		prompt: "prompt", limit: "max_tokens", ids: true, usage: true, choices: true,
		refused: []string{"stream_options", "max_completion_tokens", "min_tokens", "return_token_ids"},
	},
	kvp.Responses: {
		prompt: "input", limit: "max_output_tokens",
		refused: []string{"stream_options", "background"},
	},
	kvp.Messages: {prompt: "messages", limit: "max_tokens"},
}

// textParts are the kinds of content that token ids describe, on any endpoint.
var textParts = map[string]bool{
	"text": true, "input_text": true, "output_text": true, "refusal": true, "reasoning_text": true, "summary_text": true,
	"thinking": true, "redacted_thinking": true, "tool_use": true, "tool_result": true,
}

// messages are those of a prompt, told apart.
type messages struct {
	list  [][]byte
	media bool // one of them has a content part that is not text

	content, output []byte // of the message being looked at; on responses the output of a tool may be parts as well
}

func (ms *messages) visit(m bodyedit.Member) {
	switch {
	case m.Is("content"):
		ms.content = m.Raw
	case m.Is("output"):
		ms.output = m.Raw
	}
}

func (ms *messages) add(m []byte) {
	ms.media = ms.media || mediaContent(ms.content, 0) || mediaContent(ms.output, 0)
	ms.content, ms.output = nil, nil
	ms.list = append(ms.list, m)
}

// split fills in q.messages.
func (q *request) split() {
	switch q.endpoint {
	case kvp.Completions:
	case kvp.Responses: // its prompt is made of more than the body
		for m := range bodyedit.Objects(q.prompt, q.messages.visit) {
			q.messages.add(m)
		}
	default:
		q.messages.list = make([][]byte, 0, q.doc.ListLen())
		for m := range q.doc.Listed(q.messages.visit) {
			q.messages.add(m)
		}
	}
}

// mediaContent looks into a list of content parts, and into tool results among them, which hold
// parts of their own.
func mediaContent(content []byte, depth int) bool {
	if bodyedit.KindOf(content) != bodyedit.Array {
		return false
	}
	for part := range bodyedit.Elements(content) {
		if bodyedit.KindOf(part) == bodyedit.Text {
			continue
		}
		kind, _ := bodyedit.Lookup(part, "type")
		name, _ := bodyedit.String(kind)
		if !textParts[name] || depth > 2 {
			return true
		}
		if inner, ok := bodyedit.Lookup(part, "content"); ok && mediaContent(inner, depth+1) {
			return true
		}
	}
	return false
}

// previousID is the member by which a request of /v1/responses goes on from an earlier one.
const previousID = "previous_response_id"

// expand gives a request of /v1/responses its whole input: what was said up to the response it
// goes on from, and what it says itself. The engines have no part in that: P has never seen what D
// answered.
func (r *Router) expand(q *request) *failure {
	q.items = inputItems(q.prompt)
	if id, _ := bodyedit.String(q.doc.Get(previousID)); id != "" {
		said, ok := r.items.Get(q.itemKey(id))
		if !ok {
			return &failure{status: http.StatusNotFound, param: previousID, code: "previous-response-not-found", message: "the response that " + previousID +
				" names is not known here: it was never stored, or the router has restarted or needed its room; send the whole input"}
		}
		q.items = slices.Concat(said, []byte{','}, q.items)
		q.previous = id
	}
	q.prompt = slices.Concat([]byte{'['}, q.items, []byte{']'})
	return nil
}

// inputItems are the elements of an input, separated by commas. An input that is text is one
// message.
func inputItems(input []byte) []byte {
	switch bodyedit.KindOf(input) {
	case bodyedit.Array:
		return input[1 : len(input)-1]
	case bodyedit.Text:
		return append(append([]byte(`{"role":"user","content":`), input...), '}')
	}
	return nil
}

func (q *request) itemKey(responseID string) conv.Key {
	return conv.Scope{Tenant: q.tenant, Model: q.model, Salt: q.salt}.ID("response " + responseID)
}

// remember keeps what a response said, for a request that goes on from it. response is the object
// as D sent it.
func (r *Router) remember(q *request, response []byte) {
	if store, ok := bodyedit.Bool(q.doc.Get("store")); ok && !store {
		return
	}
	id, _ := bodyedit.Lookup(response, "id")
	name, _ := bodyedit.String(id)
	output, _ := bodyedit.Lookup(response, "output")
	if name == "" || bodyedit.KindOf(output) != bodyedit.Array || len(q.items) == 0 {
		return
	}
	items := make([]byte, 0, len(q.items)+len(output))
	items = append(items, q.items...)
	for item := range bodyedit.Elements(output) {
		items = append(append(items, ','), item...)
	}
	r.items.Put(q.itemKey(name), items)
}
