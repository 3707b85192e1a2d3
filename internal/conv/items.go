package conv

import (
	"container/list"
	"sync"
)

// Items keeps what was said in stored responses, so that a request can go on from one by
// previous_response_id. Only the router can do that: P has never seen what D answered.
//
// Unlike everything else here this is content. It is bounded, belongs to one scope, and is gone
// with the process; a client then gets the same 404 as for an id that never was.
//
// Items is safe for concurrent use.
type Items struct {
	limit int // bytes

	mu    sync.Mutex
	byID  map[Key]*list.Element // of said
	lru   list.List             // newest first
	bytes int
}

type said struct {
	id    Key
	items []byte // the elements of a JSON array, without its brackets
}

// DefaultItemBytes is 256 MiB: a thousand long conversations, or many short ones.
const DefaultItemBytes = 256 << 20

// NewItems returns an empty store of at most limit bytes.
func NewItems(limit int) *Items { return &Items{limit: limit, byID: map[Key]*list.Element{}} }

// itemOverhead is what an entry takes besides its items, in bytes.
const itemOverhead = 200

// Put keeps the items that a response with this id ends. The oldest go when there is no room.
func (s *Items) Put(id Key, items []byte) {
	if len(items)+itemOverhead > s.limit {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.byID[id]; ok {
		s.remove(old)
	}
	s.byID[id] = s.lru.PushFront(said{id, items})
	s.bytes += len(items) + itemOverhead
	for s.bytes > s.limit {
		s.remove(s.lru.Back())
	}
}

// Get returns the items that the response with this id ends: elements of a JSON array, separated
// by commas. They must not be changed.
func (s *Items) Get(id Key) (items []byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.byID[id]
	if !ok {
		return nil, false
	}
	s.lru.MoveToFront(at)
	return at.Value.(said).items, true
}

// remove forgets one entry. Callers hold the lock.
func (s *Items) remove(at *list.Element) {
	e := at.Value.(said)
	s.lru.Remove(at)
	delete(s.byID, e.id)
	s.bytes -= len(e.items) + itemOverhead
}
