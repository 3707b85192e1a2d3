package wire

import (
	"bytes"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

// responsesEvent handles one event of a /v1/responses stream. Events about the whole response carry it as
// response; engines before 0.33 end with response.completed even when the answer was cut by its limit.
func (f *Filter) responsesEvent() {
	var kind []byte
	var response bodyedit.Span
	for m := range f.doc.Members() {
		switch string(m.RawName) {
		case "type":
			kind = m.Raw
			f.responsesType(m.Raw)
		case "response":
			response = m.Span
			f.response(m.Span, false)
		case "error":
			f.info.takeError(m.Raw)
		default:
			f.topParams(m)
		}
	}
	if string(kind) == completed || string(kind) == incomplete {
		for m := range f.doc.MembersOf(response) {
			if string(m.RawName) == "output" {
				f.keepItems(m.Span)
			}
		}
	}
}

// The types of the events that have the whole response.
const (
	completed  = `"response.completed"`
	incomplete = `"response.incomplete"`
)

func (f *Filter) responsesType(raw []byte) {
	switch {
	case bytes.HasSuffix(raw, []byte(`.delta"`)):
		f.info.Content, f.info.Choices = true, 1
	case string(raw) == completed, string(raw) == incomplete,
		bytes.Equal(raw, []byte(`"response.failed"`)):
		f.info.Done, f.info.Finished = true, 1
	case bytes.Equal(raw, []byte(`"error"`)):
		f.info.takeError(f.doc.Body())
	}
}

// topParams removes m if it is kv_transfer_params.
func (f *Filter) topParams(m bodyedit.Member) {
	if m.Is(paramsName) {
		f.info.takeParams(m.Raw)
		f.edit.Delete(paramsName)
	}
}

// response handles a response object: the whole reply, or what an event carries.
func (f *Filter) response(at bodyedit.Span, whole bool) {
	for m := range f.doc.MembersOf(at) {
		switch string(m.RawName) {
		case "id":
			f.info.takeID(m.Raw)
		case "status":
			f.info.takeFinish(m.Raw, nil)
			if whole {
				f.info.Finished = 1
			}
		case "error":
			f.info.takeError(m.Raw)
		case "usage":
			f.responsesUsage(m)
		case "output":
			if whole && len(m.Raw) > len("[]") {
				f.info.Content, f.info.Choices = true, 1
				f.keepItems(m.Span)
			}
		default:
			if m.Is(paramsName) {
				f.info.takeParams(m.Raw)
				f.edit.DeleteMember(at, paramsName)
			}
		}
	}
}

func (f *Filter) responsesUsage(usage bodyedit.Member) {
	if bodyedit.KindOf(usage.Raw) != bodyedit.Object {
		return
	}
	u := &f.info.Usage
	f.info.HasUsage = true
	var cached bodyedit.Member
	for m := range f.doc.MembersOf(usage.Span) {
		switch string(m.RawName) {
		case "input_tokens":
			u.PromptTokens, _ = count(m.Raw)
		case "output_tokens":
			u.CompletionTokens, _ = count(m.Raw)
		case "input_tokens_details":
			for d := range f.doc.MembersOf(m.Span) {
				if string(d.RawName) == "cached_tokens" {
					cached = d
				}
			}
		}
	}
	f.cached(cached)
}
