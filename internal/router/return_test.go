package router_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/local"
	"github.com/tarik-kv/tarik/internal/refengine/engine"
	"github.com/tarik-kv/tarik/internal/router"
	"github.com/tarik-kv/tarik/internal/telemetry"
)

// TestOracleReturn is TestOracle with returns, and with appends.
func TestOracleReturn(t *testing.T) {
	t.Parallel()
	for _, as := range []string{"vllm-0.33", "vllm-0.32", "vllm-0.25"} {
		for _, appends := range []bool{false, true} {
			name := as
			if appends {
				name += " with appends"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				o := newOracleWith(t, as, false, func(c *router.Config) {
					c.Append = appends
					router.AppendPremium(c, 0)
				})
				turns := *oracleTurns / 2
				if testing.Short() {
					turns = 100
				}
				if wrong := o.play(t, turns, 3); wrong > 0 {
					t.Errorf("%d of %d replies differ from those without reuse", wrong, turns)
				}
				arms, states := map[string]int{}, map[string]int{}
				for _, rc := range o.receipts.Newest(turns) {
					arms[rc.Arm]++
					if rc.Return != nil {
						states[rc.Return.State]++
					}
				}
				// How many pay is a matter of how fast the machine is at the moment.
				if states["done"] < 20 || states["done"]+states["skipped"]+states["overtaken"] < turns/2 || states["failed"] > 0 {
					t.Errorf("returns: %v", states)
				}
				if (arms["append"] > 0) != appends {
					t.Errorf("arms: %v", arms)
				}
				t.Logf("arms %v, returns %v", arms, states)
				o.checkBlocks(t)
			})
		}
	}
}

// returning is a pair whose router makes returns.
func returning(t *testing.T, change func(p, d *local.EngineOptions, r *router.Config)) *pair {
	t.Helper()
	return newPair(t, false, func(p, d *local.EngineOptions, r *router.Config) {
		r.Return = true
		if change != nil {
			change(p, d, r)
		}
	})
}

// returned waits for the end of the return of a turn, and returns its receipt.
func (pr *pair) returned(t testing.TB, turn string) telemetry.Return {
	t.Helper()
	var rc telemetry.Receipt
	until(t, "the return has ended", func() bool {
		rc, _ = pr.rig.receipts.Find(turn)
		return rc.Return != nil && rc.Return.State != telemetry.Pending
	})
	ret := *rc.Return
	ret.Ms = 0
	return ret
}

// TestReturn: after a turn P has been given the reply, D's blocks are free, and the next turn is a local
// hit that computes what is new and at most one block.
func TestReturn(t *testing.T) {
	t.Parallel()
	pr := returning(t, nil)
	b := body(true, 80, prompt)
	delete(b, "ignore_eos")
	text, first := pr.turn(t, b)
	ret := pr.returned(t, first.Turn)
	if ret.State != "done" || ret.Pulled < first.OutputTokens-20 || ret.Computed > 32 {
		t.Errorf("return %+v, want the reply of 80 tokens pulled and next to nothing computed", ret)
	}
	pr.settle(t, 0)
	_, second := pr.turn(t, body(true, 20, prompt, text, "and then"))
	if second.Arm != "local" || second.Why != "return-ready" || *second.PComputedTokens > 40 {
		t.Errorf("next turn: arm %s why %s computed %d of %d", second.Arm, second.Why, *second.PComputedTokens, second.PromptTokens)
	}
	pr.returned(t, second.Turn)
	pr.settle(t, 0)
}

// TestReturnWithoutHandle: a stream of an engine before 0.33 carries no handle, so P computes the reply in the gap.
func TestReturnWithoutHandle(t *testing.T) {
	t.Parallel()
	pr := returning(t, func(p, d *local.EngineOptions, _ *router.Config) { p.As, d.As = "vllm-0.25", "vllm-0.25" })
	b := body(true, 80, prompt)
	delete(b, "ignore_eos")
	text, first := pr.turn(t, b)
	ret := pr.returned(t, first.Turn)
	if first.HeldTokens != 0 || ret.State != "done" || ret.Pulled != 0 {
		t.Errorf("held %d, return %+v, want one that pulls nothing", first.HeldTokens, ret)
	}
	_, second := pr.turn(t, body(true, 20, prompt, text, "and then"))
	if second.Why != "return-ready" || *second.PComputedTokens > 40 {
		t.Errorf("next turn: why %s computed %d", second.Why, *second.PComputedTokens)
	}
}

// TestReturnInFlight: the next turn waits for a return that is with P, and is then a local hit; one that
// takes longer than computing would is not waited for.
func TestReturnInFlight(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		link float64 // bytes a second
		why  string
	}{
		{"soon", 1 << 20, "return-ready"},
		{"never", 1, "return-late"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			slow := engine.Faults{PrefillTokenCost: 10 * time.Millisecond}
			pr := returning(t, func(p, _ *local.EngineOptions, _ *router.Config) { p.Faults = slow })
			for i := range 4 { // so that P's speed is known
				_, rc := pr.turn(t, body(true, 4, string(rune('a'+i))+" river"))
				pr.returned(t, rc.Turn)
			}
			slow.LinkBytesPerSecond = test.link
			pr.p.Core.SetFaults(slow)
			b := body(true, 80, prompt)
			delete(b, "ignore_eos")
			text, first := pr.turn(t, b)
			until(t, "the return is with P", func() bool {
				return pr.p.Core.Snapshot().Blocks.Parked > 0 || pr.ended(first.Turn)
			})
			_, second := pr.turn(t, body(true, 20, prompt, text, "and then"))
			if second.Why != test.why {
				t.Errorf("why %s, want %s", second.Why, test.why)
			}
			pr.p.Core.SetFaults(engine.Faults{})
		})
	}
}

func (pr *pair) ended(turn string) bool {
	rc, _ := pr.rig.receipts.Find(turn)
	return rc.Return != nil && rc.Return.State != telemetry.Pending
}

// TestReturnPoison: a P that hangs on the handle of a return gets no more of them; turns go on.
func TestReturnPoison(t *testing.T) {
	t.Parallel()
	pr := returning(t, func(p, _ *local.EngineOptions, _ *router.Config) { p.KV = kv(true, nil, "recompute") })
	pr.p.Core.SetFaults(engine.Faults{FailReads: 1000})
	text, first := pr.turn(t, body(true, 80, prompt))
	ret := pr.returned(t, first.Turn)
	if diff := cmp.Diff(telemetry.Return{State: "failed", Why: "pull-late"}, ret); diff != "" {
		t.Errorf("return (-want +got):\n%s", diff)
	}
	_, second := pr.turn(t, body(true, 20, prompt, text, "and then"))
	if second.Status != http.StatusOK || second.PPulledTokens == nil || *second.PPulledTokens != 0 {
		t.Errorf("next turn: %+v", second)
	}
}

// TestOneShot: traffic that never goes on costs next to nothing.
func TestOneShot(t *testing.T) {
	t.Parallel()
	pr := returning(t, nil)
	skipped := 0
	for i := range 60 {
		_, rc := pr.turn(t, body(true, 8, string(rune('A'+i%26))+string(rune('A'+i/26))+prompt))
		if ret := pr.returned(t, rc.Turn); i >= 40 && ret.State == "skipped" {
			skipped++
		}
	}
	if skipped < 18 {
		t.Errorf("%d of the last 20 returns were skipped", skipped)
	}
	pr.settle(t, 0)
}

// TestReturnOfIDs: a prompt of token ids goes on with the ids of the reply, handle or not.
func TestReturnOfIDs(t *testing.T) {
	t.Parallel()
	for _, as := range []string{"vllm-0.33", "vllm-0.25"} {
		t.Run(as, func(t *testing.T) {
			t.Parallel()
			pr := returning(t, func(p, d *local.EngineOptions, _ *router.Config) { p.As, d.As = as, as })
			ids := make([]int, 300)
			for i := range ids {
				ids[i] = 300 + i%50
			}
			b := map[string]any{"model": "tiny", "prompt": ids, "stream": true, "temperature": 0, "max_tokens": 60, "min_tokens": 60}
			first := pr.rig.receipt(t, pr.rig.post(t, textPath, jsonOf(b)))
			ret := pr.returned(t, first.Turn)
			if ret.State != "done" || ret.Tokens != 360 || (ret.Pulled > 0) != (as == "vllm-0.33") {
				t.Errorf("return %+v after %d tokens", ret, first.OutputTokens)
			}
		})
	}
}
