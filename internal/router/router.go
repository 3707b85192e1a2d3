package router

import (
	"compress/gzip"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tarik-kv/tarik/internal/conv"
	"github.com/tarik-kv/tarik/internal/fleet"
	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/price"
	"github.com/tarik-kv/tarik/internal/telemetry"
	"github.com/tarik-kv/tarik/internal/tenant"
	"github.com/tarik-kv/tarik/internal/turn"
	"github.com/tarik-kv/tarik/internal/upstream"
)

// Config is one router in front of one P and one D.
type Config struct {
	Prefill string // URL of the prefill engine
	Decode  string // URL of the decode engine
	// Reuse off never gives P a handle. P's and D's own prefix caches work all the same.
	Reuse bool
	// Return prepares P for the next turn after each one, and has prices decide where a turn's old tokens
	// come from. Off, handles are held until the next turn, which always uses them.
	Return bool
	// Append lets D serve a turn alone when that is cheaper and its other streams can bear it. It does
	// nothing without Return.
	Append bool
	// HandleTTL is D's decoder_kv_blocks_ttl. A handle is used up to 30 s less: P checks the age
	// when its READ starts, and a late one fails.
	HandleTTL time.Duration
	Threshold int   // P's kv_recompute_threshold, in tokens: it reads no fewer from D
	MaxBody   int64 // bytes of a client's request; more is answered with 413
	MaxReply  int64 // bytes of an engine's reply that is not streamed; more is answered with 502
	// KeepAlive is how long a client that waits for a stream hears nothing before it gets the headers
	// and a comment, and after that how long between comments. 0 is never: the first thing sent is the
	// engine's, with the engine's status.
	KeepAlive time.Duration
	// HealthInterval is how often the engines are asked how they are.
	HealthInterval time.Duration
	// Pass lists further paths that go to an engine. All others are answered with 404.
	Pass []Pass
	// Registry gets the router's metrics and is what GET /metrics shows; nil is one of its own.
	Registry *prometheus.Registry
	// Transport carries the calls to the engines; nil is plain HTTP without keys.
	Transport http.RoundTripper
	// Salt makes the cache_salt of a tenant's request of what the client sent as one. nil: a
	// client's own salt is hashed with a secret of this process.
	Salt func(tenant, clientSalt string) string
	// ConversationHeader is the operator's own header that names a conversation, "" for none.
	ConversationHeader string
	// ItemBytes bounds what is kept of stored responses, for previous_response_id.
	ItemBytes int
	Store     conv.Limits
	Receipts  *telemetry.Receipts
	Log       *slog.Logger

	probePatience time.Duration // probePatience, less in tests
	appendPremium float64       // price.AppendPremium, less in tests
}

// DefaultConfig lacks only the engines, the receipts and the log.
func DefaultConfig() Config {
	return Config{
		Reuse: true, Return: true, Append: true, HandleTTL: 480 * time.Second, Threshold: 64, MaxBody: 64 << 20, MaxReply: 256 << 20,
		HealthInterval: 2 * time.Second, Store: conv.DefaultLimits, ItemBytes: conv.DefaultItemBytes,
		appendPremium: price.AppendPremium,
	}
}

// HandleMargin is how much earlier than D the router gives a handle up: 5 s that P itself insists
// on, and time to wait in P's queue.
const HandleMargin = 30 * time.Second

// Validate says what is wrong with c, naming the flag.
func (c Config) Validate() error {
	switch {
	case c.Prefill == "":
		return errors.New("--prefill: the URL of the prefill engine is missing")
	case c.Decode == "":
		return errors.New("--decode: the URL of the decode engine is missing")
	case c.HandleTTL <= HandleMargin:
		return fmt.Errorf("--handle-ttl %s: must be more than the safety margin of %s, or no handle could ever be used; set it to D's decoder_kv_blocks_ttl", c.HandleTTL, HandleMargin)
	case c.KeepAlive < 0:
		return fmt.Errorf("keepalive %s: want 0 or more", c.KeepAlive)
	case c.MaxBody < 1024:
		return fmt.Errorf("--max-body %d: want at least 1024 bytes", c.MaxBody)
	}
	return nil
}

// Router serves clients. See the package documentation.
type Router struct {
	cfg      Config
	client   *http.Client
	prefill  *fleet.Engine
	decode   *fleet.Engine
	store    *conv.Memory
	items    *conv.Items
	receipts *telemetry.Receipts
	metrics  *telemetry.Metrics
	registry *prometheus.Registry
	log      *slog.Logger
	secret   [32]byte
	salt     func(tenant, clientSalt string) string
	epoch    time.Time
	// unverified is set only by the test that shows what verification is for.
	unverified bool
	// ahead moves the clock, in nanoseconds. Only tests of what time does set it.
	ahead atomic.Int64

	priceMu sync.Mutex
	price   price.Models

	renderMs atomic.Uint64 // what the last rendering took, a float64

	returns   *returner
	streams   atomic.Int64               // on D
	appending atomic.Int64               // turns that D serves alone at the moment
	noAppend  atomic.Int64               // D was asked for what it no longer had: no appends until then
	append    atomic.Pointer[appendMark] // the latest

	free       chan kvp.Handle // for the releasers
	unseen     unseen
	unseenOnce sync.Once // says so

	stop    context.CancelFunc
	tasks   sync.WaitGroup
	probe   chan struct{} // wakes the prober
	settled chan struct{} // closed when it is known whether P reads handles
	once    sync.Once     // closes settled
}

// New returns a router that has asked its engines once and goes on asking them until Close. Engines
// that do not answer yet are no error: turns get a 503 until they do.
func New(cfg Config) (*Router, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Router{
		cfg: cfg, client: engineClient(cfg.Transport), store: conv.NewMemory(cfg.Store), items: conv.NewItems(cfg.ItemBytes),
		receipts: cfg.Receipts, registry: cfg.Registry, log: cfg.Log, epoch: time.Now(),
		probe: make(chan struct{}, 1), settled: make(chan struct{}), free: make(chan kvp.Handle, freeQueue),
	}
	if r.registry == nil {
		r.registry = prometheus.NewRegistry()
	}
	if r.receipts == nil {
		r.receipts = telemetry.NewReceipts(1024, nil)
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if r.cfg.probePatience == 0 {
		r.cfg.probePatience = probePatience
	}
	r.cfg.ConversationHeader = http.CanonicalHeaderKey(cfg.ConversationHeader)
	if r.salt = cfg.Salt; r.salt == nil {
		r.salt = r.ownSalt
	}
	r.metrics = telemetry.NewMetrics(r.registry)
	r.returns = newReturner(r)
	if _, err := rand.Read(r.secret[:]); err != nil {
		return nil, fmt.Errorf("make a secret for salts: %w", err)
	}
	var err error
	if r.prefill, err = fleet.New(fleet.Prefill, cfg.Prefill, r.client); err != nil {
		return nil, err
	}
	if r.decode, err = fleet.New(fleet.Decode, cfg.Decode, r.client); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	engines := []*fleet.Engine{r.prefill, r.decode}
	r.tasks.Go(func() { fleet.Watch(ctx, cfg.HealthInterval, engines, r.afterWatch()) })
	r.tasks.Go(func() { r.prober(ctx) })
	r.tasks.Go(func() { r.returns.run(ctx) })
	for range releasers {
		r.tasks.Go(func() { r.releaser(ctx) })
	}
	return r, nil
}

// Ready waits until both engines answer and, if handles are to be used, P has shown whether it reads
// them.
func (r *Router) Ready(ctx context.Context) error {
	select {
	case <-r.settled:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the engines: %w (prefill: %s; decode: %s)", ctx.Err(), orUp(r.prefill.Info()), orUp(r.decode.Info()))
	}
}

// Close ends everything the router runs by itself. Turns must have ended: shut the server down
// first.
func (r *Router) Close() {
	r.stop()
	r.tasks.Wait()
	r.receipts.Flush()
	r.client.CloseIdleConnections()
}

// engineClient follows no redirect: an engine has none to give, and whoever answers in its place
// must not choose where prompts go.
func engineClient(t http.RoundTripper) *http.Client {
	if t == nil {
		t = upstream.New(Transport())
	}
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Transport keeps connections to the engines alive for less than the 5 s after which vLLM closes
// an idle one: a POST on a connection that has just been closed would fail.
func Transport() *http.Transport {
	d := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}
	return &http.Transport{
		DialContext: d.DialContext, MaxIdleConns: 4096, MaxIdleConnsPerHost: 4096, IdleConnTimeout: 4 * time.Second,
		DisableCompression: true, WriteBufferSize: 64 << 10, ReadBufferSize: 64 << 10, ExpectContinueTimeout: time.Second,
	}
}

// now is the time on the router's own clock, which never jumps.
func (r *Router) now() time.Duration { return time.Since(r.epoch) + time.Duration(r.ahead.Load()) }

// models returns the prices as they are now.
func (r *Router) models() price.Models {
	r.priceMu.Lock()
	defer r.priceMu.Unlock()
	return r.price
}

func (r *Router) learn(f func(m *price.Models)) {
	r.priceMu.Lock()
	defer r.priceMu.Unlock()
	f(&r.price)
}

// observe notes a P call that computed tokens behind ctx others.
func (r *Router) observe(computed, ctx int, took time.Duration) {
	r.learn(func(m *price.Models) { m.ObserveRecompute(computed, ctx, took) })
}

// observePull notes a P call that also read tokens from D.
func (r *Router) observePull(pulled, computed, ctx int, took time.Duration) {
	r.learn(func(m *price.Models) { m.ObservePullCall(pulled, computed, ctx, took) })
}

// sawPrefill and sawDecode note the engine id of a reply. Handles of an earlier life of D name
// memory that is gone.
func (r *Router) sawPrefill(engineID string) {
	if r.prefill.Saw(engineID) != "" {
		r.log.Info("prefill engine restarted", "prefill", r.prefill.String())
		r.wakeProber()
	}
}

func (r *Router) sawDecode(engineID string) {
	if ended := r.decode.Saw(engineID); ended != "" {
		n := r.store.Void(ended)
		r.metrics.HandlesUsed.WithLabelValues("restarted").Add(float64(n))
		r.log.Info("decode engine restarted", "decode", r.decode.String(), "handles_dropped", n)
		r.wakeProber()
	}
}

func (r *Router) distrust(why turn.Reason) {
	r.prefill.SetTrust(fleet.Unproven, string(why))
	r.metrics.PrefillTrust.WithLabelValues(r.prefill.String()).Set(0)
	r.log.Warn("prefill did not answer a turn with a handle in time; it gets no more until a probe has shown that it reads them",
		"prefill", r.prefill.String(), "why", string(why))
	r.wakeProber()
}

// afterWatch returns what happens after each round of health checks: old handles are let go, and
// changes are logged once.
func (r *Router) afterWatch() func() {
	var wasUp [2]bool
	first := true
	var mismatch string
	return func() {
		if n := r.store.Expire(r.now()); n > 0 {
			r.metrics.HandlesUsed.WithLabelValues("expired").Add(float64(n))
		}
		r.relieve(r.decode.Info())
		if r.decode.Info().Waiting > 0 {
			r.returns.press()
		}
		r.returns.wakeUp() // P may have more room
		for i, e := range []*fleet.Engine{r.prefill, r.decode} {
			info := e.Info()
			if first || info.Up != wasUp[i] {
				if info.Up {
					r.log.Info("engine up", "role", string(e.Role), "engine", e.String(), "version", info.Version, "block_size", info.BlockSize)
				} else {
					r.log.Warn("engine down", "role", string(e.Role), "engine", e.String(), "error", info.Err)
				}
			}
			wasUp[i] = info.Up
		}
		first = false
		if m := fleet.Mismatch(r.prefill.Info(), r.decode.Info()); m != mismatch {
			mismatch = m
			if m != "" {
				r.log.Error("the engines are no pair: no KV will move between them", "why", m)
			}
		}
		if !r.cfg.Reuse && r.prefill.Info().Up && r.decode.Info().Up {
			r.once.Do(func() { close(r.settled) })
		}
		if r.prefill.Info().Trust == fleet.Unproven {
			r.wakeProber()
		}
	}
}

// Handler serves clients.
func (r *Router) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+kvp.Chat.Path(), r.generate(kvp.Chat))
	mux.HandleFunc("POST "+kvp.Completions.Path(), r.generate(kvp.Completions))
	mux.HandleFunc("POST "+kvp.Responses.Path(), r.generate(kvp.Responses))
	mux.HandleFunc("POST "+kvp.Messages.Path(), r.generate(kvp.Messages))
	any := r.passThrough(r.prefill, r.decode)
	for _, path := range []string{"/v1/models", "/version"} {
		mux.HandleFunc("GET "+path, any)
	}
	for _, path := range []string{"/tokenize", "/detokenize", countTokens} {
		mux.HandleFunc("POST "+path, any)
	}
	for _, p := range r.cfg.Pass {
		mux.HandleFunc(p.Path, r.passRoute(p))
	}
	mux.HandleFunc("GET /health", r.health)
	mux.HandleFunc("/", notServed)
	return r.guard(mux)
}

// countTokens is Anthropic's route that counts and generates nothing.
const countTokens = "/v1/messages/count_tokens"

// methods are the routes of Handler, to tell a wrong method from a wrong path.
var methods = map[string]string{
	kvp.Chat.Path(): http.MethodPost, kvp.Completions.Path(): http.MethodPost,
	kvp.Responses.Path(): http.MethodPost, kvp.Messages.Path(): http.MethodPost, countTokens: http.MethodPost, "/tokenize": http.MethodPost, "/detokenize": http.MethodPost,
	"/v1/models": http.MethodGet, "/version": http.MethodGet, "/health": http.MethodGet,
}

func notServed(w http.ResponseWriter, req *http.Request) {
	if want := methods[req.URL.Path]; want != "" {
		w.Header().Set("Allow", want)
		(&failure{status: http.StatusMethodNotAllowed, code: "method-not-allowed", message: "this path takes " + want + " only"}).at(req.URL.Path).write(w)
		return
	}
	(&failure{status: http.StatusNotFound, code: "not-found", message: fmt.Sprintf(
		"this path is not served here; the router serves POST %s, %s, %s and %s, GET /v1/models, POST %s, /tokenize and /detokenize",
		kvp.Chat.Path(), kvp.Completions.Path(), kvp.Responses.Path(), kvp.Messages.Path(), countTokens)}).at(req.URL.Path).write(w)
}

// guard says in the router's own log what a bug of its own did, and ends the request: with a 500 if
// no answer has begun, else so that the client sees a broken reply. Other turns go on.
func (r *Router) guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		g := &guarded{ResponseWriter: w}
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(http.ErrAbortHandler) // meant
			}
			r.bug("a request ended by a bug of the router", v)
			if g.begun {
				panic(http.ErrAbortHandler)
			}
			for name := range w.Header() {
				if name != "X-Tarik-Turn" && name != "X-Request-Id" {
					w.Header().Del(name)
				}
			}
			(&failure{
				status: http.StatusInternalServerError, code: "internal-error", message: "the router failed on this request; its log says why",
			}).at(req.URL.Path).write(w)
		}()
		h.ServeHTTP(g, req)
	})
}

// guarded is a ResponseWriter that knows whether an answer has begun.
type guarded struct {
	http.ResponseWriter
	begun bool
}

// Unwrap is for [http.ResponseController].
func (g *guarded) Unwrap() http.ResponseWriter { return g.ResponseWriter }

func (g *guarded) WriteHeader(status int) {
	g.begun = g.begun || status >= 200
	g.ResponseWriter.WriteHeader(status)
}

func (g *guarded) Write(b []byte) (int, error) {
	g.begun = true
	return g.ResponseWriter.Write(b)
}

// FlushError is for [http.ResponseController].
func (g *guarded) FlushError() error {
	g.begun = true
	return http.NewResponseController(g.ResponseWriter).Flush()
}

// beneath is the server's own writer, which some of net/http insists on.
func beneath(w http.ResponseWriter) http.ResponseWriter {
	if g, ok := w.(*guarded); ok {
		return g.ResponseWriter
	}
	return w
}

// bug counts and logs a panic.
func (r *Router) bug(what string, v any) {
	r.metrics.Panics.Inc()
	r.log.Error(what, "panic", describe(v), "stack", string(debug.Stack()))
}

// describe says what a panic was about. Values that are neither the runtime's nor this module's may
// hold what a client sent.
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

// Admin serves operators: GET /turns, /metrics, /engines.
func (r *Router) Admin() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /turns", r.receipts)
	mux.Handle("GET /metrics", metricsHandler(r.registry))
	mux.HandleFunc("GET /engines", r.engines)
	mux.HandleFunc("GET /health", r.health)
	return mux
}

// generate answers a request for a reply.
func (r *Router) generate(ep kvp.Endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		begin := time.Now()
		body, f := r.readBody(w, req)
		if f != nil {
			f.in(ep).write(w)
			return
		}
		caller, _ := tenant.FromContext(req.Context())
		q, f := r.parse(ep, req.Header, body, caller)
		if f != nil {
			f.in(ep).write(w)
			return
		}
		if d := r.decode.Info(); !d.Up && d.Version == "" {
			engineDown("the decode engine does not answer").in(ep).write(w)
			return
		}
		if q.stripped > 0 {
			r.metrics.Stripped.Inc()
		}
		r.serveTurn(w, req, q, begin)
	}
}

// readBody reads a request's whole body, at most MaxBody bytes, also after decompression.
func (r *Router) readBody(w http.ResponseWriter, req *http.Request) ([]byte, *failure) {
	tooLarge := func() *failure {
		return &failure{status: http.StatusRequestEntityTooLarge, code: "body-too-large", message: fmt.Sprintf(
			"the request is larger than %d bytes; the limit is the router's --max-body", r.cfg.MaxBody)}
	}
	if req.ContentLength > r.cfg.MaxBody {
		return nil, tooLarge()
	}
	var from io.Reader = http.MaxBytesReader(beneath(w), req.Body, r.cfg.MaxBody)
	switch enc := strings.ToLower(req.Header.Get("Content-Encoding")); enc {
	case "", "identity":
	case "gzip":
		z, err := gzip.NewReader(from)
		if err != nil {
			return nil, badRequest("", "request body: not gzip, though Content-Encoding says so")
		}
		from = io.LimitReader(z, r.cfg.MaxBody+1)
	default:
		return nil, &failure{status: http.StatusUnsupportedMediaType, code: "content-encoding", message: fmt.Sprintf(
			"Content-Encoding %q is not understood; send the body plain or as gzip", enc)}
	}
	// What a client announces is not yet there: most of a long body's memory comes as it does.
	body := make([]byte, 0, min(max(req.ContentLength, 512), 1<<20)+1)
	for {
		if len(body) == cap(body) {
			// append would grow it by a quarter, and throw five times the size of a body of 100 MB away.
			room := min(2*int64(len(body)), r.cfg.MaxBody+1)
			if whole := req.ContentLength + 1; whole > int64(len(body)) {
				room = min(room, whole)
			}
			body = slices.Grow(body, int(room)-len(body))
		}
		n, err := from.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if int64(len(body)) > r.cfg.MaxBody {
			return nil, tooLarge()
		}
		if err == io.EOF {
			return body, nil
		}
		var limit *http.MaxBytesError
		if errors.As(err, &limit) {
			return nil, tooLarge()
		}
		if err != nil {
			return nil, badRequest("", "request body: it ended early: "+err.Error())
		}
	}
}

// logTurn writes the one line a turn gets.
func (r *Router) logTurn(rc *telemetry.Receipt) {
	if !r.log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	r.log.Info("turn", "turn", rc.Turn, "conversation", rc.Conversation, "turn_number", rc.TurnNumber, "arm", rc.Arm, "why", rc.Why,
		"prompt_tokens", rc.PromptTokens, "p_local", orZero(rc.PLocalTokens), "p_pulled", orZero(rc.PPulledTokens),
		"p_computed", orZero(rc.PComputedTokens), "output_tokens", rc.OutputTokens, "ttft_ms", orZero(rc.TTFTMs), "status", rc.Status)
}

func orZero[T int | float64](p *T) T {
	if p == nil {
		return 0
	}
	return *p
}
