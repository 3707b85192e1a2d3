package bench

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/kvp"
)

// seen is what a test looks at in a reply.
type seen struct {
	Text, Content, Finish  string
	Gaps, IDs, PromptIDs   int
	Prompt, Completion     int
	Handle                 bool
	HasFirst, FailureIsNil bool
}

func see(r *reply, f *Failure) seen {
	s := seen{
		Text: r.text.String(), Content: r.content.String(), Finish: r.finish, Gaps: len(r.gaps), IDs: len(r.ids), PromptIDs: len(r.prompt),
		Handle: kvp.ShapeOf(r.params) == kvp.ShapeDecode, HasFirst: !r.first.IsZero(), FailureIsNil: f == nil,
	}
	if r.usage != nil {
		s.Prompt, s.Completion = r.usage.Prompt, r.usage.Completion
	}
	return s
}

// Recorded streams of vLLM are read as they were, however the bytes arrive.
func TestRecordedStreams(t *testing.T) {
	t.Parallel()
	type facts struct {
		IDs, PromptIDs, Prompt, Completion int
		Finish                             string
		Handle                             bool
	}
	for name, want := range map[string]facts{
		"vllm-0.25.1/wire/chat-stream-turn1.d.sse":    {Prompt: 1251, Completion: 100, Finish: "length"},
		"vllm-0.32.0/wire/chat-stream.d.sse":          {Finish: "length"},
		"vllm-0.33.0/wire/chat-stream.d.sse":          {Finish: "length", Handle: true},
		"vllm-0.33.0/wire/chat-stream-usage.d.sse":    {Prompt: 241, Completion: 12, Finish: "length", Handle: true},
		"vllm-0.33.0/wire/chat-stream-tokenids.d.sse": {IDs: 12, PromptIDs: 241, Finish: "length", Handle: true},
	} {
		raw, err := os.ReadFile(filepath.Join("../../testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		var whole, bytewise reply
		a := see(&whole, readStream(bytes.NewReader(raw), &whole))
		b := see(&bytewise, readStream(iotest.OneByteReader(bytes.NewReader(raw)), &bytewise))
		if diff := cmp.Diff(a, b); diff != "" {
			t.Errorf("%s (-whole +byte by byte):\n%s", name, diff)
		}
		if diff := cmp.Diff(want, facts{a.IDs, a.PromptIDs, a.Prompt, a.Completion, a.Finish, a.Handle}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if !a.FailureIsNil || a.Text == "" || a.Text != a.Content || a.Gaps < 10 {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

func TestStreams(t *testing.T) {
	t.Parallel()
	delta := func(d string) string { return `data: {"choices":[{"index":0,"delta":{` + d + `}}]}` + "\n\n" }
	const done = "data: [DONE]\n\n"
	f := func(stream, failure string, want seen) {
		t.Helper()
		var r reply
		fail := readStream(strings.NewReader(stream), &r)
		got := see(&r, fail)
		kind := ""
		if fail != nil {
			kind = fail.Kind
		}
		want.FailureIsNil = failure == ""
		if diff := cmp.Diff(want, got); diff != "" || kind != failure {
			t.Errorf("%q: failure %q, want %q; (-want +got):\n%s", stream, kind, failure, diff)
		}
	}
	// Reasoning is part of the answer, and not of what a client sends back.
	f(delta(`"role":"assistant","content":""`)+delta(`"reasoning":"hm"`)+delta(`"reasoning_content":"m"`)+delta(`"content":"yes"`)+done, "",
		seen{Text: "hmmyes", Content: "yes", Gaps: 2, HasFirst: true})
	// Tool calls are content, without their ids, which are random.
	f(delta(`"tool_calls":[{"index":0,"id":"call-8f3","function":{"name":"run","arguments":""}}]`)+delta(`"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]`)+done, "",
		seen{Text: "run{}", Gaps: 1, HasFirst: true})
	// Comments and empty deltas are nothing, and what follows the end is not looked at.
	f(": keep-alive\n\n"+delta(`"content":""`)+delta(`"content":"a"`)+done+"data: nonsense\n\n", "", seen{Text: "a", Content: "a", HasFirst: true})
	f(delta(`"content":"a"`)+"data: [DONE]", "", seen{Text: "a", Content: "a", HasFirst: true}) // without its blank line
	f(delta(`"content":"a"`), FailCut, seen{Text: "a", Content: "a", HasFirst: true})
	f("", FailCut, seen{})
	f(done, FailEmpty, seen{})
	f("data: {\n\n", FailMalformed, seen{})
	f(`data: {"choices":3}`+"\n\n", FailMalformed, seen{})
	f(delta(`"content":"a"`)+`data: {"error":{"message":"died"}}`+"\n\n"+done, FailEvent, seen{Text: "a", Content: "a", HasFirst: true})
	f(`data: {"error":null,"choices":[]}`+"\n\n"+delta(`"content":"a"`)+done, "", seen{Text: "a", Content: "a", HasFirst: true})
}

// FuzzReadStream: no input breaks the reader, and however it is split, the result is the same.
func FuzzReadStream(f *testing.F) {
	names, err := filepath.Glob("../../testdata/vllm-0.33.0/wire/chat-stream*.d.sse")
	if err != nil || len(names) == 0 {
		f.Fatal("no recordings", err)
	}
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte("data: {\"error\":{}}\r\n\r\ndata: [DONE]\r\r"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var whole, halves reply
		a := see(&whole, readStream(bytes.NewReader(raw), &whole))
		n := len(raw) / 2
		b := see(&halves, readStream(io.MultiReader(bytes.NewReader(raw[:n]), bytes.NewReader(raw[n:])), &halves))
		if diff := cmp.Diff(a, b); diff != "" {
			t.Errorf("(-whole +halves):\n%s", diff)
		}
	})
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	f := func(raw, want string) {
		t.Helper()
		if got := errorText([]byte(raw)); got != want {
			t.Errorf("errorText(%q) = %q, want %q", raw, got, want)
		}
	}
	f(`{"error":{"message":"too\nlong"}}`, "too long")
	f(`{"message":"no"}`, "no")
	f("<html>\n<b>502</b>", "<html> <b>502</b>")
	f(strings.Repeat("x", 300), strings.Repeat("x", maxErrorText)+"…")
}

func TestReadMetrics(t *testing.T) {
	t.Parallel()
	before, err := readMetrics(strings.NewReader(`# HELP vllm:prompt_tokens_by_source_total Prompt tokens.
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 10.0
vllm:prompt_tokens_by_source_total{engine="1",model_name="m",source="local_compute"} 5
vllm:prompt_tokens_by_source_total{source="local_cache_hit",model_name="m}\"x"} 1e3
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:num_preemptions_total 1 1700000000000
vllm:something_else_total 9
tarik_turns_total{arm="pull"} 2
tarik_goroutines 30
vllm:nixl_bytes_transferred_bucket{le="2048.0"} 3
vllm:nixl_bytes_transferred_sum{engine="0"} NaN
`))
	if err != nil {
		t.Fatal(err)
	}
	after := map[string]float64{
		`vllm:prompt_tokens_by_source_total{source="local_compute"}`:   25,
		`vllm:prompt_tokens_by_source_total{source="local_cache_hit"}`: 1000,
		"vllm:kv_cache_usage_perc":                                     0.25, "vllm:num_preemptions_total": 1, `tarik_turns_total{arm="pull"}`: 3,
	}
	delta, state := moved(before, after)
	if diff := cmp.Diff(map[string]float64{`vllm:prompt_tokens_by_source_total{source="local_compute"}`: 10, `tarik_turns_total{arm="pull"}`: 1}, delta); diff != "" {
		t.Errorf("moved (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]float64{kvUsage: 0.25}, state); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
}
