package router_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tarik-kv/tarik/internal/local"
	"github.com/tarik-kv/tarik/internal/refengine/engine"
	"github.com/tarik-kv/tarik/internal/router"
)

// A P that does not read handles is found out before a client's turn depends on it, and turns are
// served without.
func TestR31PrefillThatDoesNotRead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(p, d *local.EngineOptions, r *router.Config)
		trust  string
		why    string // in /engines
		turn   string // why of a second turn
	}{
		{
			name: "P's threshold too high", trust: "distrusted", why: "kv_recompute_threshold", turn: "prefill-distrusted",
			change: func(p, _ *local.EngineOptions, _ *router.Config) {
				p.KV = kv(true, map[string]any{"kv_recompute_threshold": 4096}, "fail")
			},
		},
		{
			name: "P's flag off", trust: "distrusted", why: "no answer in", turn: "prefill-distrusted",
			change: func(p, _ *local.EngineOptions, r *router.Config) {
				p.KV = kv(true, map[string]any{"bidirectional_kv_xfer": false}, "fail")
				router.Patience(r, time.Second)
			},
		},
		{
			name: "D's flag off", trust: "unproven", why: "bidirectional_kv_xfer is off", turn: "no-handle",
			change: func(_, d *local.EngineOptions, _ *router.Config) {
				d.KV = kv(false, map[string]any{"bidirectional_kv_xfer": false}, "fail")
			},
		},
		{
			name: "P without a connector", trust: "unproven", why: "--kv-transfer-config", turn: "no-handle",
			change: func(p, _ *local.EngineOptions, _ *router.Config) { p.KV = nil },
		},
		{
			name: "READs fail", trust: "distrusted", why: "HTTP 500", turn: "prefill-distrusted",
			change: func(p, _ *local.EngineOptions, _ *router.Config) { p.Faults.FailReads = 1 << 20 },
		},
		{
			name: "reuse off", trust: "unproven", turn: "reuse-off",
			change: func(_, _ *local.EngineOptions, r *router.Config) { r.Reuse = false },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pr := newPair(t, false, tt.change)
			engines := pr.engines(t)
			if !strings.Contains(engines, `"handles": "`+tt.trust+`"`) || !strings.Contains(engines, tt.why) {
				t.Errorf("/engines: %s\nwant %s, because %q", engines, tt.trust, tt.why)
			}
			text, _ := pr.turn(t, body(true, 20, prompt))
			_, rc := pr.turn(t, body(false, 20, prompt, text, "go on"))
			switch {
			case tt.name == "P without a connector":
				if rc.Why != "prefill-kept-none" || rc.Arm != "recompute" {
					t.Errorf("arm %s why %s", rc.Arm, rc.Why)
				}
			case rc.Why != tt.turn || rc.Arm == "pull":
				t.Errorf("arm %s why %s, want why %s and no pull", rc.Arm, rc.Why, tt.turn)
			}
		})
	}
}

// Case 21 and R17: a P whose flag is off, or whose policy is recompute, parks a request with a handle
// for ever. The turn goes on without, within its patience, and P gets no other handle.
func TestR9PullHangs(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.post(t, chatPath, chat(true, long(100)))
	asked := make(chan struct{}, 1)
	g.p.says(hang(asked), good)
	h := g.post(t, chatPath, chat(true, long(100), "ok", "next"))
	if rc := g.receipt(t, h); h.status != 200 || rc.Why != "pull-late" {
		t.Errorf("HTTP %d why %s, want 200, pull-late", h.status, rc.Why)
	}
	for _, c := range g.p.generated()[1:] {
		if e := c.fields().param("remote_engine_id"); e != "null" && !strings.Contains(c.body, "cache_salt") && c.fields().param("remote_num_tokens") != "0" {
			t.Errorf("after the hang P was given a handle of %s in a turn", e)
		}
	}
	// A probe, which is nobody's turn, shows that P reads handles after all: it was only slow.
	pr := &pair{rig: g}
	for end := time.Now().Add(20 * time.Second); !strings.Contains(pr.engines(t), `"handles": "proven"`); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("/engines: %s", pr.engines(t))
		}
	}
	h = g.post(t, chatPath, chat(true, long(100), "ok", "next", "ok", "more"))
	if rc := g.receipt(t, h); rc.Arm != "pull" {
		t.Errorf("arm %s why %s, want a pull", rc.Arm, rc.Why)
	}
}

// The same with real engines: P's blocks of the hung request stay parked, everything else works.
func TestR17PolicyRecompute(t *testing.T) {
	t.Parallel()
	pr := newPair(t, false, func(p, _ *local.EngineOptions, _ *router.Config) { p.KV = kv(true, nil, "recompute") })
	text, rc := pr.turn(t, body(true, 20, prompt))
	if rc.HeldTokens == 0 {
		t.Fatalf("no handle: %+v", rc)
	}
	pr.p.Core.SetFaults(engine.Faults{FailReads: 1000})
	_, rc = pr.turn(t, body(true, 20, prompt, text, "go on"))
	if rc.Why != "pull-late" {
		t.Errorf("why %s, want pull-late", rc.Why)
	}
	_, rc = pr.turn(t, body(true, 20, prompt, text, "go elsewhere"))
	if rc.Arm == "pull" {
		t.Error("a P that hung was given a handle again")
	}
}

// An engine that restarts takes its handles with it: 200, without them.
func TestG05EnginesRestart(t *testing.T) {
	t.Parallel()
	for _, which := range []string{"P", "D"} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			pr := newPair(t, false, nil)
			text, rc := pr.turn(t, body(true, 20, prompt))
			if rc.HeldTokens == 0 {
				t.Fatalf("no handle: %+v", rc)
			}
			if which == "P" {
				pr.p.Core.Kill()
				_ = pr.p.Close()
				pr.p = startEngine(t, engineOptions(true))
				pr.gateP.aim(t, pr.p.URL())
			} else {
				pr.d.Core.Kill()
				_ = pr.d.Close()
				pr.d = startEngine(t, engineOptions(false))
				pr.gateD.aim(t, pr.d.URL())
			}
			// The router has heard nothing of it.
			said := []string{prompt, text, "go on"}
			text, rc = pr.turn(t, body(true, 20, said...))
			t.Logf("the turn after: arm %s why %s", rc.Arm, rc.Why)
			said = append(said, text, "and on")
			text, _ = pr.turn(t, body(true, 20, said...))
			said = append(said, text, "and on again")
			// In the end it is proven again, and reuse goes on.
			until(t, "reuse", func() bool {
				_, rc := pr.turn(t, body(true, 20, said...))
				return rc.Arm == "pull" || rc.Arm == "local"
			})
			if e := pr.engines(t); which == "D" && !strings.Contains(e, `"handles_held"`) {
				t.Error(e)
			}
			for _, e := range []*local.Engine{pr.p, pr.d} {
				if err := e.Core.CheckAccounting(); err != nil {
					t.Error(err)
				}
				if n := e.Core.Snapshot().PoisonedHits; n > 0 {
					t.Errorf("%d poisoned hits", n)
				}
			}
		})
	}
}

// Handles of an ended life of D are dropped the moment that a reply shows the new one.
func TestG05NewEngineID(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.post(t, chatPath, chat(true, long(100)))
	g.post(t, chatPath, chat(true, long(200)))
	g.d.restart("d-2")
	g.post(t, chatPath, chat(true, "somebody else, "+long(50)))
	if v := g.metric(t, `tarik_handles_used_total{use="restarted"}`); v != "2" {
		t.Errorf("%q handles dropped, want 2", v)
	}
	g.p.says()
	h := g.post(t, chatPath, chat(true, long(100), "ok", "next"))
	if rc := g.receipt(t, h); h.status != 200 || rc.Why != "no-handle" && rc.Why != "prefill-unproven" {
		t.Errorf("HTTP %d why %s", h.status, rc.Why)
	}
	for _, c := range g.p.generated() {
		if strings.Contains(c.body, `"d-1"`) {
			t.Errorf("P was given a handle of the old life: %s", c.body)
		}
	}
}

// restart gives the engine another id.
func (s *stub) restart(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id = id
}

// C01, R3: a handle is not sent when it is too old, whatever D says.
func TestC01HandleExpires(t *testing.T) {
	t.Parallel()
	const ttl = 100 * time.Second
	for age, want := range map[time.Duration]string{
		0: "verified", 69 * time.Second: "verified", 70 * time.Second: "handle-expired", ttl: "handle-expired", time.Hour: "handle-expired",
	} {
		g := newRig(t, func(c *router.Config) { c.HandleTTL = ttl })
		g.post(t, chatPath, chat(true, long(100)))
		g.p.says()
		router.Ahead(g.router, age)
		h := g.post(t, chatPath, chat(true, long(100), "ok", "next"))
		if rc := g.receipt(t, h); h.status != 200 || rc.Why != want {
			t.Errorf("after %s: HTTP %d why %s, want %s", age, h.status, rc.Why, want)
		}
		sent := false
		for _, c := range g.p.generated() {
			sent = sent || strings.Contains(c.body, "req-secret")
		}
		if sent != (want == "verified") {
			t.Errorf("after %s: the handle was sent: %v", age, sent)
		}
	}
}

// HandleTTL too short to use any handle is refused, and says how to mend it.
func TestValidate(t *testing.T) {
	t.Parallel()
	good := func() router.Config {
		c := router.DefaultConfig()
		c.Return, c.Append = false, false
		c.Prefill, c.Decode = "http://p:1", "http://d:1"
		return c
	}
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*router.Config){
		"--prefill":    func(c *router.Config) { c.Prefill = "" },
		"--decode":     func(c *router.Config) { c.Decode = "" },
		"--handle-ttl": func(c *router.Config) { c.HandleTTL = 30 * time.Second },
		"--max-body":   func(c *router.Config) { c.MaxBody = 10 },
	} {
		c := good()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate() = %v, want %s in it", err, want)
		}
		if r, err := router.New(c); err == nil {
			r.Close()
			t.Errorf("New took a configuration without %s", want)
		}
	}
	c := good()
	c.Decode = "d:1"
	if _, err := router.New(c); err == nil {
		t.Error("New took d:1 for a URL")
	}
}

// Clients may speak HTTP/2 without TLS, as agents' runtimes do.
func TestHTTP2(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	front, err := local.Listen("127.0.0.1:0", g.router.Handler())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { front.Close(time.Second) })
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: &protocols}}
	t.Cleanup(client.CloseIdleConnections)
	post := func(b string) (*http.Response, string, error) {
		res, err := client.Post(front.URL()+chatPath, "application/json", strings.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var text strings.Builder
		_, err = copyText(&text, res.Body)
		return res, text.String(), err
	}
	for _, stream := range []bool{true, false} {
		res, text, err := post(chat(stream, long(100)))
		if res.ProtoMajor != 2 || res.StatusCode != 200 || err != nil || !strings.Contains(text, "stop") {
			t.Errorf("HTTP/%d %d, %v, %s", res.ProtoMajor, res.StatusCode, err, text)
		}
	}
	g.d.says(func(s *stub, w http.ResponseWriter, req *http.Request, c call) {
		cutAfter(chunks(s, c, "finish")[:2]...)(s, w, req, c)
	})
	if _, text, err := post(chat(true, "hi")); err == nil || strings.Contains(text, "[DONE]") {
		t.Errorf("a stream cut half way looks finished: %v, %s", err, text)
	}
	if res, _, _ := post("{"); res.StatusCode != 400 {
		t.Errorf("HTTP %d", res.StatusCode)
	}
}
