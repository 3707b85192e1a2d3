package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// maxListedBlocks bounds the block ids accepted from one handle.
const maxListedBlocks = 1 << 20

// transferParams is a request's kv_transfer_params, read as loosely as Python reads a dict: flags by
// truthiness, keys by presence, numbers by what arithmetic would do with them.
type transferParams struct {
	remotePrefill bool // cleared once the READ was queued
	remoteDecode  bool
	processed     bool // the READ was queued, or should have been

	listed     bool    // remote_block_ids is a non-empty list
	groups     [][]int // nil when a member is not a list of ints
	complete   bool    // the engine, request, host and port keys are all present, whatever their values
	engineID   string
	requestID  string
	host, port string
	tokens     looseNumber // remote_num_tokens
	expiry     float64     // seconds on the owner's clock; NaN: no guard
	generation int64       // remote_registration_generation, 0: missing
	cached     int         // remote_prefill_cached_tokens; -1: missing
}

// looseNumber is a JSON value that vLLM does arithmetic with.
type looseNumber struct {
	kind looseKind
	i    int
	f    float64
}

type looseKind uint8

const (
	looseInt   looseKind = iota // also missing, null and every other falsy value: 0
	looseFloat                  // 300.0: an int in the wire's eyes, not in Python's
	looseOther                  // a string, a list: arithmetic raises TypeError
)

var errParamsType = errors.New("kv_transfer_params: want an object")

// parseParams returns nil for params that say nothing.
func parseParams(raw json.RawMessage) (*transferParams, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return nil, nil
	}
	if raw[0] != '{' {
		return nil, errParamsType
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, fmt.Errorf("kv_transfer_params: %w", err)
	}
	if len(m) == 0 {
		return nil, nil
	}
	p := &transferParams{
		remotePrefill: truthy(m["do_remote_prefill"]),
		remoteDecode:  truthy(m["do_remote_decode"]),
		processed:     truthy(m["_remote_blocks_processed"]),
		listed:        truthy(m["remote_block_ids"]),
		complete:      true,
		engineID:      text(m["remote_engine_id"]),
		requestID:     text(m["remote_request_id"]),
		host:          text(m["remote_host"]),
		port:          text(m["remote_port"]),
		tokens:        loose(m["remote_num_tokens"]),
		expiry:        math.NaN(),
		cached:        -1,
	}
	for _, key := range []string{"remote_engine_id", "remote_request_id", "remote_host", "remote_port"} {
		if _, ok := m[key]; !ok {
			p.complete = false
		}
	}
	if p.listed {
		var groups [][]int
		if json.Unmarshal(m["remote_block_ids"], &groups) == nil {
			n := 0
			for _, g := range groups {
				n += len(g)
			}
			if n <= maxListedBlocks {
				p.groups = groups
			}
		}
	}
	if n := loose(m["remote_blocks_expiry_time"]); n.kind != looseOther {
		if v := n.float(); v != 0 {
			p.expiry = v
		}
	}
	if n := loose(m["remote_registration_generation"]); n.kind == looseInt {
		p.generation = int64(n.i)
	}
	if raw, ok := m["remote_prefill_cached_tokens"]; ok && !bytes.Equal(raw, []byte("null")) {
		if n := loose(raw); n.kind == looseInt && n.i >= 0 {
			p.cached = n.i
		}
	}
	return p, nil
}

// truthy is Python's bool() of a JSON value; a missing key is false.
func truthy(raw json.RawMessage) bool {
	switch s := string(bytes.TrimSpace(raw)); s {
	case "", "null", "false", `""`:
		return false
	default:
		switch s[0] {
		case '[', '{':
			return len(bytes.TrimSpace([]byte(s[1:len(s)-1]))) > 0
		case '"', 't':
			return true
		}
		f, err := strconv.ParseFloat(s, 64)
		return err != nil || f != 0
	}
}

// text is what an f-string would make of a string or number; "" otherwise.
func text(raw json.RawMessage) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	if raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9' {
		return string(raw)
	}
	return ""
}

func loose(raw json.RawMessage) looseNumber {
	if !truthy(raw) {
		return looseNumber{}
	}
	s := string(bytes.TrimSpace(raw))
	if s == "true" {
		return looseNumber{i: 1}
	}
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return looseNumber{i: int(i)}
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return looseNumber{kind: looseOther}
	}
	if !bytes.ContainsAny([]byte(s), ".eE") { // an int beyond 64 bits
		return looseNumber{i: int(math.Copysign(math.MaxInt32, f))}
	}
	return looseNumber{kind: looseFloat, f: f}
}

func (n looseNumber) float() float64 {
	if n.kind == looseFloat {
		return n.f
	}
	return float64(n.i)
}

// pullable is Python's min(remote_num_tokens or 0, prompt) - hit, in tokens. The error says which
// exception a value of the wrong type raises in vLLM: a string cannot be compared, and a float that
// wins the comparison makes a count that later fails as an index.
func (n looseNumber) pullable(prompt, hit int) (count int, floating bool, err error) {
	switch n.kind {
	case looseOther:
		return 0, false, phrasef("TypeError: '<' not supported between instances of 'int' and 'str'")
	case looseFloat:
		if n.f <= float64(prompt) {
			return int(n.f) - hit, true, nil
		}
		return prompt - hit, false, nil
	default:
		return min(n.i, prompt) - hit, false, nil
	}
}

// replyParams is what a finished request hands to the router, in the order the recordings show.
type replyParams struct {
	prefill    bool // A, from a P call; otherwise B
	blocks     []int
	engineID   string
	requestID  string
	host       string
	port       int
	tokens     int
	expiry     time.Duration // own clock; B only
	generation int64
	cached     int // local hits and pulled tokens; -1: leave the key out
}

func (r replyParams) marshal(v release) json.RawMessage {
	b := make([]byte, 0, 512+8*len(r.blocks))
	b = append(b, `{"do_remote_prefill":`...)
	b = strconv.AppendBool(b, r.prefill)
	b = append(b, `,"do_remote_decode":`...)
	b = strconv.AppendBool(b, !r.prefill)
	b = append(b, `,"remote_block_ids":[[`...)
	for i, id := range r.blocks {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	b = append(b, `]],"remote_engine_id":`...)
	b = appendString(b, r.engineID)
	b = append(b, `,"remote_request_id":`...)
	b = appendString(b, r.requestID)
	b = append(b, `,"remote_host":`...)
	b = appendString(b, r.host)
	b = append(b, `,"remote_port":`...)
	b = strconv.AppendInt(b, int64(r.port), 10)
	b = append(b, `,"tp_size":1`...)
	if v.has(sinceRanks) {
		b = append(b, `,"dcp_size":1,"pp_size":1`...)
	}
	b = append(b, `,"remote_num_tokens":`...)
	b = strconv.AppendInt(b, int64(r.tokens), 10)
	if v.has(sinceExpiry) {
		b = append(b, `,"remote_blocks_expiry_time":`...)
		if r.prefill {
			b = append(b, "null"...)
		} else {
			b = appendFloat(b, r.expiry.Seconds())
		}
	}
	if v.has(sinceGeneration) {
		b = append(b, `,"remote_registration_generation":`...)
		b = strconv.AppendInt(b, r.generation, 10)
	}
	if v.has(sinceMode) {
		b = append(b, `,"transfer_mode":"pull"`...)
	}
	if v.has(sinceCached) && r.prefill && r.cached >= 0 {
		b = append(b, `,"remote_prefill_cached_tokens":`...)
		b = strconv.AppendInt(b, int64(r.cached), 10)
	}
	return append(b, '}')
}

func appendString(b []byte, s string) []byte {
	var q bytes.Buffer
	e := json.NewEncoder(&q)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always encodes
	return append(b, bytes.TrimRight(q.Bytes(), "\n")...)
}

// appendFloat writes a float as Python's json does: always with a fraction.
func appendFloat(b []byte, f float64) []byte {
	start := len(b)
	b = strconv.AppendFloat(b, f, 'f', -1, 64)
	if !bytes.ContainsRune(b[start:], '.') {
		b = append(b, ".0"...)
	}
	return b
}
