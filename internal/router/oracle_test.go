package router_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tarik-kv/tarik/internal/local"
	"github.com/tarik-kv/tarik/internal/router"
	"github.com/tarik-kv/tarik/internal/telemetry"
)

var oracleTurns = flag.Int("oracle.turns", 700, "turns that the oracle test plays for each vLLM version")

// TestOracle plays random conversations through the router and asks an engine that reuses nothing
// the same: greedy replies must be equal, token for token. Histories are edited, shortened,
// repeated and forked; reasoning is dropped; tools come and go; the template's arguments change;
// two conversations share a beginning.
func TestOracle(t *testing.T) {
	t.Parallel()
	for _, as := range []string{"vllm-0.33", "vllm-0.32", "vllm-0.25"} {
		t.Run(as, func(t *testing.T) {
			t.Parallel()
			o := newOracle(t, as, false)
			turns, enough := *oracleTurns, *oracleTurns/10
			if testing.Short() {
				turns, enough = 100, 5 // the first turns of conversations have nothing to pull
			}
			wrong := o.play(t, turns, 1)
			if wrong > 0 {
				t.Errorf("%d of %d replies differ from those without reuse", wrong, turns)
			}
			pulls := 0
			for _, rc := range o.receipts.Newest(turns) {
				if rc.PPulledTokens != nil && *rc.PPulledTokens > 0 {
					pulls++
				}
			}
			if pulls < enough {
				t.Errorf("only %d of %d turns pulled anything: the test shows nothing", pulls, turns)
			}
			o.checkBlocks(t)
		})
	}
}

// TestOracleNeedsVerification shows that the oracle sees what verification is for: without it,
// the same conversations get wrong replies.
func TestOracleNeedsVerification(t *testing.T) {
	t.Parallel()
	o := newOracle(t, "vllm-0.33", true)
	if wrong := o.play(t, 200, 1); wrong == 0 {
		t.Error("no reply was wrong with verification off: the oracle cannot see a wrong pull")
	}
	if st := o.stack.P.Core.Snapshot(); st.Misreads == o.probed["prefill"] {
		t.Error("P never read KV of other tokens with verification off")
	}
}

// oracle is a local stack and an engine without any reuse, on the same weights.
type oracle struct {
	stack     *local.Stack
	reference *local.Engine
	receipts  *telemetry.Receipts
	probed    map[string]uint64 // misreads of each engine when the probe had ended
}

func newOracle(t *testing.T, as string, unverified bool) *oracle {
	t.Helper()
	return newOracleWith(t, as, unverified, func(c *router.Config) { c.Return, c.Append = false, false })
}

func newOracleWith(t *testing.T, as string, unverified bool, change func(*router.Config)) *oracle {
	t.Helper()
	w, err := local.Load("")
	if err != nil {
		t.Fatal(err)
	}
	o := &oracle{receipts: telemetry.NewReceipts(8192, nil)}
	engine := local.EngineOptions{KVTokens: 1 << 16, BlockSize: 16, Batch: 2048}
	cfg := router.DefaultConfig()
	change(&cfg)
	cfg.Receipts = o.receipts
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	o.stack, err = local.Up(ctx, w, local.StackOptions{Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", As: as, Return: true, Engine: engine, Router: cfg})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.stack.Close)
	// The probe has P read KV of another salt, and D take it over: one misread each, by intent.
	o.probed = map[string]uint64{"prefill": o.stack.P.Core.Snapshot().Misreads, "decode": o.stack.D.Core.Snapshot().Misreads}
	for name, n := range o.probed {
		if n > 1 {
			t.Errorf("the probe made %s read KV of other tokens %d times, want 1 at most", name, n)
		}
	}
	if unverified {
		router.Unverify(o.stack.Router)
	}
	engine.As, engine.Listen, engine.NoPrefixCaching = as, "127.0.0.1:0", true
	if o.reference, err = local.StartEngine(w, engine); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.reference.Close() })
	return o
}

// checkBlocks fails if any engine has lost a block.
func (o *oracle) checkBlocks(t *testing.T) {
	t.Helper()
	for name, e := range map[string]*local.Engine{"prefill": o.stack.P, "decode": o.stack.D, "reference": o.reference} {
		if err := e.Core.CheckAccounting(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		st := e.Core.Snapshot()
		// The router's own calls, which have D free what nobody will use, may still be on their way.
		for end := time.Now().Add(20 * time.Second); (st.Blocks.Used > 0 || st.Blocks.Parked > 0) && time.Now().Before(end); {
			time.Sleep(5 * time.Millisecond)
			st = e.Core.Snapshot()
		}
		if n := st.Misreads - o.probed[name]; n > 0 || st.PoisonedHits > 0 {
			t.Errorf("%s read KV of other tokens %d times and used it %d times more", name, n, st.PoisonedHits)
		}
		if b := st.Blocks; b.Used > 0 || b.Parked > 0 {
			t.Errorf("%s is idle, but %d blocks are used and %d parked", name, b.Used, b.Parked)
		}
	}
}

// dialogue is one conversation as its client sees it.
type dialogue struct {
	messages []map[string]any
	tools    []any
	kwargs   map[string]any
	salt     string
	prompt   string // of a dialogue by /v1/completions
}

// play has n random turns and returns how many replies were wrong.
func (o *oracle) play(t *testing.T, n int, seed uint64) (wrong int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 2))
	var open []*dialogue
	for i := range n {
		if len(open) == 0 || len(open) < 6 && rng.IntN(5) == 0 {
			open = append(open, newDialogue(rng))
		}
		at := rng.IntN(len(open))
		d := open[at]
		d.evolve(rng)
		body, path := d.request(rng)
		got := ask(t, o.stack.URL()+path, body)
		want := ask(t, o.reference.URL()+path, body)
		if got.status != want.status || got.text != want.text || got.finish != want.finish || fmt.Sprint(got.ids) != fmt.Sprint(want.ids) {
			wrong++
			if wrong <= 3 && !t.Failed() {
				t.Logf("turn %d: HTTP %d, %q (%s, %d ids), want HTTP %d, %q (%s, %d ids)",
					i, got.status, got.text, got.finish, len(got.ids), want.status, want.text, want.finish, len(want.ids))
			}
		}
		d.hear(rng, want.text)
		if d.size() > 6000 || rng.IntN(30) == 0 {
			open = append(open[:at], open[at+1:]...)
		}
	}
	return wrong
}

var oracleWords = strings.Fields("the river file test stone of and to in a is that for it with as was on be at by this have from or one had not but what all were when we there can an your which their said if do will each about how up out them then she many some so these would other into has more")

func words(rng *rand.Rand, n int) string {
	var b strings.Builder
	for range n {
		b.WriteString(oracleWords[rng.IntN(len(oracleWords))])
		b.WriteString([]string{" ", " ", " ", ", ", ".\n", "\n\n", " 42 "}[rng.IntN(7)])
	}
	return b.String()
}

// sharedHead begins many conversations, so that their prefixes meet.
var sharedHead = "You are careful. " + words(rand.New(rand.NewPCG(9, 9)), 60)

func newDialogue(rng *rand.Rand) *dialogue {
	d := &dialogue{}
	if rng.IntN(6) == 0 {
		d.prompt = sharedHead + words(rng, 20+rng.IntN(60))
		return d
	}
	if rng.IntN(2) == 0 {
		d.messages = append(d.messages, map[string]any{"role": "system", "content": sharedHead})
	}
	d.messages = append(d.messages, map[string]any{"role": "user", "content": words(rng, 20+rng.IntN(120))})
	if rng.IntN(3) == 0 {
		d.tools = append(d.tools, map[string]any{"type": "function", "function": map[string]any{
			"name": "look", "description": words(rng, 5), "parameters": map[string]any{"type": "object"},
		}})
	}
	if rng.IntN(4) == 0 {
		d.kwargs = map[string]any{"enable_thinking": true}
	}
	if rng.IntN(5) == 0 {
		d.salt = fmt.Sprint("user-", rng.IntN(2))
	}
	return d
}

func (d *dialogue) size() int {
	n := len(d.prompt)
	for _, m := range d.messages {
		n += len(fmt.Sprint(m["content"]))
	}
	return n
}

// hear appends what the reply becomes in the client's history, which is not always what was said.
func (d *dialogue) hear(rng *rand.Rand, text string) {
	switch rng.IntN(8) {
	case 0: // the client cuts the reply
		text = text[:rng.IntN(len(text)+1)]
	case 1: // it drops the reasoning
		if _, after, ok := strings.Cut(text, "</think>"); ok {
			text = after
		} else {
			text = strings.TrimSpace(text)
		}
	case 2: // it drops the reply: the next turn says the same again, or goes on without it
		return
	}
	if d.messages == nil {
		d.prompt += text
		return
	}
	m := map[string]any{"role": "assistant", "content": text}
	if d.tools != nil && rng.IntN(3) == 0 {
		m["tool_calls"] = []any{map[string]any{
			"id": "c1", "type": "function", "function": map[string]any{"name": "look", "arguments": `{"at": "stone"}`},
		}}
	}
	d.messages = append(d.messages, m)
}

// evolve makes the next turn's history of the last one's.
func (d *dialogue) evolve(rng *rand.Rand) {
	if d.messages == nil {
		switch rng.IntN(8) {
		case 0:
			d.prompt = d.prompt[:len(d.prompt)/2+1]
		case 1: // the same again
			return
		}
		d.prompt += words(rng, rng.IntN(40))
		return
	}
	switch rng.IntN(14) {
	case 0: // the client shortens the history
		if len(d.messages) > 3 {
			d.messages = d.messages[:2+rng.IntN(len(d.messages)-2)]
		}
	case 1: // edits a message
		i := rng.IntN(len(d.messages))
		d.messages[i] = map[string]any{"role": d.messages[i]["role"], "content": words(rng, 3+rng.IntN(30))}
	case 2: // drops the oldest turn
		if len(d.messages) > 4 {
			d.messages = append(d.messages[:1:1], d.messages[3:]...)
		}
	case 3: // changes what the template is told
		if d.kwargs == nil {
			d.kwargs = map[string]any{"enable_thinking": rng.IntN(2) == 0}
		} else {
			d.kwargs = nil
		}
	case 4: // changes the tools
		d.tools = nil
	case 5: // says the same again
		if last := d.messages[len(d.messages)-1]; last["role"] != "assistant" {
			return
		}
	}
	if last := d.messages[len(d.messages)-1]; last["tool_calls"] != nil {
		d.messages = append(d.messages, map[string]any{"role": "tool", "tool_call_id": "c1", "content": words(rng, 5+rng.IntN(40))})
		return
	}
	d.messages = append(d.messages, map[string]any{"role": "user", "content": words(rng, 3+rng.IntN(40))})
}

func (d *dialogue) request(rng *rand.Rand) (body map[string]any, path string) {
	body = map[string]any{
		"model": "tiny", "temperature": 0, "max_tokens": 1 + rng.IntN(60), "return_token_ids": true, "stream": rng.IntN(2) == 0,
	}
	if rng.IntN(6) == 0 {
		body["stop"] = []string{" the", " stone"}[rng.IntN(2)]
	}
	if d.salt != "" {
		body["cache_salt"] = d.salt
	}
	if d.messages == nil {
		body["prompt"] = d.prompt
		return body, "/v1/completions"
	}
	body["messages"] = d.messages
	if d.tools != nil {
		body["tools"] = d.tools
	}
	if d.kwargs != nil {
		body["chat_template_kwargs"] = d.kwargs
	}
	return body, "/v1/chat/completions"
}

// said is a reply as the client sees it.
type said struct {
	status int
	text   string
	finish string
	ids    []int32
}

// ask sends one request and reads the reply, streamed or not.
func ask(t *testing.T, url string, body map[string]any) said {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.Post(url, "application/json", bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.Header.Get("X-Tarik-Turn") != "" && bytes.Contains(raw, []byte("kv_transfer_params")) {
		t.Fatalf("POST %s: the reply shows kv_transfer_params: %s", url, raw)
	}
	s := said{status: res.StatusCode}
	if res.StatusCode != http.StatusOK {
		return s
	}
	type choice struct {
		Text    string
		Message struct{ Content, Reasoning string }
		Delta   struct{ Content, Reasoning string }
		IDs     []int32 `json:"token_ids"`
		Finish  string  `json:"finish_reason"`
	}
	add := func(data []byte) {
		var v struct{ Choices []choice }
		if err := json.Unmarshal(data, &v); err != nil {
			t.Fatalf("reply %q: %v", data, err)
		}
		for _, c := range v.Choices {
			s.text += c.Text + c.Message.Content + c.Delta.Content
			s.ids = append(s.ids, c.IDs...)
			if c.Finish != "" {
				s.finish = c.Finish
			}
		}
	}
	if stream, _ := body["stream"].(bool); !stream {
		add(raw)
		return s
	}
	done := false
	for line := range strings.SplitSeq(string(raw), "\n") {
		switch data, ok := strings.CutPrefix(line, "data: "); {
		case data == "[DONE]":
			done = true
		case ok:
			add([]byte(data))
		}
	}
	if !done {
		t.Fatalf("the stream has no end: %q", raw)
	}
	return s
}
