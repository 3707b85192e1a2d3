package tenant

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// keySource is where a token's verification key comes from.
type keySource interface {
	// key returns the key for a token's header, or errUnknownKey, or an error that says that nobody knows now.
	key(ctx context.Context, kid, alg string) (verifyKey, error)
}

var errUnknownKey = errors.New("the issuer has no such key")

// fileKeys is a key set from a file.
type fileKeys struct{ *watched[jwks] }

func (f fileKeys) key(_ context.Context, kid, alg string) (verifyKey, error) {
	k, ok := f.get().find(kid, alg)
	if !ok {
		return k, errUnknownKey
	}
	return k, nil
}

const (
	fetchTimeout = 5 * time.Second
	// fetchPause is the least time between two fetches, whatever tokens ask for: who sends made-up key ids must
	// not make the router a load for the issuer.
	fetchPause = 30 * time.Second
)

// urlKeys is a key set that the issuer publishes.
//
// A fetch is made by the request that needs it, or by Gate.Run; others that need it wait for the same one. It does
// not end with its client's patience: what it finds is for all.
type urlKeys struct {
	url             string
	client          *http.Client
	now             func() time.Time
	refresh, maxAge time.Duration

	mu      sync.Mutex
	set     jwks
	fetched time.Time // when set was
	tried   time.Time // when the last fetch began
	flight  chan struct{}
	failure error // of the last fetch, nil if it was good
}

var (
	_ keySource = fileKeys{}
	_ keySource = (*urlKeys)(nil)
)

func (u *urlKeys) key(ctx context.Context, kid, alg string) (verifyKey, error) {
	if k, ok := u.fresh().find(kid, alg); ok {
		return k, nil
	}
	// No keys yet, or too old ones, or the issuer has new ones.
	if err := u.fetch(ctx, context.WithoutCancel(ctx)); err != nil {
		return verifyKey{}, err
	}
	if k, ok := u.fresh().find(kid, alg); ok {
		return k, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failure != nil {
		return verifyKey{}, u.failure // it may be a new key, and its token good
	}
	return verifyKey{}, errUnknownKey
}

// fresh returns the keys unless they are too old to be believed.
func (u *urlKeys) fresh() jwks {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.now().Sub(u.fetched) > u.maxAge {
		return nil
	}
	return u.set
}

// refreshIfDue fetches the keys if they are due. It returns what is wrong with the last fetch, now or earlier.
func (u *urlKeys) refreshIfDue(ctx context.Context) error {
	u.mu.Lock()
	due := u.now().Sub(u.fetched) >= u.refresh
	u.mu.Unlock()
	if due {
		if err := u.fetch(ctx, ctx); err != nil {
			return err
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.failure
}

// fetch gets the keys anew, or waits for whoever is doing so, or does nothing if it was tried a moment ago. ctx
// bounds the waiting, work a fetch of its own. An error means that ctx ended; how the fetch went is in failure.
func (u *urlKeys) fetch(ctx, work context.Context) error {
	u.mu.Lock()
	if flight := u.flight; flight != nil {
		u.mu.Unlock()
		select {
		case <-flight:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	now := u.now()
	if !u.tried.IsZero() && now.Sub(u.tried) < fetchPause {
		u.mu.Unlock()
		return nil
	}
	done := make(chan struct{})
	u.flight, u.tried = done, now
	u.mu.Unlock()

	set, err := u.get(work)

	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failure = err; err == nil {
		u.set, u.fetched = set, now
	}
	u.flight = nil
	close(done)
	return nil
}

// get asks the issuer.
func (u *urlKeys) get(ctx context.Context) (jwks, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.url, nil)
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", u.url, err)
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	res, err := u.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("fetch the issuer's keys: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetch %s: status %d", u.url, res.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, maxJWKSBytes+1))
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", u.url, err)
	}
	set, err := parseJWKS(data)
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", u.url, err)
	}
	return set, nil
}

// withoutRedirects is c, stopping at the first answer: a redirect could lead to a place that Validate would have
// refused.
func withoutRedirects(c *http.Client) *http.Client {
	own := *c
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &own
}
