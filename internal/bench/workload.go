package bench

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Conversation is what one client says, turn by turn.
type Conversation struct {
	Name  string
	Turns []Turn
}

// Turn is one request of a conversation.
type Turn struct {
	// Expand makes the messages. replies are the answers to the turns before; c makes text of so many tokens.
	Expand    func(c Calibration, replies []string) ([]json.RawMessage, error)
	Tools     json.RawMessage // nil: none
	MaxTokens int             // 0: the plan's
	At        time.Duration   // when it is meant to start, from the beginning of a replay
}

// minPromptTokens is the shortest prompt of a synthetic conversation: below, the template and the first words are most
// of it.
const minPromptTokens = 64

// synthetic is a conversation of random words: a prompt of so many tokens, then messages of newTokens.
func synthetic(seed uint64, turns, promptTokens, newTokens int) Conversation {
	c := Conversation{Name: "synthetic"}
	for k := range turns {
		c.Turns = append(c.Turns, Turn{Expand: func(c Calibration, replies []string) ([]json.RawMessage, error) {
			if len(replies) < k {
				return nil, fmt.Errorf("turn %d: %d replies so far", k+1, len(replies))
			}
			messages := []json.RawMessage{textMessage("user", c.sized(seed, promptTokens, true))}
			for i := range k {
				messages = append(messages, textMessage("assistant", replies[i]), textMessage("user", c.sized(seed+uint64(i)+1, newTokens, false)))
			}
			return messages, nil
		}})
	}
	return c
}

func textMessage(role, content string) json.RawMessage {
	raw, err := encode(struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}{role, content})
	if err != nil {
		panic("BUG: two strings are always JSON: " + err.Error())
	}
	return raw
}

// encode is json.Marshal without the escaping of <, > and &.
func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// words are common English ones; most tokenizers have each as one token.
var words = strings.Fields(`time year people way day man thing woman life child world school state family student group
	country problem hand part place case week company system program question work government number night point home
	water room mother area money story fact month lot right study book eye job word business issue side kind head house
	service friend father power hour game line end member law car city community name president team minute idea body
	information back parent face others level office door health person art war history party result change morning
	reason research girl guy moment air teacher force education river stone lamp market window paper cloud engine garden
	file test function value order list table field`)

// filler is random text of about so many bytes.
func filler(r *rand.Rand, n int) string {
	var b strings.Builder
	b.Grow(n + 16)
	sentence := 0
	for b.Len() < n {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(words[r.IntN(len(words))])
		if sentence++; sentence >= 8+r.IntN(10) {
			b.WriteByte('.')
			sentence = 0
		}
	}
	return b.String()
}

// Calibration is what the endpoint's tokenizer makes of filler: tokens = Overhead + bytes/BytesPerToken.
type Calibration struct {
	BytesPerToken float64 `json:"bytes_per_token"`
	Overhead      float64 `json:"overhead"` // tokens of the template and what every request has
	Guessed       bool    `json:"guessed,omitempty"`
}

// guess is for endpoints that do not count tokens.
var guess = Calibration{BytesPerToken: 5, Overhead: 20, Guessed: true}

// sized returns text of about so many tokens. first says that the text begins a prompt, so that what every prompt has
// is part of the number.
func (c Calibration) sized(seed uint64, tokens int, first bool) string {
	n := float64(tokens)
	if first {
		n -= c.Overhead
	}
	return filler(rand.New(rand.NewPCG(seed, 0)), max(1, int(n*c.BytesPerToken)))
}

// calibrate asks an arm for the token counts of two prompts.
func calibrate(ctx context.Context, p player, q query) (Calibration, *Failure) {
	var at [2]struct{ bytes, tokens float64 }
	for i, n := range []int{2000, 8000} {
		text := filler(rand.New(rand.NewPCG(uint64(i), 1)), n)
		q.messages = []json.RawMessage{textMessage("user", text)}
		tokens, f := p.count(ctx, &q)
		if f != nil {
			return Calibration{}, f
		}
		if tokens == 0 {
			return guess, nil
		}
		at[i].bytes, at[i].tokens = float64(len(text)), float64(tokens)
	}
	if at[1].tokens <= at[0].tokens {
		return guess, nil
	}
	c := Calibration{BytesPerToken: (at[1].bytes - at[0].bytes) / (at[1].tokens - at[0].tokens)}
	c.Overhead = max(0, at[0].tokens-at[0].bytes/c.BytesPerToken)
	return c, nil
}

// identity names one conversation of one cell and repeat, in all arms alike.
type identity struct {
	run    string
	cell   Cell
	repeat int
	index  int
}

// hash is a number that follows from the identity and more text.
func (id identity) hash(more ...string) [32]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%q %q %d %d %q", id.run, id.cell.String(), id.repeat, id.index, more))
}

// nonce are the first words of the conversation: no two conversations of a run begin alike, so a prefix cache can only
// hit what the conversation itself has left there.
func (id identity) nonce(arm *Arm, how Separation) string {
	h := id.hash()
	if how == SeparateWords {
		h = id.hash(arm.Name)
	}
	return hex.EncodeToString(h[:6])
}

// salt is the conversation's cache_salt on an arm.
func (id identity) salt(arm *Arm, more ...string) string {
	h := id.hash(append([]string{"salt", arm.Name}, more...)...)
	return hex.EncodeToString(h[:16])
}

func (id identity) seed(what string) uint64 {
	h := id.hash(what)
	return binary.LittleEndian.Uint64(h[:])
}

// begin puts the nonce in front of the first message.
func begin(messages []json.RawMessage, nonce string) ([]json.RawMessage, error) {
	if len(messages) == 0 {
		return nil, errors.New("no messages")
	}
	var first map[string]json.RawMessage
	if err := json.Unmarshal(messages[0], &first); err != nil {
		return nil, err
	}
	var err error
	content := bytes.TrimSpace(first["content"])
	mark := "Note " + nonce + ". "
	switch {
	case len(content) > 0 && content[0] == '"':
		var s string
		if err := json.Unmarshal(content, &s); err != nil {
			return nil, err
		}
		first["content"], err = encode(mark + s)
	case len(content) > 0 && content[0] == '[':
		var parts []json.RawMessage
		if err := json.Unmarshal(content, &parts); err != nil {
			return nil, err
		}
		part, err := encode(map[string]string{"type": "text", "text": mark})
		if err != nil {
			return nil, err
		}
		first["content"], err = encode(append([]json.RawMessage{part}, parts...))
		if err != nil {
			return nil, err
		}
	default:
		return nil, errors.New("the first message has no content")
	}
	if err != nil {
		return nil, err
	}
	raw, err := encode(first)
	if err != nil {
		return nil, err
	}
	return append([]json.RawMessage{raw}, slices.Clone(messages[1:])...), nil
}
