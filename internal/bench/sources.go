package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tarik-kv/tarik/test/conversations"
)

// Load reads the conversations or the trace that the settings name into the plan.
func (p *Plan) Load(s *Settings) error {
	switch {
	case s.Conversations != "":
		list, err := readConversations(s.Conversations)
		if err != nil {
			return fmt.Errorf("--conversations: %w", err)
		}
		p.Conversations = limited(list, s.Limit)
		p.Source = fmt.Sprintf("%d conversations of %s", len(p.Conversations), filepath.Base(s.Conversations))
	case s.Replay != "":
		list, err := readTrace(s.Replay, s.Limit)
		if err != nil {
			return fmt.Errorf("--replay: %w", err)
		}
		p.Conversations, p.Loads, p.Thinks = list, []Load{{Trace: true}}, []ThinkTime{{}}
		p.Source = fmt.Sprintf("%d conversations of trace %s at %g times its speed", len(p.Conversations), filepath.Base(s.Replay), p.Speed)
	}
	return nil
}

func limited(list []Conversation, limit int) []Conversation {
	if limit > 0 && limit < len(list) {
		return list[:limit]
	}
	return list
}

// readConversations reads a directory of files as those of test/conversations, or JSON lines, each a conversation: a
// list of messages, or an object with messages and tools.
func readConversations(path string) ([]Conversation, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		files, err := conversations.Load(os.DirFS(path))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		var list []Conversation
		for _, f := range files {
			list = append(list, given(f))
		}
		return list, nil
	}
	var list []Conversation
	err = eachLine(path, func(line []byte) error {
		c, err := parseMessages(line)
		if err == nil {
			list = append(list, c)
		}
		return err
	})
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("%s: no conversation", path)
	}
	return list, err
}

// given is a conversation of the project's own file form.
func given(f conversations.Conversation) Conversation {
	c := Conversation{Name: f.Name}
	for i := range f.Turns {
		t := &f.Turns[i]
		c.Turns = append(c.Turns, Turn{Tools: t.Tools, MaxTokens: t.MaxTokens, Expand: func(_ Calibration, replies []string) ([]json.RawMessage, error) {
			return t.Expand(replies)
		}})
	}
	return c
}

// parseMessages makes a conversation of a list of messages as chat logs have them. Each assistant message is a turn,
// whose prompt is everything before it; what follows the last is one more. The endpoint's own reply takes the place of
// the recorded one, but tool calls stay as they were recorded: the tool messages after them answer those.
func parseMessages(line []byte) (Conversation, error) {
	var o struct {
		Name     string            `json:"name"`
		Messages []json.RawMessage `json:"messages"`
		Tools    json.RawMessage   `json:"tools"`
	}
	var err error
	if trimmed := bytes.TrimSpace(line); len(trimmed) > 0 && trimmed[0] == '[' {
		err = json.Unmarshal(line, &o.Messages)
	} else {
		err = json.Unmarshal(line, &o)
	}
	if err != nil {
		return Conversation{}, errors.New(jsonError(err))
	}
	f := conversations.Conversation{Name: o.Name}
	var so []conversations.Message
	for i, raw := range o.Messages {
		var m map[string]json.RawMessage
		if err := json.Unmarshal(raw, &m); err != nil {
			return Conversation{}, fmt.Errorf("message %d: %s", i+1, jsonError(err))
		}
		if string(m["role"]) != `"assistant"` {
			so = append(so, conversations.Message{JSON: raw})
			continue
		}
		if len(so) == 0 {
			return Conversation{}, errors.New("the first message is an assistant's")
		}
		f.Turns = append(f.Turns, conversations.Turn{Messages: slices.Clone(so), Tools: o.Tools})
		delete(m, "content")
		rest, err := encode(m)
		if err != nil {
			return Conversation{}, err
		}
		so = append(so, conversations.Message{JSON: rest, Reply: &conversations.Reply{Of: len(f.Turns) - 1}})
	}
	if n := len(so); n > 0 && so[n-1].Reply == nil {
		f.Turns = append(f.Turns, conversations.Turn{Messages: so, Tools: o.Tools})
	}
	if len(f.Turns) == 0 {
		return Conversation{}, errors.New("no messages")
	}
	return given(f), nil
}

// eachLine calls f with every line that is not blank of a file, plain or gzip. Errors name the line.
func eachLine(path string, f func(line []byte) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	var r io.Reader = file
	if strings.HasSuffix(path, ".gz") {
		z, err := gzip.NewReader(file)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		r = z
	}
	lines := bufio.NewReaderSize(r, 1<<20)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			if err := f(line); err != nil {
				return fmt.Errorf("%s:%d: %w", path, n, err)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
}

// traceRow is a request of a trace, in any of the forms that are understood.
type traceRow struct {
	// Text traces: microseconds, prompt as text.
	Timestamp *float64 `json:"timestamp"`
	Input     string   `json:"input"`
	Output    string   `json:"output"`
	SessionID string   `json:"session_id"`
	// Block traces: milliseconds, tokens, and an id for each block of 512 tokens that names it and all before it.
	InputLength  int   `json:"input_length"`
	OutputLength int   `json:"output_length"`
	HashIDs      []int `json:"hash_ids"`
	// Traces of counts: seconds.
	ConversationID   string   `json:"conversation_id"`
	TS               *float64 `json:"ts"`
	PromptTokens     int      `json:"prompt_tokens"`
	CompletionTokens int      `json:"completion_tokens"`
}

// request is a row of any form.
type request struct {
	conversation string
	at           time.Duration
	reply        int // tokens; 0: the plan's
	text         string
	tokens       int
	blocks       []int
}

// blockTokens is the size of a block in a block trace.
const blockTokens = 512

func (w *traceRow) request(line int) (request, error) {
	switch {
	case w.Timestamp != nil && w.HashIDs != nil:
		if w.InputLength <= 0 {
			return request{}, errors.New("input_length: want more than 0")
		}
		// The trace has no conversations: every request is one by itself, and finds what others left in P's cache.
		return request{fmt.Sprint("request ", line), time.Duration(*w.Timestamp * float64(time.Millisecond)), w.OutputLength, "", w.InputLength, w.HashIDs}, nil
	case w.Timestamp != nil && w.Input != "":
		return request{w.SessionID, time.Duration(*w.Timestamp * float64(time.Microsecond)), 0, w.Input, 0, nil}, nil
	case w.TS != nil && w.PromptTokens > 0:
		return request{w.ConversationID, time.Duration(*w.TS * float64(time.Second)), w.CompletionTokens, "", w.PromptTokens, nil}, nil
	}
	return request{}, errors.New("neither a text trace (timestamp, input, session_id), a block trace (timestamp, input_length, hash_ids) nor counts (conversation_id, ts, prompt_tokens)")
}

// readTrace reads a trace and makes a conversation of each one in it, at most limit (0: all), in the order of their
// first requests. Times count from the first request.
func readTrace(path string, limit int) ([]Conversation, error) {
	byName := map[string][]request{}
	var names []string
	n := 0
	err := eachLine(path, func(line []byte) error {
		n++
		var w traceRow
		if err := json.Unmarshal(line, &w); err != nil {
			return errors.New(jsonError(err))
		}
		q, err := w.request(n)
		if err != nil {
			return err
		}
		if byName[q.conversation] == nil {
			names = append(names, q.conversation)
		}
		byName[q.conversation] = append(byName[q.conversation], q)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: no request", path)
	}
	for _, rows := range byName {
		slices.SortStableFunc(rows, func(a, b request) int { return cmp.Compare(a.at, b.at) })
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(byName[a][0].at, byName[b][0].at) })
	if limit > 0 && limit < len(names) {
		names = names[:limit]
	}
	zero := byName[names[0]][0].at
	var list []Conversation
	for i, name := range names {
		list = append(list, replayed(uint64(i)<<32, byName[name], zero))
	}
	return list, nil
}

// replayed is a conversation of a trace.
func replayed(seed uint64, rows []request, zero time.Duration) Conversation {
	c := Conversation{Name: rows[0].conversation}
	begin, said := 0, 0 // the row that the present history begins with, and its tokens so far
	for k, q := range rows {
		t := Turn{MaxTokens: q.reply, At: q.at - zero}
		switch {
		case q.text != "":
			t.Expand = func(Calibration, []string) ([]json.RawMessage, error) {
				return []json.RawMessage{textMessage("user", q.text)}, nil
			}
		case q.blocks != nil:
			t.Expand = func(c Calibration, _ []string) ([]json.RawMessage, error) {
				var parts []string
				for i, id := range q.blocks {
					parts = append(parts, c.sized(uint64(id), min(blockTokens, q.tokens-i*blockTokens), i == 0))
				}
				return []json.RawMessage{textMessage("user", strings.Join(parts, " "))}, nil
			}
		default:
			// A prompt that is longer than the last prompt and its reply goes on; another one begins anew.
			grown := q.tokens - said
			if k == 0 || grown <= 0 {
				begin, grown = k, q.tokens
			}
			said = q.tokens + q.reply
			first, last := begin, k
			sizes := make([]int, 0, last-first+1)
			for i := first; i < last; i++ {
				sizes = append(sizes, growth(rows, first, i))
			}
			sizes = append(sizes, grown)
			t.Expand = func(c Calibration, replies []string) ([]json.RawMessage, error) {
				if len(replies) < last {
					return nil, fmt.Errorf("turn %d: %d replies so far", last+1, len(replies))
				}
				var messages []json.RawMessage
				for i, n := range sizes {
					if i > 0 {
						messages = append(messages, textMessage("assistant", replies[first+i-1]))
					}
					messages = append(messages, textMessage("user", c.sized(seed+uint64(first+i), n, i == 0)))
				}
				return messages, nil
			}
		}
		c.Turns = append(c.Turns, t)
	}
	return c
}

// growth is how many tokens row i adds to the history that begins at row first.
func growth(rows []request, first, i int) int {
	if i == first {
		return rows[i].tokens
	}
	return rows[i].tokens - rows[i-1].tokens - rows[i-1].reply
}
