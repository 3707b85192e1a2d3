package doctor

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

func pathChecks() []check {
	return []check{
		{"probe", groupPath, "a conversation of three turns was played", probePlayed, nil},
		{"decode-reads-prefill", groupPath, "decode reads what prefill has computed", decodeReads, nil},
		{"clock-and-expiry", groupPath, "handles expire when they should", clockAndExpiry, []string{"pull-works"}},
		{"pull-works", groupPath, "prefill reads what decode holds", pullWorks, nil},
		{"handle-shape", groupPath, "handles name the right number of blocks", handleShape, nil},
		{"handle-in-streams", groupPath, "streams carry the handle", handleInStreams, nil},
		{"stream-bursts", groupPath, "streams arrive as they are generated", streamBursts, nil},
		{"answers-agree", groupPath, "what was read gives the answer that computing gives", answersAgree, nil},
		{"tenant-salt", groupPath, "a prompt under another salt is not found", tenantSalt, nil},
		{"probe-leftovers", groupPath, "the probe left nothing behind", probeLeftovers, nil},
	}
}

func probePlayed(f *Facts, v *verdict) {
	p := f.Probe
	switch {
	case p == nil:
		v.skip("%s", f.NoProbe)
	case !p.P1.ok():
		v.find(Error, prefill, "look at prefill's log; is it up to serving requests?", "a small request failed").because("%s: %s", p.P1.Name, p.P1.Err)
	case p.Withheld != "":
		v.find(Info, prefill, "", "prefill was given no handle: %s", p.Withheld)
	default:
		v.ok("%s", p.summary())
	}
}

// summary says in one line how far the conversation came.
func (p *Probe) summary() string {
	var parts []string
	for _, c := range []*Call{p.P1, p.P2, p.P3} {
		if !c.ok() {
			break
		}
		w, n := pulled(p, c)
		text := fmt.Sprintf("%d prompt tokens", c.Prompt)
		if n.known {
			text += fmt.Sprintf(", %d local, %d read, %d computed", w.local, n.n, c.Prompt-w.local-n.n)
		}
		parts = append(parts, fmt.Sprintf("turn %d: %s", len(parts)+1, text))
	}
	return strings.Join(parts, "; ")
}

// want is what a P call of the probe should bring.
type want struct {
	local   int // tokens that P has in its own prefix cache, in whole blocks
	offered int // tokens that the handle has beyond them
}

// number is a count that may not be known.
type number struct {
	n     int
	known bool
}

// reused is how many tokens of a call P did not compute.
func (p *Probe) reused(c *Call) number {
	switch {
	case !c.ok():
		return number{}
	case c.Cached != nil:
		return number{*c.Cached, true}
	case p.IdleBefore && c.P.Requests == 1:
		return number{int(c.P.Local + c.P.Pulled), true}
	}
	return number{}
}

// pulled says what a P call was offered and what it has read.
func pulled(p *Probe, c *Call) (want, number) {
	held, local := p.offer(c)
	w := want{local: local, offered: max(0, held-local)}
	r := p.reused(c)
	switch {
	case !r.known:
		return w, number{}
	case p.IdleBefore && c.P.Requests == 1: // the counters are of this call alone
		w.local = int(c.P.Local)
		w.offered = max(0, held-w.local)
		return w, number{int(c.P.Pulled), true}
	}
	w.local = min(w.local, r.n)
	return w, number{r.n - w.local, true}
}

// offer is how many tokens of a P call of the probe decode held, and how many of them P should have had itself.
func (p *Probe) offer(c *Call) (held, local int) {
	switch {
	case c == p.P2 && p.ReplyIDs:
		held = p.D1.held(true)
		return held, min(probeFirst/p.BlockSize*p.BlockSize, held)
	case c == p.P2:
		return p.D1.held(false), 0
	case c == p.P3:
		return p.D2.held(p.ReplyIDs), 0
	}
	return 0, 0
}

// held is how many tokens of a D call a handle could cover.
func (c *Call) held(reply bool) int {
	if c == nil {
		return 0
	}
	if reply {
		return c.Prompt + c.Output - 1
	}
	return c.Prompt
}

// howLong says what the time of a failed READ tells.
func howLong(c *Call, h *HandleFacts) string {
	at := "its peer"
	if h != nil && h.Err == "" {
		at = fmt.Sprintf("%s:%d", h.Host, h.Port)
	}
	switch {
	case c.Took < time.Second:
		return fmt.Sprintf("after %d ms: %s was reached before and is gone, or refused", c.Took.Milliseconds(), at)
	case c.Took < 9*time.Second:
		return fmt.Sprintf("after %.1f s: the handshake with %s failed: nobody answers there, or another engine does", c.Took.Seconds(), at)
	}
	return fmt.Sprintf("after %.1f s: nobody answers at %s", c.Took.Seconds(), at)
}

func decodeReads(f *Facts, v *verdict) {
	p := f.Probe
	if p == nil || p.D1 == nil {
		v.skip("the probe did not get there")
		return
	}
	d := p.D1
	const fix = "let both engines reach each other's side channel (VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT, 5600 + rank) and RDMA ports, in both directions; decode's log names the failure"
	switch {
	case d.TimedOut:
		v.find(Error, decode, fix, "decode does not answer a request with prefill's blocks").because("%s: %s", d.Name, d.Err).because("%s +%.0f on decode", mFailed, d.D.Failed)
	case d.Status >= 500:
		v.find(Error, decode, fix, "decode cannot read prefill's blocks").because("%s: %s", d.Name, d.Err).because("%s", howLong(d, p.P1.Handle)).because("%s +%.0f on decode", mFailed, d.D.Failed)
	case d.Status != 200 && d.Status != 0:
		v.find(Error, decode, "give both engines the same limits", "decode refuses what prefill took: prefill's blocks stay pinned for the lease").because("%s: %s", d.Name, d.Err)
	case !d.ok():
		v.find(Error, decode, "look at decode's log", "decode breaks off a request with prefill's blocks").because("%s: %s", d.Name, d.Err)
	case d.D.Reads == 0 && d.D.Pulled == 0:
		v.find(Error, decode, fix, "decode answered, and computed the whole prompt itself").because("%s: %d prompt tokens, none read", d.Name, d.Prompt)
	default:
		v.ok("%s: %.0f tokens in %.0f READs", d.Name, d.D.Pulled, d.D.Reads)
	}
}

// clockSlack is how far the expiry times of two handles may be from the time between them, in seconds.
const clockSlack = 4

func clockAndExpiry(f *Facts, v *verdict) {
	p := f.Probe
	if p == nil || !p.D1.ok() || p.D1.Handle == nil || p.D1.Handle.Err != "" {
		v.skip("there is no handle to look at")
		return
	}
	h := p.D1.Handle
	if p.P2 != nil && p.P2.Status >= 500 && p.P2.P.Expired > 0 {
		fix := "restart prefill, so that it learns decode's clock anew"
		if ttl, known := f.Decode.ttl(); known && ttl <= 30 {
			fix = `"decoder_kv_blocks_ttl":480 on decode`
		}
		v.find(Error, pair, fix, "prefill takes a handle that is seconds old for expired: it is wrong about decode's clock, or the TTL is too short").
			because("%s: HTTP %d in %d ms, %s +%.0f on prefill", p.P2.Name, p.P2.Status, p.P2.Took.Milliseconds(), mExpired, p.P2.P.Expired)
		return
	}
	if f.Decode.Can.ExpiryInHandle && !h.HasExpiry {
		v.find(Warning, decode, "look for a gateway between doctor and decode that drops members it does not know", "handles have no expiry, which %s writes: a READ that comes too late would not be refused", f.Decode.Version).
			because("remote_blocks_expiry_time is missing")
		return
	}
	if p.D2.ok() && p.D2.Handle != nil && p.D2.Handle.Expiry != nil && h.Expiry != nil {
		moved := *p.D2.Handle.Expiry - *h.Expiry
		passed := (p.D2.Handle.Seen - h.Seen).Seconds()
		if math.Abs(moved-passed) > clockSlack {
			v.find(Error, decode, "look at the host's clock; do not suspend or migrate machines with engines", "decode's clock jumps: handles live for another time than they say").
				because("two handles %.1f s apart expire %.1f s apart", passed, moved)
			return
		}
		v.ok("two handles %.1f s apart expire %.1f s apart", passed, moved)
		return
	}
	if !f.Decode.Can.ExpiryInHandle {
		v.ok("handles of %s have no expiry", f.Decode.Version)
		return
	}
	v.ok("handles have one")
}

func pullWorks(f *Facts, v *verdict) {
	p := f.Probe
	switch {
	case p == nil:
		v.skip("%s", f.NoProbe)
		return
	case p.Withheld != "":
		v.skip("prefill was given no handle")
		return
	case p.P2 == nil:
		v.skip("the probe did not get there")
		return
	}
	const fix = "let prefill reach decode's side channel (VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT) and RDMA ports, not only the other way round; prefill's log names the failure"
	for _, c := range []*Call{p.P2, p.P3} {
		if c == nil {
			continue
		}
		from := p.D1
		if c == p.P3 {
			from = p.D2
		}
		switch {
		case c.TimedOut:
			v.find(Error, prefill, fix, "prefill does not answer a request with a handle").because("%s: %s", c.Name, c.Err).
				because("waiting %.0f, deferred %.0f; %s +%.0f", c.Waits.Waiting, c.Waits.Deferred, mFailed, c.P.Failed)
			if !p.IdleBefore {
				v.because("the engines were in use by others: --patience gives it more than %.0f s", c.Took.Seconds())
			}
		case c.Status >= 500:
			v.find(Error, prefill, fix, "prefill cannot read decode's blocks").because("%s: %s", c.Name, c.Err).because("%s", howLong(c, from.Handle)).
				because("%s +%.0f on prefill", mFailed, c.P.Failed)
		case !c.ok():
			v.find(Error, prefill, "look at prefill's log", "prefill refuses a request with a handle").because("%s: %s", c.Name, c.Err)
		}
	}
	if len(v.r.Findings) > 0 {
		return
	}
	if !pulledKnown(p) {
		v.find(Info, prefill, "start it with --enable-prompt-tokens-details", "prefill took handles, and does not say whether it has read anything").because("neither replies nor counters tell")
		return
	}
	v.ok("%s", p.summary())
}

func pulledKnown(p *Probe) bool {
	_, n := pulled(p, p.P2)
	return n.known
}

func handleShape(f *Facts, v *verdict) {
	p := f.Probe
	if p == nil {
		v.skip("%s", f.NoProbe)
		return
	}
	seen := 0
	for _, c := range []*Call{p.P1, p.D1, p.P2, p.D2, p.P3, p.D3} {
		if c == nil || c.Handle == nil {
			continue
		}
		h := c.Handle
		if seen++; slices.ContainsFunc(v.r.Findings, func(f Finding) bool { return f.Subject == c.Engine }) {
			continue // once is enough
		}
		switch {
		case h.Err != "":
			v.find(Error, c.Engine, "look for a gateway between doctor and the engine that rewrites JSON: integers must stay integers, and nothing may be left out", "kv_transfer_params that nobody can use").because("%s: %s", c.Name, h.Err)
		case !h.Consistent:
			v.find(Error, c.Engine, "run vLLM 0.25 or newer, or no speculative decoding", "the list of blocks does not fit the number of tokens: blocks are paired from its end, so the wrong ones would be read").
				because("%s: %d tokens in %d blocks of %d", c.Name, h.Tokens, h.Blocks, p.BlockSize)
		}
	}
	if seen == 0 {
		v.skip("there are no handles to look at")
		return
	}
	v.ok("%d looked at", seen)
}

func handleInStreams(f *Facts, v *verdict) {
	p := f.Probe
	d := f.Decode
	switch {
	case d.CanErr != "" || d.Err != "":
		v.skip("decode's release is not known")
	case !d.Can.StreamHandle:
		v.find(Warning, decode, "run vLLM 0.33 on both; until then lower decoder_kv_blocks_ttl, because decode keeps the blocks of streamed replies all the same",
			"streams of vLLM %s carry no handle: clients that stream have no reuse of replies", d.Version).
			because("chat and completions streams have it since 0.33")
	case p == nil || p.D2 == nil || !p.D2.Streamed:
		v.skip("no streamed reply was seen; vLLM %s has it", d.Version)
	case p.D2.ok() && !p.D2.Params:
		v.find(Error, decode, "look for a gateway between doctor and decode that rewrites streams, and for VLLM_USE_RUST_FRONTEND", "streams carry no handle, though %s writes it and replies that are not streamed have it", d.Version).
			because("%s: %d events, none with kv_transfer_params", p.D2.Name, p.D2.Events)
	case !p.D2.ok():
		v.find(Error, decode, "look at decode's log", "a streamed reply broke off").because("%s: %s", p.D2.Name, p.D2.Err)
	default:
		v.ok("in a stream of %d events", p.D2.Events)
	}
}

// streamBursts looks at when the events of the probe's stream came. An engine generates evenly.
func streamBursts(f *Facts, v *verdict) {
	p := f.Probe
	if p == nil || p.D2 == nil || !p.D2.Streamed || !p.D2.ok() || p.D2.Events < 16 {
		v.skip("no streamed reply of 16 events or more was seen")
		return
	}
	d := p.D2
	spread := d.LastText - d.FirstText
	// The same number of tokens was generated for turn 1, not streamed: that took at least as long as generating takes.
	if whole := min(d.LastText, p.D1.Took); whole > 200*time.Millisecond && spread < whole/20 {
		v.find(Warning, decode, "turn buffering off in what stands between doctor and decode: for nginx, proxy_buffering off", "a stream arrives all at once: clients wait for the last token to see the first").
			because("%d events within %d ms, after %d ms of silence", d.Events, spread.Milliseconds(), d.FirstText.Milliseconds())
		return
	}
	v.ok("%d events over %d ms", d.Events, spread.Milliseconds())
}

// answersAgree compares the likeliest next tokens of turns whose prompt was read with those of the same prompts computed.
func answersAgree(f *Facts, v *verdict) {
	p := f.Probe
	if p == nil {
		v.skip("%s", f.NoProbe)
		return
	}
	worst, note := Skipped, "there are no two answers to compare"
	for _, turn := range []struct{ read, computed *Call }{{p.P2, p.Clean2}, {p.P3, p.Clean3}} {
		if !turn.read.ok() || !turn.computed.ok() || len(turn.read.Top) < 4 || len(turn.computed.Top) < 4 {
			continue
		}
		if _, n := pulled(p, turn.read); n.known && n.n == 0 {
			continue // nothing was read
		}
		if r := p.reused(turn.computed); r.known && r.n > 0 {
			continue // nor was it computed from nothing
		}
		shared, apart := 0, 0.0
		for token, read := range turn.read.Top {
			if computed, ok := turn.computed.Top[token]; ok {
				shared++
				apart = max(apart, math.Abs(read-computed))
			}
		}
		s := OK
		switch {
		case shared <= 1 || apart > wrongApart:
			s = Error
		case shared == 2 || apart > doubtApart:
			s = Warning
		}
		if worst == Skipped || s > worst {
			worst = s
			note = fmt.Sprintf("%s: of the %d likeliest next tokens %d agree; their log probabilities are up to %.2f apart", turn.read.Name, len(turn.read.Top), shared, apart)
		}
	}
	switch worst {
	case Skipped:
		v.skip("%s", note)
	case Error:
		v.find(Error, pair, "do not serve with this pair: restart both, compare --block-size, --kv-cache-dtype, layouts and parallel sizes, and update vLLM", "KV that prefill has read from decode is wrong: the same prompt has another continuation when it is computed").because("%s", note)
	case Warning:
		v.find(Warning, pair, "run doctor again; if it stays so, compare answers with and without reuse", "the same prompt has a rather different continuation when it is read and when it is computed").because("%s", note)
	default:
		v.ok("%s", note)
	}
}

// How far the log probabilities of a token may be from each other between two computations of the same. The order of
// additions on a GPU moves them by a few hundredths, KV in 8 bits by tenths. On two H200 right KV shared 4 or 5 of the 5
// likeliest tokens, wrong KV none.
const (
	doubtApart = 0.7
	wrongApart = 1.5
)

func tenantSalt(f *Facts, v *verdict) {
	p := f.Probe
	if p == nil || !p.Warm.ok() {
		v.skip("the probe did not get there")
		return
	}
	warm := p.reused(p.Warm)
	if !warm.known || warm.n == 0 {
		v.skip("a prompt sent twice was not found, or prefill does not say")
		return
	}
	for _, c := range []*Call{p.Clean3, p.Unsalted} {
		if r := p.reused(c); r.known && r.n > 0 {
			v.find(Error, prefill, "look for a gateway between doctor and prefill that drops cache_salt", "a prompt is found under a salt that it was not computed under: tenants share caches, and can find out what others have sent").
				because("%s: %d of %d tokens found", c.Name, r.n, c.Prompt)
		}
	}
	v.ok("the same prompt under its salt: %d tokens found; under another, and under none: 0", warm.n)
}

func probeLeftovers(f *Facts, v *verdict) {
	switch {
	case f.Probe == nil:
		v.skip("%s", f.NoProbe)
		return
	case len(f.Probe.Left) == 0:
		v.ok("nothing is pinned on its behalf")
		return
	}
	v.find(Info, pair, "", "the engines keep something because of the probe")
	for _, l := range f.Probe.Left {
		v.because("%s", l)
	}
}
