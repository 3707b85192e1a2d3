package tenant

import (
	"container/list"
	"sync"
	"time"
)

// Limiter counts what is in flight and decides who is let in.
//
// What it remembers of a tenant or key is bounded: while it has requests in flight, which are bounded themselves,
// and afterwards until its bucket is full again or MaxIdleTenants others have been idle for less long. A refused
// request of an unknown tenant leaves no trace.
type Limiter struct {
	cfg    LimitsConfig
	global allowance
	epoch  time.Time // zero of the limiter's clock

	mu    sync.Mutex
	last  time.Duration // the latest time seen
	total usage
	known map[partyName]*account
	idle  list.List // of *account with no request in flight, longest idle last
}

// partyName names an account. Keys are named within their tenant.
type partyName struct {
	scope       Scope
	tenant, key string
}

// account is what a tenant or key uses.
type account struct {
	name partyName
	use  usage
	at   *list.Element // in idle, nil while requests are in flight
	full time.Duration // when the bucket is full, as of the limits it was last asked under
}

// NewLimiter returns a limiter for a valid c. lone says that there is one tenant only.
func NewLimiter(c LimitsConfig, lone bool, epoch time.Time) *Limiter {
	c = c.withDefaults(lone)
	return &Limiter{cfg: c, global: c.Global.allowance(), epoch: epoch, known: map[partyName]*account{}}
}

// Lease is a request's place among those in flight.
type Lease struct {
	l    *Limiter
	held []*account // of the tenant, then of the key if it has limits
	may  []allowance
	// Under the limiter's lock:
	bytes int64
	over  bool
}

// Acquire lets a request of id in, or says why not. bodyBytes is its declared size, 0 if unknown; see Grow. The
// lease is nil unless the decision is yes; otherwise it must be released.
func (l *Limiter) Acquire(id Identity, bodyBytes int64, now time.Time) (*Lease, Decision) {
	names := []partyName{{scope: TenantScope, tenant: id.Tenant}}
	may := []allowance{l.cfg.tenant(id.Tenant)}
	if id.Limits != nil {
		names = append(names, partyName{KeyScope, id.Tenant, id.Key})
		may = append(may, id.Limits.allowance())
	}
	a := ask{requests: 1, bytes: max(bodyBytes, 0), share: l.cfg.FairShare}

	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.clock(now)
	l.sweep(t)
	var uses []usage
	for _, n := range names {
		var u usage
		if known := l.known[n]; known != nil {
			u = known.use
		}
		uses = append(uses, u)
	}
	if d := l.decide(t, a, uses, may); !d.OK() {
		return nil, d
	}
	lease := &Lease{l: l, may: may, bytes: a.bytes}
	for i, n := range names {
		acc := l.known[n]
		if acc == nil {
			acc = &account{name: n}
			l.known[n] = acc
		}
		if acc.at != nil {
			l.idle.Remove(acc.at)
			acc.at = nil
		}
		acc.use = acc.use.commit(t, a, may[i])
		acc.full = t + may[i].refill.missing(acc.use.bucket, t)
		lease.held = append(lease.held, acc)
	}
	l.total = l.total.commit(t, a, l.global)
	return lease, Decision{}
}

// decide asks the pure part. uses and may are of the tenant, then of the key if it has limits.
func (l *Limiter) decide(t time.Duration, a ask, uses []usage, may []allowance) Decision {
	var key *party
	if len(uses) > 1 {
		key = &party{KeyScope, uses[1], may[1]}
	}
	return decide(t, a, key, party{TenantScope, uses[0], may[0]}, party{GlobalScope, l.total, l.global})
}

// Grow counts n more bytes of the request's body: those beyond what was declared, as they arrive or as they are
// decompressed. If the decision is no, nothing is counted, and the request must be given up: release the lease.
// On a lease that has been released it says yes and counts nothing.
func (le *Lease) Grow(n int64) Decision {
	l := le.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if le.over || n <= 0 {
		return Decision{}
	}
	a := ask{bytes: n, ownRequests: 1, ownBytes: le.bytes, share: l.cfg.FairShare}
	var uses []usage
	for _, acc := range le.held {
		uses = append(uses, acc.use)
	}
	if d := l.decide(l.last, a, uses, le.may); !d.OK() {
		return d
	}
	le.add(n)
	return Decision{}
}

// ReleaseBytes gives the bytes back, once the body is in memory no longer, and keeps the place.
func (le *Lease) ReleaseBytes() {
	le.l.mu.Lock()
	defer le.l.mu.Unlock()
	if !le.over {
		le.add(-le.bytes)
	}
}

// add counts n bytes everywhere. Callers hold the limiter's lock.
func (le *Lease) add(n int64) {
	le.bytes += n
	le.l.total.bytes += n
	for _, acc := range le.held {
		acc.use.bytes += n
	}
}

// Release ends the lease. Further calls do nothing.
func (le *Lease) Release() {
	l := le.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if le.over {
		return
	}
	le.add(-le.bytes)
	le.over = true
	l.total.requests--
	for _, acc := range le.held {
		if acc.use.requests--; acc.use.requests > 0 {
			continue
		}
		acc.at = l.idle.PushFront(acc)
		if acc.full <= l.last {
			l.forget(acc)
		}
	}
	l.sweep(l.last)
	for l.idle.Len() > l.cfg.MaxIdleTenants {
		l.forget(l.idle.Back().Value.(*account))
	}
}

// BodyLimit is the most bytes that a request of id may have. Reading may stop at the first byte more, with the
// decision that Grow or Acquire gives for it.
func (l *Limiter) BodyLimit(id Identity) int64 {
	most := min(l.global.largest(), l.cfg.tenant(id.Tenant).largest())
	if id.Limits != nil {
		most = min(most, id.Limits.allowance().largest())
	}
	return most
}

// LimiterStats is what is in flight, and how much is remembered.
type LimiterStats struct {
	Requests    int64 // in flight
	PromptBytes int64 // in flight
	Accounts    int   // tenants and keys with limits of their own, active or remembered
}

// Stats returns the present counts.
func (l *Limiter) Stats() LimiterStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return LimiterStats{Requests: l.total.requests, PromptBytes: l.total.bytes, Accounts: len(l.known)}
}

// clock turns now into the limiter's time, which never goes back: requests may ask in another order than that
// in which they looked at the clock. Callers hold the lock.
func (l *Limiter) clock(now time.Time) time.Duration {
	l.last = max(l.last, now.Sub(l.epoch))
	return l.last
}

// sweptPerCall bounds the work of one call. Two go for each that can come, so what is due is soon gone.
const sweptPerCall = 2

// sweep forgets the longest idle accounts if that loses nothing. Callers hold the lock.
func (l *Limiter) sweep(t time.Duration) {
	for range sweptPerCall {
		oldest := l.idle.Back()
		if oldest == nil || oldest.Value.(*account).full > t {
			return
		}
		l.forget(oldest.Value.(*account))
	}
}

// forget drops an idle account. Callers hold the lock.
func (l *Limiter) forget(acc *account) {
	l.idle.Remove(acc.at)
	delete(l.known, acc.name)
}
