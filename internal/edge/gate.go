package edge

import (
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/tarik-kv/tarik/internal/tenant"
)

// GateOptions are what a Gate needs besides the tenants. Zero fields have defaults.
type GateOptions struct {
	Now     func() time.Time // default: time.Now
	Log     *slog.Logger     // default: none
	Metrics *Metrics         // default: not exported
}

// Gate is next behind authentication and limits. GET /health is for everybody; every other request
//
//   - loses the headers that only a router or gateway may set,
//   - is authenticated by g, before a byte of its body is read, or refused (401, 403, 503),
//   - is let in by g's limits or refused (413, 429, 503), and counts in them until next returns: its place, and its
//     body's bytes as they are declared or as they arrive, whichever is more, after decompression of gzip,
//   - loses its credentials if g authenticates anybody, and
//   - has its client in its context, see [tenant.FromContext].
//
// A body that turns out to be too much while next reads it gets the refusal as its answer, whatever next says to the
// failed read. next has to read the body from the goroutine it was called on, or end after the reader has.
func Gate(next http.Handler, g *tenant.Gate, o GateOptions) http.Handler {
	a := &gate{next: next, tenants: g, now: o.Now, m: o.Metrics.orNew(), log: o.Log, said: map[string]*sayings{}}
	if a.now == nil {
		a.now = time.Now
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	return a
}

type gate struct {
	next    http.Handler
	tenants *tenant.Gate
	now     func() time.Time
	m       *Metrics
	log     *slog.Logger

	mu   sync.Mutex
	said map[string]*sayings // by reason; bounded, because reasons are
}

func (a *gate) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if isHealth(req) {
		a.next.ServeHTTP(w, req)
		return
	}
	rep, ok := w.(*reply)
	if !ok { // not behind a Server
		rep = newReply(w, req.URL.Path, 0, nil)
		defer rep.end()
	}
	if stripReserved(req.Header) {
		a.m.Stripped.Inc()
	}
	id, err := a.tenants.Authenticate(req.Context(), req.Header, peerOf(req.RemoteAddr))
	if err != nil {
		var no *tenant.AuthError
		if !errors.As(err, &no) {
			panic("BUG: edge: tenant.Gate.Authenticate returned an error of another type")
		}
		var why []any
		if no.Cause != nil {
			why = []any{"cause", no.Cause}
		}
		a.refuse(rep, fromAuth(no), why...)
		return
	}
	lease, d := a.tenants.Acquire(id, req.ContentLength, a.now())
	if !d.OK() {
		a.refuse(rep, fromDecision(d), "key", id.Key, "limit", d.Limit, "declared_bytes", req.ContentLength)
		return
	}
	defer lease.Release()
	a.tenants.StripCredentials(req.Header)
	req = req.WithContext(tenant.NewContext(req.Context(), id))
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = newCountedBody(req, lease, func(f *refusal) {
			a.count(f, "key", id.Key)
			rep.replace(f)
		})
	}
	a.next.ServeHTTP(rep, req)
}

func (a *gate) refuse(rep *reply, f *refusal, attrs ...any) {
	a.count(f, attrs...)
	f.write(rep, rep.path)
}

// sayings is what has been logged of one reason.
type sayings struct {
	at     time.Time // of the last line
	unsaid int       // refusals since
}

// sayEvery is how often one reason is logged.
const sayEvery = 10 * time.Second

// count counts a refusal and logs it: the first of its reason, then at most one every sayEvery with the number of
// those in between, because anybody can cause as many as he likes.
func (a *gate) count(f *refusal, attrs ...any) {
	a.m.count(f)
	now := a.now()
	a.mu.Lock()
	s := a.said[f.code]
	if s == nil {
		s = &sayings{}
		a.said[f.code] = s
	}
	unsaid, say := s.unsaid, s.at.IsZero() || now.Sub(s.at) >= sayEvery
	if say {
		s.at, s.unsaid = now, 0
	} else {
		s.unsaid++
	}
	a.mu.Unlock()
	if !say {
		return
	}
	all := []any{"status", f.status, "reason", f.code}
	if f.scope != "" {
		all = append(all, "scope", string(f.scope))
	}
	if unsaid > 0 {
		all = append(all, "not_logged", unsaid)
	}
	a.log.Info("request refused", append(all, attrs...)...)
}
