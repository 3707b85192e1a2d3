package wire

import (
	"bytes"

	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/sse"
)

// Action says what to do with an event.
type Action uint8

const (
	Pass    Action = iota // send the event as it came
	Rewrite               // send other bytes in its place
	Drop                  // send nothing: the event is not the client's
)

func (a Action) String() string { return [...]string{"pass", "rewrite", "drop"}[a] }

// Filter looks at the events of one stream and decides what the client sees of each.
//
//	f.Reset(options)
//	for each event: act, out := f.Event(ev); client.Write(out)
//	info := f.Info()
type Filter struct {
	opt  Options
	info Info
	last pattern // the last ordinary chunk, for comparison

	doc  bodyedit.Doc
	edit bodyedit.Edit
	data []byte // edited payload
	out  []byte // edited event
	tail []byte // text to be inserted
}

// Reset makes f ready for a stream. The zero Filter is ready for one with zero Options. Memory is kept.
func (f *Filter) Reset(opt Options) {
	f.opt = opt
	f.info.reset(&f.opt)
	f.last.known = false
}

// Info is what f has learned so far. It changes with every event.
func (f *Filter) Info() *Info { return &f.info }

// Event looks at ev and returns what the client gets for it: ev.Raw itself (Pass), memory that is valid until the
// next call (Rewrite), or nil (Drop).
func (f *Filter) Event(ev sse.Event) (Action, []byte) {
	if ev.Partial {
		f.info.Uninspected++
		f.info.Reply.spoil()
		return Pass, ev.Raw
	}
	if !ev.HasData() {
		return Pass, ev.Raw
	}
	data := ev.Data()
	if f.last.known {
		if at, single := ev.DataOffset(); single {
			if act, out, ok := f.repeat(ev.Raw, at, data); ok {
				return act, out
			}
		}
	}
	if string(data) == "[DONE]" {
		f.info.Done = true
		return Pass, ev.Raw
	}
	if err := f.doc.Reset(data); err != nil {
		if f.malformed(data) {
			return Pass, ev.Raw
		}
		f.info.Dropped++
		return Drop, nil
	}
	f.edit.Reset(&f.doc)
	f.last.reset()
	keep := true
	switch f.opt.Endpoint {
	case kvp.Responses:
		f.responsesEvent()
	case kvp.Messages:
		f.messagesEvent()
	default:
		keep = f.chunk()
	}
	if !keep {
		f.info.Dropped++
		return Drop, nil
	}
	if !f.edit.Changed() {
		f.learn(data, data)
		return Pass, ev.Raw
	}
	f.data = f.edit.AppendTo(f.data[:0])
	f.learn(data, f.data)
	f.out = ev.AppendWithData(f.out[:0], f.data)
	return Rewrite, f.out
}

// malformed notes a payload that is not a JSON object and reports whether the client may have it: not if it looks
// like a broken object with a handle in it.
func (f *Filter) malformed(data []byte) bool {
	f.info.Malformed++
	data = bytes.TrimLeft(data, " \t\r\n")
	if len(data) > 0 {
		f.info.Reply.spoil()
	}
	return len(data) == 0 || data[0] != '{' || !bytes.Contains(data, []byte(paramsName))
}

const paramsName = "kv_transfer_params"

var null = []byte("null")

// chunk handles one chunk of a chat or completions stream. It returns false if the chunk is not the client's.
func (f *Filter) chunk() (keep bool) {
	var (
		choices, usage bodyedit.Member
		hasFingerprint bool
		other          bool // members that may matter to the client whatever else is missing
		hasParams      bool
		handles        = f.info.Handles
	)
	for m := range f.doc.Members() {
		switch string(m.RawName) {
		case "id":
			f.info.takeID(m.Raw)
		case "choices":
			choices = m
		case "usage":
			usage = m
		case paramsName:
			hasParams = true
			f.info.takeParams(m.Raw)
		case "prompt_token_ids":
			f.promptIDs(m)
		case "system_fingerprint":
			hasFingerprint = bodyedit.KindOf(m.Raw) == bodyedit.Text
			f.info.takeFingerprint(m.Raw)
		case "error":
			f.info.takeError(m.Raw)
			other = true
		case "object", "created", "model", "service_tier", "prompt_text":
		default:
			if m.Is(paramsName) {
				hasParams = true
				f.info.takeParams(m.Raw)
			} else if !bodyedit.IsNull(m.Raw) {
				other = true
			}
		}
	}
	hasHandle := f.info.Handles > handles
	if hasParams {
		f.edit.Delete(paramsName)
	}
	n, finish := f.choices(choices.Span)
	hasUsage := bodyedit.KindOf(usage.Raw) == bodyedit.Object
	if hasUsage {
		f.usage(usage.Span)
	}
	if n == 0 {
		hidden := hasUsage && !f.opt.KeepUsageChunk
		if !other && (hidden || !hasUsage && hasParams) {
			return false // its only purpose was the usage or the handle
		}
		if hidden {
			f.edit.Delete("usage")
		}
	} else {
		if hasUsage && !f.opt.KeepContinuousUsage {
			f.edit.Delete("usage")
		}
		if finish && !hasFingerprint && f.opt.Fingerprint != nil && !f.opt.KeepUsageChunk {
			f.tail = append(append(f.tail[:0], `,"system_fingerprint":`...), f.opt.Fingerprint...)
			f.edit.InsertAfter(choices.Span, f.tail)
		}
	}
	if n != 1 || finish || hasUsage || hasHandle || other {
		f.last.text = bodyedit.Span{}
	}
	return true
}

// promptIDs notes the token ids of the prompt and hides them if they are not the client's.
func (f *Filter) promptIDs(m bodyedit.Member) {
	if bodyedit.IsNull(m.Raw) {
		return
	}
	if len(f.info.PromptIDs) == 0 {
		f.info.PromptIDs, _ = bodyedit.AppendInts(f.info.PromptIDs, m.Raw)
	}
	if !f.opt.KeepPromptIDs {
		f.edit.Replace(m.Span, null)
	}
}

// choices handles the choices of a chunk or reply. It returns how many there are and whether one of them
// has finished.
func (f *Filter) choices(at bodyedit.Span) (n int, finish bool) {
	for el := range f.doc.ElementsOf(at) {
		n++
		if f.choice(el) {
			finish = true
		}
	}
	return n, finish
}

// choice handles one choice.
func (f *Filter) choice(at bodyedit.Span) (finish bool) {
	var index int64
	var ids, reason, stop []byte
	var delta, message, text bodyedit.Span
	for m := range f.doc.MembersOf(at) {
		switch string(m.RawName) {
		case "index":
			index, _ = bodyedit.Int(m.Raw)
		case "delta":
			delta = m.Span
		case "message":
			message = m.Span
		case "text":
			if bodyedit.KindOf(m.Raw) == bodyedit.Text {
				text = m.Span
			}
		case "finish_reason":
			reason = m.Raw
		case "stop_reason":
			stop = m.Raw
		case "token_ids":
			ids = m.Raw
			f.last.ids = m.Span
			if !f.opt.KeepTokenIDs && !bodyedit.IsNull(m.Raw) {
				f.edit.Replace(m.Span, null)
			}
		case "prompt_token_ids":
			f.promptIDs(m)
		}
	}
	if index != 0 {
		f.info.Reply.spoil() // a client that asked for several answers goes on with one that nobody knows
	}
	f.content(delta, false)
	f.content(message, true)
	if text.Len() > len(`""`) {
		f.info.Content = true
		i := nowhere
		if f.opt.Endpoint == kvp.Completions {
			i = f.info.Reply.part(saidText, 0)
		}
		f.said(text, i)
	}
	f.info.Choices = max(f.info.Choices, int(min(max(index, 0), 1<<20))+1)
	if reason != nil && !bodyedit.IsNull(reason) {
		finish = true
		f.info.Finished++
	}
	if index != 0 {
		f.last.text = bodyedit.Span{}
		return finish
	}
	if ids != nil {
		f.info.TokenIDs, _ = bodyedit.AppendInts(f.info.TokenIDs, ids)
	}
	if finish {
		f.info.takeFinish(reason, stop)
	}
	return finish
}

// content notes what a delta, or a whole message, says, and where its text is.
func (f *Filter) content(at bodyedit.Span, whole bool) {
	for m := range f.doc.MembersOf(at) {
		switch bodyedit.KindOf(m.Raw) {
		case bodyedit.Text:
			if string(m.RawName) != "role" && len(m.Raw) > len(`""`) {
				f.info.Content = true
				f.said(m.Span, f.partOf(m.RawName))
			}
		case bodyedit.Array, bodyedit.Object:
			if len(m.Raw) <= len(`[]`) {
				continue
			}
			f.info.Content = true
			switch {
			case string(m.RawName) == "content":
				f.info.Reply.spoil() // a list of parts, which does not come in pieces that could be put together
			case string(m.RawName) != "tool_calls":
			case !whole:
				f.keepDelta(m.Span)
			case f.opt.Endpoint == kvp.Chat:
				for call := range f.doc.ElementsOf(m.Span) {
					f.info.Reply.keepRaw(saidRaw, f.doc.Bytes(call), "id")
				}
			}
		}
	}
}

// partOf returns the part of the reply for the text in the member called name of a delta or message.
func (f *Filter) partOf(name []byte) int {
	r := &f.info.Reply
	if f.opt.Endpoint != kvp.Chat {
		return nowhere
	}
	switch string(name) {
	case "content":
		return r.part(saidText, 0)
	case "reasoning":
		return r.reasoningPart("reasoning")
	case "reasoning_content":
		return r.reasoningPart("reasoning_content")
	case "refusal":
		return r.part(saidRefusal, 0)
	}
	return nowhere
}

// usage notes the usage object of chat and completions and puts the right number of cached tokens into it.
func (f *Filter) usage(at bodyedit.Span) {
	u := &f.info.Usage
	f.info.HasUsage = true
	var cached bodyedit.Member
	for m := range f.doc.MembersOf(at) {
		switch string(m.RawName) {
		case "prompt_tokens":
			u.PromptTokens, _ = count(m.Raw)
		case "completion_tokens":
			u.CompletionTokens, _ = count(m.Raw)
		case "prompt_tokens_details":
			for d := range f.doc.MembersOf(m.Span) {
				if string(d.RawName) == "cached_tokens" {
					cached = d
				}
			}
		}
	}
	f.cached(cached)
}

// cached notes the number of cached tokens and replaces it if it is not the true one. Usage.PromptTokens is
// known already.
func (f *Filter) cached(m bodyedit.Member) {
	n, ok := count(m.Raw)
	if !ok {
		return
	}
	f.info.Usage.CachedTokens, f.info.Usage.HasCachedTokens = n, true
	if to := f.trueCached(); f.opt.OverrideCachedTokens && to != n {
		f.edit.Replace(m.Span, number(to))
	}
}

// trueCached is the number of cached tokens that the client is to see.
func (f *Filter) trueCached() int {
	return max(0, min(f.opt.CachedTokens, f.info.Usage.PromptTokens))
}
