package api

import (
	"encoding/json"
	"slices"
)

// responsesRequest is a body of the responses endpoint. It is a chat, once the stored conversation it goes on
// from is known.
type responsesRequest struct {
	chatRequest
	ownID    string // the body's request_id: the whole id of the response
	previous string // previous_response_id
	store    bool
	raw      bool // enable_response_messages: prompt and reply with their token ids

	instructions string
	input        []json.RawMessage // chat messages
	echo         responseEcho
}

// responseEcho is what the response repeats of its request, as JSON; nil is null.
type responseEcho struct {
	instructions, metadata, toolChoice, tools, maxToolCalls, previous, reasoning, serviceTier, text, truncation, user json.RawMessage
	cacheOptions, cacheKey, cacheRetention, safetyID                                                                  json.RawMessage
	presence, frequency                                                                                               float64
}

// responsesSampling are the members that mean the same as in a chat. min_tokens, n and stop_token_ids are not
// among them.
var responsesSampling = []string{
	"temperature", "top_p", "top_k", "seed", "stop", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens",
}

func decodeResponses(body []byte, rel release) (*responsesRequest, *apiError) {
	f, err := parseFields(body)
	if err != nil {
		return nil, err
	}
	q := &responsesRequest{}
	q.store = f.bool("store", true)
	switch background := f.bool("background", false); {
	case f.has("prompt"):
		f.refuse(invalidValue("prompt", "prompt template is not supported"))
	case background && !q.store:
		f.refuse(invalidValue("background", "background can only be used when `store` is true"))
	case background:
		// With a store vLLM does this; here nothing outlives its request.
		f.refuse(&apiError{400, "invalid_request_error", "This vLLM engine does not support `store=True` and therefore does not support " +
			"the background mode. To enable these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` " +
			"when launching the vLLM server.", "background"})
	}
	s := f.only(responsesSampling)
	q.sampling = decodeSampling(s)
	f.refuseIf(s.err)
	q.maxTokens, _ = f.int("max_output_tokens", 0)
	if f.has("max_output_tokens") && q.maxTokens < 1 {
		f.refuse(badRequest("max_tokens", "max_tokens must be at least 1, got %d.", q.maxTokens))
	}
	q.decodeInclude(f)
	q.model, _ = f.string("model")
	q.ownID, _ = f.string("request_id")
	q.previous, _ = f.string("previous_response_id")
	q.instructions, _ = f.string("instructions")
	q.stream = f.bool("stream", false)
	q.raw = f.bool("enable_response_messages", false)
	q.includeReason = f.bool("include_reasoning", true)
	q.parallelTools = f.bool("parallel_tool_calls", true)
	q.salt = decodeSalt(f, rel)
	q.kv = decodeParams(f)
	refusePriority(f)
	q.decodeEcho(f)
	q.decodeResponseTools(f)
	q.decodeReasoning(f)
	q.decodeInput(f)
	return q, f.err
}

// decodeInclude reads whether the reply's text has log probabilities.
func (q *responsesRequest) decodeInclude(f *fields) {
	top, _ := f.int("top_logprobs", 0)
	var include []string
	if v := f.raw("include"); v != nil && json.Unmarshal(v, &include) != nil {
		f.fail("include", "list_type", "Input should be a valid list")
	}
	if slices.Contains(include, "message.output_text.logprobs") {
		q.logprobs = max(top, 0)
	}
}

func (q *responsesRequest) decodeEcho(f *fields) {
	e := &q.echo
	text := func(name, def string) json.RawMessage {
		s, given := f.string(name)
		switch {
		case given:
			return appendString(nil, s)
		case def == "":
			return nil
		}
		return appendString(nil, def)
	}
	object := func(name string) json.RawMessage {
		if f.object(name) == nil {
			return nil
		}
		return compactJSON(f.raw(name))
	}
	e.instructions, e.previous, e.user = text("instructions", ""), text("previous_response_id", ""), text("user", "")
	e.serviceTier, e.truncation = text("service_tier", "auto"), text("truncation", "disabled")
	e.cacheKey, e.cacheRetention, e.safetyID = text("prompt_cache_key", ""), text("prompt_cache_retention", ""), text("safety_identifier", "")
	e.metadata, e.cacheOptions = object("metadata"), object("prompt_cache_options")
	if config := f.object("text"); config != nil {
		t := &fields{m: config}
		b := append([]byte(nil), `{"format":`...)
		b = appendCompact(b, t.raw("format"))
		b = append(b, `,"verbosity":`...)
		e.text = append(appendRaw(b, t.raw("verbosity")), '}')
	}
	if n, given := f.int("max_tool_calls", 0); given {
		e.maxToolCalls = appendInt(nil, n)
	}
	e.presence, _ = f.float("presence_penalty", 0)
	e.frequency, _ = f.float("frequency_penalty", 0)
}

// decodeReasoning reads what the template sees besides messages and tools.
func (q *responsesRequest) decodeReasoning(f *fields) {
	m := map[string]json.RawMessage{"chat_template_kwargs": f.raw("chat_template_kwargs")}
	if reasoning := f.object("reasoning"); reasoning != nil {
		r := &fields{m: reasoning}
		m["reasoning_effort"] = r.raw("effort")
		b := append([]byte(nil), `{"effort":`...)
		b = appendRaw(b, r.raw("effort"))
		b = append(b, `,"generate_summary":`...)
		b = appendRaw(b, r.raw("generate_summary"))
		b = append(b, `,"summary":`...)
		q.echo.reasoning = append(appendRaw(b, r.raw("summary")), '}')
	}
	k := &fields{m: m}
	q.decodeKwargs(k)
	f.refuseIf(k.err)
}

// functionTool is a tool as the responses endpoint has it: flat.
type functionTool struct {
	Type         string          `json:"type"`
	Name         string          `json:"name"`
	Description  json.RawMessage `json:"description"`
	Parameters   json.RawMessage `json:"parameters"`
	Strict       json.RawMessage `json:"strict"`
	DeferLoading json.RawMessage `json:"defer_loading"`
}

// decodeResponseTools reads tools and tool_choice. Only functions reach the template.
func (q *responsesRequest) decodeResponseTools(f *fields) {
	forChat, echoed := []byte{'['}, []byte{'['}
	var names []string
	for _, raw := range f.list("tools") {
		var tool functionTool
		if json.Unmarshal(raw, &tool) != nil || tool.Type == "" || tool.Type == "function" && tool.Name == "" {
			f.fail("tools", "missing", "Field required")
			return
		}
		if len(echoed) > 1 {
			echoed = append(echoed, ',')
		}
		if tool.Type != "function" {
			echoed = append(echoed, compactJSON(raw)...)
			continue
		}
		if len(forChat) > 1 {
			forChat = append(forChat, ',')
		}
		names = append(names, tool.Name)
		forChat = appendFunction(forChat, &tool)
		echoed = appendFunctionTool(echoed, &tool)
	}
	if len(forChat) > 1 {
		q.tools = append(forChat, ']')
	}
	q.echo.tools = append(echoed, ']')
	q.decodeResponseChoice(f, names, len(echoed) > 2)
}

// appendFunction appends a tool in a chat's form.
func appendFunction(b []byte, t *functionTool) []byte {
	b = append(b, `{"type":"function","function":{"name":`...)
	b = appendString(b, t.Name)
	b = append(b, `,"description":`...)
	b = appendRaw(b, t.Description)
	b = append(b, `,"parameters":`...)
	b = appendRaw(b, t.Parameters)
	if !isNull(t.Strict) {
		b = append(b, `,"strict":`...)
		b = append(b, t.Strict...)
	}
	return append(b, `}}`...)
}

// appendFunctionTool appends a tool as the response repeats it.
func appendFunctionTool(b []byte, t *functionTool) []byte {
	b = append(b, `{"name":`...)
	b = appendString(b, t.Name)
	for _, m := range []struct {
		name  string
		value json.RawMessage
	}{
		{"parameters", t.Parameters},
		{"strict", t.Strict},
		{"type", json.RawMessage(`"function"`)},
		{"defer_loading", t.DeferLoading},
		{"description", t.Description},
	} {
		b = append(b, `,"`+m.name+`":`...)
		b = appendCompact(b, m.value)
	}
	return append(b, '}')
}

func (q *responsesRequest) decodeResponseChoice(f *fields, names []string, tools bool) {
	choice := f.raw("tool_choice")
	var named struct {
		Type string `json:"type"`
		Name string `json:"name"`
	}
	isNamed := choice != nil && json.Unmarshal(choice, &named) == nil && named.Type == "function"
	switch text := string(choice); {
	case isNamed && !slices.Contains(names, named.Name):
		f.refuse(invalidValue("tool_choice", "Tool choice 'function' not found in 'tools' parameter."))
	case isNamed:
		q.toolChoice = "named"
	case text == `"required"` && !tools:
		f.refuse(invalidValue("tool_choice", "Tool choice 'required' must be specified with 'tools' parameter."))
	case text == `"required"`:
		q.toolChoice = "required"
	case text == `"none"` || !tools:
		q.toolChoice = "none"
	case choice == nil || text == `"auto"` || text[0] == '{':
		q.toolChoice = "auto"
	default:
		f.fail("tool_choice", "literal_error", "Input should be 'none', 'auto' or 'required'")
	}
	q.echo.toolChoice = appendString(nil, q.toolChoice)
	if choice != nil && choice[0] == '{' {
		q.echo.toolChoice = compactJSON(choice)
	}
}
