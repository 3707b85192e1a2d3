package tenant

import (
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	perSecond := Limits{RequestsPerMinute: 60, Burst: 1}
	busy := func(l Limits, requests, bytes int64, fullIn time.Duration) party {
		return party{use: usage{requests, bytes, bucket{fullIn}}, may: l.allowance()}
	}
	f := func(name, want string, a ask, key *party, tenant, global party) {
		t.Helper()
		if key != nil {
			key.scope = KeyScope
		}
		tenant.scope, global.scope = TenantScope, GlobalScope
		if got := decide(0, a, key, tenant, global).String(); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	one := ask{requests: 1, bytes: 100, share: 1}

	f("nothing limits", "yes", one, nil, party{}, party{})
	f("below every limit", "yes", one, nil, busy(Limits{Concurrent: 2, PromptBytes: 200}, 1, 100, 0), busy(Limits{Concurrent: 3}, 2, 0, 0))
	f("tenant's requests", "429 tenant concurrency limit=2 retry-after=1s", one, nil, busy(Limits{Concurrent: 2}, 2, 0, 0), party{})
	f("tenant's bytes", "429 tenant prompt-bytes limit=199 retry-after=1s", one, nil, busy(Limits{PromptBytes: 199}, 1, 100, 0), party{})
	f("tenant's rate", "429 tenant rate limit=60 retry-after=1s", one, nil, busy(perSecond, 0, 0, 1), party{})
	f("Retry-After is rounded up", "429 tenant rate limit=15 retry-after=4s", one, nil, busy(Limits{RequestsPerMinute: 15, Burst: 1}, 0, 0, 3*time.Second+time.Nanosecond), party{})
	f("router's requests", "503 global concurrency limit=2 retry-after=1s", one, nil, party{}, busy(Limits{Concurrent: 2}, 2, 0, 0))
	f("router's bytes", "503 global prompt-bytes limit=150 retry-after=1s", one, nil, party{}, busy(Limits{PromptBytes: 150}, 2, 100, 0))
	f("router's rate", "503 global rate limit=60 retry-after=1s", one, nil, party{}, busy(perSecond, 0, 0, time.Second))
	f("key's requests", "429 key concurrency limit=1 retry-after=1s", one, ptr(busy(Limits{Concurrent: 1}, 1, 0, 0)), busy(Limits{Concurrent: 9}, 1, 0, 0), party{})
	f("the innermost of equals", "429 key concurrency limit=1 retry-after=1s", one, ptr(busy(Limits{Concurrent: 1}, 1, 0, 0)), busy(Limits{Concurrent: 1}, 1, 0, 0), busy(Limits{Concurrent: 1}, 1, 0, 0))
	f("the longest wait", "503 global rate limit=1 retry-after=1m0s", one, nil, busy(Limits{Concurrent: 1}, 1, 0, 0), busy(Limits{RequestsPerMinute: 1}, 0, 0, time.Minute))
	f("body beyond the tenant's limit", "413 tenant body-too-large limit=99", one, nil, busy(Limits{BodyBytes: 99, Concurrent: 1}, 1, 0, 0), party{})
	f("body beyond the router's limit", "413 global body-too-large limit=99", one, nil, party{}, busy(Limits{BodyBytes: 99}, 0, 0, 0))
	f("body that never fits the budget", "413 tenant body-too-large limit=99", one, nil, busy(Limits{PromptBytes: 99}, 0, 0, 0), party{})
	f("a body of exactly the limit", "yes", one, nil, busy(Limits{BodyBytes: 100}, 0, 0, 0), party{})
	f("a body that grows beyond the limit", "413 tenant body-too-large limit=100", ask{bytes: 1, ownRequests: 1, ownBytes: 100, share: 1}, nil, busy(Limits{BodyBytes: 100}, 1, 100, 0), party{})
	f("growing takes no token and no place", "yes", ask{bytes: 1, ownRequests: 1, share: 1}, nil, busy(Limits{RequestsPerMinute: 1, Concurrent: 1}, 1, 0, time.Minute), party{})
	f("a size that would overflow", "413 tenant body-too-large limit=100", ask{bytes: math.MaxInt64, ownBytes: 50, share: 1}, nil, busy(Limits{BodyBytes: 100}, 1, 50, 0), party{})

	fair := ask{requests: 1, bytes: 1, share: 0.8}
	pool := Limits{Concurrent: 10, PromptBytes: 1000}
	f("a lone tenant's share", "yes", fair, nil, busy(Limits{}, 7, 0, 0), busy(pool, 7, 0, 0))
	f("beyond a lone tenant's share", "429 tenant fair-share retry-after=1s", fair, nil, busy(Limits{}, 8, 0, 0), busy(pool, 8, 0, 0))
	f("a newcomer beside it", "yes", fair, nil, party{}, busy(pool, 8, 0, 0))
	f("a newcomer takes the last place", "yes", fair, nil, party{}, busy(pool, 9, 0, 0))
	f("share of the bytes", "429 tenant fair-share retry-after=1s", fair, nil, busy(Limits{}, 1, 800, 0), busy(pool, 1, 800, 0))
	f("one large prompt is fair", "yes", ask{requests: 1, bytes: 1000, share: 0.8}, nil, party{}, busy(pool, 0, 0, 0))
	f("and may arrive in pieces", "yes", ask{bytes: 500, ownRequests: 1, ownBytes: 500, share: 0.8}, nil, busy(Limits{}, 1, 500, 0), busy(pool, 1, 500, 0))
}

func ptr[T any](v T) *T { return &v }

func TestDecisionForClients(t *testing.T) {
	t.Parallel()
	type answer struct{ Message, RetryAfter string }
	f := func(d Decision, want answer) {
		t.Helper()
		h := http.Header{}
		d.SetHeaders(h)
		if diff := cmp.Diff(want, answer{d.Message(), h.Get("Retry-After")}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", d, diff)
		}
	}
	f(Decision{Status: 413, Reason: BodyTooLarge, Scope: GlobalScope, Limit: 64}, answer{"the request is larger than the router's limit of 64 bytes", ""})
	f(Decision{Status: 429, Reason: Rate, Scope: TenantScope, Limit: 600, RetryAfter: 2 * time.Second}, answer{"this tenant's limit of 600 requests a minute is used up; try again in 2 s", "2"})
	f(Decision{Status: 429, Reason: Concurrency, Scope: KeyScope, Limit: 4, RetryAfter: time.Second}, answer{"this key's limit of 4 requests at a time is reached; try again in 1 s", "1"})
	f(Decision{Status: 503, Reason: PromptBytes, Scope: GlobalScope, Limit: 9, RetryAfter: time.Second}, answer{"the router's limit of 9 bytes of requests in flight is reached; try again in 1 s", "1"})
	f(Decision{Status: 429, Reason: FairShare, Scope: TenantScope, RetryAfter: time.Second}, answer{"this tenant uses its share of a busy router; try again in 1 s", "1"})
}

func TestWholeSeconds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(24*time.Hour)).Draw(t, "wait_ns"))
		got := wholeSeconds(d)
		if got < d || got < time.Second || got%time.Second != 0 || got-d >= time.Second && d > 0 {
			t.Fatalf("wholeSeconds(%s) = %s", d, got)
		}
	})
}

// Greedy tenants end up with equal parts, and somebody who comes later still finds room.
func TestFairShares(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Int64Range(2, 500).Draw(t, "size")
		share := rapid.SampledFrom([]float64{0.5, 0.8, 0.9}).Draw(t, "share")
		held := make([]int64, rapid.Int64Range(1, size-1).Draw(t, "tenants"))
		var total int64
		for more := true; more; {
			more = false
			for i := range held {
				if total < size && fair(held[i], 0, 1, total, size, share) {
					held[i]++
					total++
					more = true
				}
			}
		}
		least, most := size, int64(0)
		for _, h := range held {
			least, most = min(least, h), max(most, h)
		}
		if most-least > 1 {
			t.Fatalf("greedy tenants hold %v of %d", held, size)
		}
		if len(held) == 1 && float64(held[0]) > max(share*float64(size), 1) {
			t.Fatalf("a lone tenant holds %d of %d with a share of %v", held[0], size, share)
		}
		if !fair(0, 0, 1, total, size, share) || total >= size {
			t.Fatalf("no room for a newcomer: %d of %d taken by %v", total, size, held)
		}
	})
}
