package router_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tarik-kv/tarik/internal/router"
	"github.com/tarik-kv/tarik/internal/telemetry"
)

// call is what a stub engine was sent.
type call struct {
	path   string
	header http.Header
	body   string
}

// answer is one way for a stub to answer one call.
type answer func(s *stub, w http.ResponseWriter, req *http.Request, c call)

// stub is an engine that says what a test wants it to say. Without a script it is a good vLLM 0.33
// of its role: P returns an A, D streams or returns "ok" and a B. Its tokens are the bytes of the
// contents, each message followed by a line feed.
type stub struct {
	*httptest.Server
	prefill bool
	id      string // engine id

	mu     sync.Mutex
	calls  []call
	script []answer // of generating calls, the last one for all that follow
	asked  int
	render answer // to render and tokenize routes, nil for a good one
}

func newStub(t testing.TB, prefill bool) *stub {
	t.Helper()
	s := &stub{prefill: prefill, id: "d-1"}
	if prefill {
		s.id = "p-1"
	}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

// says has the calls from now on answered by these, the last one again and again.
func (s *stub) says(script ...answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script, s.asked, s.calls = script, 0, nil
}

// onRender has render and tokenize routes answered by a.
func (s *stub) onRender(a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.render = a
}

// got returns the generating calls since says, and those to render routes.
func (s *stub) got() []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// generated returns the calls to generating routes.
func (s *stub) generated() []call {
	return slices.DeleteFunc(s.got(), func(c call) bool { return !generating[c.path] })
}

const (
	chatPath = "/v1/chat/completions"
	textPath = "/v1/completions"
)

var generating = map[string]bool{chatPath: true, textPath: true, responsesPath: true, messagesPath: true}

func (s *stub) serve(w http.ResponseWriter, req *http.Request) {
	switch req.URL.Path {
	case "/health":
		return
	case "/version":
		_, _ = io.WriteString(w, `{"version":"0.33.0"}`)
		return
	case "/metrics":
		_, _ = io.WriteString(w, "vllm:cache_config_info{block_size=\"16\"} 1.0\n")
		return
	case "/v1/models":
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"m","root":"m","max_model_len":100000}]}`)
		return
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the caller has left
	}
	c := call{req.URL.Path, req.Header.Clone(), string(body)}
	s.mu.Lock()
	s.calls = append(s.calls, c)
	do := good
	if generating[c.path] {
		if len(s.script) > 0 {
			do = s.script[min(s.asked, len(s.script)-1)]
		}
		s.asked++
	} else if s.render != nil {
		do = s.render
	}
	s.mu.Unlock()
	do(s, w, req, c)
}

// fields are what a stub reads of a body.
type fields struct {
	Messages []struct{ Role, Content string }
	Prompt   json.RawMessage
	Stream   bool
	MaxToks  int `json:"max_tokens"`
	Options  struct {
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`
	IDs    bool            `json:"return_token_ids"`
	Params json.RawMessage `json:"kv_transfer_params"`
}

func (c call) fields() (f fields) {
	_ = json.Unmarshal([]byte(c.body), &f) // what does not fit stays empty
	return f
}

func (f fields) tokens() []int {
	var ids []int
	if json.Unmarshal(f.Prompt, &ids) == nil && ids != nil {
		return ids
	}
	var text string
	if json.Unmarshal(f.Prompt, &text) != nil {
		for _, m := range f.Messages {
			text += m.Content + "\n"
		}
	}
	for _, b := range []byte(text) {
		ids = append(ids, int(b))
	}
	return ids
}

func (f fields) param(name string) string {
	var m map[string]json.RawMessage
	_ = json.Unmarshal(f.Params, &m) // null has no members
	return string(m[name])
}

func jsonOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// firstBlock is an id that is nothing else in these tests.
const firstBlock = 90210017

// params is a good A or B over n tokens.
func params(prefill bool, id string, n, cached int) string {
	blocks := make([]int, (n+15)/16)
	for i := range blocks {
		blocks[i] = firstBlock + i
	}
	expiry, tail := "123456.5", ""
	if prefill {
		expiry, tail = "null", fmt.Sprintf(`,"remote_prefill_cached_tokens":%d`, cached)
	}
	return fmt.Sprintf(`{"do_remote_prefill":%t,"do_remote_decode":%t,"remote_block_ids":%s,"remote_engine_id":%q,"remote_request_id":"req-secret",`+
		`"remote_host":"10.9.8.7","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":%d,"remote_blocks_expiry_time":%s,`+
		`"remote_registration_generation":1,"transfer_mode":"pull"%s}`, prefill, !prefill, jsonOf([][]int{blocks}), id, n, expiry, tail)
}

const fingerprint = `"vllm-0.33.0-cafe"`

// good answers as vLLM 0.33 does.
func good(s *stub, w http.ResponseWriter, req *http.Request, c call) {
	f := c.fields()
	ids := f.tokens()
	switch {
	case strings.HasSuffix(c.path, "/render"):
		_, _ = fmt.Fprintf(w, `{"token_ids":%s}`, jsonOf(ids))
		return
	case c.path == "/tokenize":
		_, _ = fmt.Fprintf(w, `{"count":%d,"tokens":%s}`, len(ids), jsonOf(ids))
		return
	case c.path == "/detokenize":
		_, _ = io.WriteString(w, `{"prompt":"x"}`)
		return
	}
	if s.prefill {
		cached := 0
		_ = json.Unmarshal([]byte(f.param("remote_num_tokens")), &cached) // 0 without a handle
		kv := params(true, s.id, len(ids), min(cached, len(ids)-1))
		if f.Stream {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {}\n\n")
			return
		}
		prompt := "null"
		if c.path == chatPath && strings.Contains(c.body, `"return_token_ids":true`) {
			prompt = jsonOf(ids)
		}
		_, _ = fmt.Fprintf(w, `{"id":"p","choices":[{"index":0,"message":{"content":"o"},"finish_reason":"length"}],"usage":{"prompt_tokens":%d,"completion_tokens":1},"prompt_token_ids":%s,"kv_transfer_params":%s}`, len(ids), prompt, kv)
		return
	}
	place := "finish"
	if !strings.Contains(string(f.Params), `"do_remote_prefill":true`) {
		place = "none"
	}
	if f.Stream {
		streamed(place)(s, w, req, c)
		return
	}
	kv := "null"
	if place != "none" {
		kv = params(false, s.id, len(ids)+2, 0)
	}
	promptIDs, tokenIDs := "null", "null"
	if f.IDs {
		promptIDs, tokenIDs = jsonOf(ids), `[111,107,10]`
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"id":"d","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop","stop_reason":null,"token_ids":%s}],"system_fingerprint":%s,`+
		`"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":3},"prompt_token_ids":%s,"kv_transfer_params":%s}`,
		tokenIDs, fingerprint, len(ids), len(ids)+3, promptIDs, kv)
}

// chunks are the events of a good D's stream, with the handle in its place: first, finish, usage,
// own, none.
func chunks(s *stub, c call, place string) []string {
	f := c.fields()
	ids := f.tokens()
	kv := params(false, s.id, len(ids)+2, 0)
	at := func(where string) string {
		if place == where {
			return `,"kv_transfer_params":` + kv
		}
		return ""
	}
	promptIDs, one, two := "null", "null", "null"
	if f.IDs {
		promptIDs, one, two = jsonOf(ids), "[111]", "[107,10]"
	}
	null := func(where string) string {
		if s := at(where); s != "" {
			return s
		}
		return `,"kv_transfer_params":null`
	}
	const head = `data: {"id":"d","object":"chat.completion.chunk","created":1,"model":"m",`
	finger := `,"system_fingerprint":` + fingerprint
	out := []string{
		head + `"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"prompt_token_ids":` + promptIDs + "}\n\n",
		head + `"choices":[{"index":0,"delta":{"content":"o"},"finish_reason":null,"token_ids":` + one + `}]` + null("first") + "}\n\n",
	}
	if f.Options.Usage {
		finger = ""
	}
	out = append(out, head+`"choices":[{"index":0,"delta":{"content":"k"},"finish_reason":"stop","stop_reason":null,"token_ids":`+two+`}]`+finger+null("finish")+"}\n\n")
	if f.Options.Usage {
		out = append(out, head+fmt.Sprintf(`"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":3}`, len(ids), len(ids)+3)+
			`,"system_fingerprint":`+fingerprint+at("usage")+"}\n\n")
	}
	if place == "own" {
		out = append(out, head+`"choices":[]`+at("own")+"}\n\n")
	}
	return append(out, "data: [DONE]\n\n")
}

// streamed is a good stream with the handle in place.
func streamed(place string) answer {
	return func(s *stub, w http.ResponseWriter, _ *http.Request, c call) {
		send(w, eventStream, chunks(s, c, place)...)
	}
}

const eventStream = "text/event-stream; charset=utf-8"

// send writes pieces, each by itself.
func send(w http.ResponseWriter, contentType string, pieces ...string) {
	if contentType == "" {
		w.Header()["Content-Type"] = nil // none, and no guess
	} else {
		w.Header().Set("Content-Type", contentType)
	}
	rc := http.NewResponseController(w)
	for _, p := range pieces {
		if _, err := io.WriteString(w, p); err != nil {
			return
		}
		_ = rc.Flush() // fails if the reader has left
	}
}

// says is an answer of the given status, body and headers (name, value, …).
func says(status int, body string, header ...string) answer {
	return func(_ *stub, w http.ResponseWriter, _ *http.Request, _ call) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Add(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// pieces is a reply of status 200 written piece by piece.
func pieces(contentType string, p ...string) answer {
	return func(_ *stub, w http.ResponseWriter, _ *http.Request, _ call) { send(w, contentType, p...) }
}

// reset breaks the connection without a byte.
func reset(*stub, http.ResponseWriter, *http.Request, call) { panic(http.ErrAbortHandler) }

// cutAfter sends pieces of a stream and breaks the connection.
func cutAfter(p ...string) answer {
	return func(_ *stub, w http.ResponseWriter, _ *http.Request, _ call) {
		send(w, eventStream, p...)
		panic(http.ErrAbortHandler)
	}
}

// hang says that it was asked and answers nothing until the caller leaves.
func hang(asked chan<- struct{}) answer {
	return func(_ *stub, _ http.ResponseWriter, req *http.Request, _ call) {
		asked <- struct{}{}
		<-req.Context().Done()
	}
}

// rig is a router in front of two stubs.
type rig struct {
	p, d       *stub
	router     *router.Router
	url, admin string
	receipts   *telemetry.Receipts
	lines      *bytes.Buffer // receipts as written
	log        *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newRig starts a router with proven engines. The engines are asked how they are only once, so that
// nothing happens but what the test does.
func newRig(t testing.TB, change ...func(*router.Config)) *rig {
	t.Helper()
	g := &rig{p: newStub(t, true), d: newStub(t, false), lines: new(bytes.Buffer), log: new(lockedBuffer)}
	g.receipts = telemetry.NewReceipts(4096, g.lines)
	cfg := router.DefaultConfig()
	cfg.Return, cfg.Append = false, false
	cfg.Prefill, cfg.Decode, cfg.HealthInterval, cfg.Receipts = g.p.URL, g.d.URL, time.Hour, g.receipts
	cfg.Log = slog.New(slog.NewTextHandler(g.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	for _, f := range change {
		f(&cfg)
	}
	g.start(t, cfg)
	g.p.says()
	g.d.says()
	return g
}

func (g *rig) start(t testing.TB, cfg router.Config) {
	t.Helper()
	var err error
	if g.router, err = router.New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.router.Close)
	front, admin := httptest.NewServer(g.router.Handler()), httptest.NewServer(g.router.Admin())
	t.Cleanup(front.Close)
	t.Cleanup(admin.Close)
	g.url, g.admin = front.URL, admin.URL
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := g.router.Ready(ctx); err != nil {
		t.Fatal(err)
	}
}

// heard is what a client got.
type heard struct {
	status int
	header http.Header
	body   string
	err    error // the body ended early
}

// post sends body to the router. header is name, value, …
func (g *rig) post(t testing.TB, path, body string, header ...string) heard {
	t.Helper()
	return g.do(t, http.MethodPost, path, strings.NewReader(body), header...)
}

// do sends a request to the router's clients' side and checks that nothing shows that no client may see.
func (g *rig) do(t testing.TB, method, path string, body io.Reader, header ...string) heard {
	t.Helper()
	h := do(t, method, g.url+path, body, header...)
	for _, secret := range []string{"kv_transfer_params", "10.9.8.7", "req-secret", "127.0.0.1"} {
		if strings.Contains(h.body+fmt.Sprint(h.header), secret) {
			t.Errorf("the client sees %q: %.2000s", secret, h.body)
		}
	}
	return h
}

func do(t testing.TB, method, url string, body io.Reader, header ...string) heard {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return heard{res.StatusCode, res.Header, string(b), err}
}

// receipt is the receipt of the turn that gave h.
func (g *rig) receipt(t testing.TB, h heard) telemetry.Receipt {
	t.Helper()
	rc, ok := g.receipts.Find(h.header.Get("X-Tarik-Turn"))
	if !ok {
		t.Fatalf("no receipt for turn %q", h.header.Get("X-Tarik-Turn"))
	}
	return rc
}

// metric is the value of one sample of /metrics, "" if it is not there.
func (g *rig) metric(t testing.TB, sample string) string {
	t.Helper()
	for line := range strings.SplitSeq(do(t, http.MethodGet, g.admin+"/metrics", nil).body, "\n") {
		if v, ok := strings.CutPrefix(line, sample+" "); ok {
			return v
		}
	}
	return ""
}

// chat is the body of a turn of these contents, user and assistant in turn.
func chat(stream bool, contents ...string) string {
	var ms []map[string]string
	for i, c := range contents {
		ms = append(ms, map[string]string{"role": []string{"user", "assistant"}[i%2], "content": c})
	}
	return jsonOf(map[string]any{"model": "m", "messages": ms, "stream": stream, "max_tokens": 8})
}

// long is a text of n bytes, so many tokens to a stub.
func long(n int) string { return strings.Repeat("x", n) }

// errorCode is the code in an OpenAI error body.
func (h heard) errorCode() string {
	var v struct {
		Error struct {
			Code    any
			Message string
			Type    string
		}
	}
	if json.Unmarshal([]byte(h.body), &v) != nil || v.Error.Message == "" || v.Error.Type == "" {
		return "no error object: " + h.body
	}
	return fmt.Sprint(v.Error.Code)
}

// live is a streamed reply that is read event by event.
type live struct {
	*http.Response
	r     *bufio.Reader
	leave context.CancelFunc
}

// open starts a turn and returns when its first bytes are there.
func (g *rig) open(t testing.TB, path, body string) *live {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return &live{res, bufio.NewReader(res.Body), cancel}
}

// event reads one event.
func (l *live) event(t testing.TB) string {
	t.Helper()
	var ev string
	for !strings.HasSuffix(ev, "\n\n") {
		line, err := l.r.ReadString('\n')
		if ev += line; err != nil {
			t.Fatalf("after %q: %v", ev, err)
		}
	}
	return ev
}

// rest reads to the end.
func (l *live) rest() (string, error) {
	b, err := io.ReadAll(l.r)
	return string(b), err
}

func copyText(to *strings.Builder, from io.Reader) (int64, error) { return io.Copy(to, from) }
