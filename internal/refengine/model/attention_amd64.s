//go:build !purego

#include "textflag.h"
#include "kernels_amd64.h"

// The two products of attention: queries with keys, and weights with values. The narrow kernels compute the first
// half of the lanes, in the same order; their operands have the same layout.

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

// ADD_SCORES_NARROW adds queries Y8 times one element of a key.
#define ADD_SCORES_NARROW(k, sum) \
	VBROADCASTSS (k)(DX*1), Y9; \
	VFMADD231PS Y8, Y9, sum

// NEXT_KEY_POINTER sets k to the key at DX and moves DX on.
#define NEXT_KEY_POINTER(k) \
	MOVQ (DX), k; \
	LEAQ (DI)(k*4), k; \
	ADDQ $8, DX

// func scoresNarrowAVX2(q *float32, dim int, kv *float32, rows *int, n int, s *float32)
TEXT ·scoresNarrowAVX2(SB), NOSPLIT, $0-48
	MOVQ q+0(FP), SI
	MOVQ dim+8(FP), CX
	MOVQ kv+16(FP), DI
	MOVQ rows+24(FP), DX
	MOVQ s+40(FP), AX
	SHLQ $2, CX
	SUBQ $8, n+32(FP)
	JLT  rest

eight:
	NEXT_KEY_POINTER(R8)
	NEXT_KEY_POINTER(R9)
	NEXT_KEY_POINTER(R10)
	NEXT_KEY_POINTER(R11)
	NEXT_KEY_POINTER(R12)
	NEXT_KEY_POINTER(R13)
	NEXT_KEY_POINTER(R14)
	NEXT_KEY_POINTER(R15)
	MOVQ DX, rows+24(FP)
	ZERO_SUMS
	MOVQ SI, BX
	XORQ DX, DX

eightLoop:
	VMOVUPS (BX), Y8
	ADD_SCORES_NARROW(R8, Y0)
	ADD_SCORES_NARROW(R9, Y1)
	ADD_SCORES_NARROW(R10, Y2)
	ADD_SCORES_NARROW(R11, Y3)
	ADD_SCORES_NARROW(R12, Y4)
	ADD_SCORES_NARROW(R13, Y5)
	ADD_SCORES_NARROW(R14, Y6)
	ADD_SCORES_NARROW(R15, Y7)
	ADDQ $64, BX
	ADDQ $4, DX
	CMPQ DX, CX
	JLT  eightLoop

	VMOVUPS Y0, (AX)
	VMOVUPS Y1, 64(AX)
	VMOVUPS Y2, 128(AX)
	VMOVUPS Y3, 192(AX)
	VMOVUPS Y4, 256(AX)
	VMOVUPS Y5, 320(AX)
	VMOVUPS Y6, 384(AX)
	VMOVUPS Y7, 448(AX)
	ADDQ $512, AX
	MOVQ rows+24(FP), DX
	SUBQ $8, n+32(FP)
	JGE  eight

rest:
	ADDQ $8, n+32(FP)
	JZ   done

one:
	NEXT_KEY_POINTER(R8)
	MOVQ DX, R9
	VXORPS Y0, Y0, Y0
	MOVQ SI, BX
	XORQ DX, DX

oneLoop:
	VMOVUPS (BX), Y8
	ADD_SCORES_NARROW(R8, Y0)
	ADDQ $64, BX
	ADDQ $4, DX
	CMPQ DX, CX
	JLT  oneLoop

	VMOVUPS Y0, (AX)
	ADDQ $64, AX
	MOVQ R9, DX
	DECQ n+32(FP)
	JNZ  one

done:
	VZEROUPPER
	RET

// ADD_VALUES_NARROW adds weights Y8 times one element of a value.
#define ADD_VALUES_NARROW(offset, sum) \
	VBROADCASTSS offset(DI)(R8*4), Y9; \
	VFMADD231PS Y8, Y9, sum

// func valuesNarrowAVX2(acc *float32, dim int, kv *float32, rows *int, n int, w *float32)
TEXT ·valuesNarrowAVX2(SB), NOSPLIT, $0-48
	MOVQ acc+0(FP), SI
	MOVQ dim+8(FP), CX
	MOVQ kv+16(FP), DI
	MOVQ rows+24(FP), DX
	MOVQ n+32(FP), BX
	MOVQ w+40(FP), AX

eight:
	VMOVUPS (SI), Y0
	VMOVUPS 64(SI), Y1
	VMOVUPS 128(SI), Y2
	VMOVUPS 192(SI), Y3
	VMOVUPS 256(SI), Y4
	VMOVUPS 320(SI), Y5
	VMOVUPS 384(SI), Y6
	VMOVUPS 448(SI), Y7
	MOVQ AX, R9
	XORQ R10, R10

loop:
	MOVQ (DX)(R10*8), R8
	VMOVUPS (R9), Y8
	ADD_VALUES_NARROW(0, Y0)
	ADD_VALUES_NARROW(4, Y1)
	ADD_VALUES_NARROW(8, Y2)
	ADD_VALUES_NARROW(12, Y3)
	ADD_VALUES_NARROW(16, Y4)
	ADD_VALUES_NARROW(20, Y5)
	ADD_VALUES_NARROW(24, Y6)
	ADD_VALUES_NARROW(28, Y7)
	ADDQ $64, R9
	INCQ R10
	CMPQ R10, BX
	JLT  loop

	VMOVUPS Y0, (SI)
	VMOVUPS Y1, 64(SI)
	VMOVUPS Y2, 128(SI)
	VMOVUPS Y3, 192(SI)
	VMOVUPS Y4, 256(SI)
	VMOVUPS Y5, 320(SI)
	VMOVUPS Y6, 384(SI)
	VMOVUPS Y7, 448(SI)
	ADDQ $512, SI
	ADDQ $32, DI
	SUBQ $8, CX
	JNZ  eight

	VZEROUPPER
	RET
