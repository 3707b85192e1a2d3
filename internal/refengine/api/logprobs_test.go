package api

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

func lp(pairs ...any) []engine.TokenLogprob {
	var out []engine.TokenLogprob
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, engine.TokenLogprob{ID: pairs[i].(rune), Logprob: float32(pairs[i+1].(float64))})
	}
	return out
}

// part is one member of a reply's first choice, or of the reply itself.
func part(t *testing.T, body, member string, inChoice bool) string {
	t.Helper()
	var doc map[string]json.RawMessage
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	if inChoice {
		var choices []map[string]json.RawMessage
		if err := json.Unmarshal(doc["choices"], &choices); err != nil {
			t.Fatal(err)
		}
		doc = choices[0]
	}
	return string(doc[member])
}

// generated: "é" with alternatives, then "b", which is not among its top ones.
var scored = []engine.Output{
	{
		Tokens:         []int32{'é'},
		Logprobs:       [][]engine.TokenLogprob{lp('é', -0.5, 'é', -0.5, 'x', -2.0)},
		PromptLogprobs: [][]engine.TokenLogprob{nil, lp('q', -3.0, 'z', -0.25, 'q', -3.0)},
	},
	{
		Tokens:   []int32{'b'},
		Logprobs: [][]engine.TokenLogprob{lp('b', -1e30, 'c', -0.125, 'd', -1.0)},
		Finish:   engine.FinishLength,
	},
}

func TestLogprobs(t *testing.T) {
	t.Parallel()
	const (
		e = `{"token":"é","logprob":-0.5,"bytes":[195,169]`
		b = `{"token":"b","logprob":-9999.0,"bytes":[98]`
	)
	for _, c := range []struct {
		path, body, member string
		inChoice           bool
		want               string
	}{
		{"/v1/chat/completions", `"logprobs":true`, "logprobs", true, `{"content":[` + e + `,"top_logprobs":[]},` + b + `,"top_logprobs":[]}]}`},
		{"/v1/chat/completions", `"logprobs":true,"top_logprobs":2`, "logprobs", true, `{"content":[` +
			e + `,"top_logprobs":[` + e + `},{"token":"x","logprob":-2.0,"bytes":[120]}]},` +
			b + `,"top_logprobs":[` + b + `},{"token":"c","logprob":-0.125,"bytes":[99]}]}]}`},
		{"/v1/chat/completions", `"logprobs":true,"return_tokens_as_token_ids":true`, "logprobs", true, `{"content":[` +
			`{"token":"token_id:233","logprob":-0.5,"bytes":[116,111,107,101,110,95,105,100,58,50,51,51],"top_logprobs":[]},` +
			`{"token":"token_id:98","logprob":-9999.0,"bytes":[116,111,107,101,110,95,105,100,58,57,56],"top_logprobs":[]}]}`},
		{"/v1/chat/completions", `"prompt_logprobs":2`, "prompt_logprobs", false, `[null,{"113":{"logprob":-3.0,"rank":2,"decoded_token":"q"},"122":{"logprob":-0.25,"rank":1,"decoded_token":"z"}}]`},
		{"/v1/chat/completions", `"n":1`, "prompt_logprobs", false, `null`},
		{"/v1/completions", `"logprobs":1`, "logprobs", true, `{"text_offset":[0,1],"token_logprobs":[-0.5,-9999.0],"tokens":["é","b"],` +
			`"top_logprobs":[{"é":-0.5,"x":-2.0},{"b":-9999.0,"c":-0.125}]}`},
		{"/v1/completions", `"logprobs":0`, "logprobs", true, `{"text_offset":[0,1],"token_logprobs":[-0.5,-9999.0],"tokens":["é","b"],"top_logprobs":[{"é":-0.5},{"b":-9999.0}]}`},
		{"/v1/completions", `"logprobs":0,"echo":true`, "logprobs", true, `{"text_offset":[0,1,2,3],"token_logprobs":[null,-3.0,-0.5,-9999.0],` +
			`"tokens":["p","q","é","b"],"top_logprobs":[null,{"q":-3.0},{"é":-0.5},{"b":-9999.0}]}`},
		{"/v1/completions", `"echo":true`, "text", true, `"pqéb"`},
		{"/v1/completions", `"echo":true,"max_tokens":0,"logprobs":0`, "text", true, `"pq"`},
		{"/v1/completions", `"echo":true,"max_tokens":0,"logprobs":0`, "logprobs", true, `{"text_offset":[0,1],"token_logprobs":[null,-3.0],"tokens":["p","q"],"top_logprobs":[null,{"q":-3.0}]}`},
		{"/v1/completions", `"echo":true,"return_token_ids":true`, "text", true, `"éb"`},
		{"/v1/completions", `"prompt_logprobs":2`, "prompt_logprobs", true, `[null,{"113":{"logprob":-3.0,"rank":2,"decoded_token":"q"},"122":{"logprob":-0.25,"rank":1,"decoded_token":"z"}}]`},
	} {
		backend := &fakeBackend{scripts: [][]engine.Output{scored}}
		w := post(t, newTestServer(t, "", backend, nil), c.path, `{"prompt":"pq",`+c.body+`,`+userHello+`}`)
		if d := cmp.Diff(c.want, part(t, w.Body.String(), c.member, c.inChoice)); d != "" {
			t.Errorf("%s %s (-want +got):\n%s", c.path, c.body, d)
		}
	}
}

func TestLogprobsStreamed(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{scripts: [][]engine.Output{scored, scored}}
	s := newTestServer(t, "", backend, nil)
	events := dataEvents(post(t, s, "/v1/completions", `{"prompt":"pq","stream":true,"echo":true,"logprobs":0}`).Body.String())
	for i, want := range []string{
		`{"text_offset":[0,1,2],"token_logprobs":[null,-3.0,-0.5],"tokens":["p","q","é"],"top_logprobs":[null,{"q":-3.0},{"é":-0.5}]}`,
		`{"text_offset":[3],"token_logprobs":[-9999.0],"tokens":["b"],"top_logprobs":[{"b":-9999.0}]}`,
	} {
		if d := cmp.Diff(want, part(t, events[i], "logprobs", true)); d != "" {
			t.Errorf("event %d (-want +got):\n%s", i, d)
		}
	}
	events = dataEvents(post(t, s, "/v1/chat/completions", `{"stream":true,"logprobs":true,`+userHello+`}`).Body.String())
	if d := cmp.Diff(`{"content":[{"token":"é","logprob":-0.5,"bytes":[195,169],"top_logprobs":[]}]}`, part(t, events[1], "logprobs", true)); d != "" {
		t.Errorf("chat (-want +got):\n%s", d)
	}
}

func TestAppendFloat(t *testing.T) {
	t.Parallel()
	for f, want := range map[float64]string{
		0: "0.0", 1: "1.0", -0.5: "-0.5", 1e-4: "0.0001", 1e-5: "1e-05", 1e16: "1e+16", 123456789: "123456789.0", 3295.833311156: "3295.833311156",
	} {
		if got := string(appendFloat(nil, f)); got != want {
			t.Errorf("appendFloat(%g) = %s, want %s", f, got, want)
		}
	}
}
