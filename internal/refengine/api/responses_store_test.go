package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// A response that was stored is gone on from: its messages, then what it said, then the new input. Instructions
// are of one response, reasoning and tool calls are forgotten.
func TestPreviousResponse(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{"", `"stream":true,`} {
		backend := &fakeBackend{scripts: [][]engine.Output{
			inWords(twoCalls, engine.FinishStop), says("second", engine.FinishLength), says("third", engine.FinishLength),
		}}
		var got rendering
		s := newRenderingServer(t, "", backend, &got)
		s.opts.ResponsesStore = true
		n := 0
		s.randomHex = func(digits int) string { n++; return fmt.Sprintf("%0*d", digits, n) }
		id := func(body string) string {
			w := post(t, s, "/v1/responses", `{`+stream+body+`}`)
			doc := w.Body.String()
			if stream != "" {
				doc = dataEvents(doc)[0]
			}
			_, rest, _ := strings.Cut(doc, `"id":"`)
			id, _, _ := strings.Cut(rest, `"`)
			return id
		}
		first := id(`"instructions":"old","input":"one",` + responseTool)
		second := id(`"instructions":"new","input":[{"type":"function_call_output","call_id":"c","output":"r"}],"previous_response_id":"` + first + `"`)
		whole := "Look. Done."
		messages := []string{`{"role":"user","content":"one"}`, `{"role":"assistant","content":"Look. Done."}`}
		if stream != "" {
			whole = "Look."
			messages = []string{`{"role":"user","content":"one"}`, `{"role":"assistant","content":"Look."}`, `{"role":"assistant","content":" Done."}`}
		}
		want := append([]string{`{"role":"system","content":"new"}`}, messages...)
		want = append(want, `{"role":"tool","content":"r","tool_call_id":"c"}`)
		if d := cmp.Diff(want, got.Messages); d != "" {
			t.Errorf("second prompt (-want +got):\n%s", d)
		}
		id(`"input":"three","previous_response_id":"` + second + `"`)
		want = append(want[1:len(want):len(want)], `{"role":"assistant","content":"second"}`, `{"role":"user","content":"three"}`)
		if d := cmp.Diff(want, got.Messages); d != "" {
			t.Errorf("third prompt (-want +got):\n%s", d)
		}

		w := get(t, s, "/v1/responses/"+first)
		if w.Code != http.StatusOK || !strings.HasPrefix(w.Body.String(), `{"id":"`+first+`"`) || !strings.Contains(w.Body.String(), whole) {
			t.Errorf("stored response: %d %s", w.Code, w.Body)
		}
	}
}

// Without the switch, or if the client does not want it, nothing is stored, and nothing is said of it.
func TestResponsesAreNotStored(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		enabled bool
		body    string
	}{
		{false, `"input":"x"`},
		{false, `"input":"x","store":true`},
		{true, `"input":"x","store":false`},
	} {
		s := newTestServer(t, "", &fakeBackend{scripts: [][]engine.Output{says("ok", engine.FinishLength)}}, nil)
		s.opts.ResponsesStore = c.enabled
		if w := post(t, s, "/v1/responses", `{`+c.body+`}`); w.Code != http.StatusOK {
			t.Fatal(w.Body)
		}
		w := post(t, s, "/v1/responses", `{"input":"x","previous_response_id":"resp_0000000000000000"}`)
		want := reply{404, "invalid_request_error", "response_id", 404, "Response with id 'resp_0000000000000000' not found."}
		if d := cmp.Diff(want, readReply(t, w.Code, w.Body.Bytes(), "")); d != "" {
			t.Errorf("enabled %v, %s (-want +got):\n%s", c.enabled, c.body, d)
		}
	}
}

// The store is bounded in number and bytes; the oldest go first.
func TestResponseStoreIsBounded(t *testing.T) {
	t.Parallel()
	var s responseStore
	for i := range maxStoredResponses + 3 {
		s.put(fmt.Sprint(i), &storedResponse{object: []byte("12345")})
	}
	if s.get("2") != nil || s.get("3") == nil || s.bytes != 5*maxStoredResponses || len(s.order) != maxStoredResponses {
		t.Errorf("%d bytes, %d ids", s.bytes, len(s.order))
	}
	s.put("3", &storedResponse{object: []byte("1"), messages: []json.RawMessage{[]byte("23")}, texts: []string{"4"}})
	if s.bytes != 5*maxStoredResponses-1 || len(s.order) != maxStoredResponses {
		t.Errorf("after a replacement: %d bytes, %d ids", s.bytes, len(s.order))
	}
	s.put("huge", &storedResponse{object: make([]byte, maxStoredBytes+1)})
	if s.get("huge") != nil || s.get("3") == nil {
		t.Error("one that is too large took the place of others")
	}
	s.put("large", &storedResponse{object: make([]byte, maxStoredBytes)})
	if d := cmp.Diff([]string{"large"}, s.order); d != "" || s.bytes != maxStoredBytes || len(s.byID) != 1 {
		t.Errorf("%d bytes, %d responses; ids (-want +got):\n%s", s.bytes, len(s.byID), d)
	}
}

func TestCancelResponse(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, "", &fakeBackend{}, nil)
	s.stored.put("resp_1", &storedResponse{object: []byte("{}")})
	for id, want := range map[string]reply{
		"resp_1": {400, "invalid_request_error", "response_id", 400, "Cannot cancel a synchronous response."},
		"resp_2": {404, "invalid_request_error", "response_id", 404, "Response with id 'resp_2' not found."},
	} {
		w := post(t, s, "/v1/responses/"+id+"/cancel", ``)
		if d := cmp.Diff(want, readReply(t, w.Code, w.Body.Bytes(), "")); d != "" {
			t.Errorf("%s (-want +got):\n%s", id, d)
		}
	}
	if w := get(t, s, "/v1/responses/resp_2"); w.Code != http.StatusNotFound {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}
