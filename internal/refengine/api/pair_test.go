package api

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
	"github.com/tarik-kv/tarik/internal/refengine/model"
	"github.com/tarik-kv/tarik/internal/refengine/tokenizer"
)

// newEngine starts a real engine with the built-in model behind a server.
func newEngine(t *testing.T, version, role string) (*Server, *engine.Engine) {
	t.Helper()
	tok, template := tokenizer.Tiny()
	cfg := engine.Config{
		Version: version, ModelName: testModel, BlockSize: 16, Blocks: 400, MaxModelLen: 4096, PrefixCaching: true,
		SideChannelHost: "127.0.0.1", HandshakeTimeout: 200 * time.Millisecond,
	}
	if role != "" {
		kv, err := engine.ParseKVTransferConfig(fmt.Appendf(nil,
			`{"kv_connector":"NixlConnector","kv_role":%q,"kv_connector_extra_config":{"bidirectional_kv_xfer":true}}`, role), version)
		if err != nil {
			t.Fatal(err)
		}
		cfg.KV = kv
	}
	e, err := engine.New(cfg, model.Tiny(1, tok.VocabSize(), tokenizer.TinyEmission(), tok.EOS()), tok.EOS())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return New(Options{
		Engine: e, Tokenizer: tok, Template: template, ModelName: testModel, Version: version,
		PromptTokensDetails: true, EnableScaleOut: true, AllowFaultHeader: true,
	}), e
}

const history = `{"role":"user","content":"please list the files of the project and say what each one is for, one line for each file, in the order of the list"}`

// turn is what one request to one engine gave.
type turn struct {
	Text   string
	IDs    []int32
	Finish string
	KV     json.RawMessage
	Cached int
}

func ask(t *testing.T, s *Server, body string) turn {
	t.Helper()
	w := post(t, s, "/v1/chat/completions", body)
	docs := []string{w.Body.String()}
	if strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream") {
		docs = dataEvents(w.Body.String())
		docs = docs[:len(docs)-1]
	}
	var out turn
	for _, data := range docs {
		var doc struct {
			chatDoc
			Choices []struct {
				Message, Delta *chatText
				IDs            []int32 `json:"token_ids"`
				Finish         string  `json:"finish_reason"`
			} `json:"choices"`
		}
		if err := json.Unmarshal([]byte(data), &doc); err != nil || w.Code != 200 {
			t.Fatalf("status %d: %s", w.Code, data)
		}
		if doc.Usage != nil && doc.Usage.Details != nil {
			out.Cached = doc.Usage.Details.Cached
		}
		if !isNull(doc.KV) {
			out.KV = doc.KV
		}
		for _, c := range doc.Choices {
			for _, m := range []*chatText{c.Message, c.Delta} {
				if m != nil && m.Content != nil {
					out.Text += *m.Content
				}
			}
			out.IDs = append(out.IDs, c.IDs...)
			if c.Finish != "" {
				out.Finish = c.Finish
			}
		}
	}
	return out
}

func chatBody(messages, kv string, more ...string) string {
	if kv != "" {
		more = append(more, `"kv_transfer_params":`+kv)
	}
	return `{"temperature":0,"return_token_ids":true,"messages":[` + messages + `]` + strings.Join(append([]string{""}, more...), ",") + `}`
}

const nullForm = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// A conversation of two turns over a real pair: with the handle from D's stream the second turn gives the
// tokens that an engine alone gives, and P has pulled.
func TestPair(t *testing.T) {
	t.Parallel()
	alone, _ := newEngine(t, "0.33.0", "")
	p, pe := newEngine(t, "0.33.0", "kv_producer")
	d, de := newEngine(t, "0.33.0", "kv_consumer")

	one := `"max_tokens":1`
	stream := `"max_tokens":100,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}`
	want := ask(t, alone, chatBody(history, "", stream))
	a := ask(t, p, chatBody(history, nullForm, one))
	got := ask(t, d, chatBody(history, string(a.KV), stream))
	handle := got.KV
	want.KV, got.KV = nil, nil
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("turn 1 (-alone +pair):\n%s", d)
	}

	// The next prompt as ids: exactly what D holds, then a new message.
	prompt := func(n int) []int32 {
		var doc struct {
			Tokens []int32 `json:"tokens"`
		}
		if err := json.Unmarshal(post(t, alone, "/tokenize", `{"messages":[`+history+`]}`).Body.Bytes(), &doc); err != nil {
			t.Fatal(err)
		}
		return slices.Concat(doc.Tokens, got.IDs, doc.Tokens[:n])
	}(20)
	ids, err := json.Marshal(prompt)
	if err != nil {
		t.Fatal(err)
	}
	exact := func(kv string) string {
		return strings.TrimSuffix(kv, "}") + `,"prompt_token_ids":` + string(ids) + `}`
	}
	want = ask(t, alone, chatBody(history, exact(`{"x":0`), stream))
	a = ask(t, p, chatBody(history, exact(string(handle)), one))
	got = ask(t, d, chatBody(history, exact(string(a.KV)), stream))
	if d := cmp.Diff(want.IDs, got.IDs); d != "" {
		t.Errorf("turn 2 (-alone +pair):\n%s", d)
	}
	if stats := pe.Snapshot(); stats.BytesTransferred.Count != 1 || stats.PromptExternal == 0 {
		t.Errorf("P pulled %d tokens in %d transfers", stats.PromptExternal, stats.BytesTransferred.Count)
	}
	for _, e := range []*engine.Engine{pe, de} {
		if err := e.CheckAccounting(); err != nil {
			t.Error(err)
		}
	}
}

// A handle that points nowhere is a 500 in the recorded words, and the engine goes on.
func TestPairFailedPull(t *testing.T) {
	t.Parallel()
	p, pe := newEngine(t, "0.33.0", "kv_producer")
	bad := `{"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[1,2,3,4,5,6,7,8,9,10]],"remote_engine_id":"x","remote_request_id":"y","remote_host":"127.0.0.1","remote_port":1,"tp_size":1,"remote_num_tokens":160}`
	w := post(t, p, "/v1/completions", `{"max_tokens":1,"prompt":"`+strings.Repeat(" file", 200)+`","kv_transfer_params":`+bad+`}`)
	if d := cmp.Diff(compact(t, read(t, "0.33.0", "bad-port.p.json")), w.Body.String()); d != "" || w.Code != 500 {
		t.Errorf("status %d (-recorded +ours):\n%s", w.Code, d)
	}
	if got := pe.Snapshot().FailedTransfers; got != 1 {
		t.Errorf("failed transfers = %d, want 1", got)
	}
	if w := post(t, p, "/v1/completions", `{"max_tokens":1,"prompt":"file"}`); w.Code != 200 {
		t.Errorf("next request: status %d", w.Code)
	}
}

// An engine that is killed is a connection that breaks.
func TestKilledEngine(t *testing.T) {
	t.Parallel()
	s, e := newEngine(t, "0.33.0", "")
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	resp := do(t, srv, `{"prompt":"file","max_tokens":4000,"ignore_eos":true,"stream":true}`)
	defer resp.Body.Close()
	buf := make([]byte, 1)
	if _, err := resp.Body.Read(buf); err != nil {
		t.Fatal(err)
	}
	e.Kill()
	var err error
	for err == nil {
		_, err = resp.Body.Read(make([]byte, 1<<16))
	}
	if !strings.Contains(err.Error(), "unexpected EOF") {
		t.Errorf("after the kill: %v, want an unexpected end", err)
	}
}
