package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// metaspace is how sentence-piece vocabularies spell a space.
const metaspace = "▁"

// sentencePieces is what a character-level BPE with byte fallback (Llama 2, Mistral 7B) needs on top
// of the merges: it works on characters instead of bytes, and a character that is not in the
// vocabulary is written as its bytes, "<0xE2>".
type sentencePieces struct {
	prefix   prefixScheme // where a space is put before the text
	replace  bool         // spaces are written as metaspace
	split    bool         // words are encoded apart: merges never join a word to the next
	byteID   [256]int32   // ids of "<0x00>" … "<0xFF>"; -1 without byte fallback
	unknown  int32        // for what is in no way in the vocabulary; -1: left out
	fuseUnks bool         // several unknown characters in a row are one unknown token
}

type prefixScheme int

const (
	prefixNever     prefixScheme = iota
	prefixFirst                  // only at the start of the text
	prefixAlways                 // in each part between added tokens
	prefixEvenTwice              // likewise, and also where the text begins with a space
)

func (p *sentencePieces) appendText(t *Tokenizer, ids []int32, text string, start bool) []int32 {
	if p.replace {
		text = strings.ReplaceAll(text, " ", metaspace)
	}
	switch {
	case p.prefix == prefixNever, p.prefix == prefixFirst && !start:
	case p.prefix == prefixEvenTwice, !strings.HasPrefix(text, metaspace):
		text = metaspace + text
	}
	if !p.split {
		return p.appendPiece(t, ids, text)
	}
	for text != "" {
		end := len(text)
		if i := strings.Index(text[1:], metaspace); i >= 0 {
			end = i + 1
		}
		ids = p.appendPiece(t, ids, text[:end])
		text = text[end:]
	}
	return ids
}

func (p *sentencePieces) appendPiece(t *Tokenizer, ids []int32, piece string) []int32 {
	if known, ok := t.bpe.cache.get(piece); ok {
		return append(ids, known...)
	}
	from := len(ids)
	unknown := false // the last symbol is the unknown token
	for i := 0; i < len(piece); {
		_, w := utf8.DecodeRuneInString(piece[i:])
		char := piece[i : i+w]
		i += w
		if id, ok := t.index[char]; ok {
			ids = append(ids, id)
			unknown = false
			continue
		}
		if p.hasBytes(char) {
			for k := range len(char) {
				ids = append(ids, p.byteID[char[k]])
			}
			unknown = false
			continue
		}
		if p.unknown >= 0 && !(unknown && p.fuseUnks) {
			ids = append(ids, p.unknown)
		}
		unknown = true
	}
	ids = ids[:from+len(t.bpe.mergeAll(ids[from:]))]
	t.bpe.cache.put(piece, ids[from:])
	return ids
}

func (p *sentencePieces) hasBytes(char string) bool {
	for k := range len(char) {
		if p.byteID[char[k]] < 0 {
			return false
		}
	}
	return true
}

// byteToken returns the byte that a token of the form "<0x1F>" stands for.
func byteToken(token string) (byte, bool) {
	if len(token) != 6 || token[:3] != "<0x" || token[5] != '>' {
		return 0, false
	}
	hi, lo := hexDigit(token[3]), hexDigit(token[4])
	if hi < 0 || lo < 0 {
		return 0, false
	}
	return byte(hi<<4 | lo), true
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	}
	return -1
}
