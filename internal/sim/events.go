package sim

import "time"

// kind of event.
type kind uint8

const (
	arrival    kind = iota // id: conversation, its next turn
	rendered               // id: turn
	atPrefill              // id: P call, before the engine now
	pulled                 // id: P call, its tokens are here
	stepped                // id: P engine, a step is over
	late                   // id: P call, its deadline is over
	atDecode               // id: turn, before D now
	handedOver             // id: turn, D has read P's blocks
	firstToken             // id: turn
	finished               // id: D engine, one of its streams may have ended
	expired                // id: conversation, D's time for its handle is over
	awaited                // id: turn, has waited long enough for a return
	nextKnown              // id: return, its prompt is rendered
	wake                   // id: P engine, its queue of returns may move
)

// event is something that happens. gen tells whether what it is about is still the same.
type event struct {
	at   time.Duration
	seq  uint32
	gen  uint32
	id   int32
	kind kind
}

// events is a heap by time, and by the order of being added for the same time.
type events struct {
	heap []event
	seq  uint32
}

func (e *event) before(f *event) bool {
	return e.at < f.at || e.at == f.at && int32(e.seq-f.seq) < 0
}

func (h *events) add(at time.Duration, k kind, id int32, gen uint32) {
	h.seq++
	e := event{at: at, seq: h.seq, gen: gen, id: id, kind: k}
	h.heap = append(h.heap, e)
	i := len(h.heap) - 1
	for i > 0 {
		parent := (i - 1) / 4
		if !e.before(&h.heap[parent]) {
			break
		}
		h.heap[i] = h.heap[parent]
		i = parent
	}
	h.heap[i] = e
}

func (h *events) next() (event, bool) {
	if len(h.heap) == 0 {
		return event{}, false
	}
	first := h.heap[0]
	n := len(h.heap) - 1
	last := h.heap[n]
	h.heap = h.heap[:n]
	if n == 0 {
		return first, true
	}
	i := 0
	for {
		child := 4*i + 1
		if child >= n {
			break
		}
		least := child
		for c := child + 1; c < min(child+4, n); c++ {
			if h.heap[c].before(&h.heap[least]) {
				least = c
			}
		}
		if !h.heap[least].before(&last) {
			break
		}
		h.heap[i] = h.heap[least]
		i = least
	}
	h.heap[i] = last
	return first, true
}
