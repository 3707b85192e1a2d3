package router_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tarik-kv/tarik/internal/router"
)

// instant are engines that answer at once, with as little work as possible.
func instant(b *testing.B, prefill bool, chunks int) *httptest.Server {
	b.Helper()
	var stream strings.Builder
	for i := range chunks {
		fmt.Fprintf(&stream, `data: {"id":"d","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" word%d"},"logprobs":null,"finish_reason":null,"token_ids":null}],"kv_transfer_params":null}`+"\n\n", i)
	}
	pieces := strings.SplitAfter(stream.String(), "\n\n")
	whole := `{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":100,"completion_tokens":1},"kv_transfer_params":` + params(prefill, "e", 100, 0) + `}`
	s := &stub{prefill: prefill}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet {
			s.serve(w, req)
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		if chunks == 0 || prefill {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, whole)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		rc := http.NewResponseController(w)
		for _, p := range pieces {
			_, _ = io.WriteString(w, p)
			_ = rc.Flush()
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}))
	b.Cleanup(srv.Close)
	return srv
}

func benchRouter(b *testing.B, p, d string) string {
	b.Helper()
	cfg := router.DefaultConfig()
	cfg.Return, cfg.Append = false, false
	cfg.Prefill, cfg.Decode, cfg.Reuse, cfg.HealthInterval = p, d, false, time.Hour
	r, err := router.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(r.Close)
	front := httptest.NewServer(r.Handler())
	b.Cleanup(front.Close)
	if err := r.Ready(b.Context()); err != nil {
		b.Fatal(err)
	}
	return front.URL
}

func fetch(b *testing.B, url, body string) {
	b.Helper()
	res, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	_, err = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	if err != nil || res.StatusCode != http.StatusOK {
		b.Fatalf("HTTP %d, %v", res.StatusCode, err)
	}
}

// BenchmarkTurn compares a turn through the router with the two engine calls it consists of, made
// one after the other by the client itself. added-µs is the difference a turn.
func BenchmarkTurn(b *testing.B) {
	for _, size := range []int{200, 128 << 10} {
		b.Run(fmt.Sprintf("body=%d", size), func(b *testing.B) {
			p, d := instant(b, true, 0), instant(b, false, 0)
			url := benchRouter(b, p.URL, d.URL)
			body := chat(false, long(size))
			direct := func() {
				fetch(b, p.URL+chatPath, body)
				fetch(b, d.URL+chatPath, body)
			}
			for range 20 {
				direct()
				fetch(b, url+chatPath, body)
			}
			var two, through time.Duration
			b.ReportAllocs()
			for b.Loop() {
				begin := time.Now()
				direct()
				middle := time.Now()
				fetch(b, url+chatPath, body)
				two += middle.Sub(begin)
				through += time.Since(middle)
			}
			n := float64(b.N)
			b.ReportMetric(float64(through.Microseconds())/n, "router-µs/turn")
			b.ReportMetric(float64(two.Microseconds())/n, "direct-µs/turn")
			b.ReportMetric(float64((through-two).Microseconds())/n, "added-µs/turn")
			b.ReportMetric(float64(through)/float64(two), "ratio")
		})
	}
}

// BenchmarkStream is the CPU time of the whole process for each chunk of a stream of 500: engine, client and,
// in "router", the router between them.
func BenchmarkStream(b *testing.B) {
	const chunks = 500
	p, d := instant(b, true, 0), instant(b, false, chunks)
	url := benchRouter(b, p.URL, d.URL)
	body := chat(true, "hi")
	cpu := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	for _, way := range []struct{ name, url string }{{"direct", d.URL}, {"router", url}} {
		b.Run(way.name, func(b *testing.B) {
			b.ReportAllocs()
			begin := cpu()
			for b.Loop() {
				fetch(b, way.url+chatPath, body)
			}
			b.ReportMetric(float64((cpu()-begin).Nanoseconds())/float64(b.N*chunks), "cpu-ns/chunk")
		})
	}
}
