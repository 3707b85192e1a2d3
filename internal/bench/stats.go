package bench

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// minConversations is how many conversations an interval needs. Below six, even if one arm were faster in every
// single one of them, a sign test could not call that a difference at 95 %.
const minConversations = 6

// quantile is the q-quantile of sorted values by linear interpolation between the two nearest (type 7 of Hyndman and
// Fan), NaN of none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// median is the 0.5-quantile of values in any order.
func median(values []float64) float64 {
	s := slices.Clone(values)
	slices.Sort(s)
	return quantile(s, 0.5)
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// Interval is a 95 % bootstrap interval.
type Interval struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

func (i Interval) covers(v float64) bool { return i.Low <= v && v <= i.High }

// tail is the share of resamples to leave out on each side of an interval of n clusters. It is less than 2.5 %: plain
// percentiles are too narrow for few clusters, as the normal quantile is in the place of Student's. With n = 6 they
// would call one in nine equal arms different, these one in seventeen (stats_test.go). This is Hesterberg's expanded percentile interval ("What Teachers
// Should Know About the Bootstrap", 2015, section 5.4).
func tail(n int) float64 {
	const z = 1.959964 // the normal 97.5 % quantile
	df := float64(n - 1)
	// Student's quantile by the Cornish-Fisher expansion: within 0.1 % from 5 degrees of freedom on.
	t := z + (math.Pow(z, 3)+z)/(4*df) + (5*math.Pow(z, 5)+16*math.Pow(z, 3)+3*z)/(96*df*df) +
		(3*math.Pow(z, 7)+19*math.Pow(z, 5)+17*math.Pow(z, 3)-15*z)/(384*df*df*df)
	return math.Erfc(math.Sqrt(float64(n)/df)*t/math.Sqrt2) / 2
}

// bootstrap is the percentile interval of a statistic of n clusters, with the tails of [tail]: it is computed for many
// resamples, each n indices drawn with replacement. Resamples for which it is not a number are left out. The result is
// false if there are too few clusters, or too few usable resamples.
func bootstrap(n, resamples int, r *rand.Rand, statistic func(pick []int) float64) (Interval, bool) {
	if n < minConversations {
		return Interval{}, false
	}
	pick := make([]int, n)
	values := make([]float64, 0, resamples)
	for range resamples {
		for i := range pick {
			pick[i] = r.IntN(n)
		}
		if v := statistic(pick); !math.IsNaN(v) && !math.IsInf(v, 0) {
			values = append(values, v)
		}
	}
	if len(values) < resamples/2 {
		return Interval{}, false
	}
	slices.Sort(values)
	return Interval{quantile(values, tail(n)), quantile(values, 1-tail(n))}, true
}

// clusters are the values of a metric by conversation: [conversation][value].
type clusters [][]float64

func (c clusters) all() []float64 {
	var all []float64
	for _, values := range c {
		all = append(all, values...)
	}
	return all
}

// medians computes medians of resamples of clusters without sorting each: the values are sorted once, and a resample
// says how often each counts.
type medians struct {
	values  []float64 // sorted
	cluster []int     // of each value
	times   []int     // how often each cluster was picked
}

func newMedians(c clusters) *medians {
	type entry struct {
		v       float64
		cluster int
	}
	var all []entry
	for i, values := range c {
		for _, v := range values {
			all = append(all, entry{v, i})
		}
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.v, b.v) })
	m := &medians{times: make([]int, len(c))}
	for _, e := range all {
		m.values, m.cluster = append(m.values, e.v), append(m.cluster, e.cluster)
	}
	return m
}

// of is the median of the values of the picked clusters: the middle one, or the mean of the two in the middle.
func (m *medians) of(pick []int, sizes clusters) float64 {
	clear(m.times)
	total := 0
	for _, i := range pick {
		m.times[i]++
		total += len(sizes[i])
	}
	if total == 0 {
		return math.NaN()
	}
	low, high := (total-1)/2, total/2
	seen, first := 0, math.NaN()
	for i, v := range m.values {
		seen += m.times[m.cluster[i]]
		if math.IsNaN(first) && seen > low {
			first = v
		}
		if seen > high {
			return first + (v-first)/2
		}
	}
	panic("BUG: a resample has no middle")
}

// medianInterval is the interval of the median, by resampling conversations.
func (c clusters) medianInterval(resamples int, r *rand.Rand) (Interval, bool) {
	m := newMedians(c)
	return bootstrap(len(c), resamples, r, func(pick []int) float64 { return m.of(pick, c) })
}

// paired is a comparison of an arm with the baseline over the same conversations and turns: both have the same shape.
type paired struct{ arm, base clusters }

// ratio is the ratio of medians, and its interval. Both arms are resampled together, so that what makes one
// conversation slow on both cancels out.
func (p paired) ratio(resamples int, r *rand.Rand) (float64, Interval, bool) {
	a, b := newMedians(p.arm), newMedians(p.base)
	at := func(pick []int) float64 { return a.of(pick, p.arm) / b.of(pick, p.base) }
	ci, ok := bootstrap(len(p.arm), resamples, r, at)
	everyone := make([]int, len(p.arm))
	for i := range everyone {
		everyone[i] = i
	}
	return at(everyone), ci, ok
}

// difference is the median over the pairs of arm minus baseline, and its interval.
func (p paired) difference(resamples int, r *rand.Rand) (float64, Interval, bool) {
	d := make(clusters, len(p.arm))
	for i := range p.arm {
		for j := range p.arm[i] {
			d[i] = append(d[i], p.arm[i][j]-p.base[i][j])
		}
	}
	ci, ok := d.medianInterval(resamples, r)
	return median(d.all()), ci, ok
}

// Summary describes one metric of one arm. Quantiles that the number of values does not carry are nil: p95 needs 20
// values and p99 needs 100, or they are just the largest one.
type Summary struct {
	Values        int       `json:"values"`
	Conversations int       `json:"conversations"`
	Mean          float64   `json:"mean"`
	P50           float64   `json:"p50"`
	P95           *float64  `json:"p95,omitempty"`
	P99           *float64  `json:"p99,omitempty"`
	P50Interval   *Interval `json:"p50_interval,omitempty"` // nil: fewer than six conversations
}

// summarize returns nil for no values.
func summarize(c clusters, resamples int, r *rand.Rand) *Summary {
	values := c.all()
	if len(values) == 0 {
		return nil
	}
	slices.Sort(values)
	s := &Summary{Values: len(values), Conversations: len(c), Mean: mean(values), P50: quantile(values, 0.5)}
	if len(values) >= 20 {
		v := quantile(values, 0.95)
		s.P95 = &v
	}
	if len(values) >= 100 {
		v := quantile(values, 0.99)
		s.P99 = &v
	}
	if ci, ok := c.medianInterval(resamples, r); ok {
		s.P50Interval = &ci
	}
	return s
}
