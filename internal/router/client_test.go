package router_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tarik-kv/tarik/internal/local"
	"github.com/tarik-kv/tarik/internal/router"
)

// A client may leave at any moment. Whatever was in progress ends, no block stays taken, and the
// conversation goes on right.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	slowP := func(p, _ *local.EngineOptions, _ *router.Config) {
		p.Batch, p.Faults.StepCost = 64, 30*time.Millisecond
	}
	slowD := func(_, d *local.EngineOptions, _ *router.Config) { d.Faults.StepCost = 10 * time.Millisecond }
	slowLink := func(_, d *local.EngineOptions, _ *router.Config) { d.Faults.LinkLatency = 300 * time.Millisecond }
	for _, tt := range []struct {
		name   string
		stream bool
		change func(p, d *local.EngineOptions, r *router.Config)
		max    int
		moment func(t *testing.T, pr *pair, generated uint64, leave func()) // leaves when it is time
	}{
		{name: "B05 before P answers", stream: true, max: 20, change: slowP, moment: func(t *testing.T, pr *pair, _ uint64, leave func()) {
			until(t, "P works", func() bool { return pr.p.Core.Snapshot().Running > 0 })
			leave()
		}},
		{name: "B02 between the legs", stream: true, max: 20, moment: nil},
		{name: "B01 during the transfer", stream: true, max: 20, change: slowLink, moment: func(t *testing.T, pr *pair, _ uint64, leave func()) {
			until(t, "D reads", func() bool { return pr.d.Core.Snapshot().Blocks.Parked > 0 })
			leave()
		}},
		{name: "B01 during the transfer, whole", max: 20, change: slowLink, moment: func(t *testing.T, pr *pair, _ uint64, leave func()) {
			until(t, "D reads", func() bool { return pr.d.Core.Snapshot().Blocks.Parked > 0 })
			leave()
		}},
		{name: "in mid-stream", stream: true, max: 4000, change: slowD, moment: func(t *testing.T, pr *pair, generated uint64, leave func()) {
			until(t, "D generates", func() bool { return pr.d.Core.Snapshot().GenerationTokens > generated+3 })
			leave()
		}},
		{name: "B06 a whole reply", max: 4000, change: slowD, moment: func(t *testing.T, pr *pair, generated uint64, leave func()) {
			until(t, "D generates", func() bool { return pr.d.Core.Snapshot().GenerationTokens > generated+3 })
			leave()
		}},
		{name: "a whole reply that ends all the same", max: 40, change: slowD, moment: func(t *testing.T, pr *pair, generated uint64, leave func()) {
			until(t, "D generates", func() bool { return pr.d.Core.Snapshot().GenerationTokens > generated+3 })
			leave()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pr := newPair(t, false, tt.change)
			pr.settle(t, 0)
			said := []string{prompt}
			text, _ := pr.turn(t, body(tt.stream, 20, said...))
			pr.settle(t, 1)
			said = append(said, text, "go on")
			b := body(tt.stream, tt.max, append(said[:2:2], "another question "+prompt)...)
			if tt.moment == nil {
				held, leaves := make(chan struct{}), make(chan struct{})
				pr.gateD.hooks(func(*http.Request) { close(held); <-leaves }, nil)
				leave := pr.leave(t, b)
				<-held
				pr.gateD.hooks(nil, nil)
				leave()
				close(leaves)
			} else {
				generated := pr.d.Core.Snapshot().GenerationTokens
				tt.moment(t, pr, generated, pr.leave(t, b))
			}
			pr.settle(t, 0) // the handle of the first turn is spent, or freed
			until(t, "the turn has ended", func() bool { return strings.Contains(pr.engines(t), `"turns_known": `) && pr.inFlight(t) == "0" })
			if rc := pr.rig.receipts.Newest(1)[0]; rc.Status != 499 || rc.Why != "client-left" || rc.HeldTokens != 0 {
				t.Errorf("receipt: HTTP %d, why %s, %d tokens held; want 499, client-left, 0", rc.Status, rc.Why, rc.HeldTokens)
			}
			text, _ = pr.turn(t, body(true, 20, said...))
			pr.turn(t, body(true, 20, append(said, text, "and on")...))
			if n := pr.rig.metric(t, "tarik_streams_truncated_total"); n != "0" {
				t.Errorf("%s streams count as truncated, though only the client left", n)
			}
		})
	}
}

func (pr *pair) engines(t testing.TB) string {
	t.Helper()
	return do(t, http.MethodGet, pr.rig.admin+"/engines", nil).body
}

func (pr *pair) inFlight(t testing.TB) string {
	t.Helper()
	return pr.rig.metric(t, "tarik_turns_in_flight")
}

// The same turn again, branches, and two turns at once: each gets its own right answer, and a handle
// goes to one of them.
func TestC06TurnsAtOnce(t *testing.T) {
	t.Parallel()
	pr := newPair(t, false, nil)
	said := []string{prompt}
	text, rc := pr.turn(t, body(true, 24, said...))
	if rc.HeldTokens == 0 {
		t.Fatalf("no handle: %+v", rc)
	}
	t.Run("same turn again", func(t *testing.T) {
		if again, rc := pr.turn(t, body(false, 24, said...)); again != text || *rc.PComputedTokens > rc.PromptTokens/4 {
			t.Errorf("%q, %d tokens computed; want %q, and what P knows", again, *rc.PComputedTokens, text)
		}
	})
	pulls := 0
	var mu sync.Mutex
	race := func(t *testing.T, next func(i int) string) {
		t.Helper()
		pulls = 0
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				_, rc := pr.turn(t, body(i%2 == 0, 12, prompt, text, next(i)))
				mu.Lock()
				defer mu.Unlock()
				if rc.Arm == "pull" {
					pulls++
				}
			})
		}
		wg.Wait()
		if pulls > 1 {
			t.Errorf("%d of the racers pulled with one handle", pulls)
		}
	}
	t.Run("branches", func(t *testing.T) { race(t, func(i int) string { return fmt.Sprint("branch ", i, " ", prompt) }) })
	if pulls != 1 {
		t.Errorf("%d of the branches pulled, want 1", pulls)
	}
	t.Run("racers", func(t *testing.T) { race(t, func(int) string { return "the same" }) })
	for _, e := range []*local.Engine{pr.p, pr.d} {
		if err := e.Core.CheckAccounting(); err != nil {
			t.Error(err)
		}
	}
}

// One handle, many takers: exactly one P call carries it.
func TestI2HandleOnce(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.post(t, chatPath, chat(true, long(100)))
	g.p.says()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if h := g.post(t, chatPath, chat(true, long(100), "ok", "next")); h.status != 200 {
				t.Errorf("HTTP %d %s", h.status, h.body)
			}
		})
	}
	wg.Wait()
	n := 0
	for _, c := range g.p.generated() {
		if strings.Contains(c.body, `"remote_num_tokens":103`) {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d P calls carry the handle, want 1", n)
	}
}

// A reader that takes its time gets everything.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	const n = 3000
	g.d.says(func(s *stub, w http.ResponseWriter, _ *http.Request, c call) {
		all := chunks(s, c, "finish")
		send(w, eventStream, all[0])
		for range n {
			send(w, eventStream, strings.Replace(all[1], `"o"`, `"`+long(2000)+`"`, 1))
		}
		send(w, eventStream, all[2:]...)
	})
	l := g.open(t, chatPath, chat(true, "hi"))
	l.event(t)
	rest, err := l.rest()
	if got := strings.Count(rest, long(2000)); err != nil || got != n || !strings.HasSuffix(rest, "data: [DONE]\n\n") {
		t.Errorf("%v, %d of %d chunks", err, got, n)
	}
}

// B12: clients that stop reading and leave free everything.
func TestB12StuckReadersLeave(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.d.says(func(s *stub, w http.ResponseWriter, req *http.Request, c call) {
		all := chunks(s, c, "finish")
		send(w, eventStream, all[0])
		for req.Context().Err() == nil {
			send(w, eventStream, strings.Replace(all[1], `"o"`, `"`+long(10000)+`"`, 1))
		}
	})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			l := g.open(t, chatPath, chat(true, "hi"))
			for range 3 {
				l.event(t)
			}
			l.leave()
		})
	}
	wg.Wait()
	until(t, "all turns have ended", func() bool { return g.metric(t, "tarik_turns_in_flight") == "0" })
}

// A client that leaves while P is asked for token ids ends that.
func TestLeavesWhileRendering(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.post(t, chatPath, chat(true, long(100)))
	pr := &pair{rig: g}
	asked := make(chan struct{}, 1)
	g.p.onRender(hang(asked))
	leave := pr.leave(t, map[string]any{"model": "m", "stream": true, "max_tokens": 8, "messages": []any{
		map[string]string{"role": "user", "content": long(100)}, map[string]string{"role": "assistant", "content": "ok"}, map[string]string{"role": "user", "content": "x"},
	}})
	<-asked
	leave()
	until(t, "the turn has ended", func() bool { return g.metric(t, "tarik_turns_in_flight") == "0" })
	if rc := g.receipts.Newest(1)[0]; rc.Why != "client-left" || rc.Status != 499 {
		t.Errorf("receipt %+v", rc)
	}
	// The handle was not taken.
	g.p.onRender(nil)
	h := g.post(t, chatPath, chat(true, long(100), "ok", "next"))
	if rc := g.receipt(t, h); rc.Arm != "pull" {
		t.Errorf("arm %s why %s, want pull", rc.Arm, rc.Why)
	}
}
