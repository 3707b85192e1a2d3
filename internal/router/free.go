package router

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/tarik-kv/tarik/internal/fleet"
	"github.com/tarik-kv/tarik/internal/kvp"
)

// An engine pins what a handle names until its TTL and lets new requests wait for room rather than
// take it back. So the router bounds what its handles may pin, and tells D to free what nobody will
// use: by a P call that carries the handle with zero tokens, upon which P reads nothing and
// notifies D.

const (
	// heldShare is the share of D's KV pool that the router's handles may pin.
	heldShare = 0.5
	// tightUsage is the share of D's pool in use from which on handles are given up faster.
	tightUsage = 0.9

	// unseenShare is the share of D's pool that replies may pin whose handles never reach the router.
	unseenShare = 0.4

	releasers       = 2
	freeQueue       = 1024
	releasePatience = 10 * time.Second
)

// relieve keeps D's pool from filling up with what handles pin.
func (r *Router) relieve(d fleet.Info) {
	if d.Capacity == 0 {
		return
	}
	lost := r.store.Bound(int(heldShare * float64(d.Capacity)))
	if d.Usage > tightUsage || d.Waiting > 0 {
		lost = append(lost, r.store.Shed(r.store.Stats().Tokens/2)...)
	}
	r.letGo(lost)
}

// letGo has D free what these handles name, soon. If too many wait already, D's TTL does it.
func (r *Router) letGo(lost []*kvp.Held) {
	for _, h := range lost {
		if h.Handle.EngineID != r.decode.Info().EngineID {
			continue // that life of D is over, and its memory with it
		}
		select {
		case r.free <- h.Handle:
			r.metrics.HandlesUsed.WithLabelValues("release").Inc()
		default:
			r.metrics.HandlesUsed.WithLabelValues("left").Inc()
		}
	}
}

// releaser makes the P calls of letGo.
func (r *Router) releaser(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case h := <-r.free:
			r.release(ctx, h)
		}
	}
}

// release makes one P call that reads nothing and hangs up at its first event: then P keeps
// nothing either. It asks for more tokens than P makes until then: a request that finishes keeps its
// blocks for a lease.
func (r *Router) release(ctx context.Context, h kvp.Handle) {
	ctx, cancel := context.WithTimeout(ctx, releasePatience)
	defer cancel()
	b := append([]byte(`{"model":`), quote(r.modelName())...)
	b = append(b, `,"prompt":[1],"max_tokens":4096,"ignore_eos":true,"stream":true,"kv_transfer_params":`...)
	b = append(append(b, h.Release().Raw()...), '}')
	// Whatever it says: if it was not done, D's TTL frees them.
	r.hangUp(ctx, call{engine: r.prefill, path: kvp.Completions.Path(), body: bytesPayload(b), header: http.Header{}, id: newID()})
}

// modelName is the model that P serves, for requests of the router's own.
func (r *Router) modelName() string {
	if m := r.prefill.Info().Models; len(m) > 0 {
		return m[0].ID
	}
	return ""
}

// unseen counts what D pins for replies whose handles nobody gets: streams of vLLM before 0.33. D
// keeps their blocks all the same, and nothing frees them before its TTL. It is safe for concurrent
// use.
type unseen struct {
	mu     sync.Mutex
	pins   []unseenPin // oldest first
	tokens int
}

type unseenPin struct {
	tokens int
	until  time.Duration
}

// add notes that D keeps so many tokens until then.
func (u *unseen) add(tokens int, until time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.pins = append(u.pins, unseenPin{tokens, until})
	u.tokens += tokens
}

// at returns how many tokens D keeps now.
func (u *unseen) at(now time.Duration) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	for len(u.pins) > 0 && u.pins[0].until <= now {
		u.tokens -= u.pins[0].tokens
		u.pins = u.pins[1:]
	}
	return u.tokens
}

// unseenReply reports whether D will keep this turn's KV without saying so.
func (r *Router) unseenReply(q *request) bool {
	d := r.decode.Info()
	return d.Retains && !d.Can.HandleInReply(q.endpoint, q.streaming)
}

// unseenFull reports whether one more such reply could leave D without room: then D serves the turn
// alone, which pins nothing.
func (r *Router) unseenFull(q *request) bool {
	limit := int(unseenShare * float64(r.decode.Info().Capacity))
	if !r.unseenReply(q) || limit == 0 || r.unseen.at(r.now()) < limit {
		return false
	}
	r.unseenOnce.Do(func() {
		r.log.Warn("decode keeps the KV of streamed replies and does not say where: a vLLM before 0.33. Some turns now go to decode "+
			"alone so that its memory does not fill up", "decode", r.decode.String(),
			"hint", "run vLLM 0.33, or lower decoder_kv_blocks_ttl and --handle-ttl, or turn bidirectional_kv_xfer off on decode")
	})
	return true
}
