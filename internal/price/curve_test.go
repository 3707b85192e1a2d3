package price

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func msDuration(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

func (c Cost) of(n, ctx int) float64 {
	return c.Base + c.PerToken*float64(n) + c.PerContext*float64(n)*(float64(ctx)+float64(n)/2)
}

// noisy scatters a cost by sd (relative), and makes one call in twenty ten times as long.
func noisy(r *rand.Rand, ms, sd float64) time.Duration {
	ms *= math.Exp(sd * r.NormFloat64())
	if r.Float64() < 0.05 {
		ms *= 10
	}
	return msDuration(ms)
}

func drawCost(t *rapid.T, name string) Cost {
	perToken := rapid.Float64Range(0.005, 5).Draw(t, name+" per token")
	return Cost{
		Base: rapid.Float64Range(1, 150).Draw(t, name+" base"), PerToken: perToken,
		PerContext: perToken * rapid.Float64Range(0, 1e-4).Draw(t, name+" per context"),
	}
}

func TestZeroModels(t *testing.T) {
	t.Parallel()
	var m Models
	for name, e := range map[string]Estimate{
		"recompute": m.Recompute(2000, 0), "pull": m.Pull(2000), "handoff": m.Handoff(2000), "append": m.Append(2000, 0), "stall": m.Stall(2000),
	} {
		if !(e.Ms > 0) || !math.IsInf(e.Err, 1) {
			t.Errorf("%s(2000) of models that know nothing = %+v, want a guess with infinite Err", name, e)
		}
	}
	if got := m.Known(); got != (Trust{}) {
		t.Errorf("Known() = %+v of models that know nothing", got)
	}
	if got := m.Pull(0); got != (Estimate{}) {
		t.Errorf("Pull(0) = %+v, want nothing", got)
	}
}

func TestSeed(t *testing.T) {
	t.Parallel()
	var m Models
	c := Costs{Recompute: Cost{48, 0.1062, 3.1e-6}, Pull: Cost{5, 0.031, 0}, Handoff: Cost{40, 0.02, 0}}
	m.Seed(c, 0.25)
	got := m.Recompute(8192, 0)
	if want := c.Recompute.of(8192, 0); math.Abs(got.Ms-want) > 1e-9*want || math.Abs(got.Err-want/4) > 1e-9*want {
		t.Errorf("Recompute(8192, 0) = %+v, want %.3f ± a quarter", got, want)
	}
	if k := m.Known(); k != (Trust{Recompute: true, Pull: true, Handoff: true}) {
		t.Errorf("Known() = %+v", k)
	}
	if a := m.Append(512, 8192); math.IsInf(a.Err, 0) || a.Ms < 60 || a.Ms > 160 {
		t.Errorf("Append(512, 8192) = %+v, want P's price, loosely", a)
	}
	m.Seed(Costs{Recompute: Cost{Base: math.NaN()}, Pull: Cost{Base: -1}, Handoff: Cost{Base: math.Inf(1)}}, 1)
	if again := m.Recompute(8192, 0); again != got {
		t.Errorf("a seed of nonsense changed Recompute to %+v", again)
	}
}

// Whatever is observed, estimates are finite, not negative, and grow with n.
func TestEstimatesGrow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var m Models
		if rapid.Bool().Draw(t, "seeded") {
			m.Seed(Costs{Recompute: drawCost(t, "seed"), Pull: drawCost(t, "pull")}, rapid.Float64Range(0, 2).Draw(t, "rel"))
		}
		for range rapid.IntRange(0, 60).Draw(t, "observations") {
			n, ctx := rapid.IntRange(-5, 1_000_000).Draw(t, "n"), rapid.IntRange(-5, 1_000_000).Draw(t, "ctx")
			took := time.Duration(rapid.Int64Range(-1e9, 1e13).Draw(t, "took"))
			switch rapid.IntRange(0, 5).Draw(t, "which") {
			case 0:
				m.ObserveRecompute(n, ctx, took)
			case 1:
				m.ObservePull(n, took)
			case 2:
				m.ObserveHandoff(n, took)
			case 3:
				m.ObserveAppend(n, ctx, took)
			case 4:
				m.ObserveStall(n, took)
			case 5:
				m.ObservePullCall(n, n/3, ctx, took)
			}
		}
		ctx, n := rapid.IntRange(0, 200_000).Draw(t, "at ctx"), rapid.IntRange(1, 100_000).Draw(t, "at n")
		for name, f := range map[string]func(int) Estimate{
			"recompute": func(n int) Estimate { return m.Recompute(n, ctx) }, "pull": m.Pull, "handoff": m.Handoff,
			"append": func(n int) Estimate { return m.Append(n, ctx) }, "stall": m.Stall,
		} {
			a, b := f(n), f(2*n)
			if !(a.Ms >= 0) || !(b.Ms >= a.Ms) || math.IsInf(b.Ms, 0) || !(a.Err >= 0) {
				t.Fatalf("%s: %+v for %d tokens, %+v for twice as many", name, a, n, b)
			}
		}
	})
}

// world draws true costs: bases of 1 to 150 ms, 0.005 to 5 ms per token, log-uniformly.
func world(r *rand.Rand) Cost {
	perToken := 0.005 * math.Pow(1000, r.Float64())
	return Cost{Base: math.Pow(150, r.Float64()), PerToken: perToken, PerContext: perToken * 1e-4 * r.Float64()}
}

// Fifty calls of which one in twenty takes ten times as long suffice to be within a tenth of the truth, whether the
// curve starts from nothing or from numbers that are four times too high or too low.
func TestConverges(t *testing.T) {
	t.Parallel()
	misses, total, worst := 0, 0, 0.0
	for seed := range uint64(600) {
		r := rand.New(rand.NewPCG(seed, 1))
		truth := world(r)
		var m Models
		if seed%3 > 0 {
			off := math.Pow(4, 2*r.Float64()-1)
			m.Seed(Costs{Recompute: Cost{truth.Base * off, truth.PerToken * off, truth.PerContext * off}}, 0.5)
		}
		for range 50 {
			n, ctx := 50+r.IntN(8000), r.IntN(20_000)
			m.ObserveRecompute(n, ctx, noisy(r, truth.of(n, ctx), 0.05))
		}
		for _, at := range [][2]int{{500, 5000}, {2000, 0}, {4000, 10_000}, {8000, 15_000}} {
			off := math.Abs(m.Recompute(at[0], at[1]).Ms/truth.of(at[0], at[1]) - 1)
			worst = max(worst, off)
			total++
			if off > 0.1 {
				misses++
			}
		}
	}
	t.Logf("%d of %d estimates off by more than a tenth, the worst by %.3f", misses, total, worst)
	if misses*100 > total || worst > 0.5 {
		t.Errorf("%d of %d estimates are off by more than a tenth, the worst by %.3f", misses, total, worst)
	}
}

// A change of speed by three is followed within thirty calls, outliers or not.
func TestFollowsSpeed(t *testing.T) {
	t.Parallel()
	misses, total, worst := 0, 0, 0.0
	for seed := range uint64(600) {
		r := rand.New(rand.NewPCG(seed, 2))
		truth := world(r)
		var m Models
		see := func(calls int, factor float64) {
			for range calls {
				n, ctx := 50+r.IntN(8000), r.IntN(20_000)
				m.ObserveRecompute(n, ctx, noisy(r, factor*truth.of(n, ctx), 0.05))
			}
		}
		see(20+r.IntN(300), 1)
		factor := []float64{3, 1. / 3}[seed%2]
		see(30, factor)
		for _, at := range [][2]int{{1000, 5000}, {4000, 10_000}} {
			off := math.Abs(m.Recompute(at[0], at[1]).Ms/(factor*truth.of(at[0], at[1])) - 1)
			worst = max(worst, off)
			total++
			if off > 0.15 {
				misses++
			}
		}
	}
	t.Logf("%d of %d estimates off by more than 15 %%, the worst by %.3f", misses, total, worst)
	if misses*100 > total || worst > 0.5 {
		t.Errorf("%d of %d estimates are off by more than 15 %%, the worst by %.3f", misses, total, worst)
	}
}

// A curve is not trusted while what comes in lies far outside its scatter, and is again once it fits.
func TestTrust(t *testing.T) {
	t.Parallel()
	var m Models
	r := rand.New(rand.NewPCG(3, 3))
	truth := Cost{50, 0.1, 3e-6}
	see := func(factor float64) {
		n := 50 + r.IntN(8000)
		m.ObserveRecompute(n, 0, msDuration(factor*truth.of(n, 0)*math.Exp(0.05*r.NormFloat64())))
	}
	for range 100 {
		see(1)
	}
	before := m.Recompute(4000, 0)
	if !m.Trusted().Recompute {
		t.Fatal("not trusted after a hundred calls that fit")
	}
	see(10)
	if !m.Trusted().Recompute {
		t.Error("not trusted after one outlier")
	}
	for range 4 {
		see(1)
	}
	for range 4 {
		see(5)
	}
	if m.Trusted().Recompute {
		t.Error("still trusted after four calls in a row of five times the price")
	}
	if e := m.Recompute(4000, 0); e.Err < 5*before.Err {
		t.Errorf("Err is %.1f ms while nothing fits, was %.1f", e.Err, before.Err)
	}
	for range 20 {
		see(5)
	}
	if !m.Trusted().Recompute {
		t.Error("not trusted though it fits again")
	}
}

// Err is honest: the truth lies within three of it, nearly always.
func TestErrCovers(t *testing.T) {
	t.Parallel()
	outside, total := 0, 0
	r := rand.New(rand.NewPCG(4, 4))
	for range 200 {
		truth := Cost{10 + 100*r.Float64(), 0.05 + r.Float64(), 1e-5 * r.Float64()}
		var m Models
		for i := range 200 {
			n, ctx := 50+r.IntN(8000), r.IntN(20_000)
			m.ObserveRecompute(n, ctx, noisy(r, truth.of(n, ctx), 0.1))
			if i%20 == 19 {
				e := m.Recompute(3000, 8000)
				total++
				if math.Abs(e.Ms-truth.of(3000, 8000)) > 3*e.Err+0.02*e.Ms {
					outside++
				}
			}
		}
	}
	t.Logf("outside: %d of %d", outside, total)
	if outside*20 > total {
		t.Errorf("the truth is outside three Err in %d of %d cases", outside, total)
	}
}

func TestObserveAllocatesNothing(t *testing.T) {
	var m Models
	i := 0
	if n := testing.AllocsPerRun(100, func() {
		i++
		m.ObserveRecompute(100+i, 1000, time.Millisecond)
		m.ObservePull(100+i, time.Millisecond)
		m.ObserveAppend(100+i, 1000, time.Millisecond)
	}); n != 0 {
		t.Errorf("%v allocations per observation", n)
	}
}

func BenchmarkObserve(b *testing.B) {
	var m Models
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		m.ObserveRecompute(100+i%5000, i%20_000, time.Duration(50+i%400)*time.Millisecond)
	}
}

func BenchmarkDecide(b *testing.B) {
	var m Models
	m.Seed(Costs{Recompute: Cost{48, 0.1062, 3.1e-6}, Pull: Cost{5, 0.031, 0}, Handoff: Cost{40, 0.02, 0}}, 0.1)
	b.ReportAllocs()
	for b.Loop() {
		m.Decide(Situation{Prompt: 9000, PHas: 8000, Held: 8400, DHas: 8400, CanPull: true, CanAppend: true, Streams: 4, StallWeight: 0.1})
	}
}
