package api

import (
	"context"
	"encoding/json"
	"iter"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// handlePlacer decides which chunk of a stream carries kv_transfer_params.
type handlePlacer struct {
	place  HandlePlace
	nulls  bool // every delta has the member, null
	usage  bool // there will be a usage chunk
	params json.RawMessage
	placed bool
}

func newHandlePlacer(place HandlePlace, rel release, usage bool) *handlePlacer {
	h := &handlePlacer{place: place, nulls: rel.streamParams, usage: usage}
	if place == HandleDefault {
		h.place = HandleNone
		if rel.streamParams {
			h.place = HandleFinish
		}
	}
	return h
}

// deltas yields the run's deltas. To put the handle on the first chunk it has to wait for the last.
func (h *handlePlacer) deltas(ctx context.Context, r *run) iter.Seq2[delta, error] {
	if h.place != HandleFirst {
		return r.deltas(ctx)
	}
	return func(yield func(delta, error) bool) {
		var all []delta
		var failed error
		for d, err := range r.deltas(ctx) {
			if err != nil {
				failed = err
				break
			}
			all = append(all, d)
			if !isNull(d.params) {
				h.params = d.params
			}
		}
		for _, d := range all {
			if !yield(d, nil) {
				return
			}
		}
		if failed != nil {
			yield(delta{}, failed)
		}
	}
}

// appendChunk appends the params member of a chunk, if it has one.
func (h *handlePlacer) appendChunk(b []byte, d delta) []byte {
	if d.finish != engine.FinishNone && !isNull(d.params) {
		h.params = d.params
	}
	var own json.RawMessage
	switch {
	case h.place == HandleFinish && d.finish != engine.FinishNone:
		own = d.params
	case h.place == HandleFirst && !h.placed:
		own, h.placed = h.params, true
	}
	if isNull(own) && !h.nulls {
		return b
	}
	return appendParams(append(b, ','), own)
}

func (h *handlePlacer) inUsage() bool { return h.place == HandleUsage && !isNull(h.params) }

// inOwn reports whether a chunk of its own carries the handle.
func (h *handlePlacer) inOwn() bool {
	return !isNull(h.params) && (h.place == HandleOwn || h.place == HandleUsage && !h.usage)
}
