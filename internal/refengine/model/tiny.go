package model

import (
	"fmt"
	"math"
	"slices"
)

// The shape of the built-in model: two layers and narrow heads, so that a long prompt costs little.
const (
	tinyHidden       = 64
	tinyIntermediate = 128
	tinyLayers       = 2
	tinyHeads        = 2
	tinyKVHeads      = 1
	tinyHeadDim      = 16
	tinyPositions    = 1 << 20
)

// How large the parts of the built-in model are. The values come from a random search for three things: a change of
// one early token shows within 16 greedy tokens (always at 2,000 tokens of context, in three of four trials at 20,000), the output
// does not run in circles, and an end-of-sequence token comes about once in 45 tokens with some 340 ids to choose from.
const (
	tinyTheta    = 5.0  // all rotary waves are short: each step shifts the pattern of attention
	tinyConstant = 6.0  // of channel 0, the same for each token
	tinyPattern  = 0.7  // checksum layer: queries and keys, part that depends on distance only
	tinyContent  = 0.1  // checksum layer: queries and keys, part that depends on content
	tinyChecksum = 64.0 // checksum layer: output; a difference of two means over n tokens is as small as 1/√n
	tinySharp    = 8.0  // look-up layer: queries and keys; large, so that few positions get most of the weight
	tinyLookup   = 12.0 // look-up layer: output
	tinyGate     = 2.0
	tinyDown     = 0.4
	tinyLogit    = 6.0  // standard deviation of a logit
	tinyEnd      = 1.45 // of an end-of-sequence logit, times that
)

// Tiny returns the built-in model: random weights from a seed, the same on every machine. It needs no download, computes a hundred
// thousand prompt tokens per second, and is made so that its greedy output shows what it was computed from:
//
//   - It generates ids of emission only: all other rows of its head are zero. An id of eos among them ends
//     an answer after some 45 tokens in the mean.
//   - Each token depends on the whole context. In the first layer two heads weigh all positions by two patterns of the
//     distance, and their difference is used: a checksum of what was there, and where. The second layer looks up few
//     positions by content, with queries that contain the checksum.
//
// Ids of emission and eos are in [0, vocab).
func Tiny(seed uint64, vocab int, emission, eos []int32) *Model {
	m := &Model{cfg: Config{
		Name:             fmt.Sprintf("tarik/tiny-%d", seed),
		VocabSize:        vocab,
		HiddenSize:       tinyHidden,
		IntermediateSize: tinyIntermediate,
		Layers:           tinyLayers,
		Heads:            tinyHeads,
		KVHeads:          tinyKVHeads,
		HeadDim:          tinyHeadDim,
		MaxPositions:     tinyPositions,
		RopeTheta:        tinyTheta,
		NormEps:          1e-6,
		BOS:              -1,
		EOS:              slices.Clone(eos),
	}}
	c := &m.cfg
	if err := c.validate(); err != nil {
		panic("BUG: built-in model: " + err.Error())
	}
	m.invFreq = ropeFrequencies(c)
	m.norm = ones(tinyHidden)

	// Each part has its own stream of random numbers, so that a larger vocabulary does not change the layers.
	sum, lookup := newRandom(seed, 1), newRandom(seed, 2)
	m.layers = []layer{
		tinyLayer(sum, c, tinyContent, tinyPattern, func() []float32 {
			row := sum.row(tinyHeadDim, tinyChecksum)
			for _, v := range row {
				row = append(row, -v) // the second head's values count against the first's
			}
			return row
		}),
		tinyLayer(lookup, c, tinySharp, 0, func() []float32 { return lookup.row(tinyHeads*tinyHeadDim, tinyLookup) }),
	}
	ids, logits, ends := newRandom(seed, 3), newRandom(seed, 4), newRandom(seed, 5)
	m.embed = newMatrix(vocab, tinyHidden, false)
	for id := range vocab {
		row := ids.row(tinyHidden, 1)
		row[0] = tinyConstant
		m.embed.setRow(id, row)
	}
	m.head = newMatrix(vocab, tinyHidden, false)
	for _, id := range emission {
		row := logits.row(tinyHidden, tinyLogit/math.Sqrt(tinyHidden))
		if slices.Contains(eos, id) {
			row = tinyEndRow(ends, m.layers[tinyLayers-1].out.w)
		}
		row[0] = 0
		m.head.setRow(int(id), row)
	}
	return m
}

// tinyEndRow makes the head's row of an end-of-sequence token, given the last layer's output projection, from which most of a
// logit comes. How often the largest of some hundred random logits is this one depends steeply on its deviation; so the deviation
// through the projection is made exact.
func tinyEndRow(r *random, out *matrix) []float32 {
	row := r.row(tinyHidden, 1)
	through := make([]float64, out.cols)
	weights := make([]float32, out.cols)
	var all, mine float64
	for i, v := range row {
		out.row(i, weights)
		for j, w := range weights {
			// Products of two float32 are exact, so a fused multiply-add rounds like two operations.
			through[j] += float64(v) * float64(w)
			all += float64(w) * float64(w)
		}
	}
	for _, v := range through {
		mine += float64(v * v)
	}
	scale := float32(tinyEnd * tinyLogit / math.Sqrt(tinyHidden) * math.Sqrt(all/mine))
	for i := range row {
		row[i] *= scale
	}
	return row
}

// tinyLayer makes a layer. content and pattern scale queries and keys, by what of the input they depend on: on the token, or on the
// constant channel; outRow makes a row of the output projection.
func tinyLayer(r *random, c *Config, content, pattern float64, outRow func() []float32) layer {
	ly := layer{
		attnNorm: ones(tinyHidden),
		qkv:      linear{w: newMatrix(c.qRows()+2*c.kvRows(), tinyHidden, false)},
		out:      linear{w: newMatrix(tinyHidden, c.qRows(), false)},
		mlpNorm:  ones(tinyHidden),
		gateUp:   linear{w: newMatrix(2*tinyIntermediate, tinyHidden, false)},
		down:     linear{w: newMatrix(tinyHidden, tinyIntermediate, false)},
	}
	unit := 1 / math.Sqrt(tinyHidden) // keeps the variance of a normalised input
	for i := range ly.qkv.w.rows {
		if i >= c.qRows()+c.kvRows() {
			content, pattern = 1, 0 // values
		}
		row := r.row(tinyHidden, unit*content)
		// The constant channel after the norm, in the first layer, where the other channels have variance 1.
		normed := tinyConstant / math.Sqrt(tinyConstant*tinyConstant/tinyHidden+1)
		row[0] = r.row(1, pattern/normed)[0]
		ly.qkv.w.setRow(i, row)
	}
	for i := range tinyHidden {
		row := outRow()
		if i == 0 {
			clear(row) // the constant channel stays constant
		}
		ly.out.w.setRow(i, row)
	}
	// The MLP's units come in pairs that differ in the sign of the gate, so it computes an odd function: outputs
	// have mean zero, and no token is a favourite whatever the context.
	for i := range tinyIntermediate / 2 {
		gate, up := r.row(tinyHidden, unit*tinyGate), r.row(tinyHidden, unit*tinyGate)
		gate[0], up[0] = 0, 0
		ly.gateUp.w.setRow(2*i, gate)
		ly.gateUp.w.setRow(tinyIntermediate+2*i, up)
		ly.gateUp.w.setRow(tinyIntermediate+2*i+1, up)
		for j := range gate {
			gate[j] = -gate[j]
		}
		ly.gateUp.w.setRow(2*i+1, gate)
	}
	for i := range tinyHidden {
		row := r.row(tinyIntermediate, tinyDown)
		for j := 0; j < len(row); j += 2 {
			row[j+1] = row[j]
		}
		if i == 0 {
			clear(row)
		}
		ly.down.w.setRow(i, row)
	}
	return ly
}

func ones(n int) []float32 {
	s := make([]float32, n)
	for i := range s {
		s[i] = 1
	}
	return s
}

// random is splitmix64. Numbers and the weights made of them come from integers and single float32 products, which every
// machine rounds alike; nothing here can be fused into a multiply-add.
type random struct{ state uint64 }

// newRandom returns one of a seed's streams.
func newRandom(seed, stream uint64) *random {
	return &random{state: seed ^ stream*0xd6e8feb86659fd93}
}

func (r *random) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	z := r.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// row returns n numbers with mean 0 and standard deviation scale, nearly normal: each is the sum of four uniform ones.
func (r *random) row(n int, scale float64) []float32 {
	const deviation = 37837.0 // of the sum of four uniform 16-bit numbers, √(4·2³²/12)
	unit := float32(scale / deviation)
	s := make([]float32, n)
	for i := range s {
		u := r.next()
		sum := int(u&0xffff) + int(u>>16&0xffff) + int(u>>32&0xffff) + int(u>>48) - 2*0xffff
		s[i] = float32(sum) * unit
	}
	return s
}
