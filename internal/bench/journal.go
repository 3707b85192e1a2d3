package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"
)

// A journal is a file of JSON lines: a header, then for each group its turns, comparisons of answers and metrics, and
// a line that says the group is complete. Only complete groups count. docs/bench.md lists the members.

// Header is the first record.
type Header struct {
	Type        string            `json:"type"` // "run"
	Format      int               `json:"format"`
	RunID       string            `json:"run_id"`
	Started     time.Time         `json:"started"`
	Version     string            `json:"version"` // of this program
	Host        string            `json:"host"`    // of the client: operating system, CPUs
	Model       string            `json:"model"`
	Plan        Plan              `json:"plan"`
	Calibration Calibration       `json:"calibration"`
	Engines     map[string]string `json:"engines,omitempty"` // URL → version, as far as they say
}

const journalFormat = 1

// TurnRecord is one measured turn. Times are in milliseconds.
type TurnRecord struct {
	Type   string  `json:"type"` // "turn"
	Group  int     `json:"group"`
	Arm    string  `json:"arm"`
	Conv   int     `json:"conv"`      // index in the block
	Turn   int     `json:"turn"`      // from 1
	Offset float64 `json:"offset_ms"` // when it was meant to start, from the start of the block

	// TTFT and Total count from when the turn was meant to start; Late is how much of them passed before it was sent.
	TTFT  float64   `json:"ttft_ms"`
	Total float64   `json:"total_ms"`
	Late  float64   `json:"late_ms"`
	P     float64   `json:"p_ms,omitempty"` // pd arms: the P call
	D     float64   `json:"d_ms,omitempty"` // pd arms: the D call until its first content
	Gaps  []float64 `json:"itl_ms,omitempty"`

	Prompt     int    `json:"prompt_tokens,omitempty"`
	Completion int    `json:"completion_tokens,omitempty"`
	PCached    *int   `json:"p_cached_tokens,omitempty"`
	Cached     *int   `json:"cached_tokens,omitempty"`
	Finish     string `json:"finish,omitempty"`
	Answer     string `json:"answer,omitempty"` // digest
	Retried    bool   `json:"retried,omitempty"`

	PrepareMs    float64 `json:"prepare_ms,omitempty"` // what the arm did after the turn
	PrepareError string  `json:"prepare_error,omitempty"`

	Error  string `json:"error,omitempty"` // kind of the failure
	Detail string `json:"detail,omitempty"`
}

// AnswerRecord compares one turn's answer with the baseline's.
type AnswerRecord struct {
	Type  string `json:"type"` // "answer"
	Group int    `json:"group"`
	Arm   string `json:"arm"`
	Conv  int    `json:"conv"`
	Turn  int    `json:"turn"`
	Equal bool   `json:"equal"`
	At    int    `json:"at,omitempty"` // first byte that differs
}

// MetricsRecord is what the engines of an arm counted during a block.
type MetricsRecord struct {
	Type   string             `json:"type"` // "metrics"
	Group  int                `json:"group"`
	Arm    string             `json:"arm"`
	Engine string             `json:"engine"`
	Delta  map[string]float64 `json:"delta"`
	After  map[string]float64 `json:"after,omitempty"` // gauges
	Error  string             `json:"error,omitempty"`
}

// GroupRecord ends a group.
type GroupRecord struct {
	Type    string   `json:"type"` // "group"
	Group   int      `json:"group"`
	Cell    Cell     `json:"cell"`
	Repeat  int      `json:"repeat"`
	Order   []string `json:"order"` // of the arms
	Seconds float64  `json:"seconds"`
}

// group is a complete group in memory.
type group struct {
	GroupRecord
	turns   []TurnRecord
	answers []AnswerRecord
	metrics []MetricsRecord
}

// Journal keeps results in a file.
type Journal struct {
	f      *os.File
	header *Header // of the run to go on with, nil for a new one
	groups []group
}

// CreateJournal makes a new file. It is an error if there is one.
func CreateJournal(name string) (*Journal, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("%s is there already: --resume goes on with it", name)
	}
	if err != nil {
		return nil, err
	}
	return &Journal{f: f}, nil
}

// ResumeJournal opens a file to go on with. What follows its last complete group is cut off: a run that was killed
// leaves a torn line or half a group.
func ResumeJournal(name string) (*Journal, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	j := &Journal{f: f}
	keep, err := j.read(f)
	if err == nil {
		err = f.Truncate(keep)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekEnd)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return j, nil
}

// ReadJournal reads a file to report from.
func ReadJournal(name string) (*Journal, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	j := &Journal{}
	if _, err := j.read(f); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return j, nil
}

// Close closes the file.
func (j *Journal) Close() error {
	if j.f == nil {
		return nil
	}
	return j.f.Close()
}

// read takes in complete groups and returns the offset behind the last one.
func (j *Journal) read(r io.Reader) (int64, error) {
	var (
		lines    = bufio.NewReaderSize(r, 1<<20)
		at, keep int64
		g        group
	)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break // a line without its end is torn
		}
		if err != nil {
			return 0, err
		}
		at += int64(len(line))
		done, err := j.line(line, &g)
		if err != nil {
			return 0, fmt.Errorf("line %d: %w", n, err)
		}
		if done {
			keep = at
			g = group{}
		}
	}
	if j.header == nil {
		return 0, errors.New("no run in this file")
	}
	return keep, nil
}

// line reads one record into g, or the header. It reports whether what was read so far is complete.
func (j *Journal) line(line []byte, g *group) (bool, error) {
	var kind struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(line, &kind); err != nil {
		return false, fmt.Errorf("no record of a journal: %s", jsonError(err))
	}
	if (j.header == nil) != (kind.Type == "run") {
		return false, errors.New("a journal begins with a record of type run, and has one")
	}
	switch kind.Type {
	case "run":
		j.header = &Header{}
		if err := json.Unmarshal(line, j.header); err != nil {
			return false, err
		}
		if j.header.Format != journalFormat {
			return false, fmt.Errorf("format %d, want %d: written by another version of this program", j.header.Format, journalFormat)
		}
		return true, nil
	case "turn":
		return false, appendRecord(line, &g.turns)
	case "answer":
		return false, appendRecord(line, &g.answers)
	case "metrics":
		return false, appendRecord(line, &g.metrics)
	case "group":
		if err := json.Unmarshal(line, &g.GroupRecord); err != nil {
			return false, err
		}
		j.groups = append(j.groups, *g)
		return true, nil
	}
	return false, fmt.Errorf("a record of type %q", kind.Type)
}

func appendRecord[T any](line []byte, list *[]T) error {
	var v T
	if err := json.Unmarshal(line, &v); err != nil {
		return err
	}
	*list = append(*list, v)
	return nil
}

// begin writes the header of a new run, or checks that the plan is that of the run to go on with.
func (j *Journal) begin(h Header) error {
	if j.header == nil {
		j.header = &h
		return j.write(h)
	}
	return samePlan(j.header.Plan, h.Plan)
}

// samePlan names the first member in which two plans differ.
func samePlan(old, now Plan) error {
	old, now = old.comparable(), now.comparable()
	a, b := reflect.ValueOf(old), reflect.ValueOf(now)
	for i := range a.NumField() {
		if !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("json"), ",")
			return fmt.Errorf("the journal is of another plan: %s was %v and is %v", name, a.Field(i), b.Field(i))
		}
	}
	return nil
}

// comparable is the plan without what a journal does not keep, and without what may change between two starts:
// addresses of arms, the number of repeats, the note.
func (p Plan) comparable() Plan {
	p.Arms = slices.Clone(p.Arms)
	for i, a := range p.Arms {
		p.Arms[i] = Arm{Name: a.Name, Policy: a.Policy, IDs: a.IDs, BlockSize: a.BlockSize}
	}
	p.Conversations, p.Note, p.Repeats, p.Model = nil, "", 0, ""
	return p
}

// add writes a complete group.
func (j *Journal) add(g group) error {
	j.groups = append(j.groups, g)
	var records []any
	for _, r := range g.turns {
		records = append(records, r)
	}
	for _, r := range g.answers {
		records = append(records, r)
	}
	for _, r := range g.metrics {
		records = append(records, r)
	}
	return j.write(append(records, g.GroupRecord)...)
}

// write appends records in one write, so that a crash tears at most the last group.
func (j *Journal) write(records ...any) error {
	if j.f == nil {
		return nil
	}
	var b bytes.Buffer
	for _, r := range records {
		line, err := encode(r)
		if err != nil {
			return err
		}
		b.Write(line)
		b.WriteByte('\n')
	}
	if _, err := j.f.Write(b.Bytes()); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// memoryJournal keeps everything in memory.
func memoryJournal() *Journal { return &Journal{} }

// Report is the report of what the journal has, measured or not.
func (j *Journal) Report() (*Report, error) {
	if len(j.groups) == 0 {
		return nil, ErrNothing
	}
	p := &j.header.Plan
	return buildReport(j.header, j.groups, len(p.cells())*p.Repeats-len(j.groups)), nil
}
