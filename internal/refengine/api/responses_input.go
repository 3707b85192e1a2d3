package api

import (
	"encoding/json"
	"strconv"
	"strings"
)

// inputItem is one item of a response's input, or of an earlier response's output.
type inputItem struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Status    string          `json:"status"`
	Content   json.RawMessage `json:"content"`
	Summary   []inputPart     `json:"summary"`
	Encrypted json.RawMessage `json:"encrypted_content"`
	CallID    *string         `json:"call_id"`
	Name      *string         `json:"name"`
	Arguments *string         `json:"arguments"`
	Output    json.RawMessage `json:"output"`
}

type inputPart struct {
	Text string `json:"text"`
}

// inputMessages collects the chat messages that items amount to. Reasoning, text and tool calls of one turn of
// the assistant are items of their own and one chat message together.
type inputMessages struct {
	list []json.RawMessage

	open      bool            // a turn of the assistant is being collected
	content   json.RawMessage // its text, nil: none yet
	reasoning json.RawMessage // its reasoning, nil: none yet
	calls     []string
}

// close ends the assistant's turn.
func (m *inputMessages) close() {
	if !m.open {
		return
	}
	b := append([]byte(nil), `{"role":"assistant"`...)
	if m.reasoning != nil {
		b = append(b, `,"reasoning":`...)
		b = append(b, m.reasoning...)
	}
	if m.content != nil {
		b = append(b, `,"content":`...)
		b = append(b, m.content...)
	}
	if len(m.calls) > 0 {
		b = append(b, `,"tool_calls":[`+strings.Join(m.calls, ",")+`]`...)
	}
	list := append(m.list, append(b, '}'))
	*m = inputMessages{list: list}
}

// add adds a message of somebody else.
func (m *inputMessages) add(message json.RawMessage) {
	m.close()
	m.list = append(m.list, message)
}

func (m *inputMessages) addText(text string) {
	if m.content != nil {
		m.close()
	}
	m.open, m.content = true, appendString(nil, text)
}

func (m *inputMessages) addReasoning(text string) {
	if m.reasoning != nil {
		m.close()
	}
	m.open, m.reasoning = true, appendString(nil, text)
}

func (m *inputMessages) addCall(id, name, arguments string) {
	b := append([]byte(nil), `{"id":`...)
	b = appendString(b, id)
	b = append(b, `,"type":"function","function":{"name":`...)
	b = appendString(b, name)
	b = append(b, `,"arguments":`...)
	b = append(appendString(b, arguments), `}}`...)
	m.open, m.calls = true, append(m.calls, string(b))
}

// decodeInput reads the input: a text or a list of items.
func (q *responsesRequest) decodeInput(f *fields) {
	v := f.raw("input")
	if v == nil {
		f.fail("input", "missing", "Field required")
		return
	}
	q.addPrompt = true
	var text string
	if json.Unmarshal(v, &text) == nil {
		q.input = []json.RawMessage{chatMessageJSON("user", `"content":`, text)}
		return
	}
	var m inputMessages
	var last inputItem
	for i, raw := range f.list("input") {
		last = inputItem{}
		if json.Unmarshal(raw, &last) != nil {
			f.fail("input."+strconv.Itoa(i), "union", "Input should be a valid item")
		} else {
			m.addItem(f, "input."+strconv.Itoa(i), raw, &last)
		}
	}
	m.close()
	q.input = m.list
	// An answer that was cut is gone on with if it is the last item.
	if cut := last.Status == "in_progress" || last.Status == "incomplete"; cut && (last.Type == "" || last.Type == "message" || last.Type == "reasoning") {
		q.addPrompt, q.continueFinal = false, true
	}
}

func (m *inputMessages) addItem(f *fields, loc string, raw json.RawMessage, item *inputItem) {
	switch item.Type {
	case "function_call":
		if item.CallID == nil || item.Name == nil || item.Arguments == nil {
			f.fail(loc+".call_id", "missing", "Field required")
			return
		}
		m.addCall(*item.CallID, *item.Name, *item.Arguments)
	case "function_call_output":
		if item.CallID == nil || isNull(item.Output) {
			f.fail(loc+".call_id", "missing", "Field required")
			return
		}
		b := append([]byte(nil), `{"role":"tool","content":`...)
		b = append(b, item.Output...)
		b = append(b, `,"tool_call_id":`...)
		m.add(append(appendString(b, *item.CallID), '}'))
	case "reasoning":
		if !isNull(item.Encrypted) && string(item.Encrypted) != `""` {
			f.refuse(badRequest("", "Encrypted content is not supported."))
			return
		}
		text := firstText(item.Content)
		if text == "" && len(item.Summary) > 0 {
			text = item.Summary[0].Text
		}
		m.addReasoning(text)
	case "", "message":
		switch item.Role {
		case "assistant":
			m.addText(firstText(item.Content))
		case "user", "system", "developer":
			m.add(raw)
		default:
			f.fail(loc+".role", "literal_error", "Input should be 'user', 'assistant', 'system' or 'developer'")
		}
	default:
		f.fail(loc+".type", "union_tag_invalid", "Input should be 'message', 'function_call', 'function_call_output' or 'reasoning'")
	}
}

// firstText is the text of content, of its first part if it is a list: vLLM looks at no other.
func firstText(content json.RawMessage) string {
	var text string
	if json.Unmarshal(content, &text) == nil {
		return text
	}
	var parts []inputPart
	if json.Unmarshal(content, &parts) != nil || len(parts) == 0 {
		return ""
	}
	return parts[0].Text
}
