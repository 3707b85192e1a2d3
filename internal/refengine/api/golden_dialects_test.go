package api

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// recordedResponse is a response object, or a message, as far as the tests need it.
type recordedResponse struct {
	ID      string `json:"id"`
	Created int64  `json:"created_at"`
	Model   string `json:"model"`
	Status  string `json:"status"`
	Output  []struct {
		ID      string `json:"id"`
		Content []struct {
			Text string `json:"text"`
		} `json:"content"`
	} `json:"output"`
	Content []struct {
		Text string `json:"text"`
	} `json:"content"`
	StopReason string `json:"stop_reason"`
	Usage      struct {
		Input   int `json:"input_tokens"`
		Output  int `json:"output_tokens"`
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"input_tokens_details"`
		CacheRead *int `json:"cache_read_input_tokens"`
	} `json:"usage"`
	KV json.RawMessage `json:"kv_transfer_params"`
}

// promptTokens is the length of the prompt, whatever the usage calls input.
func (r *recordedResponse) promptTokens() int {
	if r.Usage.CacheRead != nil {
		return r.Usage.Input + *r.Usage.CacheRead
	}
	return r.Usage.Input
}

// recordedEvent is an event of a stream of responses or of a message.
type recordedEvent struct {
	Type     string            `json:"type"`
	Response *recordedResponse `json:"response"`
	Message  *recordedResponse `json:"message"`
	Delta    json.RawMessage   `json:"delta"`
}

// play makes a server that generates what was recorded, a piece a token, and uses the recorded ids.
func (r *recordedResponse) play(t *testing.T, version string, pieces []string, ids ...string) (*Server, *fakeBackend) {
	t.Helper()
	finish := engine.FinishLength
	if r.StopReason == "end_turn" {
		finish = engine.FinishStop
	}
	outs := make([]engine.Output, len(pieces))
	for i := range outs {
		outs[i] = engine.Output{Tokens: []int32{7}, CachedTokens: r.Usage.Details.Cached, LocalHitTokens: r.promptTokens()}
		if r.Usage.CacheRead != nil {
			outs[i].CachedTokens = *r.Usage.CacheRead
		}
	}
	last := &outs[len(outs)-1]
	last.Finish, last.Params = finish, r.KV
	for len(outs) == 1 && len(last.Tokens) < r.Usage.Output {
		last.Tokens = append(last.Tokens, 7)
	}
	p := &play{
		backend: &fakeBackend{scripts: [][]engine.Output{outs}}, text: &fakeCodec{pieces: [][]string{pieces}},
		model: r.Model, created: r.Created, details: r.Usage.CacheRead != nil,
	}
	p.addPrompt(nil, r.promptTokens())
	s := p.server(t, version)
	s.randomHex = func(n int) string {
		if n != 16 || len(ids) == 0 {
			return strings.Repeat("0", n)
		}
		_, id, _ := strings.Cut(ids[0], "_")
		if id == "" {
			_, id, _ = strings.Cut(ids[0], "-")
		}
		ids = ids[1:]
		return id
	}
	return s, p.backend
}

// dialectBody is what a router sends to P for a client's body.
func dialectBody(t *testing.T, body []byte, limit string) string {
	t.Helper()
	m := map[string]json.RawMessage{}
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatal(err)
	}
	delete(m, "stream")
	m[limit] = json.RawMessage("1")
	m["kv_transfer_params"] = json.RawMessage(nullForm)
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func readResponse(t *testing.T, doc string) *recordedResponse {
	t.Helper()
	var r recordedResponse
	if err := json.Unmarshal([]byte(doc), &r); err != nil {
		t.Fatal(err)
	}
	return &r
}

func TestGoldenResponses(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"0.32.0", "0.33.0"} {
		for _, name := range []string{"responses.d", "responses.p", "responses-stream.p"} {
			t.Run(version+"/"+name, func(t *testing.T) {
				t.Parallel()
				want := compact(t, read(t, version, name+".json"))
				rec := readResponse(t, want)
				s, backend := rec.play(t, version, []string{rec.Output[0].Content[0].Text}, rec.ID, rec.Output[0].ID)
				base, leg, _ := strings.Cut(name, ".")
				body := string(read(t, version, base+".req.json"))
				if leg == "p" {
					body = dialectBody(t, []byte(body), "max_output_tokens")
				}
				w := post(t, s, "/v1/responses", body, "X-Request-Id", "client-42")
				if d := cmp.Diff(want, w.Body.String()); d != "" {
					t.Errorf("reply differs (-recorded +ours):\n%s", d)
				}
				if got, want := backend.requests[0].ID, rec.ID+"_0-00000000"; got != want {
					t.Errorf("internal id %q, want %q", got, want)
				}
			})
		}
	}
}

func TestGoldenMessages(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"0.32.0", "0.33.0"} {
		for _, name := range []string{"messages.d", "messages.p", "messages-stream.p"} {
			t.Run(version+"/"+name, func(t *testing.T) {
				t.Parallel()
				want := compact(t, read(t, version, name+".json"))
				rec := readResponse(t, want)
				_, rid, _ := strings.Cut(rec.ID, "-")
				s, backend := rec.play(t, version, []string{rec.Content[0].Text})
				base, leg, _ := strings.Cut(name, ".")
				body := string(read(t, version, base+".req.json"))
				if leg == "p" {
					body = dialectBody(t, []byte(body), "max_tokens")
				}
				w := post(t, s, "/v1/messages", body, "X-Request-Id", rid)
				if d := cmp.Diff(want, w.Body.String()); d != "" {
					t.Errorf("reply differs (-recorded +ours):\n%s", d)
				}
				if got, want := backend.requests[0].ID, rec.ID+"-00000000"; got != want {
					t.Errorf("internal id %q, want %q", got, want)
				}
			})
		}
	}
}

// parseNamed returns the events of a stream in which each has a name, and checks that it is their type.
func parseNamed(t *testing.T, stream string) []recordedEvent {
	t.Helper()
	var out []recordedEvent
	for block := range strings.SplitSeq(strings.TrimSuffix(stream, "\n\n"), "\n\n") {
		name, data, ok := strings.Cut(strings.TrimPrefix(block, "event: "), "\ndata: ")
		var ev recordedEvent
		if err := json.Unmarshal([]byte(data), &ev); err != nil || !ok || ev.Type != name {
			t.Fatalf("event %q: %v", block, err)
		}
		out = append(out, ev)
	}
	return out
}

func diffLines(t *testing.T, want, got string) {
	t.Helper()
	if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("stream differs (-recorded +ours):\n%s", d)
	}
}

func TestGoldenResponsesStream(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"0.32.0", "0.33.0"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			want := string(read(t, version, "responses-stream.d.sse"))
			events := parseNamed(t, want)
			var pieces []string
			for _, ev := range events {
				var piece string
				if ev.Type == "response.output_text.delta" && json.Unmarshal(ev.Delta, &piece) == nil {
					pieces = append(pieces, piece)
				}
			}
			rec := events[len(events)-1].Response
			s, _ := rec.play(t, version, pieces, rec.ID, rec.Output[0].ID)
			w := post(t, s, "/v1/responses", string(read(t, version, "responses-stream.req.json")), "X-Request-Id", "client-42")
			diffLines(t, want, w.Body.String())
		})
	}
}

func TestGoldenMessagesStream(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"0.32.0", "0.33.0"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			want := string(read(t, version, "messages-stream.d.sse"))
			events := parseNamed(t, want)
			var pieces []string
			for _, ev := range events {
				var delta struct{ Text string }
				if ev.Type == "content_block_delta" && json.Unmarshal(ev.Delta, &delta) == nil {
					pieces = append(pieces, delta.Text)
				}
			}
			rec := events[0].Message
			rec.StopReason = "end_turn"
			rec.KV = json.RawMessage(someHandle) // D has one; no stream shows it
			if version == "0.33.0" {             // recorded with details
				cached := 128
				rec.Usage.Input -= cached
				rec.Usage.CacheRead = &cached
			}
			s, _ := rec.play(t, version, append(pieces, "")) // the end of sequence has no text
			w := post(t, s, "/v1/messages", string(read(t, version, "messages-stream.req.json")), "X-Request-Id", "client-42")
			diffLines(t, want, w.Body.String())
		})
	}
}

func TestGoldenRender(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"0.32.0", "0.33.0"} {
		for name, path := range map[string]string{"messages": "/v1/messages/render", "responses": "/v1/responses/render"} {
			t.Run(version+path, func(t *testing.T) {
				t.Parallel()
				want := compact(t, read(t, version, "util_v1_"+name+"_render.resp.json"))
				var rec struct {
					ID  string  `json:"request_id"`
					IDs []int32 `json:"token_ids"`
				}
				if err := json.Unmarshal([]byte(want), &rec); err != nil {
					t.Fatal(err)
				}
				p := &play{backend: &fakeBackend{}, text: &fakeCodec{}, model: testModel}
				p.addPrompt(append([]int32{}, rec.IDs...), 0)
				s := p.server(t, version)
				s.maxModelLen = 8192
				s.opts.EnableScaleOut = version == "0.33.0"
				s.randomHex = func(int) string { return rec.ID[strings.IndexAny(rec.ID, "-_")+1:] }
				w := post(t, s, path, string(read(t, version, "util_v1_"+name+"_render.req.json")))
				if d := cmp.Diff(want, w.Body.String()); d != "" {
					t.Errorf("reply differs (-recorded +ours):\n%s", d)
				}
				if status := map[string]int{"0.32.0": 403, "0.33.0": 200}[version]; w.Code != status {
					t.Errorf("status %d, want %d", w.Code, status)
				}
			})
		}
	}
}
