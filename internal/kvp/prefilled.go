package kvp

import (
	"bytes"
	"fmt"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

// Prefilled is A: the kv_transfer_params that P returned for the D call of the same turn, or that D returned after
// serving a turn alone.
type Prefilled struct {
	Fields
	raw []byte
}

// ParsePrefilled reads the params of a P reply. It checks what [ParseHandle] checks, for an A.
func ParsePrefilled(raw []byte) (Prefilled, error) {
	f, kept, err := parse(raw, ShapePrefill)
	if err != nil {
		return Prefilled{}, fmt.Errorf("parse prefill params: %w", err)
	}
	return Prefilled{f, bytes.Clone(kept)}, nil
}

// Raw is the params as they are sent to D. They must not be changed.
func (a Prefilled) Raw() []byte { return a.raw }

// WithHost is [Handle.WithHost].
func (a Prefilled) WithHost(host string) Prefilled {
	host = bareHost(host)
	if host == a.Host {
		return a
	}
	a.raw = edited(a.raw, func(e *bodyedit.Edit) { e.Set(nameHost, bodyedit.AppendString(nil, host)) })
	a.Host = host
	return a
}

// FlipAppend makes a handle for P of what D returned after serving a turn alone ([AppendForm]). Such params look
// as if D were a prefill engine; both flags must change before P sees them.
//
// There is no expiry in them, so P cannot refuse a late read: the router's own clock is the only guard.
func (a Prefilled) FlipAppend() Handle {
	return Handle{a.Fields, edited(a.raw, func(e *bodyedit.Edit) {
		e.Set(nameRemotePrefill, []byte("false"))
		e.Set(nameRemoteDecode, []byte("true"))
	})}
}

// Equal reports whether a and o are the same bytes.
func (a Prefilled) Equal(o Prefilled) bool { return bytes.Equal(a.raw, o.raw) }
