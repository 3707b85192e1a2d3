package router_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/router"
)

// outcome is what a fault led to.
type outcome struct {
	Status   int
	Arm, Why string
	P, D     int // generating calls
}

func (g *rig) outcome(t *testing.T, h heard) outcome {
	t.Helper()
	rc := g.receipt(t, h)
	if rc.Status != h.status {
		t.Errorf("the receipt says HTTP %d, the client got %d", rc.Status, h.status)
	}
	return outcome{h.status, rc.Arm, rc.Why, len(g.p.generated()), len(g.d.generated())}
}

const errorEvent = `data: {"error":{"message":"boom","type":"InternalServerError","param":null,"code":500}}` + "\n\n"

// Everything that fails before the first byte of a reply: the answer, the retries, and that nothing
// is kept of it.
func TestFailuresBeforeTheFirstByte(t *testing.T) {
	t.Parallel()
	down := says(500, `{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}`)
	finishError := `{"id":"d","choices":[{"index":0,"message":{"role":"assistant"},"finish_reason":"error"}],"usage":{"prompt_tokens":3,"completion_tokens":0}}`
	for _, tt := range []struct {
		name string
		p, d []answer
		want outcome
		only string // stream or whole, "" both
	}{
		{name: "P 500 once", p: []answer{down, good}, want: outcome{200, "recompute", "prefill-failed", 1, 1}},
		{name: "P resets", p: []answer{reset}, want: outcome{200, "recompute", "prefill-failed", 1, 1}},
		{name: "P nonsense", p: []answer{says(200, "<html>hello")}, want: outcome{200, "recompute", "prefill-failed", 1, 1}},
		{name: "P says nothing", p: []answer{says(200, "")}, want: outcome{200, "recompute", "prefill-failed", 1, 1}},
		{name: "P answers another question", p: []answer{says(200, `{"token_ids":[1]}`)}, want: outcome{200, "recompute", "prefill-failed", 1, 1}},
		{name: "P redirects", p: []answer{says(307, "", "Location", "http://192.0.2.1/")}, want: outcome{200, "recompute", "prefill-failed", 1, 1}},
		{name: "C08 P null", p: []answer{says(200, `{"usage":{"prompt_tokens":3},"kv_transfer_params":null}`)}, want: outcome{200, "recompute", "prefill-kept-none", 1, 1}},
		{name: "C08 P without", p: []answer{says(200, `{"usage":{"prompt_tokens":3}}`)}, want: outcome{200, "recompute", "prefill-kept-none", 1, 1}},
		{name: "D 500 once", d: []answer{down, good}, want: outcome{200, "recompute", "decode-failed-once", 1, 2}},
		{name: "D 500", d: []answer{down}, want: outcome{500, "recompute", "decode-failed-once", 1, 2}},
		{name: "A04 D 503", d: []answer{says(503, `{"error":{"message":"m","type":"t"}}`, "Retry-After", "3")}, want: outcome{503, "recompute", "first-turn", 1, 1}},
		{name: "A04 D resets once", d: []answer{reset, good}, want: outcome{200, "recompute", "decode-failed-once", 1, 2}},
		{name: "A04 D resets", d: []answer{reset}, want: outcome{502, "recompute", "decode-failed-once", 1, 2}},
		{name: "A04 D empty", d: []answer{says(200, "")}, want: outcome{502, "recompute", "decode-failed-once", 1, 2}},
		{name: "A04 D empty stream", d: []answer{pieces(eventStream)}, want: outcome{502, "recompute", "decode-failed-once", 1, 2}},
		{name: "A04 D only comments", d: []answer{pieces(eventStream, ": ping\n\n", ": ping\n\n")}, want: outcome{502, "recompute", "decode-failed-once", 1, 2}},
		{name: "A04 D only the end", d: []answer{pieces(eventStream, "data: [DONE]\n\n")}, want: outcome{502, "recompute", "decode-failed-once", 1, 2}},
		{name: "D nonsense", d: []answer{pieces("text/html", "<html>")}, want: outcome{502, "recompute", "decode-failed-once", 1, 2}},
		{name: "D nonsense as JSON", d: []answer{pieces("application/json", "{")}, want: outcome{502, "recompute", "decode-failed-once", 1, 2}},
		{name: "D compressed", d: []answer{says(200, "\x1f\x8b", "Content-Encoding", "gzip")}, want: outcome{502, "recompute", "decode-failed-once", 1, 2}},
		{name: "D redirects", d: []answer{says(302, "", "Location", "http://192.0.2.1/")}, want: outcome{502, "recompute", "decode-failed-once", 1, 2}},
		{name: "D accepted", d: []answer{says(202, "{}")}, want: outcome{502, "recompute", "decode-failed-once", 1, 2}},
		{name: "A06 D error first", d: []answer{pieces(eventStream, ": ping\n\n", errorEvent, "data: [DONE]\n\n")}, want: outcome{500, "recompute", "decode-failed-once", 1, 2}},
		{name: "A06 D error first, once", d: []answer{pieces(eventStream, ": ping\n\n", errorEvent), good}, want: outcome{200, "recompute", "decode-failed-once", 1, 2}},
		{name: "A06 D refuses in a stream", d: []answer{pieces(eventStream, `data: {"error":{"message":"no","type":"BadRequestError","code":400}}`+"\n\n")}, want: outcome{400, "recompute", "first-turn", 1, 1}},
		{name: "A19 D failed", d: []answer{pieces("application/json", finishError)}, want: outcome{500, "recompute", "decode-failed-once", 1, 2}},
		{name: "A19 D failed once", d: []answer{pieces("application/json", finishError), good}, want: outcome{200, "recompute", "decode-failed-once", 1, 2}},
	} {
		for _, stream := range []bool{false, true} {
			if tt.name == "A19 D failed" && stream {
				continue
			}
			name := tt.name + " whole"
			if stream {
				name = tt.name + " streamed"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				g := newRig(t)
				g.p.says(tt.p...)
				g.d.says(tt.d...)
				h := g.post(t, chatPath, chat(stream, "hi"))
				got := g.outcome(t, h)
				if d := cmp.Diff(tt.want, got); d != "" {
					t.Errorf("(-want +got):\n%s\n%s", d, h.body)
				}
				if h.err != nil {
					t.Errorf("the reply ended early: %v", h.err)
				}
				if h.status != 200 && strings.HasPrefix(h.errorCode(), "no error") {
					t.Errorf("%s", h.errorCode())
				}
				// R7: D gets what P returned or nothing, and nothing at the second attempt.
				calls := g.d.generated()
				for i, c := range calls {
					f := c.fields()
					if len(f.Params) > 0 && (f.param("do_remote_prefill") != "true" || i > 0 || tt.p != nil) {
						t.Errorf("D call %d has params %s", i, f.Params)
					}
				}
				if st := g.receipt(t, h); h.status != 200 && st.HeldTokens != 0 {
					t.Errorf("a handle of %d tokens is kept of a turn that failed", st.HeldTokens)
				}
			})
		}
	}
}

// P's params that are no complete A never reach D: an engine could die of them, or read its own
// memory.
func TestR7R12BadParamsOfP(t *testing.T) {
	t.Parallel()
	a := params(true, "p-1", 3, 0)
	for name, kv := range map[string]string{
		"B":               params(false, "p-1", 3, 0),
		"null form":       `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`,
		"empty":           `{}`,
		"unknown":         `{"x":1}`,
		"array":           `[1]`,
		"text":            `"x"`,
		"number as text":  strings.Replace(a, `"remote_num_tokens":3`, `"remote_num_tokens":"3"`, 1),
		"number as float": strings.Replace(a, `"remote_num_tokens":3`, `"remote_num_tokens":3.0`, 1),
		"no engine":       strings.Replace(a, `"remote_engine_id":"p-1",`, ``, 1),
		"no blocks":       strings.Replace(a, `[[90210017]]`, `null`, 1),
		"flat blocks":     strings.Replace(a, `[[90210017]]`, `[90210017]`, 1),
		"twice":           strings.Replace(a, `"remote_port":5600`, `"remote_port":5600,"remote_port":22`, 1),
		"both flags":      strings.Replace(a, `"do_remote_decode":false`, `"do_remote_decode":true`, 1),
		"port":            strings.Replace(a, `5600`, `-1`, 1),
		"huge tp":         strings.Replace(a, `"tp_size":1`, `"tp_size":1000000000`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			g.p.says(says(200, `{"usage":{"prompt_tokens":3},"kv_transfer_params":`+kv+`}`))
			h := g.post(t, chatPath, chat(true, "hi"))
			want := outcome{200, "recompute", "prefill-kept-none", 1, 1}
			if d := cmp.Diff(want, g.outcome(t, h)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if got := g.d.generated()[0]; strings.Contains(got.body, "kv_transfer_params") {
				t.Errorf("D was sent %s", got.body)
			}
			counted := g.metric(t, `tarik_bad_params_total{leg="prefill"}`)
			if object := kv[0] == '{'; object != (counted == "1") {
				t.Errorf("counted %q times", counted)
			}
		})
	}
}

// Members that only an engine may set for itself are taken out of A, unknown ones stay.
func TestParamsOfPReachDAsTheyAre(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	a := strings.Replace(params(true, "p-1", 3, 0), `"tp_size"`, `"new_in_0.34":[1.50,{"z":1,"a":2}],"_remote_blocks_processed":true,"tp_size"`, 1)
	g.p.says(says(200, `{"usage":{"prompt_tokens":3},"kv_transfer_params":`+a+`}`))
	g.post(t, chatPath, chat(true, "hi"))
	want := strings.Replace(a, `"_remote_blocks_processed":true,`, "", 1)
	if got := string(g.d.generated()[0].fields().Params); got != want {
		t.Errorf("D got %s, want %s", got, want)
	}
}

// A stream that breaks is broken for the client, and nothing is kept of it.
func TestA08StreamCut(t *testing.T) {
	t.Parallel()
	for _, withHandle := range []bool{false, true} {
		g := newRig(t)
		g.d.says(func(s *stub, w http.ResponseWriter, req *http.Request, c call) {
			all := chunks(s, c, "finish")
			if withHandle {
				all = all[:3] // with finish_reason and handle, without [DONE]
			} else {
				all = all[:2]
			}
			cutAfter(all...)(s, w, req, c)
		})
		h := g.post(t, chatPath, chat(true, long(100)))
		if h.err == nil || strings.Contains(h.body, "[DONE]") || !strings.Contains(h.body, `"code":"stream-truncated"`) || !strings.Contains(h.body, `"content":"o"`) {
			t.Errorf("the client got %v, %s; want what came, an error event and a broken body", h.err, h.body)
		}
		if rc := g.receipt(t, h); rc.HeldTokens != 0 {
			t.Errorf("a handle of %d tokens is kept", rc.HeldTokens)
		}
		if n := g.metric(t, "tarik_streams_truncated_total"); n != "1" {
			t.Errorf("counted %q truncated streams", n)
		}
		// The next turn works, and P is given no handle.
		g.d.says()
		h = g.post(t, chatPath, chat(true, long(100), "o", "go on"))
		if rc := g.receipt(t, h); h.status != 200 || rc.PPulledTokens == nil || *rc.PPulledTokens != 0 {
			t.Errorf("next turn: HTTP %d, %+v", h.status, rc)
		}
		if withHandle {
			// What D keeps is given back to it, by a P call that reads nothing.
			g.p.wait(t, func(calls []call) bool {
				for _, c := range calls {
					if f := c.fields(); f.Stream && f.param("remote_num_tokens") == "0" {
						return true
					}
				}
				return false
			})
		}
	}
}

// wait polls until the stub's calls satisfy ok.
func (s *stub) wait(t testing.TB, ok func([]call) bool) {
	t.Helper()
	until(t, "the stub's calls", func() bool { return ok(s.got()) })
}

// until waits for a condition that another goroutine brings about, at most for the test's patience.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not in time", what)
		case <-tick.C:
		}
	}
}

// An error in mid-stream is the engine's word: passed on, and nothing is kept.
func TestErrorInMidStream(t *testing.T) {
	t.Parallel()
	for name, last := range map[string]string{
		"event":    errorEvent,
		"finish":   `data: {"id":"d","choices":[{"index":0,"delta":{},"finish_reason":"error"}],"kv_transfer_params":null}` + "\n\n",
		"handleas": `data: {"id":"d","choices":[{"index":0,"delta":{},"finish_reason":"error"}],"kv_transfer_params":` + params(false, "d-1", 100, 0) + `}` + "\n\n",
	} {
		g := newRig(t)
		more := make(chan struct{})
		g.d.says(func(s *stub, w http.ResponseWriter, _ *http.Request, c call) {
			send(w, eventStream, chunks(s, c, "finish")[:2]...)
			<-more
			send(w, eventStream, last, "data: [DONE]\n\n")
		})
		l := g.open(t, chatPath, chat(true, "hi"))
		l.event(t)
		l.event(t)
		close(more)
		body, err := l.rest()
		if err != nil || !strings.HasSuffix(body, "data: [DONE]\n\n") || !strings.Contains(body, `error`) {
			t.Errorf("%s: %v %s", name, err, body)
		}
		if rc := g.receipt(t, heard{header: l.Header}); rc.HeldTokens != 0 {
			t.Errorf("%s: a handle is kept", name)
		}
	}
}

// Engines that are not there.
func TestEnginesDown(t *testing.T) {
	t.Parallel()
	t.Run("D never seen", func(t *testing.T) {
		t.Parallel()
		p := newStub(t, true)
		cfg := router.DefaultConfig()
		cfg.Return, cfg.Append = false, false
		cfg.Prefill, cfg.Decode, cfg.HealthInterval = p.URL, "http://127.0.0.1:1", time.Hour
		r, err := router.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		front := httptest.NewServer(r.Handler())
		t.Cleanup(front.Close)
		g := &rig{p: p, url: front.URL}
		until(t, "P is seen", func() bool { return g.do(t, "GET", "/v1/models", nil).status == 200 }) // G10
		h := g.post(t, chatPath, chat(false, "hi"))
		if h.status != 503 || h.errorCode() != "engine-down" || h.header.Get("Retry-After") == "" {
			t.Errorf("HTTP %d %s, want 503 with Retry-After", h.status, h.body)
		}
		if h := g.do(t, "GET", "/health", nil); h.status != 503 {
			t.Errorf("/health: HTTP %d", h.status)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := r.Ready(ctx); err == nil || !strings.Contains(err.Error(), "decode") {
			t.Errorf("Ready = %v, want an error that names what is missing", err)
		}
	})
	t.Run("D gone", func(t *testing.T) {
		t.Parallel()
		g := newRig(t)
		g.d.Close()
		h := g.post(t, chatPath, chat(true, "hi"))
		if h.status != 502 || h.errorCode() != "decode-failed" {
			t.Errorf("HTTP %d %s, want 502", h.status, h.body)
		}
		if h := g.do(t, "GET", "/v1/models", nil); h.status != 200 {
			t.Errorf("/v1/models: HTTP %d", h.status)
		}
	})
	t.Run("P gone", func(t *testing.T) {
		t.Parallel()
		g := newRig(t)
		g.p.Close()
		h := g.post(t, chatPath, chat(true, "hi"))
		if h.status != 200 || !strings.HasSuffix(h.body, "data: [DONE]\n\n") {
			t.Errorf("HTTP %d %s", h.status, h.body)
		}
		if rc := g.receipt(t, h); rc.Why != "prefill-failed" {
			t.Errorf("why %s", rc.Why)
		}
		// G10: what generates nothing is answered by the engine that is there.
		if h := g.post(t, "/tokenize", `{"prompt":"x"}`); h.status != 200 {
			t.Errorf("/tokenize: HTTP %d", h.status)
		}
	})
}

// A P call that fails with a handle in it is made again without, at once, and the handle is gone.
func TestR8PullFails(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]answer{
		"500": says(500, `{"error":{"message":"m","type":"t"}}`), "reset": reset, "nonsense": says(200, "x"), "400": says(400, `{"error":{"message":"m","type":"t"}}`),
	} {
		g := newRig(t)
		h := g.post(t, chatPath, chat(true, long(100)))
		if rc := g.receipt(t, h); rc.HeldTokens != 103 {
			t.Fatalf("%s: D holds %d tokens, want 103", name, rc.HeldTokens)
		}
		g.p.says(bad, good)
		g.d.says()
		h = g.post(t, chatPath, chat(true, long(100), "ok", "next"))
		if d := cmp.Diff(outcome{200, "recompute", "pull-failed", 2, 1}, g.outcome(t, h)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		calls := g.p.generated()
		if first, second := calls[0].fields().param("remote_num_tokens"), calls[1].fields().param("remote_engine_id"); first != "103" || second != "null" {
			t.Errorf("%s: P was sent a handle of %s tokens, then engine %s; want 103, then the null form", name, first, second)
		}
	}
}
