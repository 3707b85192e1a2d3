package router

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/fleet"
	"github.com/tarik-kv/tarik/internal/kvp"
)

// A P whose bidirectional flag is off parks a request with a handle for ever and keeps its blocks
// until it is restarted. No request that is free of this risk tells whether the flag is on, so the
// router tries once, small, before any client's turn depends on it: a conversation of its own with
// a salt of its own, whose handle P gets under another salt, so that nothing of it can be found in
// P's cache and P has to read it.

const (
	// probeTokens is above every sensible kv_recompute_threshold (64 by default), so that P reads.
	probeTokens = 200
	// probePatience is long enough for a first handshake between engines on a slow network.
	probePatience = 20 * time.Second
	// distrustFor is how long a distrusted P is left alone before it is tried again: each failed
	// try may cost it blocks.
	distrustFor = 5 * time.Minute
	// probeRest is the longest rest between tries while decode returns no handles: they cost both
	// engines a small prompt each.
	probeRest = time.Minute
)

func (r *Router) wakeProber() {
	select {
	case r.probe <- struct{}{}:
	default:
	}
}

// prober proves P whenever it is unproven, and tries a distrusted one again after a while.
func (r *Router) prober(ctx context.Context) {
	retry := time.NewTimer(distrustFor)
	defer retry.Stop()
	var rest time.Duration // after the tries so far, none of which told anything
	var next time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.probe:
			if r.prefill.Info().Trust == fleet.Distrusted || time.Now().Before(next) {
				continue
			}
		case <-retry.C:
			retry.Reset(distrustFor)
		}
		p, d := r.prefill.Info(), r.decode.Info()
		if !r.cfg.Reuse || p.Trust == fleet.Proven || !p.Up || !d.Up || fleet.Mismatch(p, d) != "" {
			continue
		}
		err := r.prove(ctx)
		if ctx.Err() != nil {
			return
		}
		why := ""
		trust := fleet.Proven
		if err != nil {
			trust, why = fleet.Distrusted, err.Error()
			var not notProven
			if errors.As(err, &not) {
				trust = fleet.Unproven
			}
		}
		if trust == fleet.Unproven {
			rest = min(max(2*rest, r.cfg.HealthInterval), probeRest)
		} else {
			rest = 0
		}
		next = time.Now().Add(rest)
		r.settle(trust, why)
		retry.Reset(distrustFor)
	}
}

// settle records the result of a probe and says it once.
func (r *Router) settle(trust fleet.Trust, why string) {
	defer r.once.Do(func() { close(r.settled) })
	was := r.prefill.Info()
	r.prefill.SetTrust(trust, why)
	proven := 0.0
	if trust == fleet.Proven {
		proven = 1
	}
	r.metrics.PrefillTrust.WithLabelValues(r.prefill.String()).Set(proven)
	if was.Trust == trust && was.TrustWhy == why {
		return
	}
	switch trust {
	case fleet.Proven:
		r.log.Info("prefill engine reads handles: reuse is on", "prefill", r.prefill.String())
	case fleet.Unproven:
		r.log.Warn("no reuse: decode returns no handles", "why", why, "hint", "start both engines with bidirectional_kv_xfer true")
	case fleet.Distrusted:
		r.log.Warn("no reuse: prefill did not read a handle", "prefill", r.prefill.String(), "why", why,
			"hint", "bidirectional_kv_xfer true and kv_load_failure_policy \"fail\" on both engines, and side channels that reach each other")
	}
}

// notProven is a probe that ended before P was given a handle: nothing is known of P, and nothing
// happened to it.
type notProven struct{ error }

// prove plays the probe. An error that is not notProven means that P got a handle and did not
// read it.
func (r *Router) prove(ctx context.Context) error {
	ids := make([]int32, probeTokens)
	for i := range ids {
		ids[i] = int32(100 + rand.IntN(100)) // low ids are in every vocabulary
	}
	one, two := newID(), newID()
	body := func(salt string, params []byte) payload {
		b := append([]byte(`{"model":`), quote(r.modelName())...)
		b = append(append(b, `,"prompt":`...), kvp.AppendIDs(nil, ids)...)
		b = append(append(b, `,"max_tokens":1,"temperature":0,"cache_salt":`...), quote(salt)...)
		return bytesPayload(append(append(append(b, `,"kv_transfer_params":`...), params...), '}'))
	}
	post := func(e *fleet.Engine, salt string, params []byte) (prefillReply, error) {
		ctx, cancel := context.WithTimeout(ctx, r.cfg.probePatience)
		defer cancel()
		a := r.ask(ctx, call{engine: e, path: kvp.Completions.Path(), body: body(salt, params), header: http.Header{}, id: newID()}, r.cfg.MaxReply)
		switch {
		case ctx.Err() == context.DeadlineExceeded:
			return prefillReply{}, fmt.Errorf("no answer in %s", r.cfg.probePatience)
		case a.err != nil:
			return prefillReply{}, a.err
		case a.status != http.StatusOK:
			return prefillReply{}, fmt.Errorf("HTTP %d", a.status)
		}
		return readPrefill(a.body)
	}

	fromP, err := post(r.prefill, one, kvp.NullForm)
	if err != nil {
		return notProven{fmt.Errorf("the probe's first prefill: %w", err)}
	}
	r.sawPrefill(fromP.engineID)
	a := r.forDecode(fromP.params)
	if a == nil {
		return notProven{errors.New("prefill returns no kv_transfer_params: it runs without --kv-transfer-config")}
	}
	fromD, err := post(r.decode, one, a.Raw())
	if err != nil {
		return notProven{fmt.Errorf("decode could not read the prefill engine's blocks: %w", err)}
	}
	r.sawDecode(fromD.engineID)
	r.decode.SawFingerprint(fromD.fingerprint)
	if fromD.params == nil {
		return notProven{errors.New("decode returns no handle: bidirectional_kv_xfer is off there")}
	}
	r.decode.SawHandle()
	h, err := kvp.ParseHandle(fromD.params)
	if err != nil {
		return notProven{fmt.Errorf("decode's handle: %w", err)}
	}
	last, err := post(r.prefill, two, h.Raw())
	if err != nil {
		return fmt.Errorf("the pull: %w", err)
	}
	if last.cached != nil && *last.cached == 0 {
		return errors.New("prefill answered, but computed every token itself: is bidirectional_kv_xfer off there, or kv_recompute_threshold above 199?")
	}
	return r.tidy(ctx, last.params, post, two)
}

// tidy lets D take over what P keeps of the probe's last call, so that P need not wait for its lease
// to end, and then has D free that too.
func (r *Router) tidy(ctx context.Context, params []byte, post func(*fleet.Engine, string, []byte) (prefillReply, error), salt string) error {
	a := r.forDecode(params)
	if a == nil {
		return nil
	}
	fromD, err := post(r.decode, salt, a.Raw())
	if err != nil {
		return nil //nolint:nilerr // P has proved itself; the lease and the TTL do the rest
	}
	if h, err := kvp.ParseHandle(fromD.params); err == nil {
		r.release(ctx, h)
	}
	return nil
}

// prefillReply is what the router reads of a reply of /v1/completions or chat that is not streamed.
type prefillReply struct {
	params       []byte // kv_transfer_params, nil if null
	engineID     string // from params
	fingerprint  []byte // system_fingerprint, a raw JSON string
	promptTokens int
	cached       *int    // prompt tokens the engine did not compute, nil if it does not say
	promptIDs    []int32 // of a chat, if asked for
}

// docs are used again: each turn reads a reply of P.
var docs = sync.Pool{New: func() any { return new(bodyedit.Doc) }}

// readPrefill reads P's reply. P says how much it reused in the params (since 0.31) or in usage (if
// started with --enable-prompt-tokens-details).
func readPrefill(body []byte) (prefillReply, error) {
	p, err := readReply(body)
	p.readParams()
	return p, err
}

// readReply is readPrefill without what the params say.
func readReply(body []byte) (prefillReply, error) {
	doc := docs.Get().(*bodyedit.Doc)
	defer docs.Put(doc)
	if err := doc.Reset(body); err != nil {
		return prefillReply{}, fmt.Errorf("reply is not JSON: %w", err)
	}
	p := prefillReply{fingerprint: doc.Get("system_fingerprint")}
	if bodyedit.KindOf(p.fingerprint) != bodyedit.Text {
		p.fingerprint = nil
	}
	usage := doc.Get("usage")
	if usage == nil {
		return prefillReply{}, errors.New("reply has no usage: not a completion")
	}
	p.promptIDs = parseIDs(doc.Get("prompt_token_ids"))
	p.promptTokens, p.cached = promptUsage(usage)
	if params := doc.Get("kv_transfer_params"); bodyedit.KindOf(params) == bodyedit.Object {
		p.params = params
	}
	return p, nil
}

// readParams reads what the params say of the engine, whatever shape they have.
func (p *prefillReply) readParams() {
	for m := range bodyedit.Members(p.params) {
		switch {
		case m.Is("remote_engine_id"):
			p.engineID, _ = bodyedit.String(m.Raw)
		case m.Is("remote_prefill_cached_tokens"):
			if n := optionalInt(m.Raw); n != nil {
				p.cached = n
			}
		}
	}
}

// promptUsage reads the prompt's tokens and how many of them were cached, as each endpoint says it.
// Anthropic's input_tokens leave the cached ones out.
func promptUsage(usage []byte) (tokens int, cached *int) {
	var prompt, input, read, created *int
	var details, inputDetails []byte
	for m := range bodyedit.Members(usage) {
		switch {
		case m.Is("prompt_tokens"):
			prompt = optionalInt(m.Raw)
		case m.Is("prompt_tokens_details"):
			details = m.Raw
		case m.Is("input_tokens"):
			input = optionalInt(m.Raw)
		case m.Is("input_tokens_details"):
			inputDetails = m.Raw
		case m.Is("cache_read_input_tokens"):
			read = optionalInt(m.Raw)
		case m.Is("cache_creation_input_tokens"):
			created = optionalInt(m.Raw)
		}
	}
	switch {
	case prompt != nil:
		return *prompt, cachedTokens(details)
	case inputDetails != nil:
		return orZero(input), cachedTokens(inputDetails)
	case read != nil:
		return orZero(input) + *read + orZero(created), read
	}
	return orZero(input), nil
}

func cachedTokens(details []byte) *int {
	raw, _ := bodyedit.Lookup(details, "cached_tokens")
	return optionalInt(raw)
}

// optionalInt reads a whole number, nil if raw is something else.
func optionalInt(raw []byte) *int {
	v, ok := bodyedit.Int(raw)
	if !ok {
		return nil
	}
	n := int(v)
	return &n
}
