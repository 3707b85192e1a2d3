package router

import (
	"math"
	"sync"
	"time"
)

// load is what the router itself has given an engine to do. It is safe for concurrent use.
type load struct {
	mu     sync.Mutex
	calls  int           // in flight
	dueMs  float64       // what they are expected to take in all
	tokens int           // of their prompts, as far as is known
	busy   float64       // share of the time with a call in flight, of late
	at     time.Duration // of the last change
}

// busyOver is over how long the busy share is taken.
const busyOver = 10 * time.Second

// begin notes a call that is expected to take so many ms for a prompt of so many tokens.
func (l *load) begin(now time.Duration, expectedMs float64, tokens int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pass(now)
	l.calls++
	l.dueMs += expectedMs
	l.tokens += tokens
}

// end notes the end of a call begun with the same expectation.
func (l *load) end(now time.Duration, expectedMs float64, tokens int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pass(now)
	l.calls--
	l.dueMs = max(0, l.dueMs-expectedMs)
	l.tokens -= tokens
}

// promised returns how many tokens the calls in flight bring.
func (l *load) promised() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tokens
}

// now returns how many calls are in flight, what they still have to do, in ms, roughly: half of what they were
// expected to take is over; and the share of time in which there were any.
func (l *load) now(now time.Duration) (calls int, waitMs, busy float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pass(now)
	return l.calls, l.dueMs / 2, l.busy
}

// pass lets time pass. Callers hold the lock.
func (l *load) pass(now time.Duration) {
	keep := math.Exp(-float64(now-l.at) / float64(busyOver))
	share := 0.0
	if l.calls > 0 {
		share = 1
	}
	l.busy = l.busy*keep + share*(1-keep)
	l.at = now
}
