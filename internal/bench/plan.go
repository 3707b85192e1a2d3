package bench

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Separation is how the same conversation is kept from meeting its twin of another arm in a prefix cache.
type Separation string

// The ways to separate arms.
const (
	SeparateSalt  Separation = "salt"  // cache_salt: prompts are byte for byte the same, so answers can be compared
	SeparateWords Separation = "words" // other first words: for engines without cache_salt; answers are not compared
	SeparateNone  Separation = "none"  // nothing: the arms have engines of their own
)

// Plan is what is measured. Its JSON form is in the journal's first line, and a run goes on only with an equal plan.
type Plan struct {
	Model string `json:"model"` // "": the first that the first arm lists
	Arms  []Arm  `json:"arms"`
	Base  string `json:"base"` // name of the arm that others are compared with; "": the last

	// The cells are all combinations of these four.
	Lengths []int       `json:"lengths,omitempty"` // prompt tokens of turn 1; of synthetic conversations only
	PCache  []string    `json:"p_cache"`           // "on", "off"
	Loads   []Load      `json:"loads"`
	Thinks  []ThinkTime `json:"thinks"`

	Turns   int `json:"turns"`   // of a synthetic conversation
	New     int `json:"new"`     // tokens of each later user message
	Reply   int `json:"reply"`   // max_tokens of each turn
	Repeats int `json:"repeats"` // groups per cell
	Batch   int `json:"batch"`   // conversations per block; 0: as many as the load runs at once, 16 in an open loop
	Warmup  int `json:"warmup"`  // conversations per arm that are not counted

	// FixedReply sends min_tokens = max_tokens, so that no answer is shorter.
	FixedReply bool       `json:"fixed_reply"`
	Separate   Separation `json:"separate"`
	Seed       uint64     `json:"seed"`

	Timeout time.Duration `json:"timeout_ns"` // of one turn
	Settle  time.Duration `json:"settle_ns"`  // between blocks, for what an arm still does after its last answer

	// Conversations take the place of synthetic ones if Source is not empty. It says where they are from; journals keep
	// it in their place, and plans are compared by it.
	Conversations []Conversation `json:"-"`
	Source        string         `json:"source,omitempty"`
	Speed         float64        `json:"speed,omitempty"` // of a replay: divides the times of the trace

	Note string `json:"note,omitempty"` // free text for the report: hardware, versions, flags
}

// Load is how conversations are started.
type Load struct {
	Concurrency int     `json:"concurrency,omitempty"` // closed loop: so many conversations at any time
	Rate        float64 `json:"rate,omitempty"`        // open loop: conversations per second, Poisson arrivals
	Trace       bool    `json:"trace,omitempty"`       // open loop: each turn at its time in a trace
}

func (l Load) String() string {
	switch {
	case l.Trace:
		return "as in the trace"
	case l.Rate > 0:
		return fmt.Sprintf("%g/s", l.Rate)
	}
	return fmt.Sprintf("%d at once", l.Concurrency)
}

// ThinkTime is the time from the end of a turn until the next is meant to start.
type ThinkTime struct {
	Mean        time.Duration `json:"mean_ns"`
	Exponential bool          `json:"exponential,omitempty"`
}

func (t ThinkTime) String() string {
	if t.Exponential {
		return "exp:" + t.Mean.String()
	}
	return t.Mean.String()
}

// ParseThinkTime reads "2s" or "exp:2s".
func ParseThinkTime(s string) (ThinkTime, error) {
	d, exp := strings.CutPrefix(s, "exp:")
	v, err := time.ParseDuration(d)
	if err != nil || v < 0 {
		return ThinkTime{}, fmt.Errorf("%q: want a duration such as 2s, or exp:2s for exponential times with that mean", s)
	}
	return ThinkTime{v, exp}, nil
}

// DefaultPlan lacks arms.
func DefaultPlan() Plan {
	return Plan{
		Lengths: []int{2048, 4096, 8192, 16384, 24576}, PCache: []string{"on"}, Loads: []Load{{Concurrency: 1}}, Thinks: []ThinkTime{{Mean: time.Second}},
		Turns: 3, New: 512, Reply: 64, Repeats: 8, Warmup: 1, FixedReply: true, Separate: SeparateSalt, Seed: 1,
		Timeout: 10 * time.Minute, Settle: 300 * time.Millisecond, Speed: 1,
	}
}

// Validate says what is wrong, naming the flag.
func (p *Plan) Validate() error {
	for i, a := range p.Arms {
		if slices.ContainsFunc(p.Arms[:i], func(b Arm) bool { return b.Name == a.Name }) {
			return fmt.Errorf("--arm %s: there are two of this name", a.Name)
		}
	}
	if ids := func(a Arm) bool { return a.IDs }; slices.ContainsFunc(p.Arms, ids) && slices.ContainsFunc(p.Arms, func(a Arm) bool { return !a.IDs }) {
		return errors.New("--arm: prompt=ids on all arms or on none: otherwise they are not asked the same")
	}
	switch {
	case len(p.Arms) == 0:
		return errors.New("--arm: there is none")
	case p.Base != "" && p.arm(p.Base) == nil:
		return fmt.Errorf("--base %s: no arm has this name", p.Base)
	case p.Source == "" && len(p.Lengths) == 0:
		return errors.New("--lengths: want at least one")
	case len(p.PCache) == 0 || len(p.Loads) == 0 || len(p.Thinks) == 0:
		return errors.New("--p-cache, --concurrency or --rate, and --think: want at least one value of each")
	case p.Turns < 1:
		return fmt.Errorf("--turns %d: want at least 1", p.Turns)
	case p.Reply < 1 || p.New < 1:
		return errors.New("--reply, --new: want at least 1 token")
	case p.Repeats < 1 || p.Batch < 0 || p.Warmup < 0:
		return errors.New("--repeats: want at least 1; --batch, --warmup: at least 0")
	case p.Timeout <= 0:
		return fmt.Errorf("--timeout %s: want more than 0", p.Timeout)
	case p.Settle < 0:
		return fmt.Errorf("--settle %s: want at least 0", p.Settle)
	case !slices.Contains([]Separation{SeparateSalt, SeparateWords, SeparateNone}, p.Separate):
		return fmt.Errorf("--separate %q: want salt, words or none", p.Separate)
	case p.Speed <= 0 || math.IsInf(p.Speed, 0):
		return fmt.Errorf("--speed %g: want more than 0", p.Speed)
	}
	for _, n := range p.Lengths {
		if n < minPromptTokens {
			return fmt.Errorf("--lengths %d: want at least %d tokens", n, minPromptTokens)
		}
	}
	for _, c := range p.PCache {
		if c != "on" && c != "off" {
			return fmt.Errorf("--p-cache %q: want on, off, or both", c)
		}
	}
	for _, l := range p.Loads {
		if !l.Trace && (l.Rate > 0) == (l.Concurrency > 0) || l.Rate < 0 || l.Concurrency < 0 || math.IsInf(l.Rate, 0) || math.IsNaN(l.Rate) {
			return errors.New("--concurrency: want at least 1; --rate: want more than 0")
		}
	}
	return nil
}

// arm is the arm of a name, or nil.
func (p *Plan) arm(name string) *Arm {
	i := slices.IndexFunc(p.Arms, func(a Arm) bool { return a.Name == name })
	if i < 0 {
		return nil
	}
	return &p.Arms[i]
}

// base is the arm that others are compared with.
func (p *Plan) base() *Arm {
	if p.Base == "" {
		return &p.Arms[len(p.Arms)-1]
	}
	return p.arm(p.Base)
}

// batch is the number of conversations in a block of a load.
func (p *Plan) batch(l Load) int {
	switch {
	case l.Trace:
		return len(p.Conversations)
	case p.Batch > 0:
		return p.Batch
	case l.Rate > 0:
		return 16
	}
	return l.Concurrency
}

// Cell is one combination of conditions.
type Cell struct {
	Length int       `json:"length,omitempty"` // tokens; 0: given conversations
	PCache string    `json:"p_cache"`
	Load   Load      `json:"load"`
	Think  ThinkTime `json:"think"`
}

func (c Cell) cold() bool { return c.PCache == "off" }

func (c Cell) String() string {
	s := fmt.Sprintf("P's prefix cache %s, %s", c.PCache, c.Load)
	if !c.Load.Trace {
		s += ", think " + c.Think.String()
	}
	if c.Length > 0 {
		s = fmt.Sprintf("%d tokens, %s", c.Length, s)
	}
	return s
}

// cells are all combinations in the order of the report.
func (p *Plan) cells() []Cell {
	lengths := p.Lengths
	if p.Source != "" {
		lengths = []int{0}
	}
	var all []Cell
	for _, cache := range p.PCache {
		for _, load := range p.Loads {
			for _, think := range p.Thinks {
				for _, n := range lengths {
					all = append(all, Cell{n, cache, load, think})
				}
			}
		}
	}
	return all
}

// Surroundings are what Run needs besides the plan.
type Surroundings struct {
	// Client sends everything; nil: NewClient. It must not follow redirects or time out by itself.
	Client *http.Client
	// Journal keeps the results; nil: memory only.
	Journal *Journal
	// Progress is called after each group, and before the first. It must not block.
	Progress func(Progress)
	// Version of this program, for the report.
	Version string
}

// Progress is how far a run has come.
type Progress struct {
	Groups, Done int
	Cell         string        // of the group that is being measured
	Left         time.Duration // estimate of what remains, 0 as long as there is none
	Failures     int           // failed turns so far
}
