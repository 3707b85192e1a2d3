package upstream_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tarik-kv/tarik/internal/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newTransport is one that leaves nothing behind.
func newTransport(t testing.TB) *upstream.Transport {
	t.Helper()
	tr := upstream.New(&http.Transport{
		IdleConnTimeout: 4 * time.Second, MaxIdleConnsPerHost: 16, DisableCompression: true,
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
	})
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func request(ctx context.Context, t testing.TB, method, url string, pieces ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if method == http.MethodPost {
		var list [][]byte
		for _, p := range pieces {
			list = append(list, []byte(p))
		}
		body := upstream.NewPieces(list...)
		req.Body, req.ContentLength = body, body.Len()
	}
	return req
}

// said is a whole reply.
type said struct {
	Status  int
	Header  http.Header
	Body    string
	Trailer http.Header
}

func read(t testing.TB, res *http.Response) said {
	t.Helper()
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("after %d bytes: %v", len(b), err)
	}
	if n, err := res.Body.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("Read at the end = %d, %v, want 0, EOF", n, err)
	}
	return said{res.StatusCode, res.Header, string(b), res.Trailer}
}

// raw is a server that hands each of its connections to serve, with their number from 0.
func raw(t testing.TB, serve func(n int, c net.Conn, r *bufio.Reader)) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				serve(n, c, bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		conns.Wait()
	})
	return "http://" + l.Addr().String()
}

func TestCalls(t *testing.T) {
	t.Parallel()
	var opened atomic.Int32
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Trailer", "X-End")
		w.Header().Set("X-Saw", fmt.Sprintf("%s %s %q %d %q %v", req.Method, req.URL, req.Header.Values("X-A"), req.ContentLength, req.TransferEncoding, req.Header["User-Agent"]))
		w.WriteHeader(http.StatusAccepted)
		_ = http.NewResponseController(w).Flush()
		_, _ = w.Write(b)
		w.Header().Set("X-End", "done")
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	tr := newTransport(t)
	big := strings.Repeat("0123456789", 1<<17)
	for _, pieces := range [][]string{nil, {"x"}, {"{", "a", "}"}, {strings.Repeat("y", 32<<10)}, {big[:40000], "", big[40000:]}} {
		for range 3 {
			method := http.MethodPost
			if pieces == nil {
				method = http.MethodGet
			}
			req := request(t.Context(), t, method, srv.URL+"/a%20b?c=d", pieces...)
			req.Header["X-A"] = []string{"1", " two words"}
			res, err := tr.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			got := read(t, res)
			got.Header.Del("Date")
			whole := strings.Join(pieces, "")
			want := said{http.StatusAccepted, http.Header{
				"X-Saw": {fmt.Sprintf(`%s /a%%20b?c=d ["1" "two words"] %d [] []`, method, len(whole))},
			}, whole, http.Header{"X-End": {"done"}}}
			if diff := cmp.Diff(want, got); len(diff) > 0 {
				t.Errorf("%d bytes (-want +got):\n%.2000s", len(whole), diff)
			}
		}
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("%d connections for calls one after the other, want 1", n)
	}
}

// What is not for it goes the ordinary way: here a body of unknown length, another method, TLS.
func TestOtherCalls(t *testing.T) {
	t.Parallel()
	echo := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		_, _ = fmt.Fprintf(w, "%s %d %s", req.Method, req.ContentLength, b)
	})
	plain, secure := httptest.NewServer(echo), httptest.NewTLSServer(echo)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	base := secure.Client().Transport.(*http.Transport).Clone()
	tr := upstream.New(base)
	t.Cleanup(tr.CloseIdleConnections)
	chunked := request(t.Context(), t, http.MethodPost, plain.URL, "abc")
	chunked.ContentLength = -1
	for req, want := range map[*http.Request]string{
		chunked: "POST -1 abc",
		request(t.Context(), t, http.MethodDelete, plain.URL):           "DELETE 0 ",
		request(t.Context(), t, http.MethodPost, secure.URL, "a", "bc"): "POST 3 abc",
	} {
		res, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if got := read(t, res); got.Body != want {
			t.Errorf("body %q, want %q", got.Body, want)
		}
	}
}

const small = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// Engines close idle connections. A call on one that is closed already goes over another, and a call that was
// written is not made again.
func TestClosedIdleConnection(t *testing.T) {
	t.Parallel()
	closed := make(chan struct{})
	var calls atomic.Int32
	url := raw(t, func(n int, c net.Conn, r *bufio.Reader) {
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			calls.Add(1)
			switch n {
			case 0: // answers, then closes
				_, _ = io.WriteString(c, small)
				_ = c.Close()
				closed <- struct{}{}
				return
			case 1: // answers one, reads another and closes
				if calls.Load() == 3 {
					return
				}
				_, _ = io.WriteString(c, small)
			default:
				t.Error("the call that was read is made again")
			}
		}
	})
	tr := newTransport(t)
	res, err := tr.RoundTrip(request(t.Context(), t, http.MethodPost, url, "one"))
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, res); got.Body != "ok" {
		t.Errorf("body %q", got.Body)
	}
	<-closed
	res, err = tr.RoundTrip(request(t.Context(), t, http.MethodPost, url, "two"))
	if err != nil {
		t.Fatalf("after the engine closed the connection: %v", err)
	}
	if got := read(t, res); got.Body != "ok" {
		t.Errorf("body %q", got.Body)
	}
	if _, err = tr.RoundTrip(request(t.Context(), t, http.MethodPost, url, "three")); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a call that was read and not answered: %v, want unexpected EOF", err)
	}
	if n := calls.Load(); n != 3 {
		t.Errorf("the engine saw %d calls, want 3", n)
	}
}

// An engine may refuse a large body without reading it.
func TestAnswerBeforeTheBodyIsRead(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	for name, then := range map[string]func(net.Conn){
		"closes": func(c net.Conn) { _ = c.(*net.TCPConn).CloseWrite() },
		"waits":  func(net.Conn) { <-release },
	} {
		var conns atomic.Int32
		url := raw(t, func(_ int, c net.Conn, r *bufio.Reader) {
			conns.Add(1)
			if _, err := http.ReadRequest(r); err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
			then(c)
			_, _ = io.Copy(io.Discard, r) // until the caller leaves
		})
		tr := newTransport(t)
		for range 2 {
			res, err := tr.RoundTrip(request(t.Context(), t, http.MethodPost, url, strings.Repeat("x", 32<<20)))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got := read(t, res); got.Status != http.StatusRequestEntityTooLarge || got.Body != "big" {
				t.Errorf("%s: HTTP %d %q", name, got.Status, got.Body)
			}
		}
		if n := conns.Load(); name == "waits" && n != 2 {
			t.Errorf("%s: %d connections, want 2: one on which a body is half sent cannot be used again", name, n)
		}
		if name == "waits" {
			close(release)
		}
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, says string
		size       int
	}{
		{"before the reply", "", 10},
		{"before the reply, body unread", "", 32 << 20},
		{"in the head", "HTTP/1.1 200 OK\r\nX-Half: ", 10},
		{"in the body", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome", 10},
		{"in a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nsome", 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			asked, left := make(chan struct{}), make(chan struct{})
			url := raw(t, func(_ int, c net.Conn, r *bufio.Reader) {
				defer close(left)
				_, _ = http.ReadRequest(r)
				_, _ = io.WriteString(c, tt.says)
				close(asked)
				if tt.size < 100 {
					_, _ = io.Copy(io.Discard, r)
				} else {
					_, _ = c.Read(make([]byte, 1))
				}
			})
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-asked
				cancel()
			}()
			res, err := newTransport(t).RoundTrip(request(ctx, t, http.MethodPost, url, strings.Repeat("x", tt.size)))
			if err == nil {
				_, err = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("error %v, want context canceled", err)
			}
			<-left
		})
	}
	t.Run("before the call", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		url := raw(t, func(int, net.Conn, *bufio.Reader) {})
		if _, err := newTransport(t).RoundTrip(request(ctx, t, http.MethodPost, url, "x")); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want context canceled", err)
		}
	})
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]string{
		"headers without end":   "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-A: "+strings.Repeat("b", 1000)+"\r\n", 2000),
		"1xx without end":       strings.Repeat("HTTP/1.1 103 Early Hints\r\nX-A: "+strings.Repeat("b", 1000)+"\r\n\r\n", 2000),
		"another protocol":      "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
		"no HTTP":               "SSH-2.0-x\r\n",
		"two lengths":           "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
		"a body that is short":  "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
		"a chunk that is short": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
		"nothing":               "",
	} {
		url := raw(t, func(_ int, c net.Conn, r *bufio.Reader) {
			_, _ = http.ReadRequest(r)
			_, _ = io.WriteString(c, reply)
			_ = c.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, r)
		})
		res, err := newTransport(t).RoundTrip(request(t.Context(), t, http.MethodPost, url, ""))
		if err == nil {
			_, err = io.ReadAll(res.Body)
			_ = res.Body.Close()
		}
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	url := raw(t, func(int, net.Conn, *bufio.Reader) { t.Error("a malformed call is made") })
	for _, change := range []func(*http.Request){
		func(r *http.Request) { r.Header["X-A"] = []string{"b\r\nX-Evil: c"} },
		func(r *http.Request) { r.Header["X-A\r\nX-Evil"] = []string{"c"} },
		func(r *http.Request) { r.Header["X-A: b"] = []string{"c"} },
		func(r *http.Request) { r.Host = "a b" },
		func(r *http.Request) { r.URL.Opaque = "//h/x HTTP/1.1\r\nX-Evil: a" },
	} {
		req := request(t.Context(), t, http.MethodPost, url, "x")
		change(req)
		if _, err := newTransport(t).RoundTrip(req); err == nil {
			t.Errorf("%q, host %q, %v: no error", req.URL.Opaque, req.Host, req.Header)
		}
	}
}

// A reply that is closed before its end takes its connection with it; so does one that says close, and one with more
// bytes behind it than it announced.
func TestConnectionsNotUsedAgain(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]string{
		"closed early": "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde",
		"says close":   "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
		"too much":     small + "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
	} {
		var conns atomic.Int32
		url := raw(t, func(_ int, c net.Conn, r *bufio.Reader) {
			conns.Add(1)
			for {
				if _, err := http.ReadRequest(r); err != nil {
					return
				}
				_, _ = io.WriteString(c, reply)
			}
		})
		tr := newTransport(t)
		for range 2 {
			res, err := tr.RoundTrip(request(t.Context(), t, http.MethodGet, url))
			if err != nil {
				t.Fatal(err)
			}
			if name != "closed early" {
				if b, _ := io.ReadAll(res.Body); string(b) != "ok" {
					t.Errorf("%s: body %q", name, b)
				}
			}
			_ = res.Body.Close()
		}
		if n := conns.Load(); n != 2 {
			t.Errorf("%s: %d connections, want 2", name, n)
		}
	}
}

// Old connections are closed though nobody makes a call.
func TestIdleConnectionsClose(t *testing.T) {
	t.Parallel()
	left := make(chan struct{})
	url := raw(t, func(_ int, c net.Conn, r *bufio.Reader) {
		defer close(left)
		_, _ = http.ReadRequest(r)
		_, _ = io.WriteString(c, small)
		_, _ = io.Copy(io.Discard, r)
	})
	tr := upstream.New(&http.Transport{IdleConnTimeout: 20 * time.Millisecond})
	t.Cleanup(tr.CloseIdleConnections)
	res, err := tr.RoundTrip(request(t.Context(), t, http.MethodGet, url))
	if err != nil {
		t.Fatal(err)
	}
	read(t, res)
	<-left
}

// Many calls at once share nothing but the list of idle connections.
func TestParallel(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body) // before the answer begins: the server reads no more after that
		_, _ = w.Write(b)
	}))
	t.Cleanup(srv.Close)
	tr := newTransport(t)
	var calls sync.WaitGroup
	for k := range 32 {
		calls.Go(func() {
			for i := range 30 {
				text := strings.Repeat(fmt.Sprintf("%d.%d ", k, i), 1+i*i*10)
				ctx, cancel := context.WithCancel(t.Context())
				res, err := tr.RoundTrip(request(ctx, t, http.MethodPost, srv.URL, text))
				switch {
				case err != nil:
					t.Error(err)
				case i%7 == 3:
					cancel()
					_ = res.Body.Close()
				default:
					if got := read(t, res); got.Body != text {
						t.Errorf("call %d.%d got another's bytes", k, i)
					}
				}
				cancel()
			}
		})
	}
	calls.Wait()
}

// FuzzReply compares what is made of a reply with what net/http's own transport makes of it.
func FuzzReply(f *testing.F) {
	for _, s := range []string{
		small, "HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.0 200 OK\r\n\r\nuntil the end",
		"HTTP/1.1 100 Continue\r\n\r\n" + small,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n3\r\nabc\r\n0\r\nX-T: v\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\nContent-Length: 1\n\nx", "HTTP/1.1 500 X\r\nContent-Length: +1\r\n\r\nx",
		"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", "HTTP/1.1 000 0\n\n0",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, reply []byte) {
		if bytes.Contains(reply, []byte(" 101")) {
			t.Skip("net/http switches protocols") // and this package refuses to
		}
		url := raw(t, func(_ int, c net.Conn, r *bufio.Reader) {
			_, _ = http.ReadRequest(r)
			_, _ = c.Write(reply)
			_ = c.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, r)
		})
		other := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
		type outcome struct {
			Said   said
			Failed bool
		}
		try := func(tr http.RoundTripper) outcome {
			res, err := tr.RoundTrip(request(t.Context(), t, http.MethodGet, url))
			if err != nil {
				return outcome{Failed: true}
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			return outcome{said{res.StatusCode, res.Header, string(b), res.Trailer}, err != nil}
		}
		tr := upstream.New(other)
		defer tr.CloseIdleConnections()
		if diff := cmp.Diff(try(other), try(tr)); diff != "" {
			t.Errorf("%q (-net/http +upstream):\n%s", reply, diff)
		}
	})
}
