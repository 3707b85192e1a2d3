// Package conversations holds agent conversations of the project's own making and reads their files, and
// compatible ones from elsewhere. README.md describes the file form.
//
//	file ──Load──► Conversation: every turn with its whole list of messages
//	                    │
//	                    └─ Turn.Expand(replies so far) ──► the messages as a client sends them
//
// What the model said is never in a file: an assistant message stands for the reply to an earlier turn, whatever
// it was, so that a conversation really continues on any engine. A Conversation is read only after Load; its
// methods may be called at the same time. The package sends nothing and compares nothing.
package conversations

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

//go:embed *.json
var files embed.FS

// Conversation is a list of requests that belong together.
type Conversation struct {
	Name  string
	Turns []Turn
}

// Turn is one request of a conversation.
type Turn struct {
	Messages  []Message
	Tools     json.RawMessage // an array of tool definitions, or nil
	MaxTokens int             // output tokens, at least 1
	Stream    bool
	// Continues is the turn (its index) whose messages and whole reply this one begins with, -1 if there is none.
	// Such a turn repeats everything that was computed for the other.
	Continues int
}

// Message is one entry of a turn's list.
type Message struct {
	// JSON is the message, without its content if Reply is set.
	JSON  json.RawMessage
	Reply *Reply
}

// Reply is the content of an assistant message: what the engine answered to an earlier turn of the conversation.
type Reply struct {
	Of            int  `json:"reply_of"`                 // the turn's index
	DropReasoning bool `json:"drop_reasoning,omitempty"` // only what follows the last </think>, as many clients do
	FirstChars    int  `json:"first_chars,omitempty"`    // only so many characters, as after a broken connection; 0: all
}

// Literal is a message with fixed content.
func Literal(role, content string) Message {
	raw, err := encode(struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}{role, content})
	if err != nil {
		panic("BUG: two strings are always JSON: " + err.Error())
	}
	return Message{JSON: raw}
}

// ReplyTo is the assistant message that repeats the whole reply to turn k.
func ReplyTo(k int) Message {
	return Message{JSON: json.RawMessage(`{"role":"assistant"}`), Reply: &Reply{Of: k}}
}

// All returns the conversations of this folder, in the order of their file names.
func All() ([]Conversation, error) { return Load(files) }

// Load reads every *.json file at the top of fsys, in the order of their names. It returns an error if there is
// none, or if one of them is not as README.md says.
func Load(fsys fs.FS) ([]Conversation, error) {
	names, err := fs.Glob(fsys, "*.json")
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, errors.New("no *.json")
	}
	var all []Conversation
	for _, name := range names { // Glob sorts them
		data, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, err
		}
		c, err := parse(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if name != c.Name+".json" {
			return nil, fmt.Errorf("%s: name is %q, want the file's own", name, c.Name)
		}
		all = append(all, *c)
	}
	return all, nil
}

// parse reads one file.
func parse(data []byte) (*Conversation, error) {
	var file struct {
		Name  string `json:"name"`
		About string `json:"about"` // for readers
		Turns []struct {
			Continues *int              `json:"continues"`
			Messages  []json.RawMessage `json:"messages"`
			Tools     json.RawMessage   `json:"tools"`
			MaxTokens int               `json:"max_tokens"`
			Stream    bool              `json:"stream"`
		} `json:"turns"`
	}
	if err := strict(data, &file); err != nil {
		return nil, err
	}
	c := &Conversation{Name: file.Name}
	for i, f := range file.Turns {
		t := Turn{MaxTokens: f.MaxTokens, Stream: f.Stream, Tools: f.Tools, Continues: -1}
		if k := f.Continues; k != nil {
			if *k < 0 || *k >= i {
				return nil, fmt.Errorf("turn %d: continues %d, which is not an earlier turn", i, *k)
			}
			if f.Tools != nil {
				return nil, fmt.Errorf("turn %d: tools come from the turn it continues", i)
			}
			t.Continues, t.Tools = *k, c.Turns[*k].Tools
			t.Messages = append(append(t.Messages, c.Turns[*k].Messages...), ReplyTo(*k))
		}
		for n, raw := range f.Messages {
			more, err := c.entry(raw)
			if err != nil {
				return nil, fmt.Errorf("turn %d, message %d: %w", i, n, err)
			}
			t.Messages = append(t.Messages, more...)
		}
		if len(t.Messages) == 0 || t.MaxTokens < 1 {
			return nil, fmt.Errorf("turn %d: no messages, or max_tokens below 1", i)
		}
		c.Turns = append(c.Turns, t)
	}
	if c.Name == "" || len(c.Turns) == 0 {
		return nil, errors.New("no name or no turns")
	}
	return c, nil
}

// entry reads one element of a turn's "messages": a message, or a reference to messages of an earlier turn.
func (c *Conversation) entry(raw json.RawMessage) ([]Message, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		return nil, err
	}
	if _, ok := members["repeat_of"]; ok {
		var r struct {
			Of   int  `json:"repeat_of"`
			From int  `json:"from"`
			To   *int `json:"to"`
		}
		if err := strict(raw, &r); err != nil {
			return nil, err
		}
		if r.Of < 0 || r.Of >= len(c.Turns) {
			return nil, fmt.Errorf("repeat_of %d is not an earlier turn", r.Of)
		}
		list := c.Turns[r.Of].Messages
		to := len(list)
		if r.To != nil {
			to = *r.To
		}
		if r.From < 0 || r.From >= to || to > len(list) {
			return nil, fmt.Errorf("messages %d to %d of turn %d, which has %d", r.From, to, r.Of, len(list))
		}
		return list[r.From:to], nil
	}
	content := bytes.TrimSpace(members["content"])
	if !bytes.HasPrefix(content, []byte("{")) {
		return []Message{{JSON: raw}}, nil
	}
	reply := Reply{Of: -1}
	if err := strict(content, &reply); err != nil {
		return nil, fmt.Errorf("content: %w", err)
	}
	if reply.Of < 0 || reply.Of >= len(c.Turns) {
		return nil, fmt.Errorf("content: reply_of %d is not an earlier turn", reply.Of)
	}
	if string(members["role"]) != `"assistant"` {
		return nil, fmt.Errorf("content: reply_of in a message of role %s", members["role"])
	}
	delete(members, "content")
	rest, err := encode(members)
	if err != nil {
		return nil, err
	}
	return []Message{{JSON: rest, Reply: &reply}}, nil
}

// Expand returns the messages as they go over the wire. replies holds the text that the engine answered to each
// earlier turn.
func (t *Turn) Expand(replies []string) ([]json.RawMessage, error) {
	out := make([]json.RawMessage, len(t.Messages))
	for i, m := range t.Messages {
		out[i] = m.JSON
		if m.Reply == nil {
			continue
		}
		if m.Reply.Of >= len(replies) {
			return nil, fmt.Errorf("message %d: no reply of turn %d yet", i, m.Reply.Of)
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(m.JSON, &members); err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		var err error
		if members["content"], err = encode(m.Reply.text(replies[m.Reply.Of])); err != nil {
			return nil, err
		}
		if out[i], err = encode(members); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// text is what a client sends back of an answer.
func (r *Reply) text(answer string) string {
	if r.DropReasoning {
		if i := strings.LastIndex(answer, "</think>"); i >= 0 {
			answer = strings.TrimLeft(answer[i+len("</think>"):], "\n")
		}
	}
	if r.FirstChars > 0 {
		if runes := []rune(answer); len(runes) > r.FirstChars {
			answer = string(runes[:r.FirstChars])
		}
	}
	return answer
}

// strict decodes data and refuses members that the target does not have.
func strict(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// encode is json.Marshal without the escaping of <, > and &, of which prompts are full.
func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
