package engine

import (
	"math/rand/v2"
	"slices"
	"time"
)

// seqState is where a request is.
type seqState uint8

const (
	seqWaiting seqState = iota // in core.waiting
	seqRunning                 // in core.running
	seqParked                  // in core.parked: holds blocks for a READ
	seqOrphan                  // in core.parked, but aborted: its blocks wait for the READ's report
	seqEnded
)

// seq is one request on its way.
//
// Invariants: computed <= len(ids); blocks covers at least computed tokens; the first hashedBlocks
// blocks carry the hashes of ids' first full blocks.
type seq struct {
	req     Request
	params  *transferParams // nil: none, or no connector
	arrival uint64          // order of Submit
	sink    func(Output)    // never blocks
	state   seqState

	ids          []int32 // prompt, then what was generated
	computed     int     // tokens whose KV is in blocks
	blocks       []int
	hashes       []blockHash // of ids' full blocks, as far as they were needed
	hashedBlocks int
	tainted      bool // its KV is not that of its tokens

	// The READ a parked request waits for.
	pullEnd int // tokens covered when it is done: local hit + pulled
	stage   fetchStage

	// What the first admission found; reported, and counted at the first token.
	admitted bool
	localHit int
	pulled   int

	promptLogprobs [][]TokenLogprob
	rng            *rand.Rand
	preemptions    int

	arrived, scheduled, first, last time.Duration // core clock
	wasScheduled                    bool
}

type fetchStage uint8

const (
	fetchNone    fetchStage = iota // nothing queued
	fetchQueued                    // the READ waits for its turn or for the handshake
	fetchRunning                   // bytes are moving
	fetchDone                      // the request may be scheduled again
)

func (s *seq) prompt() int { return len(s.req.Prompt) }
func (s *seq) output() int { return len(s.ids) - len(s.req.Prompt) }

// cachedTokens is what usage reports: on an engine that pulled from P, P's own number from 0.31 on.
func (s *seq) cachedTokens(v release) int {
	if s.params != nil && s.params.cached >= 0 && v.has(sinceCached) {
		return s.params.cached
	}
	return s.localHit + s.pulled
}

// blockHashes returns the hashes of the first n full blocks of ids.
func (s *seq) blockHashes(n, blockSize int) []blockHash {
	for b := len(s.hashes); b < n; b++ {
		var parent *blockHash
		if b > 0 {
			parent = &s.hashes[b-1]
		}
		s.hashes = append(s.hashes, hashBlock(parent, s.ids[b*blockSize:(b+1)*blockSize], s.req.Salt))
	}
	return s.hashes[:n]
}

// parent names all that comes before block b, the salt included.
func (s *seq) parent(b, blockSize int) blockHash {
	if b == 0 {
		return hashBlock(nil, nil, s.req.Salt)
	}
	return s.blockHashes(b, blockSize)[b-1]
}

// emit hands an output to the request's reader.
func (s *seq) emit(o Output, v release) {
	o.LocalHitTokens, o.PulledTokens = s.localHit, s.pulled
	o.CachedTokens = s.cachedTokens(v)
	s.sink(o)
}

// remove takes s out of a list, keeping the order.
func remove(list []*seq, s *seq) []*seq {
	if i := slices.Index(list, s); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// insertByArrival puts s before the first request that came later: whoever waited longest goes first,
// also after a preemption or a READ.
func insertByArrival(list []*seq, s *seq) []*seq {
	i, _ := slices.BinarySearchFunc(list, s, func(a, b *seq) int {
		switch {
		case a.arrival < b.arrival:
			return -1
		case a.arrival > b.arrival:
			return 1
		}
		return 0
	})
	return slices.Insert(list, i, s)
}
