package sim

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tarik-kv/tarik/internal/gap"
	"github.com/tarik-kv/tarik/internal/price"
	"github.com/tarik-kv/tarik/internal/turn"
)

// conversation is one, from its first turn until nothing of it is left anywhere.
type conversation struct {
	entries [2]entry
	homes   [2]int16 // engines that its turns go to, plus one; 0 none
	row     int32    // of a trace
	turns   int32    // that a synthetic one will have
	number  int32    // turns begun
	gen     uint32
	over    bool // no turn follows
	busy    int8 // turns and returns in progress

	prompt, reply, visible int32 // of the last turn
	ended                  time.Duration
	ready                  int32 // tokens that P was given
	readyAt                time.Duration
	returned               bool // by a return

	// What D holds for the next turn.
	held       bool
	keeps      bool // D's blocks are pinned, whether or not anybody can use them
	heldGen    uint32
	heldTokens int32
	heldUntil  time.Duration
	appended   bool // by an append

	ret int32 // the return that waits or runs, -1
}

// readyAtP is how many tokens an engine was given of it, as far as is known.
func (c *conversation) readyAtP(engine int16) int32 {
	if c.entries[atP].engine != engine {
		return 0
	}
	return c.ready
}

// request is one turn in progress.
type request struct {
	plan
	conv    int32
	gen     uint32
	number  int32
	arrived time.Duration
	machine turn.Machine
	arm     turn.Arm

	hadHandle          bool
	awaits             bool
	asked              time.Duration // D
	seated             time.Duration // at D
	call               int32
	p, d               int16
	pHas, pulled, dHas int32
	alloc              int64
	alone              bool // D serves it without P
	stalled            int32
	began              bool
	first              time.Duration // to the first token
}

// back is a return.
type back struct {
	unrendered bool // its reply was taken to go on as it was generated
	conv       int32
	gen        uint32
	p          int16
	started    bool
	warming    bool
	held       bool // it has D's handle
	machine    turn.Return
	cost       float64
	begun      time.Duration
	call       int32
	waiting    int32 // turn that waits for it, -1
	waitGen    uint32
}

// slots keeps items by index and uses them again.
type slots[T any] struct {
	items []T
	free  []int32
}

func (s *slots[T]) take() int32 {
	if n := len(s.free); n > 0 {
		i := s.free[n-1]
		s.free = s.free[:n-1]
		return i
	}
	var zero T
	s.items = append(s.items, zero)
	return int32(len(s.items) - 1)
}

func (s *slots[T]) give(i int32) { s.free = append(s.free, i) }

// run is a simulation in progress.
type run struct {
	o     Options
	now   time.Duration
	heap  events
	src   source
	ps    []prefill
	ds    []decode
	convs []conversation
	spare []int32 // conversations to use again
	turns slots[request]
	calls slots[call]
	backs slots[back]

	prices   price.Models
	observed [3]uint32
	habit    gap.Habit
	echo     gap.Echo // of all replies

	itl     histogram
	stats   stats
	moved   int64 // tokens, P to D
	refused int
	done    int
	gaveUp  bool
	opening bool // an arrival of a new conversation is in the heap
}

// Run simulates. The error is Validate's.
func Run(o Options) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	parts := o.cells()
	if len(parts) == 1 {
		s := newRun(parts[0])
		s.play()
		return result(o, []*run{s}), nil
	}
	runs := make([]*run, len(parts))
	var done atomic.Int64
	var mu sync.Mutex // one caller of Progress and Stop at a time
	var all sync.WaitGroup
	for i, part := range parts {
		before := 0
		part.Progress = func(n int) {
			sum := done.Add(int64(n - before))
			before = n
			if o.Progress != nil {
				mu.Lock()
				defer mu.Unlock()
				o.Progress(int(sum))
			}
		}
		if o.Stop != nil {
			part.Stop = func() bool {
				mu.Lock()
				defer mu.Unlock()
				return o.Stop()
			}
		}
		runs[i] = newRun(part)
		all.Go(runs[i].play)
	}
	all.Wait()
	return result(o, runs), nil
}

// cells splits a run into independent parts.
func (o *Options) cells() []Options {
	n := max(o.Cells, 1)
	parts := make([]Options, n)
	for i := range parts {
		p := *o
		part := func(whole int) int { return (whole + n - 1 - i) / n }
		p.Prefills, p.Decodes, p.Seed = part(o.Prefills), part(o.Decodes), o.Seed+uint64(i)*0x9e3779b9
		if o.Policy == Single {
			p.Prefills, p.Decodes = 0, part(o.Prefills+o.Decodes)
		}
		if o.Synthetic != nil {
			w := *o.Synthetic
			engines := float64(p.Prefills+p.Decodes) / float64(o.Prefills+o.Decodes)
			w.Requests, w.Rate, w.Concurrency = part(w.Requests), w.Rate*engines, part(w.Concurrency)
			p.Synthetic = &w
		} else if n > 1 {
			p.Trace = nil
			for _, r := range o.Trace {
				if int(uint32(r.Conv)*2654435761>>8)%n == i {
					p.Trace = append(p.Trace, r)
				}
			}
		}
		parts[i] = p
	}
	return parts
}

// play runs until nothing happens any more.
func (s *run) play() {
	s.open()
	for n := 1; ; n++ {
		e, ok := s.heap.next()
		if !ok {
			return
		}
		s.now = e.at
		s.handle(e)
		if n&0x3ff == 0 && s.o.giveUp && s.hopeless() || n&0x3fff == 0 && s.stop() {
			return
		}
	}
}

// hopeless reports whether so many requests have missed the SLO that the rest cannot make up for it.
func (s *run) hopeless() bool {
	all := len(s.o.Trace)
	if s.o.Synthetic != nil {
		all = s.o.Synthetic.Requests
	}
	s.gaveUp = s.refused > 0 || float64(s.stats.turns-s.stats.good) > (1-s.o.SLO.Share)*float64(all)+1
	return s.gaveUp
}

func (s *run) stop() bool {
	if s.o.Progress != nil {
		s.o.Progress(s.done)
	}
	return s.o.Stop != nil && s.o.Stop()
}

func newRun(o Options) *run {
	s := &run{o: o, ps: make([]prefill, o.Prefills), ds: make([]decode, o.Decodes)}
	newPool := func(k side) pool {
		return pool{side: k, capacity: int64(o.PoolTokens), block: o.BlockSize, head: -1, tail: -1, convs: &s.convs, gone: &s.spare}
	}
	for i := range s.ps {
		s.ps[i].pool, s.ps[i].index = newPool(atP), int32(i)
		s.ps[i].returns = gap.NewQueue[int32]()
	}
	for i := range s.ds {
		s.ds[i].pool, s.ds[i].index = newPool(atD), int32(i)
	}
	if o.Synthetic != nil {
		s.src = newSynthetic(*o.Synthetic, o.Seed)
	} else {
		s.src = newTraced(o.Trace, o.Speed)
	}
	return s
}

// open schedules the next conversation's first turn.
func (s *run) open() {
	for !s.opening {
		at, row, ok := s.src.open(s.now)
		if !ok {
			return
		}
		i := s.newConversation()
		s.convs[i].row = row
		s.heap.add(max(at, s.now), arrival, i, s.convs[i].gen)
		if s.o.Synthetic == nil || s.o.Synthetic.Concurrency == 0 {
			s.opening = true
		}
	}
}

func (s *run) newConversation() int32 {
	for len(s.spare) > 0 {
		i := s.spare[len(s.spare)-1]
		s.spare = s.spare[:len(s.spare)-1]
		c := &s.convs[i]
		if !c.over || c.busy > 0 || c.keeps || c.entries[0].tokens > 0 || c.entries[1].tokens > 0 || c.entries[0].users+c.entries[1].users > 0 {
			continue // something of it is still there
		}
		gen := c.gen + 1
		*c = conversation{gen: gen, heldGen: c.heldGen + 1, ret: -1}
		c.entries[0].engine, c.entries[1].engine = -1, -1
		return i
	}
	s.convs = append(s.convs, conversation{ret: -1})
	i := int32(len(s.convs) - 1)
	s.convs[i].entries[0].engine, s.convs[i].entries[1].engine = -1, -1
	return i
}

func (s *run) handle(e event) {
	switch e.kind {
	case arrival:
		if s.convs[e.id].gen == e.gen {
			s.arrival(e.id)
		}
	case rendered:
		if x := &s.turns.items[e.id]; x.gen == e.gen {
			s.rendered(e.id)
		}
	case atPrefill:
		if s.calls.items[e.id].gen == e.gen {
			s.arrive(e.id)
		}
	case pulled:
		if s.calls.items[e.id].gen == e.gen {
			s.pulledIn(e.id)
		}
	case stepped:
		s.stepOver(&s.ps[e.id])
	case late:
		if s.calls.items[e.id].gen == e.gen {
			s.late(e.id)
		}
	case atDecode:
		if s.turns.items[e.id].gen == e.gen {
			s.sit(e.id)
		}
	case handedOver:
		if s.turns.items[e.id].gen == e.gen {
			s.handedOver(e.id)
		}
	case firstToken:
		if s.turns.items[e.id].gen == e.gen {
			s.firstToken(e.id)
		}
	case finished:
		if d := &s.ds[e.id]; d.gen == e.gen {
			s.lookNow(d)
		}
	case expired:
		if c := &s.convs[e.id]; c.heldGen == e.gen {
			s.unkeep(e.id)
		}
	case awaited:
		if s.turns.items[e.id].gen == e.gen {
			s.awaited(e.id, false)
		}
	case nextKnown:
		if s.backs.items[e.id].gen == e.gen {
			s.nextKnown(e.id)
		}
	case wake:
		p := &s.ps[e.id]
		p.wakeAt = 0
		s.startReturns(p)
	}
}

// settle notes on which engine a conversation is at home.
func (s *run) settle(c *conversation, k side, at int16) {
	home := &c.homes[k]
	if *home == at+1 {
		return
	}
	of := func(engine int16) *pool {
		if k == atP {
			return &s.ps[engine].pool
		}
		return &s.ds[engine].pool
	}
	if *home > 0 {
		of(*home-1).open--
	}
	*home = at + 1
	if at >= 0 {
		of(at).open++
	}
}

// moveEntry gives a conversation's entry to another engine of the same role: what the old one has of it is as good as
// lost, and is dropped if nothing uses it.
func (s *run) moveEntry(c int32, k side, to int16) {
	e := &s.convs[c].entries[k]
	if e.engine >= 0 && e.users == 0 {
		if k == atP {
			s.ps[e.engine].drop(c)
		} else {
			s.ds[e.engine].drop(c)
		}
	}
	e.engine = to
}

// choosePrefill is the P that a turn goes to: where the conversation was, or is being prepared for, unless it gains more
// elsewhere than what has to be computed again keeps the others there waiting. Anything less makes a burst worse: each move
// adds work, so queues grow, and more move. It goes by what engines really have to do, and so is the same for every policy.
func (s *run) choosePrefill(c *conversation, x *request) int16 {
	e := &c.entries[atP]
	if e.engine < 0 || !s.o.Policy.caches() {
		return s.leastPrefill()
	}
	home := &s.ps[e.engine]
	if e.users > 0 || home.work == 0 || len(s.ps) == 1 || c.ret >= 0 && s.backs.items[c.ret].started {
		return e.engine
	}
	least := s.leastPrefill()
	has := home.floor(min(int(e.tokens), int(x.text), int(x.prompt)-1))
	again := s.o.Costs.Kernels(float64(x.prompt), 0) - s.o.Costs.Kernels(float64(int(x.prompt)-has), float64(has))
	if home.work-s.ps[least].work > 2*again { // once for itself, once for those who wait there
		return least
	}
	return e.engine
}

func (s *run) leastPrefill() int16 {
	best, least := 0, math.Inf(1)
	for i := range s.ps {
		if l := s.ps[i].work + 100*float64(s.ps[i].open); l < least {
			best, least = i, l
		}
	}
	return int16(best)
}

// chooseDecode is the D that a turn goes to: where the conversation was, unless there is a queue and another has none.
func (s *run) chooseDecode(c *conversation) int16 {
	at := c.entries[atD].engine
	if at >= 0 && (c.entries[atD].users > 0 || len(s.ds) == 1 || s.ds[at].waiting.len() == 0) {
		return at
	}
	best, least := int16(0), math.Inf(1)
	for i := range s.ds {
		d := &s.ds[i]
		l := float64(len(d.streams)+d.joining+d.open) + 1000*float64(d.waiting.len())
		if l < least {
			best, least = int16(i), l
		}
	}
	if at >= 0 && s.ds[best].waiting.len() > 0 {
		return at
	}
	return best
}

// end ends a conversation that no turn follows.
func (s *run) end(i int32) {
	c := &s.convs[i]
	c.over = true
	s.settle(c, atP, -1)
	s.settle(c, atD, -1)
	s.src.closed(s.now)
	if c.entries[0].tokens == 0 && c.entries[1].tokens == 0 {
		s.spare = append(s.spare, i)
	}
	s.open()
}
