package tokenizer

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"
)

var (
	//go:embed tiny_words.txt
	tinyWords string
	//go:embed tiny_code.txt
	tinyCode string
	//go:embed tiny.jinja
	tinyTemplate string
)

// The built-in vocabulary: the 256 bytes (id = byte), then these, then what the merges make.
var tinySpecials = []struct {
	text    string
	control bool // left out of text; the others are part of the reply, as in Qwen3
}{
	{"<|endoftext|>", true},
	{"<|im_start|>", true},
	{"<|im_end|>", true}, // ends a reply
	{"<think>", false},
	{"</think>", false},
	{"<tool_call>", false},
	{"</tool_call>", false},
}

// Tiny returns the built-in tokenizer and chat template: no file is read, and every machine gets the
// same ids.
//
// It is a byte-level BPE with GPT-2's pre-tokenizer. Some 380 common English words with a leading
// space are one token each, likewise common words of code, runs of spaces up to 16 and "\n\n". The
// template is ChatML with tools; with enable_thinking it drops the thinking of replies before the last user message, so
// that what a reply was generated as and what it is rendered as differ, as with real models.
//
// The same Tokenizer is returned each time.
func Tiny() (*Tokenizer, *Template) {
	v := tinyOnce()
	return v.tokenizer, v.template
}

// TinyEmission returns the ids that the built-in model may generate: whole words with a leading
// space, ".", ",", "\n", "</think>" and the end of turn. The caller may keep and change the slice.
//
// The text of any sequence of them encodes to the same ids again, with one exception that is there
// on purpose: two "\n" in a row are read back as the one token "\n\n" (unless a character that is
// not white space or the start of a word follows). Real vocabularies have thousands of such cases,
// and a system that assumes text to re-encode to what was generated has to fail on this one.
func TinyEmission() []int32 {
	return append([]int32(nil), tinyOnce().emission...)
}

type tinyVocabulary struct {
	tokenizer *Tokenizer
	template  *Template
	emission  []int32
}

var tinyOnce = sync.OnceValue(buildTiny)

func buildTiny() tinyVocabulary {
	t := &Tokenizer{
		index:     make(map[string]int32),
		bpe:       bpe{merges: make(map[pair]merge)},
		splitters: []splitter{splitterFunc(splitGPT2)},
		// A listed word is one token even where rules of other words would break it up.
		wholePieces: true,
	}
	add := func(spelling, raw string, control bool) int32 {
		id := int32(len(t.vocab))
		t.vocab = append(t.vocab, spelling)
		t.raw = append(t.raw, raw)
		t.special = append(t.special, control)
		t.index[spelling] = id
		return id
	}
	for b := range 256 {
		raw := string([]byte{byte(b)})
		t.byteID[b] = add(spellBytes(raw), raw, false)
	}
	var added []addedToken
	for _, s := range tinySpecials {
		added = append(added, addedToken{text: s.text, id: add(s.text, s.text, s.control)})
	}
	t.added.verbatim = newMatcher(added)

	join := func(left, right int32) int32 {
		if m, ok := t.bpe.merges[pairOf(left, right)]; ok {
			return m.id
		}
		raw := t.raw[left] + t.raw[right]
		id := add(spellBytes(raw), raw, false)
		t.bpe.merges[pairOf(left, right)] = merge{rank: int32(len(t.bpe.merges)), id: id}
		return id
	}
	// A word grows from its first byte. All chains that begin with a space come first, so that inside
	// " word" no other rule can take a byte away from them.
	chain := func(word string) int32 {
		id := t.byteID[word[0]]
		for i := 1; i < len(word); i++ {
			id = join(id, t.byteID[word[i]])
		}
		return id
	}
	var emission []int32
	for _, word := range strings.Fields(tinyWords) {
		emission = append(emission, chain(" "+word))
	}
	for _, word := range strings.Fields(tinyCode) {
		chain(" " + word)
	}
	for _, char := range []string{" ", "\t"} {
		id := t.byteID[char[0]]
		for range 4 { // 2, 4, 8, 16
			id = join(id, id)
		}
	}
	chain("\n\n")
	for _, word := range strings.Fields(tinyCode) {
		chain(word)
	}
	for _, text := range []string{"</think>", "<|im_end|>"} {
		emission = append(emission, t.index[text])
	}
	for _, char := range []byte{'.', ',', '\n'} {
		emission = append(emission, t.byteID[char])
	}
	t.eos = []int32{t.index["<|im_end|>"]}

	template, err := NewTemplate(tinyTemplate)
	if err != nil {
		panic(fmt.Sprintf("BUG: built-in chat template: %v", err))
	}
	return tinyVocabulary{tokenizer: t, template: template, emission: emission}
}
