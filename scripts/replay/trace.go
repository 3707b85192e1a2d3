package main

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/tarik-kv/tarik/test/conversations"
)

// row is one request of a text trace: what an agent sent and what its model answered.
type row struct {
	Timestamp int64  `json:"timestamp"` // microseconds
	Input     string `json:"input"`
	Output    string `json:"output"`
	SessionID string `json:"session_id"`
}

// limits bound what is taken from a trace. The engine's own replies come on top of the characters.
type limits struct {
	conversations, turns, promptChars, maxTokens int
}

// loadTrace reads rows, one JSON object a line, gzip or plain, and makes a conversation of each session. Rows of a
// session need not be in order.
func loadTrace(path string, max limits) ([]conversations.Conversation, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		z, err := gzip.NewReader(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		defer z.Close()
		r = z
	}
	sessions := map[string][]row{}
	var order []string
	lines := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var w row
			if err := json.Unmarshal(line, &w); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, n, err)
			}
			if sessions[w.SessionID] == nil {
				order = append(order, w.SessionID)
			}
			sessions[w.SessionID] = append(sessions[w.SessionID], w)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
	}
	base, _, _ := strings.Cut(filepath.Base(path), ".")
	var all []conversations.Conversation
	for _, id := range order {
		if len(all) == max.conversations {
			break
		}
		if c := conversationOf(fmt.Sprintf("%s-%02d", base, len(all)+1), sessions[id], max); len(c.Turns) > 0 {
			all = append(all, c)
		}
	}
	return all, nil
}

// said is one message of a trace: literal text, or an earlier row's output, which the engine's own reply replaces.
type said struct {
	role, text string
	replyOf    int // row whose output this is, -1 for literal text
}

// conversationOf turns a session's rows into turns. Assistant messages that repeat an earlier row's output become
// the engine's own reply of that turn, so that the replayed text really continues.
func conversationOf(name string, rows []row, max limits) conversations.Conversation {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.Timestamp, b.Timestamp) })
	rows = slices.DeleteFunc(rows, func(r row) bool { return r.Input == "" || len(r.Input) > max.promptChars })
	rows = rows[:min(len(rows), max.turns)]

	split := concatenated
	for _, r := range rows {
		if m := transcriptMark.FindStringIndex(r.Input); m != nil && m[0] == 0 {
			split = transcript
		}
	}
	c := conversations.Conversation{Name: name}
	var lists [][]said
	for i := range rows {
		list := split(rows, lists, i)
		t := conversations.Turn{MaxTokens: max.maxTokens, Continues: continued(lists, list)}
		for _, m := range list {
			if m.replyOf >= 0 {
				t.Messages = append(t.Messages, conversations.ReplyTo(m.replyOf))
			} else {
				t.Messages = append(t.Messages, conversations.Literal(m.role, m.text))
			}
		}
		lists = append(lists, list)
		c.Turns = append(c.Turns, t)
	}
	return c
}

// continued returns the turn whose messages and reply list begins with, the longest if there are several, else -1.
func continued(lists [][]said, list []said) int {
	best := -1
	for k, earlier := range lists {
		n := len(earlier)
		if len(list) > n && slices.Equal(list[:n], earlier) && list[n].replyOf == k && (best < 0 || n > len(lists[best])) {
			best = k
		}
	}
	return best
}

// concatenated reads inputs that hold only the user's messages, glued together: each input is an earlier one and a
// new observation. The assistant's turns between them are not in the trace, but are in what an agent sends.
func concatenated(rows []row, lists [][]said, i int) []said {
	parent := -1
	for k := range lists {
		if strings.HasPrefix(rows[i].Input, rows[k].Input) && (parent < 0 || len(rows[k].Input) >= len(rows[parent].Input)) {
			parent = k
		}
	}
	if parent < 0 {
		return []said{{"user", rows[i].Input, -1}}
	}
	list := slices.Clone(lists[parent])
	if rest := strings.TrimLeft(rows[i].Input[len(rows[parent].Input):], "\n"); rest != "" {
		list = append(list, said{"assistant", "", parent}, said{"user", rest, -1})
	}
	return list
}

var transcriptMark = regexp.MustCompile(`(?:^|\n\n)(system|user|assistant): `)

// transcript reads inputs of the form "user: …\n\nassistant: …". Several chains may run through one session; each
// input says itself which messages it repeats.
func transcript(rows []row, lists [][]said, i int) []said {
	input := rows[i].Input
	marks := transcriptMark.FindAllStringSubmatchIndex(input, -1)
	if len(marks) == 0 || marks[0][0] != 0 {
		return []said{{"user", input, -1}}
	}
	var list []said
	for n, m := range marks {
		end := len(input)
		if n+1 < len(marks) {
			end = marks[n+1][0]
		}
		s := said{input[m[2]:m[3]], strings.TrimSpace(input[m[1]:end]), -1}
		if s.role == "assistant" && s.text != "" {
			for k := range lists {
				// The chain's own reply wins over an equal text from elsewhere.
				own := slices.Equal(lists[k], list)
				if strings.TrimSpace(rows[k].Output) == s.text && (own || s.replyOf < 0) {
					s.replyOf = k
				}
			}
			if s.replyOf >= 0 {
				s.text = ""
			}
		}
		list = append(list, s)
	}
	return list
}
