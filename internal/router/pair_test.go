package router_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tarik-kv/tarik/internal/local"
	"github.com/tarik-kv/tarik/internal/refengine/engine"
	"github.com/tarik-kv/tarik/internal/router"
	"github.com/tarik-kv/tarik/internal/telemetry"
)

var weights = sync.OnceValues(func() (*local.Weights, error) { return local.Load("") })

// pair is a router in front of two reference engines, and one engine that reuses nothing. Between
// router and engines a test may hold requests up.
type pair struct {
	p, d      *local.Engine
	reference *local.Engine
	gateP     *gate
	gateD     *gate
	rig       *rig // of the router; its stubs are nil
	probed    [2]uint64
}

// gate passes requests on and lets a test see, and hold, those that generate.
type gate struct {
	*httptest.Server
	mu     sync.Mutex
	to     *url.URL
	before func(*http.Request)
	after  func(*http.Request)
}

func newGate(t testing.TB, to string) *gate {
	t.Helper()
	g := &gate{}
	g.aim(t, to)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			g.mu.Lock()
			defer g.mu.Unlock()
			r.SetURL(g.to)
		},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // clients leave: that is what is tested
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ModifyResponse: func(res *http.Response) error {
			g.mu.Lock()
			after := g.after
			g.mu.Unlock()
			if after != nil && res.Request.Method == http.MethodPost {
				after(res.Request)
			}
			return nil
		},
		Transport: &http.Transport{DisableKeepAlives: true},
	}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		g.mu.Lock()
		before := g.before
		g.mu.Unlock()
		if before != nil && (req.URL.Path == chatPath || req.URL.Path == textPath) {
			before(req)
		}
		// A ReverseProxy breaks streams of a backend that answers before it has read the request's end.
		if b, err := io.ReadAll(req.Body); err == nil {
			req.Body = io.NopCloser(bytes.NewReader(b))
		}
		proxy.ServeHTTP(w, req)
	}))
	t.Cleanup(g.Close)
	return g
}

func (g *gate) aim(t testing.TB, to string) {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.to = u
}

func (g *gate) hooks(before, after func(*http.Request)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.before, g.after = before, after
}

// kv is an engine's --kv-transfer-config.
func kv(prefill bool, extra map[string]any, policy string) []byte {
	role := "kv_consumer"
	e := map[string]any{"bidirectional_kv_xfer": true, "decoder_kv_blocks_ttl": 480, "kv_recompute_threshold": 16, "kv_lease_duration": 6}
	if prefill {
		role = "kv_producer"
	}
	for k, v := range extra {
		e[k] = v
	}
	return []byte(jsonOf(map[string]any{
		"kv_connector": "NixlConnector", "kv_role": role, "kv_load_failure_policy": policy, "kv_connector_extra_config": e,
	}))
}

func engineOptions(prefill bool) local.EngineOptions {
	return local.EngineOptions{
		As: "vllm-0.33", Listen: "127.0.0.1:0", KVTokens: 1 << 15, BlockSize: 16, Batch: 512, KV: kv(prefill, nil, "fail"),
	}
}

func startEngine(t testing.TB, o local.EngineOptions) *local.Engine {
	t.Helper()
	w, err := weights()
	if err != nil {
		t.Fatal(err)
	}
	e, err := local.StartEngine(w, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() }) // a second time for some, which is no error of the test
	return e
}

// newPair starts the engines as change wants them, and the router. It waits until P is proven, or,
// with unready, not at all.
func newPair(t testing.TB, unready bool, change func(p, d *local.EngineOptions, r *router.Config)) *pair {
	t.Helper()
	po, do := engineOptions(true), engineOptions(false)
	cfg := router.DefaultConfig()
	cfg.Return, cfg.Append = false, false
	cfg.HealthInterval, cfg.Threshold = time.Hour, 16
	if change != nil {
		change(&po, &do, &cfg)
	}
	pr := &pair{p: startEngine(t, po), d: startEngine(t, do), rig: &rig{}}
	po.NoPrefixCaching, po.KV = true, nil
	po.Faults = do.Faults
	po.Faults.StepCost, po.Faults.PrefillTokenCost = 0, 0
	pr.reference = startEngine(t, po)
	pr.gateP, pr.gateD = newGate(t, pr.p.URL()), newGate(t, pr.d.URL())
	cfg.Prefill, cfg.Decode = pr.gateP.URL, pr.gateD.URL
	pr.rig.receipts = telemetry.NewReceipts(4096, nil)
	cfg.Receipts = pr.rig.receipts
	if unready {
		r, err := router.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		pr.rig.router = r
		t.Cleanup(r.Close)
		front, admin := httptest.NewServer(r.Handler()), httptest.NewServer(r.Admin())
		t.Cleanup(front.Close)
		t.Cleanup(admin.Close)
		pr.rig.url, pr.rig.admin = front.URL, admin.URL
	} else {
		pr.rig.start(t, cfg)
	}
	pr.probed = [2]uint64{pr.p.Core.Snapshot().Misreads, pr.d.Core.Snapshot().Misreads} // the probe's own, by intent
	return pr
}

// body is a turn of a tiny conversation.
func body(stream bool, max int, messages ...string) map[string]any {
	var ms []map[string]any
	for i, m := range messages {
		ms = append(ms, map[string]any{"role": []string{"user", "assistant"}[i%2], "content": m})
	}
	return map[string]any{"model": "tiny", "messages": ms, "stream": stream, "temperature": 0, "max_tokens": max, "return_token_ids": true, "ignore_eos": true}
}

var prompt = strings.Repeat("the river file test stone of and to in a is that for it with as was on be at by this have from\n", 12)

// turn plays a turn, compares the reply with that of the engine without reuse, and returns its text
// and receipt.
func (pr *pair) turn(t testing.TB, b map[string]any) (string, telemetry.Receipt) {
	t.Helper()
	raw := jsonOf(b)
	h := pr.rig.post(t, chatPath, raw)
	ref := do(t, http.MethodPost, pr.reference.URL()+chatPath, strings.NewReader(raw), "Content-Type", "application/json")
	if ref.status != 200 {
		t.Fatalf("the reference says HTTP %d: %s", ref.status, ref.body)
	}
	got, want := textOf(t, h.body), textOf(t, ref.body)
	if h.status != 200 || got != want {
		t.Errorf("HTTP %d %q, want %q: %.300s", h.status, got, want, h.body)
	}
	return want, pr.rig.receipt(t, h)
}

// textOf is the text of a reply, streamed or not.
func textOf(t testing.TB, reply string) (text string) {
	t.Helper()
	add := func(s string) {
		var v struct {
			Choices []struct {
				Message, Delta struct{ Content string }
			}
		}
		if err := json.Unmarshal([]byte(s), &v); err != nil {
			t.Errorf("%q: %v", s, err)
		}
		for _, c := range v.Choices {
			text += c.Message.Content + c.Delta.Content
		}
	}
	if strings.HasPrefix(reply, "{") {
		add(reply)
		return text
	}
	for line := range strings.SplitSeq(reply, "\n") {
		if data, ok := strings.CutPrefix(line, "data: "); ok && data != "[DONE]" {
			add(data)
		}
	}
	return text
}

// settle waits until neither engine works or holds anything but what the router's handles name, and
// fails if a block is lost or foreign KV was read.
func (pr *pair) settle(t testing.TB, handles int) {
	t.Helper()
	var p, d engine.Stats
	defer func() {
		if t.Failed() {
			t.Logf("P: %d running, %+v; D: %d running, %d pins, %+v", p.Running, p.Blocks, d.Running, d.Pins, d.Blocks)
		}
	}()
	until(t, "the engines are at rest", func() bool {
		p, d = pr.p.Core.Snapshot(), pr.d.Core.Snapshot()
		return p.Running+d.Running+p.Blocks.Used+d.Blocks.Used+p.Blocks.Parked+d.Blocks.Parked+p.Blocks.Pinned == 0 && d.Pins == handles
	})
	for i, e := range []*local.Engine{pr.p, pr.d} {
		if err := e.Core.CheckAccounting(); err != nil {
			t.Error(err)
		}
		if st := e.Core.Snapshot(); st.Misreads != pr.probed[i] || st.PoisonedHits != 0 {
			t.Errorf("engine %d read foreign KV %d times and used it %d times", i, st.Misreads-pr.probed[i], st.PoisonedHits)
		}
	}
}

// leave starts a turn in the background and returns a function by which its client leaves, which
// also waits until the client is gone.
func (pr *pair) leave(t testing.TB, b map[string]any) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, pr.rig.url+chatPath, strings.NewReader(jsonOf(b)))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			defer res.Body.Close()
			<-ctx.Done()
		}
	}()
	leave = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(leave)
	return leave
}
