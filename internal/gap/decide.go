package gap

import "time"

// Choice is what happens with a turn that has ended.
type Choice string

// The choices.
const (
	Now   Choice = "now"    // prepare P as soon as it has time
	Later Choice = "later"  // keep D's blocks, and prepare P shortly before the next turn is likely
	Hold  Choice = "hold"   // keep D's blocks for the next turn itself
	LetGo Choice = "let-go" // do not prepare P; D may free what it keeps
)

// Why it was chosen. The names are stable: receipts carry them.
type Why string

// Reasons of a choice.
const (
	Pays        Why = "pays"          // what it saves, times how likely, is more than what it costs
	Unlikely    Why = "unlikely"      // the conversation will hardly go on
	NotWorth    Why = "not-worth"     // P lacks too little, or is too busy
	NotKept     Why = "not-kept"      // P would have evicted it by then
	HeldTillDue Why = "held-till-due" // the same, and D has room to keep it meanwhile
	HeldForTurn Why = "held-for-turn" // P does not even keep it for a moment, and D has room
)

// Situation is a turn that has ended.
type Situation struct {
	// Likely is the probability that another turn follows, 0 to 1.
	Likely float64
	// SavesMs is by how much a prepared P would shorten that turn's wait, in ms.
	SavesMs float64
	// CostsMs is how much longer P would be busy with it than without, in ms.
	CostsMs float64
	// EvictsMs is what computing again takes that others lose in P's cache to it: nothing while P keeps everything long enough.
	EvictsMs float64
	// Load is the share of P's time that turns take, 0 to 1: only then does a return cost anybody
	// anything.
	Load float64
	// Survives is the probability that P still has it when the next turn comes.
	Survives float64
	// SurvivesAMoment is the same for a next turn that comes at once.
	SurvivesAMoment float64
	// Handle: D keeps blocks for it, for Left more, and its pool is used to DecodeUsage, 0 to 1.
	Handle      bool
	Left        time.Duration
	DecodeUsage float64
	// Soonest is the time after which the next turn may come, 0 if nothing is known.
	Soonest time.Duration
}

const (
	// idleLoad is what a return costs at least, as a share of its time: an idle P is never quite idle.
	// Kinds of traffic that hardly ever go on are left alone by it.
	idleLoad = 0.05
	// roomy is D's usage up to which blocks may be held for a while.
	roomy = 0.5
	// unlikely is the probability of a next turn below which it is the reason for not preparing it.
	unlikely = 0.2
	// doubtful is the survival below which what P is given is hardly there when it is needed.
	doubtful = 0.5
)

// Decide says what to do. What a return computes is not computed on the turn any more, if that comes and
// P has kept it: it costs others something only if not.
func (s Situation) Decide() (Choice, Why) {
	cost := max(s.Load, idleLoad)*s.CostsMs*(1-s.Likely*s.Survives) + s.EvictsMs
	value := s.Likely * s.SavesMs
	pays := value*s.Survives > cost
	if value == 0 && cost == 0 && s.SavesMs >= 0 {
		pays = s.Likely >= unlikely // it costs no more than it saves: neither can be seen
	}
	switch {
	case pays && s.Survives >= doubtful:
		return Now, Pays
	case value <= cost && s.Likely < unlikely:
		return LetGo, Unlikely
	case value <= cost && !pays:
		return LetGo, NotWorth
	case !s.Handle || s.DecodeUsage >= roomy:
	case s.SurvivesAMoment < doubtful && s.Soonest < s.Left:
		return Hold, HeldForTurn
	case s.Soonest > 0 && s.Soonest < s.Left:
		return Later, HeldTillDue
	}
	return LetGo, NotKept
}
