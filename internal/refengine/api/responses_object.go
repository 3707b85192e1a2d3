package api

import (
	"encoding/json"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// appendResponse appends the response object, members in vLLM's order, nulls included. While it is in
// progress it has neither output nor usage nor params.
func (c *responseReply) appendResponse(b []byte, status string) []byte {
	q, e := c.r, &c.r.echo
	over := status != "in_progress"
	member := func(name string, value json.RawMessage) {
		b = append(b, `,"`+name+`":`...)
		b = appendRaw(b, value)
	}
	b = append(b, `{"id":`...)
	b = appendString(b, c.id)
	b = append(b, `,"created_at":`...)
	b = appendInt(b, int(c.created))
	b = append(b, `,"incomplete_details":`...)
	if status == "incomplete" {
		b = append(b, `{"reason":"max_output_tokens"}`...)
	} else {
		b = append(b, "null"...)
	}
	member("instructions", e.instructions)
	member("metadata", e.metadata)
	b = append(b, `,"model":`...)
	b = appendString(b, c.s.opts.ModelName)
	b = append(b, `,"object":"response","output":[`...)
	if over {
		b = append(b, c.output...)
	}
	b = append(b, `],"parallel_tool_calls":`...)
	b = appendBool(b, q.parallelTools)
	b = append(b, `,"temperature":`...)
	b = appendFloat(b, q.temperature)
	member("tool_choice", e.toolChoice)
	member("tools", e.tools)
	b = append(b, `,"top_p":`...)
	b = appendFloat(b, q.topP)
	b = append(b, `,"background":false,"max_output_tokens":`...)
	b = appendInt(b, q.maxTokens)
	member("max_tool_calls", e.maxToolCalls)
	member("previous_response_id", e.previous)
	member("prompt", nil)
	if c.s.rel.echoesMore {
		member("prompt_cache_options", e.cacheOptions)
		member("prompt_cache_key", e.cacheKey)
		member("prompt_cache_retention", e.cacheRetention)
	}
	member("reasoning", e.reasoning)
	if c.s.rel.echoesMore {
		member("safety_identifier", e.safetyID)
	}
	member("service_tier", e.serviceTier)
	b = append(b, `,"status":"`+status+`"`...)
	member("text", e.text)
	b = append(b, `,"top_logprobs":`...)
	if q.logprobs >= 0 {
		b = appendInt(b, q.logprobs)
	} else {
		b = append(b, "null"...)
	}
	member("truncation", e.truncation)
	b = append(b, `,"usage":`...)
	if over {
		b = c.appendResponseUsage(b)
	} else {
		b = append(b, "null"...)
	}
	member("user", e.user)
	b = append(b, `,"presence_penalty":`...)
	b = appendFloat(b, e.presence)
	b = append(b, `,"frequency_penalty":`...)
	b = append(appendFloat(b, e.frequency), ',')
	if over || c.out.f.Handle == HandleFirst {
		b = appendParams(b, c.params)
	} else {
		b = appendParams(b, nil)
	}
	if c.s.rel.ecParams {
		member("ec_transfer_params", nil)
	}
	b = append(b, `,"input_messages":`...)
	b = appendRawMessage(b, over && q.raw, c.promptText, c.prompt)
	b = append(b, `,"output_messages":`...)
	b = appendRawMessage(b, over && q.raw, c.text.String(), c.tokens)
	return append(b, '}')
}

// appendRawMessage appends what enable_response_messages asks for: a text and its token ids.
func appendRawMessage(b []byte, asked bool, text string, tokens []int32) []byte {
	if !asked || len(tokens) == 0 {
		return append(b, "null"...)
	}
	b = append(b, `[{"message":`...)
	b = appendString(b, text)
	b = append(b, `,"tokens":`...)
	return append(appendIDs(b, tokens), `,"type":"raw_message_tokens"}]`...)
}

// appendResponseUsage appends the usage: cached tokens are always there. Figures per turn are of built-in
// tools only.
func (c *responseReply) appendResponseUsage(b []byte) []byte {
	u := &c.usage
	b = append(b, `{"input_tokens":`...)
	b = appendInt(b, u.prompt)
	b = append(b, `,"input_tokens_details":{"cached_tokens":`...)
	b = appendInt(b, u.cached)
	if c.s.rel.cacheWrite {
		b = append(b, `,"cache_write_tokens":`...)
		b = appendInt(b, u.created)
	}
	b = append(b, `,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},"output_tokens":`...)
	b = appendInt(b, u.completion)
	b = append(b, `,"output_tokens_details":{"reasoning_tokens":`...)
	b = appendInt(b, c.reasoning.tokens)
	b = append(b, `,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]},"total_tokens":`...)
	return append(appendInt(b, u.prompt+u.completion), '}')
}

// appendMessageItem appends a message item; part is its only part, nil for none.
func appendMessageItem(b []byte, id string, part []byte, status string) []byte {
	b = append(b, `{"id":`...)
	b = appendString(b, id)
	b = append(b, `,"content":[`...)
	b = append(b, part...)
	b = append(b, `],"role":"assistant","status":"`...)
	b = append(b, status...)
	return append(b, `","type":"message","phase":null}`...)
}

// appendTextPart appends a part of a message. logprobs is JSON.
func appendTextPart(b []byte, text string, logprobs []byte) []byte {
	b = append(b, `{"annotations":[],"text":`...)
	b = appendString(b, text)
	b = append(b, `,"type":"output_text","logprobs":`...)
	return append(append(b, logprobs...), '}')
}

// appendReasoningItem appends a reasoning item, without content until it is done. "" is a null status.
func appendReasoningItem(b []byte, id, text string, done bool, status string) []byte {
	b = append(b, `{"id":`...)
	b = appendString(b, id)
	b = append(b, `,"summary":[],"type":"reasoning","content":`...)
	if done {
		b = append(b, '[')
		b = append(appendReasoningPart(b, text), ']')
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"encrypted_content":null,"status":`...)
	return append(appendStringOrNull(b, status), '}')
}

func appendReasoningPart(b []byte, text string) []byte {
	b = append(b, `{"text":`...)
	return append(appendString(b, text), `,"type":"reasoning_text"}`...)
}

func appendCallItem(b []byte, id, callID, name, arguments, status string) []byte {
	b = append(b, `{"arguments":`...)
	b = appendString(b, arguments)
	b = append(b, `,"call_id":`...)
	b = appendString(b, callID)
	b = append(b, `,"name":`...)
	b = appendString(b, name)
	b = append(b, `,"type":"function_call","id":`...)
	b = appendString(b, id)
	b = append(b, `,"namespace":null,"status":"`...)
	return append(append(b, status...), `"}`...)
}

// appendItemLogprobs appends the log probabilities of a whole reply, null if not asked for.
func (c *responseReply) appendItemLogprobs(b []byte) []byte {
	if c.q.logprobs < 0 {
		return append(b, "null"...)
	}
	return c.appendLogprobs(b, c.tokens, c.probs, true)
}

// appendLogprobs appends one entry per token; in a stream they have no bytes.
func (c *responseReply) appendLogprobs(b []byte, tokens []int32, probs [][]engine.TokenLogprob, withBytes bool) []byte {
	entry := func(p engine.TokenLogprob) {
		text := c.s.tokenText(p.ID, false)
		b = append(b, `{"token":`...)
		b = appendString(b, text)
		if withBytes {
			b = append(b, `,"bytes":[`...)
			for i := range len(text) {
				if i > 0 {
					b = append(b, ',')
				}
				b = appendInt(b, int(text[i]))
			}
			b = append(b, ']')
		}
		b = append(b, `,"logprob":`...)
		b = appendFloat(b, clampLogprob(p.Logprob))
	}
	b = append(b, '[')
	for i, id := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		own := engine.TokenLogprob{ID: id, Logprob: noLogprob}
		var top []engine.TokenLogprob
		if i < len(probs) && len(probs[i]) > 0 {
			own, top = probs[i][0], alternatives(probs[i], c.q.logprobs)
		}
		entry(own)
		b = append(b, `,"top_logprobs":[`...)
		for j, p := range top {
			if j > 0 {
				b = append(b, ',')
			}
			entry(p)
			b = append(b, '}')
		}
		b = append(b, `]}`...)
	}
	return append(b, ']')
}
