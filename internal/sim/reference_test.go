package sim

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tarik-kv/tarik/internal/local"
	"github.com/tarik-kv/tarik/internal/refengine/engine"
	"github.com/tarik-kv/tarik/internal/router"
	"github.com/tarik-kv/tarik/internal/telemetry"
)

// checkVar turns the comparison with running engines on. It takes minutes, and a machine with nothing else to do.
const checkVar = "TARIK_SIM_CHECK"

// injected are the costs that the reference engines pretend to have: far above what the tiny model really takes.
var injected = engine.Faults{
	StepCost: 20 * time.Millisecond, PrefillTokenCost: 500 * time.Microsecond, ContextCost: 50 * time.Microsecond,
	LinkBytesPerSecond: 20e6, LinkLatency: 5 * time.Millisecond,
}

// TestAgainstReference plays conversations against a router and two reference engines with injected costs, and the same
// requests at the same times against the simulator with the same costs.
func TestAgainstReference(t *testing.T) {
	if os.Getenv(checkVar) == "" {
		t.Skip("set " + checkVar + "=1 to compare with running engines; it takes minutes")
	}
	w, err := local.Load("")
	if err != nil {
		t.Fatal(err)
	}
	m := w.Model.Config()
	perToken := float64(2 * m.Layers * m.KVHeads * m.HeadDim * 4)
	for _, c := range []struct {
		policy             Policy
		reuse, ret, append bool
	}{{Cache, false, false, false}, {Hold, true, false, false}, {Return, true, true, false}, {Append, true, true, true}} {
		t.Run(string(c.policy), func(t *testing.T) {
			cfg := router.DefaultConfig()
			cfg.Reuse, cfg.Threshold, cfg.Append = c.reuse, 16, c.append
			cfg.Receipts = telemetry.NewReceipts(10_000, nil)
			returns := cfg
			returns.Return = c.ret
			s, err := local.Up(context.Background(), w, local.StackOptions{
				Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", As: "vllm-0.33", Return: c.reuse, Router: returns,
				Engine: local.EngineOptions{KVTokens: 1 << 15, Batch: 2048, Faults: injected},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			single := alone(t, s.URL(), cfg.Receipts)
			before := len(cfg.Receipts.Newest(10_000))
			rows, measured := converse(t, s.URL(), cfg.Receipts, before)
			o := DefaultOptions()
			o.Policy, o.Synthetic, o.Trace, o.Threshold, o.BlockSize, o.BatchTokens = c.policy, nil, rows, 16, 16, 2048
			o.PoolTokens, o.KVBytes, o.DescriptorsPerToken = 1<<15, perToken, 0
			o.Costs = Costs{
				StepMs: toMs(injected.StepCost), TokenMs: toMs(injected.PrefillTokenCost), PairMs: toMs(injected.ContextCost) / 1000,
				DecodeMs: toMs(injected.StepCost), RenderMs: 1,
			}
			o.Link = Link{LatencyMs: toMs(injected.LinkLatency), GBPerSecond: injected.LinkBytesPerSecond / 1e9}
			// What HTTP, templates, tokens and the tiny model take in truth: from single requests on idle engines, which are not
			// among those that are compared. Half of it goes to each leg.
			var over []float64
			for _, x := range single {
				one := o
				one.Trace = []Row{x.row}
				r, err := Run(one)
				if err != nil {
					t.Fatal(err)
				}
				over = append(over, x.ttft-r.TTFT.Max)
			}
			slices.Sort(over)
			o.Costs.FrontMs = max(0, over[len(over)/2]/2)
			r, err := Run(o)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("overhead of a leg: %.1f ms", o.Costs.FrontMs)
			slices.Sort(measured.ttft)
			p50, p90 := measured.ttft[len(measured.ttft)/2], measured.ttft[len(measured.ttft)*9/10]
			t.Logf("| %s | %d | %.0f / %.0f (%+.1f %%) | %.0f / %.0f (%+.1f %%) | %.1f / %.1f | %v / %v |", c.policy, len(rows), r.TTFT.P50, p50, 100*(r.TTFT.P50/p50-1),
				r.TTFT.P90, p90, 100*(r.TTFT.P90/p90-1), 100*r.HitRate, 100*measured.hit, armsOf(r), measured.arms)
			if off := math.Abs(r.TTFT.P50/p50 - 1); off > 0.1 {
				t.Errorf("TTFT p50: simulated %.0f ms, measured %.0f", r.TTFT.P50, p50)
			}
			if off := math.Abs(r.HitRate - measured.hit); off > 0.01 {
				t.Errorf("hit rate: simulated %.3f, measured %.3f", r.HitRate, measured.hit)
			}
		})
	}
}

func armsOf(r *Result) map[string]int {
	m := map[string]int{}
	for _, a := range r.Arms {
		m[a.Arm] = a.Turns
	}
	return m
}

type outcome struct {
	ttft []float64 // ms
	hit  float64
	arms map[string]int
}

type lone struct {
	row  Row
	ttft float64 // ms
}

// alone makes single requests, one after the other.
func alone(t *testing.T, url string, receipts *telemetry.Receipts) []lone {
	var list []lone
	for i := range 7 {
		r := rand.New(rand.NewPCG(uint64(i), 8))
		ids := someTokens(r, 400+100*i)
		ask(t, url, fmt.Sprintf("alone-%d", i), ids, 4)
		rc := receipts.Newest(1)[0]
		if rc.TTFTMs == nil {
			t.Fatalf("no first token: %+v", rc)
		}
		list = append(list, lone{Row{Prompt: int32(len(ids)), Output: 4, Shared: -1}, *rc.TTFTMs})
		time.Sleep(500 * time.Millisecond)
	}
	return list
}

// converse plays conversations, three at a time, and returns what was asked when, and what came of it.
func converse(t *testing.T, url string, receipts *telemetry.Receipts, skip int) ([]Row, outcome) {
	const conversations, turns = 6, 7
	var wg sync.WaitGroup
	begin := time.Now()
	room := make(chan struct{}, 3)
	var mu sync.Mutex
	var rows []Row
	for c := range conversations {
		wg.Add(1)
		go func() {
			defer wg.Done()
			room <- struct{}{}
			defer func() { <-room }()
			r := rand.New(rand.NewPCG(uint64(c), 7))
			ids := someTokens(r, 600+r.IntN(800))
			for range turns {
				reply := 20 + r.IntN(40)
				at := time.Since(begin)
				out := ask(t, url, fmt.Sprintf("check-%d", c), ids, reply)
				mu.Lock()
				rows = append(rows, Row{Conv: int32(c), Start: at, Prompt: int32(len(ids)), Output: int32(reply), Shared: -1})
				mu.Unlock()
				ids = append(append(ids, out...), someTokens(r, 30+r.IntN(200))...)
				time.Sleep(time.Duration(300+r.IntN(1500)) * time.Millisecond)
			}
		}()
	}
	wg.Wait()
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Or(cmp.Compare(a.Conv, b.Conv), cmp.Compare(a.Start, b.Start)) })
	out := outcome{arms: map[string]int{}}
	var prompt, reused int
	for i := range rows[1:] {
		if rows[i+1].Conv == rows[i].Conv {
			prompt += int(rows[i+1].Prompt)
		}
	}
	list := receipts.Newest(10_000)
	for _, rc := range list[:len(list)-skip] {
		if rc.TTFTMs == nil {
			t.Fatalf("a turn without a first token: %+v", rc)
		}
		out.ttft = append(out.ttft, *rc.TTFTMs)
		out.arms[rc.Arm]++
		if rc.TurnNumber > 1 {
			switch {
			case rc.Arm == "append" && rc.DCachedTokens != nil:
				reused += *rc.DCachedTokens
			case rc.PLocalTokens != nil:
				reused += *rc.PLocalTokens + *rc.PPulledTokens
			}
		}
	}
	if len(out.ttft) != len(rows) {
		t.Fatalf("%d receipts of %d turns", len(out.ttft), len(rows))
	}
	out.hit = float64(reused) / float64(prompt)
	return rows, out
}

// someTokens are any ids: the model does not mind.
func someTokens(r *rand.Rand, n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(32 + r.IntN(90))
	}
	return ids
}

// ask makes one streamed turn, by token ids so that nothing is tokenised in between, and returns the reply's.
func ask(t *testing.T, url, id string, prompt []int32, reply int) (out []int32) {
	body, err := json.Marshal(map[string]any{
		"model": "tiny", "prompt": prompt, "stream": true, "temperature": 0, "max_tokens": reply, "ignore_eos": true,
		"return_token_ids": true, "conversation_id": id,
	})
	if err != nil {
		t.Error(err)
		return nil
	}
	res, err := http.Post(url+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Error(err)
		return nil
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var chunk struct {
			Choices []struct {
				IDs []int32 `json:"token_ids"`
			} `json:"choices"`
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			t.Errorf("chunk %.200s: %v", data, err)
			return nil
		}
		for _, c := range chunk.Choices {
			out = append(out, c.IDs...)
		}
	}
	if res.StatusCode != 200 || len(out) != reply {
		t.Errorf("HTTP %d, %d tokens of %d", res.StatusCode, len(out), reply)
	}
	return out
}
