// Package bench measures what turns of conversations cost on two or more endpoints, the arms, so that a difference
// between them can be believed.
//
//	Plan ─► cells (length × P's prefix cache × load × think time)
//	          │ repeated, in random order
//	          ▼
//	        group: one block per arm, arms in random order, the same conversations in each
//	          │ block: /metrics, conversations turn by turn, /metrics
//	          ▼
//	        journal ─► Report: quantiles with bootstrap intervals, arms compared pair by pair, answers compared
//
// An arm is any OpenAI-compatible endpoint, or a prefill and a decode engine between which this package itself plays
// the router (pd arms): by the null form, with the held handle, with the return, with a P that was given the whole
// history, or on D alone. Those say what a policy is worth without a router's own costs.
//
// # What is timed
//
// Latency counts from when a turn was meant to start, not from when it could be sent: in an open loop that is the
// arrival, so a stalled endpoint is charged for everything that waited behind it (no coordinated omission). Within a
// conversation a turn is meant to start a think time after the end of the one before. TTFT ends with the first event
// that has content. Events are stamped when their bytes arrive, before anything is decoded.
//
// # Statistics
//
// Turn 1 and later turns are never mixed. Intervals come from resampling conversations, since turns of one
// conversation are not independent; arms are compared on the conversations that both have played. Where the interval
// of a ratio covers 1 the report says that no difference was shown, and below six conversations that nothing can be
// said.
//
// # Concurrency
//
// Run owns all goroutines that it starts and returns when they have ended. Everything reads the clock and sleeps by
// package time only, so that tests can run it in virtual time.
//
// # What it does not do
//
// It starts no engines and imports no router; cmd/tarik does that for the embedded default. It does not tokenise:
// lengths are calibrated from what the endpoint says it counted. It speaks chat completions only.
package bench
