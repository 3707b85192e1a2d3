package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// conversation turns a client's messages into what the engine hands to the template.
func (t *Template) conversation(messages []json.RawMessage) (list, error) {
	out := make(list, 0, len(messages))
	for i, raw := range messages {
		v, err := decodeJSON(raw)
		if err != nil {
			return nil, fmt.Errorf("messages[%d]: %w", i, err)
		}
		msg, ok := v.(object)
		if !ok {
			return nil, fmt.Errorf("messages[%d] is %s, want an object", i, kindName(v))
		}
		prepared, err := message(msg)
		if err != nil {
			return nil, fmt.Errorf("messages[%d]: %w", i, err)
		}
		out = append(out, prepared)
	}
	if !t.developer {
		out = developerToSystem(out)
	}
	return out, nil
}

// developerToSystem gives messages of role "developer" to a template that does not know the role: they
// become system messages, and all system messages become one at the start.
func developerToSystem(messages list) list {
	converted, systems, misplaced := false, 0, false
	var texts []string
	var others list
	for i, v := range messages {
		msg, _ := v.(object)
		role, _ := msg.get("role")
		if role == "developer" {
			converted = true
			content, _ := msg.get("content")
			msg = object{{"role", "system"}, {"content", content}}
			role = "system"
			messages[i] = msg
		}
		if role != "system" {
			others = append(others, v)
			continue
		}
		systems++
		misplaced = misplaced || i > 0
		if text, _ := msg.get("content"); text != "" {
			texts = append(texts, display(text))
		}
	}
	if !converted || systems == 1 && !misplaced {
		return messages
	}
	merged := object{{"role", "system"}, {"content", strings.Join(texts, "\n\n")}}
	return append(list{merged}, others...)
}

// message keeps the members that templates know, in the order in which the engine sets them.
func message(in object) (object, error) {
	role, _ := in.get("role")
	if _, ok := role.(string); !ok {
		return nil, errors.New("role is missing or not a string")
	}
	content, _ := in.get("content")
	text, err := contentText(content)
	if err != nil {
		return nil, err
	}
	out := object{{"role", role}, {"content", text}}
	switch role {
	case "assistant":
		if calls, ok := in.get("tool_calls"); ok {
			prepared, err := toolCalls(calls)
			if err != nil {
				return nil, err
			}
			if len(prepared) > 0 {
				out = append(out, member{"tool_calls", prepared})
			}
		}
		for _, name := range []string{"reasoning", "reasoning_content"} {
			if reasoning, _ := in.get(name); isText(reasoning) {
				out = append(out, member{"reasoning", reasoning}, member{"reasoning_content", reasoning})
				break
			}
		}
	case "tool":
		if id, ok := in.get("tool_call_id"); ok {
			out = append(out, member{"tool_call_id", id})
		}
	}
	if name, _ := in.get("name"); isText(name) {
		out = append(out, member{"name", name})
	}
	if role == "developer" {
		tools, ok := in.get("tools")
		if !ok {
			tools = theNone
		}
		out = append(out, member{"tools", tools})
	}
	return out, nil
}

func isText(v any) bool {
	_, ok := v.(string)
	return ok
}

// contentText joins the text parts of a message.
func contentText(content any) (string, error) {
	switch content := content.(type) {
	case nil, none:
		return "", nil
	case string:
		return content, nil
	case list:
		texts := make([]string, 0, len(content))
		for i, part := range content {
			text, err := partText(part)
			if err != nil {
				return "", fmt.Errorf("content[%d]: %w", i, err)
			}
			texts = append(texts, text...)
		}
		return strings.Join(texts, "\n"), nil
	}
	return "", fmt.Errorf("content is %s, want a string or a list of parts", kindName(content))
}

// partText returns the text of a content part, or nothing for a part without any.
func partText(part any) ([]string, error) {
	if text, ok := part.(string); ok {
		return []string{text}, nil
	}
	o, ok := part.(object)
	if !ok {
		return nil, fmt.Errorf("part is %s, want an object", kindName(part))
	}
	kind, _ := o.get("type")
	field := "text"
	switch kind {
	case nil, "text", "input_text", "output_text":
	case "refusal":
		field = "refusal"
	case "thinking":
		field = "thinking"
	default:
		return nil, fmt.Errorf("part of type %q: only text is supported", display(kind))
	}
	switch text, _ := o.get(field); text := text.(type) {
	case string:
		return []string{text}, nil
	case nil, none:
		return nil, nil
	default:
		return nil, fmt.Errorf("%s of a part is %s, want a string", field, kindName(text))
	}
}

// toolCalls parses the arguments of each call, which clients send as a string of JSON: templates print
// them as an object. What is not an object becomes {}: failing here would fail every later turn of the
// conversation too.
func toolCalls(calls any) (list, error) {
	in, ok := calls.(list)
	if !ok {
		return nil, nil
	}
	out := make(list, 0, len(in))
	for _, call := range in {
		o, ok := call.(object)
		if !ok {
			return nil, errors.New("assistant tool_calls entries must be objects")
		}
		kind, given := o.get("type")
		f, _ := o.get("function")
		function, ok := f.(object)
		if given && kind != "function" || !ok {
			return nil, errors.New(`assistant tool_calls must be of type "function"`)
		}
		parsed := object{}
		switch arguments, _ := function.get("arguments"); arguments := arguments.(type) {
		case object:
			parsed = arguments
		case string:
			if v, err := decodeJSON([]byte(arguments)); err == nil {
				if p, ok := v.(object); ok {
					parsed = p
				}
			}
		}
		out = append(out, o.set("function", function.set("arguments", parsed)))
	}
	return out, nil
}

// toolDefinitions writes tools as the engine does after validating them: type and function first,
// in the function name, description (null if it has none), parameters, then strict if it was given.
// Inside the parameters every key stays where the client put it.
func toolDefinitions(tools []json.RawMessage) (any, error) {
	if len(tools) == 0 {
		return theNone, nil
	}
	out := make(list, 0, len(tools))
	for i, raw := range tools {
		v, err := decodeJSON(raw)
		if err != nil {
			return nil, fmt.Errorf("tools[%d]: %w", i, err)
		}
		tool, ok := v.(object)
		if !ok {
			return nil, fmt.Errorf("tools[%d] is %s, want an object", i, kindName(v))
		}
		f, _ := tool.get("function")
		in, ok := f.(object)
		if !ok {
			return nil, fmt.Errorf("tools[%d] has no function", i)
		}
		function := object{}
		for _, name := range []string{"name", "description", "parameters"} {
			value, ok := in.get(name)
			if !ok {
				value = theNone
			}
			function = append(function, member{name, value})
		}
		if strict, ok := in.get("strict"); ok && strict != any(theNone) {
			function = append(function, member{"strict", strict})
		}
		out = append(out, object{{"type", "function"}, {"function", function}})
	}
	return out, nil
}
