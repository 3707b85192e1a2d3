package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

const userHello = `"messages":[{"role":"user","content":"hello"}]`

// chatDoc is what the tests look at in a chat reply or chunk.
type chatDoc struct {
	Choices []struct {
		Index   int       `json:"index"`
		Message *chatText `json:"message"`
		Delta   *chatText `json:"delta"`
		Text    *string   `json:"text"`
		Finish  *string   `json:"finish_reason"`
		Stop    any       `json:"stop_reason"`
	} `json:"choices"`
	Usage *recordedUsage  `json:"usage"`
	KV    json.RawMessage `json:"kv_transfer_params"`
}

type chatText struct {
	Role      string      `json:"role"`
	Content   *string     `json:"content"`
	Reasoning *string     `json:"reasoning"`
	Calls     []chatCalls `json:"tool_calls"`
}

type chatCalls struct {
	Index    int    `json:"index"`
	ID       string `json:"id"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

func parseDoc(t testing.TB, data string) chatDoc {
	t.Helper()
	var d chatDoc
	if err := json.Unmarshal([]byte(data), &d); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	return d
}

// ended is how a reply ended.
type ended struct {
	Text   string
	Finish string
	Stop   any
	KV     string
}

func TestStopStrings(t *testing.T) {
	t.Parallel()
	handle := json.RawMessage(`{"do_remote_decode":true}`)
	for _, c := range []struct {
		name, body string
		says       string
		finish     engine.FinishReason
		want       ended
		aborted    bool
	}{
		{"in the middle of a token border", `"stop":["lo wo"]`, "hello world", engine.FinishLength, ended{"hel", "stop", "lo wo", "null"}, true},
		{"as a string", `"stop":"wor"`, "hello world", engine.FinishLength, ended{"hello ", "stop", "wor", "null"}, true},
		{"first of the list wins", `"stop":["zz","l","e"]`, "hello", engine.FinishLength, ended{"h", "stop", "e", "null"}, true},
		{"kept in the text", `"stop":["lo"],"include_stop_str_in_output":true`, "hello world", engine.FinishLength, ended{"hello", "stop", "lo", "null"}, true},
		{"not before min_tokens", `"stop":["l"],"min_tokens":4`, "hello hello", engine.FinishLength, ended{"hello he", "stop", "l", "null"}, true},
		{"absent", `"stop":["xyz"]`, "hello", engine.FinishLength, ended{"hello", "length", nil, string(handle)}, false},
		{"half of it at the end", `"stop":["low"]`, "hello", engine.FinishLength, ended{"hello", "length", nil, string(handle)}, false},
		// The engine ended by itself in the step in which the string appeared: it has retained, so there is a handle.
		{"in the engine's last step", `"stop":["lo"]`, "hello", engine.FinishLength, ended{"hel", "stop", "lo", string(handle)}, false},
		{"several characters", `"stop":["é世"]`, "caffé世界", engine.FinishLength, ended{"caff", "stop", "é世", "null"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			script := says(c.says, c.finish)
			script[len(script)-1].Params = handle
			for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
				for _, stream := range []bool{false, true} {
					backend := &fakeBackend{scripts: [][]engine.Output{script}}
					s := newTestServer(t, "0.33.0", backend, nil)
					body := `{"prompt":"x",` + userHello + `,"max_tokens":20,` + c.body + `}`
					if stream {
						body = strings.Replace(body, "{", `{"stream":true,`, 1)
					}
					w := post(t, s, path, body)
					if d := cmp.Diff(c.want, readEnd(t, w.Body.String(), stream)); d != "" {
						t.Errorf("%s stream=%v (-want +got):\n%s", path, stream, d)
					}
					if got := len(backend.abortedIDs()) > 0; got != c.aborted {
						t.Errorf("%s stream=%v: aborted = %v, want %v", path, stream, got, c.aborted)
					}
				}
			}
		})
	}
}

// readEnd reads a reply with one choice.
func readEnd(t testing.TB, body string, stream bool) ended {
	t.Helper()
	var e ended
	docs := []string{body}
	if stream {
		docs = dataEvents(body)
		if docs[len(docs)-1] != "[DONE]" {
			t.Fatalf("stream without [DONE]: %s", body)
		}
		docs = docs[:len(docs)-1]
	}
	for _, data := range docs {
		d := parseDoc(t, data)
		if len(d.Choices) == 0 {
			continue
		}
		c := d.Choices[0]
		switch {
		case c.Text != nil:
			e.Text += *c.Text
		case c.Message != nil && c.Message.Content != nil:
			e.Text += *c.Message.Content
		case c.Delta != nil && c.Delta.Content != nil:
			e.Text += *c.Delta.Content
		}
		if c.Finish != nil {
			e.Finish, e.Stop, e.KV = *c.Finish, c.Stop, "null"
			if d.KV != nil {
				e.KV = string(d.KV)
			}
		}
	}
	return e
}

// Whatever the tokens are, what is streamed is the text up to the stop string, in order, and never a
// character of what turns out to be one.
func TestStopStringsProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pieces := rapid.SliceOfN(rapid.StringMatching(`[abé]{0,4}`), 1, 12).Draw(t, "pieces")
		stops := rapid.SliceOfN(rapid.StringMatching(`[abé]{1,5}`), 0, 3).Draw(t, "stops")
		include := rapid.Bool().Draw(t, "include")
		detok := &pieceStream{pieces: pieces}
		q := newSequence("x", detok, &sampling{stop: stops, includeStop: include})

		text, want, stopped := "", "", ""
		streamed := ""
		for i := range pieces {
			final := i == len(pieces)-1
			text += pieces[i]
			want = text
			for _, stop := range stops {
				if at := strings.Index(text, stop); at >= 0 {
					stopped, want = stop, text[:at]
					if include {
						want = text[:at+len(stop)]
					}
					break
				}
			}
			got, matched := q.push([]int32{1}, false)
			if got != stopped || matched != (stopped != "") {
				t.Fatalf("push %d of %q: stop %q %v, want %q", i, pieces, got, matched, stopped)
			}
			streamed += q.take(matched || final)
			if !strings.HasPrefix(want, streamed) {
				t.Fatalf("after %d of %q with stops %q: streamed %q, which is not in %q", i, pieces, stops, streamed, want)
			}
			if matched {
				break
			}
		}
		if streamed != want {
			t.Fatalf("pieces %q stops %q: streamed %q, want %q", pieces, stops, streamed, want)
		}
	})
}

func TestStopReasons(t *testing.T) {
	t.Parallel()
	id := int32('.')
	handle := json.RawMessage(`{"do_remote_decode":true}`)
	for _, c := range []struct {
		name   string
		last   engine.Output
		params string
		want   ended
	}{
		// The token that ended the reply is not part of its text.
		{"end of sequence", engine.Output{Tokens: []int32{'$'}, Finish: engine.FinishStop, Params: handle}, "", ended{"ok", "stop", nil, string(handle)}},
		{"stop token", engine.Output{Tokens: []int32{id}, Finish: engine.FinishStop, StopToken: &id, Params: handle}, "", ended{"ok", "stop", float64('.'), string(handle)}},
		{"length", engine.Output{Tokens: []int32{id}, Finish: engine.FinishLength, Params: handle}, "", ended{"ok.", "length", nil, string(handle)}},
		{"aborted by the engine", engine.Output{Finish: engine.FinishAbort, Params: handle}, "", ended{"ok", "abort", nil, "null"}},
	} {
		for _, stream := range []bool{false, true} {
			backend := &fakeBackend{scripts: [][]engine.Output{{{Tokens: []int32{'o'}}, {Tokens: []int32{'k'}}, c.last}}}
			body := `{"prompt":"x"}`
			if stream {
				body = `{"prompt":"x","stream":true}`
			}
			w := post(t, newTestServer(t, "", backend, nil), "/v1/completions", body)
			if d := cmp.Diff(c.want, readEnd(t, w.Body.String(), stream)); d != "" {
				t.Errorf("%s stream=%v (-want +got):\n%s", c.name, stream, d)
			}
		}
	}
}

// A token that completes no character is a chunk with empty text, as recorded from vLLM; a step that only
// computed more of a long prompt is none.
func TestEmptyDeltas(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{scripts: [][]engine.Output{{
		{}, {CachedTokens: 3}, {Tokens: []int32{'a'}}, {Tokens: []int32{0}}, {Tokens: []int32{'b'}, Finish: engine.FinishLength},
	}}}
	w := post(t, newTestServer(t, "", backend, nil), "/v1/chat/completions", `{"stream":true,`+userHello+`}`)
	var got []string
	for _, data := range dataEvents(w.Body.String()) {
		if data == "[DONE]" {
			break
		}
		got = append(got, *parseDoc(t, data).Choices[0].Delta.Content)
	}
	if d := cmp.Diff([]string{"", "a", "", "b"}, got); d != "" {
		t.Errorf("contents (-want +got):\n%s", d)
	}
}

// Ids are made of the client's id, the prompt's number, the choice's number, a random tail.
func TestRequestIDs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path, body, header string
		id                 string
		engine             []string
	}{
		{"/v1/chat/completions", `{` + userHello + `}`, "client-42", "chatcmpl-client-42", []string{"chatcmpl-client-42-00000000"}},
		{"/v1/chat/completions", `{"request_id":"mine",` + userHello + `}`, "", "chatcmpl-mine", []string{"chatcmpl-mine-00000000"}},
		{"/v1/chat/completions", `{"request_id":"mine",` + userHello + `}`, "head", "chatcmpl-head", []string{"chatcmpl-head-00000000"}},
		{"/v1/chat/completions", `{` + userHello + `}`, "", "chatcmpl-0000000000000000", []string{"chatcmpl-0000000000000000-00000000"}},
		{"/v1/chat/completions", `{"n":2,` + userHello + `}`, "c", "chatcmpl-c", []string{"0_chatcmpl-c-00000000", "1_chatcmpl-c-00000000"}},
		{"/v1/completions", `{"prompt":"x"}`, "c", "cmpl-c", []string{"cmpl-c-0-00000000"}},
		{"/v1/completions", `{"prompt":["x","y"],"n":2}`, "c", "cmpl-c", []string{"0_cmpl-c-0-00000000", "1_cmpl-c-0-00000000", "0_cmpl-c-1-00000000", "1_cmpl-c-1-00000000"}},
	} {
		backend := &fakeBackend{}
		for range c.engine {
			backend.scripts = append(backend.scripts, says("ok", engine.FinishLength))
		}
		w := post(t, newTestServer(t, "", backend, nil), c.path, c.body, "X-Request-Id", c.header)
		var doc struct{ ID string }
		if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range backend.requests {
			got = append(got, r.ID)
		}
		if d := cmp.Diff(c.engine, got); d != "" || doc.ID != c.id {
			t.Errorf("%s %s: id %q, want %q; engine ids (-want +got):\n%s", c.path, c.body, doc.ID, c.id, d)
		}
	}
}

// What reaches the engine.
func TestEngineRequest(t *testing.T) {
	t.Parallel()
	seed := int64(7)
	for _, c := range []struct {
		path, body string
		want       engine.Request
	}{
		{"/v1/completions", `{"prompt":[5,6],"cache_salt":"s","kv_transfer_params":{"do_remote_decode": true,"prompt_token_ids":[1]}}`, engine.Request{
			// On completions prompt_token_ids is one more unknown member: it stays.
			Prompt: []int32{5, 6}, Salt: "s", Params: json.RawMessage(`{"do_remote_decode": true,"prompt_token_ids":[1]}`),
			MaxTokens: 16, Temperature: 1, TopP: 1, Logprobs: -1, PromptLogprobs: -1,
		}},
		{"/v1/completions", `{"prompt":"ab","max_tokens":"3","min_tokens":2,"temperature":0,"top_p":0.5,"top_k":4,"seed":7,"stop_token_ids":[9],"ignore_eos":1,"logprobs":2,"prompt_logprobs":1}`, engine.Request{
			Prompt: []int32{'a', 'b'}, MaxTokens: 3, MinTokens: 2, Temperature: 0, TopP: 0.5, TopK: 4, Seed: &seed,
			StopTokenIDs: []int32{9}, IgnoreEOS: true, Logprobs: 2, PromptLogprobs: 1,
		}},
		{"/v1/chat/completions", `{"max_tokens":9,"max_completion_tokens":4,"kv_transfer_params":{"prompt_token_ids":[1,2,3],"do_remote_decode":true,"x":1.50},` + userHello + `}`, engine.Request{
			Prompt: []int32{1, 2, 3}, Params: json.RawMessage(`{"do_remote_decode":true,"x":1.50}`),
			MaxTokens: 4, Temperature: 1, TopP: 1, Logprobs: -1, PromptLogprobs: -1,
		}},
		{"/v1/chat/completions", `{"kv_transfer_params":{"prompt_token_ids":[1,2,3]},` + userHello + `}`, engine.Request{
			Prompt: []int32{1, 2, 3}, MaxTokens: 8189, Temperature: 1, TopP: 1, Logprobs: -1, PromptLogprobs: -1,
		}},
		{"/v1/chat/completions", `{"max_tokens":1,"temperature":null,"response_format":{"type":"text"},"user":"u","nonsense":{"a":1},"logprobs":true,"messages":[{"role":"user","content":"x"}]}`, engine.Request{
			Prompt:    []int32([]rune(`{"role":"user","content":"x"}` + "\n")),
			MaxTokens: 1, Temperature: 1, TopP: 1, Logprobs: 0, PromptLogprobs: -1,
		}},
	} {
		backend := &fakeBackend{scripts: [][]engine.Output{says("ok", engine.FinishLength)}}
		w := post(t, newTestServer(t, "0.32.0", backend, nil), c.path, c.body, "X-Request-Id", "c")
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

// Before 0.32 the key means nothing: it goes to the engine like any other. With echo or content that is not
// text it is taken out and not used.
func TestExactPromptIsNotAlwaysUsed(t *testing.T) {
	t.Parallel()
	rendered := []int32([]rune(`{"role":"user","content":"hello"}` + "\n"))
	for _, c := range []struct {
		version, extra string
		prompt         []int32
		params         string
	}{
		{"0.31.0", "", rendered, `{"prompt_token_ids":[1]}`},
		{"0.32.0", "", []int32{1}, ``},
		{"0.33.0", `"echo":true,`, rendered, ``},
	} {
		backend := &fakeBackend{scripts: [][]engine.Output{says("ok", engine.FinishLength)}}
		post(t, newTestServer(t, c.version, backend, nil), "/v1/chat/completions",
			`{`+c.extra+`"kv_transfer_params":{"prompt_token_ids":[1]},`+userHello+`}`)
		r := backend.requests[0]
		if d := cmp.Diff(c.prompt, r.Prompt); d != "" || string(r.Params) != c.params {
			t.Errorf("%s %s: params %q, want %q; prompt (-want +got):\n%s", c.version, c.extra, r.Params, c.params, d)
		}
	}
}

func TestSeveralChoicesStreamed(t *testing.T) {
	t.Parallel()
	a, b := says("ab", engine.FinishLength), says("xyz", engine.FinishStop)
	a[1].Params = json.RawMessage(`{"remote_request_id":"0_c"}`)
	b[2].Params = json.RawMessage(`{"remote_request_id":"1_c"}`)
	backend := &fakeBackend{scripts: [][]engine.Output{a, b}}
	w := post(t, newTestServer(t, "0.33.0", backend, nil), "/v1/chat/completions",
		`{"n":2,"stream":true,"stream_options":{"include_usage":true},`+userHello+`}`)
	type choice struct{ Role, Text, Finish, KV string }
	got := map[int]choice{}
	var completion int
	for _, data := range dataEvents(w.Body.String()) {
		if data == "[DONE]" {
			break
		}
		d := parseDoc(t, data)
		if len(d.Choices) == 0 {
			completion = d.Usage.Completion
			continue
		}
		c := got[d.Choices[0].Index]
		c.Role += d.Choices[0].Delta.Role
		c.Text += *d.Choices[0].Delta.Content
		if f := d.Choices[0].Finish; f != nil {
			c.Finish, c.KV = *f, string(d.KV)
		}
		got[d.Choices[0].Index] = c
	}
	want := map[int]choice{
		0: {"assistant", "ab", "length", `{"remote_request_id":"0_c"}`},
		1: {"assistant", "xy", "stop", `{"remote_request_id":"1_c"}`},
	}
	if d := cmp.Diff(want, got); d != "" || completion != 5 {
		t.Errorf("completion tokens %d, want 5; choices (-want +got):\n%s", completion, d)
	}
}
