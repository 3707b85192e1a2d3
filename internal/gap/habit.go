package gap

import (
	"math"
	"time"
)

// Habit is what is known of a kind of traffic, such as a tenant's on one endpoint. The zero value
// knows nothing.
type Habit struct {
	first, later share // of first turns, and of all others, that were followed by another turn
	gaps         [buckets]float64
}

// share is a decayed share: yes of n.
type share struct{ yes, n float64 }

// remember is what an observation still counts after the next one has come: about two hundred count.
const remember = 0.995

// Before anything is known, half of all turns are taken to go on, as sure as four observations are.
const (
	priorShare  = 0.5
	priorWeight = 4
)

func (s share) estimate() float64 { return (s.yes + priorShare*priorWeight) / (s.n + priorWeight) }

// Ended notes that turn number of a conversation, 1 being the first, has ended.
func (h *Habit) Ended(number int) {
	s := h.of(number)
	s.yes, s.n = s.yes*remember, s.n*remember+1
}

// Continued notes that the turn after turn number has come, that long after its end.
func (h *Habit) Continued(number int, after time.Duration) {
	s := h.of(number)
	s.yes = min(s.yes+1, s.n)
	for i := range h.gaps {
		h.gaps[i] *= remember
	}
	h.gaps[bucketOf(after)]++
}

// Probability is how likely another turn follows turn number.
func (h *Habit) Probability(number int) float64 { return h.of(number).estimate() }

func (h *Habit) of(number int) *share {
	if number <= 1 {
		return &h.first
	}
	return &h.later
}

// Gaps are counted in buckets whose bounds double every second one, from 10 ms to some 2 h.
const (
	buckets   = 40
	leastGap  = 10 * time.Millisecond
	perOctave = 2
)

func bucketOf(gap time.Duration) int {
	if gap <= leastGap {
		return 0
	}
	return min(1+int(perOctave*math.Log2(float64(gap)/float64(leastGap))), buckets-1)
}

// bound is the upper end of a bucket.
func bound(i int) time.Duration {
	return time.Duration(float64(leastGap) * math.Exp2(float64(i)/perOctave))
}

// Gap is the time within which a share q of the next turns comes, of those that come. ok is false
// while fewer than about three have been seen.
func (h *Habit) Gap(q float64) (after time.Duration, ok bool) {
	total := 0.0
	for _, n := range h.gaps {
		total += n
	}
	if total < 2.9 {
		return 0, false
	}
	sum := 0.0
	for i, n := range h.gaps {
		if sum += n; sum >= q*total {
			return bound(i), true
		}
	}
	return bound(buckets - 1), true
}

// Within is the share of the next turns, of those that come, that come in that time; 1 while nothing
// is known.
func (h *Habit) Within(d time.Duration) float64 {
	total, sum, last := 0.0, 0.0, bucketOf(d)
	for i, n := range h.gaps {
		total += n
		if i <= last {
			sum += n
		}
	}
	if total == 0 {
		return 1
	}
	return sum / total
}

// Survival is what is known of how long an engine's prefix cache keeps what it was given.
type Survival struct {
	kept [buckets]share // by age
}

// Saw notes whether what was given that long ago was still there.
func (s *Survival) Saw(age time.Duration, there bool) {
	b := &s.kept[bucketOf(age)]
	b.yes, b.n = b.yes*remember, b.n*remember+1
	if there {
		b.yes++
	}
}

// nearness is the weight of what is known of another age, by how many buckets lie between: half for each octave.
var nearness = func() (w [buckets]float64) {
	for i := range w {
		w[i] = math.Exp2(-float64(i) / perOctave)
	}
	return w
}()

// At is how likely something of that age is still there. What was lost younger is lost older, and
// what was kept older was there younger: so the neighbours count too, less the farther they are.
func (s *Survival) At(age time.Duration) float64 {
	const prior, weight = 0.9, 2 // a cache keeps things, unless it was seen not to
	yes, n, at := prior*weight, float64(weight), bucketOf(age)
	for i := range s.kept {
		b := s.kept[i]
		w := nearness[max(i-at, at-i)]
		switch {
		case i < at: // younger: only losses tell
			n += w * (b.n - b.yes)
		case i > at: // older: only what was kept tells
			yes, n = yes+w*b.yes, n+w*b.yes
		default:
			yes, n = yes+b.yes, n+b.n
		}
	}
	return yes / n
}
