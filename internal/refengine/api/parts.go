package api

import (
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// noLogprob stands for minus infinity, which JSON cannot say.
const noLogprob = -9999.0

// usage is the tokens of one request.
type usage struct {
	prompt, completion int
	cached             int // of the last prompt, as the engine reports them
	created            int // tokens in full blocks that this engine computed for the last prompt
}

// appendUsage appends the usage of a whole reply: every member, nulls included. created_cache_tokens is
// null for completions.
func (s *Server) appendUsage(b []byte, u usage, chat bool) []byte {
	b = appendTokenCounts(b, u.prompt, u.completion)
	b = append(b, `,"prompt_tokens_details":`...)
	if s.opts.PromptTokensDetails {
		b = append(b, `{"cached_tokens":`...)
		b = appendInt(b, u.cached)
		if s.rel.createdCache {
			b = append(b, `,"created_cache_tokens":`...)
			if chat {
				b = appendInt(b, u.created)
			} else {
				b = append(b, "null"...)
			}
		}
		b = append(b, `,"multimodal_tokens":null}`...)
	} else {
		b = append(b, "null"...)
	}
	if s.rel.usageDetails {
		b = append(b, `,"completion_tokens_details":null`...)
	}
	return append(b, '}')
}

// appendFinalUsage appends the usage of a stream's last chunk, where nulls are left out.
func (s *Server) appendFinalUsage(b []byte, u usage, chat bool) []byte {
	b = appendTokenCounts(b, u.prompt, u.completion)
	if s.opts.PromptTokensDetails {
		b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
		b = appendInt(b, u.cached)
		if s.rel.createdCache && chat {
			b = append(b, `,"created_cache_tokens":`...)
			b = appendInt(b, u.created)
		}
		b = append(b, '}')
	}
	return append(b, '}')
}

// appendRunningUsage appends the usage that continuous_usage_stats puts on every chunk.
func (s *Server) appendRunningUsage(b []byte, prompt, completion int, chat bool) []byte {
	b = append(b, `,"usage":`...)
	b = appendTokenCounts(b, prompt, completion)
	if s.rel.usageDetails && chat {
		b = append(b, `,"completion_tokens_details":null`...)
	}
	return append(b, '}')
}

// appendTokenCounts opens a usage object.
func appendTokenCounts(b []byte, prompt, completion int) []byte {
	b = append(b, `{"prompt_tokens":`...)
	b = appendInt(b, prompt)
	b = append(b, `,"total_tokens":`...)
	b = appendInt(b, prompt+completion)
	b = append(b, `,"completion_tokens":`...)
	return appendInt(b, completion)
}

// createdTokens is how many tokens of full prompt blocks the engine had to compute: those it neither
// found nor read.
func (s *Server) createdTokens(promptTokens, hereTokens int) int {
	bs := s.blockSize
	if bs <= 0 {
		return 0
	}
	return max(0, promptTokens/bs-hereTokens/bs) * bs
}

// tokenText is how log probabilities spell a token.
func (s *Server) tokenText(id int32, asID bool) string {
	if asID {
		return "token_id:" + strconv.Itoa(int(id))
	}
	return s.text.Decode([]int32{id}, false)
}

// alternatives returns the entries of one position without repeating the sampled token, at most n.
func alternatives(entries []engine.TokenLogprob, n int) []engine.TokenLogprob {
	out := make([]engine.TokenLogprob, 0, len(entries))
	for i, e := range entries {
		if len(out) == n {
			break
		}
		if i > 0 && e.ID == entries[0].ID {
			continue
		}
		out = append(out, e)
	}
	return out
}

func clampLogprob(p float32) float64 { return max(float64(p), noLogprob) }

// appendChatLogprobs appends the logprobs of a chat choice for the given tokens.
func (s *Server) appendChatLogprobs(b []byte, q *common, tokens []int32, probs [][]engine.TokenLogprob) []byte {
	if q.logprobs < 0 {
		return append(b, "null"...)
	}
	b = append(b, `{"content":[`...)
	for i, id := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		entry := engine.TokenLogprob{ID: id, Logprob: noLogprob}
		var top []engine.TokenLogprob
		if i < len(probs) && len(probs[i]) > 0 {
			entry = probs[i][0]
			top = alternatives(probs[i], q.logprobs)
		}
		b = s.appendChatLogprob(b, entry, q.tokensAsIDs)
		b = append(b, `,"top_logprobs":[`...)
		for j, e := range top {
			if j > 0 {
				b = append(b, ',')
			}
			b = append(s.appendChatLogprob(b, e, q.tokensAsIDs), '}')
		}
		b = append(b, `]}`...)
	}
	return append(b, `]}`...)
}

// appendChatLogprob opens an object.
func (s *Server) appendChatLogprob(b []byte, e engine.TokenLogprob, asID bool) []byte {
	text := s.tokenText(e.ID, asID)
	b = append(b, `{"token":`...)
	b = appendString(b, text)
	b = append(b, `,"logprob":`...)
	b = appendFloat(b, clampLogprob(e.Logprob))
	b = append(b, `,"bytes":[`...)
	for i := range len(text) {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendInt(b, int(text[i]))
	}
	return append(b, ']')
}

// appendCompletionLogprobs appends the logprobs of a completion choice. offset is the number of
// characters of text before these tokens. A nil entry of probs has no value: the first token of a prompt.
func (s *Server) appendCompletionLogprobs(b []byte, q *common, tokens []int32, probs [][]engine.TokenLogprob, offset int) []byte {
	if q.logprobs < 0 {
		return append(b, "null"...)
	}
	var offsets, values, names, tops []byte
	for i, id := range tokens {
		if i > 0 {
			offsets, values = append(offsets, ','), append(values, ',')
			names, tops = append(names, ','), append(tops, ',')
		}
		name := s.tokenText(id, q.tokensAsIDs)
		offsets = appendInt(offsets, offset)
		offset += utf8.RuneCountInString(name)
		names = appendString(names, name)
		if i >= len(probs) || len(probs[i]) == 0 {
			values, tops = append(values, "null"...), append(tops, "null"...)
			continue
		}
		values = appendFloat(values, clampLogprob(probs[i][0].Logprob))
		tops = append(tops, '{')
		seen := make(map[string]bool)
		for _, e := range alternatives(probs[i], q.logprobs+1) {
			key := s.tokenText(e.ID, q.tokensAsIDs)
			if seen[key] {
				continue // two ids with the same text are one member
			}
			seen[key] = true
			if tops[len(tops)-1] != '{' {
				tops = append(tops, ',')
			}
			tops = append(appendString(tops, key), ':')
			tops = appendFloat(tops, clampLogprob(e.Logprob))
		}
		tops = append(tops, '}')
	}
	b = append(b, `{"text_offset":[`...)
	b = append(b, offsets...)
	b = append(b, `],"token_logprobs":[`...)
	b = append(b, values...)
	b = append(b, `],"tokens":[`...)
	b = append(b, names...)
	b = append(b, `],"top_logprobs":[`...)
	b = append(b, tops...)
	return append(b, `]}`...)
}

// appendPromptLogprobs appends one object per prompt position, null where there is no value. The rank of
// a token outside the top ones is not known here; it is given as the one after them.
func (s *Server) appendPromptLogprobs(b []byte, probs [][]engine.TokenLogprob, asked bool) []byte {
	if !asked || probs == nil {
		return append(b, "null"...)
	}
	b = append(b, '[')
	for i, entries := range probs {
		if i > 0 {
			b = append(b, ',')
		}
		if len(entries) == 0 {
			b = append(b, "null"...)
			continue
		}
		b = append(b, '{')
		for j, e := range alternatives(entries, len(entries)) {
			rank := j
			if j == 0 {
				rank = len(entries)
				for k, other := range entries[1:] {
					if other.ID == e.ID {
						rank = k + 1
						break
					}
				}
			} else {
				b = append(b, ',')
				for k, other := range entries[1:] {
					if other.ID == e.ID {
						rank = k + 1
					}
				}
			}
			b = append(b, '"')
			b = appendInt(b, int(e.ID))
			b = append(b, `":{"logprob":`...)
			b = appendFloat(b, clampLogprob(e.Logprob))
			b = append(b, `,"rank":`...)
			b = appendInt(b, rank)
			b = append(b, `,"decoded_token":`...)
			b = appendString(b, s.tokenText(e.ID, false))
			b = append(b, '}')
		}
		b = append(b, '}')
	}
	return append(b, ']')
}

// appendParams appends kv_transfer_params, null if there are none.
func appendParams(b []byte, params json.RawMessage) []byte {
	b = append(b, `"kv_transfer_params":`...)
	if isNull(params) {
		return append(b, "null"...)
	}
	return appendRaw(b, params)
}
