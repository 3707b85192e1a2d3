package sim

import (
	"time"

	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/price"
	"github.com/tarik-kv/tarik/internal/turn"
)

// Token ids do not exist here. What the machines compare are these few: a prompt of four and a reply of five, of which the
// last has no KV yet, so that a handle covers eight. What a turn really has in tokens is the simulated engines' business.
var (
	idsPrompt  = []int32{1, 2, 3, 4}
	idsReply   = []int32{5, 6, 7, 8, 9}
	idsGoesOn  = []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}      // all that D holds comes back
	idsChanged = []int32{1, 2, 3, 4, 90, 91, 92, 93, 94, 95} // the prompt comes back, the reply does not
	idsOther   = []int32{81, 82, 83, 84, 85, 86, 87, 88, 89, 90}
	fullHandle = mustHandle()
	heldWhole  = kvp.Held{Handle: fullHandle, Seq: append(append([]int32{}, idsPrompt...), idsReply...), PromptTokens: len(idsPrompt)}
	paramsA    = []byte(`{"do_remote_prefill":true}`)
	numbers    = [...]int{0, 4, 8, 9}
)

const idsBlock = 1 // tokens in a block of these sequences

func mustHandle() kvp.Handle {
	h, err := kvp.ParseHandle([]byte(`{"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[1,2,3,4,5,6,7,8]],"remote_engine_id":"d",` +
		`"remote_request_id":"r","remote_host":"d","remote_port":5600,"tp_size":1,"remote_num_tokens":8}`))
	if err != nil {
		panic("BUG: sim: " + err.Error())
	}
	return h
}

// The router's own settings.
const (
	handleMargin   = 30 * time.Second
	appendTTL      = 15 * time.Second
	routerPatience = 2 * time.Second
)

// arrival begins a conversation's next turn.
func (s *run) arrival(i int32) {
	if s.convs[i].number == 0 {
		s.opening = false
		s.open()
	}
	if !s.src.more() {
		s.end(i)
		return
	}
	t := s.turns.take()
	x := &s.turns.items[t]
	c := &s.convs[i]
	gen := x.gen + 1
	*x = request{gen: gen, conv: i, number: c.number, arrived: s.now, call: -1}
	x.plan = s.src.turn(c, c.number)
	c.number++
	c.busy++
	if s.o.Policy == Single {
		x.alone, x.arm = true, turn.ArmAppend
		x.d, x.p = s.chooseDecode(c), -1
		s.settle(c, atD, x.d)
		s.askDecode(t)
		return
	}
	x.p, x.d = s.choosePrefill(c, x), s.chooseDecode(c)
	s.settle(c, atP, x.p)
	s.settle(c, atD, x.d)
	s.act(t, x.machine.Step(s.start(t)))
}

// start gathers what is known before anything is asked, as the router does.
func (s *run) start(t int32) turn.Start {
	x := &s.turns.items[t]
	c := &s.convs[x.conv]
	st := turn.Start{BlockSize: idsBlock, Without: turn.FirstTurn}
	if x.number == 0 {
		return st
	}
	st.Without = turn.NoHandle
	if !s.o.Policy.handles() {
		st.Without = turn.ReuseOff
		return st
	}
	s.habit.Continued(int(x.number), s.now-c.ended)
	if c.ret >= 0 {
		if s.overtake(c.ret) {
			x.awaits = true
		}
	}
	if s.o.Policy != Hold && c.held && !x.awaits && (s.ds[c.entries[atD].engine].waiting.len() > 0 || s.ps[x.p].vacant() < int(x.prompt)) {
		s.unkeep(x.conv) // it would wait at P with D's blocks
	}
	switch {
	case x.awaits:
	case c.held && c.heldUntil <= s.now:
		st.Without = turn.HandleExpired
	case c.held:
		st.Held = &heldWhole
	case c.returned:
		st.Without = turn.ReturnReady
	}
	if s.o.Policy != Hold { // which always uses what is held
		s.choose(t, &st)
	}
	return st
}

// choose has the prices decide.
func (s *run) choose(t int32, st *turn.Start) {
	x := &s.turns.items[t]
	c := &s.convs[x.conv]
	p, d := &s.ps[x.p], &s.ds[x.d]
	p.load.pass(s.now)
	in := price.Situation{
		Prompt: int(x.prompt), PHas: int(c.readyAtP(x.p)), QueueMs: p.load.dueMs / 2, Threshold: s.o.Threshold, Streams: len(d.streams),
		AppendLimit: s.o.AppendLimit, StallLimit: toMs(s.o.StallLimit), StallWeight: s.o.StallWeight, AppendPremium: price.AppendPremium,
	}
	if c.entries[atD].engine == x.d {
		in.DHas = d.floor(int(c.prompt + c.reply - 1))
	}
	if st.Held != nil {
		in.CanPull, in.Held = true, int(c.heldTokens)
		in.PHas = min(in.PHas, int(c.prompt))
		in.RenderMs = s.o.Costs.Render(int(x.prompt))
	}
	if x.awaits {
		in.PHas = int(c.prompt + c.visible)
	}
	in.PHas = p.floor(in.PHas)
	usage := float64(d.used-d.idle) / float64(d.capacity)
	in.CanAppend = s.o.Policy == Append && s.now-c.ended <= price.AppendAge && usage <= price.AppendUsage && d.appends == 0
	dec := s.prices.Decide(in)
	if x.awaits {
		st.Await = max(time.Millisecond, ms(s.prices.Recompute(int(max(x.prompt-c.ready, 1)), int(c.ready)).Ms))
	}
	switch turn.Arm(dec.Arm) {
	case turn.ArmAppend:
		st.Arm, st.Await = turn.ArmAppend, 0
		x.alone = true
		d.appends++ // counted until it streams
	case turn.ArmLocal, turn.ArmRecompute:
		if in.CanPull {
			st.Arm = turn.ArmLocal
		}
	}
	s.stats.why(dec.Why)
}

// act carries out a turn's actions.
func (s *run) act(t int32, actions []turn.Action) {
	for {
		var now turn.Event
		for _, a := range actions {
			x := &s.turns.items[t]
			c := &s.convs[x.conv]
			switch a := a.(type) {
			case turn.Render:
				s.heap.add(s.now+ms(s.o.Costs.Render(int(x.prompt))), rendered, t, x.gen)
			case turn.Await:
				b := &s.backs.items[c.ret]
				b.waiting, b.waitGen = t, x.gen
				s.heap.add(s.now+a.Deadline, awaited, t, x.gen)
			case turn.Take:
				if s.o.Policy != Hold && c.held && s.ps[x.p].vacant() < int(x.prompt) {
					s.unkeep(x.conv)
				}
				now = turn.Taken{OK: c.held}
				x.hadHandle, c.held = c.held, false
			case turn.Prefill:
				s.prefill(t, a)
			case turn.Decode:
				s.askDecode(t)
			case turn.Relay, turn.PassOn, turn.Refuse, turn.Distrust, turn.Cancel, turn.Linger:
				// Relay is what D does anyway; the others follow from failures, of which there are none but refusals.
			case turn.Keep:
				s.keep(t, a)
			case turn.Free:
				s.unkeep(x.conv)
			case turn.Done:
				s.doneWith(t)
				return
			default:
				panic("BUG: sim: unknown action")
			}
		}
		if now == nil {
			return
		}
		actions = s.turns.items[t].machine.Step(now)
	}
}

// ids are what the machine is told that a turn's prompt is.
func (s *run) ids(x *request) []int32 {
	c := &s.convs[x.conv]
	switch {
	case x.common >= c.heldTokens:
		return idsGoesOn
	case x.common >= c.prompt:
		return idsChanged
	case x.common > 0:
		return idsChanged // a part of it; how much is the engines' business
	}
	return idsOther
}

func (s *run) rendered(t int32) {
	x := &s.turns.items[t]
	s.act(t, x.machine.Step(turn.Rendered{IDs: s.ids(x)}))
}

// awaited ends waiting for a return.
func (s *run) awaited(t int32, ok bool) {
	x := &s.turns.items[t]
	if !x.awaits {
		return
	}
	x.awaits = false
	if r := s.convs[x.conv].ret; r >= 0 {
		s.backs.items[r].waiting = -1
	}
	s.act(t, x.machine.Step(turn.Awaited{OK: ok}))
}

// prefill makes a turn's P call.
func (s *run) prefill(t int32, a turn.Prefill) {
	x := &s.turns.items[t]
	c := &s.convs[x.conv]
	p := &s.ps[x.p]
	k := call{conv: x.conv, turn: t, ret: -1, engine: x.p, load: x.p, form: a.Form, prompt: x.prompt, common: x.text}
	has := min(int(c.readyAtP(x.p)), int(x.text))
	switch a.Form {
	case turn.FormPull:
		k.want, k.handle = min(x.common, c.heldTokens), true
		has = max(has, int(k.want))
	case turn.FormRelease:
		k.handle = true
	}
	k.ready = int32(min(int(c.readyAtP(x.p)), int(x.text)))
	k.expected = s.prices.Recompute(max(int(x.prompt)-has, 1), has).Ms
	k.waitMs = p.load.begin(s.now, k.expected)
	i := s.ask(k)
	s.turns.items[t].call = i
	if a.Form == turn.FormPull {
		// The machine knows a few ids only, so the deadline it gives is for these.
		patience := max(routerPatience, s.prices.Recompute(int(x.prompt), 0).Bound())
		s.heap.add(s.now+patience, late, i, s.calls.items[i].gen)
	}
}

// late gives up a call with a handle that took longer than computing would.
func (s *run) late(i int32) {
	c := &s.calls.items[i]
	if c.over || c.turn < 0 {
		return
	}
	c.over = true
	s.stats.late++
	s.ps[c.load].load.end(s.now, c.expected)
	t := c.turn
	s.act(t, s.turns.items[t].machine.Step(turn.PrefillDone{Late: true}))
}

// releaseHandle has D free what it keeps: P has told it so.
func (s *run) releaseHandle(c *call) {
	if c.handle {
		c.handle = false
		s.unkeep(c.conv)
	}
}

// prefillDone reports a turn's P call.
func (s *run) prefillDone(i int32) {
	k := &s.calls.items[i]
	k.gen++ // no deadline any more
	x := &s.turns.items[k.turn]
	p := &s.ps[k.engine]
	s.ps[k.load].load.end(s.now, k.expected)
	x.p = k.engine
	x.pHas, x.pulled = k.has, k.pulled
	took := s.now - k.asked - min(ms(k.waitMs), (s.now-k.asked)/2)
	has := int(k.has + k.pulled)
	if s.o.Policy.handles() {
		switch {
		case k.pulled > 0:
			if s.sample(0) {
				s.prices.ObservePullCall(int(k.pulled), int(k.prompt)-has, has, took)
			}
		case s.sample(1):
			s.prices.ObserveRecompute(max(int(k.prompt)-has, 1), has, took)
		}
		if k.ready > 0 {
			p.survival.Saw(s.now-s.convs[k.conv].readyAt, 2*k.has >= k.ready)
		}
	}
	cached := 0
	switch {
	case k.pulled > 0 && x.common >= s.convs[k.conv].heldTokens:
		cached = 2
	case k.pulled > 0:
		cached = 1
	case 2*k.has >= k.prompt:
		cached = 3
	case k.has > 0:
		cached = 1
	}
	s.act(k.turn, x.machine.Step(turn.PrefillDone{Status: 200, Params: paramsA, Cached: &numbers[cached], Prompt: len(idsGoesOn)}))
}

// sample reports whether an observation is used. Prices have settled after the first thousand; an eighth of what
// comes then keeps them right.
func (s *run) sample(which int) bool {
	s.observed[which]++
	n := s.observed[which]
	return n < 1000 || n%8 == 0
}

// prefillFailed reports that P has no room for a turn at all.
func (s *run) prefillFailed(i int32) {
	k := &s.calls.items[i]
	s.ps[k.load].load.end(s.now, k.expected)
	t := k.turn
	s.turns.items[t].call = -1
	s.calls.give(i)
	s.act(t, s.turns.items[t].machine.Step(turn.PrefillDone{Status: 400}))
}

// askDecode makes a turn's D call.
func (s *run) askDecode(t int32) {
	x := &s.turns.items[t]
	x.asked = s.now
	s.heap.add(s.now+ms(s.o.Costs.Front(int(x.prompt))), atDecode, t, x.gen)
}

// handedOver notes that D has read P's blocks.
func (s *run) handedOver(t int32) {
	x := &s.turns.items[t]
	s.unlease(x)
	d := &s.ds[x.d]
	wait := s.halfStep(d)
	s.join(d, t, float64(x.reply))
	at := max(s.now, d.at) + wait + ms(s.o.Costs.HandoffMs+s.o.Costs.Step(len(d.streams), d.context))
	s.heap.add(at, firstToken, t, x.gen)
}

// unlease lets P evict what D has read.
func (s *run) unlease(x *request) {
	if x.call < 0 {
		return
	}
	k := &s.calls.items[x.call]
	p := &s.ps[k.engine]
	s.pin(&p.pool, -int64(k.prompt))
	p.unuse(k.conv)
	s.calls.give(x.call)
	x.call = -1
	s.admit(p)
	if p.returns.Len() > 0 {
		s.startReturns(p)
	}
}

func (s *run) firstToken(t int32) {
	x := &s.turns.items[t]
	if x.began {
		return
	}
	s.began(t)
	if x = &s.turns.items[t]; x.alone {
		s.join(&s.ds[x.d], t, float64(x.reply)-1)
	}
}

// began notes a turn's first token.
func (s *run) began(t int32) {
	x := &s.turns.items[t]
	x.began = true
	x.first = s.now - x.arrived
	if s.o.Policy == Single {
		return
	}
	took := s.now - x.asked
	if s.o.Policy.handles() {
		switch {
		case x.alone:
			s.prices.ObserveAppend(max(int(x.prompt-x.dHas), 1), int(x.dHas), took)
			s.prices.ObserveStall(int(x.stalled), ms(s.o.Costs.Compute(s.o.Costs.Kernels(float64(x.stalled), float64(x.dHas)))))
			s.ds[x.d].appends--
		case s.sample(2):
			s.prices.ObserveHandoff(int(x.prompt-x.dHas), took)
		}
	}
	s.act(t, x.machine.Step(turn.DecodeBegan{}))
}

// replied notes a turn's last token.
func (s *run) replied(t int32) {
	x := &s.turns.items[t]
	d := &s.ds[x.d]
	d.activeSum += (float64(x.prompt) + float64(x.reply)/2) * toMs(s.now-x.seated)
	n := 0
	if s.o.Policy.caches() {
		n = d.floor(int(x.prompt + x.reply - 1))
	}
	d.set(x.conv, n, x.alloc)
	if s.o.Policy == Single {
		d.unuse(x.conv)
		s.doneWith(t)
		return
	}
	ev := turn.DecodeDone{Clean: true, Prompt: idsPrompt, Output: idsReply}
	if s.o.Policy.handles() {
		ev.Handle = &fullHandle
		c := &s.convs[x.conv]
		if c.keeps { // the turn before left it, and nobody came for it
			s.unkeep(x.conv)
		}
		c.keeps, c.appended = true, x.alone
		c.heldGen++
		ttl := s.o.TTL
		if x.alone {
			ttl = appendTTL
		}
		c.heldTokens = x.prompt + x.reply - 1
		s.pin(&d.pool, int64(c.heldTokens))
		s.heap.add(s.now+ttl, expired, x.conv, c.heldGen)
	} else {
		d.unuse(x.conv)
	}
	s.act(t, x.machine.Step(ev))
}

// keep remembers a turn.
func (s *run) keep(t int32, a turn.Keep) {
	x := &s.turns.items[t]
	c := &s.convs[x.conv]
	c.held = a.Handle != nil
	ttl := s.o.TTL - handleMargin
	if x.alone {
		ttl = appendTTL
	}
	c.heldUntil = s.now + ttl
}

// unkeep has D let go of what it keeps of a conversation.
func (s *run) unkeep(i int32) {
	if s.unpin(i) {
		s.seat(&s.ds[s.convs[i].entries[atD].engine])
	}
}

func (s *run) unpin(i int32) bool {
	c := &s.convs[i]
	c.held = false
	if !c.keeps {
		return false
	}
	c.keeps = false
	c.heldGen++
	d := &s.ds[c.entries[atD].engine]
	s.pin(&d.pool, -int64(c.heldTokens))
	d.unuse(i)
	if c.over {
		s.spare = append(s.spare, i)
	}
	return true
}

// decodeFailed reports that D has no room for a turn at all.
func (s *run) decodeFailed(t int32) {
	x := &s.turns.items[t]
	if x.alone && s.o.Policy != Single {
		s.ds[x.d].appends--
	}
	s.unlease(x)
	if s.o.Policy == Single {
		s.doneWith(t)
		return
	}
	s.act(t, s.turns.items[t].machine.Step(turn.DecodeFailed{Status: 400}))
}

// doneWith ends a turn.
func (s *run) doneWith(t int32) {
	x := &s.turns.items[t]
	i := x.conv
	c := &s.convs[i]
	c.busy--
	s.done++
	if x.began {
		s.record(x)
	}
	if x.arm == "" {
		x.arm = x.machine.Outcome().Arm
	}
	c.prompt, c.reply, c.visible, c.ended = x.prompt, x.reply, x.visible, s.now
	c.returned = false
	if x.began && !x.alone {
		c.ready, c.readyAt = x.prompt, s.now
	}
	last, next, after := x.last, x.next, x.after
	began := x.began
	s.turns.give(t)
	x.gen++
	if began && s.o.Policy.handles() {
		s.afterTurn(i)
	}
	if last {
		s.end(i)
		return
	}
	at := s.now + next
	if !after {
		at = max(next, s.now+leastThink)
	}
	s.heap.add(at, arrival, i, s.convs[i].gen)
}
