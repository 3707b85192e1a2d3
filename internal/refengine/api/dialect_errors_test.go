package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

func TestResponsesErrors(t *testing.T) {
	t.Parallel()
	const schema, refused, invalid = "Bad Request", "BadRequestError", "invalid_request_error"
	for _, c := range []struct {
		body   string
		status int
		typ    string
		param  any
		part   string
	}{
		{``, 400, schema, "body", "Field required"},
		{`[]`, 400, schema, "body", "Input should be a valid dictionary"},
		{`{}`, 400, schema, "body.input", "Field required"},
		{`{"input":7}`, 400, schema, "body.input", "Input should be a valid list"},
		{`{"input":["x"]}`, 400, schema, "body.input", "Input should be a valid dictionary"},
		{`{"input":[{"role":"nobody","content":"x"}]}`, 400, schema, "body.input.0.role", "Input should be 'user', 'assistant', 'system' or 'developer'"},
		{`{"input":[{"type":"item_reference","id":"x"}]}`, 400, schema, "body.input.0.type", "Input should be"},
		{`{"input":[{"type":"function_call","name":"f"}]}`, 400, schema, "body.input.0.call_id", "Field required"},
		{`{"input":[{"type":"function_call_output","call_id":"c"}]}`, 400, schema, "body.input.0.call_id", "Field required"},
		{`{"input":[{"type":"message","role":5}]}`, 400, schema, "body.input.0", "Input should be a valid item"},
		{`{"input":[{"type":"reasoning","encrypted_content":"x"}]}`, 400, refused, nil, "Encrypted content is not supported."},
		{`{"input":[]}`, 400, refused, "messages", "messages must not be empty"},
		{`{"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:,"}]}]}`, 400, refused, "messages", "At most 0 image(s)"},
		{`{"input":"x","model":"gpt-9"}`, 404, "NotFoundError", "model", "The model `gpt-9` does not exist."},
		{`{"input":"x","prompt":{"id":"p"}}`, 400, schema, "prompt", "prompt template is not supported"},
		{`{"input":"x","background":true}`, 400, invalid, "background", "does not support `store=True`"},
		{`{"input":"x","background":true,"store":false}`, 400, schema, "background", "background can only be used when `store` is true"},
		{`{"input":"x","max_output_tokens":0}`, 400, refused, "max_tokens", "max_tokens must be at least 1, got 0."},
		{`{"input":"x","max_output_tokens":"many"}`, 400, schema, "body.max_output_tokens", "valid integer"},
		{`{"input":"x","temperature":-1}`, 400, refused, "temperature", "temperature must be non-negative, got -1.0."},
		{`{"input":"x","include":"y"}`, 400, schema, "body.include", "Input should be a valid list"},
		{`{"input":"x","include":["message.output_text.logprobs"],"top_logprobs":21}`, 400, refused, "logprobs", "greater than max allowed: 20"},
		{`{"input":"x","tools":[{"type":"function"}]}`, 400, schema, "body.tools", "Field required"},
		{`{"input":"x","tool_choice":"required"}`, 400, schema, "tool_choice", "Tool choice 'required' must be specified with 'tools' parameter."},
		{`{"input":"x","tool_choice":{"type":"function","name":"f"}}`, 400, schema, "tool_choice", "Tool choice 'function' not found in 'tools' parameter."},
		{`{"input":"x","tools":[{"type":"function","name":"f"}],"tool_choice":7}`, 400, schema, "body.tool_choice", "Input should be 'none', 'auto' or 'required'"},
		{`{"input":"x","cache_salt":"a/b"}`, 400, schema, "cache_salt", "must be at most 128 characters"},
		{`{"input":"x","kv_transfer_params":[1]}`, 400, schema, "body.kv_transfer_params", "valid dictionary"},
		{`{"input":"x","kv_transfer_params":{"prompt_token_ids":[]}}`, 400, refused, "kv_transfer_params.prompt_token_ids", "non-empty list"},
		{`{"input":"x","reasoning":"high"}`, 400, schema, "body.reasoning", "valid dictionary"},
		{`{"input":"x","priority":1}`, 400, refused, nil, "Priority scheduling is not enabled."},
		{`{"input":"` + strings.Repeat("x", 9000) + `"}`, 400, refused, "input_tokens", "your prompt contains at least 8193 input tokens"},
	} {
		for _, path := range []string{"/v1/responses", "/v1/responses/render"} {
			s := newTestServer(t, "0.33.0", &fakeBackend{}, nil)
			s.opts.EnableScaleOut = true
			w := post(t, s, path, c.body)
			want := reply{c.status, c.typ, c.param, c.status, c.part}
			if d := cmp.Diff(want, readReply(t, w.Code, w.Body.Bytes(), c.part)); d != "" {
				t.Errorf("POST %s %.120s (-want +got):\n%s", path, c.body, d)
			}
		}
	}
}

// Errors in a message's schema have OpenAI's form, errors found later Anthropic's; the render route has no other
// form than OpenAI's.
func TestMessagesErrors(t *testing.T) {
	t.Parallel()
	message := func(members string) string {
		return `{"model":"smollm2","max_tokens":9,"messages":[{"role":"user","content":"x"}],` + members + `}`
	}
	of := func(messages string) string { return `{"model":"smollm2","max_tokens":9,"messages":` + messages + `}` }
	for _, c := range []struct {
		body      string
		status    int
		anthropic string // type, for an error in Anthropic's form
		param     any    // for one in OpenAI's
		part      string
	}{
		{``, 400, "", "body", "Field required"},
		{`{"max_tokens":9,"messages":[]}`, 400, "", "body.model", "Field required"},
		{`{"model":"","max_tokens":9,"messages":[]}`, 400, "", "body.model", "Model is required"},
		{`{"model":"smollm2","max_tokens":9}`, 400, "", "body.messages", "Field required"},
		{`{"model":"smollm2","messages":[]}`, 400, "", "body.max_tokens", "Field required"},
		{message(`"max_tokens":0`), 400, "", "body.max_tokens", "Value error, max_tokens must be positive"},
		{message(`"max_tokens":"x"`), 400, "", "body.max_tokens", "valid integer"},
		{of(`[{"role":"tool","content":"x"}]`), 400, "", "body.messages.0.role", "Input should be 'user', 'assistant' or 'system'"},
		{of(`[{"role":"user"}]`), 400, "", "body.messages.0.content", "valid string or list"},
		{of(`[{"role":"user","content":7}]`), 400, "", "body.messages.0.content", "valid string or list"},
		{of(`[{"role":7,"content":"x"}]`), 400, "", "body.messages.0", "valid dictionary"},
		{of(`[{"role":"user","content":[{"type":"document"}]}]`), 400, "", "body.messages.0.content.0.type", "Input should be 'text'"},
		{message(`"system":7`), 400, "", "body.system", "valid string or list"},
		{message(`"stop_sequences":"x"`), 400, "", "body.stop_sequences", "valid list"},
		{message(`"tools":[{"name":"f"}]`), 400, "", "body.tools", "Field required"},
		{message(`"tool_choice":{"type":"some"}`), 400, "", "body.tool_choice", "Input should be 'auto'"},
		{message(`"tool_choice":{"type":"tool"}`), 400, "", "body.tool_choice", "tool_choice.name is required when type is 'tool'"},
		{message(`"kv_transfer_params":[]`), 400, "", "body.kv_transfer_params", "valid dictionary"},
		{message(`"thinking":{"type":"enabled","budget_tokens":1024}`), 400, "", "body", "thinking.budget_tokens must be less than max_tokens"},
		{message(`"thinking":{"type":"enabled","budget_tokens":1024},"kv_transfer_params":{"do_remote_decode":false}`), 400, "", "body", "must be less than"},
		{message(`"thinking":{"type":"enabled","budget_tokens":7}`), 400, "", "body.thinking.budget_tokens", "greater than or equal to 1024"},
		{message(`"thinking":{"type":"enabled"}`), 400, "", "body.thinking.budget_tokens", "Field required"},
		{message(`"thinking":{"type":"perhaps"}`), 400, "", "body.thinking", "'enabled', 'disabled', 'adaptive'"},
		{of(`[]`), 400, "BadRequestError", nil, "messages must not be empty"},
		{`{"model":"gpt-9","max_tokens":9,"messages":[{"role":"user","content":"x"}]}`, 404, "NotFoundError", nil, "The model `gpt-9` does not exist."},
		{message(`"temperature":-1`), 400, "BadRequestError", nil, "temperature must be non-negative, got -1.0."},
		{message(`"cache_salt":"a/b"`), 400, "BadRequestError", nil, "must be at most 128 characters"},
		{message(`"kv_transfer_params":{"prompt_token_ids":[]}`), 400, "BadRequestError", nil, "non-empty list"},
		{message(`"max_tokens":9000`), 400, "BadRequestError", nil, "maximum context length is 8192 tokens"},
		{of(`[{"role":"user","content":[{"type":"image","source":{}}]}]`), 400, "BadRequestError", nil, "At most 0 image(s)"},
		{of(`[{"role":"user","content":[{"type":"tool_result","tool_use_id":"u","content":[{"type":"image"}]}]}]`), 400, "BadRequestError", nil, "At most 0 image(s)"},
	} {
		s := newTestServer(t, "0.33.0", &fakeBackend{}, nil)
		s.opts.EnableScaleOut = true
		w := post(t, s, "/v1/messages", c.body)
		if c.anthropic == "" {
			want := reply{c.status, "Bad Request", c.param, c.status, c.part}
			if d := cmp.Diff(want, readReply(t, w.Code, w.Body.Bytes(), c.part)); d != "" {
				t.Errorf("%.150s (-want +got):\n%s", c.body, d)
			}
		} else if d := cmp.Diff(anthropicReply{c.status, "error", c.anthropic, c.part}, readAnthropic(t, w, c.part)); d != "" {
			t.Errorf("%.150s (-want +got):\n%s", c.body, d)
		}
		rendered := post(t, s, "/v1/messages/render", c.body)
		if got := readReply(t, rendered.Code, rendered.Body.Bytes(), c.part); got.Status != c.status || got.Message != c.part {
			t.Errorf("rendering %.150s: %+v", c.body, got)
		}
	}
}

type anthropicReply struct {
	Status              int
	Kind, Type, Message string
}

func readAnthropic(t *testing.T, w *httptest.ResponseRecorder, part string) anthropicReply {
	t.Helper()
	var doc struct {
		Type  string `json:"type"`
		Error struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		t.Fatalf("%v: %s", err, w.Body)
	}
	if part != "" && strings.Contains(doc.Error.Message, part) {
		doc.Error.Message = part
	}
	return anthropicReply{w.Code, doc.Type, doc.Error.Type, doc.Error.Message}
}

// A thinking budget is checked from 0.31 on, and not on P, whose leg has max_tokens 1.
func TestThinkingBudget(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		version, members string
		status           int
	}{
		{"0.30.0", `"max_tokens":9`, 200},
		{"0.31.0", `"max_tokens":9`, 400},
		{"0.31.0", `"max_tokens":1024`, 400},
		{"0.31.0", `"max_tokens":1025`, 200},
		{"0.33.0", `"max_tokens":1,"kv_transfer_params":` + nullForm, 200},
		{"0.33.0", `"max_tokens":1,"kv_transfer_params":{"do_remote_prefill":true}`, 400},
	} {
		s := newTestServer(t, c.version, &fakeBackend{scripts: [][]engine.Output{says("ok", engine.FinishLength)}}, nil)
		w := post(t, s, "/v1/messages", `{"model":"smollm2","messages":[{"role":"user","content":"x"}],"thinking":{"type":"enabled","budget_tokens":1024},`+c.members+`}`)
		if w.Code != c.status {
			t.Errorf("%s %s: status %d, want %d: %s", c.version, c.members, w.Code, c.status, w.Body)
		}
	}
}

// A failed pull, the engine's death, an id that is in use.
func TestDialectEngineErrors(t *testing.T) {
	t.Parallel()
	failed := [][]engine.Output{{{Finish: engine.FinishError, Err: engine.ErrTransfer}}}
	const internal = `{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}`
	const anthropic = `{"type":"error","error":{"type":"InternalServerError","message":"Internal server error"}}`
	for path, c := range map[string]struct{ body, failed, dead string }{
		"/v1/responses": {askResponse, internal, strings.Replace(internal, "Internal server error", "EngineCore encountered an issue. See stack trace (above) for the root cause.", 1)},
		"/v1/messages":  {askMessage, anthropic, strings.Replace(anthropic, "Internal server error", "EngineCore encountered an issue. See stack trace (above) for the root cause.", 1)},
	} {
		w := post(t, newTestServer(t, "", &fakeBackend{scripts: failed}, nil), path, `{`+c.body+`}`)
		if w.Code != 500 || w.Body.String() != c.failed {
			t.Errorf("%s: failed pull: %d %s", path, w.Code, w.Body)
		}
		w = post(t, newTestServer(t, "", &fakeBackend{refuse: engine.ErrDead}, nil), path, `{`+c.body+`}`)
		if w.Code != 500 || w.Body.String() != c.dead {
			t.Errorf("%s: dead engine: %d %s", path, w.Code, w.Body)
		}
	}
}

// In a stream of a message an error is an event and the last one.
func TestMessagesErrorInStream(t *testing.T) {
	t.Parallel()
	script := append(says("ab", engine.FinishNone), engine.Output{Finish: engine.FinishError})
	w := post(t, newTestServer(t, "", &fakeBackend{scripts: [][]engine.Output{script}}, nil), "/v1/messages", `{"stream":true,`+askMessage+`}`)
	const want = "event: error\ndata: " + `{"type":"error","error":{"type":"InternalServerError","message":"Internal server error"}}` + "\n\n"
	if !strings.HasSuffix(w.Body.String(), want) || w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A stream of responses that fails breaks, after what was sent at once and what came before the failure.
func TestResponsesStreamBreaks(t *testing.T) {
	t.Parallel()
	script := append(says("ab", engine.FinishNone), engine.Output{Finish: engine.FinishError})
	srv := httptest.NewServer(newTestServer(t, "", &fakeBackend{scripts: [][]engine.Output{script}}, nil).Handler())
	defer srv.Close()
	events, err := readDialect(t, srv, "/v1/responses", `{"stream":true,`+askResponse+`}`)
	want := []string{
		"response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
		"response.output_text.delta", "response.output_text.delta",
	}
	if d := cmp.Diff(want, events); d != "" || err == nil {
		t.Errorf("read to the end: %v; events (-want +got):\n%s", err == nil, d)
	}
}
