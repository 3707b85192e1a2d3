// Package edge is what stands between sockets and the router: on the clients' side who may connect, speak and use
// how much; on the engines' side keys and certificates.
//
//	client ─► Server: peer allowed? room? TLS, client certificate; HTTP/1.1, HTTP/2
//	            │     limits of headers, of time; a panic ends one request
//	            ├──► Gate: headers that only a router may say go; who is it? may it? count its body
//	            │      └──► the router's handler, with tenant.FromContext
//	            └──► GET /health, which fails first when the server is to stop
//	router ──► Engines: the engine's own Authorization, CA, certificate ─► engine
//
// # Stopping
//
// Shutdown goes through phases, so that nothing is lost on the way: /health fails while requests are still served
// (a balancer takes the router out), then new requests get 503 on a connection that closes, those in progress end,
// and what is left after the drain time is cut.
//
// # Answers
//
// What is refused here has the shape of OpenAI's errors, or of Anthropic's below /v1/messages, and a stable code.
// A request that cannot be parsed as HTTP gets net/http's own plain 400, 431 or 501.
//
// # Framing
//
// net/http refuses two lengths that differ, transfer codings other than chunked, control characters in headers and
// spaces before a colon. Two doubtful forms it takes as RFC 9112 permits: Transfer-Encoding together with
// Content-Length (it goes by the former) and folded header lines (a fold is a space). So that no other reading of
// the same bytes by a proxy in front can turn a body into a request, a connection ends after every chunked and
// every HTTP/1.0 request.
//
// # Files
//
// Certificates, CAs and key files are compared by content every reload interval and on Reload; a file that has
// become wrong is reported, and what was read from it before stays in force. New connections use the new content.
//
// # Concurrency
//
// Everything exported is safe for concurrent use. Server and Engines have one lock each, and no I/O happens under
// either.
//
// # What it does not do
//
// It knows no endpoint but /health and no body. It follows no X-Forwarded-For: a peer is the other end of the
// connection. A client that half-closes its connection counts as gone: TCP cannot tell the two apart.
package edge
