package sim

// A pool is an engine's KV memory in tokens, whole blocks: what requests use, what is pinned, and a prefix cache with
// one entry for each conversation.
type pool struct {
	side       side
	capacity   int64 // tokens
	used       int64 // cached entries and what requests hold besides
	idle       int64 // of used, entries that nothing uses
	pinned     int64 // of used, retained for nobody but a handle or lease
	block      int
	open       int   // conversations that are at home here
	head, tail int32 // of the list of entries that nothing uses, least recent first; -1 none
	convs      *[]conversation
	gone       *[]int32 // conversations of which nothing is left here

	pinnedSum float64 // over time, token·ms; see pinnedMean
	pinnedMax int64
	evicted   int64 // tokens
}

// side is which of a conversation's two cache entries is meant.
type side uint8

const (
	atP side = iota
	atD
)

// entry is what one engine has cached of a conversation. It is in the list if nothing uses it.
type entry struct {
	tokens     int32 // whole blocks
	users      int16
	listed     bool
	engine     int16
	prev, next int32
}

func (p *pool) entry(conv int32) *entry { return &(*p.convs)[conv].entries[p.side] }

func (p *pool) blocks(tokens int) int64 {
	return int64((tokens + p.block - 1) / p.block * p.block)
}

func (p *pool) floor(tokens int) int { return max(tokens, 0) / p.block * p.block }

// room makes place for n tokens, and reports whether there is.
func (p *pool) room(n int64) bool {
	for p.capacity-p.used < n {
		c := p.head
		if c < 0 {
			return false
		}
		e := p.entry(c)
		// The tail of a sequence goes first.
		drop := min(int64(e.tokens), p.blocks(int(n-(p.capacity-p.used))))
		e.tokens -= int32(drop)
		p.used -= drop
		p.idle -= drop
		p.evicted += drop
		if e.tokens <= 0 {
			p.unlist(c, e)
			*p.gone = append(*p.gone, c)
		}
	}
	return true
}

func (p *pool) unlist(c int32, e *entry) {
	if !e.listed {
		return
	}
	if e.prev >= 0 {
		p.entry(e.prev).next = e.next
	} else {
		p.head = e.next
	}
	if e.next >= 0 {
		p.entry(e.next).prev = e.prev
	} else {
		p.tail = e.prev
	}
	e.listed = false
	p.idle -= int64(e.tokens)
}

// use keeps a conversation's entry from eviction.
func (p *pool) use(c int32) {
	e := p.entry(c)
	p.unlist(c, e)
	e.users++
}

// unuse ends that. The last user makes it the most recent.
func (p *pool) unuse(c int32) {
	e := p.entry(c)
	e.users--
	if e.users > 0 || e.tokens <= 0 {
		return
	}
	e.prev, e.next, e.listed = p.tail, -1, true
	p.idle += int64(e.tokens)
	if p.tail >= 0 {
		p.entry(p.tail).next = c
	} else {
		p.head = c
	}
	p.tail = c
}

// set makes the entry n tokens long, of which the caller has accounted for held (taken by room).
func (p *pool) set(c int32, n int, held int64) {
	e := p.entry(c)
	p.used += int64(n) - int64(e.tokens) - held
	e.tokens = int32(n)
}

// drop forgets an entry that nothing uses.
func (p *pool) drop(c int32) {
	e := p.entry(c)
	p.unlist(c, e)
	p.used -= int64(e.tokens)
	e.tokens = 0
}

// trim forgets what an entry in use has beyond its first n tokens, if nobody else uses it: another text follows there.
func (p *pool) trim(e *entry, n int) {
	if e.users == 1 && int(e.tokens) > n {
		p.used -= int64(e.tokens) - int64(n)
		e.tokens = int32(n)
	}
}
