// Package tenant says who a client is and what it may use: it authenticates requests, derives the salt
// that keeps one tenant's KV from another's, and limits how much of the router one tenant takes.
//
//	request headers, peer ─► Gate.Authenticate ─► Identity ─► Gate.Acquire ─► Lease … Release
//	                          keys | jwt | header | none        │
//	                                                            └► Gate.Salt ─► cache_salt of both legs
//
// # The caller's duties
//
//  1. Authenticate before a byte of the body is read, with the address of the connection's peer.
//  2. Acquire with the declared body size, again before reading; read at most BodyLimit bytes; Grow the
//     lease by what arrives beyond the declaration; Release it exactly when the turn is over.
//  3. Ask Identity.CheckModel once the model is known.
//  4. Compute the salt once per turn and use it on every leg of it: a rotation may fall in between.
//  5. Call StripCredentials on whatever header is sent on.
//
// # Refusals
//
// A refused client gets an [*AuthError] (401, 403, 503) or a [Decision] (413, 429, 503). Both carry a stable
// [Reason] and a text for the client; neither ever holds a key, a token or a secret.
//
// # Pure parts
//
// Admission (decide.go), the token bucket (bucket.go), the choice of a secret and the salt (salt.go), and all
// parsers take everything they need as values, the time included. Gate, Limiter and the JWKS source are thin
// shells around them.
//
// # Concurrency
//
// Everything exported is safe for concurrent use. What is read from files is replaced as a whole: a request
// sees the old content or the new one, never a mixture. Limiter has one lock and the JWKS source has one; they
// never nest, and no I/O happens under either. Run is the only long-lived activity; it ends with its context.
//
// # What it does not do
//
// It keeps no users, no budgets over days and no usage accounts. It does not queue: who cannot be served now is
// told when to come back. Nothing here is shared between router replicas: limits count per process, and only
// salts agree everywhere, through the secrets file.
package tenant
