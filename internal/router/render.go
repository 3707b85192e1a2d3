package router

import (
	"context"
	"net/http"

	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/turn"
)

// tokenizeFields are what the tokenize route takes into account of a chat.
var tokenizeFields = []string{
	"model", "messages", "tools", "chat_template", "chat_template_kwargs",
	"add_generation_prompt", "continue_final_message", "add_special_tokens",
}

// promptNeutral are fields that no version makes part of a prompt. A chat with any other field
// than these and tokenizeFields may render differently by the two routes.
var promptNeutral = func() map[string]bool {
	set := map[string]bool{}
	for _, name := range []string{
		"stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "n", "temperature", "top_p", "top_k",
		"min_p", "seed", "stop", "stop_token_ids", "ignore_eos", "presence_penalty", "frequency_penalty", "repetition_penalty",
		"length_penalty", "logprobs", "top_logprobs", "logit_bias", "user", "return_token_ids", "parallel_tool_calls",
		"metadata", "store", "service_tier", "skip_special_tokens", "spaces_between_special_tokens",
		"include_stop_str_in_output", "safety_identifier", "prompt_cache_key", "best_of", "use_beam_search", "echo",
	} {
		set[name] = true
	}
	for _, list := range [][]string{tokenizeFields, ownFields} {
		for _, name := range list {
			set[name] = true
		}
	}
	return set
}()

// canRender says whether P can be asked for the token ids of q's prompt, "" if it can.
func (r *Router) canRender(q *request) turn.Reason {
	if q.endpoint == kvp.Completions || !r.prefill.Info().NoRender || q.endpoint == kvp.Chat && q.tokenizes() {
		return ""
	}
	return turn.CannotRender
}

// tokenizes reports whether the tokenize route renders this chat as the chat route does.
func (q *request) tokenizes() bool {
	for m := range q.doc.Members() {
		if m.Is("tool_choice") && bodyedit.TextIs(m.Raw, "auto") {
			continue
		}
		if !promptNeutral[m.Name()] && !bodyedit.IsNull(m.Raw) {
			return false
		}
	}
	return true
}

// render asks P for the token ids of q's prompt, exactly as its own route would compute them. It
// returns nil if P cannot say.
func (r *Router) render(ctx context.Context, q *request, id string) []int32 {
	if q.endpoint == kvp.Completions {
		if ids := parseIDs(q.prompt); ids != nil {
			return ids
		}
		return r.askIDs(ctx, q, "/tokenize", q.subset("model", "prompt", "add_special_tokens"), id)
	}
	if !r.prefill.Info().NoRender {
		e := q.doc.Edit()
		e.DeleteFold(ownFields...)
		if ids := r.askIDs(ctx, q, q.endpoint.Path()+"/render", editPayload(e), id); ids != nil {
			return ids
		}
	}
	if q.endpoint != kvp.Chat || !q.tokenizes() {
		return nil
	}
	return r.askIDs(ctx, q, "/tokenize", q.subset(tokenizeFields...), id)
}

func (r *Router) askIDs(ctx context.Context, q *request, path string, body payload, id string) []int32 {
	a := r.ask(ctx, call{engine: r.prefill, path: path, body: body, header: forEngine(q.header), id: id}, r.cfg.MaxReply)
	if a.status == http.StatusForbidden {
		r.prefill.RefusedRender() // no scale-out endpoints; the tokenize route is always there
	}
	if a.status != http.StatusOK || a.err != nil {
		return nil
	}
	doc, err := bodyedit.Scan(a.body)
	if err != nil {
		return nil
	}
	if raw := doc.Get("token_ids"); raw != nil {
		return parseIDs(raw)
	}
	return parseIDs(doc.Get("tokens"))
}

// subset is a body made of some of the client's members, byte for byte.
func (q *request) subset(names ...string) payload { return bytesPayload(members(q.doc, names...)) }

// members is an object of some of a document's members, byte for byte.
func members(doc *bodyedit.Doc, names ...string) []byte {
	b := []byte{'{'}
	for _, name := range names {
		v := doc.Get(name)
		if v == nil {
			continue
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(append(append(b, quote(name)...), ':'), v...)
	}
	return append(b, '}')
}
