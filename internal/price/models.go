package price

import (
	"math"
	"time"
)

// Estimate is an expected duration.
type Estimate struct {
	Ms float64
	// Err is one standard deviation of Ms: how far the expected value may be off. Single calls scatter more.
	// +Inf while nothing is known and Ms is a guess.
	Err float64
}

// Bound is a duration that the expected value will hardly exceed, for deadlines.
func (e Estimate) Bound() time.Duration {
	ms := e.Ms
	if !math.IsInf(e.Err, 0) {
		ms += 2 * e.Err
	}
	return time.Duration(min(ms*float64(time.Millisecond), math.MaxInt64/2))
}

// Cost are the coefficients of one curve. The zero value says nothing.
type Cost struct {
	Base       float64 `json:"base_ms"`      // ms
	PerToken   float64 `json:"token_ms"`     // ms per token
	PerContext float64 `json:"token_ctx_ms"` // ms per token and token before it; recompute and append only
}

// Costs are the coefficients of all curves.
type Costs struct {
	Recompute Cost `json:"recompute"`
	Pull      Cost `json:"pull"`
	Handoff   Cost `json:"handoff"`
	Append    Cost `json:"append"`
	Stall     Cost `json:"stall"`
}

// What is assumed of engines that nobody has measured. Recomputing is slower than on any GPU, so that
// deadlines made of it err on the long side; transfers are as slow as a GPU pair with 16-token blocks.
var (
	guessRecompute = Cost{Base: 100, PerToken: 1, PerContext: 3e-5}
	guessPull      = Cost{Base: 20, PerToken: 0.03}
	guessHandoff   = Cost{Base: 50, PerToken: 0.03}
)

// Models are the prices of one pair of engines and one model. The zero value knows nothing and answers
// with cautious guesses. A copy may be asked, also while the original goes on learning; it must not be taught.
type Models struct {
	recompute, pull, handoff, append, stall curve

	spare   float64 // ms that may still be spent on learning
	decided int     // decisions so far
	tried   [3]int  // when each arm was last chosen
}

func (c Cost) vector() vector { return vector{c.Base, c.PerToken * 1e3, c.PerContext * 1e6} }

func (v vector) cost() Cost { return Cost{v[0], v[1] / 1e3, v[2] / 1e6} }

// valid coefficients are finite, not negative and not all zero.
func (c Cost) valid() bool {
	for _, f := range c.vector() {
		if !(f >= 0) || math.IsInf(f, 0) {
			return false
		}
	}
	return c != Cost{}
}

// Seed sets where curves start: numbers of a configuration, a bench or a table. rel is how far they may be off,
// as a relative standard deviation: 0.5 for another machine of the kind, 0 for exact numbers. Curves whose Cost is zero,
// negative or not finite stay as they are; what a seeded curve had learned is forgotten.
func (m *Models) Seed(c Costs, rel float64) {
	if !(rel > 0) {
		rel = 1e-9
	}
	for _, s := range []struct {
		curve *curve
		cost  Cost
	}{{&m.recompute, c.Recompute}, {&m.pull, c.Pull}, {&m.handoff, c.Handoff}, {&m.append, c.Append}, {&m.stall, c.Stall}} {
		if s.cost.valid() {
			s.curve.start(s.cost.vector(), rel, true)
		}
	}
}

// Costs returns the curves as they are now, for receipts and pages.
func (m *Models) Costs() Costs {
	return Costs{
		Recompute: m.recomputing().theta.cost(), Pull: m.pulling().theta.cost(), Handoff: m.handing().theta.cost(),
		Append: m.appending().theta.cost(), Stall: m.stalling().theta.cost(),
	}
}

func (c *curve) orGuess(g Cost) *curve {
	if !c.started() {
		c.start(g.vector(), looseSeed, false)
	}
	return c
}

func (m *Models) recomputing() *curve { return m.recompute.orGuess(guessRecompute) }
func (m *Models) pulling() *curve     { return m.pull.orGuess(guessPull) }
func (m *Models) handing() *curve     { return m.handoff.orGuess(guessHandoff) }

// appending is the curve of D on its own. Until D has been observed it is P's: engines of a pair mostly run
// on the same hardware. It is then taken for half right.
func (m *Models) appending() *curve {
	if m.append.seen > 0 || m.append.seeded {
		return &m.append
	}
	r := m.recomputing()
	m.append.start(r.theta, looseSeed, false)
	return &m.append
}

func (m *Models) stalling() *curve {
	if m.stall.seen > 0 || m.stall.seeded {
		return &m.stall
	}
	m.stall.start(m.appending().theta, looseSeed, false)
	return &m.stall
}

// likeOther estimates by a curve that was itself started from another: known, but loosely, when the other is.
func likeOther(c *curve, x vector, otherKnown bool) Estimate {
	e := c.at(x)
	if !c.known() && otherKnown {
		e.Err = e.Ms / 2
	}
	return e
}

// Recompute estimates a P call that computes n tokens following ctx that P has.
func (m *Models) Recompute(n, ctx int) Estimate { return m.recomputing().at(features(n, ctx)) }

// ObserveRecompute adds a P call that pulled nothing. took is without time spent waiting for other calls,
// as far as the caller can tell.
func (m *Models) ObserveRecompute(n, ctx int, took time.Duration) {
	m.recomputing().observe(features(n, ctx), 0, took)
}

// Pull estimates what a P call takes longer when it reads n tokens from D first. Nothing is 0.
func (m *Models) Pull(n int) Estimate {
	if n <= 0 {
		return Estimate{}
	}
	return m.pulling().at(flat(n))
}

// flat are features of a cost without a context term.
func flat(n int) vector { return vector{1, kilo(n), 0} }

// ObservePull adds a transfer of n tokens.
func (m *Models) ObservePull(n int, took time.Duration) {
	if n > 0 {
		m.pulling().observe(flat(n), 0, took)
	}
}

// ObservePullCall adds a whole P call that read n tokens from D and computed the tokens that follow the first ctx. It says
// something about transfers only once Recompute is known.
func (m *Models) ObservePullCall(n, computed, ctx int, took time.Duration) {
	if c := m.recomputing(); n > 0 && c.known() {
		m.pulling().observe(flat(n), c.at(features(computed, ctx)).Ms, took)
	}
}

// Handoff estimates D's leg until its first event when D reads n tokens from P.
func (m *Models) Handoff(n int) Estimate { return m.handing().at(flat(n)) }

// ObserveHandoff adds such a leg.
func (m *Models) ObserveHandoff(n int, took time.Duration) { m.handing().observe(flat(n), 0, took) }

// Append estimates D's first event when D computes n tokens following ctx that it has.
func (m *Models) Append(n, ctx int) Estimate {
	return likeOther(m.appending(), features(n, ctx), m.recompute.known())
}

// ObserveAppend adds a call of D alone.
func (m *Models) ObserveAppend(n, ctx int, took time.Duration) {
	m.appending().observe(features(n, ctx), 0, took)
}

// Stall estimates how long one other stream on D waits for its next token while D computes n.
func (m *Models) Stall(n int) Estimate {
	return likeOther(m.stalling(), features(n, 0), m.appending().known() || m.recompute.known())
}

// ObserveStall adds such a gap.
func (m *Models) ObserveStall(n int, gap time.Duration) { m.stalling().observe(features(n, 0), 0, gap) }

// Trust says which curves fit what was seen last. One that nobody has seeded or observed is not trusted; one whose
// last observations lie far outside its scatter is not until they fit again.
type Trust struct{ Recompute, Pull, Handoff, Append, Stall bool }

// Trusted returns which curves fit.
func (m *Models) Trusted() Trust {
	return Trust{m.recompute.trusted(), m.pull.trusted(), m.handoff.trusted(), m.append.trusted(), m.stall.trusted()}
}

// Known says which curves rest on observations or seeds rather than on guesses.
func (m *Models) Known() Trust {
	return Trust{m.recompute.known(), m.pull.known(), m.handoff.known(), m.append.known(), m.stall.known()}
}
