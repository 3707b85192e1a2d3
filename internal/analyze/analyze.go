package analyze

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options say what to read and what to assume. DefaultOptions has working values.
type Options struct {
	Files []string  // "-" is Stdin
	Stdin io.Reader //

	TTL       time.Duration // how long D keeps a turn's blocks; the late share is counted against it
	BlockSize int           // tokens in a KV block
	Memory    int64         // bytes; rows beyond are sorted on disk
	TempDir   string        // for sorting; "" is the system's

	// KVBytesPerToken turns pinned tokens into gigabytes, 0 if unknown.
	KVBytesPerToken int64
	// PrefillRate is how many prompt tokens one node computes in a second, 0 if unknown.
	PrefillRate float64
	// NodeKVTokens is how many tokens of KV one node holds, 0 if unknown.
	NodeKVTokens int64

	// Fields says where a log keeps what it calls otherwise: a role (conversation, time, prompt_tokens, …) and the
	// member, or members inside each other joined by dots.
	Fields map[string]string

	// Salt makes the hashes of two runs comparable; empty is a random one.
	Salt string

	Progress func(Progress) // called from one goroutine, at most every 100 ms; may be nil

	spillAt int64 // for tests: bytes of rows after which they go to disk; 0: by Memory
}

// Progress is how far a run has come.
type Progress struct {
	Stage    string // read, link, compare
	Bytes    int64  // read so far, before decompression
	Requests int64
}

// DefaultOptions are the ones of `tarik analyze` without flags.
func DefaultOptions() Options {
	return Options{TTL: 480 * time.Second, BlockSize: 16, Memory: 512 << 20}
}

// Roles are the names that Options.Fields takes.
func Roles() []string {
	var list []string
	for name := range roles {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

var roles = map[string]slot{
	"conversation": slotOperator, "tenant": slotTenant, "model": slotModel, "time": slotTime, "start": slotStart, "end": slotEnd,
	"duration_s": slotDurationS, "duration_ms": slotDurationMs, "prompt_tokens": slotPrompt, "output_tokens": slotOutput,
	"cached_tokens": slotCachedIn, "messages": slotMessages, "prompt": slotPromptText, "request": slotRequest, "response": slotResponse,
}

// Validate says what is wrong with o.
func (o *Options) Validate() error {
	switch {
	case len(o.Files) == 0:
		return errors.New("no file to read; - is standard input")
	case o.TTL <= 0:
		return fmt.Errorf("TTL %v: want more than 0", o.TTL)
	case o.BlockSize < 1 || o.BlockSize > 1<<20:
		return fmt.Errorf("block size %d: want 1 to %d tokens", o.BlockSize, 1<<20)
	case o.Memory < 128<<20:
		return fmt.Errorf("memory %d bytes: want 128 MiB or more", o.Memory)
	case o.KVBytesPerToken < 0 || o.PrefillRate < 0 || o.NodeKVTokens < 0:
		return errors.New("bytes per token, prefill rate and node size cannot be negative")
	}
	stdin := 0
	for _, f := range o.Files {
		if f == "-" {
			stdin++
		}
	}
	if stdin > 1 {
		return errors.New("standard input can be read once")
	}
	_, err := o.paths()
	return err
}

func (o *Options) paths() ([]fieldPath, error) {
	var list []fieldPath
	for role, path := range o.Fields {
		s, ok := roles[role]
		if !ok {
			return nil, fmt.Errorf("field %q: want one of %s", role, strings.Join(Roles(), ", "))
		}
		if path == "" {
			return nil, fmt.Errorf("field %q: no member named", role)
		}
		list = append(list, fieldPath{s, strings.Split(path, ".")})
	}
	slices.SortFunc(list, func(a, b fieldPath) int { return int(a.slot) - int(b.slot) })
	return list, nil
}

// ErrNoRequests says that nothing in the input could be read as a request. The report beside it says why.
var ErrNoRequests = errors.New("no request found")

// Run reads all files and returns the report. With ErrNoRequests it returns one too, which tells what was wrong
// with each kind of line. A file that cannot be read to its end is in the report, and what was read of it counts.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	salt := []byte(o.Salt)
	if len(salt) == 0 {
		salt = make([]byte, 16)
		if _, err := rand.Read(salt); err != nil {
			return nil, err
		}
	}
	paths, err := o.paths()
	if err != nil {
		return nil, err
	}
	c := &collector{
		o: &o, names: newNames(), tally: newTally(&o),
		bad: map[string]*Issue{}, skipped: map[string]*Issue{},
		in:     Input{Files: o.Files, Formats: map[string]int64{}},
		fields: map[string]int64{}, hints: map[string]int64{},
	}
	for _, f := range o.Files {
		if err := openable(f); err != nil {
			return nil, err
		}
	}
	c.byConv = &sorter{ctx: ctx, budget: o.Memory / 3, tempDir: o.TempDir}
	c.byTime = &sorter{ctx: ctx, budget: o.Memory / 8, tempDir: o.TempDir, byTime: true}
	if o.spillAt > 0 {
		c.byConv.budget, c.byTime.budget = o.spillAt, o.spillAt
	}
	defer c.byConv.close()
	defer c.byTime.close()
	if err := c.read(ctx, salt, paths); err != nil {
		return nil, err
	}
	if err := c.link(salt); err != nil {
		return nil, err
	}
	if err := c.compare(); err != nil {
		return nil, err
	}
	r := c.report()
	if r.Requests+r.OtherUnit == 0 {
		return r, ErrNoRequests
	}
	return r, nil
}

// collector takes batches in the order of the input and passes their rows on.
type collector struct {
	o              *Options
	names          *names
	tally          *tally
	byConv, byTime *sorter
	in             Input
	bad, skipped   map[string]*Issue
	fields, hints  map[string]int64
	forgotten      int64
	requests       int64
	lastProgress   time.Time
	bytes          func() int64
}

func (c *collector) read(ctx context.Context, salt []byte, paths []fieldPath) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	workers := runtime.GOMAXPROCS(0)
	work := make(chan *job)
	order := make(chan *job, workers+1) // bounds how many pieces are in memory
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			p := newParser(c.names, salt, paths)
			for j := range work {
				j.out = p.parse(j)
				close(j.done)
			}
		})
	}
	r := &reader{ctx: ctx, stdin: c.o.Stdin}
	c.bytes = r.read.Load
	r.emit = func(j *job) error {
		if len(j.data) == 0 && j.tooLong == 0 && !j.unclosed {
			return nil
		}
		j.done = make(chan struct{})
		for _, to := range [...]chan *job{order, work} {
			select {
			case to <- j:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	var readErr error
	var failed []string
	wg.Go(func() {
		defer close(order)
		defer close(work)
		for _, f := range c.o.Files {
			err := r.file(f)
			if ctx.Err() != nil {
				readErr = ctx.Err()
				return
			}
			if err != nil {
				failed = append(failed, err.Error())
			}
		}
	})
	var err error
	for j := range order {
		if err != nil {
			continue
		}
		select {
		case <-j.done:
			err = c.take(j.out)
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			cancel()
		}
	}
	wg.Wait()
	c.in.Bytes, c.in.Failed = r.read.Load(), failed
	if err != nil {
		return err
	}
	return readErr
}

func (c *collector) progress(stage string) {
	if c.o.Progress == nil || time.Since(c.lastProgress) < 100*time.Millisecond {
		return
	}
	c.lastProgress = time.Now()
	c.o.Progress(Progress{stage, c.bytes(), c.requests})
}

func (c *collector) take(b *batch) error {
	c.in.Lines += b.lines
	merge(c.bad, b.bad)
	merge(c.skipped, b.skipped)
	for _, m := range [...]struct{ to, from map[string]int64 }{{c.in.Formats, b.formats}, {c.fields, b.ids}, {c.hints, b.hints}} {
		for k, n := range m.from {
			m.to[k] += n
		}
	}
	for i := range b.rows {
		r, p := &b.rows[i], b.places[i]
		enc := b.content[p.off : p.off+int64(p.len)]
		if r.start != noTime {
			c.tally.inputEnd = max(c.tally.inputEnd, r.end())
		}
		var err error
		switch {
		case r.conv != 0:
			err = c.byConv.add(r, enc)
		case r.kind != noContent:
			err = c.byTime.add(r, enc)
		default:
			c.tally.request(r)
		}
		if err != nil {
			return err
		}
	}
	c.requests += int64(len(b.rows))
	c.progress("read")
	return nil
}

func merge(to, from map[string]*Issue) {
	for k, v := range from {
		if old := to[k]; old != nil {
			old.Count += v.Count
		} else {
			to[k] = v
		}
	}
}

func (c *collector) link(salt []byte) error {
	l := newLinker(c.o.Memory/4, salt, c.byConv.add)
	n := 0
	err := c.byTime.all(func(r *row, enc []byte) error {
		if n++; n&0xff == 0 {
			c.progress("link")
		}
		return l.add(r, enc)
	})
	c.forgotten = l.ends.forgotten + l.blocks.forgotten
	c.in.Spilled += c.byTime.spilled
	c.byTime.release()
	return err
}

func (c *collector) compare() error {
	v := &conversations{t: c.tally, budget: int(c.o.Memory / 8)}
	n := 0
	err := c.byConv.all(func(r *row, enc []byte) error {
		if n++; n&0xff == 0 {
			c.progress("compare")
		}
		return v.add(r, enc)
	})
	v.finish()
	c.in.Spilled += c.byConv.spilled
	return err
}
