package router_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tarik-kv/tarik/internal/router"
	"github.com/tarik-kv/tarik/internal/telemetry"
)

const (
	responsesPath = "/v1/responses"
	messagesPath  = "/v1/messages"
)

// replyText is the text of a reply of responses or messages, streamed or not, and the id of a
// response.
func replyText(t testing.TB, h heard) (text, id string) {
	t.Helper()
	type object struct {
		ID      string
		Type    string
		Output  []struct{ Content []struct{ Text string } }
		Content []struct{ Text string }
	}
	whole := func(o object) (s string) {
		for _, item := range o.Output {
			for _, c := range item.Content {
				s += c.Text
			}
		}
		for _, c := range o.Content {
			s += c.Text
		}
		return s
	}
	if !strings.HasPrefix(h.header.Get("Content-Type"), "text/event-stream") {
		var o object
		if err := json.Unmarshal([]byte(h.body), &o); err != nil {
			t.Fatalf("reply %q: %v", h.body, err)
		}
		return whole(o), o.ID
	}
	ended := false
	for line := range strings.SplitSeq(h.body, "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var ev struct {
			Type     string
			Delta    json.RawMessage
			Response object
		}
		if err := json.Unmarshal([]byte(data), &ev); err != nil {
			t.Fatalf("event %q: %v", data, err)
		}
		switch ev.Type {
		case "content_block_delta":
			var d struct{ Text string }
			_ = json.Unmarshal(ev.Delta, &d)
			text += d.Text
		case "response.output_text.delta":
			var d string
			_ = json.Unmarshal(ev.Delta, &d)
			text += d
		case "response.completed", "response.incomplete":
			id, ended = ev.Response.ID, true
			if got := whole(ev.Response); got != text {
				t.Errorf("the deltas say %q, the response %q", text, got)
			}
		case "message_stop":
			ended = true
		}
	}
	if !ended {
		t.Fatalf("the stream has no end: %q", h.body)
	}
	return text, id
}

// TestOracleDialects is TestOracle for responses and messages: the same replies as from an engine
// that reuses nothing, turn after turn.
func TestOracleDialects(t *testing.T) {
	t.Parallel()
	t.Run("held", func(t *testing.T) {
		t.Parallel()
		oracleDialects(t, newOracle(t, "vllm-0.33", false), false)
	})
	t.Run("return", func(t *testing.T) {
		t.Parallel()
		oracleDialects(t, newOracleWith(t, "vllm-0.33", false, func(c *router.Config) { c.Append = false }), true)
	})
}

func oracleDialects(t *testing.T, o *oracle, returns bool) {
	ready := 0
	defer func() {
		if returns && ready < 30 {
			t.Errorf("P was ready for %d of 48 turns", ready)
		}
	}()
	rng := rand.New(rand.NewPCG(3, 4))
	for c := range 12 {
		path := []string{responsesPath, messagesPath}[c%2]
		var history []any
		previous, byID := "", c%4 == 0 // the client sends what is new, or all of it
		for n := range 5 {
			history = append(history, map[string]any{"role": "user", "content": words(rng, 30+rng.IntN(60))})
			ask := func(extra map[string]any) string {
				b := map[string]any{"model": "tiny", "temperature": 0, "stream": rng.IntN(2) == 0}
				if path == messagesPath {
					b["max_tokens"], b["messages"], b["system"] = 40, history, sharedHead
				} else {
					b["max_output_tokens"], b["input"], b["instructions"] = 40, history, sharedHead
				}
				for k, v := range extra {
					b[k] = v
				}
				return jsonOf(b)
			}
			var extra map[string]any
			if previous != "" && byID {
				extra = map[string]any{"previous_response_id": previous, "input": history[len(history)-1:]}
			}
			got := do(t, http.MethodPost, o.stack.URL()+path, strings.NewReader(ask(extra)), "Content-Type", "application/json")
			want := do(t, http.MethodPost, o.reference.URL()+path, strings.NewReader(ask(nil)), "Content-Type", "application/json")
			if got.status != 200 || want.status != 200 {
				t.Fatalf("HTTP %d and %d: %s %s", got.status, want.status, got.body, want.body)
			}
			if strings.Contains(got.body, `"remote_`) {
				t.Errorf("the client sees a handle: %s", got.body)
			}
			gotText, id := replyText(t, got)
			wantText, _ := replyText(t, want)
			if gotText != wantText {
				t.Fatalf("%s turn %d (previous %q): %q, want %q", path, n, previous, gotText, wantText)
			}
			rc := find(t, o, got)
			if rc.TurnNumber != n+1 || n > 0 && (rc.PLocalTokens == nil || *rc.PLocalTokens < rc.PromptTokens/2) {
				t.Errorf("%s turn %d: %+v, want turn %d with most of it reused", path, n, rc, n+1)
			}
			if rc.Why == "return-ready" {
				ready++
				if *rc.PComputedTokens > 300 {
					t.Errorf("%s turn %d: P was ready and computed %d tokens", path, n, *rc.PComputedTokens)
				}
			}
			for end := time.Now().Add(20 * time.Second); returns && time.Now().Before(end); time.Sleep(time.Millisecond) {
				if rc = find(t, o, got); rc.Return != nil && rc.Return.State != telemetry.Pending {
					break
				}
			}
			previous = id
			item := map[string]any{"role": "assistant", "content": gotText}
			if path == responsesPath {
				// As the response says it, and as clients send it back.
				item = map[string]any{
					"type": "message", "role": "assistant", "status": "completed", "id": "m",
					"content": []any{map[string]any{"type": "output_text", "text": gotText, "annotations": []any{}}},
				}
			}
			history = append(history, item)
		}
	}
	o.checkBlocks(t)
}

// find returns the receipt of a turn.
func find(t testing.TB, o *oracle, h heard) telemetry.Receipt {
	t.Helper()
	rc, ok := o.receipts.Find(h.header.Get("X-Tarik-Turn"))
	if !ok {
		t.Fatalf("no receipt for turn %q", h.header.Get("X-Tarik-Turn"))
	}
	return rc
}

func TestPreviousResponse(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	response := func(id, text string) answer {
		return says(200, fmt.Sprintf(`{"id":%q,"object":"response","previous_response_id":null,"status":"completed","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":%q}]}],"usage":{"input_tokens":9,"output_tokens":2},"kv_transfer_params":null}`, id, text))
	}
	g.p.says(says(200, `{"id":"p","object":"response","output":[],"usage":{"input_tokens":9,"output_tokens":1},"kv_transfer_params":`+params(true, "p-1", 9, 0)+`}`))
	g.d.says(response("resp_1", "ok"))
	if h := g.post(t, responsesPath, `{"model":"m","input":"h\u0069","temperature":0.10}`); h.status != 200 {
		t.Fatalf("HTTP %d %s", h.status, h.body)
	}
	g.p.says(g.p.script[0])
	g.d.says(response("resp_2", "more"))
	h := g.post(t, responsesPath, `{"model":"m","previous_response_id":"resp_1","input":[{"role":"user","content":"go on"}],"store":true}`)
	if !strings.Contains(h.body, `"previous_response_id":"resp_1"`) || strings.Contains(h.body, "kv_transfer_params") {
		t.Errorf("the client gets %s", h.body)
	}
	want := `"input":[{"role":"user","content":"h\u0069"},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"ok"}]},{"role":"user","content":"go on"}]`
	for _, s := range []*stub{g.p, g.d} {
		c := s.generated()[0]
		if !strings.Contains(c.body, want) || strings.Contains(c.body, "previous_response_id") {
			t.Errorf("an engine was sent %s\nwant the whole input in it: %s", c.body, want)
		}
	}
	if b := g.p.generated()[0].body; !strings.Contains(b, `"max_output_tokens":1`) || !strings.Contains(b, `"store":false`) {
		t.Errorf("P was sent %s, want one token and nothing stored", b)
	}
	// Unknown, not stored, of another model, of another salt: the same answer.
	g.d.says(response("resp_3", "x"))
	g.post(t, responsesPath, `{"model":"m","input":"x","store":false}`)
	for _, b := range []string{
		`{"model":"m","previous_response_id":"resp_9","input":"x"}`,
		`{"model":"m","previous_response_id":"resp_3","input":"x"}`,
		`{"model":"n","previous_response_id":"resp_1","input":"x"}`,
		`{"model":"m","previous_response_id":"resp_1","input":"x","cache_salt":"other"}`,
	} {
		if h := g.post(t, responsesPath, b); h.status != 404 || h.errorCode() != "previous-response-not-found" {
			t.Errorf("%s: HTTP %d %s, want 404", b, h.status, h.body)
		}
	}
	if h := g.post(t, responsesPath, `{"model":"m","input":"x","background":true}`); h.status != 400 {
		t.Errorf("background: HTTP %d %s", h.status, h.body)
	}
}

// Errors of the router's own speak the client's dialect.
func TestMessagesErrors(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	h := g.post(t, messagesPath, `{"model":`)
	want := `{"type":"error","error":{"type":"invalid_request_error","message":"request body: `
	if h.status != 400 || !strings.HasPrefix(h.body, want) {
		t.Errorf("HTTP %d %s, want %s…", h.status, h.body, want)
	}
	// An engine that breaks in mid-stream leaves an error event, and no end.
	g.p.says(says(200, `{"id":"p","content":[],"usage":{"input_tokens":9,"output_tokens":1},"kv_transfer_params":`+params(true, "p-1", 9, 0)+`}`))
	g.d.says(cutAfter("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":3}}}\n\n",
		"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n"))
	l := g.open(t, messagesPath, `{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"x"}]}`)
	body, err := l.rest()
	if err == nil || !strings.Contains(body, "event: error\ndata: {\"type\":\"error\"") || strings.Contains(body, "message_stop") {
		t.Errorf("a broken stream reads %q, %v", body, err)
	}
}

func TestDialectMedia(t *testing.T) {
	t.Parallel()
	for body, path := range map[string]string{
		`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]}`:                                                      messagesPath,
		`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{}}]}]}]}`: messagesPath,
		`{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"u"}]}]}`:                                                              responsesPath,
		`{"model":"m","input":[{"type":"function_call_output","call_id":"c","output":[{"type":"input_image","image_url":"u"}]}]}`:                                 responsesPath,
	} {
		g := newRig(t)
		h := g.post(t, path, body)
		if rc := g.receipt(t, h); rc.Arm != "plain" || rc.Why != "media" || len(g.p.generated()) > 0 {
			t.Errorf("%s: arm %s why %s, want D alone", body, rc.Arm, rc.Why)
		}
	}
}
