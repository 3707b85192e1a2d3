package api

import (
	"net/http"
	"strings"
)

// itemKind is what an item of the output is.
type itemKind int

const (
	noItem itemKind = iota
	reasoningItem
	textItem
	callItem
)

// openResponseItem is the item that a stream is in the middle of.
type openResponseItem struct {
	kind         itemKind
	id           string
	text         strings.Builder // text, reasoning or arguments so far
	callID, name string
	index        int // of the tool call
}

// events sends a response: two events before anything is computed, then the items one after the other,
// then the whole response. Only the last event carries the handle, inside the response.
func (c *responseReply) events(run *run) error {
	place := c.out.f.Handle
	if place == HandleDefault {
		place = HandleFinish
	}
	h := &handlePlacer{place: place}
	run.prepare(c.out)
	ch := chatStreamChoice{parser: c.parser()}
	begun := false
	begin := func() error {
		begun = true
		for _, name := range []string{"response.created", "response.in_progress"} {
			if err := c.responseEvent(name, "in_progress"); err != nil {
				return err
			}
		}
		return nil
	}
	if place != HandleFirst {
		if err := begin(); err != nil {
			return err
		}
	}
	for d, err := range h.deltas(c.out.ctx, run) {
		switch {
		case err != nil && c.out.ctx.Err() == nil:
			// What vLLM makes of a failed generation does not fit its own events: the connection breaks.
			panic(http.ErrAbortHandler)
		case err != nil:
			return err
		}
		if !begun { // a fault: the handle comes first
			c.params = h.params
			if err := begin(); err != nil {
				return err
			}
		}
		c.take(d)
		md := c.split(&ch, d)
		for _, step := range md.inOrder() {
			if err := c.add(step, d); err != nil {
				return err
			}
		}
	}
	if err := c.closeItem(c.itemStatus()); err != nil {
		return err
	}
	if place != HandleFinish {
		c.params = nil
	}
	name := "response.completed"
	if c.status() == "incomplete" && c.s.rel.incomplete {
		name = "response.incomplete"
	}
	return c.responseEvent(name, c.status())
}

// failed tells of an error that a fault asked for, as OpenAI does.
func (c *responseReply) failed(e *apiError) error {
	b := append([]byte(nil), `{"code":`...)
	b = appendString(b, e.typ)
	b = append(b, `,"message":`...)
	b = appendString(b, e.message)
	b = append(b, `,"param":`...)
	b = append(appendStringOrNull(b, e.param), ',')
	return c.out.data("error", c.appendEventEnd(b, "error"))
}

// appendEventEnd appends the last members of every event.
func (c *responseReply) appendEventEnd(b []byte, name string) []byte {
	b = append(b, `"sequence_number":`...)
	b = appendInt(b, c.sequenceNumber)
	c.sequenceNumber++
	b = append(b, `,"type":"`...)
	b = append(b, name...)
	return append(b, `"}`...)
}

func (c *responseReply) sendEvent(name string, b []byte) error {
	c.buf = c.appendEventEnd(b, name)
	return c.out.named(name, c.buf)
}

// responseEvent sends the response as it is.
func (c *responseReply) responseEvent(name, status string) error {
	object := c.appendResponse(nil, status)
	if status != "in_progress" {
		c.keep(object)
	}
	b := append(c.buf[:0], `{"response":`...)
	b = append(b, object...)
	return c.sendEvent(name, append(b, ','))
}

// itemEvent sends an item that begins or is done.
func (c *responseReply) itemEvent(name string, item []byte) error {
	b := append(c.buf[:0], `{"item":`...)
	b = append(b, item...)
	return c.sendEvent(name, append(c.appendOutputIndex(append(b, ',')), ','))
}

func (c *responseReply) appendOutputIndex(b []byte) []byte {
	b = append(b, `"output_index":`...)
	return appendInt(b, c.outputIndex)
}

// appendItemID appends the members that say which item an event is about.
func (c *responseReply) appendItemID(b []byte) []byte {
	b = append(b, `"item_id":`...)
	return append(appendString(b, c.item.id), ',')
}

// add sends a delta of one kind that came with d.
func (c *responseReply) add(md messageDelta, d delta) error {
	if md.reasoning != "" {
		if err := c.addReasoning(md.reasoning); err != nil {
			return err
		}
	}
	if md.content != "" {
		if err := c.addText(md.content, d); err != nil {
			return err
		}
	}
	for _, call := range md.calls {
		if err := c.addCall(call); err != nil {
			return err
		}
	}
	return nil
}

// openItem closes the open item and begins another.
func (c *responseReply) openItem(kind itemKind, prefix string) error {
	if err := c.closeItem("completed"); err != nil {
		return err
	}
	c.item = openResponseItem{kind: kind, id: prefix + c.s.randomHex(16)}
	return nil
}

func (c *responseReply) addText(text string, d delta) error {
	if c.item.kind != textItem {
		if err := c.openItem(textItem, "msg_"); err != nil {
			return err
		}
		if err := c.itemEvent("response.output_item.added", appendMessageItem(nil, c.item.id, nil, "in_progress")); err != nil {
			return err
		}
		if err := c.partEvent("response.content_part.added", appendTextPart(nil, "", []byte("[]"))); err != nil {
			return err
		}
	}
	c.item.text.WriteString(text)
	b := append(c.buf[:0], `{"content_index":0,"delta":`...)
	b = append(appendString(b, text), ',')
	b = append(c.appendItemID(b), `"logprobs":`...)
	if c.q.logprobs < 0 {
		b = append(b, "[]"...)
	} else {
		b = c.appendLogprobs(b, d.tokens, d.logprobs, false)
	}
	return c.sendEvent("response.output_text.delta", append(c.appendOutputIndex(append(b, ',')), ','))
}

func (c *responseReply) addReasoning(text string) error {
	if c.item.kind != reasoningItem {
		if err := c.openItem(reasoningItem, "rs_"); err != nil {
			return err
		}
		if err := c.itemEvent("response.output_item.added", appendReasoningItem(nil, c.item.id, "", false, "in_progress")); err != nil {
			return err
		}
		if err := c.partEvent("response.reasoning_part.added", appendReasoningPart(nil, "")); err != nil {
			return err
		}
	}
	c.item.text.WriteString(text)
	b := append(c.buf[:0], `{"content_index":0,"delta":`...)
	b = append(appendString(b, text), ',')
	return c.sendEvent("response.reasoning_text.delta", append(c.appendOutputIndex(c.appendItemID(b)), ','))
}

func (c *responseReply) addCall(call callDelta) error {
	if call.name != "" {
		if err := c.openItem(callItem, "fc_"); err != nil {
			return err
		}
		c.item.callID, c.item.name, c.item.index = call.id, call.name, call.index
		if err := c.itemEvent("response.output_item.added", appendCallItem(nil, c.item.id, call.id, call.name, "", "in_progress")); err != nil {
			return err
		}
	}
	if call.arguments == "" || c.item.kind != callItem || c.item.index != call.index {
		return nil
	}
	c.item.text.WriteString(call.arguments)
	b := append(c.buf[:0], `{"delta":`...)
	b = append(appendString(b, call.arguments), ',')
	return c.sendEvent("response.function_call_arguments.delta", append(c.appendOutputIndex(c.appendItemID(b)), ','))
}

// partEvent sends a part of the open item.
func (c *responseReply) partEvent(name string, part []byte) error {
	b := append(c.buf[:0], `{"content_index":0,`...)
	b = append(c.appendOutputIndex(c.appendItemID(b)), `,"part":`...)
	b = append(b, part...)
	return c.sendEvent(name, append(b, ','))
}

// closeItem sends the end of the open item, if there is one.
func (c *responseReply) closeItem(status string) error {
	var err error
	var item []byte
	text := c.item.text.String()
	switch c.item.kind {
	case noItem:
		return nil
	case textItem:
		err = c.doneEvent("response.output_text.done", `"text":`, true)
		part := appendTextPart(nil, text, []byte("null"))
		if err == nil {
			err = c.partEvent("response.content_part.done", part)
		}
		item = appendMessageItem(nil, c.item.id, part, status)
		c.texts = append(c.texts, text)
	case reasoningItem:
		err = c.doneEvent("response.reasoning_text.done", `"text":`, false)
		if err == nil {
			err = c.partEvent("response.reasoning_part.done", appendReasoningPart(nil, text))
		}
		item = appendReasoningItem(nil, c.item.id, text, true, status)
	case callItem:
		if text != "" {
			err = c.argumentsDone(text)
		}
		item = appendCallItem(nil, c.item.id, c.item.callID, c.item.name, text, status)
	}
	if err == nil {
		err = c.itemEvent("response.output_item.done", item)
	}
	c.addItem(item)
	c.item = openResponseItem{}
	c.outputIndex++
	return err
}

// doneEvent sends the text of the open item.
func (c *responseReply) doneEvent(name, member string, logprobs bool) error {
	b := c.appendItemID(append(c.buf[:0], `{"content_index":0,`...))
	if logprobs {
		b = append(b, `"logprobs":[],`...)
	}
	b = append(c.appendOutputIndex(b), `,"sequence_number":`...)
	b = appendInt(b, c.sequenceNumber)
	c.sequenceNumber++
	b = append(append(b, ','), member...)
	b = appendString(b, c.item.text.String())
	c.buf = append(b, `,"type":"`+name+`"}`...)
	return c.out.named(name, c.buf)
}

func (c *responseReply) argumentsDone(arguments string) error {
	b := append(c.buf[:0], `{"arguments":`...)
	b = append(appendString(b, arguments), ',')
	b = append(c.appendItemID(b), `"name":`...)
	b = append(appendString(b, c.item.name), ',')
	return c.sendEvent("response.function_call_arguments.done", append(c.appendOutputIndex(b), ','))
}
