package edge

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/tarik-kv/tarik/internal/tenant"
)

// Phase is how far a server has got in stopping.
type Phase int

// The phases, in order.
const (
	Serving  Phase = iota // as usual
	Leaving               // GET /health fails, everything else is served on connections that close
	Draining              // new requests are refused, those in progress go on
	Stopped
)

func (p Phase) String() string {
	return [...]string{"serving", "leaving", "draining", "stopped"}[p]
}

// drain counts what is in progress.
//
// Invariant: a request that was let in is counted before the phase becomes Draining, or it is refused.
type drain struct {
	mu         sync.Mutex
	phase      Phase
	inProgress int
	ended      chan struct{} // closed once the phase is Draining or later and nothing is in progress
	closed     bool          // ended
}

func (d *drain) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.phase >= Draining {
		return false
	}
	d.inProgress++
	return true
}

func (d *drain) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inProgress--
	d.settle()
}

// settle closes ended when it is due. Callers hold the lock.
func (d *drain) settle() {
	if d.phase >= Draining && d.inProgress == 0 && !d.closed {
		d.closed = true
		close(d.ended)
	}
}

// advance goes on to p, never back, and returns how many requests are in progress.
func (d *drain) advance(p Phase) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.phase = max(d.phase, p)
	d.settle()
	return d.inProgress
}

// Phase is how far the server has got in stopping.
func (s *Server) Phase() Phase {
	s.drain.mu.Lock()
	defer s.drain.mu.Unlock()
	return s.drain.phase
}

const (
	// flushPatience is how long the last bytes of replies may take to leave, once their handlers have ended.
	flushPatience = time.Second
	// cutPatience is how long handlers may take to notice that their clients have been cut.
	cutPatience = 5 * time.Second
)

// Shutdown stops the server as c says: /health fails for c.Delay, then new requests are refused while those in
// progress have c.Drain to end, then what is left is cut. It returns when the server has stopped. The end of ctx cuts
// at once.
func (s *Server) Shutdown(ctx context.Context, c ShutdownConfig) { s.stop(ctx, c, slog.LevelInfo) }

// Close refuses new requests at once, gives those in progress the grace to end, and cuts what is left.
func (s *Server) Close(grace time.Duration) {
	s.stop(context.Background(), ShutdownConfig{Drain: tenant.Duration(grace)}, slog.LevelDebug)
}

func (s *Server) stop(ctx context.Context, c ShutdownConfig, say slog.Level) {
	background := context.WithoutCancel(ctx)
	if c.Delay > 0 {
		s.log.Log(background, say, "stopping: /health fails, requests are still served", "listener", s.name, "for", c.Delay.String(), "in_progress", s.to(Leaving))
		wait(ctx, time.Duration(c.Delay), s.done)
	}
	s.log.Log(background, say, "stopping: new requests are refused", "listener", s.name, "within", c.Drain.String(), "in_progress", s.to(Draining))
	if wait(ctx, time.Duration(c.Drain), s.drain.ended) {
		// Handlers have ended, their last bytes may still be on the way.
		flush, cancel := context.WithTimeout(ctx, flushPatience)
		_ = s.srv.Shutdown(flush) // what is still open is closed below
		cancel()
	} else {
		s.log.Log(background, max(say, slog.LevelWarn), "stopping: requests in progress are cut", "listener", s.name, "in_progress", s.to(Draining))
	}
	_ = s.srv.Close() // nothing more can be done for them
	<-s.done
	if !wait(background, cutPatience, s.drain.ended) {
		s.log.Error("stopped, with requests that have not ended though their clients were cut", "listener", s.name, "in_progress", s.to(Draining))
	}
	s.to(Stopped)
}

func (s *Server) to(p Phase) (inProgress int) {
	s.m.Phase.WithLabelValues(s.name).Set(float64(p))
	return s.drain.advance(p)
}

// wait waits until done, at most d, at most as long as ctx. It reports whether it is done.
func wait(ctx context.Context, d time.Duration, done <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	select { // both may have come together
	case <-done:
		return true
	default:
		return false
	}
}

// Health is next with a GET /health that fails as soon as s is on its way out: for the listener of operators, where
// a balancer may ask too.
func (s *Server) Health(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if isHealth(req) && s.Phase() != Serving {
			stopping().write(w, req.URL.Path)
			return
		}
		next.ServeHTTP(w, req)
	})
}
