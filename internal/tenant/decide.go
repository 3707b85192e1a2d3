package tenant

import (
	"fmt"
	"math"
	"net/http"
	"time"
)

// Scope says whose limit it is.
type Scope string

// The scopes, from the inside to the outside. A request counts in all of them.
const (
	KeyScope    Scope = "key"
	TenantScope Scope = "tenant"
	GlobalScope Scope = "global"
)

// Decision is the answer to a request to be let in. The zero Decision is yes.
type Decision struct {
	// Status is 0 for yes, 413 if the request can never be let in, 429 if its own tenant or key has used up
	// what it may use, 503 if the router as a whole has.
	Status int
	Reason Reason
	Scope  Scope
	Limit  int64 // that was met: requests, requests a minute, or bytes
	// RetryAfter is in whole seconds, at least 1 s, with 429 and 503. For a rate it is when a token will be
	// there if nobody else takes it; for what others must give back first, nobody knows, and it is 1 s.
	RetryAfter time.Duration
}

// OK reports whether the request was let in.
func (d Decision) OK() bool { return d.Status == 0 }

// Message explains a refusal to the client.
func (d Decision) Message() string {
	whose := map[Scope]string{KeyScope: "this key's", TenantScope: "this tenant's", GlobalScope: "the router's"}[d.Scope]
	var what string
	switch d.Reason {
	case BodyTooLarge:
		return fmt.Sprintf("the request is larger than %s limit of %d bytes", whose, d.Limit)
	case Rate:
		what = fmt.Sprintf("%s limit of %d requests a minute is used up", whose, d.Limit)
	case Concurrency:
		what = fmt.Sprintf("%s limit of %d requests at a time is reached", whose, d.Limit)
	case PromptBytes:
		what = fmt.Sprintf("%s limit of %d bytes of requests in flight is reached", whose, d.Limit)
	case FairShare:
		what = "this tenant uses its share of a busy router"
	default:
		return "the request is let in"
	}
	return fmt.Sprintf("%s; try again in %d s", what, int64(d.RetryAfter/time.Second))
}

// SetHeaders sets the response headers that go with the status.
func (d Decision) SetHeaders(h http.Header) { setRetryAfter(h, d.RetryAfter) }

func (d Decision) String() string {
	if d.OK() {
		return "yes"
	}
	s := fmt.Sprintf("%d %s %s", d.Status, d.Scope, d.Reason)
	if d.Limit > 0 {
		s += fmt.Sprintf(" limit=%d", d.Limit)
	}
	if d.RetryAfter > 0 {
		s += fmt.Sprintf(" retry-after=%s", d.RetryAfter)
	}
	return s
}

// usage is what one party uses at the moment.
//
// Invariant: requests >= 0, bytes >= 0, and both are the sums over the leases that count in it.
type usage struct {
	requests int64
	bytes    int64
	bucket   bucket
}

// allowance is what one party may use. Zero fields have no limit.
type allowance struct {
	requests int64 // at a time
	bytes    int64 // of request bodies in flight
	body     int64 // bytes of one request
	minute   int64 // requests, for messages; refill is what counts
	refill   refill
}

// party is one scope of a request: what it uses and what it may use.
type party struct {
	scope Scope
	use   usage
	may   allowance
}

// ask is what a request wants more of. own is what its lease has already.
type ask struct {
	requests, bytes int64
	ownRequests     int64
	ownBytes        int64
	share           float64 // of the global allowance that a lone tenant may hold, 0 < share <= 1
}

// retryBusy is told to clients that wait for somebody to finish, which nobody can foretell.
const retryBusy = time.Second

// decide says whether a can be let in at now, on the limiter's clock. key may be nil. It changes nothing: a yes
// is followed by commit on every party.
//
// If several limits are met, the one that will be in the way longest is reported, so that Retry-After is true;
// among equals the innermost.
func decide(now time.Duration, a ask, key *party, tenant, global party) Decision {
	parties := []party{tenant, global}
	if key != nil {
		parties = []party{*key, tenant, global}
	}
	var no Decision
	refuse := func(p party, why Reason, limit int64, wait time.Duration) {
		status := http.StatusTooManyRequests
		if p.scope == GlobalScope {
			status = http.StatusServiceUnavailable
		}
		if d := wholeSeconds(wait); d > no.RetryAfter {
			no = Decision{Status: status, Reason: why, Scope: p.scope, Limit: limit, RetryAfter: d}
		}
	}
	for _, p := range parties {
		if most := p.may.largest(); a.ownBytes > most || a.bytes > most-a.ownBytes {
			return Decision{Status: http.StatusRequestEntityTooLarge, Reason: BodyTooLarge, Scope: p.scope, Limit: most}
		}
	}
	for _, p := range parties {
		if a.requests > 0 {
			if w := p.may.refill.wait(p.use.bucket, now); w > 0 {
				refuse(p, Rate, p.may.minute, w)
			}
			if p.may.requests > 0 && p.use.requests+a.requests > p.may.requests {
				refuse(p, Concurrency, p.may.requests, retryBusy)
			}
		}
		if p.may.bytes > 0 && a.bytes > p.may.bytes-p.use.bytes {
			refuse(p, PromptBytes, p.may.bytes, retryBusy)
		}
	}
	if no.OK() && !(fair(tenant.use.requests, a.ownRequests, a.requests, global.use.requests, global.may.requests, a.share) &&
		fair(tenant.use.bytes, a.ownBytes, a.bytes, global.use.bytes, global.may.bytes, a.share)) {
		refuse(tenant, FairShare, 0, retryBusy)
	}
	return no
}

// fair reports whether a tenant that holds held of a pool may take more of it, while all tenants together hold
// total of size.
//
// The rule is the dynamic threshold of shared switch buffers: after the step a tenant holds at most α times
// what is left free, α = share/(1-share). A lone tenant gets share of the pool; n greedy ones get equal parts of
// α/(1+nα) each, and what is free is never all gone, so that a newcomer finds room at once, without anybody
// knowing who is active. A tenant's only request is always fair: it must be able to send one.
func fair(held, own, more, total, size int64, share float64) bool {
	if more == 0 || size <= 0 || held == own {
		return true
	}
	after, free := float64(held)+float64(more), float64(size)-float64(total)-float64(more)
	return after*(1-share) <= share*free
}

// largest is the size of the largest request that can ever be let in, in bytes.
func (a allowance) largest() int64 {
	most := int64(math.MaxInt64)
	for _, limit := range []int64{a.body, a.bytes} {
		if limit > 0 {
			most = min(most, limit)
		}
	}
	return most
}

// commit returns u with what a was granted at now.
func (u usage) commit(now time.Duration, a ask, may allowance) usage {
	u.requests += a.requests
	u.bytes += a.bytes
	if a.requests > 0 {
		u.bucket = may.refill.take(u.bucket, now)
	}
	return u
}
