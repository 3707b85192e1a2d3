package analyze

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// turn is a row with its content.
type turn struct {
	row
	text            []byte // prompt, or ids, or block ids
	reply           []byte
	segs, replySegs []seg
}

func (t *turn) set(r *row, enc []byte) {
	t.row = *r
	t.text, t.reply, t.segs, t.replySegs = nil, nil, nil, nil
	switch r.kind {
	case textContent:
		t.text, t.reply, t.segs, t.replySegs = decodeContent(enc)
	case idContent, hashContent:
		t.text = enc
	}
}

// keep makes t own its texts.
func (t *turn) keep() turn {
	k := *t
	buf := append(append(make([]byte, 0, len(t.text)+len(t.reply)), t.text...), t.reply...)
	k.text, k.reply = buf[:len(t.text):len(t.text)], buf[len(t.text):]
	return k
}

// size converts n leading bytes of t's content into the row's unit, rounded down.
func (t *turn) size(n int) int64 {
	n = min(n, len(t.text))
	switch t.kind {
	case textContent:
		if t.unit == characters {
			return runes(t.text[:n])
		}
		if len(t.text) == 0 {
			return 0
		}
		return int64(float64(t.prompt) * (float64(n) / float64(len(t.text))))
	case idContent:
		return min(int64(n/4), t.prompt)
	case hashContent:
		return min(int64(n/8)*int64(t.blockSize), t.prompt)
	}
	return 0
}

// conversations takes rows in the order of conversation and start, and feeds the tally with turns.
type conversations struct {
	t        *tally
	budget   int // bytes of earlier texts kept per conversation
	open     bool
	conv     uint64
	prev     turn
	hasPrev  bool // prev is a request, or a ghost
	turns    int64
	first    int64
	last     int64
	tenant   uint32
	collides bool
	branch   bool   // began as a second continuation of a request of another conversation
	blocks   []byte // the latest full list of a conversation given by differences
	leaves   leaves
	lines    []line
	cur      turn
}

// line is a chain of requests of one conversation whose prompts grow out of each other.
type line struct {
	requests int64
	prompt   int64
	last     turn // its latest request, with content
	counted  bool // last holds content
	offset   int  // of the latest break
	broke    bool
	repeated int64 // prompt common with the line's own previous request
	compared int64 // prompts of its requests but the first
}

// maxLines bounds how many lines of one conversation are followed by content.
const maxLines = 16

func (c *conversations) add(r *row, enc []byte) error {
	if !c.open || r.conv != c.conv {
		c.finish()
		c.open, c.conv, c.hasPrev, c.turns, c.collides, c.branch = true, r.conv, false, 0, false, r.flags&ghost != 0
		c.first, c.last = r.start, r.end()
		c.tenant = r.tenant
		c.leaves.reset()
		c.leaves.budget = c.budget
		clear(c.lines)
		c.lines = c.lines[:0]
		c.blocks = c.blocks[:0]
	}
	if r.same != 0 && c.hasPrev && r.same == c.prev.same {
		c.t.duplicates++
		c.prev.output = max(c.prev.output, r.output)
		return nil
	}
	cur := &c.cur
	if r.kind == deltaContent {
		full, ok := c.expand(enc)
		if !ok {
			full = nil
		}
		own := *r
		own.kind = hashContent
		cur.set(&own, full)
	} else {
		cur.set(r, enc)
	}
	if r.flags&ghost != 0 {
		c.prev, c.hasPrev = cur.keep(), true
		return nil
	}
	c.turns++
	c.t.request(r)
	if c.turns == 1 {
		c.first = r.start
	}
	c.last = max(c.last, r.end())
	if r.tenant != c.tenant {
		c.collides = true
	}
	if c.hasPrev {
		c.followUp(cur)
	} else if r.cached >= 0 && r.prompt > 0 {
		c.t.firstCached(r)
	}
	if c.hasPrev && c.prev.flags&ghost == 0 {
		c.t.pin(&c.prev.row, r)
	}
	kept := cur.keep()
	c.compare(&kept)
	c.prev, c.hasPrev = kept, true
	return nil
}

// expand applies a difference to the conversation's previous list of blocks.
func (c *conversations) expand(enc []byte) ([]byte, bool) {
	keep := int64(binary.LittleEndian.Uint64(enc)) * 8
	if keep > int64(len(c.blocks)) {
		return nil, false
	}
	c.blocks = c.blocks[:keep]
	for i := 8; i+16 <= len(enc); i += 16 {
		first, n := binary.LittleEndian.Uint64(enc[i:]), binary.LittleEndian.Uint64(enc[i+8:])
		if len(c.blocks) > 1<<28 {
			return nil, false
		}
		for k := range n {
			c.blocks = binary.LittleEndian.AppendUint64(c.blocks, first+k)
		}
	}
	return c.blocks, true
}

// followUp counts cur as the turn after c.prev.
func (c *conversations) followUp(cur *turn) {
	p := &c.prev
	f := follow{prev: &p.row, cur: &cur.row, previous: unknown, withReply: unknown, best: unknown}
	switch {
	case cur.shared >= 0:
		f.previous = min(cur.shared, cur.prompt)
		f.withReply, f.best = f.previous, f.previous
	case cur.kind == noContent && cur.best >= 0:
		f.previous, f.withReply, f.best = cur.best, cur.best, cur.best
	case cur.kind != noContent && cur.kind == p.kind && cur.unit == p.unit && cur.blockSize == p.blockSize:
		n := common(p.text, cur.text)
		f.previous = cur.size(n)
		whole := n
		if n == len(p.text) {
			whole += common(p.reply, cur.text[n:])
		}
		f.withReply = cur.size(whole)
		best, _ := c.leaves.best(cur.text)
		f.best = max(f.previous, cur.size(best))
		f.better = f.best > f.previous
		c.history(p, cur, n)
	}
	c.t.followUp(&f)
}

// history compares the contents of two successive requests.
func (c *conversations) history(p, cur *turn, n int) {
	h := &c.t.history
	c.t.hasHistory = true
	if p.kind == hashContent {
		n = n / 8 * 8
	}
	kept := n == len(p.text)
	if !kept {
		h.Changed++
		if n < len(p.text)/2 {
			h.ChangedHalf++
		}
		if lost := cur.size(min(len(p.text), len(cur.text))) - cur.size(n); lost > 0 {
			h.Lost += lost
		}
	} else if cur.output >= 0 && p.output > 0 && cur.prompt-p.prompt < p.output {
		h.ShortGrowth++
	}
	if cur.prompt < p.prompt {
		h.Shrunk++
	}
	if kept && len(cur.text) == len(p.text) {
		h.Identical++
	}
}

// compare assigns cur to a line of the conversation and finds out why its prefix broke.
func (c *conversations) compare(cur *turn) {
	switch cur.kind {
	case hashContent, idContent:
		c.leaves.add(cur.text, 0)
		return
	case textContent:
	default:
		return
	}
	best, l := c.leaves.best(cur.text)
	var b *breakAt
	if l >= 0 && l < len(c.lines) && c.lines[l].counted {
		// The line goes on if it shares more than its head, or more than half of what it has.
		if last := &c.lines[l].last; 2*best < min(len(last.text), len(cur.text)) && headOnly(cur, best) {
			l = -1
		}
	}
	if l < 0 {
		l, b = c.resume(cur)
	}
	switch {
	case l < 0 && len(c.lines) < maxLines:
		c.lines = append(c.lines, line{})
		l = len(c.lines) - 1
	case l < 0 || l >= len(c.lines):
		c.t.limited++
		return
	}
	ln := &c.lines[l]
	if ln.counted {
		if b == nil {
			b = explain(&ln.last, cur)
		}
		n := common(ln.last.text, cur.text)
		ln.repeated += cur.size(n)
		ln.compared += cur.prompt
		moved := unknown
		if b.kind != noBreak {
			if ln.broke {
				moved = abs(int(runes(cur.text[:b.at])) - ln.offset)
			}
			ln.offset, ln.broke = int(runes(cur.text[:b.at])), true
			c.t.broke(b, cur, moved, c.conv)
		} else {
			ln.broke = false
		}
	}
	ln.requests++
	ln.prompt += cur.prompt
	ln.last, ln.counted = *cur, true
	c.leaves.add(cur.text, l)
}

func abs(v int) int { return max(v, -v) }

// headOnly reports whether the first n bytes of t lie in its tools and system messages.
func headOnly(t *turn, n int) bool {
	at := 0
	for _, s := range t.segs {
		if s.kind != segTools && s.kind != segSystem {
			break
		}
		at += s.len
	}
	return n <= at || at == 0
}

// resume finds a line that cur goes on with although its beginning differs: what differs is short, and most of the
// rest is the same.
func (c *conversations) resume(cur *turn) (int, *breakAt) {
	for k := len(c.lines) - 1; k >= 0; k-- {
		last := &c.lines[k].last
		if !c.lines[k].counted {
			continue
		}
		b := explain(last, cur)
		if b.resumes > 0 && 2*(b.at+b.resumes) >= len(last.text) && c.sameHead(last, cur, b) {
			return k, b
		}
	}
	return -1, nil
}

// sameHead tells a head with a volatile piece from another head: a side query brings its own system prompt, and no
// tools.
func (c *conversations) sameHead(last, cur *turn, b *breakAt) bool {
	if head(last.segs, segTools) > 0 != (head(cur.segs, segTools) > 0) {
		return false
	}
	differs := max(b.before, b.after)
	return differs <= 64 || differs <= maxVolatile && 2*differs < head(last.segs, segTools, segSystem)
}

// head returns the length in bytes of the pieces of the given kinds.
func head(segs []seg, kinds ...segKind) int {
	n := 0
	for _, s := range segs {
		if slices.Contains(kinds, s.kind) {
			n += s.len
		}
	}
	return n
}

// finish ends the conversation.
func (c *conversations) finish() {
	if !c.open {
		return
	}
	c.open = false
	if c.turns == 0 {
		return
	}
	if c.hasPrev {
		c.t.pin(&c.prev.row, nil)
	}
	if c.branch {
		c.t.branches++
	} else {
		c.t.conversation(c.first, c.last, c.turns, c.collides)
	}
	if c.leaves.shed {
		c.t.limited++
	}
	c.finishLines()
}

func (c *conversations) finishLines() {
	if len(c.lines) == 0 {
		return
	}
	main := 0
	for k := range c.lines {
		if a, b := &c.lines[k], &c.lines[main]; a.requests > b.requests || a.requests == b.requests && a.prompt > b.prompt {
			main = k
		}
	}
	l := &c.t.lines
	c.t.hasLines = true
	c.t.mainRepeated += c.lines[main].repeated
	c.t.mainCompared += c.lines[main].compared
	if len(c.lines) > 1 {
		l.Conversations++
	}
	for k := range c.lines {
		if k == main {
			continue
		}
		l.SideRequests += c.lines[k].requests
		l.SidePrompt += c.lines[k].prompt
		if c.lines[k].requests == 1 {
			l.SideQueries++
			l.SideQueryPrompt += c.lines[k].prompt
		}
	}
}

// isSpace reports whether b is nothing but white space.
func isSpace(b []byte) bool { return len(bytes.TrimSpace(b)) == 0 }
