package tokenizer

import "unicode/utf8"

// Byte-level vocabularies spell every byte as one printable character, so that a vocabulary file is
// readable text: printable Latin-1 bytes stand for themselves, the other 68 are moved to U+0100…
// in byte order. A space is "Ġ", a newline "Ċ".
var byteRune, runeByte = byteAlphabet()

// byteAlphabet returns the character that spells each byte, and the inverse.
func byteAlphabet() (spelling [256]rune, inverse map[rune]byte) {
	inverse = make(map[rune]byte, 256)
	moved := rune(0x100)
	for b := range 256 {
		r := rune(b)
		printable := r >= '!' && r <= '~' || r >= 0xA1 && r <= 0xAC || r >= 0xAE && r <= 0xFF
		if !printable {
			r = moved
			moved++
		}
		spelling[b] = r
		inverse[r] = byte(b)
	}
	return spelling, inverse
}

// spellBytes writes raw bytes in the characters of a byte-level vocabulary.
func spellBytes(raw string) string {
	spelled := make([]byte, 0, len(raw)*2)
	for i := range len(raw) {
		spelled = utf8.AppendRune(spelled, byteRune[raw[i]])
	}
	return string(spelled)
}

// unspellBytes is the inverse of spellBytes. ok is false if token contains a character that spells
// no byte; such tokens (added ones, mostly) stand for their own UTF-8 bytes.
func unspellBytes(token string) (raw string, ok bool) {
	out := make([]byte, 0, len(token))
	for _, r := range token {
		b, known := runeByte[r]
		if !known {
			return "", false
		}
		out = append(out, b)
	}
	return string(out), true
}
