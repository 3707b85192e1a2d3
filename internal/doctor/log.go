package doctor

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// LogFacts is what an engine's log says since the engine's last start. It holds settings and counts, never a request's
// id or content.
type LogFacts struct {
	Lines   int
	Version string         // vLLM's, "" if the start is not in the log
	Args    map[string]any // the arguments that are not vLLM's defaults
	Engine  map[string]any // the engine's configuration
	KV      *KVConfig      // nil if the log does not show it

	// FlagLine says that the line about bidirectional transfer is there: the flag is on. The line is not written when
	// the threshold is 0.
	FlagLine  bool
	Threshold *int     // tokens, of that line
	TTL       *float64 // seconds, of that line

	Started    bool              // "Initializing NIXL": the connector came up
	Backends   []string          // of NIXL: UCX, LIBFABRIC
	NoNIXL     bool              // NIXL could not be loaded
	CrossLayer bool              // a block is one piece over all layers
	Seen       map[Phrase]int    // lines per phrase
	Failures   map[string]int    // failed transfers by vLLM's failure type
	Env        map[string]string // UCX_* that UCX itself printed
	Lanes      []string          // transports of UCX's remote memory access, such as rc_mlx5 or tcp, if UCX printed them
}

// Phrase is something that an engine says in its log.
type Phrase string

// Phrases. The texts are matched as parts of lines.
const (
	sawHashMismatch Phrase = "NIXL compatibility hash mismatch"
	sawIDMismatch   Phrase = "Remote NIXL agent engine ID mismatch"
	sawFailure      Phrase = "NIXL transfer failure: "
	sawRecovered    Phrase = "Recovered from KV load failure"
	sawDeclined     Phrase = "Declining expired remote read for"
	sawBadParams    Phrase = "Got invalid KVTransferParams"
	sawExpired      Phrase = "Releasing expired KV blocks for request"
	sawLate         Phrase = "Potentially invalid KV blocks for unrecognized request"
	sawReplaced     Phrase = "Released NIXL state for replaced or locally invalid remote engine"
	sawBrokenPeer   Phrase = "Local NIXL metadata for remote engine"
	sawFatal        Phrase = "EngineCore encountered a fatal error"
	sawDeferred     Phrase = "Deferred: "
)

var phrases = []Phrase{
	sawHashMismatch, sawIDMismatch, sawFailure, sawRecovered, sawDeclined, sawBadParams, sawExpired, sawLate, sawReplaced,
	sawBrokenPeer, sawFatal, sawDeferred,
}

var (
	logVersion  = regexp.MustCompile(`(?:█\s+version |V1 LLM engine \(v)(\d+\.\d+\.\d+[^\s)]*)`)
	flagLine    = regexp.MustCompile(`Bidirectional KV transfer is enabled and the kv recompute threshold is set to (\d+)(?:.*TTL of (\d+(?:\.\d+)?) seconds)?`)
	backendLine = regexp.MustCompile(`Backend ([A-Za-z0-9_]+) was instantiated`)
	failureLine = regexp.MustCompile(`NIXL transfer failure: ([a-z_]+)`)
	ucxEnv      = regexp.MustCompile(`\b(UCX_[A-Z0-9_]+)=(\S+)`)
	ucxLane     = regexp.MustCompile(`\brma(?:_am|_bw)?\(([^)]*)\)`)
	ucxVersion  = regexp.MustCompile(`UCX +INFO `)
)

// maxLogLine bounds the memory for one line, in bytes; what is longer is read to there.
const maxLogLine = 1 << 20

// ReadLog reads an engine's log. A start in the middle of it begins everything anew: what a former life of the engine
// did is not what this one does.
func ReadLog(r io.Reader) (*LogFacts, error) {
	f := newLogFacts(0)
	lines := bufio.NewReaderSize(r, 64<<10)
	var line []byte
	for {
		part, err := lines.ReadSlice('\n')
		if len(line) < maxLogLine {
			line = append(line, part[:min(len(part), maxLogLine-len(line))]...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return f, fmt.Errorf("read log: %w", err)
		}
		if len(line) > 0 {
			f = f.line(strings.TrimRight(string(line), "\r\n"))
		}
		line = line[:0]
		if err != nil {
			return f, nil
		}
	}
}

func newLogFacts(lines int) *LogFacts {
	return &LogFacts{Lines: lines, Seen: map[Phrase]int{}, Failures: map[string]int{}, Env: map[string]string{}}
}

// line takes one line and returns the facts to go on with.
func (f *LogFacts) line(s string) *LogFacts {
	f.Lines++
	if m := logVersion.FindStringSubmatch(s); m != nil && strings.Contains(s, "version ") && !strings.Contains(s, "LLM engine") {
		f = newLogFacts(f.Lines) // the banner: a new life
		f.Version = m[1]
		return f
	}
	if _, text, ok := strings.Cut(s, "non-default args: "); ok {
		if f.Args != nil || f.Started {
			version := f.Version
			f = newLogFacts(f.Lines)
			f.Version = version
		}
		f.Args = parsePyDict(text)
		if kv, ok := f.Args["kv_transfer_config"].(map[string]any); ok {
			f.KV = newKVConfig(kv, "the log", false)
		}
		return f
	}
	if _, text, ok := strings.Cut(s, "LLM engine (v"); ok {
		version, text, _ := strings.Cut(text, ")")
		f.Version = version
		if _, text, ok = strings.Cut(text, "with config: "); ok {
			f.Engine = parsePyArguments(text)
		}
		return f
	}
	f.start(s)
	f.transport(s)
	for _, p := range phrases {
		if strings.Contains(s, string(p)) {
			f.Seen[p]++
		}
	}
	if m := failureLine.FindStringSubmatch(s); m != nil {
		f.Failures[m[1]]++
	}
	return f
}

// start reads the lines of an engine's start.
func (f *LogFacts) start(s string) {
	if m := flagLine.FindStringSubmatch(s); m != nil {
		f.FlagLine = true
		if n, err := strconv.Atoi(m[1]); err == nil {
			f.Threshold = &n
		}
		if ttl, err := strconv.ParseFloat(m[2], 64); err == nil {
			f.TTL = &ttl
		}
	}
	if m := backendLine.FindStringSubmatch(s); m != nil && !slices.Contains(f.Backends, m[1]) {
		f.Backends = append(f.Backends, m[1])
	}
	f.Started = f.Started || strings.Contains(s, "Initializing NIXL ") || strings.Contains(s, "Creating v1 connector with name: Nixl")
	f.NoNIXL = f.NoNIXL || strings.Contains(s, "NIXL is not available")
	f.CrossLayer = f.CrossLayer || strings.Contains(s, "Allocating a cross layer KV cache")
}

// transport reads what UCX says about itself with UCX_LOG_LEVEL=info.
func (f *LogFacts) transport(s string) {
	if !ucxVersion.MatchString(s) {
		return
	}
	for _, m := range ucxEnv.FindAllStringSubmatch(s, -1) {
		f.Env[m[1]] = m[2]
	}
	for _, m := range ucxLane.FindAllStringSubmatch(s, -1) {
		for lane := range strings.FieldsSeq(m[1]) {
			name, _, _ := strings.Cut(lane, "/")
			if !slices.Contains(f.Lanes, name) {
				f.Lanes = append(f.Lanes, name)
			}
		}
	}
}

// setting is an argument of the engine, from what differs from the defaults or else from the whole configuration.
func (f *LogFacts) setting(arg, engine string) any {
	if f == nil {
		return nil
	}
	if v, ok := f.Args[arg]; ok {
		return v
	}
	return f.Engine[engine]
}
