package api

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"unicode/utf8"
)

// Limits on what one request may ask for.
const (
	maxSequences    = 1024 // choices of one request: prompts × n
	maxLogprobs     = 20   // alternatives per position
	maxSaltRunes    = 128
	saltForbidden   = "@/\\\x00"
	maxStops        = 1024
	defaultMaxToken = 16 // of /v1/completions; a chat goes on to the end of the context
)

// sampling is what all endpoints share.
type sampling struct {
	maxTokens      int // 0: not given
	minTokens      int
	n              int
	temperature    float64
	topP           float64
	topK           int
	seed           *int64
	stop           []string
	stopTokenIDs   []int32
	ignoreEOS      bool
	includeStop    bool // the stop string stays in the text
	keepSpecial    bool // special tokens stay in the text
	logprobs       int  // -1: none
	promptLogprobs int  // -1: none
}

// common is what chats and completions share besides sampling; the others are made into chats.
type common struct {
	sampling
	model           string // "" is the served model
	requestID       string // the body's request_id
	stream          bool
	includeUsage    bool
	continuousUsage bool
	returnTokenIDs  bool
	tokensAsIDs     bool // log probabilities name tokens "token_id:5"
	echo            bool
	salt            string
	kv              json.RawMessage // kv_transfer_params as sent; nil: none
	streamOptions   json.RawMessage // as sent; render endpoints hand it back
	extraArgs       bool            // rendered sampling parameters have extra_args even if empty
}

// returned is ids if the request wants to see token ids, else nil.
func (c *common) returned(ids []int32) []int32 {
	switch {
	case !c.returnTokenIDs:
		return nil
	case ids == nil:
		return []int32{}
	}
	return ids
}

type chatRequest struct {
	common
	messages        []json.RawMessage
	tools           json.RawMessage // nil: none
	toolChoice      string          // "none", "auto", "required" or "named"
	addPrompt       bool            // the template's generation prompt
	continueFinal   bool
	addSpecial      bool
	kwargs          map[string]any // for the template; values are json.RawMessage
	thinking        bool           // enable_thinking
	ownTemplate     bool           // the request brings a chat template
	includeReason   bool
	parallelTools   bool
	lastContent     string // text and role of the last message, for echo
	lastRole        string
	exact           []int32 // kv_transfer_params.prompt_token_ids, already taken out of kv
	nonText         bool    // some message has content that is not text
	returnPromptStr bool
}

type completionRequest struct {
	common
	prompts []prompt
	special bool // add_special_tokens
}

// prompt is one prompt of a completion: text or ids.
type prompt struct {
	text string
	ids  []int32 // nil: text
}

// decodeCommon reads the members both endpoints share.
func decodeCommon(f *fields, rel release) common {
	var c common
	c.model, _ = f.string("model")
	c.requestID, _ = f.string("request_id")
	c.stream = f.bool("stream", false)
	if f.truthy("stream_options") && !f.truthy("stream") {
		f.refuse(invalidValue("stream_options", "Stream options can only be defined when `stream=True`."))
	}
	if opts := f.object("stream_options"); opts != nil {
		o := &fields{m: opts}
		// vLLM's default differs from OpenAI's: giving stream_options at all asks for usage.
		c.includeUsage = o.bool("include_usage", true)
		c.continuousUsage = c.includeUsage && o.bool("continuous_usage_stats", false)
		f.refuseIf(o.err)
	}
	c.streamOptions = f.raw("stream_options")
	refusePriority(f)
	c.returnTokenIDs = f.bool("return_token_ids", false)
	c.tokensAsIDs = f.bool("return_tokens_as_token_ids", false)
	c.echo = f.bool("echo", false)
	c.salt = decodeSalt(f, rel)
	c.kv = decodeParams(f)
	f.object("response_format") // accepted, shapes nothing here
	c.sampling = decodeSampling(f)
	return c
}

// decodeParams returns kv_transfer_params as sent, nil if there are none.
func decodeParams(f *fields) json.RawMessage {
	if f.object("kv_transfer_params") == nil {
		return nil
	}
	return f.raw("kv_transfer_params")
}

func refusePriority(f *fields) {
	if n, ok := f.int("priority", 0); ok && n != 0 {
		f.refuse(badRequest("", "Got priority %d but Priority scheduling is not enabled.", n))
	}
}

func (f *fields) refuseIf(e *apiError) {
	if e != nil {
		f.refuse(e)
	}
}

func decodeSalt(f *fields, rel release) string {
	v := f.raw("cache_salt")
	if v == nil {
		return ""
	}
	var salt string
	if json.Unmarshal(v, &salt) != nil || salt == "" {
		f.refuse(invalidValue("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided."))
		return ""
	}
	if rel.saltRules && (utf8.RuneCountInString(salt) > maxSaltRunes || bytes.ContainsAny([]byte(salt), saltForbidden)) {
		f.refuse(invalidValue("cache_salt",
			`Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\', or NUL.`))
	}
	return salt
}

func decodeSampling(f *fields) sampling {
	s := sampling{logprobs: -1, promptLogprobs: -1}
	s.n, _ = f.int("n", 1)
	s.minTokens, _ = f.int("min_tokens", 0)
	s.temperature, _ = f.float("temperature", 1)
	s.topP, _ = f.float("top_p", 1)
	s.topK, _ = f.int("top_k", 0)
	if seed, ok := f.int("seed", 0); ok {
		v := int64(seed)
		s.seed = &v
	}
	s.stop = f.strings("stop")
	s.stopTokenIDs = f.ids("stop_token_ids")
	s.ignoreEOS = f.bool("ignore_eos", false)
	s.includeStop = f.bool("include_stop_str_in_output", false)
	s.keepSpecial = !f.bool("skip_special_tokens", true)
	if n, ok := f.int("prompt_logprobs", -1); ok {
		switch {
		case n < 0 && n != -1:
			f.refuse(invalidValue("prompt_logprobs", "`prompt_logprobs` must be a positive value or -1."))
		case n != 0 && f.truthy("stream"):
			f.refuse(invalidValue("prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`."))
		case n == -1:
			n = maxLogprobs
		}
		s.promptLogprobs = n
	}
	return s
}

// check applies the rules about values, once max_tokens is known. They are refused after the schema, so
// with another error type.
func (s *sampling) check() *apiError {
	switch {
	case s.n < 1:
		return badRequest("", "n must be at least 1, got %d.", s.n)
	case s.n > maxSequences:
		return badRequest("", "n must be at most %d, got %d.", maxSequences, s.n)
	case s.temperature < 0:
		return badRequest("temperature", "temperature must be non-negative, got %s.", pyFloat(s.temperature))
	case s.topP <= 0 || s.topP > 1:
		return badRequest("top_p", "top_p must be in (0, 1], got %s.", pyFloat(s.topP))
	case s.topK < -1:
		return badRequest("top_k", "top_k must be 0 (disable), or at least 1, got %d.", s.topK)
	case s.maxTokens < 1:
		return badRequest("max_tokens", "max_tokens must be at least 1, got %d.", s.maxTokens)
	case s.minTokens < 0:
		return badRequest("min_tokens", "min_tokens must be greater than or equal to 0, got %d.", s.minTokens)
	case s.minTokens > s.maxTokens:
		return badRequest("min_tokens", "min_tokens must be less than or equal to max_tokens=%d, got %d.", s.maxTokens, s.minTokens)
	case s.logprobs > maxLogprobs:
		return badRequest("logprobs", "Requested sample logprobs of %d, which is greater than max allowed: %d", s.logprobs, maxLogprobs)
	case s.promptLogprobs > maxLogprobs:
		return badRequest("prompt_logprobs", "Requested prompt logprobs of %d, which is greater than max allowed: %d", s.promptLogprobs, maxLogprobs)
	case len(s.stop) > maxStops:
		return badRequest("stop", "stop has %d strings, which is more than %d", len(s.stop), maxStops)
	case slices.Contains(s.stop, ""):
		return badRequest("stop", "stop cannot contain an empty string.")
	case s.temperature == 0 && s.n > 1:
		return badRequest("n", "n must be 1 when using greedy sampling, got %d.", s.n)
	}
	return nil
}

func pyFloat(f float64) string { return string(appendFloat(nil, f)) }

func decodeChat(body []byte, rel release) (*chatRequest, *apiError) {
	f, err := parseFields(body)
	if err != nil {
		return nil, err
	}
	return decodeChatFields(f, rel)
}

func decodeChatFields(f *fields, rel release) (*chatRequest, *apiError) {
	q := &chatRequest{common: decodeCommon(f, rel)}
	if !f.has("messages") {
		f.fail("messages", "missing", "Field required")
	}
	q.messages = f.list("messages")
	q.decodeTools(f)
	q.addPrompt = f.bool("add_generation_prompt", true)
	q.continueFinal = f.bool("continue_final_message", false)
	if f.truthy("continue_final_message") && f.truthy("add_generation_prompt") {
		f.refuse(invalidValue("", "Cannot set both `continue_final_message` and `add_generation_prompt` to True."))
	}
	q.addPrompt = q.addPrompt && !q.continueFinal
	q.addSpecial = f.bool("add_special_tokens", false)
	q.includeReason = f.bool("include_reasoning", true)
	q.parallelTools = f.bool("parallel_tool_calls", true)
	q.returnPromptStr = f.bool("return_prompt_text", false)
	q.ownTemplate = f.has("chat_template")
	q.decodeKwargs(f)
	// max_completion_tokens is the newer name and wins.
	q.maxTokens, _ = f.int("max_tokens", 0)
	given := f.has("max_tokens") || f.has("max_completion_tokens")
	if n, ok := f.int("max_completion_tokens", 0); ok {
		q.maxTokens = n
	}
	if given && q.maxTokens < 1 && f.err == nil {
		f.refuse(badRequest("max_tokens", "max_tokens must be at least 1, got %d.", q.maxTokens))
	}
	if f.bool("logprobs", false) {
		q.logprobs, _ = f.int("top_logprobs", 0)
		if q.logprobs == -1 {
			q.logprobs = maxLogprobs
		}
	} else if n, ok := f.int("top_logprobs", 0); ok && (n > 0 || n == -1) {
		f.refuse(invalidValue("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true."))
	}
	if q.echo && q.promptLogprobs < 0 {
		q.promptLogprobs = max(q.logprobs, 0) // so in vLLM, and the whole prompt is computed for it
	}
	if n, ok := f.int("top_logprobs", 0); ok && n < -1 {
		f.refuse(invalidValue("top_logprobs", "`top_logprobs` must be a positive value or -1."))
	}
	if f.err != nil {
		return nil, f.err
	}
	q.describeMessages()
	if rel.exactPrompt {
		if err := q.takeExactPrompt(); err != nil {
			return nil, err
		}
	}
	return q, nil
}

// decodeKwargs collects what the template sees besides messages and tools.
func (q *chatRequest) decodeKwargs(f *fields) {
	kw := f.object("chat_template_kwargs")
	q.kwargs = make(map[string]any, len(kw)+3)
	for _, name := range []string{"documents", "reasoning_effort"} {
		if v := f.raw(name); v != nil {
			q.kwargs[name] = v
		}
	}
	if effort, ok := f.string("reasoning_effort"); ok {
		q.kwargs["enable_thinking"] = json.RawMessage(strconv.AppendBool(nil, effort != "none"))
	}
	for k, v := range kw {
		q.kwargs[k] = v
	}
	v, _ := q.kwargs["enable_thinking"].(json.RawMessage)
	q.thinking = string(v) == "true"
}

func (q *chatRequest) decodeTools(f *fields) {
	tools := f.list("tools")
	if f.has("tools") && len(tools) == 0 {
		f.refuse(invalidValue("tools", "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."))
	}
	q.toolChoice = "none"
	if len(tools) > 0 {
		q.tools = f.raw("tools")
		q.toolChoice = "auto"
	}
	choice := f.raw("tool_choice")
	if choice == nil {
		return
	}
	switch string(choice) {
	case `"none"`:
		q.toolChoice = "none"
		return
	case `"auto"`:
		q.toolChoice = "auto"
	case `"required"`:
		q.toolChoice = "required"
	default:
		q.toolChoice = "named"
		if choice[0] != '{' {
			f.refuse(invalidValue("tool_choice",
				"Invalid value for `tool_choice`: %s! Only named tools, \"none\", \"auto\" or \"required\" are supported.", choice))
			return
		}
	}
	if len(tools) == 0 {
		f.refuse(invalidValue("tool_choice", "When using `tool_choice`, `tools` must be set."))
		return
	}
	if q.toolChoice == "named" && !namesTool(choice, tools) {
		f.refuse(invalidValue("tool_choice", "The tool specified in `tool_choice` does not match any of the specified `tools`"))
	}
}

func namesTool(choice json.RawMessage, tools []json.RawMessage) bool {
	type named struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	var want named
	if json.Unmarshal(choice, &want) != nil || want.Function.Name == "" {
		return false
	}
	return slices.ContainsFunc(tools, func(t json.RawMessage) bool {
		var have named
		return json.Unmarshal(t, &have) == nil && have.Function.Name == want.Function.Name
	})
}

// describeMessages notes what echo and exact prompts need to know of the messages.
func (q *chatRequest) describeMessages() {
	for i, m := range q.messages {
		var msg struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		}
		if json.Unmarshal(m, &msg) != nil {
			continue
		}
		text, isText := contentText(msg.Content)
		if !isText {
			q.nonText = true
		}
		if i == len(q.messages)-1 {
			q.lastRole, q.lastContent = msg.Role, text
		}
	}
}

// contentText returns the text of a message's content, parts joined by newlines, and whether it is
// nothing but text.
func contentText(content json.RawMessage) (string, bool) {
	if isNull(content) {
		return "", true
	}
	var s string
	if json.Unmarshal(content, &s) == nil {
		return s, true
	}
	var parts []json.RawMessage
	if json.Unmarshal(content, &parts) != nil {
		return "", false
	}
	var b []byte
	for i, p := range parts {
		var part struct {
			Type string  `json:"type"`
			Text *string `json:"text"`
		}
		if json.Unmarshal(p, &s) == nil {
			part.Text = &s
		} else if json.Unmarshal(p, &part) != nil || part.Text == nil {
			return "", false
		}
		if i > 0 {
			b = append(b, '\n')
		}
		b = append(b, *part.Text...)
	}
	return string(b), true
}

// takeExactPrompt takes kv_transfer_params.prompt_token_ids out of the params. The ids are not used if
// the request echoes or if a message has content that is not text, as in vLLM, but they are taken out
// all the same.
func (q *chatRequest) takeExactPrompt() *apiError {
	const name = "prompt_token_ids"
	if q.kv == nil || !bytes.Contains(q.kv, []byte(name)) {
		return nil
	}
	rest, v, found := withoutMember(q.kv, name)
	if !found {
		return nil
	}
	q.kv = rest
	if isNull(v) || q.echo || q.nonText {
		return nil
	}
	ids, ok := parseIDs(v)
	if !ok || len(ids) == 0 || slices.Min(ids) < 0 {
		return badRequest("kv_transfer_params."+name,
			"kv_transfer_params.prompt_token_ids must be a non-empty list of non-negative integers.")
	}
	q.exact = ids
	return nil
}

// withoutMember removes a member of a JSON object; all others stay as they are and in order. The rest is
// nil if nothing else was in it.
func withoutMember(object json.RawMessage, name string) (rest, value json.RawMessage, found bool) {
	dec := json.NewDecoder(bytes.NewReader(object))
	if _, err := dec.Token(); err != nil {
		return object, nil, false
	}
	out := []byte{'{'}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return object, nil, false
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return object, nil, false
		}
		k, _ := key.(string)
		if k == name {
			value, found = v, true
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(appendString(out, k), ':')
		out = append(out, v...)
	}
	if len(out) == 1 {
		return nil, value, found
	}
	return append(out, '}'), value, found
}

func decodeCompletion(body []byte, rel release) (*completionRequest, *apiError) {
	f, err := parseFields(body)
	if err != nil {
		return nil, err
	}
	q := &completionRequest{common: decodeCommon(f, rel)}
	q.special = f.bool("add_special_tokens", true)
	q.maxTokens, _ = f.int("max_tokens", defaultMaxToken)
	if q.maxTokens == 0 && q.echo {
		q.maxTokens = -1 // only the prompt is wanted
	} else if q.maxTokens < 1 {
		f.refuse(badRequest("max_tokens", "max_tokens must be at least 1, got %d.", q.maxTokens))
	}
	if n, ok := f.int("logprobs", -1); ok {
		switch {
		case n < -1:
			f.refuse(invalidValue("logprobs", "`logprobs` must be a positive value or -1."))
		case n == -1:
			n = maxLogprobs
		}
		q.logprobs = n
	}
	if q.promptLogprobs < 0 && q.echo {
		q.promptLogprobs = q.logprobs
	}
	q.decodePrompt(f)
	if f.err != nil {
		return nil, f.err
	}
	if len(q.prompts)*max(q.n, 1) > maxSequences {
		return nil, badRequest("prompt", "prompt list length %d exceeds the maximum allowed count of %d.", len(q.prompts), maxSequences)
	}
	return q, nil
}

// decodePrompt reads a text, a list of ids, a list of texts or a list of lists of ids.
func (q *completionRequest) decodePrompt(f *fields) {
	v := f.raw("prompt")
	if v == nil || string(v) == `""` {
		f.refuse(invalidValue("prompt", "Either prompt or prompt_embeds must be provided and non-empty."))
		return
	}
	var text string
	if json.Unmarshal(v, &text) == nil {
		q.prompts = []prompt{{text: text}}
		return
	}
	if ids, ok := parseIDs(v); ok && len(ids) > 0 {
		q.prompts = []prompt{{ids: ids}}
		return
	}
	var list []json.RawMessage
	if json.Unmarshal(v, &list) != nil {
		f.fail("prompt", "list_type", "Input should be a valid list")
		return
	}
	if len(list) == 0 {
		f.refuse(badRequest("prompt", "please provide at least one prompt"))
		return
	}
	for _, item := range list {
		if json.Unmarshal(item, &text) == nil && item[0] == '"' {
			q.prompts = append(q.prompts, prompt{text: text})
		} else if ids, ok := parseIDs(item); ok && ids != nil {
			q.prompts = append(q.prompts, prompt{ids: ids})
		} else {
			f.fail("prompt", "list_type", "Input should be a valid list")
			return
		}
	}
}
