package turn

import (
	"fmt"
	"time"

	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/price"
)

// Arm is where a turn's old tokens came from.
type Arm string

// The arms.
const (
	ArmLocal     Arm = "local"     // P's own prefix cache
	ArmPull      Arm = "pull"      // P read them from D
	ArmAppend    Arm = "append"    // D alone, from its own prefix cache
	ArmRecompute Arm = "recompute" // nobody had them
	ArmPlain     Arm = "plain"     // D alone, without any params
)

// Outcome is what a turn did, for its receipt.
type Outcome struct {
	Arm    Arm
	Why    Reason
	Prompt int // prompt tokens, 0 if unknown
	// Cached, Local and Pulled are prompt tokens that P did not compute, found itself and read
	// from D; nil if P did not say. Cached = Local + Pulled. P reports the sum only: Local is what
	// it was known to have had before, never more than the sum.
	Cached, Local, Pulled *int
}

type state int

const (
	idle     state = iota
	awaiting       // a return is preparing P
	rendering
	taking
	prefilling
	decoding // D is asked, nothing has come yet
	relaying
	done
)

var stateNames = [...]string{"idle", "awaiting", "rendering", "taking", "prefilling", "decoding", "relaying", "done"}

// Machine is one turn. The zero value is ready for Start.
type Machine struct {
	start Start
	state state
	form  Form
	gone  bool // the client has left

	ids   []int32 // rendered prompt
	k     int     // tokens of it that D holds
	out   Outcome
	sent  bool // params are with D: it will keep its blocks
	only  bool // D serves the turn alone
	short bool // the deadline is D's, and says nothing of P
	last  bool // D is asked without params: there is nothing left to try
}

// Outcome returns what the turn did so far.
func (m *Machine) Outcome() Outcome { return m.out }

// String shows state and decision in one line.
func (m *Machine) String() string {
	return fmt.Sprintf("%s arm=%s why=%s", stateNames[m.state], orDash(string(m.out.Arm)), orDash(string(m.out.Why)))
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Step takes one event and returns what to do now. It panics if the event does not fit what was
// asked for: that is a bug of the caller.
func (m *Machine) Step(ev Event) []Action {
	switch e := ev.(type) {
	case Start:
		m.expect(ev, idle)
		return m.begin(&e)
	case Awaited:
		m.expect(ev, awaiting)
		return m.awaited(e)
	case Rendered:
		m.expect(ev, rendering)
		return m.rendered(e)
	case Taken:
		m.expect(ev, taking)
		return m.taken(e)
	case PrefillDone:
		m.expect(ev, prefilling)
		return m.prefilled(e)
	case DecodeBegan:
		m.expect(ev, decoding)
		m.state = relaying
		if m.gone {
			return []Action{Cancel{}}
		}
		return []Action{Relay{}}
	case DecodeFailed:
		m.expect(ev, decoding)
		return m.decodeFailed(e)
	case DecodeDone:
		m.expect(ev, relaying)
		return m.decoded(e)
	case ClientGone:
		return m.clientGone()
	}
	panic(fmt.Sprintf("BUG: turn: unknown event %T", ev))
}

func (m *Machine) expect(ev Event, want state) {
	if m.state != want {
		panic(fmt.Sprintf("BUG: turn: %T while %s", ev, stateNames[m.state]))
	}
}

func (m *Machine) begin(s *Start) []Action {
	m.start = *s
	switch {
	case s.Plain != "":
		m.out = Outcome{Arm: ArmPlain, Why: s.Plain}
		return m.decode(Decode{})
	case s.Held != nil && !s.Guessed && (s.Arm == ArmLocal || s.Arm == ArmAppend):
		m.state = taking // to let go of it
		return []Action{Take{}}
	case s.Arm == ArmAppend:
		return m.alone(s.Without)
	case s.Held != nil && s.Arm == ArmLocal: // another's, by guess
		return m.prefillNull(Price)
	case s.NoHandles != "":
		return m.prefillNull(s.NoHandles)
	case s.Await > 0:
		m.state = awaiting
		return []Action{Await{Deadline: s.Await}}
	case s.Held == nil:
		return m.prefillNull(s.Without)
	case s.NoRender != "":
		return m.prefillNull(s.NoRender)
	}
	m.state = rendering
	return []Action{Render{}}
}

func (m *Machine) awaited(ev Awaited) []Action {
	switch {
	case m.gone:
		return m.end()
	case ev.OK:
		return m.prefillNull(ReturnReady)
	}
	return m.prefillNull(ReturnLate)
}

// alone leaves the turn to D alone.
func (m *Machine) alone(why Reason) []Action {
	m.out.Arm, m.out.Why, m.only = ArmAppend, why, true
	if m.start.AppendKeepsNone {
		return m.decode(Decode{Append: true})
	}
	m.sent = true
	return m.decode(Decode{Params: kvp.AppendForm, Append: true})
}

func (m *Machine) rendered(ev Rendered) []Action {
	if m.gone {
		return m.end()
	}
	if ev.IDs == nil {
		return m.prefillNull(CannotRender)
	}
	m.ids = ev.IDs
	m.k = m.start.Held.Common(ev.IDs)
	if m.start.Unverified {
		m.k = m.start.Held.Handle.Tokens
	}
	if m.start.Guessed && 2*m.k < m.start.Held.Handle.Tokens && !m.start.Unverified {
		return m.prefillNull(NoCommonPrefix) // it is left for the turn that it belongs to
	}
	m.state = taking
	return []Action{Take{}}
}

func (m *Machine) taken(ev Taken) []Action {
	h := m.start.Held.Handle
	var actions []Action
	if ev.OK && (m.gone || m.ids == nil || ev.NoHandles != "") {
		actions = append(actions, Free{Handle: h})
	}
	switch {
	case m.gone:
		return append(actions, m.end()...)
	case m.start.Arm == ArmAppend:
		return append(actions, m.alone(Price)...)
	case m.ids == nil:
		return append(actions, m.prefillNull(Price)...)
	case !ev.OK:
		return m.prefillNull(TakenByAnother)
	case ev.NoHandles != "":
		return append(actions, m.prefillNull(ev.NoHandles)...)
	}
	switch {
	case m.k <= 0:
		m.out.Why = NoCommonPrefix
	case m.k == h.Tokens:
		m.out.Why = Verified
		return m.prefill(Prefill{Form: FormPull, Params: h.Raw(), IDs: m.ids, Deadline: m.deadline()})
	default:
		cut, err := h.Cut(m.k, m.start.BlockSize)
		if err == nil {
			m.out.Why = Cut
			return m.prefill(Prefill{Form: FormPull, Params: cut.Raw(), IDs: m.ids, Deadline: m.deadline()})
		}
		m.out.Why = HandleNotCutable
	}
	return m.prefill(Prefill{Form: FormRelease, Params: h.Release().Raw(), IDs: m.ids, Deadline: m.deadline()})
}

// patience is the least time a P call with a handle is given: a first transfer between two engines
// takes a handshake, and a busy engine a step. While nothing is known of P's speed it is longer.
const (
	patience        = 2 * time.Second
	patienceUnknown = 10 * time.Second
)

func (m *Machine) deadline() time.Duration {
	var d time.Duration
	d, m.short = within(m.start.Held, deadline(&m.start.Price, len(m.ids)))
	return d
}

// within cuts a deadline down to what D allows for. short says that it did.
func within(h *kvp.Held, d time.Duration) (cut time.Duration, short bool) {
	if h.Within > 0 && h.Within < d {
		return h.Within, true
	}
	return d, false
}

// deadline is how long a P call with a handle may take, for a prompt of n tokens.
func deadline(p *price.Models, n int) time.Duration {
	least := patience
	if !p.Known().Recompute {
		least = patienceUnknown
	}
	return max(least, p.Recompute(n, 0).Bound())
}

func (m *Machine) prefillNull(why Reason) []Action {
	m.out.Why = why
	return m.prefill(Prefill{Form: FormNull, Params: kvp.NullForm, IDs: m.ids})
}

func (m *Machine) prefill(p Prefill) []Action {
	m.state, m.form = prefilling, p.Form
	return []Action{p}
}

func (m *Machine) prefilled(ev PrefillDone) []Action {
	if ev.Status == 200 {
		m.account(ev)
		if m.gone && ev.Params == nil {
			return m.end()
		}
		if ev.Params == nil {
			m.out.Arm, m.out.Why = ArmRecompute, PrefillKeptNone
			return m.decode(Decode{})
		}
		m.sent = true
		return m.decode(Decode{Params: ev.Params, IDs: m.ids, Brief: m.gone})
	}
	if m.gone {
		return m.end()
	}
	if m.form != FormNull {
		// The handle is spent, whatever happened to it. The same prompt without it cannot fail for
		// the same reason.
		if ev.Late && m.form == FormPull && !m.short {
			return append([]Action{Distrust{Why: PullLate}}, m.prefillNull(PullLate)...)
		}
		if ev.Late {
			return m.prefillNull(PullLate)
		}
		return m.prefillNull(PullFailed)
	}
	if engineSaysNo(ev.Status) {
		return append([]Action{PassOn{Leg: LegPrefill}}, m.end()...)
	}
	m.out.Arm, m.out.Why = ArmRecompute, PrefillFailed
	return m.decode(Decode{})
}

// account turns P's own count of reused tokens into tokens by source.
func (m *Machine) account(ev PrefillDone) {
	m.out.Prompt = ev.Prompt
	m.out.Arm = ArmLocal
	if ev.Cached == nil || *ev.Cached < 0 || *ev.Cached > ev.Prompt { // it does not say, or says nonsense
		if m.form == FormPull {
			m.out.Arm = ArmPull
		}
		return
	}
	cached := *ev.Cached
	local, pulled := cached, 0
	if m.form == FormPull {
		k := min(m.k, len(m.ids))
		had := wholeBlocks(min(m.k, m.start.Held.PromptTokens, len(m.ids)-1), m.start.BlockSize)
		switch {
		case cached == k && k > had:
			local, pulled = had, k-had
		case cached >= k:
			m.out.Why = PrefillHadIt
		default:
			m.out.Why = BelowThreshold
		}
	}
	m.out.Cached, m.out.Local, m.out.Pulled = &cached, &local, &pulled
	switch {
	case pulled > 0:
		m.out.Arm = ArmPull
	case cached == 0:
		m.out.Arm = ArmRecompute
	}
}

func wholeBlocks(tokens, blockSize int) int { return max(0, tokens) / blockSize * blockSize }

func (m *Machine) decode(d Decode) []Action {
	m.state = decoding
	m.last = d.Params == nil
	return []Action{d}
}

func (m *Machine) decodeFailed(ev DecodeFailed) []Action {
	switch {
	case m.gone:
		return m.end()
	case engineSaysNo(ev.Status):
		return append([]Action{PassOn{Leg: LegDecode}}, m.end()...)
	case !m.last:
		m.out.Why, m.sent = DecodeFailedOnce, false
		if m.only {
			m.out.Arm = ArmRecompute
		}
		return m.decode(Decode{})
	case ev.Status != 0:
		return append([]Action{PassOn{Leg: LegDecode}}, m.end()...)
	}
	return append([]Action{Refuse{Leg: LegDecode}}, m.end()...)
}

// engineSaysNo reports whether an answer is the engine's own word on this request or on its load,
// which asking again would not change.
func engineSaysNo(status int) bool { return status >= 400 && status < 500 || status == 503 }

func (m *Machine) decoded(ev DecodeDone) []Action {
	var actions []Action
	keep := m.keep(ev)
	if ev.Handle != nil && keep.Handle == nil {
		actions = append(actions, Free{Handle: *ev.Handle})
	}
	if m.start.Plain == "" {
		actions = append(actions, keep)
	}
	return append(actions, m.end()...)
}

// keep decides whether D's handle can be of use: only if the reply is complete, and it is known, by
// token ids, what D holds.
func (m *Machine) keep(ev DecodeDone) Keep {
	prompt := ev.Prompt
	if len(prompt) == 0 {
		prompt = m.ids
	}
	keep := Keep{Complete: ev.Clean && !m.gone}
	if ev.Handle == nil || !keep.Complete || m.start.Plain != "" || !m.sent || len(prompt) == 0 || len(ev.Output) == 0 {
		return keep
	}
	seq := make([]int32, 0, len(prompt)+len(ev.Output))
	seq = append(append(seq, prompt...), ev.Output...)
	h, err := ev.Handle.Clamp(len(seq), m.start.BlockSize)
	if err != nil {
		return keep
	}
	keep.Handle, keep.Seq, keep.PromptTokens = &h, seq, len(prompt)
	return keep
}

func (m *Machine) clientGone() []Action {
	if m.gone || m.state == done {
		return nil
	}
	m.gone = true
	m.out.Why = ClientLeft
	switch m.state {
	case awaiting, rendering, prefilling, relaying:
		return []Action{Cancel{}}
	case decoding:
		if m.last || m.only {
			return []Action{Cancel{}}
		}
		return []Action{Linger{}}
	}
	return nil
}

func (m *Machine) end() []Action {
	m.state = done
	return []Action{Done{}}
}
