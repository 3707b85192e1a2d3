package sim

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func drawOptions(t *rapid.T) Options {
	o := DefaultOptions()
	o.Policy = rapid.SampledFrom(Policies).Draw(t, "policy")
	o.Prefills, o.Decodes = rapid.IntRange(1, 3).Draw(t, "P"), rapid.IntRange(1, 3).Draw(t, "D")
	o.BlockSize = rapid.SampledFrom([]int{1, 16, 128}).Draw(t, "block")
	o.PoolTokens = rapid.IntRange(2000, 60_000).Draw(t, "pool")
	o.BatchTokens = rapid.SampledFrom([]int{64, 512, 8192}).Draw(t, "batch")
	o.Streams = rapid.IntRange(1, 20).Draw(t, "streams")
	o.TTL = time.Duration(rapid.IntRange(1, 600).Draw(t, "ttl")) * time.Second
	o.Threshold = rapid.SampledFrom([]int{0, 64, 1000}).Draw(t, "threshold")
	o.Seed = rapid.Uint64().Draw(t, "seed")
	w := *o.Synthetic
	w.Requests = rapid.IntRange(1, 300).Draw(t, "requests")
	if rapid.Bool().Draw(t, "closed") {
		w.Rate, w.Concurrency = 0, rapid.IntRange(1, 30).Draw(t, "concurrency")
	} else {
		w.Rate = rapid.Float64Range(0.01, 5).Draw(t, "rate")
	}
	w.Hidden = rapid.SampledFrom([]float64{0, 0, 0.5, 1}).Draw(t, "hidden")
	w.Edited = rapid.SampledFrom([]float64{0, 0, 0.3}).Draw(t, "edited")
	w.MaxLen = rapid.IntRange(100, 40_000).Draw(t, "max len")
	w.Turns = Dist{"geometric", rapid.Float64Range(1, 20).Draw(t, "turns"), 0}
	w.Think = Dist{"exp", rapid.SampledFrom([]float64{0, 1, 60}).Draw(t, "think"), 0}
	o.Synthetic = &w
	return o
}

// Whatever the fleet and the load: every request ends, nothing stays in use or pinned, and sums agree.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := drawOptions(t)
		if err := o.Validate(); err != nil {
			t.Fatal(err)
		}
		s := newRun(o.cells()[0])
		s.play()
		pools := []*pool{}
		for i := range s.ps {
			pools = append(pools, &s.ps[i].pool)
			if p := &s.ps[i]; p.waiting.len()+p.ready.len()+p.returns.Len() > 0 || p.load.calls != 0 || p.stepping {
				t.Fatalf("P %d: %d wait, %d to be computed, %d returns, %d calls at the end", i, p.waiting.len(), p.ready.len(), p.returns.Len(), p.load.calls)
			}
		}
		for i := range s.ds {
			pools = append(pools, &s.ds[i].pool)
			if d := &s.ds[i]; d.waiting.len()+len(d.streams)+d.joining+d.appends != 0 {
				t.Fatalf("D %d: %d wait, %d streams, %d joining, %d appends at the end", i, d.waiting.len(), len(d.streams), d.joining, d.appends)
			}
		}
		var cached [2]int64
		for i := range s.convs {
			c := &s.convs[i]
			if c.busy != 0 || c.keeps || c.ret >= 0 || c.entries[0].users+c.entries[1].users != 0 {
				t.Fatalf("conversation %d at the end: %+v", i, c)
			}
			for k := range c.entries {
				cached[k] += int64(c.entries[k].tokens)
			}
		}
		var used, idle [2]int64
		for _, p := range pools {
			if p.used != p.idle || p.pinned != 0 || p.used < 0 || p.used > p.capacity+int64(p.block) {
				t.Fatalf("pool of side %d: used %d, idle %d, pinned %d of %d", p.side, p.used, p.idle, p.pinned, p.capacity)
			}
			used[p.side] += p.used
			idle[p.side] += p.idle
		}
		if used != cached || idle != cached {
			t.Fatalf("pools say %v, entries %v", used, cached)
		}
		r := result(o, []*run{s})
		if r.Requests+r.Refused < o.Synthetic.Requests {
			t.Fatalf("%d of %d requests, %d refused", r.Requests, o.Synthetic.Requests, r.Refused)
		}
		for _, share := range []float64{r.HitRate, r.Repeated, r.LocalShare, r.PulledShare, r.AppendedShare, r.GoodShare, r.PBusy, r.DBusy} {
			if !(share >= 0 && share <= 1.0001) {
				t.Fatalf("a share of %v", share)
			}
		}
		if r.HitRate > r.Repeated+1e-9 {
			t.Fatalf("hit rate %v above what repeats, %v", r.HitRate, r.Repeated)
		}
		if o.Policy == None && r.HitRate != 0 {
			t.Fatalf("hit rate %v without caches", r.HitRate)
		}
	})
}

func TestSameSeedSameReport(t *testing.T) {
	t.Parallel()
	o := DefaultOptions()
	o.Synthetic.Requests, o.Policy, o.Prefills, o.Decodes = 2000, Append, 3, 2
	one := func() string {
		r, err := Run(o)
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if diff := cmp.Diff(one(), one()); diff != "" {
		t.Errorf("two runs differ (-first +second):\n%s", diff)
	}
}

// Cells give the same picture as the whole, if every one is a fleet of its own size.
func TestCells(t *testing.T) {
	t.Parallel()
	o := DefaultOptions()
	o.Synthetic.Requests, o.Synthetic.Rate, o.Prefills, o.Decodes = 20_000, 0.08, 4, 4
	whole, err := Run(o)
	if err != nil {
		t.Fatal(err)
	}
	o.Cells = 2
	parts, err := Run(o)
	if err != nil {
		t.Fatal(err)
	}
	if parts.Requests != whole.Requests || parts.Prefills != 4 || parts.Decodes != 4 {
		t.Errorf("%d requests on %dP %dD, want %d on 4P 4D", parts.Requests, parts.Prefills, parts.Decodes, whole.Requests)
	}
	for _, c := range []struct {
		name      string
		got, want float64
		within    float64
	}{
		{"hit rate", parts.HitRate, whole.HitRate, 0.03},
		{"TTFT p50", parts.TTFT.P50, whole.TTFT.P50, 0.15 * whole.TTFT.P50},
		{"requests/s", parts.RequestsPerSecond, whole.RequestsPerSecond, 0.15 * whole.RequestsPerSecond},
	} {
		if math.Abs(c.got-c.want) > c.within {
			t.Errorf("%s: %v in two cells, %v in one", c.name, c.got, c.want)
		}
	}
}

// Policies keep their order where it must be so: an idle pair with long replies and a P that has seen the prompts.
func TestPoliciesDiffer(t *testing.T) {
	t.Parallel()
	got := map[Policy]*Result{}
	for _, p := range Policies {
		o := DefaultOptions()
		o.Policy = p
		o.Synthetic.Requests, o.Synthetic.Rate = 3000, 0.002
		o.Synthetic.Reply = Dist{"", 1000, 0}
		r, err := Run(o)
		if err != nil {
			t.Fatal(err)
		}
		got[p] = r
	}
	less := func(a, b Policy) {
		if got[a].TTFT.P50 >= got[b].TTFT.P50 {
			t.Errorf("TTFT p50 of %s is %.0f ms, of %s %.0f", a, got[a].TTFT.P50, b, got[b].TTFT.P50)
		}
	}
	less(Cache, None)
	less(Hold, Cache)
	less(Return, Hold)
	less(Single, Cache)
	if got[Hold].PinnedMean <= 10*got[Return].PinnedMean {
		t.Errorf("held handles pin %.0f tokens, returns %.0f", got[Hold].PinnedMean, got[Return].PinnedMean)
	}
	if h, r := got[Hold].KVRatio, got[Return].KVRatio; h < 2 || r > 1.05 || r <= 1 || got[Cache].KVRatio != 1 {
		t.Errorf("active and pinned over active: %.3f held, %.3f with returns, %.3f without", h, r, got[Cache].KVRatio)
	}
	if got[Return].HitRate < got[Cache].HitRate+0.05 {
		t.Errorf("hit rate %.3f with returns, %.3f without", got[Return].HitRate, got[Cache].HitRate)
	}
}

func TestStops(t *testing.T) {
	t.Parallel()
	o := DefaultOptions()
	o.Synthetic.Requests = 1e8
	calls := 0
	o.Progress = func(int) { calls++ }
	o.Stop = func() bool { return calls >= 3 }
	r, err := Run(o)
	if err != nil || r.Requests == 0 || calls != 3 {
		t.Errorf("%d requests, %d calls, %v", r.Requests, calls, err)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Options){
		"policy": func(o *Options) { o.Policy = "?" }, "no P": func(o *Options) { o.Prefills = 0 }, "block": func(o *Options) { o.BlockSize = 0 },
		"pool": func(o *Options) { o.PoolTokens = 3 }, "batch": func(o *Options) { o.BatchTokens = 1 }, "ttl": func(o *Options) { o.TTL = 0 },
		"link": func(o *Options) { o.Link.Posting = 2 }, "slo": func(o *Options) { o.SLO.Share = 0 }, "no workload": func(o *Options) { o.Synthetic = nil },
		"costs": func(o *Options) { o.Costs.TokenMs = math.NaN() }, "cells": func(o *Options) { o.Cells = 2 },
		"rate": func(o *Options) { o.Synthetic.Rate = math.Inf(1) }, "both": func(o *Options) { o.Synthetic.Concurrency = 1 },
		"requests": func(o *Options) { o.Synthetic.Requests = 0 }, "hidden": func(o *Options) { o.Synthetic.Hidden = 2 },
	} {
		o := DefaultOptions()
		change(&o)
		if _, err := Run(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestDist(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"1500", "exp:1500", "lognormal:1500,0.8", "uniform:100,2000", "geometric:12"} {
		d, err := ParseDist(text)
		if err != nil || d.String() != text {
			t.Errorf("ParseDist(%q) = %q, %v", text, d, err)
		}
		r := newSynthetic(Synthetic{}, 1).r
		sum := 0.0
		const n = 200_000
		for range n {
			v := d.draw(r)
			if !(v >= 0) {
				t.Fatalf("%s gave %v", text, v)
			}
			sum += v
		}
		if off := sum/n/d.Mean() - 1; math.Abs(off) > 0.02 {
			t.Errorf("%s: mean %.1f, want %.1f", text, sum/n, d.Mean())
		}
	}
	for _, text := range []string{"", "x", "exp:", "exp:1,2", "lognormal:5", "uniform:9,1", "geometric:0.5", "poisson:3", "-1", "NaN", "1e300", "lognormal:1,99"} {
		if d, err := ParseDist(text); err == nil {
			t.Errorf("ParseDist(%q) = %v, want an error", text, d)
		}
	}
}

func TestHistogram(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(0.02, 1e6), 1, 200).Draw(t, "values")
		var h, parts histogram
		var half histogram
		sum := 0.0
		for i, v := range values {
			h.add(v, 1)
			sum += v
			if i%2 == 0 {
				parts.add(v, 1)
			} else {
				half.add(v, 1)
			}
		}
		parts.merge(&half)
		if parts.buckets != h.buckets || parts.total != h.total || parts.max != h.max {
			t.Fatal("the parts are not the whole")
		}
		for _, q := range []float64{0.01, 0.5, 0.9, 1} {
			got := h.quantile(q)
			below := 0
			for _, v := range values {
				if v <= got*1.011 {
					below++
				}
			}
			if float64(below) < q*float64(len(values))-1e-9 {
				t.Fatalf("quantile(%v) = %v has %d of %d below it", q, got, below, len(values))
			}
		}
		if math.Abs(h.mean()-sum/float64(len(values))) > 1e-6*sum {
			t.Fatalf("mean %v", h.mean())
		}
	})
}

func TestEventsInOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var h events
		type key struct {
			at time.Duration
			n  int32
		}
		n, last := int32(0), key{-1, -1}
		floor := time.Duration(0)
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "add") {
				n++
				h.add(floor+time.Duration(rapid.IntRange(0, 9).Draw(t, "at")), arrival, n, 0)
				continue
			}
			e, ok := h.next()
			if !ok {
				continue
			}
			if e.at < last.at || e.at == last.at && e.id < last.n {
				t.Fatalf("event %d at %v after event %d at %v", e.id, e.at, last.n, last.at)
			}
			last, floor = key{e.at, e.id}, e.at
		}
	})
}
