package model

import (
	"math"
	"slices"
)

// table returns the block table 0, 1, … n-1.
func table(n int) []int {
	b := make([]int, n)
	for i := range b {
		b[i] = i
	}
	return b
}

func argmax(v []float32) int32 {
	best := 0
	for i, x := range v {
		if x > v[best] {
			best = i
		}
	}
	return int32(best)
}

// gen returns n greedy tokens after a prompt, which it computes into the pool's blocks in their order.
func gen(m *Model, p *Pool, prompt []int32, n int) []int32 {
	blocks := table(p.Blocks())
	logits := m.Forward(p, []Chunk{{Tokens: prompt, Blocks: blocks, Logits: 1}})[0]
	return continueFrom(m, p, blocks, logits, len(prompt), n)
}

// continueFrom returns n greedy tokens, the first of them from logits.
func continueFrom(m *Model, p *Pool, blocks []int, logits []float32, at, n int) []int32 {
	var out []int32
	for {
		out = append(out, argmax(logits))
		if len(out) == n {
			return out
		}
		logits = m.Forward(p, []Chunk{{Tokens: out[len(out)-1:], Start: at, Blocks: blocks, Logits: 1}})[0]
		at++
	}
}

// testConfig is a shape in which nothing is a round number: three query heads to a KV head, rows that do not fill a panel.
func testConfig() Config {
	return Config{
		VocabSize: 51, HiddenSize: 40, IntermediateSize: 37, Layers: 3, Heads: 6, KVHeads: 2, HeadDim: 8,
		MaxPositions: 4096, RopeTheta: 10000, NormEps: 1e-5, BOS: -1,
		RopeScaling: &RopeScaling{Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPositions: 64},
	}
}

// randomModel returns a model with random weights, biases included.
func randomModel(c Config, seed uint64, bf16 bool) *Model {
	r := random{state: seed}
	fill := func(rows, cols int) *matrix {
		m := newMatrix(rows, cols, bf16)
		for i := range rows {
			m.setRow(i, r.row(cols, 1.5/math.Sqrt(float64(cols))))
		}
		return m
	}
	lin := func(rows, cols int) linear { return linear{w: fill(rows, cols), bias: r.row(rows, 0.3)} }
	norm := func() []float32 {
		v := r.row(c.HiddenSize, 0.2)
		for i := range v {
			v[i]++
		}
		return v
	}
	m := &Model{cfg: c, embed: fill(c.VocabSize, c.HiddenSize), norm: norm(), invFreq: ropeFrequencies(&c)}
	m.head = fill(c.VocabSize, c.HiddenSize)
	for range c.Layers {
		m.layers = append(m.layers, layer{
			attnNorm: norm(), qkv: lin(c.qRows()+2*c.kvRows(), c.HiddenSize), out: lin(c.HiddenSize, c.qRows()),
			mlpNorm: norm(), gateUp: lin(2*c.IntermediateSize, c.HiddenSize), down: lin(c.HiddenSize, c.IntermediateSize),
		})
	}
	return m
}

func randomTokens(seed uint64, n, vocab int) []int32 {
	r := random{state: seed}
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(r.next() % uint64(vocab))
	}
	return tokens
}

// sequence is what a test knows of one sequence: the logits of each token and the KV of each position.
type sequence struct {
	Logits [][]float32
	KV     [][]float32 // per position: layer 0 key, value, layer 1 key, …
}

// kvAt copies the KV of one position.
func kvAt(p *Pool, blocks []int, position int) []float32 {
	var kv []float32
	at, width := p.keyOffset(blocks, position), p.model.cfg.kvRows()
	for range p.model.cfg.Layers {
		kv = append(kv, p.kv[at:at+width]...)
		kv = append(kv, p.kv[at+p.valueShift():][:width]...)
		at += p.layerStride()
	}
	return kv
}

// oneByOne computes a sequence token by token, alone, in a pool of its own.
func oneByOne(m *Model, tokens []int32) sequence {
	p := m.NewPool(len(tokens), 1)
	var s sequence
	for i := range tokens {
		out := m.Forward(p, []Chunk{{Tokens: tokens[i : i+1], Start: i, Blocks: table(len(tokens)), Logits: 1}})
		s.Logits = append(s.Logits, slices.Clone(out[0]))
	}
	for i := range tokens {
		s.KV = append(s.KV, kvAt(p, table(len(tokens)), i))
	}
	return s
}

// reference computes the logits of all tokens in float64, straight from the definition of the model.
func reference(m *Model, tokens []int32) [][]float64 {
	c := &m.cfg
	x := make([][]float64, len(tokens))
	for i, id := range tokens {
		x[i] = widen(rowOf(m.embed, int(id)))
	}
	for l := range m.layers {
		ly := &m.layers[l]
		var ks, vs [][]float64
		for pos := range x {
			qkv := apply(&ly.qkv, rms(x[pos], ly.attnNorm, c.NormEps))
			q, k, v := qkv[:c.qRows()], qkv[c.qRows():c.qRows()+c.kvRows()], qkv[c.qRows()+c.kvRows():]
			turn(q, c, pos)
			turn(k, c, pos)
			ks, vs = append(ks, k), append(vs, v)
			out := make([]float64, c.qRows())
			for h := range c.Heads {
				qh, kv := q[h*c.HeadDim:][:c.HeadDim], h/(c.Heads/c.KVHeads)*c.HeadDim
				var sum float64
				weights := make([]float64, pos+1)
				for j := range weights {
					weights[j] = math.Exp(dot(qh, ks[j][kv:kv+c.HeadDim]) / math.Sqrt(float64(c.HeadDim)))
					sum += weights[j]
				}
				for j, w := range weights {
					for d := range c.HeadDim {
						out[h*c.HeadDim+d] += w / sum * vs[j][kv+d]
					}
				}
			}
			for i, v := range apply(&ly.out, out) {
				x[pos][i] += v
			}
			gu := apply(&ly.gateUp, rms(x[pos], ly.mlpNorm, c.NormEps))
			act := make([]float64, c.IntermediateSize)
			for i := range act {
				act[i] = gu[i] / (1 + math.Exp(-gu[i])) * gu[c.IntermediateSize+i]
			}
			for i, v := range apply(&ly.down, act) {
				x[pos][i] += v
			}
		}
	}
	for i := range x {
		x[i] = apply(&linear{w: m.head}, rms(x[i], m.norm, c.NormEps))
	}
	return x
}

func rowOf(m *matrix, r int) []float32 {
	row := make([]float32, m.cols)
	m.row(r, row)
	return row
}

func widen(v []float32) []float64 {
	w := make([]float64, len(v))
	for i, x := range v {
		w[i] = float64(x)
	}
	return w
}

func dot(a, b []float64) (sum float64) {
	for i, v := range a {
		sum += v * b[i]
	}
	return sum
}

func apply(l *linear, x []float64) []float64 {
	y := make([]float64, l.w.rows)
	for r := range y {
		if y[r] = dot(widen(rowOf(l.w, r)), x); l.bias != nil {
			y[r] += float64(l.bias[r])
		}
	}
	return y
}

func rms(x []float64, weight []float32, eps float64) []float64 {
	inv := 1 / math.Sqrt(dot(x, x)/float64(len(x))+eps)
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v * inv * float64(weight[i])
	}
	return y
}

// turn applies the rotation of a position to all heads of v, from the formula in the Llama 3 report.
func turn(v []float64, c *Config, pos int) {
	for i := range v {
		pair := i % c.HeadDim
		if pair >= c.HeadDim/2 {
			continue
		}
		freq := math.Pow(c.RopeTheta, -2*float64(pair)/float64(c.HeadDim))
		if s := c.RopeScaling; s != nil {
			wave := 2 * math.Pi / freq
			smooth := (float64(s.OriginalMaxPositions)/wave - s.LowFreqFactor) / (s.HighFreqFactor - s.LowFreqFactor)
			smooth = min(max(smooth, 0), 1)
			freq = (1-smooth)*freq/s.Factor + smooth*freq
		}
		sin, cos := math.Sincos(float64(pos) * freq)
		a, b := v[i], v[i+c.HeadDim/2]
		v[i], v[i+c.HeadDim/2] = a*cos-b*sin, b*cos+a*sin
	}
}
