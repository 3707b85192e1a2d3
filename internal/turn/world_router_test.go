package turn

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tarik-kv/tarik/internal/conv"
	"github.com/tarik-kv/tarik/internal/kvp"
)

// chooser makes the choices of a world: a seeded generator, or rapid. 0 is what usually happens.
type chooser interface{ n(k int) int }

// world is a router in small, with many turns and returns in progress, its clients and its two
// engines. Time passes only when the world says so, and what is asked for ends in any order.
type world struct {
	ch  chooser
	mut mutation
	now time.Duration
	p   *prefiller
	d   *decoder

	store     *conv.Memory
	trust     Reason // why P is given no handles, "" if it is
	knownLife int    // of D, as far as the router has heard
	handles   map[string]*known
	freeing   []string // request ids that D is to let go of

	talks []*talk
	runs  []*run // in progress
	made  int

	only  string // the one invariant to look at, "" for all
	trail [30]step
	steps int
	wrong string // the first thing that must not happen
	seen  map[string]int
}

// known is what the test knows of a handle that D has returned.
type known struct {
	tenant int
	life   int
	until  time.Duration
	raw    []byte
	ids    []int32 // prompt and reply
	owner  *run    // who took it; nil: it is in the store
	fresh  *run    // whose reply carries it, before Keep or Free
}

// talk is a conversation with a client that does as it likes.
type talk struct {
	tenant int
	name   string
	leaves [][]message // histories to go on from
}

type message struct {
	role   int32
	tokens []int32
}

// Marks of the chat template.
const (
	markEnd int32 = 900 + iota
	markSystem
	markUser
	markAssistant
	markThink
)

func render(messages []message) []int32 {
	var ids []int32
	for _, m := range messages {
		ids = append(append(append(ids, m.role), m.tokens...), markEnd)
	}
	return ids
}

// prompt ends with what makes the model answer.
func prompt(messages []message) []int32 { return append(render(messages), markAssistant) }

func (t *talk) chain(shared bool, messages []message) []conv.Key {
	tenant := t.tenant
	if shared {
		tenant = 0
	}
	at, keys := salted(tenant), make([]conv.Key, len(messages))
	for i, m := range messages {
		at = at.follow(m.role)
		for _, id := range m.tokens {
			at = at.follow(id)
		}
		at = at.follow(markEnd)
		binary.LittleEndian.PutUint64(keys[i][:], uint64(at))
	}
	return keys
}

func (t *talk) id(shared bool) (key conv.Key) {
	tenant := t.tenant
	if shared {
		tenant = 0
	}
	copy(key[:], fmt.Sprintf("%d/%s", tenant, t.name))
	return key
}

// run is one Machine or one Return in progress.
type run struct {
	number  int
	machine Machine
	back    *Return // instead of machine
	talk    *talk
	said    []message
	ids     []int32 // the prompt, as the engines would render it
	chain   []conv.Key
	id      conv.Key
	prev    conv.Turn // whose handle it may take
	held    *kvp.Held
	key     conv.Key // return: of the turn it follows
	reply   []int32  // return: of that turn, as the client will send it
	trusted bool     // P was, when the handle was taken
	awaits  *run

	leg      Action // in progress, nil: none
	since    time.Duration
	canceled bool
	gone     bool
	over     bool
	hangs    bool
	took     string   // request id of the handle that it took
	settled  bool     // that handle went to P or was freed
	given    [][]byte // params that P was sent
	params   []byte   // that P returned last
	passed   bool     // return: the next turn came before it asked for the handle
	unread   bool     // D has not been given them
	late     bool     // a P call with a handle was
	output   []int32
	answers  int // Relay, PassOn, Refuse
}

func (r *run) String() string {
	if r.back != nil {
		return fmt.Sprintf("return %d", r.number)
	}
	return fmt.Sprintf("turn %d", r.number)
}

func newWorld(ch chooser, mut mutation) *world {
	w := &world{
		ch: ch, mut: mut, p: newPrefiller(), d: newDecoder(), knownLife: 1, handles: map[string]*known{}, seen: map[string]int{},
		store: conv.NewMemory(conv.Limits{Turns: 60, Bytes: 1 << 20, Tokens: 900}),
	}
	w.p.least = 3 * ch.n(2) // tokens
	for i := range 5 {
		w.talks = append(w.talks, &talk{tenant: i % 2, name: fmt.Sprint("talk", i/4), leaves: [][]message{nil}})
	}
	return w
}

// fail notes what must not happen. The first one counts.
func (w *world) fail(invariant, format string, args ...any) {
	if w.wrong == "" && (w.only == "" || w.only == invariant) {
		w.wrong = invariant + ": " + fmt.Sprintf(format, args...)
	}
}

// began is run r's present leg.
func (w *world) began(r *run, a Action) {
	if r.leg != nil {
		w.fail("order", "%v: %T asked for while %T is in progress", r, a, r.leg)
	}
	r.leg, r.since, r.canceled, r.hangs = a, w.now, false, false
}

// tell gives an event to a run and carries out what it says.
func (w *world) tell(r *run, ev Event) {
	var actions []Action
	func() {
		defer func() {
			if v := recover(); v != nil {
				w.fail("panic", "%v: %v", r, v)
			}
		}()
		if r.back != nil {
			actions = r.back.Step(ev)
		} else {
			actions = r.machine.Step(ev)
		}
	}()
	w.trail[w.steps%len(w.trail)] = step{r, ev, actions}
	w.steps++
	for i, a := range actions {
		if r.over {
			w.fail("order", "%v: %T after its end", r, a)
		}
		w.do(r, a, i == len(actions)-1)
	}
	if done, ok := ev.(DecodeDone); ok && done.Handle != nil {
		if h := w.handles[done.Handle.RequestID]; h != nil && h.fresh == r {
			w.fail("lost", "%v: the handle that D returned is neither kept nor freed", r)
		}
	}
	if w.wrong == "" && r.leg == nil && !r.over {
		w.fail("stuck", "%v: nothing is in progress after %T", r, ev)
	}
}

func (w *world) do(r *run, a Action, last bool) {
	switch a.(type) {
	case Prefill, Decode, Relay:
		if r.answers > 0 {
			w.fail("order", "%v: %T after its answer to the client", r, a)
		}
	}
	switch a := a.(type) {
	case Render, Take, Relay, RenderNext:
		w.began(r, a)
		if _, ok := a.(Take); ok && r.passed {
			w.fail("order", "%v: takes the handle of the turn that has overtaken it", r)
		}
		if _, ok := a.(Relay); ok {
			r.answers++
		}
	case Await:
		w.began(r, a)
		w.bounded(r, a.Deadline, len(r.ids))
	case Prefill:
		if w.mut == deadlineOff {
			a.Deadline *= 100
		}
		a.Params = w.tamper(r, a)
		if a.Form == FormNull != (a.Deadline == 0) {
			w.fail("I6", "%v: a P call of form %s has a deadline of %s", r, a.Form, a.Deadline)
		}
		if a.Form != FormNull {
			w.bounded(r, a.Deadline, len(r.ids))
		}
		if a.IDs != nil && !slices.Equal(a.IDs, r.ids) {
			w.fail("I1", "%v: P is given another prompt", r)
		}
		w.checkParams(r, a.Params, a.IDs != nil)
		if w.handled(a.Params) != (a.Form != FormNull) {
			w.fail("I7", "%v: params do not fit the form %s", r, a.Form)
		}
		r.given = append(r.given, a.Params)
		w.began(r, a)
	case Warm:
		if a.Deadline == 0 {
			w.fail("I6", "%v: a P call of a return without a deadline", r)
		}
		if a.MaxTokens < 2 {
			w.fail("return", "%v: P is asked for %d tokens, so that it ends before it can be left", r, a.MaxTokens)
		}
		w.bounded(r, a.Deadline, len(a.IDs))
		if a.IDs != nil && !slices.Equal(a.IDs, r.ids) {
			w.fail("I1", "%v: P is prepared for another prompt", r)
		}
		if a.Params != nil {
			w.checkParams(r, a.Params, a.IDs != nil)
			r.given = append(r.given, a.Params)
		}
		w.began(r, a)
	case Decode:
		w.checkDecode(r, &a)
		w.began(r, a)
	case PassOn:
		r.answers++
	case Refuse:
		r.answers++
	case Cancel:
		if r.leg == nil {
			w.fail("order", "%v: cancels nothing", r)
		}
		r.canceled = true
	case Linger:
		if d, ok := r.leg.(Decode); !ok || d.Params == nil {
			w.fail("order", "%v: lingers at %T", r, r.leg)
		}
	case Distrust:
		if !r.late {
			w.fail("I7", "%v: distrusts a P that was in time", r)
		}
		w.trust = PrefillDistrust
		w.seen["distrust"]++
	case Keep:
		w.keep(r, a)
	case Free:
		if w.mut == freeForgotten {
			return
		}
		w.freed(r, a.Handle.RequestID)
	case Done:
		w.ended(r, last)
	case Returned:
		w.returned(r, a)
		w.ended(r, last)
	default:
		w.fail("order", "unknown action %T", a)
	}
}

// bounded checks that using what D holds takes no longer than doing without would.
func (w *world) bounded(r *run, deadline time.Duration, n int) {
	_, bound := priced(r.number%2 == 0)
	most := bound(n)
	if r.back != nil { // nobody waits for it
		most = max(most, patienceUnknown)
	}
	if deadline <= 0 || deadline > most {
		w.fail("I6", "%v: waits %s for %d tokens, computing them is bounded by %s", r, deadline, n, most)
	}
}

func (w *world) handled(raw []byte) bool {
	p, err := readParams(raw)
	return err == nil && p.handle()
}

// checkParams checks what P is about to be sent, by what the test knows of the handle.
func (w *world) checkParams(r *run, raw []byte, exact bool) {
	if bytes.Equal(raw, kvp.NullForm) {
		return
	}
	p, err := readParams(raw)
	switch {
	case err != nil || p.Decode == nil || p.Prefill == nil || !*p.Decode || *p.Prefill:
		w.fail("I7", "%v: P is sent params of a shape that is not for it", r)
		return
	case !p.handle() || slices.ContainsFunc(p.Blocks, func(g []int) bool { return len(g) == 0 }):
		w.fail("I7", "%v: P is sent a handle without blocks", r)
		return
	}
	id := *p.Request
	h := w.handles[id]
	switch {
	case h == nil || r.settled && r.took == id:
		w.fail("I2", "%v: P is sent a handle that was used before", r)
		return
	case h.owner != r:
		w.fail("I2", "%v: P is sent a handle that %v has taken", r, h.owner)
		return
	case h.tenant != r.talk.tenant:
		w.fail("I4", "%v: P is sent the handle of another tenant", r)
	}
	original, _ := readParams(h.raw)
	switch k := p.tokens; {
	case k == 0:
		w.seen["release"]++
	case !r.trusted:
		w.fail("I7", "%v: a P that has not proved itself is given a handle", r)
	case !exact:
		w.fail("I3", "%v: a pull without the exact prompt", r)
	default:
		w.seen["pull"]++
		ids := r.ids
		switch {
		case k > len(h.ids)-1:
			w.fail("I3", "%v: %d tokens of %d that are known", r, k, len(h.ids))
		case k > len(ids) || !slices.Equal(ids[:k], h.ids[:k]):
			w.fail("I3", "%v: the prompt does not begin with the %d tokens that are pulled", r, k)
		case len(original.Blocks) > 1 && (k != original.tokens || len(p.Blocks) != len(original.Blocks)):
			w.fail("I3", "%v: blocks in groups are cut", r)
		case len(p.Blocks) == 1 && len(p.Blocks[0]) != (k+pageSize-1)/pageSize:
			w.fail("I3", "%v: %d tokens in %d blocks", r, k, len(p.Blocks[0]))
		case k < original.tokens:
			w.seen["cut"]++
		}
	}
	w.settle(r, id)
}

// settle ends a handle's life: it is with P, or to be freed.
func (w *world) settle(r *run, id string) {
	delete(w.handles, id)
	if r != nil && r.took == id {
		r.settled = true
	}
	if w.mut == putBack && r != nil && r.held != nil && w.ch.n(2) == 1 {
		w.put(r.chain, r.id, r.prev, r.held)
	}
}

func (w *world) freed(r *run, id string) {
	h := w.handles[id]
	if h == nil || h.owner != r && h.fresh != r {
		w.fail("I2", "%v: frees a handle that is not its own", r)
		return
	}
	w.seen["free"]++
	w.settle(r, id)
	w.freeing = append(w.freeing, id)
}

func (w *world) checkDecode(r *run, a *Decode) {
	if w.mut == inputToDecode && a.Params == nil && len(r.given) > 0 {
		a.Params = r.given[len(r.given)-1]
	}
	switch {
	case a.Params == nil:
	case a.Append != bytes.Equal(a.Params, kvp.AppendForm):
		w.fail("I7", "%v: an append without its form, or the form without append", r)
	case a.Append && len(r.given) > 0:
		w.fail("I7", "%v: an append of a prompt that P was sent", r)
	case slices.ContainsFunc(r.given, func(g []byte) bool { return bytes.Equal(g, a.Params) }):
		w.fail("I7", "%v: D is sent what P was sent", r)
	case !a.Append && !bytes.Equal(a.Params, r.params):
		w.fail("I7", "%v: D is sent what P did not return", r)
	case !a.Append:
		r.params, r.unread = nil, false // one reader
	}
	if a.IDs != nil && !slices.Equal(a.IDs, r.ids) {
		w.fail("I1", "%v: D is given another prompt", r)
	}
	if a.Brief && !r.gone {
		w.fail("order", "%v: a reply of one token for a client that waits", r)
	}
}

func (w *world) ended(r *run, last bool) {
	r.over = true
	w.seen["ended"]++
	switch {
	case !last:
		w.fail("order", "%v: its end is not the last action", r)
	case r.leg != nil:
		w.fail("order", "%v: ends while %T is in progress", r, r.leg)
	case r.unread:
		w.fail("lost", "%v: P keeps blocks that nobody reads", r)
	case r.took != "" && !r.settled:
		w.fail("lost", "%v: took a handle that neither went to P nor was freed", r)
	case r.back == nil && r.answers != 1 && !(r.gone && r.answers == 0):
		w.fail("order", "%v: %d answers to the client", r, r.answers)
	}
	if r.back == nil {
		w.accounted(r)
	}
	if i := slices.Index(w.runs, r); i >= 0 {
		w.runs = slices.Delete(w.runs, i, i+1)
	}
}

// accounted checks what goes into the receipt.
func (w *world) accounted(r *run) {
	o := r.machine.Outcome()
	w.seen["arm "+string(o.Arm)]++
	w.seen["why "+string(o.Why)]++
	if o.Cached == nil {
		return
	}
	if *o.Local < 0 || *o.Pulled < 0 || *o.Local+*o.Pulled != *o.Cached || *o.Cached > o.Prompt {
		w.fail("receipt", "%v: %d local, %d pulled, %d cached of %d", r, *o.Local, *o.Pulled, *o.Cached, o.Prompt)
	}
}

func (w *world) returned(r *run, a Returned) {
	w.seen["return "+string(a.State)]++
	if a.State == ReturnDone && a.Pulled > 0 {
		w.seen["return pulled"]++
	}
	if a.Tokens < 0 || a.Pulled < 0 || a.Computed < 0 || a.Pulled+a.Computed > a.Tokens {
		w.fail("receipt", "%v: %+v", r, a)
	}
	if a.State != ReturnDone && a.State != ReturnSkipped && a.State != ReturnOvertaken && a.State != ReturnFailed {
		w.fail("order", "%v: ends as %q", r, a.State)
	}
}

// keep stores a turn, and begins what follows it.
func (w *world) keep(r *run, a Keep) {
	var held *kvp.Held
	if a.Handle != nil {
		id := a.Handle.RequestID
		h := w.handles[id]
		if h == nil || h.fresh != r {
			w.fail("I2", "%v: keeps a handle that D did not return to it", r)
			return
		}
		h.fresh = nil
		handle := *a.Handle
		if w.mut == clampSkipped {
			handle, _ = kvp.ParseHandle(h.raw)
		}
		held = &kvp.Held{Handle: handle, Seq: a.Seq, PromptTokens: a.PromptTokens, Until: h.until - margin}
		w.seen["kept"]++
	}
	turn := w.put(r.chain, r.id, conv.Successor(r.prev, fmt.Sprint(r.number)), held)
	if !a.Complete {
		w.said(r, r.output[:w.ch.n(len(r.output)+1)])
		return
	}
	reply := w.said(r, r.output)
	if w.ch.n(4) == 0 {
		return // nothing follows
	}
	w.goBack(r, turn, held, reply)
}

// put stores a turn and lets go of what has no room.
func (w *world) put(chain []conv.Key, id conv.Key, t conv.Turn, held *kvp.Held) conv.Turn {
	stored, lost := w.store.Put(chain, id, t, held)
	w.letGo(lost)
	return stored
}

func (w *world) letGo(lost []*kvp.Held) {
	for _, l := range lost {
		id := l.Handle.RequestID
		if h := w.handles[id]; h == nil || h.owner != nil {
			w.fail("I2", "the store lets go of a handle that is not in it")
		}
		delete(w.handles, id)
		w.freeing = append(w.freeing, id)
	}
}

// said is what the client has and will send of a reply; it is a history to go on from.
func (w *world) said(r *run, output []int32) []int32 {
	reply := slices.Clone(output)
	if n := len(reply); n > 0 && reply[n-1] == markEnd {
		reply = reply[:n-1]
	}
	switch w.ch.n(4) {
	case 1: // the client drops what the model thought
		if i := slices.Index(reply, markThink); i >= 0 {
			reply = reply[i+1:]
		}
	case 2: // text is not cut into the tokens that were generated
		if n := len(reply); n > 1 {
			reply = append(reply[:n-2], reply[n-2]+reply[n-1])
		}
	}
	leaf := append(slices.Clone(r.said), message{markAssistant, reply})
	if len(r.talk.leaves) > 3 {
		r.talk.leaves = slices.Delete(r.talk.leaves, 0, 1)
	}
	r.talk.leaves = append(r.talk.leaves, leaf)
	return reply
}

// goBack begins the return that follows a turn.
func (w *world) goBack(r *run, turn conv.Turn, held *kvp.Held, reply []int32) {
	back := &run{
		number: w.number(), back: &Return{}, talk: r.talk, said: r.said, chain: r.chain, id: r.id,
		prev: turn, key: turn.Key(), reply: reply, trusted: w.trust == "",
	}
	if w.ch.n(5) > 0 {
		back.held = held
	}
	s := ReturnStart{Held: back.held, BlockSize: pageSize}
	s.Price, _ = priced(back.number%2 == 0)
	if w.ch.n(4) < 3 {
		s.PromptTokens = len(r.ids)
	}
	if w.ch.n(6) == 5 {
		s.MaxLen = len(r.ids)
	}
	if w.ch.n(6) == 5 && held != nil {
		held.Within = time.Second // as of an engine that tells no expiry
	}
	s.NoHandles, s.Threshold, s.GoesOn = w.trust, 16, w.ch.n(3) == 0
	if s.GoesOn && s.Held != nil && s.NoHandles == "" {
		back.ids = s.Held.Seq
		w.seen["return without rendering"]++
	}
	w.runs = append(w.runs, back)
	w.seen["return"]++
	w.tell(back, s)
}

func (w *world) number() int {
	w.made++
	return w.made
}

// tamper is where a mutation changes what P is sent.
func (w *world) tamper(r *run, a Prefill) []byte {
	if w.mut == handleAgain && a.Form == FormNull && len(r.given) > 0 {
		return r.given[0]
	}
	p, err := readParams(a.Params)
	if err != nil || !p.handle() || a.Form != FormPull {
		return a.Params
	}
	original := r.held.Handle
	switch w.mut {
	case cutNumberOnly:
		return bytes.Replace(original.Raw(), fmt.Appendf(nil, `"remote_num_tokens":%d`, original.Tokens), fmt.Appendf(nil, `"remote_num_tokens":%d`, p.tokens), 1)
	case cutListOnly:
		return bytes.Replace(a.Params, fmt.Appendf(nil, `"remote_num_tokens":%d`, p.tokens), fmt.Appendf(nil, `"remote_num_tokens":%d`, original.Tokens), 1)
	case flagsNotFlipped:
		return []byte(strings.NewReplacer(`"do_remote_prefill":false`, `"do_remote_prefill":true`, `"do_remote_decode":true`, `"do_remote_decode":false`).Replace(string(a.Params)))
	}
	return a.Params
}
