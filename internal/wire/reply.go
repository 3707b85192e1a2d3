package wire

import (
	"bytes"

	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/kvp"
)

// Reply is what the assistant said: enough to write down the message by which the client will repeat it at the
// end of its next prompt ([Reply.AppendMessage]).
//
//	"content":"The"   "content":" sea\n"   "tool_calls":[{"index":0,…"arguments":"{\"a\""}]   …"arguments":":1}"
//	           └─┬─┘             └──┬──┘                                    └──┬───┘                          └┬─┘
//	             └── said: text ────┘                                          └──────── said: call 0 ─────────┘
//
// Pieces are kept as they stand in the JSON, escapes and all, and concatenated: what was cut between two
// deltas, a surrogate pair for one, is whole again, and nothing is escaped in another way than the engine did.
//
// A Reply is kept if [Options.KeepReply] allows it. It belongs to its [Filter] and is valid until Reset, which
// uses the memory again. What cannot be told for sure makes the whole reply unusable: several choices, an
// error, an event that was not understood or not looked into, one tool call with two ids.
type Reply struct {
	Over bool // it was larger than Options.KeepReply, and nothing of it is kept

	endpoint kvp.Endpoint
	limit    int
	size     int // bytes in parts
	unusable bool

	// Invariant: empty if Over or unusable, and it stays so until reset. Parts are only ever appended, so that the
	// number of one is good for the whole stream.
	parts     []part
	reasoning string // the member that reasoning comes in; some engines send two with the same text
}

// part is one thing that was said: a text, a tool call, a content block.
type part struct {
	kind  partKind
	index int    // of the tool call or block in the reply
	id    []byte // of a tool call, a raw JSON string
	name  []byte // of a tool call, a raw JSON string
	text  []byte // escaped content of a string; the whole value of a raw part

	// more is the signature of a thinking block, escaped, or the input with which a tool_use block began.
	more    []byte
	hasMore bool
}

type partKind uint8

const (
	saidText         partKind = iota // the content or text of a reply, or a text block
	saidReasoning                    // reasoning, or a thinking block
	saidRefusal                      // the refusal of a chat
	saidCall                         // a tool call that comes in pieces, or a tool_use block
	saidRaw                          // a tool call, block or item that came in one piece
	saidRawReasoning                 // such a block with reasoning
)

const (
	nowhere = -1 // the number of no part

	// maxParts bounds the memory of a reply that says nothing in ever more tool calls.
	maxParts = 4096

	// keptBytes and keptParts are what a reply may leave behind for the next one: filters are pooled.
	keptBytes = 64 << 10
	keptParts = 64
)

// reset makes r ready for a reply of the endpoint of opt.
func (r *Reply) reset(opt *Options) {
	for i := range r.parts {
		if p := &r.parts[i]; cap(p.text) > keptBytes || cap(p.more) > keptBytes || cap(p.id) > keptBytes || cap(p.name) > keptBytes {
			*p = part{}
		}
	}
	parts := r.parts[:0]
	if cap(parts) > keptParts {
		parts = nil
	}
	*r = Reply{endpoint: opt.Endpoint, limit: opt.KeepReply, parts: parts}
}

// keeps reports whether r is there to be kept, and can be so far.
func (r *Reply) keeps() bool { return r.limit > 0 && !r.Over && !r.unusable }

// drop forgets what was said, for good.
func (r *Reply) drop() {
	r.parts = r.parts[:0]
	r.size = 0
}

// spoil makes r unusable.
func (r *Reply) spoil() {
	r.unusable = true
	r.drop()
}

// room makes room for n more bytes. It returns false, and r is empty, if there is none.
func (r *Reply) room(n int) bool {
	if r.size += n; r.size > r.limit {
		r.Over = true
		r.drop()
		return false
	}
	return true
}

// find returns the number of a part, nowhere if there is none. The one asked for is nearly always the last.
func (r *Reply) find(kind partKind, index int) int {
	for i := len(r.parts) - 1; i >= 0; i-- {
		if p := &r.parts[i]; p.kind == kind && p.index == index {
			return i
		}
	}
	return nowhere
}

// open returns the number of a new part, nowhere if nothing is kept.
func (r *Reply) open(kind partKind, index int) int {
	if !r.keeps() {
		return nowhere
	}
	n := len(r.parts)
	if n == maxParts {
		r.Over = true
		r.drop()
		return nowhere
	}
	if n < cap(r.parts) {
		r.parts = r.parts[:n+1]
		p := &r.parts[n]
		*p = part{id: p.id[:0], name: p.name[:0], text: p.text[:0], more: p.more[:0]}
	} else {
		r.parts = append(r.parts, part{})
	}
	r.parts[n].kind, r.parts[n].index = kind, index
	return n
}

// part returns the number of a part and makes it if need be.
func (r *Reply) part(kind partKind, index int) int {
	if i := r.find(kind, index); i != nowhere {
		return i
	}
	return r.open(kind, index)
}

// add appends piece to the text of part i. Most pieces of a stream come here directly from the comparison of
// chunks, so a part that is not there (any more) is no fault.
func (r *Reply) add(i int, piece []byte) {
	if uint(i) < uint(len(r.parts)) && r.room(len(piece)) {
		p := &r.parts[i]
		p.text = append(p.text, piece...)
	}
}

// addMore appends piece to what else is known of part i.
func (r *Reply) addMore(i int, piece []byte) {
	if uint(i) < uint(len(r.parts)) && r.room(len(piece)) {
		p := &r.parts[i]
		p.more, p.hasMore = append(p.more, piece...), true
	}
}

// identify notes the id and the name of tool call i, each a raw string or not there. Some engines repeat them in
// every piece; two that differ are two calls under one index.
func (r *Reply) identify(i int, id, name []byte) {
	if uint(i) < uint(len(r.parts)) {
		r.once(&r.parts[i].id, id)
	}
	if uint(i) < uint(len(r.parts)) {
		r.once(&r.parts[i].name, name)
	}
}

// once copies the string raw to dst if that is empty, and makes r unusable if another one is there.
func (r *Reply) once(dst *[]byte, raw []byte) {
	switch {
	case bodyedit.KindOf(raw) != bodyedit.Text || len(raw) == len(`""`):
	case len(*dst) > 0:
		if !bytes.Equal(*dst, raw) {
			r.spoil()
		}
	case r.room(len(raw)):
		*dst = append(*dst, raw...)
	}
}

// keepRaw keeps an element of an array in one piece; idName is the member that names it if it is a tool call.
func (r *Reply) keepRaw(kind partKind, raw []byte, idName string) {
	i := r.open(kind, len(r.parts))
	r.add(i, raw)
	if idName == "" || !r.keeps() {
		return
	}
	id, _ := bodyedit.Lookup(raw, idName)
	if bodyedit.KindOf(id) != bodyedit.Text {
		r.spoil()
		return
	}
	r.identify(i, id, nil)
}

// reasoningPart is the part for the reasoning that comes in the member called name.
func (r *Reply) reasoningPart(name string) int {
	if r.reasoning == "" {
		r.reasoning = name
	}
	if r.reasoning != name {
		return nowhere
	}
	return r.part(saidReasoning, 0)
}

// keepDelta handles the tool calls of a chat's delta. at is their array.
func (f *Filter) keepDelta(at bodyedit.Span) {
	r := &f.info.Reply
	for call := range f.doc.ElementsOf(at) {
		var (
			index    int64
			indexed  bool
			id, name []byte
			args     bodyedit.Member
		)
		for m := range f.doc.MembersOf(call) {
			switch string(m.RawName) {
			case "index":
				index, indexed = bodyedit.Int(m.Raw)
			case "id":
				id = m.Raw
			case "function":
				for a := range f.doc.MembersOf(m.Span) {
					switch string(a.RawName) {
					case "name":
						name = a.Raw
					case "arguments":
						args = a
					}
				}
			}
		}
		i := nowhere
		switch {
		case f.opt.Endpoint != kvp.Chat:
		case indexed && 0 <= index && index < maxParts:
			i = r.part(saidCall, int(index))
			r.identify(i, id, name)
		default:
			r.spoil()
		}
		switch bodyedit.KindOf(args.Raw) {
		case bodyedit.Text:
			f.said(args.Span, i)
		case bodyedit.None, bodyedit.Null:
		default:
			r.spoil()
		}
	}
}

// said notes the text of a chunk, a string, which is to be kept in part i. A chunk that says more than one thing is
// not an ordinary one.
func (f *Filter) said(at bodyedit.Span, i int) {
	if at.Len() <= len(`""`) {
		return
	}
	f.last.said++
	f.last.text, f.last.into = at, i
	f.info.Reply.add(i, inside(f.doc.Bytes(at)))
}

// inside is the content of the raw string, still escaped.
func inside(raw []byte) []byte { return raw[1 : len(raw)-1] }

// keepBlocks keeps the content of a whole message of /v1/messages.
func (f *Filter) keepBlocks(at bodyedit.Span) {
	for el := range f.doc.ElementsOf(at) {
		f.keepBlock(f.doc.Bytes(el))
	}
}

func (f *Filter) keepBlock(raw []byte) {
	kind, id := saidRaw, ""
	switch t, _ := bodyedit.Lookup(raw, "type"); string(t) {
	case `"tool_use"`:
		id = "id"
	case `"thinking"`, `"redacted_thinking"`:
		kind = saidRawReasoning
	}
	f.info.Reply.keepRaw(kind, raw, id)
}

// keepItems keeps the output of a finished response.
func (f *Filter) keepItems(at bodyedit.Span) {
	for el := range f.doc.ElementsOf(at) {
		raw, id := f.doc.Bytes(el), ""
		if t, _ := bodyedit.Lookup(raw, "type"); string(t) == `"function_call"` {
			id = "call_id"
		}
		f.info.Reply.keepRaw(saidRaw, raw, id)
	}
}

// blockStart handles a content block that begins.
func (f *Filter) blockStart(index int, at bodyedit.Span) {
	r := &f.info.Reply
	var kind, id, name, text, input, signature []byte
	for m := range f.doc.MembersOf(at) {
		switch string(m.RawName) {
		case "type":
			kind = m.Raw
		case "id":
			id = m.Raw
		case "name":
			name = m.Raw
		case "text", "thinking":
			text = m.Raw
		case "input":
			input = m.Raw
		case "signature":
			signature = m.Raw
		}
	}
	if r.block(index) != nowhere {
		r.spoil() // two blocks under one index
		return
	}
	var i int
	switch string(kind) {
	case `"text"`:
		i = r.open(saidText, index)
	case `"thinking"`:
		i = r.open(saidReasoning, index)
		if bodyedit.KindOf(signature) == bodyedit.Text {
			r.addMore(i, inside(signature))
		}
	case `"tool_use"`:
		i = r.open(saidCall, index)
		r.identify(i, id, name)
		if bodyedit.KindOf(input) == bodyedit.Object {
			r.addMore(i, input)
		}
		return
	case "":
		r.spoil()
		return
	default: // a block that comes in one piece
		f.keepBlock(f.doc.Bytes(at))
		if n := len(r.parts); n > 0 {
			r.parts[n-1].index = index
		}
		return
	}
	if bodyedit.KindOf(text) == bodyedit.Text {
		r.add(i, inside(text))
	}
}

// block returns the number of the part that is the block at index.
func (r *Reply) block(index int) int {
	for i := len(r.parts) - 1; i >= 0; i-- {
		if r.parts[i].index == index {
			return i
		}
	}
	return nowhere
}

// blockDelta handles a piece of a content block.
func (f *Filter) blockDelta(index int, at bodyedit.Span) {
	r := &f.info.Reply
	var kind []byte
	var text, thinking, input, signature bodyedit.Member
	for m := range f.doc.MembersOf(at) {
		switch string(m.RawName) {
		case "type":
			kind = m.Raw
		case "text":
			text = m
		case "thinking":
			thinking = m
		case "partial_json":
			input = m
		case "signature":
			signature = m
		}
	}
	var want partKind
	var piece bodyedit.Member
	switch string(kind) {
	case `"text_delta"`:
		want, piece = saidText, text
	case `"thinking_delta"`:
		want, piece = saidReasoning, thinking
	case `"signature_delta"`:
		want, piece = saidReasoning, signature
	case `"input_json_delta"`:
		want, piece = saidCall, input
	}
	if bodyedit.KindOf(piece.Raw) != bodyedit.Text {
		r.spoil() // not understood
		return
	}
	i := r.block(index)
	if r.keeps() && (i == nowhere || r.parts[i].kind != want) {
		r.spoil() // a piece of nothing
		i = nowhere
	}
	if piece.Span == signature.Span {
		r.addMore(i, inside(piece.Raw))
		return
	}
	f.said(piece.Span, i)
}
