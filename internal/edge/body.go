package edge

import (
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/tarik-kv/tarik/internal/tenant"
)

// bodyRate is how fast a client must send a body in the long run, in bytes a second.
const bodyRate = 16 << 10

// timedBody is a request's body whose client has to keep sending.
type timedBody struct {
	io.ReadCloser
	rc       *http.ResponseController
	patience time.Duration
	begin    time.Time
	late     func()

	got   int64     // bytes
	until time.Time // the deadline that is set
	ended bool      // there is no more to read
}

func (b *timedBody) Read(p []byte) (int, error) {
	if until := b.begin.Add(b.patience + time.Duration(b.got/bodyRate)*time.Second); !until.Equal(b.until) {
		b.until = until
		_ = b.rc.SetReadDeadline(until) // not every writer has deadlines
	}
	n, err := b.ReadCloser.Read(p)
	b.got += int64(n)
	b.ended = b.ended || err != nil
	switch {
	case errors.Is(err, io.EOF):
		// From here on a read deadline would look as if the client had left.
		_ = b.rc.SetReadDeadline(time.Time{}) // as above
	case errors.Is(err, os.ErrDeadlineExceeded) && b.late != nil:
		b.late()
		b.late = nil
	}
	return n, err
}

// A client may send all of its body before it reads the answer. If the connection ended with the answer, the bytes
// still on their way would be met with a reset, and the client would report that instead of the 413 or 429 it got.
const (
	lingerBytes = 64 << 20
	lingerTime  = 30 * time.Second
)

// linger reads what the handler has left unread, within bounds.
func (b *timedBody) linger(rep *reply) {
	if b.ended {
		return
	}
	if rep.send() != nil {
		return // the client has left
	}
	_ = b.rc.SetReadDeadline(time.Now().Add(lingerTime))   // not every writer has deadlines
	_, _ = io.CopyN(io.Discard, b.ReadCloser, lingerBytes) // the end of it, or the client's
}

func lateBody() *refusal {
	return &refusal{status: http.StatusRequestTimeout, code: "request-timeout", message: "the request's body took too long to arrive", close: true}
}

// countedBody is a request's body that counts in a lease while it is read, decompressed.
type countedBody struct {
	io.Closer
	from   io.Reader
	zipped io.Reader // until the first read, if from is to be its decompression
	lease  *tenant.Lease
	refuse func(*refusal)

	room int64 // bytes that the lease counts already and that have not been read
	err  error
}

// newCountedBody wraps a body whose declared size, if there is one, the lease counts already.
func newCountedBody(req *http.Request, lease *tenant.Lease, refuse func(*refusal)) *countedBody {
	b := &countedBody{Closer: req.Body, from: req.Body, lease: lease, refuse: refuse, room: max(req.ContentLength, 0)}
	if enc := req.Header["Content-Encoding"]; len(enc) == 1 && strings.EqualFold(strings.TrimSpace(enc[0]), "gzip") {
		// Decompressed here, because the size that counts is that which is held in memory.
		b.zipped = req.Body
		req.Header.Del("Content-Encoding")
		req.ContentLength = -1
	}
	return b
}

// errRefused is what a handler gets from a body that has been refused. It need not know why: the answer is not its.
var errRefused = errors.New("the request has been refused")

func (b *countedBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if b.zipped != nil {
		z, err := gzip.NewReader(b.zipped)
		if err != nil {
			return 0, b.unzipped(err)
		}
		b.from, b.zipped = z, nil
	}
	n, err := b.from.Read(p)
	if over := int64(n) - b.room; over > 0 {
		if d := b.lease.Grow(over); !d.OK() {
			return 0, b.give(fromDecision(d))
		}
	}
	b.room = max(b.room-int64(n), 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return n, b.unzipped(err)
	}
	b.err = err
	return n, err
}

// unzipped tells an error of the compression from one of the connection.
func (b *countedBody) unzipped(err error) error {
	var corrupt flate.CorruptInputError
	empty := b.zipped != nil && errors.Is(err, io.EOF)
	if empty || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.As(err, &corrupt) {
		return b.give(&refusal{
			status: http.StatusBadRequest, code: "bad-request", close: true,
			message: fmt.Sprintf("request body: not gzip, though Content-Encoding says so: %v", err),
		})
	}
	b.err = err
	return err
}

func (b *countedBody) give(f *refusal) error {
	b.refuse(f)
	b.err = errRefused
	return b.err
}
