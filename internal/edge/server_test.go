package edge

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/tenant"
)

func sum(s string) [sha256.Size]byte { return sha256.Sum256([]byte(s)) }

func TestProtocols(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ca")
	dir := t.TempDir()
	cert, key := ca.issue("tarik.test")
	secure := local()
	secure.TLS = &TLSConfig{Cert: write(t, dir, "cert", cert), Key: write(t, dir, "key", key)}
	plain, encrypted := start(t, local(), http.HandlerFunc(echo)), start(t, secure, http.HandlerFunc(echo))
	f := func(url, protocol, want string) {
		t.Helper()
		c := client(t, func(tr *http.Transport) {
			tr.TLSClientConfig = &tls.Config{RootCAs: ca.pool()}
			tr.Protocols = new(http.Protocols)
			switch protocol {
			case "1":
				tr.Protocols.SetHTTP1(true)
			case "2":
				tr.Protocols.SetHTTP2(true)
			case "2c":
				tr.Protocols.SetUnencryptedHTTP2(true)
			}
		})
		_, got, _, err := call(t, c, "POST", url+"/x", strings.NewReader("abc"))
		if err != nil {
			t.Errorf("%s over %s: %v", url, protocol, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s over %s (-want +got):\n%s", url, protocol, diff)
		}
	}
	f(plain.URL(), "1", "HTTP/1.1 POST /x 3")
	f(plain.URL(), "2c", "HTTP/2.0 POST /x 3")
	f(encrypted.URL(), "1", "HTTP/1.1 POST /x 3")
	f(encrypted.URL(), "2", "HTTP/2.0 POST /x 3")
	if !strings.HasPrefix(encrypted.URL(), "https://") {
		t.Errorf("URL() = %s, want https", encrypted.URL())
	}
	// Plain HTTP on a TLS port is told so by net/http.
	if status, _, _ := dial(t, encrypted.addr()).send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").answer(); status != http.StatusBadRequest {
		t.Errorf("plain HTTP on a TLS port: %d, want 400", status)
	}
}

// What net/http refuses, and that what it does not refuse never lets a second request out of a first one's bytes.
func TestFraming(t *testing.T) {
	t.Parallel()
	s := start(t, local(), http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/smuggled" {
			w.WriteHeader(http.StatusLoopDetected)
			return
		}
		echo(w, req)
	}))
	const hidden = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
	f := func(what, bytes string, want ...int) {
		t.Helper()
		c := dial(t, s.addr()).send(bytes)
		_ = c.Conn.(*net.TCPConn).CloseWrite() // the server may have hung up already
		if diff := cmp.Diff(want, c.answers()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	f("two requests in one write, as they should be", "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\nHost: x\r\n\r\n", 200, 200)

	// Refused.
	f("two lengths", "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 38\r\n\r\nabc"+hidden, 400)
	f("a list of lengths", "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\nabc"+hidden, 400)
	f("a length with a sign", "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc"+hidden, 400)
	f("an empty length", "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: \r\n\r\nabc"+hidden, 400)
	f("a coding other than chunked", "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"+hidden, 501)
	f("chunked and another", "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"+hidden, 501)
	f("two codings", "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n"+hidden, 501)
	f("a space before the colon", "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length : 3\r\n\r\nabc"+hidden, 400)
	f("a bare CR in a value", "POST /a HTTP/1.1\r\nHost: x\r\nX: a\rTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc"+hidden, 400)
	f("a NUL in a value", "POST /a HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n"+hidden, 400)
	f("a fold as the first line", "POST /a HTTP/1.1\r\n Host: x\r\nHost: x\r\n\r\n"+hidden, 400)
	f("no host", "GET /a HTTP/1.1\r\n\r\n"+hidden, 400)
	f("two hosts", "GET /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"+hidden, 400)
	f("a chunk size that is none", "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n"+hidden, 418)
	f("a chunk with a bare LF", "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n"+hidden, 418)
	f("no HTTP", "hello\r\n\r\n"+hidden, 400)

	// Taken, as RFC 9112 §5.2 and §6.1 permit. The connection ends, so that the rest is nobody's request.
	f("a length and chunked", "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+hidden, 200)
	f("a length that covers more than the chunks", fmt.Sprintf("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n%s", 5+len(hidden), hidden), 200)
	f("a folded coding", "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"+hidden, 200)
	f("chunked alone", "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+hidden, 200)
	// HTTP/1.0 has no chunked bodies: net/http reads past the coding, and the chunks are nobody's request.
	f("chunked in HTTP/1.0", "POST /a HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"+hidden, 200)
	// A fold in another header is a space.
	f("a folded value", "GET /a HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\nConnection: close\r\n\r\n"+hidden, 200)
}

func TestHeaderLimits(t *testing.T) {
	t.Parallel()
	s := start(t, local(), http.HandlerFunc(echo))
	f := func(what string, headers int, want int) {
		t.Helper()
		var b strings.Builder
		b.WriteString("GET /a HTTP/1.1\r\nHost: x\r\n")
		for i := range headers {
			fmt.Fprintf(&b, "X-%d: y\r\n", i)
		}
		b.WriteString("Connection: close\r\n\r\n")
		c := dial(t, s.addr())
		_, _ = io.WriteString(c, b.String()) // the server may stop reading
		if status, _, _ := c.answer(); status != want {
			t.Errorf("%s: %d, want %d", what, status, want)
		}
	}
	f("100 headers", 100, 200)
	f("10000 headers", 10000, 431)
	c := dial(t, s.addr())
	_, _ = io.WriteString(c, "GET /"+strings.Repeat("x", 100<<10)+" HTTP/1.1\r\nHost: x\r\n\r\n")
	if status, _, _ := c.answer(); status != 431 {
		t.Errorf("a line of 100 KiB: %d, want 431", status)
	}
	// The same over HTTP/2, where the limit is announced; Go's client goes by it before it sends anything.
	two := client(t, func(tr *http.Transport) {
		tr.Protocols = new(http.Protocols)
		tr.Protocols.SetUnencryptedHTTP2(true)
	})
	if status, _, _, err := call(t, two, "GET", s.URL()+"/a", nil); err != nil || status != 200 {
		t.Fatal(status, err)
	}
	if status, _, _, err := call(t, two, "GET", s.URL()+"/a", nil, "X-Long", strings.Repeat("x", 100<<10)); err == nil && status != 431 {
		t.Errorf("100 KiB of headers in HTTP/2: %d, want 431 or a client that knows", status)
	}
}

// A request that comes byte by byte is a request.
func TestOneByteAtATime(t *testing.T) {
	t.Parallel()
	s := start(t, local(), http.HandlerFunc(echo))
	c := dial(t, s.addr())
	if err := c.Conn.(*net.TCPConn).SetNoDelay(true); err != nil {
		t.Fatal(err)
	}
	for _, b := range []byte("POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n") {
		c.send(string(b))
	}
	if status, body, _ := c.answer(); status != 200 || body != "HTTP/1.1 POST /a 5" {
		t.Errorf("got %d %q, want 200 with 5 bytes", status, body)
	}
}

// A client that has sent its request and half-closes is taken for gone: the request's context ends.
func TestHalfClose(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	s := start(t, local(), http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		<-req.Context().Done()
		close(gone)
	}))
	c := dial(t, s.addr()).send("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	<-gone
}

// Clients that take their time over headers, a body or a reply are given up; their neighbours are not.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	short := tenant.Duration(50 * time.Millisecond)
	t.Run("headers", func(t *testing.T) {
		t.Parallel()
		cfg := local()
		cfg.HeaderTimeout = short
		s := start(t, cfg, http.HandlerFunc(echo))
		if got := dial(t, s.addr()).send("GET /a HTTP/1.1\r\nHost:").answers(); len(got) != 0 {
			t.Errorf("half a header got %v, want the end of the connection", got)
		}
		if got := dial(t, s.addr()).answers(); len(got) != 0 {
			t.Errorf("nothing got %v, want the end of the connection", got)
		}
		// HTTP/2 connections have no headers of their own to wait for.
		two := client(t, func(tr *http.Transport) {
			tr.Protocols = new(http.Protocols)
			tr.Protocols.SetUnencryptedHTTP2(true)
		})
		for range 3 {
			if status, _, _, err := call(t, two, "GET", s.URL()+"/a", nil); err != nil || status != 200 {
				t.Errorf("HTTP/2: %d, %v", status, err)
			}
		}
	})
	t.Run("tls handshake", func(t *testing.T) {
		t.Parallel()
		cfg := local()
		cfg.HeaderTimeout = short
		cert, key := newAuthority(t, "ca").issue("tarik.test")
		dir := t.TempDir()
		cfg.TLS = &TLSConfig{Cert: write(t, dir, "cert", cert), Key: write(t, dir, "key", key)}
		s := start(t, cfg, http.HandlerFunc(echo))
		if got := dial(t, s.addr()).send("\x16\x03\x01").answers(); len(got) != 0 {
			t.Errorf("half a handshake got %v, want the end of the connection", got)
		}
	})
	t.Run("idle", func(t *testing.T) {
		t.Parallel()
		cfg := local()
		cfg.IdleTimeout = short
		s := start(t, cfg, http.HandlerFunc(echo))
		if got := dial(t, s.addr()).send("GET /a HTTP/1.1\r\nHost: x\r\n\r\n").answers(); cmp.Diff([]int{200}, got) != "" {
			t.Errorf("got %v, want 200 and the end of the connection", got)
		}
	})
	t.Run("body", func(t *testing.T) {
		t.Parallel()
		cfg := local()
		cfg.BodyTimeout = short
		s := start(t, cfg, http.HandlerFunc(echo))
		c := dial(t, s.addr()).send("POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na")
		status, body, header := c.answer()
		if want := `{"type":"error","error":{"type":"timeout_error","message":"the request's body took too long to arrive"}}`; status != 408 || body != want || header.Get("Connection") != "close" {
			t.Errorf("got %d %s %v, want 408 %s and a connection that closes", status, body, header, want)
		}
		two := client(t, func(tr *http.Transport) {
			tr.Protocols = new(http.Protocols)
			tr.Protocols.SetUnencryptedHTTP2(true)
		})
		r, w := io.Pipe()
		defer w.Close()
		if status, _, _, err := call(t, two, "POST", s.URL()+"/a", r); status != 408 {
			t.Errorf("HTTP/2: %d, %v, want 408", status, err)
		}
		if n := count(t, s.metrics, "tarik_edge_stalled_total", "request"); n != 2 {
			t.Errorf("%v clients counted, want 2", n)
		}
	})
	t.Run("a body that has arrived", func(t *testing.T) {
		t.Parallel()
		cfg := local()
		cfg.BodyTimeout = short
		left := make(chan error, 1)
		s := start(t, cfg, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			select { // longer than the body could have taken; the engines think
			case <-req.Context().Done():
				left <- req.Context().Err()
			case <-time.After(4 * time.Duration(short)):
				left <- nil
			}
			_, _ = io.WriteString(w, "thought")
		}))
		if status, body, _ := dial(t, s.addr()).send("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc").answer(); status != 200 || body != "thought" {
			t.Errorf("got %d %q, want the reply", status, body)
		}
		if err := <-left; err != nil {
			t.Errorf("the client seemed to leave: %v", err)
		}
	})
	for _, protocol := range []string{"1", "2"} {
		t.Run("reply over HTTP/"+protocol, func(t *testing.T) {
			t.Parallel()
			cfg := local()
			cfg.ReplyTimeout = short
			ended := make(chan error, 1)
			s := start(t, cfg, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				piece := make([]byte, 1<<20)
				for {
					if _, err := w.Write(piece); err != nil {
						ended <- err
						return
					}
				}
			}))
			if protocol == "1" {
				dial(t, s.addr()).send("GET /a HTTP/1.1\r\nHost: x\r\n\r\n") // and reads nothing
			} else {
				two := client(t, func(tr *http.Transport) {
					tr.Protocols = new(http.Protocols)
					tr.Protocols.SetUnencryptedHTTP2(true)
				})
				req, err := http.NewRequestWithContext(t.Context(), "GET", s.URL()+"/a", nil)
				if err != nil {
					t.Fatal(err)
				}
				res, err := two.Do(req) // reads nothing
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
			}
			if err := <-ended; err == nil {
				t.Error("the write ended well")
			}
			if n := count(t, s.metrics, "tarik_edge_stalled_total", "reply"); n != 1 {
				t.Errorf("%v clients counted, want 1", n)
			}
		})
	}
}

// A bug ends one request: with 500 if nothing was said yet, else so that the reply looks broken. The log says what
// it was, not what the client sent.
func TestPanic(t *testing.T) {
	t.Parallel()
	s := start(t, local(), http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		switch req.URL.Path {
		case "/first":
			w.Header().Set("X-Half", "done")
			panic("BUG: edge_test: no such arm")
		case "/v1/messages":
			panic(fmt.Errorf("cannot take %s", b))
		case "/late":
			_, _ = io.WriteString(w, "half a reply")
			_ = http.NewResponseController(w).Flush()
			panic(string(b))
		case "/runtime":
			var none []int
			_ = none[len(req.URL.Path)]
		default:
			panic(http.ErrAbortHandler)
		}
	}))
	f := func(path string, want int, wantBody string) {
		t.Helper()
		status, body, header := dial(t, s.addr()).send("POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\ncanary").answer()
		if diff := cmp.Diff([]any{want, wantBody, ""}, []any{status, body, header.Get("X-Half")}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	const openAI = `{"error":{"message":"the router failed on this request; its log says why","type":"InternalServerError","param":null,"code":"internal-error"}}`
	f("/first", 500, openAI)
	f("/runtime", 500, openAI)
	f("/v1/messages", 500, `{"type":"error","error":{"type":"api_error","message":"the router failed on this request; its log says why"}}`)
	f("/late", 200, "(broken) half a reply")
	f("/meant", 0, "")
	log := s.log.String()
	for want, n := range map[string]int{"a request ended by a bug": 4, `panic="BUG: edge_test: no such arm"`: 1, `panic="runtime error: index out of range [8] with length 0"`: 1, `panic="a string"`: 1, "canary": 0} {
		if got := strings.Count(log, want); got != n {
			t.Errorf("the log has %q %d times, want %d:\n%s", want, got, n, log)
		}
	}
	if n := count(t, s.metrics, "tarik_edge_panics_total"); n != 4 {
		t.Errorf("%v panics counted, want 4", n)
	}
}

func TestConnections(t *testing.T) {
	t.Parallel()
	cfg := local()
	cfg.Connections = 2
	s := start(t, cfg, http.HandlerFunc(echo))
	ask := func(c *raw) int {
		t.Helper()
		_, _ = io.WriteString(c, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n") // it may be closed already
		status, _, _ := c.answer()
		return status
	}
	one, two := dial(t, s.addr()), dial(t, s.addr())
	if a, b := ask(one), ask(two); a != 200 || b != 200 {
		t.Fatalf("the first two got %d and %d", a, b)
	}
	if got := ask(dial(t, s.addr())); got != 0 {
		t.Errorf("a third connection got %d, want to be closed", got)
	}
	if n := count(t, s.metrics, "tarik_edge_connections_refused_total", "clients", "limit"); n != 1 {
		t.Errorf("%v connections counted as refused, want 1", n)
	}
	if n := count(t, s.metrics, "tarik_edge_connections"); n != 2 {
		t.Errorf("%v connections open, want 2", n)
	}
	// One that ends makes room. The server may take a while to see it.
	_ = one.Close()
	for range 1000 {
		if got := ask(dial(t, s.addr())); got == 200 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("a connection that ended makes no room")
}

func TestAllow(t *testing.T) {
	t.Parallel()
	cfg := local()
	cfg.Allow = []string{"127.0.0.2", "10.0.0.0/8"}
	s := start(t, cfg, http.HandlerFunc(echo))
	from := func(addr string) int {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}, Timeout: patience}
		c := client(t, func(tr *http.Transport) { tr.DialContext = d.DialContext })
		status, _, _, _ := call(t, c, "GET", s.URL()+"/a", nil) // 0 if it is closed
		return status
	}
	if got := from("127.0.0.2"); got != 200 {
		t.Errorf("an allowed peer got %d", got)
	}
	if got := from("127.0.0.1"); got != 0 {
		t.Errorf("another peer got %d, want to be closed", got)
	}
	if n := count(t, s.metrics, "tarik_edge_connections_refused_total", "peer"); n < 1 {
		t.Error("it is not counted")
	}
}

// An HTTP/2 client is told how many streams and how large headers it may have.
func TestStreams(t *testing.T) {
	t.Parallel()
	cfg := local()
	cfg.Streams, cfg.HeaderBytes = 7, 5000
	s := start(t, cfg, http.HandlerFunc(echo))
	c := dial(t, s.addr()).send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00") // and settings of its own: none
	head := make([]byte, 9)
	if _, err := io.ReadFull(c.r, head); err != nil {
		t.Fatal(err)
	}
	if head[3] != 4 {
		t.Fatalf("the first frame is of type %d, want SETTINGS", head[3])
	}
	settings := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
	if _, err := io.ReadFull(c.r, settings); err != nil {
		t.Fatal(err)
	}
	got := map[uint16]uint32{}
	for ; len(settings) >= 6; settings = settings[6:] {
		got[binary.BigEndian.Uint16(settings)] = binary.BigEndian.Uint32(settings[2:])
	}
	const maxConcurrentStreams, maxHeaderListSize = 3, 6 // RFC 9113 §6.5.2
	if got[maxConcurrentStreams] != 7 || got[maxHeaderListSize] < 5000 || got[maxHeaderListSize] > 6000 {
		t.Errorf("SETTINGS %v, want 7 streams and headers of 5000 bytes or a little more", got)
	}
}
