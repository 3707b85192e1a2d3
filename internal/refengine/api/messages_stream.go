package api

import (
	"strings"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// messageEvents is a message stream on its way out: blocks of one kind each, one open at a time.
type messageEvents struct {
	messagesReply
	place *handlePlacer
	index int    // of the open block, or of the next
	open  string // type of the open block, "" for none

	toolID  string          // of the open block, if it is a tool call
	toolIDs map[int]string  // of all calls, by their index
	waiting strings.Builder // text that came during a tool call: told as a block of its own after it
}

// events sends a message. Streams never carry the handle, in no release; a fault can put it there.
func (c messagesReply) events(run *run) error {
	place := c.out.f.Handle
	if place == HandleDefault {
		place = HandleNone
	}
	e := &messageEvents{messagesReply: c, toolIDs: make(map[int]string)}
	e.place = &handlePlacer{place: place, usage: true}
	run.prepare(c.out)
	ch := chatStreamChoice{parser: c.parser()}
	u := usage{prompt: len(c.prompt)}
	var last delta
	begun := false
	for d, err := range e.place.deltas(c.out.ctx, run) {
		if err != nil {
			return err
		}
		if !begun {
			begun = true
			if err := e.begin(); err != nil {
				return err
			}
		}
		u.completion += len(d.tokens)
		c.s.count(&u, len(c.prompt), d)
		md := c.split(&ch, d)
		for _, step := range md.inOrder() {
			if err := e.add(step); err != nil {
				return err
			}
		}
		last = d
	}
	return e.end(c.streamFinish(&ch, last), last, u)
}

func (e *messageEvents) begin() error {
	b := append(e.buf[:0], `{"type":"message_start","message":`...)
	if e.s.rel.fullMessages {
		b = e.appendMessage(b)
	} else { // members at their defaults were left out
		b = append(b, `{"id":`...)
		b = append(appendString(b, e.id), ',')
	}
	b = append(b, `"content":[],"model":`...)
	b = appendString(b, e.s.opts.ModelName)
	b = append(b, `,"stop_reason":null,"stop_sequence":null,"usage":`...)
	b = append(appendInputTokens(b, len(e.prompt), 0), `}}`...)
	b = e.place.appendChunk(b, delta{}) // only if it goes into the first event
	return e.send("message_start", append(b, '}'))
}

func (e *messageEvents) send(name string, data []byte) error {
	e.buf = data
	return e.out.named(name, data)
}

// add sends a delta of one kind.
func (e *messageEvents) add(d messageDelta) error {
	if d.reasoning != "" {
		if err := e.delta("thinking", `"thinking":""`, `"thinking_delta","thinking":`, d.reasoning); err != nil {
			return err
		}
	}
	switch {
	case d.content == "":
	case e.open == "tool_use":
		e.waiting.WriteString(d.content)
	default:
		if err := e.delta("text", `"text":""`, `"text_delta","text":`, d.content); err != nil {
			return err
		}
	}
	for _, call := range d.calls {
		if err := e.call(call); err != nil {
			return err
		}
	}
	return nil
}

// delta sends more of a block of the given type and opens one if none is.
func (e *messageEvents) delta(kind, empty, member, text string) error {
	if e.open != kind {
		if err := e.start(kind, empty); err != nil {
			return err
		}
	}
	b := append(e.buf[:0], `{"type":"content_block_delta","delta":{"type":`...)
	b = append(b, member...)
	b = append(appendString(b, text), `},"index":`...)
	return e.send("content_block_delta", append(appendInt(b, e.index), '}'))
}

// call sends more of a tool call. Of a call that is no longer open nothing more is told.
func (e *messageEvents) call(call callDelta) error {
	if call.name != "" {
		e.toolIDs[call.index] = call.id
		members := `"id":` + string(appendString(nil, call.id)) + `,"name":` + string(appendString(nil, call.name)) + `,"input":{}`
		if err := e.start("tool_use", members); err != nil {
			return err
		}
		e.toolID = call.id
	}
	if call.arguments == "" || e.open != "tool_use" || e.toolIDs[call.index] != e.toolID {
		return nil
	}
	return e.delta("tool_use", "", `"input_json_delta","partial_json":`, call.arguments)
}

// start closes the open block and opens another.
func (e *messageEvents) start(kind, members string) error {
	if err := e.stop(); err != nil {
		return err
	}
	e.open = kind
	b := append(e.buf[:0], `{"type":"content_block_start","content_block":{"type":"`...)
	b = append(b, kind...)
	b = append(b, `",`...)
	b = append(b, members...)
	b = append(b, `},"index":`...)
	return e.send("content_block_start", append(appendInt(b, e.index), '}'))
}

// stop closes the open block, if there is one, and tells the text that waited for that.
func (e *messageEvents) stop() error {
	if e.open == "" {
		return nil
	}
	if e.open == "thinking" {
		if err := e.delta("thinking", "", `"signature_delta","signature":`, e.s.randomHex(32)); err != nil {
			return err
		}
	}
	b := append(e.buf[:0], `{"type":"content_block_stop","index":`...)
	if err := e.send("content_block_stop", append(appendInt(b, e.index), '}')); err != nil {
		return err
	}
	e.open, e.toolID = "", ""
	e.index++
	text := e.waiting.String()
	if text == "" {
		return nil
	}
	e.waiting.Reset()
	if err := e.delta("text", `"text":""`, `"text_delta","text":`, text); err != nil {
		return err
	}
	return e.stop()
}

// end closes the message.
func (e *messageEvents) end(finish string, last delta, u usage) error {
	if err := e.stop(); err != nil {
		return err
	}
	reason, sequence := e.s.stopReason(finish, last)
	b := append(e.buf[:0], `{"type":"message_delta","delta":{"stop_reason":`...)
	b = appendString(b, reason)
	if e.s.rel.fullMessages {
		b = append(b, `,"stop_sequence":`...)
		b = appendRaw(b, sequence)
	}
	b = append(b, `},"usage":`...)
	b = e.s.appendMessagesUsage(b, u)
	if last.finish != engine.FinishNone {
		b = e.place.appendChunk(b, last)
	}
	if e.place.inUsage() {
		b = appendParams(append(b, ','), e.place.params)
	}
	if err := e.send("message_delta", append(b, '}')); err != nil {
		return err
	}
	return e.send("message_stop", []byte(`{"type":"message_stop"}`))
}
