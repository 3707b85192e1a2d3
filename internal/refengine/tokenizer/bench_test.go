package tokenizer

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// benchmarkText is some 100 kB of words, code and white space that repeat as in real prompts.
func benchmarkText() string {
	words := strings.Fields(tinyWords)
	rng := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	for b.Len() < 100_000 {
		switch rng.IntN(12) {
		case 0:
			fmt.Fprintf(&b, "\n\n    x[%d] = f(%d)\n", rng.IntN(1000), rng.IntN(10))
		case 1:
			b.WriteString(". Größe 河很宽 ")
		default:
			b.WriteString(" " + words[rng.IntN(len(words))])
		}
	}
	return b.String()
}

func BenchmarkEncode(b *testing.B) {
	text := benchmarkText()
	tiny, _ := Tiny()
	for name, tok := range map[string]*Tokenizer{"tiny": tiny, "llama3": loadTestTokenizer(b, "llama3"), "qwen2": loadTestTokenizer(b, "qwen2"), "smollm": loadTestTokenizer(b, "smollm")} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				tok.Encode(text)
			}
		})
	}
}

// BenchmarkEncodeOneWord is the worst case: 100 kB without a place to split, and nothing in the cache.
func BenchmarkEncodeOneWord(b *testing.B) {
	rng := rand.New(rand.NewPCG(3, 4))
	var text strings.Builder
	for text.Len() < 100_000 {
		text.WriteByte("etaoinshrdlu"[rng.IntN(12)])
	}
	tok := loadTestTokenizer(b, "smollm")
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		tok.Encode(text.String())
	}
}

// longConversation alternates users, thinking replies with calls, and tool results of 500 bytes.
func longConversation(messages int) []json.RawMessage {
	result := strings.Repeat("some text of a tool ", 25)
	var out []json.RawMessage
	for i := range messages {
		switch i % 3 {
		case 0:
			out = append(out, json.RawMessage(`{"role":"user","content":"Look at the file and tell me what it says."}`))
		case 1:
			out = append(out, json.RawMessage(`{"role":"assistant","content":"<think>\nI have to read it first.\n</think>\n\nReading.","tool_calls":[{"id":"abcdefghi","type":"function","function":{"name":"read_file","arguments":"{\"path\": \"/tmp/x\", \"limit\": 10}"}}]}`))
		default:
			out = append(out, json.RawMessage(`{"role":"tool","tool_call_id":"abcdefghi","content":"`+result+`"}`))
		}
	}
	return out
}

func BenchmarkRender(b *testing.B) {
	messages := longConversation(200)
	tools := readRenderings(b).Tools
	_, tiny := Tiny()
	for name, template := range map[string]*Template{"tiny": tiny, "thinking-tools": loadTestTemplate(b, "thinking-tools.jinja"), "chatml": loadTestTemplate(b, "chatml.jinja")} {
		b.Run(name+"/200", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := template.Render(messages, tools, true, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkStream(b *testing.B) {
	tok, _ := Tiny()
	ids := tok.Encode(benchmarkText())
	b.ReportAllocs()
	for b.Loop() {
		s := tok.NewStream()
		for _, id := range ids {
			s.Push(id)
		}
		s.Flush()
	}
	b.ReportMetric(float64(len(ids)), "tokens/op")
}
