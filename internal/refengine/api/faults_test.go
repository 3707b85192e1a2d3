package api

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

const someHandle = `{"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[1,2]]}`

func withHandle(text string) []engine.Output {
	script := says(text, engine.FinishLength)
	script[len(script)-1].Params = json.RawMessage(someHandle)
	return script
}

func TestParseFaults(t *testing.T) {
	t.Parallel()
	got, err := ParseFaults(Faults{Comments: 9}, "handle=own, null-params,status=503,error-at=3,cut-at=4,keep-alive=50ms,interval=2,finish-error,first-delay=1s,garbage=false,one-byte=1ms,crlf,no-space")
	want := Faults{
		Handle: HandleOwn, NullParams: true, Status: 503, ErrorAt: 3, CutAt: 4, Comments: 9, KeepAlive: 50 * time.Millisecond, Interval: 2,
		FinishError: true, FirstDelay: time.Second, OneByte: true, ByteDelay: time.Millisecond, CRLF: true, NoSpace: true,
	}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	for _, bad := range []string{"handel=own", "handle=nowhere", "status=200", "error-at=0", "cut-at=x", "keep-alive=5", "crlf=perhaps"} {
		if _, err := ParseFaults(Faults{}, bad); err == nil {
			t.Errorf("ParseFaults(%q) = nil error", bad)
		}
	}
}

// TestA01HandlePlaces: where streams carry the handle, by release and by fault.
func TestA01HandlePlaces(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		version, fault, body string
		want                 []string // what each event has: "-" no member, "null", or "B"
	}{
		{"0.32.0", "", ``, []string{"-", "-", "-", "-"}},
		{"0.33.0", "", ``, []string{"-", "null", "null", "B"}},
		{"0.33.0", "", `"stream_options":{"include_usage":true},`, []string{"-", "null", "null", "B", "-"}},
		{"0.32.0", "handle=finish", ``, []string{"-", "-", "-", "B"}},
		{"0.33.0", "handle=none", ``, []string{"-", "null", "null", "null"}},
		{"0.33.0", "handle=first", ``, []string{"-", "B", "null", "null"}},
		{"0.25.1", "handle=first", ``, []string{"-", "B", "-", "-"}},
		{"0.33.0", "handle=usage", `"stream_options":{"include_usage":true},`, []string{"-", "null", "null", "null", "B"}},
		{"0.33.0", "handle=usage", ``, []string{"-", "null", "null", "null", "B"}},
		{"0.33.0", "handle=own", `"stream_options":{"include_usage":true},`, []string{"-", "null", "null", "null", "-", "B"}},
		{"0.32.0", "handle=own", ``, []string{"-", "-", "-", "-", "B"}},
	} {
		s := newTestServer(t, c.version, &fakeBackend{scripts: [][]engine.Output{withHandle("abc"), withHandle("abc")}}, nil)
		for path, skip := range map[string]int{"/v1/chat/completions": 0, "/v1/completions": 1} {
			w := post(t, s, path, `{"prompt":"x","stream":true,`+c.body+userHello+`}`, FaultHeader, c.fault)
			var got []string
			for _, data := range dataEvents(w.Body.String()) {
				if data == "[DONE]" {
					break
				}
				var doc map[string]json.RawMessage
				if err := json.Unmarshal([]byte(data), &doc); err != nil {
					t.Fatal(err)
				}
				switch kv := string(doc["kv_transfer_params"]); kv {
				case "":
					got = append(got, "-")
				case someHandle:
					got = append(got, "B")
				default:
					got = append(got, kv)
				}
			}
			if d := cmp.Diff(c.want[skip:], got); d != "" {
				t.Errorf("%s %s %s %s (-want +got):\n%s", c.version, path, c.fault, c.body, d)
			}
		}
	}
}

func TestFaultsOfStreams(t *testing.T) {
	t.Parallel()
	const internal = `data: {"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}`
	for _, c := range []struct {
		fault  string
		script []engine.Output
		want   string // shortened: text of deltas, one line per event
	}{
		{"", says("abc", engine.FinishLength), "role\na\nb\nc\n[DONE]\n"},
		{"error-at=1", says("abc", engine.FinishLength), internal + "\n[DONE]\n"},
		{"error-at=3", says("abc", engine.FinishLength), "role\na\n" + internal + "\n[DONE]\n"},
		{"comments=1,error-at=1", says("abc", engine.FinishLength), ": keep-alive\n" + internal + "\n[DONE]\n"}, // A06
		{"comments=2", says("abc", engine.FinishLength), ": keep-alive\nrole\na\n: keep-alive\nb\nc\n[DONE]\n"},
		{"interval=2", says("abcdef", engine.FinishLength), "role\na\nbc\nde\nf\n[DONE]\n"},
		{"interval=100", says("abcdef", engine.FinishLength), "role\na\nbcdef\n[DONE]\n"},
		{"finish-error", nil, `data: {"id":"error","object":"","created":0,"model":"","choices":[{"index":0,"finish_reason":"error"}],"usage":{"prompt_tokens":0,"total_tokens":0,"completion_tokens":0}}` + "\n[DONE]\n"},
		{"garbage", nil, "<html><body>502 is not what this says</body></html>\n"},
		{"one-byte", says("ab", engine.FinishLength), "role\na\nb\n[DONE]\n"},
	} {
		backend := &fakeBackend{scripts: [][]engine.Output{c.script}}
		w := post(t, newTestServer(t, "", backend, nil), "/v1/chat/completions", `{"stream":true,`+userHello+`}`, FaultHeader, c.fault)
		var got strings.Builder
		for line := range strings.Lines(w.Body.String()) {
			line = strings.TrimSuffix(line, "\n")
			data, isData := strings.CutPrefix(line, "data: ")
			switch {
			case line == "":
				continue
			case data == "[DONE]":
				line = data
			case isData && !strings.Contains(data, "error"):
				d := parseDoc(t, data).Choices[0].Delta
				if line = *d.Content; d.Role != "" {
					line = "role"
				}
			}
			got.WriteString(line + "\n")
		}
		if d := cmp.Diff(c.want, got.String()); d != "" || w.Code != http.StatusOK {
			t.Errorf("%s: status %d (-want +got):\n%s", c.fault, w.Code, d)
		}
		if asked := len(backend.requests) > 0; asked != (c.script != nil) {
			t.Errorf("%s: engine asked = %v", c.fault, asked)
		}
	}
}

func TestFaultLineForms(t *testing.T) {
	t.Parallel()
	script := says("ab", engine.FinishLength)
	s := newTestServer(t, "", &fakeBackend{scripts: [][]engine.Output{script, script, script}}, nil)
	plain := post(t, s, "/v1/completions", `{"stream":true,"prompt":"x"}`, "X-Request-Id", "r").Body.String()
	crlf := post(t, s, "/v1/completions", `{"stream":true,"prompt":"x"}`, "X-Request-Id", "r", FaultHeader, "crlf").Body.String()
	if d := cmp.Diff(strings.ReplaceAll(plain, "\n", "\r\n"), crlf); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	tight := post(t, s, "/v1/completions", `{"stream":true,"prompt":"x"}`, "X-Request-Id", "r", FaultHeader, "no-space").Body.String()
	if d := cmp.Diff(strings.ReplaceAll(plain, "data: ", "data:"), tight); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestFaultsOfWholeReplies(t *testing.T) {
	t.Parallel()
	const body = `{"prompt":"x"}`
	for _, c := range []struct {
		fault  string
		status int
		want   string
	}{
		{"status=503", 503, `{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":503}}`},
		{"garbage", 200, "<html><body>502 is not what this says</body></html>\n"},
		{"finish-error", 200, `{"id":"error","object":"","created":0,"model":"","choices":[{"index":0,"finish_reason":"error"}],"usage":{"prompt_tokens":0,"total_tokens":0,"completion_tokens":0}}`},
		{"no-such-fault", 400, `{"error":{"message":"fault \"no-such-fault\": no such fault","type":"BadRequestError","param":"X-Refengine-Fault","code":400}}`},
	} {
		backend := &fakeBackend{}
		w := post(t, newTestServer(t, "", backend, nil), "/v1/completions", body, FaultHeader, c.fault)
		if d := cmp.Diff(c.want, w.Body.String()); d != "" || w.Code != c.status || len(backend.requests) != 0 {
			t.Errorf("%s: status %d, %d engine requests (-want +got):\n%s", c.fault, w.Code, len(backend.requests), d)
		}
	}
	// The engine is told to retain nothing, so that nothing leaks for a handle that nobody sees.
	backend := &fakeBackend{scripts: [][]engine.Output{says("ok", engine.FinishLength)}}
	post(t, newTestServer(t, "", backend, nil), "/v1/completions", body, FaultHeader, "null-params")
	if !backend.requests[0].DropParams {
		t.Error("null-params: DropParams = false")
	}
	// The header means nothing unless it is allowed.
	backend = &fakeBackend{scripts: [][]engine.Output{says("ok", engine.FinishLength)}}
	s := newTestServer(t, "", backend, nil)
	s.opts.AllowFaultHeader = false
	if w := post(t, s, "/v1/completions", body, FaultHeader, "status=503"); w.Code != http.StatusOK {
		t.Errorf("header not allowed: status %d", w.Code)
	}
}

// A cut connection is seen as one: no end of the chunked body, no [DONE].
func TestFaultCut(t *testing.T) {
	t.Parallel()
	script := says("abc", engine.FinishLength)
	for _, c := range []struct {
		body   string
		events int
	}{
		{`{"prompt":"x","stream":true}`, 1},
		{`{"prompt":"x"}`, 0},
	} {
		backend := &fakeBackend{scripts: [][]engine.Output{script}}
		srv := httptest.NewServer(newTestServer(t, "", backend, nil).Handler())
		resp := do(t, srv, c.body, FaultHeader, "cut-at=2")
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err == nil {
			t.Errorf("%s: read to the end: %q", c.body, got)
		}
		if n := len(dataEvents(string(got))); n != c.events {
			t.Errorf("%s: %d events before the cut, want %d", c.body, n, c.events)
		}
		srv.Close()
	}
}

func do(t *testing.T, srv *httptest.Server, body string, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := srv.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// Delays and keep-alives, in virtual time.
func TestFaultTiming(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		s := newTestServer(t, "", &fakeBackend{scripts: [][]engine.Output{says("ab", engine.FinishLength), says("ab", engine.FinishLength)}}, nil)
		post(t, s, "/v1/completions", `{"prompt":"x","stream":true}`, FaultHeader, "first-delay=90s")
		post(t, s, "/v1/completions", `{"prompt":"x"}`, FaultHeader, "first-delay=10s")
		if got := time.Since(begin); got != 100*time.Second {
			t.Errorf("two replies took %v, want 100s", got)
		}

		backend := &fakeBackend{scripts: [][]engine.Output{says("ab", engine.FinishNone)}, hold: true}
		s = newTestServer(t, "", backend, nil)
		time.AfterFunc(35*time.Second, func() {
			backend.mu.Lock()
			defer backend.mu.Unlock()
			for _, ch := range backend.open {
				ch <- engine.Output{Tokens: []int32{'c'}, Finish: engine.FinishLength}
				close(ch)
			}
		})
		w := post(t, s, "/v1/completions", `{"prompt":"x","stream":true}`, FaultHeader, "keep-alive=10s")
		if n := strings.Count(w.Body.String(), ": keep-alive\n\n"); n != 3 {
			t.Errorf("%d comments in 35 s, want 3:\n%s", n, w.Body)
		}
	})
}

// Each event is on its way when it is written: the client reads it while the rest is not there yet.
func TestEventsAreFlushed(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{scripts: [][]engine.Output{{{Tokens: []int32{'a'}}}}, hold: true}
	srv := httptest.NewServer(newTestServer(t, "", backend, nil).Handler())
	defer srv.Close()
	resp := do(t, srv, `{"prompt":"x","stream":true}`)
	defer resp.Body.Close()
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil || !strings.Contains(line, `"text":"a"`) {
		t.Fatalf("first line %q, %v", line, err)
	}
}
