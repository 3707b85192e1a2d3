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
			aborts := make(chan string, 4)
			backend := &fakeBackend{scripts: [][]engine.Output{c.script, c.script}, hold: true, onAbort: func(id string) { aborts <- id }}
			s := newTestServer(t, "", backend, nil)
			done := make(chan struct{})
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer close(done)
				s.Handler().ServeHTTP(w, r)
			}))
			defer srv.Close()
			ctx, cancel := context.WithCancel(t.Context())
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/v1/completions", strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("X-Request-Id", "r")
			if strings.Contains(c.body, "stream") {
				resp, err := srv.Client().Do(r) // headers come before the first token
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				cancel()
			} else {
				backend.onSubmit = func(id string) {
					if strings.HasPrefix(id, "1_") {
						cancel()
					}
				}
				if resp, err := srv.Client().Do(r); err == nil {
					resp.Body.Close()
					t.Error("the request was answered")
				}
			}
			got := map[string]bool{<-aborts: true, <-aborts: true}
			if d := cmp.Diff(map[string]bool{"0_cmpl-r-0-00000000": true, "1_cmpl-r-0-00000000": true}, got); d != "" {
				t.Errorf("aborted (-want +got):\n%s", d)
			}
			<-done // the handler waits for its goroutines
		})
	}
}
