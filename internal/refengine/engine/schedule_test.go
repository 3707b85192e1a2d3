package engine

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tarik-kv/tarik/internal/refengine/model"
)

// spy records the batches that a model is given.
type spy struct {
	*hashModel
	batches [][]model.Chunk
}

func (s *spy) Forward(batch []model.Chunk) [][]float32 {
	s.batches = append(s.batches, append([]model.Chunk(nil), batch...))
	return s.hashModel.Forward(batch)
}

// lone makes a core without a shell: time and steps are the test's.
type lone struct {
	*core
	t   testing.TB
	m   *spy
	now time.Duration
	out map[string]*reply
}

func newLone(t testing.TB, cfg coreConfig) *lone {
	t.Helper()
	cfg.release, cfg.vocab, cfg.eos = 33, fakeShape.VocabSize, []int32{511}
	l := &lone{core: newCore(cfg), t: t, m: &spy{hashModel: newHashModel(cfg.blocks, cfg.blockSize)}, now: time.Hour, out: make(map[string]*reply)}
	t.Cleanup(func() {
		if err := l.check(); err != nil {
			t.Errorf("accounting: %v", err)
		}
	})
	return l
}

func (l *lone) add(id string, prompt []int32, maxTokens int) {
	l.t.Helper()
	r := Request{ID: id, Prompt: prompt, MaxTokens: maxTokens, IgnoreEOS: true, Logprobs: -1, PromptLogprobs: -1}
	l.addRequest(r)
}

func (l *lone) addRequest(r Request) {
	l.t.Helper()
	rep := &reply{}
	l.out[r.ID] = rep
	err := l.submit(l.now, r, func(o Output) {
		rep.ids = append(rep.ids, o.Tokens...)
		rep.Output = o
		rep.n++
	})
	if err != nil {
		l.t.Fatalf("submit %s: %v", r.ID, err)
	}
}

// step runs one step and says which tokens of whom it computed.
func (l *lone) step() []string {
	l.now += time.Millisecond
	l.tick(l.now)
	p := l.schedule(l.now)
	if p == nil {
		return nil
	}
	var did []string
	for i, e := range p.entries {
		c := p.chunks[i]
		did = append(did, fmt.Sprintf("%s[%d:%d]", e.s.req.ID, c.Start, c.Start+len(c.Tokens)))
	}
	l.commit(l.now, p, l.m.Forward(p.chunks))
	if err := l.check(); err != nil {
		l.t.Fatalf("accounting: %v", err)
	}
	return did
}

func (l *lone) drain() {
	for range 10_000 {
		if l.step() == nil {
			return
		}
	}
	l.t.Fatal("no end")
}

func loneConfig() coreConfig {
	return coreConfig{blockSize: 16, blocks: 65, maxModelLen: 1024, maxBatched: 64, maxSeqs: 4, prefixCache: true}
}

func TestChunkedPrefill(t *testing.T) {
	t.Parallel()
	l := newLone(t, loneConfig())
	a, b := ids(1, 100), ids(2, 50)
	l.add("a", a, 3)
	l.add("b", b, 2)
	var got [][]string
	for s := l.step(); s != nil; s = l.step() {
		got = append(got, s)
	}
	equal(t, "steps", got, [][]string{
		{"a[0:64]"},
		{"a[64:100]", "b[0:28]"}, // what is left of the budget
		{"a[100:101]", "b[28:50]"},
		{"a[101:102]", "b[50:51]"},
	})
	equal(t, "a", l.out["a"].ids, cold(t, a, 3))
	equal(t, "b", l.out["b"].ids, cold(t, b, 2))
	equal(t, "iterations", []float64{float64(l.stats.IterationTokens.Count), l.stats.IterationTokens.Sum}, []float64{3, 155})
}

func TestMaxSeqs(t *testing.T) {
	t.Parallel()
	cfg := loneConfig()
	cfg.maxSeqs = 2
	l := newLone(t, cfg)
	for i := range 3 {
		l.add(fmt.Sprint(i), ids(i, 10), 2)
	}
	equal(t, "first step", l.step(), []string{"0[0:10]", "1[0:10]"})
	equal(t, "second", l.step(), []string{"0[10:11]", "1[10:11]"})
	equal(t, "third", l.step(), []string{"2[0:10]"})
}

func TestPreemption(t *testing.T) {
	t.Parallel()
	cfg := loneConfig()
	cfg.blocks, cfg.maxModelLen = 11, 160
	l := newLone(t, cfg)
	a, b := ids(3, 60), ids(4, 60)
	l.add("a", a, 50) // 7 blocks in the end
	l.add("b", b, 50)
	l.drain()
	equal(t, "preempted", l.stats.Preemptions >= 1, true)
	equal(t, "a", l.out["a"].ids, cold(t, a, 50))
	equal(t, "b", l.out["b"].ids, cold(t, b, 50))
	equal(t, "prompt tokens count once", l.stats.PromptTokens, 120)
	equal(t, "queries count once", l.stats.PrefixQueries, 120)
	equal(t, "free", l.pool.free, 10)
}

// TestFirstComeFirstServed: a request that does not fit holds up those behind it.
func TestFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	cfg := loneConfig()
	cfg.blocks, cfg.maxModelLen = 11, 160
	l := newLone(t, cfg)
	l.add("a", ids(5, 64), 20) // 4 blocks at first
	l.step()
	l.add("b", ids(6, 120), 2)
	l.add("c", ids(7, 10), 2)
	equal(t, "step", l.step(), []string{"a[64:65]", "b[0:63]"})
	equal(t, "step", l.step(), []string{"a[65:66]"}) // b's second chunk finds no room: it goes back in front of c
	equal(t, "waiting", []string{l.waiting[0].req.ID, l.waiting[1].req.ID}, []string{"b", "c"})
	l.drain()
	equal(t, "ends", []FinishReason{l.out["a"].Finish, l.out["b"].Finish, l.out["c"].Finish}, []FinishReason{FinishLength, FinishLength, FinishLength})
}

func TestEviction(t *testing.T) {
	t.Parallel()
	cfg := loneConfig()
	cfg.blocks, cfg.maxModelLen = 13, 192 // 12 blocks
	l := newLone(t, cfg)
	run := func(seed int) int {
		id := fmt.Sprintf("%d-%v", seed, l.now)
		l.add(id, ids(seed, 65), 1) // 4 full blocks and a partial one
		l.drain()
		return l.out[id].LocalHitTokens
	}
	equal(t, "first", run(1), 0)
	equal(t, "second", run(2), 0)
	equal(t, "cached", l.pool.cached, 8)
	equal(t, "hit", run(1), 64)  // now the second is the older one
	equal(t, "third", run(3), 0) // takes the three unhashed blocks and two of the second's tail
	equal(t, "first again", run(1), 64)
	equal(t, "second again", run(2), 48)
}

func TestSalt(t *testing.T) {
	t.Parallel()
	l := newLone(t, loneConfig())
	prompt := ids(8, 60)
	hit := func(id, salt string) int {
		l.addRequest(Request{ID: id, Prompt: prompt, Salt: salt, MaxTokens: 1, Logprobs: -1, PromptLogprobs: -1})
		l.drain()
		return l.out[id].LocalHitTokens
	}
	equal(t, "hits", []int{hit("1", "x"), hit("2", "x"), hit("3", ""), hit("4", ""), hit("5", "y"), hit("6", "x")}, []int{0, 48, 0, 48, 0, 48})
}

// TestHitLeavesOneToken: a prompt that is cached whole is matched up to its last token.
func TestHitLeavesOneToken(t *testing.T) {
	t.Parallel()
	l := newLone(t, loneConfig())
	prompt := ids(9, 64)
	for _, id := range []string{"a", "b"} {
		l.add(id, prompt, 1)
		l.drain()
	}
	equal(t, "hit", l.out["b"].LocalHitTokens, 48)
	equal(t, "reply", l.out["b"].ids, l.out["a"].ids)
}

func TestAbort(t *testing.T) {
	t.Parallel()
	l := newLone(t, loneConfig())
	l.add("running", ids(1, 40), 9)
	l.step()
	l.add("waiting", ids(2, 40), 9)
	p := l.schedule(l.now)
	l.abort(l.now, "running") // during the step
	l.commit(l.now, p, l.m.Forward(p.chunks))
	l.abort(l.now, "waiting")
	l.abort(l.now, "unknown")
	for _, id := range []string{"running", "waiting"} {
		equal(t, id, l.out[id].Finish, FinishAbort)
	}
	equal(t, "free", l.pool.free, 64)
	s := l.snapshot()
	equal(t, "aborts count nowhere", []uint64{s.FinishedStop, s.FinishedLength, s.FinishedError, s.E2E.Count}, []uint64{0, 0, 0, 0})
	equal(t, "but the first token's prompt does", s.PromptTokens, 80)
}

func TestSubmitRefuses(t *testing.T) {
	t.Parallel()
	good := Request{ID: "x", Prompt: []int32{1, 2}, MaxTokens: 1}
	l := newLone(t, loneConfig())
	l.addRequest(Request{ID: "taken", Prompt: []int32{1}, MaxTokens: 1})
	for name, change := range map[string]func(r *Request){
		"no id":          func(r *Request) { r.ID = "" },
		"empty prompt":   func(r *Request) { r.Prompt = nil },
		"no tokens":      func(r *Request) { r.MaxTokens = 0 },
		"min over max":   func(r *Request) { r.MinTokens = 2 },
		"vocabulary":     func(r *Request) { r.Prompt = []int32{512} },
		"negative token": func(r *Request) { r.Prompt = []int32{-1} },
	} {
		r := good
		change(&r)
		if err := l.submit(l.now, r, func(Output) {}); !errors.Is(err, ErrRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := good
	r.Prompt = ids(1, 1024)
	var long *PromptTooLongError
	if err := l.submit(l.now, r, func(Output) {}); !errors.As(err, &long) || *long != (PromptTooLongError{1024, 1024}) {
		t.Errorf("long prompt: %v", err)
	}
	r = good
	r.ID = "taken"
	if err := l.submit(l.now, r, func(Output) {}); !errors.Is(err, ErrDuplicate) {
		t.Errorf("duplicate: %v", err)
	}
}

// TestModelLength: a request ends by length where the model's context does.
func TestModelLength(t *testing.T) {
	t.Parallel()
	cfg := loneConfig()
	cfg.maxModelLen = 66
	l := newLone(t, cfg)
	l.add("a", ids(1, 64), 9)
	l.drain()
	equal(t, "reply", len(l.out["a"].ids), 2)
	equal(t, "finish", l.out["a"].Finish, FinishLength)
}

func TestTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := measured()
		cfg.Faults.StepCost, cfg.Faults.PrefillTokenCost = time.Second, 501*time.Microsecond
		cfg.Faults.ContextCost = 2 * time.Millisecond // 249.5 tokens stand before the mean prompt token: 499 µs
		n := startNode(t, newNetwork(), cfg)
		n.run(ids(1, 500), 3, "")
		s := n.Snapshot()
		got := map[string]float64{
			"ttft": s.TTFT.Sum, "itl": s.ITL.Sum, "tpot": s.TPOT.Sum, "e2e": s.E2E.Sum, "queue": s.Queue.Sum,
			"inference": s.Inference.Sum, "prefill": s.Prefill.Sum, "decode": s.Decode.Sum,
		}
		equal(t, "seconds", got, map[string]float64{
			"ttft": 1.5, "itl": 2, "tpot": 1, "e2e": 3.5, "queue": 0, "inference": 3.5, "prefill": 1.5, "decode": 2,
		})
		equal(t, "bucket", s.TTFT.Counts[13], 0)
	})
}

// TestSlowReader: a reader that does not read gets everything in the end, merged.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, newNetwork(), measured())
		prompt := ids(1, 100)
		ch, err := n.Submit(n.request(prompt, 300, ""))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // it is done by now
		got := collect(ch)
		equal(t, "finish", got.Finish, FinishLength)
		equal(t, "outputs", got.n < 300, true)
		equal(t, "reply", got.ids, cold(t, prompt, 300))
	})
}
