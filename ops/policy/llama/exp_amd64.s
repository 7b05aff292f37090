#include "textflag.h"

// float32 constants of exp32, see exp.go.
DATA ·expTable+0(SB)/4, $0x3fb8aa3b  // log2(e)
DATA ·expTable+4(SB)/4, $0x3f318000  // ln(2), high part
DATA ·expTable+8(SB)/4, $0xb95e8083  // ln(2), low part
DATA ·expTable+12(SB)/4, $0x39506967 // 1.9875691500e-4
DATA ·expTable+16(SB)/4, $0x3ab743ce // 1.3981999507e-3
DATA ·expTable+20(SB)/4, $0x3c088908 // 8.3334519073e-3
DATA ·expTable+24(SB)/4, $0x3d2aa9c1 // 4.1665795894e-2
DATA ·expTable+28(SB)/4, $0x3e2aaaaa // 1.6666665459e-1
DATA ·expTable+32(SB)/4, $0x3f000000 // 0.5
DATA ·expTable+36(SB)/4, $0x3f800000 // 1
DATA ·expTable+40(SB)/4, $0xc2ae0000 // expMin
GLOBL ·expTable(SB), RODATA|NOPTR, $44

// func expsAVX2(to, from *float32, n int, top, scale float32) float32
// Eight lanes of exp32((from-top)*scale); n is a multiple of 8, at least 8. Needs AVX2 and FMA.
TEXT ·expsAVX2(SB), NOSPLIT, $0-36
	MOVQ         to+0(FP), DI
	MOVQ         from+8(FP), SI
	MOVQ         n+16(FP), CX
	VBROADCASTSS ·expTable+0(SB), Y2
	VBROADCASTSS ·expTable+4(SB), Y3
	VBROADCASTSS ·expTable+8(SB), Y4
	VBROADCASTSS ·expTable+16(SB), Y5
	VBROADCASTSS ·expTable+20(SB), Y6
	VBROADCASTSS ·expTable+24(SB), Y7
	VBROADCASTSS ·expTable+28(SB), Y8
	VBROADCASTSS ·expTable+36(SB), Y9
	VBROADCASTSS ·expTable+40(SB), Y10
	VXORPS       Y11, Y11, Y11           // the sums

loop:
	VBROADCASTSS top+24(FP), Y0
	VMOVUPS      (SI), Y12
	VSUBPS       Y0, Y12, Y12
	VBROADCASTSS scale+28(FP), Y0
	VMULPS       Y0, Y12, Y12            // x
	VCMPPS       $1, Y10, Y12, Y0        // x < expMin: 0 in the end; NaN is not
	VMULPS       Y2, Y12, Y13
	VROUNDPS     $0, Y13, Y13            // n
	VFNMADD231PS Y3, Y13, Y12
	VFNMADD231PS Y4, Y13, Y12            // r
	VBROADCASTSS ·expTable+12(SB), Y14
	VBROADCASTSS ·expTable+32(SB), Y1
	VFMADD213PS  Y5, Y12, Y14
	VFMADD213PS  Y6, Y12, Y14
	VFMADD213PS  Y7, Y12, Y14
	VFMADD213PS  Y8, Y12, Y14
	VFMADD213PS  Y1, Y12, Y14
	VFMADD213PS  Y9, Y12, Y14
	VFMADD213PS  Y9, Y12, Y14            // e^r
	VCVTPS2DQ    Y13, Y13
	VPSLLD       $23, Y13, Y13
	VPADDD       Y13, Y14, Y14           // times 2^n
	VANDNPS      Y14, Y0, Y14
	VMOVUPS      Y14, (DI)
	VADDPS       Y14, Y11, Y11
	ADDQ         $32, SI
	ADDQ         $32, DI
	SUBQ         $8, CX
	JNZ          loop

	VEXTRACTF128 $1, Y11, X12
	VADDPS       X12, X11, X11
	VHADDPS      X11, X11, X11
	VHADDPS      X11, X11, X11
	VMOVSS       X11, ret+32(FP)
	VZEROUPPER
	RET
