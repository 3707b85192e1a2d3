package kvp

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

// Limits of what is accepted as params. An engine of 1 M tokens with blocks of 16 names 65536 blocks in half a
// MiB; a parallel size beyond thousands made engines run out of memory.
const (
	MaxRawBytes     = 4 << 20
	MaxBlocks       = 1 << 20
	MaxGroups       = 64
	maxNameBytes    = 1024
	maxParallelSize = 4096
)

// ErrShape says that params are not of the shape that was asked for: an A where a B is wanted, or the other way
// round.
var ErrShape = errors.New("params have another shape")

// Fields is what params say. They are a view: the raw bytes count, and changing a field changes nothing.
type Fields struct {
	// Blocks are the owner's block ids, shape [groups][blocks]. With one group of full attention, Blocks[0]
	// covers the first Tokens tokens in order, and the engine pairs from the end of the list.
	Blocks [][]int

	// Tokens is remote_num_tokens: how many tokens the blocks hold. Greater than 0.
	Tokens int

	EngineID  string // of the owner's present life
	RequestID string // the owner's internal id of the request whose blocks these are
	Host      string // of the owner's side channel
	Port      int

	TPSize, DCPSize, PPSize int // 1 if the engine does not say (before 0.29 only tp_size)

	// Expiry is when the owner frees the blocks, in seconds of a clock that nobody else has. nil if the owner
	// sets none: an A, or an engine before 0.26.
	Expiry *float64

	Generation   int    // remote_registration_generation, 0 if the engine does not say (before 0.33)
	TransferMode string // "pull", or "" if the engine does not say (before 0.28)

	// PrefillCached is remote_prefill_cached_tokens: how many of its prompt tokens P took from its own prefix
	// cache or pulled. nil if P does not say (before 0.31).
	PrefillCached *int
}

// Names of members.
const (
	nameRemotePrefill = "do_remote_prefill"
	nameRemoteDecode  = "do_remote_decode"
	nameBlocks        = "remote_block_ids"
	nameTokens        = "remote_num_tokens"
	nameHost          = "remote_host"
)

// internal are members by which an engine marks params as processed. In a request they switch its logic off.
var internal = []string{"_remote_blocks_processed", "_p_side_truncated"}

// scratches are used again: every turn has params.
var scratches = sync.Pool{New: func() any { return new(scratch) }}

// scratch is the memory that parse takes.
type scratch struct {
	doc   bodyedit.Doc
	names [fewNames][]byte
}

// parse checks raw and returns what it says, and raw without members that must not be sent.
func parse(raw []byte, want Shape) (Fields, []byte, error) {
	var f Fields
	if len(raw) > MaxRawBytes {
		return f, nil, fmt.Errorf("params of %d bytes, at most %d", len(raw), MaxRawBytes)
	}
	room := scratches.Get().(*scratch)
	defer scratches.Put(room)
	doc := &room.doc
	if err := doc.Reset(raw); err != nil {
		return f, nil, fmt.Errorf("params: %w", err)
	}
	p := parser{f: &f, names: room.names[:0]}
	for m := range doc.Members() {
		if err := p.member(m); err != nil {
			if got := shapeOf(doc.Members()); got != want && got != ShapeOther && got != ShapeNone {
				err = shapeError(got == ShapePrefill, got == ShapeDecode) // that explains more
			}
			return Fields{}, nil, err
		}
	}
	if err := p.finish(want); err != nil {
		return Fields{}, nil, err
	}
	if doc.CountFold(internal...) == 0 {
		return f, doc.Bytes(doc.Root()), nil
	}
	e := doc.Edit()
	e.DeleteFold(internal...)
	return f, e.Bytes(), nil
}

// parser collects the members of params.
type parser struct {
	f               *Fields
	names           [][]byte        // of the first members
	more            map[string]bool // of those behind them, nil if there are none
	prefill, decode bool
}

// fewNames is how many names are compared with each other; engines send about fifteen.
const fewNames = 32

// first notes a name and reports whether it is there for the first time.
func (p *parser) first(name []byte) bool {
	if p.has(string(name)) {
		return false
	}
	if len(p.names) < fewNames {
		p.names = append(p.names, name)
		return true
	}
	if p.more == nil {
		p.more = map[string]bool{}
	}
	p.more[string(name)] = true
	return true
}

func (p *parser) has(name string) bool {
	for _, n := range p.names {
		if string(n) == name {
			return true
		}
	}
	return p.more[name]
}

func (p *parser) member(m bodyedit.Member) error {
	f := p.f
	raw := m.RawName
	if bytes.IndexByte(raw, '\\') >= 0 {
		raw = []byte(m.Name())
	}
	if !p.first(raw) {
		return errors.New("params name a member twice")
	}
	var err error
	switch string(raw) {
	case nameRemotePrefill:
		p.prefill, err = boolean(nameRemotePrefill, m.Raw)
	case nameRemoteDecode:
		p.decode, err = boolean(nameRemoteDecode, m.Raw)
	case nameBlocks:
		f.Blocks, err = blocks(m.Raw)
	case nameTokens:
		f.Tokens, err = integer(nameTokens, m.Raw, 1, math.MaxInt32)
	case "remote_engine_id":
		f.EngineID, err = text("remote_engine_id", m.Raw)
	case "remote_request_id":
		f.RequestID, err = text("remote_request_id", m.Raw)
	case nameHost:
		f.Host, err = text(nameHost, m.Raw)
	case "remote_port":
		f.Port, err = integer("remote_port", m.Raw, 1, math.MaxUint16)
	case "tp_size":
		f.TPSize, err = integer("tp_size", m.Raw, 1, maxParallelSize)
	case "dcp_size":
		f.DCPSize, err = integer("dcp_size", m.Raw, 1, maxParallelSize)
	case "pp_size":
		f.PPSize, err = integer("pp_size", m.Raw, 1, maxParallelSize)
	case "remote_blocks_expiry_time":
		f.Expiry, err = optionalFloat("remote_blocks_expiry_time", m.Raw)
	case "remote_registration_generation":
		f.Generation, err = integer("remote_registration_generation", m.Raw, 0, math.MaxInt32)
	case "transfer_mode":
		f.TransferMode, _ = bodyedit.String(m.Raw) // informative only
	case "remote_prefill_cached_tokens":
		f.PrefillCached, err = optionalInt("remote_prefill_cached_tokens", m.Raw)
	}
	return err
}

// finish checks what only the whole shows.
func (p *parser) finish(want Shape) error {
	got := ShapeOther
	switch {
	case p.prefill && !p.decode:
		got = ShapePrefill
	case p.decode && !p.prefill:
		got = ShapeDecode
	}
	if got != want {
		return shapeError(p.prefill, p.decode)
	}
	for _, name := range []string{nameBlocks, nameTokens, "remote_engine_id", "remote_request_id", nameHost, "remote_port"} {
		if !p.has(name) {
			return fmt.Errorf("params lack %s", name)
		}
	}
	for _, size := range []*int{&p.f.TPSize, &p.f.DCPSize, &p.f.PPSize} {
		if *size == 0 {
			*size = 1
		}
	}
	return nil
}

func shapeError(prefill, decode bool) error {
	return fmt.Errorf("%s is %v, %s is %v: %w", nameRemotePrefill, prefill, nameRemoteDecode, decode, ErrShape)
}

func boolean(name string, raw []byte) (bool, error) {
	v, ok := bodyedit.Bool(raw)
	if !ok {
		return false, fmt.Errorf("%s is not true or false", name)
	}
	return v, nil
}

func integer(name string, raw []byte, least, most int64) (int, error) {
	v, ok := bodyedit.Int(raw)
	switch {
	case !ok:
		return 0, fmt.Errorf("%s is not an integer", name) // a string or 300.0 ends an engine
	case v < least || v > most:
		return 0, fmt.Errorf("%s is %d, want %d to %d", name, v, least, most)
	}
	return int(v), nil
}

func optionalInt(name string, raw []byte) (*int, error) {
	if bodyedit.IsNull(raw) {
		return nil, nil
	}
	v, err := integer(name, raw, 0, math.MaxInt32)
	return &v, err
}

func optionalFloat(name string, raw []byte) (*float64, error) {
	if bodyedit.IsNull(raw) {
		return nil, nil
	}
	v, ok := bodyedit.Float(raw)
	if !ok {
		return nil, fmt.Errorf("%s is not a number", name)
	}
	return &v, nil
}

func text(name string, raw []byte) (string, error) {
	v, ok := bodyedit.String(raw)
	if !ok || v == "" || len(v) > maxNameBytes {
		return "", fmt.Errorf("%s is not a string of 1 to %d bytes", name, maxNameBytes)
	}
	return v, nil
}

// notABlock says what is wrong with a list of block ids.
func notABlock(list []byte) error {
	for el := range bodyedit.Elements(list) {
		if _, err := integer("a block id", el, 0, math.MaxInt32); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s has something else than block ids", nameBlocks)
}

// blocks reads remote_block_ids, an array of arrays of block ids.
func blocks(raw []byte) ([][]int, error) {
	if bodyedit.KindOf(raw) != bodyedit.Array {
		return nil, fmt.Errorf("%s is not a list", nameBlocks)
	}
	var groups [][]int
	total := 0
	for g := range bodyedit.Elements(raw) {
		if bodyedit.KindOf(g) != bodyedit.Array {
			return nil, fmt.Errorf("%s is not a list of lists", nameBlocks)
		}
		if len(groups) == MaxGroups {
			return nil, fmt.Errorf("%s has more than %d groups", nameBlocks, MaxGroups)
		}
		ids, ok := bodyedit.AppendInts(make([]int, 0, len(g)/6+1), g) // most ids have several digits
		if !ok {
			return nil, notABlock(g)
		}
		if total += len(ids); total > MaxBlocks {
			return nil, fmt.Errorf("%s has more than %d blocks", nameBlocks, MaxBlocks)
		}
		groups = append(groups, ids)
	}
	if total == 0 {
		// An engine that gets such params neither reads nor tells the owner.
		return nil, fmt.Errorf("%s is empty", nameBlocks)
	}
	return groups, nil
}
