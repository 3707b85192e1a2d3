package wire

import "github.com/tarik-kv/tarik/internal/bodyedit"

// messagesEvent handles one event of an Anthropic /v1/messages stream.
func (f *Filter) messagesEvent() {
	var kind []byte
	var index, delta, block bodyedit.Member
	ordinary := true // no other members than those of a piece of a block
	for m := range f.doc.Members() {
		switch string(m.RawName) {
		case "type":
			kind = m.Raw
		case "index":
			index = m
		case "content_block":
			block = m
		case "message":
			ordinary = false
			f.message(m.Span, false)
		case "delta":
			delta = m
			for d := range f.doc.MembersOf(m.Span) {
				if string(d.RawName) == "stop_reason" {
					f.stopReason(d.Raw)
				}
			}
		case "usage":
			ordinary = false
			f.messagesUsage(m)
		case "error":
			ordinary = false
			f.info.takeError(m.Raw)
		default:
			ordinary = false
			f.topParams(m)
		}
	}
	n, ok := bodyedit.Int(index.Raw)
	ok = ok && 0 <= n && n < maxParts
	switch string(kind) {
	case `"content_block_start"`:
		if ok {
			f.blockStart(int(n), block.Span)
		} else {
			f.info.Reply.spoil()
		}
	case `"content_block_delta"`:
		f.info.Content, f.info.Choices = true, 1
		if ok {
			f.blockDelta(int(n), delta.Span)
		} else {
			f.info.Reply.spoil()
		}
	case `"message_stop"`:
		f.info.Done = true
	}
	if !ordinary {
		f.last.text = bodyedit.Span{}
	}
}

// message handles a message object: the whole reply, or what message_start carries.
func (f *Filter) message(at bodyedit.Span, whole bool) {
	for m := range f.doc.MembersOf(at) {
		switch string(m.RawName) {
		case "id":
			f.info.takeID(m.Raw)
		case "content":
			switch {
			case len(m.Raw) <= len("[]"):
			case whole:
				f.info.Content, f.info.Choices = true, 1
				f.keepBlocks(m.Span)
			default:
				f.info.Reply.spoil() // blocks of a stream come later, one by one
			}
		case "stop_reason":
			f.stopReason(m.Raw)
		case "usage":
			f.messagesUsage(m)
		case "error":
			f.info.takeError(m.Raw)
		default:
			if m.Is(paramsName) {
				f.info.takeParams(m.Raw)
				f.edit.DeleteMember(at, paramsName)
			}
		}
	}
}

func (f *Filter) stopReason(raw []byte) {
	if bodyedit.KindOf(raw) != bodyedit.Text {
		return
	}
	f.info.takeFinish(raw, nil)
	f.info.StopString = string(raw) == `"stop_sequence"`
	f.info.Finished = 1
}

// messagesUsage handles a usage object. Its input_tokens does not count cached tokens, so replacing their
// number moves the difference.
func (f *Filter) messagesUsage(usage bodyedit.Member) {
	if bodyedit.KindOf(usage.Raw) != bodyedit.Object {
		return
	}
	u := &f.info.Usage
	f.info.HasUsage = true
	var input, cached bodyedit.Member
	var fresh, created int
	for m := range f.doc.MembersOf(usage.Span) {
		switch string(m.RawName) {
		case "input_tokens":
			input = m
			fresh, _ = count(m.Raw)
		case "output_tokens":
			u.CompletionTokens, _ = count(m.Raw)
		case "cache_creation_input_tokens":
			created, _ = count(m.Raw)
		case "cache_read_input_tokens":
			cached = m
		}
	}
	read, _ := count(cached.Raw)
	if input.Raw == nil {
		return
	}
	u.PromptTokens = fresh + created + read
	f.cached(cached)
	if to := f.trueCached(); cached.Raw != nil && f.opt.OverrideCachedTokens && to != read {
		to = min(to, u.PromptTokens-created)
		f.edit.Replace(cached.Span, number(to))
		f.edit.Replace(input.Span, number(u.PromptTokens-created-to))
	}
}
