package conv

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

func TestName(t *testing.T) {
	t.Parallel()
	f := func(want, own, body string, headers ...string) {
		t.Helper()
		h := http.Header{}
		for i := 0; i < len(headers); i += 2 {
			h.Set(headers[i], headers[i+1])
		}
		doc, err := bodyedit.Scan([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if got := Name(own, h.Get, doc); got != want {
			t.Errorf("Name(%q, %v, %s) = %q, want %q", own, headers, body, got, want)
		}
	}
	f("", "", `{}`)
	f("7", "X-Ours", `{"conversation_id":"8"}`, "X-Ours", "7")
	f("conversation_id=8", "X-Ours", `{"conversation_id":"8","session_id":"9"}`, "X-Session-ID", "10")
	f("X-Conversation-Id=c", "", `{"session_id":"9"}`, "x-conversation-id", "c")
	f("session_id=9", "", `{"session_id":"9"}`, "X-Session-ID", "10")
	// Sub-agents of one session are conversations of their own.
	f("X-Claude-Code-Session-Id=s\x00", "", `{}`, "x-claude-code-session-id", "s")
	f("X-Claude-Code-Session-Id=s\x00a1", "", `{}`, "x-claude-code-session-id", "s", "x-claude-code-agent-id", "a1")
	f("Thread-Id=t", "", `{}`, "thread-id", "t", "session-id", "s")
	f("X-Opencode-Session=o", "", `{}`, "x-opencode-session", "o")
	f("session=b1c2", "", `{"metadata":{"user_id":"user_ff_account_aa_session_b1c2"}}`)
	f("session=b1c2", "", `{"metadata":{"user_id":"{\"device_id\":\"d\",\"session_id\":\"b1c2\"}"}}`)
	// Names of people, requests and caches are not names of conversations.
	f("", "", `{"user":"u","safety_identifier":"s","prompt_cache_key":"k","metadata":{"user_id":"u-1"}}`,
		"X-Request-Id", "1", "X-User-Id", "u", "Traceparent", "00-1-2-3")
	// Nothing that is no name becomes one.
	f("", "", `{"conversation_id":7,"session_id":null}`)
	f("", "", `{"conversation_id":"`+strings.Repeat("x", 2000)+`"}`, "X-Session-Id", strings.Repeat("y", 600))
	f("", "", `{}`, "X-Conversation-Id", "  ")
}
