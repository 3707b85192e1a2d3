package wire

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/tarik-kv/tarik/internal/kvp"
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

// messages500 is such an answer of /v1/messages.
func messages500() []byte {
	var b bytes.Buffer
	b.WriteString(`data: {"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}` + "\n\n")
	for i := range 500 {
		fmt.Fprintf(&b, "event: content_block_delta\n"+`data: {"type":"content_block_delta","delta":{"type":"text_delta","text":" word%d"},"index":0}`+"\n\n", i%10)
	}
	b.WriteString(`data: {"type":"message_stop"}` + "\n\n")
	return b.Bytes()
}

func BenchmarkRelay(b *testing.B) {
	for _, bench := range []struct {
		name   string
		stream []byte
		opt    Options
		parsed bool
	}{
		{"null", reply500(false), Options{}, false},
		{"null-kept", reply500(false), Options{KeepReply: 1 << 20}, false},
		{"ids", reply500(true), Options{}, false},
		{"ids-kept", reply500(true), Options{KeepReply: 1 << 20}, false},
		{"ids-parsed", reply500(true), Options{}, true},
		{"ids-parsed-kept", reply500(true), Options{KeepReply: 1 << 20}, true},
		{"messages", messages500(), Options{Endpoint: kvp.Messages}, false},
		{"messages-kept", messages500(), Options{Endpoint: kvp.Messages, KeepReply: 1 << 20}, false},
	} {
		stream := bench.stream
		b.Run(bench.name, func(b *testing.B) {
			b.SetBytes(int64(len(stream)))
			b.ReportAllocs()
			f := new(Filter)
			var fr sse.Framer
			for b.Loop() {
				f.Reset(bench.opt)
				fr.Feed(stream)
				n := 0
				for ev, ok := fr.Next(); ok; ev, ok = fr.Next() {
					if bench.parsed {
						f.last.known = false
					}
					_, out := f.Event(ev)
					n += len(out)
				}
				if n == 0 || !f.Info().Done || (f.Info().Reply.size >= 3000) != (bench.opt.KeepReply > 0) {
					b.Fatal(n, f.Info().Reply.size)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/502, "ns/event")
		})
	}
}

func TestOrdinaryChunksAllocateNothing(t *testing.T) {
	calls := deltas(`"tool_calls":[{"id":"c0","index":0,"function":{"name":"f"}}]`) +
		strings.Repeat(`data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"abc"}}]}}]}`+"\n\n", 500) + "data: [DONE]\n\n\n"
	for endpoint, stream := range map[kvp.Endpoint][][]byte{kvp.Chat: {reply500(true), []byte(calls)}, kvp.Messages: {messages500()}} {
		for _, stream := range stream {
			ordinaryChunksAllocateNothing(t, Options{Endpoint: endpoint, KeepReply: 1 << 20}, stream)
		}
	}
}

func ordinaryChunksAllocateNothing(t *testing.T, opt Options, stream []byte) {
	t.Helper()
	var fr sse.Framer
	fr.Feed(stream)
	var events []sse.Event
	for ev, ok := fr.Next(); ok; ev, ok = fr.Next() {
		events = append(events, ev)
	}
	f := new(Filter)
	for _, known := range []bool{true, false} {
		f.Reset(opt)
		for _, ev := range events { // memory grows once
			f.Event(ev)
		}
		f.Reset(opt)
		i := 0
		for ; i < 20; i++ { // the beginning is not ordinary
			f.Event(events[i])
		}
		if n := testing.AllocsPerRun(200, func() {
			f.last.known = f.last.known && known
			f.Event(events[i])
			i++
		}); n != 0 || f.info.Reply.size < 600 {
			t.Errorf("%s, compared %v: %v allocations per chunk, want 0; %d bytes kept", opt.Endpoint, known, n, f.info.Reply.size)
		}
	}
}
