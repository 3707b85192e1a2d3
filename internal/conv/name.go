package conv

import (
	"bytes"
	"strings"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

// maxName bounds a client's own name for its conversation, in bytes. A longer one is no name.
const maxName = 512

// source is one way in which clients name their conversations.
type source struct {
	header string // "" if the name is in the body
	plus   string // a second header that belongs to the name: sub-agents share a session
	field  string // top-level member of the body
}

// sources in the order of precedence: what was made for this first, then what routers agreed on,
// then what single agents send by themselves. User ids, safety ids, tenant, request and trace ids
// are no names: one user has many conversations, and a request id has one turn.
var sources = []source{
	{field: "conversation_id"},
	{header: "X-Conversation-Id"},
	{header: "X-Dynamo-Session-Id"},
	{field: "session_id"},
	{header: "X-Session-Id"},
	{header: "X-Claude-Code-Session-Id", plus: "X-Claude-Code-Agent-Id"},
	{header: "Thread-Id"},  // Codex
	{header: "Session-Id"}, // Codex
	{header: "X-Session-Affinity"},
	{header: "X-Opencode-Session"},
	{header: "X-Qwen-Code-Session-Id"},
	{header: "X-Litellm-Session-Id"},
	{header: "Agent-Session-Id"},
}

// Name is what a client calls its conversation, "" if it does not say. header returns a request
// header by its canonical name. own, if not empty, is the operator's header, which goes first.
//
// A name is a hint: it may be shared by branches, used again, or forged. It counts only within a
// scope, and only to find the turn whose tokens are then compared.
func Name(own string, header func(string) string, body *bodyedit.Doc) string {
	if own != "" {
		if s := clean(header(own)); s != "" {
			return s
		}
	}
	for _, src := range sources {
		if src.field != "" {
			s, _ := bodyedit.String(body.Get(src.field))
			if s = clean(s); s != "" {
				return src.field + "=" + s
			}
			continue
		}
		if s := clean(header(src.header)); s != "" {
			if src.plus != "" {
				s += "\x00" + clean(header(src.plus))
			}
			return src.header + "=" + s
		}
	}
	if s := anthropicSession(body); s != "" {
		return "session=" + s
	}
	return ""
}

func clean(s string) string {
	if len(s) > maxName {
		return ""
	}
	return strings.TrimSpace(s)
}

// anthropicSession is the session in metadata.user_id, which Claude Code writes as
// user_…_account_…_session_UUID or as a JSON object. The rest of it names the user.
func anthropicSession(body *bodyedit.Doc) string {
	id, _ := bodyedit.Lookup(body.Get("metadata"), "user_id")
	s, _ := bodyedit.String(id)
	if len(s) > maxName {
		return ""
	}
	if _, session, ok := strings.Cut(s, "_session_"); ok {
		return session
	}
	if b := []byte(s); len(b) > 0 && b[0] == '{' && bytes.Contains(b, []byte("session_id")) {
		if doc, err := bodyedit.Scan(b); err == nil {
			session, _ := bodyedit.String(doc.Get("session_id"))
			return session
		}
	}
	return ""
}
