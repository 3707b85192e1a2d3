package sim

import (
	"math"
	"time"

	"github.com/tarik-kv/tarik/internal/gap"
	"github.com/tarik-kv/tarik/internal/turn"
)

// call is one P call, of a turn or of a return.
type call struct {
	conv   int32
	turn   int32 // -1: of a return
	ret    int32 // -1: of a turn
	gen    uint32
	engine int16
	load   int16 // engine whose load it counts for
	form   turn.Form
	over   bool // given up by its caller
	queued bool

	prompt int32 // tokens
	common int32 // of them that what the conversation had before begins with
	want   int32 // tokens that its handle covers, 0 without
	handle bool  // P tells D that the handle is done with
	ready  int32 // tokens that P should have in its cache

	has      int32 // tokens found in P's cache
	pulled   int32
	pos      int32 // tokens that are there
	alloc    int64 // tokens of the pool that it holds besides the entry
	asked    time.Duration
	work     float64 // ms that computing it still takes, as far as is known
	waitMs   float64 // expected when it was asked
	expected float64 // ms
}

// prefill is one P engine.
type prefill struct {
	pool
	index    int32
	waiting  fifo // for room
	ready    fifo // to be computed
	batch    []chunk
	stepping bool
	blocked  time.Duration // its thread posts descriptors until then
	linkFree time.Duration
	busy     time.Duration // in all
	work     float64       // ms, of the calls that it has
	promised int64         // tokens of calls on their way there
	load     load
	returns  gap.Queue[int32]
	survival gap.Survival
	wakeAt   time.Duration
}

type chunk struct{ call, n int32 }

// fifo is a queue of indices.
type fifo struct {
	items []int32
	head  int
}

func (f *fifo) push(i int32) {
	if f.head > 64 && 2*f.head > len(f.items) {
		f.items = f.items[:copy(f.items, f.items[f.head:])]
		f.head = 0
	}
	f.items = append(f.items, i)
}

func (f *fifo) len() int     { return len(f.items) - f.head }
func (f *fifo) first() int32 { return f.items[f.head] }
func (f *fifo) pop()         { f.head++ }

// load is what the router has given an engine to do: the same estimate as the router's.
type load struct {
	calls int
	dueMs float64
	share float64 // of the time with a call in flight, of late
	at    time.Duration
}

const busyOver = 10 * time.Second

func (l *load) pass(now time.Duration) {
	if now == l.at {
		return
	}
	keep := math.Exp(-float64(now-l.at) / float64(busyOver))
	l.share *= keep
	if l.calls > 0 {
		l.share += 1 - keep
	}
	l.at = now
}

func (l *load) begin(now time.Duration, ms float64) (wait float64) {
	l.pass(now)
	wait = l.dueMs / 2
	l.calls++
	l.dueMs += ms
	return wait
}

func (l *load) end(now time.Duration, ms float64) {
	l.pass(now)
	l.calls--
	l.dueMs = max(0, l.dueMs-ms)
}

// ask sends a call to a P engine.
func (s *run) ask(c call) int32 {
	i := s.calls.take()
	gen := s.calls.items[i].gen + 1
	c.gen, c.asked = gen, s.now
	p := &s.ps[c.engine]
	has := 0
	if e := p.entry(c.conv); e.engine == c.engine && s.o.Policy.caches() {
		has = min(int(e.tokens), int(c.common))
	}
	s.owe(&c, p, max(has, int(c.want)))
	p.promised += int64(c.prompt)
	s.calls.items[i] = c
	s.heap.add(s.now+ms(s.o.Costs.Front(int(c.prompt))), atPrefill, i, gen)
	return i
}

// owe notes what a call will have to compute if it begins with so many tokens.
func (s *run) owe(c *call, p *prefill, has int) {
	work := s.o.Costs.Kernels(float64(max(int(c.prompt)-has, 1)), float64(has))
	p.work += work - c.work
	c.work = work
}

// paid notes that a part of it is done.
func (p *prefill) paid(c *call, work float64) {
	work = min(work, c.work)
	c.work -= work
	p.work = max(p.work-work, 0)
}

// arrive puts a call into the engine's queue.
func (s *run) arrive(i int32) {
	c := &s.calls.items[i]
	p := &s.ps[c.engine]
	p.promised -= int64(c.prompt)
	p.waiting.push(i)
	c.queued = true
	s.admit(p)
}

// admit takes calls from the queue as long as there is room, and begins their pulls.
func (s *run) admit(p *prefill) {
	for p.waiting.len() > 0 {
		i := p.waiting.first()
		c := &s.calls.items[i]
		if c.over {
			p.waiting.pop()
			p.paid(c, c.work)
			s.releaseHandle(c)
			s.calls.give(i)
			continue
		}
		e := p.entry(c.conv)
		if e.engine != c.engine {
			if e.users > 0 { // another call of the conversation is on its way there
				p.waiting.pop()
				p.paid(c, c.work)
				c.engine = e.engine
				s.ps[c.engine].promised += int64(c.prompt)
				s.heap.add(s.now, atPrefill, i, c.gen)
				continue
			}
			s.moveEntry(c.conv, atP, c.engine)
		}
		p.use(c.conv)
		has := 0
		if s.o.Policy.caches() {
			has = p.floor(min(int(e.tokens), int(c.common), int(c.prompt)-1))
		}
		p.trim(e, has)
		need := max(p.blocks(int(c.prompt))-int64(has), 0)
		if !p.room(need) {
			p.unuse(c.conv)
			if p.blocks(int(c.prompt)) > p.capacity {
				p.waiting.pop()
				s.refused++
				p.paid(c, c.work)
				s.releaseHandle(c)
				s.fail(i)
				continue
			}
			break
		}
		p.waiting.pop()
		p.used += need
		c.alloc, c.has, c.pos, c.queued = need, int32(has), int32(has), false
		count := int(min(c.want, c.prompt)) - has
		if c.want > 0 && count > 0 && count >= s.o.Threshold {
			c.pulled = int32(count)
			took, posting := s.o.Link.transfer(count, s.o.KVBytes, s.o.DescriptorsPerToken)
			start := max(s.now, p.linkFree)
			p.linkFree = start + ms(took)
			p.blocked = max(p.blocked, s.now) + ms(posting)
			s.owe(c, p, has+count)
			s.heap.add(p.linkFree, pulled, i, c.gen)
			continue
		}
		s.owe(c, p, has)
		s.releaseHandle(c)
		p.ready.push(i)
	}
	s.step(p)
}

// pulledIn notes that a call's tokens have come.
func (s *run) pulledIn(i int32) {
	c := &s.calls.items[i]
	p := &s.ps[c.engine]
	c.pos = c.has + c.pulled
	s.releaseHandle(c)
	p.ready.push(i)
	s.step(p)
}

// step begins a step if there is something to compute.
func (s *run) step(p *prefill) {
	if p.stepping {
		return
	}
	budget, kernels := int32(s.o.BatchTokens), 0.0
	p.batch = p.batch[:0]
	for k := p.ready.head; k < len(p.ready.items) && budget > 0; k++ {
		i := p.ready.items[k]
		c := &s.calls.items[i]
		n := min(max(c.prompt-c.pos, 1), budget)
		budget -= n
		kernels += s.o.Costs.Kernels(float64(n), float64(c.pos))
		p.batch = append(p.batch, chunk{i, n})
	}
	if len(p.batch) == 0 {
		return
	}
	p.stepping = true
	begin := max(s.now, p.blocked)
	took := ms(s.o.Costs.Compute(kernels))
	p.busy += begin - s.now + took
	s.heap.add(begin+took, stepped, p.index, 0)
}

// stepOver ends a step.
func (s *run) stepOver(p *prefill) {
	p.stepping = false
	done := 0
	for _, b := range p.batch {
		c := &s.calls.items[b.call]
		p.paid(c, s.o.Costs.Kernels(float64(b.n), float64(c.pos)))
		c.pos = min(c.pos+b.n, c.prompt)
		if c.pos == c.prompt {
			done++
		}
	}
	// What is computed to the end is at the front of the queue: only the last of a batch may be cut.
	for range done {
		i := p.ready.first()
		p.ready.pop()
		s.computed(p, i)
	}
	s.admit(p)
}

// computed ends a call.
func (s *run) computed(p *prefill, i int32) {
	c := &s.calls.items[i]
	p.paid(c, c.work)
	n := 0
	if s.o.Policy.caches() {
		n = p.floor(int(c.prompt))
	}
	if c.ret >= 0 { // the turn that it is for may have overtaken it, and left more
		n = max(n, int(p.entry(c.conv).tokens))
	}
	p.set(c.conv, n, c.alloc)
	c.alloc = 0
	if c.over {
		p.unuse(c.conv)
		s.calls.give(i)
		return
	}
	if c.ret >= 0 { // it is hung up at its first token: nothing stays in use
		p.unuse(c.conv)
		s.warmed(i)
		return
	}
	s.pin(&p.pool, int64(c.prompt))
	s.prefillDone(i)
}

// fail ends a call that no engine has room for.
func (s *run) fail(i int32) {
	c := &s.calls.items[i]
	if c.ret >= 0 {
		s.warmFailed(i)
		return
	}
	s.prefillFailed(i)
}

// pin changes what a pool keeps for nobody.
func (s *run) pin(p *pool, tokens int64) {
	p.pinned += tokens
	p.pinnedMax = max(p.pinnedMax, p.pinned)
	p.pinnedSum -= float64(tokens) * toMs(s.now)
}

// pinnedMean is the mean over the run, tokens.
func (p *pool) pinnedMean(end time.Duration) float64 {
	if end <= 0 {
		return 0
	}
	return (p.pinnedSum + float64(p.pinned)*toMs(end)) / toMs(end)
}
