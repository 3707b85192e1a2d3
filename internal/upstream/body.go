package upstream

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
)

var errClosed = errors.New("read on a closed reply")

// reply is a reply's body. At its end the connection can be used again; a body that is closed before takes the
// connection with it. Read belongs to one goroutine, Close may come from another.
type reply struct {
	from io.Reader
	t    *Transport
	c    *conn
	ctx  context.Context // of the call: it belongs to its reply as well
	stop func() bool     // of what closes the connection when the call's context ends
	keep bool            // the connection may be used again
	err  error           // how reading ended
	over atomic.Bool     // the connection is no longer this reply's
}

// Read implements [io.Reader].
func (b *reply) Read(p []byte) (int, error) {
	switch {
	case b.err != nil:
		return 0, b.err
	case b.over.Load():
		return 0, errClosed
	}
	n, err := b.from.Read(p)
	if err == nil {
		return n, nil
	}
	clean := errors.Is(err, io.EOF)
	if cause := b.ctx.Err(); cause != nil && !clean {
		err = cause
	}
	b.err = err
	b.end(clean)
	return n, err
}

// Close implements [io.Closer].
func (b *reply) Close() error {
	b.end(false)
	return nil
}

// end gives the connection up, once. clean says that the reply was read to its end.
func (b *reply) end(clean bool) {
	if b.over.Swap(true) {
		return
	}
	if b.stop() && clean && b.keep && b.c.written() && b.c.r.Buffered() == 0 {
		b.t.put(b.c)
		return
	}
	b.c.discard()
}
