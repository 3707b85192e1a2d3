// Package router is the HTTP shell around the decisions of package turn: it reads a client's
// request, lets a turn.Machine say what to do, calls the engines, relays the reply, and keeps what
// the next turn needs.
//
//	client ──► request.go   what is it, whose conversation, may it reuse anything
//	           turn.go      drives one turn.Machine; in the goroutine of its request
//	           render.go    token ids of a prompt, by the engine's own rendering
//	           body.go      the two legs' bodies, as edits of the client's
//	           leg.go       one engine call, over package upstream
//	           relay.go     D's reply to the client, event by event
//	           pulse.go     signs of life while the engines are silent
//	           probe.go     proves that P reads handles
//	           errors.go    the one place where failures become HTTP
//
// # Bytes
//
// A body is read once and scanned once. Both legs send it as spans of the same bytes around the
// few fields that change. A streamed reply is relayed event by event as D's bytes, less what a
// client must not see; the end mark is held back until the handle is kept, so that a client that
// goes on at once finds it.
//
// # Failure
//
// Anything that fails before the first byte of the reply is retried once without reuse. After it,
// a broken stream is broken for the client too: it never looks finished.
//
// If D refuses what P has computed, the client gets D's answer at once, and what P keeps for D stays
// until P's lease ends (30 s after the last heartbeat): only D's word frees it earlier, and a D that
// has not taken a request in says none. The router knows no call that would make it.
//
// # The wire
//
// A client that half-closes its connection is taken for gone, complete request or not: net/http cannot
// tell it from one that has left, and an engine must not work for nobody. Trailers of either side end
// here. How long a client may take over a request, and what becomes of a connection on which a length
// stood beside a chunked body, is for the listener: package edge.
//
// # Concurrency
//
// Router is safe for concurrent use. Close waits for all turns and probes.
package router
