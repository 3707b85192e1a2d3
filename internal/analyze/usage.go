package analyze

import (
	"bytes"
	"errors"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

// usage is the sizes that a reply's usage object gives, in tokens, -1 for what it does not say.
//
// APIs count the cached part of a prompt in two ways under similar names (K04):
//
//	prompt_tokens + prompt_tokens_details.cached_tokens       included   OpenAI chat and completions, vLLM, LiteLLM
//	input_tokens  + input_tokens_details.cached_tokens        included   OpenAI responses
//	input_tokens  + cached_input_tokens                       included   Codex transcripts
//	promptTokenCount + cachedContentTokenCount                included   Gemini
//	gen_ai.usage.input_tokens + …cache_read.input_tokens      included   OpenTelemetry
//	input_tokens + cache_read_input_tokens + cache_creation_… on top     Anthropic, vLLM's /v1/messages, Bedrock
//	usageDetails: input, input_cached_tokens, …               on top     Langfuse
//
// prompt is always the whole prompt. A shape that fits neither is refused, not guessed.
type usage struct{ prompt, cached, output int64 }

var (
	errUsageShape = errors.New("usage counts cached tokens in two ways at once")
	errUsageRange = errors.New("a token count is negative, not whole or absurdly large")
	errUsageSum   = errors.New("more cached tokens than prompt tokens")
)

func noUsage() usage { return usage{unknown, unknown, unknown} }

// usageOf reads the counts among the members of one object.
func usageOf(f *fields) (usage, error) {
	u := noUsage()
	var in, inclusive, read, write int64 = unknown, unknown, unknown, unknown
	for _, m := range [...]struct {
		s  slot
		to *int64
	}{
		{slotPrompt, &u.prompt},
		{slotInput, &in},
		{slotOutput, &u.output},
		{slotCachedIn, &inclusive},
		{slotCacheRead, &read},
		{slotCacheWrite, &write},
	} {
		raw := f.v[m.s]
		if raw == nil {
			continue
		}
		if k := bodyedit.KindOf(raw); k == bodyedit.Object || k == bodyedit.Array {
			continue
		}
		n, ok := count(raw)
		if !ok {
			return noUsage(), errUsageRange
		}
		*m.to = n
	}
	if d := f.v[slotDetails]; d != nil {
		for m := range bodyedit.Members(d) {
			if lookupSlot(m.RawName) == slotCachedIn && !bodyedit.IsNull(m.Raw) {
				n, ok := count(m.Raw)
				if !ok {
					return noUsage(), errUsageRange
				}
				inclusive = n
			}
		}
	}
	switch {
	case u.prompt >= 0:
		// LiteLLM repeats the cached part under Anthropic's name, still included in prompt_tokens.
		u.cached = max(inclusive, read)
	case in >= 0 && (read > 0 || write > 0):
		if inclusive > 0 {
			return noUsage(), errUsageShape
		}
		u.prompt, u.cached = in+max(read, 0)+max(write, 0), max(read, 0)
	case in >= 0:
		u.prompt, u.cached = in, max(inclusive, read)
	}
	if u.prompt >= 0 && u.cached > u.prompt {
		return noUsage(), errUsageSum
	}
	return u, nil
}

// langfuseUsage reads usageDetails, whose input does not contain the cached and other parts beside it.
func langfuseUsage(raw []byte) (usage, error) {
	u := noUsage()
	add := func(to *int64, n int64) { *to = max(*to, 0) + n }
	for m := range bodyedit.Members(raw) {
		name := m.RawName
		in := bytes.HasPrefix(name, []byte("input")) || bytes.HasPrefix(name, []byte("prompt")) || bytes.Contains(name, []byte("cache_"))
		out := bytes.HasPrefix(name, []byte("output")) || bytes.HasPrefix(name, []byte("completion"))
		if !in && !out || bodyedit.IsNull(m.Raw) {
			continue
		}
		n, ok := count(m.Raw)
		if !ok {
			return noUsage(), errUsageRange
		}
		if out {
			add(&u.output, n)
			continue
		}
		add(&u.prompt, n)
		if bytes.Contains(name, []byte("cache")) && !bytes.Contains(name, []byte("creation")) && !bytes.Contains(name, []byte("write")) {
			add(&u.cached, n)
		}
	}
	return u, nil
}
