//go:build !purego

#include "textflag.h"

// AVX2 and FMA kernels. kernels.go says what they compute, kernels_amd64.go declares them and checks their bounds.
//
// All of them keep one accumulator per output element and add to it in one order, so calls with more or fewer tokens,
// lanes or positions give the same bits.

// Constants, each eight times.
#define CONST8(name, value) \
	DATA name<>+0(SB)/4, $value; DATA name<>+4(SB)/4, $value; \
	DATA name<>+8(SB)/4, $value; DATA name<>+12(SB)/4, $value; \
	DATA name<>+16(SB)/4, $value; DATA name<>+20(SB)/4, $value; \
	DATA name<>+24(SB)/4, $value; DATA name<>+28(SB)/4, $value; \
	GLOBL name<>(SB), RODATA|NOPTR, $32

CONST8(exp2c6, 0x3920fdde) // the polynomial of exp2 in kernels.go
CONST8(exp2c5, 0x3aaf9f29)
CONST8(exp2c4, 0x3c1d96a6)
CONST8(exp2c3, 0x3d635774)
CONST8(exp2c2, 0x3e75fdee)
CONST8(exp2c1, 0x3f317218)
CONST8(one, 0x3f800000)
CONST8(lowest, 0xc2fc0000)   // -126
CONST8(highest, 0x42fc0000)  // 126
CONST8(negLog2e, 0xbfb8aa3b)
CONST8(negInf, 0xff800000)

// EXP2 sets p = 2^x, 0 where x < -126. It overwrites x and n.
#define EXP2(x, n, p) \
	VROUNDPS $8, x, n; \
	VSUBPS n, x, p; \
	VCMPPS $0x15, lowest<>(SB), x, x; \
	VCVTPS2DQ n, n; \
	VPSLLD $23, n, n; \
	EXP2POLY(p, Y15); \
	VPADDD n, Y15, p; \
	VANDPS x, p, p

// EXP2POLY sets p to the polynomial at f.
#define EXP2POLY(f, p) \
	VMOVUPS exp2c6<>(SB), p; \
	VFMADD213PS exp2c5<>(SB), f, p; \
	VFMADD213PS exp2c4<>(SB), f, p; \
	VFMADD213PS exp2c3<>(SB), f, p; \
	VFMADD213PS exp2c2<>(SB), f, p; \
	VFMADD213PS exp2c1<>(SB), f, p; \
	VFMADD213PS one<>(SB), f, p

// Pointers to six rows of x from R8 with stride AX. Rows that do not exist (DX tokens in all) are the last one again; their
// sums are not stored.
#define TOKEN_POINTERS \
	LEAQ (R8)(AX*1), R9; \
	CMPQ DX, $2; \
	CMOVQLT R8, R9; \
	LEAQ (R9)(AX*1), R10; \
	CMPQ DX, $3; \
	CMOVQLT R9, R10; \
	LEAQ (R10)(AX*1), R11; \
	CMPQ DX, $4; \
	CMOVQLT R10, R11; \
	LEAQ (R11)(AX*1), R12; \
	CMPQ DX, $5; \
	CMOVQLT R11, R12; \
	LEAQ (R12)(AX*1), R13; \
	CMPQ DX, $6; \
	CMOVQLT R12, R13

#define ZERO_SUMS \
	VXORPS Y0, Y0, Y0; \
	VXORPS Y1, Y1, Y1; \
	VXORPS Y2, Y2, Y2; \
	VXORPS Y3, Y3, Y3; \
	VXORPS Y4, Y4, Y4; \
	VXORPS Y5, Y5, Y5; \
	VXORPS Y6, Y6, Y6; \
	VXORPS Y7, Y7, Y7

// ADD_PRODUCTS adds weights Y12, Y13 times one value of x.
#define ADD_PRODUCTS(x, lo, hi) \
	VBROADCASTSS (x)(BX*1), Y14; \
	VFMADD231PS Y12, Y14, lo; \
	VFMADD231PS Y13, Y14, hi

#define ADD_SIX \
	ADD_PRODUCTS(R8, Y0, Y1); \
	ADD_PRODUCTS(R9, Y2, Y3); \
	ADD_PRODUCTS(R10, Y4, Y5); \
	ADD_PRODUCTS(R11, Y6, Y7); \
	ADD_PRODUCTS(R12, Y8, Y9); \
	ADD_PRODUCTS(R13, Y10, Y11)

// STORE_ROW stores one token's sums at DI and is done if it was the last.
#define STORE_ROW(lo, hi) \
	VMOVUPS lo, (DI); \
	VMOVUPS hi, 32(DI); \
	ADDQ AX, DI; \
	DECQ DX; \
	JZ   done

// func gemmBF16(w *uint32, x *float32, xStride, cols, tokens int, out *float32, outStride int)
TEXT ·gemmBF16(SB), NOSPLIT, $0-56
	MOVQ w+0(FP), SI
	MOVQ x+8(FP), R8
	MOVQ xStride+16(FP), AX
	MOVQ cols+24(FP), CX
	MOVQ tokens+32(FP), DX
	MOVQ out+40(FP), DI
	TOKEN_POINTERS
	ZERO_SUMS
	VXORPS Y8, Y8, Y8
	VXORPS Y9, Y9, Y9
	VXORPS Y10, Y10, Y10
	VXORPS Y11, Y11, Y11
	VPCMPEQD Y15, Y15, Y15
	VPSLLD $16, Y15, Y15
	SHLQ $2, CX
	XORQ BX, BX

loop:
	VMOVDQU (SI)(BX*8), Y13
	VPSLLD $16, Y13, Y12
	VPAND Y15, Y13, Y13
	ADD_SIX
	ADDQ $4, BX
	CMPQ BX, CX
	JLT  loop

	MOVQ outStride+48(FP), AX
	STORE_ROW(Y0, Y1)
	STORE_ROW(Y2, Y3)
	STORE_ROW(Y4, Y5)
	STORE_ROW(Y6, Y7)
	STORE_ROW(Y8, Y9)
	STORE_ROW(Y10, Y11)

done:
	VZEROUPPER
	RET

// func gemmF32(w *float32, x *float32, xStride, cols, tokens int, out *float32, outStride int)
TEXT ·gemmF32(SB), NOSPLIT, $0-56
	MOVQ w+0(FP), SI
	MOVQ x+8(FP), R8
	MOVQ xStride+16(FP), AX
	MOVQ cols+24(FP), CX
	MOVQ tokens+32(FP), DX
	MOVQ out+40(FP), DI
	TOKEN_POINTERS
	ZERO_SUMS
	VXORPS Y8, Y8, Y8
	VXORPS Y9, Y9, Y9
	VXORPS Y10, Y10, Y10
	VXORPS Y11, Y11, Y11
	SHLQ $2, CX
	XORQ BX, BX

loop:
	VMOVUPS (SI), Y12
	VMOVUPS 32(SI), Y13
	ADDQ $64, SI
	ADD_SIX
	ADDQ $4, BX
	CMPQ BX, CX
	JLT  loop

	MOVQ outStride+48(FP), AX
	STORE_ROW(Y0, Y1)
	STORE_ROW(Y2, Y3)
	STORE_ROW(Y4, Y5)
	STORE_ROW(Y6, Y7)
	STORE_ROW(Y8, Y9)
	STORE_ROW(Y10, Y11)

done:
	VZEROUPPER
	RET

#define STORE_FOUR_PANELS \
	VMOVUPS Y0, (DI); \
	VMOVUPS Y1, 32(DI); \
	VMOVUPS Y2, 64(DI); \
	VMOVUPS Y3, 96(DI); \
	VMOVUPS Y4, 128(DI); \
	VMOVUPS Y5, 160(DI); \
	VMOVUPS Y6, 192(DI); \
	VMOVUPS Y7, 224(DI)

#define ADD_PANEL_BF16(w, lo, hi) \
	VMOVDQU (w)(BX*8), Y13; \
	VPSLLD $16, Y13, Y12; \
	VPAND Y15, Y13, Y13; \
	VFMADD231PS Y12, Y14, lo; \
	VFMADD231PS Y13, Y14, hi

// func gemvBF16(w *uint32, x *float32, cols int, out *float32)
TEXT ·gemvBF16(SB), NOSPLIT, $0-32
	MOVQ w+0(FP), R8
	MOVQ x+8(FP), SI
	MOVQ cols+16(FP), CX
	MOVQ out+24(FP), DI
	MOVQ CX, AX
	SHLQ $5, AX // bytes of a panel
	LEAQ (R8)(AX*1), R9
	LEAQ (R9)(AX*1), R10
	LEAQ (R10)(AX*1), R11
	ZERO_SUMS
	VPCMPEQD Y15, Y15, Y15
	VPSLLD $16, Y15, Y15
	SHLQ $2, CX
	XORQ BX, BX

loop:
	VBROADCASTSS (SI)(BX*1), Y14
	ADD_PANEL_BF16(R8, Y0, Y1)
	ADD_PANEL_BF16(R9, Y2, Y3)
	ADD_PANEL_BF16(R10, Y4, Y5)
	ADD_PANEL_BF16(R11, Y6, Y7)
	ADDQ $4, BX
	CMPQ BX, CX
	JLT  loop

	STORE_FOUR_PANELS
	VZEROUPPER
	RET

#define ADD_PANEL_F32(w, lo, hi) \
	VFMADD231PS (w), Y14, lo; \
	VFMADD231PS 32(w), Y14, hi; \
	ADDQ $64, w

// func gemvF32(w *float32, x *float32, cols int, out *float32)
TEXT ·gemvF32(SB), NOSPLIT, $0-32
	MOVQ w+0(FP), R8
	MOVQ x+8(FP), SI
	MOVQ cols+16(FP), CX
	MOVQ out+24(FP), DI
	MOVQ CX, AX
	SHLQ $6, AX // bytes of a panel
	LEAQ (R8)(AX*1), R9
	LEAQ (R9)(AX*1), R10
	LEAQ (R10)(AX*1), R11
	ZERO_SUMS
	SHLQ $2, CX
	XORQ BX, BX

loop:
	VBROADCASTSS (SI)(BX*1), Y14
	ADD_PANEL_F32(R8, Y0, Y1)
	ADD_PANEL_F32(R9, Y2, Y3)
	ADD_PANEL_F32(R10, Y4, Y5)
	ADD_PANEL_F32(R11, Y6, Y7)
	ADDQ $4, BX
	CMPQ BX, CX
	JLT  loop

	STORE_FOUR_PANELS
	VZEROUPPER
	RET

// KEY_POINTER sets k to the i-th key.
#define KEY_POINTER(i, k) \
	MOVQ (i*8)(DX), k; \
	LEAQ (DI)(k*4), k

// ADD_SCORES adds queries Y8, Y9 times one element of a key.
#define ADD_SCORES(k, lo, hi) \
	VBROADCASTSS (k)(R13*1), Y10; \
	VFMADD231PS Y8, Y10, lo; \
	VFMADD231PS Y9, Y10, hi

// func scoresAVX2(q *float32, dim int, kv *float32, rows *int, n int, s *float32)
TEXT ·scoresAVX2(SB), NOSPLIT, $0-48
	MOVQ q+0(FP), SI
	MOVQ dim+8(FP), CX
	MOVQ kv+16(FP), DI
	MOVQ rows+24(FP), DX
	MOVQ n+32(FP), BX
	MOVQ s+40(FP), AX
	SHLQ $2, CX
	SUBQ $4, BX
	JLT  rest

four:
	KEY_POINTER(0, R8)
	KEY_POINTER(1, R9)
	KEY_POINTER(2, R10)
	KEY_POINTER(3, R11)
	ZERO_SUMS
	MOVQ SI, R12
	XORQ R13, R13

fourLoop:
	VMOVUPS (R12), Y8
	VMOVUPS 32(R12), Y9
	ADD_SCORES(R8, Y0, Y1)
	ADD_SCORES(R9, Y2, Y3)
	ADD_SCORES(R10, Y4, Y5)
	ADD_SCORES(R11, Y6, Y7)
	ADDQ $64, R12
	ADDQ $4, R13
	CMPQ R13, CX
	JLT  fourLoop

	VMOVUPS Y0, (AX)
	VMOVUPS Y1, 32(AX)
	VMOVUPS Y2, 64(AX)
	VMOVUPS Y3, 96(AX)
	VMOVUPS Y4, 128(AX)
	VMOVUPS Y5, 160(AX)
	VMOVUPS Y6, 192(AX)
	VMOVUPS Y7, 224(AX)
	ADDQ $256, AX
	ADDQ $32, DX
	SUBQ $4, BX
	JGE  four

rest:
	ADDQ $4, BX
	JZ   done

one:
	KEY_POINTER(0, R8)
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	MOVQ SI, R12
	XORQ R13, R13

oneLoop:
	VMOVUPS (R12), Y8
	VMOVUPS 32(R12), Y9
	ADD_SCORES(R8, Y0, Y1)
	ADDQ $64, R12
	ADDQ $4, R13
	CMPQ R13, CX
	JLT  oneLoop

	VMOVUPS Y0, (AX)
	VMOVUPS Y1, 32(AX)
	ADDQ $64, AX
	ADDQ $8, DX
	DECQ BX
	JNZ  one

done:
	VZEROUPPER
	RET

// ADD_VALUES adds weights Y8, Y9 times one element of a value.
#define ADD_VALUES(offset, lo, hi) \
	VBROADCASTSS offset(DI)(R8*4), Y10; \
	VFMADD231PS Y8, Y10, lo; \
	VFMADD231PS Y9, Y10, hi

// func valuesAVX2(acc *float32, dim int, kv *float32, rows *int, n int, w *float32)
TEXT ·valuesAVX2(SB), NOSPLIT, $0-48
	MOVQ acc+0(FP), SI
	MOVQ dim+8(FP), CX
	MOVQ kv+16(FP), DI
	MOVQ rows+24(FP), DX
	MOVQ n+32(FP), BX
	MOVQ w+40(FP), AX

four:
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y1
	VMOVUPS 64(SI), Y2
	VMOVUPS 96(SI), Y3
	VMOVUPS 128(SI), Y4
	VMOVUPS 160(SI), Y5
	VMOVUPS 192(SI), Y6
	VMOVUPS 224(SI), Y7
	MOVQ AX, R9
	XORQ R10, R10

loop:
	MOVQ (DX)(R10*8), R8
	VMOVUPS (R9), Y8
	VMOVUPS 32(R9), Y9
	ADD_VALUES(0, Y0, Y1)
	ADD_VALUES(4, Y2, Y3)
	ADD_VALUES(8, Y4, Y5)
	ADD_VALUES(12, Y6, Y7)
	ADDQ $64, R9
	INCQ R10
	CMPQ R10, BX
	JLT  loop

	VMOVUPS Y0, (SI)
	VMOVUPS Y1, 32(SI)
	VMOVUPS Y2, 64(SI)
	VMOVUPS Y3, 96(SI)
	VMOVUPS Y4, 128(SI)
	VMOVUPS Y5, 160(SI)
	VMOVUPS Y6, 192(SI)
	VMOVUPS Y7, 224(SI)
	ADDQ $256, SI
	ADDQ $16, DI
	SUBQ $4, CX
	JNZ  four

	VZEROUPPER
	RET

// func softmaxAVX2(s *float32, n int, visible *[attnLanes]int32, top, sum *[attnLanes]float32, acc *float32, dim int)
TEXT ·softmaxAVX2(SB), NOSPLIT, $0-56
	MOVQ s+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ visible+16(FP), DX
	MOVQ top+24(FP), R8
	MOVQ sum+32(FP), R9

	// Hide what a lane does not see, unless all lanes see everything.
	VMOVDQU (DX), Y0
	VMOVDQU 32(DX), Y1
	MOVQ CX, X2
	VPBROADCASTD X2, Y2
	VPMINSD Y0, Y1, Y3
	VPCMPGTD Y3, Y2, Y3
	VMOVMSKPS Y3, AX
	TESTL AX, AX
	JZ   largest
	VPCMPEQD Y4, Y4, Y4
	VPXOR Y5, Y5, Y5 // position
	VMOVUPS negInf<>(SB), Y8
	MOVQ SI, R10
	MOVQ CX, BX

hide:
	VPCMPGTD Y5, Y0, Y6
	VPCMPGTD Y5, Y1, Y7
	VBLENDVPS Y6, (R10), Y8, Y6
	VBLENDVPS Y7, 32(R10), Y8, Y7
	VMOVUPS Y6, (R10)
	VMOVUPS Y7, 32(R10)
	VPSUBD Y4, Y5, Y5
	ADDQ $64, R10
	DECQ BX
	JNZ  hide

largest:
	VMOVUPS (R8), Y0 // the largest so far
	VMOVUPS 32(R8), Y1
	VMOVAPS Y0, Y2
	VMOVAPS Y1, Y3
	MOVQ SI, R10
	MOVQ CX, BX

largestLoop:
	VMAXPS (R10), Y2, Y2
	VMAXPS 32(R10), Y3, Y3
	ADDQ $64, R10
	DECQ BX
	JNZ  largestLoop
	VMOVUPS Y2, (R8)
	VMOVUPS Y3, 32(R8)

	// Rescale what was summed under a smaller largest score.
	VMOVUPS (R9), Y12
	VMOVUPS 32(R9), Y13
	VCMPPS $4, Y2, Y0, Y4 // not equal
	VCMPPS $4, Y3, Y1, Y5
	VORPS Y4, Y5, Y4
	VMOVMSKPS Y4, AX
	TESTL AX, AX
	JZ   weights
	VSUBPS Y2, Y0, Y0
	VSUBPS Y3, Y1, Y1
	EXP2(Y0, Y6, Y4)
	EXP2(Y1, Y7, Y5)
	VMULPS Y4, Y12, Y12
	VMULPS Y5, Y13, Y13
	MOVQ acc+40(FP), R10
	MOVQ dim+48(FP), BX

rescale:
	VMULPS (R10), Y4, Y6
	VMULPS 32(R10), Y5, Y7
	VMOVUPS Y6, (R10)
	VMOVUPS Y7, 32(R10)
	ADDQ $64, R10
	DECQ BX
	JNZ  rescale

weights:
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y1
	VSUBPS Y2, Y0, Y0
	VSUBPS Y3, Y1, Y1
	VROUNDPS $8, Y0, Y4
	VROUNDPS $8, Y1, Y5
	VSUBPS Y4, Y0, Y6
	VSUBPS Y5, Y1, Y7
	VCMPPS $0x15, lowest<>(SB), Y0, Y0
	VCMPPS $0x15, lowest<>(SB), Y1, Y1
	EXP2POLY(Y6, Y8)
	EXP2POLY(Y7, Y9)
	VCVTPS2DQ Y4, Y4
	VCVTPS2DQ Y5, Y5
	VPSLLD $23, Y4, Y4
	VPSLLD $23, Y5, Y5
	VPADDD Y4, Y8, Y8
	VPADDD Y5, Y9, Y9
	VANDPS Y0, Y8, Y8
	VANDPS Y1, Y9, Y9
	VMOVUPS Y8, (SI)
	VMOVUPS Y9, 32(SI)
	VADDPS Y8, Y12, Y12
	VADDPS Y9, Y13, Y13
	ADDQ $64, SI
	DECQ CX
	JNZ  weights

	VMOVUPS Y12, (R9)
	VMOVUPS Y13, 32(R9)
	VZEROUPPER
	RET

// func swigluAVX2(gate, up, out *float32, n int)
TEXT ·swigluAVX2(SB), NOSPLIT, $0-32
	MOVQ gate+0(FP), SI
	MOVQ up+8(FP), DX
	MOVQ out+16(FP), DI
	MOVQ n+24(FP), CX
	SHLQ $2, CX
	XORQ BX, BX

loop:
	VMOVUPS (SI)(BX*1), Y0
	VMULPS negLog2e<>(SB), Y0, Y1
	VMAXPS lowest<>(SB), Y1, Y1
	VMINPS highest<>(SB), Y1, Y1
	EXP2(Y1, Y2, Y3)
	VADDPS one<>(SB), Y3, Y3
	VDIVPS Y3, Y0, Y0
	VMULPS (DX)(BX*1), Y0, Y0
	VMOVUPS Y0, (DI)(BX*1)
	ADDQ $32, BX
	CMPQ BX, CX
	JLT  loop

	VZEROUPPER
	RET

// func sumSquaresAVX2(x *float32, n int) float32
TEXT ·sumSquaresAVX2(SB), NOSPLIT, $0-20
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	VXORPS Y0, Y0, Y0

loop:
	VMOVUPS (SI), Y1
	VFMADD231PS Y1, Y1, Y0
	ADDQ $32, SI
	SUBQ $8, CX
	JNZ  loop

	VEXTRACTF128 $1, Y0, X1
	VADDPS X1, X0, X0
	VMOVHLPS X0, X0, X1
	VADDPS X1, X0, X0
	VMOVSHDUP X0, X1
	VADDSS X1, X0, X0
	VMOVSS X0, ret+16(FP)
	VZEROUPPER
	RET

// func scaleAVX2(x, weight *float32, by float32, out *float32, n int)
TEXT ·scaleAVX2(SB), NOSPLIT, $0-40
	MOVQ x+0(FP), SI
	MOVQ weight+8(FP), DX
	VBROADCASTSS by+16(FP), Y2
	MOVQ out+24(FP), DI
	MOVQ n+32(FP), CX
	SHLQ $2, CX
	XORQ BX, BX

loop:
	VMULPS (SI)(BX*1), Y2, Y0
	VMULPS (DX)(BX*1), Y0, Y0
	VMOVUPS Y0, (DI)(BX*1)
	ADDQ $32, BX
	CMPQ BX, CX
	JLT  loop

	VZEROUPPER
	RET
