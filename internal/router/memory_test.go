package router_test

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
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tarik-kv/tarik/internal/router"
	"github.com/tarik-kv/tarik/internal/upstream"
)

// pipes is a listener in memory: thousands of connections without a file descriptor.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// crowd is many streams at once through one router, in memory.
type crowd struct {
	t     *testing.T
	front *pipes
	go_   []chan struct{} // a stream goes on
	ready chan error      // a stream has got what it waits for, or failed
	all   sync.WaitGroup
}

const event = `data: {"id":"d","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}` + "\n\n"

// engine serves one connection: what asks how it is gets an answer, P's calls get an A, and D's
// calls get an event, then burst more each time the client has read what there was, then the end.
func (c *crowd) engine(conn net.Conn, prefill bool, bursts, burst int) {
	defer conn.Close()
	about := &stub{prefill: prefill}
	r := bufio.NewReaderSize(conn, 1024)
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		switch {
		case req.Method == http.MethodGet:
			w := httptest.NewRecorder()
			about.serve(w, req)
			_, err = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", w.Body.Len(), w.Body)
		case prefill:
			reply := `{"id":"p","choices":[],"usage":{"prompt_tokens":100,"completion_tokens":1},"kv_transfer_params":` + params(true, "p-1", 100, 0) + `}`
			_, err = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(reply), reply)
		default:
			_, after, _ := bytes.Cut(body, []byte("stream "))
			number, _, _ := bytes.Cut(after, []byte{' '})
			n, convErr := strconv.Atoi(string(number))
			if convErr != nil { // the probe's
				_, err = io.WriteString(conn, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
				break
			}
			chunk := func(s string) {
				if err == nil {
					_, err = fmt.Fprintf(conn, "%x\r\n%s\r\n", len(s), s)
				}
			}
			_, err = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
			chunk(event)
			for range bursts {
				<-c.go_[n]
				for range burst {
					chunk(event)
				}
			}
			<-c.go_[n]
			chunk("data: [DONE]\n\n")
			if err == nil {
				_, err = io.WriteString(conn, "0\r\n\r\n")
			}
		}
		if err != nil {
			return
		}
	}
}

// client makes one streamed turn and says each time it has read what D has sent.
func (c *crowd) client(to *pipes, n, bursts, burst int) {
	err := func() error {
		conn, err := to.dial(c.t.Context())
		if err != nil {
			return err
		}
		defer conn.Close()
		body := chat(true, fmt.Sprintf("stream %d %s", n, long(500)))
		head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", chatPath, len(body), body)
		if _, err := io.WriteString(conn, head); err != nil {
			return err
		}
		r := bufio.NewReaderSize(conn, 1024)
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			return err
		}
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("HTTP %d", res.StatusCode)
		}
		want := make([]byte, len(event))
		read := func(times int) error {
			for range times {
				if _, err := io.ReadFull(res.Body, want); err != nil || string(want) != event {
					return fmt.Errorf("event %q, %w", want, err)
				}
			}
			return nil
		}
		if err := read(1); err != nil {
			return err
		}
		c.ready <- nil
		for range bursts {
			if err := read(burst); err != nil {
				return err
			}
			c.ready <- nil
		}
		rest, err := io.ReadAll(res.Body)
		if string(rest) != "data: [DONE]\n\n" {
			return fmt.Errorf("the end is %q", rest)
		}
		return err
	}()
	c.ready <- err
}

// wait waits for n clients.
func (c *crowd) wait(n int) {
	c.t.Helper()
	for range n {
		if err := <-c.ready; err != nil {
			c.t.Fatal(err)
		}
	}
}

// inUse is what live objects and stacks take when nothing is left to collect, in bytes.
func inUse() int64 {
	runtime.GC()
	runtime.GC() // what pools held in the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// TestMemoryOfManyStreams: 2000 streams at once take a bounded piece of memory each, however long they
// last, and give it back. What the test's own clients and engines take is measured without the router
// and left out.
//
// It is not parallel: it looks at the memory of the process.
func TestMemoryOfManyStreams(t *testing.T) {
	streams := 2000
	if raceDetector {
		streams = 200 // it takes its time
	}
	const (
		bursts = 2
		burst  = 50       // events
		most   = 80 << 10 // bytes a stream
		growth = 4 << 10  // the same, from the first event to the hundredth
	)
	c := &crowd{t: t, front: newPipes(), ready: make(chan error, streams)}
	for range streams {
		c.go_ = append(c.go_, make(chan struct{}))
	}
	engines := map[string]*pipes{"p": newPipes(), "d": newPipes()}
	for name, l := range engines {
		c.all.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				c.all.Go(func() { c.engine(conn, name == "p", bursts, burst) })
			}
		})
	}
	transport := router.Transport()
	transport.DialContext = func(ctx context.Context, _, addr string) (net.Conn, error) {
		return engines[strings.TrimSuffix(addr, ":80")].dial(ctx)
	}
	cfg := router.DefaultConfig()
	cfg.Return, cfg.Append = false, false
	idle := upstream.New(transport)
	cfg.Prefill, cfg.Decode, cfg.HealthInterval, cfg.Transport = "http://p", "http://d", time.Hour, idle
	r, err := router.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: r.Handler(), ReadHeaderTimeout: time.Minute}
	c.all.Go(func() {
		if err := srv.Serve(c.front); !errors.Is(err, net.ErrClosed) && !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})

	// play has all streams open at once and returns what each takes, with its first event and after all the others.
	play := func(to *pipes) (open, late int64) {
		before := inUse()
		var clients sync.WaitGroup
		for n := range streams {
			clients.Go(func() { c.client(to, n, bursts, burst) })
		}
		c.wait(streams)
		idle.CloseIdleConnections() // to P: how many there are depends on how the calls fell together
		open = inUse() - before
		for range bursts {
			for _, g := range c.go_ {
				g <- struct{}{}
			}
			c.wait(streams)
		}
		late = inUse() - before
		for _, g := range c.go_ {
			g <- struct{}{}
		}
		c.wait(streams)
		clients.Wait()
		return open / int64(streams), late / int64(streams)
	}
	before, goroutines := inUse(), runtime.NumGoroutine()
	direct, _ := play(engines["d"])
	open, late := play(c.front)
	open, late = open-direct, late-direct
	idle.CloseIdleConnections()

	t.Logf("%d bytes a stream with one event, %d with %d, and %d for client and engine alone", open, late, 1+bursts*burst, direct)
	if open > most {
		t.Errorf("a stream takes %d bytes, want at most %d", open, most)
	}
	if late-open > growth {
		t.Errorf("a stream takes %d bytes more after %d events", late-open, bursts*burst)
	}
	for i := 0; runtime.NumGoroutine() > goroutines+20 && i < 1000; i++ {
		time.Sleep(10 * time.Millisecond) // the server's goroutines end soon after the clients
	}
	if n := runtime.NumGoroutine(); n > goroutines+20 {
		t.Errorf("%d goroutines are left of %d streams", n-goroutines, streams)
	}
	// The store and the receipts keep something of each turn, as they are meant to.
	if left := (inUse() - before) / int64(streams); left > most/4 {
		t.Errorf("%d bytes are left of each stream", left)
	}

	_ = srv.Close()
	_ = c.front.Close()
	r.Close()
	for _, l := range engines {
		_ = l.Close()
	}
	c.all.Wait()
}
