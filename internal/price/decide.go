package price

import "math"

// The arms, as turn names them.
const (
	local     = "local"
	pull      = "pull"
	appending = "append"
	recompute = "recompute"
)

// Why an arm is out of the question. Stable: receipts carry them.
const (
	NotPossible    = "not-possible"    // the caller says so
	NotMore        = "no-more-than-p"  // P has as much itself
	NotThreshold   = "below-threshold" // P would not pull so little
	NotKnown       = "price-unknown"   // D has never computed, and neither has P
	NotBearable    = "stalls-others"   // D's other streams would wait longer than they may
	NotEvenPlanned = "would-not-fit"   // more tokens on D than the caller allows
)

// Why an arm was chosen. Stable: receipts carry them.
const (
	WhyOnly  = "only-arm"           // no other was possible
	WhyLeast = "least-ms"           // its gain over all that move less exceeds the uncertainty
	WhyMoves = "within-uncertainty" // another may be faster, but not surely, and moves more
	WhyGuess = "guessed"            // fastest by estimates of which one at least is a guess
	WhyTrial = "trial"              // to learn its price, within the small share of time spent on that
)

const (
	// learning is the share of all expected time that may be spent on arms that look slower, to learn what
	// they cost now. Without it a price once learned too high is never corrected, as its arm is never chosen.
	learning = 0.01
	// stale is after how many decisions without an arm its price is asked again.
	stale = 50
)

// Situation is what a decision rests on. Token counts are of this turn's prompt.
type Situation struct {
	Prompt int // tokens of it
	PHas   int // that P's prefix cache has
	Held   int // that a handle of D covers, verified; 0 without a handle
	DHas   int // that D's prefix cache has

	QueueMs  float64 // what a call to P waits for others
	DQueueMs float64 // what a call to D waits for others
	RenderMs float64 // what it takes to prove the handle, only spent on a pull
	Streams  int     // other streams on D

	CanPull, CanAppend bool

	Threshold   int     // P pulls no fewer tokens, as it is configured
	AppendLimit int     // tokens that D may compute at once, 0: no limit
	StallLimit  float64 // ms that another stream may wait, 0: no limit
	// AppendPremium is what an append must save to be worth the chance that D has lost what it should have,
	// in ms: then it computes the whole prompt, and no engine refuses to.
	AppendPremium float64
	// StallWeight is what a millisecond that one other stream waits counts, in milliseconds of this turn. 0: nothing.
	StallWeight float64
}

// Candidate is one arm and its expected time to first token.
type Candidate struct {
	Arm     string
	Ms, Err float64
	Moves   int    // tokens whose KV goes over the link
	Not     string // why it is out of the question, else empty
}

// Decision is the choice and all it was made from.
type Decision struct {
	Arm        string
	Candidates []Candidate
	Why        string
}

// Chosen returns the candidate that was chosen.
func (d Decision) Chosen() Candidate {
	for _, c := range d.Candidates {
		if c.Arm == d.Arm {
			return c
		}
	}
	return Candidate{}
}

// priced is a candidate with what is needed to compare it. Parts that two arms share do not make the
// difference between them uncertain.
type priced struct {
	Candidate
	slot    int     // in Models.tried
	rec     vector  // features of what P computes; zero for append
	own     float64 // variance of the parts that no other arm has
	handing float64 // variance of D's leg after P; zero for append
}

// Decide picks the arm: the one with the least expected time if its gain exceeds the uncertainty of the gain, else the one
// that moves less. Guesses are compared as if they were sure, so that what is unknown is tried. At most
// a hundredth of the expected time goes into trying arms that look slower but have not been looked at for long.
//
// Exactly one of "local" and "recompute" is a candidate: recompute if P has nothing.
func (m *Models) Decide(s Situation) Decision {
	s.tidy()
	m.decided++
	var arms [3]priced
	arms[0] = m.local(s)
	arms[1] = m.viaPull(s)
	arms[2] = m.viaAppend(s)

	fast := 0
	for i := range arms {
		if arms[i].Not == "" && arms[i].Ms < arms[fast].Ms {
			fast = i
		}
	}
	best, why := m.settle(&arms, fast)
	if t := m.trial(&arms, best); t >= 0 {
		best, why = t, WhyTrial
	}
	m.tried[best] = m.decided
	d := Decision{Arm: arms[best].Arm, Why: why, Candidates: make([]Candidate, len(arms))}
	for i := range arms {
		d.Candidates[i] = arms[i].Candidate
	}
	return d
}

// tidy brings nonsense into range: a decision is due whatever the caller believes.
func (s *Situation) tidy() {
	s.Prompt = min(max(s.Prompt, 1), maxTokens)
	// At least the last token is computed.
	for _, n := range []*int{&s.PHas, &s.Held, &s.DHas} {
		*n = min(max(*n, 0), s.Prompt-1)
	}
	for _, ms := range []*float64{&s.QueueMs, &s.DQueueMs, &s.RenderMs, &s.StallWeight, &s.AppendPremium} {
		if !(*ms > 0) || math.IsInf(*ms, 0) {
			*ms = 0
		}
	}
	s.Streams = max(s.Streams, 0)
}

func square(f float64) float64 { return f * f }

func (m *Models) local(s Situation) priced {
	arm := local
	if s.PHas == 0 {
		arm = recompute
	}
	c, h := m.Recompute(s.Prompt-s.PHas, s.PHas), m.Handoff(s.Prompt-s.DHas)
	return priced{
		Candidate: Candidate{
			Arm: arm, Ms: s.QueueMs + c.Ms + s.DQueueMs + h.Ms, Err: math.Hypot(c.Err, h.Err), Moves: s.Prompt - s.DHas,
		},
		rec: features(s.Prompt-s.PHas, s.PHas), handing: square(h.Err),
	}
}

func (m *Models) viaPull(s Situation) priced {
	n, has := s.Held-s.PHas, max(s.Held, s.PHas)
	c, h, p := m.Recompute(s.Prompt-has, has), m.Handoff(s.Prompt-s.DHas), m.Pull(n)
	a := priced{
		Candidate: Candidate{
			Arm: pull, Ms: s.QueueMs + s.RenderMs + p.Ms + c.Ms + s.DQueueMs + h.Ms,
			Err: math.Hypot(math.Hypot(c.Err, h.Err), p.Err), Moves: max(n, 0) + s.Prompt - s.DHas,
		},
		slot: 1, rec: features(s.Prompt-has, has), own: square(p.Err), handing: square(h.Err),
	}
	switch {
	case !s.CanPull:
		a.Not = NotPossible
	case n <= 0:
		a.Not = NotMore
	case n < s.Threshold:
		a.Not = NotThreshold
	}
	return a
}

func (m *Models) viaAppend(s Situation) priced {
	n := s.Prompt - s.DHas
	c := m.Append(n, s.DHas)
	a := priced{Candidate: Candidate{Arm: appending, Ms: s.DQueueMs + s.AppendPremium + c.Ms, Err: c.Err}, slot: 2}
	var stall Estimate
	if s.Streams > 0 {
		stall = m.Stall(n)
		w := s.StallWeight * float64(s.Streams)
		a.Ms += w * stall.Ms
		if w > 0 {
			a.Err = math.Hypot(a.Err, w*stall.Err)
		}
	}
	a.own = square(a.Err)
	switch {
	case !s.CanAppend:
		a.Not = NotPossible
	case s.AppendLimit > 0 && n > s.AppendLimit:
		a.Not = NotEvenPlanned
	case math.IsInf(a.Err, 0):
		a.Not = NotKnown
	case s.StallLimit > 0 && stall.Ms > s.StallLimit:
		a.Not = NotBearable
	}
	return a
}

// settle prefers, to the fastest arm, the fastest of those that move less and may be as fast.
func (m *Models) settle(arms *[3]priced, fast int) (best int, why string) {
	best, why = fast, WhyOnly
	for i := range arms {
		if i == fast || arms[i].Not != "" {
			continue
		}
		if why == WhyOnly {
			why = WhyLeast
		}
		gain, unsure := arms[i].Ms-arms[fast].Ms, m.between(&arms[i], &arms[fast])
		switch {
		case math.IsInf(unsure, 0):
			if why != WhyMoves {
				why = WhyGuess
			}
		case arms[i].Moves < arms[fast].Moves && gain <= unsure && (best == fast || arms[i].Ms < arms[best].Ms):
			best, why = i, WhyMoves
		}
	}
	return best, why
}

// between is the standard deviation of the difference of two arms.
func (m *Models) between(a, b *priced) float64 {
	v := a.own + b.own
	if a.slot == 2 || b.slot == 2 {
		v += a.handing + b.handing
	}
	return math.Hypot(math.Sqrt(v), m.recomputing().err(a.rec.minus(b.rec)))
}

// trial returns an arm to try instead of best, or -1.
func (m *Models) trial(arms *[3]priced, best int) int {
	ms := arms[best].Ms
	m.spare = min(m.spare+learning*ms, 20*ms)
	for i := range arms {
		a := &arms[i]
		if i == best || a.Not != "" || math.IsInf(a.Err, 0) || m.decided-m.tried[i] < stale {
			continue
		}
		// What the trial costs if the price is somewhat too high, which is when it pays.
		if loss := max(a.Ms-2*a.Err-ms, (a.Ms-ms)/4); loss <= m.spare {
			m.spare -= max(loss, 0)
			return i
		}
	}
	return -1
}
