package model

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

func argmax(v []float32) int32 {
	best := 0
	for i, x := range v {
		if x > v[best] {
			best = i
		}
	}
	return int32(best)
}

func table(n int) []int {
	b := make([]int, n)
	for i := range b {
		b[i] = i
	}
	return b
}

func gen(m *Model, p *Pool, prompt []int32, n int) []int32 {
	tb := table(p.Blocks())
	lg := m.Forward(p, []Chunk{{Tokens: prompt, Blocks: tb, Logits: 1}})[0]
	var out []int32
	pos := len(prompt)
	for {
		t := argmax(lg)
		out = append(out, t)
		if len(out) == n {
			return out
		}
		lg = m.Forward(p, []Chunk{{Tokens: []int32{t}, Start: pos, Blocks: tb, Logits: 1}})[0]
		pos++
	}
}

func TestExperiment(t *testing.T) {
	if os.Getenv("EXP") == "" {
		t.Skip()
	}
	var em []int32
	for i := 260; i < 600; i++ {
		em = append(em, int32(i))
	}
	for _, n := range []int{5, 50, 500, 2000, 8000, 20000} {
		trials := 100
		if n > 4000 {
			trials = 16
		}
		diff, blk, eosN, total := 0, 0, 0, 0
		distinct := map[int32]bool{}
		loops := 0
		first := 0
		start := time.Now()
		for s := range trials {
			m := Tiny(uint64(s%5), 700, em, []int32{300})
			rng := rand.New(rand.NewPCG(uint64(s), 1))
			p := m.NewPool((n+300)/16+2, 16)
			prompt := make([]int32, n)
			for i := range prompt {
				// zipf-like
				prompt[i] = int32(float64(700) * rng.Float64() * rng.Float64() * rng.Float64())
			}
			L := 128
			a := gen(m, p, prompt, L)
			seen := map[[3]int32]int{}
			for i, x := range a {
				distinct[x] = true
				total++
				if x == 300 {
					eosN++
				}
				if i >= 2 {
					seen[[3]int32{a[i-2], a[i-1], x}]++
				}
			}
			if len(seen) < (L-2)*3/4 {
				loops++
			}
			q := append([]int32(nil), prompt...)
			q[n/10] = (q[n/10] + 1) % 700
			b := gen(m, p, q, 16)
			for i := range b {
				if a[i] != b[i] {
					diff++
					first += i
					break
				}
			}
			// block content: copy block 1 over block 0 after prefill
			tb := table(p.Blocks())
			m.Forward(p, []Chunk{{Tokens: prompt, Blocks: tb}})
			rng.IntN(2)
			copy(p.Block(0), p.Block(1))
			c := append([]int32(nil), prompt[n-1])
			pos := n - 1
			var out []int32
			for range 16 {
				lg := m.Forward(p, []Chunk{{Tokens: c, Start: pos, Blocks: tb, Logits: 1}})[0]
				c = []int32{argmax(lg)}
				out = append(out, c[0])
				pos++
			}
			for i := range out {
				if a[i] != out[i] {
					blk++
					break
				}
			}
			if s == 0 {
				fmt.Println(a[:32])
			}
		}
		fmt.Printf("n=%d diff %d/%d (mean first %.1f) block %d/%d eos 1/%.0f distinct %d loops %d  %v\n", n, diff, trials, float64(first)/float64(max(diff, 1)), blk, trials, float64(total)/float64(max(1, eosN)), len(distinct), loops, time.Since(start).Round(time.Millisecond))
	}
}
