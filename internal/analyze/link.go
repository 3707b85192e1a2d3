package analyze

import (
	"encoding/binary"
	"hash/maphash"
)

// linker finds the conversation of rows that do not name one, by their content. Rows come in the order of their
// start.
//
// What a request continues is an earlier request whose content is the beginning of its own:
//
//	block ids     the deepest earlier request of two or more blocks all of whose full blocks it repeats; the last
//	              such request, if several are equal
//	messages      the earlier request with the most messages whose messages, system messages, tools and reasoning
//	              apart, are the first ones of its own, in the same tenant and model. So a volatile system prompt or
//	              a side query does not hide the conversation
//	other texts   the longest earlier prompt of at least 256 bytes that it begins with
//	token ids     the same, of at least 64 ids
//
// Only hashes are kept, in two generations of bounded size: when the younger one is full the older one is
// forgotten. Requests that would have continued something forgotten begin a conversation of their own.
type linker struct {
	seed   maphash.Seed
	limit  int
	ends   generations[origin]
	blocks generations[struct{}] // every prefix of block ids seen
	names  salter
	out    func(*row, []byte) error
	hashes []uint64
}

// origin is an earlier request that may be continued. Fields are those of its row.
type origin struct {
	row    row
	length int // of its content, in bytes
	full   uint64
	child  bool // something has continued it already
}

type generations[V any] struct {
	young, old map[uint64]V
	forgotten  int64
}

func (g *generations[V]) get(k uint64) (V, bool) {
	if v, ok := g.young[k]; ok {
		return v, true
	}
	v, ok := g.old[k]
	return v, ok
}

func (g *generations[V]) put(k uint64, v V, limit int) {
	if g.young == nil || len(g.young) >= limit {
		g.forgotten += int64(len(g.old))
		g.old, g.young = g.young, make(map[uint64]V)
	}
	g.young[k] = v
}

func newLinker(budget int64, salt []byte, out func(*row, []byte) error) *linker {
	// An entry of ends costs about 250 bytes with the map's slack, one of blocks 24; two generations of each.
	return &linker{seed: maphash.MakeSeed(), limit: int(max(1024, budget/1000)), names: salter{salt: salt}, out: out}
}

func (l *linker) chain(h uint64, piece []byte) uint64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], h)
	var m maphash.Hash
	m.SetSeed(l.seed)
	_, _ = m.Write(b[:])
	_, _ = m.Write(piece)
	return m.Sum64()
}

func (l *linker) add(r *row, enc []byte) error {
	switch r.kind {
	case hashContent:
		return l.addHashes(r, enc)
	case idContent:
		return l.addFlat(r, enc, enc, 4*64)
	case textContent:
		prompt, reply, segs, replySegs := decodeContent(enc)
		if len(segs) == 1 && segs[0].kind == segRaw {
			return l.addFlat(r, enc, prompt, 256)
		}
		return l.addMessages(r, enc, prompt, reply, segs, replySegs)
	}
	return l.out(r, enc)
}

func (l *linker) scope(r *row) uint64 {
	return l.chain(uint64(r.kind), binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, r.model), r.tenant))
}

// begin makes r the first request of a conversation.
func (l *linker) begin(r *row) {
	r.conv = l.names.sum('l', binary.LittleEndian.AppendUint64(nil, r.seq))
}

// minBlocks is the least depth at which a request's end can be continued: all requests of a service may share the
// first block, its system prompt.
const minBlocks = 2

func (l *linker) addHashes(r *row, enc []byte) error {
	l.hashes = l.hashes[:0]
	h := l.scope(r)
	known, alive := 0, true
	var parent uint64
	var from origin
	for i := 0; i+8 <= len(enc); i += 8 {
		h = l.chain(h, enc[i:i+8])
		l.hashes = append(l.hashes, h)
		if !alive {
			continue
		}
		if _, alive = l.blocks.get(h); !alive {
			continue
		}
		known++
		if o, ok := l.ends.get(h); ok && known >= minBlocks {
			parent, from = h, o
		}
	}
	size := int64(r.blockSize)
	r.best = min(int64(known)*size, r.prompt)
	// The parent's blocks, not those of the request before it in time, are what a turn is compared with.
	r.flags |= linked
	switch {
	case parent == 0:
		l.begin(r)
		r.best = max(r.best, 0)
	case !from.child:
		r.conv = from.row.conv
		from.child = true
		l.ends.put(parent, from, l.limit)
	default:
		l.begin(r)
		g := from.row
		g.conv = r.conv
		g.flags |= ghost
		if err := l.out(&g, nil); err != nil {
			return err
		}
	}
	full := len(l.hashes)
	if r.prompt%size != 0 {
		full--
	}
	for _, h := range l.hashes {
		l.blocks.put(h, struct{}{}, 8*l.limit)
	}
	if full >= minBlocks && full <= len(l.hashes) {
		o := origin{row: *r}
		o.row.kind = noContent
		l.ends.put(l.hashes[full-1], o, l.limit)
	}
	out := *r
	out.kind = noContent // the blocks have said what they can
	return l.out(&out, nil)
}

// addFlat links contents without structure.
func (l *linker) addFlat(r *row, enc, flat []byte, least int) error {
	// Ends are found by their first 256 bytes and their length in steps of 256, then compared whole by hash.
	scope := l.scope(r)
	h := scope
	found := false
	var from origin
	n := 0
	for n+least <= len(flat) {
		h = l.chain(h, flat[n:n+least])
		n += least
		for k, slot := h, 0; slot < 8; slot++ {
			k = l.chain(k, []byte{byte(slot)})
			o, ok := l.ends.get(k)
			if !ok {
				break
			}
			if o.length < len(flat) && o.length >= n && l.chain(scope, flat[:o.length]) == o.full {
				from, found = o, true
			}
		}
	}
	if found {
		r.conv = from.row.conv
	} else {
		l.begin(r)
	}
	r.flags |= linked
	if n > 0 {
		o := origin{row: row{conv: r.conv}, length: len(flat), full: l.chain(scope, flat)}
		k := h
		for slot := range 8 {
			k = l.chain(k, []byte{byte(slot)})
			if old, ok := l.ends.get(k); !ok || slot == 7 || old.full == o.full {
				break
			}
		}
		l.ends.put(k, o, l.limit)
	}
	return l.out(r, enc)
}

// addMessages links chats by what users, assistants and tools said.
func (l *linker) addMessages(r *row, enc, prompt, reply []byte, segs, replySegs []seg) error {
	l.hashes = l.hashes[:0]
	h := l.chainMessages(l.scope(r), prompt, segs)
	said := len(l.hashes)
	r.flags |= linked
	found := false
	for i := said - 2; i >= 0 && !found; i-- { // strictly longer: the same prompt again is no turn
		var o origin
		if o, found = l.ends.get(l.hashes[i]); found {
			r.conv = o.row.conv
		}
	}
	if !found {
		l.begin(r)
	}
	// Two conversations may begin with the same words; their replies tell them apart.
	if len(replySegs) > 0 {
		l.chainMessages(h, reply, replySegs)
	}
	for i := max(0, said-1); i < len(l.hashes); i++ {
		l.ends.put(l.hashes[i], origin{row: row{conv: r.conv}}, l.limit)
	}
	return l.out(r, enc)
}

// chainMessages appends to l.hashes one hash per message, each covering all before it, and returns the last.
func (l *linker) chainMessages(h uint64, text []byte, segs []seg) uint64 {
	at := 0
	for i, s := range segs {
		piece := text[at : at+s.len]
		at += s.len
		if s.kind == segSystem || s.kind == segTools || s.kind == segReasoning {
			continue
		}
		h = l.chain(h, append([]byte{byte(s.kind)}, piece...))
		if i+1 == len(segs) || segs[i+1].message {
			l.hashes = append(l.hashes, h)
		}
	}
	return h
}
