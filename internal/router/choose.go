package router

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/price"
	"github.com/tarik-kv/tarik/internal/telemetry"
	"github.com/tarik-kv/tarik/internal/turn"
)

const (
	// appendTTL is for how long what D keeps of an append may be used. D holds it for its
	// kv_lease_duration, 30 s unless set, and nothing tells P when that is over.
	appendTTL = 15 * time.Second
	// appendWithin bounds a P call with such a handle: with rendering before it, it is well within the
	// lease.
	appendWithin = 8 * time.Second
)

// choose has the prices decide where this turn's old tokens come from, as far as there is a choice.
func (t *run) choose(s *turn.Start) {
	r, q, prev := t.r, t.q, t.prev
	p, d := r.prefill.Info(), r.decode.Info()
	in := price.Situation{
		Prompt: t.estimate(), PHas: prev.Ready, DHas: blocks(prev.Prompt+prev.Reply-1, d.BlockSize),
		Streams: int(r.streams.Load()), RenderMs: math.Float64frombits(r.renderMs.Load()), Threshold: r.cfg.Threshold, AppendLimit: price.AppendTokens, StallLimit: price.AppendStall, StallWeight: price.StallWeight, AppendPremium: r.cfg.appendPremium,
	}
	_, in.QueueMs, _ = r.returns.atP.now(r.now())
	if s.Held != nil && s.NoHandles == "" && s.NoRender == "" {
		in.CanPull, in.Held = true, s.Held.Handle.Tokens
		in.PHas = min(in.PHas, s.Held.PromptTokens)
	}
	if in.CanPull && (d.Waiting > 0 || r.roomAtP() < in.Prompt) {
		// It would wait at P with D's blocks, and others at D for these.
		in.CanPull, in.Held = false, 0
		s.Arm = turn.ArmLocal
	}
	if prev.Prefill != p.EngineID {
		in.PHas = 0
	}
	if prev.Decode != d.EngineID {
		in.DHas = 0
	}
	if t.ahead != nil { // what it will have
		in.PHas = prev.Prompt + prev.Reply
	}
	in.PHas = blocks(in.PHas, p.BlockSize)
	m := r.models()
	known := m.Known()
	mayAppend := r.cfg.Append && known.Recompute && known.Handoff && r.mayAppend(prev.Ended, d.Usage)
	in.CanAppend = mayAppend
	var decision price.Decision
	r.learn(func(m *price.Models) { decision = m.Decide(in) })
	t.receipt.Price = receiptOf(decision)
	t.expected = m.Recompute(max(in.Prompt-max(in.PHas, in.Held), 1), max(in.PHas, in.Held)).Ms
	t.dHas = in.DHas
	if t.ahead != nil {
		without := m.Recompute(max(in.Prompt-prev.Ready, 1), prev.Ready)
		s.Await = max(time.Millisecond, time.Duration(without.Ms*float64(time.Millisecond)))
	}
	switch turn.Arm(decision.Arm) {
	case turn.ArmAppend:
		s.Arm, t.appended = turn.ArmAppend, true
		r.append.Store(&appendMark{tokens: in.Prompt - in.DHas, began: t.chosen})
		if !d.Can.HandleInReply(q.endpoint, q.streaming) || !dialects[q.endpoint].ids {
			s.AppendKeepsNone = true
		}
		s.Await = 0
	case turn.ArmLocal, turn.ArmRecompute:
		if in.CanPull {
			s.Arm = turn.ArmLocal
		}
	}
	if mayAppend && !t.appended {
		r.appending.Add(-1)
	}
}

// mayAppend reports whether D surely still has the conversation and is not serving too many appends. If
// so, one more is counted.
func (r *Router) mayAppend(ended time.Duration, usage float64) bool {
	if ended == 0 || r.now()-ended > price.AppendAge || usage > price.AppendUsage || r.now() < time.Duration(r.noAppend.Load()) {
		return false
	}
	if r.appending.Add(1) > price.AppendsAtOnce {
		r.appending.Add(-1)
		return false
	}
	return true
}

// roomAtP is how many tokens P can take in without waiting for another request to leave, as far as is known.
func (r *Router) roomAtP() int {
	p := r.prefill.Info()
	if p.Capacity == 0 {
		return math.MaxInt
	}
	return max(1, int(float64(p.Capacity)*(1-p.Usage))-r.returns.atP.promised())
}

// endAppend notes that D has computed, or that the turn has ended without.
func (t *run) endAppend() {
	if t.appended {
		t.appended = false
		t.r.appending.Add(-1)
	}
}

// noAppendFor is how long D is not asked to append after it turned out to have lost a conversation.
const noAppendFor = 5 * time.Minute

// priced compares the choice with what came of it, at D's first event.
func (t *run) priced() {
	if t.receipt.Price != nil {
		took := ms(time.Since(t.chosen))
		t.receipt.Price.ActualMs = &took
	}
	if mark := t.r.append.Load(); t.appended && mark != nil {
		mark.ended.Store(int64(time.Since(mark.began)))
	}
}

// learnDecode learns from D's leg, when its reply has told what it was.
func (t *run) learnDecode(prompt int, cached *int) {
	took := t.beganAfter
	if took == 0 || prompt == 0 {
		return
	}
	has := min(t.dHas, prompt-1)
	switch {
	case t.appended:
		if cached != nil {
			if 2**cached < has {
				t.r.noAppend.Store(int64(t.r.now() + noAppendFor))
			}
			has = min(*cached, prompt-1)
		}
		t.r.learn(func(m *price.Models) { m.ObserveAppend(prompt-has, has, took) })
	case t.gaveParams:
		t.r.learn(func(m *price.Models) { m.ObserveHandoff(prompt-has, took) })
	}
}

// appendMark is an append, for D's other streams to say how long they waited.
type appendMark struct {
	tokens int
	began  time.Time
	ended  atomic.Int64 // nanoseconds after began, 0 while D computes
}

// watch is what one stream has seen of an append.
type watch struct {
	mark *appendMark
	last time.Time     // of the stream's last event
	gap  time.Duration // the longest while D computed
	told bool
}

// event notes an event of a stream that is not itself an append.
func (w *watch) event(r *Router, now time.Time) {
	mark := r.append.Load()
	if mark == nil {
		w.last = now
		return
	}
	if mark != w.mark {
		w.mark, w.gap, w.told = mark, 0, false
	}
	if !w.told && !w.last.IsZero() && now.After(mark.began) {
		ended := time.Duration(mark.ended.Load())
		if ended == 0 || w.last.Sub(mark.began) < ended {
			w.gap = max(w.gap, now.Sub(w.last))
		} else {
			w.told = true
			if w.gap > 0 {
				r.learn(func(m *price.Models) { m.ObserveStall(mark.tokens, w.gap) })
			}
		}
	}
	w.last = now
}

// estimate is how many tokens this turn's prompt has: as many more than the last one as its text is
// longer.
func (t *run) estimate() int {
	prev := t.prev
	if prev.Prompt == 0 || prev.PromptBytes == 0 {
		return len(t.q.prompt) / usualBytes
	}
	perByte := float64(prev.Prompt) / float64(prev.PromptBytes)
	return max(prev.Prompt+int(perByte*float64(len(t.q.prompt)-prev.PromptBytes)), 1)
}

// usualBytes is how many bytes of a request make a token, roughly, while nothing is known.
const usualBytes = 4

func blocks(tokens, size int) int {
	if size < 1 {
		return max(tokens, 0)
	}
	return max(tokens, 0) / size * size
}

func receiptOf(d price.Decision) *telemetry.Price {
	out := &telemetry.Price{Arm: d.Arm, Why: d.Why, Candidates: make([]telemetry.Candidate, len(d.Candidates))}
	for i, c := range d.Candidates {
		out.Candidates[i] = telemetry.Candidate{Arm: c.Arm, Ms: round(c.Ms), Moves: c.Moves, Not: c.Not}
		if !math.IsInf(c.Err, 0) {
			e := round(c.Err)
			out.Candidates[i].ErrMs = &e
		}
	}
	return out
}

func round(ms float64) float64 { return math.Round(1000*ms) / 1000 }

// reasoning is the member in which this client repeats what the assistant thought, "" if it does not.
// Anthropic's clients repeat it while tools are at work, since the API wants them to.
func (q *request) reasoning(calls bool) string {
	for m := range bodyedit.Elements(q.prompt) {
		if role, _ := bodyedit.Lookup(m, "role"); !bodyedit.TextIs(role, "assistant") {
			continue
		}
		for _, name := range [...]string{"reasoning", "reasoning_content"} {
			if v, ok := bodyedit.Lookup(m, name); ok && !bodyedit.IsNull(v) {
				return name
			}
		}
		content, _ := bodyedit.Lookup(m, "content")
		if bodyedit.KindOf(content) != bodyedit.Array {
			continue
		}
		for part := range bodyedit.Elements(content) {
			if kind, _ := bodyedit.Lookup(part, "type"); bodyedit.TextIs(kind, "thinking") {
				return "thinking"
			}
		}
	}
	if q.endpoint == kvp.Messages && calls {
		return "thinking"
	}
	return ""
}

// returns reports whether P may be prepared for a turn after this one.
func (t *run) returns() bool {
	return t.kept != nil && t.r.cfg.Return && t.r.cfg.Reuse && len(t.q.chain) > 0
}

// startReturn gives the turn's end to the returner. The turn's receipt is there.
func (t *run) startReturn() {
	if !t.returns() {
		return
	}
	b := &back{
		turn: t.stored, id: t.id, q: t.q, said: t.said, calls: t.calls, held: t.heldNow, prompt: t.stored.Ready,
		overtaken: make(chan struct{}), over: make(chan struct{}),
	}
	if t.q.byIDs() && len(t.replyIDs) > 0 {
		b.ids = append(parseIDs(t.q.prompt), t.replyIDs...)
	}
	if !t.kept.Complete && len(t.calls) > 0 {
		b.said = nil // a tool call that broke off is nobody's
	}
	t.r.returns.after(b)
}
