// Package turn decides one turn: which engine is called with which kv_transfer_params, what
// happens when that fails, and what is kept for the next turn.
//
// A Machine takes events and returns actions. It has no I/O and no clock. The caller
//
//  1. calls Step with Start, then carries out the returned actions in order;
//  2. reports the outcome of Await, Render, Take, Prefill and Decode once each, as an event;
//  3. reports ClientGone once, if it happens, at any moment in between;
//  4. stops when an action is Done.
//
// Only one of Await, Render, Take, Prefill, Decode is ever in progress.
//
//	            ┌────────────── no handle to use ──────────────┐
//	Start ─► render ─► take ─► prefill (pull or release) ─┐    ▼
//	  │                            │ failed, once         └─► prefill (null form)
//	  │ plain or append            └──────────────────────────►│        │ failed
//	  ▼                                                        ▼ A      ▼
//	decode, no params ◄── failed before its first event ── decode with A
//	  └─────────────────────────────► relay ─► keep the handle ─► Done
//
// What it guarantees, whatever the order of events:
//
//   - a handle goes into at most one Prefill, and only after Taken said yes;
//   - a handle is cut to tokens that were compared with the rendered prompt;
//   - what P was sent is never sent to D;
//   - after Relay nothing is retried.
//
// A Machine is not safe for concurrent use.
package turn
