package model

import "math"

// This file is the specification of the kernels. The assembly in *_amd64.s computes the same in the same order,
// eight lanes at a time, with fused multiply-add where a product is added.
//
// A kernel's result for one (token, output) pair never depends on which other pairs are computed in the same call.

const (
	gemmTokens = 6  // tokens per call of the matrix kernels
	attnLanes  = 16 // (token, head) pairs per call of the attention kernels
	attnTile   = 32 // positions between two updates of the running softmax; tiles start at its multiples
	log2E      = 1.4426950408889634
)

// gemmPlain computes out[t][r] = Σ_k panel[k][r] · x[t][k] for tokens 0 … tokens-1 and the 16 rows of one
// panel, adding from k = 0 up.
//
// x is [tokens][xStride], out is [tokens][outStride], both starting at the panel's first element.
func gemmPlain(m *matrix, panel int, x []float32, xStride, tokens int, out []float32, outStride int) {
	for t := range tokens {
		var acc [panelRows]float32
		row := x[t*xStride:][:m.cols]
		if m.bf16 != nil {
			w := m.bf16[panel*m.cols*8:][:m.cols*8]
			for _, v := range row {
				for r, pair := range w[:8] {
					acc[r] += math.Float32frombits(pair<<16) * v
					acc[r+8] += math.Float32frombits(pair&0xffff0000) * v
				}
				w = w[8:]
			}
		} else {
			w := m.f32[panel*m.cols*panelRows:][:m.cols*panelRows]
			for _, v := range row {
				for r, c := range w[:panelRows] {
					acc[r] += c * v
				}
				w = w[panelRows:]
			}
		}
		copy(out[t*outStride:][:panelRows], acc[:])
	}
}

// scoresPlain computes s[j][l] = Σ_d q[d][l] · k_j[d], adding from d = 0 up.
//
// q is [dim][attnLanes], s is [len(rows)][attnLanes]; k_j is kv[rows[j]:][:dim].
func scoresPlain(q []float32, dim int, kv []float32, rows []int, s []float32) {
	for j, at := range rows {
		k := kv[at:][:dim]
		var acc [attnLanes]float32
		for d, v := range k {
			for l, a := range q[d*attnLanes:][:attnLanes] {
				acc[l] += a * v
			}
		}
		copy(s[j*attnLanes:][:attnLanes], acc[:])
	}
}

// softmaxPlain folds one tile of scores into the running softmax and leaves the tile's unnormalised weights in s.
//
// Scores are in units of log2, [n][attnLanes]. Lane l sees the tile's first visible[l] positions. st holds each
// lane's largest score and sum of weights so far, and its weighted sum of values; all three are rescaled when the
// largest score grows. A lane that sees nothing of the tile is left exactly as it was.
func softmaxPlain(s []float32, n int, visible *[attnLanes]int32, st *attnState, dim int) {
	for l := range attnLanes {
		top := st.top[l]
		for j := range min(n, int(visible[l])) {
			top = max(top, s[j*attnLanes+l])
		}
		scale := exp2(st.top[l] - top)
		st.top[l] = top
		if scale != 1 {
			st.sum[l] *= scale
			for d := range dim {
				st.acc[d*attnLanes+l] *= scale
			}
		}
		for j := range n {
			var w float32
			if j < int(visible[l]) {
				w = exp2(s[j*attnLanes+l] - top)
			}
			s[j*attnLanes+l] = w
			st.sum[l] += w
		}
	}
}

// valuesPlain adds a tile's weighted values: acc[d][l] += Σ_j w[j][l] · v_j[d], from j = 0 up.
//
// v_j is kv[rows[j]+shift:][:dim]: a value lies at a fixed distance from its key.
func valuesPlain(acc []float32, dim int, kv []float32, rows []int, shift int, w []float32) {
	for j, at := range rows {
		v := kv[at+shift:][:dim]
		for d, x := range v {
			a := acc[d*attnLanes:][:attnLanes]
			for l, p := range w[j*attnLanes:][:attnLanes] {
				a[l] += p * x
			}
		}
	}
}

// swigluPlain computes out[i] = silu(gate[i]) · up[i], silu(x) = x / (1 + e^-x).
func swigluPlain(gate, up, out []float32) {
	up, out = up[:len(gate)], out[:len(gate)]
	for i, g := range gate {
		e := exp2(min(max(g*-log2E, -126), 126))
		out[i] = g / (1 + e) * up[i]
	}
}

// rmsNormPlain computes out = x / rms(x) · weight.
//
// The squares are added in eight lanes (i mod 8), then pairwise.
func rmsNormPlain(x, weight, out []float32, eps float64) {
	var acc [8]float32
	i := 0
	for ; i+8 <= len(x); i += 8 {
		for l, v := range x[i : i+8] {
			acc[l] += v * v
		}
	}
	for l, v := range x[i:] {
		acc[l] += v * v
	}
	sum := (acc[0] + acc[4]) + (acc[2] + acc[6]) + ((acc[1] + acc[5]) + (acc[3] + acc[7]))
	inv := float32(1 / math.Sqrt(float64(sum)/float64(len(x))+eps))
	weight, out = weight[:len(x)], out[:len(x)]
	for i, v := range x {
		out[i] = v * inv * weight[i]
	}
}

// exp2 is 2^x for x up to 127, to about one unit in the last place: x is split into a whole number, which becomes the
// exponent, and a rest within ±½, for which a polynomial is used. exp2(0) is exactly 1 and 2^x is 0 below -126, so
// a lane that is hidden from a position is not changed by it.
func exp2(x float32) float32 {
	if x < -126 {
		return 0
	}
	const toWhole = 3 << 22 // adding it leaves no bits for a fraction: rounds to nearest, ties to even
	whole := float32(x+toWhole) - toWhole
	f := x - whole
	p := float32(1.5353362e-4)
	p = p*f + 1.3398874e-3
	p = p*f + 9.6184373e-3
	p = p*f + 5.5503324e-2
	p = p*f + 2.4022648e-1
	p = p*f + 6.9314720e-1
	p = p*f + 1
	return math.Float32frombits(math.Float32bits(p) + uint32(int32(whole))<<23)
}
