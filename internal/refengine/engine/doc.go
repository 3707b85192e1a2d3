// Package engine is the reference engine's core: vLLM's scheduler, paged KV bookkeeping and
// NixlConnector in small.
//
// It reproduces what a router can observe of a prefill (P) or decode (D) engine, wrong behaviours
// included: an engine never compares tokens, a READ never looks at pins, a handle sent to an engine
// whose flag is off parks its request for ever. docs/engine.md lists them with the recordings that
// show them.
//
// # Model
//
//	Submit ─► waiting ─admit─► running ─step…─► finished ─► pinned ─► free (still cached)
//	             ▲    └─ext>0─► parked ──READ done──┘            notification, lease or TTL
//	             └────────────── preempted ◄─┘
//
// The machine (type core) is pure: one thread, no clock, no goroutine, no I/O. It is told the time,
// plans a step (schedule), takes the step's logits (commit) and leaves effects behind: reads,
// notifications and heartbeats to send. The shell (type Engine) owns the loop goroutine, the clock,
// the side channel and the model, and feeds results back as events.
//
// The model is seen through Compute only: block tables in, logits and KV out. Bytes move between
// engines over a small TCP protocol (wire.go) in place of ZMQ, UCX and NIXL.
//
// # Concurrency
//
// All exported methods may be called from any goroutine. Engine.mu guards the machine and is never held
// during a forward pass, I/O or a log line; one lock per block guards that block's numbers, so that a READ
// of finished blocks is served in the middle of a step. These and the small locks of the side channel do
// not nest, except that a step holds the locks of all blocks it writes, taken in ascending order.
//
// # What it does not do
//
// One group of full attention, one rank: no tensor, pipeline or data parallelism, no sliding
// window, no LoRA, no push connector. It does not speak ZMQ or NIXL and pairs with its like only.
package engine
