package router_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/router"
)

// socket is a client's connection, for what an HTTP client would not say.
type socket struct {
	*net.TCPConn
	r *bufio.Reader
}

func dialRaw(t testing.TB, url string) *socket {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // most have been closed
	return &socket{c.(*net.TCPConn), bufio.NewReader(c)}
}

func (s *socket) send(text string) { _, _ = io.WriteString(s, text) } // the router may have hung up

// answer reads one answer, and its trailers.
func (s *socket) answer(t testing.TB) (h heard, trailer http.Header) {
	t.Helper()
	res, err := http.ReadResponse(s.r, nil)
	if err != nil {
		return heard{err: err}, nil
	}
	b, err := io.ReadAll(res.Body)
	return heard{res.StatusCode, res.Header, string(b), err}, res.Trailer
}

// post is a whole request.
func postText(path, body string, header ...string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s", path, strings.Join(header, ""), len(body), body)
}

// chunked is body in chunks of n bytes, without the end.
func chunked(body string, n int) string {
	var b strings.Builder
	for len(body) > 0 {
		k := min(n, len(body))
		fmt.Fprintf(&b, "%x\r\n%s\r\n", k, body[:k])
		body = body[k:]
	}
	return b.String()
}

// files is how many file descriptors the process has open, 0 where that is not to be known.
func files() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(list)
}

// TestConformance is what HTTP allows, or does not, on either side of the router, over real sockets.
// After each of it no goroutine, no file descriptor and no turn is left.
//
// It is not parallel: it counts what the process has open.
func TestConformance(t *testing.T) {
	f := func(name string, play func(t *testing.T, g *rig), change ...func(*router.Config)) {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, change...)
			g.post(t, chatPath, chat(false, "warm up"))
			rest := func() {
				http.DefaultClient.CloseIdleConnections()
				router.CloseIdle(g.router)
			}
			rest()
			until(t, "the router is at rest", func() bool { return g.metric(t, "tarik_turns_in_flight") == "0" })
			rest()
			goroutines, fds := runtime.NumGoroutine(), files()
			play(t, g)
			until(t, "no turn is left", func() bool { return g.metric(t, "tarik_turns_in_flight") == "0" })
			until(t, "no goroutine and no file is left", func() bool {
				rest()
				return runtime.NumGoroutine() <= goroutines && files() <= fds
			})
			if t.Failed() {
				t.Logf("%d goroutines, %d at the beginning; %d files, %d at the beginning", runtime.NumGoroutine(), goroutines, files(), fds)
			}
		})
	}

	f("trailers of an engine", func(t *testing.T, g *rig) {
		trail := func(then answer) answer {
			return func(s *stub, w http.ResponseWriter, req *http.Request, c call) {
				w.Header().Set("Trailer", "X-End, X-Request-Id")
				then(s, w, req, c)
				w.Header().Set("X-End", "10.9.8.7")
				w.Header().Set("X-Request-Id", "req-secret")
				w.Header().Set(http.TrailerPrefix+"X-Late", "req-secret")
			}
		}
		for _, stream := range []bool{false, true} {
			g.p.says()
			g.d.says()
			want := g.post(t, chatPath, chat(stream, "hi")).body
			g.p.says(trail(good))
			g.d.says(trail(func(s *stub, w http.ResponseWriter, req *http.Request, c call) {
				good(s, w, req, c)
				_ = http.NewResponseController(w).Flush() // so that it is chunked
			}))
			c := dialRaw(t, g.url)
			c.send(postText(chatPath, chat(stream, "hi"), "TE: trailers\r\n"))
			h, trailer := c.answer(t)
			if h.status != 200 || h.body != want || len(trailer) > 0 || h.header["Trailer"] != nil || strings.Contains(fmt.Sprint(h.header), "secret") {
				t.Errorf("streamed %v: HTTP %d %v %q, trailers %v", stream, h.status, h.header, h.body, trailer)
			}
			_ = c.Close()
		}
	})

	f("trailers of a client", func(t *testing.T, g *rig) {
		g.p.says()
		g.d.says()
		c := dialRaw(t, g.url)
		c.send("POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: X-Conversation-Id, Authorization, X-End\r\n\r\n" +
			chunked(chat(false, "hi"), 7) + "0\r\nX-Conversation-Id: c\r\nAuthorization: Bearer late\r\nX-End: done\r\nX-Request-Id: late\r\n\r\n")
		if h, _ := c.answer(t); h.status != 200 || h.header.Get("X-Request-Id") != "" {
			t.Errorf("HTTP %d %v %s", h.status, h.header, h.body)
		}
		_ = c.Close()
		for _, call := range append(g.p.got(), g.d.got()...) {
			if call.header["X-End"] != nil || call.header["Authorization"] != nil || call.header["Trailer"] != nil || call.header["X-Conversation-Id"] != nil ||
				!strings.Contains(call.body, `"hi"`) {
				t.Errorf("an engine was sent %v %s", call.header, call.body)
			}
		}
	})

	f("10000 events", func(t *testing.T, g *rig) {
		const n = 10_000
		var want strings.Builder
		g.d.says(func(s *stub, w http.ResponseWriter, _ *http.Request, _ call) {
			w.Header().Set("Content-Type", eventStream)
			rc := http.NewResponseController(w)
			for i := range n {
				ev := strings.Replace(event, " word", fmt.Sprint(" word", i), 1)
				want.WriteString(ev)
				_, _ = io.WriteString(w, ev)
				if i%3 == 0 {
					_ = rc.Flush() // fails if the reader has left
				}
			}
			want.WriteString("data: [DONE]\n\n")
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		})
		h := g.post(t, chatPath, chat(true, "hi"))
		if h.status != 200 || h.err != nil || h.body != want.String() {
			t.Errorf("HTTP %d, %v, %d bytes, want %d", h.status, h.err, len(h.body), want.Len())
		}
	})

	f("1 byte at a time, both ways", func(t *testing.T, g *rig) {
		for _, stream := range []bool{false, true} {
			g.p.says()
			g.d.says()
			want := g.post(t, chatPath, chat(stream, "hé"), "X-Conversation-Id", "x").body
			slow := func(then answer) answer {
				return func(s *stub, w http.ResponseWriter, req *http.Request, c call) {
					rec := httptest.NewRecorder()
					then(s, rec, req, c)
					w.Header().Set("Content-Type", rec.Header().Get("Content-Type"))
					send(w, w.Header().Get("Content-Type"), strings.Split(rec.Body.String(), "")...)
				}
			}
			g.p.says(slow(good))
			g.d.says(slow(good))
			for _, text := range []string{
				postText(chatPath, chat(stream, "hé"), "X-Conversation-Id: x\r\n"),
				"POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nX-Conversation-Id: y\r\n\r\n" + chunked(chat(stream, "hé"), 1) + "0\r\n\r\n",
			} {
				c := dialRaw(t, g.url)
				for _, b := range []byte(text) {
					_, _ = c.Write([]byte{b}) // no delay is Go's default
				}
				if h, _ := c.answer(t); h.status != 200 || h.body != want {
					t.Errorf("streamed %v: HTTP %d (-want +got):\n%s", stream, h.status, cmp.Diff(want, h.body))
				}
				_ = c.Close()
			}
		}
	})

	f("100 MB refused by default", func(t *testing.T, g *rig) {
		piece := strings.Repeat("x", 1<<20)
		before := allocated()
		const head = `{"model":"m","messages":[{"role":"user","content":"`
		body := func() io.Reader {
			readers := []io.Reader{strings.NewReader(head)}
			for range 100 {
				readers = append(readers, strings.NewReader(piece))
			}
			return io.MultiReader(append(readers, strings.NewReader(`"}]}`))...)
		}
		// Announced: refused before it is sent.
		c := dialRaw(t, g.url)
		c.send(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", chatPath, len(head)+100<<20+4))
		if h, _ := c.answer(t); h.status != http.StatusRequestEntityTooLarge || h.errorCode() != "body-too-large" {
			t.Errorf("announced: HTTP %d %s", h.status, h.body)
		}
		_ = c.Close()
		if n := allocated() - before; n > 1<<20 {
			t.Errorf("announced: %d bytes allocated for nothing", n)
		}
		// Chunked: refused where the limit is.
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+chatPath, body())
		if err != nil {
			t.Fatal(err)
		}
		if res, err := http.DefaultClient.Do(req); err == nil { // the rest may be met with a reset
			_ = res.Body.Close()
			if res.StatusCode != http.StatusRequestEntityTooLarge {
				t.Errorf("chunked: HTTP %d", res.StatusCode)
			}
		}
		if calls := append(g.p.generated(), g.d.generated()...); len(calls) != 2 {
			t.Errorf("%d calls to engines, want the 2 of the first turn", len(calls))
		}
	})

	f("half-close", func(t *testing.T, g *rig) {
		// The request is complete, and yet its client is taken for gone: net/http cannot tell a client
		// that only stops sending from one that has closed the connection.
		asked := make(chan struct{}, 1)
		g.d.says(hang(asked))
		c := dialRaw(t, g.url)
		c.send(postText(chatPath, chat(true, "hi")))
		<-asked
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		until(t, "the turn has ended", func() bool { return g.receipts.Newest(1)[0].Status == 499 })
		_ = c.Close()
		// In the middle of a body it is a request that has ended early.
		g.d.says()
		c = dialRaw(t, g.url)
		whole := postText(chatPath, chat(true, "hi"))
		c.send(whole[:len(whole)-5])
		_ = c.CloseWrite()
		if h, _ := c.answer(t); h.status != 0 && h.status != http.StatusBadRequest {
			t.Errorf("half a body: HTTP %d", h.status)
		}
		_ = c.Close()
		if n := len(g.d.generated()); n != 0 {
			t.Errorf("%d D calls for half a body", n)
		}
	})

	f("clients that never finish a request", func(t *testing.T, g *rig) {
		g.p.says()
		whole := postText(chatPath, chat(true, "hi"))
		body := strings.Index(whole, "\r\n\r\n") + 4
		var all []*socket
		for i := range 60 {
			c := dialRaw(t, g.url)
			c.send(whole[:[]int{1, 20, body - 2, body, body + 10, len(whole) - 1}[i%6]])
			all = append(all, c)
		}
		// The neighbours are served. How long such clients are suffered is for the listener to say.
		if h := g.post(t, chatPath, chat(true, "hi")); h.status != 200 {
			t.Errorf("a neighbour: HTTP %d", h.status)
		}
		if n := len(g.p.generated()); n != 1 {
			t.Errorf("%d P calls, want the neighbour's", n)
		}
		for _, c := range all {
			_ = c.Close()
		}
	})

	f("hop-by-hop headers", func(t *testing.T, g *rig) {
		g.p.says()
		g.d.says()
		hop := []string{"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "Te", "Trailer", "Upgrade", "Transfer-Encoding", "X-Hop"}
		c := dialRaw(t, g.url)
		c.send(postText(chatPath, chat(false, "hi"), "Connection: keep-alive, X-Hop, Accept-Language, \tte\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\n",
			"Proxy-Authorization: Basic eDp5\r\nTE: trailers, deflate\r\nTrailer: X-End\r\nUpgrade: h2c\r\nX-Hop: 1\r\nAccept-Language: de\r\nAuthorization: Bearer k\r\n"))
		if h, _ := c.answer(t); h.status != 200 {
			t.Errorf("HTTP %d %s", h.status, h.body)
		}
		_ = c.Close()
		for _, call := range append(g.p.got(), g.d.got()...) {
			for _, name := range append(hop, "Accept-Language") {
				if v := call.header[name]; v != nil {
					t.Errorf("an engine was sent %s: %q", name, v)
				}
			}
			if diff := cmp.Diff([]string{"Bearer k"}, call.header["Authorization"]); diff != "" {
				t.Errorf("Authorization (-want +got):\n%s", diff)
			}
		}
		g.d.says(func(s *stub, w http.ResponseWriter, req *http.Request, c call) {
			for _, name := range hop[1:7] {
				w.Header().Set(name, "1")
			}
			w.Header().Set("Connection", "x-hop")
			w.Header().Set("X-Hop", "1")
			w.Header().Set("X-Engine", "kept")
			good(s, w, req, c)
		})
		h := g.post(t, chatPath, chat(false, "hi"))
		for _, name := range hop {
			if v := h.header[name]; v != nil {
				t.Errorf("the client was sent %s: %q", name, v)
			}
		}
		if h.status != 200 || h.header.Get("X-Engine") != "kept" {
			t.Errorf("HTTP %d %v", h.status, h.header)
		}
	})

	f("two requests in one", func(t *testing.T, g *rig) {
		// A length beside chunked is the edge's to end a connection for, see TestFraming there: nobody
		// behind net/http sees that there was one.
		hidden := postText(chatPath, chat(false, "smuggled"))
		turn := chat(false, "hi")
		n := len(turn)
		for name, text := range map[string]string{
			"two lengths":                   fmt.Sprintf("Content-Length: %d\r\nContent-Length: %d\r\n\r\n%s", n, n+len(hidden), turn),
			"a length that is short":        fmt.Sprintf("Content-Length: %d\r\n\r\n%s", n-2, turn),
			"a length with a sign":          fmt.Sprintf("Content-Length: +%d\r\n\r\n%s", n, turn),
			"a length in hex":               fmt.Sprintf("Content-Length: 0x%x\r\n\r\n%s", n, turn),
			"a bare LF in the chunks":       fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\n%s\n0\n\n", n, turn),
			"a chunk size beyond 64 bits":   fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n1%016x\r\n%s\r\n0\r\n\r\n", n, turn),
			"a chunk longer than its size":  fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", n-2, turn),
			"a chunk extension with a CR":   fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x;a=\rb\r\n%s\r\n0\r\n\r\n", n, turn),
			"a coding with a vertical tab":  fmt.Sprintf("Transfer-Encoding: \x0bchunked\r\nContent-Length: %d\r\n\r\n%s", n, turn),
			"a name with a space behind it": fmt.Sprintf("Transfer-Encoding : chunked\r\nContent-Length: %d\r\n\r\n%s", n, turn),
		} {
			g.p.says()
			g.d.says()
			c := dialRaw(t, g.url)
			c.send("POST " + chatPath + " HTTP/1.1\r\nHost: x\r\n" + text + hidden)
			var statuses []int
			for {
				h, _ := c.answer(t)
				if h.status == 0 {
					break
				}
				statuses = append(statuses, h.status)
				if len(statuses) == 1 {
					_ = c.CloseWrite()
				}
			}
			_ = c.Close()
			until(t, "no turn is left", func() bool { return g.metric(t, "tarik_turns_in_flight") == "0" })
			for _, call := range append(g.p.got(), g.d.got()...) {
				if strings.Contains(call.body, "smuggled") {
					t.Errorf("%s: an engine was sent what was hidden, the client got %v", name, statuses)
				}
			}
			if len(statuses) > 1 && statuses[0] == 200 {
				t.Errorf("%s: the client got %v for one request", name, statuses)
			}
		}
	})
}

// allocated is how many bytes have ever been allocated.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// A body of 100 MB is taken if the limit says so, both engines get all of it, and the router takes
// little more memory than it is long.
//
// It is not parallel: it looks at the memory of the process.
func TestHundredMegabytes(t *testing.T) {
	const size = 100 << 20
	got := make(chan int64, 2)
	engine := func(prefill bool) *httptest.Server {
		s := &stub{prefill: prefill}
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.ContentLength < 1<<20 { // asks how it is, or probes
				s.serve(w, req)
				return
			}
			var n int64
			buf := make([]byte, 64<<10)
			for {
				k, err := req.Body.Read(buf)
				n += int64(bytes.Count(buf[:k], []byte{'z'}))
				if err != nil {
					break
				}
			}
			got <- n
			good(s, w, req, call{path: req.URL.Path, body: chat(false, "hi")})
		}))
		t.Cleanup(srv.Close)
		return srv
	}
	p, d := engine(true), engine(false)
	cfg := router.DefaultConfig()
	cfg.Return, cfg.Append = false, false
	cfg.Prefill, cfg.Decode, cfg.HealthInterval, cfg.MaxBody = p.URL, d.URL, time.Hour, 128<<20
	g := &rig{}
	g.start(t, cfg)
	piece := strings.Repeat("z", 1<<20)
	for _, announced := range []bool{true, false} {
		readers := []io.Reader{strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"`)}
		for range size >> 20 {
			readers = append(readers, strings.NewReader(piece))
		}
		tail := `"}],"max_tokens":8}`
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+chatPath, io.MultiReader(append(readers, strings.NewReader(tail))...))
		if err != nil {
			t.Fatal(err)
		}
		if announced {
			req.ContentLength = int64(len(`{"model":"m","messages":[{"role":"user","content":"`) + size + len(tail))
		}
		before := allocated()
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("HTTP %d %s, %v", res.StatusCode, b, err)
		}
		for range 2 {
			if n := <-got; n != size {
				t.Errorf("an engine got %d of %d bytes", n, size)
			}
		}
		// It is read into memory that doubles, up to what was announced; nothing copies it after that.
		most := uint64(4 * size)
		if raceDetector {
			most = 6 * size
		}
		if n := allocated() - before; n > most {
			t.Errorf("announced %v: %d MiB were allocated for a body of %d", announced, n>>20, size>>20)
		}
	}
}
