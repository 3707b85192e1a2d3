package analyze

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write golden files anew")

// agentLog is a day of a small service: two tenants, three models, agents with a clock in their system prompt, and
// chats without.
func agentLog(t testing.TB) string {
	t.Helper()
	var log []any
	for c := range 6 {
		clock := c%3 == 0
		conv := growing(fmt.Sprint("c", c), 9, float64(40+c*45), func(i int) string {
			if clock {
				return words("rules", 300) + fmt.Sprintf("now: 2026-03-01 10:%02d\n", i+10) + words("more", 500)
			}
			return words("rules", 800)
		})
		for i, l := range conv {
			l := l.(m)
			l["ts"] = l["ts"].(float64) + float64(c*311)
			l["duration_s"] = 3.5
			l["tenant"] = fmt.Sprint("team-", c%2)
			l["response"].(m)["usage"] = m{"prompt_tokens": 2400 + 200*i, "completion_tokens": 110, "prompt_tokens_details": m{"cached_tokens": 1024}}
			l["request"].(m)["model"] = []string{"qwen3-32b", "glm-5", "llama-3.3-70b"}[c%3]
		}
		log = append(log, conv...)
	}
	return lines(t, log...) + "a line that is no JSON\n"
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is stale; -update writes it (-want +got):\n%s", name, diff)
	}
}

func TestTextAndJSONGolden(t *testing.T) {
	t.Parallel()
	r := report(t, agentLog(t), func(o *Options) { o.KVBytesPerToken, o.PrefillRate, o.NodeKVTokens = 262144, 6500, 40_000 })
	var b bytes.Buffer
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/agents.golden", b.String())
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/agents.json.golden", string(data)+"\n")
	// The three numbers come first, under the names that the three-line report's readers know.
	for i, name := range []string{"follow_up_turns", "repeated_prompt_share", "late_turns_share"} {
		if line := strings.Split(string(data), "\n")[1+i]; !strings.HasPrefix(line, ` "`+name+`": `) {
			t.Errorf("line %d of the JSON is %q, want %s", 2+i, line, name)
		}
	}
}

// The page has charts, needs nothing from elsewhere and runs nothing.
func TestHTMLIsSelfContained(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]*Report{
		"agents":       report(t, agentLog(t)),
		"one request":  report(t, `{"conversation_id":"a","ts":1,"prompt_tokens":5}`),
		"no times":     report(t, `{"conversation_id":"a","prompt_tokens":5}`+"\n"+`{"conversation_id":"a","prompt_tokens":5}`),
		"all the same": report(t, strings.Repeat(`{"conversation_id":"a","ts":7,"prompt_tokens":0}`+"\n", 5)),
	} {
		var b bytes.Buffer
		if err := r.WriteHTML(&b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		page := b.String()
		for _, bad := range []string{"<script", "<link", "<img", "src=", "@import", "url(", "<?xml"} {
			if strings.Contains(page, bad) {
				t.Errorf("%s: the page holds %s", name, bad)
			}
		}
		if name == "agents" && strings.Count(page, "<svg") != 6 {
			t.Errorf("%d charts, want 6", strings.Count(page, "<svg"))
		}
		for rest := page; ; {
			_, svg, ok := strings.Cut(rest, "<svg")
			if !ok {
				break
			}
			svg, rest, _ = strings.Cut(svg, "</svg>")
			d := xml.NewDecoder(strings.NewReader("<svg" + svg + "</svg>"))
			for {
				if _, err := d.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%s: a chart is not well-formed: %v", name, err)
				}
			}
			if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
				t.Errorf("%s: a chart has coordinates that are no numbers", name)
			}
		}
	}
}

func TestAccountOfMetadata(t *testing.T) {
	t.Parallel()
	// Claude Code's conversations are named inside metadata.user_id; sub-agents share the session and differ in
	// another member.
	request := func(session, agent string, at, n int) m {
		l := m{"ts": at, "request": m{"metadata": m{"user_id": "user_1_account_2_session_" + session}}, "usage": m{"input_tokens": n}}
		if agent != "" {
			l = m{"ts": at, "x-claude-code-session-id": session, "x-claude-code-agent-id": agent, "usage": m{"input_tokens": n}}
		}
		return l
	}
	r := report(t, lines(t,
		request("s1", "", 1, 10), request("s1", "", 2, 20), request("s2", "", 3, 10),
		request("s3", "a", 4, 10), request("s3", "b", 5, 10), request("s3", "a", 6, 10),
	))
	if r.Conversations != 4 || r.FollowUpTurns != 2 {
		t.Errorf("conversations %d, follow-ups %d; want 4 and 2", r.Conversations, r.FollowUpTurns)
	}
	// User, trace and request ids name no conversations.
	r = report(t, lines(t, m{"ts": 1, "user": "u", "trace_id": "t", "request_id": "r", "prompt_tokens": 5}, m{"ts": 2, "user": "u", "trace_id": "t", "request_id": "r", "prompt_tokens": 5}))
	if r.Conversations != 0 || r.FollowUpTurns != 0 || r.Verdict.Decision != "cannot-tell" || len(r.Verdict.Reasons) != 3 {
		t.Errorf("conversations %d, follow-ups %d, verdict %+v", r.Conversations, r.FollowUpTurns, r.Verdict)
	}
}

func TestProgressIsTold(t *testing.T) {
	t.Parallel()
	var seen []Progress
	report(t, strings.Repeat(`{"conversation_id":"a","ts":7,"prompt_tokens":0}`+"\n", 100), func(o *Options) {
		o.Progress = func(p Progress) { seen = append(seen, p) }
	})
	if len(seen) == 0 || seen[0].Stage != "read" || seen[0].Bytes != 4900 || seen[0].Requests != 100 {
		t.Errorf("progress = %+v", seen)
	}
}

func TestPythonStrings(t *testing.T) {
	t.Parallel()
	f := func(literal, want, rest string, ok bool) {
		t.Helper()
		got, left, good := appendPython(nil, []byte(literal))
		if good != ok || ok && (string(got) != want || string(left) != rest) {
			t.Errorf("appendPython(%s) = %q, %q, %v; want %q, %q, %v", literal, got, left, good, want, rest, ok)
		}
	}
	f(`'abc', x`, "abc", ", x", true)
	f(`"it's"`, "it's", "", true)
	f(`'a\'b\n\t\\\x1b\u00e9\U0001f642'`, "a'b\n\t\\\x1bé🙂", "", true)
	f(`'cut`, "", "", false)
	f(`'\x1`, "", "", false)
	f(`None`, "", "", false)
}
