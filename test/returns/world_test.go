// Package returns measures what the return brings, on reference engines in virtual time: a step, a token
// and a byte cost what they are told to cost, and nothing else takes any time. So the figures are exact
// and the same on every machine.
package returns

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tarik-kv/tarik/internal/local"
	"github.com/tarik-kv/tarik/internal/refengine/engine"
	"github.com/tarik-kv/tarik/internal/router"
	"github.com/tarik-kv/tarik/internal/telemetry"
	"github.com/tarik-kv/tarik/test/memnet"
)

var weights = sync.OnceValues(func() (*local.Weights, error) { return local.Load("") })

// arm is a way to serve the turns.
type arm string

const (
	none   arm = "no reuse"    // the engines' own prefix caches
	held   arm = "handle held" // the published design: TTL 480 s, threshold 64
	tarik  arm = "tarik"       // the return
	withD  arm = "tarik, with appends"
	oracle arm = "oracle" // P has been given everything but the new text, at no cost
)

// setting is one cell of a table.
type setting struct {
	arm    arm
	first  int           // tokens of the first prompt, roughly
	suffix int           // tokens that each turn adds
	reply  int           // tokens of each reply
	turns  int           //
	gap    time.Duration // between the end of a turn and the next one
	cold   bool          // P keeps no prefix cache
	kwargs map[string]any
	costs  engine.Faults // of both engines; link of both
	pool   int           // tokens of each engine's KV pool
	// Of several conversations at once, the gaps of each begin at another time.
	conversations int
}

// h200 are the costs of a Qwen3-32B on one H200 with 16-token blocks, as measured: 106 µs for a prompt
// token and 3.1 µs more for each thousand before it, 20 ms for a step, 31 µs for a token that is read.
func h200(w *local.Weights) engine.Faults {
	c := w.Model.Config()
	perToken := float64(2 * c.Layers * c.KVHeads * c.HeadDim * 4)
	return engine.Faults{
		StepCost: 20 * time.Millisecond, PrefillTokenCost: 106 * time.Microsecond, ContextCost: 3100 * time.Nanosecond,
		LinkBytesPerSecond: perToken / 31e-6, LinkLatency: 5 * time.Millisecond,
	}
}

// outcome is what one setting gave.
type outcome struct {
	ttft     []float64 // ms, of each turn but the first ones
	receipts []telemetry.Receipt
	replies  []string
	pinned   float64 // D: token-seconds that handles held in the gaps
	active   float64 // D: token-seconds of turns in progress
	misreads uint64
}

// play runs one setting in a world of its own.
func play(t *testing.T, s setting) (out outcome) {
	t.Helper()
	w, err := weights()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var n memnet.Net
		kv := func(role string) []byte {
			return fmt.Appendf(nil, `{"kv_connector":"NixlConnector","kv_role":%q,"kv_load_failure_policy":"fail","kv_connector_extra_config":{"bidirectional_kv_xfer":true,"kv_recompute_threshold":64,"decoder_kv_blocks_ttl":480}}`, role)
		}
		start := func(role, at string) *local.Engine {
			e, err := local.StartEngine(w, local.EngineOptions{
				Listen: at, As: "vllm-0.33", KV: kv(role), BlockSize: 16, KVTokens: s.pool, Batch: 8192, NoPrefixCaching: s.cold && role == "kv_producer",
				Faults: s.costs, Net: &n,
			})
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		p, d := start("kv_producer", "10.0.0.1:8000"), start("kv_consumer", "10.0.0.2:8000")
		cfg := router.DefaultConfig()
		cfg.Prefill, cfg.Decode, cfg.Transport = p.URL(), d.URL(), n.Transport()
		cfg.Reuse, cfg.Return, cfg.Append = s.arm != none && s.arm != oracle, s.arm == tarik || s.arm == withD, s.arm == withD
		cfg.HealthInterval = max(10*time.Second, s.gap/8)
		cfg.Receipts = telemetry.NewReceipts(1<<14, nil)
		r, err := router.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		probed := p.Core.Snapshot().Misreads
		ln, err := n.Listen("10.0.0.3:80")
		if err != nil {
			t.Fatal(err)
		}
		front := &http.Server{Handler: r.Handler(), ErrorLog: log.New(io.Discard, "", 0)}
		go front.Serve(ln)
		client := &http.Client{Transport: n.Transport()}

		ctx, stop := context.WithCancel(t.Context())
		var watch sync.WaitGroup
		watch.Go(func() { out.watch(ctx, d, max(250*time.Millisecond, s.gap/200)) })
		var mu sync.Mutex
		var all sync.WaitGroup
		for c := range max(1, s.conversations) {
			all.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(c), 5))
				time.Sleep(time.Duration(c) * s.gap / time.Duration(max(1, s.conversations)))
				messages := []map[string]any{{"role": "user", "content": words(rng, s.first)}}
				for turn := range s.turns {
					if turn > 0 && s.arm == oracle {
						ahead := append(slices.Clone(messages[:len(messages)-1]), map[string]any{"role": "user", "content": "x"})
						say(t, client, p.URL(), s, ahead, 1)
					}
					text, ttft := say(t, client, "http://10.0.0.3", s, messages, s.reply)
					mu.Lock()
					if turn > 0 {
						out.ttft = append(out.ttft, ttft)
					}
					out.replies = append(out.replies, text)
					mu.Unlock()
					messages = append(messages, map[string]any{"role": "assistant", "content": text}, map[string]any{"role": "user", "content": words(rng, s.suffix)})
					time.Sleep(s.gap)
				}
			})
		}
		all.Wait()
		stop()
		watch.Wait()
		out.receipts = cfg.Receipts.Newest(1 << 14)
		out.misreads = p.Core.Snapshot().Misreads - probed
		client.CloseIdleConnections()
		_ = front.Close()
		r.Close()
		_ = p.Close()
		_ = d.Close()
		cfg.Transport.(*http.Transport).CloseIdleConnections()
	})
	return out
}

// watch sums up what D's blocks were held for.
func (o *outcome) watch(ctx context.Context, d *local.Engine, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			b := d.Core.Snapshot().Blocks
			o.pinned += float64(16*b.Pinned) * every.Seconds()
			o.active += float64(16*b.Used) * every.Seconds()
		}
	}
}

var vocabulary = strings.Fields("the river file test stone of and to in a is that for it with as was on be at by this have from or one had not but what all were when we there can an your which their said if do will each about how up out them then she many some so these would other into has more")

// words are n tokens, give or take a few.
func words(rng *rand.Rand, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(vocabulary[rng.IntN(len(vocabulary))])
	}
	return b.String()
}

// say makes one streamed turn and returns the reply and the time to its first token, in ms.
func say(t *testing.T, client *http.Client, base string, s setting, messages []map[string]any, max int) (text string, ttft float64) {
	t.Helper()
	body := map[string]any{"model": "tiny", "messages": messages, "max_tokens": max, "min_tokens": max, "temperature": 0, "stream": true}
	if s.kwargs != nil {
		body["chat_template_kwargs"] = s.kwargs
	}
	raw, err := json.Marshal(body)
	if err != nil {
		t.Error(err)
		return
	}
	begin := time.Now()
	res, err := client.Post(base+"/v1/chat/completions", "application/json", strings.NewReader(string(raw)))
	if err != nil {
		t.Error(err)
		return
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(res.Body)
		t.Errorf("HTTP %d: %.300s", res.StatusCode, b)
		return
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var v struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			t.Error(err)
			return
		}
		for _, c := range v.Choices {
			if c.Delta.Content != "" && ttft == 0 {
				ttft = float64(time.Since(begin)) / 1e6
			}
			text += c.Delta.Content
		}
	}
	return text, ttft
}

// at is the value below which a share q of the sorted values lies.
func at(values []float64, q float64) float64 {
	v := slices.Sorted(slices.Values(values))
	if len(v) == 0 {
		return 0
	}
	return v[min(int(q*float64(len(v))), len(v)-1)]
}
