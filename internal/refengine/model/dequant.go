package model

import (
	"encoding/binary"
	"fmt"
	"math"
)

// ggufType is a tensor's number format, as numbered by the file format.
type ggufType uint32

const (
	ggufF32  ggufType = 0
	ggufF16  ggufType = 1
	ggufQ4_0 ggufType = 2
	ggufQ4_1 ggufType = 3
	ggufQ5_0 ggufType = 6
	ggufQ5_1 ggufType = 7
	ggufQ8_0 ggufType = 8
	ggufQ4_K ggufType = 12
	ggufQ5_K ggufType = 13
	ggufQ6_K ggufType = 14
	ggufBF16 ggufType = 30
)

// ggufFormat says how a number format packs values: `elements` of them into `bytes`.
type ggufFormat struct {
	name     string
	elements int
	bytes    int
	// decode widens one block, len(src) == bytes, into len(dst) == elements. Products are rounded to float32 before they
	// are added to, on every machine: the weights of a file are the same everywhere.
	decode func(src []byte, dst []float32)
}

var ggufFormats = map[ggufType]ggufFormat{
	ggufF32: {"F32", 1, 4, func(src []byte, dst []float32) {
		dst[0] = math.Float32frombits(binary.LittleEndian.Uint32(src))
	}},
	ggufF16:  {"F16", 1, 2, func(src []byte, dst []float32) { dst[0] = half(src) }},
	ggufBF16: {"BF16", 1, 2, func(src []byte, dst []float32) { dst[0] = fromBF16(binary.LittleEndian.Uint16(src)) }},
	ggufQ4_0: {"Q4_0", 32, 18, decodeQ4_0},
	ggufQ4_1: {"Q4_1", 32, 20, decodeQ4_1},
	ggufQ5_0: {"Q5_0", 32, 22, decodeQ5_0},
	ggufQ5_1: {"Q5_1", 32, 24, decodeQ5_1},
	ggufQ8_0: {"Q8_0", 32, 34, decodeQ8_0},
	ggufQ4_K: {"Q4_K", 256, 144, decodeQ4_K},
	ggufQ5_K: {"Q5_K", 256, 176, decodeQ5_K},
	ggufQ6_K: {"Q6_K", 256, 210, decodeQ6_K},
}

func (t ggufType) String() string {
	if f, ok := ggufFormats[t]; ok {
		return f.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// half reads a scale.
func half(src []byte) float32 { return fromF16(binary.LittleEndian.Uint16(src)) }

// Blocks of 32: a scale d, for the _1 formats a minimum m, for the 5-bit formats the 32 fifth bits, then
// 16 bytes whose low halves are values 0 … 15 and whose high halves are values 16 … 31.

func decodeQ4_0(src []byte, dst []float32) {
	d := half(src)
	for i, b := range src[2:18] {
		dst[i] = d * float32(int(b&15)-8)
		dst[i+16] = d * float32(int(b>>4)-8)
	}
}

func decodeQ4_1(src []byte, dst []float32) {
	d, m := half(src), half(src[2:])
	for i, b := range src[4:20] {
		dst[i] = float32(d*float32(b&15)) + m
		dst[i+16] = float32(d*float32(b>>4)) + m
	}
}

func decodeQ5_0(src []byte, dst []float32) {
	d, fifth := half(src), binary.LittleEndian.Uint32(src[2:])
	for i, b := range src[6:22] {
		dst[i] = d * float32(int(b&15)|int(fifth>>i&1)<<4-16)
		dst[i+16] = d * float32(int(b>>4)|int(fifth>>(i+16)&1)<<4-16)
	}
}

func decodeQ5_1(src []byte, dst []float32) {
	d, m, fifth := half(src), half(src[2:]), binary.LittleEndian.Uint32(src[4:])
	for i, b := range src[8:24] {
		dst[i] = float32(d*float32(int(b&15)|int(fifth>>i&1)<<4)) + m
		dst[i+16] = float32(d*float32(int(b>>4)|int(fifth>>(i+16)&1)<<4)) + m
	}
}

func decodeQ8_0(src []byte, dst []float32) {
	d := half(src)
	for i, b := range src[2:34] {
		dst[i] = d * float32(int8(b))
	}
}

// Blocks of 256: sub-blocks of 32 (Q4_K, Q5_K) or 16 (Q6_K) with their own small scales.

// scalesK unpacks eight 6-bit scales and eight 6-bit minima from 12 bytes, times their common factors.
func scalesK(d, dmin float32, packed []byte) (scale, low [8]float32) {
	for j := range 4 {
		scale[j] = d * float32(packed[j]&63)
		low[j] = dmin * float32(packed[j+4]&63)
		scale[j+4] = d * float32(packed[j+8]&15|packed[j]>>6<<4)
		low[j+4] = dmin * float32(packed[j+8]>>4|packed[j+4]>>6<<4)
	}
	return scale, low
}

func decodeQ4_K(src []byte, dst []float32) {
	scale, low := scalesK(half(src), half(src[2:]), src[4:16])
	for i, b := range src[16:144] {
		sub, at := i/32*2, i/32*64+i%32
		dst[at] = float32(scale[sub]*float32(b&15)) - low[sub]
		dst[at+32] = float32(scale[sub+1]*float32(b>>4)) - low[sub+1]
	}
}

func decodeQ5_K(src []byte, dst []float32) {
	scale, low := scalesK(half(src), half(src[2:]), src[4:16])
	fifth := src[16:48]
	for i, b := range src[48:176] {
		sub, at := i/32*2, i/32*64+i%32
		bits := fifth[i%32] >> sub
		dst[at] = float32(scale[sub]*float32(b&15|bits&1<<4)) - low[sub]
		dst[at+32] = float32(scale[sub+1]*float32(b>>4|bits>>1&1<<4)) - low[sub+1]
	}
}

func decodeQ6_K(src []byte, dst []float32) {
	low, high, scales, d := src[:128], src[128:192], src[192:208], half(src[208:])
	for i := range 256 {
		part, k, l := i/128, i%128/32, i%32 // 128 values share 64 bytes of low and 32 of high bits
		b := low[part*64+k%2*32+l] >> (k / 2 * 4) & 15
		b |= high[part*32+l] >> (2 * k) & 3 << 4
		scale := d * float32(int8(scales[i/16]))
		dst[i] = scale * float32(int(b)-32)
	}
}
