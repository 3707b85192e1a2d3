// Package sse cuts a stream of server-sent events into events without copying or changing it.
//
//	network reads    "data: {"a" | ":1}\n\ndata: [DO" | "NE]\n\n"
//	events                "data: {"a":1}\n\n"    "data: [DONE]\n\n"
//
// A relay feeds what it reads into a [Framer] and takes [Event] values out. Each has the exact bytes that
// were sent, up to and including the blank line that ends it, so the raw bytes of all events together are
// the stream, whatever it contains and wherever it was split. Lines may end with LF, CRLF or CR; comments,
// a byte order mark, several data lines, and colons without a space behind them are understood.
//
// An event larger than the limit is not held back and not cut: its bytes come out in fragments that say
// [Event.Partial], and nobody should look inside.
//
// An event that lies within one read is a view of the reader's buffer; one that was split is put together
// in a buffer that the Framer reuses. Either way it is valid until the next call of Next or Feed. In the
// steady state nothing is allocated. A Framer belongs to one goroutine.
//
// The package knows nothing about JSON or about engines; package wire does.
package sse
