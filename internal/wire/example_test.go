package wire_test

import (
	"fmt"
	"io"
	"strings"

	"github.com/tarik-kv/tarik/internal/sse"
	"github.com/tarik-kv/tarik/internal/wire"
)

// A relay reads, frames, filters and writes; at the end it knows what it needs.
func ExampleFilter() {
	upstream := strings.NewReader(`data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null,"token_ids":[504]}],"kv_transfer_params":null}

data: {"choices":[{"index":0,"delta":{"content":"."},"finish_reason":"stop","token_ids":[30,2]}],"kv_transfer_params":{"do_remote_decode":true}}

data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}

data: [DONE]

`)
	var framer sse.Framer
	var filter wire.Filter
	filter.Reset(wire.Options{}) // the client asked for nothing special
	send := func(ev sse.Event) {
		if act, out := filter.Event(ev); act != wire.Drop {
			fmt.Print(string(out))
		}
	}
	for buf := make([]byte, 100); ; {
		n, err := upstream.Read(buf)
		framer.Feed(buf[:n])
		for ev, ok := framer.Next(); ok; ev, ok = framer.Next() {
			send(ev)
		}
		if err == io.EOF {
			break
		}
	}
	if ev, ok := framer.Flush(); ok {
		send(ev)
	}
	info := filter.Info()
	fmt.Println(info.Done, info.FinishReason, info.TokenIDs, info.Usage.CompletionTokens, len(info.Handle) > 0)
	// Output:
	// data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null,"token_ids":null}]}
	//
	// data: {"choices":[{"index":0,"delta":{"content":"."},"finish_reason":"stop","token_ids":null}]}
	//
	// data: [DONE]
	//
	// true stop [504 30 2] 3 true
}
