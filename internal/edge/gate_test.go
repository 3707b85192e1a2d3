package edge

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tarik-kv/tarik/internal/tenant"
)

// gated is a server with a Gate in front of h.
type gated struct {
	*started
	gate *tenant.Gate
}

func startGated(t *testing.T, g *tenant.Gate, o GateOptions, h http.HandlerFunc) *gated {
	t.Helper()
	s := &started{t: t, log: &testLog{}, metrics: prometheus.NewRegistry()}
	m := NewMetrics(s.metrics)
	m.Watch(s.metrics, g.Limiter)
	o.Log, o.Metrics = s.log.logger(), m
	var err error
	if s.Server, err = Listen(local(), Gate(h, g, o), Options{Log: s.log.logger(), Metrics: m}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(0) })
	return &gated{s, g}
}

// idle waits until nothing is in flight any more: leases are given back just after the answer. It fails if they
// are not.
func (g *gated) idle() {
	g.t.Helper()
	for range 5000 {
		if st := g.gate.Stats(); st.Requests == 0 && st.PromptBytes == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	g.t.Errorf("something is still in flight: %+v", g.gate.Stats())
}

// who answers with what a handler gets to see of a request.
func who(w http.ResponseWriter, req *http.Request) {
	id, ok := tenant.FromContext(req.Context())
	b, _ := io.ReadAll(req.Body)
	for _, name := range []string{"Accept-Encoding", "User-Agent", "Content-Length"} {
		req.Header.Del(name)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"tenant": id.Tenant, "key": id.Key, "known": ok, "header": req.Header, "body": len(b)})
}

func errorOf(code, kind, message string) string {
	return fmt.Sprintf(`{"error":{"message":%q,"type":%q,"param":null,"code":%q}}`, message, kind, code)
}

func TestAuthentication(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keys := fmt.Sprintf("keys:\n  - {tenant: acme, name: ci, key_sha256: \"%x\"}\n  - {tenant: globex, name: old, key_sha256: \"%x\", expires: 2001-01-01}\n", sum("good"), sum("old"))
	g, err := tenant.New(tenant.Config{Auth: []tenant.AuthConfig{
		{Keys: &tenant.KeysConfig{File: write(t, dir, "keys.yaml", []byte(keys))}},
		{JWT: &tenant.JWTConfig{Issuer: "https://issuer.example", AnyAudience: true, JWKSURL: "http://127.0.0.1:1/jwks"}},
		{Header: &tenant.HeaderConfig{Name: "X-Tenant", TrustedPeers: []string{"127.0.0.1"}}},
	}}, tenant.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	s := startGated(t, g, GateOptions{}, who)
	c := client(t, nil)
	f := func(path string, wantStatus int, wantBody string, headers ...string) *http.Response {
		t.Helper()
		status, body, res, err := call(t, c, "POST", s.URL()+path, strings.NewReader("abc"), headers...)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]any{wantStatus, wantBody}, []any{status, strings.TrimSpace(body)}); diff != "" {
			t.Errorf("%s %q (-want +got):\n%s", path, headers, diff)
		}
		return res
	}
	const path = "/v1/chat/completions"
	const acme = `{"body":3,"header":{},"key":"ci","known":true,"tenant":"acme"}`
	f(path, 200, acme, "Authorization", "Bearer good")
	f(path, 200, acme, "X-Api-Key", "good")
	f("/v1/messages", 200, acme, "X-Api-Key", "good", "X-Tenant", "globex") // the header means nothing beside a key
	f(path, 200, `{"body":3,"header":{},"key":"header","known":true,"tenant":"initech"}`, "X-Tenant", "initech")

	const none = `the request carries no credential; send "Authorization: Bearer KEY" or "X-Api-Key: KEY"`
	res := f(path, 401, errorOf("no-credential", "AuthenticationError", none))
	if got := res.Header.Get("WWW-Authenticate"); got != `Bearer realm="tarik"` {
		t.Errorf("WWW-Authenticate: %s", got)
	}
	f("/v1/messages", 401, `{"type":"error","error":{"type":"authentication_error","message":"the request carries no credential; send \"Authorization: Bearer KEY\" or \"X-Api-Key: KEY\""}}`)
	f("/v1/messages/count_tokens", 401, `{"type":"error","error":{"type":"authentication_error","message":"the credential is not known here"}}`, "X-Api-Key", "bad")
	f(path, 401, errorOf("unknown-credential", "AuthenticationError", "the credential is not known here"), "Authorization", "Bearer bad")
	f(path, 401, errorOf("expired", "AuthenticationError", "the key has expired"), "Authorization", "Bearer old")
	f(path, 401, errorOf("several-credentials", "AuthenticationError", "the request carries different credentials; send one, in Authorization or in X-Api-Key"), "Authorization", "Bearer good", "X-Api-Key", "bad")
	f(path, 403, errorOf("no-tenant", "PermissionDeniedError", "the header X-Tenant does not name one tenant"), "X-Tenant", "a", "X-Tenant", "b")
	// A token whose issuer cannot be reached: nobody knows, so nobody is refused for good.
	token := "eyJhbGciOiJSUzI1NiIsImtpZCI6ImEifQ.eyJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwiZXhwIjo5OTk5OTk5OTk5fQ.AAAA"
	status, body, res, err := call(t, c, "POST", s.URL()+path, nil, "Authorization", "Bearer "+token)
	if err != nil || status != 503 || !strings.Contains(body, `"code":"keys-unavailable"`) || res.Header.Get("Retry-After") == "" {
		t.Errorf("an issuer that is down: %d %s %v %v, want 503 with Retry-After", status, body, res.Header, err)
	}
	// Health is for everybody.
	if status, _, _, err := call(t, c, "GET", s.URL()+"/health", nil); err != nil || status != 200 {
		t.Errorf("GET /health: %d, %v", status, err)
	}
	s.idle()
	if n := count(t, s.metrics, "tarik_edge_requests_refused_total", "401", "unknown-credential"); n != 2 {
		t.Errorf("%v unknown credentials counted, want 2", n)
	}
	log := s.log.String()
	if n := strings.Count(log, "reason=unknown-credential"); n != 1 {
		t.Errorf("%d lines about unknown credentials, want one for both:\n%s", n, log)
	}
	for _, secret := range []string{"Bearer", "good", "bad ", token} {
		if strings.Contains(log, secret) {
			t.Errorf("the log shows %q:\n%s", secret, log)
		}
	}
}

// What a handler sees of the headers: nothing that steers, and the client's credentials only if they are not the
// router's.
func TestHeaders(t *testing.T) {
	t.Parallel()
	f := func(g *tenant.Gate, want string, headers ...string) {
		t.Helper()
		s := startGated(t, g, GateOptions{}, who)
		status, body, _, err := call(t, client(t, nil), "GET", s.URL()+"/x", nil, headers...)
		if err != nil || status != 200 {
			t.Fatal(status, body, err)
		}
		var got struct{ Header http.Header }
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		shown, err := json.Marshal(got.Header)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(shown)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", headers, diff)
		}
	}
	nobody, acme := newGate(t, tenant.LimitsConfig{}), newGate(t, tenant.LimitsConfig{}, "acme")
	f(nobody, `{"Authorization":["Bearer theirs"],"X-Api-Key":["theirs"]}`, "Authorization", "Bearer theirs", "X-Api-Key", "theirs")
	f(acme, `{}`, "Authorization", "Bearer key-of-acme", "X-Api-Key", "key-of-acme")
	f(nobody, `{"X-Request-Id":["1"],"X-Session-Id":["s"]}`, "X-Request-Id", "1", "X-Session-Id", "s",
		"X-Tarik-Turn", "x", "x-data-parallel-rank", "3", "X-VLLM-Anything", "x", "x-prefiller-url", "http://attacker.test", "X-Prefiller-Host-Port", "a:1",
		"x-kv-source", "a", "X_Tarik_Turn", "x", "x_data-parallel_rank", "1", "X-Decoder-Url", "x", "X-Encoder-Hosts-Ports", "x",
		"X-Gateway-Destination-Endpoint", "a:1", "X-Worker-Instance-Id", "x", "X-Dp-Rank", "0")
	f(nobody, `{"X-Claude-Code-Session-Id":["b"],"X-Conversation-Id":["a"],"X-Dynamo-Session-Id":["c"]}`, "X-Conversation-Id", "a", "X-Claude-Code-Session-Id", "b", "X-Dynamo-Session-ID", "c")
}

// TestJ02BodyLimit: bodies up to the limit are taken, longer ones get 413 at once, whatever they declare.
func TestJ02BodyLimit(t *testing.T) {
	t.Parallel()
	const most = 1 << 20
	g := newGate(t, tenant.LimitsConfig{Global: tenant.Limits{BodyBytes: most}})
	var read atomic.Int64
	s := startGated(t, g, GateOptions{}, func(w http.ResponseWriter, req *http.Request) {
		n, err := io.Copy(io.Discard, req.Body)
		read.Store(n)
		if err != nil {
			http.Error(w, "the handler's own words: "+err.Error(), http.StatusBadRequest)
			return
		}
		_, _ = fmt.Fprintf(w, "%d %s", n, req.Header.Get("Content-Encoding"))
	})
	zipped := func(n int) io.Reader {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(make([]byte, n))
		_ = z.Close()
		return bytes.NewReader(b.Bytes())
	}
	// A reader whose length the client does not know, so that it sends chunks.
	chunked := func(n int) io.Reader { return io.MultiReader(bytes.NewReader(make([]byte, n))) }
	c := client(t, nil)
	f := func(what string, body io.Reader, want string, headers ...string) {
		t.Helper()
		status, text, _, err := call(t, c, "POST", s.URL()+"/v1/completions", body, headers...)
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if diff := cmp.Diff(want, fmt.Sprintf("%d %s", status, text)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		s.idle()
	}
	tooLarge := "413 " + errorOf("body-too-large", "RequestTooLargeError", "the request is larger than the router's limit of 1048576 bytes")
	f("the limit, declared", bytes.NewReader(make([]byte, most)), "200 1048576 ")
	f("the limit, not declared", chunked(most), "200 1048576 ")
	f("a byte more, declared", bytes.NewReader(make([]byte, most+1)), tooLarge)
	f("a byte more, not declared", chunked(most+1), tooLarge)
	f("the limit, compressed", zipped(most), "200 1048576 ", "Content-Encoding", "gzip")
	f("a byte more, compressed", zipped(most+1), tooLarge, "Content-Encoding", "GZIP")
	f("a gigabyte in a megabyte", zipped(64<<20), tooLarge, "Content-Encoding", "gzip")
	f("not gzip", strings.NewReader("hello, this is plain"), "400 "+errorOf("bad-request", "BadRequestError", "request body: not gzip, though Content-Encoding says so: gzip: invalid header"), "Content-Encoding", "gzip")
	f("nothing, and not gzip", io.MultiReader(), "400 "+errorOf("bad-request", "BadRequestError", "request body: not gzip, though Content-Encoding says so: EOF"), "Content-Encoding", "gzip")
	f("another coding", strings.NewReader("abc"), "200 3 br", "Content-Encoding", "br")
	f("nothing", nil, "200 0 ")

	// The answer to a declared size comes before the body does.
	status, _, header := dial(t, s.addr()).send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2147483648\r\n\r\n").answer()
	if status != 413 || header.Get("Connection") != "close" {
		t.Errorf("2 GiB declared: %d %v, want 413 on a connection that closes", status, header)
	}
	status, _, _ = dial(t, s.addr()).send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2147483648\r\n\r\n").answer()
	if status != 413 {
		t.Errorf("2 GiB declared to a client that waits: %d, want 413", status)
	}
	// And that to an undeclared one as soon as there is a byte too many, though the client has not finished.
	c2 := dial(t, s.addr()).send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n100001\r\n" + strings.Repeat("x", most+1) + "\r\n")
	if status, body, header := c2.answer(); status != 413 || "413 "+body != tooLarge || header.Get("Connection") != "close" {
		t.Errorf("a byte too many of an unfinished body: %d %s %v, want 413 on a connection that closes", status, body, header)
	}
	if status, _, _ := dial(t, s.addr()).send("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n").answer(); status != 200 {
		t.Errorf("OPTIONS *: %d, want what the handler says", status)
	}
	s.idle()
	if n := count(t, s.metrics, "tarik_edge_requests_refused_total", "413", "body-too-large", "global"); n != 7 {
		t.Errorf("%v counted, want 7", n)
	}
	if !strings.Contains(s.log.String(), "reason=body-too-large") {
		t.Errorf("nothing in the log:\n%s", s.log)
	}
}

// A client that sends all of its body before it reads gets its answer all the same, not a reset connection, whether
// the router refused it before the body, in the middle of it, or answered without reading it; and it takes no place
// meanwhile.
func TestRefusedClientThatSendsFirst(t *testing.T) {
	t.Parallel()
	g := newGate(t, tenant.LimitsConfig{Global: tenant.Limits{BodyBytes: 4 << 20}}, "acme")
	s := startGated(t, g, GateOptions{}, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/unread" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		echo(w, req)
	})
	const size = 12 << 20
	f := func(what, path, key string, chunks bool, want int) {
		t.Helper()
		c := dial(t, s.addr())
		head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nX-Api-Key: %s\r\n", path, key)
		piece := strings.Repeat("x", 1<<20)
		if chunks {
			c.send(head + "Transfer-Encoding: chunked\r\n\r\n")
			piece = "100000\r\n" + piece + "\r\n"
		} else {
			c.send(head + fmt.Sprintf("Content-Length: %d\r\n\r\n", size))
		}
		for range size >> 20 {
			c.send(piece)
		}
		s.idle()
		if chunks {
			c.send("0\r\n\r\n")
		}
		if status, _, _ := c.answer(); status != want {
			t.Errorf("%s: %d, want %d", what, status, want)
		}
	}
	f("no key", "/x", "bad", false, 401)
	f("too large, declared", "/x", "key-of-acme", false, 413)
	f("too large, not declared", "/x", "key-of-acme", true, 413)
	f("no key, chunks", "/x", "bad", true, 401)
	f("not read", "/unread", "key-of-acme", true, 404)
}

// Limits that are met answer 429, or 503 if they are everybody's, with the time to come back, and take nothing.
func TestLimits(t *testing.T) {
	t.Parallel()
	start, leave := make(chan struct{}), make(chan struct{})
	hold := func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		start <- struct{}{}
		<-leave
		w.WriteHeader(http.StatusNoContent)
	}
	f := func(what string, limits tenant.LimitsConfig, body int, second string, wantStatus int, wantBody string) {
		t.Helper()
		g := newGate(t, limits, "acme", "globex")
		s := startGated(t, g, GateOptions{Now: func() time.Time { return time.Unix(1e9, 0) }}, hold)
		c := client(t, nil)
		first := make(chan int)
		go func() {
			status, _, _, _ := call(t, c, "POST", s.URL()+"/x", bytes.NewReader(make([]byte, body)), "X-Api-Key", "key-of-acme") // 0 is seen below
			first <- status
		}()
		<-start
		status, text, res, err := call(t, c, "POST", s.URL()+"/x", bytes.NewReader(make([]byte, body)), "X-Api-Key", "key-of-"+second)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]any{wantStatus, wantBody}, []any{status, text}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		if after := res.Header.Get("Retry-After"); (after == "") != (wantStatus == 413) {
			t.Errorf("%s: Retry-After %q", what, after)
		}
		if st := g.Stats(); st.Requests != 1 || st.PromptBytes != int64(body) {
			t.Errorf("%s: %+v in flight, want the first request", what, st)
		}
		leave <- struct{}{}
		if got := <-first; got != http.StatusNoContent {
			t.Errorf("%s: the first got %d", what, got)
		}
		s.idle()
	}
	one := tenant.Limits{Concurrent: 1}
	f("a tenant's places", tenant.LimitsConfig{Tenant: one}, 10, "acme", 429, errorOf("concurrency", "RateLimitError", "this tenant's limit of 1 requests at a time is reached; try again in 1 s"))
	f("everybody's places", tenant.LimitsConfig{Global: one, FairShare: 1}, 10, "globex", 503, errorOf("concurrency", "ServiceUnavailableError", "the router's limit of 1 requests at a time is reached; try again in 1 s"))
	f("a tenant's rate", tenant.LimitsConfig{Tenant: tenant.Limits{RequestsPerMinute: 6, Burst: 1}}, 10, "acme", 429, errorOf("rate", "RateLimitError", "this tenant's limit of 6 requests a minute is used up; try again in 10 s"))
	f("a tenant's bytes", tenant.LimitsConfig{Tenant: tenant.Limits{PromptBytes: 150}}, 100, "acme", 429, errorOf("prompt-bytes", "RateLimitError", "this tenant's limit of 150 bytes of requests in flight is reached; try again in 1 s"))
}

// A body of no declared size is let in, and refused as soon as there is no more room for it.
func TestGrowingBodyMeetsLimit(t *testing.T) {
	t.Parallel()
	g := newGate(t, tenant.LimitsConfig{Tenant: tenant.Limits{PromptBytes: 1000}}, "acme")
	held := make(chan struct{})
	s := startGated(t, g, GateOptions{}, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/hold" {
			held <- struct{}{}
			<-held
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return // and says nothing: the refusal is still the answer
		}
		w.WriteHeader(http.StatusNoContent)
	})
	c := client(t, nil)
	first := make(chan int)
	go func() {
		status, _, _, _ := call(t, c, "POST", s.URL()+"/hold", bytes.NewReader(make([]byte, 600)), "X-Api-Key", "key-of-acme") // 0 is seen below
		first <- status
	}()
	<-held
	status, body, res, err := call(t, c, "POST", s.URL()+"/x", io.MultiReader(bytes.NewReader(make([]byte, 500))), "X-Api-Key", "key-of-acme")
	if want := errorOf("prompt-bytes", "RateLimitError", "this tenant's limit of 1000 bytes of requests in flight is reached; try again in 1 s"); err != nil || status != 429 || body != want || res.Header.Get("Retry-After") != "1" {
		t.Errorf("got %d %s %v, want 429 %s", status, body, err, want)
	}
	held <- struct{}{}
	if got := <-first; got != http.StatusNoContent {
		t.Errorf("the first got %d", got)
	}
	s.idle()
}

// However a request ends, its place and its bytes are given back.
func TestLeaseIsReleased(t *testing.T) {
	t.Parallel()
	g := newGate(t, tenant.LimitsConfig{Global: tenant.Limits{BodyBytes: 1 << 20}})
	entered := make(chan struct{}, 1)
	s := startGated(t, g, GateOptions{}, func(w http.ResponseWriter, req *http.Request) {
		if g.Stats().Requests != 1 {
			t.Errorf("%+v in flight, want this request", g.Stats())
		}
		switch req.URL.Path {
		case "/panic":
			panic("BUG: edge_test")
		case "/abort":
			_, _ = io.Copy(io.Discard, req.Body)
			panic(http.ErrAbortHandler)
		case "/unread":
			w.WriteHeader(http.StatusNoContent)
		case "/wait":
			_, _ = io.Copy(io.Discard, req.Body)
			entered <- struct{}{}
			<-req.Context().Done()
		case "/stuck":
			entered <- struct{}{}
			if _, err := io.Copy(io.Discard, req.Body); err == nil {
				t.Error("half a body looks whole")
			}
		default:
			echo(w, req)
		}
	})
	c := client(t, nil)
	for _, path := range []string{"/whole", "/panic", "/abort", "/unread"} {
		_, _, _, _ = call(t, c, "POST", s.URL()+path, bytes.NewReader(make([]byte, 100<<10))) // whatever it gets
		s.idle()
	}
	for _, path := range []string{"/wait", "/stuck"} {
		conn := dial(t, s.addr()).send("POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nab")
		if path == "/wait" {
			conn.send("cd")
		}
		<-entered
		_ = conn.Close() // the client leaves
		s.idle()
	}
	ctx, cancel := context.WithCancel(t.Context())
	two := client(t, func(tr *http.Transport) {
		tr.Protocols = new(http.Protocols)
		tr.Protocols.SetUnencryptedHTTP2(true)
	})
	req, err := http.NewRequestWithContext(ctx, "POST", s.URL()+"/wait", strings.NewReader("abc"))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-entered
		cancel() // a stream is reset
	}()
	if res, err := two.Do(req); err == nil {
		_ = res.Body.Close()
		t.Errorf("got %d, want the request to be cancelled", res.StatusCode)
	}
	s.idle()
}

// A refusal logs the first time and then at most every so often, with how many were not logged.
func TestRefusalsAreLoggedWithMeasure(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	var log testLog
	a := Gate(http.NotFoundHandler(), newGate(t, tenant.LimitsConfig{}, "acme"), GateOptions{Log: log.logger(), Now: func() time.Time { return now }}).(*gate)
	for range 5 {
		a.count(&refusal{status: 401, code: "expired"})
		now = now.Add(3 * time.Second)
	}
	a.count(&refusal{status: 413, code: "body-too-large", scope: tenant.KeyScope}, "key", "ci")
	var got []string
	for line := range strings.Lines(log.String()) {
		_, line, _ = strings.Cut(strings.TrimSpace(line), "level=INFO ")
		got = append(got, line)
	}
	want := []string{
		`msg="request refused" status=401 reason=expired`,
		`msg="request refused" status=401 reason=expired not_logged=3`,
		`msg="request refused" status=413 reason=body-too-large scope=key key=ci`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPeerOf(t *testing.T) {
	t.Parallel()
	f := func(remote string, want netip.Addr) {
		t.Helper()
		if got := peerOf(remote); got != want {
			t.Errorf("peerOf(%q) = %s, want %s", remote, got, want)
		}
	}
	f("10.1.2.3:456", netip.MustParseAddr("10.1.2.3"))
	f("[::ffff:10.1.2.3]:456", netip.MustParseAddr("10.1.2.3"))
	f("[fe80::1%eth0]:456", netip.MustParseAddr("fe80::1"))
	f("@", netip.Addr{}) // a Unix socket
	f("", netip.Addr{})
}
