package sse

import (
	"bytes"
	"fmt"
	"testing"
)

// stream is n chunks of about 235 bytes, as an engine writes them.
func stream(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, `data: {"id":"chatcmpl-client-42","object":"chat.completion.chunk","created":1795984216,"model":"smollm2","choices":[{"index":0,"delta":{"content":" word%d"},"logprobs":null,"finish_reason":null,"token_ids":null}],"kv_transfer_params":null}`+"\n\n", i%10)
	}
	return b.Bytes()
}

func run(f *Framer, b []byte, size int) (events int) {
	for len(b) > 0 {
		n := min(size, len(b))
		f.Feed(b[:n])
		b = b[n:]
		for ev, ok := f.Next(); ok; ev, ok = f.Next() {
			if ev.HasData() && len(ev.Data()) > 0 {
				events++
			}
		}
	}
	return events
}

func BenchmarkFramer(b *testing.B) {
	data := stream(500)
	for _, size := range []int{237, 1000, 32 << 10} {
		b.Run(fmt.Sprintf("reads=%d", size), func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			var f Framer
			for b.Loop() {
				if n := run(&f, data, size); n != 500 {
					b.Fatal(n)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/500, "ns/event")
		})
	}
}

func TestFramerAllocatesNothing(t *testing.T) {
	data := stream(50)
	var f Framer
	for _, size := range []int{100, 1000, len(data)} {
		run(&f, data, size) // the buffer grows once
		if n := testing.AllocsPerRun(100, func() { run(&f, data, size) }); n != 0 {
			t.Errorf("reads of %d: %v allocations per stream, want 0", size, n)
		}
	}
}
