package conv

import (
	"container/list"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tarik-kv/tarik/internal/kvp"
)

// Turn is one finished turn as the next one finds it.
type Turn struct {
	Conversation string // name of the conversation: the id of its first turn
	Number       int    // 1 for the first turn
	// ByName: only the client's name for the conversation led here, not what was said.
	ByName bool
	// How it ended, in tokens, bytes, and times on the caller's clock; 0 where unknown.
	Ended       time.Duration
	Prompt      int // tokens
	PromptBytes int // of the messages or prompt, as sent
	Reply       int // tokens
	// Ready is how many tokens of what the next prompt begins with P was last given, and ReadyAt when.
	Ready   int
	ReadyAt time.Duration
	// Returned: that was a return, so P has been given the reply too.
	Returned bool
	// Prefill and Decode are the engine ids of the lives of P and D that served it, "" where unknown. What
	// another life has is not this one's.
	Prefill, Decode string

	key Key
}

// Key tells turns apart: two turns have the same one if all that was said up to them is the same.
func (t Turn) Key() Key { return t.key }

// String is for logs and tests. It shows no content.
func (t Turn) String() string {
	return fmt.Sprintf("conversation=%s turn=%d", t.Conversation, t.Number)
}

// Limits bound a Memory.
type Limits struct {
	Turns int // finished turns kept; the oldest goes first
	Bytes int // of handles and token ids; the oldest handle goes first
	// Tokens is how many tokens D may have to keep for all handles together, 0 for any number. An
	// engine never takes back what it keeps: it would rather let new requests wait.
	Tokens int
}

// DefaultLimits hold about a hundred thousand conversations in some 512 MB at the most.
var DefaultLimits = Limits{Turns: 100_000, Bytes: 512 << 20}

// Memory is the conversation store of one router process.
type Memory struct {
	limits Limits

	mu     sync.Mutex
	byKey  map[Key]*entry
	byID   map[Key]*entry // client's name → its latest turn
	lru    list.List      // of *entry, newest first
	bytes  int
	held   int
	tokens int // that D keeps for all handles
}

type entry struct {
	turn Turn
	id   Key // zero: none
	held *kvp.Held
	at   *list.Element
}

// NewMemory returns an empty store.
func NewMemory(l Limits) *Memory {
	return &Memory{limits: l, byKey: map[Key]*entry{}, byID: map[Key]*entry{}}
}

// Find returns the turn that a request with this chain continues, or the zero Turn and false. The
// longest known prefix wins; a turn of the same name is taken only if the chain finds none. If
// that turn's handle is still there, held is its content to look at: it must not be sent before
// Take has said yes.
func (m *Memory) Find(chain []Key, id Key) (t Turn, held *kvp.Held, found bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.find(chain, id)
	if e == nil {
		return Turn{}, nil, false
	}
	m.lru.MoveToFront(e.at)
	t = e.turn
	t.ByName = len(chain) == 0 || !slices.Contains(chain, t.key)
	return t, e.held, true
}

func (m *Memory) find(chain []Key, id Key) *entry {
	for i := len(chain) - 1; i >= 0; i-- {
		if e := m.byKey[chain[i]]; e != nil {
			return e
		}
	}
	if id != (Key{}) {
		return m.byID[id]
	}
	return nil
}

// Take removes exactly the handle that Find showed. It returns false if somebody else was faster
// or the store has let it go: then it must not be sent. A handle taken is never put back.
func (m *Memory) Take(t Turn, held *kvp.Held) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.byKey[t.key]
	if e == nil || held == nil || e.held != held {
		return false
	}
	m.drop(e)
	return true
}

// Put stores a finished turn under the last key of its chain, as t says (see Successor). held may
// be nil. stored is t as Find will show it. lost is what nobody will take any more, for D to be told:
// the handle of an older turn with the same key, and the oldest handles over the limits.
func (m *Memory) Put(chain []Key, id Key, t Turn, held *kvp.Held) (stored Turn, lost []*kvp.Held) {
	if len(chain) == 0 {
		if held != nil {
			lost = append(lost, held)
		}
		return t, lost
	}
	t.key = chain[len(chain)-1]
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.byKey[t.key]; old != nil {
		lost = m.remove(old, lost)
	}
	e := &entry{turn: t, id: id, held: held}
	e.at = m.lru.PushFront(e)
	m.byKey[t.key] = e
	if id != (Key{}) {
		m.byID[id] = e
	}
	if held != nil {
		m.bytes += held.Size()
		m.tokens += held.Handle.Tokens
		m.held++
	}
	return t, m.shrink(lost)
}

// Returned notes that P was given tokens of what the turn after t begins with, at a time on the
// caller's clock.
func (m *Memory) Returned(t Turn, tokens int, at time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.byKey[t.key]; e != nil {
		e.turn.Ready, e.turn.ReadyAt, e.turn.Returned = tokens, at, true
	}
}

// Bound sets Limits.Tokens and returns the handles that are over it.
func (m *Memory) Bound(tokens int) (lost []*kvp.Held) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limits.Tokens = tokens
	return m.shrink(nil)
}

// Shed lets go of the oldest handles until at most tokens are kept for the rest, this once.
func (m *Memory) Shed(tokens int) (lost []*kvp.Held) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.shed(lost, func() bool { return m.tokens <= tokens })
}

// Successor is the turn that follows prev, or, if prev is zero, the first one of a conversation
// that gets the name fresh.
func Successor(prev Turn, fresh string) Turn {
	if prev.Number == 0 {
		return Turn{Conversation: fresh, Number: 1}
	}
	return Turn{Conversation: prev.Conversation, Number: prev.Number + 1}
}

// Expire drops all handles that are too old at now and returns how many.
func (m *Memory) Expire(now time.Duration) int {
	return m.dropIf(func(h *kvp.Held) bool { return h.Until <= now })
}

// Void drops all handles of one life of an engine and returns how many.
func (m *Memory) Void(engineID string) int {
	return m.dropIf(func(h *kvp.Held) bool { return h.Handle.EngineID == engineID })
}

func (m *Memory) dropIf(f func(*kvp.Held) bool) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.byKey {
		if e.held != nil && f(e.held) {
			m.drop(e)
			n++
		}
	}
	return n
}

// Stats counts what is kept.
type Stats struct {
	Turns  int // finished turns known
	Held   int // of them with a handle
	Bytes  int // of handles and token ids
	Tokens int // that D keeps for them
}

// Stats returns the present counts.
func (m *Memory) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Stats{Turns: len(m.byKey), Held: m.held, Bytes: m.bytes, Tokens: m.tokens}
}

// drop forgets the handle of e. Callers hold the lock.
func (m *Memory) drop(e *entry) {
	if e.held == nil {
		return
	}
	m.bytes -= e.held.Size()
	m.tokens -= e.held.Handle.Tokens
	m.held--
	e.held = nil
}

// remove forgets e, and adds its handle to lost. Callers hold the lock.
func (m *Memory) remove(e *entry, lost []*kvp.Held) []*kvp.Held {
	if e.held != nil {
		lost = append(lost, e.held)
	}
	m.drop(e)
	delete(m.byKey, e.turn.key)
	if m.byID[e.id] == e {
		delete(m.byID, e.id)
	}
	m.lru.Remove(e.at)
	return lost
}

// shrink brings the store back within its limits. Callers hold the lock.
func (m *Memory) shrink(lost []*kvp.Held) []*kvp.Held {
	for len(m.byKey) > m.limits.Turns {
		lost = m.remove(m.lru.Back().Value.(*entry), lost)
	}
	return m.shed(lost, func() bool {
		return m.bytes <= m.limits.Bytes && (m.limits.Tokens == 0 || m.tokens <= m.limits.Tokens)
	})
}

// shed drops the oldest handles until enough says so. Callers hold the lock.
func (m *Memory) shed(lost []*kvp.Held, enough func() bool) []*kvp.Held {
	for at := m.lru.Back(); at != nil && !enough(); at = at.Prev() {
		if e := at.Value.(*entry); e.held != nil {
			lost = append(lost, e.held)
			m.drop(e)
		}
	}
	return lost
}
