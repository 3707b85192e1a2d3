package conv

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"hash/maphash"
	"slices"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

// Key names a scope, or a scope plus everything said in it up to some point. It is a truncated
// SHA-256, so that a client cannot aim at another conversation's key.
type Key [16]byte

// Scope is what must be equal before two requests can belong to one conversation. KV differs
// between models and salts, and tenants never meet.
type Scope struct {
	Tenant   string
	Model    string
	Salt     string // the salt the engines are given, "" for none
	Endpoint string
	// Context is what shapes the rendered prompt besides the messages (tools, template and its
	// arguments), as sent. A side query with other tools is another conversation.
	Context []string
}

// Key of the empty conversation of s.
func (s Scope) Key() Key {
	var room [512]byte
	b := room[:0]
	for _, f := range [...]string{s.Tenant, s.Model, s.Salt, s.Endpoint} {
		b = appendField(b, f)
	}
	h := sha256.New()
	for _, c := range s.Context {
		if len(b)+len(c) > cap(b)-8 && len(b) > 0 {
			h.Write(b)
			b = room[:0]
		}
		b = appendField(b, c)
	}
	h.Write(b)
	return sum(h)
}

// ID returns the key of a name the client gave its conversation, within s.
func (s Scope) ID(name string) Key {
	h := sha256.New()
	k := s.Key()
	h.Write(k[:])
	h.Write(appendField(appendField(nil, "id"), name))
	return sum(h)
}

// textChunk and idChunk are the grains in which prompts of /v1/completions are compared.
const (
	textChunk = 256 // bytes of the JSON string as sent
	idChunk   = 64  // token ids
)

// Messages returns one key per message of a chat, key i covering messages[0…i]. messages is the
// raw JSON array of a scanned body; the result is nil if it is something else.
//
// Messages are compared as sent. A client that serialises them anew in another way starts a new
// conversation: that costs speed, never correctness.
func Messages(scope Key, messages []byte) []Key {
	return Chain(scope, slices.Collect(bodyedit.Elements(messages)))
}

// Chain is [Messages] of messages that have been told apart already.
func Chain(scope Key, messages [][]byte) []Key {
	if len(messages) == 0 {
		return nil
	}
	keys := make([]Key, len(messages))
	k := scope
	for i, m := range messages {
		k = next(k, m)
		keys[i] = k
	}
	return keys
}

// Prompt returns one key per whole chunk of a prompt of /v1/completions: a raw JSON string in
// chunks of 256 bytes, or a raw JSON array of token ids in chunks of 64. The last, incomplete
// chunk is not covered: the next prompt goes on in the middle of it.
func Prompt(scope Key, prompt []byte) []Key {
	if len(prompt) == 0 {
		return nil
	}
	var keys []Key
	k := scope
	switch prompt[0] {
	case '"':
		for s := prompt[1 : len(prompt)-1]; len(s) >= textChunk; s = s[textChunk:] {
			k = next(k, s[:textChunk])
			keys = append(keys, k)
		}
	case '[':
		h := sha256.New()
		h.Write(k[:])
		n := 0
		for id := range bodyedit.Elements(prompt) {
			h.Write(id)
			h.Write([]byte{','})
			if n++; n%idChunk == 0 {
				k = sum(h)
				keys = append(keys, k)
				h.Reset()
				h.Write(k[:])
			}
		}
	}
	return keys
}

// seeds are of this process, as everything that is stored under a Key.
var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// next is the key of all that k stands for and the text b.
//
// A megabyte of messages comes again with every turn, and SHA-256 reads less than 2 GB/s. So it gets k and 128 bits
// of a fast hash of b with secret seeds: keys of different scopes stay as far apart as SHA-256 keeps them, whatever
// b is, and two texts behind the same k are taken for each other with probability 2^-128, which would cost speed only.
func next(k Key, b []byte) Key {
	var room [len(k) + 16]byte
	text := append(room[:0], k[:]...)
	for _, seed := range seeds {
		text = binary.LittleEndian.AppendUint64(text, maphash.Bytes(seed, b))
	}
	full := sha256.Sum256(text)
	return Key(full[:len(k)])
}

func sum(h hash.Hash) (k Key) {
	var full [sha256.Size]byte
	copy(k[:], h.Sum(full[:0]))
	return k
}

// appendField separates fields by their lengths, so that no two lists of fields run together.
func appendField(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}
