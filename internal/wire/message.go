package wire

import (
	"cmp"
	"iter"
	"slices"

	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/kvp"
)

// AppendMessage appends to dst what stands for the reply in the next prompt of its conversation, raw JSON. ep is
// the endpoint that gave the reply:
//
//	chat         {"role":"assistant","content":"…","tool_calls":[…]}; content is null if there is none but there
//	             are tool calls or a refusal
//	completions  the escaped content of a string, to be put behind the prompt's
//	messages     {"role":"assistant","content":[…]}
//	responses    the items of the output with commas between them
//
// reasoningName is the member of a chat's message in which this client and its engine keep reasoning; "" leaves
// reasoning out, thinking blocks of messages too. The reasoning of responses are items like others and stay.
//
// ok is false, and out is dst, if nothing was said that a next prompt could begin with, or if the reply cannot
// be used (see [Reply]). A stream that broke off is not noticed here: compare [Info.Done].
func (r *Reply) AppendMessage(dst []byte, ep kvp.Endpoint, reasoningName string) (out []byte, ok bool) {
	if len(r.parts) == 0 || ep != r.endpoint {
		return dst, false
	}
	dst = slices.Grow(dst, r.size+len(`{"role":"assistant","content":""}`))
	switch ep {
	case kvp.Completions:
		text := r.textOf(saidText)
		out, ok = append(dst, text...), len(text) > 0
	case kvp.Responses:
		out, ok = r.appendItems(dst), true
	case kvp.Messages:
		out, ok = r.appendBlocks(dst, reasoningName != "")
	default:
		out, ok = r.appendChat(dst, reasoningName)
	}
	if !ok {
		return dst, false
	}
	return out, true
}

// ToolCalls returns the ids of the tool calls in the order of the message, as the results will name them.
func (r *Reply) ToolCalls() []string {
	var ids []string
	for p := range r.ordered() {
		if id, ok := bodyedit.String(p.id); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// Reasoned reports whether some of the reply is reasoning that [Reply.AppendMessage] leaves out unless it is told where
// to put it.
func (r *Reply) Reasoned() bool {
	return slices.ContainsFunc(r.parts, func(p part) bool { return p.kind == saidReasoning || p.kind == saidRawReasoning })
}

// ordered yields the parts by index. Those of a chat that are no tool calls have index 0 and come in any place.
func (r *Reply) ordered() iter.Seq[*part] {
	byIndex := func(a, b part) int { return cmp.Compare(a.index, b.index) }
	return func(yield func(*part) bool) {
		parts := r.parts
		if !slices.IsSortedFunc(parts, byIndex) {
			parts = slices.Clone(parts)
			slices.SortStableFunc(parts, byIndex)
		}
		for i := range parts {
			if !yield(&parts[i]) {
				return
			}
		}
	}
}

// textOf is the text of the part of a kind that a reply has one of, empty if nothing was said.
func (r *Reply) textOf(kind partKind) []byte {
	if i := r.find(kind, 0); i != nowhere {
		return r.parts[i].text
	}
	return nil
}

func (r *Reply) appendChat(dst []byte, reasoningName string) (out []byte, ok bool) {
	text, refusal, reasoning := r.textOf(saidText), r.textOf(saidRefusal), r.textOf(saidReasoning)
	if reasoningName == "" {
		reasoning = nil
	}
	// The calls come first in the making: whether there are any decides about content.
	var calls []byte
	for p := range r.ordered() {
		if p.kind != saidCall && p.kind != saidRaw {
			continue
		}
		if len(calls) > 0 {
			calls = append(calls, ',')
		}
		if p.kind == saidRaw {
			calls = append(calls, p.text...)
			continue
		}
		if len(p.id) == 0 || len(p.name) == 0 {
			return dst, false
		}
		calls = append(append(calls, `{"id":`...), p.id...)
		calls = append(append(calls, `,"type":"function","function":{"name":`...), p.name...)
		calls = append(append(append(calls, `,"arguments":"`...), p.text...), `"}}`...)
	}
	said := len(text) > 0
	ok = said || len(reasoning) > 0 || len(refusal) > 0 || len(calls) > 0
	dst = append(dst, `{"role":"assistant","content":`...)
	if said || len(calls) == 0 && len(refusal) == 0 {
		dst = appendQuoted(dst, text)
	} else {
		dst = append(dst, null...)
	}
	if len(reasoning) > 0 {
		dst = append(bodyedit.AppendString(append(dst, ','), reasoningName), ':')
		dst = appendQuoted(dst, reasoning)
	}
	if len(refusal) > 0 {
		dst = appendQuoted(append(dst, `,"refusal":`...), refusal)
	}
	if len(calls) > 0 {
		dst = append(append(append(dst, `,"tool_calls":[`...), calls...), ']')
	}
	return append(dst, '}'), ok
}

// appendBlocks appends the message of /v1/messages.
func (r *Reply) appendBlocks(dst []byte, thinking bool) (out []byte, ok bool) {
	dst = append(dst, `{"role":"assistant","content":[`...)
	from := len(dst)
	for p := range r.ordered() {
		if !thinking && (p.kind == saidReasoning || p.kind == saidRawReasoning) {
			continue
		}
		if len(dst) > from {
			dst = append(dst, ',')
		}
		switch p.kind {
		case saidText:
			dst = append(appendQuoted(append(dst, `{"type":"text","text":`...), p.text), '}')
		case saidReasoning:
			dst = appendQuoted(append(dst, `{"type":"thinking","thinking":`...), p.text)
			if p.hasMore {
				dst = appendQuoted(append(dst, `,"signature":`...), p.more)
			}
			dst = append(dst, '}')
		case saidCall:
			if len(p.id) == 0 || len(p.name) == 0 {
				return dst, false
			}
			dst = append(append(dst, `{"type":"tool_use","id":`...), p.id...)
			dst = append(append(dst, `,"name":`...), p.name...)
			if dst, ok = p.appendInput(append(dst, `,"input":`...)); !ok {
				return dst, false
			}
			dst = append(dst, '}')
		default:
			dst = append(dst, p.text...)
		}
	}
	ok = len(dst) > from
	return append(dst, `]}`...), ok
}

// appendInput appends the input of a tool_use block. Its pieces are a string whose content is the object. ok is
// false if that is not one.
func (p *part) appendInput(dst []byte) (out []byte, ok bool) {
	switch {
	case len(p.text) > 0:
		from := len(dst)
		dst = bodyedit.AppendText(dst, appendQuoted(nil, p.text))
		_, err := bodyedit.Scan(dst[from:])
		return dst, err == nil
	case p.hasMore:
		return append(dst, p.more...), true
	}
	return append(dst, `{}`...), true
}

func (r *Reply) appendItems(dst []byte) []byte {
	for i := range r.parts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, r.parts[i].text...)
	}
	return dst
}

// appendQuoted appends the string with the escaped content text.
func appendQuoted(dst, text []byte) []byte { return append(append(append(dst, '"'), text...), '"') }
