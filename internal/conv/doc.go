// Package conv says which conversation a request belongs to and keeps, for a bounded time, what
// the next turn needs of the last one.
//
// # Identity
//
// Clients need not cooperate. Every request is a list of parts (messages of a chat, chunks of a
// prompt), and the keys of its prefixes form a chain:
//
//	scope ─► k1 = H(scope, m1) ─► k2 = H(k1, m2) ─► … ─► kn      this request's own key
//
// A finished turn is kept under its own key. The next request repeats its messages, so its chain
// runs through that key: the longest known prefix is the turn it continues. A name given by the
// client is a second way to find the turn, used when the chain finds none. Both are hints: what
// decides about reuse is a comparison of token ids, made elsewhere.
//
// # State
//
// A turn holds its handle and the token ids D holds under it until the handle is taken, or is too
// old, or the store is full. Take gives a handle to at most one caller, for ever. Losing any of it
// costs speed, never correctness.
//
// Identity is pure. Memory is safe for concurrent use and never blocks on anything but its lock.
package conv
