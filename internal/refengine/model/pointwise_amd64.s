//go:build !purego

#include "textflag.h"

// Softmax, SwiGLU and RMS norm.

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
