//go:build !purego

#include "textflag.h"
#include "kernels_amd64.h"

// Matrix products. kernels.go says what they compute, kernels_amd64.go declares them and checks their bounds.
//
// All kernels keep one accumulator per output element and add to it in one order, so calls with more or fewer
// tokens, lanes or positions give the same bits.

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
