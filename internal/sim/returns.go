package sim

import (
	"github.com/tarik-kv/tarik/internal/gap"
	"github.com/tarik-kv/tarik/internal/turn"
)

// afterTurn decides what happens until the next turn, as the router does.
func (s *run) afterTurn(i int32) {
	c := &s.convs[i]
	s.habit.Ended(int(c.number))
	if s.o.Policy == Hold || c.entries[atP].engine < 0 {
		return
	}
	p, d := &s.ps[c.entries[atP].engine], &s.ds[c.entries[atD].engine]
	p.load.pass(s.now)
	ended := gap.Ended{
		Number: int(c.number), Prompt: int(c.prompt), Reply: int(c.visible), Ready: int(c.ready), Handle: c.held,
		Load: p.load.share, DecodeUsage: float64(d.used-d.idle) / float64(d.capacity),
		DecodeWaits: d.waiting.len() > 0,
	}
	if c.held {
		ended.Until = c.heldUntil
	}
	plan := gap.After(&s.prices, &s.habit, &p.survival, s.now, ended)
	s.stats.gap(string(plan.Choice), string(plan.Why))
	if plan.Free {
		s.unkeep(i)
	}
	switch plan.Choice {
	case gap.Hold:
		return
	case gap.LetGo:
		s.unkeep(i)
		return
	}
	r := s.backs.take()
	b := &s.backs.items[r]
	*b = back{gen: b.gen + 1, conv: i, p: int16(p.index), held: c.held, cost: plan.CostMs, call: -1, waiting: -1}
	c.ret = r
	c.busy++
	j := gap.Job[int32]{Key: r, CostMs: plan.CostMs, NotBefore: plan.NotBefore, Until: plan.Until, Tokens: int(c.prompt + c.visible), Handle: c.held}
	for _, gone := range p.returns.Add(j) {
		s.dropReturn(gone.Key, "no-room")
	}
	s.startReturns(p)
}

// dropReturn ends a return that has not begun; D lets go.
func (s *run) dropReturn(r int32, why string) {
	b := &s.backs.items[r]
	i := b.conv
	s.stats.ret("dropped", why)
	s.endReturn(r)
	s.unkeep(i)
}

// endReturn forgets a return.
func (s *run) endReturn(r int32) {
	b := &s.backs.items[r]
	c := &s.convs[b.conv]
	c.busy--
	if c.ret == r {
		c.ret = -1
	}
	b.gen++
	s.backs.give(r)
	if c.over {
		s.spare = append(s.spare, b.conv)
	}
}

// startReturns starts what may start at a P now.
func (s *run) startReturns(p *prefill) {
	turns := p.load.calls
	p.returns.Room = p.vacant()
	for {
		j, ok, gone := p.returns.Next(s.now, turns)
		for _, e := range gone {
			s.dropReturn(e.Key, "too-late")
		}
		if !ok {
			break
		}
		b := &s.backs.items[j.Key]
		c := &s.convs[b.conv]
		b.started, b.begun = true, s.now
		start := turn.ReturnStart{PromptTokens: len(idsPrompt), BlockSize: idsBlock}
		if b.held {
			start.Held = &heldWhole
		}
		b.machine = turn.Return{}
		if start.GoesOn = b.held && s.echo.Sure(); start.GoesOn {
			b.unrendered = true
			s.actReturn(j.Key, b.machine.Step(start))
			continue
		}
		b.machine.Step(start)
		s.heap.add(s.now+ms(s.o.Costs.Render(int(c.prompt+c.visible))), nextKnown, j.Key, b.gen)
	}
	if at := p.returns.Wake(s.now, turns); at > 0 && (p.wakeAt == 0 || at < p.wakeAt) {
		p.wakeAt = at
		s.heap.add(at, wake, p.index, 0)
	}
}

// roomy is the part of P's memory up to which it is given returns and pulls.
const roomy = 0.9

// vacant is how many tokens P can take in now without waiting, at least 1.
func (p *prefill) vacant() int {
	if p.waiting.len() > 0 {
		return 1
	}
	return max(1, int(roomy*float64(p.capacity))-int(p.used-p.idle+p.promised))
}

// press drops the returns that d keeps blocks for and that have not begun: requests wait there for room.
func (s *run) press(d *decode) (freed bool) {
	for i := range s.ps {
		p := &s.ps[i]
		if p.returns.Len() == 0 {
			continue
		}
		for _, j := range p.returns.Press() {
			i := s.backs.items[j.Key].conv
			if s.convs[i].entries[atD].engine != int16(d.index) {
				p.returns.Add(j)
				continue
			}
			s.stats.ret("dropped", "no-room-at-d")
			s.endReturn(j.Key)
			s.unpin(i)
			freed = true
		}
	}
	return freed
}

// nextKnown goes on with a return whose prompt is rendered.
func (s *run) nextKnown(r int32) {
	b := &s.backs.items[r]
	c := &s.convs[b.conv]
	if c.held && s.ps[b.p].vacant() < int(c.prompt+c.visible) { // turns have come meanwhile
		s.unkeep(b.conv)
	}
	ids := idsGoesOn[:len(idsGoesOn)-1]
	if c.visible < c.reply {
		ids = idsChanged[:len(idsChanged)-1]
	}
	s.actReturn(r, b.machine.Step(turn.RenderedNext{A: ids}))
}

func (s *run) actReturn(r int32, actions []turn.Action) {
	for {
		var now turn.Event
		for _, a := range actions {
			b := &s.backs.items[r]
			c := &s.convs[b.conv]
			switch a := a.(type) {
			case turn.Take:
				now = turn.Taken{OK: c.held}
				c.held = false
			case turn.Warm:
				s.warm(r, a)
			case turn.Free:
				s.unkeep(b.conv)
			case turn.Returned:
				s.returned(r, a)
				return
			case turn.Cancel, turn.RenderNext, turn.Distrust: // its outcome comes by itself
			default:
				panic("BUG: sim: unknown action of a return")
			}
		}
		if now == nil {
			return
		}
		actions = s.backs.items[r].machine.Step(now)
	}
}

// warm makes a return's P call.
func (s *run) warm(r int32, a turn.Warm) {
	b := &s.backs.items[r]
	c := &s.convs[b.conv]
	b.warming = true
	k := call{
		conv: b.conv, turn: -1, ret: r, engine: b.p, form: turn.FormNull, prompt: c.prompt + c.visible, common: c.prompt, expected: b.cost,
	}
	if a.Params != nil {
		k.form, k.handle = turn.FormPull, true
		k.want = min(c.heldTokens, k.prompt)
		if c.visible < c.reply {
			k.want = c.prompt // what D holds departs from it where the reply begins
		}
	}
	b.call = s.ask(k)
}

// warmed reports the end of a return's P call.
func (s *run) warmed(i int32) {
	k := &s.calls.items[i]
	r := k.ret
	has := int(k.has + k.pulled)
	s.stats.returnPulled += int64(k.pulled)
	s.stats.returnComputed += int64(int(k.prompt) - has)
	if took := s.now - k.asked; k.pulled > 0 {
		if s.sample(0) {
			s.prices.ObservePullCall(int(k.pulled), int(k.prompt)-has, has, took)
		}
	} else if s.sample(1) {
		s.prices.ObserveRecompute(max(int(k.prompt)-has, 1), has, took)
	}
	s.calls.give(i)
	s.actReturn(r, s.backs.items[r].machine.Step(turn.Warmed{Status: 200}))
}

// warmFailed reports that P has no room for it at all.
func (s *run) warmFailed(i int32) {
	r := s.calls.items[i].ret
	s.calls.give(i)
	s.actReturn(r, s.backs.items[r].machine.Step(turn.Warmed{Status: 400}))
}

// returned ends a return that had begun.
func (s *run) returned(r int32, out turn.Returned) {
	b := &s.backs.items[r]
	i, p := b.conv, &s.ps[b.p]
	c := &s.convs[i]
	s.stats.ret(string(out.State), string(out.Why))
	ok := out.State == turn.ReturnDone
	if ok && b.held && !b.unrendered {
		s.echo.Saw(out.Whole)
	}
	if ok && c.busy > 0 && c.ret == r {
		c.ready, c.readyAt, c.returned = c.prompt+c.visible, s.now, true
		s.stats.returnMs.add(toMs(s.now-b.begun), 1)
	}
	waiting, gen := b.waiting, b.waitGen
	p.returns.Finished()
	s.endReturn(r)
	if waiting >= 0 && s.turns.items[waiting].gen == gen {
		s.awaited(waiting, ok)
	}
	s.startReturns(p)
}

// overtake notes that the next turn has come before a return is over. It reports whether it pays to wait for it: P is
// being prepared at this moment.
func (s *run) overtake(r int32) (wait bool) {
	b := &s.backs.items[r]
	if !b.started {
		s.ps[b.p].returns.Remove(r)
		s.stats.ret(string(turn.ReturnOvertaken), string(turn.StillWaiting))
		s.endReturn(r)
		return false
	}
	if b.warming {
		return true
	}
	b.machine.Step(turn.Overtaken{}) // its Cancel: the rendering that comes ends it
	return false
}
