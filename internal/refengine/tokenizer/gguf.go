package tokenizer

import (
	"fmt"
	"strings"
)

// Metadata is what a vocabulary is read from: the key-value part of a GGUF file, as the model package
// reads it. Booleans are integers.
type Metadata interface {
	String(key string) (string, bool)
	Int(key string) (int64, bool)
	Strings(key string) ([]string, bool)
	Ints(key string) ([]int64, bool)
}

// Kinds of tokens in a GGUF file.
const (
	ggufControl     = 3
	ggufUserDefined = 4
)

// ggufPreTokenizers are the values of tokenizer.ggml.pre that are supported. GGUF files do not say
// how text is split, only which model's way it is.
var ggufPreTokenizers = map[string][]splitter{
	"default":   {splitterFunc(splitGPT2)},
	"gpt-2":     {splitterFunc(splitGPT2)},
	"smollm":    {splitterFunc(splitDigits), splitterFunc(splitGPT2)},
	"starcoder": {splitterFunc(splitDigits), splitterFunc(splitGPT2)},
	"refact":    {splitterFunc(splitDigits), splitterFunc(splitGPT2)},
	"llama-bpe": {tiktoken{digits: 3}},
	"llama-v3":  {tiktoken{digits: 3}},
	"llama3":    {tiktoken{digits: 3}},
	"qwen2":     {tiktoken{digits: 1}},
	"qwen35":    {tiktoken{digits: 1, marks: true}},
	"gpt-4o":    {splitterFunc(splitO200k)},
}

// FromGGUF builds the tokenizer and the chat template that a GGUF file carries. Only byte-level BPE
// vocabularies (tokenizer.ggml.model "gpt2") are supported. The Template is nil if the file has none.
func FromGGUF(g Metadata) (*Tokenizer, *Template, error) {
	t, err := ggufTokenizer(g)
	if err != nil {
		return nil, nil, fmt.Errorf("load tokenizer from GGUF: %w", err)
	}
	src, ok := g.String("tokenizer.chat_template")
	if !ok || src == "" {
		return t, nil, nil
	}
	template, err := NewTemplate(src)
	if err != nil {
		return nil, nil, fmt.Errorf("load chat template from GGUF: %w", err)
	}
	token := func(key string) specialName {
		id, ok := g.Int("tokenizer.ggml." + key + "_token_id")
		if !ok || id < 0 || id >= int64(len(t.vocab)) {
			return ""
		}
		return specialName(t.vocab[id])
	}
	template.setTokens(tokenizerConfig{
		BOS: token("bos"), EOS: token("eos"), Pad: token("padding"), Unknown: token("unknown"),
	})
	return t, template, nil
}

func ggufTokenizer(g Metadata) (*Tokenizer, error) {
	if kind, _ := g.String("tokenizer.ggml.model"); kind != "gpt2" {
		return nil, fmt.Errorf(`vocabulary of model %q, want "gpt2"`, kind)
	}
	pre, ok := g.String("tokenizer.ggml.pre")
	if !ok {
		pre = "default"
	}
	splitters, ok := ggufPreTokenizers[pre]
	if !ok {
		return nil, fmt.Errorf("pre-tokenizer %q is not supported", pre)
	}
	tokens, _ := g.Strings("tokenizer.ggml.tokens")
	if len(tokens) == 0 || len(tokens) > maxVocab {
		return nil, fmt.Errorf("vocabulary of %d tokens", len(tokens))
	}
	kinds, _ := g.Ints("tokenizer.ggml.token_type")
	if len(kinds) != 0 && len(kinds) != len(tokens) {
		return nil, fmt.Errorf("%d token types for %d tokens", len(kinds), len(tokens))
	}
	t := &Tokenizer{
		vocab:       tokens,
		special:     make([]bool, len(tokens)),
		index:       make(map[string]int32, len(tokens)),
		splitters:   splitters,
		wholePieces: pre == "llama-bpe" || pre == "llama-v3" || pre == "llama3",
	}
	for id, token := range tokens {
		t.index[token] = int32(id)
	}
	merges, _ := g.Strings("tokenizer.ggml.merges")
	t.bpe.merges = make(map[pair]merge, len(merges))
	for rank, rule := range merges {
		// Each side is at least one character, which may be anything but a space.
		left, right, ok := strings.Cut(rule, " ")
		if !ok {
			return nil, fmt.Errorf("merge %d is %q, want two tokens", rank, rule)
		}
		if err := t.addMerge(rank, left, right); err != nil {
			return nil, err
		}
	}
	t.finish(true)
	var added []addedToken
	for id, kind := range kinds {
		if tokens[id] != "" && (kind == ggufControl || kind == ggufUserDefined) {
			t.special[id] = kind == ggufControl
			added = append(added, addedToken{text: tokens[id], id: int32(id)})
		}
	}
	t.added.verbatim = newMatcher(added)

	if id, ok := g.Int("tokenizer.ggml.eos_token_id"); ok && id >= 0 && id < int64(len(tokens)) {
		t.eos = []int32{int32(id)}
	}
	if add, ok := g.Int("tokenizer.ggml.add_bos_token"); ok && add != 0 {
		id, ok := g.Int("tokenizer.ggml.bos_token_id")
		if !ok || id < 0 || id >= int64(len(tokens)) {
			return nil, fmt.Errorf("add_bos_token is set, but bos_token_id is %d", id)
		}
		t.prefix = []int32{int32(id)}
	}
	return t, nil
}
