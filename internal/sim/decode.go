package sim

import (
	"math"
	"time"
)

// decode is one D engine, or one that does both.
//
// Its streams advance together. v counts steps, fluidly: a stream that began at v and makes n tokens ends at v+n. While
// the engine's thread is busy otherwise, v stands still: at lies ahead of now then.
type decode struct {
	pool
	index   int32
	v       float64
	at      time.Duration // up to which v is right
	streams []stream      // a heap by end
	context float64       // tokens of all streams, half of their replies
	waiting fifo          // for room
	due     time.Duration // of the event that looks for ends, 0 none
	gen     uint32

	linkFree time.Duration
	joining  int           // admitted, not yet streaming
	busy     time.Duration // in all
	sumK     float64       // streams · ms
	// activeSum is what requests in progress had in D's pool over time, token·ms: from admission on, with half of the reply.
	activeSum float64
	appends   int
}

type stream struct {
	end  float64
	turn int32
}

// advance moves v to now.
func (s *run) advance(d *decode) {
	if s.now <= d.at {
		return
	}
	if k := len(d.streams); k > 0 {
		dt := toMs(s.now - d.at)
		step := s.o.Costs.Step(k, d.context)
		dv := dt / step
		d.v += dv
		s.itl.add(step, dv*float64(k))
		d.busy += s.now - d.at
		d.sumK += float64(k) * dt
	}
	d.at = s.now
}

// block keeps the engine's thread busy for so many ms; a step that streams ride along, if riding.
func (s *run) block(d *decode, took float64, riding bool) {
	s.advance(d)
	if took <= 0 {
		return
	}
	if k := float64(len(d.streams)); k > 0 {
		gap := took
		if riding {
			d.v++
		} else {
			gap += s.o.Costs.Step(len(d.streams), d.context)
		}
		s.itl.add(gap, k)
		d.sumK += k * took
	}
	d.busy += ms(took)
	d.at += ms(took)
}

func (d *decode) push(x stream) {
	d.streams = append(d.streams, x)
	i := len(d.streams) - 1
	for i > 0 && x.end < d.streams[(i-1)/2].end {
		d.streams[i] = d.streams[(i-1)/2]
		i = (i - 1) / 2
	}
	d.streams[i] = x
}

func (d *decode) pop() stream {
	first := d.streams[0]
	n := len(d.streams) - 1
	x := d.streams[n]
	d.streams = d.streams[:n]
	i := 0
	for n > 0 {
		c := 2*i + 1
		if c >= n {
			break
		}
		if c+1 < n && d.streams[c+1].end < d.streams[c].end {
			c++
		}
		if x.end <= d.streams[c].end {
			break
		}
		d.streams[i] = d.streams[c]
		i = c
	}
	if n > 0 {
		d.streams[i] = x
	}
	return first
}

// join makes a turn a stream that has left tokens to make.
func (s *run) join(d *decode, t int32, left float64) {
	s.advance(d)
	x := &s.turns.items[t]
	d.joining--
	d.push(stream{d.v + left, t})
	d.context += float64(x.prompt) + float64(x.reply)/2
	s.look(d)
}

// look schedules the event that looks for streams that have ended. One that is scheduled too early looks again.
func (s *run) look(d *decode) {
	if len(d.streams) == 0 {
		return
	}
	at := d.at + ms(max(d.streams[0].end-d.v, 0)*s.o.Costs.Step(len(d.streams), d.context)) + 1
	if d.due > 0 && d.due <= at {
		return
	}
	d.due = at
	d.gen++
	s.heap.add(at, finished, d.index, d.gen)
}

// lookNow ends streams that are due.
func (s *run) lookNow(d *decode) {
	d.due = 0
	s.advance(d)
	ended := false
	for len(d.streams) > 0 && d.at <= s.now && d.streams[0].end <= d.v+1e-6 {
		t := d.pop().turn
		x := &s.turns.items[t]
		d.context = math.Max(0, d.context-float64(x.prompt)-float64(x.reply)/2)
		if !x.began {
			s.began(t)
		}
		s.replied(t)
		ended = true
	}
	if ended {
		s.seat(d)
	}
	s.look(d)
}

// sit puts a turn before D.
func (s *run) sit(t int32) {
	d := &s.ds[s.turns.items[t].d]
	d.waiting.push(t)
	s.seat(d)
}

// seat admits turns as long as there is room.
func (s *run) seat(d *decode) {
	for d.waiting.len() > 0 && len(d.streams)+d.joining < s.o.Streams {
		t := d.waiting.first()
		x := &s.turns.items[t]
		e := d.entry(x.conv)
		if e.engine != x.d {
			if e.users > 0 { // D keeps blocks of it elsewhere: there it stays
				d.waiting.pop()
				if x.alone && s.o.Policy != Single {
					d.appends--
					s.ds[e.engine].appends++
				}
				x.d = e.engine
				s.heap.add(s.now, atDecode, t, x.gen)
				continue
			}
			s.moveEntry(x.conv, d.side, x.d)
		}
		d.use(x.conv)
		has := 0
		if s.o.Policy.caches() {
			has = d.floor(min(int(e.tokens), int(x.common), int(x.prompt)-1))
		}
		d.trim(e, has)
		need := max(d.blocks(int(x.prompt+x.reply))-int64(has), 0)
		if !d.room(need) {
			d.unuse(x.conv)
			if d.blocks(int(x.prompt+x.reply)) > d.capacity {
				d.waiting.pop()
				s.refused++
				s.decodeFailed(t)
				continue
			}
			if s.o.Policy != Hold && s.press(d) {
				continue
			}
			return
		}
		d.waiting.pop()
		d.used += need
		d.joining++
		x.alloc, x.dHas, x.seated = need, int32(has), s.now
		if x.alone {
			s.computeOn(d, t)
			continue
		}
		took, posting := s.o.Link.transfer(int(x.prompt)-has, s.o.KVBytes, s.o.DescriptorsPerToken)
		// An engine looks for new work between steps: half a step from now, if it is making any.
		start := max(s.now+s.halfStep(d), d.linkFree)
		d.linkFree = start + ms(took)
		s.block(d, posting, false)
		s.moved += int64(int(x.prompt) - has)
		s.heap.add(d.linkFree, handedOver, t, x.gen)
	}
}

// halfStep is how long it takes, on average, until a step of D ends.
func (s *run) halfStep(d *decode) time.Duration {
	if len(d.streams) == 0 {
		return 0
	}
	return ms(s.o.Costs.Step(len(d.streams), d.context) / 2)
}

// computeOn has D compute a prompt itself, in steps that its streams ride along.
func (s *run) computeOn(d *decode, t int32) {
	x := &s.turns.items[t]
	n := int(x.prompt - x.dHas)
	for pos := int(x.dHas); pos < int(x.prompt); {
		c := min(int(x.prompt)-pos, s.o.BatchTokens)
		s.block(d, s.o.Costs.Compute(s.o.Costs.Kernels(float64(c), float64(pos))), true)
		pos += c
	}
	x.stalled = int32(n)
	s.heap.add(max(d.at, s.now), firstToken, t, x.gen)
}
