package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/tarik-kv/tarik/test/conversations"
)

// turnResult is what became of one turn. Token counts are of the prompt.
type turnResult struct {
	Turn      int    `json:"turn"`      // index in the conversation
	Continues bool   `json:"continues"` // judged by --min-reuse
	Streamed  bool   `json:"streamed"`
	Error     string `json:"error,omitempty"`

	PromptTokens   int      `json:"prompt_tokens"`
	ReplyTokens    int      `json:"reply_tokens"`
	RepeatedTokens int      `json:"repeated_tokens"` // whole blocks, of one earlier turn's prompt and reply
	ReusedTokens   int      `json:"reused_tokens"`
	TooLittle      bool     `json:"too_little"`
	WrongTokens    int      `json:"wrong_tokens"` // against the reference; the prompt's count too
	TTFTMillis     float64  `json:"ttft_ms"`
	Receipt        *receipt `json:"receipt,omitempty"`
}

type conversationResult struct {
	Name  string       `json:"name"`
	Turns []turnResult `json:"turns"`
}

// player plays conversations against one router.
type player struct {
	*options
	client *client
	out    sync.Mutex // one conversation's lines stay together
}

// play sends the turns of one conversation in order. It stops at the first turn that fails, since later ones need
// its reply.
func (p *player) play(ctx context.Context, c *conversations.Conversation) conversationResult {
	result := conversationResult{Name: c.Name}
	var replies []string
	var answers []*answer
	for i := range c.Turns {
		r, a := p.playTurn(ctx, c, i, replies, answers)
		result.Turns = append(result.Turns, r)
		if a == nil {
			break
		}
		replies, answers = append(replies, a.Text), append(answers, a)
	}
	return result
}

func (p *player) playTurn(ctx context.Context, c *conversations.Conversation, i int, replies []string, earlier []*answer) (turnResult, *answer) {
	t := &c.Turns[i]
	r := turnResult{Turn: i, Continues: t.Continues >= 0, Streamed: t.Stream}
	fail := func(err error) (turnResult, *answer) {
		r.Error = err.Error()
		return r, nil
	}
	messages, err := t.Expand(replies)
	if err != nil {
		return fail(err)
	}
	body := request{
		Model: p.model, Messages: messages, Tools: t.Tools, MaxTokens: t.MaxTokens, ReturnTokenIDs: true, Stream: t.Stream,
	}
	header := http.Header{}
	if p.sendIDs {
		header.Set("X-Conversation-Id", c.Name)
	}
	a, err := p.client.chat(ctx, p.router, body, header)
	if err != nil {
		return fail(err)
	}
	r.PromptTokens, r.ReplyTokens, r.TTFTMillis = len(a.PromptIDs), len(a.IDs), float64(a.TTFT.Microseconds())/1000

	if k := t.Continues; k >= 0 {
		r.RepeatedTokens = repeatedTokens(a.PromptIDs, earlier[k].PromptIDs, earlier[k].IDs, p.blockSize)
	} else {
		for _, e := range earlier {
			r.RepeatedTokens = max(r.RepeatedTokens, repeatedTokens(a.PromptIDs, e.PromptIDs, e.IDs, p.blockSize))
		}
	}
	if a.TurnID == "" {
		return fail(fmt.Errorf("%s sent no X-Tarik-Turn", p.router))
	}
	if r.Receipt, err = p.client.receipt(ctx, p.admin, a.TurnID); err != nil {
		return fail(err)
	}
	r.ReusedTokens = r.Receipt.reused()
	r.TooLittle = r.Continues && float64(r.ReusedTokens) < p.minReuse*float64(r.RepeatedTokens)

	if p.reference != "" {
		body.Stream, body.CacheSalt = false, uniqueSalt()
		want, err := p.client.chat(ctx, p.reference, body, nil)
		if err != nil {
			return fail(fmt.Errorf("reference: %w", err))
		}
		r.WrongTokens = wrongTokens(a.PromptIDs, want.PromptIDs) + wrongTokens(a.IDs, want.IDs)
		if r.WrongTokens == 0 && (a.Text != want.Text || a.Finish != want.Finish) {
			return fail(fmt.Errorf("same tokens, but the text or finish reason differs: %q (%s), want %q (%s)", a.Text, a.Finish, want.Text, want.Finish))
		}
	}
	return r, a
}

// print writes the table of one conversation.
func (p *player) print(out io.Writer, c *conversationResult) {
	p.out.Lock()
	defer p.out.Unlock()
	fmt.Fprintf(out, "%s\n  turn  prompt  reply  repeated  reused  share  P local  pulled  computed  D cached  TTFT ms  arm\n", c.Name)
	for i := range c.Turns {
		t := &c.Turns[i]
		if t.Error != "" {
			fmt.Fprintf(out, "  %4d  FAILED: %s\n", t.Turn, t.Error)
			continue
		}
		mark := ""
		if t.TooLittle {
			mark += "  TOO LITTLE"
		}
		if t.WrongTokens > 0 {
			mark += fmt.Sprintf("  %d WRONG TOKENS", t.WrongTokens)
		}
		if !t.Continues && t.RepeatedTokens > 0 {
			mark += "  (not judged)"
		}
		r := t.Receipt
		fmt.Fprintf(out, "  %4d  %6d  %5d  %8d  %6d  %5s  %7d  %6d  %8d  %8d  %7.1f  %s, %s%s\n",
			t.Turn, t.PromptTokens, t.ReplyTokens, t.RepeatedTokens, t.ReusedTokens, share(t.ReusedTokens, t.RepeatedTokens),
			count(r.PLocalTokens), count(r.PPulledTokens), count(r.PComputedTokens), count(r.DCachedTokens), t.TTFTMillis, r.Arm, r.Why, mark)
	}
}

// share is reused/repeated for a table. More than everything is everything: a part block was reused too.
func share(reused, repeated int) string {
	if repeated == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f", min(1, float64(reused)/float64(repeated)))
}

// summary is the verdict over all conversations.
type summary struct {
	Conversations  int            `json:"conversations"`
	Turns          int            `json:"turns"`
	Continuing     int            `json:"continuing_turns"` // with repeated tokens, so judged
	TooLittle      int            `json:"too_little"`
	Failed         int            `json:"failed"`
	Checked        bool           `json:"answers_checked"`
	WrongTurns     int            `json:"wrong_turns"`
	WrongTokens    int            `json:"wrong_tokens"`
	PromptTokens   int            `json:"prompt_tokens"`
	RepeatedTokens int            `json:"repeated_tokens"`
	ReusedTokens   int            `json:"reused_tokens"` // at most the repeated ones of each turn
	PulledTokens   int            `json:"pulled_tokens"`
	LowestShare    float64        `json:"lowest_share"` // of a continuing turn
	Arms           map[string]int `json:"arms"`
	Passed         bool           `json:"passed"`
	minReuse       float64
}

func summarise(results []conversationResult, o *options) *summary {
	s := &summary{Conversations: len(results), LowestShare: 1, Arms: map[string]int{}, Checked: o.reference != "", minReuse: o.minReuse}
	for i := range results {
		for k := range results[i].Turns {
			t := &results[i].Turns[k]
			s.Turns++
			if t.Error != "" {
				s.Failed++
				continue
			}
			s.PromptTokens += t.PromptTokens
			s.RepeatedTokens += t.RepeatedTokens
			s.ReusedTokens += min(t.ReusedTokens, t.RepeatedTokens)
			s.PulledTokens += count(t.Receipt.PPulledTokens)
			s.Arms[t.Receipt.Arm]++
			if t.Continues && t.RepeatedTokens > 0 {
				s.Continuing++
				s.LowestShare = min(s.LowestShare, float64(t.ReusedTokens)/float64(t.RepeatedTokens))
			}
			if t.TooLittle {
				s.TooLittle++
			}
			if t.WrongTokens > 0 {
				s.WrongTurns++
				s.WrongTokens += t.WrongTokens
			}
		}
	}
	s.Passed = s.Turns > 0 && s.Failed == 0 && s.TooLittle == 0 && s.WrongTokens == 0
	return s
}

func (s *summary) print(out io.Writer) {
	fmt.Fprintf(out, "\n%d conversations, %d turns, %d prompt tokens\n", s.Conversations, s.Turns, s.PromptTokens)
	fmt.Fprintf(out, "repeated %d tokens, reused %d of them (%s), pulled from D %d\n",
		s.RepeatedTokens, s.ReusedTokens, share(s.ReusedTokens, s.RepeatedTokens), s.PulledTokens)
	fmt.Fprintf(out, "%d turns continue an earlier one; lowest share %.3f; %d below %.2f\n", s.Continuing, s.LowestShare, s.TooLittle, s.minReuse)
	if s.Checked {
		fmt.Fprintf(out, "answers compared with the reference: %d wrong tokens in %d turns\n", s.WrongTokens, s.WrongTurns)
	} else {
		fmt.Fprintln(out, "answers were not checked (no --reference)")
	}
	fmt.Fprintf(out, "arms %v, failed turns %d\n", s.Arms, s.Failed)
	if s.Passed {
		fmt.Fprintln(out, "PASSED")
	} else {
		fmt.Fprintln(out, "FAILED")
	}
}
