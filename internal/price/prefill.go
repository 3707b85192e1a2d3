package price

import "time"

// Prefill estimates how long an engine takes to compute n prompt tokens, as a + b·n: a least
// squares fit over observations that count less the older they are. The attention term that grows
// with n² is left to the slope: within one conversation lengths change slowly.
//
// The zero value knows nothing and answers with a cautious guess.
type Prefill struct {
	n, x, y, xx, xy float64 // decayed sums over observations: 1, tokens, ms, tokens², tokens·ms
}

// guess is what is assumed of an engine nobody has measured: 100 ms and 1000 tokens a second,
// slower than any GPU, so that deadlines made of it err on the long side.
const (
	guessBaseMs     = 100
	guessMsPerToken = 1
)

// Observe adds one call that computed n tokens in d.
func (p *Prefill) Observe(n int, d time.Duration) {
	x, y := float64(n), float64(d)/float64(time.Millisecond)
	p.n = p.n*decay + 1
	p.x = p.x*decay + x
	p.y = p.y*decay + y
	p.xx = p.xx*decay + x*x
	p.xy = p.xy*decay + x*y
}

// Known reports whether estimates rest on observations rather than on a guess.
func (p *Prefill) Known() bool { return p.n > 2.9 }

// Compute returns the expected duration of a call that computes n tokens.
func (p *Prefill) Compute(n int) time.Duration {
	base, slope := p.fit()
	return time.Duration((base + slope*float64(n)) * float64(time.Millisecond))
}

// fit returns a in ms and b in ms per token, neither negative.
func (p *Prefill) fit() (base, slope float64) {
	if !p.Known() {
		return guessBaseMs, guessMsPerToken
	}
	det := p.n*p.xx - p.x*p.x
	if det <= 1e-9*p.n*p.xx || det == 0 {
		// All lengths were the same: no line, only a mean.
		if p.x == 0 {
			return p.y / p.n, 0
		}
		return 0, p.y / p.x
	}
	slope = (p.n*p.xy - p.x*p.y) / det
	if slope < 0 {
		return p.y / p.n, 0
	}
	base = (p.y - slope*p.x) / p.n
	if base < 0 {
		return 0, p.xy / p.xx
	}
	return base, slope
}
