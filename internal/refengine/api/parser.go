package api

import (
	"encoding/json"
	"slices"
	"strings"
)

// Marks in generated text.
const (
	thinkEnd  = "</think>"
	callBegin = "<tool_call>"
	callEnd   = "</tool_call>"
)

// messageParser splits generated text into reasoning, content and tool calls as it comes. Text between
// <tool_call> and </tool_call> is {"name":…,"arguments":{…}}; arguments are handed out while they come.
type messageParser struct {
	thinking bool          // before </think>
	tools    bool          // look for tool calls
	newID    func() string // id of a tool call

	rest   string    // text not decided on yet: it may be the beginning of a mark
	call   *openCall // inside <tool_call>
	calls  int       // tool calls that have been announced
	space  string    // white space after a call, said only if text follows
	single bool      // only the first tool call counts
}

// messageDelta is what a piece of text added to a message.
type messageDelta struct {
	reasoning string
	content   string
	calls     []callDelta
	steps     []messageDelta // the same in order, each of one kind; nil if it is of one kind only
}

// inOrder returns deltas of one kind each.
func (d *messageDelta) inOrder() []messageDelta {
	if d.steps == nil {
		return []messageDelta{*d}
	}
	return d.steps
}

// add adds a delta of one kind.
func (d *messageDelta) add(step messageDelta) {
	if step.empty() {
		return
	}
	if d.steps == nil && !d.empty() {
		d.steps = []messageDelta{{reasoning: d.reasoning, content: d.content, calls: slices.Clone(d.calls)}}
	}
	if d.steps != nil {
		d.steps = append(d.steps, step)
	}
	d.reasoning += step.reasoning
	d.content += step.content
	for _, call := range step.calls {
		// What is added to a call in one piece is told at once.
		if n := len(d.calls); n > 0 && call.name == "" && d.calls[n-1].index == call.index {
			d.calls[n-1].arguments += call.arguments
		} else {
			d.calls = append(d.calls, call)
		}
	}
}

// dropReasoning removes reasoning that the client does not want to see.
func (d *messageDelta) dropReasoning() {
	d.reasoning = ""
	for i := range d.steps {
		d.steps[i].reasoning = ""
	}
}

func (d *messageDelta) addContent(text string) { d.add(messageDelta{content: text}) }

func (d *messageDelta) empty() bool {
	return d.reasoning == "" && d.content == "" && len(d.calls) == 0
}

// callDelta is what was added to one tool call: its name, once, and more of its arguments.
type callDelta struct {
	index     int
	id, name  string // "" if announced before
	arguments string
}

// push adds text; final says that no more comes, so that nothing is held back.
func (p *messageParser) push(text string, final bool) messageDelta {
	var d messageDelta
	p.rest += text
	for {
		switch {
		case p.thinking:
			before, after, found := strings.Cut(p.rest, thinkEnd)
			if !found {
				keep := p.held(thinkEnd, final)
				d.add(messageDelta{reasoning: p.rest[:len(p.rest)-keep]})
				p.rest = p.rest[len(p.rest)-keep:]
				return d
			}
			d.add(messageDelta{reasoning: before})
			p.rest, p.thinking = after, false
		case p.call != nil:
			body, after, closed := strings.Cut(p.rest, callEnd)
			if !closed {
				body = p.rest[:len(p.rest)-p.held(callEnd, final)]
			}
			p.progress(&d, body)
			if !closed {
				if final && !p.call.announced {
					d.addContent(p.space + callBegin + p.rest) // never became a call
				}
				return d
			}
			if !p.call.announced {
				d.addContent(p.space + callBegin + body + callEnd)
			}
			p.rest, p.call, p.space = after, nil, ""
		case p.tools:
			before, after, found := strings.Cut(p.rest, callBegin)
			if !found {
				keep := p.held(callBegin, final)
				p.addContent(&d, p.rest[:len(p.rest)-keep])
				p.rest = p.rest[len(p.rest)-keep:]
				return d
			}
			p.addContent(&d, before)
			p.rest, p.call = after, &openCall{}
		default:
			d.addContent(p.rest)
			p.rest = ""
			return d
		}
	}
}

// addContent adds text outside tool calls. White space between and after calls says nothing.
func (p *messageParser) addContent(d *messageDelta, text string) {
	if p.calls == 0 {
		d.addContent(text)
		return
	}
	p.space += text
	said := strings.TrimRight(p.space, " \t\r\n")
	d.addContent(said)
	p.space = p.space[len(said):]
}

// held is how many bytes at the end of rest could be the beginning of mark.
func (p *messageParser) held(mark string, final bool) int {
	if final {
		return 0
	}
	for n := min(len(mark)-1, len(p.rest)); n > 0; n-- {
		if strings.HasSuffix(p.rest, mark[:n]) {
			return n
		}
	}
	return 0
}

// openCall is a tool call whose end has not come.
type openCall struct {
	announced bool
	index     int
	sent      int  // bytes of the arguments handed out
	ignored   bool // parallel_tool_calls is false and this is not the first
}

// progress hands out what body, the call's text so far, adds to the call. A call counts from the moment
// its name is known, so that pieces and the whole give the same.
func (p *messageParser) progress(d *messageDelta, body string) {
	c := p.call
	name, arguments, ok := scanCall(body)
	if !ok {
		return
	}
	if !c.announced {
		c.announced = true
		c.ignored = p.single && p.calls > 0
		c.index = p.calls
		p.calls++
		if !c.ignored {
			d.add(messageDelta{calls: []callDelta{{index: c.index, id: p.newID(), name: name}}})
		}
	}
	if c.ignored || len(arguments) <= c.sent {
		return
	}
	more := arguments[c.sent:]
	c.sent = len(arguments)
	d.add(messageDelta{calls: []callDelta{{index: c.index, arguments: more}}})
}

// scanCall reads as much of {"name":…,"arguments":…} as is there. It reports false until the name is
// complete. arguments is the text of their value so far, never more than the value. Of a member that comes
// twice the first counts: it may have been handed out.
func scanCall(body string) (name, arguments string, ok bool) {
	i := skipSpace(body, 0)
	if i >= len(body) || body[i] != '{' {
		return "", "", false
	}
	i++
	for {
		i = skipSpace(body, i)
		if i < len(body) && body[i] == ',' {
			i = skipSpace(body, i+1)
		}
		if i >= len(body) || body[i] != '"' {
			return name, arguments, ok
		}
		end, whole := scanValue(body, i)
		if !whole {
			return name, arguments, ok
		}
		var key string
		if json.Unmarshal([]byte(body[i:end]), &key) != nil {
			return name, arguments, ok
		}
		i = skipSpace(body, end)
		if i >= len(body) || body[i] != ':' {
			return name, arguments, ok
		}
		i = skipSpace(body, i+1)
		end, whole = scanValue(body, i)
		switch key {
		case "name":
			if whole && !ok && json.Unmarshal([]byte(body[i:end]), &name) == nil && name != "" {
				ok = true
			}
		case "arguments", "parameters":
			if arguments == "" {
				arguments = body[i:end]
			}
		}
		if !whole {
			return name, arguments, ok
		}
		i = end
	}
}

func skipSpace(s string, i int) int {
	for i < len(s) && (s[i] == ' ' || s[i] == '\n' || s[i] == '\r' || s[i] == '\t') {
		i++
	}
	return i
}

// scanValue returns the end of the JSON value that begins at i, and whether all of it is there.
func scanValue(s string, i int) (end int, whole bool) {
	depth := 0
	inString := false
	for j := i; j < len(s); j++ {
		switch c := s[j]; {
		case inString && c == '\\':
			j++
		case inString:
			if c == '"' {
				inString = false
				if depth == 0 {
					return j + 1, true
				}
			}
		case c == '"':
			inString = true
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth == 0 {
				return j, true // the end of what the value is in
			}
			if depth--; depth == 0 {
				return j + 1, true
			}
		case depth == 0 && (c == ',' || c == ' ' || c == '\n' || c == '\r' || c == '\t'):
			return j, true // after a number or a word
		}
	}
	return len(s), false
}

// toolCall is a finished call in a whole reply.
type toolCall struct {
	id, name, arguments string
}

// parseWhole splits the text of a whole reply. If a call's arguments are not valid, all of it is content,
// as vLLM has it.
func (p *messageParser) parseWhole(text string) (d messageDelta, calls []toolCall) {
	d = p.push(text, true)
	for _, c := range d.calls {
		spaced := "{}"
		if c.arguments != "" {
			var ok bool
			if spaced, ok = pythonJSON(c.arguments); !ok {
				_, d.content, _ = strings.Cut(text, d.reasoning)
				d.content = strings.TrimPrefix(d.content, thinkEnd)
				return d, nil
			}
		}
		calls = append(calls, toolCall{id: c.id, name: c.name, arguments: spaced})
	}
	return d, calls
}
