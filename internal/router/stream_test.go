package router_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/router"
)

// Wherever an engine puts the handle, it is kept and never shown. Where it puts none, the turn is
// right all the same, and counted.
func TestA01HandleInAnyChunk(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"first", "finish", "usage", "own", "none"} {
		for _, usage := range []bool{false, true} {
			t.Run(fmt.Sprint(place, " ", usage), func(t *testing.T) {
				t.Parallel()
				g := newRig(t)
				g.d.says(streamed(place))
				said := []string{long(200)}
				for i := range 3 {
					body := chat(true, said...)
					if usage {
						body = strings.Replace(body, `"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, 1)
					}
					h := g.post(t, chatPath, body)
					rc := g.receipt(t, h)
					// A11: exactly one usage chunk if asked for, none if not.
					if n := strings.Count(h.body, `"usage":{`); n != len([]bool{true}[:b2i(usage)]) {
						t.Errorf("turn %d: %d usage chunks: %s", i+1, n, h.body)
					}
					if !strings.HasSuffix(h.body, "data: [DONE]\n\n") || strings.Contains(h.body, "token_ids\":[") {
						t.Errorf("turn %d: %s", i+1, h.body)
					}
					if n := strings.Count(h.body, "system_fingerprint"); n != 1 {
						t.Errorf("turn %d: %d fingerprints, want one, as the engine gives: %s", i+1, n, h.body)
					}
					want, held := "pull", len(strings.Join(said, "+"))+3
					if i == 0 || place == "none" {
						want = "recompute"
					}
					if place == "none" {
						held = 0
					}
					if rc.Arm != want || rc.HeldTokens != held || h.status != 200 {
						t.Errorf("turn %d: HTTP %d, arm %s why %s, %d tokens held; want %s, %d", i+1, h.status, rc.Arm, rc.Why, rc.HeldTokens, want, held)
					}
					said = append(said, "ok", "and then?")
				}
				n := g.metric(t, `tarik_replies_without_handle_total{endpoint="/v1/chat/completions",streamed="true"}`)
				if (n == "3") != (place == "none") {
					t.Errorf("counted %q replies without a handle", n)
				}
			})
		}
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

var handleMember = regexp.MustCompile(`,"kv_transfer_params":(null|\{[^{}]*\})`)

// A09: whatever the pieces and the line ends, the client gets the engine's bytes less the handle, and
// the handle is kept.
func TestA09AnySplitAnyLineEnd(t *testing.T) {
	t.Parallel()
	for name, shape := range map[string]func(string) string{
		"lf":       func(s string) string { return s },
		"crlf":     func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") },
		"no space": func(s string) string { return strings.ReplaceAll(s, "data: ", "data:") },
		"comments": func(s string) string { return strings.ReplaceAll(s, "data: ", ": keep-alive\n\ndata: ") },
		"merged": func(s string) string {
			return strings.Replace(s, `"content":"o"`, `"content":"o 你好 🙂 \ud83d\ude42"`, 1)
		},
		"cr": func(s string) string { return strings.ReplaceAll(s, "\n", "\r") },
	} {
		for _, bytewise := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " ", bytewise), func(t *testing.T) {
				t.Parallel()
				g := newRig(t)
				var sent string
				g.d.says(func(s *stub, w http.ResponseWriter, _ *http.Request, c call) {
					sent = shape(strings.Join(chunks(s, c, "finish"), ""))
					if bytewise {
						send(w, eventStream, strings.Split(sent, "")...)
					} else {
						send(w, eventStream, sent)
					}
				})
				body := strings.Replace(chat(true, long(100)), `"stream":true`, `"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true}`, 1)
				h := g.post(t, chatPath, body)
				want := handleMember.ReplaceAllString(sent, "")
				if d := cmp.Diff(want, h.body); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
				if rc := g.receipt(t, h); rc.HeldTokens != 103 || rc.TTFTMs == nil {
					t.Errorf("receipt %+v: want 103 tokens held, and a first token", rc)
				}
			})
		}
	}
}

// A03: lines of any length arrive unchanged, and what comes behind them is understood.
func TestA03LongLine(t *testing.T) {
	t.Parallel()
	for _, size := range []int{70 << 10, 4 << 20} {
		g := newRig(t)
		var sent string
		g.d.says(func(s *stub, w http.ResponseWriter, _ *http.Request, c call) {
			all := chunks(s, c, "own")
			line := `data: {"id":"d","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"` + strings.Repeat(`\"kv_transfer_params\":{`, size/24) + `"}}]}}]}` + "\n\n"
			all = append(append(all[:2:2], line), all[2:]...)
			sent = strings.Join(all[:len(all)-2], "") + all[len(all)-1] // the client sees no handle chunk
			send(w, eventStream, all...)
		})
		req := strings.Replace(chat(true, long(100)), `"stream":true`, `"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true}`, 1)
		l := g.open(t, chatPath, req) // the model says the words: the check of post does not fit
		got, err := l.rest()
		if want := strings.ReplaceAll(sent, `,"kv_transfer_params":null`, ""); err != nil || got != want {
			t.Errorf("%d bytes: %v, got %d bytes, want %d", size, err, len(got), len(want))
		}
		if rc := g.receipt(t, heard{header: l.Header}); rc.HeldTokens != 103 {
			t.Errorf("%d bytes: %d tokens held, want 103", size, rc.HeldTokens)
		}
	}
}

// A02, A18: each event is with the client before D sends the next.
func TestA02EventsAreNotHeldBack(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	next := make(chan struct{})
	g.d.says(func(s *stub, w http.ResponseWriter, _ *http.Request, c call) {
		for _, p := range append([]string{": ping\n\n"}, chunks(s, c, "finish")...) {
			send(w, eventStream, p)
			if p != ": ping\n\n" && p != "data: [DONE]\n\n" {
				<-next // the test has read it, or it would hang here
			}
		}
	})
	l := g.open(t, chatPath, strings.Replace(chat(true, "hi"), `"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, 1))
	if got := l.event(t); got != ": ping\n\n" {
		t.Errorf("first came %q", got)
	}
	for i, want := range []string{"assistant", `"o"`, `"k"`, "usage"} {
		if got := l.event(t); !strings.Contains(got, want) {
			t.Errorf("event %d is %q, want %s in it", i, got, want)
		}
		next <- struct{}{}
	}
	if rest, err := l.rest(); rest != "data: [DONE]\n\n" || err != nil {
		t.Errorf("the end is %q, %v", rest, err)
	}
	for name, want := range map[string]string{"X-Accel-Buffering": "no", "Cache-Control": "no-cache, no-transform"} { // A16
		if got := l.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// The end mark reaches the client when the handle is kept, not before, also if D keeps the
// connection open behind it.
func TestEndMarkWithoutEndOfBody(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.d.says(func(s *stub, w http.ResponseWriter, req *http.Request, c call) {
		send(w, eventStream, chunks(s, c, "finish")...)
		<-req.Context().Done()
	})
	h := g.post(t, chatPath, chat(true, long(100)))
	if rc := g.receipt(t, h); h.err != nil || !strings.HasSuffix(h.body, "data: [DONE]\n\n") || rc.HeldTokens != 103 {
		t.Errorf("%v, %d held, %s", h.err, rc.HeldTokens, h.body)
	}
}

// I05: what D calls its stream does not matter.
func TestI05ContentTypes(t *testing.T) {
	t.Parallel()
	for _, contentType := range []string{"text/event-stream", "text/event-stream; charset=utf-8", "Text/Event-Stream", "TEXT/EVENT-STREAM;charset=UTF-8", ""} {
		g := newRig(t)
		g.d.says(func(s *stub, w http.ResponseWriter, _ *http.Request, c call) {
			send(w, contentType, chunks(s, c, "finish")...)
		})
		h := g.post(t, chatPath, chat(true, long(100)))
		rc := g.receipt(t, h)
		if want := contentType; h.status != 200 || !strings.HasSuffix(h.body, "data: [DONE]\n\n") ||
			want != "" && h.header.Get("Content-Type") != want || want == "" && h.header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("%q: HTTP %d, Content-Type %q, %s", contentType, h.status, h.header.Get("Content-Type"), h.body)
		}
		if rc.HeldTokens != 103 || rc.PromptTokens != 101 || rc.OutputTokens != 3 {
			t.Errorf("%q: %+v", contentType, rc)
		}
	}
}

// A11: continuous usage is the client's if it asked, and nobody's if not.
func TestA11Usage(t *testing.T) {
	t.Parallel()
	for options, want := range map[string]int{
		``: 0, `null`: 0, `{}`: 0, `{"include_usage":false}`: 0, `{"include_usage":true}`: 1, `{"include_usage":true,"continuous_usage_stats":true}`: 4,
		`{"include_usage":false,"continuous_usage_stats":true}`: 0, `{"x":[1,{"y":2}]}`: 0,
	} {
		g := newRig(t)
		g.d.says(func(s *stub, w http.ResponseWriter, _ *http.Request, c call) {
			all := chunks(s, c, "finish")
			if strings.Contains(c.body, `"continuous_usage_stats":true`) {
				for i := range all[:3] {
					all[i] = strings.Replace(all[i], "}\n\n", `,"usage":{"prompt_tokens":1,"completion_tokens":1}}`+"\n\n", 1)
				}
			}
			send(w, eventStream, all...)
		})
		body := chat(true, "hi")
		if options != "" {
			body = strings.Replace(body, `"stream":true`, `"stream":true,"stream_options":`+options, 1)
		}
		h := g.post(t, chatPath, body)
		if n := strings.Count(h.body, `"usage"`); n != want || h.status != 200 {
			t.Errorf("stream_options %s: HTTP %d, %d usage members, want %d: %s", options, h.status, n, want, h.body)
		}
		if rc := g.receipt(t, h); rc.OutputTokens != 3 || rc.PromptTokens != 3 {
			t.Errorf("stream_options %s: receipt says %d, %d tokens", options, rc.PromptTokens, rc.OutputTokens)
		}
		p := g.p.generated()[0]
		if strings.Contains(p.body, "stream_options") {
			t.Errorf("P was sent stream_options without a stream: %s", p.body)
		}
		if options != "" && options != "null" && options != "{}" {
			key := strings.SplitN(options[2:], `"`, 2)[0]
			if d := g.d.generated()[0]; !strings.Contains(d.body, `"`+key+`"`) {
				t.Errorf("stream_options %s: D was sent %s", options, d.body)
			}
		}
	}
}

// A comment is no token: it does not count as the first one.
func TestTTFTIsOfTheFirstToken(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.d.says(pieces(eventStream, ": ping\n\n", "data: {\"id\":\"d\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
		": ping\n\n", "data: {\"id\":\"d\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n", "data: [DONE]\n\n"))
	h := g.post(t, chatPath, chat(true, "hi"))
	if rc := g.receipt(t, h); rc.TTFTMs != nil {
		t.Errorf("a reply without any token has a TTFT of %v ms", *rc.TTFTMs)
	}
}

// Comments may come for hours before the first event. They are not kept.
func TestManyCommentsFirst(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.d.says(func(s *stub, w http.ResponseWriter, _ *http.Request, c call) {
		for range 200 {
			send(w, eventStream, strings.Repeat(": keep-alive, still waiting for a free block\n\n", 50))
		}
		send(w, eventStream, chunks(s, c, "finish")...)
	})
	h := g.post(t, chatPath, chat(true, "hi"))
	if h.status != 200 || !strings.HasSuffix(h.body, "data: [DONE]\n\n") || len(h.body) > 80<<10 { // what is kept, and one read
		t.Errorf("HTTP %d, %d bytes", h.status, len(h.body))
	}
}

// Replies of the other kind than was asked for.
func TestReplyOfTheOtherKind(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.d.says(func(s *stub, w http.ResponseWriter, _ *http.Request, c call) {
		send(w, eventStream, chunks(s, c, "finish")...)
	})
	if h := g.post(t, chatPath, chat(false, long(100))); h.status != 200 || !strings.HasSuffix(h.body, "data: [DONE]\n\n") {
		t.Errorf("a stream that was not asked for: HTTP %d %s", h.status, h.body)
	}
	g.d.says(func(s *stub, w http.ResponseWriter, req *http.Request, c call) {
		c.body = strings.Replace(c.body, `"stream":true`, `"stream":false`, 1)
		good(s, w, req, c)
	})
	if h := g.post(t, chatPath, chat(true, long(100))); h.status != 200 || !strings.Contains(h.body, `"content":"ok"`) || h.header.Get("Content-Type") != "application/json" {
		t.Errorf("a whole reply to a request for a stream: HTTP %d %s", h.status, h.body)
	}
}

// The reply must fit into the router's bound if it is not a stream.
func TestReplyTooLarge(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *router.Config) { c.MaxReply = 1 << 16 })
	for _, announced := range []bool{false, true} {
		g.d.says(func(_ *stub, w http.ResponseWriter, _ *http.Request, _ call) {
			body := `{"x":"` + long(1<<17) + `"}`
			if announced {
				w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			}
			send(w, "application/json", body)
		})
		if h := g.post(t, chatPath, chat(false, "hi")); h.status != http.StatusBadGateway || h.errorCode() != "decode-failed" {
			t.Errorf("HTTP %d %s", h.status, h.body)
		}
	}
}

// The client's own bytes of a whole reply stay, less what it must not see.
func TestWholeReply(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	h := g.post(t, chatPath, chat(false, long(100)))
	want := `{"id":"d","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop","stop_reason":null,"token_ids":null}],"system_fingerprint":"vllm-0.33.0-cafe",` +
		`"usage":{"prompt_tokens":101,"total_tokens":104,"completion_tokens":3},"prompt_token_ids":null}`
	if d := cmp.Diff(want, h.body); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got, want := h.header.Get("Content-Length"), fmt.Sprint(len(want)); got != want {
		t.Errorf("Content-Length %s, want %s", got, want)
	}
	if rc := g.receipt(t, h); rc.HeldTokens != 103 || rc.TTFTMs == nil {
		t.Errorf("%+v", rc)
	}
}
