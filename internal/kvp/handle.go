package kvp

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

// ErrNotCuttable says that a handle can be sent whole or not at all: it has several groups or strided blocks, so
// no prefix of its lists covers a prefix of its tokens.
var ErrNotCuttable = errors.New("blocks cannot be cut")

// ErrBlocks says that number of tokens, list of blocks and block size of a handle do not agree.
var ErrBlocks = errors.New("blocks do not cover the tokens")

// Handle is B: the kv_transfer_params that D returned for the next P call of a conversation. Make one with
// [ParseHandle] or [Prefilled.FlipAppend].
//
// A handle is good for one P call. Whether it has been sent is not known here.
type Handle struct {
	Fields
	raw []byte
}

// ParseHandle reads the params of a D reply.
//
// It wants a complete B of at most [MaxRawBytes]: integers where engines want integers, every member that a
// reader needs, no member twice. Members that only an engine may set for itself are taken out; unknown ones stay.
// The error is or wraps [ErrShape] if raw is an A, and tells no content.
func ParseHandle(raw []byte) (Handle, error) {
	f, kept, err := parse(raw, ShapeDecode)
	if err != nil {
		return Handle{}, fmt.Errorf("parse handle: %w", err)
	}
	return Handle{f, bytes.Clone(kept)}, nil
}

// Raw is the handle as it is sent. It must not be changed.
func (h Handle) Raw() []byte { return h.raw }

// IsZero reports whether h is no handle.
func (h Handle) IsZero() bool { return h.raw == nil }

// BlockCount is the number of blocks in all groups.
func (f Fields) BlockCount() int {
	n := 0
	for _, g := range f.Blocks {
		n += len(g)
	}
	return n
}

// blocksFor is how many blocks of blockSize tokens hold the given number of tokens.
func blocksFor(tokens, blockSize int) int { return (tokens + blockSize - 1) / blockSize }

// plain reports whether the blocks are one list in the order of the tokens.
func (f Fields) plain() bool { return len(f.Blocks) == 1 && f.DCPSize <= 1 }

// Consistent reports whether the list of blocks is exactly as long as Tokens needs. blockSize is the owner's, in
// tokens.
//
// The reader pairs blocks from the end of the list, so a list that is longer gives silently wrong KV, and a
// shorter one ends its worker. Engines before 0.25 with speculative decoding return longer lists; [Handle.Cut]
// repairs those. Lists of several groups or of context-parallel engines follow other rules: nothing is said about
// them and the result is true.
func (f Fields) Consistent(blockSize int) bool {
	return !f.plain() || len(f.Blocks[0]) == blocksFor(f.Tokens, blockSize)
}

// Cut returns a copy of h that covers exactly the first k tokens.
//
// k is in tokens, 0 < k <= h.Tokens; it need not be a multiple of blockSize, which is D's, in tokens. The list of
// blocks is shortened to ceil(k/blockSize) ids: the engine pairs block ids from the end of the list, so the number
// and the list must shrink together. All other members are kept byte for byte.
//
// The whole of a handle that cannot be cut is the handle itself; less is [ErrNotCuttable]. A list that is too
// short for the tokens it claims is [ErrBlocks].
func (h Handle) Cut(k, blockSize int) (Handle, error) {
	if k <= 0 || k > h.Tokens || blockSize <= 0 {
		return Handle{}, fmt.Errorf("cut handle of %d tokens to %d, blocks of %d", h.Tokens, k, blockSize)
	}
	if !h.plain() {
		if k == h.Tokens {
			return h, nil
		}
		return Handle{}, fmt.Errorf("cut handle to %d tokens: %d groups, dcp_size %d: %w", k, len(h.Blocks), h.DCPSize, ErrNotCuttable)
	}
	list := h.Blocks[0]
	if len(list) < blocksFor(h.Tokens, blockSize) {
		return Handle{}, fmt.Errorf("cut handle to %d tokens: %d blocks of %d for %d tokens: %w", k, len(list), blockSize, h.Tokens, ErrBlocks)
	}
	n := blocksFor(k, blockSize)
	if k == h.Tokens && n == len(list) {
		return h, nil
	}
	cut := h.edit(func(e *bodyedit.Edit) {
		if k != h.Tokens {
			e.Set(nameTokens, strconv.AppendInt(nil, int64(k), 10))
		}
		if n != len(list) {
			group := firstElement(e.Doc(), nameBlocks)
			e.Replace(group, AppendIDs(nil, list[:n]))
		}
	})
	cut.Tokens = k
	cut.Blocks = [][]int{list[:n:n]}
	return cut, nil
}

// Clamp returns h without what is not proven: at most knownTokens-1 tokens, knownTokens being the number of prompt
// and completion tokens of the turn that h came from.
//
// The last token has been sampled and not computed. Engines that schedule ahead count it nevertheless, and with
// speculative decoding count drafts that nobody has verified. The error is that of [Handle.Cut]; it also says when
// nothing is left.
func (h Handle) Clamp(knownTokens, blockSize int) (Handle, error) {
	return h.Cut(min(h.Tokens, knownTokens-1), blockSize)
}

// WithHost returns h with another remote_host, for routers that know a better way to D than D itself. An IPv6
// address is written bare: the engine adds the brackets.
func (h Handle) WithHost(host string) Handle {
	host = bareHost(host)
	if host == h.Host {
		return h
	}
	moved := h.edit(func(e *bodyedit.Edit) { e.Set(nameHost, bodyedit.AppendString(nil, host)) })
	moved.Host = host
	return moved
}

// Release returns h in the form that makes P tell D to free the blocks, and read nothing: no tokens, the list as it
// is. The result is for sending only and has Tokens 0.
func (h Handle) Release() Handle {
	r := h.edit(func(e *bodyedit.Edit) { e.Set(nameTokens, []byte("0")) })
	r.Tokens = 0
	return r
}

// edit returns a copy of h whose bytes are changed by change.
func (h Handle) edit(change func(e *bodyedit.Edit)) Handle {
	h.raw = edited(h.raw, change)
	return h
}

func edited(raw []byte, change func(e *bodyedit.Edit)) []byte {
	doc, err := bodyedit.Scan(raw)
	if err != nil {
		panic("BUG: params were parsed and are not JSON: " + err.Error())
	}
	e := doc.Edit()
	change(e)
	return e.Bytes()
}

// firstElement is the span of the first element of the array called name.
func firstElement(doc *bodyedit.Doc, name string) bodyedit.Span {
	m, _ := doc.Find(name)
	for el := range doc.ElementsOf(m.Span) {
		return el
	}
	panic("BUG: " + name + " has no elements")
}

func bareHost(host string) string {
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		return host[1 : len(host)-1]
	}
	return host
}

// String names sizes only: a handle must not be in a log.
func (f Fields) String() string {
	return fmt.Sprintf("%d tokens in %d blocks", f.Tokens, f.BlockCount())
}

// GoString is String.
func (f Fields) GoString() string { return f.String() }

// MarshalText is String, so that neither loggers nor encoders print the content.
func (f Fields) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// Equal reports whether h and o are the same bytes.
func (h Handle) Equal(o Handle) bool { return bytes.Equal(h.raw, o.raw) }
