package model

import (
	"fmt"
	"math"
)

// panelRows is how many outputs a kernel computes side by side: two vectors of eight float32.
const panelRows = 16

// matrix is a weight matrix [rows][cols], stored in panels of panelRows rows with the column outermost, so that
// a kernel reads memory in one straight line: [panels][cols][panelRows]. Rows are padded with zeros to a whole panel.
//
// Exactly one of bf16 and f32 is set. bfloat16 halves the memory that each decode step must read. It packs rows r and r+8 of a
// panel into one word, the first in the low half: a shift gives eight rows as float32 and a mask the other eight.
type matrix struct {
	rows, cols int
	bf16       []uint32 // [panels][cols][8]
	f32        []float32
}

func newMatrix(rows, cols int, asBF16 bool) *matrix {
	m := &matrix{rows: rows, cols: cols}
	if asBF16 {
		m.bf16 = make([]uint32, m.panels()*cols*panelRows/2)
	} else {
		m.f32 = make([]float32, m.panels()*cols*panelRows)
	}
	return m
}

func (m *matrix) panels() int { return (m.rows + panelRows - 1) / panelRows }

// stride is the padded row count: how wide an output row of the product is in memory.
func (m *matrix) stride() int { return m.panels() * panelRows }

// setRow stores row r, len(src) == cols. A bfloat16 matrix rounds to nearest, ties to even.
func (m *matrix) setRow(r int, src []float32) {
	if len(src) != m.cols {
		panic(fmt.Sprintf("BUG: row of %d values in a matrix with %d columns", len(src), m.cols))
	}
	panel, lane := r/panelRows, r%panelRows
	if m.bf16 == nil {
		dst := m.f32[panel*m.cols*panelRows+lane:]
		for i, v := range src {
			dst[i*panelRows] = v
		}
		return
	}
	dst := m.bf16[panel*m.cols*panelRows/2+lane%8:]
	if lane < 8 {
		for i, v := range src {
			dst[i*8] = dst[i*8]&0xffff0000 | uint32(toBF16(v))
		}
		return
	}
	for i, v := range src {
		dst[i*8] = dst[i*8]&0x0000ffff | uint32(toBF16(v))<<16
	}
}

// row reads row r into dst, len(dst) == cols.
func (m *matrix) row(r int, dst []float32) {
	panel, lane := r/panelRows, r%panelRows
	if m.bf16 == nil {
		src := m.f32[panel*m.cols*panelRows+lane:]
		for i := range dst {
			dst[i] = src[i*panelRows]
		}
		return
	}
	src := m.bf16[panel*m.cols*panelRows/2+lane%8:]
	shift := 16 * uint(1-lane/8) // the low half moves up; the high half stays
	for i := range dst {
		dst[i] = math.Float32frombits(src[i*8] << shift & 0xffff0000)
	}
}

// toBF16 rounds to the nearest bfloat16, ties to even. A NaN stays a NaN.
func toBF16(v float32) uint16 {
	b := math.Float32bits(v)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// fromBF16 widens a bfloat16, exactly.
func fromBF16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// fromF16 widens an IEEE half, exactly.
func fromF16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp := uint32(h >> 10 & 0x1f)
	frac := uint32(h & 0x3ff)
	switch exp {
	case 0: // zero or subnormal: frac × 2^-24
		f := float32(frac) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 0x1f: // infinity or NaN
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}
