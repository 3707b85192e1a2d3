package api

import (
	"encoding/json"
	"errors"
	"net/http"
)

// templateRenderer adapts a chat template; without one, chats by messages are refused.
func templateRenderer(t Template) renderFunc {
	return func(messages []json.RawMessage, tools json.RawMessage, addPrompt bool, kwargs map[string]any) (string, error) {
		if t == nil {
			return "", errNoTemplate
		}
		var list []json.RawMessage
		if tools != nil {
			if err := json.Unmarshal(tools, &list); err != nil {
				return "", err
			}
		}
		return t.Render(messages, list, addPrompt, kwargs)
	}
}

var errNoTemplate = errors.New("As of transformers v4.44, default chat template is no longer allowed, " +
	"so you must provide a chat template if the tokenizer does not define one.")

// tokenize serves POST /tokenize.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) *apiError {
	body, _, err := s.receive(w, r)
	if err != nil {
		return err
	}
	ids, err := s.tokenizeBody(body)
	if err != nil {
		return err
	}
	b := append([]byte(nil), `{"count":`...)
	b = appendInt(b, len(ids.ids))
	b = append(b, `,"max_model_len":`...)
	b = appendInt(b, s.maxModelLen)
	b = append(b, `,"tokens":`...)
	b = appendIDs(b, ids.ids)
	b = append(b, `,"token_strs":`...)
	if ids.strings {
		b = append(b, '[')
		for i, id := range ids.ids {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(b, s.text.Token(id))
		}
		b = append(b, ']')
	} else {
		b = append(b, "null"...)
	}
	writeJSON(w, http.StatusOK, append(b, '}'))
	return nil
}

// tokenizeMembers are the members of a chat request that /tokenize knows. reasoning_effort and documents are
// not among them, so it may give another prompt than the chat endpoint.
var tokenizeMembers = []string{
	"messages", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens", "chat_template", "chat_template_kwargs",
}

type tokenized struct {
	ids     []int32
	strings bool // return_token_strs
}

// tokenizeBody tokenizes messages, as the chat endpoint would, or a plain prompt.
func (s *Server) tokenizeBody(body []byte) (tokenized, *apiError) {
	f, err := parseFields(body)
	if err != nil {
		return tokenized{}, err
	}
	var t tokenized
	t.strings = f.bool("return_token_strs", false)
	model, _ := f.string("model")
	if f.err != nil {
		return t, f.err
	}
	if err := s.checkModel(model); err != nil {
		return t, err
	}
	if f.has("messages") {
		q, err := decodeChatFields(f.only(tokenizeMembers), s.rel)
		if err != nil {
			return t, err
		}
		text, err := s.renderChat(q)
		if err != nil {
			return t, err
		}
		t.ids = s.encode(text, q.addSpecial)
		return t, nil
	}
	text, ok := f.string("prompt")
	special := f.bool("add_special_tokens", true)
	if f.err == nil && !ok {
		f.fail("prompt", "missing", "Field required")
	}
	if f.err != nil {
		return t, f.err
	}
	t.ids = s.encode(text, special)
	return t, nil
}

// encode never returns nil.
func (s *Server) encode(text string, special bool) []int32 {
	ids := []int32{}
	if special {
		return append(ids, s.text.EncodePrompt(text)...)
	}
	return append(ids, s.text.Encode(text)...)
}

// detokenize serves POST /detokenize.
func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) *apiError {
	body, _, err := s.receive(w, r)
	if err != nil {
		return err
	}
	f, err := parseFields(body)
	if err != nil {
		return err
	}
	model, _ := f.string("model")
	if !f.has("tokens") {
		f.fail("tokens", "missing", "Field required")
	}
	ids := f.ids("tokens")
	if f.err == nil {
		f.refuseIf(s.checkModel(model))
	}
	for _, id := range ids {
		if id < 0 || int(id) >= s.text.VocabSize() {
			f.refuse(badRequest("", "Token id %d is out of vocabulary", id))
		}
	}
	if f.err != nil {
		return f.err
	}
	b := append([]byte(nil), `{"prompt":`...)
	writeJSON(w, http.StatusOK, append(appendString(b, s.text.Decode(ids, false)), '}'))
	return nil
}
