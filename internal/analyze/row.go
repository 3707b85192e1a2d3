package analyze

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
)

// unit is what the sizes of a row are counted in. Sizes in different units are never added.
type unit uint8

const (
	tokens     unit = iota
	characters      // Unicode code points of the prompt: the log has text and no counts
	bodyBytes       // bytes of the HTTP request: an access log without token counts
	units
)

func (u unit) String() string { return [...]string{"tokens", "characters", "bytes"}[u] }

// contentKind is what a row's content is made of.
type contentKind uint8

const (
	noContent   contentKind = iota
	textContent             // segments of UTF-8
	idContent               // token ids, 4 bytes each
	hashContent             // ids of blocks of blockSize tokens, 8 bytes each
	deltaContent
)

const (
	unknown = -1            // a size or duration that the log does not say
	noTime  = math.MinInt64 // a start that the log does not say
)

// row is one request. Sizes are in the row's unit, times in nanoseconds.
type row struct {
	conv  uint64 // salted hash of the conversation's name; 0 if unknown
	start int64  // since the epoch, or since the trace's own zero
	seq   uint64 // position in the input
	dur   int64  // from the request's arrival to the end of its reply
	same  uint64 // not 0: successive rows of a conversation with the same value are one request

	prompt int64 // whole prompt, cached part included
	output int64
	cached int64 // part of prompt that the log itself calls cached
	shared int64 // tokens that the log itself says were shared with the previous request
	best   int64 // tokens shared with any earlier request, found while linking by content

	model, tenant uint32 // indices into names
	blockSize     int32  // tokens in a block of hashContent
	unit          unit
	kind          contentKind
	flags         rowFlags
}

type rowFlags uint8

const (
	ghost    rowFlags = 1 << iota // stands for a request counted elsewhere; only a predecessor
	linked                        // its conversation was found by content
	endStamp                      // start is when the request ended
)

// rowSize is the length of an encoded row in bytes.
const rowSize = 10*8 + 3*4 + 3

func (r *row) encode(b []byte) {
	for i, v := range [...]uint64{
		r.conv, uint64(r.start), r.seq, uint64(r.dur), r.same,
		uint64(r.prompt), uint64(r.output), uint64(r.cached), uint64(r.shared), uint64(r.best),
	} {
		binary.LittleEndian.PutUint64(b[8*i:], v)
	}
	binary.LittleEndian.PutUint32(b[80:], r.model)
	binary.LittleEndian.PutUint32(b[84:], r.tenant)
	binary.LittleEndian.PutUint32(b[88:], uint32(r.blockSize))
	b[92], b[93], b[94] = byte(r.unit), byte(r.kind), byte(r.flags)
}

func (r *row) decode(b []byte) {
	u := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	*r = row{
		conv: u(0), start: int64(u(1)), seq: u(2), dur: int64(u(3)), same: u(4),
		prompt: int64(u(5)), output: int64(u(6)), cached: int64(u(7)), shared: int64(u(8)), best: int64(u(9)),
		model: binary.LittleEndian.Uint32(b[80:]), tenant: binary.LittleEndian.Uint32(b[84:]),
		blockSize: int32(binary.LittleEndian.Uint32(b[88:])),
		unit:      unit(b[92]), kind: contentKind(b[93]), flags: rowFlags(b[94]),
	}
}

// newRow returns a row about which nothing is known.
func newRow() row {
	return row{start: noTime, dur: unknown, prompt: unknown, output: unknown, cached: unknown, shared: unknown, best: unknown}
}

// end is when the reply ended, or when the request began if the log does not say.
func (r *row) end() int64 {
	if r.dur > 0 {
		return r.start + r.dur
	}
	return r.start
}

// salter turns names into hashes that mean nothing outside the run, or the salt.
type salter struct {
	salt []byte
	buf  []byte
}

// sum hashes kind and name. It is never 0.
func (s *salter) sum(kind byte, name ...[]byte) uint64 {
	s.buf = append(append(s.buf[:0], s.salt...), kind)
	for _, n := range name {
		s.buf = binary.LittleEndian.AppendUint32(s.buf, uint32(len(n)))
		s.buf = append(s.buf, n...)
	}
	h := sha256.Sum256(s.buf)
	return binary.LittleEndian.Uint64(h[:]) | 1
}
