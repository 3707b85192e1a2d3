package model

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// The float32 result differs from the float64 definition by rounding only.
func TestForwardMatchesDefinition(t *testing.T) {
	t.Parallel()
	for _, bf16 := range []bool{false, true} {
		m := randomModel(testConfig(), 7, bf16)
		tokens := randomTokens(1, 150, m.cfg.VocabSize)
		p := m.NewPool(10, 16)
		got := m.Forward(p, []Chunk{{Tokens: tokens, Blocks: table(10), Logits: len(tokens)}})[0]
		for i, want := range reference(m, tokens) {
			for id, w := range want {
				if g := float64(got[i*m.cfg.VocabSize+id]); math.Abs(g-w) > 2e-4 {
					t.Fatalf("bf16 %v: logit of token %d at position %d = %v, want %v", bf16, id, i, g, w)
				}
			}
		}
	}
}

// drawBatches computes some sequences in randomly composed batches, through randomly shuffled blocks, and returns what came out.
func drawBatches(t *rapid.T, m *Model, prompts [][]int32) []sequence {
	blockSize := rapid.IntRange(1, 40).Draw(t, "block size")
	need := func(tokens int) int { return (tokens + blockSize - 1) / blockSize }
	total := rapid.IntRange(0, 3).Draw(t, "spare blocks")
	for _, tokens := range prompts {
		total += need(len(tokens))
	}
	p := m.NewPool(total, blockSize)
	for i := range p.kv {
		p.kv[i] = float32(math.NaN()) // what nobody wrote must not be read
	}
	free := rapid.Permutation(table(total)).Draw(t, "blocks")
	out := make([]sequence, len(prompts))
	tables := make([][]int, len(prompts))
	for i, tokens := range prompts {
		tables[i], free = free[:need(len(tokens))], free[need(len(tokens)):]
	}
	done := make([]int, len(prompts))
	for {
		var batch []Chunk
		var of []int
		left := 0
		for i, tokens := range prompts {
			n := min(len(tokens)-done[i], rapid.IntRange(0, 1+len(tokens)).Draw(t, "chunk"))
			left += len(tokens) - done[i]
			if n == 0 {
				continue
			}
			batch = append(batch, Chunk{Tokens: tokens[done[i] : done[i]+n], Start: done[i], Blocks: tables[i], Logits: n})
			of = append(of, i)
			done[i] += n
		}
		if left == 0 {
			break
		}
		for j, logits := range m.Forward(p, batch) {
			for row := range slices.Chunk(logits, m.cfg.VocabSize) {
				out[of[j]].Logits = append(out[of[j]].Logits, slices.Clone(row))
			}
		}
	}
	for i, tokens := range prompts {
		for pos := range tokens {
			out[i].KV = append(out[i].KV, kvAt(p, tables[i], pos))
		}
	}
	return out
}

// A token's logits and KV have the same bits however prompts are cut into chunks, batched, and spread over blocks of any size.
func TestBatchInvariance(t *testing.T) {
	t.Parallel()
	models := []*Model{randomModel(testConfig(), 1, true), randomModel(testConfig(), 2, false), Tiny(3, 96, randomTokens(1, 20, 96), nil)}
	var prompts [][]int32
	want := make([][]sequence, len(models))
	for i, n := range []int{1, 7, 33, 64, 130, 420} { // the last does not fit into one pass
		prompts = append(prompts, randomTokens(uint64(i), n, 51))
		for j, m := range models {
			want[j] = append(want[j], oneByOne(m, prompts[i]))
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		which := rapid.IntRange(0, len(models)-1).Draw(t, "model")
		var mine [][]int32
		var expect []sequence
		for _, i := range rapid.SliceOfN(rapid.IntRange(0, len(prompts)-1), 1, 4).Draw(t, "prompts") {
			mine = append(mine, prompts[i])
			expect = append(expect, want[which][i])
		}
		got := drawBatches(t, models[which], mine)
		for i := range got {
			if !equalBits(expect[i], got[i]) {
				t.Fatalf("sequence %d of %d tokens differs from the one computed token by token", i, len(mine[i]))
			}
		}
	})
}

func equalBits(a, b sequence) bool {
	row := func(a, b []float32) bool {
		return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
	}
	return slices.EqualFunc(a.Logits, b.Logits, row) && slices.EqualFunc(a.KV, b.KV, row)
}

// The number of cores does not change a bit either. Not parallel: it sets GOMAXPROCS.
func TestCoresInvariance(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	c := testConfig()
	c.HiddenSize, c.IntermediateSize = 256, 512
	m := randomModel(c, 5, true)
	tokens := randomTokens(9, 500, c.VocabSize)
	run := func(cores int) []float32 {
		runtime.GOMAXPROCS(cores)
		p := m.NewPool(32, 16)
		return m.Forward(p, []Chunk{{Tokens: tokens, Blocks: table(32), Logits: 3}})[0]
	}
	want := run(1)
	for _, cores := range []int{2, 3, 7} {
		if diff := cmp.Diff(want, run(cores)); diff != "" {
			t.Errorf("%d cores (-1 core +%d):\n%s", cores, cores, diff)
		}
	}
}

// KV is read through the block table and from nowhere else: a copy of the blocks elsewhere gives the same, another block does not.
func TestBlockTableIndirection(t *testing.T) {
	t.Parallel()
	m := randomModel(testConfig(), 4, true)
	tokens := randomTokens(2, 65, m.cfg.VocabSize)
	p := m.NewPool(20, 16)
	from := []int{3, 9, 1, 12, 7}
	m.Forward(p, []Chunk{{Tokens: tokens[:64], Blocks: from}})
	last := func(blocks ...int) []float32 {
		return slices.Clone(m.Forward(p, []Chunk{{Tokens: tokens[64:], Start: 64, Blocks: blocks, Logits: 1}})[0])
	}
	want := last(from...)

	to := []int{0, 2, 4, 6, 8}
	for i := range to {
		copy(p.Block(to[i]), p.Block(from[i]))
	}
	if diff := cmp.Diff(want, last(to...)); diff != "" {
		t.Errorf("copied blocks (-original +copy):\n%s", diff)
	}
	if cmp.Equal(want, last(3, 9, 12, 12, 7)) {
		t.Error("a wrong block in the table changed nothing")
	}
	clear(p.Block(9))
	if cmp.Equal(want, last(from...)) {
		t.Error("an emptied block changed nothing")
	}
}

// A chunk may build on a chunk before it in the same batch, even if the two fall into different passes.
func TestSharedBlocksWithinBatch(t *testing.T) {
	t.Parallel()
	m := Tiny(1, 64, []int32{1, 2, 3, 4, 5}, nil)
	tokens := randomTokens(8, 480, 64)
	want := oneByOne(m, tokens)
	p := m.NewPool(31, 16)
	other := append(table(29), 30)
	got := m.Forward(p, []Chunk{
		{Tokens: tokens[:464], Blocks: table(29)},
		{Tokens: tokens[464:], Start: 464, Blocks: other, Logits: 1},
	})[1]
	if diff := cmp.Diff(want.Logits[479], got); diff != "" {
		t.Errorf("last logits (-alone +shared):\n%s", diff)
	}
}

func TestForwardRefusesWhatItCannotCompute(t *testing.T) {
	t.Parallel()
	m := Tiny(1, 64, []int32{1}, nil)
	f := func(name string, c Chunk) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if r := fmt.Sprint(recover()); len(r) < 5 || r[:5] != "BUG: " {
					t.Errorf("Forward panicked with %q, want a BUG", r)
				}
			}()
			m.Forward(m.NewPool(2, 16), []Chunk{c})
		})
	}
	f("token", Chunk{Tokens: []int32{64}, Blocks: []int{0}})
	f("negative token", Chunk{Tokens: []int32{-1}, Blocks: []int{0}})
	f("block", Chunk{Tokens: []int32{1}, Blocks: []int{2}})
	f("short table", Chunk{Tokens: []int32{1}, Start: 16, Blocks: []int{0}})
	f("logits", Chunk{Tokens: []int32{1}, Blocks: []int{0}, Logits: 2})
	f("position", Chunk{Tokens: []int32{1}, Start: tinyPositions, Blocks: make([]int, tinyPositions/16+1)})
}

// A step allocates the same whatever the context's length.
func TestForwardAllocations(t *testing.T) {
	m := Tiny(1, 64, []int32{1, 2, 3}, nil)
	p := m.NewPool(200, 16)
	tokens := randomTokens(1, 3000, 64)
	m.Forward(p, []Chunk{{Tokens: tokens, Blocks: table(200)}})
	step := func(start int) float64 {
		batch := []Chunk{{Tokens: tokens[:1], Start: start, Blocks: table(200), Logits: 1}}
		return testing.AllocsPerRun(10, func() { m.Forward(p, batch) })
	}
	short, long := step(10), step(3000)
	if short != long || long > 40 {
		t.Errorf("allocations of a step: %v after 10 tokens, %v after 3000, want equal and at most 40", short, long)
	}
}
