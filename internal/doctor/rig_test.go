package doctor

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tarik-kv/tarik/internal/local"
)

var weights = sync.OnceValues(func() (*local.Weights, error) { return local.Load("") })

// The settings of a sound pair.
const (
	goodP = `{"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_load_failure_policy":"fail","kv_connector_extra_config":{"bidirectional_kv_xfer":true,"kv_recompute_threshold":64}}`
	goodD = `{"kv_connector":"NixlConnector","kv_role":"kv_consumer","kv_load_failure_policy":"fail","kv_connector_extra_config":{"bidirectional_kv_xfer":true,"decoder_kv_blocks_ttl":480}}`
)

// rig is a pair of reference engines, what stands before them, and what doctor is told.
type rig struct {
	t    *testing.T
	as   [2]string // releases of P and D
	kv   [2]string // settings of P and D; "": none
	opt  [2]func(*local.EngineOptions)
	gate [2]func(http.Handler) http.Handler // what stands before them
	with func(*Options)

	e    [2]*local.Engine
	urls [2]string
}

// Indices.
const (
	p = iota
	d
)

func newRig(t *testing.T) *rig {
	t.Helper()
	return &rig{t: t, as: [2]string{"vllm-0.33", "vllm-0.33"}, kv: [2]string{goodP, goodD}}
}

// start starts the engines.
func (r *rig) start() {
	r.t.Helper()
	w, err := weights()
	if err != nil {
		r.t.Fatal(err)
	}
	for i := range r.e {
		o := local.EngineOptions{Listen: "127.0.0.1:0", As: r.as[i], KVTokens: 1 << 13}
		o.Faults.StepCost = 100 * time.Microsecond // so that nothing is over before anybody can hang up
		if r.kv[i] != "" {
			o.KV = []byte(r.kv[i])
		}
		if r.opt[i] != nil {
			r.opt[i](&o)
		}
		e, err := local.StartEngine(w, o)
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() { _ = e.Close() })
		r.e[i], r.urls[i] = e, e.URL()
		if r.gate[i] != nil {
			r.urls[i] = gateway(r.t, e.URL(), r.gate[i])
		}
	}
}

// gateway puts f between doctor and an engine.
func gateway(t *testing.T, engine string, f func(http.Handler) http.Handler) string {
	t.Helper()
	u, err := url.Parse(engine)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(u)
	proxy.FlushInterval = -1
	transport := &http.Transport{} // of its own: httptest closes connections of the default one
	proxy.Transport = transport
	t.Cleanup(transport.CloseIdleConnections)
	// The engine may answer before the proxy has seen the end of a body that it copies; so it gets one that is here.
	whole := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		req.Body = io.NopCloser(bytes.NewReader(b))
		proxy.ServeHTTP(w, req)
	})
	s := httptest.NewServer(f(whole))
	t.Cleanup(s.Close)
	return s.URL
}

// options are what doctor is told.
func (r *rig) options() Options {
	o := Options{Prefill: r.urls[p], Decode: r.urls[d], Client: &http.Client{Transport: &http.Transport{}}, Patience: 10 * time.Second, seed: 7}
	r.t.Cleanup(o.Client.CloseIdleConnections)
	if r.with != nil {
		r.with(&o)
	}
	return o
}

// report runs doctor.
func (r *rig) report() (Report, *Facts) {
	r.t.Helper()
	if r.e[p] == nil && r.urls[p] == "" {
		r.start()
	}
	f, err := Gather(context.Background(), r.options())
	if err != nil {
		r.t.Fatal(err)
	}
	return NewReport(f), f
}

// text is the report as people see it.
func text(r Report) string {
	var b strings.Builder
	_ = r.WriteText(&b, false)
	return b.String()
}

// found lists the findings above info: "check severity subject".
func found(r Report) []string {
	list := []string{}
	for _, c := range r.Checks {
		for _, f := range c.Findings {
			if f.Severity > Info {
				list = append(list, fmt.Sprintf("%s %s %s", c.ID, f.Severity, f.Subject))
			}
		}
	}
	return list
}

// answering changes the replies of one path; of streams each write by itself.
func answering(path string, change func(body string) string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path != path {
				next.ServeHTTP(w, req)
				return
			}
			req.Header.Set("Accept-Encoding", "identity")
			c := &changer{ResponseWriter: w, change: change}
			next.ServeHTTP(c, req)
			if c.whole.Len() > 0 {
				_, _ = io.WriteString(w, change(c.whole.String()))
			}
		})
	}
}

// changer changes a reply on its way.
type changer struct {
	http.ResponseWriter
	change func(string) string
	whole  bytes.Buffer // of a reply that is not streamed
}

func (c *changer) stream() bool {
	return strings.HasPrefix(c.Header().Get("Content-Type"), "text/event-stream")
}

func (c *changer) WriteHeader(status int) {
	c.Header().Del("Content-Length")
	c.ResponseWriter.WriteHeader(status)
}

func (c *changer) Write(b []byte) (int, error) {
	if !c.stream() {
		return c.whole.Write(b)
	}
	_, err := io.WriteString(c.ResponseWriter, c.change(string(b)))
	return len(b), err
}

func (c *changer) Flush() {
	if c.stream() {
		c.ResponseWriter.(http.Flusher).Flush()
	}
}

// asking changes the bodies of requests.
func asking(change func(body string) string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodPost {
				b, _ := io.ReadAll(req.Body)
				b = []byte(change(string(b)))
				req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
				req.Header.Set("Content-Length", fmt.Sprint(len(b)))
			}
			next.ServeHTTP(w, req)
		})
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
