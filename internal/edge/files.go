package edge

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Reloader is whatever reads files that may change while the router runs. changed names those with new content;
// what is wrong with the others is in the error, and what was read from them before stays in force.
type Reloader interface {
	Reload() (changed []string, err error)
}

// Reloaders are several.
type Reloaders []Reloader

var _ Reloader = Reloaders(nil)

// Reload reloads all of them.
func (rs Reloaders) Reload() (changed []string, err error) {
	var errs []error
	for _, r := range rs {
		some, err := r.Reload()
		changed = append(changed, some...)
		errs = append(errs, err)
	}
	slices.Sort(changed)
	return slices.Compact(changed), errors.Join(errs...)
}

// Run reloads every interval until ctx ends. It calls report when files were replaced, and when what is wrong
// changes: once when it begins and once, with nil, when it ends.
func (rs Reloaders) Run(ctx context.Context, interval time.Duration, report func(changed []string, err error)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	wrong := ""
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		changed, err := rs.Reload()
		now := ""
		if err != nil {
			now = err.Error()
		}
		if len(changed) > 0 || now != wrong {
			report(changed, err)
		}
		wrong = now
	}
}

// maxFileBytes bounds a certificate, CA or key file.
const maxFileBytes = 4 << 20

// files is what was read from several files that belong together, replaced as a whole when any of them changes.
type files[T any] struct {
	names []string
	parse func(contents [][]byte) (T, error)

	mu  sync.Mutex // one reload at a time, so that an older reading does not replace a newer one
	now atomic.Pointer[reading[T]]
}

type reading[T any] struct {
	digest [][sha256.Size]byte // of each file, so that untouched ones are not parsed again
	value  T
}

// readFiles reads them for the first time.
func readFiles[T any](names []string, parse func(contents [][]byte) (T, error)) (*files[T], error) {
	f := &files[T]{names: names, parse: parse}
	if _, err := f.Reload(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *files[T]) get() T { return f.now.Load().value }

// Reload reads the files again.
//
// Content decides, not a time stamp: a mounted secret is replaced by swapping directories. Of a certificate and its
// key one may be seen new and the other old; then they do not fit, which is an error until the next reading.
func (f *files[T]) Reload() (changed []string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.now.Load()
	next := &reading[T]{}
	contents := make([][]byte, len(f.names))
	for i, name := range f.names {
		if contents[i], err = readFile(name); err != nil {
			return nil, err
		}
		next.digest = append(next.digest, sha256.Sum256(contents[i]))
		if old == nil || old.digest[i] != next.digest[i] {
			changed = append(changed, name)
		}
	}
	if len(changed) == 0 && old != nil {
		return nil, nil
	}
	if next.value, err = f.parse(contents); err != nil {
		return nil, err
	}
	f.now.Store(next)
	return changed, nil
}

// readFile reads a file of a sane size.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, reasonOf(err))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", name, reasonOf(err))
	case len(data) > maxFileBytes:
		return nil, fmt.Errorf("read %s: larger than %d bytes", name, maxFileBytes)
	}
	return data, nil
}

// reasonOf leaves out the operation and the path, which the caller says.
func reasonOf(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
