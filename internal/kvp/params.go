package kvp

import (
	"iter"
	"strconv"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

// Member is the name of the member that carries params, in requests and replies.
const Member = "kv_transfer_params"

// Params that need no handle. They must not be changed.
var (
	// NullForm is for P when there is no handle: keep the prompt's blocks for D, read nothing.
	NullForm = []byte(`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`)

	// AppendForm is for D when it serves a turn alone from its own prefix cache and shall keep the blocks.
	// The handle it returns needs [Prefilled.FlipAppend].
	AppendForm = []byte(`{"do_remote_decode":true}`)
)

// Shape is what a kv_transfer_params value is.
type Shape uint8

const (
	ShapeNone    Shape = iota // absent, null or {}
	ShapePrefill              // A: do_remote_prefill is true, do_remote_decode is not
	ShapeDecode               // B or the null form: do_remote_decode is true, do_remote_prefill is not
	ShapeOther                // both, neither, or not an object: an engine must not get it
)

// ShapeOf tells what raw is by its two flags.
func ShapeOf(raw []byte) Shape {
	switch bodyedit.KindOf(raw) {
	case bodyedit.None, bodyedit.Null:
		return ShapeNone
	case bodyedit.Object:
	default:
		return ShapeOther
	}
	return shapeOf(bodyedit.Members(raw))
}

// shapeOf is ShapeOf of an object with these members.
func shapeOf(all iter.Seq[bodyedit.Member]) Shape {
	var prefill, decode, members bool
	for m := range all {
		members = true
		switch {
		case m.Is(nameRemotePrefill):
			prefill, _ = bodyedit.Bool(m.Raw)
		case m.Is(nameRemoteDecode):
			decode, _ = bodyedit.Bool(m.Raw)
		}
	}
	switch {
	case !members:
		return ShapeNone
	case prefill && !decode:
		return ShapePrefill
	case decode && !prefill:
		return ShapeDecode
	}
	return ShapeOther
}

// WithPromptTokenIDs returns params with the exact prompt in it. The engine then takes ids instead of rendering
// and tokenising messages ([Capability.ExactPrompt]); an engine that cannot would take the member for an unknown one.
//
// params must be an object with at least one member, ids must not be empty: alone, or empty, the member is harmful.
func WithPromptTokenIDs(params []byte, ids []int32) []byte {
	if ShapeOf(params) != ShapePrefill && ShapeOf(params) != ShapeDecode || len(ids) == 0 {
		panic("BUG: prompt_token_ids without params or without ids")
	}
	doc, err := bodyedit.Scan(params)
	if err != nil {
		panic("BUG: params are not JSON: " + err.Error())
	}
	e := doc.Edit()
	e.Set("prompt_token_ids", AppendIDs(make([]byte, 0, 8*len(ids)+2), ids))
	return e.Bytes()
}

// AppendIDs appends ids of tokens or blocks as a JSON array.
func AppendIDs[T int | int32](dst []byte, ids []T) []byte {
	dst = append(dst, '[')
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(id), 10)
	}
	return append(dst, ']')
}
