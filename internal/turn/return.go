package turn

import (
	"fmt"
	"time"

	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/price"
)

// Return decides one return: the P call after a turn that prepares P for what the next prompt must
// begin with. It is driven as a Machine is: begun by ReturnStart, then RenderedNext, Taken and Warmed
// report the outcomes of RenderNext, Take and Warm, one at a time, and Overtaken comes at any moment.
//
//	start ─► render next ─► take ─► warm with the handle ─► returned
//	               │ no handle       │ failed: once more without
//	               └────────────► warm without
//
// The zero value is ready for ReturnStart. A Return is not safe for concurrent use.
type Return struct {
	start ReturnStart
	state returnState
	ids   []int32
	out   Returned
	pull  bool // the handle is with P
	reads bool // and P may read by it
	late  bool // its deadline is D's, not what it should take
}

type returnState int

const (
	returnIdle returnState = iota
	returnRendering
	returnTaking
	returnWarming
	returnDone
)

var returnStates = [...]string{"idle", "rendering", "taking", "warming", "done"}

// ReturnStart begins a return with what is known of the turn it follows.
type ReturnStart struct {
	// Held is what D keeps, nil if nothing or nothing that is known.
	Held *kvp.Held
	// GoesOn: replies like this one come back as the very tokens that D generated, as Returned.Whole has told
	// of others. Then nothing is rendered, and D's blocks are free so much sooner. P compares tokens itself.
	GoesOn bool
	// PromptTokens is how many tokens of the turn's prompt P has seen, 0 if unknown.
	PromptTokens int
	// NextTokens is about how long the next prompt's beginning is, for a deadline when it cannot be rendered.
	NextTokens int
	// Threshold is P's kv_recompute_threshold: it computes less than that many tokens rather than read them.
	Threshold int
	// NoHandles, if not empty, is why P is not given handles now. Held is left for a turn then.
	NoHandles Reason
	// MaxLen is the longest sequence that P takes, in tokens; 0 if unknown.
	MaxLen    int
	BlockSize int // tokens
	// Price bounds the P call, as it bounds that of a turn.
	Price price.Models
}

// RenderedNext reports the token ids that the next prompt will begin with, as far as can be told: the
// common beginning of A and B, two renderings that differ in what is said next; of A alone, all but
// the last Tail tokens, if B is nil.
type RenderedNext struct {
	A, B []int32 // A nil: it cannot be rendered
	Tail int
}

// Warmed reports the end of the P call of a return.
type Warmed struct {
	Status int  // HTTP status, 0 if no answer came
	Late   bool // the deadline ended the call
}

// Overtaken reports that the next turn has come.
type Overtaken struct{}

func (ReturnStart) event()  {}
func (RenderedNext) event() {}
func (Warmed) event()       {}
func (Overtaken) event()    {}

// RenderNext asks for the token ids of the next prompt's beginning.
type RenderNext struct{}

// Warm asks for a P call that is streamed and hung up at its first event, never before.
type Warm struct {
	// IDs is the prompt. nil: the engines cannot render, so P gets it as messages.
	IDs       []int32
	Params    []byte // kv_transfer_params, nil for none
	MaxTokens int    // enough that the hang-up comes before the end; a request that ends keeps its blocks
	Deadline  time.Duration
}

// ReturnState is how a return ended.
type ReturnState string

// How returns end.
const (
	ReturnDone      ReturnState = "done"
	ReturnSkipped   ReturnState = "skipped"   // it would not have paid
	ReturnOvertaken ReturnState = "overtaken" // the next turn came before P was given anything
	ReturnDropped   ReturnState = "dropped"   // it waited until it was worth nothing
	ReturnFailed    ReturnState = "failed"
)

// Returned ends a return.
type Returned struct {
	State ReturnState
	Why   Reason
	// Tokens is how long the prompt was that P was given. Pulled of them it was to read from D, and
	// Computed it had to compute; the rest it has had. P is left at its first token, before it could
	// say: these follow from what it had.
	Tokens, Pulled, Computed int
	// Whole: rendered, the next prompt begins with all that D holds.
	Whole bool
}

func (RenderNext) action() {}
func (Warm) action()       {}
func (Returned) action()   {}

// warmTokens is how many tokens P is asked for: it is left at the first, and a request that ends before
// that has arrived keeps its blocks for a lease.
const warmTokens = 4096

// Step takes one event and returns what to do now. It panics if the event does not fit.
func (m *Return) Step(ev Event) []Action {
	switch ev := ev.(type) {
	case ReturnStart:
		m.expect(ev, returnIdle)
		if ev.NoHandles != "" {
			ev.Held = nil
		}
		m.start, m.state = ev, returnRendering
		if ev.GoesOn && ev.Held != nil {
			m.ids, m.state = ev.Held.Seq, returnTaking
			return []Action{Take{}}
		}
		return []Action{RenderNext{}}
	case RenderedNext:
		m.expect(ev, returnRendering)
		return m.rendered(ev)
	case Taken:
		m.expect(ev, returnTaking)
		return m.taken(ev)
	case Warmed:
		m.expect(ev, returnWarming)
		return m.warmed(ev)
	case Overtaken:
		return m.overtaken()
	}
	panic(fmt.Sprintf("BUG: turn: unknown event %T in a return", ev))
}

func (m *Return) expect(ev Event, want returnState) {
	if m.state != want {
		panic(fmt.Sprintf("BUG: turn: %T while a return is %s", ev, returnStates[m.state]))
	}
}

// Warming reports whether P is being prepared: then it pays to wait for it.
func (m *Return) Warming() bool { return m.state == returnWarming }

// overtaken ends a return that has not taken the handle: the turn that overtook it will. A P call in
// progress goes on, since that turn is better off when it is over.
func (m *Return) overtaken() []Action {
	if m.state != returnRendering {
		return nil
	}
	m.out.State = ReturnOvertaken
	return []Action{Cancel{}} // its RenderedNext is still to come
}

func (m *Return) rendered(ev RenderedNext) []Action {
	if m.out.State == ReturnOvertaken {
		return m.end(ReturnOvertaken, "")
	}
	m.ids = ev.prefix()
	if m.start.Held != nil {
		m.out.Whole = m.start.Held.Common(m.ids) == min(len(m.start.Held.Seq)-1, m.start.Held.Handle.Tokens)
		m.state = returnTaking
		return []Action{Take{}}
	}
	return m.begin(ev.A == nil)
}

// prefix is what any next prompt begins with.
func (ev RenderedNext) prefix() []int32 {
	if ev.B == nil {
		return ev.A[:max(0, len(ev.A)-ev.Tail)]
	}
	return ev.A[:kvp.CommonPrefix(ev.A, ev.B)]
}

func (m *Return) taken(ev Taken) []Action {
	if !ev.OK {
		return m.end(ReturnOvertaken, TakenByAnother)
	}
	if ev.NoHandles != "" {
		free := Free{Handle: m.start.Held.Handle}
		m.start.Held = nil
		return append([]Action{free}, m.begin(m.ids == nil)...)
	}
	return m.begin(m.ids == nil)
}

// begin makes the P call. The handle, if there is one, is taken.
func (m *Return) begin(byMessages bool) []Action {
	m.state = returnWarming
	if m.start.Held == nil {
		return m.warm(byMessages, nil)
	}
	h := m.start.Held.Handle
	if byMessages || len(m.ids) < 2 || m.tooLong() {
		// Nothing can be proved of it, so D may have it back.
		return append([]Action{Free{Handle: h}}, m.warm(byMessages, nil)...)
	}
	var params []byte
	k, had := m.start.Held.Common(m.ids), m.had()
	if cut, err := m.cut(k); err != nil {
		params = h.Release().Raw()
	} else {
		params, m.reads = cut.Raw(), true
		if k-had >= max(m.start.Threshold, 1) {
			m.out.Pulled = k - had
		}
	}
	m.pull = true
	return m.warm(false, params)
}

func (m *Return) cut(k int) (kvp.Handle, error) {
	if k <= 0 {
		return kvp.Handle{}, kvp.ErrNotCuttable
	}
	return m.start.Held.Handle.Cut(k, m.start.BlockSize)
}

// had is how many tokens of the prompt P had before, in whole blocks: at most those of the turn's own
// prompt.
func (m *Return) had() int {
	n := m.start.PromptTokens
	if m.start.Held != nil {
		n = min(n, m.start.Held.Common(m.ids))
	}
	return wholeBlocks(min(n, len(m.ids)-1), m.start.BlockSize)
}

func (m *Return) tooLong() bool { return m.room() < 2 }

// room is how many tokens P may be asked for.
func (m *Return) room() int {
	if m.start.MaxLen == 0 {
		return warmTokens
	}
	return min(warmTokens, m.start.MaxLen-len(m.ids))
}

func (m *Return) warm(byMessages bool, params []byte) []Action {
	if !byMessages && (len(m.ids) < 2 || m.tooLong()) {
		return m.end(ReturnSkipped, TooLong)
	}
	w := Warm{IDs: m.ids, Params: params, MaxTokens: m.room(), Deadline: max(patienceUnknown, deadline(&m.start.Price, max(len(m.ids), m.start.NextTokens)))} // nobody waits for it
	if byMessages {
		w.IDs = nil
		return []Action{w}
	}
	m.late = false
	if params != nil {
		w.Deadline, m.late = within(m.start.Held, w.Deadline)
	}
	m.out.Tokens = len(m.ids)
	m.out.Computed = len(m.ids) - m.had() - m.out.Pulled
	return []Action{w}
}

func (m *Return) warmed(ev Warmed) []Action {
	switch {
	case ev.Status == 200:
		return m.end(ReturnDone, "")
	case ev.Late && m.reads && !m.late:
		return append([]Action{Distrust{Why: PullLate}}, m.end(ReturnFailed, PullLate)...)
	case m.pull && !ev.Late && !engineSaysNo(ev.Status):
		// The handle is spent. What it was for is computed instead, once.
		m.pull, m.reads, m.out.Pulled = false, false, 0
		return m.warm(false, nil)
	}
	switch {
	case ev.Late && m.pull:
		return m.end(ReturnFailed, PullLate)
	case ev.Late:
		return m.end(ReturnFailed, PrefillLate)
	}
	return m.end(ReturnFailed, PrefillFailed)
}

func (m *Return) end(s ReturnState, why Reason) []Action {
	m.state = returnDone
	m.out.State, m.out.Why = s, why
	if s != ReturnDone {
		m.out.Tokens, m.out.Pulled, m.out.Computed = 0, 0, 0
	}
	return []Action{m.out}
}
