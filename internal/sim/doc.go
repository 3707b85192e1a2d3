// Package sim simulates fleets of prefill and decode engines under a workload: what clients would see, what
// engines would do, and which fleet is the smallest that is good enough.
//
//	workload ─► turn.Machine, price.Models, gap ─► simulated P ─► simulated D ─► Result
//	  (trace or        (the router's own)             queue, steps,    streams,
//	   synthetic)                                     prefix cache     stalls, pins
//
// Decisions are not modelled: every turn runs the router's own state machine, prices and rules of the gap, and
// its actions are carried out by simulated engines in simulated time. Engines are modelled:
//
//   - P is one thread. It computes prompts in steps of at most so many tokens, first come first served. A step
//     costs Costs.Compute. Posting the descriptors of a transfer keeps the thread from stepping.
//   - D makes steps that all its streams share, so a step is longer the more streams and context there are.
//     Posting descriptors and computing prompts (append) keep the streams waiting.
//   - KV pools count tokens, in whole blocks. What no request uses is a prefix cache, one entry for each
//     conversation; the least recently used loses its tail first. What is retained for a handle is pinned.
//   - A link moves one transfer of an engine at a time: latency plus the larger of bytes/bandwidth and descriptors.
//
// There is no preemption (room for the whole reply is taken at the start), no text, no failure, no jitter. The time
// between tokens is fluid: streams advance together at the rate of the steps.
//
// A run uses one goroutine and is deterministic: the same options give the same result.
package sim
