package gap

import (
	"time"

	"github.com/tarik-kv/tarik/internal/price"
)

const (
	// nextTokens is what the next prompt is taken to add, when it comes to what a prepared P would save.
	nextTokens = 128
	// usualGap is the gap between turns while nothing is known, in which P's cache has to keep what it gets.
	usualGap = 30 * time.Second
	// worth is how long a return may wait for P. A conversation that pauses longer has hardly anything to
	// gain from the minute before.
	worth = time.Minute
	// ahead is how much earlier than the next turn is likely a return that was put off starts.
	ahead = 100 * time.Millisecond
)

// NewQueue returns the queue of one P: two returns at once, and a quarter of its time while turns are there.
func NewQueue[K comparable]() Queue[K] { return Queue[K]{Running: 2, Waiting: 256, Share: 0.25} }

// Ended is a turn that has ended. Times are on the caller's clock.
type Ended struct {
	Number        int // of the turn in its conversation, 1 for the first
	Prompt, Reply int // tokens
	Ready         int // tokens of them that P has, as far as is known
	// Handle: D keeps blocks for it, to be used until Until.
	Handle bool
	Until  time.Duration
	// Load is the share of P's time that turns take, DecodeUsage of D's pool in use, 0 to 1.
	Load, DecodeUsage float64
	NoPrefixCache     bool // P says that it runs without
	// DecodeWaits: requests at D wait for room. Blocks are not kept then, not even for a return.
	DecodeWaits bool
}

// Plan is what is to happen after a turn.
type Plan struct {
	Choice Choice
	Why    Why
	// The return, if Choice is Now or Later: what it costs P, when it may start, and until when it is worth
	// anything.
	CostMs           float64
	NotBefore, Until time.Duration
	// Free: D is to have its blocks back at once, and the return goes without them.
	Free bool
}

// After decides what happens after a turn, by what calls cost, how its kind of traffic goes on, and how long P
// keeps things. Habit has been told of the turn's end.
func After(m *price.Models, h *Habit, s *Survival, now time.Duration, e Ended) Plan {
	free := e.Handle && e.DecodeWaits
	e.Handle = e.Handle && !free
	total := e.Prompt + e.Reply
	lack := max(total-e.Ready, 0)
	// P may have lost the turn's prompt while D replied. Then all of it has to come again, and take the place of what
	// other conversations have there.
	atOnce := s.At(0)
	there := atOnce
	if e.NoPrefixCache {
		there = 1
	}
	either := func(kept, lost float64) float64 { return there*kept + (1-there)*lost }
	saves := either(m.Recompute(lack+nextTokens, e.Ready).Ms, m.Recompute(total+nextTokens, 0).Ms) - m.Recompute(nextTokens, total).Ms
	costs := either(m.Recompute(lack, e.Ready).Ms, m.Recompute(total, 0).Ms)
	evicts := costs // what takes that much room takes about as long to compute
	if e.Handle {
		costs = min(costs, either(m.Pull(lack).Ms, m.Pull(total).Ms)+m.Recompute(1, total).Ms)
	}
	// What any call takes is no work of the engine, which serves many at once.
	costs = max(costs-m.Recompute(1, 0).Ms, 0)
	usual, known := h.Gap(0.5)
	if !known {
		usual = usualGap
	}
	soonest, _ := h.Gap(0.25)
	then := s.At(usual)
	sit := Situation{
		EvictsMs: max(evicts-m.Recompute(1, 0).Ms, 0) * (1 - then),
		Likely:   h.Probability(e.Number), SavesMs: saves, CostsMs: costs, Load: e.Load,
		Survives: then, SurvivesAMoment: atOnce, Handle: e.Handle, DecodeUsage: e.DecodeUsage, Soonest: soonest,
	}
	if e.Handle {
		sit.Left = e.Until - now
	}
	if e.NoPrefixCache {
		sit.Survives, sit.SurvivesAMoment = 0, 0
	}
	p := Plan{CostMs: costs, NotBefore: now, Free: free}
	p.Choice, p.Why = sit.Decide()
	if p.Choice == Later {
		p.NotBefore = now + max(0, soonest-ahead-time.Duration(costs*float64(time.Millisecond)))
	}
	p.Until = p.NotBefore + worth
	if e.Handle {
		p.Until = min(p.Until, e.Until)
	}
	return p
}
