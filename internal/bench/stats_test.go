package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

func TestQuantile(t *testing.T) {
	t.Parallel()
	f := func(q, want float64, values ...float64) {
		t.Helper()
		slices.Sort(values)
		if got := quantile(values, q); math.Abs(got-want) > 1e-12 {
			t.Errorf("quantile(%v, %g) = %g, want %g", values, q, got, want)
		}
	}
	f(0.5, 2, 3, 1, 2)
	f(0.5, 2.5, 4, 3, 1, 2)
	f(0, 1, 3, 1, 2)
	f(1, 3, 3, 1, 2)
	f(0.25, 1.75, 1, 2, 3, 4)
	f(0.99, 7, 7)
	if got := quantile(nil, 0.5); !math.IsNaN(got) {
		t.Errorf("quantile of nothing = %g, want NaN", got)
	}
}

// Quantiles lie within the values and do not fall.
func TestQuantileProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(0, 1e6), 1, 50).Draw(t, "values")
		slices.Sort(values)
		last := values[0]
		for q := 0.0; q <= 1; q += 0.05 {
			v := quantile(values, q)
			if v < last || v > values[len(values)-1] {
				t.Fatalf("quantile(%v, %g) = %g after %g", values, q, v, last)
			}
			last = v
		}
	})
}

// The median of a resample is that of its values, sorted.
func TestMediansOfResamples(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := clusters(rapid.SliceOfN(rapid.SliceOfN(rapid.Float64Range(0, 10), 0, 5), 1, 8).Draw(t, "clusters"))
		pick := rapid.SliceOfN(rapid.IntRange(0, len(c)-1), 1, 12).Draw(t, "pick")
		var values []float64
		for _, i := range pick {
			values = append(values, c[i]...)
		}
		got, want := newMedians(c).of(pick, c), median(values)
		if math.Abs(got-want) > 1e-12 || math.IsNaN(got) != math.IsNaN(want) {
			t.Fatalf("median of %v picked from %v = %g, want %g", pick, c, got, want)
		}
	})
}

// The tails are those of Student's quantiles: 2.5706 with 5 degrees of freedom, 2.0452 with 29.
func TestTail(t *testing.T) {
	t.Parallel()
	want := []float64{
		math.Erfc(math.Sqrt(6.0/5)*2.5706/math.Sqrt2) / 2, math.Erfc(math.Sqrt(30.0/29)*2.0452/math.Sqrt2) / 2, 0.025,
	}
	got := []float64{tail(6), tail(30), tail(1e6)}
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0.02, 0)); diff != "" {
		t.Errorf("tail of 6, 30, 10⁶ (-want +got):\n%s", diff)
	}
}

// sample is a skewed distribution such as latencies have, with conversations that are slow as a whole.
func sample(r *rand.Rand, conversations, turns int, scale float64) clusters {
	c := make(clusters, conversations)
	for i := range c {
		slow := math.Exp(0.2 * r.NormFloat64())
		for range turns {
			c[i] = append(c[i], scale*slow*math.Exp(0.3*r.NormFloat64()))
		}
	}
	return c
}

// TestIntervalsHoldTheTruth draws from a distribution whose median is known. 95 % of the intervals should hold it, and
// 5 % of equal arms may be called different. With six conversations the interval of one median is still too narrow: six
// values say little about their middle.
func TestIntervalsHoldTheTruth(t *testing.T) {
	t.Parallel()
	const trials, draws = 200, 300
	for _, n := range []int{6, 15} {
		r := rand.New(rand.NewPCG(7, uint64(n)))
		held, equal, found := 0, 0, 0
		for range trials {
			a, b, c := sample(r, n, 2, 100), sample(r, n, 2, 100), sample(r, n, 2, 200)
			if ci, ok := a.medianInterval(draws, r); ok && ci.covers(100) {
				held++
			}
			if _, ci, ok := (paired{a, b}).ratio(draws, r); ok && ci.covers(1) {
				equal++
			}
			if _, ci, ok := (paired{c, b}).ratio(draws, r); ok && ci.Low > 1 {
				found++
			}
		}
		t.Logf("%d conversations: median held %d, equal %d, twice found %d of %d", n, held, equal, found, trials)
		enough := trials * 92 / 100
		if n < 10 {
			held += trials * 6 / 100
		}
		if min(held, equal) < enough {
			t.Errorf("%d conversations: the interval of the median held the truth in %d of %d, that of the ratio in %d; want 95 %%", n, held, trials, equal)
		}
		if n >= 12 && found < trials*95/100 {
			t.Errorf("%d conversations: a factor of two was found in %d of %d", n, found, trials)
		}
	}
}

// What makes one conversation slow on both arms cancels out: arms of very different conversations that differ by 5 %
// throughout are told apart.
func TestPairingFindsSmallDifferences(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 3))
	var p paired
	for range 12 {
		v := 100 + 900*r.Float64()
		p.base = append(p.base, []float64{v})
		p.arm = append(p.arm, []float64{0.95 * v})
	}
	ratio, ci, ok := p.ratio(1000, r)
	if !ok || math.Abs(ratio-0.95) > 1e-9 || math.Abs(ci.High-0.95) > 1e-9 {
		t.Errorf("ratio = %g %v %v, want exactly 0.95 in every resample", ratio, ci, ok)
	}
	if d, ci, ok := p.difference(1000, r); !ok || d >= 0 || ci.High >= 0 {
		t.Errorf("difference = %g %v %v, want below 0", d, ci, ok)
	}
}

func TestTooFewForAnInterval(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 1))
	if ci, ok := sample(r, minConversations-1, 50, 1).medianInterval(100, r); ok {
		t.Errorf("interval of five conversations = %v, want none however many turns they have", ci)
	}
	if s := summarize(nil, 100, r); s != nil {
		t.Errorf("summary of nothing = %v, want nil", s)
	}
	s := summarize(sample(r, 10, 5, 100), 100, r)
	if s.P95 == nil || s.P99 != nil || s.P50Interval == nil || s.Values != 50 || s.Conversations != 10 {
		t.Errorf("summary of 50 values = %+v, want p95, no p99, an interval", s)
	}
}
