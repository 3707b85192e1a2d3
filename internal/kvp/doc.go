// Package kvp knows kv_transfer_params: the JSON object by which engines hand the KV of a conversation to each
// other, and by which a router steers it.
//
//	null form ──► P ──► A ──► D ──► B ──► P      A: P's blocks, for D to read     (do_remote_prefill)
//	                                             B: D's blocks, for P to read     (do_remote_decode)
//
// B is the handle. [ParseHandle] checks one that D returned, and [Handle.Cut], [Handle.Clamp], [Handle.WithHost],
// [Handle.Release] make the forms in which it may be sent. Raw bytes are kept: an edit changes the members it is
// about and nothing else, unknown members stay, integers stay integers. Engines check next to nothing themselves:
// a number as a string ends the process, a list that does not fit the number gives wrong text, and so the checks
// are here.
//
// [Capability] says what each version of the engine can do over HTTP.
//
// A handle is a capability: who has it can read the KV of a conversation. Nothing in this package prints one;
// its text and JSON forms name sizes only.
//
// All values are immutable and safe for concurrent use. The package does not know whose a handle is, whether
// it has been used or when it expires on the router's clock: that is the conversation store's business.
package kvp
