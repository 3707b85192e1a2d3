package bench

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tarik-kv/tarik/internal/sse"
)

// Failure is why a turn has no valid measurement. Its kinds are few and stable, for counting.
type Failure struct {
	Kind   string // one of the Fail constants, or "http-" and the status
	Detail string // for people; an endpoint's own words are cut short
}

// Kinds of failures, besides "http-500" and the like.
const (
	FailConnect   = "connect"      // no answer at all
	FailTimeout   = "timeout"      // the turn took longer than the limit
	FailMalformed = "malformed"    // an event or a reply that is not what it should be
	FailCut       = "cut"          // the stream ended without [DONE]
	FailEvent     = "error-event"  // the stream says that something failed
	FailEmpty     = "empty"        // a complete stream without content
	FailPrefill   = "p-call"       // pd arms: P failed; the detail says how
	FailPrepare   = "prepare"      // pd arms: what the policy does between turns failed
	FailStopped   = "interrupted"  // the run was stopped
	FailExpand    = "conversation" // the turn cannot be built from the replies so far
)

func (f *Failure) Error() string { return f.Kind + ": " + f.Detail }

func failed(kind, format string, args ...any) *Failure {
	return &Failure{kind, fmt.Sprintf(format, args...)}
}

// reply is one streamed answer as it was seen.
type reply struct {
	text    strings.Builder // what is compared between arms: reasoning, content and tool calls in their order
	content strings.Builder // what a client sends back as the assistant's message
	first   time.Time       // when the first content came
	last    time.Time       // when the stream ended
	gaps    []time.Duration // between events with content
	finish  string
	usage   *usage
	ids     []int32 // of the answer, if asked for
	prompt  []int32 // of the prompt, if asked for
	params  json.RawMessage

	lastContent time.Time
}

// digest is a short name of the answer: equal answers have equal ones.
func (r *reply) digest() string {
	sum := sha256.Sum256([]byte(r.text.String()))
	return hex.EncodeToString(sum[:8])
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Details    *struct {
		Cached *int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func (u *usage) cached() *int {
	if u == nil || u.Details == nil {
		return nil
	}
	return u.Details.Cached
}

// chunk is what is read of an event of a chat completion, or of a completion.
type chunk struct {
	Choices []struct {
		Delta struct {
			Content          *string `json:"content"`
			Reasoning        *string `json:"reasoning"`
			ReasoningContent *string `json:"reasoning_content"`
			ToolCalls        []struct {
				Function struct {
					Name      string `json:"name"`
					Arguments string `json:"arguments"`
				} `json:"function"`
			} `json:"tool_calls"`
		} `json:"delta"`
		Text           string  `json:"text"` // of a completion
		FinishReason   *string `json:"finish_reason"`
		TokenIDs       []int32 `json:"token_ids"`
		PromptTokenIDs []int32 `json:"prompt_token_ids"` // of a completion
	} `json:"choices"`
	PromptTokenIDs []int32         `json:"prompt_token_ids"`
	Usage          *usage          `json:"usage"`
	Params         json.RawMessage `json:"kv_transfer_params"`
	Error          json.RawMessage `json:"error"`
}

// readBytes is the size of one read. Larger than an event of any usual stream, so that each read is one stamp.
const readBytes = 64 << 10

// readStream reads a stream of chat completion events to its end. Each event is stamped with the time of the read
// that completed it, before it is decoded.
func readStream(body io.Reader, r *reply) *Failure {
	var (
		framer sse.Framer
		buf    = make([]byte, readBytes)
		done   bool
	)
	for {
		n, err := body.Read(buf)
		now := time.Now()
		framer.Feed(buf[:n])
		for ev, ok := framer.Next(); ok; ev, ok = framer.Next() {
			if f := r.event(&ev, now, &done); f != nil {
				return f
			}
		}
		if err == nil {
			continue
		}
		r.last = now
		if ev, ok := framer.Flush(); ok && errors.Is(err, io.EOF) {
			if f := r.event(&ev, now, &done); f != nil {
				return f
			}
		}
		switch {
		case done && r.first.IsZero():
			return failed(FailEmpty, "the stream has no content, finish_reason %q", r.finish)
		case done:
			return nil
		case errors.Is(err, io.EOF):
			return failed(FailCut, "the stream ended without [DONE]")
		}
		return transportFailure(err)
	}
}

func (r *reply) event(ev *sse.Event, now time.Time, done *bool) *Failure {
	if ev.Partial {
		return failed(FailMalformed, "an event of more than %d bytes", sse.DefaultMaxEventBytes)
	}
	if !ev.HasData() || *done {
		return nil
	}
	data := bytes.TrimSpace(ev.Data())
	if string(data) == "[DONE]" {
		*done = true
		return nil
	}
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return failed(FailMalformed, "an event is no chat completion chunk: %v", jsonError(err))
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return failed(FailEvent, "%s", errorText(c.Error))
	}
	if c.Usage != nil {
		r.usage = c.Usage
	}
	if c.PromptTokenIDs != nil {
		r.prompt = c.PromptTokenIDs
	}
	if len(c.Params) > 0 && string(c.Params) != "null" {
		r.params = bytes.Clone(c.Params)
	}
	content := false
	for i := range c.Choices {
		ch := &c.Choices[i]
		if ch.FinishReason != nil {
			r.finish = *ch.FinishReason
		}
		if ch.PromptTokenIDs != nil {
			r.prompt = ch.PromptTokenIDs
		}
		for _, s := range []*string{ch.Delta.Reasoning, ch.Delta.ReasoningContent, ch.Delta.Content, &ch.Text} {
			if s != nil && *s != "" {
				r.text.WriteString(*s)
				content = true
			}
		}
		if s := ch.Delta.Content; s != nil {
			r.content.WriteString(*s)
		}
		r.content.WriteString(ch.Text)
		for _, t := range ch.Delta.ToolCalls { // their ids are random
			r.text.WriteString(t.Function.Name)
			r.text.WriteString(t.Function.Arguments)
			content = true
		}
		// A token whose text is not complete yet is one nevertheless, if the engine names it.
		if len(ch.TokenIDs) > 0 {
			r.ids = append(r.ids, ch.TokenIDs...)
			content = true
		}
	}
	if content {
		if r.first.IsZero() {
			r.first = now
		} else {
			r.gaps = append(r.gaps, now.Sub(r.lastContent))
		}
		r.lastContent = now
	}
	return nil
}

// jsonError says what is wrong without quoting what was read.
func jsonError(err error) string {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Sprintf("not JSON at byte %d", syntax.Offset)
	case errors.As(err, &kind):
		return fmt.Sprintf("%s is a %s", kind.Field, kind.Value)
	}
	return "not readable"
}

// maxErrorText bounds how much of an endpoint's error is kept, in bytes.
const maxErrorText = 200

// errorText is the message of an OpenAI error object, or what there is instead.
func errorText(raw []byte) string {
	var e struct {
		Message string `json:"message"`
		Error   *struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	s := string(raw)
	if json.Unmarshal(raw, &e) == nil {
		switch {
		case e.Error != nil && e.Error.Message != "":
			s = e.Error.Message
		case e.Message != "":
			s = e.Message
		}
	}
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "?")), " ")
	if len(s) > maxErrorText {
		s = strings.ToValidUTF8(s[:maxErrorText], "") + "…"
	}
	return s
}
