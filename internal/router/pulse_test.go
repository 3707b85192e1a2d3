package router_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/router"
)

const comment = ": keep-alive\n\n"

// beating is a router that keeps streams alive with a comment now and then.
func beating(t *testing.T) *rig {
	return newRig(t, func(c *router.Config) { c.KeepAlive = 5 * time.Millisecond })
}

// waits answers with then after wait is closed, or when the caller leaves.
func waits(wait <-chan struct{}, then answer) answer {
	return func(s *stub, w http.ResponseWriter, req *http.Request, c call) {
		select {
		case <-wait:
			then(s, w, req, c)
		case <-req.Context().Done():
		}
	}
}

// TestA14KeepAlive: P, then D, says nothing until the client has seen comments.
func TestA14KeepAlive(t *testing.T) {
	t.Parallel()
	quiet := newRig(t)
	g := beating(t)
	for name, body := range map[string]string{chatPath: chat(true, "hi"), textPath: `{"model":"m","prompt":"hi","stream":true}`} {
		want := quiet.post(t, name, body).body
		p, d := make(chan struct{}), make(chan struct{})
		g.p.says(waits(p, good))
		g.d.says(waits(d, good))
		l := g.open(t, name, body)
		if diff := cmp.Diff([]string{"text/event-stream", "no-cache, no-transform", "no"},
			[]string{l.Header.Get("Content-Type"), l.Header.Get("Cache-Control"), l.Header.Get("X-Accel-Buffering")}); l.StatusCode != 200 || diff != "" {
			t.Errorf("%s: HTTP %d (-want +got):\n%s", name, l.StatusCode, diff)
		}
		for i := range 6 {
			if ev := l.event(t); ev != comment {
				t.Fatalf("%s: event %d is %q, want a comment", name, i, ev)
			}
			if i == 2 {
				close(p)
			}
		}
		close(d)
		rest, err := l.rest()
		if got := strings.ReplaceAll(rest, comment, ""); err != nil || got != want {
			t.Errorf("%s: error %v (-want +got):\n%s", name, err, cmp.Diff(want, got))
		}
		if rc := g.receipt(t, heard{header: l.Header}); rc.Status != 200 || rc.Error != "" || rc.TTFTMs == nil {
			t.Errorf("%s: receipt %+v", name, rc)
		}
	}
}

// Comments stand between events: not where D is in the middle of one, and neither in the parts of one
// that is too large to be held back.
func TestA14CommentsBetweenEvents(t *testing.T) {
	t.Parallel()
	g := beating(t)
	const head = `data: {"id":"d","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"`
	const tail = `"},"finish_reason":null}]}` + "\n\n"
	one, end := head+"one"+tail, "data: [DONE]\n\n"
	half := make(chan struct{})
	f := func(first, second string) {
		t.Helper()
		g.d.says(func(_ *stub, w http.ResponseWriter, req *http.Request, _ call) {
			send(w, eventStream, one, first)
			select {
			case <-half:
			case <-req.Context().Done():
			}
			send(w, eventStream, second, end)
		})
	}
	f(head+"t", "wo"+tail)
	l := g.open(t, chatPath, chat(true, "hi"))
	for ev := l.event(t); ev != one; ev = l.event(t) {
		if ev != comment {
			t.Fatalf("event %q", ev)
		}
	}
	for range 3 {
		if ev := l.event(t); ev != comment {
			t.Fatalf("event %q, want a comment while D is in the middle of one", ev)
		}
	}
	half <- struct{}{}
	rest, err := l.rest()
	if want := head + "two" + tail + end; err != nil || strings.ReplaceAll(rest, comment, "") != want {
		t.Errorf("error %v, rest %q, want %q", err, rest, want)
	}

	large := head + strings.Repeat("x", 17<<20)
	f(large, strings.Repeat("y", 1<<20)+tail)
	l = g.open(t, chatPath, chat(true, "hi"))
	go func() {
		time.Sleep(50 * time.Millisecond) // ten times as long as a comment waits for
		half <- struct{}{}
	}()
	rest, err = l.rest()
	if want := one + large + strings.Repeat("y", 1<<20) + tail + end; err != nil || !strings.Contains(rest, large[len(head):]+"y") || strings.ReplaceAll(rest, comment, "") != want {
		t.Errorf("error %v, %d bytes, want %d without a comment in the large event", err, len(rest), len(want))
	}
}

// What fails after the headers is said as an event, in the client's dialect, and the body ends well:
// a client that takes a broken connection for a reason to try again would do so for ever.
func TestA14FailureAfterHeaders(t *testing.T) {
	t.Parallel()
	g := beating(t)
	refusal := says(400, "{\"error\":{\"message\":\"too long\",\n\"type\":\"BadRequestError\",\"param\":null,\"code\":400}}")
	const message = `{"model":"m","max_tokens":3,"messages":[{"role":"user","content":"x"}],"stream":true}`
	for _, tt := range []struct {
		name, path, body string
		p, d             answer
		want, code       string
	}{
		{
			name: "P refuses", path: chatPath, body: chat(true, "hi"), p: refusal, d: good, code: "engine-error",
			want: "data: {\"error\":{\"message\":\"too long\",\ndata: \"type\":\"BadRequestError\",\"param\":null,\"code\":400}}\n\n",
		},
		{
			name: "D refuses", path: messagesPath, body: message, p: good, code: "engine-error",
			d:    says(429, `{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}`),
			want: "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"slow down\"}}\n\n",
		},
		{
			name: "D is gone", path: chatPath, body: chat(true, "hi"), p: good, d: reset, code: "decode-failed",
			want: `data: {"error":{"message":"the decode engine did not answer: the connection broke","type":"BadGatewayError","param":null,"code":"decode-failed"}}` + "\n\n",
		},
		{
			name: "D says no in an event", path: chatPath, body: chat(true, "hi"), p: good, code: "engine-error",
			d:    pieces(eventStream, "data: {\"error\":{\"message\":\"no\",\"code\":500}}\n\n"),
			want: "data: {\"error\":{\"message\":\"no\",\"code\":500}}\n\n",
		},
		{
			name: "D does not stream", path: chatPath, body: chat(true, "hi"), p: good,
			d:    says(200, `{"id":"d","choices":[{"index":0,"message":{"content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`, "Content-Type", "application/json"),
			want: `data: {"id":"d","choices":[{"index":0,"message":{"content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}` + "\n\n",
		},
	} {
		wait := make(chan struct{})
		g.p.says(waits(wait, tt.p))
		g.d.says(tt.d)
		l := g.open(t, tt.path, tt.body)
		if ev := l.event(t); ev != comment {
			t.Fatalf("%s: event %q", tt.name, ev)
		}
		close(wait)
		rest, err := l.rest()
		if got := strings.ReplaceAll(rest, comment, ""); err != nil || got != tt.want {
			t.Errorf("%s: error %v, HTTP %d\n got %q\nwant %q", tt.name, err, l.StatusCode, got, tt.want)
		}
		if rc := g.receipt(t, heard{header: l.Header}); fmt.Sprintf("%d %s", rc.Status, rc.Error) != "200 "+tt.code {
			t.Errorf("%s: receipt has status %d, error %q, want 200, %q", tt.name, rc.Status, rc.Error, tt.code)
		}
	}
}

// Without being asked to, the router sends nothing before an engine does, so that a failure keeps its
// status; and a reply in one piece is never begun early.
func TestA14Off(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		g    *rig
		body string
	}{{newRig(t), chat(true, "hi")}, {beating(t), chat(false, "hi")}} {
		tt.g.p.says(func(s *stub, w http.ResponseWriter, req *http.Request, c call) {
			time.Sleep(30 * time.Millisecond) // longer than beating waits
			says(400, `{"error":{"message":"no","type":"x"}}`)(s, w, req, c)
		})
		if h := tt.g.post(t, chatPath, tt.body); h.status != 400 || strings.Contains(h.body, "keep-alive") {
			t.Errorf("HTTP %d %q, want 400", h.status, h.body)
		}
	}
}
