package sim

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Trace is what was read of requests' logs.
type Trace struct {
	Rows  []Row
	Lines int
	// Bad counts lines that are no requests, by reason, with the first line of each.
	Bad []BadLine
}

// BadLine counts lines that were not used for one reason.
type BadLine struct {
	Reason string
	Count  int
	First  string // file:line
}

// Limits of what is read.
const (
	maxLine   = 64 << 20 // bytes
	maxRows   = 200_000_000
	maxPrompt = 1 << 24 // tokens
	// usualReply stands for a reply whose length the log does not say, in tokens.
	usualReply = 200
	// hashedBlock is how many tokens a block of hash_ids has.
	hashedBlock = 512
)

// ErrNoRows says that nothing could be read as a request.
var ErrNoRows = errors.New("no request found")

// TraceReader puts logs together. Lines are JSON objects or, after a header, CSV; docs/sim.md says which members count.
type TraceReader struct {
	trace Trace
	bad   map[string]int // index into trace.Bad
	convs map[string]int32
	raw   []rawRow
	heads map[uint64]int32 // of hash chains: the conversation whose last request ends there
	next  int32
}

type rawRow struct {
	Row
	chain uint64 // of its full blocks, 0 none
}

// Read adds one file, which may be gzip or zstd. name is for messages.
func (t *TraceReader) Read(name string, r io.Reader) error {
	b := bufio.NewReaderSize(r, 1<<20)
	magic, _ := b.Peek(4)
	var in io.Reader = b
	switch {
	case len(magic) >= 2 && magic[0] == 0x1f && magic[1] == 0x8b:
		z, err := gzip.NewReader(b)
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		in = z
	case len(magic) == 4 && binary.LittleEndian.Uint32(magic) == 0xFD2FB528:
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		defer z.Close()
		in = z
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	var header map[string]int
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if n == 1 {
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
		}
		if len(line) == 0 {
			continue
		}
		t.trace.Lines++
		if header == nil && line[0] != '{' {
			if header = csvHeader(string(line)); header != nil {
				t.trace.Lines--
				continue
			}
		}
		if len(t.raw) >= maxRows {
			return fmt.Errorf("read %s: more than %d requests", name, maxRows)
		}
		if err := t.line(line, header); err != nil {
			t.spoil(err.Error(), fmt.Sprintf("%s:%d", name, n))
		}
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return fmt.Errorf("read %s: a line of more than %d MiB", name, maxLine>>20)
		}
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

func (t *TraceReader) spoil(reason, at string) {
	if t.bad == nil {
		t.bad = map[string]int{}
	}
	i, ok := t.bad[reason]
	if !ok {
		i = len(t.trace.Bad)
		t.bad[reason] = i
		t.trace.Bad = append(t.trace.Bad, BadLine{Reason: reason, First: at})
	}
	t.trace.Bad[i].Count++
}

// names of members and columns, compared in lower case without "_".
var names = map[string]string{
	"conversationid": "conv", "conversation": "conv", "sessionid": "conv", "session": "conv", "chatid": "conv",
	"ts": "time", "timestamp": "time", "time": "time", "starttime": "time", "start": "time",
	"prompttokens": "prompt", "inputtokens": "prompt", "inputlength": "prompt", "contexttokens": "prompt", "promptlen": "prompt",
	"completiontokens": "output", "outputtokens": "output", "outputlength": "output", "generatedtokens": "output", "outputlen": "output",
	"sharedprefixtokens": "shared", "blocksize": "block", "hashids": "hashes",
}

func plain(name string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.Trim(name, `"`)))
}

func csvHeader(line string) map[string]int {
	h := map[string]int{}
	for i, cell := range strings.Split(line, ",") {
		if role := names[plain(cell)]; role != "" {
			h[role] = i
		}
	}
	if _, ok := h["prompt"]; !ok {
		return nil
	}
	return h
}

// fields are a line's values as text, "" where there is none.
type fields struct {
	conv, time, prompt, output, shared, block string
	hashes                                    []int64
}

var (
	errJSON   = errors.New("neither a JSON object nor CSV with a header that names prompt tokens")
	errPrompt = errors.New("no number of prompt tokens")
	errTime   = errors.New("no time that can be read")
	errRange  = errors.New("a number of tokens that is negative or above 2^24")
)

func (t *TraceReader) line(line []byte, header map[string]int) error {
	f, err := fieldsOf(line, header)
	if err != nil {
		return err
	}
	if f.prompt == "" {
		return errPrompt
	}
	r := Row{Shared: -1, Output: usualReply}
	for _, v := range []struct {
		text string
		to   *int32
	}{{f.prompt, &r.Prompt}, {f.output, &r.Output}, {f.shared, &r.Shared}, {f.block, &r.Block}} {
		if v.text == "" {
			continue
		}
		n, err := strconv.ParseFloat(v.text, 64)
		if err != nil || !(n >= 0) || n > maxPrompt {
			return errRange
		}
		*v.to = int32(n)
	}
	if r.Start, err = timeOf(f.time, f.hashes != nil); err != nil {
		return err
	}
	raw := rawRow{Row: r}
	if f.conv != "" {
		if t.convs == nil {
			t.convs = map[string]int32{}
		}
		id, ok := t.convs[f.conv]
		if !ok {
			id = t.next
			t.next++
			t.convs[strings.Clone(f.conv)] = id
		}
		raw.Conv = id
	} else {
		raw.Conv = t.link(&raw, f.hashes)
	}
	t.raw = append(t.raw, raw)
	return nil
}

func fieldsOf(line []byte, header map[string]int) (f fields, err error) {
	set := func(role, value string) {
		switch role {
		case "conv":
			f.conv = value
		case "time":
			f.time = value
		case "prompt":
			f.prompt = value
		case "output":
			f.output = value
		case "shared":
			f.shared = value
		case "block":
			f.block = value
		}
	}
	if line[0] != '{' {
		if header == nil {
			return f, errJSON
		}
		cells := strings.Split(string(line), ",")
		for role, i := range header {
			if i < len(cells) {
				set(role, strings.Trim(strings.TrimSpace(cells[i]), `"`))
			}
		}
		return f, nil
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(line, &m); err != nil {
		return f, errJSON
	}
	for name, raw := range m {
		role := names[plain(name)]
		switch {
		case role == "" || string(raw) == "null":
		case role == "hashes":
			if json.Unmarshal(raw, &f.hashes) != nil {
				return f, errors.New("hash_ids are no numbers")
			}
			if f.hashes == nil {
				f.hashes = []int64{}
			}
		case raw[0] == '"':
			var s string
			if json.Unmarshal(raw, &s) == nil {
				set(role, s)
			}
		case raw[0] == '{' || raw[0] == '[':
		default:
			set(role, string(raw))
		}
	}
	return f, nil
}

// timeOf reads seconds, milliseconds, microseconds or nanoseconds since some begin, or a date. Traces with hashes count
// milliseconds.
func timeOf(s string, milli bool) (time.Duration, error) {
	if s == "" {
		return 0, errTime
	}
	if v, err := strconv.ParseFloat(s, 64); err == nil {
		if math.IsNaN(v) || math.Abs(v) > 1e19 {
			return 0, errTime
		}
		unit := 1e9
		switch a := math.Abs(v); {
		case a >= 1e17:
			unit = 1
		case a >= 1e14:
			unit = 1e3
		case a >= 1e11 || milli:
			unit = 1e6
		}
		if math.Abs(v*unit) > 9e18 {
			return 0, errTime
		}
		return time.Duration(v * unit), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999", "2006-01-02T15:04:05.999999999"} {
		if at, err := time.Parse(layout, s); err == nil && at.Year() > 1700 && at.Year() < 2250 {
			return time.Duration(at.UnixNano()), nil
		}
	}
	return 0, errTime
}

// link finds the conversation of a request without a name: it goes on with the one whose last request's full blocks, two at
// least, this one begins with. Without hashes it is one of its own.
func (t *TraceReader) link(r *rawRow, hashes []int64) int32 {
	whole := min(len(hashes), int(r.Prompt)/hashedBlock)
	if whole > 0 {
		h := fnv.New64a()
		chain := make([]uint64, whole)
		for i := range whole {
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], uint64(hashes[i]))
			_, _ = h.Write(b[:]) // never fails
			chain[i] = h.Sum64()
		}
		r.chain = chain[whole-1]
		for i := whole - 1; i >= 1; i-- {
			if conv, ok := t.heads[chain[i]]; ok {
				delete(t.heads, chain[i])
				t.heads[r.chain] = conv
				r.Shared, r.Block = int32((i+1)*hashedBlock), hashedBlock
				return conv
			}
		}
	}
	id := t.next
	t.next++
	if whole > 1 {
		if t.heads == nil {
			t.heads = map[uint64]int32{}
		}
		t.heads[r.chain] = id
	}
	return id
}

// Done returns the trace: rows by conversation and time, times from the first one on. ErrNoRows if there is none.
func (t *TraceReader) Done() (*Trace, error) {
	tr := &t.trace
	if len(t.raw) == 0 {
		if len(tr.Bad) > 0 {
			return tr, fmt.Errorf("%w in %d lines: %s (%s)", ErrNoRows, tr.Lines, tr.Bad[0].Reason, tr.Bad[0].First)
		}
		return tr, fmt.Errorf("%w: the input is empty", ErrNoRows)
	}
	tr.Rows = make([]Row, len(t.raw))
	first := t.raw[0].Start
	for i := range t.raw {
		tr.Rows[i] = t.raw[i].Row
		first = min(first, t.raw[i].Start)
	}
	t.raw = nil
	last := time.Duration(0)
	for i := range tr.Rows {
		if tr.Rows[i].Start-first < 0 { // too far apart for a duration
			return tr, fmt.Errorf("times lie more than 292 years apart")
		}
		tr.Rows[i].Start -= first
		last = max(last, tr.Rows[i].Start)
	}
	if last > 10*365*24*time.Hour {
		return tr, fmt.Errorf("the trace spans %.0f days: its times are not those of one log", last.Hours()/24)
	}
	slices.SortStableFunc(tr.Rows, func(a, b Row) int { return cmp.Or(cmp.Compare(a.Conv, b.Conv), cmp.Compare(a.Start, b.Start)) })
	return tr, nil
}
