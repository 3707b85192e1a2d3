package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/sse"
)

// pair plays the router between one P and one D for one conversation, by the arm's policy.
//
//	turn     P: the client's body, max_tokens 1, params ─► A     D: the client's body, A ─► answer, B
//	between  none, append  B is released unread
//	         held          the next prompt is rendered, B cut to what both share
//	         return        what the next prompt must begin with is rendered, and P is given it with B, cut
//	         oracle        P is given the same without B, and computes it
//
// Where D's stream carries no B (before vLLM 0.33) and the policy needs one, D is asked for it between the turns: the
// same tokens with max_tokens 1 and params that make it keep the blocks. That costs D one step, which is not timed.
type pair struct {
	client    *http.Client
	arm       *Arm
	blockSize int // of D, tokens

	held *kvp.Held
	cut  kvp.Handle // what the next P call is given, zero for the null form
	ids  []int32    // of an arm that speaks in ids: the prompt of the next turn
}

var _ player = (*pair)(nil)

// hangUp is max_tokens of calls that are ended at their first event: enough that the end comes first.
const hangUp = 64

const (
	chatPath        = "/v1/chat/completions"
	completionsPath = "/v1/completions"
)

func (p *pair) turn(ctx context.Context, q *query) (*reply, legs, *Failure) {
	var l legs
	var params any // of the D call
	if p.arm.Policy != PolicyAppend || q.first {
		begin := time.Now()
		a, f := p.prefill(ctx, q, &l)
		l.prefill = time.Since(begin)
		if f != nil {
			return &reply{}, l, f
		}
		params = a
	}
	body, err := q.body(p.arm.Body, p.prompt(fields{"kv_transfer_params": params, "return_token_ids": true}))
	if err != nil {
		return nil, l, failed(FailMalformed, "%v", err)
	}
	r := &reply{}
	begin := time.Now()
	f := stream(ctx, p.client, p.arm.Decode+p.path(), p.arm.Header, q.id, body, r)
	l.decode = time.Since(begin)
	if f == nil {
		l.decode = r.first.Sub(begin)
	}
	if p.arm.Policy == PolicyAppend && !q.first {
		l.dCached = r.usage.cached()
	}
	p.cut = kvp.Handle{}
	return r, l, f
}

// path is the route of turns.
func (p *pair) path() string {
	if p.arm.IDs {
		return completionsPath
	}
	return chatPath
}

// prompt adds the prompt as ids, if the arm speaks in ids.
func (p *pair) prompt(changes fields) fields {
	if p.arm.IDs {
		changes["prompt"], changes["messages"], changes["tools"] = p.ids, nil, nil
	}
	return changes
}

// prefill makes the P call and returns A for D, nil if P kept nothing. A failure with a handle is tried once more
// without, as a router would.
func (p *pair) prefill(ctx context.Context, q *query, l *legs) (any, *Failure) {
	params := kvp.NullForm
	if !p.cut.IsZero() {
		params = p.cut.Raw()
	}
	for {
		changes := fields{
			"kv_transfer_params": json.RawMessage(params), "max_tokens": 1, "min_tokens": nil, "stream": nil, "stream_options": nil,
			"max_completion_tokens": nil, "cache_salt": saltMember(q.coldSalt),
		}
		body, err := q.body(p.arm.Body, p.prompt(changes))
		if err != nil {
			return nil, failed(FailMalformed, "%v", err)
		}
		var answer struct {
			Params json.RawMessage `json:"kv_transfer_params"`
			Usage  *usage          `json:"usage"`
		}
		f := ask(ctx, p.client, p.arm.Prefill+p.path(), p.arm.Header, q.id, body, &answer)
		if f != nil && !p.cut.IsZero() && f.Kind == "http-500" {
			p.cut, params, l.retried = kvp.Handle{}, kvp.NullForm, true
			continue
		}
		if f != nil {
			return nil, failed(FailPrefill, "%s", f.Error())
		}
		l.pCached = answer.Usage.cached()
		if kvp.ShapeOf(answer.Params) == kvp.ShapeNone {
			return nil, nil
		}
		a, err := kvp.ParsePrefilled(answer.Params)
		if err != nil {
			return nil, failed(FailPrefill, "%v", err)
		}
		return json.RawMessage(a.Raw()), nil
	}
}

func saltMember(salt string) any {
	if salt == "" {
		return nil
	}
	return salt
}

func (p *pair) prepare(ctx context.Context, q *query, r *reply, next *query) prepared {
	var seq []int32 // what the engines have seen
	if q != nil {
		p.held, p.cut = nil, kvp.Handle{}
		prompt := r.prompt
		if p.arm.IDs {
			prompt = p.ids
		}
		seq = append(append(seq, prompt...), r.ids...)
		needs := next != nil && (p.arm.Policy == PolicyHeld || p.arm.Policy == PolicyReturn)
		if f := p.keep(ctx, q, r, seq, needs); f != nil {
			return prepared{failure: f}
		}
	}
	if next != nil && p.arm.IDs {
		added, f := textIDs(ctx, p.client, p.arm.Prefill, p.arm.Header, next, q == nil)
		if f != nil {
			return prepared{failure: f}
		}
		p.ids = append(seq[:len(seq):len(seq)], added...)
	}
	switch {
	case q == nil:
		return prepared{}
	case next == nil:
		return prepared{failure: p.release(ctx, q)}
	}
	switch p.arm.Policy {
	case PolicyHeld:
		ids, f := p.render(ctx, next)
		if f == nil {
			f = p.share(ctx, q, ids)
		}
		return prepared{failure: f}
	case PolicyReturn:
		ids, f := p.ahead(ctx, q, r, seq)
		if f == nil {
			f = p.share(ctx, q, ids)
		}
		if f == nil {
			f = p.give(ctx, q, ids, p.cut)
		}
		p.cut = kvp.Handle{}
		return prepared{counted: true, failure: f}
	case PolicyOracle:
		f := p.release(ctx, q)
		var ids []int32
		if f == nil {
			ids, f = p.ahead(ctx, q, r, seq)
		}
		if f == nil {
			f = p.give(ctx, q, ids, kvp.Handle{})
		}
		return prepared{failure: f}
	}
	return prepared{failure: p.release(ctx, q)}
}

// render is the next prompt as ids.
func (p *pair) render(ctx context.Context, next *query) ([]int32, *Failure) {
	if p.arm.IDs {
		return p.ids, nil
	}
	return p.tokenize(ctx, next, next.messages)
}

// textIDs is what a turn adds to the ids so far: the text of its last message, or of all messages of the first turn, as
// the endpoint at base tokenizes it.
func textIDs(ctx context.Context, c *http.Client, base string, header http.Header, q *query, first bool) ([]int32, *Failure) {
	messages := q.messages
	if !first {
		messages = messages[len(messages)-1:]
	}
	var all strings.Builder
	for i, raw := range messages {
		var m struct {
			Content string `json:"content"`
		}
		if err := json.Unmarshal(raw, &m); err != nil {
			return nil, failed(FailExpand, "an arm that speaks in ids wants messages of text: %s", jsonError(err))
		}
		if i > 0 || !first {
			all.WriteString("\n\n")
		}
		all.WriteString(m.Content)
	}
	return askIDs(ctx, c, base, header, fields{"model": q.model, "prompt": all.String(), "add_special_tokens": false})
}

// keep remembers what D holds after a turn. needed says that the policy cannot do without a handle.
func (p *pair) keep(ctx context.Context, q *query, r *reply, seq []int32, needed bool) *Failure {
	if r.params != nil && kvp.ShapeOf(r.params) == kvp.ShapeDecode {
		h, err := kvp.ParseHandle(r.params)
		if err != nil {
			return failed(FailPrepare, "%v", err)
		}
		p.held = &kvp.Held{Handle: h, Seq: seq}
		return nil
	}
	if !needed {
		return nil
	}
	if len(r.ids) == 0 || len(seq) == len(r.ids) {
		return failed(FailPrepare, "D does not return token ids, so nothing is known about what it holds")
	}
	b := fields{"model": q.model, "prompt": seq, "max_tokens": 1, "temperature": 0, "kv_transfer_params": json.RawMessage(kvp.AppendForm)}
	if q.salt != "" {
		b["cache_salt"] = q.salt
	}
	body, err := encode(b)
	if err != nil {
		return failed(FailPrepare, "%v", err)
	}
	var answer struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if f := ask(ctx, p.client, p.arm.Decode+completionsPath, p.arm.Header, q.id+"e", body, &answer); f != nil {
		return failed(FailPrepare, "ask D for a handle: %s", f.Error())
	}
	a, err := kvp.ParsePrefilled(answer.Params)
	if err != nil {
		return failed(FailPrepare, "ask D for a handle: %v", err)
	}
	p.held = &kvp.Held{Handle: a.FlipAppend(), Seq: seq}
	return nil
}

// share cuts the handle to what D holds of a prompt. A handle of no use is released.
func (p *pair) share(ctx context.Context, q *query, prompt []int32) *Failure {
	if p.held == nil {
		return nil
	}
	k := p.held.Common(prompt)
	if k <= 0 {
		return p.release(ctx, q)
	}
	cut, err := p.held.Handle.Cut(k, p.blockSize)
	if err != nil {
		return failed(FailPrepare, "%v", err)
	}
	p.cut = cut
	return nil
}

// ahead is what any next prompt begins with: two renderings with different next messages, as far as they agree. seq is
// what the engines have seen.
func (p *pair) ahead(ctx context.Context, q *query, r *reply, seq []int32) ([]int32, *Failure) {
	if p.arm.IDs {
		return seq, nil
	}
	history := append(append([]json.RawMessage(nil), q.messages...), textMessage("assistant", r.content.String()))
	var probes [2][]int32
	for i, text := range []string{"alpha", "7 zebras"} {
		ids, f := p.tokenize(ctx, q, append(history[:len(history):len(history)], textMessage("user", text)))
		if f != nil {
			return nil, f
		}
		probes[i] = ids
	}
	n := kvp.CommonPrefix(probes[0], probes[1])
	if n == 0 {
		return nil, failed(FailPrepare, "two renderings of the history have nothing in common")
	}
	return probes[0][:n], nil
}

func (p *pair) tokenize(ctx context.Context, q *query, messages []json.RawMessage) ([]int32, *Failure) {
	b := fields{"model": q.model, "messages": messages, "add_generation_prompt": true}
	if q.tools != nil {
		b["tools"] = q.tools
	}
	if v, ok := p.arm.Body["chat_template_kwargs"]; ok {
		b["chat_template_kwargs"] = v
	}
	return askIDs(ctx, p.client, p.arm.Prefill, p.arm.Header, b)
}

func askIDs(ctx context.Context, c *http.Client, base string, header http.Header, b fields) ([]int32, *Failure) {
	body, err := encode(b)
	if err != nil {
		return nil, failed(FailPrepare, "%v", err)
	}
	var answer struct {
		Tokens []int32 `json:"tokens"`
	}
	if f := ask(ctx, c, base+"/tokenize", header, "", body, &answer); f != nil {
		return nil, failed(FailPrepare, "tokenize: %s", f.Error())
	}
	return answer.Tokens, nil
}

// give has P take up a prompt for the next turn, with the handle if there is one, and hangs up at the first event: a
// request that finished would keep its blocks for a lease.
func (p *pair) give(ctx context.Context, q *query, prompt []int32, h kvp.Handle) *Failure {
	b := fields{"model": q.model, "prompt": prompt, "max_tokens": hangUp, "min_tokens": hangUp, "temperature": 0, "stream": true}
	if q.nextCold != "" {
		b["cache_salt"] = q.nextCold
	}
	if !h.IsZero() {
		b["kv_transfer_params"] = json.RawMessage(h.Raw())
	}
	body, err := encode(b)
	if err != nil {
		return failed(FailPrepare, "%v", err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop() // hangs up
	res, f := send(ctx, p.client, p.arm.Prefill+completionsPath, p.arm.Header, q.id+"f", body)
	if f != nil {
		return failed(FailPrepare, "%s", f.Error())
	}
	defer res.Body.Close()
	return firstEvent(res.Body)
}

// firstEvent reads a stream until an event has data.
func firstEvent(body io.Reader) *Failure {
	var framer sse.Framer
	buf := make([]byte, 4096)
	for {
		n, err := body.Read(buf)
		framer.Feed(buf[:n])
		for ev, ok := framer.Next(); ok; ev, ok = framer.Next() {
			if ev.HasData() {
				return nil
			}
		}
		if err != nil {
			return failed(FailPrepare, "P's stream: %v", err)
		}
	}
}

// release tells D by way of P that nobody will read what it holds.
func (p *pair) release(ctx context.Context, q *query) *Failure {
	if p.held == nil {
		return nil
	}
	h := p.held.Handle.Release()
	p.held = nil
	return p.give(ctx, q, []int32{1, 2, 3}, h)
}

// count asks P to tokenize: that leaves nothing behind.
func (p *pair) count(ctx context.Context, q *query) (int, *Failure) {
	ask := p.tokenize
	if p.arm.IDs {
		ask = func(ctx context.Context, q *query, _ []json.RawMessage) ([]int32, *Failure) {
			return textIDs(ctx, p.client, p.arm.Prefill, p.arm.Header, q, true)
		}
	}
	ids, f := ask(ctx, q, q.messages)
	return len(ids), f
}

var blockSizeLabel = regexp.MustCompile(`vllm:cache_config_info\{[^}]*block_size="(\d+)"`)

// blockSizeOf asks an engine for the size of its KV blocks, in tokens.
func blockSizeOf(ctx context.Context, c *http.Client, engine string, header http.Header) (int, error) {
	var n int
	err := get(ctx, c, metricsURL(engine), header, func(r io.Reader) error {
		raw, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		m := blockSizeLabel.FindSubmatch(raw)
		if m == nil {
			return fmt.Errorf("no block size in vllm:cache_config_info; add block_size=… to the arm")
		}
		n, err = strconv.Atoi(string(m[1]))
		return err
	})
	return n, err
}
