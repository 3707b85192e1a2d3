package model

import "math"

// ropeFrequencies returns radians per position for each pair of a head, [HeadDim/2].
//
// The frequencies are rounded to float32 and so is position × frequency later (fillRope), as the
// Hugging Face and vLLM implementations do: at long positions that rounding is larger than anything else here.
func ropeFrequencies(c *Config) []float32 {
	half := c.HeadDim / 2
	freq := make([]float32, half)
	for i := range freq {
		f := 1 / math.Pow(c.RopeTheta, float64(2*i)/float64(c.HeadDim))
		if s := c.RopeScaling; s != nil {
			f = s.rescale(f)
		}
		freq[i] = float32(f)
	}
	return freq
}

// rescale leaves short waves as they are, stretches long ones by Factor, and blends between.
func (s *RopeScaling) rescale(f float64) float64 {
	turns := float64(s.OriginalMaxPositions) * f / (2 * math.Pi) // within the original context
	switch {
	case turns > s.HighFreqFactor:
		return f
	case turns < s.LowFreqFactor:
		return f / s.Factor
	}
	keep := (turns - s.LowFreqFactor) / (s.HighFreqFactor - s.LowFreqFactor)
	return (1-keep)*f/s.Factor + keep*f
}

// fillRope writes cos and sin of a position's angles, each [HeadDim/2].
func fillRope(freq []float32, position int, cos, sin []float32) {
	for i, f := range freq {
		s, c := math.Sincos(float64(float32(position) * f))
		cos[i], sin[i] = float32(c), float32(s)
	}
}

// rotate turns one head in place: element i pairs with element i+HeadDim/2 (the "rotate half" layout).
func rotate(head, cos, sin []float32) {
	half := len(head) / 2
	lo, hi := head[:half], head[half:]
	hi, cos, sin = hi[:len(lo)], cos[:len(lo)], sin[:len(lo)]
	for i, a := range lo {
		b := hi[i]
		lo[i] = a*cos[i] - b*sin[i]
		hi[i] = b*cos[i] + a*sin[i]
	}
}
