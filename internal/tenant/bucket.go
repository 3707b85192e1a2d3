package tenant

import "time"

// A bucket is a token bucket kept as one number: the moment at which it will be full again. A token less in it
// is a moment later, so refilling needs no work, the arithmetic is exact, and a bucket whose moment has passed
// is as good as a new one, which is what lets idle tenants be forgotten.
//
// The library bucket, golang.org/x/time/rate, takes and asks in one step under its own lock; admission must ask
// several buckets first and take from all or none. A property test compares the two.
type bucket struct {
	fullAt time.Duration // on the limiter's clock
}

// refill is how fast a bucket fills. The zero value has no limit.
type refill struct {
	every time.Duration // per token
	burst int64         // tokens in a full bucket, at least 1
}

// full is how long an empty bucket takes to fill.
func (r refill) full() time.Duration { return time.Duration(r.burst) * r.every }

// missing is how long b has yet to fill. A bucket that was emptied under a larger burst counts as empty, not
// as emptier than that.
func (r refill) missing(b bucket, now time.Duration) time.Duration {
	return min(max(b.fullAt-now, 0), r.full())
}

// wait is how long until b holds a token, 0 if it does.
func (r refill) wait(b bucket, now time.Duration) time.Duration {
	if r == (refill{}) {
		return 0
	}
	return max(r.missing(b, now)-(r.full()-r.every), 0)
}

// take returns b with a token less. The caller has seen wait return 0.
func (r refill) take(b bucket, now time.Duration) bucket {
	if r == (refill{}) {
		return b
	}
	return bucket{fullAt: now + r.missing(b, now) + r.every}
}
