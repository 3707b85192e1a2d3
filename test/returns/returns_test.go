package returns

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

var tables = flag.String("tables", "", "write the whole tables to this file, as Markdown; else a part of them is checked")

// arms is one row of a table: the same conversation by each arm.
func arms(t *testing.T, s setting, which ...arm) map[arm]outcome {
	t.Helper()
	out := map[arm]outcome{}
	for _, a := range which {
		s.arm = a
		out[a] = play(t, s)
		if out[a].misreads > 0 {
			t.Errorf("%+v: P read KV of other tokens %d times", s, out[a].misreads)
		}
		if s.conversations < 2 && strings.Join(out[a].replies, "|") != strings.Join(out[which[0]].replies, "|") {
			t.Errorf("%s and %s say different things at %d tokens, gap %s", a, which[0], s.first, s.gap)
		}
	}
	return out
}

// hits is the share of the prompts' old tokens, in whole blocks, that P did not compute.
func (o outcome) hits() float64 {
	old, reused := 0, 0
	var before int
	for i := len(o.receipts) - 1; i >= 0; i-- { // oldest first
		rc := o.receipts[i]
		if rc.TurnNumber > 1 && rc.PComputedTokens != nil {
			old += before / 16 * 16
			reused += min(rc.PromptTokens-*rc.PComputedTokens, before/16*16)
		}
		before = rc.PromptTokens + rc.OutputTokens
	}
	if old == 0 {
		return 0
	}
	return float64(reused) / float64(old)
}

// returnMs is how long the returns took at most.
func (o outcome) returnMs() (most float64) {
	for _, rc := range o.receipts {
		if rc.Return != nil && rc.Return.State == "done" {
			most = max(most, rc.Return.Ms)
		}
	}
	return most
}

// TestTables checks what is promised of the return, and writes the tables of docs/benchmarks.md.
func TestTables(t *testing.T) {
	w, err := weights()
	if err != nil {
		t.Fatal(err)
	}
	costs := h200(w)
	var md strings.Builder
	t.Run("ttft", func(t *testing.T) { ttftTable(t, &md, costs) })
	t.Run("reasoning", func(t *testing.T) { reasoningTable(t, &md, costs) })
	t.Run("small cache", func(t *testing.T) { cacheTable(t, &md, costs) })
	if *tables != "" {
		if err := os.WriteFile(*tables, []byte(md.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func ttftTable(t *testing.T, md *strings.Builder, costs engine.Faults) {
	lengths, gaps, turns := []int{2000}, []time.Duration{100 * time.Millisecond, 20 * time.Minute}, 4
	if *tables != "" {
		lengths = []int{2000, 8000, 24000}
		gaps, turns = []time.Duration{100 * time.Millisecond, time.Minute, 20 * time.Minute}, 5
	}
	fmt.Fprintf(md, "| P's prefix cache | first prompt | gap | no reuse | handle held | tarik | tarik, with appends | oracle | tarik / oracle | reused: held | reused: tarik | D pinned / active: held | tarik |\n|--|--|--|--|--|--|--|--|--|--|--|--|--|\n")
	for _, cold := range []bool{false, true} {
		for _, first := range lengths {
			for _, gap := range gaps {
				if cold && first > 8000 {
					continue // each of its turns computes everything anew
				}
				s := setting{first: first, suffix: 512, reply: 512, turns: turns, gap: gap, cold: cold, costs: costs, pool: 1 << 16}
				which := []arm{none, held, tarik, withD}
				if !cold {
					which = append(which, oracle)
				}
				out := arms(t, s, which...)
				cell := func(a arm) string {
					o, ok := out[a]
					if !ok {
						return "–"
					}
					return fmt.Sprintf("%.0f / %.0f", at(o.ttft, 0.5), at(o.ttft, 0.95))
				}
				ratio := "–"
				base, ours := at(out[none].ttft, 0.5), at(out[tarik].ttft, 0.5)
				if !cold {
					ratio = fmt.Sprintf("%.3f", ours/at(out[oracle].ttft, 0.5))
					if ms := out[tarik].returnMs(); gap.Seconds()*1000 > ms && ours > 1.10*at(out[oracle].ttft, 0.5) {
						t.Errorf("%d tokens, gap %s: tarik %.0f ms, oracle %.0f ms: want at most 1.10 times", first, gap, ours, at(out[oracle].ttft, 0.5))
					}
				}
				for _, q := range []float64{0.5, 0.95} {
					if n, o := at(out[none].ttft, q), at(out[tarik].ttft, q); o > 1.02*n {
						t.Errorf("%d tokens, gap %s, cold %t: tarik %.0f ms at %v, without reuse %.0f ms", first, gap, cold, o, q, n)
					}
				}
				_ = base
				cache := "on"
				if cold {
					cache = "off"
				}
				fmt.Fprintf(md, "| %s | %d | %s | %s | %s | %s | %s | %s | %s | %.0f %% | %.0f %% | %.2f | %.2f |\n", cache, first, gap, cell(none), cell(held), cell(tarik), cell(withD), cell(oracle), ratio,
					100*out[held].hits(), 100*out[tarik].hits(), out[held].pinned/out[held].active, out[tarik].pinned/out[tarik].active)
			}
		}
	}
}

// reasoningTable: a template that drops what the assistant thought, once there is a later user message.
func reasoningTable(t *testing.T, md *strings.Builder, costs engine.Faults) {
	s := setting{first: 4000, suffix: 256, reply: 400, turns: 6, gap: 2 * time.Second, costs: costs, pool: 1 << 16, kwargs: map[string]any{"enable_thinking": true}}
	out := arms(t, s, none, held, tarik, oracle)
	fmt.Fprintf(md, "\n| arm | TTFT p50 / p95 | reused |\n|--|--|--|\n")
	for _, a := range []arm{none, held, tarik, oracle} {
		fmt.Fprintf(md, "| %s | %.0f / %.0f | %.0f %% |\n", a, at(out[a].ttft, 0.5), at(out[a].ttft, 0.95), 100*out[a].hits())
	}
	if ours, best := at(out[tarik].ttft, 0.5), at(out[oracle].ttft, 0.5); ours > 1.10*best {
		t.Errorf("tarik %.0f ms, oracle %.0f ms", ours, best)
	}
}

// cacheTable: a P whose cache holds only some of the conversations.
func cacheTable(t *testing.T, md *strings.Builder, costs engine.Faults) {
	fmt.Fprintf(md, "\n| P and D hold, in conversations | arm | TTFT p50 / p95 | reused | returns done / skipped |\n|--|--|--|--|--|\n")
	pools := []int{24_000}
	if *tables != "" {
		pools = []int{12_000, 24_000, 48_000}
	}
	for _, pool := range pools {
		s := setting{first: 3000, suffix: 256, reply: 200, turns: 6, gap: 20 * time.Second, costs: costs, pool: pool, conversations: 6}
		out := arms(t, s, none, held, tarik)
		for _, a := range []arm{none, held, tarik} {
			done, skipped := 0, 0
			for _, rc := range out[a].receipts {
				if rc.Return != nil && rc.Return.State == "done" {
					done++
				}
				if rc.Return != nil && rc.Return.State == "skipped" {
					skipped++
				}
			}
			fmt.Fprintf(md, "| %.1f of 6 | %s | %.0f / %.0f | %.0f %% | %d / %d |\n", float64(pool)/5300, a, at(out[a].ttft, 0.5), at(out[a].ttft, 0.95), 100*out[a].hits(), done, skipped)
		}
		for _, q := range []float64{0.5, 0.95} {
			if n, o := at(out[none].ttft, q), at(out[tarik].ttft, q); o > 1.02*n {
				t.Errorf("pool %d: tarik %.0f ms at %v, without reuse %.0f ms", pool, o, q, n)
			}
		}
	}
}
