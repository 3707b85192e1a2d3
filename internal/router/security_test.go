package router_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// stolen is what a client could have heard of another's conversation.
var stolen = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[666]],"remote_engine_id":"stolen-engine","remote_request_id":"r","remote_host":"attacker.test","remote_port":4444,"remote_num_tokens":32}`

// H01: what only the router may say never reaches an engine from a client, however it is spelled, on
// every path and both legs.
func TestH01ClientParamsNeverReachAnEngine(t *testing.T) {
	t.Parallel()
	for _, member := range []string{
		`"kv_transfer_params":` + stolen,
		`"kv_transfer_params":` + stolen + `,"kv_transfer_params":` + stolen,
		`"KV_TRANSFER_PARAMS":` + stolen,
		`"Kv_Transfer_Params":` + stolen,
		`"kv_transfer_param\u0073":` + stolen,
		`"\u006b\u0076_transfer_params":` + stolen,
		`"kv_transfer_param\u017f":` + stolen,   // folds to s
		"\"\u212av_transfer_params\":" + stolen, // folds to k
		` "kv_transfer_params" : ` + stolen + ` , "kv_transfer_params":null`,
		`"vllm_xargs":{"kv_transfer_params":` + stolen + `}`,
		`"ec_transfer_params":{"x":` + stolen + `}`,
		`"request_id":"attacker.test"`, `"priority":-666`, `"session_id":"attacker.test"`, `"conversation_id":"attacker.test"`,
		`"Request_ID":"attacker.test"`,
	} {
		for _, path := range []string{chatPath, textPath, "/tokenize", "/detokenize"} {
			for _, first := range []bool{true, false} {
				g := newRig(t)
				rest := `"model":"m","prompt":"hi","messages":[{"role":"user","content":"hi"}],"stream":true`
				b := "{" + member + "," + rest + "}"
				if !first {
					b = "{" + rest + "," + member + "}"
				}
				if h := g.post(t, path, b); h.status != 200 {
					t.Fatalf("%s: HTTP %d %s", b, h.status, h.body)
				}
				calls := append(g.p.got(), g.d.got()...)
				for _, c := range calls {
					if strings.Contains(c.body, "attacker.test") || strings.Contains(c.body, "666") || strings.Contains(c.body, "stolen") {
						t.Errorf("%s to %s: an engine was sent %s", member, path, c.body)
					}
					if !json.Valid([]byte(c.body)) {
						t.Errorf("%s to %s: an engine was sent what is no JSON: %s", member, path, c.body)
					}
				}
				if n := g.metric(t, "tarik_client_params_stripped_total"); n != "1" {
					t.Errorf("%s to %s: counted %q", member, path, n)
				}
			}
		}
	}
}

// A model may say the words, and so may a client inside its texts and tools: these are content.
func TestWordsInContentStay(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	text := `{"kv_transfer_params": {"remote_host": "x"}, "cache_salt": 1}`
	b := jsonOf(map[string]any{
		"model": "m", "messages": []any{map[string]any{"role": "user", "content": text, "kv_transfer_params": 7}},
		"tools": []any{map[string]any{"type": "function", "function": map[string]any{"name": "f", "parameters": map[string]any{"cache_salt": 1}}}},
	})
	g.post(t, chatPath, b)
	var want, got map[string]any
	if err := json.Unmarshal([]byte(b), &want); err != nil {
		t.Fatal(err)
	}
	for _, c := range append(g.p.generated(), g.d.generated()...) {
		got = nil
		if err := json.Unmarshal([]byte(c.body), &got); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want["messages"], got["messages"]) + cmp.Diff(want["tools"], got["tools"]); d != "" {
			t.Errorf("content has changed:\n%s", d)
		}
	}
}

// H02, H12: headers that engines or other routers act on end at the router. Authorization goes on.
func TestHeaders(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	own := []string{
		"X-Request-Id", "X-data-parallel-rank", "X-Vllm-Priority", "X-Session-ID", "X-Prefiller-Url", "X-Kv-Source", "X-Conversation-Id",
		"X-Forwarded-For", "Cookie", "X-Tarik-Turn", "X-Refengine-Fault", "X-Dynamo-Session-ID", "Forwarded", "Idempotency-Key",
	}
	header := []string{"Authorization", "Bearer s3cret:/+= x", "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "User-Agent", "agent/1"}
	for _, name := range own {
		header = append(header, name, "attacker,1")
	}
	for _, path := range []string{chatPath, textPath, "/tokenize"} {
		g.p.says()
		g.d.says()
		h := g.post(t, path, `{"model":"m","prompt":"hi","messages":[{"role":"user","content":"hi"}]}`, header...)
		if path != "/tokenize" && h.header.Get("X-Request-Id") != "attacker,1" {
			t.Errorf("%s: the client's id comes back as %q", path, h.header.Get("X-Request-Id"))
		}
		calls := append(g.p.got(), g.d.got()...)
		if len(calls) == 0 {
			t.Errorf("%s: no engine was called", path)
		}
		ids := map[string]bool{}
		for _, c := range calls {
			if c.fields().param("remote_num_tokens") == "0" {
				continue // the router's own: D is told that its handle is not kept
			}
			for _, name := range own {
				if v := c.header.Get(name); strings.Contains(v, "attacker") {
					t.Errorf("%s: an engine was sent %s: %s", path, name, v)
				}
			}
			for i := 0; i < 6; i += 2 {
				if got := c.header.Get(header[i]); got != header[i+1] {
					t.Errorf("%s: an engine was sent %s: %q, want %q", path, header[i], got, header[i+1])
				}
			}
			ids[c.header.Get("X-Request-Id")] = true
		}
		if path != "/tokenize" { // R26: own, hex, the same on both legs
			if len(ids) != 1 || !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(h.header.Get("X-Tarik-Turn")) || !ids[h.header.Get("X-Tarik-Turn")] {
				t.Errorf("%s: engines saw the ids %v, the turn is %s", path, ids, h.header.Get("X-Tarik-Turn"))
			}
		}
	}
}

// H06: a client's salt keeps its users apart, but no engine sees the value that another client could
// send, and both legs get the same.
func TestH06Salt(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	salt := func(client string) string {
		t.Helper()
		g.p.says()
		g.d.says()
		b := chat(true, "hi")
		if client != "" {
			b = b[:len(b)-1] + `,"cache_salt":` + client + `}`
		}
		g.post(t, chatPath, b)
		seen := map[string]bool{}
		for _, c := range append(g.p.generated(), g.d.generated()...) {
			var v struct {
				Salt string `json:"cache_salt"`
			}
			if err := json.Unmarshal([]byte(c.body), &v); err != nil {
				t.Fatal(err)
			}
			seen[v.Salt] = true
		}
		if len(seen) != 1 {
			t.Fatalf("the legs were sent the salts %v", seen)
		}
		for s := range seen {
			return s
		}
		return ""
	}
	a, again, b := salt(`"alice"`), salt(`"alic\u0065"`), salt(`"bob"`)
	if a == "" || a == "alice" || a != again || a == b || !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(a) {
		t.Errorf("salts %q, %q, %q: want hex, the same for the same, none the client's", a, again, b)
	}
	// Whoever sends what the engines were sent gets another salt again.
	if s := salt(jsonOf(a)); s == a {
		t.Errorf("the engines' salt %q can be sent by a client", s)
	}
	if s := salt(""); s != "" {
		t.Errorf("a client without salt gets %q", s)
	}
	if other := newRig(t); other != nil {
		g = other
		if s := salt(`"alice"`); s == a {
			t.Error("two routers' clients share a salt")
		}
	}
}

// H04: the same conversation name under another salt or model finds nothing, and no name that a
// client can think of does harm.
func TestH04NamesAndScopes(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	turn := func(model, salt, id string, said ...string) heard {
		t.Helper()
		b := chat(true, said...)
		b = b[:len(b)-1] + fmt.Sprintf(`,"model":%s,"cache_salt":%s,"conversation_id":%s}`, jsonOf(model), jsonOf(salt), jsonOf(id))
		h := g.post(t, chatPath, b)
		if h.status != 200 {
			t.Fatalf("HTTP %d %s", h.status, h.body)
		}
		return h
	}
	for i, id := range []string{"1", "", long(1 << 20), "a\x00b\nc", "../..", `"`} {
		text := long(100 + i)
		turn("m", "acme", id, text)
		if rc := g.receipt(t, turn("m", "globex", id, text, "ok", "next")); rc.Arm == "pull" || rc.TurnNumber != 1 {
			t.Errorf("%.20q: another salt got arm %s, turn %d", id, rc.Arm, rc.TurnNumber)
		}
		if rc := g.receipt(t, turn("m2", "acme", id, text, "ok", "next")); rc.Arm == "pull" || rc.TurnNumber != 1 {
			t.Errorf("%.20q: another model got arm %s, turn %d", id, rc.Arm, rc.TurnNumber)
		}
		if rc := g.receipt(t, turn("m", "acme", id, text, "ok", "next")); rc.Arm != "pull" {
			t.Errorf("%.20q: its own next turn got arm %s why %s", id, rc.Arm, rc.Why)
		}
	}
	// A name finds another's conversation of the same scope, and the comparison of ids refuses it.
	turn("m", "x", "shared", long(100))
	rc := g.receipt(t, turn("m", "x", "shared", strings.Repeat("y", 100), "ok", "next"))
	if rc.Arm != "recompute" || rc.Why != "no-common-prefix" {
		t.Errorf("a forged name got arm %s why %s, want recompute, no-common-prefix", rc.Arm, rc.Why)
	}
}

// H10, I09: no line of log at any level, no receipt, no metric and no answer to operators holds
// anything of a prompt, a reply, a key, a token id or a handle.
func TestI09NothingSecretIsWritten(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	const canary = "canary-7f3a"
	tool := fmt.Sprintf(`{"model":"m","stream":true,"messages":[{"role":"user","content":"%s"},{"role":"tool","content":"%s"}],"cache_salt":"%s","conversation_id":"%s","user":"%s"}`, canary, canary, canary, canary, canary)
	f := func(p, d []answer) {
		g.p.says(p...)
		g.d.says(d...)
		for _, b := range []string{tool, chat(true, canary+long(50)), chat(true, canary+long(50), "ok", canary), chat(false, canary), `{"` + canary, `{"model":"` + canary} {
			g.post(t, chatPath, b, "Authorization", "Bearer "+canary, "X-Request-Id", canary, "X-Conversation-Id", canary)
			g.post(t, textPath, `{"model":"m","prompt":"`+canary+`"}`)
			g.post(t, "/tokenize", `{"prompt":"`+canary+`"}`)
		}
	}
	f(nil, nil)
	f([]answer{says(500, canary)}, nil)
	f([]answer{says(200, canary)}, nil)
	f([]answer{says(200, `{"usage":{"prompt_tokens":3},"kv_transfer_params":{"do_remote_prefill":"`+canary+`"}}`)}, nil)
	f([]answer{says(400, canary)}, nil)
	f(nil, []answer{says(500, canary)})
	f(nil, []answer{says(200, canary)})
	f(nil, []answer{reset})
	f(nil, []answer{pieces(eventStream, `data: {"choices":[{"index":0,"delta":{"content":"`+canary+`"}}],"kv_transfer_params":{"remote_host":"10.9.8.7","do_remote_decode":"`+canary+`"}}`+"\n\n")})
	f(nil, []answer{pieces(eventStream, `data: {"error":{"message":"`+canary+`"}}`+"\n\n")})
	written := map[string]string{"log": g.log.String(), "receipts": g.lines.String()}
	for _, path := range []string{"/turns?n=1000", "/metrics", "/engines"} {
		written[path] = do(t, http.MethodGet, g.admin+path, nil).body
	}
	for where, text := range written {
		if text == "" {
			t.Errorf("%s is empty", where)
		}
		for _, secret := range []string{canary, "10.9.8.7", "req-secret", "90210017", "[111", "Bearer"} {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s shows %q: …%s…", where, secret, text[max(0, i-100):min(len(text), i+100)])
			}
		}
	}
}

// What a client chooses does not grow the router's memory: names in receipts are cut.
func TestLongModelName(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	h := g.post(t, chatPath, strings.Replace(chat(true, "hi"), `"m"`, `"`+long(1<<20)+`"`, 1))
	if rc := g.receipt(t, h); len(rc.Model) > 512 {
		t.Errorf("a receipt of a model name of %d bytes", len(rc.Model))
	}
}
