package api

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

func seedBodies(f *testing.F) {
	f.Helper()
	files, err := filepath.Glob("testdata/vllm-*/*req.json")
	if err != nil || len(files) == 0 {
		f.Fatalf("no recorded requests: %v", err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, s := range []string{
		``, `{`, `null`, `[]`, `{"prompt":[[1],[2]],"n":3}`, `{"prompt":["a",null]}`, `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},"b"]}]}`,
		`{"messages":[{"role":"user","content":"x"}],"kv_transfer_params":{"prompt_token_ids":[1,2],"a":1e400}}`,
		`{"messages":[{}],"tools":[{"function":{"name":"f"}}],"tool_choice":{"function":{"name":"f"}},"stream":true}`,
		`{"prompt":"x","stop":["a","b"],"seed":9223372036854775807,"top_k":-1,"logprobs":5,"echo":true,"max_tokens":0}`,
		`{"prompt":"x","max_tokens":1e300,"n":-9223372036854775808}`, `{"prompt":"\ud800\u0000"}`, `{"tokens":[1,2]}`,
		`{"input":"x","stream":true,"store":true,"tools":[{"type":"function","name":"f"}],"include":["message.output_text.logprobs"],"top_logprobs":2}`,
		`{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{"},
			{"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"r"}]},{"type":"reasoning","content":[{"text":"t"}]},
			{"role":"assistant","content":"b","status":"incomplete"}],"previous_response_id":"resp_0000000000000000"}`,
		`{"input":"x","reasoning":{"effort":"high"},"text":{"format":{"type":"text"}},"metadata":{"a":"b"},"instructions":"i","enable_response_messages":1}`,
		`{"model":"smollm2","max_tokens":9,"system":[{"type":"text","text":"s"}],"stream":true,"stop_sequences":["b"],"tools":[{"name":"f","input_schema":{ }}],"tool_choice":{"type":"any"},
			"messages":[{"role":"system","content":"t"},{"role":"user","content":[{"type":"tool_result","tool_use_id":"u","content":[{"type":"text","text":"r"}]},{"type":"text","text":"x"}]},
			{"role":"assistant","content":[{"type":"thinking","thinking":"h"},{"type":"tool_use","id":"u","name":"f","input":{"a":[1]}}]}]}`,
		`{"model":"smollm2","max_tokens":1,"thinking":{"type":"enabled","budget_tokens":2048},"kv_transfer_params":{"do_remote_decode":true},"messages":[{"role":"user","content":"x"}]}`,
	} {
		f.Add([]byte(s))
	}
}

// Whatever is sent, the server answers: with a JSON document or a stream that ends, and never with a 500.
func fuzzRoute(f *testing.F, path string) {
	seedBodies(f)
	s := newTestServer(f, "0.33.0", &fakeBackend{}, nil)
	s.opts.EnableScaleOut = true
	s.opts.ResponsesStore = true
	script := says("abc", engine.FinishLength)
	f.Fuzz(func(t *testing.T, body []byte) {
		backend := &fakeBackend{}
		for range 64 {
			backend.scripts = append(backend.scripts, script)
		}
		s.opts.Engine = backend
		w := post(t, s, path, string(body))
		out := w.Body.String()
		if w.Code >= http.StatusInternalServerError && len(backend.requests) <= 64 {
			t.Fatalf("status %d: %s", w.Code, out)
		}
		if !utf8.ValidString(out) {
			t.Fatalf("not UTF-8: %q", out)
		}
		docs := []string{out}
		if strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream") {
			docs = dataEvents(out)
			if last := docs[len(docs)-1]; last == "[DONE]" {
				docs = docs[:len(docs)-1]
			} else if !strings.Contains(last, `"message_stop"`) && !strings.Contains(last, `"type":"response.`) {
				t.Fatalf("stream without end: %s", out)
			}
		}
		for _, doc := range docs {
			if !json.Valid([]byte(doc)) {
				t.Fatalf("not JSON: %s", doc)
			}
		}
	})
}

func FuzzChat(f *testing.F)       { fuzzRoute(f, "/v1/chat/completions") }
func FuzzCompletion(f *testing.F) { fuzzRoute(f, "/v1/completions") }
func FuzzChatRender(f *testing.F) { fuzzRoute(f, "/v1/chat/completions/render") }
func FuzzResponses(f *testing.F)  { fuzzRoute(f, "/v1/responses") }
func FuzzMessages(f *testing.F)   { fuzzRoute(f, "/v1/messages") }

func FuzzCountTokens(f *testing.F)     { fuzzRoute(f, "/v1/messages/count_tokens") }
func FuzzMessagesRender(f *testing.F)  { fuzzRoute(f, "/v1/messages/render") }
func FuzzResponsesRender(f *testing.F) { fuzzRoute(f, "/v1/responses/render") }

func FuzzTokenize(f *testing.F)   { fuzzRoute(f, "/tokenize") }
func FuzzDetokenize(f *testing.F) { fuzzRoute(f, "/detokenize") }

// A JSON string written by appendString reads back as what was written.
func FuzzAppendString(f *testing.F) {
	f.Add("plain")
	f.Add("\"\\\n\r\t\b\f\x00\x1f\x7f<>&\u2028é世🙂\xff")
	f.Fuzz(func(t *testing.T, s string) {
		var got string
		if err := json.Unmarshal(appendString(nil, s), &got); err != nil || got != strings.Map(func(r rune) rune { return r }, s) {
			t.Fatalf("%q: %q, %v", s, got, err)
		}
	})
}

// The parser neither loses nor invents text, whatever is generated.
func FuzzParser(f *testing.F) {
	f.Add("a<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":[1]}}</tool_call>b", uint8(3), false)
	f.Add("why</think>because<tool_call>", uint8(1), true)
	f.Add("<tool_call>{\"name\":\"f\",\"arguments\":\"\\", uint8(2), false)
	f.Fuzz(func(t *testing.T, text string, step uint8, thinking bool) {
		var pieces []string
		for rest := text; rest != ""; {
			n := min(len(rest), int(step)+1)
			pieces = append(pieces, rest[:n])
			rest = rest[n:]
		}
		got := parsePieces(newTestParser(thinking), append(pieces, ""))
		if !strings.Contains(text, callBegin) {
			want := got.Reasoning + got.Content
			if thinking {
				text = strings.Replace(text, thinkEnd, "", 1)
			}
			if want != text {
				t.Fatalf("%q became %q", text, want)
			}
		}
	})
}

func FuzzParseFaults(f *testing.F) {
	f.Add("handle=own,null-params,status=503,error-at=3,keep-alive=50ms,one-byte=1ms")
	f.Add(",=,crlf=")
	f.Fuzz(func(t *testing.T, text string) { _, _ = ParseFaults(Faults{}, text) })
}
