package tokenizer

import (
	"container/heap"
	"math"
	"sync"
)

// pair is two neighbouring token ids, left in the high half.
type pair uint64

func pairOf(left, right int32) pair { return pair(uint32(left))<<32 | pair(uint32(right)) }

// merge says that a pair becomes one token. Lower ranks are applied first.
type merge struct {
	rank int32
	id   int32
}

const noRank = math.MaxInt32

// bpe applies merge rules to one piece of pre-tokenised text.
type bpe struct {
	merges map[pair]merge
	cache  pieceCache
}

func (b *bpe) rankOf(left, right int32) int32 {
	if m, ok := b.merges[pairOf(left, right)]; ok {
		return m.rank
	}
	return noRank
}

// shortPiece is the length, in symbols, up to which scanning for the lowest rank on the stack beats
// a heap. Nearly all words are shorter.
const shortPiece = 48

// mergeAll reduces symbols in place: as long as any neighbouring pair has a rule, the pair with the
// lowest rank, leftmost on a tie, becomes one symbol. It returns the shortened slice.
func (b *bpe) mergeAll(symbols []int32) []int32 {
	if len(symbols) <= shortPiece {
		return b.mergeShort(symbols)
	}
	return b.mergeLong(symbols)
}

func (b *bpe) mergeShort(symbols []int32) []int32 {
	if len(symbols) < 2 {
		return symbols
	}
	var buf [shortPiece]int32
	ranks := buf[:len(symbols)-1] // ranks[i] is that of symbols[i], symbols[i+1]
	for i := range ranks {
		ranks[i] = b.rankOf(symbols[i], symbols[i+1])
	}
	for len(ranks) > 0 {
		best, at := int32(noRank), -1
		for i, rank := range ranks {
			if rank < best {
				best, at = rank, i
			}
		}
		if at < 0 {
			break
		}
		symbols[at] = b.merges[pairOf(symbols[at], symbols[at+1])].id
		symbols = append(symbols[:at+1], symbols[at+2:]...)
		ranks = append(ranks[:at], ranks[at+1:]...)
		if at > 0 {
			ranks[at-1] = b.rankOf(symbols[at-1], symbols[at])
		}
		if at < len(ranks) {
			ranks[at] = b.rankOf(symbols[at], symbols[at+1])
		}
	}
	return symbols
}

// candidate is a possible merge of the symbol at position left with the one after it. It is stale
// once either symbol has changed, which the stored pair shows.
type candidate struct {
	rank        int32
	left, right int32
	pair        pair
}

type candidates []candidate

func (c candidates) Len() int { return len(c) }
func (c candidates) Less(i, j int) bool {
	if c[i].rank != c[j].rank {
		return c[i].rank < c[j].rank
	}
	return c[i].left < c[j].left
}
func (c candidates) Swap(i, j int) { c[i], c[j] = c[j], c[i] }
func (c *candidates) Push(x any)   { *c = append(*c, x.(candidate)) }
func (c *candidates) Pop() any {
	last := len(*c) - 1
	x := (*c)[last]
	*c = (*c)[:last]
	return x
}

var _ heap.Interface = (*candidates)(nil)

// mergeLong is mergeShort in O(n log n): a heap of candidates over a doubly linked list. A text can
// be one piece of 100 kB (base64, a run of letters without a space), where the scan would be quadratic.
func (b *bpe) mergeLong(symbols []int32) []int32 {
	n := int32(len(symbols))
	prev := make([]int32, n)
	next := make([]int32, n)
	alive := make([]bool, n)
	for i := range n {
		prev[i], next[i], alive[i] = i-1, i+1, true
	}
	queue := make(candidates, 0, n)
	consider := func(left, right int32) candidate {
		p := pairOf(symbols[left], symbols[right])
		if m, ok := b.merges[p]; ok {
			return candidate{rank: m.rank, left: left, right: right, pair: p}
		}
		return candidate{rank: noRank}
	}
	for i := range n - 1 {
		if c := consider(i, i+1); c.rank != noRank {
			queue = append(queue, c)
		}
	}
	heap.Init(&queue)
	for len(queue) > 0 {
		c := heap.Pop(&queue).(candidate)
		if !alive[c.left] || !alive[c.right] || next[c.left] != c.right ||
			pairOf(symbols[c.left], symbols[c.right]) != c.pair {
			continue
		}
		symbols[c.left] = b.merges[c.pair].id
		alive[c.right] = false
		after := next[c.right]
		next[c.left] = after
		if after < n {
			prev[after] = c.left
			if nc := consider(c.left, after); nc.rank != noRank {
				heap.Push(&queue, nc)
			}
		}
		if before := prev[c.left]; before >= 0 {
			if nc := consider(before, c.left); nc.rank != noRank {
				heap.Push(&queue, nc)
			}
		}
	}
	out := symbols[:0]
	for i := int32(0); i < n; i = next[i] {
		out = append(out, symbols[i])
	}
	return out
}

// pieceCache remembers the ids of short pieces. Words repeat, and a lookup costs a tenth of a merge.
//
// It is bounded: each shard is emptied when full, so that text that never repeats cannot grow it.
type pieceCache struct {
	shards [cacheShards]struct {
		mu     sync.Mutex
		pieces map[string][]int32
	}
}

const (
	cacheShards      = 16
	cacheShardPieces = 1024 // pieces per shard
	cachePieceBytes  = 64   // longer pieces are not kept
)

func (c *pieceCache) shard(piece string) int {
	h := uint32(2166136261)
	for i := range len(piece) {
		h = (h ^ uint32(piece[i])) * 16777619
	}
	return int(h>>16) % cacheShards
}

// get returns the cached ids of piece; the caller must not change them.
func (c *pieceCache) get(piece string) ([]int32, bool) {
	if len(piece) > cachePieceBytes {
		return nil, false
	}
	s := &c.shards[c.shard(piece)]
	s.mu.Lock()
	ids, ok := s.pieces[piece]
	s.mu.Unlock()
	return ids, ok
}

// put stores a copy of ids under a copy of piece, so that the text piece was cut from can be freed.
func (c *pieceCache) put(piece string, ids []int32) {
	if len(piece) > cachePieceBytes {
		return
	}
	s := &c.shards[c.shard(piece)]
	kept := append([]int32(nil), ids...)
	key := string([]byte(piece))
	s.mu.Lock()
	if s.pieces == nil || len(s.pieces) >= cacheShardPieces {
		s.pieces = make(map[string][]int32)
	}
	s.pieces[key] = kept
	s.mu.Unlock()
}
