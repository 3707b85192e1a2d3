package api

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

func TestHealthAndLoad(t *testing.T) {
	t.Parallel()
	for _, dead := range []bool{false, true} {
		want := http.StatusOK
		if dead {
			want = http.StatusServiceUnavailable
		}
		for _, path := range []string{"/health", "/ping"} {
			w := get(t, newTestServer(t, "", &fakeBackend{stats: engine.Stats{Dead: dead}}, nil), path)
			if w.Code != want || w.Body.Len() != 0 {
				t.Errorf("dead=%v %s: %d %q, want %d and no body", dead, path, w.Code, w.Body, want)
			}
		}
	}
	backend := &fakeBackend{scripts: [][]engine.Output{says("x", engine.FinishLength)}}
	s := newTestServer(t, "", backend, nil)
	var during string
	backend.onSubmit = func(string) { during = get(t, s, "/load").Body.String() }
	post(t, s, "/v1/completions", `{"prompt":"x"}`)
	if d := cmp.Diff([]string{`{"server_load":1}`, `{"server_load":0}`}, []string{during, get(t, s, "/load").Body.String()}); d != "" {
		t.Errorf("/load during and after a request (-want +got):\n%s", d)
	}
}

func TestMethods(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, "", &fakeBackend{}, nil)
	w := get(t, s, "/v1/completions")
	if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "POST" {
		t.Errorf("GET /v1/completions: %d, Allow %q", w.Code, w.Header().Get("Allow"))
	}
	if w := post(t, s, "/v1/models", `{}`); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST /v1/models: %d", w.Code)
	}
	head := httptest.NewRecorder()
	s.Handler().ServeHTTP(head, httptest.NewRequestWithContext(t.Context(), http.MethodHead, "/health", nil))
	if head.Code != http.StatusOK {
		t.Errorf("HEAD /health: %d", head.Code)
	}
}

func TestReleaseOf(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]struct {
		version string
		minor   int
	}{
		"0.25.1": {"0.25.1", 25}, "0.32": {"0.32.0", 32}, "v0.33.0": {"0.33.0", 33}, "vllm-0.30": {"0.30.0", 30}, "": {"0.33.0", 33}, "x": {"0.33.0", 33},
	} {
		if r := releaseOf(in); r.version != want.version || r.minor != want.minor {
			t.Errorf("releaseOf(%q) = %s %d, want %v", in, r.version, r.minor, want)
		}
	}
}

func TestTokenizeAndDetokenize(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, "", &fakeBackend{}, nil)
	for _, c := range []struct{ path, body, want string }{
		{"/tokenize", `{"prompt":"ab"}`, `{"count":2,"max_model_len":8192,"tokens":[97,98],"token_strs":null}`},
		{"/tokenize", `{"prompt":"","add_special_tokens":false}`, `{"count":0,"max_model_len":8192,"tokens":[],"token_strs":null}`},
		{"/tokenize", `{"prompt":"a\"","return_token_strs":true}`, `{"count":2,"max_model_len":8192,"tokens":[97,34],"token_strs":["a","\""]}`},
		{"/tokenize", `{"messages":[{"a":1}],"kv_transfer_params":{"prompt_token_ids":[5]}}`, `{"count":8,"max_model_len":8192,"tokens":[123,34,97,34,58,49,125,10],"token_strs":null}`},
		{"/detokenize", `{"tokens":[104,233,30028]}`, `{"prompt":"hé界"}`},
	} {
		// The fake template writes each message and a line break.
		if d := cmp.Diff(c.want, post(t, s, c.path, c.body).Body.String()); d != "" {
			t.Errorf("%s %s (-want +got):\n%s", c.path, c.body, d)
		}
	}
}

func TestRenderFollowsTheRequest(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, "0.29.0", &fakeBackend{}, nil) // before 0.30 no flag is needed
	const body = `{"prompt":["a","b"],"stream":true,"stream_options":{"include_usage":false},"n":2,"temperature":0.5,"top_p":0.9,"top_k":7,"seed":3,` +
		`"stop":"s","stop_token_ids":[4],"ignore_eos":true,"min_tokens":1,"max_tokens":2,"logprobs":1,"return_token_ids":true,"cache_salt":"z","kv_transfer_params":{"x":1}}`
	entry := func(id string) string {
		return `{"request_id":"cmpl-r","token_ids":[` + id + `],"token_offsets":null,"features":null,"content_parts":null,"sampling_params":{"n":2,` +
			`"presence_penalty":0.0,"frequency_penalty":0.0,"repetition_penalty":1.0,"temperature":0.5,"top_p":0.9,"top_k":7,"min_p":0.0,"seed":3,"stop":["s"],` +
			`"stop_token_ids":[4],"ignore_eos":true,"max_tokens":2,"min_tokens":1,"logprobs":1,"output_kind":1,"skip_clone":true,` +
			`"extra_args":{"kv_transfer_params":{"x":1}},"bad_words":[],"skip_reading_prefix_cache":false},"model":"smollm2","reasoning_ended":null,` +
			`"reasoning_parser_kwargs":null,"return_token_ids":true,"output_mode":"tokens","parse_context":null,"stream":true,` +
			`"stream_options":{"include_usage":false},"cache_salt":"z","priority":0,"kv_transfer_params":{"x":1},"ec_transfer_params":null}`
	}
	got := post(t, s, "/v1/completions/render", body, "X-Request-Id", "r").Body.String()
	if d := cmp.Diff("["+entry("97")+","+entry("98")+"]", got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestContinueFinalMessage(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{scripts: [][]engine.Output{says("x", engine.FinishLength)}}
	s := newTestServer(t, "", backend, nil)
	w := post(t, s, "/v1/chat/completions",
		`{"add_generation_prompt":false,"continue_final_message":true,"echo":true,"messages":[{"role":"user","content":"q"},{"content":"so far ","role":"assistant"}]}`)
	if d := cmp.Diff(`{"role":"user","content":"q"}`+"\n"+`{"content":"so far `, string([]rune(backend.requests[0].Prompt))); d != "" {
		t.Errorf("prompt (-want +got):\n%s", d)
	}
	m := parseDoc(t, w.Body.String()).Choices[0].Message
	if d := cmp.Diff([]string{"assistant", "so far x"}, []string{m.Role, *m.Content}); d != "" {
		t.Errorf("message (-want +got):\n%s", d)
	}
}

func TestEchoStreamed(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{scripts: [][]engine.Output{says("x", engine.FinishLength)}}
	w := post(t, newTestServer(t, "0.33.0", backend, nil), "/v1/chat/completions",
		`{"stream":true,"stream_options":{"continuous_usage_stats":true},"add_generation_prompt":false,"continue_final_message":true,"echo":true,`+
			`"return_prompt_text":true,"messages":[{"content":"so far","role":"assistant"}]}`, "X-Request-Id", "r")
	const head = `{"id":"chatcmpl-r","object":"chat.completion.chunk","created":1795984206,"model":"smollm2","choices":[{"index":0,"delta":`
	const usage = `"usage":{"prompt_tokens":18,"total_tokens":18,"completion_tokens":0,"completion_tokens_details":null}`
	want := []string{
		head + `{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],` + usage + `,"prompt_token_ids":null,"prompt_text":"{\"content\":\"so far"}`,
		head + `{"content":"so far"},"logprobs":null,"finish_reason":null}],` + usage + `}`,
	}
	if d := cmp.Diff(want, dataEvents(w.Body.String())[:2]); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := backend.requests[0].PromptLogprobs; got != 0 {
		t.Errorf("PromptLogprobs = %d, want 0: echo asks for them", got)
	}
}
