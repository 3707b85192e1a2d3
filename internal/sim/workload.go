package sim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Dist is a distribution of a non-negative number.
type Dist struct {
	Kind string  // "", exp, lognormal, uniform, geometric
	A, B float64 // value · mean · median and sigma · least and most · mean
}

// ParseDist reads 1500, exp:1500, lognormal:1500,0.8 (median, sigma), uniform:100,2000, geometric:12 (mean, at least 1).
func ParseDist(s string) (Dist, error) {
	name, rest, found := strings.Cut(s, ":")
	if !found {
		name, rest = "", s
	}
	parts := strings.Split(rest, ",")
	want := map[string]int{"": 1, "exp": 1, "lognormal": 2, "uniform": 2, "geometric": 1}
	n, ok := want[name]
	if !ok {
		return Dist{}, fmt.Errorf("%q: want a number, exp:MEAN, lognormal:MEDIAN,SIGMA, uniform:LEAST,MOST or geometric:MEAN", s)
	}
	if len(parts) != n {
		return Dist{}, fmt.Errorf("%q: want %d numbers", s, n)
	}
	d := Dist{Kind: name}
	for i, p := range parts {
		v, err := strconv.ParseFloat(strings.TrimSpace(p), 64)
		if err != nil || !(v >= 0) || v > 1e9 {
			return Dist{}, fmt.Errorf("%q: %q is no number from 0 to 1e9", s, p)
		}
		if i == 0 {
			d.A = v
		} else {
			d.B = v
		}
	}
	switch {
	case name == "uniform" && d.B < d.A:
		return Dist{}, fmt.Errorf("%q: the second number is below the first", s)
	case name == "geometric" && d.A < 1:
		return Dist{}, fmt.Errorf("%q: a mean of at least 1", s)
	case name == "lognormal" && d.B > 10:
		return Dist{}, fmt.Errorf("%q: a sigma of at most 10", s)
	}
	return d, nil
}

// String is what ParseDist reads.
func (d Dist) String() string {
	f := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	switch d.Kind {
	case "":
		return f(d.A)
	case "exp", "geometric":
		return d.Kind + ":" + f(d.A)
	}
	return d.Kind + ":" + f(d.A) + "," + f(d.B)
}

// draw takes one value.
func (d Dist) draw(r *rand.Rand) float64 {
	switch d.Kind {
	case "exp":
		return d.A * r.ExpFloat64()
	case "lognormal":
		return d.A * math.Exp(d.B*r.NormFloat64())
	case "uniform":
		return d.A + (d.B-d.A)*r.Float64()
	case "geometric":
		if d.A == 1 {
			return 1
		}
		return 1 + math.Floor(math.Log(1-r.Float64())/math.Log(1-1/d.A))
	}
	return d.A
}

// Mean is the expected value.
func (d Dist) Mean() float64 {
	switch d.Kind {
	case "lognormal":
		return d.A * math.Exp(d.B*d.B/2)
	case "uniform":
		return (d.A + d.B) / 2
	}
	return d.A
}

// Synthetic is a workload made up from distributions. Tokens, seconds.
type Synthetic struct {
	Requests    int     // in all
	Rate        float64 // conversations that begin each second, at random; 0 with Concurrency
	Concurrency int     // conversations that are open at any time; 0 with Rate
	Turns       Dist    // of a conversation
	First       Dist    // tokens of the first prompt
	Growth      Dist    // tokens that a turn adds besides the last reply
	Reply       Dist    // tokens of a reply
	Think       Dist    // seconds from the end of a reply to the next turn
	Hidden      float64 // share of a reply that is not in the next prompt, from its start: reasoning
	Edited      float64 // share of turns whose history is shortened to a random part
	MaxLen      int     // tokens of prompt and reply; a conversation that would get longer ends
}

// DefaultSynthetic is an agent: many turns, long prompts, short pauses.
func DefaultSynthetic() Synthetic {
	return Synthetic{
		Requests: 20_000, Rate: 0.02, Turns: Dist{"geometric", 15, 0}, First: Dist{"lognormal", 4000, 0.6}, Growth: Dist{"lognormal", 400, 0.8},
		Reply: Dist{"lognormal", 200, 0.8}, Think: Dist{"lognormal", 8, 1}, MaxLen: 40_960,
	}
}

// Validate says what is wrong.
func (s *Synthetic) Validate() error {
	switch {
	case s.Requests < 1 || s.Requests > 1e9:
		return fmt.Errorf("%d requests: want 1 to 1e9", s.Requests)
	case (s.Rate > 0) == (s.Concurrency > 0) || s.Rate < 0 || s.Concurrency < 0 || s.Concurrency > 1e7 || math.IsNaN(s.Rate) || s.Rate > 1e6:
		return errors.New("want either a rate of conversations (up to 1e6 a second) or a number of open ones (up to 1e7)")
	case !(s.Hidden >= 0 && s.Hidden <= 1) || !(s.Edited >= 0 && s.Edited <= 1):
		return errors.New("shares are from 0 to 1")
	case s.MaxLen < 16 || s.MaxLen > 1<<24:
		return fmt.Errorf("length of at most %d tokens: want 16 to %d", s.MaxLen, 1<<24)
	}
	return nil
}

// Row is one request of a trace.
type Row struct {
	Conv   int32
	Prompt int32
	Output int32
	// Shared is how many tokens of the prompt the previous one has too, -1 if the trace does not say. It counts whole blocks
	// of Block tokens; 0 is the same as 1.
	Shared, Block int32
	Start         time.Duration // since the trace's begin
}

// plan is one turn as the workload has it.
type plan struct {
	prompt, reply int32
	// visible is how many tokens of the reply come back in the next prompt. If that is not all of them, the prompt
	// departs from what D holds where the reply begins.
	visible int32
	// common is how many tokens the prompt has in common with what D holds of the turn before, and text with what a
	// rendering of that turn gives.
	common, text int32
	last         bool // no turn follows
	next         time.Duration
	after        bool // next is after the end of the reply, else since the begin
}

// source gives conversations and their turns.
type source interface {
	// open returns when the next conversation begins; false if there is none for now.
	open(now time.Duration) (at time.Duration, id int32, ok bool)
	// turn gives turn number (from 0) of a conversation.
	turn(c *conversation, number int32) plan
	// more reports whether there may be another turn.
	more() bool
	// closed notes the end of a conversation.
	closed(now time.Duration)
}

// synthetic makes a workload up.
type synthetic struct {
	Synthetic
	r     *rand.Rand
	at    time.Duration
	left  int // requests
	open_ int
}

func newSynthetic(s Synthetic, seed uint64) *synthetic {
	return &synthetic{Synthetic: s, r: rand.New(rand.NewPCG(seed, 0x74617269)), left: s.Requests}
}

func (s *synthetic) open(now time.Duration) (time.Duration, int32, bool) {
	if s.left <= 0 {
		return 0, 0, false
	}
	if s.Concurrency > 0 {
		if s.open_ >= s.Concurrency {
			return 0, 0, false
		}
		s.open_++
		if s.at < time.Second { // not all at once
			s.at += time.Second / time.Duration(s.Concurrency)
			return max(s.at, now), -1, true
		}
		return now, -1, true
	}
	s.at += time.Duration(s.r.ExpFloat64() / s.Rate * float64(time.Second))
	return s.at, -1, true
}

func (s *synthetic) more() bool { return s.left > 0 }

func (s *synthetic) closed(time.Duration) { s.open_-- }

func tokens(v float64, most int) int32 { return int32(min(max(v, 1), float64(most))) }

func (s *synthetic) turn(c *conversation, number int32) plan {
	s.left--
	var p plan
	if number == 0 {
		c.turns = int32(min(s.Turns.draw(s.r), 1e6))
		p.prompt = tokens(s.First.draw(s.r), s.MaxLen-2)
	} else {
		kept := c.prompt + c.visible
		p.common, p.text = kept, kept
		if c.visible < c.reply {
			p.common = c.prompt
		}
		if s.Edited > 0 && s.r.Float64() < s.Edited {
			kept = int32(float64(c.prompt) * s.r.Float64())
			p.common, p.text = kept, kept
		}
		p.prompt = kept + tokens(s.Growth.draw(s.r), s.MaxLen)
	}
	p.reply = tokens(s.Reply.draw(s.r), s.MaxLen/2)
	p.visible = p.reply - int32(s.Hidden*float64(p.reply))
	if int(p.prompt)+int(p.reply) > s.MaxLen {
		p.prompt = min(p.prompt, int32(s.MaxLen)-p.reply)
		p.common, p.text = min(p.common, p.prompt), min(p.text, p.prompt)
		p.last = true
	}
	p.last = p.last || number+1 >= c.turns || s.left <= 0
	p.next, p.after = time.Duration(s.Think.draw(s.r)*float64(time.Second)), true
	return p
}

// traced plays a trace. Rows are sorted by conversation, then start.
type traced struct {
	rows  []Row
	first []int32 // index of the first row of each conversation, by start
	next  int
	speed float64
}

func newTraced(rows []Row, speed float64) *traced {
	t := &traced{rows: rows, speed: speed}
	for i := range rows {
		if i == 0 || rows[i].Conv != rows[i-1].Conv {
			t.first = append(t.first, int32(i))
		}
	}
	slices.SortStableFunc(t.first, func(a, b int32) int { return cmp.Compare(rows[a].Start, rows[b].Start) })
	return t
}

// leastThink is the shortest pause of a trace whose turn comes before its previous reply has ended.
const leastThink = 10 * time.Millisecond

func (t *traced) open(time.Duration) (time.Duration, int32, bool) {
	if t.next >= len(t.first) {
		return 0, 0, false
	}
	i := t.first[t.next]
	t.next++
	return t.scaled(t.rows[i].Start), i, true
}

func (t *traced) scaled(d time.Duration) time.Duration { return time.Duration(float64(d) / t.speed) }

func (t *traced) more() bool { return true }

func (t *traced) closed(time.Duration) {}

func (t *traced) turn(c *conversation, number int32) plan {
	i := int(c.row + number)
	r := &t.rows[i]
	p := plan{prompt: max(r.Prompt, 1), reply: max(r.Output, 1)}
	if number > 0 {
		switch {
		case p.prompt >= c.prompt+c.reply: // it goes on
			p.common = c.prompt + c.reply
		case p.prompt >= c.prompt: // the reply came back shorter: reasoning was dropped
			p.common = c.prompt
		default: // shortened; where, nobody knows
			p.common = p.prompt
		}
		// What comes after the last whole block is not counted, so that a prompt that goes on may seem to depart in it.
		if most := min(c.prompt, p.prompt); r.Shared >= 0 && r.Shared < most-most%max(r.Block, 1) {
			p.common = r.Shared
		}
		p.text = p.common
	}
	p.visible = p.reply
	if i+1 >= len(t.rows) || t.rows[i+1].Conv != r.Conv {
		p.last = true
		return p
	}
	p.next = t.scaled(t.rows[i+1].Start)
	if grown := t.rows[i+1].Prompt - p.prompt; grown < p.reply {
		p.visible = max(grown, 0)
	}
	return p
}
