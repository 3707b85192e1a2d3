package wire

import "github.com/tarik-kv/tarik/internal/bodyedit"

// messagesEvent handles one event of an Anthropic /v1/messages stream.
func (f *Filter) messagesEvent() {
	for m := range f.doc.Members() {
		switch string(m.RawName) {
		case "type":
			switch string(m.Raw) {
			case `"content_block_delta"`:
				f.info.Content, f.info.Choices = true, 1
			case `"message_stop"`:
				f.info.Done = true
			}
		case "message":
			f.message(m.Span, false)
		case "delta":
			for d := range f.doc.MembersOf(m.Span) {
				if string(d.RawName) == "stop_reason" {
					f.stopReason(d.Raw)
				}
			}
		case "usage":
			f.messagesUsage(m)
		case "error":
			f.info.takeError(m.Raw)
		default:
			f.topParams(m)
		}
	}
}

// message handles a message object: the whole reply, or what message_start carries.
func (f *Filter) message(at bodyedit.Span, whole bool) {
	for m := range f.doc.MembersOf(at) {
		switch string(m.RawName) {
		case "id":
			f.info.takeID(m.Raw)
		case "content":
			if whole && len(m.Raw) > len("[]") {
				f.info.Content, f.info.Choices = true, 1
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
