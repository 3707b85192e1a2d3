package model

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
)

// GGUF is an open GGUF file (versions 2 and 3, little-endian): its metadata, and where its tensors are.
type GGUF struct {
	file    *os.File // nil if read from memory
	meta    map[string]any
	tensors map[string]ggufTensor
	names   []string // of tensors, in file order
	data    *io.SectionReader
}

// ggufTensor is one tensor's entry. Dimensions are in the file's order: the first is the contiguous one.
type ggufTensor struct {
	kind   ggufType
	dims   []int
	offset int64 // in the data section
	bytes  int64
}

// Metadata value types. Integers and booleans are kept as int64, floats as float64, arrays as a slice of one of those or of strings.
const (
	ggufUint8 = iota
	ggufInt8
	ggufUint16
	ggufInt16
	ggufUint32
	ggufInt32
	ggufFloat32
	ggufBool
	ggufString
	ggufArray
	ggufUint64
	ggufInt64
	ggufFloat64
)

const (
	ggufMagic     = 0x46554747 // "GGUF"
	ggufMaxDims   = 4
	ggufAlignment = 32 // where the file does not say
)

// OpenGGUF reads a file's metadata and tensor table. Close it when the tensors are no longer needed; the metadata stays readable.
func OpenGGUF(path string) (*GGUF, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	g, err := parseGGUF(f, info.Size())
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("read GGUF %s: %w", path, err)
	}
	g.file = f
	return g, nil
}

// Close closes the file.
func (g *GGUF) Close() error {
	if g.file == nil {
		return nil
	}
	return g.file.Close()
}

// String returns a text value.
func (g *GGUF) String(key string) (string, bool) {
	v, ok := g.meta[key].(string)
	return v, ok
}

// Int returns an integer or boolean value (false is 0).
func (g *GGUF) Int(key string) (int64, bool) {
	v, ok := g.meta[key].(int64)
	return v, ok
}

// Float returns a number; an integer counts as one.
func (g *GGUF) Float(key string) (float64, bool) {
	if v, ok := g.meta[key].(int64); ok {
		return float64(v), true
	}
	v, ok := g.meta[key].(float64)
	return v, ok
}

// Strings returns a list of texts. The caller must not change it.
func (g *GGUF) Strings(key string) ([]string, bool) {
	v, ok := g.meta[key].([]string)
	return v, ok
}

// Ints returns a list of integers or booleans. The caller must not change it.
func (g *GGUF) Ints(key string) ([]int64, bool) {
	v, ok := g.meta[key].([]int64)
	return v, ok
}

// Floats returns a list of numbers. The caller must not change it.
func (g *GGUF) Floats(key string) ([]float64, bool) {
	v, ok := g.meta[key].([]float64)
	return v, ok
}

// Keys returns the names of all metadata, sorted.
func (g *GGUF) Keys() []string {
	keys := make([]string, 0, len(g.meta))
	for k := range g.meta {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// ggufReader reads the head of a file. The first error sticks; counts are checked against what is left of the file
// before anything is allocated for them.
type ggufReader struct {
	r    *bufio.Reader
	at   int64
	size int64
	err  error
}

func (r *ggufReader) left() int64 { return r.size - r.at }

func (r *ggufReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("at byte %d: %w", r.at, fmt.Errorf(format, args...))
	}
}

func (r *ggufReader) bytes(n int64) []byte {
	if r.err != nil {
		return nil
	}
	if n < 0 || n > r.left() {
		r.fail("%d bytes wanted, %d left", n, r.left())
		return nil
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r.r, b); err != nil {
		r.fail("%w", err)
		return nil
	}
	r.at += n
	return b
}

// number reads a little-endian unsigned integer of 1, 2, 4 or 8 bytes.
func (r *ggufReader) number(bytes int64) uint64 {
	var b [8]byte
	if r.err != nil {
		return 0
	}
	if bytes > r.left() {
		r.fail("file ends")
		return 0
	}
	if _, err := io.ReadFull(r.r, b[:bytes]); err != nil {
		r.fail("%w", err)
		return 0
	}
	r.at += bytes
	return binary.LittleEndian.Uint64(b[:])
}

// count reads how many things of at least `each` bytes follow.
func (r *ggufReader) count(each int64, what string) int {
	n := r.number(8)
	if r.err == nil && n > uint64(r.left()/each) {
		r.fail("%d %s cannot fit in the %d bytes left", n, what, r.left())
	}
	if r.err != nil {
		return 0
	}
	return int(n)
}

func (r *ggufReader) text() string {
	n := r.count(1, "bytes of text")
	return string(r.bytes(int64(n)))
}

// ggufWidth returns the bytes of a number of some type, 0 if the type is not a number.
func ggufWidth(kind uint64) int64 {
	switch kind {
	case ggufUint8, ggufInt8, ggufBool:
		return 1
	case ggufUint16, ggufInt16:
		return 2
	case ggufUint32, ggufInt32, ggufFloat32:
		return 4
	case ggufUint64, ggufInt64, ggufFloat64:
		return 8
	}
	return 0
}

func ggufIsFloat(kind uint64) bool { return kind == ggufFloat32 || kind == ggufFloat64 }

func (r *ggufReader) integer(kind uint64) int64 {
	v := r.number(ggufWidth(kind))
	switch kind {
	case ggufInt8:
		return int64(int8(v))
	case ggufInt16:
		return int64(int16(v))
	case ggufInt32:
		return int64(int32(v))
	}
	if v > math.MaxInt64 && kind == ggufUint64 {
		r.fail("integer %d is too large", v)
	}
	return int64(v)
}

func (r *ggufReader) float(kind uint64) float64 {
	v := r.number(ggufWidth(kind))
	if kind == ggufFloat32 {
		return float64(math.Float32frombits(uint32(v)))
	}
	return math.Float64frombits(v)
}

func (r *ggufReader) value() any {
	kind := r.number(4)
	switch {
	case r.err != nil:
	case ggufIsFloat(kind):
		return r.float(kind)
	case ggufWidth(kind) > 0:
		return r.integer(kind)
	case kind == ggufString:
		return r.text()
	case kind == ggufArray:
		return r.list()
	default:
		r.fail("metadata value of unknown type %d", kind)
	}
	return nil
}

func (r *ggufReader) list() any {
	kind := r.number(4)
	switch {
	case r.err != nil:
	case ggufIsFloat(kind):
		return readList(r, ggufWidth(kind), func() float64 { return r.float(kind) })
	case ggufWidth(kind) > 0:
		return readList(r, ggufWidth(kind), func() int64 { return r.integer(kind) })
	case kind == ggufString:
		return readList(r, 8, r.text)
	default:
		r.fail("list of values of type %d", kind)
	}
	return nil
}

// readList reads a count and as many elements, each at least width bytes in the file.
func readList[T any](r *ggufReader, width int64, element func() T) []T {
	n := r.count(width, "values")
	list := make([]T, 0, min(n, 1<<16)) // more only as they really come
	for range n {
		v := element()
		if r.err != nil {
			return nil
		}
		list = append(list, v)
	}
	return list
}

// tensor reads one entry of the tensor table. What its offset means is checked when the table is complete.
func (r *ggufReader) tensor() (string, ggufTensor) {
	var t ggufTensor
	name := r.text()
	dims := r.number(4)
	if dims < 1 || dims > ggufMaxDims {
		r.fail("tensor %q has %d dimensions", name, dims)
		return name, t
	}
	elements := int64(1)
	for range dims {
		d := r.number(8)
		if d < 1 || d > math.MaxInt64/8/uint64(elements) {
			r.fail("tensor %q has a dimension of %d", name, d)
			return name, t
		}
		elements *= int64(d)
		t.dims = append(t.dims, int(d))
	}
	t.kind = ggufType(r.number(4))
	if f, ok := ggufFormats[t.kind]; ok {
		if t.dims[0]%f.elements != 0 {
			r.fail("tensor %q has rows of %d values, not a multiple of %s's %d", name, t.dims[0], f.name, f.elements)
		}
		t.bytes = elements / int64(f.elements) * int64(f.bytes)
	}
	if t.offset = int64(r.number(8)); t.offset < 0 {
		r.fail("tensor %q begins at %d", name, t.offset)
	}
	return name, t
}

// parseGGUF reads the head of a file of `size` bytes.
func parseGGUF(src io.ReaderAt, size int64) (*GGUF, error) {
	r := &ggufReader{r: bufio.NewReaderSize(io.NewSectionReader(src, 0, size), 1<<16), size: size}
	if magic := r.number(4); r.err == nil && magic != ggufMagic {
		return nil, fmt.Errorf("it begins with %#x, not with the letters GGUF", magic)
	}
	if v := r.number(4); r.err == nil && v != 2 && v != 3 {
		return nil, fmt.Errorf("version %d (or big-endian), want 2 or 3", v)
	}
	tensors := r.count(24, "tensors")  // an entry has at least a name's length, two counts and an offset
	entries := r.count(13, "metadata") // a name's length, a type and a value
	g := &GGUF{meta: map[string]any{}, tensors: map[string]ggufTensor{}}
	for range entries {
		key := r.text()
		v := r.value()
		if r.err != nil {
			return nil, r.err
		}
		if _, ok := g.meta[key]; ok {
			return nil, fmt.Errorf("metadata %q comes twice", key)
		}
		g.meta[key] = v
	}
	for range tensors {
		name, t := r.tensor()
		if r.err != nil {
			return nil, r.err
		}
		if _, ok := g.tensors[name]; ok {
			return nil, fmt.Errorf("tensor %q comes twice", name)
		}
		g.tensors[name] = t
		g.names = append(g.names, name)
	}
	if r.err != nil {
		return nil, r.err
	}
	align := int64(ggufAlignment)
	if v, ok := g.Int("general.alignment"); ok {
		if align = v; align < 1 || align > 1<<20 {
			return nil, fmt.Errorf("general.alignment is %d", align)
		}
	}
	begin := min((r.at+align-1)/align*align, size)
	for _, name := range g.names {
		if t := g.tensors[name]; t.offset > size-begin || t.bytes > size-begin-t.offset {
			return nil, fmt.Errorf("tensor %q needs %d bytes at %d, and the data has %d", name, t.bytes, t.offset, size-begin)
		}
	}
	g.data = io.NewSectionReader(src, begin, size-begin)
	return g, nil
}
