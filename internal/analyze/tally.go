package analyze

import "slices"

// Block sizes for which reuse is shown, in tokens.
var blockSizes = []int{16, 32, 64, 128, 256, 512, 784, 1024}

// Times for which retention is shown, in seconds.
var ttlSeconds = []int64{10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 300, 480, 600, 900, 1200, 1800, 2700, 3600}

// follow is one follow-up turn. Sizes of -1 are unknown.
type follow struct {
	prev, cur                 *row
	previous, withReply, best int64 // repeated by content
	better                    bool  // an earlier request than the previous one has more
}

// shares are sums over follow-ups, in one unit.
type shares struct {
	requests, prompt   int64
	followUps          int64
	late, timed        int64
	compared, repeated int64 // prompts of follow-ups with both counts; min(previous, this)
	content, best      int64 // prompts of follow-ups with content; common prefix
}

func (s *shares) follow(f *follow, late, timed bool) {
	s.followUps++
	if timed {
		s.timed++
	}
	if late {
		s.late++
	}
	if f.prev.unit != f.cur.unit {
		return
	}
	s.compared += f.cur.prompt
	s.repeated += min(f.prev.prompt, f.cur.prompt)
	if f.best >= 0 {
		s.content += f.cur.prompt
		s.best += f.best
	}
}

// unitSums are the sums of requests in one unit.
type unitSums struct {
	requests, prompt, inFollowUps int64
	withReply, ofFollowUps        int64
	contentTurns                  int64
	contentPrompt                 int64
	previous, previousReply, best int64
	blocks                        []int64 // by block size: best, in whole blocks
	coarse                        int32   // largest block size of the log's own hashes
	atSize                        int64
	better                        int64
	repeated                      int64 // the best that is known, by content or by counts
	length, reply, growth, added  dist
	cached, cachedOf, cachedTurns int64
	open, running                 timeline
	pins                          []pinSums // by ttl
	inUse                         wide      // size·ns of running requests
	timed, timedRepeated          int64     // follow-ups with times
}

type pinSums struct {
	turns, repeated int64
	pinned          wide // size·ns
	level           timeline
}

// tally is everything that is counted.
type tally struct {
	o      *Options
	ttls   []int64 // retention times in ns, Options.TTL among them
	total  shares
	units  [units]unitSums
	models []shares
	owners []shares
	byUnit [units]shares

	convs, single, collisions int64
	branches                  int64
	duplicates, limited       int64
	turns                     dist
	s2s, idle                 dist
	durations, idleLate       int64           // follow-ups whose predecessor's duration is known; … that came too late
	atOnce                    map[int64]int64 // conversations by the instant of their first request, bounded
	conversationsOpen         timeline
	firstSeen, lastSeen       int64
	inputEnd                  int64 // end of the last request of the whole input, known before turns are compared
	any                       bool
	sources                   [3]int64 // by field, by content, none
	noTimes                   int64
	arrivals                  timeline
	switches                  int64
	gapTurns                  int64
	zeroGaps                  int64

	firstCachedAll, firstCachedTurns int64

	history                    History
	hasHistory                 bool
	lines                      Lines
	hasLines                   bool
	mainRepeated, mainCompared int64
	breaks                     [breakKinds]breakSums
}

type breakSums struct {
	turns       int64
	lost        [units]int64
	offset, len dist
	moves       dist
	segs        [segResult + 1]int64
	resolution  map[string]int64
	example     uint64
}

func newTally(o *Options) *tally {
	t := &tally{o: o, atOnce: map[int64]int64{}, inputEnd: noTime}
	for _, s := range ttlSeconds {
		t.ttls = append(t.ttls, s*1e9)
	}
	if own := o.TTL.Nanoseconds(); !slices.Contains(t.ttls, own) {
		t.ttls = append(t.ttls, own)
	}
	slices.Sort(t.ttls)
	for i := range t.units {
		t.units[i].blocks = make([]int64, len(blockSizes))
		t.units[i].pins = make([]pinSums, len(t.ttls))
	}
	return t
}

func group(list *[]shares, i uint32) *shares {
	if n := int(i) + 1; n > len(*list) {
		*list = append(*list, make([]shares, n-len(*list))...)
	}
	return &(*list)[i]
}

// request counts a request, whatever its conversation.
func (t *tally) request(r *row) {
	switch {
	case r.conv == 0:
		t.sources[2]++
	case r.flags&linked != 0:
		t.sources[1]++
	default:
		t.sources[0]++
	}
	u := &t.units[r.unit]
	u.requests++
	u.prompt += r.prompt
	u.length.add(r.prompt)
	if r.output >= 0 {
		u.reply.add(r.output)
	}
	for _, s := range [...]*shares{&t.total, &t.byUnit[r.unit], group(&t.models, r.model), group(&t.owners, r.tenant)} {
		s.requests++
		s.prompt += r.prompt
	}
	if r.cached >= 0 {
		u.cached += r.cached
		u.cachedOf += r.prompt
		u.cachedTurns++
	}
	if r.start == noTime {
		t.noTimes++
		return
	}
	if !t.any {
		t.firstSeen, t.lastSeen, t.any = r.start, r.end(), true
	}
	t.firstSeen, t.lastSeen = min(t.firstSeen, r.start), max(t.lastSeen, r.end())
	t.arrivals.add(r.start, 1)
	if r.dur > 0 {
		u.running.add(r.start, 1)
		u.running.add(r.end(), -1)
		u.inUse.add(r.prompt+max(r.output, 0), r.dur)
	}
}

// firstCached looks at what the log calls cached in the first request of a conversation.
func (t *tally) firstCached(r *row) {
	t.firstCachedTurns++
	if r.cached >= r.prompt-64 {
		t.firstCachedAll++
	}
}

func (t *tally) followUp(f *follow) {
	r, p := f.cur, f.prev
	timed := r.start != noTime && p.start != noTime
	late := false
	gap := int64(0)
	ttl := t.o.TTL.Nanoseconds()
	if timed {
		s2s := r.start - p.start
		t.s2s.add(s2s)
		late = s2s > ttl
		if p.dur >= 0 {
			t.durations++
		}
		gap = s2s - max(0, p.dur)
		if gap > ttl {
			t.idleLate++
		}
		gap = max(0, gap)
		t.idle.add(gap)
		if gap < 50e6 {
			t.zeroGaps++
		}
		t.gapTurns++
	}
	if p.model != r.model && p.model != nameless && r.model != nameless {
		t.switches++
	}
	for _, s := range [...]*shares{&t.total, group(&t.models, r.model), group(&t.owners, r.tenant), &t.byUnit[r.unit]} {
		s.follow(f, late, timed)
	}
	if p.unit != r.unit {
		return
	}
	u := &t.units[r.unit]
	u.inFollowUps += r.prompt
	u.growth.add(r.prompt - p.prompt)
	u.withReply += min(p.prompt+max(p.output, 0), r.prompt)
	u.ofFollowUps += r.prompt
	repeated := min(p.prompt, r.prompt)
	if f.best >= 0 {
		repeated = max(f.best, f.withReply)
		u.contentTurns++
		u.contentPrompt += r.prompt
		u.previous += f.previous
		u.previousReply += f.withReply
		u.best += f.best
		for i, size := range blockSizes {
			u.blocks[i] += wholeBlocks(repeated, size, r.unit)
		}
		u.atSize += wholeBlocks(repeated, t.o.BlockSize, r.unit)
		u.coarse = max(u.coarse, r.blockSize)
		if f.better {
			u.better++
		}
	}
	u.added.add(r.prompt - repeated)
	u.repeated += repeated
	if !timed {
		return
	}
	u.timed++
	u.timedRepeated += repeated
	for i, ttl := range t.ttls {
		if gap <= ttl {
			u.pins[i].turns++
			u.pins[i].repeated += repeated
		}
	}
}

// charsPerToken is what a token is taken for where a log has text and no counts.
const charsPerToken = 4

// wholeBlocks is the part of n that lies in whole blocks of size tokens.
func wholeBlocks(n int64, size int, u unit) int64 {
	block := int64(size)
	if u != tokens {
		block *= charsPerToken
	}
	return n / block * block
}

// pin counts what D holds after turn p until the turn next, nil if there is none.
func (t *tally) pin(p, next *row) {
	if p.start == noTime {
		return
	}
	u := &t.units[p.unit]
	size := p.prompt + max(p.output, 0)
	from := p.end()
	until := int64(-1)
	if next != nil && next.start != noTime {
		until = max(0, next.start-from)
		u.open.add(from, size)
		u.open.add(from+until, -size)
	}
	for i, ttl := range t.ttls {
		held := ttl
		if until >= 0 {
			held = min(until, ttl)
		}
		held = min(held, max(0, t.inputEnd-from)) // what comes after the log is not counted
		u.pins[i].pinned.add(size, held)
		u.pins[i].level.add(from, size)
		u.pins[i].level.add(from+held, -size)
	}
}

// maxInstants bounds atOnce.
const maxInstants = 1 << 16

func (t *tally) conversation(first, last, turns int64, collides bool) {
	t.convs++
	t.turns.add(turns)
	if turns == 1 {
		t.single++
	}
	if collides {
		t.collisions++
	}
	if first == noTime {
		return
	}
	if _, ok := t.atOnce[first]; ok || len(t.atOnce) < maxInstants {
		t.atOnce[first]++
	}
	t.conversationsOpen.add(first, 1)
	t.conversationsOpen.add(last, -1)
}

func (t *tally) broke(b *breakAt, cur *turn, moved int, conv uint64) {
	s := &t.breaks[b.kind]
	s.turns++
	lost := cur.size(min(len(cur.text), b.at+b.after+b.resumes)) - cur.size(min(len(cur.text), b.at+b.after))
	s.lost[cur.unit] += lost
	s.offset.add(cur.size(b.at))
	s.len.add(int64(max(b.before, b.after)))
	if moved >= 0 {
		s.moves.add(int64(moved))
	}
	s.segs[b.seg]++
	if b.resolution != "" {
		if s.resolution == nil {
			s.resolution = map[string]int64{}
		}
		s.resolution[b.resolution]++
	}
	if s.example == 0 {
		s.example = conv
	}
}
