package analyze

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

// segKind is what a piece of text is.
type segKind uint8

const (
	segRaw       segKind = iota // a prompt given as one text
	segTools                    // one tool definition
	segSystem                   // system or developer message
	segUser                     // user message
	segAssistant                // what an assistant said
	segReasoning                // what an assistant thought
	segCall                     // a tool call
	segResult                   // a tool's result
)

func (k segKind) String() string {
	return [...]string{"prompt", "tools", "system", "user", "assistant", "reasoning", "tool call", "tool result"}[k]
}

// seg is a piece of a text, at text[from:from+len].
type seg struct {
	kind    segKind
	message bool // first piece of a message
	len     int
}

// separator stands in front of each piece where a template puts its tokens.
const separator = 0x1e

// content is what a request and its reply say, in the order in which templates render it: tools, system, messages,
// reply. It is a plain rendering, with one byte between pieces where a template would put its tokens. Members that
// are no part of the prompt (cache_control marks, F14) are left out, so that they cannot look like a change, and
// the two names of the reasoning member are one (F02).
//
// Encoded: uvarint number of prompt segments, of reply segments, each segment as kind, uvarint length; then the
// texts. Other kinds of content are encoded without segments: ids as 4 bytes each, hashes as 8.
type content struct {
	segs    []seg
	replyAt int // index of the first segment of the reply
	text    []byte
}

func (c *content) reset() { c.segs, c.text, c.replyAt = c.segs[:0], c.text[:0], -1 }

// piece appends a whole piece.
func (c *content) piece(k segKind, message bool, write func(dst []byte) []byte) {
	at := len(c.text)
	if k != segRaw {
		c.text = append(c.text, separator)
	}
	c.text = write(c.text)
	c.segs = append(c.segs, seg{k, message, len(c.text) - at})
}

func (c *content) string(k segKind, message bool, raw []byte) {
	c.piece(k, message, func(dst []byte) []byte { return bodyedit.AppendText(dst, raw) })
}

func (c *content) reply() {
	if c.replyAt < 0 {
		c.replyAt = len(c.segs)
	}
}

// encode appends the encoded form of c.
func (c *content) encode(dst []byte) []byte {
	at := c.replyAt
	if at < 0 {
		at = len(c.segs)
	}
	dst = binary.AppendUvarint(dst, uint64(at))
	dst = binary.AppendUvarint(dst, uint64(len(c.segs)-at))
	for _, s := range c.segs {
		k := byte(s.kind) << 1
		if s.message {
			k |= 1
		}
		dst = binary.AppendUvarint(append(dst, k), uint64(s.len))
	}
	return append(dst, c.text...)
}

// decodeContent is the reverse of encode; the texts alias b.
func decodeContent(b []byte) (prompt, reply []byte, segs, replySegs []seg) {
	nPrompt, k := binary.Uvarint(b)
	b = b[k:]
	nReply, k := binary.Uvarint(b)
	b = b[k:]
	segs = make([]seg, 0, nPrompt+nReply)
	total := 0
	for i := range nPrompt + nReply {
		kind := b[0]
		n, k := binary.Uvarint(b[1:])
		b = b[1+k:]
		segs = append(segs, seg{segKind(kind >> 1), kind&1 == 1, int(n)})
		if i < nPrompt {
			total += int(n)
		}
	}
	return b[:total:total], b[total:], segs[:nPrompt:nPrompt], segs[nPrompt:]
}

// tools appends the tool definitions of a request, each as it was sent.
func (c *content) tools(raw []byte) {
	for t := range bodyedit.Elements(raw) {
		c.piece(segTools, true, func(dst []byte) []byte { return appendWithout(dst, t, "cache_control") })
	}
}

// appendWithout appends the raw value v, without the members called name of it if it is an object.
func appendWithout(dst, v []byte, name string) []byte {
	if bodyedit.KindOf(v) != bodyedit.Object || !bytes.Contains(v, []byte(name)) {
		return append(dst, v...)
	}
	dst = append(dst, '{')
	first := true
	for m := range bodyedit.Members(v) {
		if m.Is(name) {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(append(append(dst, '"'), m.RawName...), '"', ':')
		dst = append(dst, m.Raw...)
	}
	return append(dst, '}')
}

// system appends a system prompt outside the messages: a string or a list of parts.
func (c *content) system(raw []byte) { c.parts(segSystem, raw) }

func kindOfRole(role []byte) segKind {
	switch {
	case bodyedit.TextIs(role, "system"), bodyedit.TextIs(role, "developer"):
		return segSystem
	case bodyedit.TextIs(role, "assistant"), bodyedit.TextIs(role, "ai"), bodyedit.TextIs(role, "model"):
		return segAssistant
	case bodyedit.TextIs(role, "tool"), bodyedit.TextIs(role, "function"):
		return segResult
	}
	return segUser
}

// messages appends a list of messages, or of the items of OpenAI's responses interface; a string is one message of
// the user. It reports whether it found any.
func (c *content) messages(raw []byte) bool {
	switch bodyedit.KindOf(raw) {
	case bodyedit.Text:
		// Some logs keep lists as strings.
		if inner := bodyedit.AppendText(nil, raw); len(inner) > 0 && (inner[0] == '[' || inner[0] == '{') {
			if _, err := bodyedit.Scan(append(append([]byte(`{"v":`), inner...), '}')); err == nil {
				return c.messages(inner)
			}
		}
		c.string(segUser, true, raw)
		return true
	case bodyedit.Object:
		if m, ok := bodyedit.Lookup(raw, "messages"); ok {
			if s, ok := bodyedit.Lookup(raw, "tools"); ok {
				c.tools(s)
			}
			if s, ok := bodyedit.Lookup(raw, "system"); ok {
				c.system(s)
			}
			return c.messages(m)
		}
		c.message(raw)
		return true
	case bodyedit.Array:
		n := len(c.segs)
		for m := range bodyedit.Elements(raw) {
			switch bodyedit.KindOf(m) {
			case bodyedit.Object:
				c.message(m)
			case bodyedit.Array: // OpenAI batches of one
				c.messages(m)
			}
		}
		return len(c.segs) > n
	}
	return false
}

// message appends one message.
func (c *content) message(raw []byte) {
	var role, body, parts, calls, reasoning, reasoning2, kind, output, name, args []byte
	for m := range bodyedit.Members(raw) {
		switch string(m.RawName) {
		case "role":
			role = m.Raw
		case "content":
			body = m.Raw
		case "parts":
			parts = m.Raw
		case "tool_calls":
			calls = m.Raw
		case "reasoning":
			reasoning = m.Raw
		case "reasoning_content":
			reasoning2 = m.Raw
		case "type":
			kind = m.Raw
		case "output":
			output = m.Raw
		case "name":
			name = m.Raw
		case "arguments":
			args = m.Raw
		}
	}
	// Items of the responses interface that are no messages.
	switch {
	case bodyedit.TextIs(kind, "function_call"):
		c.piece(segCall, true, func(dst []byte) []byte { return bodyedit.AppendText(append(bodyedit.AppendText(dst, name), ' '), args) })
		return
	case bodyedit.TextIs(kind, "function_call_output"):
		c.string(segResult, true, output)
		return
	case bodyedit.TextIs(kind, "reasoning"):
		c.piece(segReasoning, true, func(dst []byte) []byte { return append(dst, raw...) })
		return
	}
	k := kindOfRole(role)
	first := true
	think := func(r []byte) {
		if bodyedit.KindOf(r) == bodyedit.Text && len(r) > 2 {
			c.string(segReasoning, first, r)
			first = false
		}
	}
	think(reasoning)
	if !bytes.Equal(reasoning, reasoning2) {
		think(reasoning2)
	}
	if body == nil {
		body = parts
	}
	n := len(c.segs)
	c.parts(k, body)
	for i := n; i < len(c.segs); i++ {
		c.segs[i].message = first && i == n
	}
	first = first && len(c.segs) == n
	for t := range bodyedit.Elements(calls) {
		call, ok := bodyedit.Lookup(t, "function")
		if !ok {
			call = t
		}
		c.piece(segCall, first, func(dst []byte) []byte { return append(dst, call...) })
		first = false
	}
	if first {
		c.piece(k, true, func(dst []byte) []byte { return dst }) // an empty message is a message
	}
}

// parts appends a message's content: a string, or a list of typed parts.
func (c *content) parts(k segKind, raw []byte) {
	switch bodyedit.KindOf(raw) {
	case bodyedit.Text:
		c.string(k, true, raw)
	case bodyedit.Object:
		c.part(k, raw)
	case bodyedit.Array:
		for p := range bodyedit.Elements(raw) {
			if bodyedit.KindOf(p) == bodyedit.Text {
				c.string(k, true, p)
			} else {
				c.part(k, p)
			}
		}
	}
}

func (c *content) part(k segKind, raw []byte) {
	var kind, text, thinking, inner, content []byte
	for m := range bodyedit.Members(raw) {
		switch string(m.RawName) {
		case "type":
			kind = m.Raw
		case "text":
			text = m.Raw
		case "thinking", "reasoning":
			thinking = m.Raw
		case "content":
			content = m.Raw
		case "input", "arguments":
			inner = m.Raw
		}
	}
	switch {
	case bodyedit.TextIs(kind, "thinking"), bodyedit.TextIs(kind, "reasoning"):
		if thinking == nil {
			thinking = text
		}
		if thinking == nil {
			thinking = content
		}
		c.string(segReasoning, true, thinking)
	case bodyedit.TextIs(kind, "tool_use"), bodyedit.TextIs(kind, "tool_call"):
		name, _ := bodyedit.Lookup(raw, "name")
		c.piece(segCall, true, func(dst []byte) []byte { return append(append(bodyedit.AppendText(dst, name), ' '), inner...) })
	case bodyedit.TextIs(kind, "tool_result"), bodyedit.TextIs(kind, "tool_call_response"):
		if content == nil {
			content, _ = bodyedit.Lookup(raw, "response")
		}
		if bodyedit.KindOf(content) == bodyedit.None {
			c.piece(segResult, true, func(dst []byte) []byte { return dst })
			return
		}
		c.parts(segResult, content)
	case text != nil && bodyedit.KindOf(text) == bodyedit.Text:
		c.string(k, true, text)
	case content != nil && bodyedit.KindOf(content) == bodyedit.Text:
		c.string(k, true, content) // OpenTelemetry's text parts
	default:
		// Pictures and whatever else comes: compared as sent, marks apart.
		c.piece(k, true, func(dst []byte) []byte { return appendWithout(dst, raw, "cache_control") })
	}
}

// runes counts the characters of b; a character cut at the end counts as none.
func runes(b []byte) int64 { return int64(utf8.RuneCount(wholeRunes(b))) }

// wholeRunes cuts an incomplete character off the end of b.
func wholeRunes(b []byte) []byte {
	for n := 1; n <= min(utf8.UTFMax-1, len(b)); n++ {
		if c := b[len(b)-n]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-n:]) {
				return b[:len(b)-n]
			}
			break
		}
	}
	return b
}

// common returns the length of the longest common prefix of a and b in bytes.
func common(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	for ; i+8 <= n; i += 8 {
		if binary.LittleEndian.Uint64(a[i:]) != binary.LittleEndian.Uint64(b[i:]) {
			break
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}
