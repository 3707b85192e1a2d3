package wire

import (
	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/kvp"
)

// Body is [Filter.Event] for a whole reply: it returns the edit that makes it the client's. The edit refers to body, which
// must stay unchanged while it is in use, and is valid until f is used again.
//
// The error is a [*bodyedit.SyntaxError] if body is not one JSON object.
func (f *Filter) Body(body []byte, opt Options) (*bodyedit.Edit, error) {
	f.Reset(opt)
	if err := f.doc.Reset(body); err != nil {
		return nil, err
	}
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
	return &f.edit, nil
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
