package api

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// parsed is a message, however many pieces it came in.
type parsed struct {
	Reasoning, Content string
	Calls              []parsedCall
}

type parsedCall struct{ Name, Arguments string }

func parsePieces(p *messageParser, pieces []string) parsed {
	var out parsed
	for i, piece := range pieces {
		d := p.push(piece, i == len(pieces)-1)
		out.Reasoning += d.reasoning
		out.Content += d.content
		for _, c := range d.calls {
			for len(out.Calls) <= c.index {
				out.Calls = append(out.Calls, parsedCall{})
			}
			out.Calls[c.index].Name += c.name
			out.Calls[c.index].Arguments += c.arguments
		}
	}
	return out
}

func newTestParser(thinking bool) *messageParser {
	return &messageParser{thinking: thinking, tools: true, newID: func() string { return "id" }}
}

func TestParser(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text     string
		thinking bool
		want     parsed
	}{
		{"plain", false, parsed{Content: "plain"}},
		{"a < b <tool", false, parsed{Content: "a < b <tool"}},
		{"why</think>\n\nanswer", true, parsed{Reasoning: "why", Content: "\n\nanswer"}},
		{"never ends", true, parsed{Reasoning: "never ends"}},
		{"cut </thi", true, parsed{Reasoning: "cut </thi"}},
		{"a</think>b</think>c", true, parsed{Reasoning: "a", Content: "b</think>c"}},
		{"not thinking</think>x", false, parsed{Content: "not thinking</think>x"}},
		{
			"Let me look.\n<tool_call>\n{\"name\": \"read\", \"arguments\": {\"path\": \"a}b\\\"\", \"n\": [1, {}]}}\n</tool_call>", false,
			parsed{Content: "Let me look.\n", Calls: []parsedCall{{"read", `{"path": "a}b\"", "n": [1, {}]}`}}},
		},
		{
			"<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>\n<tool_call>{\"arguments\":{\"x\":1},\"name\":\"b\"}</tool_call>\n", false,
			parsed{Calls: []parsedCall{{"a", `{}`}, {"b", `{"x":1}`}}},
		},
		{"<tool_call>{\"name\":\"a\"}</tool_call>", false, parsed{Calls: []parsedCall{{"a", ""}}}},
		{"<tool_call>not json</tool_call> rest", false, parsed{Content: "<tool_call>not json</tool_call> rest"}},
		{"<tool_call>{\"name\": \"cut", false, parsed{Content: "<tool_call>{\"name\": \"cut"}},
		{"<tool_call>{\"name\":\"a\",\"arguments\":{\"text\":\"half", false, parsed{Calls: []parsedCall{{"a", `{"text":"half`}}}},
		{"<tool_call>{\"name\":\"a\",\"arguments\":7}</tool_call>", false, parsed{Calls: []parsedCall{{"a", "7"}}}},
		{"think</think><tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>", true, parsed{Reasoning: "think", Calls: []parsedCall{{"a", "{}"}}}},
	} {
		byRune := strings.Split(c.text, "")
		if d := cmp.Diff(c.want, parsePieces(newTestParser(c.thinking), byRune)); d != "" {
			t.Errorf("%q by character (-want +got):\n%s", c.text, d)
		}
	}
}

// However a text is split, the message is the same, once it is one that does not end inside a call.
func TestParserSplitsProperty(t *testing.T) {
	t.Parallel()
	part := rapid.SampledFrom([]string{
		"a", " ", "\n", "<", "</think>", "<tool_call>", "</tool_call>", `{"name":"f","arguments":{"k":"v\"}<"}}`,
		`{"name":"g"}`, `{"arguments":[1,2],"name":"h"}`, `{`, `"`, `}`, "</", "tool", "é",
		`<tool_call>{"name":"f","arguments":{"k":{"l":"</tool"}}}</tool_call>`,
	})
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(part, 0, 8).Draw(t, "parts"), "") + "</tool_call>"
		thinking := rapid.Bool().Draw(t, "thinking")
		whole := parsePieces(newTestParser(thinking), []string{text})
		var pieces []string
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			pieces = append(pieces, rest[:n])
			rest = rest[n:]
		}
		if d := cmp.Diff(whole, parsePieces(newTestParser(thinking), append(pieces, ""))); d != "" {
			t.Fatalf("%q in pieces %q (-whole +pieces):\n%s", text, pieces, d)
		}
	})
}

const someTools = `"tools":[{"type":"function","function":{"name":"read","parameters":{"type":"object"}}}],`

func TestToolCallsInReplies(t *testing.T) {
	t.Parallel()
	const text = "On it.<tool_call>\n{\"name\": \"read\", \"arguments\": {\"path\":\"x\",\"n\":1}}\n</tool_call>"
	for _, c := range []struct {
		name, body string
		finish     engine.FinishReason
		content    any
		calls      []parsedCall
		reason     string
	}{
		{"tools", someTools, engine.FinishStop, "On it.", []parsedCall{{"read", `{"path": "x", "n": 1}`}}, "tool_calls"},
		{"tools, choice none", someTools + `"tool_choice":"none",`, engine.FinishStop, text, nil, "stop"},
		{"tools, a named choice", someTools + `"tool_choice":{"type":"function","function":{"name":"read"}},`, engine.FinishStop, "On it.", []parsedCall{{"read", `{"path": "x", "n": 1}`}}, "stop"},
		{"no tools", ``, engine.FinishStop, text, nil, "stop"},
	} {
		script := append(says(text, ""), engine.Output{Tokens: []int32{'$'}, Finish: c.finish})
		backend := &fakeBackend{scripts: [][]engine.Output{script, script}}
		s := newTestServer(t, "", backend, nil)
		choice := parseDoc(t, post(t, s, "/v1/chat/completions", `{`+c.body+userHello+`}`).Body.String()).Choices[0]
		var calls []parsedCall
		for _, call := range choice.Message.Calls {
			calls = append(calls, parsedCall{call.Function.Name, call.Function.Arguments})
		}
		if d := cmp.Diff(c.calls, calls); d != "" || *choice.Message.Content != c.content || *choice.Finish != c.reason {
			t.Errorf("%s: content %q, finish %q; calls (-want +got):\n%s", c.name, *choice.Message.Content, *choice.Finish, d)
		}

		// Streamed: the same, but arguments stay as they were generated.
		got, finish := streamedMessage(t, post(t, s, "/v1/chat/completions", `{"stream":true,`+c.body+userHello+`}`).Body.String())
		want := parsed{Content: c.content.(string)}
		for _, call := range c.calls {
			want.Calls = append(want.Calls, parsedCall{call.Name, `{"path":"x","n":1}`})
		}
		if d := cmp.Diff(want, got); d != "" || finish != c.reason {
			t.Errorf("%s streamed: finish %q, want %q; message (-want +got):\n%s", c.name, finish, c.reason, d)
		}
	}
}

func streamedMessage(t *testing.T, body string) (m parsed, finish string) {
	t.Helper()
	for _, data := range dataEvents(body) {
		if data == "[DONE]" {
			break
		}
		c := parseDoc(t, data).Choices[0]
		if c.Delta.Content != nil {
			m.Content += *c.Delta.Content
		}
		if c.Delta.Reasoning != nil {
			m.Reasoning += *c.Delta.Reasoning
		}
		for _, call := range c.Delta.Calls {
			for len(m.Calls) <= call.Index {
				m.Calls = append(m.Calls, parsedCall{})
			}
			m.Calls[call.Index].Name += call.Function.Name
			m.Calls[call.Index].Arguments += call.Function.Arguments
		}
		if c.Finish != nil {
			finish = *c.Finish
		}
	}
	return m, finish
}

// A call that was cut off is content in a whole reply: its arguments are of no use.
func TestBrokenToolCallInWholeReply(t *testing.T) {
	t.Parallel()
	const call = `<tool_call>{"name":"read","arguments":{"path":"ha`
	s := newTestServer(t, "", &fakeBackend{scripts: [][]engine.Output{says("why</think>so "+call, engine.FinishLength)}}, nil)
	s.opts.ReasoningParser = true
	c := parseDoc(t, post(t, s, "/v1/chat/completions", `{`+someTools+`"reasoning_effort":"low",`+userHello+`}`).Body.String()).Choices[0]
	got := parsed{Reasoning: *c.Message.Reasoning, Content: *c.Message.Content}
	if d := cmp.Diff(parsed{Reasoning: "why", Content: "so " + call}, got); d != "" || *c.Finish != "length" {
		t.Errorf("finish %q (-want +got):\n%s", *c.Finish, d)
	}
}

// The exact form of tool calls on the wire.
func TestToolCallBytes(t *testing.T) {
	t.Parallel()
	const text = `<tool_call>{"name":"read","arguments":{"p":"<é>"}}</tool_call>`
	script := []engine.Output{{Tokens: []int32{1}}, {Tokens: []int32{2}, Finish: engine.FinishStop}}
	text1 := &fakeCodec{prompts: [][]int32{{7}, {7}}, pieces: [][]string{{text}, {text}}}
	s := newTestServer(t, "0.33.0", &fakeBackend{scripts: [][]engine.Output{script, script}}, text1)
	s.fingerprint = "f"
	const head = `{"id":"chatcmpl-r","object":"chat.completion`
	const tail = `","created":1795984206,"model":"smollm2","choices":[{"index":0,`
	want := head + tail + `"message":{"role":"assistant","content":null,"refusal":null,"annotations":null,"audio":null,"function_call":null,` +
		`"tool_calls":[{"id":"chatcmpl-tool-0000000000000000","type":"function","function":{"name":"read","arguments":"{\"p\": \"<é>\"}"}}],"reasoning":null},` +
		`"logprobs":null,"finish_reason":"tool_calls","stop_reason":null,"token_ids":null,"routed_experts":null,"weight_versions":null}],` +
		`"service_tier":null,"system_fingerprint":"f","usage":{"prompt_tokens":1,"total_tokens":3,"completion_tokens":2,"prompt_tokens_details":null,"completion_tokens_details":null},` +
		`"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}`
	got := post(t, s, "/v1/chat/completions", `{`+someTools+userHello+`}`, "X-Request-Id", "r").Body.String()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("whole (-want +got):\n%s", d)
	}
	events := dataEvents(post(t, s, "/v1/chat/completions", `{"stream":true,`+someTools+userHello+`}`, "X-Request-Id", "r").Body.String())
	want = head + `.chunk` + tail + `"delta":{"tool_calls":[{"id":"chatcmpl-tool-0000000000000000","type":"function","index":0,` +
		`"function":{"name":"read","arguments":"{\"p\":\"<é>\"}"}}]},"logprobs":null,"finish_reason":null,"token_ids":null}],"kv_transfer_params":null}`
	if d := cmp.Diff(want, events[1]); d != "" {
		t.Errorf("chunk (-want +got):\n%s", d)
	}
	want = head + `.chunk` + tail + `"delta":{},"logprobs":null,"finish_reason":"tool_calls","stop_reason":null,"token_ids":null,"weight_versions":null}],` +
		`"system_fingerprint":"f","kv_transfer_params":null}`
	if d := cmp.Diff(want, events[2]); d != "" {
		t.Errorf("finish chunk (-want +got):\n%s", d)
	}
}

func TestReasoningInReplies(t *testing.T) {
	t.Parallel()
	const text = "hm, why</think>so"
	for _, c := range []struct {
		parser bool
		kwargs string
		want   parsed
	}{
		{true, `"chat_template_kwargs":{"enable_thinking":true},`, parsed{Reasoning: "hm, why", Content: "so"}},
		{true, `"chat_template_kwargs":{"enable_thinking":true},"include_reasoning":false,`, parsed{Content: "so"}},
		{true, `"reasoning_effort":"low",`, parsed{Reasoning: "hm, why", Content: "so"}},
		{true, `"chat_template_kwargs":{"enable_thinking":false},`, parsed{Content: text}},
		{true, ``, parsed{Content: text}},
		{false, `"chat_template_kwargs":{"enable_thinking":true},`, parsed{Content: text}},
	} {
		script := says(text, engine.FinishLength)
		s := newTestServer(t, "", &fakeBackend{scripts: [][]engine.Output{script, script}}, nil)
		s.opts.ReasoningParser = c.parser
		m := parseDoc(t, post(t, s, "/v1/chat/completions", `{`+c.kwargs+userHello+`}`).Body.String()).Choices[0].Message
		got := parsed{Content: *m.Content}
		if m.Reasoning != nil {
			got.Reasoning = *m.Reasoning
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.kwargs, d)
		}
		got, _ = streamedMessage(t, post(t, s, "/v1/chat/completions", `{"stream":true,`+c.kwargs+userHello+`}`).Body.String())
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s streamed (-want +got):\n%s", c.kwargs, d)
		}
	}
}
