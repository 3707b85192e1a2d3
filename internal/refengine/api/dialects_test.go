package api

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

var update = flag.Bool("update", false, "rewrite the files in testdata/dialects")

const (
	askResponse = `"input":"x"`
	askMessage  = `"model":"smollm2","max_tokens":100,"messages":[{"role":"user","content":"x"}]`

	responseTool = `"tools":[{"type":"function","name":"read","description":"reads","parameters":{"type":"object"}}]`
	messageTool  = `"tools":[{"name":"read","description":"reads","input_schema":{}}]`

	twoCalls = "Look.<tool_call>{\"name\":\"read\",\"arguments\":{\"path\": \"a\"}}</tool_call>\n" +
		"<tool_call>{\"name\":\"list\"}</tool_call> Done."
	cutCall = `<tool_call>{"name":"read","arguments":{"path":"half`
)

// inWords makes a script that generates the text in pieces of a few characters.
func inWords(text string, finish engine.FinishReason) []engine.Output {
	var out []engine.Output
	for i, r := range text {
		if i%7 == 0 || len(out) == 0 {
			out = append(out, engine.Output{CachedTokens: 1})
		}
		last := &out[len(out)-1]
		last.Tokens = append(last.Tokens, r)
	}
	last := &out[len(out)-1]
	last.Finish, last.Params = finish, json.RawMessage(someHandle)
	if finish == engine.FinishStop {
		last.Tokens = append(last.Tokens, 0) // the end of sequence
	}
	return out
}

// TestDialects compares what no recording shows with files that were looked at: tool calls, reasoning,
// log probabilities, the form of older releases.
func TestDialects(t *testing.T) {
	t.Parallel()
	const thinking = `"chat_template_kwargs":{"enable_thinking":true}`
	probs := inWords("hi", engine.FinishLength)
	probs[0].Logprobs = [][]engine.TokenLogprob{
		{{ID: 'h', Logprob: -0.5}, {ID: 'h', Logprob: -0.5}, {ID: 'x', Logprob: -1.25}},
		{{ID: 'i', Logprob: -2}, {ID: 'j', Logprob: -1}},
	}
	for _, c := range []struct {
		name, version, path, body string
		script                    []engine.Output
	}{
		{"responses-calls", "0.33.0", "/v1/responses", askResponse + `,` + responseTool, inWords(twoCalls, engine.FinishStop)},
		{"responses-cut-call", "0.33.0", "/v1/responses", askResponse + `,` + responseTool, inWords(cutCall, engine.FinishLength)},
		{"responses-cut-call-0.32", "0.32.0", "/v1/responses", askResponse + `,` + responseTool, inWords(cutCall, engine.FinishLength)},
		{"responses-reasoning", "0.33.0", "/v1/responses", askResponse + `,"reasoning":{"effort":"low"}`, inWords("why not</think>because", engine.FinishStop)},
		{"responses-cut-reasoning", "0.33.0", "/v1/responses", askResponse + `,` + thinking, inWords("why not", engine.FinishLength)},
		{"responses-logprobs", "0.33.0", "/v1/responses", askResponse + `,"include":["message.output_text.logprobs"],"top_logprobs":2`, probs},
		{"responses-empty", "0.33.0", "/v1/responses", askResponse, []engine.Output{{Tokens: []int32{0}, Finish: engine.FinishStop, Params: json.RawMessage(someHandle)}}},
		{"responses-everything", "0.33.0", "/v1/responses", `"input":[{"role":"user","content":"é"}],"instructions":"be \"brief\"","metadata":{"a": "b"},
			"tools":[{"type":"web_search"},{"type":"function","name":"read","strict":true}],"tool_choice":{"type":"function", "name":"read"},"max_tool_calls":3,
			"parallel_tool_calls":false,"temperature":0.25,"top_p":0.5,"max_output_tokens":7,"prompt_cache_key":"k","prompt_cache_retention":"24h","safety_identifier":"s",
			"service_tier":"flex","text":{"format":{"type":"text"}},"truncation":"auto","user":"u","presence_penalty":0.5,"frequency_penalty":1,
			"enable_response_messages":true,"request_id":"mine","unknown":[]`, inWords("ok", engine.FinishLength)},
		{"responses-0.25", "0.25.1", "/v1/responses", askResponse, inWords("ok", engine.FinishLength)},
		{"messages-calls", "0.33.0", "/v1/messages", askMessage + `,` + messageTool, inWords(twoCalls, engine.FinishStop)},
		{"messages-cut-call", "0.33.0", "/v1/messages", askMessage + `,` + messageTool, inWords(cutCall, engine.FinishLength)},
		{"messages-thinking", "0.33.0", "/v1/messages", askMessage + `,` + thinking, inWords("why not</think>because", engine.FinishStop)},
		{"messages-empty", "0.33.0", "/v1/messages", askMessage, []engine.Output{{Tokens: []int32{0}, Finish: engine.FinishStop}}},
		{"messages-stop-sequence", "0.33.0", "/v1/messages", askMessage + `,"stop_sequences":["lo w"]`, inWords("hello world", engine.FinishLength)},
		{"messages-stop-sequence-0.25", "0.25.1", "/v1/messages", askMessage + `,"stop_sequences":["lo w"]`, inWords("hello world", engine.FinishLength)},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				s := newTestServer(t, c.version, &fakeBackend{scripts: [][]engine.Output{c.script}}, nil)
				s.opts.ReasoningParser, s.opts.PromptTokensDetails = true, true
				file, body := c.name+".json", `{`+c.body+`}`
				if stream {
					file, body = c.name+".sse", `{"stream":true,`+c.body+`}`
				}
				got := post(t, s, c.path, body, "X-Request-Id", "c").Body.Bytes()
				if !stream {
					got = indented(t, got)
				}
				compareFile(t, filepath.Join("testdata", "dialects", file), got)
			})
		}
	}
}

// indented makes a document readable.
func indented(t *testing.T, doc []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := json.Indent(&b, doc, "", " "); err != nil {
		t.Fatalf("%v: %s", err, doc)
	}
	return append(b.Bytes(), '\n')
}

func compareFile(t *testing.T, name string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, got, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}
