package conversations_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/test/conversations"
)

// TestAll plays every conversation against an engine that answers with its turn's number, and looks at what a
// client would send: the sizes that make the set worth having, and that a continuing turn really begins with the
// other's messages and reply.
func TestAll(t *testing.T) {
	t.Parallel()
	all, err := conversations.All()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 24 {
		t.Errorf("%d conversations, want 24 or more", len(all))
	}
	for _, c := range all {
		var replies []string
		var lists [][]json.RawMessage
		longest := 0
		for i := range c.Turns {
			turn := &c.Turns[i]
			list, err := turn.Expand(replies)
			if err != nil {
				t.Fatalf("%s, turn %d: %v", c.Name, i, err)
			}
			size := 0
			for _, m := range list {
				size += len(m)
				if !json.Valid(m) {
					t.Errorf("%s, turn %d: not JSON: %s", c.Name, i, m)
				}
			}
			longest = max(longest, size)
			if k := turn.Continues; k >= 0 {
				answer := conversations.Literal("assistant", replies[k])
				want := append(lists[k][:len(lists[k]):len(lists[k])], answer.JSON)
				if diff := cmp.Diff(texts(t, want), texts(t, list[:len(want)])); diff != "" {
					t.Errorf("%s, turn %d does not continue turn %d (-want +got):\n%s", c.Name, i, k, diff)
				}
				if diff := cmp.Diff(string(c.Turns[k].Tools), string(turn.Tools)); diff != "" {
					t.Errorf("%s, turn %d has other tools than turn %d:\n%s", c.Name, i, k, diff)
				}
			}
			lists = append(lists, list)
			replies = append(replies, fmt.Sprintf("thought %d</think>\n\nanswer %d", i, i))
		}
		if len(c.Turns) < 3 || longest < 1500 || longest > 16000 {
			t.Errorf("%s: %d turns, longest request %d bytes of messages; want 3 or more, 1500 to 16000", c.Name, len(c.Turns), longest)
		}
	}
}

// texts makes messages comparable: members in no order.
func texts(t *testing.T, messages []json.RawMessage) []any {
	t.Helper()
	out := make([]any, len(messages))
	for i, m := range messages {
		if err := json.Unmarshal(m, &out[i]); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func load(file string) ([]conversations.Conversation, error) {
	return conversations.Load(fstest.MapFS{"x.json": {Data: []byte(file)}})
}

// TestForms reads one file with every way of writing a message, and expands its last turn.
func TestForms(t *testing.T) {
	t.Parallel()
	all, err := load(`{"name":"x","about":"","turns":[
		{"max_tokens":1,"tools":[1],"messages":[{"role":"system","content":"s"},{"role":"user","content":"a <b>"}]},
		{"continues":0,"max_tokens":1,"stream":true,"messages":[{"role":"user","content":"c"}]},
		{"max_tokens":1,"messages":[{"repeat_of":1,"from":1,"to":3},{"repeat_of":0,"from":1},
			{"role":"assistant","tool_calls":[{"id":"1"}],"content":{"reply_of":1,"drop_reasoning":true,"first_chars":4}}]}]}`)
	if err != nil {
		t.Fatal(err)
	}
	last := all[0].Turns[2]
	got, err := last.Expand([]string{"first", "think</think>\nDéjà vu"})
	if err != nil {
		t.Fatal(err)
	}
	want := []any{
		map[string]any{"role": "user", "content": "a <b>"},
		map[string]any{"role": "assistant", "content": "first"},
		map[string]any{"role": "user", "content": "a <b>"},
		map[string]any{"role": "assistant", "content": "Déjà", "tool_calls": []any{map[string]any{"id": "1"}}},
	}
	if diff := cmp.Diff(want, texts(t, got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	type shape struct {
		Messages, Continues int
		Tools               string
		Stream              bool
	}
	var shapes []shape
	for _, turn := range all[0].Turns {
		shapes = append(shapes, shape{len(turn.Messages), turn.Continues, string(turn.Tools), turn.Stream})
	}
	if diff := cmp.Diff([]shape{{2, -1, "[1]", false}, {4, 0, "[1]", true}, {4, -1, "", false}}, shapes); diff != "" {
		t.Errorf("turns (-want +got):\n%s", diff)
	}
	if _, err := last.Expand([]string{"first"}); err == nil {
		t.Error("Expand without the reply of turn 1: no error")
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	f := func(turns, want string) {
		t.Helper()
		const first = `{"max_tokens":1,"messages":[{"role":"user","content":"a"}]}`
		_, err := load(`{"name":"x","turns":[` + strings.ReplaceAll(turns, "FIRST", first) + `]}`)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", turns, err, want)
		}
	}
	f(``, "no turns")
	f(`{"max_tokens":1,"messages":[]}`, "no messages")
	f(`{"messages":[{"role":"user","content":"a"}]}`, "max_tokens below 1")
	f(`FIRST,{"max_tokens":1,"continues":1,"messages":[]}`, "continues 1, which is not an earlier turn")
	f(`FIRST,{"max_tokens":1,"continues":0,"tools":[],"messages":[]}`, "tools come from the turn it continues")
	f(`FIRST,{"max_tokens":1,"messages":[{"role":"assistant","content":{"reply_of":1}}]}`, "reply_of 1 is not an earlier turn")
	f(`FIRST,{"max_tokens":1,"messages":[{"role":"user","content":{"reply_of":0}}]}`, `role "user"`)
	f(`FIRST,{"max_tokens":1,"messages":[{"role":"assistant","content":{"reply":0}}]}`, "unknown field")
	f(`FIRST,{"max_tokens":1,"messages":[{"repeat_of":0,"to":2}]}`, "messages 0 to 2 of turn 0, which has 1")
	f(`FIRST,{"max_tokens":1,"messages":[{"repeat_of":1}]}`, "repeat_of 1 is not an earlier turn")
	if _, err := load(`{"name":"y","turns":[{"max_tokens":1,"messages":[{"role":"user","content":"a"}]}]}`); err == nil {
		t.Error("a name that is not the file's: no error")
	}
}
