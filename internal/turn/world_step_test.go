package turn

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tarik-kv/tarik/internal/kvp"
)

const (
	// ttl is how long D keeps what nobody reads.
	ttl = 60 * time.Second
	// margin is how much earlier the router gives a handle up: longer than rendering and a P call with a
	// handle may take together.
	margin         = 25 * time.Second
	renderPatience = 5 * time.Second
	mostTurns      = 6   // in progress
	longestTalk    = 130 // tokens
)

// step is one event and what came of it.
type step struct {
	run     *run
	event   Event
	actions []Action
}

// next makes one thing happen.
func (w *world) next() {
	turns := 0
	for _, r := range w.runs {
		if r.back == nil {
			turns++
		}
	}
	switch c := w.ch.n(40); {
	case c < 8 && turns < mostTurns:
		w.turn(w.talks[w.ch.n(len(w.talks))])
	case c < 32:
		if len(w.runs) > 0 {
			w.finish(w.runs[w.ch.n(len(w.runs))])
		}
	case c == 32:
		if len(w.runs) > 0 {
			w.leave(w.runs[w.ch.n(len(w.runs))])
		}
	case c == 33:
		w.pass(time.Duration(1+w.ch.n(1000)) * time.Millisecond)
	case c == 34:
		w.rare()
	case c < 37:
		if w.trust != "" && w.p.flag {
			w.trust = ""
		}
	case c < 39:
		if n := len(w.freeing); n > 0 {
			i := w.ch.n(n)
			w.d.notify(w.freeing[i])
			w.freeing = slices.Delete(w.freeing, i, i+1)
		}
	default:
		w.p.evict(w.ch.n(40))
	}
}

// rare things.
func (w *world) rare() {
	switch w.ch.n(9) {
	case 0:
		w.pass(ttl + time.Second)
	case 1:
		w.pass(time.Duration(w.ch.n(40)) * time.Second)
	case 2:
		w.d.restart()
	case 3: // the router has heard of it
		if w.knownLife != w.d.life {
			w.store.Void(engineID(w.knownLife))
			w.forget(func(h *known) bool { return h.life == w.knownLife })
			w.knownLife = w.d.life
		}
	case 4: // P is another one, and needs to prove itself
		w.p.evict(len(w.p.order))
		w.p.flag = w.ch.n(3) < 2
		if w.ch.n(3) > 0 { // else the router has not heard
			w.trust = PrefillUnproven
		}
	case 5, 6:
		w.store.Expire(w.now)
		w.forget(func(h *known) bool { return h.until-margin <= w.now })
	case 7:
		w.letGo(w.store.Shed(w.ch.n(600)))
	case 8:
		w.letGo(w.store.Bound(300 + w.ch.n(1200)))
	}
}

// forget drops what the store has dropped without a word: D lets go of it by itself.
func (w *world) forget(gone func(*known) bool) {
	for id, h := range w.handles {
		if h.owner == nil && h.fresh == nil && gone(h) {
			delete(w.handles, id)
		}
	}
}

// pass lets time pass. What has a deadline in between ends by it, before D's own time is over.
func (w *world) pass(d time.Duration) {
	until := w.now + d
	for _, r := range slices.Clone(w.runs) {
		if _, ok := r.leg.(Take); ok { // it takes no time
			w.finish(r)
		}
	}
	for _, r := range slices.Clone(w.runs) {
		if at := r.deadline(); !r.over && at > 0 && at <= until {
			w.now = max(w.now, at)
			w.d.expire(w.now)
			w.late(r)
		}
	}
	w.now = until
	w.d.expire(w.now)
}

// deadline is when r's leg ends by itself, 0 for never.
func (r *run) deadline() time.Duration {
	var d time.Duration
	switch a := r.leg.(type) {
	case Render, RenderNext:
		d = renderPatience
	case Await:
		d = a.Deadline
	case Prefill:
		d = a.Deadline
	case Warm:
		d = a.Deadline
	}
	if d == 0 {
		return 0
	}
	return r.since + d
}

// reads reports whether P may read by these params.
func (w *world) reads(params []byte) bool {
	p, err := readParams(params)
	return err == nil && p.handle() && p.tokens > 0
}

// late ends a leg at its deadline.
func (w *world) late(r *run) {
	switch a := w.end(r).(type) {
	case Render:
		w.tell(r, Rendered{})
	case RenderNext:
		w.tell(r, RenderedNext{})
	case Await:
		w.seen["awaited in vain"]++
		w.tell(r, Awaited{})
	case Prefill:
		r.late = w.reads(a.Params) && a.Deadline > time.Second // less is D's limit, and says nothing of P
		w.tell(r, PrefillDone{Late: true})
	case Warm:
		r.late = w.reads(a.Params) && a.Deadline > time.Second
		w.tell(r, Warmed{Late: true})
	default:
		w.fail("world", "%T has no deadline", a)
	}
	if r.late && !r.gone && w.trust == "" {
		w.fail("I7", "%v: P was late with a handle, and gets more of them", r)
	}
}

// end takes the leg off a run.
func (w *world) end(r *run) Action {
	a := r.leg
	r.leg = nil
	return a
}

// leave is a client that does not wait any more.
func (w *world) leave(r *run) {
	if r.back != nil || r.gone {
		return
	}
	r.gone = true
	w.seen["client gone"]++
	w.tell(r, ClientGone{})
}

// turn is a client that says something.
func (w *world) turn(t *talk) {
	said := w.compose(t)
	r := &run{number: w.number(), talk: t, said: said, ids: prompt(said), trusted: w.trust == ""}
	shared := w.mut == tenantsMeet
	r.chain = t.chain(shared, said)
	if w.ch.n(3) > 0 {
		r.id = t.id(shared)
	}
	s := Start{BlockSize: pageSize, Without: FirstTurn, Unverified: w.mut == unverified}
	s.Price, _ = priced(r.number%2 == 0)
	if w.ch.n(12) == 11 {
		s.Plain = SeveralReplies
	}
	prev, held, found := w.store.Find(r.chain, r.id)
	r.prev = prev
	if found {
		s.Held, s.Without, s.Guessed = held, NoHandle, prev.ByName
	}
	switch {
	case held != nil && held.Until <= w.now && w.mut != clockIgnored:
		s.Held, s.Without = nil, HandleExpired
	case held != nil && held.Handle.EngineID != engineID(w.knownLife):
		s.Held, s.Without = nil, EngineRestarted
	}
	r.held = s.Held
	if w.mut != trustIgnored {
		s.NoHandles = w.trust
	}
	s.Arm = []Arm{"", "", ArmPull, ArmLocal, ArmAppend}[w.ch.n(5)]
	if w.ch.n(10) == 9 {
		s.NoRender = CannotRender
	}
	w.overtake(r, &s, found)
	w.runs = append(w.runs, r)
	w.seen["turn"]++
	if s.Guessed && s.Held != nil {
		w.seen["guessed"]++
	}
	w.tell(r, s)
}

// overtake sees to the returns that prepare P for r.
func (w *world) overtake(r *run, s *Start, found bool) {
	if !found {
		return
	}
	for _, back := range slices.Clone(w.runs) {
		if back.back == nil || back.key != r.prev.Key() {
			continue
		}
		if _, ok := back.leg.(RenderNext); !ok && !back.back.Warming() {
			w.tell(back, Overtaken{}) // it has asked for the handle already
			continue
		}
		if back.back.Warming() {
			if s.Held == nil {
				_, bound := priced(r.number%2 == 0)
				s.Await, r.awaits = max(1, bound(len(r.ids))/time.Duration(1+w.ch.n(4))), back
			}
			continue
		}
		back.passed = true
		w.tell(back, Overtaken{})
	}
}

// compose is what a client says: it goes on from one of its histories, says the same again or changes
// what was said.
func (w *world) compose(t *talk) []message {
	said := slices.Clone(t.leaves[len(t.leaves)-1-w.ch.n(len(t.leaves))])
	if len(prompt(said)) > longestTalk {
		t.leaves = [][]message{nil}
		said = nil
	}
	how := w.ch.n(8)
	switch {
	case len(said) == 0:
		said = append(said, message{markSystem, w.text(2, 12)})
	case how == 5: // again
		return said[:len(said)-1]
	case how == 6: // another beginning, under the same name
		said = []message{{markSystem, []int32{800, 801}}}
	case how == 7: // something is changed
		i := w.ch.n(len(said))
		tokens := slices.Clone(said[i].tokens)
		if len(tokens) > 0 {
			tokens[w.ch.n(len(tokens))] = int32(w.ch.n(30))
		}
		said[i].tokens = tokens
	}
	return append(said, message{markUser, w.text(3, 10)})
}

// text is one of a few texts, so that strangers say the same now and then.
func (w *world) text(kinds, most int) []int32 {
	kind := w.ch.n(kinds)
	ids := make([]int32, 1+(kind*5+3)%most)
	for i := range ids {
		ids[i] = int32((kind*7 + i) % 30)
	}
	return ids
}

// finish ends the leg that a run has in progress, in one of the ways that it can end.
func (w *world) finish(r *run) {
	if r.hangs {
		if r.canceled {
			w.end(r)
			w.tell(r, PrefillDone{})
		}
		return
	}
	switch a := r.leg.(type) {
	case Render:
		w.end(r)
		if r.canceled && w.ch.n(2) == 0 || w.ch.n(12) == 11 {
			w.tell(r, Rendered{})
			return
		}
		w.tell(r, Rendered{IDs: r.ids})
	case Take:
		w.end(r)
		r.trusted = w.trust == ""
		ev := Taken{OK: w.take(r), NoHandles: w.trust}
		if w.mut == trustIgnored {
			ev.NoHandles = ""
		}
		w.tell(r, ev)
	case Await:
		if !r.canceled && !r.awaits.over {
			return
		}
		w.end(r)
		if r.awaits.over {
			w.seen["awaited"]++
		}
		w.tell(r, Awaited{OK: r.awaits.over && r.awaits.back.out.State == ReturnDone})
	case Prefill:
		w.prefill(r, a)
	case Decode:
		w.decodeBegins(r, a)
	case Relay:
		w.decodeEnds(r)
	case RenderNext:
		w.renderNext(r)
	case Warm:
		w.warm(r, a)
	}
}

func (w *world) take(r *run) bool {
	ok := w.store.Take(r.prev, r.held)
	if w.mut == takeSaysYes {
		ok = true
	}
	if !ok {
		return false
	}
	r.took = r.held.Handle.RequestID
	h := w.handles[r.took]
	if h != nil && h.owner != nil {
		w.fail("I2", "%v: takes a handle that %v has taken", r, h.owner)
	}
	if h != nil {
		h.owner = r
	}
	return true
}

// prefill ends a P call of a turn.
func (w *world) prefill(r *run, a Prefill) {
	fate := w.ch.n(20)
	var out computed
	if fate < 15 { // P gets to it
		var wrong string
		if out, wrong = w.compute(r.talk.tenant, r.ids, a.Params); wrong != "" {
			w.fail("I1", "%v: %s", r, wrong)
		}
		if out.hangs {
			w.seen["hangs"]++
			r.hangs = true
			if a.Deadline == 0 {
				w.fail("I7", "%v: P hangs, and nothing ends it", r)
			}
			return
		}
	}
	ev := PrefillDone{Status: 200}
	switch {
	case out.failed, fate == 14, fate == 15:
		ev.Status = 500
	case fate == 16:
		ev.Status = 503
	case fate == 17:
		ev.Status = 400
	case fate > 17, r.canceled && w.ch.n(3) > 0:
		ev.Status = 0
	default:
		cached := out.local + out.pulled
		if w.ch.n(8) < 7 {
			ev.Cached, ev.Prompt = &cached, len(r.ids)
		}
		if w.ch.n(16) < 15 {
			r.params = fmt.Appendf(nil, `{"do_remote_prefill":true,"do_remote_decode":false,"remote_request_id":"p-%d"}`, r.number)
			ev.Params = r.params
		}
	}
	if a.Deadline > 0 && w.ch.n(20) == 19 { // P is busy
		w.pass(max(r.since+a.Deadline-w.now, 0))
		return
	}
	w.end(r)
	r.unread = ev.Params != nil
	w.tell(r, ev)
}

func (w *world) decodeBegins(r *run, a Decode) {
	w.end(r)
	fate := w.ch.n(16)
	switch {
	case r.canceled, fate == 12:
		w.tell(r, DecodeFailed{})
	case fate == 13:
		w.tell(r, DecodeFailed{Status: 500})
	case fate == 14:
		w.tell(r, DecodeFailed{Status: 503})
	case fate == 15:
		w.tell(r, DecodeFailed{Status: 400})
	default:
		if r.gone {
			r.leg = Relay{} // which nobody gets
		}
		r.params = a.Params // what D has
		w.tell(r, DecodeBegan{})
	}
}

// decodeEnds ends D's reply.
func (w *world) decodeEnds(r *run) {
	w.end(r)
	fate := w.ch.n(10)
	output := slices.Clone(w.text(6, 9))
	output = append(output, int32(w.ch.n(30)), int32(w.ch.n(30)))
	if w.ch.n(3) == 0 {
		output = append([]int32{3, 5, markThink}, output...)
	}
	eos := w.ch.n(3) < 2
	if eos {
		output = append(output, markEnd)
	}
	r.output = output
	if fate == 9 || r.canceled && w.ch.n(2) == 0 {
		w.tell(r, DecodeDone{})
		return
	}
	ev := DecodeDone{Clean: true, Output: output}
	if w.ch.n(10) < 9 {
		ev.Prompt = r.ids
	} else if w.ch.n(2) == 0 {
		ev.Output = nil
	}
	if r.params != nil && fate < 8 { // not ended by a stop string
		ev.Handle = w.retain(r, append(slices.Clone(r.ids), output...), eos)
	} else if blocks, ok := w.d.write(kvOf(7, output)); ok { // used and free again
		w.d.free = append(w.d.free, blocks...)
	}
	w.tell(r, ev)
}

// retain has D keep what it has of a sequence, and returns the handle.
func (w *world) retain(r *run, seq []int32, eos bool) *kvp.Handle {
	d := w.d
	kv := kvOf(0, seq)
	kv[len(kv)-1] = drafts // sampled, not computed
	n := len(kv) - 1
	if eos && w.ch.n(2) == 1 {
		n++ // scheduled ahead
	}
	if w.ch.n(6) == 5 {
		kv = append(kv, drafts, drafts)
		n = len(seq) + 1 + w.ch.n(2)
	}
	whole := (n + pageSize - 1) / pageSize
	kv = kv[:min(len(kv), n)]
	groups := w.ch.n(8) == 7
	if !groups && w.ch.n(8) == 7 { // room for drafts is in the list too
		kv = append(kv, make([]entry, pageSize)...)
		whole++
	}
	blocks, ok := d.write(kv)
	if !ok {
		w.seen["full"]++
		return nil
	}
	d.made++
	id := "r" + strconv.Itoa(d.made)
	d.kept = append(d.kept, &retained{id, blocks, w.now + ttl})
	list := strings.ReplaceAll(fmt.Sprint(blocks[:whole]), " ", ",")
	if groups {
		list += ",[1,2]" // a window
	}
	alone := string(r.params) == string(kvp.AppendForm)
	rest := fmt.Sprintf(`"remote_block_ids":[%s],"remote_engine_id":%q,"remote_request_id":%q,"remote_host":"h","remote_port":1,"tp_size":1,"remote_num_tokens":%d}`,
		list, d.engineID(), id, n)
	var h kvp.Handle
	if alone {
		w.seen["append kept"]++
		a, err := kvp.ParsePrefilled([]byte(`{"do_remote_prefill":true,"do_remote_decode":false,` + rest))
		if err != nil {
			panic(err)
		}
		h = a.FlipAppend()
	} else {
		var expiry string
		if w.ch.n(4) < 3 {
			expiry = fmt.Sprintf(`"remote_blocks_expiry_time":%f,`, (w.now + ttl).Seconds())
		}
		var err error
		if h, err = kvp.ParseHandle([]byte(`{"do_remote_prefill":false,"do_remote_decode":true,` + expiry + rest)); err != nil {
			panic(err)
		}
	}
	w.handles[id] = &known{tenant: r.talk.tenant, life: d.life, until: w.now + ttl, raw: h.Raw(), ids: seq, fresh: r}
	return &h
}

// renderNext renders what comes after a turn, twice.
func (w *world) renderNext(r *run) {
	w.end(r)
	fate := w.ch.n(12)
	base := append(slices.Clone(r.said), message{markAssistant, r.reply})
	a := prompt(append(slices.Clone(base), message{markUser, []int32{1, 2, 3}}))
	b := prompt(append(slices.Clone(base), message{markUser, []int32{4, 5}}))
	ev := RenderedNext{A: a, B: b}
	switch {
	case fate < 8:
		r.ids = a[:len(render(base))+1]
	case fate == 8:
		ev = RenderedNext{A: a, Tail: 5}
		r.ids = a[:len(a)-5]
	case fate == 9: // the template says something of the end first
		ev.A, ev.B = append([]int32{1}, a...), append([]int32{2}, b...)
	case fate == 10:
		ev = RenderedNext{A: a, Tail: len(a) + 1}
	default:
		ev = RenderedNext{}
	}
	w.tell(r, ev)
}

// warm ends the P call of a return.
func (w *world) warm(r *run, a Warm) {
	ids := a.IDs
	if ids == nil {
		ids = prompt(append(slices.Clone(r.said), message{markAssistant, r.reply}))
	}
	fate := w.ch.n(12)
	ev := Warmed{Status: 200}
	if fate < 9 {
		out, wrong := w.compute(r.talk.tenant, ids, a.Params)
		if wrong != "" {
			w.fail("I1", "%v: %s", r, wrong)
		}
		if out.hangs {
			r.hangs = true
			return
		}
		if out.failed || fate == 8 {
			ev.Status = 500
		}
	}
	switch fate {
	case 9:
		ev.Status = 500
	case 10:
		ev.Status = 503
	case 11:
		w.pass(max(r.since+a.Deadline-w.now, 0))
		return
	}
	w.end(r)
	w.tell(r, ev)
}

// settleAll ends everything that is in progress, however long it takes.
func (w *world) settleAll() {
	for i := 0; len(w.runs) > 0 && w.wrong == ""; i++ {
		if i > 3000 {
			w.fail("stuck", "%v does not end", w.runs[0])
		}
		w.finish(w.runs[w.ch.n(len(w.runs))])
		if i%20 == 19 {
			w.pass(time.Second)
		}
	}
	if w.wrong != "" {
		return
	}
	w.pass(2 * ttl)
	if n := len(w.d.kept); n > 0 || len(w.d.free) != decoderBlocks {
		w.fail("world", "D keeps %d requests and has %d of %d blocks free", n, len(w.d.free), decoderBlocks)
	}
}
