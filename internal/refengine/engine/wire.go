package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"
)

// The side channel speaks frames over one TCP connection:
//
//	length uint32 | type uint8 | payload | CRC-32C uint32
//
// little-endian; length counts type and payload, the checksum covers both. A reader asks, the owner
// answers in order:
//
//	getMeta → meta               handshake, or a probe of the owner's clock
//	read    → (data… content)… readEnd
//	                             one-sided: straight from pool memory; content says what it was
//	notify  → ack                "rid:n" or "HB:rid,rid…"
//
// Every length is bounded before memory is taken. Whatever is malformed ends that connection only.
const (
	frameGetMeta = 1 + iota
	frameMeta
	frameRead
	frameData
	frameReadEnd
	frameNotify
	frameAck
	frameContent
)

const (
	frameHeader    = 5       // bytes
	maxFrame       = 1 << 19 // bytes of type and payload
	maxText        = 1 << 16 // bytes of one string
	maxReadBlocks  = 1 << 16 // block ids of one read request
	dataFloats     = 1 << 16 // float32 of one data frame
	maxBlockTokens = 1 << 16 // tokens of one block
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errFrame = errors.New("malformed frame")

// getMeta asks for the owner's metadata. Ranks are (tp) up to 0.25 and (pp, tp) from 0.26 on.
type getMeta struct{ ranks []uint32 }

// peerMeta is what a handshake tells.
type peerMeta struct {
	engineID    string
	hash        string // compatibility hash
	incarnation uint64 // a new one per start
	generation  int64  // registrations of the cache
	blockSize   uint32 // tokens
	blocks      uint32
	blockFloats uint32  // float32 per block
	clock       float64 // seconds on the owner's clock
}

// readRequest asks for whole blocks; several requests make one READ.
type readRequest struct {
	incarnation uint64
	generation  int64
	blocks      []uint32
}

// dataHeader says where a data frame's floats belong; they follow it.
type dataHeader struct {
	index  uint32 // position in the request
	offset uint32 // float32 into the block
}

// readEnd ends an answer. An empty text is success.
type readEnd struct{ text string }

type notifyText struct{ text string }

// openFrame begins a frame in buf; its payload is appended, and closeFrame completes it.
func openFrame(buf []byte, kind byte) []byte { return append(buf[:0], 0, 0, 0, 0, kind) }

func closeFrame(b []byte) []byte {
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[4:], castagnoli))
}

// writeFrame sends one frame; body is the payload's encoding.
func writeFrame(w io.Writer, kind byte, body []byte) error {
	if 1+len(body) > maxFrame {
		return fmt.Errorf("%w: %d bytes", errFrame, len(body))
	}
	b := openFrame(make([]byte, 0, frameHeader+len(body)+4), kind)
	_, err := w.Write(closeFrame(append(b, body...)))
	return err
}

// readFrame reads one frame into buf, growing it within bounds. The payload is valid until the next call
// with the same buffer.
func readFrame(r io.Reader, buf *[]byte) (kind byte, body []byte, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n < 1 || n > maxFrame {
		return 0, nil, fmt.Errorf("%w: length %d", errFrame, n)
	}
	if cap(*buf) < int(n)+4 {
		*buf = make([]byte, n+4)
	}
	b := (*buf)[:n+4]
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, nil, fmt.Errorf("%w: %w", errFrame, err)
	}
	if crc32.Checksum(b[:n], castagnoli) != binary.LittleEndian.Uint32(b[n:]) {
		return 0, nil, fmt.Errorf("%w: checksum", errFrame)
	}
	return b[0], b[1:n], nil
}

// decoder takes a payload apart; the first mistake sticks.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n int) []byte {
	if d.bad || n < 0 || n > len(d.b) {
		d.bad = true
		return nil
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) uint32() uint32 {
	if b := d.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) uint64() uint64 {
	if b := d.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) text() string {
	n := d.uint32()
	if n > maxText {
		d.bad = true
		return ""
	}
	return string(d.take(int(n)))
}

func (d *decoder) list(limit uint32) []uint32 {
	n := d.uint32()
	if n > limit || int(n) > len(d.b)/4 {
		d.bad = true
		return nil
	}
	list := make([]uint32, n)
	for i := range list {
		list[i] = d.uint32()
	}
	return list
}

// end reports whether the payload was well-formed and used up.
func (d *decoder) end() error {
	if d.bad || len(d.b) != 0 {
		return errFrame
	}
	return nil
}

func appendText(b []byte, s string) []byte {
	if len(s) > maxText {
		s = s[:maxText]
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

func appendList(b []byte, list []uint32) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(list)))
	for _, v := range list {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

func (m getMeta) encode() []byte { return appendList(nil, m.ranks) }

func decodeGetMeta(b []byte) (m getMeta, err error) {
	d := decoder{b: b}
	m.ranks = d.list(8)
	return m, d.end()
}

func (m peerMeta) encode() []byte {
	b := appendText(nil, m.engineID)
	b = appendText(b, m.hash)
	b = binary.LittleEndian.AppendUint64(b, m.incarnation)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.generation))
	b = binary.LittleEndian.AppendUint32(b, m.blockSize)
	b = binary.LittleEndian.AppendUint32(b, m.blocks)
	b = binary.LittleEndian.AppendUint32(b, m.blockFloats)
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(m.clock))
}

func decodeMeta(b []byte) (m peerMeta, err error) {
	d := decoder{b: b}
	m.engineID, m.hash = d.text(), d.text()
	m.incarnation, m.generation = d.uint64(), int64(d.uint64())
	m.blockSize, m.blocks, m.blockFloats = d.uint32(), d.uint32(), d.uint32()
	m.clock = math.Float64frombits(d.uint64())
	if math.IsNaN(m.clock) || math.IsInf(m.clock, 0) {
		d.bad = true
	}
	return m, d.end()
}

func (m readRequest) encode() []byte {
	b := binary.LittleEndian.AppendUint64(nil, m.incarnation)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.generation))
	return appendList(b, m.blocks)
}

func decodeRead(b []byte) (m readRequest, err error) {
	d := decoder{b: b}
	m.incarnation, m.generation = d.uint64(), int64(d.uint64())
	m.blocks = d.list(maxReadBlocks)
	return m, d.end()
}

// appendData encodes a data frame's payload.
func appendData(b []byte, h dataHeader, floats []float32) []byte {
	b = binary.LittleEndian.AppendUint32(b, h.index)
	b = binary.LittleEndian.AppendUint32(b, h.offset)
	start := len(b)
	b = slices.Grow(b, 4*len(floats))[:start+4*len(floats)]
	for i, f := range floats {
		binary.LittleEndian.PutUint32(b[start+4*i:], math.Float32bits(f))
	}
	return b
}

// decodeData returns the header and the floats' bytes, four each.
func decodeData(b []byte) (h dataHeader, floats []byte, err error) {
	d := decoder{b: b}
	h.index, h.offset = d.uint32(), d.uint32()
	if d.bad || len(d.b)%4 != 0 || len(d.b) > 4*dataFloats {
		return h, nil, errFrame
	}
	return h, d.b, nil
}

// encode leaves the block's position out: contents come in the order asked for.
func (b blockContent) encode() []byte {
	out := append([]byte(nil), b.parent[:]...)
	bad := byte(0)
	if b.bad {
		bad = 1
	}
	out = append(out, bad)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(b.tokens)))
	for _, t := range b.tokens {
		out = binary.LittleEndian.AppendUint32(out, uint32(t))
	}
	return out
}

func decodeContent(b []byte) (m blockContent, err error) {
	d := decoder{b: b}
	copy(m.parent[:], d.take(len(m.parent)))
	if flag := d.take(1); flag != nil {
		m.bad = flag[0] == 1
		d.bad = flag[0] > 1
	}
	list := d.list(maxBlockTokens)
	m.tokens = make([]int32, len(list))
	for i, t := range list {
		m.tokens[i] = int32(t)
	}
	return m, d.end()
}

func (m readEnd) encode() []byte { return appendText(nil, m.text) }

func decodeReadEnd(b []byte) (m readEnd, err error) {
	d := decoder{b: b}
	m.text = d.text()
	return m, d.end()
}

func (m notifyText) encode() []byte { return appendText(nil, m.text) }

func decodeNotify(b []byte) (m notifyText, err error) {
	d := decoder{b: b}
	m.text = d.text()
	return m, d.end()
}
