package price

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func drawSituation(t *rapid.T) Situation {
	s := Situation{Prompt: rapid.IntRange(1, 100_000).Draw(t, "prompt")}
	part := func(name string) int { return rapid.IntRange(0, 2*s.Prompt).Draw(t, name) }
	s.PHas, s.Held, s.DHas = part("p has"), part("held"), part("d has")
	s.QueueMs = rapid.Float64Range(0, 1000).Draw(t, "queue")
	s.DQueueMs = rapid.Float64Range(0, 100).Draw(t, "d queue")
	s.RenderMs = rapid.Float64Range(0, 50).Draw(t, "render")
	s.Streams = rapid.IntRange(0, 64).Draw(t, "streams")
	s.CanPull, s.CanAppend = rapid.Bool().Draw(t, "can pull"), rapid.Bool().Draw(t, "can append")
	s.Threshold = rapid.SampledFrom([]int{0, 64, 1024}).Draw(t, "threshold")
	s.StallLimit = rapid.SampledFrom([]float64{0, 50, 500}).Draw(t, "stall limit")
	s.StallWeight = rapid.SampledFrom([]float64{0, 0.05, 1}).Draw(t, "stall weight")
	s.AppendLimit = rapid.SampledFrom([]int{0, 512}).Draw(t, "append limit")
	return s
}

// armCosts are the true costs of the arms, as the model of the package comment defines them.
func armCosts(c Costs, s Situation) map[string]float64 {
	s.tidy()
	h := c.Handoff.of(s.Prompt-s.DHas, 0)
	first := local
	if s.PHas == 0 {
		first = recompute
	}
	has := max(s.PHas, s.Held)
	return map[string]float64{
		first:     s.QueueMs + s.DQueueMs + c.Recompute.of(s.Prompt-s.PHas, s.PHas) + h,
		pull:      s.QueueMs + s.DQueueMs + s.RenderMs + c.Pull.of(max(s.Held-s.PHas, 0), 0) + c.Recompute.of(s.Prompt-has, has) + h,
		appending: s.DQueueMs + c.Append.of(s.Prompt-s.DHas, s.DHas) + s.StallWeight*float64(s.Streams)*c.Stall.of(s.Prompt-s.DHas, 0),
	}
}

func drawCosts(t *rapid.T) Costs {
	c := Costs{Recompute: drawCost(t, "recompute"), Pull: drawCost(t, "pull"), Handoff: drawCost(t, "handoff"), Append: drawCost(t, "append"), Stall: drawCost(t, "stall")}
	c.Pull.PerContext, c.Handoff.PerContext = 0, 0
	return c
}

// Exact prices give the choice that hindsight would make, and an arm that is out of the question is never chosen.
func TestDecideIsOptimalWithExactPrices(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var m Models
		c := drawCosts(t)
		m.Seed(c, 0)
		s := drawSituation(t)
		d := m.Decide(s)
		truth := armCosts(c, s)
		least := math.Inf(1)
		for _, a := range d.Candidates {
			if want, ok := truth[a.Arm]; !ok || a.Not == "" && math.Abs(a.Ms-want) > 1e-4*want+0.02*want {
				t.Fatalf("%s costs %.3f ms, want %.3f", a.Arm, a.Ms, want)
			}
			if a.Not == "" {
				least = min(least, truth[a.Arm])
			}
		}
		if got := d.Chosen(); got.Not != "" || truth[d.Arm] > 1.001*least {
			t.Fatalf("chose %s (%s) at %.3f ms, least is %.3f: %+v", d.Arm, d.Why, truth[d.Arm], least, d)
		}
	})
}

// Whatever has been observed, a decision names a possible arm, and exactly one of local and recompute is offered.
func TestDecideIsPossible(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var m Models
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 5))
		if rapid.Bool().Draw(t, "seeded") {
			m.Seed(drawCosts(t), rapid.Float64Range(0, 2).Draw(t, "rel"))
		}
		for range rapid.IntRange(1, 80).Draw(t, "turns") {
			s := drawSituation(t)
			d := m.Decide(s)
			seen := map[string]int{}
			for _, c := range d.Candidates {
				seen[c.Arm]++
			}
			first := recompute
			if min(s.PHas, s.Prompt-1) > 0 {
				first = local
			}
			if diff := cmp.Diff(map[string]int{first: 1, pull: 1, appending: 1}, seen); diff != "" {
				t.Fatalf("candidates (-want +got):\n%s", diff)
			}
			c := d.Chosen()
			if c.Not != "" || c.Arm == pull && !s.CanPull || c.Arm == appending && !s.CanAppend || d.Why == "" {
				t.Fatalf("chose %+v in %+v", c, s)
			}
			took := msDuration(1000 * r.Float64())
			switch r.IntN(4) {
			case 0:
				m.ObserveRecompute(r.IntN(9000), r.IntN(9000), took)
			case 1:
				m.ObservePull(r.IntN(9000), took)
			case 2:
				m.ObserveHandoff(r.IntN(9000), took)
			case 3:
				m.ObserveAppend(r.IntN(9000), r.IntN(9000), took)
			}
		}
	})
}

// Without any knowledge: local if P has as much as could be pulled, else pull; never append.
func TestDecideKnowingNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		s    Situation
		arm  string
	}{
		{"P has all", Situation{Prompt: 9000, PHas: 8000, Held: 8000, DHas: 8000, CanPull: true, CanAppend: true}, local},
		{"P lacks the reply", Situation{Prompt: 9000, PHas: 7000, Held: 8000, DHas: 8000, CanPull: true, CanAppend: true}, pull},
		{"P has nothing", Situation{Prompt: 9000, Held: 8000, DHas: 8000, CanPull: true, CanAppend: true}, pull},
		{"nobody has anything", Situation{Prompt: 9000, CanPull: true, CanAppend: true}, recompute},
		{"no handle", Situation{Prompt: 9000, PHas: 500, DHas: 8000, CanAppend: true}, local},
		{"below the threshold", Situation{Prompt: 9000, PHas: 7960, Held: 8000, DHas: 8000, CanPull: true, Threshold: 64}, local},
		{"nonsense", Situation{Prompt: -1, PHas: 1 << 40, Held: -7, QueueMs: math.NaN(), RenderMs: math.Inf(1), CanPull: true}, recompute},
	} {
		var m Models
		if d := m.Decide(c.s); d.Arm != c.arm {
			t.Errorf("%s: chose %s (%s), want %s: %+v", c.name, d.Arm, d.Why, c.arm, d.Candidates)
		}
	}
}

// A gain smaller than its uncertainty moves nothing.
func TestDecideMovesLessWhenUnsure(t *testing.T) {
	t.Parallel()
	c := Costs{Recompute: Cost{50, 0.1, 3e-6}, Pull: Cost{5, 0.05, 0}, Handoff: Cost{40, 0.01, 0}}
	s := Situation{Prompt: 9000, PHas: 7800, Held: 8000, DHas: 8000, CanPull: true} // 200 tokens: about 24 ms against 15
	var sure, unsure Models
	sure.Seed(c, 0.01)
	unsure.Seed(c, 0.8)
	if d := sure.Decide(s); d.Arm != pull || d.Why != WhyLeast {
		t.Errorf("sure of its prices: %s (%s), want pull", d.Arm, d.Why)
	}
	if d := unsure.Decide(s); d.Arm != local || d.Why != WhyMoves {
		t.Errorf("unsure of its prices: %s (%s), want local", d.Arm, d.Why)
	}
}

// The other streams on D bear a part of an append's price, and may forbid it.
func TestDecideMindsOtherStreams(t *testing.T) {
	t.Parallel()
	// Figures of one H200 with a model of 32 thousand million parameters.
	c := Costs{
		Recompute: Cost{48, 0.1, 3.1e-6}, Pull: Cost{5, 0.031, 0}, Handoff: Cost{38, 0.03, 0},
		Append: Cost{60, 0.1, 3.1e-6}, Stall: Cost{10, 0.13, 0},
	}
	s := Situation{Prompt: 25_088, PHas: 24_576, DHas: 24_576, CanAppend: true, Streams: 16}
	for _, k := range []struct {
		name          string
		weight, limit float64
		arm, not      string
	}{
		{"nobody minds", 0, 0, appending, ""},
		{"a stream's wait counts as ours", 1, 0, local, ""},
		{"no gap above 50 ms", 0, 50, local, NotBearable},
		{"no gap above 100 ms", 0, 100, appending, ""},
	} {
		var m Models
		m.Seed(c, 0.05)
		s.StallWeight, s.StallLimit = k.weight, k.limit
		d := m.Decide(s)
		if d.Arm != k.arm || d.Candidates[2].Not != k.not {
			t.Errorf("%s: %s (%s), want %s: %+v", k.name, d.Arm, d.Why, k.arm, d.Candidates)
		}
	}
}

// regret plays turns against a world whose prices drift and jump, starting from seeds that are wrong by up to a
// factor of four each, and returns the time lost against hindsight as a share of the least possible.
func regret(seed uint64, turns int, seeded bool) float64 {
	r := rand.New(rand.NewPCG(seed, 6))
	truth := Costs{
		Recompute: Cost{48, 0.106, 3.1e-6}, Pull: Cost{5, 0.031, 0}, Handoff: Cost{38, 0.02, 0},
		Append: Cost{60, 0.11, 3.3e-6}, Stall: Cost{10, 0.12, 3e-6},
	}
	scale := func(c Cost, f float64) Cost { return Cost{c.Base * f, c.PerToken * f, c.PerContext * f} }
	off := func() float64 { return math.Exp(math.Log(4) * (2*r.Float64() - 1)) }
	var m Models
	if seeded {
		m.Seed(Costs{
			Recompute: scale(truth.Recompute, off()), Pull: scale(truth.Pull, off()), Handoff: scale(truth.Handoff, off()),
			Append: scale(truth.Append, off()), Stall: scale(truth.Stall, off()),
		}, 0.7)
	}
	drift := [5]float64{1, 1, 1, 1, 1}
	see := func(ms float64) float64 {
		ms *= math.Exp(0.1 * r.NormFloat64())
		if r.IntN(50) == 0 {
			ms *= 5
		}
		return ms
	}
	var spent, least float64
	for i := range turns {
		for k := range drift {
			drift[k] = min(max(drift[k]*math.Exp(0.01*r.NormFloat64()), 0.25), 4)
			if r.IntN(4000) == 0 {
				drift[k] = off()
			}
		}
		now := Costs{
			scale(truth.Recompute, drift[0]), scale(truth.Pull, drift[1]), scale(truth.Handoff, drift[2]),
			scale(truth.Append, drift[3]), scale(truth.Stall, drift[4]),
		}
		load := 1 + math.Sin(float64(i)/300) // queues fill and drain
		hist := 500 + r.IntN(30_000)
		s := Situation{
			Prompt: hist + 20 + r.IntN(3000), CanPull: r.IntN(10) > 0, CanAppend: r.IntN(3) > 0, Threshold: 64,
			QueueMs: 300 * load * r.Float64(), RenderMs: 5 + 20*r.Float64(), Streams: int(10 * load * r.Float64()), StallWeight: 0.1,
		}
		s.Held, s.DHas = hist, hist
		switch r.IntN(3) {
		case 0:
			s.PHas = hist - 20 - r.IntN(min(hist-19, 2000))
		case 1:
			s.PHas = 0
		case 2:
			s.PHas = hist
		}
		if r.IntN(4) == 0 {
			s.DHas = 0
		}
		d := m.Decide(s)
		costs := armCosts(now, s)
		best := math.Inf(1)
		for _, c := range d.Candidates {
			if c.Not == "" || c.Not == NotKnown {
				best = min(best, costs[c.Arm])
			}
		}
		spent, least = spent+costs[d.Arm], least+best
		n, h := s.Prompt-s.PHas, s.Prompt-s.DHas
		switch d.Arm {
		case local, recompute:
			m.ObserveRecompute(n, s.PHas, msDuration(see(now.Recompute.of(n, s.PHas))))
		case pull:
			rest := s.Prompt - max(s.Held, s.PHas)
			m.ObservePullCall(s.Held-s.PHas, rest, s.Held, msDuration(see(now.Recompute.of(rest, s.Held)+now.Pull.of(s.Held-s.PHas, 0))))
		case appending:
			m.ObserveAppend(h, s.DHas, msDuration(see(now.Append.of(h, s.DHas))))
			if s.Streams > 0 {
				m.ObserveStall(h, msDuration(see(now.Stall.of(h, 0))))
			}
			continue
		}
		m.ObserveHandoff(h, msDuration(see(now.Handoff.of(h, 0))))
	}
	return spent/least - 1
}

// Ten thousand turns on prices that are wrong at first, drift and jump lose at most a twentieth of the time.
func TestRegret(t *testing.T) {
	t.Parallel()
	for _, seeded := range []bool{true, false} {
		sum, worst := 0.0, 0.0
		const worlds = 12
		for seed := range uint64(worlds) {
			lost := regret(seed, 10_000, seeded)
			sum += lost
			worst = max(worst, lost)
		}
		t.Logf("seeded=%v: regret %.2f %% on average, %.2f %% at worst", seeded, 100*sum/worlds, 100*worst)
		if worst > 0.05 {
			t.Errorf("seeded=%v: regret of %.2f %% at worst, want at most 5 %%", seeded, 100*worst)
		}
	}
}
