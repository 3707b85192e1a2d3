package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/test/conversations"
)

// fakeEngine answers like an engine whose tokens are bytes: the reply is a hash of the prompt. As a router it also
// keeps receipts; spoil changes what it says.
type fakeEngine struct {
	spoil func(turn int, r *receipt, ids []int32)

	mu       sync.Mutex
	seen     [][]int32 // prompts and their replies
	receipts []receipt
}

func (f *fakeEngine) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch req.URL.Path {
	case "/v1/models":
		fmt.Fprint(w, `{"data":[{"id":"fake"}]}`)
		return
	case "/turns":
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, r := range f.receipts {
			if r.Turn == req.URL.Query().Get("turn") {
				_ = json.NewEncoder(w).Encode([]receipt{r})
				return
			}
		}
		fmt.Fprint(w, "[]")
		return
	}
	var body request
	if err := json.NewDecoder(req.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var text strings.Builder
	for _, m := range body.Messages {
		var message struct {
			Role    string
			Content json.RawMessage
		}
		if err := json.Unmarshal(m, &message); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(&text, "<%s>%s", message.Role, message.Content)
	}
	text.WriteString("<assistant>")
	prompt := tokens(text.String())
	h := fnv.New32a()
	_, _ = h.Write([]byte(text.String()))
	reply := strings.Repeat(fmt.Sprintf("%08x", h.Sum32()), 1+body.MaxTokens/8)[:body.MaxTokens]
	ids := tokens(reply)

	f.mu.Lock()
	local := 0
	for _, s := range f.seen {
		local = max(local, commonPrefix(s, prompt))
	}
	f.seen = append(f.seen, append(prompt[:len(prompt):len(prompt)], ids...))
	n := len(f.receipts)
	zero, computed := 0, len(prompt)-local
	r := receipt{
		Turn: fmt.Sprint("t", n), Arm: "local", Why: "test", Prefill: "p",
		PLocalTokens: &local, PPulledTokens: &zero, PComputedTokens: &computed,
	}
	if f.spoil != nil {
		f.spoil(n, &r, ids)
	}
	f.receipts = append(f.receipts, r)
	f.mu.Unlock()

	w.Header().Set("X-Tarik-Turn", r.Turn)
	p, _ := json.Marshal(prompt)
	if !body.Stream {
		i, _ := json.Marshal(ids)
		fmt.Fprintf(w, `{"prompt_token_ids":%s,"choices":[{"message":{"content":%q},"token_ids":%s,"finish_reason":"length"}]}`, p, reply, i)
		return
	}
	fmt.Fprintf(w, "data: {\"prompt_token_ids\":%s,\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n", p)
	for i, c := range reply {
		finish := "null"
		if i == len(reply)-1 {
			finish = `"length"`
		}
		fmt.Fprintf(w, ": comment\n\ndata: {\"choices\":[{\"delta\":{\"content\":%q},\"token_ids\":[%d],\"finish_reason\":%s}]}\n\n", string(c), ids[i], finish)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func tokens(s string) []int32 {
	ids := make([]int32, len(s))
	for i := range len(s) {
		ids[i] = int32(s[i])
	}
	return ids
}

// replay runs the program against a fake router and a fake reference.
func replay(t *testing.T, router *fakeEngine, args ...string) (int, string) {
	t.Helper()
	r, ref := httptest.NewServer(router), httptest.NewServer(&fakeEngine{})
	t.Cleanup(r.Close)
	t.Cleanup(ref.Close)
	var out bytes.Buffer
	code, err := run(append([]string{"--router", r.URL, "--admin", r.URL, "--reference", ref.URL}, args...), &out)
	if err != nil {
		t.Fatal(err)
	}
	return code, out.String()
}

func TestReplayPasses(t *testing.T) {
	t.Parallel()
	code, out := replay(t, &fakeEngine{}, "--conversations-dir", "../../test/conversations", "--parallel", "4", "--json", "--conversations", "100", "--max-turns", "100")
	var doc struct {
		Conversations []conversationResult `json:"conversations"`
		Summary       summary              `json:"summary"`
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	if code != 0 || !doc.Summary.Passed || len(doc.Conversations) < 24 || doc.Summary.Continuing < 60 {
		t.Errorf("exit %d, summary %+v", code, doc.Summary)
	}
	for _, c := range doc.Conversations {
		if len(c.Turns) < 2 {
			t.Errorf("%s has %d turns, want 2 or more", c.Name, len(c.Turns))
		}
	}
}

func TestReplayTrace(t *testing.T) {
	t.Parallel()
	code, out := replay(t, &fakeEngine{}, "--trace", writeTrace(t, transcriptRows))
	if code != 0 {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

func TestReplayFinds(t *testing.T) {
	t.Parallel()
	zero := 0
	for name, spoil := range map[string]func(int, *receipt, []int32){
		"TOO LITTLE": func(turn int, r *receipt, _ []int32) {
			if turn == 1 {
				r.PLocalTokens = &zero
			}
		},
		"1 WRONG TOKENS": func(turn int, _ *receipt, ids []int32) {
			if turn == 1 {
				ids[3]++
			}
		},
		"sent no X-Tarik-Turn": func(turn int, r *receipt, _ []int32) {
			if turn == 1 {
				r.Turn = ""
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, out := replay(t, &fakeEngine{spoil: spoil}, "--trace", writeTrace(t, concatenatedRows), "--stream", "always")
			if code != 1 || !strings.Contains(out, name) {
				t.Errorf("exit %d, want 1 and %q:\n%s", code, name, out)
			}
		})
	}
}

var concatenatedRows = []row{
	{30, "<task>fix it</task>\n\n<output>one</output>\n\n<output>two</output>", "third", "a"},
	{10, "<task>fix it</task>", "first", "a"},
	{20, "<task>fix it</task>\n\n<output>one</output>", "second", "a"},
	{40, "<task>fix it</task>\n\n<output>one</output>\n\n<output>other</output>", "fourth", "a"},
	{50, "<task>another</task>", "fifth", "a"},
}

var transcriptRows = []row{
	{10, "user: survey", "facts", "s"},
	{20, "user: survey\n\nassistant: facts\n\nuser: plan", "steps", "s"},
	{30, "assistant: ledger of facts\n\nuser: next?", "search", "s"},
	{40, "user: other chain", "fine", "s"},
	{50, "assistant: ledger of facts\n\nassistant: search\n\nuser: found\nassistant: in one line\n\nuser: next?", "stop", "s"},
	{60, "user: survey\n\nassistant: facts\n\nuser: plan\n\nassistant: steps\n\nuser: go", "gone", "s"},
}

func writeTrace(t *testing.T, rows []row) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "trace.jsonl")
	var b bytes.Buffer
	for _, r := range rows {
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(line, '\n'))
	}
	if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// describe writes a conversation one turn a line: which it continues, then role:text, and =k for the reply of turn k.
func describe(t *testing.T, c conversations.Conversation) []string {
	t.Helper()
	var lines []string
	for _, turn := range c.Turns {
		line := fmt.Sprint(turn.Continues)
		for _, m := range turn.Messages {
			if m.Reply != nil {
				line += fmt.Sprintf(" | =%d", m.Reply.Of)
				continue
			}
			var literal struct{ Role, Content string }
			if err := json.Unmarshal(m.JSON, &literal); err != nil {
				t.Fatal(err)
			}
			line += fmt.Sprintf(" | %s:%s", literal.Role, literal.Content)
		}
		lines = append(lines, line)
	}
	return lines
}

func TestTraceForms(t *testing.T) {
	t.Parallel()
	all := limits{conversations: 9, turns: 99, promptChars: 9999, maxTokens: 8}
	f := func(rows []row, want ...string) {
		t.Helper()
		cs, err := loadTrace(writeTrace(t, rows), all)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, describe(t, cs[0])); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	// Rows are put in order; two rows that extend the same one are branches; a new text is a new chain.
	f(concatenatedRows,
		"-1 | user:<task>fix it</task>",
		"0 | user:<task>fix it</task> | =0 | user:<output>one</output>",
		"1 | user:<task>fix it</task> | =0 | user:<output>one</output> | =1 | user:<output>two</output>",
		"1 | user:<task>fix it</task> | =0 | user:<output>one</output> | =1 | user:<output>other</output>",
		"-1 | user:<task>another</task>",
	)
	// Chains are interleaved; turn 4 quotes turn 2's output without repeating its prompt, so it continues nothing.
	f(transcriptRows,
		"-1 | user:survey",
		"0 | user:survey | =0 | user:plan",
		"-1 | assistant:ledger of facts | user:next?",
		"-1 | user:other chain",
		"-1 | assistant:ledger of facts | =2 | user:found\nassistant: in one line | user:next?",
		"1 | user:survey | =0 | user:plan | =1 | user:go",
	)
}

func TestRepeatedTokens(t *testing.T) {
	t.Parallel()
	f := func(prompt, earlier, reply string, want int) {
		t.Helper()
		if got := repeatedTokens(tokens(prompt), tokens(earlier), tokens(reply), 4); got != want {
			t.Errorf("repeatedTokens(%q, %q, %q) = %d, want %d", prompt, earlier, reply, got, want)
		}
	}
	f("abcdefghij", "abcd", "efgh", 8)
	f("abcdefghij", "abcd", "efgx", 4) // the reply differs in its last token
	f("abcdefghij", "abcx", "defg", 0) // the reply counts only after the whole prompt
	f("abcdefgh", "abcd", "efgh", 4)   // the last token of a prompt is always computed
	f("", "abcd", "", 0)
}

func TestWrongTokens(t *testing.T) {
	t.Parallel()
	f := func(got, want string, wrong int) {
		t.Helper()
		if n := wrongTokens(tokens(got), tokens(want)); n != wrong {
			t.Errorf("wrongTokens(%q, %q) = %d, want %d", got, want, n, wrong)
		}
	}
	f("same", "same", 0)
	f("sane", "same", 1)
	f("sam", "same", 1)
	f("", "same", 4)
}
