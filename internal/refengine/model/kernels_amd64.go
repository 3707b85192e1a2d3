//go:build !purego

package model

import (
	"math"

	"golang.org/x/sys/cpu"
)

// hasAVX2 picks the kernels for the whole life of the process: the two kinds round differently, so they must not mix.
var hasAVX2 = cpu.X86.HasAVX2 && cpu.X86.HasFMA

// gemvPanels is how many panels the one-token kernel reads at once, so that its sums do not wait for each other.
const gemvPanels = 4

// The assembly checks no bounds: these functions do.

// gemv computes panels of a product with one row of x, from panel first on and up to last at most, and returns the first
// panel that it left to gemm. Both add in the same order.
func gemv(m *matrix, first, last int, x, out []float32) int {
	if !hasAVX2 {
		return first
	}
	x = x[:m.cols]
	for ; first+gemvPanels <= last; first += gemvPanels {
		o := out[first*panelRows:][:gemvPanels*panelRows]
		if m.bf16 != nil {
			w := m.bf16[first*m.cols*8:][:gemvPanels*m.cols*8]
			gemvBF16(&w[0], &x[0], m.cols, &o[0])
		} else {
			w := m.f32[first*m.cols*panelRows:][:gemvPanels*m.cols*panelRows]
			gemvF32(&w[0], &x[0], m.cols, &o[0])
		}
	}
	return first
}

func gemm(m *matrix, panel int, x []float32, xStride, tokens int, out []float32, outStride int) {
	if !hasAVX2 {
		gemmPlain(m, panel, x, xStride, tokens, out, outStride)
		return
	}
	x = x[:(tokens-1)*xStride+m.cols]
	out = out[:(tokens-1)*outStride+panelRows]
	if m.bf16 != nil {
		w := m.bf16[panel*m.cols*8:][:m.cols*8]
		gemmBF16(&w[0], &x[0], xStride*4, m.cols, tokens, &out[0], outStride*4)
	} else {
		w := m.f32[panel*m.cols*panelRows:][:m.cols*panelRows]
		gemmF32(&w[0], &x[0], xStride*4, m.cols, tokens, &out[0], outStride*4)
	}
}

// narrowLanes is how many lanes the narrow attention kernels compute: half a tile, which is all that one token of a sequence needs.
const narrowLanes = attnLanes / 2

func scores(q []float32, dim, lanes int, kv []float32, rows []int, s []float32) {
	if !hasAVX2 {
		scoresPlain(q, dim, kv, rows, s)
		return
	}
	q, s = q[:dim*attnLanes], s[:len(rows)*attnLanes]
	for _, at := range rows {
		_ = kv[at : at+dim]
	}
	if lanes <= narrowLanes {
		scoresNarrowAVX2(&q[0], dim, &kv[0], &rows[0], len(rows), &s[0])
		return
	}
	scoresAVX2(&q[0], dim, &kv[0], &rows[0], len(rows), &s[0])
}

func softmax(s []float32, n int, visible *[attnLanes]int32, st *attnState, dim int) {
	if !hasAVX2 {
		softmaxPlain(s, n, visible, st, dim)
		return
	}
	s = s[:n*attnLanes]
	acc := st.acc[:dim*attnLanes]
	softmaxAVX2(&s[0], n, visible, &st.top, &st.sum, &acc[0], dim)
}

func values(acc []float32, dim, lanes int, kv []float32, rows []int, shift int, w []float32) {
	if !hasAVX2 {
		valuesPlain(acc, dim, kv, rows, shift, w)
		return
	}
	acc, w = acc[:dim*attnLanes], w[:len(rows)*attnLanes]
	for _, at := range rows {
		_ = kv[at+shift : at+shift+dim]
	}
	if lanes <= narrowLanes {
		valuesNarrowAVX2(&acc[0], dim, &kv[shift], &rows[0], len(rows), &w[0])
		return
	}
	valuesAVX2(&acc[0], dim, &kv[shift], &rows[0], len(rows), &w[0])
}

func swiglu(gate, up, out []float32) {
	n := 0
	if hasAVX2 {
		if n = len(gate) &^ 7; n > 0 {
			up, out := up[:n], out[:n]
			swigluAVX2(&gate[0], &up[0], &out[0], n)
		}
	}
	swigluPlain(gate[n:], up[n:], out[n:])
}

func rmsNorm(x, weight, out []float32, eps float64) {
	if !hasAVX2 || len(x)%8 != 0 {
		rmsNormPlain(x, weight, out, eps)
		return
	}
	weight, out = weight[:len(x)], out[:len(x)]
	mean := float64(sumSquaresAVX2(&x[0], len(x))) / float64(len(x))
	scaleAVX2(&x[0], &weight[0], float32(1/math.Sqrt(mean+eps)), &out[0], len(x))
}

// The assembly kernels. Strides are in bytes, other lengths in elements; n is a multiple of 8 where nothing else is said.

//go:noescape
func gemmBF16(w *uint32, x *float32, xStride, cols, tokens int, out *float32, outStride int)

//go:noescape
func gemmF32(w *float32, x *float32, xStride, cols, tokens int, out *float32, outStride int)

//go:noescape
func gemvBF16(w *uint32, x *float32, cols int, out *float32)

//go:noescape
func gemvF32(w *float32, x *float32, cols int, out *float32)

//go:noescape
func scoresAVX2(q *float32, dim int, kv *float32, rows *int, n int, s *float32) // any n > 0

//go:noescape
func softmaxAVX2(s *float32, n int, visible *[attnLanes]int32, top, sum *[attnLanes]float32, acc *float32, dim int) // any n > 0

//go:noescape
func valuesAVX2(acc *float32, dim int, kv *float32, rows *int, n int, w *float32) // any n > 0

//go:noescape
func scoresNarrowAVX2(q *float32, dim int, kv *float32, rows *int, n int, s *float32) // any n > 0

//go:noescape
func valuesNarrowAVX2(acc *float32, dim int, kv *float32, rows *int, n int, w *float32) // any n > 0

//go:noescape
func swigluAVX2(gate, up, out *float32, n int)

//go:noescape
func sumSquaresAVX2(x *float32, n int) float32

//go:noescape
func scaleAVX2(x, weight *float32, by float32, out *float32, n int)
