// Package price says what it costs a pair of engines to do something, learned from what it cost before,
// and which arm of a turn is the cheapest.
//
// Five things are priced, each by a curve of its own (all times in ms, n and ctx in tokens):
//
//	recompute(n, ctx) = a + b·n + c·n·(ctx + n/2)   P computes n tokens that follow ctx others
//	pull(n)           = d + n/w                     P reads n tokens from D
//	handoff(n)        = d' + n/w'                   D's leg to its first event: reads n tokens, makes a step
//	append(n, ctx)    = like recompute, on D        D's first event when D computes n tokens itself
//	stall(n)          = like append                 what one other stream on D waits meanwhile
//
// A curve starts from a guess or a seed. Every observation first moves the curve as a whole, then, where the
// data say so, its shape; what the data leave open keeps the shape it started with. Observations count less
// the older they are, outliers count little, and a lasting change of speed is taken over after a few calls.
// No coefficient is ever negative: estimates grow with n.
//
// The router and the simulator call the same Decide. It is pure: observations come in, estimates go out.
// Nothing here is safe for concurrent use. It does not know engines, queues or connections: who asks
// brings those as numbers.
package price
