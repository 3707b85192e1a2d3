package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// reply is an error as a client reads it.
type reply struct {
	Status  int
	Type    string
	Param   any
	Code    int
	Message string // only the part asked for
}

func readReply(t *testing.T, status int, body []byte, part string) reply {
	t.Helper()
	var doc struct {
		Error *struct {
			Message string `json:"message"`
			Type    string `json:"type"`
			Param   any    `json:"param"`
			Code    int    `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(body, &doc); err != nil || doc.Error == nil {
		t.Fatalf("status %d, not an error object: %s", status, body)
	}
	r := reply{Status: status, Type: doc.Error.Type, Param: doc.Error.Param, Code: doc.Error.Code, Message: doc.Error.Message}
	if part != "" && strings.Contains(r.Message, part) {
		r.Message = part
	}
	return r
}

func TestErrors(t *testing.T) {
	t.Parallel()
	const chat, comp = "/v1/chat/completions", "/v1/completions"
	const schema, refused = "Bad Request", "BadRequestError"
	hello := `"messages":[{"role":"user","content":"hello"}]`
	for _, c := range []struct {
		path, body  string
		status      int
		typ         string
		param       any
		messagePart string
	}{
		{chat, ``, 400, schema, "body", "Field required"},
		{chat, `{`, 400, schema, "body", "JSON decode error"},
		{chat, `[]`, 400, schema, "body", "Input should be a valid dictionary"},
		{chat, `null`, 400, schema, "body", "Field required"},
		{chat, `"x"`, 400, schema, "body", "Input should be a valid dictionary"},
		{chat, `{}`, 400, schema, "body.messages", "'loc': ('body', 'messages'), 'msg': 'Field required'"},
		{chat, `{"messages":"x"}`, 400, schema, "body.messages", "Input should be a valid list"},
		{chat, `{"messages":[1]}`, 400, schema, "body.messages", "Input should be a valid dictionary"},
		{chat, `{"messages":[]}`, 400, refused, "messages", "messages must not be empty"},
		{chat, `{"model":5,` + hello + `}`, 400, schema, "body.model", "Input should be a valid string"},
		{chat, `{"model":"gpt-9",` + hello + `}`, 404, "NotFoundError", "model", "The model `gpt-9` does not exist."},
		{chat, `{"max_tokens":"many",` + hello + `}`, 400, schema, "body.max_tokens", "Input should be a valid integer"},
		{chat, `{"max_tokens":1.5,` + hello + `}`, 400, schema, "body.max_tokens", "Input should be a valid integer"},
		{chat, `{"max_tokens":0,` + hello + `}`, 400, refused, "max_tokens", "max_tokens must be at least 1, got 0."},
		{chat, `{"max_tokens":5,"max_completion_tokens":-1,` + hello + `}`, 400, refused, "max_tokens", "got -1."},
		{chat, `{"temperature":-0.5,` + hello + `}`, 400, refused, "temperature", "temperature must be non-negative, got -0.5."},
		{chat, `{"temperature":"hot",` + hello + `}`, 400, schema, "body.temperature", "Input should be a valid number"},
		{chat, `{"top_p":0,` + hello + `}`, 400, refused, "top_p", "top_p must be in (0, 1], got 0.0."},
		{chat, `{"top_k":-5,` + hello + `}`, 400, refused, "top_k", "top_k must be 0 (disable), or at least 1, got -5."},
		{chat, `{"n":0,` + hello + `}`, 400, refused, nil, "n must be at least 1, got 0."},
		{chat, `{"n":2,"temperature":0,` + hello + `}`, 400, refused, "n", "n must be 1 when using greedy sampling, got 2."},
		{chat, `{"n":100000,` + hello + `}`, 400, refused, nil, "n must be at most"},
		{chat, `{"min_tokens":10,"max_tokens":5,` + hello + `}`, 400, refused, "min_tokens", "min_tokens must be less than or equal to max_tokens=5, got 10."},
		{chat, `{"min_tokens":-1,` + hello + `}`, 400, refused, "min_tokens", "min_tokens must be greater than or equal to 0"},
		{chat, `{"stop":[""],` + hello + `}`, 400, refused, "stop", "stop cannot contain an empty string."},
		{chat, `{"stop":7,` + hello + `}`, 400, schema, "body.stop", "Input should be a valid list"},
		{chat, `{"stream":"maybe",` + hello + `}`, 400, schema, "body.stream", "Input should be a valid boolean"},
		{chat, `{"stream_options":{"include_usage":true},` + hello + `}`, 400, schema, "stream_options", "Stream options can only be defined when `stream=True`."},
		{chat, `{"stream":false,"stream_options":{"include_usage":true},` + hello + `}`, 400, schema, "stream_options", "Stream options"},
		{chat, `{"cache_salt":"",` + hello + `}`, 400, schema, "cache_salt", "must be a non-empty string"},
		{chat, `{"cache_salt":"a/b",` + hello + `}`, 400, schema, "cache_salt", "must be at most 128 characters"},
		{chat, `{"cache_salt":"` + strings.Repeat("s", 129) + `",` + hello + `}`, 400, schema, "cache_salt", "must be at most 128 characters"},
		{chat, `{"kv_transfer_params":[1],` + hello + `}`, 400, schema, "body.kv_transfer_params", "Input should be a valid dictionary"},
		{chat, `{"kv_transfer_params":{"prompt_token_ids":[]},` + hello + `}`, 400, refused, "kv_transfer_params.prompt_token_ids", "non-empty list"},
		{chat, `{"kv_transfer_params":{"prompt_token_ids":[-1]},` + hello + `}`, 400, refused, "kv_transfer_params.prompt_token_ids", "non-negative"},
		{chat, `{"kv_transfer_params":{"prompt_token_ids":["7"]},` + hello + `}`, 400, refused, "kv_transfer_params.prompt_token_ids", "integers"},
		{chat, `{"kv_transfer_params":{"prompt_token_ids":[99999999]},` + hello + `}`, 400, refused, "kv_transfer_params.prompt_token_ids", "vocabulary"},
		{chat, `{"tools":[],` + hello + `}`, 400, schema, "tools", "`tools` must not be an empty array."},
		{chat, `{"tool_choice":"auto",` + hello + `}`, 400, schema, "tool_choice", "When using `tool_choice`, `tools` must be set."},
		{chat, `{"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"function":{"name":"g"}},` + hello + `}`, 400, schema, "tool_choice", "does not match any"},
		{chat, `{"top_logprobs":3,` + hello + `}`, 400, schema, "top_logprobs", "`logprobs` must be set to true."},
		{chat, `{"logprobs":true,"top_logprobs":30,` + hello + `}`, 400, refused, "logprobs", "greater than max allowed: 20"},
		{chat, `{"stream":true,"prompt_logprobs":1,` + hello + `}`, 400, schema, "prompt_logprobs", "not available when `stream=True`"},
		{chat, `{"continue_final_message":true,"add_generation_prompt":true,` + hello + `}`, 400, schema, nil, "Cannot set both"},
		{chat, `{"chat_template":"{{x}}",` + hello + `}`, 400, refused, nil, "Refused request with untrusted chat template."},
		{chat, `{"priority":3,` + hello + `}`, 400, refused, nil, "Priority scheduling is not enabled."},
		{chat, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}]}`, 400, refused, "messages", "At most 0 image(s)"},
		{
			chat, `{"max_tokens":8000,"messages":[{"role":"user","content":"` + strings.Repeat("x", 400) + `"}]}`, 400, refused, "input_tokens",
			"This model's maximum context length is 8192 tokens. However, you requested 8000 output tokens and your prompt contains at least 193 input tokens, for a total of at least 8193 tokens.",
		},
		{
			chat, `{"messages":[{"role":"user","content":"` + strings.Repeat("x", 9000) + `"}]}`, 400, refused, "input_tokens",
			"your prompt contains at least 8193 input tokens, for a total of at least 8193 tokens. Please reduce the length of the input prompt or the number of requested output tokens. (parameter=input_tokens, value=8193)",
		},
		{comp, `{}`, 400, schema, "prompt", "Either prompt or prompt_embeds must be provided and non-empty."},
		{comp, `{"prompt":""}`, 400, schema, "prompt", "Either prompt"},
		{comp, `{"prompt":[]}`, 400, refused, "prompt", "please provide at least one prompt"},
		{comp, `{"prompt":{}}`, 400, schema, "body.prompt", "Input should be a valid list"},
		{comp, `{"prompt":["a",5]}`, 400, schema, "body.prompt", "Input should be a valid list"},
		{comp, `{"prompt":[[]]}`, 400, refused, nil, "The decoder prompt cannot be empty"},
		{comp, `{"prompt":[1,-2]}`, 400, refused, nil, "Token id -2 is out of vocabulary"},
		{comp, `{"prompt":[1,5000000]}`, 400, refused, nil, "Token id 5000000 is out of vocabulary"},
		{comp, `{"prompt":"x","max_tokens":0}`, 400, refused, "max_tokens", "max_tokens must be at least 1, got 0."},
		{comp, `{"prompt":"x","logprobs":-3}`, 400, schema, "logprobs", "must be a positive value"},
		{comp, `{"prompt":"x","stream_options":{"include_usage":true}}`, 400, schema, "stream_options", "Stream options"},
		{"/tokenize", `{}`, 400, schema, "body.prompt", "Field required"},
		{"/tokenize", `{"prompt":"x","model":"y"}`, 404, "NotFoundError", "model", "does not exist"},
		{"/detokenize", `{}`, 400, schema, "body.tokens", "Field required"},
		{"/detokenize", `{"tokens":[-1]}`, 400, refused, nil, "Token id -1 is out of vocabulary"},
		{"/v1/chat/completions/render", `{}`, 403, "PermissionDeniedError", nil, "Scale-out endpoints are disabled."},
		{"/v1/nothing", `{}`, 404, "Not Found", nil, "Not Found"},
	} {
		s := newTestServer(t, "0.33.0", &fakeBackend{}, nil)
		w := post(t, s, c.path, c.body)
		want := reply{c.status, c.typ, c.param, c.status, c.messagePart}
		if d := cmp.Diff(want, readReply(t, w.Code, w.Body.Bytes(), c.messagePart)); d != "" {
			t.Errorf("POST %s %.120s (-want +got):\n%s", c.path, c.body, d)
		}
	}
}

func TestErrorsOfTheEngine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want reply
	}{
		{engine.ErrDead, reply{500, "InternalServerError", nil, 500, "EngineCore encountered an issue."}},
		{engine.ErrClosed, reply{500, "InternalServerError", nil, 500, "Internal server error"}},
		{fmt.Errorf("%w: x", engine.ErrRequest), reply{400, "BadRequestError", nil, 400, "invalid request: x"}},
		{fmt.Errorf("%w: x", engine.ErrDuplicate), reply{400, "BadRequestError", nil, 400, "request id is in use: x"}},
		{&engine.PromptTooLongError{PromptTokens: 9, MaxModelLen: 8}, reply{400, "BadRequestError", "input_tokens", 400, "prompt of 9 tokens"}},
	} {
		s := newTestServer(t, "", &fakeBackend{refuse: c.err}, nil)
		w := post(t, s, "/v1/completions", `{"prompt":"x"}`)
		if d := cmp.Diff(c.want, readReply(t, w.Code, w.Body.Bytes(), c.want.Message)); d != "" {
			t.Errorf("%v (-want +got):\n%s", c.err, d)
		}
	}
}

// An error that comes when the stream has begun is an event: the status was 200.
func TestErrorInStream(t *testing.T) {
	t.Parallel()
	const failed = `{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}`
	for _, c := range []struct {
		name   string
		script []engine.Output
		chunks int // before the error
	}{
		{"at once", []engine.Output{{Finish: engine.FinishError, Err: engine.ErrTransfer}}, 0},
		{"after two tokens", append([]engine.Output{{Tokens: []int32{'a'}}, {Tokens: []int32{'b'}}}, engine.Output{Finish: engine.FinishError}), 3},
		{"engine gone", []engine.Output{{Tokens: []int32{'a'}}}, 2},
	} {
		s := newTestServer(t, "", &fakeBackend{scripts: [][]engine.Output{c.script}}, nil)
		w := post(t, s, "/v1/chat/completions", `{"stream":true,"messages":[{"role":"user","content":"x"}]}`)
		events := dataEvents(w.Body.String())
		if w.Code != http.StatusOK || len(events) != c.chunks+2 {
			t.Errorf("%s: status %d, events %q, want %d chunks before the error", c.name, w.Code, events, c.chunks)
			continue
		}
		if d := cmp.Diff([]string{failed, "[DONE]"}, events[c.chunks:]); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

func TestRequestsThatAreNotJSON(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, "", &fakeBackend{}, nil)
	s.opts.MaxBodyBytes = 100
	for _, c := range []struct {
		body, contentType string
		want              reply
	}{
		{`{"prompt":"x"}`, "text/plain", reply{400, "Bad Request", nil, 400, "Only 'application/json' is allowed"}},
		{`{"prompt":"x"}`, "application/x-www-form-urlencoded", reply{400, "Bad Request", nil, 400, "Unsupported Media Type"}},
		{strings.Repeat(" ", 101), "application/json; charset=utf-8", reply{413, "Request Entity Too Large", nil, 413, "larger than 100 bytes"}},
	} {
		w := post(t, s, "/v1/completions", c.body, "Content-Type", c.contentType)
		if d := cmp.Diff(c.want, readReply(t, w.Code, w.Body.Bytes(), c.want.Message)); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.contentType, d)
		}
	}
}

// dataEvents returns the data of all events.
func dataEvents(body string) []string {
	var out []string
	for line := range strings.Lines(body) {
		if data, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), "data: "); ok {
			out = append(out, data)
		}
	}
	return out
}
