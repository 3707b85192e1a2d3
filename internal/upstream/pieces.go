package upstream

import (
	"io"
	"net"
)

// Pieces is a request body that lies in memory. Nobody may change the bytes while the call is in progress.
type Pieces struct {
	list [][]byte // what is left
	off  int      // bytes of list[0] that have been read
	size int64    // bytes, of all
}

var _ io.ReadCloser = (*Pieces)(nil)

// NewPieces makes a body of list, which is kept, not changed.
func NewPieces(list ...[]byte) *Pieces {
	p := &Pieces{list: list}
	for _, b := range list {
		p.size += int64(len(b))
	}
	return p
}

// Len is the length of the whole body in bytes.
func (p *Pieces) Len() int64 { return p.size }

// Read implements [io.Reader], for other transports.
func (p *Pieces) Read(b []byte) (int, error) {
	n := 0
	for len(p.list) > 0 && n < len(b) {
		k := copy(b[n:], p.list[0][p.off:])
		n += k
		if p.off += k; p.off == len(p.list[0]) {
			p.list, p.off = p.list[1:], 0
		}
	}
	if n == 0 && len(p.list) == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Close implements [io.Closer]; there is nothing to close.
func (p *Pieces) Close() error { return nil }

// buffers is head and then the body. writev eats the list, so it is a new one.
func (p *Pieces) buffers(head []byte) net.Buffers {
	return append(net.Buffers{head}, p.list...)
}
