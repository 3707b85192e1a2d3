package tenant

import (
	"testing"
	"time"

	"golang.org/x/time/rate"
	"pgregory.net/rapid"
)

// drawRefill makes a rate whose interval is a whole number of nanoseconds.
func drawRefill(t *rapid.T) refill {
	perMinute := rapid.Int64Range(1, 100_000).Draw(t, "requests_per_minute")
	return refill{every: time.Minute / time.Duration(perMinute), burst: rapid.Int64Range(1, 200).Draw(t, "burst")}
}

func drawGap(t *rapid.T, r refill) time.Duration {
	return time.Duration(rapid.Int64Range(0, 3*int64(r.every)).Draw(t, "gap_ns"))
}

// In any window of length w a bucket gives out at most burst + w/every tokens, and at least as many as its rate
// allows if somebody always waits.
func TestBucketRate(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := drawRefill(t)
		var b bucket
		var now time.Duration
		var taken []time.Duration
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			now += drawGap(t, r)
			if r.wait(b, now) == 0 {
				b = r.take(b, now)
				taken = append(taken, now)
			}
		}
		for i := range taken {
			for j := i; j < len(taken); j++ {
				window := taken[j] - taken[i]
				if got, most := int64(j-i+1), r.burst+int64(window/r.every); got > most {
					t.Fatalf("%d tokens in %s, want at most %d", got, window, most)
				}
			}
		}
	})
}

// wait is exact: one nanosecond earlier there is no token.
func TestBucketWait(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := drawRefill(t)
		var b bucket
		now := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "start_ns"))
		for range rapid.IntRange(0, 300).Draw(t, "taken") {
			if w := r.wait(b, now); w > 0 {
				if r.wait(b, now+w) != 0 || r.wait(b, now+w-1) != 1 {
					t.Fatalf("wait = %s, but at that time %s and 1 ns before %s", w, r.wait(b, now+w), r.wait(b, now+w-1))
				}
				now += w
			}
			b = r.take(b, now)
		}
		if full := now + r.missing(b, now); r.missing(b, full) != 0 {
			t.Fatalf("missing %s at the moment it was to be full", r.missing(b, full))
		}
	})
}

// A full bucket and a new one are the same, which is why idle tenants can be forgotten.
func TestBucketFullIsNew(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := drawRefill(t)
		now := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "now_ns"))
		old := bucket{fullAt: now - time.Duration(rapid.Int64Range(0, int64(now)).Draw(t, "full_since_ns"))}
		fresh := bucket{}
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			if a, b := r.wait(old, now), r.wait(fresh, now); a != b {
				t.Fatalf("old bucket waits %s, new one %s", a, b)
			}
			if r.wait(old, now) == 0 {
				old, fresh = r.take(old, now), r.take(fresh, now)
			}
			now += drawGap(t, r)
		}
	})
}

// The library's bucket, which counts in floating point, gives the same answers.
func TestBucketAgainstLibrary(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		every := time.Duration(rapid.Int64Range(1, 2000).Draw(t, "every_ms")) * time.Millisecond
		r := refill{every: every, burst: rapid.Int64Range(1, 50).Draw(t, "burst")}
		start := time.Unix(1_800_000_000, 0)
		other := rate.NewLimiter(rate.Every(every), int(r.burst))
		var b bucket
		var now time.Duration
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			// Halves of the interval, off by a microsecond, so that rounding decides nothing.
			now += time.Duration(rapid.Int64Range(0, 5).Draw(t, "halves"))*every/2 + time.Microsecond
			want := other.AllowN(start.Add(now), 1)
			got := r.wait(b, now) == 0
			if got {
				b = r.take(b, now)
			}
			if got != want {
				t.Fatalf("at %s: %v, library %v", now, got, want)
			}
		}
	})
}

func TestBucketSmallerBurst(t *testing.T) {
	t.Parallel()
	big, small := refill{time.Second, 100}, refill{time.Second, 2}
	var b bucket
	for range 100 {
		b = big.take(b, 0)
	}
	if got, want := small.wait(b, 0), time.Second; got != want {
		t.Errorf("after the burst was lowered to 2: wait = %s, want %s", got, want)
	}
	if got := (refill{}).wait(b, 0); got != 0 {
		t.Errorf("after the limit was lifted: wait = %s, want 0s", got)
	}
}
