package tenant

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
)

// watched is what was read from a file, replaced as a whole when the content changes.
type watched[T any] struct {
	file  string
	parse func(file string, data []byte) (T, error)

	now atomic.Pointer[reading[T]]
}

type reading[T any] struct {
	digest [sha256.Size]byte // of the content, so that an untouched file is not parsed again
	value  T
}

// watch reads a file for the first time.
func watch[T any](file string, parse func(file string, data []byte) (T, error)) (*watched[T], error) {
	w := &watched[T]{file: file, parse: parse}
	if _, err := w.reload(); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *watched[T]) get() T { return w.now.Load().value }

func (w *watched[T]) name() string { return w.file }

// reload reads the file again and reports whether anything changed. On an error the old content stays.
//
// Content decides, not a time stamp: a mounted secret is replaced by swapping directories, and a copy may keep
// the old time. A file that is being written in place may be seen half done, which is why that is only an error.
func (w *watched[T]) reload() (changed bool, err error) {
	f, err := os.Open(w.file)
	if err != nil {
		return false, fmt.Errorf("read %s: %w", w.file, reasonOf(err))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return false, fmt.Errorf("read %s: %w", w.file, reasonOf(err))
	}
	digest := sha256.Sum256(data)
	old := w.now.Load()
	if old != nil && bytes.Equal(old.digest[:], digest[:]) {
		return false, nil
	}
	v, err := w.parse(w.file, data)
	if err != nil {
		return false, err
	}
	w.now.Store(&reading[T]{digest, v})
	return true, nil
}

// reasonOf leaves out the operation and the path, which the caller says.
func reasonOf(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
