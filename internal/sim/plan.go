package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Plan is the outcome of a search: the cheapest fleet of each policy that keeps the SLO, and what lies next to it.
type Plan struct {
	Fleets     []*Fleet `json:"fleets"`   // that keep the SLO and where no engine can be spared, by cost
	Cheapest   *Fleet   `json:"cheapest"` // null if none within the limits does
	Tried      int      `json:"tried"`
	MaxEngines int      `json:"max_engines"`
	Failed     []Policy `json:"policies_without"` // for which no fleet within the limits is enough
}

// Fleet is a number of engines with a policy.
type Fleet struct {
	Policy   Policy  `json:"policy"`
	Prefills int     `json:"prefills"`
	Decodes  int     `json:"decodes"`
	GPUs     int     `json:"gpus"`
	Cost     float64 `json:"cost"` // GPUs times the price of one
	Result   *Result `json:"result"`
}

// PlanOptions bound the search.
type PlanOptions struct {
	Policies   []Policy
	MaxEngines int
	GPUs       int     // of an engine
	GPUCost    float64 // any unit
	// Progress is called after each run; may be nil.
	Progress func(tried int, last Fleet)
}

// search finds the fleets of one policy.
type search struct {
	o     Options
	p     PlanOptions
	mu    *sync.Mutex
	tried *int
}

// try runs one fleet. It gives up as soon as too many requests have missed the SLO.
func (s *search) try(ctx context.Context, prefills, decodes int) (*Fleet, bool, error) {
	o := s.o
	o.Prefills, o.Decodes, o.giveUp = prefills, decodes, true
	o.Progress, o.Stop = nil, func() bool { return ctx.Err() != nil }
	r, err := Run(o)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, false, err
	}
	n := (prefills + decodes) * s.p.GPUs
	f := &Fleet{Policy: o.Policy, Prefills: prefills, Decodes: decodes, GPUs: n, Cost: float64(n) * s.p.GPUCost, Result: r}
	s.mu.Lock()
	*s.tried++
	if s.p.Progress != nil {
		s.p.Progress(*s.tried, *f)
	}
	s.mu.Unlock()
	return f, !r.gaveUp && r.Refused == 0 && r.GoodShare >= o.SLO.Share, nil
}

// least finds the smallest number in [low, high] for which try succeeds, taking it to succeed for all larger ones: first in
// growing strides, then by halves.
func least(low, high int, try func(int) (bool, error)) (int, bool, error) {
	bad, good := low-1, -1
	for at, stride := low, 1; ; at, stride = at+stride, 2*stride {
		at = min(at, high)
		ok, err := try(at)
		if err != nil {
			return 0, false, err
		}
		if ok {
			good = at
			break
		}
		bad = at
		if at == high {
			return 0, false, nil
		}
	}
	for good-bad > 1 {
		mid := (good + bad) / 2
		ok, err := try(mid)
		if err != nil {
			return 0, false, err
		}
		if ok {
			good = mid
		} else {
			bad = mid
		}
	}
	return good, true, nil
}

func (s *search) run(ctx context.Context) ([]*Fleet, error) {
	limit := s.p.MaxEngines
	seen := map[[2]int]*Fleet{}
	try := func(p, d int) (bool, error) {
		f, ok, err := s.try(ctx, p, d)
		if ok {
			seen[[2]int{p, d}] = f
		}
		return ok, err
	}
	if s.o.Policy == Single {
		n, ok, err := least(1, limit, func(n int) (bool, error) { return try(0, n) })
		if err != nil || !ok {
			return nil, err
		}
		return []*Fleet{seen[[2]int{0, n}]}, nil
	}
	if limit < 2 {
		return nil, nil
	}
	// The fewest D that are enough with as many P as there may be; then, from there on, the fewest P for each D.
	var found []*Fleet
	d, ok, err := least(1, limit-1, func(d int) (bool, error) { return try(min(limit-d, max(4*d, 8)), d) })
	if err != nil || !ok {
		return nil, err
	}
	best, high := limit, limit-d
	for misses := 0; d+1 <= best && misses < 3; d++ {
		p, ok, err := least(1, min(high, best-d), func(p int) (bool, error) { return try(p, d) })
		if err != nil {
			return nil, err
		}
		if !ok {
			misses++
			continue
		}
		if p < high || len(found) == 0 {
			found = append(found, seen[[2]int{p, d}])
			misses = 0
		} else {
			misses++
		}
		high, best = p, min(best, p+d+1)
	}
	return found, nil
}

// Search looks for the cheapest fleets. The workload must be one with a rate: open conversations that wait for their replies
// slow down with the fleet.
func Search(ctx context.Context, o Options, p PlanOptions) (*Plan, error) {
	switch {
	case len(p.Policies) == 0:
		return nil, errors.New("no policy to plan for")
	case p.MaxEngines < 1 || p.MaxEngines > 4096 || p.GPUs < 1 || !(p.GPUCost > 0):
		return nil, errors.New("want 1 to 4096 engines, at least one GPU for each, and a price above 0")
	case o.Synthetic != nil && o.Synthetic.Concurrency > 0:
		return nil, errors.New("a plan needs a load that does not depend on the fleet: a rate of conversations, not a number of open ones")
	}
	plan := &Plan{MaxEngines: p.MaxEngines}
	var mu sync.Mutex
	found := make([][]*Fleet, len(p.Policies))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, policy := range p.Policies {
		s := search{o: o, p: p, mu: &mu, tried: &plan.Tried}
		s.o.Policy, s.o.Prefills, s.o.Decodes, s.o.Cells = policy, 1, 1, 1
		if err := s.o.Validate(); err != nil {
			return nil, err
		}
		g.Go(func() (err error) {
			found[i], err = s.run(ctx)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, list := range found {
		if len(list) == 0 {
			plan.Failed = append(plan.Failed, p.Policies[i])
		}
		plan.Fleets = append(plan.Fleets, list...)
	}
	slices.SortStableFunc(plan.Fleets, func(a, b *Fleet) int {
		return cmp.Or(cmp.Compare(a.Cost, b.Cost), cmp.Compare(b.Result.GoodShare, a.Result.GoodShare))
	})
	if len(plan.Fleets) > 0 {
		plan.Cheapest = plan.Fleets[0]
	}
	return plan, nil
}

func (p *Plan) writeText(w io.Writer) error {
	t := table{{"policy", "P", "D", "GPUs", "cost", "within SLO", "requests/s", "TTFT p50", "p95 ms", "TPOT p95 ms", "hit rate", "P busy", "D busy"}}
	for _, f := range p.Fleets {
		r := f.Result
		prefills := fmt.Sprint(f.Prefills)
		if f.Policy == Single {
			prefills = "-"
		}
		t = append(t, []string{
			string(f.Policy), prefills, fmt.Sprint(f.Decodes), fmt.Sprint(f.GPUs), number(f.Cost), percent(r.GoodShare), number(r.RequestsPerSecond),
			number(r.TTFT.P50), number(r.TTFT.P95), number(r.TPOT.P95), percent(r.HitRate), percent(r.PBusy), percent(r.DBusy),
		})
	}
	if len(p.Fleets) > 0 {
		if err := t.write(w); err != nil {
			return err
		}
	}
	for _, policy := range p.Failed {
		if _, err := fmt.Fprintf(w, "%s: no fleet of at most %d engines keeps the SLO\n", policy, p.MaxEngines); err != nil {
			return err
		}
	}
	if p.Cheapest == nil {
		return nil
	}
	_, err := fmt.Fprintf(w, "\ncheapest: %s with %d P and %d D, %d GPUs (%d fleets tried)\n", p.Cheapest.Policy, p.Cheapest.Prefills, p.Cheapest.Decodes, p.Cheapest.GPUs, p.Tried)
	return err
}
