package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// fakeBackend answers the nth request with the nth script.
type fakeBackend struct {
	config  engine.Config
	stats   engine.Stats
	scripts [][]engine.Output
	refuse  error
	hold    bool // channels stay open after the script until Abort

	mu       sync.Mutex
	requests []*engine.Request
	aborted  []string
	open     map[string]chan engine.Output
	onAbort  func(id string)
	onSubmit func(id string)
}

var _ Backend = (*fakeBackend)(nil)

func (f *fakeBackend) Submit(r *engine.Request) (<-chan engine.Output, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return nil, f.refuse
	}
	var script []engine.Output
	if n := len(f.requests); n < len(f.scripts) {
		script = f.scripts[n]
	}
	f.requests = append(f.requests, r)
	ch := make(chan engine.Output, len(script)+1)
	for _, o := range script {
		ch <- o
	}
	if f.hold {
		if f.open == nil {
			f.open = make(map[string]chan engine.Output)
		}
		f.open[r.ID] = ch
	} else {
		close(ch)
	}
	if f.onSubmit != nil {
		f.onSubmit(r.ID)
	}
	return ch, nil
}

func (f *fakeBackend) Abort(id string) {
	f.mu.Lock()
	f.aborted = append(f.aborted, id)
	if ch := f.open[id]; ch != nil {
		ch <- engine.Output{Finish: engine.FinishAbort}
		close(ch)
		delete(f.open, id)
	}
	f.mu.Unlock()
	if f.onAbort != nil {
		f.onAbort(id)
	}
}

func (f *fakeBackend) Snapshot() engine.Stats { return f.stats }

func (f *fakeBackend) Config() engine.Config { return f.config }

func (f *fakeBackend) abortedIDs() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.aborted...)
}

// fakeCodec knows what to say in which order: prompts holds the ids of the texts that will be encoded,
// pieces the text that each id of each reply completes. Without scripts a token is a character.
type fakeCodec struct {
	prompts [][]int32
	pieces  [][]string
	vocab   int

	mu      sync.Mutex
	encoded []string
}

var _ codec = (*fakeCodec)(nil)

func (c *fakeCodec) Encode(text string) []int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.encoded = append(c.encoded, text)
	if len(c.prompts) > 0 {
		ids := c.prompts[0]
		c.prompts = c.prompts[1:]
		return ids
	}
	var ids []int32
	for _, r := range text {
		ids = append(ids, r)
	}
	return ids
}

func (c *fakeCodec) EncodePrompt(text string) []int32 { return c.Encode(text) }

func (c *fakeCodec) Decode(ids []int32, _ bool) string {
	var b strings.Builder
	for _, id := range ids {
		b.WriteRune(id)
	}
	return b.String()
}

func (c *fakeCodec) VocabSize() int {
	if c.vocab == 0 {
		return 1 << 21
	}
	return c.vocab
}

func (c *fakeCodec) Token(id int32) string { return string(id) }

func (c *fakeCodec) stream(bool) detokenizer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pieces) == 0 {
		return runeStream{}
	}
	s := &pieceStream{c.pieces[0]}
	c.pieces = c.pieces[1:]
	return s
}

type pieceStream struct{ pieces []string }

func (s *pieceStream) Push(int32) string {
	if len(s.pieces) == 0 {
		return ""
	}
	p := s.pieces[0]
	s.pieces = s.pieces[1:]
	return p
}

// runeStream takes ids for characters; 0 is a token without text.
type runeStream struct{}

func (runeStream) Push(id int32) string {
	if id == 0 {
		return ""
	}
	return string(id)
}

// fakeTemplate joins the messages.
func fakeTemplate(messages []json.RawMessage, tools json.RawMessage, addPrompt bool, kwargs map[string]any) (string, error) {
	var b strings.Builder
	for _, m := range messages {
		b.Write(m)
		b.WriteByte('\n')
	}
	return b.String(), nil
}

const testModel = "smollm2"

// newTestServer returns a server over fakes. version "" is the newest.
func newTestServer(t testing.TB, version string, backend *fakeBackend, text *fakeCodec) *Server {
	t.Helper()
	if backend.config.MaxModelLen == 0 {
		backend.config.MaxModelLen = 8192
	}
	if backend.config.BlockSize == 0 {
		backend.config.BlockSize = 128
	}
	if text == nil {
		text = &fakeCodec{}
	}
	s := newServer(Options{Engine: backend, ModelName: testModel, Version: version, AllowFaultHeader: true}, text, fakeTemplate)
	s.now = func() time.Time { return time.Unix(1795984206, 0) }
	s.randomHex = func(digits int) string { return strings.Repeat("0", digits) }
	return s
}

// post sends a JSON body and returns the reply.
func post(t testing.TB, s *Server, path, body string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

// says makes a script that generates text, a character a step, and ends for the given reason.
func says(text string, finish engine.FinishReason) []engine.Output {
	var out []engine.Output
	for _, r := range text {
		out = append(out, engine.Output{Tokens: []int32{r}})
	}
	out[len(out)-1].Finish = finish
	return out
}

func get(t testing.TB, s *Server, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w
}
