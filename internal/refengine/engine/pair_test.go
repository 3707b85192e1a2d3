package engine

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"
)

// pair is a P and a D on one network.
type pair struct {
	t    testing.TB
	net  *network
	p, d *node
}

func newPair(t testing.TB, cp, cd Config) *pair {
	t.Helper()
	n := newNetwork()
	if cp.KV == nil {
		cp.KV = roleP()
	}
	if cd.KV == nil {
		cd.KV = roleD()
	}
	return &pair{t: t, net: n, p: startNode(t, n, cp), d: startNode(t, n, cd)}
}

// onPair runs a test in virtual time on a measured pair of the newest version.
func onPair(t *testing.T, f func(t *testing.T, x *pair)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newPair(t, measured(), measured())) })
}

// turn plays one turn by the book: the P call with the given params, then the D call with A.
func (x *pair) turn(prompt []int32, replyTokens int, params string) (p, d reply) {
	x.t.Helper()
	p = x.p.run(prompt, 1, params)
	if p.Finish != FinishLength {
		x.t.Fatalf("P call ended by %q: %v", p.Finish, p.Err)
	}
	d = x.d.run(prompt, replyTokens, string(p.Params))
	if d.Finish != FinishLength {
		x.t.Fatalf("D call ended by %q: %v", d.Finish, d.Err)
	}
	synctest.Wait()
	return p, d
}

// conversation is what the edge recordings begin with: a prompt of 600 tokens, 40 of reply. B holds 639
// tokens in 5 blocks, P is warm with the prompt.
func (x *pair) conversation(seed int) (history []int32, b []byte) {
	x.t.Helper()
	prompt := ids(seed, 600)
	_, d := x.turn(prompt, 40, nullForm)
	return join(prompt, d.ids), d.Params
}

// handle reads the members of params that tests look at.
type handle struct {
	Prefill bool    `json:"do_remote_prefill"`
	Decode  bool    `json:"do_remote_decode"`
	Blocks  [][]int `json:"remote_block_ids"`
	Tokens  int     `json:"remote_num_tokens"`
	Cached  *int    `json:"remote_prefill_cached_tokens"`
	Expiry  float64 `json:"remote_blocks_expiry_time"`
	ID      string  `json:"remote_request_id"`
}

func parseHandle(t testing.TB, params []byte) handle {
	t.Helper()
	var h handle
	if err := json.Unmarshal(params, &h); err != nil {
		t.Fatalf("params %q: %v", params, err)
	}
	return h
}

// sources is where a prompt's tokens came from, and what the READ moved.
type sources struct{ Local, Pulled, Computed, Reads, Blocks, Descriptors int }

// source runs f and returns what it added to n's counters.
func source(n *node, f func()) sources {
	a := n.Snapshot()
	f()
	synctest.Wait()
	b := n.Snapshot()
	return sources{
		Local: int(b.PromptLocalHit - a.PromptLocalHit), Pulled: int(b.PromptExternal - a.PromptExternal),
		Computed: int(b.PromptLocalCompute - a.PromptLocalCompute),
		Reads:    int(b.BytesTransferred.Count - a.BytesTransferred.Count),
		Blocks:   int(b.BytesTransferred.Sum-a.BytesTransferred.Sum) / (n.cfg.BlockSize * fakeFloats * 4),
		// The fake has 30 layers, as the recorded model.
		Descriptors: int(b.Descriptors.Sum - a.Descriptors.Sum),
	}
}

// TestMeasuredVectors plays the two recorded three-turn conversations, P and D warm.
func TestMeasuredVectors(t *testing.T) {
	t.Parallel()
	type vector struct {
		prompt                  int
		local, pulled, computed int // on P
		cached                  int // A's remote_prefill_cached_tokens
		dLocal, dPulled         int
		blocksP, blocksD        int // pulled
		tokensB, blocksB        int
	}
	for name, turns := range map[string][]vector{
		"plain": {
			{507, 0, 0, 507, 0, 0, 507, 0, 4, 566, 5},
			{742, 384, 182, 176, 566, 512, 230, 2, 2, 801, 7},
			{985, 640, 161, 184, 801, 768, 217, 2, 2, 1044, 9},
		},
		"streamed": {
			{533, 0, 0, 533, 0, 0, 533, 0, 5, 592, 5},
			{802, 512, 80, 210, 592, 512, 290, 1, 3, 861, 7},
			{1052, 768, 93, 191, 861, 768, 284, 1, 3, 1111, 9},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onPair(t, func(t *testing.T, x *pair) {
				var history []int32
				params := nullForm
				for i, v := range turns {
					prompt := join(history, ids(100+i, v.prompt-len(history)))
					var p, d reply
					var onD sources
					onP := source(x.p, func() { p = x.p.run(prompt, 1, params) })
					onD = source(x.d, func() { d = x.d.run(prompt, 60, string(p.Params)) })
					a, b := parseHandle(t, p.Params), parseHandle(t, d.Params)
					got := vector{
						len(prompt), onP.Local, onP.Pulled, onP.Computed, *a.Cached, onD.Local, onD.Pulled,
						onP.Blocks, onD.Blocks, b.Tokens, len(b.Blocks[0]),
					}
					equal(t, "turn", got, v)
					equal(t, "reply", d.ids, cold(t, prompt, 60))
					equal(t, "D reports P's cached tokens", d.CachedTokens, v.cached)
					history, params = join(prompt, d.ids), string(d.Params)
				}
				equal(t, "pinned on D", x.d.Snapshot().Pins, 1) // the last handle only
				time.Sleep(481 * time.Second)
				synctest.Wait()
				equal(t, "pinned on D after the TTL", x.d.Snapshot().Blocks.Pinned, 0)
			})
		})
	}
}
