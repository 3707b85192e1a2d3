package bench

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// prompts are the messages of all turns, with replies "r1", "r2" and so on.
func prompts(t *testing.T, c Conversation) [][]string {
	t.Helper()
	var all [][]string
	replies := []string{"r1", "r2", "r3", "r4"}
	for k, turn := range c.Turns {
		messages, err := turn.Expand(guess, replies[:k])
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, m := range messages {
			list = append(list, string(m))
		}
		all = append(all, list)
	}
	return all
}

func TestConversationsOfMessages(t *testing.T) {
	t.Parallel()
	path := write(t, "c.jsonl", `{"name":"one","tools":[{"type":"function"}],"messages":[{"role":"system","content":"s"},{"role":"user","content":"a<b"},{"role":"assistant","content":"recorded","tool_calls":[{"id":"t1"}]},{"role":"tool","tool_call_id":"t1","content":"out"}]}

[{"role":"user","content":[{"type":"text","text":"x"}]},{"role":"assistant","content":"recorded"}]
`)
	list, err := readConversations(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 {
		t.Fatalf("%d conversations, want 2", len(list))
	}
	want := [][]string{
		{`{"role":"system","content":"s"}`, `{"role":"user","content":"a<b"}`},
		{
			`{"role":"system","content":"s"}`, `{"role":"user","content":"a<b"}`, `{"content":"r1","role":"assistant","tool_calls":[{"id":"t1"}]}`,
			`{"role":"tool","tool_call_id":"t1","content":"out"}`,
		},
	}
	if diff := cmp.Diff(want, prompts(t, list[0])); diff != "" {
		t.Errorf("first (-want +got):\n%s", diff)
	}
	if got := string(list[0].Turns[1].Tools); got != `[{"type":"function"}]` {
		t.Errorf("tools %s", got)
	}
	if diff := cmp.Diff([][]string{{`{"role":"user","content":[{"type":"text","text":"x"}]}`}}, prompts(t, list[1])); diff != "" {
		t.Errorf("second (-want +got):\n%s", diff)
	}
	// The nonce goes in front of either form of content.
	for i, want := range []string{`{"content":"Note n. s","role":"system"}`, `{"content":[{"text":"Note n. ","type":"text"},{"type":"text","text":"x"}],"role":"user"}`} {
		m, err := list[i].Turns[0].Expand(guess, nil)
		if err != nil {
			t.Fatal(err)
		}
		marked, err := begin(m, "n")
		if err != nil || string(marked[0]) != want {
			t.Errorf("begin = %s, %v, want %s", marked, err, want)
		}
	}
}

func TestConversationsOfTheProject(t *testing.T) {
	t.Parallel()
	list, err := readConversations("../../test/conversations")
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 20 || list[0].Name == "" || len(list[0].Turns) < 2 {
		t.Errorf("%d conversations, the first %q of %d turns", len(list), list[0].Name, len(list[0].Turns))
	}
}

func TestTraces(t *testing.T) {
	t.Parallel()
	type turn struct {
		At     time.Duration
		Reply  int
		Tokens []int // of each message, by guess; text of a trace as it is
	}
	f := func(path string, limit int, want ...[]turn) {
		t.Helper()
		list, err := readTrace(path, limit)
		if err != nil {
			t.Fatal(err)
		}
		var got [][]turn
		for _, c := range list {
			var turns []turn
			for i, messages := range prompts(t, c) {
				w := turn{At: c.Turns[i].At, Reply: c.Turns[i].MaxTokens}
				for _, m := range messages {
					var text struct{ Content string }
					if err := json.Unmarshal([]byte(m), &text); err != nil {
						t.Fatal(err)
					}
					w.Tokens = append(w.Tokens, int(float64(len(text.Content))/guess.BytesPerToken+0.5))
				}
				turns = append(turns, w)
			}
			got = append(got, turns)
		}
		about := cmp.Comparer(func(a, b int) bool { return a-b < 4 && b-a < 4 })
		if diff := cmp.Diff(want, got, about); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	// Counts: a prompt that is longer goes on with the replies, one that is shorter begins anew.
	counts := write(t, "counts.jsonl", `{"conversation_id":"a","ts":10,"prompt_tokens":1000,"completion_tokens":100}
{"conversation_id":"b","ts":11.5,"prompt_tokens":500,"completion_tokens":50}
{"conversation_id":"a","ts":20,"prompt_tokens":1300,"completion_tokens":100}
{"conversation_id":"a","ts":30,"prompt_tokens":400,"completion_tokens":10}
{"conversation_id":"a","ts":31,"prompt_tokens":600,"completion_tokens":10}
`)
	const o = 20 // tokens of overhead in guess
	a := []turn{
		{0, 100, []int{1000 - o}},
		{10 * time.Second, 100, []int{1000 - o, 0, 200}},
		{20 * time.Second, 10, []int{400 - o}},
		{21 * time.Second, 10, []int{400 - o, 0, 190}},
	}
	f(counts, 0, a, []turn{{1500 * time.Millisecond, 50, []int{500 - o}}})
	f(counts, 1, a)
	// Blocks: each request by itself.
	f(write(t, "blocks.jsonl", `{"timestamp":0,"input_length":1200,"output_length":7,"hash_ids":[0,1,2]}
{"timestamp":1500,"input_length":600,"output_length":9,"hash_ids":[0,5]}
`), 0, []turn{{0, 7, []int{1200 - o}}}, []turn{{1500 * time.Millisecond, 9, []int{600 - o}}})
	// Equal blocks are equal text, so a prefix cache finds them.
	list, err := readTrace(write(t, "b.jsonl", `{"timestamp":0,"input_length":1200,"output_length":7,"hash_ids":[0,1,2]}
{"timestamp":1,"input_length":1200,"output_length":7,"hash_ids":[0,1,9]}
`), 0)
	if err != nil {
		t.Fatal(err)
	}
	x, y := prompts(t, list[0])[0][0], prompts(t, list[1])[0][0]
	n := 0
	for n < len(x) && x[n] == y[n] {
		n++
	}
	if n < 1000*5 || n > 1060*5 {
		t.Errorf("prompts that share two blocks share %d bytes of %d", n, len(x))
	}
	// Text, compressed, out of order.
	path := filepath.Join(t.TempDir(), "text.jsonl.gz")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(file)
	_, err = z.Write([]byte(`{"timestamp":3000000,"session_id":"s","input":"12345678901234567890","output":"x"}
{"timestamp":1000000,"session_id":"s","input":"1234567890","output":"x"}
`))
	if err := errors.Join(err, z.Close(), file.Close()); err != nil {
		t.Fatal(err)
	}
	f(path, 0, []turn{{0, 0, []int{2}}, {2 * time.Second, 0, []int{4}}})
}

func TestSourcesSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	f := func(got error, want string) {
		t.Helper()
		if got == nil || !strings.Contains(got.Error(), want) {
			t.Errorf("error %v, want one with %q", got, want)
		}
	}
	second := func(_ []Conversation, err error) error { return err }
	f(second(readConversations("missing")), "missing")
	f(second(readConversations(write(t, "a.jsonl", "[]\n"))), "a.jsonl:1: no messages")
	f(second(readConversations(write(t, "a.jsonl", "\n{\n"))), "a.jsonl:2: ")
	f(second(readConversations(write(t, "a.jsonl", ""))), "no conversation")
	f(second(readConversations(write(t, "a.jsonl", `[{"role":"assistant","content":"x"}]`))), "the first message is an assistant's")
	f(second(readTrace(write(t, "t.jsonl", `{"a":1}`), 0)), "t.jsonl:1: neither a text trace")
	f(second(readTrace(write(t, "t.jsonl", ``), 0)), "no request")
	f(second(readTrace(write(t, "t.jsonl", `{"timestamp":1,"hash_ids":[1]}`), 0)), "input_length")
}

func FuzzTraceRow(f *testing.F) {
	f.Add([]byte(`{"timestamp":0,"input_length":1200,"output_length":7,"hash_ids":[0,1,2]}`))
	f.Add([]byte(`{"conversation_id":"a","ts":10,"prompt_tokens":1000,"completion_tokens":100}`))
	f.Add([]byte(`{"timestamp":3000000,"session_id":"s","input":"x"}`))
	f.Add([]byte(`[{"role":"user","content":"x"}]`))
	f.Fuzz(func(t *testing.T, line []byte) {
		var w traceRow
		if json.Unmarshal(line, &w) == nil {
			if q, err := w.request(1); err == nil && q.text == "" && q.tokens <= 0 {
				t.Errorf("a request without a prompt: %+v", q)
			}
		}
		if c, err := parseMessages(line); err == nil && len(c.Turns) == 0 {
			t.Error("a conversation without turns")
		}
	})
}
