package price

import (
	"math"
	"slices"
	"time"
)

const (
	// window is how many observations are remembered, and decay what each still counts after the next has come.
	window = 64
	decay  = 0.98
	// hasty is decay while observations lie on one side of the curve: what was right is not right any more.
	hasty = 0.85
	// likelyNoise and leastNoise are the relative scatter of single calls: what is assumed until a few have been
	// seen, and what even the steadiest engine is taken to have.
	likelyNoise, leastNoise = 0.2, 0.01
	// outlier is from how many times the scatter on an observation pulls no more than one at that distance (Huber).
	outlier = 2.5
	// shifted is how many outliers on one side in a row are a change of speed, and not outliers.
	shifted = 5
	// looseSeed is how far, in parts of one, a coefficient may lie from a guess.
	looseSeed = 1.0
	// leastMs keeps logarithms finite: no call of an engine is faster.
	leastMs = 0.01
	// maxTokens is more than any context; larger numbers are taken for it.
	maxTokens = 1 << 27
)

// vector are three coefficients or three features: constant, per 1000 tokens, per 10⁶ token pairs. The
// scales keep the equations well conditioned.
type vector [3]float64

// features of computing n tokens that follow ctx others.
func features(n, ctx int) vector {
	x, c := kilo(n), kilo(ctx)
	return vector{1, x, x * (c + x/2)}
}

func kilo(n int) float64 { return float64(min(max(n, 0), maxTokens)) / 1000 }

func (v vector) dot(w vector) float64 { return v[0]*w[0] + v[1]*w[1] + v[2]*w[2] }

func (v vector) minus(w vector) vector { return vector{v[0] - w[0], v[1] - w[1], v[2] - w[2]} }

func (v vector) times(f float64) vector { return vector{v[0] * f, v[1] * f, v[2] * f} }

// matrix is symmetric: 00 01 02 11 12 22.
type matrix [6]float64

func (m *matrix) at(i, j int) float64 {
	if i > j {
		i, j = j, i
	}
	return m[i*(5-i)/2+j]
}

// quad is vᵀ·m·v.
func (m *matrix) quad(v vector) float64 {
	return m[0]*v[0]*v[0] + m[3]*v[1]*v[1] + m[5]*v[2]*v[2] + 2*(m[1]*v[0]*v[1]+m[2]*v[0]*v[2]+m[4]*v[1]*v[2])
}

// sample is one observation: took ms, of which other curves account for rest.
type sample struct {
	x          vector
	rest, took float64
}

// curve learns one cost from the last observations, by least squares that are weighted again and again until
// outliers do not count. Before its first use it must be given a prior.
type curve struct {
	prior  vector  // where it starts, and the shape of what the data leave open
	loose  float64 // relative standard deviation of the prior
	seeded bool    // the prior is somebody's number, not a guess
	shaped bool    // the prior's shape means something: it was seeded or learned
	seen   int     // observations, all of them

	last  *[window]sample // a ring, nil until the first; the newest is at (seen-1) % window
	count int             // how many of the newest count
	unfit int             // observations since the last fit

	noise float64 // relative scatter of single calls around the curve
	theta vector  // the coefficients now; never negative
	cov   matrix  // their covariance

	lean          float64 // mean logarithm of the last five or so, outliers cut
	run, runLevel float64 // outliers in a row, negative below the curve; their mean logarithm
	wild          float64 // share of outliers in the last five or so
}

// start gives an unused curve its prior. rel is the relative standard deviation of its numbers.
func (c *curve) start(prior vector, rel float64, seeded bool) {
	*c = curve{last: c.last, prior: withEveryTerm(prior), loose: rel, seeded: seeded, shaped: seeded, noise: max(rel, likelyNoise), theta: prior}
}

// withEveryTerm gives terms that a prior leaves out a hundredth of a middling prompt's cost, so that data can
// bring them in.
func withEveryTerm(prior vector) vector {
	x := features(4096, 4096)
	least := max(prior.dot(x), 1) / 100
	for i := range prior {
		prior[i] = max(prior[i], least/x[i])
	}
	return prior
}

// started reports whether the curve has a prior.
func (c *curve) started() bool { return c.loose > 0 }

// known reports whether estimates rest on observations or on a seed.
func (c *curve) known() bool { return c.seeded || c.seen >= 3 }

// trusted reports whether the last observations fit the curve.
func (c *curve) trusted() bool { return c.known() && c.wild < 0.5 }

// at estimates the cost at x.
func (c *curve) at(x vector) Estimate {
	return Estimate{Ms: c.theta.dot(x), Err: c.err(x)}
}

// err is the standard deviation of the expected cost at x. x may be a difference of two points.
func (c *curve) err(x vector) float64 {
	if !c.known() {
		return math.Inf(1)
	}
	ms := math.Abs(c.theta.dot(x))
	if c.seen == 0 {
		return c.loose * ms
	}
	e := math.Sqrt(max(c.cov.quad(x), 0))
	if c.wild > 0.3 { // it does not fit at the moment: no one knows how far it is off
		e += ms * c.wild
	}
	return e
}

// observe takes in one call with features x. rest is what of it, in ms, other curves are expected to account for.
func (c *curve) observe(x vector, rest float64, took time.Duration) {
	s := sample{x, rest, max(float64(took)/float64(time.Millisecond), leastMs)}
	off := c.off(&s)
	if c.last == nil {
		c.last = new([window]sample)
	}
	c.last[c.seen%window] = s
	c.seen++
	c.count = min(c.count+1, window)
	c.unfit++
	c.follow(off)
	switch {
	case math.Abs(c.run) >= shifted:
		c.shift()
	case c.unfit >= c.count/4 || math.Abs(c.lean) > c.noise:
	default:
		return
	}
	c.unfit = 0
	for range 3 - c.count/window*2 {
		c.fit(false)
	}
	c.fit(true)
}

// off is how far an observation lies from the curve, as a logarithm.
func (c *curve) off(s *sample) float64 {
	return math.Log(s.took / max(s.rest+c.theta.dot(s.x), leastMs))
}

// follow watches whether what comes in lies on one side of the curve, within its scatter or beyond.
func (c *curve) follow(off float64) {
	lim := outlier * c.noise
	if c.seen > 1 {
		c.lean = 0.8*c.lean + 0.2*min(max(off, -lim), lim)
	}
	side := math.Copysign(1, off)
	switch {
	case math.Abs(off) <= lim:
		c.wild *= 0.8
		c.run, c.runLevel = 0, 0
		return
	case c.run*side < 0:
		c.run, c.runLevel = 0, 0
	}
	c.wild = c.wild*0.8 + 0.2
	if c.run != 0 { // one wild call among them must not carry the mean away
		off = min(max(off, c.runLevel-0.7), c.runLevel+0.7)
	}
	c.runLevel += (off - c.runLevel) / (math.Abs(c.run) + 1)
	c.run += side
}

// shift takes over a lasting change of speed: only the calls since then count, and what was learned before is
// where the curve starts again.
func (c *curve) shift() {
	c.count = shifted
	c.theta = c.theta.times(math.Exp(c.runLevel))
	c.prior, c.loose, c.shaped = withEveryTerm(c.theta), max(c.loose, 0.5), true
	c.run, c.runLevel, c.lean = 0, 0, 0
}

// fit solves for the coefficients: least squares of relative errors, weighted by how well each observation fits the
// present coefficients, drawn towards the prior scaled to the level of what was seen, none below zero. Outliers pull
// a little; with strict, which needs coefficients that are nearly right, hardly at all.
func (c *curve) fit(strict bool) {
	var offs, ranked [window]float64
	newest := c.seen - 1
	for i := range c.count {
		offs[i] = c.off(&c.last[(newest-i)%window])
	}
	n := float64(c.count)
	rank := ranked[:c.count]
	copy(rank, offs[:c.count])
	slices.Sort(rank)
	middle := rank[c.count/2]
	for i := range rank {
		rank[i] = math.Abs(rank[i] - middle)
	}
	slices.Sort(rank)
	c.noise = max((3*likelyNoise+n*1.48*rank[c.count/2])/(3+n), leastNoise)

	keep := decay
	if math.Abs(c.lean) > c.noise {
		keep = hasty
	}
	// If most lie far on one side, they are right and the curve is not.
	if math.Abs(middle) < c.noise {
		middle = 0
	}
	var m matrix
	var b vector
	total := 0.0
	age, lim, scale := 1.0, outlier*c.noise, math.Exp(middle)
	for i := range c.count {
		s := &c.last[(newest-i)%window]
		w := age
		if off := math.Abs(math.Expm1(offs[i] - middle)); off > lim {
			w *= lim / off
			if strict {
				w *= lim / off
			}
		}
		total += w
		// Errors are relative: a long call is not worth more than a short one.
		w /= square(max((s.rest+c.theta.dot(s.x))*scale, leastMs))
		y := w * (s.took - s.rest)
		x := &s.x
		m[0] += w * x[0] * x[0]
		m[1] += w * x[0] * x[1]
		m[2] += w * x[0] * x[2]
		m[3] += w * x[1] * x[1]
		m[4] += w * x[1] * x[2]
		m[5] += w * x[2] * x[2]
		b[0] += y * x[0]
		b[1] += y * x[1]
		b[2] += y * x[2]
		age *= keep
	}
	level := max(c.prior.dot(b)/m.quad(c.prior), 1e-3)
	pull := square(min(c.noise, 0.1) / min(max(c.loose, 0.25), looseSeed))
	for i, k := range [3]int{0, 3, 5} {
		target := level * c.prior[i]
		// A coefficient of a guess may also be off by what explains a tenth of all that was seen.
		sd2 := square(target)
		if !c.shaped && m[k] > 0 { // a transfer says nothing about context
			sd2 = max(sd2, square(0.1)*total/m[k])
		}
		w := pull / sd2
		m[k] += w
		b[i] += w * target
	}
	inv, ok := m.inverse()
	if !ok {
		return // numbers out of range: keep what we have
	}
	best := vector{
		inv[0]*b[0] + inv[1]*b[1] + inv[2]*b[2],
		inv[1]*b[0] + inv[3]*b[1] + inv[4]*b[2],
		inv[2]*b[0] + inv[4]*b[1] + inv[5]*b[2],
	}
	if best[0] < 0 || best[1] < 0 || best[2] < 0 {
		best = m.nonNegative(b)
	}
	for _, v := range best {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return
		}
	}
	c.theta = best
	for i := range inv {
		c.cov[i] = inv[i] * square(c.noise)
	}
}

// inverse by cofactors; the matrix is positive definite but for rounding.
func (m *matrix) inverse() (matrix, bool) {
	// Rows are scaled to a unit diagonal first.
	var s vector
	for i, k := range [3]int{0, 3, 5} {
		if !(m[k] > 0) || math.IsInf(m[k], 0) {
			return matrix{}, false
		}
		s[i] = 1 / math.Sqrt(m[k])
	}
	p, q, r := m[1]*s[0]*s[1], m[2]*s[0]*s[2], m[4]*s[1]*s[2]
	det := 1 + 2*p*q*r - p*p - q*q - r*r
	if !(det > 1e-14) {
		det = 1e-14
	}
	d := 1 / det
	return matrix{
		(1 - r*r) * d * s[0] * s[0], (q*r - p) * d * s[0] * s[1], (p*r - q) * d * s[0] * s[2],
		(1 - q*q) * d * s[1] * s[1], (p*q - r) * d * s[1] * s[2],
		(1 - p*p) * d * s[2] * s[2],
	}, true
}

// nonNegative minimises vᵀmv − 2bᵀv over v ≥ 0: the best of all choices of coefficients that are zero.
func (m *matrix) nonNegative(b vector) vector {
	var best vector
	least := 0.0
	try := func(v vector) {
		for _, f := range v {
			if !(f >= 0) {
				return
			}
		}
		if cost := m.quad(v) - 2*b.dot(v); cost < least {
			best, least = v, cost
		}
	}
	for i := range 3 {
		var v vector
		v[i] = b[i] / m.at(i, i)
		try(v)
		for j := i + 1; j < 3; j++ {
			det := m.at(i, i)*m.at(j, j) - m.at(i, j)*m.at(i, j)
			if det <= 0 {
				continue
			}
			v = vector{}
			v[i] = (b[i]*m.at(j, j) - b[j]*m.at(i, j)) / det
			v[j] = (b[j]*m.at(i, i) - b[i]*m.at(i, j)) / det
			try(v)
		}
	}
	return best
}
