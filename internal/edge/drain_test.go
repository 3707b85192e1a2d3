package edge

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tarik-kv/tarik/internal/tenant"
)

// until waits for a phase.
func (s *started) until(p Phase) {
	s.t.Helper()
	for range 30000 {
		if s.Phase() >= p {
			return
		}
		time.Sleep(time.Millisecond)
	}
	s.t.Fatalf("the server is %s, want %s", s.Phase(), p)
}

// held is a handler that says when a request has come and lets it go when told to.
type held struct {
	entered, leave chan struct{}
}

func newHeld() *held { return &held{make(chan struct{}, 8), make(chan struct{})} }

func (h *held) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/health" {
		w.WriteHeader(http.StatusOK)
		return
	}
	if strings.HasPrefix(req.URL.Path, "/hold") {
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, "first, ")
		_ = http.NewResponseController(w).Flush()
		h.entered <- struct{}{}
		select {
		case <-h.leave:
		case <-req.Context().Done():
			return
		}
		_, _ = io.WriteString(w, "last")
		return
	}
	echo(w, req)
}

// TestG07Drain plays a rollout: health fails first, requests are still served; then new ones are refused while a
// stream goes on to its end; then the server is gone.
func TestG07Drain(t *testing.T) {
	t.Parallel()
	h := newHeld()
	s := start(t, local(), h)
	admin := s.Health(h)
	c := client(t, nil)
	f := func(path string, wantStatus int, wantClose bool) {
		t.Helper()
		status, _, res, err := call(t, c, "GET", s.URL()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if status != wantStatus || res.Close != wantClose {
			t.Errorf("%s, %s: %d, closing %v; want %d, %v", s.Phase(), path, status, res.Close, wantStatus, wantClose)
		}
	}
	f("/health", 200, false)
	f("/x", 200, false)
	stream := dial(t, s.addr()).send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n")
	<-h.entered
	idle := dial(t, s.addr()).send("GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
	if status, _, _ := idle.answer(); status != 200 {
		t.Fatal(status)
	}

	s.to(Leaving) // for as long as this test needs
	f("/health", 503, true)
	f("/x", 200, true) // served, and the next one is for another replica
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.Shutdown(t.Context(), ShutdownConfig{Delay: tenant.Duration(time.Millisecond), Drain: seconds(3600)})
	}()
	s.until(Draining)
	f("/health", 503, true)
	f("/x", 503, true)
	if status, body, header := idle.send("POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc").answer(); status != 503 ||
		body != `{"type":"error","error":{"type":"overloaded_error","message":"this router is stopping; try again"}}` || header.Get("Retry-After") != "1" || header.Get("Connection") != "close" {
		t.Errorf("on a connection that was idle: %d %s %v", status, body, header)
	}
	two := client(t, func(tr *http.Transport) {
		tr.Protocols = new(http.Protocols)
		tr.Protocols.SetUnencryptedHTTP2(true)
	})
	if status, _, _, err := call(t, two, "GET", s.URL()+"/x", nil); err != nil || status != 503 {
		t.Errorf("over HTTP/2: %d, %v, want 503", status, err)
	}
	select {
	case <-stopped:
		t.Error("stopped with a stream in progress")
	default:
	}
	close(h.leave)
	if status, body, _ := stream.answer(); status != 200 || body != "first, last" {
		t.Errorf("the stream got %d %q, want its end", status, body)
	}
	<-stopped
	if s.Phase() != Stopped || s.Err() != nil {
		t.Errorf("the server is %s, %v", s.Phase(), s.Err())
	}
	if _, _, _, err := call(t, c, "GET", s.URL()+"/x", nil); err == nil {
		t.Error("it still answers")
	}
	for path, want := range map[string]int{"/health": 503, "/x": 200} { // operators may still look
		w := &recorder{header: http.Header{}}
		req, err := http.NewRequestWithContext(t.Context(), "GET", path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		admin.ServeHTTP(w, req)
		if w.status != want {
			t.Errorf("admin %s: %d, want %d", path, w.status, want)
		}
	}
	var lines []string
	for line := range strings.Lines(s.log.String()) {
		for _, phase := range []string{"health fails", "are refused", "are cut"} {
			if strings.Contains(line, phase) {
				lines = append(lines, phase)
			}
		}
	}
	if diff := cmp.Diff([]string{"health fails", "are refused"}, lines); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	if n := count(t, s.metrics, "tarik_edge_phase"); n != float64(Stopped) {
		t.Errorf("the phase is exported as %v", n)
	}
}

type recorder struct {
	header http.Header
	status int
}

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) WriteHeader(s int)   { r.status = s }
func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = 200
	}
	return len(b), nil
}

// What has not ended in time is cut, and so is everything at a second signal; clients see that their replies are
// not whole, and the handlers have ended when Shutdown returns.
func TestDrainCuts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg   ShutdownConfig
		hurry bool
	}{
		"time is over":    {ShutdownConfig{Drain: tenant.Duration(time.Millisecond)}, false},
		"a second signal": {ShutdownConfig{Drain: seconds(3600)}, true},
		"in the delay":    {ShutdownConfig{Delay: seconds(3600), Drain: seconds(3600)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHeld()
			s := start(t, local(), h)
			one := dial(t, s.addr()).send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n")
			two := client(t, func(tr *http.Transport) {
				tr.Protocols = new(http.Protocols)
				tr.Protocols.SetUnencryptedHTTP2(true)
			})
			second := make(chan error)
			go func() {
				_, _, _, err := call(t, two, "GET", s.URL()+"/hold", nil)
				second <- err
			}()
			<-h.entered
			<-h.entered
			ctx, hurry := context.WithCancel(t.Context())
			defer hurry()
			if c.hurry {
				go func() {
					s.until(Leaving)
					hurry()
				}()
			}
			s.Shutdown(ctx, c.cfg)
			s.drain.mu.Lock()
			if s.drain.inProgress != 0 {
				t.Errorf("%d requests in progress after Shutdown", s.drain.inProgress)
			}
			s.drain.mu.Unlock()
			if _, body, _ := one.answer(); body != "(broken) first, " {
				t.Errorf("HTTP/1: %q, want a reply that is seen to be broken", body)
			}
			if err := <-second; err == nil {
				t.Error("HTTP/2: the reply looks whole")
			}
			if !strings.Contains(s.log.String(), "requests in progress are cut") {
				t.Errorf("the log does not say so:\n%s", s.log)
			}
		})
	}
}

// Connections on which nothing was ever sent keep nobody waiting.
func TestCloseWithIdleConnections(t *testing.T) {
	t.Parallel()
	s := start(t, local(), newHeld())
	silent := dial(t, s.addr())
	used := dial(t, s.addr()).send("GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
	if status, _, _ := used.answer(); status != 200 {
		t.Fatal(status)
	}
	s.Close(time.Hour)
	for _, c := range []*raw{silent, used} {
		if got := c.answers(); len(got) != 0 {
			t.Errorf("got %v, want the end of the connection", got)
		}
	}
}

// Whatever the order of requests and phases: nobody is let in once the server drains, and it has drained exactly
// when all who were let in have left.
func TestDrainCounts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := drain{ended: make(chan struct{})}
		in, phase := 0, Serving
		ended := func() bool {
			select {
			case <-d.ended:
				return true
			default:
				return false
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				if got, want := d.enter(), phase < Draining; got != want {
					t.Fatalf("enter() = %v while %s", got, phase)
				} else if got {
					in++
				}
			},
			"leave": func(t *rapid.T) {
				if in == 0 {
					t.Skip("nobody is in")
				}
				d.leave()
				in--
			},
			"advance": func(t *rapid.T) {
				to := rapid.SampledFrom([]Phase{Serving, Leaving, Draining, Stopped}).Draw(t, "to")
				phase = max(phase, to)
				if got := d.advance(to); got != in {
					t.Fatalf("advance(%s) = %d, want %d", to, got, in)
				}
			},
			"": func(t *rapid.T) {
				if d.phase != phase || d.inProgress != in {
					t.Fatalf("%s with %d in progress, want %s with %d", d.phase, d.inProgress, phase, in)
				}
				if want := phase >= Draining && in == 0; ended() && !want && in > 0 || want && !ended() {
					t.Fatalf("ended: %v, while %s with %d in progress", ended(), phase, in)
				}
			},
		})
	})
}
