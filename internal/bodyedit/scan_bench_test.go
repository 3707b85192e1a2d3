package bodyedit

import (
	"fmt"
	"io"
	"strings"
	"testing"
)

// chatBody is a request of an agent with about size bytes of messages: prose and code with escapes, tool
// calls, and the members that the router edits at the end.
func chatBody(size int) []byte {
	const text = `func main() {\n\tfmt.Println(\"hello, world\")\n}\n\nThe quick brown fox jumps over the lazy dog, again and again, until it tires. é “quoted” `
	var b strings.Builder
	b.WriteString(`{"model":"m","messages":[{"role":"system","content":"You are helpful."}`)
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, `,{"role":"assistant","content":"%s","tool_calls":[{"id":"call_%d","type":"function","function":{"name":"read","arguments":"{\"path\":\"main.go\",\"line\":%d}"}}]}`,
			strings.Repeat(text, 1+i%20), i, i)
	}
	b.WriteString(`],"temperature":0.10,"stream":true,"stream_options":{"include_usage":true},"max_tokens":4096}`)
	return []byte(b.String())
}

var sizes = []struct {
	name string
	n    int
}{{"1KiB", 1 << 10}, {"128KiB", 128 << 10}, {"1MiB", 1 << 20}}

func BenchmarkScan(b *testing.B) {
	for _, s := range sizes {
		body := chatBody(s.n)
		b.Run(s.name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			var d Doc
			for b.Loop() {
				if err := d.Reset(body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	plain := []byte(`{"image":"` + strings.Repeat("iVBORw0KGgoAAAANSUhEUgAA", 50_000) + `"}`)
	b.Run("base64", func(b *testing.B) {
		b.SetBytes(int64(len(plain)))
		b.ReportAllocs()
		var d Doc
		for b.Loop() {
			if err := d.Reset(plain); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkElements(b *testing.B) {
	for _, s := range sizes {
		body := chatBody(s.n)
		d, err := Scan(body)
		if err != nil {
			b.Fatal(err)
		}
		messages := d.Get("messages")
		b.Run(s.name, func(b *testing.B) {
			b.SetBytes(int64(len(messages)))
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				for el := range Elements(messages) {
					n += len(el)
				}
				if n == 0 {
					b.Fatal("no messages")
				}
			}
		})
	}
}

// BenchmarkTurn is what one turn costs: a scan, the edits of both legs, and reading both results.
func BenchmarkTurn(b *testing.B) {
	handle := []byte(`{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4,5,6,7,8]]}`)
	for _, s := range sizes {
		body := chatBody(s.n)
		b.Run(s.name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				d, err := Scan(body)
				if err != nil {
					b.Fatal(err)
				}
				for _, prefill := range []bool{true, false} {
					e := d.Edit()
					e.DeleteFold("kv_transfer_params", "cache_salt", "request_id", "priority")
					if prefill {
						e.Set("stream", []byte("false"))
						e.Delete("stream_options", "max_completion_tokens", "min_tokens")
						e.Set("max_tokens", []byte("1"))
					}
					e.Set("kv_transfer_params", handle)
					if n, err := e.Reader().WriteTo(io.Discard); err != nil || n != e.Len() {
						b.Fatal(n, err)
					}
				}
			}
		})
	}
}

func TestScanAllocatesNothing(t *testing.T) {
	body := chatBody(32 << 10)
	var d Doc
	messages := 0
	if n := testing.AllocsPerRun(100, func() {
		if err := d.Reset(body); err != nil {
			t.Fatal(err)
		}
		messages = 0
		for m := range d.Members() {
			if m.IsFold("MESSAGES") {
				messages++
			}
		}
		sp, _ := d.Path("messages")
		for el := range d.ElementsOf(sp) {
			for m := range d.MembersOf(el) {
				if m.Is("role") && TextIs(m.Raw, "assistant") {
					messages++
				}
			}
		}
		for el := range Elements(d.Get("messages")) {
			for m := range Members(el) {
				if m.Is("content") {
					messages++
				}
			}
		}
	}); n != 0 {
		t.Errorf("scan and iteration = %v allocations, want 0", n)
	}
	if messages < 10 {
		t.Errorf("%d messages seen", messages)
	}
}
