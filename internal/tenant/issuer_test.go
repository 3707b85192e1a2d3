package tenant

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// roundTripper is a transport made of a function.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func reply(status int, body []byte) *http.Response {
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(string(body))), Header: http.Header{}}
}

// issuer is one whose answers a test sets, with the source that asks it.
type issuer struct {
	*urlKeys
	fetches atomic.Int32
	answer  atomic.Value // func() (*http.Response, error)
	time    atomic.Pointer[time.Time]
}

func newIssuer() *issuer {
	i := &issuer{}
	i.time.Store(ptr(epoch))
	i.urlKeys = &urlKeys{
		url: "https://issuer.example/keys", now: func() time.Time { return *i.time.Load() }, refresh: 10 * time.Minute, maxAge: time.Hour,
		client: withoutRedirects(&http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
			i.fetches.Add(1)
			return i.answer.Load().(func() (*http.Response, error))()
		})}),
	}
	return i
}

func (i *issuer) pass(d time.Duration) { i.time.Store(ptr(i.time.Load().Add(d))) }

func (i *issuer) serve(status int, body []byte) {
	i.answer.Store(func() (*http.Response, error) { return reply(status, body), nil })
}

func (i *issuer) fail(err error) {
	i.answer.Store(func() (*http.Response, error) { return nil, err })
}

func TestIssuer(t *testing.T) {
	t.Parallel()
	s := signers()
	i := newIssuer()
	// ask looks a key up, and says what came of it and how many fetches that took.
	f := func(what, kid, alg string, wantFetches int32, want string) {
		t.Helper()
		before := i.fetches.Load()
		k, err := i.key(t.Context(), kid, alg)
		got := k.id
		if err != nil {
			got = err.Error()
		}
		if n := i.fetches.Load() - before; got != want || n != wantFetches {
			t.Errorf("%s: %q after %d fetches, want %q after %d", what, got, n, want, wantFetches)
		}
	}
	i.fail(errors.New("no route"))
	f("before anything is known", "ed-1", "EdDSA", 1, `fetch the issuer's keys: Get "https://issuer.example/keys": no route`)
	f("at once again", "ed-1", "EdDSA", 0, `fetch the issuer's keys: Get "https://issuer.example/keys": no route`)
	i.serve(200, keySetOf(s.ed.jwk()))
	i.pass(fetchPause)
	f("the issuer is back", "ed-1", "EdDSA", 1, "ed-1")
	f("known", "ed-1", "EdDSA", 0, "ed-1")
	f("known key, other algorithm", "ed-1", "RS256", 0, "the issuer has no such key")

	i.pass(fetchPause - 1)
	for range 100 {
		f("made-up key ids within the pause", "nonsense", "EdDSA", 0, "the issuer has no such key")
	}
	i.pass(1)
	f("made-up key id after the pause", "nonsense", "EdDSA", 1, "the issuer has no such key")

	i.serve(200, keySetOf(s.ed.jwk(), s.ec.jwk()))
	i.pass(fetchPause)
	f("a new key", "ec-1", "ES256", 1, "ec-1")

	i.serve(500, nil)
	i.pass(fetchPause)
	f("a new key while the issuer is down", "rsa-1", "RS256", 1, "fetch https://issuer.example/keys: status 500")
	f("an old key meanwhile", "ec-1", "ES256", 0, "ec-1")
	i.pass(time.Hour - fetchPause)
	f("an old key after maxAge, to the nanosecond", "ec-1", "ES256", 0, "ec-1")
	i.pass(1)
	f("an old key after maxAge", "ec-1", "ES256", 1, "fetch https://issuer.example/keys: status 500")

	for _, c := range []struct {
		name, want string
		body       []byte
	}{
		{"not a key set", "fetch https://issuer.example/keys: key set: not a JSON object with a list of keys", []byte("<html>")},
		{"too large", "fetch https://issuer.example/keys: key set: larger than 1048576 bytes", make([]byte, maxJWKSBytes+5)},
	} {
		i.serve(200, c.body)
		i.pass(fetchPause)
		f(c.name, "ec-1", "ES256", 1, c.want)
	}
	i.serve(302, nil)
	i.pass(fetchPause)
	f("a redirect", "ec-1", "ES256", 1, "fetch https://issuer.example/keys: status 302")
}

// A withdrawn key is accepted until the next refresh and no longer.
func TestIssuerRefresh(t *testing.T) {
	t.Parallel()
	s := signers()
	i := newIssuer()
	i.serve(200, keySetOf(s.ed.jwk(), s.ec.jwk()))
	var got []string
	round := func() {
		before := i.fetches.Load()
		err := i.refreshIfDue(t.Context())
		line := []string{"kept", "fetched"}[i.fetches.Load()-before]
		if err != nil {
			line += ": " + err.Error()
		}
		if _, ok := i.fresh().find("ec-1", "ES256"); ok {
			line += ", ec-1 good"
		}
		got = append(got, line)
	}
	round()
	i.pass(10*time.Minute - 1)
	round()
	i.serve(503, nil)
	i.pass(1)
	round()
	i.pass(10 * time.Second) // within the pause: the failure is still told
	round()
	i.serve(200, keySetOf(s.ed.jwk()))
	i.pass(20 * time.Second)
	round()
	want := []string{
		"fetched, ec-1 good", "kept, ec-1 good", "fetched: fetch https://issuer.example/keys: status 503, ec-1 good",
		"kept: fetch https://issuer.example/keys: status 503, ec-1 good", "fetched",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rounds (-want +got):\n%s", diff)
	}
}

// A hundred requests that need the keys at once make one fetch. One of them gives up, and is the one whose fetch it
// is; the others get their keys.
func TestIssuerSharedFetch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := signers()
		i := newIssuer()
		release := make(chan struct{})
		i.answer.Store(func() (*http.Response, error) {
			<-release
			return reply(200, keySetOf(s.ed.jwk())), nil
		})
		var wg sync.WaitGroup
		var good, gone atomic.Int32
		ask := func(ctx context.Context) {
			k, err := i.key(ctx, "ed-1", "EdDSA")
			switch {
			case err == nil && k.id == "ed-1":
				good.Add(1)
			case errors.Is(err, context.Canceled):
				gone.Add(1)
			default:
				t.Errorf("key: %v, %v", k.id, err)
			}
		}
		first, giveUp := context.WithCancel(t.Context())
		wg.Go(func() { ask(first) })
		synctest.Wait()
		second, giveUpToo := context.WithCancel(t.Context())
		wg.Go(func() { ask(second) })
		for range 98 {
			wg.Go(func() { ask(t.Context()) })
		}
		synctest.Wait()
		giveUp()
		giveUpToo()
		synctest.Wait()
		close(release)
		wg.Wait()
		got := []int32{i.fetches.Load(), good.Load(), gone.Load()}
		if diff := cmp.Diff([]int32{1, 99, 1}, got); diff != "" {
			t.Errorf("fetches, good, gone (-want +got):\n%s", diff)
		}
	})
}

// An issuer that does not answer costs a request five seconds, once in thirty.
func TestIssuerTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer()
		i.now = time.Now
		i.client = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			i.fetches.Add(1)
			<-r.Context().Done()
			return nil, r.Context().Err()
		})}
		var took []time.Duration
		for range 3 {
			begin := time.Now()
			if _, err := i.key(t.Context(), "ed-1", "EdDSA"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("key: %v", err)
			}
			took = append(took, time.Since(begin))
			time.Sleep(10 * time.Second)
		}
		if diff := cmp.Diff([]time.Duration{5 * time.Second, 0, 0}, took); diff != "" || i.fetches.Load() != 1 {
			t.Errorf("%d fetches; waits (-want +got):\n%s", i.fetches.Load(), diff)
		}
	})
}

// Over real connections: a redirect is not followed, and a body without end is cut.
func TestIssuerOverHTTP(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	mux.HandleFunc("/good", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(allKeys()) })
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/good", http.StatusFound) })
	mux.HandleFunc("/endless", func(w http.ResponseWriter, _ *http.Request) {
		chunk := make([]byte, 64<<10)
		for {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	f := func(path, want string) {
		t.Helper()
		u := &urlKeys{url: server.URL + path, client: withoutRedirects(server.Client()), now: time.Now, refresh: time.Minute, maxAge: time.Hour}
		k, err := u.key(t.Context(), "ed-1", "EdDSA")
		got := k.id
		if err != nil {
			got = strings.ReplaceAll(err.Error(), server.URL, "")
		}
		if got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	f("/good", "ed-1")
	f("/moved", "fetch /moved: status 302")
	f("/endless", "fetch /endless: key set: larger than 1048576 bytes")
}
