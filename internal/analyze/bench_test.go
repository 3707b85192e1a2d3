package analyze

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// BenchmarkRun reads logs of n requests: counts only, and chats with their text.
func BenchmarkRun(b *testing.B) {
	var counts, texts strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&counts, `{"conversation_id":"conv-%d","ts":%d.%03d,"prompt_tokens":%d,"completion_tokens":%d,"model":"qwen3-32b"}`+"\n",
			i*7919%4001, 1760000000+i/20, i%1000, 1000+i%9000, i%500)
	}
	for c := range 20 {
		texts.WriteString(lines(b, growing(fmt.Sprint("c", c), 40, 20, func(int) string { return words("s", 800) })...))
	}
	for _, c := range []struct{ name, log string }{{"counts/100000", counts.String()}, {"text/800", texts.String()}} {
		name := filepath.Join(b.TempDir(), "log.jsonl")
		if err := os.WriteFile(name, []byte(c.log), 0o600); err != nil {
			b.Fatal(err)
		}
		b.Run(c.name, func(b *testing.B) {
			o := DefaultOptions()
			o.Files = []string{name}
			b.SetBytes(int64(len(c.log)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Run(context.Background(), o); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
