package router

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/conv"
	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/sse"
	"github.com/tarik-kv/tarik/internal/tenant"
	"github.com/tarik-kv/tarik/internal/wire"
)

func TestUnseen(t *testing.T) {
	t.Parallel()
	var u unseen
	u.add(100, 10*time.Second)
	u.add(50, 20*time.Second)
	var got []int
	for _, now := range []time.Duration{0, 10*time.Second - 1, 10 * time.Second, 20 * time.Second, time.Hour} {
		got = append(got, u.at(now))
	}
	if d := cmp.Diff([]int{150, 150, 50, 0, 0}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestForEngineCopiesOnlyWhatConcernsIt(t *testing.T) {
	t.Parallel()
	client := http.Header{"Authorization": {"a", "b"}, "X-Request-Id": {"1"}, "Cookie": {"c"}, "Accept": {"d"}}
	if d := cmp.Diff(http.Header{"Authorization": {"a", "b"}, "Accept": {"d"}}, forEngine(client)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// FuzzRequest: whatever JSON a client sends, nothing panics, both legs get JSON, and of the fields
// that only the router may send they get the router's.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}`,
		`{"stream_options":"x","stream":true,"messages":7,"prompt":[[1]],"n":2.5}`,
		`{"stream_options":[1],"stream":1,"prompt":[1,2,3],"cache_salt":"a"}`,
		`{"messages":[{"content":[{"type":"text"},"x",3,null]}],"cache_salt":null,"KV_transfer_params":{}}`,
		`{"prompt":"","messages":[],"stream_options":null,"stream":true,"max_tokens":1,"max_tokens":2}`,
		`{}`, `{"prompt":["a",["b"]],"conversation_id":"x"}`,
	} {
		f.Add([]byte(s))
	}
	r := &Router{items: conv.NewItems(1 << 20)}
	r.salt = r.ownSalt
	a := []byte(`{"do_remote_prefill":true}`)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, ep := range []kvp.Endpoint{kvp.Chat, kvp.Completions, kvp.Responses, kvp.Messages} {
			q, fail := r.parse(ep, http.Header{}, body, tenant.Identity{})
			if fail != nil {
				if !json.Valid(fail.body()) || fail.status != http.StatusBadRequest && fail.code != "previous-response-not-found" {
					t.Errorf("refused with %d %s", fail.status, fail.body())
				}
				return
			}
			_ = q.tokenizes()
			for _, e := range []*bodyedit.Edit{
				q.prefillBody(a, nil), q.prefillBody(a, []int32{1}), q.decodeBody(a, []int32{1}, true, false), q.decodeBody(nil, nil, false, false), q.decodeBody(a, nil, false, true),
			} {
				b := e.Bytes()
				doc, err := bodyedit.Scan(b)
				if err != nil || int64(len(b)) != e.Len() {
					t.Fatalf("%q becomes %q: %v", body, b, err)
				}
				if n := doc.CountFold("kv_transfer_params"); n > 1 || n == 1 && !bytes.Contains(doc.Get("kv_transfer_params"), []byte(`"do_remote_prefill":true`)) {
					t.Errorf("%q becomes %q", body, b)
				}
				if doc.CountFold("request_id", "priority", "session_id", "conversation_id", "vllm_xargs", "ec_transfer_params") > 0 {
					t.Errorf("%q becomes %q", body, b)
				}
				if s := doc.Get("cache_salt"); string(s) != string(quote(q.salt)) && (s != nil || q.salt != "") {
					t.Errorf("%q becomes %q: another salt than %q", body, b, q.salt)
				}
			}
		}
	})
}

// The loop that every token passes through allocates nothing.
func TestTakeAllocatesNothing(t *testing.T) {
	chunk := []byte(`data: {"id":"d","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" the"},"logprobs":null,"finish_reason":null,"token_ids":[17]}],"kv_transfer_params":null}` + "\n\n")
	p := &reply{s: &stream{}}
	p.s.framer = sse.Framer{}
	p.s.filter.Reset(wire.Options{Endpoint: kvp.Chat})
	p.info = p.s.filter.Info()
	take := func() {
		p.take(chunk)
		p.s.out = p.s.out[:0]
		p.info.TokenIDs = p.info.TokenIDs[:0] // they are kept, and grow by themselves
	}
	for range 10 {
		take()
	}
	if n := testing.AllocsPerRun(500, take); n > 0 {
		t.Errorf("%v allocations a chunk, want 0", n)
	}
}

func TestCauseHidesAddresses(t *testing.T) {
	t.Parallel()
	r := &Router{client: engineClient(nil)}
	defer r.client.CloseIdleConnections()
	for _, url := range []string{"http://127.0.0.1:1/x", "http://decode-7.internal.invalid/x"} {
		_, err := r.client.Get(url)
		if err == nil {
			t.Fatalf("%s answers", url)
		}
		if s := cause(err); strings.Contains(s, "127.0.0.1") || strings.Contains(s, "internal") || s == "" {
			t.Errorf("cause(%v) = %q", err, s)
		}
	}
}
