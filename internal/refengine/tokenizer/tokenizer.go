package tokenizer

import "strings"

// Tokenizer is a byte-pair encoder with its vocabulary. It is safe for concurrent use.
type Tokenizer struct {
	vocab   []string         // by id, as the vocabulary spells it; "" for ids nobody uses
	raw     []string         // by id, the bytes it stands for
	special []bool           // by id, left out of text unless asked for
	index   map[string]int32 // spelling → id

	bpe   bpe
	added addedTokens // recognised in text before anything else
	// wholePieces: a piece that is itself in the vocabulary becomes that token, whatever the merges
	// say ("ignore_merges").
	wholePieces bool

	normalize   func(string) string // nil: none
	splitters   []splitter
	prefixSpace bool // byte-level pre-tokenizer puts a space before text that has none

	byteID [256]int32 // byte → id; -1 if the vocabulary has none
	pieces *sentencePieces

	dropLeadingSpace bool // decoding removes the one leading space that encoding put there

	prefix, suffix []int32 // what a plain text prompt is wrapped in
	eos            []int32
}

// VocabSize returns one more than the largest id.
func (t *Tokenizer) VocabSize() int { return len(t.vocab) }

// EOS returns the ids that end a reply, the model's own first. The caller must not change it.
func (t *Tokenizer) EOS() []int32 { return t.eos }

// ID returns the id of a token given in the vocabulary's spelling ("Ġthe", "<|im_end|>").
func (t *Tokenizer) ID(token string) (int32, bool) {
	id, ok := t.index[token]
	return id, ok
}

// Token returns the vocabulary's spelling of id, "" if there is none. It is not text: see Bytes.
func (t *Tokenizer) Token(id int32) string {
	if !t.valid(id) {
		return ""
	}
	return t.vocab[id]
}

// Bytes returns the bytes that id stands for. They need not be valid UTF-8 on their own.
func (t *Tokenizer) Bytes(id int32) string {
	if !t.valid(id) {
		return ""
	}
	return t.raw[id]
}

// Special reports whether id is a control token, which text leaves out by default.
func (t *Tokenizer) Special(id int32) bool { return t.valid(id) && t.special[id] }

func (t *Tokenizer) valid(id int32) bool { return id >= 0 && int(id) < len(t.vocab) }

// Encode returns the ids of text. Added tokens that are spelled out in it ("<|im_end|>") are
// recognised, as the engine does for a rendered template: whoever can put text into a message can
// put a turn border there. Nothing is added in front or behind.
func (t *Tokenizer) Encode(text string) []int32 {
	return t.appendText(make([]int32, 0, len(text)/3+8), text)
}

// EncodePrompt returns the ids of a plain text prompt: those of Encode, with what the tokenizer's
// post-processor adds to every sequence (a begin-of-text token, usually, or nothing).
func (t *Tokenizer) EncodePrompt(text string) []int32 {
	ids := make([]int32, 0, len(text)/3+8)
	ids = append(ids, t.prefix...)
	ids = t.appendText(ids, text)
	return append(ids, t.suffix...)
}

func (t *Tokenizer) appendText(ids []int32, text string) []int32 {
	start := true // at the start of the text, where sentence-piece vocabularies put a space
	t.added.verbatim.split(text, func(part string, id int32) {
		if id >= 0 {
			ids = append(ids, id)
			start = false
			return
		}
		if t.normalize != nil {
			part = t.normalize(part)
		}
		t.added.normalized.split(part, func(part string, id int32) {
			if id >= 0 {
				ids = append(ids, id)
			} else {
				ids = t.appendPlain(ids, part, start)
			}
			start = false
		})
	})
	return ids
}

// appendPlain encodes text in which no added token occurs.
func (t *Tokenizer) appendPlain(ids []int32, text string, start bool) []int32 {
	if t.pieces != nil {
		return t.pieces.appendText(t, ids, text, start)
	}
	if t.prefixSpace && !strings.HasPrefix(text, " ") {
		text = " " + text
	}
	splitAll(text, t.splitters, func(piece string) { ids = t.appendPiece(ids, piece) })
	return ids
}

// appendPiece encodes one piece of a byte-level vocabulary.
func (t *Tokenizer) appendPiece(ids []int32, piece string) []int32 {
	if len(piece) == 1 {
		if id := t.byteID[piece[0]]; id >= 0 {
			return append(ids, id)
		}
		return ids
	}
	if known, ok := t.bpe.cache.get(piece); ok {
		return append(ids, known...)
	}
	from := len(ids)
	if t.wholePieces {
		if id, ok := t.index[spellBytes(piece)]; ok {
			ids = append(ids, id)
			t.bpe.cache.put(piece, ids[from:])
			return ids
		}
	}
	for i := range len(piece) {
		if id := t.byteID[piece[i]]; id >= 0 {
			ids = append(ids, id)
		}
	}
	ids = ids[:from+len(t.bpe.mergeAll(ids[from:]))]
	t.bpe.cache.put(piece, ids[from:])
	return ids
}

// Decode returns the text of ids. Bytes that are not valid UTF-8 become U+FFFD, ids outside the
// vocabulary are left out, and with skipSpecial so are control tokens.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	var b []byte
	for _, id := range ids {
		if t.valid(id) && !(skipSpecial && t.special[id]) {
			b = append(b, t.raw[id]...)
		}
	}
	if t.dropLeadingSpace && len(b) > 0 && b[0] == ' ' {
		b = b[1:]
	}
	text, _ := decodeLossy(b, true)
	return text
}
