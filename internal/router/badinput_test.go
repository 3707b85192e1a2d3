package router_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/router"
)

// What is no JSON object is refused by the router, and no engine hears of it.
func TestBadBodies(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	for name, body := range map[string]string{
		"empty":            "",
		"white space":      "  \n",
		"not JSON":         "hello",
		"cut":              `{"model":"m","messages":[`,
		"array":            `[{"model":"m"}]`,
		"string":           `"m"`,
		"null":             `null`,
		"trailing garbage": chat(false, "hi") + "x",
		"two objects":      chat(false, "hi") + chat(false, "hi"),
		"NaN":              `{"model":"m","temperature":NaN}`,
		"single quotes":    `{'model':'m'}`,
		"control in text":  "{\"model\":\"m\x01\"}",
		"nested too deep":  `{"model":"m","x":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`,
	} {
		for _, path := range []string{chatPath, textPath, "/tokenize", "/detokenize"} {
			h := g.post(t, path, body)
			if h.status != http.StatusBadRequest || h.errorCode() != "bad-request" {
				t.Errorf("%s to %s: HTTP %d, code %s; want 400, bad-request", name, path, h.status, h.errorCode())
			}
		}
	}
	if calls := append(g.p.got(), g.d.got()...); len(calls) > 0 {
		t.Errorf("engines were called with %q", calls)
	}
}

// A request that an engine refuses gets the engine's own answer, byte for byte, after one attempt.
func TestG11EngineSaysNo(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]int{
		"too long": 400, "unknown model": 404, "bad key": 401, "forbidden": 403, "unprocessable": 422, "rate limit": 429, "busy": 503,
	} {
		for _, leg := range []string{"prefill", "decode"} {
			for _, stream := range []bool{false, true} {
				t.Run(name+" "+leg, func(t *testing.T) {
					t.Parallel()
					g := newRig(t)
					body := `{"error": {"message":"n\u00f6 <&>",  "code":` + "4e2" + `}}`
					no := says(status, body, "Content-Type", "application/json; v=1", "Retry-After", "17", "X-Engine", "a", "X-Engine", "b",
						"Connection", "X-Hop", "X-Hop", "1", "Server", "uvicorn")
					if leg == "prefill" {
						g.p.says(no)
					} else {
						g.d.says(no)
					}
					h := g.post(t, chatPath, chat(stream, "hi"))
					if h.status != status || h.body != body {
						t.Errorf("HTTP %d %q, want %d %q", h.status, h.body, status, body)
					}
					got := map[string][]string{}
					for _, n := range []string{"Content-Type", "Retry-After", "X-Engine", "X-Hop", "Server"} {
						got[n] = h.header[n]
					}
					want := map[string][]string{"Content-Type": {"application/json; v=1"}, "Retry-After": {"17"}, "X-Engine": {"a", "b"}, "X-Hop": nil, "Server": nil}
					if d := cmp.Diff(want, got); d != "" {
						t.Errorf("headers (-want +got):\n%s", d)
					}
					if n := len(h.header["Date"]); n != 1 {
						t.Errorf("%d Date headers", n)
					}
					p, d := len(g.p.generated()), len(g.d.generated())
					if p != 1 || leg == "prefill" && d != 0 || leg == "decode" && d != 1 {
						t.Errorf("%d P calls and %d D calls, want one attempt", p, d)
					}
				})
			}
		}
	}
}

// Some engines repeat the whole body in what they say about it. The router's own fields must not
// be in it: D, which gets the client's request, is asked for the answer.
func TestEngineErrorThatRepeatsTheBody(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	repeat := func(_ *stub, w http.ResponseWriter, _ *http.Request, c call) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"message":"Field required, input: `+strings.ReplaceAll(c.body, `"`, `'`)+`"}}`)
	}
	g.p.says(repeat)
	g.d.says(repeat)
	h := g.post(t, chatPath, `{"model":"m"}`)
	if h.status != http.StatusBadRequest || !strings.Contains(h.body, "Field required, input: {'model':'m'}") {
		t.Errorf("HTTP %d %s, want D's own answer to what the client sent", h.status, h.body)
	}
	// If D has it with params, nothing of it is passed on.
	g.p.says()
	h = g.post(t, chatPath, chat(false, "hi"))
	if h.status != http.StatusBadRequest || h.errorCode() != "engine-error" {
		t.Errorf("HTTP %d %s, want 400 engine-error", h.status, h.body)
	}
}

// raw sends text to the server at url and returns the first line of the answer.
func raw(t *testing.T, url, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return line
}

func TestJ02BodyTooLarge(t *testing.T) {
	t.Parallel()
	const limit = 1 << 16
	g := newRig(t, func(c *router.Config) { c.MaxBody = limit })
	bomb := func() io.Reader {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := z.Write([]byte(`{"model":"m","messages":[{"role":"user","content":"` + long(64<<20) + `"}]}`)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		if b.Len() > limit*2 {
			t.Fatalf("the bomb is %d bytes long: no bomb", b.Len())
		}
		return &b
	}
	f := func(name string, body func() io.Reader, header ...string) {
		t.Helper()
		for _, path := range []string{chatPath, textPath, "/tokenize"} {
			h := g.do(t, http.MethodPost, path, body(), header...)
			if h.status != http.StatusRequestEntityTooLarge || h.errorCode() != "body-too-large" {
				t.Errorf("%s to %s: HTTP %d %s", name, path, h.status, h.body)
			}
		}
	}
	large := `{"model":"` + long(limit) + `"}`
	f("announced", func() io.Reader { return strings.NewReader(large) })
	f("chunked", func() io.Reader { return struct{ io.Reader }{strings.NewReader(large)} })
	// Two GiB, of which nothing is sent: it is refused by what it announces.
	for _, path := range []string{chatPath, "/detokenize"} {
		if line := raw(t, g.url, "POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 2147483648\r\n\r\n"); line != "HTTP/1.1 413 Request Entity Too Large\r\n" {
			t.Errorf("announced 2 GiB: %q", line)
		}
	}
	f("gzip bomb", bomb, "Content-Encoding", "gzip")
	// Exactly the limit is not too large.
	body := chat(false, "hi")
	body += strings.Repeat(" ", limit-len(body))
	if h := g.post(t, chatPath, body); h.status != http.StatusOK {
		t.Errorf("a body of the limit: HTTP %d %s", h.status, h.body)
	}
	// Nor is it read before it is refused: Expect: 100-continue spares the sending.
	if h := g.do(t, http.MethodPost, chatPath, strings.NewReader(long(limit+1)), "Expect", "100-continue"); h.status != http.StatusRequestEntityTooLarge {
		t.Errorf("with Expect: HTTP %d", h.status)
	}
	if h := g.post(t, chatPath, chat(false, "hi"), "Expect", "100-continue"); h.status != http.StatusOK {
		t.Errorf("with Expect, small: HTTP %d", h.status)
	}
}

func TestContentEncoding(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	body := chat(false, "hi")
	if _, err := io.WriteString(z, body); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	f := func(encoding, body string, status int) {
		t.Helper()
		if h := g.post(t, chatPath, body, "Content-Encoding", encoding); h.status != status {
			t.Errorf("Content-Encoding %q: HTTP %d %s, want %d", encoding, h.status, h.body, status)
		}
	}
	f("gzip", b.String(), 200)
	f("GZIP", b.String(), 200)
	f("identity", body, 200)
	f("gzip", body, 400)
	f("gzip", b.String()[:b.Len()-9], 400)
	f("gzip", "", 400)
	f("br", body, 415)
	f("gzip, gzip", b.String(), 415)
	for _, c := range g.d.generated() {
		if c.header.Get("Content-Encoding") != "" {
			t.Errorf("D is told Content-Encoding %q", c.header.Get("Content-Encoding"))
		}
	}
}

func TestWrongPathAndMethod(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	f := func(method, path string, status int, allow string) {
		t.Helper()
		h := g.do(t, method, path, http.NoBody)
		if h.status != status || h.header.Get("Allow") != allow || h.body != "" && strings.HasPrefix(h.errorCode(), "no error") {
			t.Errorf("%s %s: HTTP %d, Allow %q, %s; want %d, %q", method, path, h.status, h.header.Get("Allow"), h.body, status, allow)
		}
	}
	f("GET", chatPath, 405, "POST")
	f("PUT", textPath, 405, "POST")
	f("DELETE", "/v1/models", 405, "GET")
	f("HEAD", "/v1/models", 200, "")
	f("POST", "/v1/completions/", 404, "")
	f("POST", "/inference/v1/generate", 404, "")
	f("POST", "/reset_prefix_cache", 404, "")
	f("GET", "/metrics", 404, "") // operators have their own listener
	f("GET", "/turns", 404, "")
	f("GET", "/engines", 404, "")
	f("POST", chatPath+"/render", 404, "")
}

// Values that engines take for others than they seem are taken for what they could be.
func TestR15WhatCannotBeReused(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	f := func(path, field, arm string) {
		t.Helper()
		body := `{"model":"m","prompt":"hello","messages":[{"role":"user","content":"hello"}],` + field + `}`
		h := g.post(t, path, body)
		if rc := g.receipt(t, h); h.status != 200 || (rc.Arm == "plain") != (arm == "plain") {
			t.Errorf("%s: HTTP %d, arm %s why %s, want %s", field, h.status, rc.Arm, rc.Why, arm)
		}
	}
	for _, field := range []string{
		`"n":2`, `"n":"2"`, `"n":2.0`, `"n":2e0`, `"best_of":3`, `"use_beam_search":true`, `"prompt_logprobs":1`, `"prompt_logprobs":0`,
		`"echo":true`, `"echo":1`, `"echo":"yes"`, `"truncate_prompt_tokens":5`, `"prompt_embeds":"x"`, `"n":1,"n":2`, `"\u006e":2`,
	} {
		f(chatPath, field, "plain")
		f(textPath, field, "plain")
	}
	for _, field := range []string{`"n":1`, `"n":null`, `"best_of":1`, `"echo":false`, `"echo":null`, `"prompt_logprobs":null`, `"n":2,"n":1`} {
		f(chatPath, field, "")
		f(textPath, field, "")
	}
	f(textPath, `"prompt":["a","b"]`, "plain")
	f(textPath, `"prompt":[[1,2],[3]]`, "plain")
	f(chatPath, `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:"}}]}]`, "plain")
	for _, c := range g.p.generated() {
		if f := c.fields(); f.MaxToks != 1 && f.param("remote_num_tokens") != "0" {
			t.Errorf("P was sent %s", c.body)
		}
	}
}
