package tokenizer

import (
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// hardText draws text made of what pre-tokenizers treat differently.
func hardText() *rapid.Generator[string] {
	part := rapid.OneOf(
		rapid.String(),
		rapid.StringOfN(rapid.RuneFrom([]rune(" \n\r\t\u00a0\u3000ab'Zs0159.,-é中\u0301😀\u200d")), 0, 20, -1),
		rapid.SampledFrom([]string{"<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|im_", " the", "'s", "'LL", "\n\n", "    ", "1234567"}),
	)
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(part, 0, 6).Draw(t, "parts"), "")
	})
}

// TestDecodeInvertsEncode: a byte-level vocabulary without normalizer loses nothing.
func TestDecodeInvertsEncode(t *testing.T) {
	t.Parallel()
	tiny, _ := Tiny()
	for name, tok := range map[string]*Tokenizer{
		"tiny": tiny, "smollm": loadTestTokenizer(t, "smollm"), "llama3": loadTestTokenizer(t, "llama3"), "o200k": loadTestTokenizer(t, "o200k"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				text := hardText().Draw(t, "text")
				if got := tok.Decode(tok.Encode(text), false); got != text {
					t.Fatalf("Decode(Encode(%q)) = %q", text, got)
				}
			})
		})
	}
}

// TestStreamEqualsDecode: in whatever pieces text comes out, it is that of Decode, and no piece ends within a character.
func TestStreamEqualsDecode(t *testing.T) {
	t.Parallel()
	tiny, _ := Tiny()
	for name, tok := range map[string]*Tokenizer{"tiny": tiny, "llama2": loadTestTokenizer(t, "llama2"), "qwen2": loadTestTokenizer(t, "qwen2")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				// Any ids, not only those of valid text: models do generate broken characters.
				ids := rapid.SliceOf(rapid.Int32Range(-1, int32(tok.VocabSize()))).Draw(t, "ids")
				if rapid.Bool().Draw(t, "encoded") {
					ids = tok.Encode(hardText().Draw(t, "text"))
				}
				keep := rapid.Bool().Draw(t, "keep special")
				s := tok.NewStream()
				s.KeepSpecial = keep
				var got strings.Builder
				for _, id := range ids {
					piece := s.Push(id)
					if !utf8.ValidString(piece) {
						t.Fatalf("Push(%d) = %q, not valid UTF-8", id, piece)
					}
					got.WriteString(piece)
				}
				got.WriteString(s.Flush())
				if diff := cmp.Diff(tok.Decode(ids, !keep), got.String()); diff != "" {
					t.Fatalf("stream (-decoded +streamed):\n%s", diff)
				}
			})
		})
	}
}

func TestStreamHoldsIncompleteCharacters(t *testing.T) {
	t.Parallel()
	tok, _ := Tiny()
	// Each byte is a token: the emoji, then its first two bytes again, then an "x", then two lone bytes.
	bytes := []int32{0xf0, 0x9f, 0x98, 0x80, 0xf0, 0x9f, 'x', 0xff, 0xe4, 0xb8}
	want := []string{"", "", "", "😀", "", "", "\ufffdx", "\ufffd", "", ""}
	s := tok.NewStream()
	var got []string
	for _, id := range bytes {
		got = append(got, s.Push(id))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pushed (-want +got):\n%s", diff)
	}
	if got := s.Flush(); got != "\ufffd" {
		t.Errorf("Flush() = %q, want one replacement character", got)
	}
	if got := s.Flush(); got != "" {
		t.Errorf("second Flush() = %q, want nothing", got)
	}
}

func TestStreamSkipsSpecialTokens(t *testing.T) {
	t.Parallel()
	tok, _ := Tiny()
	ids := tok.Encode("<think> the</think> river<|im_end|>")
	if got, want := streamed(tok, ids, false), "<think> the</think> river"; got != want {
		t.Errorf("stream = %q, want %q", got, want)
	}
	if got, want := streamed(tok, ids, true), "<think> the</think> river<|im_end|>"; got != want {
		t.Errorf("stream with special tokens = %q, want %q", got, want)
	}
}

// TestMergeLongEqualsShort: the heap and the scan are two ways to compute the same thing.
func TestMergeLongEqualsShort(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := bpe{merges: make(map[pair]merge)}
		rules := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) [3]int32 {
			id := rapid.Int32Range(0, 11)
			return [3]int32{id.Draw(t, "left"), id.Draw(t, "right"), id.Draw(t, "result")}
		}), 0, 30).Draw(t, "rules")
		for rank, r := range rules {
			b.merges[pairOf(r[0], r[1])] = merge{rank: int32(rank), id: r[2]}
		}
		symbols := rapid.SliceOfN(rapid.Int32Range(0, 5), 0, shortPiece).Draw(t, "symbols")
		short := b.mergeShort(append([]int32{}, symbols...))
		long := b.mergeLong(append([]int32{}, symbols...))
		if diff := cmp.Diff(short, long); diff != "" {
			t.Fatalf("merged (-short +long):\n%s", diff)
		}
	})
}

// TestPieceCacheIsBounded encodes more different words than the cache may hold.
func TestPieceCacheIsBounded(t *testing.T) {
	t.Parallel()
	tok := loadTestTokenizer(t, "smollm")
	word := []byte(" aaaa")
	for range 3 * cacheShards * cacheShardPieces {
		for i := len(word) - 1; ; i-- {
			if word[i]++; word[i] <= 'z' {
				break
			}
			word[i] = 'a'
		}
		tok.Encode(string(word))
	}
	kept := 0
	for i := range tok.bpe.cache.shards {
		kept += len(tok.bpe.cache.shards[i].pieces)
	}
	if kept == 0 || kept > cacheShards*cacheShardPieces {
		t.Errorf("cache holds %d pieces, want 1 … %d", kept, cacheShards*cacheShardPieces)
	}
	before := len(tok.bpe.cache.shards[0].pieces)
	tok.Encode(strings.Repeat("x", cachePieceBytes+1))
	if after := len(tok.bpe.cache.shards[0].pieces); after != before {
		t.Errorf("a long piece was cached: %d → %d pieces", before, after)
	}
}

// TestConcurrentUse is for the race detector: one Tokenizer and one Template, several goroutines.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	tok := loadTestTokenizer(t, "qwen2")
	template := loadTestTemplate(t, "agent-macros.jinja")
	messages := longConversation(9)
	tools := readRenderings(t).Tools
	text, err := template.Render(messages, tools, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	ids := tok.Encode(text)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5 {
				got, err := template.Render(messages, tools, true, nil)
				if err != nil || got != text {
					t.Errorf("rendered %q (%v), want %q", got, err, text)
				}
				if diff := cmp.Diff(ids, tok.Encode(got)); diff != "" {
					t.Errorf("ids (-want +got):\n%s", diff)
				}
			}
		})
	}
	wg.Wait()
}
