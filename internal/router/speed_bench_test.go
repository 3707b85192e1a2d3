package router_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tarik-kv/tarik/internal/router"
)

// These benchmarks measure what the router adds. A turn is two engine calls, so its floor is those
// two calls made by the same kind of client; next to it stands httputil.ReverseProxy, which makes one.
// All arms take turns within one run, so that what else the machine does falls on each alike.

// wireEngine serves HTTP/1.1 with next to no work: whatever arrives by POST is read to its end and gets
// the same bytes.
func wireEngine(tb testing.TB, prefill bool, reply string) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var conns sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			conns.Go(func() { serveWire(c, prefill, []byte(reply)) })
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		conns.Wait()
	})
	return "http://" + l.Addr().String()
}

func serveWire(c net.Conn, prefill bool, reply []byte) {
	defer c.Close()
	about := &stub{prefill: prefill}
	r := bufio.NewReaderSize(c, 64<<10)
	for {
		first, err := r.ReadSlice('\n')
		if err != nil {
			return
		}
		get := bytes.HasPrefix(first, []byte("GET "))
		path := string(bytes.Fields(first)[1])
		length := 0
		for {
			line, err := r.ReadSlice('\n')
			if err != nil {
				return
			}
			if len(line) <= 2 {
				break
			}
			if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
				length, _ = strconv.Atoi(string(bytes.TrimSpace(v)))
			}
		}
		if _, err := r.Discard(length); err != nil {
			return
		}
		if get {
			w := httptest.NewRecorder()
			about.serve(w, httptest.NewRequest(http.MethodGet, path, nil))
			_, err = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", w.Body.Len(), w.Body)
		} else {
			_, err = c.Write(reply)
		}
		if err != nil {
			return
		}
	}
}

// wirePair are a P that returns an A and a D that keeps nothing, as raw as can be.
func wirePair(tb testing.TB) (p, d string) {
	whole := func(body string) string {
		return "HTTP/1.1 200 OK\r\nDate: Mon, 30 Nov 2026 10:00:00 GMT\r\nServer: uvicorn\r\nContent-Type: application/json\r\nContent-Length: " +
			strconv.Itoa(len(body)) + "\r\n\r\n" + body
	}
	p = wireEngine(tb, true, whole(`{"id":"p","choices":[{"index":0,"message":{"role":"assistant","content":"o"},"finish_reason":"length"}],`+
		`"usage":{"prompt_tokens":100,"total_tokens":101,"completion_tokens":1},"kv_transfer_params":`+params(true, "p-1", 100, 0)+`}`))
	d = wireEngine(tb, false, whole(`{"id":"d","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},`+
		`"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}],"usage":{"prompt_tokens":100,"total_tokens":103,"completion_tokens":3},"kv_transfer_params":null}`))
	return p, d
}

// speedRouter is a router as it is by default, in front of p and d.
func speedRouter(tb testing.TB, p, d string) string {
	tb.Helper()
	cfg := router.DefaultConfig()
	cfg.Prefill, cfg.Decode, cfg.HealthInterval = p, d, time.Hour
	r, err := router.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(r.Close)
	front := httptest.NewServer(r.Handler())
	tb.Cleanup(front.Close)
	if err := r.Ready(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return front.URL
}

// plainProxy is httputil.ReverseProxy in front of one engine, with the router's own transport.
func plainProxy(tb testing.TB, engine string) string {
	tb.Helper()
	to, err := url.Parse(engine)
	if err != nil {
		tb.Fatal(err)
	}
	transport := router.Transport()
	tb.Cleanup(transport.CloseIdleConnections)
	front := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, Transport: transport,
	})
	tb.Cleanup(front.Close)
	return front.URL
}

// opening makes the body of a conversation's first turn, another one at each call.
type opening struct {
	size int
	n    atomic.Int64
}

func (o *opening) next() string {
	text := fmt.Sprintf("turn %09d: ", o.n.Add(1))
	if o.size > 4096 {
		text += strings.Repeat(`he said \"no\", then left. `, o.size/27)
	}
	return `{"model":"m","messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"` + text +
		`Why is the sky blue?"}],"temperature":0.7,"max_tokens":64}`
}

// BenchmarkAdded is a turn of two calls through the router against the two calls, and one call
// through httputil.ReverseProxy against the call. p50s over all iterations; added are differences of
// p50s. The conversation is always new: P gets the null form and D keeps nothing.
func BenchmarkAdded(b *testing.B) {
	for _, size := range []int{200, 128 << 10} {
		b.Run(fmt.Sprintf("body=%d", size), func(b *testing.B) {
			p, d := wirePair(b)
			through, proxy := speedRouter(b, p, d), plainProxy(b, d)
			client := &http.Client{Transport: router.Transport()}
			b.Cleanup(client.CloseIdleConnections)
			call := func(base, body string) {
				res, err := client.Post(base+chatPath, "application/json", strings.NewReader(body))
				if err != nil {
					b.Fatal(err)
				}
				_, err = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
				if err != nil || res.StatusCode != http.StatusOK {
					b.Fatalf("HTTP %d, %v", res.StatusCode, err)
				}
			}
			o := &opening{size: size}
			arms := []func(body string){
				func(body string) { call(p, body); call(d, body) },
				func(body string) { call(through, body) },
				func(body string) { call(d, body) },
				func(body string) { call(proxy, body) },
			}
			took := make([][]float64, len(arms))
			turn := func(i int, keep bool) {
				for k := range arms {
					k = (k + i) % len(arms)
					body := o.next()
					begin := time.Now()
					arms[k](body)
					if t := time.Since(begin); keep {
						took[k] = append(took[k], float64(t.Nanoseconds())/1000)
					}
				}
			}
			for i := range 200 {
				turn(i, false)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				turn(i, true)
				i++
			}
			var p50 [4]float64
			for k := range took {
				slices.Sort(took[k])
				p50[k] = took[k][len(took[k])/2]
			}
			b.ReportMetric(p50[0], "two-calls-µs")
			b.ReportMetric(p50[1], "router-µs")
			b.ReportMetric(p50[1]-p50[0], "router-added-µs")
			b.ReportMetric(p50[2], "call-µs")
			b.ReportMetric(p50[3]-p50[2], "proxy-added-µs")
		})
	}
}

// BenchmarkClosedLoop is 32 clients that each begin a new turn as soon as they have the reply to the
// last, in one process with the engines and the router: req/s counts the clients' requests. The
// proxy makes half as many calls as the router.
func BenchmarkClosedLoop(b *testing.B) {
	for _, way := range []string{"router", "proxy"} {
		b.Run(way, func(b *testing.B) {
			p, d := wirePair(b)
			var base string
			if way == "router" {
				base = speedRouter(b, p, d)
			} else {
				base = plainProxy(b, d)
			}
			o := &opening{size: 200}
			addr := strings.TrimPrefix(base, "http://")
			var clients sync.WaitGroup
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ReportAllocs()
			b.ResetTimer()
			for range 32 {
				clients.Go(func() {
					if err := wireClient(addr, o, &left); err != nil {
						b.Error(err)
					}
				})
			}
			clients.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
		})
	}
}

// wireClient posts over one connection, with as little work as possible, while there are turns left.
func wireClient(addr string, o *opening, left *atomic.Int64) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	r := bufio.NewReader(c)
	var out []byte
	for left.Add(-1) >= 0 {
		body := o.next()
		out = append(out[:0], "POST "+chatPath+" HTTP/1.1\r\nHost: tarik\r\nContent-Type: application/json\r\nContent-Length: "...)
		out = append(append(strconv.AppendInt(out, int64(len(body)), 10), "\r\n\r\n"...), body...)
		if _, err := c.Write(out); err != nil {
			return err
		}
		status, err := r.ReadString('\n')
		if err != nil || status != "HTTP/1.1 200 OK\r\n" {
			return fmt.Errorf("status line %q, %w", status, err)
		}
		length := -1
		for {
			line, err := r.ReadSlice('\n')
			if err != nil {
				return err
			}
			if len(line) <= 2 {
				break
			}
			if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
				length, _ = strconv.Atoi(string(bytes.TrimSpace(v)))
			}
		}
		if length < 0 {
			return fmt.Errorf("a reply without Content-Length")
		}
		if _, err := r.Discard(length); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkPacedStream is a stream whose events come one by one, as tokens do: D sends the next when
// the client has read the last, so that no two share a read or a write. It is the CPU time of the
// whole process for each event; what "router" has more than "direct" is the router's, and "pipe" shows
// how much of it the least proxy there can be needs, which copies bytes between two sockets.
func BenchmarkPacedStream(b *testing.B) {
	next := make(chan struct{})
	p, _ := wirePair(b)
	about := &stub{}
	d := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet {
			about.serve(w, req)
			return
		}
		body, _ := io.ReadAll(req.Body)
		if !bytes.Contains(body, []byte(`"stream":true`)) { // the probe's
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", eventStream)
		rc := http.NewResponseController(w)
		for range next {
			_, _ = io.WriteString(w, event)
			_ = rc.Flush() // fails if the reader has left
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}))
	b.Cleanup(d.Close)
	through := speedRouter(b, p, d.URL)
	for _, way := range []struct{ name, url string }{{"direct", d.URL}, {"pipe", bytePipe(b, d.URL)}, {"router", through}} {
		b.Run(way.name, func(b *testing.B) {
			next = make(chan struct{})
			type opened struct {
				res *http.Response
				err error
			}
			ready := make(chan opened, 1)
			go func() {
				res, err := http.Post(way.url+chatPath, "application/json", strings.NewReader(chat(true, "hi")))
				ready <- opened{res, err}
			}()
			next <- struct{}{}
			o := <-ready
			if o.err != nil {
				b.Fatal(o.err)
			}
			defer o.res.Body.Close()
			got := make([]byte, len(event))
			read := func() {
				if _, err := io.ReadFull(o.res.Body, got); err != nil || string(got) != event {
					b.Fatalf("%q, %v", got, err)
				}
			}
			read()
			b.ReportAllocs()
			begin := cpuTime(b)
			for b.Loop() {
				next <- struct{}{}
				read()
			}
			b.ReportMetric(float64((cpuTime(b)-begin).Nanoseconds())/float64(b.N), "cpu-ns/chunk")
			close(next)
			_, _ = io.Copy(io.Discard, o.res.Body)
		})
	}
}

// bytePipe copies bytes between whoever connects and the server at url.
func bytePipe(b *testing.B, url string) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	copyBytes := func(to, from net.Conn) {
		buf := make([]byte, 4096) // not io.Copy, which would have the kernel do it
		for {
			n, err := from.Read(buf)
			if n > 0 {
				_, err = to.Write(buf[:n])
			}
			if err != nil {
				_ = to.Close()
				return
			}
		}
	}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
			if err != nil {
				return
			}
			go copyBytes(near, far)
			go copyBytes(far, near)
		}
	}()
	return "http://" + l.Addr().String()
}

// cpuTime is what the process has used.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
