package wire

import (
	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/kvp"
)

// FilterBody is [Filter] for a whole reply: it returns the edit that makes it the client's, and what the
// router needs to know. The edit refers to body, which must stay unchanged while it is in use.
//
// The error is a [*bodyedit.SyntaxError] if body is not one JSON object.
func FilterBody(body []byte, opt Options) (*bodyedit.Edit, *Info, error) {
	f := new(Filter)
	if err := f.doc.Reset(body); err != nil {
		return nil, nil, err
	}
	f.Reset(opt)
	f.edit.Reset(&f.doc)
	switch opt.Endpoint {
	case kvp.Responses:
		f.response(f.doc.Root(), true)
	case kvp.Messages:
		f.message(f.doc.Root(), true)
	default:
		f.reply()
	}
	f.info.Done = f.info.Error == nil
	return &f.edit, &f.info, nil
}

// ReadBody returns what the router needs to know of a reply that no client sees, such as that of a prefill leg.
func ReadBody(body []byte, endpoint kvp.Endpoint) (*Info, error) {
	_, info, err := FilterBody(body, Options{Endpoint: endpoint, KeepTokenIDs: true, KeepPromptIDs: true})
	return info, err
}

// reply handles a whole reply of chat or completions.
func (f *Filter) reply() {
	for m := range f.doc.Members() {
		switch string(m.RawName) {
		case "id":
			f.info.takeID(m.Raw)
		case "choices":
			f.choices(m.Span)
		case "usage":
			if bodyedit.KindOf(m.Raw) == bodyedit.Object {
				f.usage(m.Span)
			}
		case "prompt_token_ids":
			f.promptIDs(m)
		case "system_fingerprint":
			f.info.takeFingerprint(m.Raw)
		case "error":
			f.info.takeError(m.Raw)
		default:
			f.topParams(m)
		}
	}
}
