package sim

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write golden files anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// fixedResult has numbers that are easy to tell apart.
func fixedResult(p Policy, at float64) *Result {
	q := Quantiles{Count: 100, Mean: at, P50: at, P90: 2 * at, P95: 3 * at, P99: 4 * at, Max: 5 * at}
	r := &Result{
		Policy: p, Prefills: 2, Decodes: 3, Requests: 100, Seconds: 50, TTFT: q, ITL: q, TPOT: q, E2E: q, FollowUps: 90, HitRate: 0.9, Repeated: 0.95,
		GoodShare: 0.99, GoodPerSecond: 1.98, RequestsPerSecond: 2, PBusy: 0.25, DBusy: 0.5, DStreams: 4.5, PinnedMean: 12_345, PinnedGB: 3.2, ActiveMean: 98_760, KVRatio: 1.125,
		Arms: []ArmStat{{Arm: "local", Turns: 100, TTFT: q}}, Returns: []Count{{"done", "", 80}, {"dropped", "too-late", 3}},
	}
	r.ttft.add(at, 3)
	r.itl.add(at/10, 7)
	return r
}

func fixedReport() *Report {
	return &Report{
		Model: "M", GPU: "G", GPUs: 2, Layout: LayoutPerLayer, KVBytes: 1 << 18, Pool: 250_000, BlockSize: 16, TTL: 480, SLO: ReportSLO{2000, 50, 0.95},
		Workload: "100 requests", Seed: 1,
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	r := fixedReport()
	r.Results = []*Result{fixedResult(Cache, 250), fixedResult(Return, 150), fixedResult(Single, 75)}
	r.Results[2].Refused = 2
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.golden", b.String())
	b.Reset()
	if err := r.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, want := range []string{"<svg", "tarik sim: M on G", "pinned at D", "Time between tokens"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, bad := range []string{"<script", "<?xml", "src=", "NaN"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
}

func TestReportNames(t *testing.T) {
	t.Parallel()
	r := fixedReport()
	r.Results = []*Result{fixedResult(Return, 150)}
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "report.json.golden", string(b)+"\n")
}

func planOptions() (Options, PlanOptions) {
	o := DefaultOptions()
	o.Synthetic.Requests, o.Synthetic.Rate = 1500, 0.1
	o.SLO.TTFT = time.Second
	return o, PlanOptions{Policies: []Policy{Cache, Return, Single}, MaxEngines: 16, GPUs: 1, GPUCost: 2.5}
}

// A plan's fleets keep the SLO, and with one engine less none of them does.
func TestPlan(t *testing.T) {
	t.Parallel()
	o, p := planOptions()
	plan, err := Search(context.Background(), o, p)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Cheapest == nil || plan.Cheapest != plan.Fleets[0] || len(plan.Failed) > 0 {
		t.Fatalf("cheapest %+v, failed %v", plan.Cheapest, plan.Failed)
	}
	last := 0.0
	for _, f := range plan.Fleets {
		if f.Result.GoodShare < o.SLO.Share || f.Cost < last || f.Cost != 2.5*float64(f.Prefills+f.Decodes) {
			t.Errorf("%s %dP %dD: %.3f within the SLO, cost %v", f.Policy, f.Prefills, f.Decodes, f.Result.GoodShare, f.Cost)
		}
		last = f.Cost
		less := o
		less.Policy, less.Prefills, less.Decodes = f.Policy, f.Prefills-1, f.Decodes
		if f.Policy == Single {
			less.Prefills, less.Decodes = 0, f.Decodes-1
		}
		if less.Prefills+less.Decodes == 0 || f.Policy != Single && less.Prefills == 0 {
			continue
		}
		r, err := Run(less)
		if err != nil {
			t.Fatal(err)
		}
		if r.GoodShare >= o.SLO.Share {
			t.Errorf("%s %dP %dD keeps the SLO too", less.Policy, less.Prefills, less.Decodes)
		}
	}
	again, err := Search(context.Background(), o, p)
	if err != nil {
		t.Fatal(err)
	}
	name := func(p *Plan) (list []string) {
		for _, f := range p.Fleets {
			b, _ := json.Marshal(f)
			list = append(list, string(b))
		}
		return list
	}
	if diff := cmp.Diff(name(plan), name(again)); diff != "" {
		t.Errorf("two searches differ:\n%s", diff)
	}
}

func TestPlanWithoutSolution(t *testing.T) {
	t.Parallel()
	o, p := planOptions()
	p.MaxEngines, o.SLO.TTFT = 3, time.Millisecond
	plan, err := Search(context.Background(), o, p)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Cheapest != nil || len(plan.Failed) != 3 {
		t.Errorf("%+v", plan)
	}
	r := fixedReport()
	r.Plan = plan
	var b strings.Builder
	if err := r.WriteText(&b); err != nil || !strings.Contains(b.String(), "return: no fleet of at most 3 engines keeps the SLO") {
		t.Errorf("%v:\n%s", err, b.String())
	}
	if err := r.WriteHTML(&b); err != nil {
		t.Error(err)
	}
}

func TestPlanIsStopped(t *testing.T) {
	t.Parallel()
	o, p := planOptions()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Search(ctx, o, p); err == nil {
		t.Error("no error though it was stopped")
	}
}

func TestModels(t *testing.T) {
	t.Parallel()
	if len(Models) < 10 {
		t.Errorf("%d models", len(Models))
	}
	// KiB a token, from public configurations (docs/sim.md).
	for name, kib := range map[string]float64{
		"SmolLM2-135M": 22.5, "Qwen3-0.6B": 112, "Llama-3.1-8B": 128, "Qwen3-8B": 144, "Qwen3-32B": 256, "Llama-3.3-70B": 320, "Qwen3-235B-A22B": 188,
		"DeepSeek-V3": 68.6, "Kimi-K2.5": 68.6, "GLM-5": 97.8, "GLM-5-FP8": 60, "Qwen3.5-397B-A17B": 30,
	} {
		m, err := ModelNamed(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if off := m.KVBytes/1024/kib - 1; off > 0.003 || off < -0.003 {
			t.Errorf("%s: %.1f KiB a token, want %.1f", name, m.KVBytes/1024, kib)
		}
	}
	for _, m := range Models {
		if err := m.Validate(); err != nil {
			t.Errorf("%s: %v", m.Name, err)
		}
		for _, g := range GPUs {
			c := m.CostsOn(g, 8)
			if err := c.validate(); err != nil {
				t.Errorf("%s on %s: %v", m.Name, g.Name, err)
			}
		}
	}
	// The figures of the GPU alone come near what was measured on it.
	m, _ := ModelNamed("Qwen3-32B")
	g, _ := GPUNamed("H200")
	measured := m.CostsOn(g, 1)
	m.Costs = nil
	derived := m.CostsOn(g, 1)
	for _, c := range []struct {
		name      string
		got, want float64
	}{{"token", derived.TokenMs, measured.TokenMs}, {"pair", derived.PairMs, measured.PairMs}, {"step", derived.DecodeMs, measured.DecodeMs}, {"floor", derived.FloorMs, measured.FloorMs}} {
		if c.got < 0.8*c.want || c.got > 1.25*c.want {
			t.Errorf("%s: %v from the figures, %v measured", c.name, c.got, c.want)
		}
	}
}
