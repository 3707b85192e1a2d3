package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
)

// blockHash names the content of a full block: its tokens, all tokens before it and the salt.
// It is wide enough that two different prefixes never share one.
type blockHash [sha256.Size]byte

// hashBlock chains one full block onto its parent. parent is nil for a sequence's first block, the
// only one that the salt enters: it separates everything behind it.
func hashBlock(parent *blockHash, tokens []int32, salt string) blockHash {
	buf := make([]byte, 0, sha256.Size+4*len(tokens)+len(salt)+9)
	if parent == nil {
		buf = append(buf, 0)
		buf = binary.LittleEndian.AppendUint64(buf, uint64(len(salt)))
		buf = append(buf, salt...)
	} else {
		buf = append(buf, 1)
		buf = append(buf, parent[:]...)
	}
	for _, t := range tokens {
		buf = binary.LittleEndian.AppendUint32(buf, uint32(t))
	}
	return sha256.Sum256(buf)
}

// block is the bookkeeping of one block of the pool.
type block struct {
	refs       int32 // owners: live sequences and pins; 0 means it is in the free queue
	hashed     bool
	hash       blockHash
	sibling    int32 // next block with the same hash, 0 ends the list
	prev, next int32 // neighbours in the free queue, while refs is 0
	content    blockContent
}

// blockContent is what a block really holds, whatever it is hashed as. No real engine knows; here it
// tells right reuse from wrong. Invariant: it changes only while the block has an owner.
type blockContent struct {
	parent blockHash // of all tokens before the block, and of the salt
	tokens []int32   // at most a block; not modified
	bad    bool      // computed from wrong KV, or read as something else
}

// serves says whether the block holds the KV that tokens need behind parent.
func (b blockContent) serves(parent blockHash, tokens []int32) bool {
	return !b.bad && b.parent == parent && len(tokens) <= len(b.tokens) && slices.Equal(tokens, b.tokens[:len(tokens)])
}

// blockPool hands out blocks and remembers which hold a known prefix.
//
// The free queue is vLLM's: taken from the front; released to the back when the block holds a known
// prefix, to the front when it does not (the recordings show an unhashed tail block handed out again
// before any unused one). So cached blocks are evicted in the order of release. Block 0 is never
// handed out, as in vLLM; here it is the queue's sentinel.
//
// Invariant: a block is in the free queue if and only if refs is 0.
type blockPool struct {
	blocks []block
	free   int // length of the free queue
	cached int // blocks in the free queue that are hashed
	byHash map[blockHash]int32
}

func newBlockPool(n int) *blockPool {
	p := &blockPool{blocks: make([]block, n), byHash: make(map[blockHash]int32)}
	for id := 1; id < n; id++ {
		p.enqueue(int32(id), false)
	}
	return p
}

// usable is the number of blocks that can be handed out.
func (p *blockPool) usable() int { return len(p.blocks) - 1 }

func (p *blockPool) enqueue(id int32, front bool) {
	after := p.blocks[0].prev // last
	if front {
		after = 0
	}
	before := p.blocks[after].next
	p.blocks[id].prev, p.blocks[id].next = after, before
	p.blocks[after].next, p.blocks[before].prev = id, id
	p.free++
	if p.blocks[id].hashed {
		p.cached++
	}
}

func (p *blockPool) dequeue(id int32) {
	b := &p.blocks[id]
	p.blocks[b.prev].next, p.blocks[b.next].prev = b.next, b.prev
	p.free--
	if b.hashed {
		p.cached--
	}
}

// take hands out the block at the front of the free queue, forgetting what it cached.
func (p *blockPool) take() int {
	id := p.blocks[0].next
	if id == 0 {
		panic("BUG: take from an empty block pool")
	}
	p.dequeue(id)
	p.unhash(id)
	p.blocks[id].refs, p.blocks[id].content = 1, blockContent{}
	return int(id)
}

// touch adds an owner to a block, taking it out of the free queue if it was there.
func (p *blockPool) touch(id int) {
	b := &p.blocks[id]
	if b.refs == 0 {
		p.dequeue(int32(id))
	}
	b.refs++
}

// release drops one owner of each block, last block first: a prefix's tail is evicted before its head.
func (p *blockPool) release(ids []int) {
	for i := len(ids) - 1; i >= 0; i-- {
		b := &p.blocks[ids[i]]
		if b.refs <= 0 {
			panic(fmt.Sprintf("BUG: release of free block %d", ids[i]))
		}
		b.refs--
		if b.refs == 0 {
			p.enqueue(int32(ids[i]), !b.hashed)
		}
	}
}

// lookup returns a block that holds h.
func (p *blockPool) lookup(h blockHash) (int, bool) {
	id, ok := p.byHash[h]
	return int(id), ok
}

// setHash records that a block in use now holds h. Several blocks may hold the same content.
func (p *blockPool) setHash(id int, h blockHash) {
	b := &p.blocks[id]
	if b.hashed {
		if b.hash == h {
			return
		}
		p.unhash(int32(id))
	}
	first, ok := p.byHash[h]
	if !ok {
		p.byHash[h] = int32(id)
	} else {
		b.sibling = p.blocks[first].sibling
		p.blocks[first].sibling = int32(id)
	}
	b.hash, b.hashed = h, true
}

// unhash makes a block anonymous. The block must not be in the free queue.
func (p *blockPool) unhash(id int32) {
	b := &p.blocks[id]
	if !b.hashed {
		return
	}
	if first := p.byHash[b.hash]; first == id {
		if b.sibling == 0 {
			delete(p.byHash, b.hash)
		} else {
			p.byHash[b.hash] = b.sibling
		}
	} else {
		for p.blocks[first].sibling != id {
			first = p.blocks[first].sibling
		}
		p.blocks[first].sibling = b.sibling
	}
	b.hashed, b.hash, b.sibling = false, blockHash{}, 0
}

// forget empties the prefix cache. Contents and owners stay.
func (p *blockPool) forget() {
	for id := range p.blocks {
		p.blocks[id].hashed, p.blocks[id].hash, p.blocks[id].sibling = false, blockHash{}, 0
	}
	clear(p.byHash)
	p.cached = 0
}

// check compares the pool with the owners' own lists. owners counts, per block, how many lists
// mention it.
func (p *blockPool) check(owners map[int]int) error {
	seen := make(map[int32]bool)
	cached := 0
	for id, last := p.blocks[0].next, int32(0); id != 0; last, id = id, p.blocks[id].next {
		b := &p.blocks[id]
		switch {
		case seen[id]:
			return fmt.Errorf("block %d is twice in the free queue", id)
		case b.refs != 0:
			return fmt.Errorf("block %d is in the free queue with %d owners", id, b.refs)
		case b.prev != last:
			return fmt.Errorf("block %d: broken link in the free queue", id)
		}
		seen[id] = true
		if b.hashed {
			cached++
		}
	}
	if len(seen) != p.free || cached != p.cached {
		return fmt.Errorf("free queue has %d blocks, %d of them cached; counted as %d, %d", len(seen), cached, p.free, p.cached)
	}
	hashed := 0
	for id := 1; id < len(p.blocks); id++ {
		b := &p.blocks[id]
		if int(b.refs) != owners[id] {
			return fmt.Errorf("block %d has %d owners, %d lists mention it", id, b.refs, owners[id])
		}
		if (b.refs == 0) != seen[int32(id)] {
			return fmt.Errorf("block %d: %d owners, in the free queue: %v", id, b.refs, seen[int32(id)])
		}
		if b.hashed {
			hashed++
			at, ok := p.byHash[b.hash]
			for ok && at != int32(id) && at != 0 {
				at = p.blocks[at].sibling
			}
			if at != int32(id) {
				return fmt.Errorf("block %d is hashed but cannot be found", id)
			}
		}
	}
	listed := 0
	for h, first := range p.byHash {
		for at := first; at != 0; at = p.blocks[at].sibling {
			if !p.blocks[at].hashed || p.blocks[at].hash != h {
				return fmt.Errorf("block %d is listed under a hash it does not hold", at)
			}
			listed++
		}
	}
	if listed != hashed {
		return fmt.Errorf("%d hashed blocks, %d listed", hashed, listed)
	}
	if owners[0] != 0 {
		return fmt.Errorf("block 0 is owned")
	}
	return nil
}
