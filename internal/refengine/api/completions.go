package api

import (
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// completions serves POST /v1/completions.
func (s *Server) completions(w http.ResponseWriter, r *http.Request) *apiError {
	body, f, err := s.receive(w, r)
	if err != nil {
		return err
	}
	q, err := decodeCompletion(body, s.rel)
	if err != nil {
		return err
	}
	if err := s.checkModel(q.model); err != nil {
		return err
	}
	c := &completionReply{
		s: s, q: q, id: "cmpl-" + s.requestID(r, q.requestID), created: s.now().Unix(),
		promptOnly: q.maxTokens < 0,
	}
	for _, p := range q.prompts {
		ids, text, err := s.completionPrompt(q, p)
		if err != nil {
			return err
		}
		if q.returnTokenIDs {
			text = "" // echo gives the ids instead
		}
		c.prompts = append(c.prompts, ids)
		c.texts = append(c.texts, text)
	}
	if c.promptOnly {
		q.maxTokens = 1
	}
	if err := q.check(); err != nil {
		return err
	}
	out := newOutput(r.Context(), w, f)
	if s.replaced(out, q.stream) {
		return nil
	}
	c.out = out
	c.head = appendReplyHead(nil, c.id, "text_completion", c.created, s.opts.ModelName)
	var seqs []*sequence
	var reqs []*engine.Request
	for i, ids := range c.prompts {
		qs, rs := s.sequences(&q.common, c.id+"-"+string(appendInt(nil, i)), ids, f)
		seqs, reqs = append(seqs, qs...), append(reqs, rs...)
	}
	run, subErr := start(s.opts.Engine, reqs, seqs)
	if subErr != nil {
		return s.engineError(subErr)
	}
	defer run.close()
	if q.stream {
		s.stream(out, func() error { return c.events(run) })
	} else {
		c.whole(run)
	}
	return nil
}

// completionReply is one completion request on its way out. Choice i belongs to prompt i / n.
type completionReply struct {
	s          *Server
	q          *completionRequest
	out        *output
	id         string
	created    int64
	prompts    [][]int32
	texts      []string // of the prompts, for echo
	promptOnly bool     // max_tokens 0 with echo: what was generated is dropped
	head       []byte
	buf        []byte
}

// completionChoice collects one choice.
type completionChoice struct {
	text   strings.Builder
	tokens []int32
	probs  [][]engine.TokenLogprob
	prompt [][]engine.TokenLogprob
	last   delta
}

func (c *completionReply) promptOf(choice int) int { return choice / c.q.n }

func (c *completionReply) promptTokens() int {
	n := 0
	for _, ids := range c.prompts {
		n += len(ids)
	}
	return n
}

func (c *completionReply) whole(run *run) {
	choices := make([]completionChoice, len(run.seqs))
	u := usage{prompt: c.promptTokens()}
	cached := make([]delta, len(choices))
	for d, err := range run.deltas(c.out.ctx) {
		if err != nil {
			c.s.failWhole(c.out, err)
			return
		}
		ch := &choices[d.seq]
		ch.text.WriteString(d.text)
		ch.tokens = append(ch.tokens, d.tokens...)
		ch.probs = append(ch.probs, d.logprobs...)
		if d.promptLogprobs != nil {
			ch.prompt = d.promptLogprobs
		}
		ch.last = d
		cached[d.seq] = d
		u.completion += len(d.tokens)
	}
	last := len(choices) - 1
	c.s.count(&u, len(c.prompts[c.promptOf(last)]), cached[last])

	b := append(c.buf[:0], c.head...)
	for i := range choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = c.appendChoice(b, i, &choices[i])
	}
	b = append(b, `],"service_tier":null,"system_fingerprint":`...)
	b = appendString(b, c.s.fingerprint)
	b = append(b, `,"usage":`...)
	b = c.s.appendUsage(b, u, false)
	b = append(b, ',')
	// Of several prompts only the first one's handle is told, of several choices the last one's.
	b = appendParams(b, choices[c.q.n-1].last.params)
	if c.s.rel.ecParams {
		b = append(b, `,"ec_transfer_params":null`...)
	}
	b = append(b, `,"metrics":null}`...)
	if c.out.wait() == nil {
		c.out.document(http.StatusOK, b)
	}
}

func (c *completionReply) appendChoice(b []byte, index int, ch *completionChoice) []byte {
	p := c.promptOf(index)
	text, tokens, probs := ch.text.String(), ch.tokens, ch.probs
	if c.q.echo {
		text, tokens, probs = c.echo(p, text, tokens, probs, ch.prompt)
	}
	b = append(b, `{"index":`...)
	b = appendInt(b, index)
	b = append(b, `,"text":`...)
	b = appendString(b, text)
	b = append(b, `,"logprobs":`...)
	b = c.s.appendCompletionLogprobs(b, &c.q.common, tokens, probs, 0)
	b = append(b, `,"finish_reason":`...)
	b = appendString(b, string(ch.last.finish))
	b = append(b, `,"stop_reason":`...)
	b = appendRaw(b, ch.last.stopReason)
	b = append(b, `,"token_ids":`...)
	b = appendIDs(b, c.q.returned(ch.tokens))
	b = append(b, `,"prompt_logprobs":`...)
	b = c.s.appendPromptLogprobs(b, ch.prompt, c.q.promptLogprobs >= 0)
	b = append(b, `,"prompt_token_ids":`...)
	b = appendIDs(b, c.q.returned(c.prompts[p]))
	b = append(b, `,"routed_experts":null`...)
	if c.s.rel.weightVersions {
		b = append(b, `,"weight_versions":null`...)
	}
	return append(b, '}')
}

// echo puts the prompt in front.
func (c *completionReply) echo(p int, text string, tokens []int32, probs, prompt [][]engine.TokenLogprob) (string, []int32, [][]engine.TokenLogprob) {
	if c.promptOnly {
		return c.texts[p], c.prompts[p], prompt
	}
	if prompt == nil {
		prompt = make([][]engine.TokenLogprob, len(c.prompts[p]))
	}
	return c.texts[p] + text, slices.Concat(c.prompts[p], tokens), slices.Concat(prompt, probs)
}

// completionStreamChoice is what a stream remembers of one choice.
type completionStreamChoice struct {
	tokens int
	runes  int // characters of text so far
}

func (c *completionReply) events(run *run) error {
	q, s := c.q, c.s
	choices := make([]completionStreamChoice, len(run.seqs))
	h := newHandlePlacer(c.out.f.Handle, s.rel, q.includeUsage)
	run.prepare(c.out)
	u := usage{prompt: c.promptTokens()}
	begun := false
	for d, err := range h.deltas(c.out.ctx, run) {
		if err != nil {
			return err
		}
		u.completion += len(d.tokens)
		if !begun {
			begun = true
			s.count(&u, len(c.prompts[c.promptOf(d.seq)]), d)
		}
		if err := c.deltaEvent(&choices[d.seq], d, h); err != nil {
			return err
		}
	}
	return s.endStream(c.out, c.head, &q.common, u, false, h)
}

func (c *completionReply) deltaEvent(ch *completionStreamChoice, d delta, h *handlePlacer) error {
	q := c.q
	p := c.promptOf(d.seq)
	text, tokens, probs := d.text, d.tokens, d.logprobs
	var prompt []int32
	if d.first {
		prompt = c.q.returned(c.prompts[p])
		if q.echo {
			text, tokens, probs = c.echo(p, text, tokens, probs, d.promptLogprobs)
			prompt = c.prompts[p]
		}
	}
	ch.tokens += len(d.tokens)
	final := d.finish != engine.FinishNone
	b := append(c.buf[:0], c.head...)
	b = append(b, `{"index":`...)
	b = appendInt(b, d.seq)
	b = append(b, `,"text":`...)
	b = appendString(b, text)
	b = append(b, `,"logprobs":`...)
	b = c.s.appendCompletionLogprobs(b, &q.common, tokens, probs, ch.runes)
	ch.runes += utf8.RuneCountInString(text)
	b = append(b, `,"finish_reason":`...)
	if final {
		b = appendString(b, string(d.finish))
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"stop_reason":`...)
	b = appendRaw(b, d.stopReason)
	b = append(b, `,"prompt_token_ids":`...)
	b = appendIDs(b, prompt)
	b = append(b, `,"token_ids":`...)
	b = appendIDs(b, c.q.returned(d.tokens))
	if c.s.rel.weightVersions {
		b = append(b, `,"weight_versions":null`...)
	}
	b = append(b, `}]`...)
	if q.continuousUsage {
		b = c.s.appendRunningUsage(b, len(c.prompts[p]), ch.tokens, false)
	}
	if final && !q.includeUsage {
		b = append(b, `,"system_fingerprint":`...)
		b = appendString(b, c.s.fingerprint)
	}
	c.buf = append(h.appendChunk(b, d), '}')
	return c.out.event(c.buf)
}
