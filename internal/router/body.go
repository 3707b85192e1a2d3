package router

import (
	"strconv"

	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/kvp"
)

var (
	jsonTrue  = []byte("true")
	jsonFalse = []byte("false")
	jsonOne   = []byte("1")
)

// prefillBody is the client's request as P gets it: one token, no stream, these params. ids is the
// exact prompt if the engine takes one, else nil.
//
// The fields that go make P refuse a body that D accepts: stream_options without a stream, a
// min_tokens above max_tokens.
func (q *request) prefillBody(params []byte, ids []int32) *bodyedit.Edit {
	e := q.edit(params, ids)
	d := dialects[q.endpoint]
	e.Delete(d.refused...)
	e.Set("stream", jsonFalse)
	e.Set(d.limit, jsonOne)
	if q.endpoint == kvp.Responses {
		e.Set("store", jsonFalse) // a reply of one token is nobody's
	}
	return e
}

// decodeBody is the client's request as D gets it. wantIDs asks for the token ids of prompt and
// reply, which tell what D will hold.
func (q *request) decodeBody(params []byte, ids []int32, wantIDs, brief bool) *bodyedit.Edit {
	if brief {
		e := q.prefillBody(params, ids)
		return e
	}
	e := q.edit(params, ids)
	d := dialects[q.endpoint]
	if wantIDs && d.ids {
		e.Set("return_token_ids", jsonTrue)
	}
	if q.streaming && !q.wantsUsage && d.usage {
		q.askUsage(e)
	}
	return e
}

// askUsage makes D report usage at the end of its stream, for the receipt. The client, who has not
// asked, does not get to see it.
func (q *request) askUsage(e *bodyedit.Edit) {
	options, ok := q.doc.Find("stream_options")
	if !ok || bodyedit.IsNull(options.Raw) {
		e.Set("stream_options", []byte(`{"include_usage":true}`))
		return
	}
	e.SetMember(options.Span, "include_usage", jsonTrue)
}

// edit is what both legs' bodies have in common.
func (q *request) edit(params []byte, ids []int32) *bodyedit.Edit {
	e := q.doc.Edit()
	if q.stripped > 0 {
		e.DeleteFold(ownFields...)
	}
	if q.salt != "" {
		e.Set("cache_salt", quote(q.salt))
	}
	if len(ids) > 0 && params != nil { // without other params older engines take the ids for something harmful
		if q.endpoint != kvp.Completions {
			params = kvp.WithPromptTokenIDs(params, ids)
		} else {
			e.Set("prompt", kvp.AppendIDs(nil, ids))
		}
	}
	if params != nil {
		e.Set("kv_transfer_params", params)
	}
	if q.previous != "" {
		e.Delete(previousID)
		e.Set("input", q.prompt)
	}
	return e
}

// idsBody is a P call for an exact prompt, through /v1/completions: the one form that every version takes.
// params are nil for none. A call of one token ends by itself; one that is streamed, for hangUp, is asked for
// streamed tokens so that it does not end before. streamed 0: one token, no stream.
func (q *request) idsBody(params []byte, ids []int32, streamed int) payload {
	b := make([]byte, 0, 256+len(params)+7*len(ids))
	b = append(b, '{')
	if model := q.doc.Get("model"); model != nil {
		b = append(append(append(b, `"model":`...), model...), ',')
	}
	b = kvp.AppendIDs(append(b, `"prompt":`...), ids)
	if streamed > 0 {
		b = append(b, `,"stream":true,"ignore_eos":true,"max_tokens":`...)
		b = strconv.AppendInt(b, int64(streamed), 10)
	} else {
		b = append(b, `,"max_tokens":1`...)
	}
	b = append(b, `,"temperature":0`...)
	if q.salt != "" {
		b = append(append(b, `,"cache_salt":`...), quote(q.salt)...)
	}
	if params != nil {
		b = append(append(b, `,"kv_transfer_params":`...), params...)
	}
	return bytesPayload(append(b, '}'))
}

// parseIDs reads a JSON array of token ids, nil if raw is something else.
func parseIDs(raw []byte) []int32 {
	if len(raw) < 2 || raw[0] != '[' {
		return nil
	}
	ids, ok := bodyedit.AppendInts(make([]int32, 0, len(raw)/6), raw)
	if !ok {
		return nil
	}
	return ids
}

func quote(s string) []byte { return bodyedit.AppendString(nil, s) }

// bytesPayload is a body that lies in one piece.
func bytesPayload(b []byte) payload { return payload{b} }

// editPayload is a body made of spans of the client's.
func editPayload(e *bodyedit.Edit) payload { return payload(e.Segments()) }
