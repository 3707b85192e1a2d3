package edge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tarik-kv/tarik/internal/tenant"
)

// Options are what a Server needs besides its configuration. Zero fields have defaults.
type Options struct {
	// Name is what metrics and logs call the listener: "clients", "admin". Default: clients.
	Name    string
	Log     *slog.Logger // default: none
	Metrics *Metrics     // default: not exported
}

// Server is an HTTP server on a listener of its own.
type Server struct {
	cfg  ListenConfig
	name string
	ln   net.Listener
	srv  *http.Server
	tls  *serverTLS // nil: plain
	next http.Handler
	log  *slog.Logger
	m    *Metrics
	done chan struct{}
	err  error // once done is closed

	drain drain
}

// Listen serves h as c, which is valid, says, until [Server.Close] or [Server.Shutdown].
func Listen(c ListenConfig, h http.Handler, o Options) (*Server, error) {
	s := &Server{cfg: c, name: o.Name, next: h, log: o.Log, m: o.Metrics.orNew(), done: make(chan struct{})}
	if s.name == "" {
		s.name = "clients"
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.drain.ended = make(chan struct{})
	s.m.Phase.WithLabelValues(s.name).Set(float64(Serving))
	s.srv = &http.Server{
		Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: time.Duration(c.HeaderTimeout), IdleTimeout: time.Duration(c.IdleTimeout),
		MaxHeaderBytes: int(c.HeaderBytes), Protocols: new(http.Protocols), ConnState: s.connState,
		DisableGeneralOptionsHandler: true, // nothing is answered to whom nobody has asked who he is
		ErrorLog:                     slog.NewLogLogger(serverLog{s.log.Handler(), func() { s.m.Handshakes.WithLabelValues(s.name).Inc() }}, slog.LevelWarn),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: int(c.Streams), WriteByteTimeout: time.Duration(c.ReplyTimeout),
			// A peer that has gone without a word is noticed; HTTP/1.1 connections have TCP's keep-alive.
			SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second,
		},
	}
	s.srv.Protocols.SetHTTP1(true)
	serve := s.srv.Serve
	if c.TLS == nil {
		s.srv.Protocols.SetUnencryptedHTTP2(true)
	} else {
		s.srv.Protocols.SetHTTP2(true)
		var err error
		if s.tls, err = loadServerTLS(*c.TLS); err != nil {
			return nil, err
		}
		s.srv.TLSConfig = s.tls.config()
		serve = func(ln net.Listener) error { return s.srv.ServeTLS(ln, "", "") }
		s.notAfter()
	}
	ln, err := net.Listen("tcp", c.Address)
	if err != nil {
		return nil, err
	}
	s.ln = s.admit(ln)
	go func() {
		defer close(s.done)
		if err := serve(s.ln); !errors.Is(err, http.ErrServerClosed) {
			s.err = err
		}
	}()
	return s, nil
}

// URL is the server's address.
func (s *Server) URL() string {
	if s.tls != nil {
		return "https://" + s.ln.Addr().String()
	}
	return "http://" + s.ln.Addr().String()
}

// Done is closed when the server has stopped, also by itself; then Err says why.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err is why the server stopped by itself, nil before, and nil after Close or Shutdown.
func (s *Server) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// Reload reads the certificates again. See [Reloader].
func (s *Server) Reload() (changed []string, err error) {
	if s.tls == nil {
		return nil, nil
	}
	changed, err = s.tls.Reload()
	s.notAfter()
	return changed, err
}

var _ Reloader = (*Server)(nil)

func (s *Server) notAfter() {
	s.m.NotAfter.WithLabelValues(s.name).Set(float64(s.tls.get().leaf.NotAfter.Unix()))
}

// Check reads the files of c, which is valid, and describes the listener in one line.
func (c ListenConfig) Check() (string, error) {
	text := c.Address + ", plain HTTP/1.1 and HTTP/2"
	if c.TLS != nil {
		t, err := loadServerTLS(*c.TLS)
		if err != nil {
			return "", err
		}
		text = c.Address + ", " + t.get().describe(*c.TLS)
		if now := time.Now(); now.After(t.get().leaf.NotAfter) {
			text += " (IT HAS ENDED)"
		}
	}
	if c.Allow != nil {
		text += ", for " + strings.Join(c.Allow, ", ") + " only"
	}
	return text, nil
}

// serve is the outermost handler.
func (s *Server) serve(w http.ResponseWriter, req *http.Request) {
	if req.ProtoMajor == 1 && (len(req.TransferEncoding) > 0 || req.ProtoMinor == 0) {
		// Had the request a Content-Length beside its Transfer-Encoding, net/http has taken it out without a word.
		// A proxy in front that goes by the length sees other requests in these bytes, so nothing that follows them
		// on this connection is served. HTTP/1.0 knows no Transfer-Encoding, and net/http reads past it.
		w.Header().Set("Connection", "close")
	}
	rep := newReply(w, req.URL.Path, time.Duration(s.cfg.ReplyTimeout), s.stalled("reply"))
	if req.Body == nil || req.Body == http.NoBody {
		s.handle(rep, req)
		return
	}
	body := &timedBody{
		ReadCloser: req.Body, rc: rep.rc, patience: time.Duration(s.cfg.BodyTimeout), begin: time.Now(),
		late: func() {
			s.stalled("request")()
			rep.replace(lateBody())
			s.m.count(lateBody())
		},
	}
	timed := *req // net/http looks at the body in its own
	timed.Body = body
	s.handle(rep, &timed)
	if expects := req.Header.Get("Expect") != ""; req.ProtoMajor == 1 && (!expects || body.got > 0) {
		body.linger(rep)
	}
}

// handle lets a request in and answers it.
func (s *Server) handle(rep *reply, req *http.Request) {
	if isHealth(req) {
		if s.Phase() != Serving {
			s.refuse(rep, stopping())
			return
		}
	} else {
		if !s.drain.enter() {
			s.refuse(rep, stopping())
			return
		}
		defer s.drain.leave()
		if s.Phase() == Leaving {
			rep.Header().Set("Connection", "close") // the client's next request is for another replica
		}
	}
	defer s.guard(rep, req)
	s.next.ServeHTTP(rep, req)
	rep.end()
}

func (s *Server) stalled(what string) func() {
	return func() {
		s.m.Stalled.WithLabelValues(what).Inc()
		s.log.Debug("gave up a client that stalled", "listener", s.name, "what", what)
	}
}

func (s *Server) refuse(w *reply, f *refusal) {
	s.m.count(f)
	f.write(w, w.path)
}

// guard says in the log what a bug did and ends the request: with 500 if no answer has begun, else so that the
// client sees a broken reply. Others go on.
func (s *Server) guard(rep *reply, req *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler) // meant
	}
	s.m.Panics.Inc()
	s.log.Error("a request ended by a bug of the router", "listener", s.name, "method", clip(req.Method), "path", clip(req.URL.Path),
		"panic", describe(v), "stack", string(debug.Stack()))
	if rep.end() {
		panic(http.ErrAbortHandler)
	}
	s.refuse(rep, bug())
}

// describe says what a panic was about. Values that are neither the runtime's nor this module's may hold what a
// client sent.
func describe(v any) string {
	switch v := v.(type) {
	case runtime.Error:
		return v.Error()
	case string:
		if strings.HasPrefix(v, "BUG:") {
			return v
		}
	}
	return fmt.Sprintf("a %T", v)
}

// clip bounds what a client chooses and a log gets.
func clip(s string) string {
	const most = 128
	if len(s) > most {
		return s[:most]
	}
	return s
}

func isHealth(req *http.Request) bool {
	return req.URL.Path == "/health" && (req.Method == http.MethodGet || req.Method == http.MethodHead)
}

// admit wraps ln so that connections nobody wants are closed before a byte is read.
func (s *Server) admit(ln net.Listener) net.Listener {
	a := &admitting{Listener: ln, most: int64(s.cfg.Connections), refused: func(why string) { s.m.Closed.WithLabelValues(s.name, why).Inc() }}
	for _, p := range s.cfg.Allow {
		prefix, err := tenant.ParsePeer(p)
		if err != nil {
			panic("BUG: edge: a configuration that was not validated: " + err.Error())
		}
		a.allow = append(a.allow, prefix)
	}
	return a
}

// admitting is a listener with limits.
type admitting struct {
	net.Listener
	allow   []netip.Prefix // nil: everybody
	most    int64          // connections, below 1 for any number
	refused func(why string)
	open    atomic.Int64
}

func (a *admitting) Accept() (net.Conn, error) {
	for {
		c, err := a.Listener.Accept()
		if err != nil {
			return nil, err
		}
		switch {
		case !a.allows(c.RemoteAddr()):
			a.refused("peer")
		case a.most > 0 && a.open.Load() >= a.most:
			a.refused("limit")
		default:
			a.open.Add(1)
			return &admitted{Conn: c, l: a}, nil
		}
		_ = c.Close() // nothing was said on it
	}
}

func (a *admitting) allows(addr net.Addr) bool {
	return a.allow == nil || slices.ContainsFunc(a.allow, func(p netip.Prefix) bool { return p.Contains(peerOf(addr.String())) })
}

// admitted is a connection that counts.
type admitted struct {
	net.Conn
	l    *admitting
	once sync.Once
}

func (c *admitted) Close() error {
	c.once.Do(func() { c.l.open.Add(-1) })
	return c.Conn.Close()
}

// CloseWrite lets net/http send the rest of an answer before it closes a connection it has not read to the end.
func (c *admitted) CloseWrite() error {
	if cw, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return nil
}

// peerOf is the address of a connection's other end, the zero Addr if it has none.
func peerOf(remote string) netip.Addr {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap().WithZone("")
}

func (s *Server) connState(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.m.Connections.WithLabelValues(s.name).Inc()
	case http.StateClosed, http.StateHijacked:
		s.m.Connections.WithLabelValues(s.name).Dec()
	case http.StateActive, http.StateIdle:
	}
}

// handshakeFailed is how net/http begins its line about one.
const handshakeFailed = "http: TLS handshake error"

// serverLog takes net/http's own lines: failed handshakes, which anybody can cause, are counted.
type serverLog struct {
	slog.Handler
	handshake func()
}

// Enabled is true for all: what is not logged may have to be counted.
func (serverLog) Enabled(context.Context, slog.Level) bool { return true }

func (l serverLog) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, handshakeFailed) {
		l.handshake()
		r.Level = slog.LevelDebug
	}
	if !l.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return l.Handler.Handle(ctx, r)
}
