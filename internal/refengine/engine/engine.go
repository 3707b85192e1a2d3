package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"sync"
	"time"

	"github.com/tarik-kv/tarik/internal/refengine/model"
)

// Engine is one engine process: the machine, its clock, its loop and its side channel.
type Engine struct {
	cfg     Config
	compute Compute
	shape   model.Config
	id      string
	start   time.Time
	epoch   time.Duration
	locks   []sync.RWMutex // one per block, see the package comment
	wake    chan struct{}
	ctx     context.Context // ends with Close and Kill
	stop    context.CancelFunc
	loops   sync.WaitGroup
	side    *sideChannel // nil: no connector
	logs    *statLog     // nil: nobody listens; used by the loop only

	mu     sync.Mutex
	core   *core
	closed error    // ErrClosed or ErrKilled
	lines  []string // log lines of the machine, written once mu is free
}

var _ Compute = (*modelCompute)(nil)

// modelCompute is a model with its paged KV.
type modelCompute struct {
	*model.Pool
	m *model.Model
}

func (c *modelCompute) Forward(batch []model.Chunk) [][]float32 { return c.m.Forward(c.Pool, batch) }

// New starts an engine: its loop and, with a connector, its side channel. eos ends sequences; nil: the
// model's own.
func New(cfg Config, m *model.Model, eos []int32) (*Engine, error) {
	cfg = cfg.withDefaults(m.Config())
	if len(eos) == 0 {
		eos = m.Config().EOS
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return NewCompute(cfg, m.Config(), &modelCompute{m.NewPool(cfg.Blocks, cfg.BlockSize), m}, eos)
}

// NewCompute starts an engine on anything that computes. shape describes the model: its vocabulary, and
// what two engines must have in common to read each other's blocks.
func NewCompute(cfg Config, shape model.Config, compute Compute, eos []int32) (*Engine, error) {
	logging := cfg.Logf != nil
	cfg = cfg.withDefaults(shape)
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	rel, err := parseRelease(cfg.Version)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		cfg: cfg, compute: compute, shape: shape,
		id:    newUUID(),
		start: time.Now(),
		locks: make([]sync.RWMutex, cfg.Blocks),
		wake:  make(chan struct{}, 1),
	}
	if logging {
		e.logs = &statLog{}
	}
	if cfg.KV != nil && cfg.KV.EngineID != "" {
		e.id = cfg.KV.EngineID
	}
	e.ctx, e.stop = context.WithCancel(context.Background())

	cc := coreConfig{
		release: rel, kv: cfg.KV, engineID: e.id, host: cfg.SideChannelHost,
		blockSize: cfg.BlockSize, blocks: cfg.Blocks, maxModelLen: cfg.MaxModelLen,
		maxBatched: cfg.MaxBatchedTokens, maxSeqs: cfg.MaxSeqs, prefixCache: cfg.PrefixCaching,
		vocab: shape.VocabSize, eos: eos, logf: e.logLater,
	}
	if cfg.KV != nil {
		if e.side, err = newSideChannel(e, rel); err != nil {
			e.stop()
			return nil, err
		}
		cc.port = e.side.port()
		e.epoch = clockEpoch(e.start, e.side.addr())
	}
	e.core = newCore(cc)
	e.core.faults = cfg.Faults
	e.logStart()
	if e.side != nil {
		e.side.serve()
	}
	e.loops.Go(e.loop)
	return e, nil
}

// logStart writes what an operator looks for in vLLM's start-up log.
func (e *Engine) logStart() {
	kv := e.cfg.KV
	e.cfg.Logf("INFO Initializing a V1 LLM engine (v%s) with config: model='%s', served_model_name=%s", e.cfg.Version, e.shape.Name, e.cfg.ModelName)
	if kv == nil {
		return
	}
	e.cfg.Logf("INFO Creating v1 connector with name: NixlPullConnector and engine_id: %s", e.id)
	e.cfg.Logf("INFO Backend UCX was instantiated")
	if kv.Bidirectional && kv.Threshold > 0 {
		e.cfg.Logf("INFO Bidirectional KV transfer is enabled and the kv recompute threshold is set to %d tokens.KV blocks on D are released after a TTL of %d seconds.", kv.Threshold, int(kv.DecoderTTL.Seconds()))
	}
}

// ID returns the engine id that handles carry.
func (e *Engine) ID() string { return e.id }

// SideChannel returns the address the side channel listens on, "" without a connector.
func (e *Engine) SideChannel() string {
	if e.side == nil {
		return ""
	}
	return e.side.addr()
}

// Config returns the configuration with all defaults filled in.
func (e *Engine) Config() Config { return e.cfg }

// Shape returns the model's shape.
func (e *Engine) Shape() model.Config { return e.shape }

// now is the engine's monotonic clock.
func (e *Engine) now() time.Duration {
	if e.cfg.Now != nil {
		return e.cfg.Now() + e.core.faults.ClockEpoch
	}
	return time.Since(e.start) + e.epoch + e.core.faults.ClockEpoch
}

// clock is now for callers that do not hold e.mu.
func (e *Engine) clock() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.now()
}

// logLater keeps a line of the machine until mu is free.
func (e *Engine) logLater(format string, args ...any) {
	if e.logs != nil {
		e.lines = append(e.lines, fmt.Sprintf(format, args...))
	}
}

// locked runs f under mu and then writes the lines that the machine has left.
func (e *Engine) locked(f func()) {
	e.mu.Lock()
	f()
	lines := e.lines
	e.lines = nil
	e.mu.Unlock()
	for _, line := range lines {
		e.cfg.Logf("%s", line)
	}
}

// Submit queues a request. The channel gets its outputs and is closed after the one with Finish set.
// A reader may stop reading at any time; Abort then frees the request.
func (e *Engine) Submit(r *Request) (<-chan Output, error) {
	out := newOutlet(r.MaxTokens)
	var err error
	e.locked(func() {
		if err = e.closed; err == nil {
			err = e.core.submit(e.now(), *r, out.put)
		}
	})
	if err != nil {
		return nil, err
	}
	e.Wake()
	return out.ch, nil
}

// Abort ends a request on behalf of the front end: a stop string matched or the client is gone. Nothing
// is retained. Unknown and ended requests are ignored.
func (e *Engine) Abort(id string) {
	e.locked(func() {
		if e.closed == nil {
			e.core.abort(e.now(), id)
		}
	})
	e.Wake()
}

// Wake makes the loop look at its clock. Only an engine with a Config.Now needs it, after time moved.
func (e *Engine) Wake() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Snapshot returns all counters and gauges.
func (e *Engine) Snapshot() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.core.snapshot()
}

// CheckAccounting verifies that every block is either free or owned, the prefix cache is consistent and
// every request is where its state says. It is for tests, at any time.
func (e *Engine) CheckAccounting() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.core.check()
}

// Dead returns why EngineCore died, nil while it lives. A dead engine refuses requests and its side
// channel is gone; its front end answers 500, and /health 503.
func (e *Engine) Dead() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.core.dead
}

// SetFaults replaces the faults from now on.
func (e *Engine) SetFaults(f Faults) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.core.faults = f
	e.Wake()
}

// faults returns the current faults.
func (e *Engine) faults() Faults {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.core.faults
}

// ResetPrefixCache forgets all cached prefixes, as /reset_prefix_cache does: false, and nothing is done,
// while any block is in use or pinned.
func (e *Engine) ResetPrefixCache() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.core.pool.free < e.core.pool.usable() {
		return false
	}
	e.core.pool.forget()
	return true
}

// Reregister is what /sleep and /wake_up do to transfers: the cache is registered anew, cached prefixes
// are gone, and readers must shake hands again.
func (e *Engine) Reregister() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.core.pool.forget()
	e.core.generation++
}

// Close ends all requests (FinishAbort) and returns when no goroutine is left.
func (e *Engine) Close() error { return e.end(ErrClosed) }

// Kill is the process dying: connections break, nobody is notified, requests end with ErrKilled.
func (e *Engine) Kill() { _ = e.end(ErrKilled) }

func (e *Engine) end(why error) error {
	e.mu.Lock()
	if e.closed == nil {
		e.closed = why
		if errors.Is(why, ErrClosed) {
			e.core.abortAll()
		} else {
			e.core.endAll(why)
		}
	}
	e.mu.Unlock()
	e.stop()
	if e.side != nil {
		e.side.close()
	}
	e.loops.Wait()
	return nil
}

// round is what one look at the machine says to do.
type round struct {
	plan    *plan
	effects []effect
	faults  Faults
	dead    bool
	sleep   time.Duration // at most, if there is nothing to compute …
	timed   bool          // … and if anything runs out at all
}

func (e *Engine) round() (r round) {
	e.locked(func() {
		if e.closed != nil {
			return
		}
		now := e.now()
		e.core.tick(now)
		r.plan = e.core.schedule(now)
		r.effects = e.core.takeEffects()
		r.dead, r.faults = e.core.dead != nil, e.core.faults
		wakeAt, timed := e.core.nextWake()
		if e.logs != nil {
			if at, ok := e.logs.note(now, e.core); ok && (!timed || at < wakeAt) {
				wakeAt, timed = at, true
			}
		}
		r.sleep, r.timed = wakeAt-now, timed
	})
	return r
}

// loop steps while there is work and otherwise sleeps until something happens or runs out.
func (e *Engine) loop() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for e.ctx.Err() == nil {
		r := e.round()
		if r.dead && e.side != nil {
			e.side.close() // the process exits
		}
		e.carryOut(r.effects)
		if r.plan != nil {
			e.step(r.plan, r.faults)
			continue
		}
		timer.Reset(time.Hour)
		if r.timed {
			timer.Reset(max(0, r.sleep))
		}
		select {
		case <-e.wake:
		case <-timer.C:
		case <-e.ctx.Done():
		}
	}
}

// step computes a plan and feeds the result back.
func (e *Engine) step(p *plan, f Faults) {
	written := writtenBlocks(p.chunks, e.cfg.BlockSize)
	for _, id := range written {
		e.locks[id].Lock()
	}
	logits := e.compute.Forward(p.chunks)
	for _, id := range written {
		e.locks[id].Unlock()
	}
	e.pause(f.StepCost + time.Duration(p.prefill)*f.PrefillTokenCost + time.Duration(p.context)*f.ContextCost/1000)
	var effects []effect
	e.locked(func() {
		if e.closed == nil {
			e.core.commit(e.now(), p, logits)
			effects = e.core.takeEffects()
		}
	})
	e.carryOut(effects)
}

// pause waits for d or the engine's end.
func (e *Engine) pause(d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-e.ctx.Done():
	}
}

// writtenBlocks lists the blocks that a step writes, ascending, each once: the order in which they are
// locked.
func writtenBlocks(chunks []model.Chunk, blockSize int) []int {
	set := make(map[int]bool)
	for _, c := range chunks {
		for b := c.Start / blockSize; b*blockSize < c.Start+len(c.Tokens); b++ {
			set[c.Blocks[b]] = true
		}
	}
	return sortedKeys(set)
}

// clockEpoch makes every address a machine with a clock of its own, which an engine restarted in place
// finds running: no reader may take one engine's clock for another's.
func clockEpoch(start time.Time, addr string) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(addr))
	return start.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) + time.Duration(h.Sum32()%100_000)*time.Second
}

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// listen and dial are the network, or what replaces it.
func (c Config) listen(addr string) (net.Listener, error) {
	if c.Listen != nil {
		return c.Listen(addr)
	}
	return net.Listen("tcp", addr)
}

func (c Config) dial(ctx context.Context, addr string) (net.Conn, error) {
	if c.Dial != nil {
		return c.Dial(ctx, addr)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}
