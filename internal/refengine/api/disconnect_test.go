package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// A client that goes away aborts all its sequences, streamed or not, before and after the first token.
func TestClientGone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, body string
		script     []engine.Output
	}{
		{"whole", `{"prompt":"x","n":2}`, nil},
		{"whole, generating", `{"prompt":"x","n":2}`, says("ab", engine.FinishNone)},
		{"stream, waiting", `{"prompt":"x","n":2,"stream":true}`, nil},
		{"stream, generating", `{"prompt":"x","n":2,"stream":true}`, says("ab", engine.FinishNone)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, backend, aborts := newHeldServer(t, c.script)
			hangUp(t, s, backend, "/v1/completions", c.body, "1_")
			got := map[string]bool{<-aborts: true, <-aborts: true}
			if d := cmp.Diff(map[string]bool{"0_cmpl-r-0-00000000": true, "1_cmpl-r-0-00000000": true}, got); d != "" {
				t.Errorf("aborted (-want +got):\n%s", d)
			}
		})
	}
}

// newHeldServer returns a server whose requests go on until they are aborted, and the ids of those that were.
func newHeldServer(t *testing.T, script []engine.Output) (*Server, *fakeBackend, <-chan string) {
	aborts := make(chan string, 4)
	backend := &fakeBackend{scripts: [][]engine.Output{script, script}, hold: true, onAbort: func(id string) { aborts <- id }}
	return newTestServer(t, "", backend, nil), backend, aborts
}

// hangUp sends a request and goes away: when the headers are there, or, if they only come with the reply, when
// a request whose id begins with last is in the engine. It waits until the handler has returned.
func hangUp(t *testing.T, s *Server, backend *fakeBackend, path, body, last string) {
	t.Helper()
	done := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(done) // it waits for its goroutines
		s.Handler().ServeHTTP(w, r)
	}))
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Request-Id", "r")
	if strings.Contains(body, `"stream":true`) {
		resp, err := srv.Client().Do(r) // headers come before the first token
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		cancel()
	} else {
		backend.onSubmit = func(id string) {
			if strings.HasPrefix(id, last) {
				cancel()
			}
		}
		if resp, err := srv.Client().Do(r); err == nil {
			resp.Body.Close()
			t.Error("the request was answered")
		}
	}
	<-done
}

// The same for responses and messages, in the middle of a tool call too.
func TestClientGoneDialects(t *testing.T) {
	t.Parallel()
	call := inWords(cutCall, engine.FinishNone)
	for path, c := range map[string]struct{ body, id string }{
		"/v1/responses": {askResponse + `,` + responseTool, "resp_0000000000000000_0-00000000"},
		"/v1/messages":  {askMessage + `,` + messageTool, "chatcmpl-r-00000000"},
	} {
		for _, stream := range []string{`{`, `{"stream":true,`} {
			for _, script := range [][]engine.Output{nil, says("ab", engine.FinishNone), call} {
				s, backend, aborts := newHeldServer(t, script)
				s.opts.ResponsesStore = true
				hangUp(t, s, backend, path, stream+c.body+`}`, "")
				if got := <-aborts; got != c.id {
					t.Errorf("%s %s...: aborted %q, want %q", path, stream, got, c.id)
				}
				if len(s.stored.byID) > 0 {
					t.Errorf("%s %s...: a response that never was is stored", path, stream)
				}
			}
		}
	}
}
