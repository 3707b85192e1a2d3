package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tarik-kv/tarik/internal/refengine/model"
)

// world is several machines without shells, a clock, and a network whose transfers take as long as the
// test pleases.
type world struct {
	t       *rapid.T
	now     time.Duration
	nodes   []*worldNode
	handles []worldHandle
	flying  []flight
	known   [][]int32 // token sequences to continue
	next    int
}

type worldNode struct {
	core *core
	m    *hashModel
	plan *plan // a step in flight
	live map[string]bool
}

type worldHandle struct {
	params json.RawMessage
	ids    []int32 // what its blocks hold
}

// flight is an effect on its way.
type flight struct {
	from int
	e    effect
}

func (w *world) node(id string) *worldNode {
	for _, n := range w.nodes {
		if n.core.cfg.engineID == id {
			return n
		}
	}
	return nil
}

func (w *world) submit() {
	i := rapid.IntRange(0, len(w.nodes)-1).Draw(w.t, "node")
	n := w.nodes[i]
	prompt := ids(rapid.IntRange(0, 3).Draw(w.t, "prompt"), rapid.IntRange(1, 90).Draw(w.t, "length"))
	if len(w.known) > 0 && rapid.Bool().Draw(w.t, "continue") {
		prompt = join(rapid.SampledFrom(w.known).Draw(w.t, "history"), prompt)
	}
	params := json.RawMessage(rapid.SampledFrom([]string{"", nullForm, `{"do_remote_decode":true}`, `{"x":1}`}).Draw(w.t, "params"))
	if len(w.handles) > 0 && rapid.Bool().Draw(w.t, "with a handle") {
		h := rapid.SampledFrom(w.handles).Draw(w.t, "handle")
		params = h.params
		if rapid.Bool().Draw(w.t, "for its own prompt") {
			prompt = h.ids
		}
	}
	if len(prompt) > 150 {
		prompt = prompt[:150]
	}
	w.next++
	r := Request{
		ID: fmt.Sprintf("r%d", w.next), Prompt: prompt, Params: params, MaxTokens: rapid.IntRange(1, 9).Draw(w.t, "max_tokens"),
		Logprobs: -1, PromptLogprobs: -1,
	}
	if rapid.IntRange(0, 9).Draw(w.t, "prompt_logprobs") == 0 {
		r.PromptLogprobs = 0
	}
	out := []int32(nil)
	var s *seq
	tainted := false
	err := n.core.submit(w.now, r, func(o Output) {
		if !n.live[r.ID] {
			w.t.Fatalf("%s speaks after its end", r.ID)
		}
		out = append(out, o.Tokens...)
		tainted = tainted || s.tainted
		if o.Finish == FinishNone {
			return
		}
		delete(n.live, r.ID)
		if want := w.greedy(n, prompt, len(out)); !tainted && !same(out, want) {
			w.t.Fatalf("%s answers %v, want %v, and no wrong READ was noticed", r.ID, out, want)
		}
		if len(o.Params) > 0 {
			w.handles = append(w.handles, worldHandle{o.Params, join(prompt, out)})
			w.known = append(w.known, join(prompt, out))
		}
	})
	if err != nil {
		w.t.Fatalf("submit: %v", err)
	}
	s = n.core.byID[r.ID]
	n.live[r.ID] = true
}

// greedy is what a machine without any reuse answers.
func (w *world) greedy(n *worldNode, prompt []int32, tokens int) []int32 {
	bs := n.core.cfg.blockSize
	m := newHashModel(len(prompt)/bs+4, bs)
	table := make([]int, len(prompt)/bs+4)
	for i := range table {
		table[i] = i
	}
	seq, from := prompt, 0
	for range tokens {
		row := m.Forward([]model.Chunk{{Tokens: seq[from:], Start: from, Blocks: table, Logits: 1}})[0]
		from = len(seq)
		seq = join(seq, []int32{argmax(row)})
	}
	return seq[len(prompt):]
}

// step begins or ends a step of one node, so that events fall into the middle of steps.
func (w *world) step() {
	i := rapid.IntRange(0, len(w.nodes)-1).Draw(w.t, "node")
	w.stepNode(i)
}

func (w *world) stepNode(i int) (worked bool) {
	n := w.nodes[i]
	if n.plan == nil {
		n.core.tick(w.now)
		n.plan = n.core.schedule(w.now)
		worked = n.plan != nil
	} else {
		n.core.commit(w.now, n.plan, n.m.Forward(n.plan.chunks))
		n.plan, worked = nil, true
	}
	for _, e := range n.core.takeEffects() {
		w.flying = append(w.flying, flight{i, e})
	}
	return worked
}

func (w *world) abort() {
	n := rapid.SampledFrom(w.nodes).Draw(w.t, "node")
	if len(n.live) == 0 {
		return
	}
	var live []string
	for i := 1; i <= w.next; i++ {
		if id := fmt.Sprintf("r%d", i); n.live[id] {
			live = append(live, id)
		}
	}
	n.core.abort(w.now, rapid.SampledFrom(live).Draw(w.t, "request"))
}

// land lets one transfer arrive, well or not.
func (w *world) land() {
	if len(w.flying) == 0 {
		return
	}
	k := rapid.IntRange(0, len(w.flying)-1).Draw(w.t, "transfer")
	w.landOne(k, rapid.IntRange(0, 4).Draw(w.t, "fails") == 0)
}

func (w *world) landOne(k int, fails bool) {
	f := w.flying[k]
	w.flying = append(w.flying[:k], w.flying[k+1:]...)
	n := w.nodes[f.from]
	switch {
	case f.e.beat != nil:
		if owner := w.node(f.e.beat.params.engineID); owner != nil {
			owner.core.notified(w.now, f.e.beat.message())
		}
	case f.e.notify != nil:
		if owner := w.node(f.e.notify.params.engineID); owner != nil {
			owner.core.notified(w.now, f.e.notify.params.requestID+":1")
		}
	default:
		j := f.e.read
		rep := readReport{rid: j.rid}
		owner := w.node(j.params.engineID)
		src, err := j.pairBlocks()
		switch {
		case fails || owner == nil:
			rep.err = &readError{kind: "handshake_failed", err: errors.New("down")}
		case err != nil:
			rep.err = err
		case j.late(w.now, 0):
			rep.declined = true
		default:
			n.core.readStarted(j.rid)
			for i, id := range j.local {
				copy(n.m.Block(id), owner.m.Block(src[i]))
				rep.contents = append(rep.contents, owner.core.contents([]uint32{uint32(src[i])})...)
			}
			owner.core.notified(w.now, j.params.requestID+":1")
		}
		n.core.readDone(w.now, rep)
	}
}

func (w *world) check() {
	for i, n := range w.nodes {
		if err := n.core.check(); err != nil {
			w.t.Fatalf("node %d: %v", i, err)
		}
		if n.core.dead != nil {
			w.t.Fatalf("node %d died: %v", i, n.core.dead)
		}
	}
}

// settle lets everything come to its end and says what is left.
func (w *world) settle() {
	for _, n := range w.nodes {
		for id := range n.live {
			n.core.abort(w.now, id)
		}
	}
	for range 3 {
		for i := range w.nodes {
			for w.stepNode(i) {
			}
		}
		for len(w.flying) > 0 {
			w.landOne(0, false)
		}
		w.now += time.Hour
		w.check()
	}
	for i, n := range w.nodes {
		s := n.core.snapshot()
		hung := 0 // parked with no READ: flag off, recompute
		for _, q := range n.core.parked {
			if n.core.jobs[q.req.ID] == nil {
				hung++
			}
		}
		if len(n.live) > 0 || s.Blocks.Used > 0 || hung != len(n.core.parked) || s.Pins != s.PinsForever {
			w.t.Fatalf("node %d: %d requests unfinished, %d parked of which %d hung, %+v, %d pins, %d for ever", i, len(n.live), len(n.core.parked), hung, s.Blocks, s.Pins, s.PinsForever)
		}
		if n.core.flag() && n.core.cfg.kv.FailurePolicy == "fail" && hung > 0 {
			w.t.Fatalf("node %d: %d requests hang with the flag on and policy fail", i, hung)
		}
	}
}

// TestMachine plays random traffic, failures and time jumps on three machines and checks after every
// action that no block is both free and owned, none is lost, and that everything ends.
func TestMachine(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{t: t, now: time.Hour}
		faults := Faults{
			SyncScheduling: rapid.Bool().Draw(t, "sync"), DraftTokens: rapid.IntRange(0, 2).Draw(t, "drafts"), DeathAs500: true,
		}
		rel := release(rapid.IntRange(21, 33).Draw(t, "release"))
		for i := range 3 {
			kv := KVTransferConfig{
				FailurePolicy: rapid.SampledFrom([]string{"fail", "fail", "recompute"}).Draw(t, "policy"),
				Bidirectional: rapid.IntRange(0, 5).Draw(t, "flag") > 0,
				Threshold:     rapid.SampledFrom([]int{0, 16}).Draw(t, "threshold"),
				Lease:         30 * time.Second, DecoderTTL: 480 * time.Second,
			}
			cfg := coreConfig{
				release: rel, kv: &kv, engineID: fmt.Sprintf("e%d", i), host: "h", port: 1, blockSize: 8,
				blocks: rapid.IntRange(22, 60).Draw(t, "blocks"), maxModelLen: 160, maxBatched: rapid.IntRange(5, 200).Draw(t, "budget"),
				maxSeqs: rapid.IntRange(1, 6).Draw(t, "sequences"), prefixCache: rapid.IntRange(0, 4).Draw(t, "caching") > 0,
				vocab: fakeShape.VocabSize, eos: ids(5, 60),
			}
			n := &worldNode{core: newCore(cfg), m: newHashModel(cfg.blocks, cfg.blockSize), live: make(map[string]bool)}
			n.core.faults = faults
			w.nodes = append(w.nodes, n)
		}
		t.Repeat(map[string]func(*rapid.T){
			"":       func(t *rapid.T) { w.t = t; w.check() },
			"submit": func(t *rapid.T) { w.t = t; w.submit() },
			"step":   func(t *rapid.T) { w.t = t; w.step() },
			"steps": func(t *rapid.T) {
				w.t = t
				for range 8 {
					for i := range w.nodes {
						w.stepNode(i)
					}
				}
			},
			"abort": func(t *rapid.T) { w.t = t; w.abort() },
			"land":  func(t *rapid.T) { w.t = t; w.land() },
			"wait": func(t *rapid.T) {
				w.now += time.Duration(rapid.SampledFrom([]int{1, 5, 21, 31, 470, 481}).Draw(t, "seconds")) * time.Second
			},
		})
		w.t = t
		w.settle()
	})
}
