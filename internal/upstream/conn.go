package upstream

import (
	"bufio"
	"errors"
	"io"
	"net"
	"syscall"
	"time"
)

const (
	// readBytes is the size of a connection's read buffer. Longer reads go past it.
	readBytes = 4 << 10
	// maxHeadBytes bounds a reply's status line and headers.
	maxHeadBytes = 1 << 20
)

// conn is a connection to an engine. It belongs to one call at a time, or is idle.
type conn struct {
	net.Conn
	addr   string
	r      *bufio.Reader
	left   int64 // bytes of the reply's head that may still come, if inHead
	inHead bool
	used   bool // it has carried a call
	since  time.Time

	raw   syscall.RawConn       // nil: not a socket
	probe func(fd uintptr) bool // of alive, made once
	quiet bool                  // result of probe
	write chan error            // the result of a body's writer that may still be at work, nil if there is none
}

func newConn(nc net.Conn, addr string) *conn {
	c := &conn{Conn: nc, addr: addr}
	c.r = bufio.NewReaderSize(c, readBytes)
	if sc, ok := nc.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			c.raw = raw
			c.probe = func(fd uintptr) bool {
				c.quiet = nothingToRead(fd)
				return true // do not wait
			}
		}
	}
	return c
}

// alive reports whether the engine has kept an idle connection open and said nothing on it.
func (c *conn) alive() bool {
	if c.raw == nil {
		return true
	}
	c.quiet = false
	return c.raw.Read(c.probe) == nil && c.quiet
}

var errHeadTooLarge = errors.New("the headers of the reply are too large")

// Read implements [io.Reader] for the connection's buffer.
func (c *conn) Read(p []byte) (int, error) {
	if !c.inHead {
		return c.Conn.Read(p)
	}
	if c.left <= 0 {
		return 0, errHeadTooLarge
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

// send writes head and what there is of body, or lets body be written: see written. It reports whether a byte may be on
// its way.
func (c *conn) send(head []byte, body *Pieces) (begun bool, err error) {
	if body == nil {
		n, err := c.Conn.Write(head)
		return n > 0, err
	}
	bufs := body.buffers(head)
	done := make(chan error, 1)
	c.write = done
	go func() {
		_, err := bufs.WriteTo(c.Conn)
		done <- err
	}()
	return true, nil
}

// writerPatience is how long the writer may take to say that it is done after the reply has ended. An engine that reads
// the whole body has done so by then, and only the writer's goroutine is late.
const writerPatience = 5 * time.Millisecond

// written reports whether all of the request has been written.
func (c *conn) written() bool {
	if c.write == nil {
		return true
	}
	select {
	case err := <-c.write:
		c.write = nil
		return err == nil
	default:
	}
	timer := time.NewTimer(writerPatience)
	defer timer.Stop()
	select {
	case err := <-c.write:
		c.write = nil
		return err == nil
	case <-timer.C:
		return false
	}
}

// discard closes the connection and waits for the writer, which ends because of that.
func (c *conn) discard() {
	_ = c.Conn.Close() // nobody is interested in it any more
	if c.write != nil {
		<-c.write //nolint:errcheck // that it was cut short is known
		c.write = nil
	}
}

// isEOF reports whether the engine has closed the connection.
func isEOF(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }
