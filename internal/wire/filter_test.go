package wire

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/sse"
)

var update = flag.Bool("update", false, "write golden files anew")

func recording(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join("../../testdata", name))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// filterBody is Filter.Body with a filter of its own, and what it has learned.
func filterBody(body []byte, opt Options) (*bodyedit.Edit, *Info, error) {
	f := new(Filter)
	edit, err := f.Body(body, opt)
	return edit, f.Info(), err
}

// relay sends stream through f in reads of size bytes and returns what the client gets.
func relay(f *Filter, opt Options, stream []byte, size int) []byte {
	f.Reset(opt)
	var fr sse.Framer
	var got []byte
	for len(stream) > 0 {
		n := min(size, len(stream))
		fr.Feed(stream[:n])
		stream = stream[n:]
		for ev, ok := fr.Next(); ok; ev, ok = fr.Next() {
			_, out := f.Event(ev)
			got = append(got, out...)
		}
	}
	if ev, ok := fr.Flush(); ok {
		_, out := f.Event(ev)
		got = append(got, out...)
	}
	return got
}

// client is relay of the whole stream in one read by a new filter.
func client(opt Options, stream []byte) (string, *Info) {
	f := new(Filter)
	got := relay(f, opt, stream, len(stream)+1)
	return string(got), f.Info()
}

func diff(t *testing.T, what string, want, got string) {
	t.Helper()
	if d := cmp.Diff(strings.SplitAfter(want, "\n\n"), strings.SplitAfter(got, "\n\n")); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

var (
	created = regexp.MustCompile(`"created":\d+`)
	handle  = regexp.MustCompile(`,"kv_transfer_params":(null|\{[^{}]*\})`)
)

// withoutParams is the recorded stream as an engine that has no kv_transfer_params would have sent it.
func withoutParams(stream []byte) string { return string(handle.ReplaceAll(stream, nil)) }

// A client that did not ask for token ids gets, byte for byte, what it would have got from an engine that was not
// asked: the recording without token ids. (0.32 and 0.33 gave the same answer in both.)
func TestChatWithoutAskingForIDs(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"vllm-0.32.0", "vllm-0.33.0"} {
		asked := recording(t, v+"/wire/chat-stream-tokenids.d.sse")
		plain := recording(t, v+"/wire/chat-stream.d.sse")
		got, info := client(Options{}, asked)
		same := func(s string) string { return created.ReplaceAllString(s, `"created":0`) }
		diff(t, v, same(withoutParams(plain)), same(got))
		if len(info.PromptIDs) != 241 || len(info.TokenIDs) != 12 || info.TokenIDs[0] != 504 || info.TokenIDs[11] != 13278 {
			t.Errorf("%s: %d prompt ids, ids %v", v, len(info.PromptIDs), info.TokenIDs)
		}
	}
}

// A client that asked for everything gets everything but the handle.
func TestClientThatAskedForEverything(t *testing.T) {
	t.Parallel()
	all := Options{KeepTokenIDs: true, KeepPromptIDs: true, KeepUsageChunk: true, KeepContinuousUsage: true}
	files, err := filepath.Glob("../../testdata/vllm-*/wire/*.sse")
	if err != nil || len(files) < 13 {
		t.Fatalf("recordings: %d, %v", len(files), err)
	}
	for _, name := range files {
		stream, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		opt := all
		opt.Endpoint = endpointOf(name)
		got, _ := client(opt, stream)
		diff(t, name, withoutParams(stream), got)
	}
}

func endpointOf(name string) kvp.Endpoint {
	switch base := filepath.Base(name); {
	case strings.HasPrefix(base, "completions"):
		return kvp.Completions
	case strings.HasPrefix(base, "responses"):
		return kvp.Responses
	case strings.HasPrefix(base, "messages"):
		return kvp.Messages
	}
	return kvp.Chat
}

// A client that asked for nothing of what the router asks for itself, against a stream with usage: no usage chunk,
// no usage in others, and the fingerprint on the chunk with finish_reason, where it is in the recording without
// usage.
func TestChatWithoutAskingForUsage(t *testing.T) {
	t.Parallel()
	for v, fingerprint := range map[string]string{"vllm-0.32.0": `"vllm-0.32.0-9a461904"`, "vllm-0.33.0": `"vllm-0.33.0-da272133"`} {
		withUsage := recording(t, v+"/wire/chat-stream-usage.d.sse")
		plain := recording(t, v+"/wire/chat-stream.d.sse")
		got, info := client(Options{Fingerprint: []byte(fingerprint)}, withUsage)
		same := func(s string) string {
			s = created.ReplaceAllString(s, `"created":0`)
			// 0.32 merged three deltas in one of the two recordings
			return strings.Join(slices.Delete(strings.SplitAfter(s, "\n\n"), 1, 2), "")
		}
		want := same(withoutParams(plain))
		got = same(got)
		diff(t, v, want[len(want)-1200:], got[len(got)-1200:])
		if string(info.Fingerprint) != fingerprint {
			t.Errorf("%s: fingerprint %s", v, info.Fingerprint)
		}
		if info.Usage.PromptTokens != 241 || info.Usage.CompletionTokens != 12 || !info.HasUsage || info.Dropped != 1 {
			t.Errorf("%s: usage %+v, dropped %d", v, info.Usage, info.Dropped)
		}
	}
}

// summary is what is compared of an Info.
func summary(in *Info) string {
	h := "none"
	if in.Handle != nil {
		h = "A"
		if p, err := kvp.ParseHandle(in.Handle); err == nil {
			h = p.String()
		}
	}
	return fmt.Sprintf("id=%s finish=%s/%d stopstring=%v choices=%d content=%v done=%v failed=%v handle=%s handles=%d key=%v prompt=%d ids=%d usage=%v %+v fp=%s dropped=%d malformed=%d",
		in.ID, in.FinishReason, in.Finished, in.StopString, in.Choices, in.Content, in.Done, in.Failed(), h, in.Handles, in.SeenKey,
		len(in.PromptIDs), len(in.TokenIDs), in.HasUsage, in.Usage, in.Fingerprint, in.Dropped, in.Malformed)
}

// What the router learns from every recording, and how many bytes the client gets that asked for nothing.
func TestRecordings(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../testdata/vllm-*/wire/*")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, name := range files {
		base := filepath.ToSlash(strings.TrimPrefix(name, filepath.FromSlash("../../testdata/")))
		if strings.Contains(base, "/util_") {
			continue
		}
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		opt := Options{Endpoint: endpointOf(name)}
		switch {
		case strings.HasSuffix(base, ".sse"):
			got, info := client(opt, data)
			fmt.Fprintf(&b, "%s %d -> %d\n  %s\n", base, len(data), len(got), summary(info))
			mustNotLeak(t, base, got)
			for _, size := range []int{1, 5, 200, 1448} {
				f := new(Filter)
				if again := string(relay(f, opt, data, size)); again != got {
					t.Errorf("%s: reads of %d give other bytes", base, size)
				}
				if diff := cmp.Diff(summary(info), summary(f.Info())); diff != "" {
					t.Errorf("%s: reads of %d (-want +got):\n%s", base, size, diff)
				}
			}
		case strings.HasSuffix(base, ".d.json"), strings.HasSuffix(base, ".p.json"):
			edit, info, err := filterBody(data, opt)
			if err != nil {
				t.Fatalf("%s: %v", base, err)
			}
			got := string(edit.Bytes())
			fmt.Fprintf(&b, "%s %d -> %d\n  %s\n", base, len(data), len(got), summary(info))
			mustNotLeak(t, base, got)
		}
	}
	golden := "testdata/recordings.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.SplitAfter(string(want), "\n"), strings.SplitAfter(b.String(), "\n")); d != "" {
		t.Errorf("recordings (-want +got):\n%s", d)
	}
}

var idList = regexp.MustCompile(`"(prompt_)?token_ids":\s*\[`)

func mustNotLeak(t *testing.T, what, got string) {
	t.Helper()
	for _, secret := range []string{"kv_transfer_params", "remote_host", "remote_block_ids", "127.0.0.1"} {
		if strings.Contains(got, secret) {
			t.Errorf("%s: the client sees %s", what, secret)
		}
	}
	if idList.MatchString(got) {
		t.Errorf("%s: the client sees token ids", what)
	}
}

func TestBodies(t *testing.T) {
	t.Parallel()
	f := func(name string, opt Options, changes ...string) {
		t.Helper()
		body := recording(t, name)
		opt.Endpoint = endpointOf(name)
		edit, _, err := filterBody(body, opt)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := withoutParams(body)
		for i := 0; i < len(changes); i += 2 {
			if !regexp.MustCompile(changes[i]).MatchString(want) {
				t.Fatalf("%s: nothing matches %s", name, changes[i])
			}
			want = regexp.MustCompile(changes[i]).ReplaceAllString(want, changes[i+1])
		}
		diff(t, name, want, string(edit.Bytes()))
	}
	keep := Options{KeepTokenIDs: true, KeepPromptIDs: true}
	for _, v := range []string{"vllm-0.32.0/wire/", "vllm-0.33.0/wire/"} {
		f(v+"chat.d.json", Options{})
		f(v+"chat-n2.d.json", Options{})
		f(v+"completions.d.json", keep)
		f(v+"completions.d.json", Options{}, `"(token_ids|prompt_token_ids)":\[[0-9,]*\]`, `"$1":null`)
		f(v+"completions.d.json", Options{KeepTokenIDs: true}, `"(prompt_token_ids)":\[[0-9,]*\]`, `"$1":null`)
		f(v+"completions-2prompts.d.json", Options{})
		f(v+"responses.d.json", Options{})
		f(v+"messages.d.json", Options{})
	}
	cached := func(n int) Options { return Options{OverrideCachedTokens: true, CachedTokens: n} }
	v := "vllm-0.33.0/wire/"
	f(v+"chat.d.json", cached(77), `"cached_tokens":0`, `"cached_tokens":77`)
	f(v+"chat.d.json", cached(10_000), `"cached_tokens":0`, `"cached_tokens":241`)
	f(v+"chat.d.json", cached(0))
	f(v+"responses.d.json", cached(200), `"cached_tokens":128`, `"cached_tokens":200`)
	f(v+"messages.d.json", cached(200), `"input_tokens":113`, `"input_tokens":41`, `"cache_read_input_tokens":128`, `"cache_read_input_tokens":200`)
	f(v+"messages.d.json", cached(1000), `"input_tokens":113`, `"input_tokens":0`, `"cache_read_input_tokens":128`, `"cache_read_input_tokens":241`)
	// an engine that does not report cached tokens is not made to
	f("vllm-0.32.0/wire/chat.d.json", cached(77))
	f("vllm-0.32.0/wire/messages.d.json", cached(77))

	if _, _, err := filterBody([]byte("<html>"), Options{}); err == nil {
		t.Error("Filter.Body accepts what is not JSON")
	}
}

func TestBodyOfPrefill(t *testing.T) {
	t.Parallel()
	ids := Options{Endpoint: kvp.Chat, KeepTokenIDs: true, KeepPromptIDs: true}
	_, info, err := filterBody(recording(t, "vllm-0.33.0/wire/chat-stream-tokenids.p.json"), ids)
	if err != nil {
		t.Fatal(err)
	}
	a, err := kvp.ParsePrefilled(info.Handle)
	if err != nil || a.Tokens != 241 || len(info.PromptIDs) != 241 || info.Usage.PromptTokens != 241 {
		t.Errorf("A = %v, %v, prompt ids %d, usage %+v", a, err, len(info.PromptIDs), info.Usage)
	}
	_, info, err = filterBody(recording(t, "vllm-0.33.0/edge/bad-port.p.json"), Options{Endpoint: kvp.Completions})
	if err != nil || !info.Failed() || info.Done || !bytes.Contains(info.Error, []byte("InternalServerError")) {
		t.Errorf("an error body: %v, %+v", err, info)
	}
	if _, _, err := filterBody(nil, ids); err == nil {
		t.Error("an empty body is read")
	}
}

const (
	secret = `{"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"10.0.0.1","remote_port":5700,"remote_num_tokens":250}`
	role   = `data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
)

// Where engines and their patched builds put the handle, and what the client sees instead.
func TestA01WhereTheHandleIs(t *testing.T) {
	t.Parallel()
	delta := func(text, more string) string {
		return `data: {"id":"x","choices":[{"index":0,"delta":{"content":"` + text + `"},"finish_reason":null,"token_ids":null}]` + more + "}\n\n"
	}
	finish := func(more string) string {
		return `data: {"id":"x","choices":[{"index":0,"delta":{"content":"."},"finish_reason":"stop"}]` + more + "}\n\n"
	}
	const (
		with  = `,"kv_transfer_params":` + secret
		usage = `data: {"id":"x","choices":[],"usage":{"prompt_tokens":10,"total_tokens":12,"completion_tokens":2}}` + "\n\n"
		done  = "data: [DONE]\n\n"
	)
	f := func(what, stream, want string, opt Options) {
		t.Helper()
		got, info := client(opt, []byte(stream))
		diff(t, what, want, got)
		if wantHandle := strings.Contains(stream, "10.0.0.1"); (string(info.Handle) == secret) != wantHandle || !info.Done || info.FinishReason != "stop" {
			t.Errorf("%s: %s", what, summary(info))
		}
		if strings.Contains(got, "10.0.0.1") {
			t.Errorf("%s: the client sees the handle", what)
		}
	}
	keep := Options{KeepUsageChunk: true}
	plain := role + delta("a", "") + delta("b", "") + finish("") + usage + done

	f("nowhere", plain, plain, keep)
	f("in the first content chunk", role+delta("a", with)+delta("b", "")+finish("")+usage+done, plain, keep)
	f("in every content chunk", role+delta("a", with)+delta("b", with)+finish(with)+usage+done, plain, keep)
	f("null in every chunk, then on the finish chunk", role+delta("a", `,"kv_transfer_params":null`)+delta("b", `,"kv_transfer_params":null`)+finish(with)+usage+done, plain, keep)
	f("on the usage chunk", role+delta("a", "")+delta("b", "")+finish("")+strings.Replace(usage, "}}\n", "}"+with+"}\n", 1)+done, plain, keep)
	f("alone, behind the usage chunk", role+delta("a", "")+delta("b", "")+finish("")+usage+`data: {"id":"x","choices":[]`+with+"}\n\n"+done, plain, keep)
	f("alone, without choices", role+delta("a", "")+delta("b", "")+finish("")+usage+`data: {"kv_transfer_params":`+secret+"}\n\n"+done, plain, keep)
	f("alone and null", role+delta("a", "")+delta("b", "")+finish("")+usage+`data: {"choices":[],"kv_transfer_params":null}`+"\n\n"+done, plain, keep)
	f("in front", role+delta("a", "")+`data: {"kv_transfer_params":`+secret+`,`+strings.TrimPrefix(delta("b", ""), "data: {")+finish("")+usage+done, plain, keep)
	// A11: the router asked for usage, the client did not
	f("usage is the router's", role+finish(with)+usage+done, role+finish("")+done, Options{})
	f("usage and handle in one chunk", role+finish("")+strings.Replace(usage, "}}\n", "}"+with+"}\n", 1)+done, role+finish("")+done, Options{})
	f("usage on chunks with choices", role+finish(`,"usage":{"prompt_tokens":1}`+with)+usage+done, role+finish("")+done, Options{})
	f("continuous usage only", role+finish(`,"usage":{"prompt_tokens":1}`)+done, role+finish(`,"usage":{"prompt_tokens":1}`)+done, Options{KeepContinuousUsage: true})
	// a chunk without choices that says something else stays
	f("something else", `data: {"choices":[],"notice":"x"`+with+"}\n\n"+role+finish("")+done, `data: {"choices":[],"notice":"x"}`+"\n\n"+role+finish("")+done, Options{})
	f("something else with usage", `data: {"choices":[],"notice":"x","usage":{}`+with+"}\n\n"+role+finish("")+done, `data: {"choices":[],"notice":"x"}`+"\n\n"+role+finish("")+done, Options{})
	f("empty choices alone", `data: {"choices":[]}`+"\n\n"+role+finish("")+done, `data: {"choices":[]}`+"\n\n"+role+finish("")+done, Options{})
	// H13: a model may say the words; only the member goes
	said := delta(`kv_transfer_params\":null} \",\"kv_transfer_params\":null}`, "")
	f("the model says it", role+said+said+finish(with)+done, role+said+said+finish("")+done, Options{})
	said = `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"kv_transfer_params\":null}"}}]},"finish_reason":null}]`
	f("a tool call says it", role+said+`,"kv_transfer_params":null}`+"\n\n"+finish(with)+done, role+said+"}\n\n"+finish("")+done, Options{})
}

// Chinese text, emoji and the handle, byte by byte; again with CRLF, and with no space behind the colon.
func TestA09BytesAndLineEnds(t *testing.T) {
	t.Parallel()
	stream := role + `data: {"choices":[{"index":0,"delta":{"content":"今日は😀"},"finish_reason":null}],"kv_transfer_params":null}` + "\n\n" +
		`data: {"choices":[{"index":0,"delta":{"content":"é\u2028"},"finish_reason":"stop"}],"kv_transfer_params":` + secret + "}\n\ndata: [DONE]\n\n"
	want := withoutParams([]byte(strings.Replace(stream, secret, "null", 1)))
	for _, variant := range []func(string) string{
		func(s string) string { return s },
		func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") },
		func(s string) string { return strings.ReplaceAll(s, "\n", "\r") },
		func(s string) string { return strings.ReplaceAll(s, "data: ", "data:") },
		func(s string) string { return "\xef\xbb\xbf" + s },
		func(s string) string {
			return ": keep-alive\n\n" + strings.ReplaceAll(s, "data: ", ": c\nid: 1\ndata: ")
		},
	} {
		in := variant(stream)
		for _, size := range []int{1, 2, 3, len(in)} {
			f := new(Filter)
			got := string(relay(f, Options{}, []byte(in), size))
			diff(t, "in reads of one size", variant(want), got)
			if string(f.Info().Handle) != secret {
				t.Errorf("handle = %s", f.Info().Handle)
			}
		}
	}
	// JSON over several data lines
	in := "event: chunk\ndata: {\"choices\":[],\ndata: \"x\":1,\"kv_transfer_params\":\ndata: null}\nid: 7\n\n"
	got, _ := client(Options{}, []byte(in))
	diff(t, "several data lines", "event: chunk\ndata: {\"choices\":[],\ndata: \"x\":1}\nid: 7\n\n", got)
}

// A tool call of 4 MiB on one line, then the handle.
func TestA03LongLine(t *testing.T) {
	t.Parallel()
	long := `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"` + strings.Repeat("x", 4<<20) + `"}}]},"finish_reason":null,"token_ids":[1,2]}],"kv_transfer_params":null}` + "\n\n"
	stream := role + long + long + `data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls","token_ids":[3]}],"kv_transfer_params":` + secret + "}\n\ndata: [DONE]\n\n"
	f := new(Filter)
	got := relay(f, Options{KeepTokenIDs: true}, []byte(stream), 32<<10)
	if want := withoutParams([]byte(strings.Replace(stream, secret, "null", 1))); string(got) != want {
		t.Errorf("%d bytes, want %d", len(got), len(want))
	}
	if d := cmp.Diff([]int32{1, 2, 1, 2, 3}, f.Info().TokenIDs); d != "" || string(f.Info().Handle) != secret {
		t.Errorf("ids (-want +got):\n%s%s", d, summary(f.Info()))
	}
}

// What is too large to look into passes through, and is counted.
func TestUninspected(t *testing.T) {
	t.Parallel()
	f := new(Filter)
	act, out := f.Event(sse.Event{Raw: []byte("data: {"), Partial: true})
	if act != Pass || string(out) != "data: {" || f.Info().Uninspected != 1 {
		t.Errorf("Event = %v, %q, uninspected %d", act, out, f.Info().Uninspected)
	}
}

func TestMalformed(t *testing.T) {
	t.Parallel()
	f := func(stream, want string) {
		t.Helper()
		got, info := client(Options{}, []byte(stream))
		if got != want || info.Malformed != 1 {
			t.Errorf("%q = %q, want %q; malformed %d", stream, got, want, info.Malformed)
		}
	}
	f("data: hello\n\n", "data: hello\n\n")
	f("data: []\n\n", "data: []\n\n")
	f("data: \n\n", "data: \n\n")
	f("data: kv_transfer_params\n\n", "data: kv_transfer_params\n\n")
	f(`data: {"a":1`+"\n\n", `data: {"a":1`+"\n\n")
	f(`data: {"kv_transfer_params":{"remote_host":"10.0.0.1"}`+"\n\n", "")
}

func TestErrors(t *testing.T) {
	t.Parallel()
	f := func(endpoint kvp.Endpoint, stream string, wantError string, wantContent bool) {
		t.Helper()
		got, info := client(Options{Endpoint: endpoint}, []byte(stream))
		if got != stream || !info.Failed() || string(info.Error) != wantError || info.Content != wantContent {
			t.Errorf("%q\n got %q\n%s, error %s", stream, got, summary(info), info.Error)
		}
	}
	// A06: a comment, then an error as the first event
	f(kvp.Chat, ": ping\n\ndata: {\"error\":{\"code\":500}}\n\ndata: [DONE]\n\n", `{"code":500}`, false)
	f(kvp.Chat, role+`data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}`+"\n\ndata: {\"error\":{\"code\":500}}\n\n", `{"code":500}`, true)
	// A19: a finish reason of error
	f(kvp.Chat, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}`+"\n\ndata: [DONE]\n\n", "", false)
	f(kvp.Responses, "event: error\ndata: {\"type\":\"error\",\"message\":\"x\"}\n\n", `{"type":"error","message":"x"}`, false)
	f(kvp.Responses, "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"status\":\"failed\",\"error\":{\"code\":\"x\"}}}\n\n", `{"code":"x"}`, false)
	f(kvp.Messages, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\"}}\n\n", `{"type":"api_error"}`, false)
	f(kvp.Messages, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"error\":{\"a\":1}}}\n\n", `{"a":1}`, false)
}

func TestStopString(t *testing.T) {
	t.Parallel()
	f := func(endpoint kvp.Endpoint, stream string, want bool) {
		t.Helper()
		if _, info := client(Options{Endpoint: endpoint}, []byte(stream)); info.StopString != want || info.Finished != 1 {
			t.Errorf("%s: stop string %v, want %v, finished %d", stream, info.StopString, want, info.Finished)
		}
	}
	chunk := `data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop","stop_reason":%s}]}` + "\n\n"
	f(kvp.Chat, fmt.Sprintf(chunk, `"END"`), true)
	f(kvp.Chat, fmt.Sprintf(chunk, `null`), false)
	f(kvp.Chat, fmt.Sprintf(chunk, `2`), false)
	f(kvp.Messages, `data: {"type":"message_delta","delta":{"stop_reason":"stop_sequence","stop_sequence":"END"}}`+"\n\n", true)
	f(kvp.Messages, `data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}`+"\n\n", false)
}

func TestSeveralChoices(t *testing.T) {
	t.Parallel()
	chunk := func(index int, text, reason, ids, params string) string {
		return fmt.Sprintf(`data: {"choices":[{"index":%d,"text":"%s","finish_reason":%s,"prompt_token_ids":null,"token_ids":%s}],"kv_transfer_params":%s}`+"\n\n", index, text, reason, ids, params)
	}
	stream := chunk(0, "a", "null", "[1]", "null") + chunk(1, "b", "null", "[2]", "null") + chunk(1, "c", "null", "[3]", "null") +
		chunk(0, "d", "null", "[4]", "null") + chunk(0, "d", "null", "[5]", "null") + chunk(1, "e", `"length"`, "[6]", secret) +
		chunk(0, "f", `"stop"`, "[7]", strings.Replace(secret, "250", "251", 1)) + "data: [DONE]\n\n"
	got, info := client(Options{Endpoint: kvp.Completions}, []byte(stream))
	mustNotLeak(t, "n=2", got)
	if d := cmp.Diff([]int32{1, 4, 5, 7}, info.TokenIDs); d != "" {
		t.Errorf("ids of the first choice (-want +got):\n%s", d)
	}
	if info.Choices != 2 || info.Finished != 2 || info.Handles != 2 || info.FinishReason != "stop" || !bytes.Contains(info.Handle, []byte("251")) {
		t.Errorf("info: %s", summary(info))
	}
	// two choices in one chunk
	got, info = client(Options{}, []byte(`data: {"choices":[{"index":0,"text":"a","token_ids":[1]},{"index":1,"text":"b","token_ids":[2]}]}`+"\n\n"))
	if want := `data: {"choices":[{"index":0,"text":"a","token_ids":null},{"index":1,"text":"b","token_ids":null}]}` + "\n\n"; got != want || len(info.TokenIDs) != 1 {
		t.Errorf("two choices = %s, ids %v", got, info.TokenIDs)
	}
}

func TestContent(t *testing.T) {
	t.Parallel()
	f := func(endpoint kvp.Endpoint, payload string, want bool) {
		t.Helper()
		if _, info := client(Options{Endpoint: endpoint}, []byte("data: "+payload+"\n\n")); info.Content != want {
			t.Errorf("%s: content %v, want %v", payload, info.Content, want)
		}
	}
	f(kvp.Chat, `{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`, false)
	f(kvp.Chat, `{"choices":[{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[]}}]}`, false)
	f(kvp.Chat, `{"choices":[{"index":0,"delta":{"content":"a"}}]}`, true)
	f(kvp.Chat, `{"choices":[{"index":0,"delta":{"reasoning":"a"}}]}`, true)
	f(kvp.Chat, `{"choices":[{"index":0,"delta":{"reasoning_content":"a"}}]}`, true)
	f(kvp.Chat, `{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c"}]}}]}`, true)
	f(kvp.Completions, `{"choices":[{"index":0,"text":""}]}`, false)
	f(kvp.Completions, `{"choices":[{"index":0,"text":"a"}]}`, true)
	f(kvp.Responses, `{"type":"response.created","response":{"id":"r"}}`, false)
	f(kvp.Responses, `{"type":"response.output_text.delta","delta":"a"}`, true)
	f(kvp.Responses, `{"type":"response.function_call_arguments.delta","delta":"a"}`, true)
	f(kvp.Messages, `{"type":"content_block_start","index":0}`, false)
	f(kvp.Messages, `{"type":"content_block_delta","index":0}`, true)
}

// The handle inside response and message, and at the top of such events.
func TestNestedParams(t *testing.T) {
	t.Parallel()
	f := func(endpoint kvp.Endpoint, payload, want string) {
		t.Helper()
		got, info := client(Options{Endpoint: endpoint}, []byte("data: "+payload+"\n\n"))
		if got != "data: "+want+"\n\n" || string(info.Handle) != secret {
			t.Errorf("%s\n got %s\nwant %s\nhandle %s", payload, got, want, info.Handle)
		}
	}
	const with = `"kv_transfer_params":` + secret
	f(kvp.Responses, `{"response":{"id":"r",`+with+`,"x":1},"type":"response.completed"}`, `{"response":{"id":"r","x":1},"type":"response.completed"}`)
	f(kvp.Responses, `{"response":{`+with+`}}`, `{"response":{}}`)
	f(kvp.Responses, `{`+with+`,"type":"x"}`, `{"type":"x"}`)
	f(kvp.Messages, `{"type":"message_start","message":{"id":"r",`+with+`}}`, `{"type":"message_start","message":{"id":"r"}}`)
	f(kvp.Messages, `{"type":"message_delta",`+with+`}`, `{"type":"message_delta"}`)
	// an escaped name is the same name
	f(kvp.Chat, `{"choices":[{"index":0}],"kv\u005ftransfer_params":`+secret+`}`, `{"choices":[{"index":0}]}`)
}

func TestMessagesStreamCached(t *testing.T) {
	t.Parallel()
	stream := recording(t, "vllm-0.33.0/wire/messages-stream.d.sse")
	got, info := client(Options{Endpoint: kvp.Messages, OverrideCachedTokens: true, CachedTokens: 200}, stream)
	want := strings.Replace(string(stream), `"usage":{"input_tokens":113,"output_tokens":3,"cache_creation_input_tokens":0,"cache_read_input_tokens":128}`,
		`"usage":{"input_tokens":41,"output_tokens":3,"cache_creation_input_tokens":0,"cache_read_input_tokens":200}`, 1)
	diff(t, "messages", want, got)
	if d := cmp.Diff(Usage{PromptTokens: 241, CompletionTokens: 3, CachedTokens: 128, HasCachedTokens: true}, info.Usage); d != "" {
		t.Errorf("usage (-want +got):\n%s", d)
	}
}
