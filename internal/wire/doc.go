// Package wire turns what an engine replies into what the client may see of it, and keeps what the router
// needs to know.
//
//	engine ──► sse.Framer ──► Filter.Event ──► the event as it came, or without what is not the client's, or nothing
//	                             └───────────► Info: handle, token ids, usage, finish reason, error, end, Reply
//
// A router asks an engine for more than its client did: a handle, token ids, a usage chunk. The rule is that
// the client receives the bytes it would have received had the router not asked, and never a handle:
//
//   - kv_transfer_params is removed, null or not, at the top level and inside response. A model may say the
//     words: inside a string they stay.
//   - prompt_token_ids and token_ids that the client did not ask for become null. Engines send the members in
//     every chunk and write null when nobody asked (compare the recordings chat-stream and chat-stream-tokenids).
//   - a usage chunk that the client did not ask for is dropped, and usage in other chunks removed. Without a usage
//     chunk the engine writes system_fingerprint on the chunk with finish_reason, so it is put there.
//   - a chunk that carried nothing but a handle is dropped.
//   - the number of cached tokens can be replaced: older decode engines count what they pulled as cached.
//
// Everything else stays byte for byte, in streams ([Filter]) and whole replies ([Filter.Body]).
//
// If asked, it keeps what the assistant said ([Reply]): the next prompt of the conversation will repeat it, and who
// can write that message down before the client does can prepare an engine for it.
//
// An ordinary chunk costs no allocation. Most chunks of a stream differ from the one before only in the text
// and the token ids, so a Filter compares a chunk with the last one it parsed and parses it only if anything
// else differs. The events of /v1/responses are numbered, so each is parsed.
//
// A Filter belongs to one goroutine. The package does not judge handles (package kvp does) and does not
// notice that a stream ended early: the relay compares [Info.Done] with the end of the connection.
package wire
