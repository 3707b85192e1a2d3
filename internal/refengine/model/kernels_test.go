package model

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// kernelBound is how far a kernel may be from its specification, relative to the sum of the absolute values of what is added. The
// two differ in fused multiply-adds: half a unit in the last place (2^-24) for each addition, which rarely align.
const kernelBound = 1e-6

// normal returns n numbers with standard deviation 1.
func normal(r *random, n int) []float32 { return r.row(n, 1) }

func near(got, want float32, scale float64) bool {
	return math.Abs(float64(got)-float64(want)) <= kernelBound*(scale+1e-30)
}

// The product that this process uses is near the specification, for all tokens, row counts and both precisions, and the one-token
// kernel gives the same bits as the other.
func TestGemmMatchesSpecification(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rows, cols := rapid.IntRange(1, 150).Draw(t, "rows"), rapid.IntRange(1, 300).Draw(t, "cols")
		tokens := rapid.IntRange(1, gemmTokens).Draw(t, "tokens")
		r := &random{state: rapid.Uint64().Draw(t, "seed")}
		m := newMatrix(rows, cols, rapid.Bool().Draw(t, "bf16"))
		for i := range rows {
			m.setRow(i, normal(r, cols))
		}
		xStride, outStride := cols+rapid.IntRange(0, 9).Draw(t, "gap"), m.stride()
		x := normal(r, tokens*xStride)
		want, got := make([]float32, tokens*outStride), make([]float32, tokens*outStride)
		for panel := range m.panels() {
			gemmPlain(m, panel, x, xStride, tokens, want[panel*panelRows:], outStride)
			gemm(m, panel, x, xStride, tokens, got[panel*panelRows:], outStride)
		}
		for tok := range tokens {
			for row := range outStride {
				var scale float64
				if row < rows {
					for k, w := range rowOf(m, row) {
						scale += math.Abs(float64(w) * float64(x[tok*xStride+k]))
					}
				}
				if i := tok*outStride + row; !near(got[i], want[i], scale) {
					t.Fatalf("token %d, row %d = %v, want %v", tok, row, got[i], want[i])
				}
			}
		}
		one := make([]float32, outStride)
		for panel := gemv(m, 0, m.panels(), x, one); panel < m.panels(); panel++ {
			gemm(m, panel, x, xStride, 1, one[panel*panelRows:], outStride)
		}
		for row, v := range one {
			if math.Float32bits(v) != math.Float32bits(got[row]) {
				t.Fatalf("row %d of one token = %v, and %v among %d tokens", row, v, got[row], tokens)
			}
		}
	})
}

// A whole tile of attention, step by step.
func TestAttentionKernelsMatchSpecification(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		dim := 8 * rapid.IntRange(1, 16).Draw(t, "dim/8")
		r := &random{state: rapid.Uint64().Draw(t, "seed")}
		lanes := rapid.SampledFrom([]int{1, 8, 9, 16}).Draw(t, "lanes")
		spread := rapid.SampledFrom([]float64{0.1, 1, 5}).Draw(t, "spread")
		kv := normal(r, 4096)
		q := r.row(dim*attnLanes, spread)
		want, got := newAttnState(dim), newAttnState(dim)
		for range rapid.IntRange(1, 4).Draw(t, "tiles") {
			n := rapid.IntRange(1, attnTile).Draw(t, "positions")
			rows := make([]int, n)
			for j := range rows {
				rows[j] = int(r.next() % 3000)
			}
			const shift = 777
			var visible [attnLanes]int32
			masked := want.sum[0] > 0 && rapid.Bool().Draw(t, "masked")
			for l := range visible {
				if visible[l] = int32(n); masked {
					visible[l] = int32(r.next()%uint64(n+4)) - 2
				}
			}
			s, ws := make([]float32, n*attnLanes), make([]float32, n*attnLanes)
			scoresPlain(q, dim, kv, rows, ws)
			scores(q, dim, lanes, kv, rows, s)
			for i := range s {
				if i%attnLanes < lanes && !near(s[i], ws[i], 30*spread*float64(dim)) {
					t.Fatalf("score %d = %v, want %v", i, s[i], ws[i])
				}
			}
			copy(s, ws) // a score's error is magnified by the exponential: each kernel is judged by the same input
			softmaxPlain(ws, n, &visible, want, dim)
			softmax(s, n, &visible, got, dim)
			for i := range s {
				if !near(s[i], ws[i], 1) {
					t.Fatalf("weight %d = %v, want %v", i, s[i], ws[i])
				}
			}
			copy(s, ws)
			valuesPlain(want.acc, dim, kv, rows, shift, ws)
			values(got.acc, dim, lanes, kv, rows, shift, s)
			for l := range lanes {
				if got.top[l] != want.top[l] || !near(got.sum[l], want.sum[l], 200) {
					t.Fatalf("lane %d: largest %v and sum %v, want %v and %v", l, got.top[l], got.sum[l], want.top[l], want.sum[l])
				}
				for d := range dim {
					if i := d*attnLanes + l; !near(got.acc[i], want.acc[i], 400) {
						t.Fatalf("lane %d, element %d = %v, want %v", l, d, got.acc[i], want.acc[i])
					}
				}
			}
		}
	})
}

func newAttnState(dim int) *attnState {
	st := &attnState{acc: make([]float32, dim*attnLanes)}
	for l := range st.top {
		st.top[l] = float32(math.Inf(-1))
	}
	return st
}

// A lane that sees nothing of a tile keeps its state to the bit, so it does not matter which lanes it shares a tile with.
func TestSoftmaxLeavesBlindLanesAlone(t *testing.T) {
	t.Parallel()
	const dim = 8
	r := &random{state: 5}
	st := newAttnState(dim)
	s := r.row(attnTile*attnLanes, 3)
	var all, none [attnLanes]int32
	for l := range all {
		all[l], none[l] = attnTile, int32(-l)
	}
	softmax(s, attnTile, &all, st, dim)
	copy(st.acc, r.row(len(st.acc), 1))
	before, acc := *st, append([]float32(nil), st.acc...)
	s = r.row(attnTile*attnLanes, 30)
	softmax(s, attnTile, &none, st, dim)
	if st.top != before.top || st.sum != before.sum {
		t.Errorf("largest and sum are %v and %v, want %v and %v", st.top, st.sum, before.top, before.sum)
	}
	for i := range acc {
		if st.acc[i] != acc[i] {
			t.Fatalf("acc[%d] = %v, want %v", i, st.acc[i], acc[i])
		}
	}
	for i, w := range s {
		if w != 0 {
			t.Fatalf("weight %d = %v, want 0", i, w)
		}
	}
}

func TestElementwiseKernelsMatchSpecification(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 200).Draw(t, "n")
		r := &random{state: rapid.Uint64().Draw(t, "seed")}
		a, b := r.row(n, rapid.SampledFrom([]float64{1e-3, 1, 30, 1e4}).Draw(t, "scale")), normal(r, n)
		want, got := make([]float32, n), make([]float32, n)
		swigluPlain(a, b, want)
		swiglu(a, b, got)
		for i := range got {
			if !near(got[i], want[i], math.Abs(float64(want[i]))) {
				t.Fatalf("swiglu(%v, %v) = %v, want %v", a[i], b[i], got[i], want[i])
			}
		}
		rmsNormPlain(a, b, want, 1e-5)
		rmsNorm(a, b, got, 1e-5)
		for i := range got {
			if !near(got[i], want[i], math.Abs(float64(want[i]))) {
				t.Fatalf("rmsNorm of %d values: element %d = %v, want %v", n, i, got[i], want[i])
			}
		}
	})
}

func TestExp2(t *testing.T) {
	t.Parallel()
	for x := float32(-126); x <= 126; x += 0.0137 {
		want := math.Exp2(float64(x))
		if got := float64(exp2(x)); math.Abs(got-want) > 2e-7*want {
			t.Fatalf("exp2(%v) = %v, want %v", x, got, want)
		}
	}
	for x, want := range map[float32]float32{0: 1, -126.5: 0, float32(math.Inf(-1)): 0, -1: 0.5, 10: 1024} {
		if got := exp2(x); got != want {
			t.Errorf("exp2(%v) = %v, want %v", x, got, want)
		}
	}
}

func TestMatrixKeepsItsRows(t *testing.T) {
	t.Parallel()
	for dtype, round := range rounding {
		if dtype == "F16" {
			continue
		}
		m := newMatrix(37, 5, dtype == "BF16")
		r := &random{state: 1}
		var rows [][]float32
		for i := range 37 {
			rows = append(rows, normal(r, 5))
			m.setRow(36-i, rows[i])
		}
		for i, want := range rows {
			for j, v := range rowOf(m, 36-i) {
				if v != round(want[j]) {
					t.Fatalf("%s: row %d, column %d = %v, want %v", dtype, 36-i, j, v, round(want[j]))
				}
			}
		}
	}
}

func TestFloatFormats(t *testing.T) {
	t.Parallel()
	inf := float32(math.Inf(1))
	for h, want := range map[uint16]float32{
		0x0000: 0, 0x3c00: 1, 0xc000: -2, 0x7bff: 65504, 0x0400: 1.0 / (1 << 14), 0x0001: 1.0 / (1 << 24), 0x83ff: -1023.0 / (1 << 24), 0x7c00: inf, 0xfc00: -inf,
	} {
		if got := fromF16(h); got != want {
			t.Errorf("fromF16(%#04x) = %v, want %v", h, got, want)
		}
	}
	if v := fromF16(0x7e01); v == v {
		t.Errorf("fromF16 of a NaN = %v", v)
	}
	for bits, want := range map[uint32]uint16{
		0x3f800000: 0x3f80, 0x3f808000: 0x3f80, 0x3f818000: 0x3f82, 0x3f808001: 0x3f81, 0x7f800000: 0x7f80, 0x7f7fffff: 0x7f80, 0x7f800001: 0x7fc0, 0x80000001: 0x8000,
	} {
		if got := toBF16(math.Float32frombits(bits)); got != want {
			t.Errorf("toBF16(%#08x) = %#04x, want %#04x", bits, got, want)
		}
	}
}
