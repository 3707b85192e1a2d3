package analyze

import (
	"math"
	"math/bits"
	"slices"
)

// exactValues is how many values a dist keeps as they are. Beyond, it keeps counts in bins.
const exactValues = 1 << 20

// dist is a distribution of whole numbers. Its quantiles are exact up to exactValues values, and within 0.1 %
// (one bin) above.
type dist struct {
	n, sum   int64
	min, max int64
	values   []int64
	sorted   bool
	plus     []int64 // counts by bin of the value, of its negative
	minus    []int64
}

func (d *dist) add(v int64) {
	if d.n == 0 {
		d.min, d.max = v, v
	}
	d.min, d.max = min(d.min, v), max(d.max, v)
	d.n++
	d.sum += v
	if d.plus == nil {
		if len(d.values) < exactValues {
			d.values, d.sorted = append(d.values, v), false
			return
		}
		d.plus, d.minus = make([]int64, bins), make([]int64, bins)
		for _, old := range d.values {
			d.count(old)
		}
		d.values = nil
	}
	d.count(v)
}

func (d *dist) count(v int64) {
	if v < 0 {
		d.minus[bin(-v)]++
	} else {
		d.plus[bin(v)]++
	}
}

// A bin holds the values that agree in their eleven leading bits.
const (
	mantissa = 10
	bins     = (64 - mantissa) << mantissa
)

func bin(v int64) int {
	e := bits.Len64(uint64(v)) - mantissa - 1
	if e <= 0 {
		return int(v)
	}
	return e<<mantissa + int(v>>e)
}

func binStart(i int) int64 {
	e := i>>mantissa - 1
	if e <= 0 {
		return int64(i)
	}
	return int64(i-e<<mantissa) << e
}

func (d *dist) exact() bool { return d.plus == nil }

// at returns the value at rank ⌊n·q/100⌋, the definition that the scripts beside public traces use.
func (d *dist) at(q float64) int64 {
	if d.n == 0 {
		return 0
	}
	k := min(d.n-1, int64(float64(d.n)*q/100))
	if d.exact() {
		if !d.sorted {
			slices.Sort(d.values)
			d.sorted = true
		}
		return d.values[k]
	}
	for i := bins - 1; i >= 0; i-- {
		if k -= d.minus[i]; k < 0 {
			return max(d.min, -binStart(i))
		}
	}
	for i, n := range d.plus {
		if k -= n; k < 0 {
			return max(d.min, binStart(i))
		}
	}
	return d.max
}

func (d *dist) mean() float64 {
	if d.n == 0 {
		return 0
	}
	return float64(d.sum) / float64(d.n)
}

// timeline is a quantity that rises and falls over time. Changes may come in any order. It keeps them in a fixed
// number of buckets whose width doubles whenever the span outgrows them, so levels are exact to one bucket.
type timeline struct {
	width  int64 // ns
	lo, hi int64 // buckets in use, counted from time 0
	change []int64
}

const (
	buckets    = 1 << 14
	firstWidth = int64(1e6)
)

func (t *timeline) add(at, v int64) {
	if t.change == nil {
		t.change = make([]int64, buckets)
		t.width = firstWidth
		t.lo = floorDiv(at, t.width)
		t.hi = t.lo
	}
	i := floorDiv(at, t.width)
	for max(t.hi, i)-min(t.lo, i) >= buckets {
		old := t.change
		t.change = make([]int64, buckets)
		for k := t.lo; k <= t.hi; k++ {
			t.change[mod(k>>1)] += old[mod(k)]
		}
		t.lo, t.hi, t.width = t.lo>>1, t.hi>>1, 2*t.width
		i = floorDiv(at, t.width)
	}
	t.lo, t.hi = min(t.lo, i), max(t.hi, i)
	t.change[mod(i)] += v
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func mod(i int64) int64 { return i & (buckets - 1) }

// levels returns the level in each bucket, from the first to the last one used.
func (t *timeline) levels() []int64 {
	if t.change == nil {
		return nil
	}
	out := make([]int64, 0, t.hi-t.lo+1)
	level := int64(0)
	for k := t.lo; k <= t.hi; k++ {
		level += t.change[mod(k)]
		out = append(out, level)
	}
	return out
}

func (t *timeline) peak() int64 {
	p := int64(0)
	for _, l := range t.levels() {
		p = max(p, l)
	}
	return p
}

// level describes a timeline between its first and last change.
func (t *timeline) level() Level {
	l := t.levels()
	if len(l) == 0 {
		return Level{}
	}
	out := Level{ResolutionSeconds: seconds(t.width)}
	sum := 0.0
	for _, v := range l {
		sum += float64(v)
	}
	out.Mean = round(sum / float64(len(l)))
	slices.Sort(l)
	out.P50, out.P95, out.Max = l[len(l)/2], l[min(len(l)-1, len(l)*95/100)], l[len(l)-1]
	return out
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }

// round keeps six digits behind the point: the numbers of a report must not depend on the order of additions.
func round(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return math.Round(v*1e6) / 1e6
}

// ratio returns a/b, nil if b is 0.
func ratio(a, b int64) *float64 {
	if b == 0 {
		return nil
	}
	v := round(float64(a) / float64(b))
	return &v
}

// wide is a sum of products of two whole numbers, exact whatever the order of additions.
type wide struct{ hi, lo uint64 }

// add adds a·b; neither is negative.
func (w *wide) add(a, b int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	var carry uint64
	w.lo, carry = bits.Add64(w.lo, lo, 0)
	w.hi, _ = bits.Add64(w.hi, hi, carry)
}

func (w *wide) float() float64 { return float64(w.hi)*(1<<64) + float64(w.lo) }
