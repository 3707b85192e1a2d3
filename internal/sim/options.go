package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tarik-kv/tarik/internal/price"
)

// Policy is what is done about earlier turns.
type Policy string

// Policies.
const (
	None   Policy = "none"   // P and D without prefix caches: every prompt is computed and moved as a whole
	Cache  Policy = "cache"  // P and D with prefix caches, no handles: what a plain P/D router gives
	Hold   Policy = "hold"   // D keeps a turn's blocks, P pulls them on the next turn
	Return Policy = "return" // P is prepared between turns; a turn that comes before may still pull
	Append Policy = "append" // the same, and D serves small additions alone
	Single Policy = "single" // no P/D: as many engines that do both, with prefix caches
)

// Policies in the order of reports.
var Policies = []Policy{None, Cache, Hold, Return, Append, Single}

// ParsePolicy reads a policy's name.
func ParsePolicy(s string) (Policy, error) {
	if slices.Contains(Policies, Policy(s)) {
		return Policy(s), nil
	}
	return "", fmt.Errorf("policy %q: want one of %v", s, Policies)
}

// caches reports whether engines have prefix caches.
func (p Policy) caches() bool { return p != None }

// handles reports whether D keeps blocks for the next turn.
func (p Policy) handles() bool { return p == Hold || p == Return || p == Append }

// SLO is what a request must keep to count.
type SLO struct {
	TTFT  time.Duration `json:"ttft"`  // to the first token
	ITL   time.Duration `json:"itl"`   // mean between tokens of the request
	Share float64       `json:"share"` // of requests that must keep it, for a plan
}

// Options are one run.
type Options struct {
	Policy   Policy
	Prefills int // engines; with Single, Prefills+Decodes engines do both
	Decodes  int

	Costs               Costs
	Link                Link
	KVBytes             float64 // of a token
	DescriptorsPerToken float64
	BlockSize           int // tokens
	PoolTokens          int // of one engine
	BatchTokens         int // prompt tokens in a step
	Streams             int // at D at once

	TTL       time.Duration // how long D keeps blocks for a handle
	Threshold int           // P pulls no fewer tokens
	// StallWeight, AppendLimit and StallLimit are the router's: what a wait of D's other streams counts, and its bounds.
	StallWeight float64
	AppendLimit int // tokens that D computes for one turn, 0: no limit
	StallLimit  time.Duration
	SLO         SLO

	Synthetic *Synthetic // or
	Trace     []Row      // sorted by conversation and start
	Speed     float64    // of the trace's clock [1]
	Seed      uint64
	// Cells splits fleet and load into so many independent parts that run in parallel [1]. Engines of one part know
	// nothing of the others: a fleet of many engines hardly notices, a small one does.
	Cells int

	// Progress is called now and then with the number of requests done; may be nil. Stop ends the run early if it
	// returns true; may be nil.
	Progress func(done int)
	Stop     func() bool

	giveUp bool // end when the SLO cannot be kept any more
}

// DefaultOptions is a pair of engines with Qwen3-32B on an H200 each and an agent's workload.
func DefaultOptions() Options {
	m, err := ModelNamed("Qwen3-32B")
	if err != nil {
		panic("BUG: sim: " + err.Error())
	}
	g, err := GPUNamed("H200")
	if err != nil {
		panic("BUG: sim: " + err.Error())
	}
	w := DefaultSynthetic()
	o := Options{
		Policy: Return, Prefills: 1, Decodes: 1, BlockSize: 16, BatchTokens: 8192, Streams: 256, TTL: 480 * time.Second, Threshold: 64,
		StallWeight: price.StallWeight, AppendLimit: price.AppendTokens, StallLimit: price.AppendStall * time.Millisecond, SLO: SLO{TTFT: 2 * time.Second, ITL: 50 * time.Millisecond, Share: 0.95},
		Link: Links["nvlink"], Synthetic: &w, Speed: 1, Seed: 1,
	}
	o.Use(m, g, 1, LayoutPerLayer)
	return o
}

// Use sets what follows from model, GPU and layout. BlockSize must be set.
func (o *Options) Use(m Model, g Hardware, gpus int, layout string) {
	o.Costs, o.KVBytes, o.PoolTokens = m.CostsOn(g, gpus), m.KVBytes, m.PoolOn(g, gpus)
	o.DescriptorsPerToken = m.descriptors(layout, o.BlockSize)
}

// Validate says what is wrong with o.
func (o *Options) Validate() error {
	if _, err := ParsePolicy(string(o.Policy)); err != nil {
		return err
	}
	switch {
	case o.Prefills < 0 || o.Decodes < 0 || o.Prefills+o.Decodes > 4096:
		return fmt.Errorf("%d P and %d D: want up to 4096 engines", o.Prefills, o.Decodes)
	case o.Policy != Single && (o.Prefills < 1 || o.Decodes < 1) || o.Prefills+o.Decodes < 1:
		return errors.New("want at least one P and one D")
	case o.Cells < 0 || o.Cells > 1 && (o.Policy != Single && (o.Cells > o.Prefills || o.Cells > o.Decodes) || o.Cells > o.Prefills+o.Decodes):
		return fmt.Errorf("%d cells: want no more than there are P and D", o.Cells)
	case o.BlockSize < 1 || o.BlockSize > 1<<16:
		return fmt.Errorf("blocks of %d tokens: want 1 to %d", o.BlockSize, 1<<16)
	case o.PoolTokens < o.BlockSize:
		return fmt.Errorf("the KV pool of an engine holds %d tokens: the model does not fit into its GPUs", o.PoolTokens)
	case o.BatchTokens < 16 || o.Streams < 1:
		return errors.New("want at least 16 tokens in a step and one stream")
	case o.TTL <= 0 || o.TTL > 240*time.Hour || o.Threshold < 0:
		return errors.New("want a TTL up to 240h and a threshold that is not negative")
	case !(o.KVBytes >= 0) || !(o.DescriptorsPerToken >= 0) || !(o.Link.LatencyMs >= 0) || !(o.Link.GBPerSecond >= 0) ||
		!(o.Link.DescriptorUs >= 0) || !(o.Link.Posting >= 0 && o.Link.Posting <= 1):
		return errors.New("sizes and the link's figures cannot be negative; posting is a share")
	case o.SLO.TTFT <= 0 || o.SLO.ITL <= 0 || !(o.SLO.Share > 0 && o.SLO.Share <= 1):
		return errors.New("the SLO has two times above 0 and a share above 0")
	case !(o.StallWeight >= 0) || o.StallLimit < 0 || o.AppendLimit < 0:
		return errors.New("weight and limits of appends cannot be negative")
	case (o.Synthetic == nil) == (o.Trace == nil):
		return errors.New("want either a synthetic workload or a trace")
	case o.Trace != nil && !(o.Speed > 0 && o.Speed <= 1e6):
		return fmt.Errorf("speed %v: want more than 0", o.Speed)
	}
	if o.Synthetic != nil {
		if err := o.Synthetic.Validate(); err != nil {
			return err
		}
	}
	return o.Costs.validate()
}
