package tokenizer

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestTinyVocabulary pins the built-in vocabulary: recordings and golden outputs elsewhere are made of its ids, so a
// new word goes to the end of a list, or all of them have to be made again.
func TestTinyVocabulary(t *testing.T) {
	t.Parallel()
	tok, template := Tiny()
	if template == nil {
		t.Fatal("Tiny returned no template")
	}
	var b strings.Builder
	for id := range tok.VocabSize() {
		fmt.Fprintf(&b, "%q %t\n", tok.Token(int32(id)), tok.Special(int32(id)))
	}
	got := fmt.Sprintf("%d tokens, %d emitted, %x", tok.VocabSize(), len(TinyEmission()), sha256.Sum256([]byte(b.String())))
	const want = "1433 tokens, 344 emitted, af2f3cdc1ce2868268012f340499026151df47523775aa3d43ff83995bac528c"
	if got != want {
		t.Errorf("vocabulary is %s, want %s", got, want)
	}
	if diff := cmp.Diff([]int32{258}, tok.EOS()); diff != "" {
		t.Errorf("EOS (-want +got):\n%s", diff)
	}
	for b := range 256 {
		if got, want := tok.Bytes(int32(b)), string([]byte{byte(b)}); got != want {
			t.Errorf("id %d stands for %q, want %q", b, got, want)
		}
	}
}

func TestTinyWholeTokens(t *testing.T) {
	t.Parallel()
	tok, _ := Tiny()
	texts := []string{"\n\n", "  ", "    ", "        ", "                ", "\t\t", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"}
	for _, word := range strings.Fields(tinyWords) {
		texts = append(texts, " "+word)
	}
	for _, word := range strings.Fields(tinyCode) {
		texts = append(texts, word, " "+word)
	}
	for _, text := range texts {
		if ids := tok.Encode(text); len(ids) != 1 {
			t.Errorf("Encode(%q) = %d, want one token", text, ids)
		}
	}
}

func TestTinyEmission(t *testing.T) {
	t.Parallel()
	tok, _ := Tiny()
	emission := TinyEmission()
	sorted := slices.Clone(emission)
	slices.Sort(sorted)
	if len(slices.Compact(sorted)) != len(emission) {
		t.Error("an id occurs twice")
	}
	for _, text := range []string{" the", " river", " file", " test", ".", ",", "\n", "</think>", "<|im_end|>"} {
		ids := tok.Encode(text)
		if len(ids) != 1 || !slices.Contains(emission, ids[0]) {
			t.Errorf("%q is %d, want one id of the emission set", text, ids)
		}
	}
	// The natural case in which what was generated and what its text encodes to differ.
	newline := tok.Encode("\n")
	twice := tok.Encode("\n\n")
	if len(newline) != 1 || len(twice) != 1 || twice[0] == newline[0] {
		t.Errorf(`"\n" is %d and "\n\n" is %d, want one token each`, newline, twice)
	}
	changed := TinyEmission()
	changed[0] = -1
	if TinyEmission()[0] == -1 {
		t.Error("a caller can change the emission set of others")
	}
}

// TestTinyEmissionEncodesBack: the text of generated tokens encodes to the same tokens, unless two line breaks meet.
func TestTinyEmissionEncodesBack(t *testing.T) {
	t.Parallel()
	tok, _ := Tiny()
	newline := tok.Encode("\n")[0]
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOf(rapid.SampledFrom(TinyEmission())).Draw(t, "ids")
		ids = slices.CompactFunc(ids, func(a, b int32) bool { return a == newline && b == newline })
		text := tok.Decode(ids, false)
		if diff := cmp.Diff(append([]int32{}, ids...), append([]int32{}, tok.Encode(text)...)); diff != "" {
			t.Fatalf("ids of %q (-generated +encoded):\n%s", text, diff)
		}
	})
}
