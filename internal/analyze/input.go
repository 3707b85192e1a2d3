package analyze

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

const (
	chunkSize = 1 << 20  // bytes read at a time, then up to the end of the last line
	peekSize  = 64 << 10 // bytes looked at to tell what a file is
	// maxValue is the longest line or JSON value that is parsed. A longer one is counted as bad and skipped: it
	// would have to be held in memory whole.
	maxValue = 64 << 20
)

// layout is how a file is divided into records.
type layout uint8

const (
	byLine  layout = iota
	byValue        // JSON values over several lines, or the elements of one array
	byRow          // CSV with a header
)

// job is a piece of one file: whole records, in order.
type job struct {
	source    string // name of the file, for messages
	layout    layout
	columns   []slot // of a CSV file
	data      []byte
	ends      []int // byValue: where each value ends in data; the rest of data is between them
	firstLine int64 // number of the first line in data, 1 for the first of the file
	first     uint64
	tooLong   int  // lines dropped behind this piece, because they are longer than maxValue
	unclosed  bool // the file ends in the middle of a value
	out       *batch
	done      chan struct{}
}

// reader turns files into jobs.
type reader struct {
	ctx   context.Context
	emit  func(*job) error
	stdin io.Reader
	read  atomic.Int64 // bytes of the files, before decompression
	seq   uint64
}

// counted counts bytes as they are read, and stops when the context ends.
type counted struct {
	r   io.Reader
	n   *atomic.Int64
	ctx context.Context //nolint:containedctx // lives as long as one call of reader.file
}

func (c *counted) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// openable says what can be said against name before anything is read.
func openable(name string) error {
	if name == "-" {
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return fmt.Errorf("%s is a directory: name the files in it, for example %s/*", name, name)
	}
	return nil
}

// interruptible reads from a stream whose Read may block for ever, such as a terminal's. When the context ends, the
// read that is in progress is left behind.
type interruptible struct {
	r    io.Reader
	ctx  context.Context //nolint:containedctx // lives as long as one call of reader.file
	done chan []byte
	err  error
	buf  []byte
}

func (i *interruptible) Read(p []byte) (int, error) {
	for len(i.buf) == 0 {
		if i.err != nil {
			return 0, i.err
		}
		if i.done == nil {
			i.done = make(chan []byte, 1)
			own := make([]byte, len(p))
			go func(to chan []byte) {
				n, err := i.r.Read(own)
				i.err = err
				to <- own[:n]
			}(i.done)
		}
		select {
		case i.buf = <-i.done:
			i.done = nil
		case <-i.ctx.Done():
			return 0, i.ctx.Err()
		}
	}
	n := copy(p, i.buf)
	i.buf = i.buf[n:]
	return n, nil
}

func (r *reader) file(name string) error {
	var in io.Reader = &interruptible{r: r.stdin, ctx: r.ctx}
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	} else {
		name = "standard input"
	}
	return r.stream(name, bufio.NewReaderSize(&counted{in, &r.read, r.ctx}, chunkSize))
}

// stream unpacks what is packed, by its first bytes, and reads what is in it.
func (r *reader) stream(name string, in *bufio.Reader) error {
	head, err := in.Peek(512)
	if err != nil && !errors.Is(err, io.EOF) && len(head) == 0 {
		return fmt.Errorf("%s: %w", name, err)
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(in)
		if err != nil {
			return fmt.Errorf("%s: gzip: %w", name, err)
		}
		defer z.Close()
		return r.stream(name, bufio.NewReaderSize(z, chunkSize))
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		// The window is bounded, so that a crafted file cannot ask for gigabytes.
		z, err := zstd.NewReader(in, zstd.WithDecoderMaxMemory(512<<20), zstd.WithDecoderMaxWindow(128<<20), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return fmt.Errorf("%s: zstd: %w", name, err)
		}
		defer z.Close()
		return r.stream(name, bufio.NewReaderSize(z, chunkSize))
	case bytes.HasPrefix(head, []byte("BZh")):
		return r.stream(name, bufio.NewReaderSize(bzip2.NewReader(in), chunkSize))
	case bytes.HasPrefix(head, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		return fmt.Errorf("%s: xz is not read here; use: xz -dc %s | tarik analyze -", name, name)
	case bytes.HasPrefix(head, []byte("PK\x03\x04")):
		return fmt.Errorf("%s: zip is not read here; use: unzip -p %s | tarik analyze -", name, name)
	case len(head) > 262 && string(head[257:262]) == "ustar":
		return r.tar(name, in)
	}
	return r.text(name, in)
}

func (r *reader) tar(name string, in io.Reader) error {
	t := tar.NewReader(in)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: tar: %w", name, err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := r.stream(name+"!"+h.Name, bufio.NewReaderSize(t, chunkSize)); err != nil {
			return err
		}
	}
}

// text reads records.
func (r *reader) text(name string, in *bufio.Reader) error {
	if head, _ := in.Peek(3); bytes.Equal(head, []byte{0xef, 0xbb, 0xbf}) {
		_, _ = in.Discard(3)
	}
	head, _ := in.Peek(peekSize) // a fault comes again when it is read
	kind, columns := detect(head)
	line := int64(1)
	if kind == byRow {
		if _, err := in.ReadSlice('\n'); err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: the header is longer than %d bytes", name, chunkSize)
		}
		line++
	}
	s := splitter{in: in, layout: kind, line: line, limit: maxValue}
	for {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		j, err := s.next()
		if j != nil {
			j.source, j.layout, j.columns, j.first = name, kind, columns, r.seq
			r.seq += uint64(len(j.data)) + 1 // more than the records in it
			if err := r.emit(j); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s:%d: %w", name, s.line, err)
		}
	}
}

// detect tells the layout of a file by its first bytes.
func detect(head []byte) (layout, []slot) {
	text := bytes.TrimLeft(head, " \t\r\n")
	if len(text) == 0 {
		return byLine, nil
	}
	switch text[0] {
	case '[':
		if rest := bytes.TrimLeft(text[1:], " \t\r\n"); len(rest) > 0 && (rest[0] == '{' || rest[0] == ']') {
			return byValue, nil
		}
	case '{':
		if n := bytes.IndexByte(text, '\n'); n >= 0 {
			var v valueScanner
			if v.end(text[:n]); v.depth > 0 {
				return byValue, nil
			}
		}
	default:
		line, _, _ := bytes.Cut(text, []byte{'\n'})
		if columns := header(line); columns != nil {
			return byRow, columns
		}
	}
	return byLine, nil
}

// splitter cuts a stream into pieces of whole records.
type splitter struct {
	in     *bufio.Reader
	layout layout
	line   int64 // number of the line at the start of rest
	rest   []byte
	scan   valueScanner
	at     int // byValue: how much of rest has been scanned
	array  bool
	limit  int // bytes of the longest record
}

var errTooLong = fmt.Errorf("longer than %d MiB", maxValue>>20)

// next returns the next piece, and io.EOF with or after the last one.
func (s *splitter) next() (*job, error) {
	if s.layout == byValue {
		return s.values()
	}
	buf := append(make([]byte, 0, chunkSize+len(s.rest)+4096), s.rest...)
	s.rest = nil
	j := &job{firstLine: s.line}
	for {
		from := len(buf)
		n, err := fill(s.in, buf[from:min(cap(buf), from+chunkSize)])
		buf = buf[:from+n]
		last := errors.Is(err, io.EOF)
		end := bytes.LastIndexByte(buf[from:], '\n')
		if end >= 0 {
			end += from + 1
		}
		switch {
		case last:
			end = len(buf)
		case err != nil: // what came before the fault counts, up to its last whole line
			j.data = buf[:max(0, end)]
			return j, err
		}
		if end >= 0 {
			s.rest = append([]byte(nil), buf[end:]...)
			j.data = buf[:end]
			s.line += int64(bytes.Count(j.data, []byte{'\n'}))
			if last {
				return j, io.EOF
			}
			return j, nil
		}
		if len(buf) > s.limit {
			j.tooLong++
			if err := s.skipLine(); err != nil {
				return j, err
			}
			s.line++
			return j, nil
		}
		if cap(buf)-len(buf) < chunkSize {
			buf = append(make([]byte, 0, 2*cap(buf)+chunkSize), buf...)
		}
	}
}

// fill reads until p is full. Unlike io.ReadFull it does not hide what ended the stream.
func fill(r io.Reader, p []byte) (int, error) {
	n := 0
	for n < len(p) {
		k, err := r.Read(p[n:])
		n += k
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func (s *splitter) skipLine() error {
	for {
		_, err := s.in.ReadSlice('\n')
		if !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// values returns JSON values as they follow each other in the stream or in one array.
func (s *splitter) values() (*job, error) {
	buf := append(make([]byte, 0, chunkSize+len(s.rest)+4096), s.rest...)
	j := &job{firstLine: s.line}
	at := s.at
	for {
		from := len(buf)
		n, err := fill(s.in, buf[from:min(cap(buf), from+chunkSize)])
		buf = buf[:from+n]
		last := errors.Is(err, io.EOF)
		for at < len(buf) {
			if !s.scan.open {
				// Between values: commas, white space and the brackets of one outermost array.
				c := buf[at]
				if c == '[' && !s.array {
					s.array = true
				} else if c == '{' {
					s.scan = valueScanner{open: true}
					continue
				} else if c != ',' && c != ']' && c > ' ' {
					j.data = buf[:at]
					return j, fmt.Errorf("want a JSON object, found byte %#x", c)
				}
				at++
				continue
			}
			k := s.scan.end(buf[at:])
			if k < 0 {
				at = len(buf)
				break
			}
			at += k
			s.scan.open = false
			j.ends = append(j.ends, at)
		}
		if err != nil && !last {
			j.data = buf
			return j, err
		}
		if len(j.ends) > 0 || last {
			end := len(buf)
			if len(j.ends) > 0 && !last {
				end = j.ends[len(j.ends)-1]
			}
			s.rest, s.at = append([]byte(nil), buf[end:]...), at-end
			j.data = buf[:end]
			s.line += int64(bytes.Count(j.data, []byte{'\n'}))
			if !last {
				return j, nil
			}
			j.unclosed = s.scan.open
			return j, io.EOF
		}
		if len(buf) > s.limit {
			return nil, fmt.Errorf("a JSON value is %w", errTooLong)
		}
		if cap(buf)-len(buf) < chunkSize {
			buf = append(make([]byte, 0, 2*cap(buf)+chunkSize), buf...)
		}
	}
}

// valueScanner finds the end of a JSON object in pieces of text.
type valueScanner struct {
	depth    int
	open     bool
	inString bool
	escaped  bool
}

// end returns the position behind the byte that closes the object, -1 if it is not in b.
func (v *valueScanner) end(b []byte) int {
	for i, c := range b {
		switch {
		case v.escaped:
			v.escaped = false
		case v.inString:
			if c == '"' {
				v.inString = false
			} else if c == '\\' {
				v.escaped = true
			}
		case c == '"':
			v.inString = true
		case c == '{' || c == '[':
			v.depth++
		case c == '}' || c == ']':
			if v.depth--; v.depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}
