package gguf

import (
	"encoding/binary"
	"math"
)

// Each function reads whole blocks: len(dst) numbers out of src. d is a block's scale, m its minimum.

func fromF32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func fromF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = half(src[2*i:])
	}
}

func fromBF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
	}
}

// fromQ80: d (f16), 32 signed bytes.
func fromQ80(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[34:] {
		d := half(src)
		for j, q := range src[2:34] {
			dst[j] = d * float32(int8(q))
		}
	}
}

// fromQ40: d (f16), 32 nibbles that mean -8..7; the low nibbles are the first half.
func fromQ40(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[18:] {
		d := half(src)
		for j, q := range src[2:18] {
			dst[j] = d * float32(int(q&15)-8)
			dst[j+16] = d * float32(int(q>>4)-8)
		}
	}
}

// fromQ41: d, m (f16), 32 nibbles.
func fromQ41(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[20:] {
		d, m := half(src), half(src[2:])
		for j, q := range src[4:20] {
			dst[j] = float32(d*float32(q&15)) + m
			dst[j+16] = float32(d*float32(q>>4)) + m
		}
	}
}

// scaleMin unpacks the 6-bit scale and minimum of the j-th group of 32 in a K block: 8 of each in 12 bytes.
func scaleMin(s []byte, j int) (scale, minimum float32) {
	if j < 4 {
		return float32(s[j] & 63), float32(s[j+4] & 63)
	}
	return float32(s[j+4]&15 | s[j-4]>>6<<4), float32(s[j+4]>>4 | s[j]>>6<<4)
}

// fromQ4K: d, m (f16), 12 bytes of scales, 256 nibbles: each 32 bytes hold two groups of 32, the low nibbles first.
func fromQ4K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[144:] {
		d, m, scales, q := half(src), half(src[2:]), src[4:16], src[16:144]
		for pair := range 4 {
			s1, m1 := scaleMin(scales, 2*pair)
			s2, m2 := scaleMin(scales, 2*pair+1)
			for j, b := range q[32*pair : 32*pair+32] {
				dst[64*pair+j] = float32(d*s1*float32(b&15)) - m*m1
				dst[64*pair+32+j] = float32(d*s2*float32(b>>4)) - m*m2
			}
		}
	}
}

// fromQ5K: as Q4_K, with a fifth bit of each number in 32 bytes, one bit a group.
func fromQ5K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[176:] {
		d, m, scales, high, q := half(src), half(src[2:]), src[4:16], src[16:48], src[48:176]
		for pair := range 4 {
			s1, m1 := scaleMin(scales, 2*pair)
			s2, m2 := scaleMin(scales, 2*pair+1)
			for j, b := range q[32*pair : 32*pair+32] {
				h1, h2 := high[j]>>(2*pair)&1, high[j]>>(2*pair+1)&1
				dst[64*pair+j] = float32(d*s1*float32(b&15|h1<<4)) - m*m1
				dst[64*pair+32+j] = float32(d*s2*float32(b>>4|h2<<4)) - m*m2
			}
		}
	}
}

// fromQ6K: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales of 16 numbers each, d (f16); numbers mean -32..31.
func fromQ6K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[210:] {
		d := half(src[208:])
		for n := range 2 { // halves of 128
			low, high, scales, out := src[64*n:], src[128+32*n:], src[192+8*n:], dst[128*n:]
			for j := range 32 {
				scale := func(k int) float32 { return d * float32(int8(scales[j/16+k])) }
				out[j] = scale(0) * float32(int(low[j]&15|high[j]&3<<4)-32)
				out[j+32] = scale(2) * float32(int(low[j+32]&15|high[j]>>2&3<<4)-32)
				out[j+64] = scale(4) * float32(int(low[j]>>4|high[j]>>4&3<<4)-32)
				out[j+96] = scale(6) * float32(int(low[j+32]>>4|high[j]>>6&3<<4)-32)
			}
		}
	}
}

// half reads an IEEE float16.
func half(b []byte) float32 {
	h := uint32(binary.LittleEndian.Uint16(b))
	sign, exponent, fraction := h>>15<<31, h>>10&31, h&1023
	switch exponent {
	case 0: // subnormal: fraction * 2^-24
		return math.Float32frombits(sign | math.Float32bits(float32(fraction)*0x1p-24))
	case 31: // infinite or not a number
		return math.Float32frombits(sign | 0x7f800000 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}
