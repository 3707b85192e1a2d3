package model

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"slices"
	"testing"
)

// tinyEmission is an emission set as large as the tokenizer's; its last id ends a sequence.
func tinyEmission() []int32 {
	var ids []int32
	for id := range int32(340) {
		ids = append(ids, 270+id)
	}
	return ids
}

const (
	tinyVocab = 620
	tinyEOS   = 270 + 339
)

// The weights are the same on every machine and in every version: conversations recorded with the model stay valid.
func TestTinyWeightsAreFixed(t *testing.T) {
	t.Parallel()
	m := Tiny(1, tinyVocab, tinyEmission(), []int32{tinyEOS})
	h := fnv.New64a()
	sum := func(m *matrix) {
		var b [4]byte
		for _, v := range m.f32 {
			binary.LittleEndian.PutUint32(b[:], math.Float32bits(v))
			h.Write(b[:])
		}
	}
	sum(m.embed)
	sum(m.head)
	for _, ly := range m.layers {
		for _, l := range []linear{ly.qkv, ly.out, ly.gateUp, ly.down} {
			sum(l.w)
		}
	}
	if got, want := h.Sum64(), uint64(0x1af645c69edd081f); got != want {
		t.Errorf("hash of all weights = %#x, want %#x", got, want)
	}
}

// Greedy output is varied, stays inside the emission set, and ends now and then.
func TestTinyGreedyOutput(t *testing.T) {
	t.Parallel()
	emission := tinyEmission()
	const tokens, runs = 400, 4
	for seed := range uint64(4) {
		m := Tiny(seed, tinyVocab, emission, []int32{tinyEOS})
		seen := map[int32]int{}
		repeated := 0
		for run := range uint64(runs) {
			out := gen(m, m.NewPool(40, 16), randomTokens(run, 100, tinyVocab), tokens)
			trigrams := map[[3]int32]bool{}
			for i, id := range out {
				if !slices.Contains(emission, id) {
					t.Fatalf("seed %d: token %d is not in the emission set", seed, id)
				}
				seen[id]++
				if i >= 2 {
					trigrams[[3]int32(out[i-2:i+1])] = true
				}
			}
			repeated += tokens - 2 - len(trigrams)
		}
		if repeated > tokens*runs/20 {
			t.Errorf("seed %d: %d of %d trigrams came before in the same output", seed, repeated, tokens*runs)
		}
		if len(seen) < len(emission)/2 {
			t.Errorf("seed %d: %d different tokens of %d", seed, len(seen), len(emission))
		}
		if per := tokens * runs / max(seen[tinyEOS], 1); per < 15 || per > 150 {
			t.Errorf("seed %d: one end of sequence in %d tokens", seed, per)
		}
	}
}

// A change of one early token, or of what one block holds, changes the greedy continuation within 16 tokens.
func TestTinyDependsOnItsContext(t *testing.T) {
	t.Parallel()
	const trials, tokens = 20, 16
	for _, n := range []int{40, 300, 2000} {
		byToken, byBlock := 0, 0
		for trial := range uint64(trials) {
			m := Tiny(trial%4, tinyVocab, tinyEmission(), []int32{tinyEOS})
			r := random{state: trial}
			prompt := make([]int32, n)
			for i := range prompt { // some ids are much commoner than others, as in a text
				u := float64(r.next()>>11) / (1 << 53)
				prompt[i] = int32(tinyVocab * u * u * u)
			}
			p := m.NewPool(n/16+2, 16)
			want := gen(m, p, prompt, tokens)

			other := slices.Clone(prompt)
			at := int(r.next() % uint64(n/4))
			other[at] = (other[at] + 1) % tinyVocab
			if !slices.Equal(want, gen(m, p, other, tokens)) {
				byToken++
			}

			blocks := table(p.Blocks())
			m.Forward(p, []Chunk{{Tokens: prompt[:n-1], Blocks: blocks}})
			copy(p.Block(int(r.next()%uint64(n/32))), p.Block(n/32))
			logits := m.Forward(p, []Chunk{{Tokens: prompt[n-1:], Start: n - 1, Blocks: blocks, Logits: 1}})[0]
			if !slices.Equal(want, continueFrom(m, p, blocks, logits, n, tokens)) {
				byBlock++
			}
		}
		if byToken < trials*95/100 || byBlock < trials*95/100 {
			t.Errorf("%d tokens of context: %d changes of a token and %d of a block showed, of %d each", n, byToken, byBlock, trials)
		}
	}
}
