package wire

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/sse"
)

// events is a stream of payloads.
func events(payloads ...string) string {
	return "data: " + strings.Join(payloads, "\n\ndata: ") + "\n\n"
}

// deltas is a chat's stream of deltas of the first choice.
func deltas(list ...string) string {
	for i, d := range list {
		list[i] = `{"id":"x","choices":[{"index":0,"delta":{` + d + `},"finish_reason":null}]}`
	}
	return events(append(list, `{"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`, "[DONE]")...)
}

func said(endpoint kvp.Endpoint, stream string) outcome {
	_, info := client(Options{Endpoint: endpoint, KeepReply: 1 << 20}, []byte(stream))
	return outcomeOf(&info.Reply)
}

// dialectStreams are streams with all that may be said.
var dialectStreams = map[kvp.Endpoint][]string{
	kvp.Chat: {
		deltas(`"role":"assistant","content":""`, `"reasoning":"h"`, `"reasoning":"mm"`, `"content":"a\ud83d"`, `"content":"\ude00"`,
			`"tool_calls":[{"id":"c0","type":"function","index":0,"function":{"name":"f","arguments":""}}]`,
			`"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":"}}]`, `"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]`,
			`"tool_calls":[{"id":"c1","type":"function","index":1,"function":{"name":"g"}}]`, `"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]`),
		deltas(`"reasoning":"a","reasoning_content":"a"`, `"refusal":"no"`),
	},
	kvp.Completions: {events(`{"choices":[{"index":0,"text":"a\n"}]}`, `{"choices":[{"index":0,"text":"\"b"}]}`, "[DONE]")},
	kvp.Responses: {events(`{"type":"response.output_text.delta","delta":"a"}`,
		`{"type":"response.completed","response":{"status":"completed","output":[{"type":"message","content":[]}, {"type":"function_call","call_id":"c0"}]}}`)},
	kvp.Messages: {events(
		`{"type":"message_start","message":{"id":"m","content":[]}}`,
		`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"s"}}`,
		`{"type":"content_block_stop","index":0}`,
		`{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}`,
		`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"a"}}`,
		`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"b"}}`,
		`{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"c0","name":"f","input":{}}}`,
		`{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"a\""}}`,
		`{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":":[1]}"}}`,
		`{"type":"message_delta","delta":{"stop_reason":"tool_use"}}`, `{"type":"message_stop"}`)},
}

func TestReplyOfStreams(t *testing.T) {
	t.Parallel()
	f := func(endpoint kvp.Endpoint, stream string, want outcome) {
		t.Helper()
		if d := cmp.Diff(want, said(endpoint, stream)); d != "" {
			t.Errorf("%s (-want +got):\n%s", stream, d)
		}
	}
	calls := `"tool_calls":[{"id":"c0","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},{"id":"c1","type":"function","function":{"name":"g","arguments":"{}"}}]}`
	f(kvp.Chat, dialectStreams[kvp.Chat][0], outcome{
		Message:         `{"role":"assistant","content":"a\ud83d\ude00","reasoning":"hmm",` + calls,
		WithoutThinking: `{"role":"assistant","content":"a\ud83d\ude00",` + calls,
		ToolCalls:       []string{"c0", "c1"},
	})
	// engines that write both names of the reasoning say it once
	f(kvp.Chat, dialectStreams[kvp.Chat][1], outcome{
		Message:         `{"role":"assistant","content":null,"reasoning":"a","refusal":"no"}`,
		WithoutThinking: `{"role":"assistant","content":null,"refusal":"no"}`,
	})
	f(kvp.Completions, dialectStreams[kvp.Completions][0], outcome{Message: `a\n\"b`, WithoutThinking: `a\n\"b`})
	items := `{"type":"message","content":[]},{"type":"function_call","call_id":"c0"}`
	f(kvp.Responses, dialectStreams[kvp.Responses][0], outcome{Message: items, WithoutThinking: items, ToolCalls: []string{"c0"}})
	blocks := `{"type":"text","text":"ab"},{"type":"tool_use","id":"c0","name":"f","input":{"a":[1]}}]}`
	f(kvp.Messages, dialectStreams[kvp.Messages][0], outcome{
		Message:         `{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},` + blocks,
		WithoutThinking: `{"role":"assistant","content":[` + blocks,
		ToolCalls:       []string{"c0"},
	})

	plain := func(message string, ids ...string) outcome {
		return outcome{Message: message, WithoutThinking: message, ToolCalls: ids}
	}
	// only calls: interleaved, the second first
	f(kvp.Chat, deltas(`"tool_calls":[{"id":"c1","index":1,"function":{"name":"g","arguments":"{"}}]`, `"tool_calls":[{"id":"c0","index":0,"function":{"name":"f","arguments":""}}]`,
		`"tool_calls":[{"index":0,"function":{"arguments":"{\"é\"" }},{"index":1,"function":{"arguments":"}"}}]`, `"tool_calls":[{"index":0,"function":{"arguments":":2}"}}]`),
		plain(`{"role":"assistant","content":null,"tool_calls":[{"id":"c0","type":"function","function":{"name":"f","arguments":"{\"é\":2}"}},{"id":"c1","type":"function","function":{"name":"g","arguments":"{}"}}]}`, "c0", "c1"))
	// the name and the id come with every piece
	call := `"tool_calls":[{"id":"c0","index":0,"function":{"name":"f","arguments":"%"}}]`
	f(kvp.Chat, deltas(strings.ReplaceAll(call, "%", "{"), strings.ReplaceAll(call, "%", " "), strings.ReplaceAll(call, "%", "}")),
		plain(`{"role":"assistant","content":null,"tool_calls":[{"id":"c0","type":"function","function":{"name":"f","arguments":"{ }"}}]}`, "c0"))
	// one chunk with the end of the reasoning and the beginning of the answer, twice over
	both := `"reasoning":"r","content":"c"`
	f(kvp.Chat, deltas(both, both, both), outcome{Message: `{"role":"assistant","content":"ccc","reasoning":"rrr"}`, WithoutThinking: `{"role":"assistant","content":"ccc"}`})
	f(kvp.Chat, deltas(`"reasoning_content":"r"`), outcome{Message: `{"role":"assistant","content":"","reasoning":"r"}`})
	// a tool without arguments, input in the first event, blocks that come whole
	block := func(b string) string {
		return events(`{"type":"content_block_start","index":0,"content_block":`+b+`}`, `{"type":"content_block_stop","index":0}`, `{"type":"message_stop"}`)
	}
	f(kvp.Messages, block(`{"type":"tool_use","id":"c","name":"f"}`), plain(`{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":{}}]}`, "c"))
	f(kvp.Messages, block(`{"type":"tool_use","id":"c","name":"f","input":{"a":1}}`), plain(`{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":{"a":1}}]}`, "c"))
	f(kvp.Messages, block(`{"type":"text","text":"whole"}`), plain(`{"role":"assistant","content":[{"type":"text","text":"whole"}]}`))
	f(kvp.Messages, block(`{"type":"redacted_thinking","data":"x"}`), outcome{Message: `{"role":"assistant","content":[{"type":"redacted_thinking","data":"x"}]}`})
	f(kvp.Messages, block(`{"type":"other","data":"x"}`), plain(`{"role":"assistant","content":[{"type":"other","data":"x"}]}`))
	// 0.33 says incomplete when the answer was cut by its limit
	f(kvp.Responses, events(`{"response":{"output":[{"type":"reasoning"}],"status":"incomplete"},"type":"response.incomplete"}`), plain(`{"type":"reasoning"}`))
	// comments and empty events say nothing
	f(kvp.Chat, ": ping\n\ndata: \n\n"+deltas(`"content":"a"`), plain(`{"role":"assistant","content":"a"}`))

	// not usable
	block0 := `{"type":"content_block_start","index":0,"content_block":{"type":"%"}}`
	text0 := strings.ReplaceAll(block0, "%", "text")
	a := deltas(`"content":"a"`)
	none := func(endpoint kvp.Endpoint, stream string) { t.Helper(); f(endpoint, stream, outcome{}) }
	none(kvp.Chat, deltas(`"content":""`))
	none(kvp.Chat, deltas(`"role":"assistant"`))
	none(kvp.Chat, a+events(`{"choices":[{"index":1,"delta":{"content":"b"}}]}`))
	none(kvp.Chat, events(`{"choices":[{"index":1,"delta":{"content":"b"}}]}`)+a)
	none(kvp.Chat, a+events(`{"error":{"code":500}}`))
	none(kvp.Chat, a+events(`{"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}`))
	none(kvp.Chat, a+events(`{"choices":`))
	none(kvp.Chat, deltas(`"content":[{"type":"text","text":"a"}]`))
	none(kvp.Chat, deltas(`"content":"a"`, `"tool_calls":[{"function":{"name":"f","arguments":"x"}}]`))              // which call?
	none(kvp.Chat, deltas(`"tool_calls":[{"index":-1,"id":"c","function":{"name":"f"}}]`))                           // which call?
	none(kvp.Chat, deltas(`"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":{"a":1}}}]`))        // no string
	none(kvp.Chat, deltas(`"tool_calls":[{"index":0,"id":"c"},{"index":0,"id":"d"}]`))                               // two calls
	none(kvp.Chat, deltas(`"tool_calls":[{"index":0,"function":{"name":"f"}},{"index":0,"function":{"name":"g"}}]`)) // two calls
	none(kvp.Completions, a)
	none(kvp.Completions, events(`{"choices":[{"index":0,"text":"a"},{"index":1,"text":"b"}]}`))
	none(kvp.Responses, events(`{"type":"response.output_text.delta","delta":"a"}`))
	none(kvp.Responses, events(`{"type":"response.failed","response":{"status":"failed","output":[{}]}}`))
	none(kvp.Responses, events(`{"type":"response.completed","response":{"status":"completed","output":[]}}`))
	none(kvp.Responses, events(`{"type":"response.completed","response":{"output":[{"type":"function_call"}]}}`))
	none(kvp.Messages, events(text0, text0))
	none(kvp.Messages, events(`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}`))
	none(kvp.Messages, events(text0, `{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{}"}}`))
	none(kvp.Messages, events(text0, `{"type":"content_block_delta","index":0,"delta":{"type":"citations_delta","citation":{}}}`))
	none(kvp.Messages, events(text0, `{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}`))
	none(kvp.Messages, events(text0, `{"type":"error","error":{"type":"overloaded_error"}}`))
	none(kvp.Messages, events(`{"type":"content_block_start","content_block":{"type":"text"}}`))
	none(kvp.Messages, events(`{"type":"content_block_start","index":0,"content_block":{}}`))
	none(kvp.Messages, events(`{"type":"message_start","message":{"content":[{"type":"text","text":"a"}]}}`))
	f(kvp.Messages, block(`{"type":"tool_use","id":"c"}`), outcome{ToolCalls: []string{"c"}})
	tool := events(strings.ReplaceAll(block0, `"%"`, `"tool_use","id":"c","name":"f"`), `{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"%"}}`)
	for _, input := range []string{`{\"a\"`, `1`, `[]`, `{}}`, ` `} {
		got := said(kvp.Messages, strings.ReplaceAll(tool, "%", input))
		if got.Message != "" || got.WithoutThinking != "" {
			t.Errorf("input %s makes %s", input, got.Message)
		}
	}
}

func TestReplyOfBodies(t *testing.T) {
	t.Parallel()
	f := func(endpoint kvp.Endpoint, body string, want outcome) {
		t.Helper()
		_, info, err := filterBody([]byte(body), Options{Endpoint: endpoint, KeepReply: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, outcomeOf(&info.Reply)); d != "" {
			t.Errorf("%s (-want +got):\n%s", body, d)
		}
	}
	call := `{"id":"c0", "type":"function","function":{"arguments":"{}","name":"f"},"x":1}`
	f(kvp.Chat, `{"choices":[{"message":{"content":null,"reasoning":"r","tool_calls":[`+call+`]},"index":0,"finish_reason":"tool_calls"}]}`, outcome{
		Message:         `{"role":"assistant","content":null,"reasoning":"r","tool_calls":[` + call + `]}`,
		WithoutThinking: `{"role":"assistant","content":null,"tool_calls":[` + call + `]}`,
		ToolCalls:       []string{"c0"},
	})
	f(kvp.Messages, `{"content":[{"type":"thinking","thinking":"t"}, {"type":"text","text":"a","x":1},{"type":"tool_use","id":"c","name":"f","input":{"a":1}}]}`, outcome{
		Message:         `{"role":"assistant","content":[{"type":"thinking","thinking":"t"},{"type":"text","text":"a","x":1},{"type":"tool_use","id":"c","name":"f","input":{"a":1}}]}`,
		WithoutThinking: `{"role":"assistant","content":[{"type":"text","text":"a","x":1},{"type":"tool_use","id":"c","name":"f","input":{"a":1}}]}`,
		ToolCalls:       []string{"c"},
	})
	f(kvp.Chat, `{"choices":[{"index":0,"message":{"content":""}}]}`, outcome{})
	f(kvp.Chat, `{"choices":[{"index":0,"message":{"content":"a","tool_calls":[{"function":{}}]}}]}`, outcome{})
	f(kvp.Chat, `{"choices":[{"index":0,"message":{"content":"a"}},{"index":1,"message":{"content":"b"}}]}`, outcome{})
	f(kvp.Chat, `{"error":{"message":"x"}}`, outcome{})
	f(kvp.Messages, `{"content":[{"type":"tool_use","name":"f"}]}`, outcome{})
	f(kvp.Responses, `{"status":"failed","output":[{"type":"message"}]}`, outcome{})
}

// A reply larger than allowed is not kept at all, wherever the limit falls.
func TestReplyLimit(t *testing.T) {
	t.Parallel()
	for endpoint, streams := range dialectStreams {
		for _, stream := range streams {
			want := said(endpoint, stream)
			limit := 0
			for ; limit < len(stream); limit++ {
				_, info := client(Options{Endpoint: endpoint, KeepReply: limit}, []byte(stream))
				got := outcomeOf(&info.Reply)
				if cmp.Equal(want, got) {
					break
				}
				if d := cmp.Diff(outcome{Over: limit > 0}, got); d != "" {
					t.Errorf("%s with %d bytes (-want +got):\n%s", stream, limit, d)
				}
			}
			if limit < 3 || limit > len(stream)/2 {
				t.Errorf("%s is kept in %d bytes", stream, limit)
			}
		}
	}
	// nothing, said in ever more calls
	var many []string
	for i := range maxParts + 1 {
		many = append(many, `"tool_calls":[{"index":`+string(number(i%maxParts))+`}]`, `"reasoning":""`)
	}
	_, info := client(Options{KeepReply: 1 << 20}, []byte(deltas(append([]string{`"content":"a"`}, many...)...)))
	if d := cmp.Diff(outcome{Over: true}, outcomeOf(&info.Reply)); d != "" {
		t.Errorf("many calls (-want +got):\n%s", d)
	}
}

// An event that nobody looked into may have said anything.
func TestReplyWithUninspectedEvents(t *testing.T) {
	t.Parallel()
	f := new(Filter)
	f.Reset(Options{KeepReply: 100})
	payload := sseEvent(t, `data: {"choices":[{"index":0,"delta":{"content":"a"}}]}`+"\n\n")
	f.Event(payload)
	f.Event(sse.Event{Raw: []byte("data: {"), Partial: true})
	f.Event(payload)
	if d := cmp.Diff(outcome{}, outcomeOf(&f.Info().Reply)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func sseEvent(tb testing.TB, text string) sse.Event {
	tb.Helper()
	var fr sse.Framer
	fr.Feed([]byte(text))
	ev, ok := fr.Next()
	if !ok {
		tb.Fatalf("%q is no event", text)
	}
	return ev
}

// The memory of a reply is used for the next one, of whatever kind, and of a large one given up.
func TestReplyMemory(t *testing.T) {
	t.Parallel()
	f := new(Filter)
	play := func(endpoint kvp.Endpoint, stream string) outcome {
		relay(f, Options{Endpoint: endpoint, KeepReply: 1 << 20}, []byte(stream), 1000)
		return outcomeOf(&f.Info().Reply)
	}
	large := deltas(`"content":"` + strings.Repeat("x", keptBytes+1) + `"`)
	for range 2 {
		for endpoint := kvp.Chat; endpoint <= kvp.Messages; endpoint++ {
			for _, stream := range append(dialectStreams[endpoint], deltas(), large) {
				if d := cmp.Diff(said(endpoint, stream), play(endpoint, stream)); d != "" {
					t.Errorf("%s (-new +used again):\n%s", stream[:min(len(stream), 500)], d)
				}
			}
		}
	}
	f.Reset(Options{KeepReply: 1})
	for _, p := range f.info.Reply.parts[:cap(f.info.Reply.parts)] {
		if cap(p.text) > keptBytes {
			t.Errorf("keeps %d bytes", cap(p.text))
		}
	}
	_, info := client(Options{}, []byte(dialectStreams[kvp.Chat][0]))
	if d := cmp.Diff(outcome{}, outcomeOf(&info.Reply)); d != "" || cap(info.Reply.parts) != 0 {
		t.Errorf("keeps what was not asked for (-want +got):\n%s", d)
	}
	if _, ok := f.Info().Reply.AppendMessage(nil, kvp.Messages, ""); ok {
		t.Error("a chat's reply as a message of another endpoint")
	}
}

// The message of every recording. The stream of a turn and its whole reply, where there are both, say the same
// if the engine did.
func TestReplyOfRecordings(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../testdata/vllm-*/wire/*")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, name := range files {
		base := filepath.ToSlash(strings.TrimPrefix(name, filepath.FromSlash("../../testdata/")))
		sse, whole := strings.HasSuffix(base, ".d.sse"), strings.HasSuffix(base, ".d.json")
		if !sse && !whole {
			continue
		}
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		opt := Options{Endpoint: endpointOf(name), KeepReply: 1 << 20}
		var info *Info
		if sse {
			_, info = client(opt, data)
		} else if _, info, err = filterBody(data, opt); err != nil {
			t.Fatalf("%s: %v", base, err)
		}
		o := outcomeOf(&info.Reply)
		if o.Message != "" && !json.Valid([]byte(asJSON(opt.Endpoint, o.Message))) || o.Over || o.ToolCalls != nil {
			t.Errorf("%s: %+v", base, o)
		}
		b.WriteString(base + "\n  " + o.Message + "\n")
	}
	golden(t, "testdata/replies.txt", b.String())
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.SplitAfter(string(want), "\n"), strings.SplitAfter(got, "\n")); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}
