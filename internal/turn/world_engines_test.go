package turn

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Here is what two engines do with KV, without computing any: enough to see whether what P reads from D
// is what its prompt needs. What engines do is described in docs/engine.md.

// pageSize is the block size of both engines, in tokens.
const pageSize = 4

// An entry is the KV of one token in its place: it stands for all tokens up to it.
type entry uint64

// drafts is the KV of tokens that nobody has verified.
const drafts entry = 1

func (e entry) follow(token int32) entry {
	x := (uint64(e) ^ uint64(uint32(token))) * 0x9e3779b97f4a7c15
	return entry(x ^ x>>29)
}

// kvOf is the KV of a sequence.
func kvOf(start entry, ids []int32) []entry {
	kv := make([]entry, len(ids))
	for i, id := range ids {
		start = start.follow(id)
		kv[i] = start
	}
	return kv
}

// salted begins the chain of hashes in P's prefix cache.
func salted(tenant int) entry { return entry(1000 + tenant) }

// decoder is D: memory in blocks that are used again as soon as they are free, and what it retains.
type decoder struct {
	life   int
	memory []entry // [blocks][pageSize]
	free   []int   // blocks; the last is used first
	kept   []*retained
	made   int // requests so far
}

// retained are the blocks of a request that has ended.
type retained struct {
	id     string
	blocks []int
	until  time.Duration
}

const decoderBlocks = 700

func newDecoder() *decoder {
	d := &decoder{}
	d.restart()
	return d
}

// restart begins another life. All memory is lost.
func (d *decoder) restart() {
	d.life++
	d.memory = make([]entry, decoderBlocks*pageSize)
	d.kept = nil
	d.free = d.free[:0]
	for b := range decoderBlocks {
		d.free = append(d.free, b)
	}
}

func (d *decoder) engineID() string { return engineID(d.life) }

func engineID(life int) string { return "d-" + strconv.Itoa(life) }

// write puts KV into free blocks. ok is false if there are too few.
func (d *decoder) write(kv []entry) (blocks []int, ok bool) {
	n := (len(kv) + pageSize - 1) / pageSize
	if n > len(d.free) {
		return nil, false
	}
	blocks = slices.Clone(d.free[len(d.free)-n:])
	d.free = d.free[:len(d.free)-n]
	for i, e := range kv {
		d.memory[blocks[i/pageSize]*pageSize+i%pageSize] = e
	}
	return blocks, true
}

// notify ends the retention of a request, if there is one.
func (d *decoder) notify(id string) {
	for i, r := range d.kept {
		if r.id == id {
			d.free = append(d.free, r.blocks...)
			d.kept = slices.Delete(d.kept, i, i+1)
			return
		}
	}
}

// expire ends the retention of all whose time is over.
func (d *decoder) expire(now time.Duration) {
	d.kept = slices.DeleteFunc(d.kept, func(r *retained) bool {
		if r.until <= now {
			d.free = append(d.free, r.blocks...)
		}
		return r.until <= now
	})
}

func (d *decoder) keeps(id string) bool {
	return slices.ContainsFunc(d.kept, func(r *retained) bool { return r.id == id })
}

// prefiller is P: a prefix cache of whole blocks by the hash of all tokens up to their end.
type prefiller struct {
	flag  bool // bidirectional transfer is on
	least int  // kv_recompute_threshold
	cache map[entry]int
	order []entry // oldest first
}

const prefillerBlocks = 400

func newPrefiller() *prefiller { return &prefiller{flag: true, cache: map[entry]int{}} }

// hit is how many tokens of a prompt are in the prefix cache, given the hashes of its prefixes.
func (p *prefiller) hit(hashes []entry) int {
	n := 0
	for n+pageSize <= len(hashes)-1 && p.cache[hashes[n+pageSize-1]] > 0 {
		n += pageSize
	}
	return n
}

func (p *prefiller) fill(hashes []entry) {
	for n := pageSize; n <= len(hashes); n += pageSize {
		h := hashes[n-1]
		p.cache[h]++
		p.order = append(p.order, h)
	}
	p.evict(len(p.order) - prefillerBlocks)
}

// evict takes out the n blocks that were used longest ago.
func (p *prefiller) evict(n int) {
	if n <= 0 {
		return
	}
	n = min(n, len(p.order))
	for _, h := range p.order[:n] {
		if p.cache[h]--; p.cache[h] == 0 {
			delete(p.cache, h)
		}
	}
	p.order = append(p.order[:0], p.order[n:]...)
}

// wireParams are kv_transfer_params as an engine reads them.
type wireParams struct {
	Decode  *bool           `json:"do_remote_decode"`
	Prefill *bool           `json:"do_remote_prefill"`
	Blocks  [][]int         `json:"remote_block_ids"`
	Engine  *string         `json:"remote_engine_id"`
	Request *string         `json:"remote_request_id"`
	Host    *string         `json:"remote_host"`
	Port    *int            `json:"remote_port"`
	Tokens  json.RawMessage `json:"remote_num_tokens"`
	Expiry  *float64        `json:"remote_blocks_expiry_time"`

	tokens int
}

func readParams(raw []byte) (p wireParams, err error) {
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, err
	}
	if len(p.Tokens) > 0 && string(p.Tokens) != "null" {
		p.tokens, err = strconv.Atoi(string(p.Tokens))
	}
	return p, err
}

// handles reports whether these params name blocks, so that P does something with them.
func (p *wireParams) handle() bool {
	return len(p.Blocks) > 0 && p.Engine != nil && p.Request != nil && p.Host != nil && p.Port != nil
}

// computed is what P made of a prompt.
type computed struct {
	local, pulled int
	failed        bool // it could not read
	hangs         bool // for ever
}

// compute is what P does with a prompt, and D with P's notification. wrong says what P read that it
// should not have: P itself does not notice.
func (w *world) compute(tenant int, ids []int32, raw []byte) (out computed, wrong string) {
	hashes := kvOf(salted(tenant), ids)
	out.local = w.p.hit(hashes)
	if raw == nil {
		w.p.fill(hashes)
		return out, ""
	}
	params, err := readParams(raw)
	if err != nil {
		return out, "P's engine dies of params that it cannot read: " + err.Error()
	}
	if params.handle() {
		count := min(params.tokens, len(ids)) - out.local
		if count <= 0 || count < w.p.least {
			w.d.notify(*params.Request)
		} else {
			switch {
			case !w.p.flag:
				out.hangs = true
				return out, ""
			case *params.Engine != w.d.engineID():
				out.failed = true // no such engine any more
				return out, ""
			case params.Expiry != nil && *params.Expiry <= w.now.Seconds():
				out.failed = true // P refuses; D is not told
				return out, ""
			}
			out.pulled = count
			if wrong = w.read(&params, ids, out.local, count); wrong != "" {
				return out, wrong
			}
			w.d.notify(*params.Request)
		}
	}
	w.p.fill(hashes)
	return out, ""
}

// read compares what P takes from D's blocks with what its prompt needs. The engine pairs blocks from the end of the list.
func (w *world) read(params *wireParams, ids []int32, local, count int) (wrong string) {
	list := params.Blocks[0]
	n := (min(params.tokens, len(ids))+pageSize-1)/pageSize - local/pageSize
	if n > len(list) {
		return fmt.Sprintf("P's worker dies: it needs %d blocks, and the list has %d", n, len(list))
	}
	list = list[len(list)-n:]
	want := kvOf(0, ids)
	for at := local; at < local+count; at++ {
		got := w.d.memory[list[(at-local)/pageSize]*pageSize+at%pageSize]
		if got != want[at] {
			state := "frees"
			if w.d.keeps(*params.Request) {
				state = "keeps"
			}
			return fmt.Sprintf("P reads wrong KV for token %d of %d (%d local, %d to pull, D %s the blocks)", at, len(ids), local, count, state)
		}
	}
	return ""
}
