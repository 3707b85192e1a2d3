package sim

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// someRows is a trace: conversations that begin at about the same time, whose turns come soon, late, or before the reply has
// ended, go on, lose the reply, or are cut.
func someRows(seed uint64, conversations, turns int, within time.Duration) []Row {
	r := rand.New(rand.NewPCG(seed, 7))
	var rows []Row
	for c := range conversations {
		at := time.Duration(r.Int64N(int64(within) + 1))
		prompt := int32(500 + r.IntN(20_000))
		for range turns {
			row := Row{Conv: int32(c), Prompt: prompt, Output: int32(1 + r.IntN(800)), Shared: -1, Start: at}
			rows = append(rows, row)
			switch r.IntN(8) {
			case 0:
				prompt = 100 + prompt/2
			case 1:
				prompt += row.Output / 2
			default:
				prompt += row.Output + int32(r.IntN(600))
			}
			at += time.Duration(r.ExpFloat64() * float64([]time.Duration{time.Millisecond, 5 * time.Second, time.Minute}[r.IntN(3)]))
		}
	}
	return rows
}

func traceOptions(rows []Row) Options {
	o := DefaultOptions()
	o.Synthetic, o.Trace = nil, rows
	return o
}

// While nothing is evicted, a return can only add to what P has: every policy with handles finds at least what plain prefix
// caches find.
func TestReuseLosesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := traceOptions(someRows(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 6).Draw(t, "conversations"), rapid.IntRange(2, 12).Draw(t, "turns"),
			rapid.SampledFrom([]time.Duration{0, time.Minute}).Draw(t, "within")))
		o.PoolTokens, o.BlockSize = 1<<26, rapid.SampledFrom([]int{1, 16, 128}).Draw(t, "block")
		got := map[Policy]float64{}
		for _, p := range []Policy{Cache, Hold, Return} {
			o.Policy = p
			r, err := Run(o)
			if err != nil {
				t.Fatal(err)
			}
			got[p] = r.HitRate
		}
		if got[Return] < got[Cache]-1e-9 || got[Hold] < got[Cache]-1e-9 {
			t.Fatalf("hit rates %v", got)
		}
	})
}

// A burst does not make conversations wander: moving one adds work, which makes queues longer, which would move more. And which
// engine a turn goes to does not depend on the policy.
func TestBurst(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 7))
	var rows []Row
	for c := range 16 * 12 {
		prompt, at := int32(10_000+r.IntN(40_000)), time.Duration(0)
		for range 20 {
			rows = append(rows, Row{Conv: int32(c), Prompt: prompt, Output: int32(50 + r.IntN(400)), Shared: -1, Start: at})
			prompt += int32(500 + r.IntN(4000))
			at += time.Duration(r.ExpFloat64() * float64(12*time.Second))
		}
	}
	o := traceOptions(rows)
	o.Prefills, o.Decodes, o.PoolTokens = 16, 16, 1<<26
	got := map[Policy]*Result{}
	for _, p := range []Policy{Cache, Return} {
		o.Policy = p
		r, err := Run(o)
		if err != nil {
			t.Fatal(err)
		}
		got[p] = r
		if r.HitRate < 0.98*r.Repeated {
			t.Errorf("%s: hit rate %.3f of at most %.3f", p, r.HitRate, r.Repeated)
		}
	}
	if got[Return].HitRate < got[Cache].HitRate || got[Return].TTFT.P90 > 1.1*got[Cache].TTFT.P90 {
		t.Errorf("return: hit rate %.3f, TTFT p90 %.0f ms; cache: %.3f, %.0f ms", got[Return].HitRate, got[Return].TTFT.P90, got[Cache].HitRate, got[Cache].TTFT.P90)
	}
}

// A trace that counts what is shared in whole blocks does not say that a prompt departs in the last one.
func TestSharedCountsBlocks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                  string
		shared, block, prompt int32
		want                  int32
	}{
		{"goes on", 71_168, 64, 72_762, 71_175 + 169},
		{"the reply lost its beginning", 71_168, 64, 71_200, 71_175},
		{"departs a block earlier", 71_104, 64, 72_762, 71_104},
		{"exact, departs in the last tokens", 71_168, 0, 72_762, 71_168},
		{"exact, goes on", 71_175, 1, 72_762, 71_175 + 169},
		{"cut", 40_000, 64, 40_020, 40_020},
		{"not said", -1, 0, 72_762, 71_175 + 169},
	} {
		src := newTraced([]Row{{Prompt: 71_175, Output: 169, Shared: -1}, {Prompt: c.prompt, Output: 5, Shared: c.shared, Block: c.block}}, 1)
		p := src.turn(&conversation{prompt: 71_175, reply: 169}, 1)
		if diff := cmp.Diff([2]int32{c.want, c.want}, [2]int32{p.common, p.text}); diff != "" {
			t.Errorf("%s: common with D and in text (-want +got):\n%s", c.name, diff)
		}
	}
}

// A turn that overtook its return and came out first has left more than the return brings.
func TestReturnAfterItsTurn(t *testing.T) {
	t.Parallel()
	o := DefaultOptions()
	s := newRun(o)
	i := s.newConversation()
	p := &s.ps[0]
	e := p.entry(i)
	e.engine, e.users = 0, 2
	e.tokens, p.used = 1600, 1600
	r := s.backs.take()
	b := &s.backs.items[r]
	*b = back{conv: i, call: -1, waiting: -1}
	k := s.calls.take()
	s.calls.items[k] = call{conv: i, turn: -1, ret: r, prompt: 800, over: true, alloc: 160}
	p.used += 160
	s.computed(p, k)
	if e.tokens != 1600 || p.used != 1600 || e.users != 1 {
		t.Errorf("P has %d tokens of it, %d in all, %d users; want 1600, 1600, 1", e.tokens, p.used, e.users)
	}
}

// A conversation that moves takes its whole prompt along, and the engine that has never had it has not lost it.
func TestMovedConversation(t *testing.T) {
	t.Parallel()
	o := DefaultOptions()
	o.Prefills = 2
	s := newRun(o)
	i := s.newConversation()
	c := &s.convs[i]
	c.entries[atP].engine, c.entries[atP].tokens, c.ready = 0, 8000, 8000
	for _, q := range []struct {
		name string
		work float64 // at home
		want int16
	}{{"home is idle", 0, 0}, {"a short queue", 500, 0}, {"less than it costs twice", 1600, 0}, {"a long queue", 20_000, 1}} {
		s.ps[0].work = q.work
		if got := s.choosePrefill(c, &request{plan: plan{prompt: 8200, text: 8000}}); got != q.want {
			t.Errorf("%s: P %d, want %d", q.name, got, q.want)
		}
	}
	if got := [2]int32{c.readyAtP(0), c.readyAtP(1)}; got != [2]int32{8000, 0} {
		t.Errorf("ready at the two P: %v", got)
	}
}
