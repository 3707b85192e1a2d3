package analyze

import (
	"bufio"
	"cmp"
	"container/heap"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// sorter sorts rows with their content, in memory as long as they fit and else in sorted runs on disk that are
// merged at the end. Rows that compare equal keep the order of the input.
type sorter struct {
	ctx     context.Context //nolint:containedctx // lives as long as one Run
	byTime  bool            // by start alone, else by conversation and start
	budget  int64           // bytes of rows and content held in memory
	tempDir string
	keys    []sortKey
	rows    []row
	places  []slabPlace
	slabs   [][]byte
	used    int64 // bytes in slabs
	slab    int   // the one being filled
	runs    []*run
	spilled int64 // bytes written to disk
}

// place is where a row's content lies in batch.content.
type place struct {
	off int64
	len int32
}

// slabPlace is where a row's content lies in sorter.slabs. One slice that grows would be copied again and again, and
// need twice its memory each time.
type slabPlace struct{ slab, off, len int32 }

const slabSize = 4 << 20

// store copies content into the slabs.
func (s *sorter) store(content []byte) slabPlace {
	if len(content) == 0 {
		return slabPlace{}
	}
	for ; s.slab < len(s.slabs); s.slab++ {
		if b := s.slabs[s.slab]; cap(b)-len(b) >= len(content) {
			break
		}
	}
	if s.slab == len(s.slabs) {
		s.slabs = append(s.slabs, make([]byte, 0, max(slabSize, len(content))))
	}
	b := &s.slabs[s.slab]
	p := slabPlace{int32(s.slab), int32(len(*b)), int32(len(content))}
	*b = append(*b, content...)
	s.used += int64(len(content))
	return p
}

// at returns the content stored at p.
func (s *sorter) at(p slabPlace) []byte {
	if p.len == 0 {
		return nil
	}
	return s.slabs[p.slab][p.off : p.off+p.len]
}

// forget drops what is stored and keeps the memory, except for slabs made for one large content.
func (s *sorter) forget() {
	s.rows, s.places, s.used, s.slab = s.rows[:0], s.places[:0], 0, 0
	s.slabs = slices.DeleteFunc(s.slabs, func(b []byte) bool { return cap(b) > slabSize })
	for i := range s.slabs {
		s.slabs[i] = s.slabs[i][:0]
	}
}

// release gives the memory back.
func (s *sorter) release() {
	s.rows, s.places, s.keys, s.slabs, s.used, s.slab = nil, nil, nil, nil, 0, 0
}

type sortKey struct {
	conv  uint64
	start int64
	seq   uint64
	i     int32
}

func (a *sortKey) compare(b *sortKey) int {
	if c := cmp.Compare(a.conv, b.conv); c != 0 {
		return c
	}
	if c := cmp.Compare(a.start, b.start); c != 0 {
		return c
	}
	return cmp.Compare(a.seq, b.seq)
}

func (s *sorter) key(r *row) sortKey {
	k := sortKey{start: r.start, seq: r.seq}
	if !s.byTime {
		k.conv = r.conv
	}
	return k
}

const perRow = 96 + 32 + 16 // what a row costs in memory: itself, its key, its place

func (s *sorter) add(r *row, content []byte) error {
	if len(s.rows) > 0 && (int64(len(s.rows)+1)*perRow+s.used+int64(len(content)) > s.budget || len(s.rows) == 1<<30) {
		if err := s.spill(); err != nil {
			return err
		}
	}
	s.rows = append(s.rows, *r)
	s.places = append(s.places, s.store(content))
	return nil
}

func (s *sorter) sortKeys() {
	s.keys = slices.Grow(s.keys[:0], len(s.rows))
	for i := range s.rows {
		k := s.key(&s.rows[i])
		k.i = int32(i)
		s.keys = append(s.keys, k)
	}
	slices.SortFunc(s.keys, func(a, b sortKey) int { return a.compare(&b) })
}

// all calls f with each row in order. The content is valid until f returns.
func (s *sorter) all(f func(*row, []byte) error) error {
	defer s.close()
	if len(s.runs) == 0 {
		s.sortKeys()
		for n := range s.keys {
			if n&0xfff == 0 && s.ctx.Err() != nil {
				return s.ctx.Err()
			}
			i := s.keys[n].i
			if err := f(&s.rows[i], s.at(s.places[i])); err != nil {
				return err
			}
		}
		return nil
	}
	if err := s.spill(); err != nil {
		return err
	}
	s.release()
	return s.merge(f)
}

func (s *sorter) close() {
	for _, r := range s.runs {
		r.close()
	}
	s.runs = nil
}

func (s *sorter) spill() error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	s.sortKeys()
	r, err := newRun(s.tempDir)
	if err != nil {
		return err
	}
	s.runs = append(s.runs, r)
	var head [rowSize + 4]byte
	for n := range s.keys {
		if n&0xfff == 0 && s.ctx.Err() != nil {
			return s.ctx.Err()
		}
		i := s.keys[n].i
		p := s.places[i]
		s.rows[i].encode(head[:])
		binary.LittleEndian.PutUint32(head[rowSize:], uint32(p.len))
		if err := r.write(head[:]); err != nil {
			return err
		}
		if err := r.write(s.at(p)); err != nil {
			return err
		}
	}
	if err := r.finish(); err != nil {
		return err
	}
	s.spilled += r.size
	s.forget()
	// Runs are merged in one pass; more of them would make the buffers of the merge large.
	if len(s.runs) >= 64 {
		return s.fold()
	}
	return nil
}

// fold merges all runs into one.
func (s *sorter) fold() error {
	into, err := newRun(s.tempDir)
	if err != nil {
		return err
	}
	old := s.runs
	s.runs = append(slices.Clone(old), into) // closed with the others if this fails
	var head [rowSize + 4]byte
	err = s.mergeRuns(old, func(r *row, content []byte) error {
		r.encode(head[:])
		binary.LittleEndian.PutUint32(head[rowSize:], uint32(len(content)))
		if err := into.write(head[:]); err != nil {
			return err
		}
		return into.write(content)
	})
	if err != nil {
		return err
	}
	for _, r := range old {
		r.close()
	}
	s.runs = []*run{into}
	err = into.finish()
	s.spilled += into.size
	return err
}

func (s *sorter) merge(f func(*row, []byte) error) error { return s.mergeRuns(s.runs, f) }

func (s *sorter) mergeRuns(runs []*run, f func(*row, []byte) error) error {
	h := &runHeap{s: s}
	for _, r := range runs {
		if err := r.rewind(); err != nil {
			return err
		}
		ok, err := r.next()
		if err != nil {
			return err
		}
		if ok {
			h.runs = append(h.runs, r)
		}
	}
	heap.Init(h)
	for n := 0; len(h.runs) > 0; n++ {
		if n&0xfff == 0 && s.ctx.Err() != nil {
			return s.ctx.Err()
		}
		r := h.runs[0]
		if err := f(&r.row, r.content); err != nil {
			return err
		}
		ok, err := r.next()
		if err != nil {
			return err
		}
		if ok {
			heap.Fix(h, 0)
		} else {
			heap.Pop(h)
		}
	}
	return nil
}

type runHeap struct {
	s    *sorter
	runs []*run
}

func (h *runHeap) Len() int      { return len(h.runs) }
func (h *runHeap) Swap(i, j int) { h.runs[i], h.runs[j] = h.runs[j], h.runs[i] }
func (h *runHeap) Push(x any)    { h.runs = append(h.runs, x.(*run)) }
func (h *runHeap) Less(i, j int) bool {
	a, b := h.s.key(&h.runs[i].row), h.s.key(&h.runs[j].row)
	return a.compare(&b) < 0
}

func (h *runHeap) Pop() any {
	r := h.runs[len(h.runs)-1]
	h.runs = h.runs[:len(h.runs)-1]
	return r
}

// run is one sorted sequence of rows on disk.
//
// It may hold prompts, so it is encrypted with a key that exists only here, and the file loses its name as soon as
// it is open: whatever ends the process, nothing readable and nothing to clean up stays behind.
type run struct {
	file  *os.File
	name  string // where it could not be removed while open
	block cipher.Block
	out   *bufio.Writer
	pack  *zstd.Encoder
	size  int64
	in    *bufio.Reader
	unzip *zstd.Decoder

	row     row
	content []byte
}

func newRun(dir string) (*run, error) {
	f, err := os.CreateTemp(dir, "tarik-analyze-*")
	if err != nil {
		return nil, fmt.Errorf("sort on disk: %w", err)
	}
	r := &run{file: f}
	if os.Remove(f.Name()) != nil {
		r.name = f.Name()
	}
	var key [16]byte
	if _, err := rand.Read(key[:]); err != nil {
		r.close()
		return nil, fmt.Errorf("sort on disk: %w", err)
	}
	if r.block, err = aes.NewCipher(key[:]); err != nil {
		r.close()
		return nil, fmt.Errorf("sort on disk: %w", err)
	}
	sealed := cipher.StreamWriter{S: cipher.NewCTR(r.block, make([]byte, aes.BlockSize)), W: f}
	r.out = bufio.NewWriterSize(&sized{sealed, &r.size}, 256<<10)
	r.pack, err = zstd.NewWriter(r.out, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	if err != nil {
		r.close()
		return nil, fmt.Errorf("sort on disk: %w", err)
	}
	return r, nil
}

type sized struct {
	w io.Writer
	n *int64
}

func (s *sized) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	*s.n += int64(n)
	return n, err
}

func (r *run) write(p []byte) error {
	if _, err := r.pack.Write(p); err != nil {
		return fmt.Errorf("sort on disk: %w", err)
	}
	return nil
}

func (r *run) finish() error {
	if err := errors.Join(r.pack.Close(), r.out.Flush()); err != nil {
		return fmt.Errorf("sort on disk: %w", err)
	}
	r.pack, r.out = nil, nil
	return nil
}

func (r *run) rewind() error {
	if _, err := r.file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("sort on disk: %w", err)
	}
	plain := cipher.StreamReader{S: cipher.NewCTR(r.block, make([]byte, aes.BlockSize)), R: r.file}
	var err error
	r.unzip, err = zstd.NewReader(bufio.NewReaderSize(plain, 64<<10), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
	if err != nil {
		return fmt.Errorf("sort on disk: %w", err)
	}
	r.in = bufio.NewReaderSize(r.unzip, 64<<10)
	return nil
}

// next reads the next row, false if there is none.
func (r *run) next() (bool, error) {
	var head [rowSize + 4]byte
	if _, err := io.ReadFull(r.in, head[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		return false, fmt.Errorf("sort on disk: %w", err)
	}
	r.row.decode(head[:])
	n := int(binary.LittleEndian.Uint32(head[rowSize:]))
	r.content = slices.Grow(r.content[:0], n)[:n]
	if _, err := io.ReadFull(r.in, r.content); err != nil {
		return false, fmt.Errorf("sort on disk: %w", err)
	}
	return true, nil
}

func (r *run) close() {
	if r.unzip != nil {
		r.unzip.Close()
	}
	r.file.Close()
	if r.name != "" {
		_ = os.Remove(r.name)
	}
}
