package api

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// openDialect sends a request over a connection.
func openDialect(t *testing.T, srv *httptest.Server, path, body string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := srv.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// readDialect returns the names of a stream's events, and how reading them ended.
func readDialect(t *testing.T, srv *httptest.Server, path, body string) ([]string, error) {
	t.Helper()
	resp := openDialect(t, srv, path, body)
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	return eventNames(string(all)), err
}

func eventNames(stream string) []string {
	var names []string
	for line := range strings.Lines(stream) {
		if name, ok := strings.CutPrefix(line, "event: "); ok {
			names = append(names, strings.TrimRight(name, "\r\n"))
		}
	}
	return names
}

// The first two events of a stream of responses come before the first token.
func TestResponsesBeginAtOnce(t *testing.T) {
	t.Parallel()
	aborted := make(chan string, 1)
	backend := &fakeBackend{hold: true, onAbort: func(id string) { aborted <- id }}
	srv := httptest.NewServer(newTestServer(t, "", backend, nil).Handler())
	defer srv.Close()
	resp := openDialect(t, srv, "/v1/responses", `{"stream":true,`+askResponse+`}`)
	lines := bufio.NewScanner(resp.Body)
	var names []string
	for len(names) < 2 && lines.Scan() {
		names = append(names, eventNames(lines.Text())...)
	}
	resp.Body.Close()
	if d := cmp.Diff([]string{"response.created", "response.in_progress"}, names); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	<-aborted
}

// TestA01DialectHandlePlaces: where the handle is, by release and by fault, and that it is nowhere else.
func TestA01DialectHandlePlaces(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		version, path, body, fault string
		event, member              string // that carries it: "" for none
	}{
		{"0.25.1", "/v1/responses", askResponse, "", "response.completed", "response"},
		{"0.32.0", "/v1/responses", askResponse, "", "response.completed", "response"},
		{"0.33.0", "/v1/responses", askResponse, "", "response.incomplete", "response"},
		{"0.33.0", "/v1/responses", askResponse, "handle=finish", "response.incomplete", "response"},
		{"0.33.0", "/v1/responses", askResponse, "handle=first", "response.created", "response"},
		{"0.33.0", "/v1/responses", askResponse, "handle=none", "", ""},
		{"0.32.0", "/v1/messages", askMessage, "", "", ""},
		{"0.33.0", "/v1/messages", askMessage, "", "", ""},
		{"0.33.0", "/v1/messages", askMessage, "handle=none", "", ""},
		{"0.33.0", "/v1/messages", askMessage, "handle=first", "message_start", ""},
		{"0.33.0", "/v1/messages", askMessage, "handle=finish", "message_delta", ""},
		{"0.32.0", "/v1/messages", askMessage, "handle=usage", "message_delta", ""},
	} {
		s := newTestServer(t, c.version, &fakeBackend{scripts: [][]engine.Output{withHandle("abc")}}, nil)
		w := post(t, s, c.path, `{"stream":true,`+c.body+`}`, FaultHeader, c.fault)
		found := map[string]string{}
		for _, data := range dataEvents(w.Body.String()) {
			if !strings.Contains(data, someHandle) {
				continue
			}
			var doc struct {
				Type     string          `json:"type"`
				KV       json.RawMessage `json:"kv_transfer_params"`
				Response struct {
					KV json.RawMessage `json:"kv_transfer_params"`
				} `json:"response"`
			}
			if err := json.Unmarshal([]byte(data), &doc); err != nil {
				t.Fatal(err)
			}
			switch someHandle {
			case string(doc.KV):
				found[doc.Type] = ""
			case string(doc.Response.KV):
				found[doc.Type] = "response"
			default:
				found[doc.Type] = "elsewhere"
			}
		}
		if c.fault == "handle=first" && c.path == "/v1/responses" {
			delete(found, "response.in_progress") // repeats what was created
		}
		want := map[string]string{}
		if c.event != "" {
			want[c.event] = c.member
		}
		if d := cmp.Diff(want, found); d != "" {
			t.Errorf("%s %s %s (-want +got):\n%s", c.version, c.path, c.fault, d)
		}
	}
}

// A fault that a route cannot have is refused, so that no test runs without its fault.
func TestDialectFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ path, body, fault string }{
		{"/v1/responses", askResponse, "handle=own"},
		{"/v1/responses", askResponse, "handle=usage"},
		{"/v1/responses", askResponse, "finish-error"},
		{"/v1/messages", askMessage, "handle=own"},
		{"/v1/messages", askMessage, "finish-error"},
	} {
		w := post(t, newTestServer(t, "", &fakeBackend{}, nil), c.path, `{`+c.body+`}`, FaultHeader, c.fault)
		want := reply{400, "BadRequestError", FaultHeader, 400, "not on " + c.path}
		if d := cmp.Diff(want, readReply(t, w.Code, w.Body.Bytes(), want.Message)); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.fault, d)
		}
	}
	for path, c := range map[string]struct {
		body, want string
		events     int
	}{
		"/v1/responses": {askResponse, `{"code":"InternalServerError","message":"Internal server error","param":null,"sequence_number":3,"type":"error"}`, 3},
		"/v1/messages":  {askMessage, `{"type":"error","error":{"type":"InternalServerError","message":"Internal server error"}}`, 3},
	} {
		backend := &fakeBackend{scripts: [][]engine.Output{withHandle("abc")}}
		w := post(t, newTestServer(t, "", backend, nil), path, `{"stream":true,`+c.body+`}`, FaultHeader, "error-at=3,comments=1,crlf")
		events := dataEvents(w.Body.String())
		if len(events) != c.events || events[len(events)-1] != c.want {
			t.Errorf("%s: %q", path, events)
		}
		if !strings.HasSuffix(w.Body.String(), "event: error\r\ndata: "+c.want+"\r\n\r\n") || strings.Count(w.Body.String(), ": keep-alive\r\n\r\n") != 3 {
			t.Errorf("%s: %q", path, w.Body)
		}
		if w := post(t, newTestServer(t, "", &fakeBackend{}, nil), path, `{`+c.body+`}`, FaultHeader, "garbage"); w.Code != http.StatusOK || json.Valid(w.Body.Bytes()) {
			t.Errorf("%s: garbage: %d %s", path, w.Code, w.Body)
		}
	}
}

// spoken is what a reply says, in whatever form.
type spoken struct {
	Reasoning, Text string
	Calls           []parsedCall
	End, KV         string
}

// A stop string is not told, ends the reply without a handle and aborts the engine's request.
func TestDialectStopStrings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path, body string
		want       spoken
		aborted    string
	}{
		{"/v1/responses", askResponse + `,"stop":["lo w"]`, spoken{Text: "hel", End: "completed", KV: "null"}, "resp_0000000000000000_0-00000000"},
		{"/v1/responses", askResponse + `,"stop":"low"`, spoken{Text: "hello world", End: "incomplete", KV: someHandle}, ""},
		{"/v1/messages", askMessage + `,"stop_sequences":["lo w"]`, spoken{Text: "hel", End: "stop_sequence"}, "chatcmpl-0000000000000000-00000000"},
		{"/v1/messages", askMessage + `,"stop_sequences":["low"]`, spoken{Text: "hello world", End: "max_tokens", KV: someHandle}, ""},
	} {
		for _, stream := range []bool{false, true} {
			backend := &fakeBackend{scripts: [][]engine.Output{withHandle("hello world")}}
			got := speak(t, newTestServer(t, "0.33.0", backend, nil), c.path, c.body, stream)
			want := c.want
			if stream && c.path == "/v1/messages" {
				want.KV = "" // never in a stream
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s %s stream=%v (-want +got):\n%s", c.path, c.body, stream, d)
			}
			if got := strings.Join(backend.abortedIDs(), ","); got != c.aborted {
				t.Errorf("%s %s stream=%v: aborted %q, want %q", c.path, c.body, stream, got, c.aborted)
			}
		}
	}
}

// speak asks and reads the answer.
func speak(t testing.TB, s *Server, path, body string, stream bool) spoken {
	t.Helper()
	if stream {
		body = `"stream":true,` + body
	}
	w := post(t, s, path, `{`+body+`}`)
	if w.Code != http.StatusOK {
		t.Fatalf("%s: %d %s", body, w.Code, w.Body)
	}
	switch {
	case path == "/v1/messages" && stream:
		return hearMessage(t, w.Body.String())
	case path == "/v1/messages":
		return readMessage(t, w.Body.Bytes())
	case stream:
		return hearResponse(t, w.Body.String())
	}
	return readWholeResponse(t, w.Body.Bytes())
}

// readMessage reads a whole message.
func readMessage(t testing.TB, doc []byte) spoken {
	t.Helper()
	var m struct {
		Content []struct {
			Type, Text, Thinking, Name string
			Input                      json.RawMessage
		}
		Reason string          `json:"stop_reason"`
		KV     json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(doc, &m); err != nil {
		t.Fatal(err)
	}
	out := spoken{End: m.Reason, KV: string(m.KV)}
	for _, b := range m.Content {
		out.Text += b.Text
		out.Reasoning += b.Thinking
		if b.Type == "tool_use" {
			out.Calls = append(out.Calls, parsedCall{b.Name, string(b.Input)})
		}
	}
	return out
}

// hearMessage reads a streamed message and checks that its blocks are well formed.
func hearMessage(t testing.TB, stream string) spoken {
	t.Helper()
	var out spoken
	open, next := "", 0
	events := dataEvents(stream)
	for i, data := range events {
		var ev struct {
			Type  string
			Index int
			Block struct{ Type, Name string } `json:"content_block"`
			Delta struct {
				Type, Text, Thinking, Signature string
				JSON                            string `json:"partial_json"`
				Reason                          string `json:"stop_reason"`
			}
		}
		if err := json.Unmarshal([]byte(data), &ev); err != nil {
			t.Fatal(err)
		}
		if first, last := i == 0, i == len(events)-1; first != (ev.Type == "message_start") || last != (ev.Type == "message_stop") || i == len(events)-2 != (ev.Type == "message_delta") {
			t.Fatalf("event %d of %d is %s", i, len(events), ev.Type)
		}
		switch ev.Type {
		case "content_block_start":
			if open != "" || ev.Index != next {
				t.Fatalf("block %d begins, %q is open and %d next", ev.Index, open, next)
			}
			open = ev.Block.Type
			if open == "tool_use" {
				out.Calls = append(out.Calls, parsedCall{Name: ev.Block.Name})
			}
		case "content_block_delta":
			kinds := map[string]string{"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "thinking", "input_json_delta": "tool_use"}
			if ev.Index != next || kinds[ev.Delta.Type] != open {
				t.Fatalf("%s for block %d, %q is open at %d", ev.Delta.Type, ev.Index, open, next)
			}
			out.Text += ev.Delta.Text
			out.Reasoning += ev.Delta.Thinking
			if ev.Delta.JSON != "" {
				out.Calls[len(out.Calls)-1].Arguments += ev.Delta.JSON
			}
		case "content_block_stop":
			if open == "" || ev.Index != next {
				t.Fatalf("block %d ends, %q is open at %d", ev.Index, open, next)
			}
			open = ""
			next++
		case "message_delta":
			if open != "" {
				t.Fatalf("the message ends in a block of %s", open)
			}
			out.End = ev.Delta.Reason
		}
	}
	return out
}

// responseItems is the output of a response.
type responseItems []struct {
	ID, Type, Status, Name, Arguments string
	Content                           []struct{ Type, Text string }
}

func (items responseItems) spoken() spoken {
	var out spoken
	for _, item := range items {
		for _, c := range item.Content {
			if item.Type == "reasoning" {
				out.Reasoning += c.Text
			} else {
				out.Text += c.Text
			}
		}
		if item.Type == "function_call" {
			out.Calls = append(out.Calls, parsedCall{item.Name, item.Arguments})
		}
	}
	return out
}

func readWholeResponse(t testing.TB, doc []byte) spoken {
	t.Helper()
	var r struct {
		Output responseItems
		Status string
		KV     json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(doc, &r); err != nil {
		t.Fatal(err)
	}
	out := r.Output.spoken()
	out.End, out.KV = r.Status, string(r.KV)
	return out
}

// hearResponse reads a streamed response and checks that what its events say is what its last event says.
func hearResponse(t testing.TB, stream string) spoken {
	t.Helper()
	var done responseItems
	var out, ended spoken
	for i, data := range dataEvents(stream) {
		var ev struct {
			Type     string
			Sequence int    `json:"sequence_number"`
			Index    int    `json:"output_index"`
			ItemID   string `json:"item_id"`
			Delta    string
			Item     json.RawMessage
			Response json.RawMessage
		}
		if err := json.Unmarshal([]byte(data), &ev); err != nil || ev.Sequence != i {
			t.Fatalf("event %d: %v, number %d", i, err, ev.Sequence)
		}
		if strings.Contains(ev.Type, "_item.") || ev.ItemID != "" {
			if ev.Index != len(done) {
				t.Fatalf("event %d: %s of item %d, want %d", i, ev.Type, ev.Index, len(done))
			}
		}
		switch ev.Type {
		case "response.output_text.delta":
			out.Text += ev.Delta
		case "response.reasoning_text.delta":
			out.Reasoning += ev.Delta
		case "response.function_call_arguments.delta":
			out.Calls[len(out.Calls)-1].Arguments += ev.Delta
		case "response.output_item.added", "response.output_item.done":
			var item responseItems
			if err := json.Unmarshal([]byte(`[`+string(ev.Item)+`]`), &item); err != nil {
				t.Fatal(err)
			}
			switch {
			case ev.Type == "response.output_item.done":
				done = append(done, item[0])
			case item[0].Type == "function_call":
				out.Calls = append(out.Calls, parsedCall{Name: item[0].Name})
			}
		case "response.completed", "response.incomplete":
			ended = readWholeResponse(t, ev.Response)
		}
	}
	out.End, out.KV = ended.End, ended.KV
	items := done.spoken()
	items.End, items.KV = ended.End, ended.KV
	if d := cmp.Diff(ended, out); d != "" {
		t.Fatalf("events do not say what the response says (-response +events):\n%s", d)
	}
	if d := cmp.Diff(ended, items); d != "" {
		t.Fatalf("items do not say what the response says (-response +items):\n%s", d)
	}
	return out
}

// Whatever is generated, in whatever pieces: a stream says what the whole reply says, unless it was cut in a
// tool call, and its blocks and items are well formed.
func TestDialectStreamsProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		parts := rapid.SliceOfN(rapid.SampledFrom([]string{
			"text", " ", "\n", "é<tool", "</think>", `<tool_call>{"name":"f","arguments":{"a":[1,"}"]}}</tool_call>`, `<tool_call>{"name":"g"}</tool_call>`,
		}), 1, 8).Draw(r, "parts")
		runes := []rune(strings.Join(parts, ""))
		var script []engine.Output
		for len(runes) > 0 {
			n := rapid.IntRange(1, len(runes)).Draw(r, "step")
			script = append(script, engine.Output{Tokens: runes[:n]})
			runes = runes[n:]
		}
		script[len(script)-1].Finish, script[len(script)-1].Params = engine.FinishLength, json.RawMessage(someHandle)
		thinking := ""
		if rapid.Bool().Draw(r, "thinking") {
			thinking = `"chat_template_kwargs":{"enable_thinking":true},`
		}
		for path, body := range map[string]string{
			"/v1/responses": askResponse + `,` + responseTool,
			"/v1/messages":  askMessage + `,` + messageTool,
		} {
			backend := &fakeBackend{scripts: [][]engine.Output{script, script}}
			s := newTestServer(t, "0.33.0", backend, nil)
			s.opts.ReasoningParser = true
			whole, streamed := speak(t, s, path, thinking+body, false), speak(t, s, path, thinking+body, true)
			for _, p := range []*spoken{&whole, &streamed} {
				for i, c := range p.Calls {
					if c.Arguments == "" {
						c.Arguments = "{}"
					}
					p.Calls[i].Arguments = string(compactJSON(json.RawMessage(c.Arguments)))
				}
			}
			if path == "/v1/messages" {
				whole.KV = "" // never in a stream
				if whole.End == "tool_use" {
					whole.End = "max_tokens" // of a reply that was cut only a whole one says that it has calls
				}
			}
			if d := cmp.Diff(whole, streamed); d != "" {
				r.Fatalf("%s (-whole +streamed):\n%s", path, d)
			}
		}
	})
}
