package wire

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/tarik-kv/tarik/internal/sse"
)

// reply500 is a streamed answer of 500 chunks of about 235 bytes with token ids, as the router asks for them.
func reply500(ids bool) []byte {
	var b bytes.Buffer
	b.WriteString(role)
	for i := range 500 {
		list := "null"
		if ids {
			list = fmt.Sprintf("[%d]", 1000+i)
		}
		fmt.Fprintf(&b, `data: {"id":"chatcmpl-client-42","object":"chat.completion.chunk","created":1795984216,"model":"smollm2","choices":[{"index":0,"delta":{"content":" word%d"},"logprobs":null,"finish_reason":null,"token_ids":%s}],"kv_transfer_params":null}`+"\n\n", i%10, list)
	}
	fmt.Fprintf(&b, `data: {"id":"x","choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop","token_ids":[2]}],"kv_transfer_params":%s}`+"\n\ndata: [DONE]\n\n", secret)
	return b.Bytes()
}

func BenchmarkRelay(b *testing.B) {
	for _, bench := range []struct {
		name   string
		ids    bool
		parsed bool
	}{{"null", false, false}, {"ids", true, false}, {"ids-parsed", true, true}} {
		stream := reply500(bench.ids)
		b.Run(bench.name, func(b *testing.B) {
			b.SetBytes(int64(len(stream)))
			b.ReportAllocs()
			f := new(Filter)
			var fr sse.Framer
			for b.Loop() {
				f.Reset(Options{})
				fr.Feed(stream)
				n := 0
				for ev, ok := fr.Next(); ok; ev, ok = fr.Next() {
					if bench.parsed {
						f.last.known = false
					}
					_, out := f.Event(ev)
					n += len(out)
				}
				if n == 0 || f.Info().Handle == nil {
					b.Fatal(n)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/502, "ns/event")
		})
	}
}

func TestOrdinaryChunksAllocateNothing(t *testing.T) {
	stream := reply500(true)
	var fr sse.Framer
	fr.Feed(stream)
	var events []sse.Event
	for ev, ok := fr.Next(); ok; ev, ok = fr.Next() {
		events = append(events, ev)
	}
	events = events[1 : len(events)-2]
	f := new(Filter)
	for _, known := range []bool{true, false} {
		for _, ev := range events { // memory grows once
			f.Event(ev)
		}
		i := 0
		if n := testing.AllocsPerRun(200, func() {
			f.info.TokenIDs = f.info.TokenIDs[:0]
			f.last.known = f.last.known && known
			f.Event(events[i])
			i++
		}); n != 0 {
			t.Errorf("compared %v: %v allocations per chunk, want 0", known, n)
		}
	}
}
