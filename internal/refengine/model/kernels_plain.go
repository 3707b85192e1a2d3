//go:build !amd64 || purego

package model

func gemv(_ *matrix, first, _ int, _, _ []float32) int { return first }

func gemm(m *matrix, panel int, x []float32, xStride, tokens int, out []float32, outStride int) {
	gemmPlain(m, panel, x, xStride, tokens, out, outStride)
}

func scores(q []float32, dim, _ int, kv []float32, rows []int, s []float32) {
	scoresPlain(q, dim, kv, rows, s)
}

func softmax(s []float32, n int, visible *[attnLanes]int32, st *attnState, dim int) {
	softmaxPlain(s, n, visible, st, dim)
}

func values(acc []float32, dim, _ int, kv []float32, rows []int, shift int, w []float32) {
	valuesPlain(acc, dim, kv, rows, shift, w)
}

func swiglu(gate, up, out []float32) { swigluPlain(gate, up, out) }

func rmsNorm(x, weight, out []float32, eps float64) { rmsNormPlain(x, weight, out, eps) }
