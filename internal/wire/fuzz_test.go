package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/sse"
)

// outcome is what a reply is good for.
type outcome struct {
	Over            bool
	Message         string // "" if the reply is not usable
	WithoutThinking string
	ToolCalls       []string
}

func outcomeOf(r *Reply) (o outcome) {
	o.Over, o.ToolCalls = r.Over, r.ToolCalls()
	message := func(reasoning string) string {
		b, ok := r.AppendMessage([]byte("x"), r.endpoint, reasoning)
		if !ok && string(b) != "x" {
			panic("not usable, and appends something")
		}
		return string(b[1:])
	}
	o.Message, o.WithoutThinking = message("reasoning"), message("")
	return o
}

// sameReply compares replies in an Info by what they are good for.
var sameReply = cmp.Transformer("reply", func(r Reply) outcome { return outcomeOf(&r) })

// asJSON is a message, or what stands for one, as a whole JSON value.
func asJSON(endpoint kvp.Endpoint, message string) string {
	switch endpoint {
	case kvp.Completions:
		return `"` + message + `"`
	case kvp.Responses:
		return "[" + message + "]"
	}
	return message
}

// parsed is relay with every event parsed: what was learned from the one before is not used.
func parsed(f *Filter, opt Options, stream []byte) []byte {
	f.Reset(opt)
	var fr sse.Framer
	var got []byte
	event := func(ev sse.Event) {
		f.last.known = false
		_, out := f.Event(ev)
		got = append(got, out...)
	}
	fr.Feed(stream)
	for ev, ok := fr.Next(); ok; ev, ok = fr.Next() {
		event(ev)
	}
	if ev, ok := fr.Flush(); ok {
		event(ev)
	}
	return got
}

// check compares the ways in which a stream can come, and what comes out with what must not.
func check(t interface{ Fatalf(string, ...any) }, opt Options, stream []byte, size int) {
	plain, fast := new(Filter), new(Filter)
	want := parsed(plain, opt, stream)
	got := relay(fast, opt, stream, len(stream)+1)
	if !bytes.Equal(want, got) {
		t.Fatalf("%q with %+v\nparsed   %q\ncompared %q", stream, opt, want, got)
	}
	for _, message := range []string{outcomeOf(&plain.info.Reply).Message, outcomeOf(&plain.info.Reply).WithoutThinking} {
		if !json.Valid([]byte(asJSON(opt.Endpoint, message))) && message != "" {
			t.Fatalf("%q with %+v\nis repeated as %q", stream, opt, message)
		}
	}
	if diff := cmp.Diff(plain.Info(), fast.Info(), sameReply); diff != "" {
		t.Fatalf("%q with %+v (-parsed +compared):\n%s", stream, opt, diff)
	}
	split := new(Filter)
	if got := relay(split, opt, stream, size); !bytes.Equal(want, got) {
		t.Fatalf("%q with %+v in reads of %d\nwant %q\n got %q", stream, opt, size, want, got)
	}
	if diff := cmp.Diff(plain.Info(), split.Info(), sameReply); diff != "" {
		t.Fatalf("%q with %+v in reads of %d (-want +got):\n%s", stream, opt, size, diff)
	}

	// The client sees no params, and the filter has nothing left to do.
	var fr sse.Framer
	fr.Feed(want)
	for ev, ok := fr.Next(); ok; ev, ok = fr.Next() {
		doc, err := bodyedit.Scan(ev.Data())
		if err != nil {
			continue
		}
		if doc.Has(paramsName) {
			t.Fatalf("%q with %+v leaks %q", stream, opt, ev.Raw)
		}
		if r, ok := doc.Path("response", paramsName); ok && opt.Endpoint == kvp.Responses {
			t.Fatalf("%q with %+v leaks %q", stream, opt, doc.Bytes(r))
		}
	}
	opt.OverrideCachedTokens = false // a second time would change nothing only if the first changed the totals
	opt.Fingerprint = nil
	if again := parsed(new(Filter), opt, want); !bytes.Equal(want, again) {
		t.Fatalf("%q with %+v\nonce  %q\ntwice %q", stream, opt, want, again)
	}
}

func optionsOf(bits uint8) Options {
	return Options{
		Endpoint:     kvp.Endpoint(bits & 3),
		KeepTokenIDs: bits&4 != 0, KeepPromptIDs: bits&8 != 0, KeepUsageChunk: bits&16 != 0, KeepContinuousUsage: bits&32 != 0,
		OverrideCachedTokens: bits&64 != 0, CachedTokens: 7,
		Fingerprint: map[bool][]byte{true: []byte(`"fp"`)}[bits&128 != 0],
	}
}

func FuzzFilter(f *testing.F) {
	files, err := filepath.Glob("../../testdata/vllm-*/wire/*.sse")
	if err != nil {
		f.Fatal(err)
	}
	for i, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		b = append(b[:min(900, len(b))], b[len(b)-min(900, len(b)):]...)
		f.Add(b, uint8(endpointOf(name))|uint8(i<<2), uint16(1000), 7)
	}
	f.Add([]byte(role+role+"data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"token_ids\":[1]}]}\n\ndata: {\"choices\":[{\"index\":0,\"text\":\"b\",\"token_ids\":[2,3]}]}\n\n"), uint8(1), uint16(8), 3)
	for endpoint, streams := range dialectStreams {
		for _, stream := range streams {
			f.Add([]byte(stream), uint8(endpoint), uint16(1000), 100)
		}
	}
	f.Fuzz(func(t *testing.T, stream []byte, bits uint8, keep uint16, size int) {
		if size < 1 {
			return
		}
		opt := optionsOf(bits)
		opt.KeepReply = int(keep)
		check(t, opt, stream, size)
	})
}

// Chunks of all kinds in any order: comparing with the last chunk gives what parsing gives.
func TestComparingIsParsing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.SampledFrom([]string{`""`, `"a"`, `" b\n"`, `"\""`, `"kv_transfer_params\":null}"`, `"é😀"`, `"},\"x\":{"`, `"],\"token_ids\":[9]}"`})
		ids := rapid.SampledFrom([]string{"null", "[]", "[1]", "[1,2]", "[ 3 ]", "[-1]", `"x"`})
		shape := rapid.SampledFrom([]string{
			`{"choices":[{"index":0,"delta":{"content":TEXT},"finish_reason":null,"token_ids":IDS}],"kv_transfer_params":null}`,
			`{"choices":[{"index":0,"delta":{"content":TEXT},"finish_reason":null,"token_ids":IDS}]}`,
			`{"choices":[{"index":0,"delta":{"content":TEXT},"finish_reason":null}],"kv_transfer_params":null}`,
			`{"choices":[{"index":0,"delta":{"content":TEXT},"finish_reason":null}]}`,
			`{"choices":[{"index":1,"delta":{"content":TEXT},"finish_reason":null,"token_ids":IDS}]}`,
			`{"kv_transfer_params":null,"choices":[{"index":0,"text":TEXT,"token_ids":IDS}]}`,
			`{"choices":[{"token_ids":IDS,"index":0,"text":TEXT}]}`,
			`{"choices":[{"index":0,"text":TEXT,"prompt_token_ids":IDS,"token_ids":IDS}],"kv_transfer_params":{"a":1}}`,
			`{"choices":[{"index":0,"delta":{"reasoning":TEXT,"content":TEXT},"token_ids":IDS},{"index":1,"text":TEXT}]}`,
			`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":TEXT}}]},"token_ids":IDS}],"kv_transfer_params":null}`,
			`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c0","function":{"name":"f","arguments":TEXT}}]}}]}`,
			`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"c1","function":{"name":"f"}}]}}]}`,
			`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":TEXT}}]}}]}`,
			`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":TEXT}},{"index":1,"function":{"arguments":TEXT}}]}}]}`,
			`{"choices":[{"index":0,"delta":{"reasoning_content":TEXT},"finish_reason":null}]}`,
			`{"choices":[{"index":0,"delta":{"reasoning":TEXT,"reasoning_content":TEXT},"finish_reason":null}]}`,
			`{"choices":[{"index":0,"delta":{"refusal":TEXT}}]}`,
			`{"choices":[{"index":0,"delta":{"content":TEXT},"finish_reason":"stop","stop_reason":TEXT,"token_ids":IDS}],"kv_transfer_params":{"b":1}}`,
			`{"choices":[{"index":0,"delta":{"content":TEXT},"token_ids":IDS}],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":3}}}`,
			`{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2},"system_fingerprint":TEXT}`,
			`{"choices":[],"kv_transfer_params":{"c":1}}`,
			`{"error":TEXT}`,
			`[DONE]`,
		})
		var stream []byte
		last := ""
		for range rapid.IntRange(1, 12).Draw(rt, "chunks") {
			if last == "" || rapid.IntRange(0, 2).Draw(rt, "other") == 0 {
				last = shape.Draw(rt, "shape")
			}
			payload := strings.NewReplacer("TEXT", text.Draw(rt, "text"), "IDS", ids.Draw(rt, "ids")).Replace(last)
			stream = fmt.Appendf(stream, "data: %s\n\n", payload)
		}
		bits := rapid.Uint8().Draw(rt, "options") &^ 2 // chat or completions
		opt := optionsOf(bits)
		opt.KeepReply = rapid.SampledFrom([]int{0, 5, 20, 1000}).Draw(rt, "keep")
		check(rt, opt, stream, rapid.IntRange(1, 40).Draw(rt, "size"))
	})
}
