// Package tokenizer turns chats into token ids and token ids into text, the way the engine's own
// front end does.
//
//	messages ── Template.Render ──► text ── Encode ──► ids ── model ──► ids ── Stream.Push ──► text
//
// A Tokenizer is a byte-pair encoder in the form Hugging Face's tokenizer.json (or a GGUF file)
// describes it. A Template is the model's own Jinja chat template. Both come together from LoadDir,
// FromGGUF or, without any file, Tiny.
//
// Ids and text must be exactly those of the real engine: a prefix cache compares token ids, so a
// pre-tokenizer that splits one space differently makes a conversation look new. Therefore a
// tokenizer.json that asks for something this package does not know is refused when it is loaded,
// with the name of the part; nothing is approximated.
//
// Tokenizer and Template are safe for concurrent use. A Stream belongs to one reply.
//
// The package does not train vocabularies, does not implement WordPiece or Unigram models, and does
// not render images or audio: content parts other than text are an error.
package tokenizer
