package api

import (
	"github.com/tarik-kv/tarik/internal/refengine/tokenizer"
)

// codec is what this package needs of a tokenizer; tests have one with a handful of tokens.
type codec interface {
	Encode(text string) []int32
	EncodePrompt(text string) []int32
	Decode(ids []int32, skipSpecial bool) string
	VocabSize() int
	Token(id int32) string
	stream(keepSpecial bool) detokenizer
}

// detokenizer turns ids of one reply into text as they come: "" while a character is incomplete.
type detokenizer interface {
	Push(id int32) string
}

type bpeCodec struct{ *tokenizer.Tokenizer }

var _ codec = bpeCodec{}

func (c bpeCodec) stream(keepSpecial bool) detokenizer {
	s := c.NewStream()
	s.KeepSpecial = keepSpecial
	return s
}
