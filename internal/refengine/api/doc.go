// Package api is the HTTP surface of the reference engine: vLLM's OpenAI-compatible server, byte for
// byte, over internal/refengine/engine.
//
//	body ── decode ──► prompt (template, tokenizer or given ids) ──► engine.Submit, once per choice
//	                                                                     │ Output
//	SSE events or one JSON document ◄── text, stop strings, parsers ◄────┘
//
// Replies are written by hand, not marshalled: the order of members, which of them are null and which
// are missing differ between releases, between a stream and a whole reply, and between the first, the
// middle and the last chunk of a stream. A router has to cope with exactly that, so it is the product
// here. The golden tests compare with what vLLM 0.25.1, 0.32.0 and 0.33.0 sent; releases in between
// follow the older recording until the first release that is known to differ (see release).
//
// Responses and messages are chats in other words: their bodies are turned into a chat request, and what
// is generated is told in their form. Their recordings are of plain text. The forms of tool calls, reasoning
// and errors follow what is known of the engine and are kept in testdata/dialects.
//
// What the front end decides itself, as in vLLM: stop strings are matched here, in the text and across
// token borders, and end the engine's request by an abort, so such a reply never carries
// kv_transfer_params. The engine's own ends (length, end of sequence, stop token ids) do. A client that
// goes away aborts all its requests in the engine.
//
// Faults are part of the surface: a test can ask for a handle in an unusual chunk, an error in
// mid-stream, a cut connection and more, for the whole server (Options.Faults) or for one request (the
// header X-Refengine-Fault, if Options.AllowFaultHeader).
//
// Server is safe for concurrent use. It starts goroutines only while it handles a request, one for each
// choice, and waits for them before the handler returns. It does not listen, does not authenticate and
// does not log.
package api
