package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/tarik-kv/tarik/internal/refengine/tokenizer/jinja"
)

// conversation turns a client's messages into what the engine hands to the template.
func (t *Template) conversation(messages []json.RawMessage) (jinja.List, error) {
	out := make(jinja.List, 0, len(messages))
	for i, raw := range messages {
		v, err := jinja.Decode(raw)
		if err != nil {
			return nil, fmt.Errorf("messages[%d]: %w", i, err)
		}
		msg, ok := v.(jinja.Object)
		if !ok {
			return nil, fmt.Errorf("messages[%d] is %s, want an object", i, jinja.Kind(v))
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
func developerToSystem(messages jinja.List) jinja.List {
	converted, systems, misplaced := false, 0, false
	var texts []string
	var others jinja.List
	for i, v := range messages {
		msg, _ := v.(jinja.Object)
		role, _ := msg.Get("role")
		if role == "developer" {
			converted = true
			content, _ := msg.Get("content")
			msg = jinja.Object{{Key: "role", Value: "system"}, {Key: "content", Value: content}}
			role = "system"
			messages[i] = msg
		}
		if role != "system" {
			others = append(others, v)
			continue
		}
		systems++
		misplaced = misplaced || i > 0
		if text, _ := msg.Get("content"); text != "" {
			texts = append(texts, jinja.Text(text))
		}
	}
	if !converted || systems == 1 && !misplaced {
		return messages
	}
	merged := jinja.Object{{Key: "role", Value: "system"}, {Key: "content", Value: strings.Join(texts, "\n\n")}}
	return append(jinja.List{merged}, others...)
}

// message keeps the members that templates know, in the order in which the engine sets them.
func message(in jinja.Object) (jinja.Object, error) {
	role, _ := in.Get("role")
	if _, ok := role.(string); !ok {
		return nil, errors.New("role is missing or not a string")
	}
	content, _ := in.Get("content")
	text, err := contentText(content)
	if err != nil {
		return nil, err
	}
	out := jinja.Object{{Key: "role", Value: role}, {Key: "content", Value: text}}
	switch role {
	case "assistant":
		if calls, ok := in.Get("tool_calls"); ok {
			prepared, err := toolCalls(calls)
			if err != nil {
				return nil, err
			}
			if len(prepared) > 0 {
				out = append(out, jinja.Member{Key: "tool_calls", Value: prepared})
			}
		}
		for _, name := range []string{"reasoning", "reasoning_content"} {
			if reasoning, _ := in.Get(name); isText(reasoning) {
				out = append(out, jinja.Member{Key: "reasoning", Value: reasoning}, jinja.Member{Key: "reasoning_content", Value: reasoning})
				break
			}
		}
	case "tool":
		if id, ok := in.Get("tool_call_id"); ok {
			out = append(out, jinja.Member{Key: "tool_call_id", Value: id})
		}
	}
	if name, _ := in.Get("name"); isText(name) {
		out = append(out, jinja.Member{Key: "name", Value: name})
	}
	if role == "developer" {
		tools, ok := in.Get("tools")
		if !ok {
			tools = jinja.Null
		}
		out = append(out, jinja.Member{Key: "tools", Value: tools})
	}
	return out, nil
}

func isText(v any) bool {
	_, ok := v.(string)
	return ok
}

// contentText joins the text parts of a message.
func contentText(content any) (string, error) {
	if content == nil || content == jinja.Null {
		return "", nil
	}
	switch content := content.(type) {
	case string:
		return content, nil
	case jinja.List:
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
	return "", fmt.Errorf("content is %s, want a string or a list of parts", jinja.Kind(content))
}

// partText returns the text of a content part, or nothing for a part without any.
func partText(part any) ([]string, error) {
	if text, ok := part.(string); ok {
		return []string{text}, nil
	}
	o, ok := part.(jinja.Object)
	if !ok {
		return nil, fmt.Errorf("part is %s, want an object", jinja.Kind(part))
	}
	kind, _ := o.Get("type")
	field := "text"
	switch kind {
	case nil, "text", "input_text", "output_text":
	case "refusal":
		field = "refusal"
	case "thinking":
		field = "thinking"
	default:
		return nil, fmt.Errorf("part of type %q: only text is supported", jinja.Text(kind))
	}
	text, _ := o.Get(field)
	if text == nil || text == jinja.Null {
		return nil, nil
	}
	s, ok := text.(string)
	if !ok {
		return nil, fmt.Errorf("%s of a part is %s, want a string", field, jinja.Kind(text))
	}
	return []string{s}, nil
}

// toolCalls parses the arguments of each call, which clients send as a string of JSON: templates print
// them as an object. What is not an object becomes {}: failing here would fail every later turn of the
// conversation too.
func toolCalls(calls any) (jinja.List, error) {
	in, ok := calls.(jinja.List)
	if !ok {
		return nil, nil
	}
	out := make(jinja.List, 0, len(in))
	for _, call := range in {
		o, ok := call.(jinja.Object)
		if !ok {
			return nil, errors.New("assistant tool_calls entries must be objects")
		}
		kind, given := o.Get("type")
		f, _ := o.Get("function")
		function, ok := f.(jinja.Object)
		if given && kind != "function" || !ok {
			return nil, errors.New(`assistant tool_calls must be of type "function"`)
		}
		parsed := jinja.Object{}
		switch arguments, _ := function.Get("arguments"); arguments := arguments.(type) {
		case jinja.Object:
			parsed = arguments
		case string:
			if v, err := jinja.Decode([]byte(arguments)); err == nil {
				if p, ok := v.(jinja.Object); ok {
					parsed = p
				}
			}
		}
		out = append(out, o.Set("function", function.Set("arguments", parsed)))
	}
	return out, nil
}

// toolDefinitions writes tools as the engine does after validating them: type and function first,
// in the function name, description (null if it has none), parameters, then strict if it was given.
// Inside the parameters every key stays where the client put it.
func toolDefinitions(tools []json.RawMessage) (any, error) {
	if len(tools) == 0 {
		return jinja.Null, nil
	}
	out := make(jinja.List, 0, len(tools))
	for i, raw := range tools {
		v, err := jinja.Decode(raw)
		if err != nil {
			return nil, fmt.Errorf("tools[%d]: %w", i, err)
		}
		tool, ok := v.(jinja.Object)
		if !ok {
			return nil, fmt.Errorf("tools[%d] is %s, want an object", i, jinja.Kind(v))
		}
		f, _ := tool.Get("function")
		in, ok := f.(jinja.Object)
		if !ok {
			return nil, fmt.Errorf("tools[%d] has no function", i)
		}
		function := jinja.Object{}
		for _, name := range []string{"name", "description", "parameters"} {
			value, ok := in.Get(name)
			if !ok {
				value = jinja.Null
			}
			function = append(function, jinja.Member{Key: name, Value: value})
		}
		if strict, ok := in.Get("strict"); ok && strict != jinja.Null {
			function = append(function, jinja.Member{Key: "strict", Value: strict})
		}
		out = append(out, jinja.Object{{Key: "type", Value: "function"}, {Key: "function", Value: function}})
	}
	return out, nil
}
