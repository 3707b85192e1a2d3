package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// rendering is what the chat template is given.
type rendering struct {
	Messages []string
	Tools    string
	Prompt   bool
	Kwargs   map[string]string
}

// newRenderingServer returns a server that notes in got what it renders.
func newRenderingServer(t *testing.T, version string, backend *fakeBackend, got *rendering) *Server {
	t.Helper()
	s := newTestServer(t, version, backend, nil)
	s.render = func(messages []json.RawMessage, tools json.RawMessage, addPrompt bool, kwargs map[string]any) (string, error) {
		*got = rendering{Tools: string(tools), Prompt: addPrompt}
		for _, m := range messages {
			got.Messages = append(got.Messages, string(m))
		}
		for k, v := range kwargs {
			if got.Kwargs == nil {
				got.Kwargs = make(map[string]string)
			}
			raw, _ := v.(json.RawMessage)
			got.Kwargs[k] = string(raw)
		}
		return strings.Join(got.Messages, "\n"), nil
	}
	return s
}

// TestConversions: the chat that responses and messages amount to.
func TestConversions(t *testing.T) {
	t.Parallel()
	const responses, messages = "/v1/responses", "/v1/messages"
	message := func(members string) string { return `{"model":"smollm2","max_tokens":9,` + members + `}` }
	for _, c := range []struct {
		name, path, body string
		want             rendering
	}{
		{"text", responses, `{"input":"a \"b\""}`, rendering{
			Messages: []string{`{"role":"user","content":"a \"b\""}`}, Prompt: true,
		}},
		{
			"items of one turn of the assistant are one message", responses,
			`{"instructions":"be brief","input":[
				{"type":"message","role":"user","content":[{"type":"input_text","text":"q"}]},
				{"type":"reasoning","id":"rs_1","summary":[{"text":"s","type":"summary_text"}],"content":[{"text":"t","type":"reasoning_text"}]},
				{"type":"message","role":"assistant","content":[{"type":"output_text","text":"one","annotations":[]},{"type":"output_text","text":"two"}]},
				{"type":"function_call","call_id":"c1","name":"f","arguments":"{\"a\":1}"},
				{"type":"function_call","call_id":"c2","name":"g","arguments":""},
				{"type":"function_call_output","call_id":"c1","output":"r1"},
				{"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"r2"}]},
				{"role":"assistant","content":"plain"},{"role":"assistant","content":"again"},
				{"type":"reasoning","summary":[{"text":"s"}]},
				{"role":"developer","content":"d"}]}`,
			rendering{Prompt: true, Messages: []string{
				`{"role":"system","content":"be brief"}`,
				`{"type":"message","role":"user","content":[{"type":"input_text","text":"q"}]}`,
				`{"role":"assistant","reasoning":"t","content":"one","tool_calls":[` +
					`{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},{"id":"c2","type":"function","function":{"name":"g","arguments":""}}]}`,
				`{"role":"tool","content":"r1","tool_call_id":"c1"}`,
				`{"role":"tool","content":[{"type":"input_text","text":"r2"}],"tool_call_id":"c2"}`,
				`{"role":"assistant","content":"plain"}`,
				`{"role":"assistant","reasoning":"s","content":"again"}`,
				`{"role":"developer","content":"d"}`,
			}},
		},
		{
			"an answer that was cut is gone on with", responses,
			`{"input":[{"role":"user","content":"q"},{"type":"message","role":"assistant","status":"incomplete","content":[{"type":"output_text","text":"half"}]}]}`,
			rendering{Messages: []string{`{"role":"user","content":"q"}`, `{"role":"assistant","content":"half"}`}},
		},
		{"tools and reasoning", responses, `{"input":"q","reasoning":{"effort":"none"},"chat_template_kwargs":{"x":1},"tools":[
				{"type":"function","name":"f","description":"d","parameters":{"b": 1,"a":2},"strict":true},{"type":"web_search"},{"type":"function","name":"g"}]}`, rendering{
			Messages: []string{`{"role":"user","content":"q"}`}, Prompt: true,
			Kwargs: map[string]string{"x": "1", "reasoning_effort": `"none"`, "enable_thinking": "false"},
			Tools: `[{"type":"function","function":{"name":"f","description":"d","parameters":{"b": 1,"a":2},"strict":true}},` +
				`{"type":"function","function":{"name":"g","description":null,"parameters":null}}]`,
		}},
		{
			"system as blocks, and in front of and between messages", messages,
			message(`"system":[{"type":"text","text":"a"},{"type":"text","text":"x-anthropic-billing-header: 7"},{"type":"text","text":"b"}],
				"messages":[{"role":"system","content":"c"},{"role":"user","content":"q"},{"role":"system","content":[{"type":"text","text":"later"}]}]`),
			rendering{Prompt: true, Messages: []string{
				`{"role":"system","content":"ab\n\nc"}`, `{"role":"user","content":"q"}`, `{"role":"system","content":"later"}`,
			}},
		},
		{
			"tool calls and their results", messages,
			message(`"messages":[{"role":"user","content":"q"},
				{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},{"type":"redacted_thinking","data":"x"},{"type":"text","text":"look"},
					{"type":"tool_use","id":"u1","name":"f","input":{"b":1,"a":[2]}},{"type":"tool_use","id":"u2","name":"g"}]},
				{"role":"user","content":[{"type":"tool_result","tool_use_id":"u1","content":"r1"},{"type":"text","text":"and"},
					{"type":"tool_result","tool_use_id":"u2","is_error":true,"content":[{"type":"text","text":"r"},{"type":"text","text":"2"}]}]},
				{"role":"user","content":[{"type":"tool_result","tool_use_id":"u3"}]},
				{"role":"assistant","content":[]}]`),
			rendering{Prompt: true, Messages: []string{
				`{"role":"user","content":"q"}`,
				`{"role":"assistant","reasoning":"t","tool_calls":[{"id":"u1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":[2]}"}},` +
					`{"id":"u2","type":"function","function":{"name":"g","arguments":"{}"}}],"content":[{"type":"text","text":"look"}]}`,
				`{"role":"tool","tool_call_id":"u1","content":"r1"}`,
				`{"role":"tool","tool_call_id":"u2","content":"r\n2"}`,
				`{"role":"user","content":[{"type":"text","text":"and"}]}`,
				`{"role":"tool","tool_call_id":"u3","content":""}`,
				`{"role":"assistant"}`,
			}},
		},
		{
			"tools and effort", messages,
			message(`"output_config":{"effort":"high"},"tools":[{"name":"f","description":"d","input_schema":{"properties":{}}},{"name":"g","input_schema":{"type":"object","x":1},"strict":true}],
				"messages":[{"role":"user","content":"q"}]`),
			rendering{
				Prompt: true, Messages: []string{`{"role":"user","content":"q"}`},
				Kwargs: map[string]string{"reasoning_effort": `"high"`, "enable_thinking": "true"},
				Tools: `[{"type":"function","function":{"name":"f","description":"d","parameters":{"properties":{},"type":"object"}}},` +
					`{"type":"function","function":{"name":"g","description":null,"parameters":{"type":"object","x":1},"strict":true}}]`,
			},
		},
		{
			"thinking disabled", messages, message(`"thinking":{"type":"disabled"},"messages":[{"role":"user","content":"q"}]`),
			rendering{
				Prompt: true, Messages: []string{`{"role":"user","content":"q"}`},
				Kwargs: map[string]string{"reasoning_effort": `"none"`, "enable_thinking": "false"},
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var got rendering
			s := newRenderingServer(t, "", &fakeBackend{scripts: [][]engine.Output{says("ok", engine.FinishLength)}}, &got)
			w := post(t, s, c.path, c.body)
			if d := cmp.Diff(c.want, got); d != "" || w.Code != http.StatusOK {
				t.Errorf("status %d %s; rendered (-want +got):\n%s", w.Code, w.Body, d)
			}
		})
	}
}

// TestDialectEngineRequest: what reaches the engine.
func TestDialectEngineRequest(t *testing.T) {
	t.Parallel()
	seed := int64(7)
	const anotherDecodes = `"kv_transfer_params":{"do_remote_decode":true,"prompt_token_ids":[1,2]}`
	for _, c := range []struct {
		path, body string
		want       engine.Request
	}{
		{"/v1/responses", `{"input":"x","cache_salt":"s","max_output_tokens":5,"temperature":0,"top_p":0.5,"top_k":4,"seed":7,"ignore_eos":true,"min_tokens":3,"n":2,` +
			anotherDecodes + `}`, engine.Request{
			Prompt: []int32{1, 2}, Salt: "s", Params: json.RawMessage(`{"do_remote_decode":true}`),
			MaxTokens: 5, TopP: 0.5, TopK: 4, Seed: &seed, IgnoreEOS: true, Logprobs: -1, PromptLogprobs: -1,
		}},
		{"/v1/responses", `{"input":"x","kv_transfer_params":{"prompt_token_ids":[1,2]},"top_logprobs":3}`, engine.Request{
			Prompt: []int32{1, 2}, MaxTokens: 8190, Temperature: 1, TopP: 1, Logprobs: -1, PromptLogprobs: -1,
		}},
		{"/v1/messages", `{"model":"smollm2","messages":[{"role":"user","content":"x"}],"max_tokens":5,"cache_salt":"s","temperature":0,"top_p":0.5,"top_k":4,"seed":7,"n":2,` +
			anotherDecodes + `}`, engine.Request{
			Prompt: []int32{1, 2}, Salt: "s", Params: json.RawMessage(`{"do_remote_decode":true}`),
			MaxTokens: 5, TopP: 0.5, TopK: 4, Logprobs: -1, PromptLogprobs: -1,
		}},
	} {
		backend := &fakeBackend{scripts: [][]engine.Output{says("ok", engine.FinishLength)}}
		w := post(t, newTestServer(t, "0.32.0", backend, nil), c.path, c.body)
		if w.Code != http.StatusOK {
			t.Errorf("%s: status %d: %s", c.body, w.Code, w.Body)
			continue
		}
		c.want.ID = backend.requests[0].ID
		if d := cmp.Diff(&c.want, backend.requests[0]); d != "" {
			t.Errorf("%s %s (-want +got):\n%s", c.path, c.body, d)
		}
	}
}

// TestCountTokens: the length of the prompt that the messages endpoint would use.
func TestCountTokens(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, "", &fakeBackend{}, nil)
	w := post(t, s, "/v1/messages/count_tokens", `{"model":"smollm2","system":"s","messages":[{"role":"user","content":"x"}],"max_tokens":"ignored"}`)
	const prompt = `{"role":"system","content":"s"}` + "\n" + `{"role":"user","content":"x"}` + "\n"
	if len(prompt) != 62 {
		t.Fatalf("the prompt has %d characters", len(prompt))
	}
	if d := cmp.Diff(`{"input_tokens":62,"context_management":{"original_input_tokens":62}}`, w.Body.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
