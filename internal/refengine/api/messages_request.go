package api

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// minThinkingBudget is the least thinking.budget_tokens that is accepted.
const minThinkingBudget = 1024

// billingHeader begins a system block in which a well-known client writes a number that changes with every
// request. vLLM leaves the block out, so that prompts keep their prefix.
const billingHeader = "x-anthropic-billing-header"

// messagesRequest is a body of the messages endpoint: a chat in other words.
type messagesRequest struct {
	model string
	chat  map[string]json.RawMessage // the members of the chat request it amounts to

	tools      json.RawMessage // in a chat's form; nil: none
	toolChoice string          // a chat's; "": not given
	parallel   bool            // more than one tool call in a reply
}

// block is a content block of a message.
type block struct {
	Type      string          `json:"type"`
	Text      *string         `json:"text"`
	ID        string          `json:"id"`
	ToolUseID string          `json:"tool_use_id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	Content   json.RawMessage `json:"content"`
	Thinking  *string         `json:"thinking"`
}

// decodeMessages reads a body of /v1/messages, or, if counting, of /v1/messages/count_tokens, which knows
// fewer members. Its errors are about the schema and are told in OpenAI's form, as by vLLM.
func decodeMessages(body []byte, rel release, counting bool) (*messagesRequest, *apiError) {
	f, err := parseFields(body)
	if err != nil {
		return nil, err
	}
	q := &messagesRequest{parallel: true, chat: make(map[string]json.RawMessage)}
	for _, name := range []string{"model", "messages"} {
		if !f.has(name) {
			f.fail(name, "missing", "Field required")
		}
	}
	if q.model, _ = f.string("model"); q.model == "" {
		f.failRule("model", "Model is required")
	}
	q.chat["model"] = f.raw("model")
	if f.object("chat_template_kwargs") != nil {
		q.chat["chat_template_kwargs"] = f.raw("chat_template_kwargs")
	}
	q.decodeTools(f)
	if messages := chatFromMessages(f); messages != nil {
		q.chat["messages"] = messages
	}
	if !counting {
		q.decodeSampling(f, rel)
	}
	return q, f.err
}

// failRule is a rule about one member's value.
func (f *fields) failRule(name, rule string) {
	f.fail(name, "value_error", "Value error, "+rule)
}

// decodeSampling reads what counting does not know.
func (q *messagesRequest) decodeSampling(f *fields, rel release) {
	maxTokens, given := f.int("max_tokens", 0)
	switch {
	case !given:
		f.fail("max_tokens", "missing", "Field required")
	case maxTokens < 1:
		f.failRule("max_tokens", "max_tokens must be positive")
	}
	q.chat["max_tokens"] = f.raw("max_tokens")
	if stops := f.raw("stop_sequences"); stops != nil {
		var list []string
		if json.Unmarshal(stops, &list) != nil {
			f.fail("stop_sequences", "list_type", "Input should be a valid list")
		}
		q.chat["stop"] = stops
	}
	for _, name := range []string{"temperature", "top_p"} {
		if _, given := f.float(name, 0); given {
			q.chat[name] = f.raw(name)
		}
	}
	if _, given := f.int("top_k", 0); given {
		q.chat["top_k"] = f.raw("top_k")
	}
	q.chat["cache_salt"] = f.raw("cache_salt")
	params := f.object("kv_transfer_params")
	q.chat["kv_transfer_params"] = f.raw("kv_transfer_params")
	if f.bool("stream", false) {
		q.chat["stream"] = json.RawMessage("true")
		q.chat["stream_options"] = json.RawMessage(`{"include_usage":true,"continuous_usage_stats":true}`)
	}
	if output := f.object("output_config"); output != nil {
		o := &fields{m: output}
		if _, given := o.string("effort"); given {
			q.chat["reasoning_effort"] = o.raw("effort")
		}
		f.refuseIf(o.err)
	}
	if rel.thinkingBudget {
		q.decodeThinking(f, params, maxTokens)
	}
}

// decodeThinking checks the thinking budget. P's leg has max_tokens 1, less than any budget: it is
// accepted because its params say that another engine decodes.
func (q *messagesRequest) decodeThinking(f *fields, params map[string]json.RawMessage, maxTokens int) {
	thinking := f.object("thinking")
	if thinking == nil {
		return
	}
	t := &fields{m: thinking}
	switch kind, _ := t.string("type"); kind {
	case "adaptive":
	case "disabled":
		q.chat["reasoning_effort"] = json.RawMessage(`"none"`)
	case "enabled":
		p := &fields{m: params}
		budget, given := t.int("budget_tokens", 0)
		switch {
		case t.err != nil || !given:
			f.fail("thinking.budget_tokens", "missing", "Field required")
		case budget < minThinkingBudget:
			f.fail("thinking.budget_tokens", "greater_than_equal", "Input should be greater than or equal to "+strconv.Itoa(minThinkingBudget))
		case budget >= maxTokens && !p.truthy("do_remote_decode"):
			f.refuse(invalidValue("body", "thinking.budget_tokens must be less than max_tokens"))
		}
	default:
		f.fail("thinking", "union_tag_invalid",
			"Input tag '"+kind+"' found using 'type' does not match any of the expected tags: 'enabled', 'disabled', 'adaptive'")
	}
}

// decodeTools reads tools and tool_choice. A choice without tools means nothing.
func (q *messagesRequest) decodeTools(f *fields) {
	b := []byte{'['}
	for i, raw := range f.list("tools") {
		var tool struct {
			Name        string                     `json:"name"`
			Description json.RawMessage            `json:"description"`
			Schema      map[string]json.RawMessage `json:"input_schema"`
			Strict      json.RawMessage            `json:"strict"`
		}
		if json.Unmarshal(raw, &tool) != nil || tool.Name == "" || tool.Schema == nil {
			f.fail("tools", "missing", "Field required")
			return
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"type":"function","function":{"name":`...)
		b = appendString(b, tool.Name)
		b = append(b, `,"description":`...)
		b = appendRaw(b, tool.Description)
		b = append(b, `,"parameters":`...)
		b = appendSchema(b, raw, tool.Schema)
		if !isNull(tool.Strict) {
			b = append(b, `,"strict":`...)
			b = append(b, tool.Strict...)
		}
		b = append(b, `}}`...)
	}
	if len(b) > 1 {
		q.tools = append(b, ']')
	}
	choice := f.object("tool_choice")
	if choice == nil {
		return
	}
	c := &fields{m: choice}
	kind, _ := c.string("type")
	name, _ := c.string("name")
	q.parallel = !c.bool("disable_parallel_tool_use", false)
	f.refuseIf(c.err)
	known := map[string]string{"auto": "auto", "any": "required", "tool": "named", "none": "none"}
	switch q.toolChoice = known[kind]; {
	case q.toolChoice == "":
		f.fail("tool_choice", "literal_error", "Input should be 'auto', 'any', 'tool' or 'none'")
	case q.toolChoice == "named" && name == "":
		f.failRule("tool_choice", "tool_choice.name is required when type is 'tool'")
	}
}

// appendSchema appends a tool's input_schema as it was sent; one without a type is of an object.
func appendSchema(b []byte, tool json.RawMessage, schema map[string]json.RawMessage) []byte {
	var sent struct {
		Schema json.RawMessage `json:"input_schema"`
	}
	_ = json.Unmarshal(tool, &sent) // was read before
	if _, typed := schema["type"]; typed {
		return append(b, sent.Schema...)
	}
	text := strings.TrimRight(string(sent.Schema), " \t\r\n")
	b = append(b, text[:len(text)-1]...)
	if len(schema) > 0 {
		b = append(b, ',')
	}
	return append(b, `"type":"object"}`...)
}

// chatRequest returns the chat it amounts to. Its errors are those of a chat.
func (q *messagesRequest) chatRequest(rel release) (*chatRequest, *apiError) {
	for name, v := range q.chat {
		if v == nil {
			delete(q.chat, name)
		}
	}
	c, err := decodeChatFields(&fields{m: q.chat}, rel)
	if err != nil {
		return nil, err
	}
	c.tools, c.toolChoice, c.parallelTools = q.tools, q.toolChoice, q.parallel
	if q.tools != nil && q.toolChoice == "" {
		c.toolChoice = "auto"
	}
	return c, nil
}

// chatFromMessages returns the list of chat messages that system and messages amount to, nil after an error.
func chatFromMessages(f *fields) json.RawMessage {
	var list []json.RawMessage
	system := systemText(f, "system", f.raw("system"))
	leading := true
	for i, raw := range f.list("messages") {
		loc := "messages." + strconv.Itoa(i)
		var msg struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		}
		if err := json.Unmarshal(raw, &msg); err != nil {
			f.fail(loc, "model_attributes_type", "Input should be a valid dictionary or object to extract fields from")
			return nil
		}
		switch msg.Role {
		case "user", "assistant":
			leading = false
			list = appendTurn(list, f, loc, msg.Role, msg.Content)
		case "system":
			text := systemText(f, loc, msg.Content)
			switch {
			case text == "":
			case !leading: // stays where it is
				list = append(list, chatMessageJSON("system", `"content":`, text))
			case system == "":
				system = text
			default:
				system += "\n\n" + text
			}
		default:
			f.fail(loc+".role", "literal_error", "Input should be 'user', 'assistant' or 'system'")
		}
	}
	if f.err != nil {
		return nil
	}
	b := []byte{'['}
	if system != "" {
		b = append(b, chatMessageJSON("system", `"content":`, system)...)
	}
	for _, m := range list {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(b, m...)
	}
	return append(b, ']')
}

// chatMessageJSON is a chat message whose last member is a string.
func chatMessageJSON(role, members, text string) json.RawMessage {
	b := append([]byte(nil), `{"role":`...)
	b = append(appendString(b, role), ',')
	b = append(b, members...)
	return append(appendString(b, text), '}')
}

// systemText is a system prompt, given as text or blocks.
func systemText(f *fields, loc string, content json.RawMessage) string {
	text, blocks, ok := readContent(content)
	if !ok {
		f.fail(loc, "list_type", "Input should be a valid string or list of blocks")
		return ""
	}
	for _, b := range blocks {
		if b.Type == "text" && b.Text != nil && !strings.HasPrefix(*b.Text, billingHeader) {
			text += *b.Text
		}
	}
	return text
}

// readContent reads a text or a list of blocks; null is neither.
func readContent(content json.RawMessage) (text string, blocks []block, ok bool) {
	if isNull(content) || json.Unmarshal(content, &text) == nil {
		return text, nil, true
	}
	return "", blocks, json.Unmarshal(content, &blocks) == nil
}

// appendTurn adds the chat messages that one message amounts to: tool results are messages of their own
// and come first.
func appendTurn(list []json.RawMessage, f *fields, loc, role string, content json.RawMessage) []json.RawMessage {
	text, blocks, ok := readContent(content)
	if !ok || isNull(content) {
		f.fail(loc+".content", "list_type", "Input should be a valid string or list of blocks")
		return list
	}
	if content[0] == '"' {
		return append(list, chatMessageJSON(role, `"content":`, text))
	}
	var parts, calls []string
	var reasoning string
	for i, b := range blocks {
		switch b.Type {
		case "text":
			if b.Text != nil && *b.Text != "" {
				parts = append(parts, `{"type":"text","text":`+string(appendString(nil, *b.Text))+`}`)
			}
		case "image":
			parts = append(parts, `{"type":"image_url"}`)
		case "thinking":
			if b.Thinking != nil {
				reasoning += *b.Thinking
			}
		case "redacted_thinking", "tool_reference":
		case "tool_use":
			calls = append(calls, toolUse(b))
		case "tool_result":
			result, isText := resultText(b.Content)
			switch {
			case role == "user" && isText:
				list = append(list, chatMessageJSON("tool", `"tool_call_id":`+string(appendString(nil, b.ToolUseID))+`,"content":`, result))
			case role == "user":
				list = append(list, json.RawMessage(`{"role":"tool","content":[{"type":"image_url"}]}`))
			default:
				parts = append(parts, `{"type":"text","text":`+string(appendString(nil, "Tool result: "+result))+`}`)
			}
		default:
			f.fail(fmt.Sprintf("%s.content.%d.type", loc, i), "literal_error",
				"Input should be 'text', 'image', 'tool_use', 'tool_result', 'tool_reference', 'thinking' or 'redacted_thinking'")
		}
	}
	if role == "user" && len(parts) == 0 {
		return list
	}
	b := []byte(`{"role":"` + role + `"`)
	if reasoning != "" {
		b = append(b, `,"reasoning":`...)
		b = appendString(b, reasoning)
	}
	if len(calls) > 0 {
		b = append(b, `,"tool_calls":[`+strings.Join(calls, ",")+`]`...)
	}
	if len(parts) > 0 {
		b = append(b, `,"content":[`+strings.Join(parts, ",")+`]`...)
	}
	return append(list, append(b, '}'))
}

// toolUse is a chat's tool call.
func toolUse(u block) string {
	input := u.Input
	if isNull(input) {
		input = json.RawMessage("{}")
	}
	b := append([]byte(nil), `{"id":`...)
	b = appendString(b, u.ID)
	b = append(b, `,"type":"function","function":{"name":`...)
	b = appendString(b, u.Name)
	b = append(b, `,"arguments":`...)
	return string(append(appendString(b, string(input)), `}}`...))
}

// resultText is the text of a tool result, and whether it is nothing but text.
func resultText(content json.RawMessage) (string, bool) {
	text, blocks, ok := readContent(content)
	var texts []string
	for _, b := range blocks {
		switch {
		case b.Type == "text" && b.Text != nil:
			texts = append(texts, *b.Text)
		case b.Type == "image":
			ok = false
		}
	}
	return text + strings.Join(texts, "\n"), ok
}
