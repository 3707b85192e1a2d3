package api

import (
	"errors"
	"slices"
	"strings"
)

// chatPrompt returns the ids of a chat's prompt: the exact ids if the request brings them, else the
// rendered template's. text is the rendered template, "" with exact ids.
func (s *Server) chatPrompt(q *chatRequest) (ids []int32, text string, err *apiError) {
	if q.exact != nil {
		if slices.Max(q.exact) >= int32(s.text.VocabSize()) {
			return nil, "", badRequest("kv_transfer_params.prompt_token_ids",
				"kv_transfer_params.prompt_token_ids must be within the vocabulary of %d tokens.", s.text.VocabSize())
		}
		return q.exact, "", s.checkLength(len(q.exact), q.maxTokens, false)
	}
	text, err = s.renderChat(q)
	if err != nil {
		return nil, "", err
	}
	ids = s.encode(text, q.addSpecial)
	return ids, text, s.checkLength(len(ids), q.maxTokens, true)
}

// renderChat applies the chat template.
func (s *Server) renderChat(q *chatRequest) (string, *apiError) {
	switch {
	case q.ownTemplate:
		return "", badRequest("", "Chat template is passed with request, but --trust-request-chat-template is not set. "+
			"Refused request with untrusted chat template.")
	case len(q.messages) == 0:
		return "", badRequest("messages", "messages must not be empty")
	case q.nonText:
		return "", badRequest("messages", "At most 0 image(s) may be provided in one prompt.")
	}
	text, err := s.render(q.messages, q.tools, q.addPrompt, q.kwargs)
	if err == nil && q.continueFinal {
		text, err = upToFinal(text, q.lastContent)
	}
	if err != nil {
		return "", badRequest("", "%s", err)
	}
	return text, nil
}

// upToFinal cuts a rendered chat after the text of its last message, so that the model continues it.
func upToFinal(text, final string) (string, error) {
	trimmed := strings.TrimSpace(final)
	at := strings.LastIndex(text, trimmed)
	if trimmed == "" || at < 0 {
		return "", errors.New("continue_final_message is set but the final message does not appear in the chat after applying the chat template!")
	}
	if left := strings.TrimLeft(final, " \t\r\n"); strings.HasPrefix(text[at:], left) {
		return text[:at+len(left)], nil // trailing space is part of what is continued
	}
	return text[:at+len(trimmed)], nil
}

// completionPrompt returns the ids of one prompt and its text, which echo needs.
func (s *Server) completionPrompt(q *completionRequest, p prompt) (ids []int32, text string, err *apiError) {
	if p.ids == nil {
		text = p.text
		ids = s.encode(text, q.special)
		return ids, text, s.checkLength(len(ids), max(q.maxTokens, 0), true)
	}
	for _, id := range p.ids {
		if id < 0 || int(id) >= s.text.VocabSize() {
			return nil, "", badRequest("", "Token id %d is out of vocabulary", id)
		}
	}
	if q.echo && !q.returnTokenIDs {
		text = s.text.Decode(p.ids, false)
	}
	return p.ids, text, s.checkLength(len(p.ids), max(q.maxTokens, 0), false)
}

// checkLength refuses a prompt that leaves no room for what is asked for. vLLM stops tokenizing a text
// one token after the limit, so that is the number it then reports.
func (s *Server) checkLength(promptTokens, maxTokens int, fromText bool) *apiError {
	limit := s.maxModelLen - maxTokens
	switch {
	case promptTokens == 0:
		return badRequest("", "The decoder prompt cannot be empty")
	case promptTokens > limit:
		if fromText {
			promptTokens = max(limit, 0) + 1
		}
		return badRequest("input_tokens", "This model's maximum context length is %d tokens. However, you requested %d output tokens "+
			"and your prompt contains at least %d input tokens, for a total of at least %d tokens. Please reduce the length of the input prompt "+
			"or the number of requested output tokens. (parameter=input_tokens, value=%d)",
			s.maxModelLen, maxTokens, promptTokens, promptTokens+maxTokens, promptTokens)
	case promptTokens >= s.maxModelLen:
		return badRequest("", "The decoder prompt (length %d) plus the number of requested output tokens (at least 1) is longer than "+
			"the maximum model length of %d. Make sure that `max_model_len` is no smaller than the number of text tokens (prompt + requested output tokens).",
			promptTokens, s.maxModelLen)
	}
	return nil
}
