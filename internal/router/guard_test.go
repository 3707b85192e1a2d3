package router_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/router"
	"github.com/tarik-kv/tarik/internal/telemetry"
)

const (
	bugOpenAI    = `{"error":{"message":"the router failed on this request; its log says why","type":"InternalServerError","param":null,"code":"internal-error"}}`
	bugAnthropic = `{"type":"error","error":{"type":"api_error","message":"the router failed on this request; its log says why"}}`
)

// A bug ends one request: with a 500 in the client's dialect if nothing has been sent, with a broken
// reply if something has. The log says where it was, and not what the client sent.
func TestBugInTheRouter(t *testing.T) {
	t.Parallel()
	type out struct {
		Status int
		Type   string
		Body   string
		Broken bool
	}
	t.Run("before a turn", func(t *testing.T) {
		t.Parallel()
		g := newRig(t, func(c *router.Config) {
			c.Salt = func(_, clientSalt string) string {
				if clientSalt != "" {
					panic(clientSalt)
				}
				return ""
			}
		})
		for path, want := range map[string]string{chatPath: bugOpenAI, responsesPath: bugOpenAI, messagesPath: bugAnthropic} {
			h := g.post(t, path, `{"model":"m","messages":[],"input":"hi","cache_salt":"canary"}`, "X-Request-Id", "mine")
			if diff := cmp.Diff(out{500, "application/json", want, false}, out{h.status, h.header.Get("Content-Type"), h.body, h.err != nil}); diff != "" {
				t.Errorf("%s (-want +got):\n%s", path, diff)
			}
		}
		if log := g.log.String(); strings.Count(log, `panic="a string"`) != 3 || strings.Contains(log, "canary") || !strings.Contains(log, "guard_test.go") {
			t.Errorf("log: %s", log)
		}
		if n := g.metric(t, "tarik_panics_total"); n != "3" {
			t.Errorf("%s panics counted, want 3", n)
		}
		if h := g.post(t, chatPath, chat(false, "hi")); h.status != http.StatusOK {
			t.Errorf("the next turn: HTTP %d", h.status)
		}
	})
	t.Run("at the end of a turn", func(t *testing.T) {
		t.Parallel()
		g := newRig(t, func(c *router.Config) { c.Receipts = telemetry.NewReceipts(8, bug{}) })
		h := g.post(t, messagesPath, `{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":3}`)
		if diff := cmp.Diff(out{500, "application/json", bugAnthropic, false}, out{h.status, h.header.Get("Content-Type"), h.body, h.err != nil}); diff != "" {
			t.Errorf("nothing sent (-want +got):\n%s", diff)
		}
		if h.header.Get("X-Tarik-Turn") == "" {
			t.Error("the answer does not name its turn")
		}
		h = g.post(t, chatPath, chat(true, "hi"))
		if h.status != http.StatusOK || h.err == nil || !strings.Contains(h.body, `"content":"k"`) || strings.Contains(h.body, "[DONE]") {
			t.Errorf("a stream that had begun: HTTP %d, error %v, want a broken body:\n%s", h.status, h.err, h.body)
		}
	})
}

// bug is a writer with one.
type bug struct{}

func (bug) Write([]byte) (int, error) { panic("BUG: router_test: a writer") }

// Whatever the router itself says on Anthropic's routes is in Anthropic's shape.
func TestRefusalsSpeakAnthropic(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	const turn = `{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":3}`
	// An error that repeats what only the router may say is not passed on.
	g.d.says(says(400, `{"type":"error","error":{"type":"invalid_request_error","message":"no: {'kv_transfer_params': {'remote_host': '10.9.8.7'}}"}}`))
	f := func(method, path, body string, status int, kind string) {
		t.Helper()
		h := g.do(t, method, path, strings.NewReader(body))
		if h.status != status || !strings.HasPrefix(h.body, `{"type":"error","error":{"type":"`+kind+`","message":"`) {
			t.Errorf("%s %s: HTTP %d %s, want %d %s", method, path, h.status, h.body, status, kind)
		}
	}
	f("POST", messagesPath, turn, 400, "invalid_request_error")
	f("GET", messagesPath, "", 405, "invalid_request_error")
	f("POST", messagesPath+"/count_tokens", "{", 400, "invalid_request_error")
	f("POST", messagesPath+"/batches", "{}", 404, "not_found_error")
	// A stream that begins with an error is an error of its own status.
	g.d.says(pieces(eventStream, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"busy\"}}\n\n"))
	h := g.post(t, messagesPath, `{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":3,"stream":true}`)
	if want := `{"type":"error","error":{"type":"overloaded_error","message":"busy"}}`; h.status != 500 || h.body != want {
		t.Errorf("HTTP %d %s, want 500 %s", h.status, h.body, want)
	}
}
