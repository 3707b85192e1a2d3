// Package upstream makes HTTP/1.1 calls to engines with as little work between the caller and the socket as there
// can be.
//
// [Transport] is an [http.RoundTripper] for the calls that every turn makes: a GET, or a POST whose body lies in
// memory as [Pieces], to an http:// address. net/http's own transport has two goroutines for a connection, so each
// call changes goroutines four times, copies its body through two buffers and writes headers and body apart. Here the
// caller's goroutine writes both in one system call, from where they lie, and reads the reply itself:
//
//	caller ── head + pieces ──► writev ──► engine
//	caller ◄─ http.ReadResponse ◄─ bufio ◄─ read ◄──┘
//
// Replies are parsed by net/http ([http.ReadResponse]): framing, trailers and limits are its. Everything else (TLS,
// other methods, bodies of unknown length or in other places, Expect, Upgrade) goes through the [http.Transport] that
// the Transport was made of, whose dialer and idle time it shares.
//
// A connection that the engine has closed while it was idle is noticed before a byte is written, and another is used.
// A call of which a byte has been written is never made again: it may have been carried out.
//
// A body of more than 32 KiB is written by a goroutine of its own, since an engine may answer before it has read all
// of it. The goroutine ends before the reply's body is closed or the call has failed, so that no piece is in use any
// more.
//
// A Transport is safe for concurrent use. The package does not decode replies, does not follow redirects, and does not
// decide whether a call may be made again.
package upstream
