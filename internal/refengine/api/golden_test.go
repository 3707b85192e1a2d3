package api

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// The golden tests feed the server with what a recording says was generated and compare every byte of the
// reply with the recording. Only the moment, the fingerprint and the random part of ids are put in from it.

type recordedUsage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Details    *struct {
		Cached  int  `json:"cached_tokens"`
		Created *int `json:"created_cache_tokens"`
	} `json:"prompt_tokens_details"`
}

type recorded struct {
	ID          string `json:"id"`
	Created     int64  `json:"created"`
	Model       string `json:"model"`
	Fingerprint string `json:"system_fingerprint"`
	Choices     []struct {
		Index   int `json:"index"`
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		Delta struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"delta"`
		Text      string  `json:"text"`
		Finish    string  `json:"finish_reason"`
		TokenIDs  []int32 `json:"token_ids"`
		PromptIDs []int32 `json:"prompt_token_ids"`
	} `json:"choices"`
	Usage     *recordedUsage  `json:"usage"`
	PromptIDs []int32         `json:"prompt_token_ids"`
	KV        json.RawMessage `json:"kv_transfer_params"`
}

// play is a server that generates what a recording says.
type play struct {
	backend     *fakeBackend
	text        *fakeCodec
	details     bool
	fingerprint string
	created     int64
	model       string
	id          string
}

func (p *play) server(t *testing.T, version string) *Server {
	p.backend.config.MaxModelLen = 32768
	s := newTestServer(t, version, p.backend, p.text)
	s.opts.ModelName = p.model
	s.opts.PromptTokensDetails = p.details
	s.opts.EnableScaleOut = true
	s.fingerprint = p.fingerprint
	s.now = func() time.Time { return time.Unix(p.created, 0) }
	_, rid, _ := strings.Cut(p.id, "-")
	s.randomHex = func(n int) string {
		if n == 16 {
			return rid
		}
		return strings.Repeat("0", n)
	}
	return s
}

// addPrompt says what the next text is encoded to.
func (p *play) addPrompt(ids []int32, n int) {
	if ids == nil {
		ids = make([]int32, n)
		for i := range ids {
			ids[i] = int32(i + 1)
		}
	}
	p.text.prompts = append(p.text.prompts, ids)
}

// playWhole prepares the reply of a recorded document. promptTokens are needed for several prompts.
func playWhole(rec *recorded, promptTokens ...int) *play {
	p := &play{
		backend: &fakeBackend{}, text: &fakeCodec{}, fingerprint: rec.Fingerprint, created: rec.Created,
		model: rec.Model, id: rec.ID, details: rec.Usage.Details != nil,
	}
	if len(promptTokens) == 0 {
		promptTokens = []int{rec.Usage.Prompt}
	}
	for i, n := range promptTokens {
		ids := rec.PromptIDs
		if c := rec.Choices[i]; c.PromptIDs != nil {
			ids = c.PromptIDs
		}
		p.addPrompt(ids, n)
	}
	for i, c := range rec.Choices {
		ids := c.TokenIDs
		if ids == nil {
			ids = make([]int32, rec.Usage.Completion/len(rec.Choices))
		}
		o := engine.Output{Tokens: ids, Finish: engine.FinishReason(c.Finish), Params: rec.KV}
		if i > 0 && len(promptTokens) > 1 {
			o.Params = nil // nobody may take the second prompt's handle for the first one's
		}
		setCached(&o, rec.Usage, promptTokens[0])
		p.backend.scripts = append(p.backend.scripts, []engine.Output{o})
		p.text.pieces = append(p.text.pieces, []string{c.Message.Content + c.Text})
	}
	return p
}

// playStream prepares a recorded stream with one choice.
func playStream(events []recorded) *play {
	p := &play{backend: &fakeBackend{}, text: &fakeCodec{}}
	var outs []engine.Output
	var pieces []string
	var promptIDs []int32
	promptTokens, told := 241, 0
	var last *recordedUsage
	for i := range events {
		ev := &events[i]
		p.created, p.model, p.id = ev.Created, ev.Model, ev.ID
		if ev.Fingerprint != "" {
			p.fingerprint = ev.Fingerprint
		}
		if ev.PromptIDs != nil {
			promptIDs = ev.PromptIDs
		}
		if ev.Usage != nil {
			promptTokens, last = ev.Usage.Prompt, ev.Usage
		}
		if len(ev.Choices) == 0 || ev.Choices[0].Delta.Role != "" {
			continue
		}
		c := ev.Choices[0]
		if c.PromptIDs != nil {
			promptIDs = c.PromptIDs
		}
		ids := c.TokenIDs
		if ids == nil {
			ids = []int32{0}
			if ev.Usage != nil {
				ids = make([]int32, ev.Usage.Completion-told)
				told = ev.Usage.Completion
			}
		}
		params := ev.KV
		if c.Finish != "" && isNull(params) {
			params = json.RawMessage(`{"do_remote_decode":true}`) // the engine has one, the stream hides it
		}
		outs = append(outs, engine.Output{Tokens: ids, Finish: engine.FinishReason(c.Finish), Params: params})
		pieces = append(pieces, c.Delta.Content+c.Text)
		for range ids[1:] {
			pieces = append(pieces, "")
		}
	}
	if last != nil {
		p.details = last.Details != nil
		for i := range outs {
			setCached(&outs[i], last, promptTokens)
		}
	}
	if promptIDs != nil {
		promptTokens = len(promptIDs)
	}
	p.addPrompt(promptIDs, promptTokens)
	p.backend.scripts = [][]engine.Output{outs}
	p.text.pieces = [][]string{pieces}
	return p
}

func setCached(o *engine.Output, u *recordedUsage, promptTokens int) {
	if u == nil || u.Details == nil {
		return
	}
	o.CachedTokens = u.Details.Cached
	if u.Details.Created != nil && *u.Details.Created == 0 {
		o.LocalHitTokens = promptTokens
	}
}

func read(t *testing.T, version, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "vllm-"+version, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// compact removes the indentation that some recordings were given.
func compact(t *testing.T, b []byte) string {
	t.Helper()
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func parseRecorded(t *testing.T, b []byte) *recorded {
	t.Helper()
	var rec recorded
	if err := json.Unmarshal([]byte(compact(t, b)), &rec); err != nil {
		t.Fatal(err)
	}
	return &rec
}

func parseEvents(t *testing.T, b []byte) []recorded {
	t.Helper()
	var out []recorded
	for block := range strings.SplitSeq(string(b), "\n\n") {
		data, ok := strings.CutPrefix(block, "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		out = append(out, *parseRecorded(t, []byte(data)))
	}
	return out
}

// pBody is what a router sends to P for a client's body.
func pBody(t *testing.T, body []byte) string {
	t.Helper()
	m := map[string]json.RawMessage{}
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatal(err)
	}
	delete(m, "stream")
	delete(m, "stream_options")
	delete(m, "n")
	m["max_tokens"] = json.RawMessage("1")
	m["kv_transfer_params"] = json.RawMessage(`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null}`)
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func pathOf(name string) string {
	if strings.HasPrefix(name, "chat") {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

func TestGoldenWhole(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		version, name, request string
		prompts                []int
	}{
		{"0.25.1", "chat-turn1", "dreq", nil},
		{"0.25.1", "completions-turn1", "dreq", nil},
		{"0.32.0", "chat", "req", nil},
		{"0.32.0", "chat-n2", "req", nil},
		{"0.32.0", "completions", "req", nil},
		{"0.32.0", "completions-2prompts", "req", []int{211, 201}},
		{"0.33.0", "chat", "req", nil},
		{"0.33.0", "chat-n2", "req", nil},
		{"0.33.0", "completions", "req", nil},
		{"0.33.0", "completions-2prompts", "req", []int{211, 201}},
	} {
		t.Run(c.version+"/"+c.name, func(t *testing.T) {
			t.Parallel()
			want := compact(t, read(t, c.version, c.name+".d.json"))
			p := playWhole(parseRecorded(t, []byte(want)), c.prompts...)
			_, rid, _ := strings.Cut(p.id, "-")
			w := post(t, p.server(t, c.version), pathOf(c.name), string(read(t, c.version, c.name+"."+c.request+".json")), "X-Request-Id", rid)
			if d := cmp.Diff(want, w.Body.String()); d != "" {
				t.Errorf("D's reply differs (-recorded +ours):\n%s", d)
			}
		})
	}
}

func TestGoldenPrefill(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		version, name, request string
		prompts                []int
	}{
		{"0.25.1", "chat-turn1", "preq", nil},
		{"0.25.1", "chat-stream-turn1", "preq", nil},
		{"0.25.1", "completions-turn1", "preq", nil},
		{"0.32.0", "chat", "req", nil},
		{"0.32.0", "chat-stream-tokenids", "req", nil},
		{"0.32.0", "completions", "req", nil},
		{"0.33.0", "chat", "req", nil},
		{"0.33.0", "chat-stream", "req", nil},
		{"0.33.0", "chat-n2", "req", nil},
		{"0.33.0", "completions", "req", nil},
		{"0.33.0", "completions-2prompts", "req", []int{211, 201}},
	} {
		t.Run(c.version+"/"+c.name, func(t *testing.T) {
			t.Parallel()
			want := compact(t, read(t, c.version, c.name+".p.json"))
			p := playWhole(parseRecorded(t, []byte(want)), c.prompts...)
			var headers []string
			if c.request == "preq" {
				_, rid, _ := strings.Cut(p.id, "-")
				headers = []string{"X-Request-Id", rid}
			}
			w := post(t, p.server(t, c.version), pathOf(c.name), pBody(t, read(t, c.version, c.name+"."+c.request+".json")), headers...)
			if d := cmp.Diff(want, w.Body.String()); d != "" {
				t.Errorf("P's reply differs (-recorded +ours):\n%s", d)
			}
		})
	}
}

func TestGoldenStream(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ version, name, request string }{
		{"0.25.1", "chat-stream-turn1", "dreq"},
		{"0.25.1", "completions-stream-turn1", "dreq"},
		{"0.32.0", "chat-stream", "req"},
		{"0.32.0", "chat-stream-usage", "req"},
		{"0.32.0", "chat-stream-tokenids", "req"},
		{"0.32.0", "completions-stream", "req"},
		{"0.33.0", "chat-stream", "req"},
		{"0.33.0", "chat-stream-usage", "req"},
		{"0.33.0", "chat-stream-tokenids", "req"},
		{"0.33.0", "completions-stream", "req"},
	} {
		t.Run(c.version+"/"+c.name, func(t *testing.T) {
			t.Parallel()
			want := string(read(t, c.version, c.name+".d.sse"))
			p := playStream(parseEvents(t, []byte(want)))
			_, rid, _ := strings.Cut(p.id, "-")
			w := post(t, p.server(t, c.version), pathOf(c.name), string(read(t, c.version, c.name+"."+c.request+".json")), "X-Request-Id", rid)
			if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(w.Body.String(), "\n")); d != "" {
				t.Errorf("stream differs (-recorded +ours):\n%s", d)
			}
			if got := w.Header().Get("Content-Type"); got != "text/event-stream; charset=utf-8" {
				t.Errorf("Content-Type = %q", got)
			}
		})
	}
}

func TestGoldenUtilities(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ version, name, path string }{
		{"0.32.0", "util_tokenize", "/tokenize"},
		{"0.32.0", "util_v1_chat_completions_render", "/v1/chat/completions/render"},
		{"0.32.0", "util_v1_completions_render", "/v1/completions/render"},
		{"0.33.0", "util_tokenize", "/tokenize"},
		{"0.33.0", "util_v1_chat_completions_render", "/v1/chat/completions/render"},
		{"0.33.0", "util_v1_completions_render", "/v1/completions/render"},
	} {
		t.Run(c.version+c.path, func(t *testing.T) {
			t.Parallel()
			want := compact(t, read(t, c.version, c.name+".resp.json"))
			var one struct {
				ID     string  `json:"request_id"`
				Tokens []int32 `json:"tokens"`
				IDs    []int32 `json:"token_ids"`
			}
			if err := json.Unmarshal([]byte(strings.Trim(want, "[]")), &one); err != nil {
				t.Fatal(err)
			}
			p := &play{backend: &fakeBackend{}, text: &fakeCodec{}, model: testModel, id: one.ID}
			p.addPrompt(append(one.Tokens, one.IDs...), 0)
			s := p.server(t, c.version)
			s.maxModelLen = 8192
			s.opts.EnableScaleOut = c.version == "0.33.0"
			w := post(t, s, c.path, string(read(t, c.version, c.name+".req.json")))
			if d := cmp.Diff(want, w.Body.String()); d != "" {
				t.Errorf("reply differs (-recorded +ours):\n%s", d)
			}
		})
	}
}

func TestGoldenModelsAndVersion(t *testing.T) {
	t.Parallel()
	lines := strings.Split(string(read(t, "0.25.1", "version.txt")), "\n")
	p := &play{backend: &fakeBackend{}, text: &fakeCodec{}, model: "qwen3-32b", id: "modelperm-8c2607e2c1109a3f", created: 1795986303}
	s := p.server(t, "0.25.1")
	s.opts.Root = "/models/qwen3-32b-dummy"
	for i, path := range []string{"/version", "/v1/models"} {
		if d := cmp.Diff(lines[i], get(t, s, path).Body.String()); d != "" {
			t.Errorf("%s differs (-recorded +ours):\n%s", path, d)
		}
	}
}

func TestGoldenInternalError(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"0.32.0", "0.33.0"} {
		backend := &fakeBackend{scripts: [][]engine.Output{{{Finish: engine.FinishError, Err: errEngineGone}}}}
		w := post(t, newTestServer(t, version, backend, nil), "/v1/completions", `{"prompt":"x"}`)
		if d := cmp.Diff(compact(t, read(t, version, "bad-port.p.json")), w.Body.String()); d != "" || w.Code != 500 {
			t.Errorf("%s: status %d, body differs (-recorded +ours):\n%s", version, w.Code, d)
		}
	}
}
