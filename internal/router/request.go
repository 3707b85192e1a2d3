package router

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"

	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/conv"
	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/tenant"
	"github.com/tarik-kv/tarik/internal/turn"
)

// ownFields are body members that only the router may send to an engine, under any spelling, and
// members that name a conversation and are no engine's business.
var ownFields = []string{
	"kv_transfer_params", "cache_salt", "request_id", "priority", "session_id", "conversation_id",
	"vllm_xargs", "ec_transfer_params",
}

// request is a client's request, scanned once.
type request struct {
	endpoint kvp.Endpoint
	doc      *bodyedit.Doc
	header   http.Header // as the client sent it

	model     string
	streaming bool
	wantsIDs  bool // return_token_ids
	// wantsUsage: stream_options.include_usage. wantsRunningUsage: continuous_usage_stats too.
	wantsUsage, wantsRunningUsage bool
	plain                         turn.Reason // why it cannot be reused, "" if it can
	salt                          string      // for the engines, "" for none
	stripped                      int         // members that the client had no business to send: ownFields

	tenant   string
	prompt   []byte   // raw messages, whole input or prompt
	messages messages // of prompt, but for a completion
	items    []byte   // of /v1/responses: the elements of prompt
	previous string   // previous_response_id, "" if none

	chain []conv.Key // identity, see package conv
	id    conv.Key   // of the client's own name for its conversation, zero if none
}

// parse reads what the router must know of a body. It decides nothing about the engines' business:
// a request that an engine would refuse goes on to be refused there.
// caller is who sent it, the zero Identity if nobody asked.
func (r *Router) parse(ep kvp.Endpoint, header http.Header, body []byte, caller tenant.Identity) (*request, *failure) {
	list := ""
	if ep == kvp.Chat || ep == kvp.Messages {
		list = dialects[ep].prompt
	}
	doc, err := bodyedit.ScanList(body, list)
	if err != nil {
		return nil, badRequest("", fmt.Sprintf("request body: %v", err))
	}
	q := &request{endpoint: ep, doc: doc, header: header, tenant: caller.Tenant}
	q.stripped = doc.CountFold(ownFields...)
	q.model, _ = bodyedit.String(doc.Get("model"))
	if f := mayUse(caller, q.model); f != nil {
		return nil, f
	}
	q.streaming, _ = bodyedit.Bool(doc.Get("stream"))
	q.wantsIDs, _ = bodyedit.Bool(doc.Get("return_token_ids"))
	if options := doc.Get("stream_options"); options != nil {
		q.wantsUsage = flag(options, "include_usage")
		q.wantsRunningUsage = q.wantsUsage && flag(options, "continuous_usage_stats")
	}
	q.prompt = doc.Get(dialects[ep].prompt)
	clientSalt, _ := bodyedit.String(doc.Get("cache_salt"))
	q.salt = r.salt(q.tenant, clientSalt)
	if ep == kvp.Responses {
		if on, _ := bodyedit.Bool(doc.Get("background")); on {
			return nil, badRequest("background", "a response in the background cannot be fetched through the router; leave the field out")
		}
		if f := r.expand(q); f != nil {
			return nil, f
		}
	}
	q.split()
	q.plain = plainReason(q)
	q.identify(r.cfg.ConversationHeader)
	return q, nil
}

func flag(object []byte, name string) bool {
	v, _ := bodyedit.Lookup(object, name)
	b, _ := bodyedit.Bool(v)
	return b
}

// mayUse refuses a model that the caller's credential does not cover.
func mayUse(caller tenant.Identity, model string) *failure {
	err := caller.CheckModel(model)
	if err == nil {
		return nil
	}
	return &failure{status: http.StatusForbidden, param: "model", code: "model-not-allowed", message: err.Error()}
}

// ownSalt keeps clients that separate their users by cache_salt apart, without giving an engine a
// value that somebody else could send.
func (r *Router) ownSalt(tenant, clientSalt string) string {
	if clientSalt == "" && tenant == "" {
		return ""
	}
	mac := hmac.New(sha256.New, r.secret[:])
	fmt.Fprintf(mac, "salt %d %s %s", len(tenant), tenant, clientSalt)
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// contextFields shape a prompt besides its messages.
var contextFields = []string{
	"tools", "chat_template", "chat_template_kwargs", "documents", "reasoning_effort", "add_special_tokens", "system", "instructions",
}

// identify finds out which conversation this is. own is the operator's header for it.
func (q *request) identify(own string) {
	s := conv.Scope{Tenant: q.tenant, Model: q.model, Salt: q.salt, Endpoint: q.endpoint.Path()}
	header := func(name string) string { // sources are canonical, which Get would look at again and again
		if v := q.header[name]; len(v) > 0 {
			return v[0]
		}
		return ""
	}
	if name := conv.Name(own, header, q.doc); name != "" {
		q.id = s.ID(name)
	}
	s.Context = make([]string, 0, len(contextFields))
	for _, name := range contextFields {
		s.Context = append(s.Context, string(q.doc.Get(name)))
	}
	if q.plain != "" {
		return
	}
	switch q.endpoint {
	case kvp.Completions:
		q.chain = conv.Prompt(s.Key(), q.prompt)
	default:
		q.chain = conv.Chain(s.Key(), q.messages.list)
	}
}

// maxName bounds what is kept of the names that clients choose, in bytes.
const maxName = 512

// plainReason says why a request is served by D alone: n replies share one handle and P's blocks
// are free after the first reader; a list of prompts gets the blocks of its first; and what a
// prompt really was is not to be known with media, embeddings, truncation or logprobs over it.
func plainReason(q *request) turn.Reason {
	// Engines take "2" and 2.0 for 2, and "yes" and 1 for true: whatever is not surely harmless counts.
	several := func(name string) bool {
		v := q.doc.Get(name)
		n, ok := bodyedit.Int(v)
		return v != nil && !bodyedit.IsNull(v) && (!ok || n > 1)
	}
	present := func(name string) bool {
		v := q.doc.Get(name)
		return v != nil && !bodyedit.IsNull(v)
	}
	isTrue := func(name string) bool {
		v := q.doc.Get(name)
		b, ok := bodyedit.Bool(v)
		return v != nil && !bodyedit.IsNull(v) && (!ok || b)
	}
	switch {
	case several("n") || several("best_of") || isTrue("use_beam_search"):
		return turn.SeveralReplies
	case present("prompt_logprobs"):
		return turn.PromptLogprobs
	case isTrue("echo"):
		return turn.Echo
	case present("truncate_prompt_tokens") || q.endpoint == kvp.Responses && bodyedit.TextIs(q.doc.Get("truncation"), "auto"):
		return turn.PromptTruncated
	case present("prompt_embeds"):
		return turn.PromptEmbeds
	case q.endpoint == kvp.Completions && severalPrompts(q.prompt):
		return turn.SeveralPrompts
	case q.messages.media:
		return turn.MediaContent
	}
	return ""
}

// severalPrompts reports whether a prompt is a list of prompts rather than a text or token ids.
func severalPrompts(prompt []byte) bool {
	for first := range bodyedit.Elements(prompt) {
		return bodyedit.KindOf(first) != bodyedit.Number
	}
	return false
}

// byIDs reports whether the prompt is token ids.
func (q *request) byIDs() bool {
	return q.endpoint == kvp.Completions && bodyedit.KindOf(q.prompt) == bodyedit.Array
}
