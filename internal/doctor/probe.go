package doctor

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/tarik-kv/tarik/internal/kvp"
)

// The probe is a conversation of three turns, made of random token ids under salts of its own, so that it meets nobody's
// cache and nobody meets what it leaves there. Each turn is P, then D, as a router does it.
//
//	turn 1   P null form   160 tokens                    D answers 80
//	turn 2   P handle      all of that and 32 more       D answers 80     P has turn 1's prompt, and reads the reply
//	turn 3   P handle      all of that and 32 more       D answers 4      under another salt: P has nothing and reads all
//	then     P: D may free what it keeps; two plain requests, which keep nothing, compare answers and salts
//
// A P whose bidirectional_kv_xfer is off, or whose failure policy is "recompute", parks a request with a handle for
// ever and keeps its blocks until it is restarted. If the settings are known to be such, P gets no handle. If they are not
// known, it gets one, small, with a deadline, and no second one if it does not answer.
const (
	probeFirst    = 160  // tokens of the first prompt
	probeReply    = 80   // tokens of a reply: more than the usual threshold of 64
	probeMore     = 32   // tokens that a turn adds
	probeLast     = 4    // tokens of the last reply
	endlessTokens = 1024 // at most, of a request that is left at its first token
	probeLength   = probeFirst + 2*(probeReply+probeMore) + probeLast
)

// Probe is the probe conversation and what else was asked with it.
type Probe struct {
	P1, D1, P2, D2, P3, D3 *Call   // nil: not made
	Clean2, Clean3         *Call   // plain requests for the prompts of turns 2 and 3 under other salts: P computes all of them
	Warm                   *Call   // plain request for the newest prompt that P has, under the salt it has it under
	WarmHas                int     // tokens that P has for Warm, in whole blocks
	Unsalted               *Call   // the same prompt without a salt
	Pulls                  []*Call // large ones, to measure the transfer
	Withheld               string  // why P was given no handle, "" if it was
	ReplyIDs               bool    // D told the ids of its reply
	Left                   []string
	IdleBefore             bool // nobody else used the engines when it began
	BlockSize              int  // tokens
}

// whyNoProbe says why the probe must not be played, "" if it may.
func whyNoProbe(f *Facts, off bool) string {
	p, d := f.Prefill, f.Decode
	switch {
	case off:
		return "turned off by --no-probe"
	case p.Err != "" || d.Err != "":
		return "an engine does not answer"
	case p.URL == d.URL:
		return "prefill and decode are the same engine"
	case p.CanErr != "" || d.CanErr != "":
		return "the version of an engine is not known"
	case p.Version != d.Version:
		return "the engines are of different releases, and a handshake between such can end an engine's listener"
	case p.model() == "" || p.model() != d.model():
		return "the engines serve different models"
	case p.Before.BlockSize() != d.Before.BlockSize() || p.Before.BlockSize() == 0:
		return "the engines' block sizes differ or are not known"
	case min(p.maxLen(), d.maxLen()) > 0 && min(p.maxLen(), d.maxLen()) < probeLength+1:
		return fmt.Sprintf("the engines take fewer than the %d tokens that it needs", probeLength+1)
	}
	return ""
}

// withhold says why P must not be given a handle, as far as its settings are known.
func withhold(p, d *EngineFacts) string {
	on, known, from := p.flag()
	switch {
	case known && !on && p.KV != nil && p.KV.Connector() == pullConnector:
		return "bidirectional_kv_xfer is off on prefill (" + from + "): it would park the request for ever"
	case p.KV != nil && p.KV.Policy() == "recompute":
		return `kv_load_failure_policy is "recompute" on prefill: a pull that fails would hang for ever`
	case p.KV != nil && p.KV.Connector() != pullConnector:
		return "prefill runs " + p.KV.Connector() + ", which does not pull"
	case d.KV != nil && d.KV.Connector() != pullConnector:
		return "decode runs " + d.KV.Connector() + ", which gives no handles that can be pulled"
	}
	return ""
}

// player plays the probe.
type player struct {
	*Probe
	ctx    context.Context // of this one probe
	f      *Facts
	o      Options
	salts  [5]string
	counts [2]Counters // of P and D, after the last call
	seq    []int32     // what D holds: prompt and reply
	began  time.Time
	random *rand.Rand

	prompt2    []int32 // of turn 2
	warmPrompt []int32 // what P has in its prefix cache
	warmSalt   string
}

func play(ctx context.Context, f *Facts, o Options) *Probe {
	pl := &player{Probe: &Probe{BlockSize: f.Prefill.Before.BlockSize()}, ctx: ctx, f: f, o: o, began: time.Now()}
	pl.random = rand.New(rand.NewPCG(o.seed, rand.Uint64()))
	if o.seed != 0 {
		pl.random = rand.New(rand.NewPCG(o.seed, 0))
	}
	for i := range pl.salts {
		pl.salts[i] = randomID()
	}
	pl.counts = [2]Counters{f.Prefill.Before.Counters(), f.Decode.Before.Counters()}
	pl.IdleBefore = f.Prefill.Before.Load().Idle() && f.Decode.Before.Load().Idle()
	pl.Withheld = withhold(f.Prefill, f.Decode)
	pl.turns()
	pl.plain()
	pl.measure()
	pl.settle()
	return pl.Probe
}

// tokens makes n ids that every vocabulary has.
func (pl *player) tokens(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(100 + pl.random.IntN(100))
	}
	return ids
}

// call makes one call and notes what both engines counted meanwhile.
func (pl *player) call(q ask) (*Call, answer) {
	p, d := pl.f.Prefill, pl.f.Decode
	var waits Load
	call, a := q.do(pl.ctx, pl.o.Client, pl.patience(q), func() {
		if m := p.scrape(pl.ctx, pl.o.Client); m != nil {
			waits = m.Load()
		}
	})
	seen := time.Since(pl.began)
	call.Waits = waits
	own := 0
	if q.side == d {
		own = 1
	}
	// An engine counts a request when it tells of its end, and a failed transfer a step later.
	rest := 2 * time.Millisecond
	for deadline := time.Now().Add(countPatience); ; rest = min(2*rest, 50*time.Millisecond) {
		for i, e := range []*EngineFacts{p, d} {
			m := e.scrape(pl.ctx, pl.o.Client)
			if m == nil {
				continue
			}
			e.After = m
			delta := m.Counters().Since(pl.counts[i])
			if i == 0 {
				call.P = delta
			} else {
				call.D = delta
			}
		}
		delta := [2]Counters{call.P, call.D}[own]
		counted := delta.Requests > 0
		if call.Status >= http.StatusInternalServerError {
			counted = delta.Failed+delta.Expired > 0
		}
		refused := call.Status >= 400 && call.Status < http.StatusInternalServerError
		if counted || refused || call.TimedOut || q.hangUp || pl.ctx.Err() != nil || time.Now().After(deadline) {
			break
		}
		pause(pl.ctx, rest)
	}
	pl.counts[0], pl.counts[1] = p.last().Counters(), d.last().Counters()
	if call.Handle != nil {
		call.Handle.Seen = seen
		call.Handle.Unresolved = unresolved(pl.ctx, call.Handle.Host)
	}
	return call, a
}

// unresolved reports whether an address is a name that this machine does not know.
func unresolved(ctx context.Context, address string) bool {
	if address == "" || address == "localhost" || net.ParseIP(address) != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := net.DefaultResolver.LookupHost(ctx, address)
	return err != nil
}

// patience is how long a call may take. D generates many tokens, and an engine on a CPU is slow.
func (pl *player) patience(q ask) time.Duration {
	switch {
	case q.side == pl.f.Decode:
		return 3 * pl.o.Patience
	case pl.P1 != nil:
		return max(pl.o.Patience, time.Duration(len(q.ids)/probeFirst+2)*pl.P1.Took)
	}
	return 3 * pl.o.Patience
}

// countPatience is how long the probe waits for an engine's counters to show what it has done.
const countPatience = time.Second

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// left notes what an engine keeps because of the probe.
func (pl *player) left(format string, args ...any) {
	pl.Left = append(pl.Left, fmt.Sprintf(format, args...))
}

func (pl *player) keepsLease(a *Call) {
	pl.left("prefill keeps the blocks of one prompt of %d tokens until its lease ends (30 s by default)", a.Prompt)
}

func (pl *player) keepsTTL(tokens int) {
	pl.left("decode keeps the blocks of one reply (%d tokens) until its TTL ends (480 s by default)", tokens)
}

// turns plays the three turns as far as they go.
func (pl *player) turns() {
	prompt := pl.tokens(probeFirst)
	var a answer
	pl.P1, a = pl.call(ask{name: "turn 1, prefill", side: pl.f.Prefill, salt: pl.salts[0], ids: prompt, max: 1, params: kvp.NullForm, want: kvp.ShapePrefill})
	pl.warm(prompt, pl.salts[0])
	if pl.Withheld != "" {
		// Decode is left at its first token: it has then read P's blocks, and keeps nothing.
		pl.D1, _ = pl.decode("turn 1, decode", a, pl.P1, pl.salts[0], prompt, endless(pl.f.Decode, len(prompt)), true, true)
		return
	}
	var b answer
	if pl.D1, b = pl.decode("turn 1, decode", a, pl.P1, pl.salts[0], prompt, probeReply, false, false); pl.D1 == nil {
		return
	}
	h := pl.handle(pl.D1, b, prompt)
	if h.IsZero() {
		return
	}
	pl.ReplyIDs = len(pl.seq) > len(prompt)
	salt := pl.salts[0]
	if !pl.ReplyIDs {
		salt = pl.salts[1] // without the reply there is only the prompt to read, and P has that
	}
	prompt = append(pl.seq[:len(pl.seq):len(pl.seq)], pl.tokens(probeMore)...)
	pl.prompt2 = prompt
	pl.P2, a = pl.pull("turn 2, prefill", h, salt, prompt)
	if !pl.P2.ok() {
		return
	}
	pl.warm(prompt, salt)
	// A stream shows whether clients that stream can have handles; an engine that does not give them there would keep
	// the blocks for nothing.
	stream := pl.f.Decode.Can.StreamHandle
	if pl.D2, b = pl.decode("turn 2, decode", a, pl.P2, salt, prompt, probeReply, stream, false); pl.D2 == nil {
		return
	}
	if h = pl.handle(pl.D2, b, prompt); h.IsZero() {
		if pl.D2.ok() {
			pl.keepsTTL(pl.D2.Prompt + pl.D2.Output)
		}
		return
	}
	prompt = append(pl.seq[:len(pl.seq):len(pl.seq)], pl.tokens(probeMore)...)
	pl.P3, a = pl.pull("turn 3, prefill", h, pl.salts[2], prompt)
	if !pl.P3.ok() {
		return
	}
	pl.warm(prompt, pl.salts[2])
	if pl.D3, b = pl.decode("turn 3, decode", a, pl.P3, pl.salts[2], prompt, probeLast, false, false); pl.D3 != nil {
		pl.release(pl.handle(pl.D3, b, prompt))
	}
}

// warm remembers what P has in its prefix cache now.
func (pl *player) warm(prompt []int32, salt string) {
	pl.Warm = &Call{Prompt: len(prompt)}
	pl.WarmHas = (len(prompt) - 1) / pl.BlockSize * pl.BlockSize
	pl.warmPrompt, pl.warmSalt = prompt, salt
}

// decode has D take over what P has computed. nil: there was nothing to take over.
func (pl *player) decode(name string, a answer, p *Call, salt string, prompt []int32, reply int, stream, hangUp bool) (*Call, answer) {
	if !p.ok() || p.Handle == nil {
		return nil, answer{}
	}
	if p.Handle.Err != "" {
		pl.keepsLease(p)
		return nil, answer{}
	}
	from, err := kvp.ParsePrefilled(a.params)
	if err != nil {
		panic("BUG: params were parsed before: " + err.Error())
	}
	d, b := pl.call(ask{
		name: name, side: pl.f.Decode, salt: salt, ids: prompt, max: reply, params: from.Raw(), want: kvp.ShapeDecode,
		stream: stream, hangUp: hangUp, wantIDs: true,
	})
	if !d.ok() || d.D.Reads == 0 {
		pl.keepsLease(p)
	}
	if d.TimedOut {
		pl.left("decode may have parked a request of %d tokens until it is restarted", d.Prompt)
	}
	return d, b
}

// handle reads D's handle of a turn and cuts it to what is known to be right. It is zero if there is none that can be used.
func (pl *player) handle(d *Call, b answer, prompt []int32) kvp.Handle {
	if !d.ok() || !d.Params {
		return kvp.Handle{}
	}
	h, err := kvp.ParseHandle(b.params)
	if err != nil {
		pl.keepsTTL(d.Prompt + d.Output)
		return kvp.Handle{}
	}
	pl.seq = append(prompt[:len(prompt):len(prompt)], b.ids...)
	known := len(pl.seq)
	if len(b.ids) == 0 {
		known++ // all of the prompt
	}
	if cut, err := h.Clamp(known, pl.BlockSize); err == nil {
		return cut
	}
	return h
}

// pull gives P a handle.
func (pl *player) pull(name string, h kvp.Handle, salt string, prompt []int32) (*Call, answer) {
	c, a := pl.call(ask{name: name, side: pl.f.Prefill, salt: salt, ids: prompt, max: 1, params: h.Raw(), want: kvp.ShapePrefill, top: true})
	switch {
	case c.TimedOut:
		pl.left("prefill has parked the request and keeps its blocks (%d tokens) until it is restarted", c.Prompt)
		pl.keepsTTL(h.Tokens)
	case !c.ok():
		after := pl.release(h) // a pull that failed tells D nothing
		if c.P.Failed+c.P.Expired == 0 && after != nil {
			c.P.Failed, c.P.Expired = after.P.Failed, after.P.Expired // an idle engine counts with its next step
		}
	}
	return c, a
}

// release has P tell D that it may free what h names, and hangs up at P's first event so that P keeps nothing either. It
// returns the call, nil if there was nothing to release.
func (pl *player) release(h kvp.Handle) *Call {
	if h.IsZero() {
		return nil
	}
	q := ask{
		name: "release", side: pl.f.Prefill, salt: pl.salts[3], ids: []int32{100}, max: endless(pl.f.Prefill, 1), params: h.Release().Raw(),
		stream: true, hangUp: true, want: kvp.ShapePrefill,
	}
	c, _ := pl.call(q)
	if !c.ok() {
		pl.keepsTTL(h.Tokens)
	}
	return c
}

// endless is more tokens than an engine generates until the probe has hung up: a request that ends keeps its blocks.
func endless(e *EngineFacts, prompt int) int {
	if limit := e.maxLen(); limit > 0 {
		return min(endlessTokens, limit-prompt)
	}
	return endlessTokens
}

// plain makes the requests without params: they keep nothing.
func (pl *player) plain() {
	if pl.Warm == nil || pl.P1 == nil || !pl.P1.ok() || pl.P2 != nil && pl.P2.TimedOut || pl.P3 != nil && pl.P3.TimedOut {
		pl.Warm = nil
		return
	}
	q := ask{side: pl.f.Prefill, ids: pl.warmPrompt, max: 1, top: true}
	q.name, q.salt = "warm prompt, its salt", pl.warmSalt
	pl.Warm, _ = pl.call(q)
	q.name, q.salt = "warm prompt, no salt", ""
	pl.Unsalted, _ = pl.call(q)
	q.name, q.salt = "warm prompt, another salt", pl.salts[4]
	if pl.Clean3, _ = pl.call(q); pl.P2.ok() {
		q.name, q.salt, q.ids = "turn 2's prompt, another salt", randomID(), pl.prompt2
		pl.Clean2, _ = pl.call(q)
	}
}

// Limits of the measurement.
const (
	enoughBytes     = 64 << 20        // what an engine must have read for its counters to say something
	measurePatience = 5 * time.Second // how long P may take to compute the prompt for it
	measureShare    = 20              // the prompt may take a twentieth of a pool
)

// measure reads a long prompt back and forth if the engines' own traffic does not show how fast that is.
func (pl *player) measure() {
	p, d := pl.f.Prefill, pl.f.Decode
	n := pl.o.TransferTokens
	if n <= 0 || !pl.IdleBefore || !pl.P3.ok() || pl.D3 == nil || !pl.D3.ok() || p.last().Counters().Bytes >= enoughBytes {
		return
	}
	if limit := min(p.maxLen(), d.maxLen()); limit > 0 {
		n = min(n, limit-2*probeMore)
	}
	n = min(n, p.last().Capacity()/measureShare, d.last().Capacity()/measureShare)
	if n <= 2*probeLength || pl.P1.Took*time.Duration(n/probeFirst) > measurePatience {
		return
	}
	prompt, salt := pl.tokens(n), randomID()
	c, a := pl.call(ask{name: "long prompt, prefill", side: p, salt: salt, ids: prompt, max: 1, params: kvp.NullForm, want: kvp.ShapePrefill})
	for range 2 { // the first large read of a pair is slower than those after it
		dc, b := pl.decode("long prompt, decode", a, c, salt, prompt, 1, false, false)
		h := pl.handle(dc, b, prompt)
		if h.IsZero() {
			return
		}
		salt = randomID()
		prompt = append(prompt[:len(prompt):len(prompt)], pl.tokens(1)...)
		if c, a = pl.pull("long prompt, pulled", h, salt, prompt); !c.ok() {
			return
		}
		pl.Pulls = append(pl.Pulls, c)
	}
	dc, b := pl.decode("long prompt, decode", a, c, salt, prompt, 1, false, false)
	pl.release(pl.handle(dc, b, prompt))
}

// settlePatience is how long the probe waits for the engines to free its blocks.
const settlePatience = 3 * time.Second

// settle waits until the engines hold no more than before, if nobody else uses them.
func (pl *player) settle() {
	p, d := pl.f.Prefill, pl.f.Decode
	for deadline := time.Now().Add(settlePatience); time.Now().Before(deadline) && pl.ctx.Err() == nil; pause(pl.ctx, 50*time.Millisecond) {
		done := true
		for _, e := range pl.f.sides() {
			m := e.scrape(pl.ctx, pl.o.Client)
			if m == nil {
				return
			}
			e.After = m
			done = done && m.Load().Usage <= e.Before.Load().Usage
		}
		if done || len(pl.Left) > 0 || !pl.IdleBefore {
			return
		}
	}
	if pl.ctx.Err() != nil {
		return
	}
	for _, e := range []*EngineFacts{p, d} {
		if l := e.last().Load(); l.Idle() && l.Usage > e.Before.Load().Usage {
			pl.left("%s holds %.2f %% of its KV pool, %.2f %% before the probe", e.Role, 100*l.Usage, 100*e.Before.Load().Usage)
		}
	}
}
