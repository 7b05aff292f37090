package llama

import "math"

// expMin is where exp32 gives 0: below it float32 has no normal result.
const expMin = -87

// exp32 is e^x for x <= 0: Cody and Waite's reduction to |r| <= ln(2)/2, then a polynomial of degree 6. Its relative error is below 3e-7
// (TestExp32), several times faster than math.Exp. NaN stays NaN.
func exp32(x float32) float32 {
	const (
		log2e = 1.44269504088896341
		ln2hi = 0.693359375
		ln2lo = -2.12194440e-4
	)
	if x < expMin {
		return 0
	}
	n := float32(int32(x*log2e - 0.5)) // rounds to nearest, as x is not positive
	r := x - n*ln2hi - n*ln2lo
	p := float32(1.9875691500e-4)
	p = p*r + 1.3981999507e-3
	p = p*r + 8.3334519073e-3
	p = p*r + 4.1665795894e-2
	p = p*r + 1.6666665459e-1
	p = p*r + 5.0000001201e-1
	p = p*r*r + r + 1
	return math.Float32frombits(uint32(int32(math.Float32bits(p)) + int32(n)<<23))
}

// exps writes exp32((from-top)*scale) and returns the sum. A block of at most a few thousand: within it the sum is float32.
func exps(to, from []float32, top, scale float32) float64 {
	to = to[:len(from)]
	done, sum := expsFast(to, from, top, scale)
	var a, b float32 // two, so that one addition need not wait for the last
	i := done
	for ; i+1 < len(from); i += 2 {
		e0, e1 := exp32((from[i]-top)*scale), exp32((from[i+1]-top)*scale)
		to[i], to[i+1] = e0, e1
		a, b = a+e0, b+e1
	}
	if i < len(from) {
		to[i] = exp32((from[i] - top) * scale)
		a += to[i]
	}
	return sum + float64(a) + float64(b)
}
