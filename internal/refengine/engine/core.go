package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tarik-kv/tarik/internal/refengine/model"
)

// Compute is what the engine needs of a model and its paged KV. model.Model with its Pool is one.
type Compute interface {
	// Forward computes one step, as model.Forward does. Only blocks that hold the chunks' own
	// tokens are written.
	Forward(batch []model.Chunk) [][]float32
	// Block returns the memory of a block, the same slice every time.
	Block(id int) []float32
}

// coreConfig is what the machine needs to know of the engine's configuration.
type coreConfig struct {
	release     release
	kv          *KVTransferConfig // nil: no connector
	engineID    string
	host        string
	port        int
	blockSize   int // tokens
	blocks      int
	maxModelLen int // tokens
	maxBatched  int // tokens per step
	maxSeqs     int
	prefixCache bool
	vocab       int
	eos         []int32
	logf        func(format string, args ...any)
}

// core is the pure machine. Its methods are called from one goroutine at a time and take the engine's
// clock as now.
type core struct {
	cfg    coreConfig
	faults Faults
	pool   *blockPool
	stats  Stats

	byID    map[string]*seq
	waiting []*seq // by arrival; never admitted, preempted, or with a READ done
	running []*seq // in order of admission
	parked  []*seq // waiting for a READ, orphans included
	arrived uint64 // requests ever submitted

	pins       []*pin // in order of finish
	pinByID    map[string]*pin
	tracked    map[string]bool // requests whose release a notification may ask for
	generation int64           // +1 when the cache is registered anew

	queued    []*readJob          // admitted in this step, to be started after it
	jobs      map[string]*readJob // queued or running, by request id
	drowsy    bool                // LazyWake: nothing is scheduled from idle before the next request
	beating   bool                // a heartbeat round is due …
	nextBeat  time.Duration       // … at this time
	unwritten []tail              // last tokens still being written by the step in flight
	effects   []effect

	dead  error // EngineCore has died of this
	ended bool  // dead, closed or killed: all readers have been told, lists are as they were
}

// tail is a finished request's last token, whose KV the next step still writes: under asynchronous
// scheduling a step is in flight when EOS is found.
type tail struct {
	rid   string
	chunk model.Chunk
	block int       // where the token goes
	full  bool      // it completes the block …
	hash  blockHash // … which is then this one
}

// plan is one step.
type plan struct {
	entries []planEntry
	chunks  []model.Chunk // entries' chunks, then tails'
	tails   []tail
	prefill int // prompt tokens in it
	context int // sum over these of the tokens before them
}

type planEntry struct {
	s *seq
	n int // tokens
}

func newCore(cfg coreConfig) *core {
	if cfg.logf == nil {
		cfg.logf = func(string, ...any) {}
	}
	return &core{
		cfg:        cfg,
		pool:       newBlockPool(cfg.blocks),
		stats:      newStats(),
		byID:       make(map[string]*seq),
		pinByID:    make(map[string]*pin),
		tracked:    make(map[string]bool),
		jobs:       make(map[string]*readJob),
		generation: 1,
	}
}

func (c *core) flag() bool { return c.cfg.kv != nil && c.cfg.kv.Bidirectional }

func (c *core) blocksFor(tokens int) int { return (tokens + c.cfg.blockSize - 1) / c.cfg.blockSize }

// Errors of Submit. A front end answers 400 for all but ErrClosed and ErrDead.
var (
	ErrClosed    = errors.New("engine is closed")
	ErrKilled    = errors.New("engine was killed")
	ErrDead      = errors.New("EngineCore encountered an issue")
	ErrDuplicate = errors.New("request id is in use")
	ErrRequest   = errors.New("invalid request")
	ErrTransfer  = errors.New("KV load failed") // Output.Err of a failed or declined pull
)

// PromptTooLongError reports a prompt that leaves no room for one output token.
type PromptTooLongError struct {
	PromptTokens int
	MaxModelLen  int // tokens
}

func (e *PromptTooLongError) Error() string {
	return fmt.Sprintf("prompt of %d tokens: at most %d leave room for an output token", e.PromptTokens, e.MaxModelLen-1)
}

// submit validates r and puts it at the end of the waiting queue.
func (c *core) submit(now time.Duration, r Request, sink func(Output)) error {
	if c.dead != nil {
		return fmt.Errorf("%w: %w", ErrDead, c.dead)
	}
	switch {
	case r.ID == "":
		return fmt.Errorf("%w: no id", ErrRequest)
	case len(r.Prompt) == 0:
		return fmt.Errorf("%w: empty prompt", ErrRequest)
	case r.MaxTokens < 1:
		return fmt.Errorf("%w: max_tokens %d, want at least 1", ErrRequest, r.MaxTokens)
	case r.MinTokens > r.MaxTokens:
		return fmt.Errorf("%w: min_tokens %d exceeds max_tokens %d", ErrRequest, r.MinTokens, r.MaxTokens)
	case len(r.Prompt) >= c.cfg.maxModelLen:
		return &PromptTooLongError{PromptTokens: len(r.Prompt), MaxModelLen: c.cfg.maxModelLen}
	}
	for _, id := range r.Prompt {
		if id < 0 || int(id) >= c.cfg.vocab {
			return fmt.Errorf("%w: token id %d is out of the vocabulary of %d", ErrRequest, id, c.cfg.vocab)
		}
	}
	if c.byID[r.ID] != nil || c.pinByID[r.ID] != nil {
		return fmt.Errorf("%w: %q", ErrDuplicate, r.ID)
	}
	var params *transferParams
	if c.cfg.kv != nil {
		var err error
		if params, err = parseParams(r.Params); err != nil {
			return fmt.Errorf("%w: %w", ErrRequest, err)
		}
	}
	c.arrived++
	c.drowsy = false
	s := &seq{
		req: r, params: params, arrival: c.arrived, sink: sink,
		ids: append(make([]int32, 0, len(r.Prompt)+min(r.MaxTokens, 1024)), r.Prompt...),
		rng: newRNG(&r), arrived: now,
	}
	s.req.Prompt = s.ids[:len(r.Prompt):len(r.Prompt)]
	c.byID[r.ID] = s
	c.waiting = append(c.waiting, s)
	return nil
}

// abort ends a request on behalf of the front end: the client left, or a stop string matched. A parked
// request keeps its blocks until its READ reports, which is never if none was queued.
func (c *core) abort(now time.Duration, id string) {
	s := c.byID[id]
	if s == nil || s.state == seqEnded || s.state == seqOrphan {
		return
	}
	if s.state == seqParked {
		s.state = seqOrphan
		delete(c.tracked, id)
		s.emit(Output{Finish: FinishAbort}, c.cfg.release)
		return
	}
	c.finish(now, s, FinishAbort, nil, Output{})
}

// schedule plans the next step: running requests first, then waiting ones, within the token budget.
// It returns nil if there is nothing to compute.
func (c *core) schedule(now time.Duration) *plan {
	if c.dead != nil || c.drowsy && len(c.running) == 0 {
		return nil
	}
	p := &plan{}
	budget := c.cfg.maxBatched
	preempted := false
	for i := 0; i < len(c.running) && budget > 0; i++ {
		s := c.running[i]
		n := min(len(s.ids)-s.computed, budget)
		for !c.grow(s, s.computed+n) {
			preempted = true
			victim := c.running[len(c.running)-1]
			c.preempt(victim)
			if victim == s {
				n = 0
				break
			}
		}
		if n == 0 {
			break
		}
		budget -= n
		c.plan(now, p, s, n)
	}
	for !preempted && len(c.waiting) > 0 && budget > 0 && len(c.running) < c.cfg.maxSeqs && c.dead == nil {
		s := c.waiting[0]
		n := min(len(s.ids)-s.computed, budget)
		if len(s.blocks) == 0 {
			var ok bool
			if n, ok = c.admit(now, s, budget); !ok {
				break
			}
			if s.state != seqWaiting { // parked, or it killed something
				continue
			}
		} else if !c.grow(s, s.computed+n) {
			break
		}
		c.waiting = c.waiting[1:]
		s.state, s.stage = seqRunning, fetchNone
		c.running = append(c.running, s)
		budget -= n
		c.plan(now, p, s, n)
	}
	for _, t := range c.unwritten {
		p.chunks = append(p.chunks, t.chunk)
	}
	p.tails, c.unwritten = c.unwritten, nil
	if len(p.chunks) == 0 {
		c.startReads()
		return nil
	}
	return p
}

// plan adds the next n tokens of s to a step.
func (c *core) plan(now time.Duration, p *plan, s *seq, n int) {
	if !s.wasScheduled {
		s.scheduled, s.wasScheduled = now, true
	}
	logits := 0
	if s.computed+n == len(s.ids) {
		logits = 1
	}
	if s.wantsPromptLogprobs() {
		logits = n
	}
	p.entries = append(p.entries, planEntry{s, n})
	p.chunks = append(p.chunks, model.Chunk{
		Tokens: s.ids[s.computed : s.computed+n],
		Start:  s.computed,
		Blocks: s.blocks,
		Logits: logits,
	})
	if prompt := min(n, s.prompt()-s.computed); prompt > 0 {
		p.prefill += prompt
		p.context += prompt*s.computed + prompt*(prompt-1)/2
	}
}

func (s *seq) wantsPromptLogprobs() bool {
	return s.req.PromptLogprobs >= 0 && s.output() == 0
}

// grow makes s's block table cover the given number of tokens; false if the pool cannot.
func (c *core) grow(s *seq, tokens int) bool {
	need := c.blocksFor(tokens) - len(s.blocks)
	if need > c.pool.free {
		return false
	}
	for ; need > 0; need-- {
		s.blocks = append(s.blocks, c.pool.take())
	}
	return true
}

// preempt takes the youngest running request's blocks; it computes everything again later.
func (c *core) preempt(s *seq) {
	c.running = remove(c.running, s)
	c.freeBlocks(s)
	s.state, s.computed, s.tainted = seqWaiting, 0, false
	s.preemptions++
	c.stats.Preemptions++
	c.waiting = insertByArrival(c.waiting, s)
}

func (c *core) freeBlocks(s *seq) {
	c.pool.release(s.blocks)
	s.blocks, s.hashedBlocks = nil, 0
}

// match returns the cached blocks that s can start with: whole blocks, at most all but one token.
func (c *core) match(s *seq) []int {
	if !c.cfg.prefixCache {
		return nil
	}
	var hits []int
	for b := 0; b < (len(s.ids)-1)/c.cfg.blockSize; b++ {
		hashes := s.blockHashes(b+1, c.cfg.blockSize)
		id, ok := c.pool.lookup(hashes[b])
		if !ok {
			break
		}
		hits = append(hits, id)
	}
	return hits
}

// cacheBlocks enters s's full blocks among its first tokens into the prefix cache. What they hold is
// not looked at: a wrong pull poisons the cache.
func (c *core) cacheBlocks(s *seq, tokens int) {
	if !c.cfg.prefixCache {
		return
	}
	full := tokens / c.cfg.blockSize
	hashes := s.blockHashes(full, c.cfg.blockSize)
	for ; s.hashedBlocks < full; s.hashedBlocks++ {
		c.pool.setHash(s.blocks[s.hashedBlocks], hashes[s.hashedBlocks])
	}
}

// noteContent records what the blocks hold that s computed into, from position from on.
func (c *core) noteContent(s *seq, from int) {
	for b := from / c.cfg.blockSize; b*c.cfg.blockSize < s.computed; b++ {
		k := &c.pool.blocks[s.blocks[b]].content
		k.parent = s.parent(b, c.cfg.blockSize)
		k.tokens = slices.Clone(s.ids[b*c.cfg.blockSize : min(s.computed, (b+1)*c.cfg.blockSize)])
		k.bad = k.bad || s.tainted
	}
}

// commit takes a step's logits, one [rows*vocab] per chunk of the plan.
func (c *core) commit(now time.Duration, p *plan, logits [][]float32) {
	iteration, emitted := 0, false
	for i, e := range p.entries {
		s := e.s
		if s.state != seqRunning { // aborted during the step
			continue
		}
		from := s.computed
		s.computed += e.n
		c.noteContent(s, from)
		c.cacheBlocks(s, s.computed)
		rows := logits[i]
		if s.wantsPromptLogprobs() {
			c.collectPromptLogprobs(s, from, e.n, rows)
		}
		if s.computed < len(s.ids) {
			continue
		}
		iteration += c.advance(now, s, rows[len(rows)-c.cfg.vocab:])
		emitted = true
	}
	for _, t := range p.tails {
		if c.pinByID[t.rid] == nil {
			continue // released meanwhile
		}
		b := &c.pool.blocks[t.block].content
		b.tokens = append(slices.Clip(b.tokens), t.chunk.Tokens...)
		if t.full {
			c.pool.setHash(t.block, t.hash)
		}
	}
	if emitted {
		c.stats.IterationTokens.observe(float64(iteration))
	}
	c.startReads()
}

// collectPromptLogprobs keeps what the rows for positions from … from+n-1 say about the next prompt token.
func (c *core) collectPromptLogprobs(s *seq, from, n int, rows []float32) {
	if from == 0 {
		s.promptLogprobs = [][]TokenLogprob{nil}
	}
	for i := range n {
		if pos := from + i + 1; pos < s.prompt() {
			row := rows[i*c.cfg.vocab : (i+1)*c.cfg.vocab]
			s.promptLogprobs = append(s.promptLogprobs, logprobs(row, s.ids[pos], s.req.PromptLogprobs))
		}
	}
}

// advance samples the next token of s and ends s if it is due. It returns the step's contribution to
// iteration_tokens_total.
func (c *core) advance(now time.Duration, s *seq, row []float32) int {
	out := Output{}
	var probs []float32
	if s.req.Logprobs >= 0 {
		probs = append([]float32(nil), row...) // sampling may mask
	}
	token := sample(&s.req, s.rng, row, c.banned(s))
	if probs != nil {
		out.Logprobs = [][]TokenLogprob{logprobs(probs, token, s.req.Logprobs)}
	}
	out.Tokens = []int32{token}
	s.ids = append(s.ids, token)
	c.stats.GenerationTokens++
	iteration := 1
	if s.output() == 1 {
		s.first = now
		c.countPrompt(s)
		c.stats.TTFT.observeTime(now - s.arrived)
		iteration += s.prompt() - s.localHit - s.pulled
		out.PromptLogprobs, s.promptLogprobs = s.promptLogprobs, nil
	} else {
		c.stats.ITL.observeTime(now - s.last)
	}
	s.last = now

	reason, stop := c.checkStop(s, token)
	if reason == FinishNone {
		s.emit(out, c.cfg.release)
	} else {
		c.finish(now, s, reason, stop, out)
	}
	return iteration
}

// banned lists the ids that may not be sampled yet.
func (c *core) banned(s *seq) []int32 {
	if s.output() >= s.req.MinTokens {
		return nil
	}
	banned := s.req.StopTokenIDs
	if !s.req.IgnoreEOS {
		banned = append(append([]int32(nil), banned...), c.cfg.eos...)
	}
	return banned
}

// checkStop says whether the newest token ends s, and with which stop token id.
func (c *core) checkStop(s *seq, token int32) (FinishReason, *int32) {
	if s.output() >= s.req.MinTokens {
		if !s.req.IgnoreEOS && slices.Contains(c.cfg.eos, token) {
			return FinishStop, nil
		}
		if slices.Contains(s.req.StopTokenIDs, token) {
			return FinishStop, &token
		}
	}
	if s.output() >= s.req.MaxTokens || len(s.ids) >= c.cfg.maxModelLen {
		return FinishLength, nil
	}
	return FinishNone, nil
}

// countPrompt counts a prompt's tokens by source, at its first token: requests that fail do not count.
func (c *core) countPrompt(s *seq) {
	n, hit, pulled := uint64(s.prompt()), uint64(s.localHit), uint64(s.pulled)
	c.stats.PromptTokens += n
	c.stats.PromptLocalHit += hit
	c.stats.PromptExternal += pulled
	c.stats.PromptLocalCompute += n - hit - pulled
	c.stats.PromptCached += hit + pulled
}

// countFinished feeds the per-request histograms; aborts by the front end count nowhere.
func (c *core) countFinished(now time.Duration, s *seq, how FinishReason) {
	cached := 0
	switch how {
	case FinishStop:
		c.stats.FinishedStop++
	case FinishLength:
		c.stats.FinishedLength++
	case FinishError:
		c.stats.FinishedError++
	default:
		return
	}
	if s.output() == 0 {
		c.stats.TTFT.observeTime(now - s.arrived)
		s.first, s.last = now, now
	} else {
		cached = s.cachedTokens(c.cfg.release)
	}
	if !s.wasScheduled {
		s.scheduled = now
	}
	c.stats.E2E.observeTime(now - s.arrived)
	c.stats.Queue.observeTime(s.scheduled - s.arrived)
	c.stats.Inference.observeTime(s.last - s.scheduled)
	c.stats.Prefill.observeTime(s.first - s.scheduled)
	c.stats.Decode.observeTime(s.last - s.first)
	perToken := time.Duration(0)
	if s.output() > 1 {
		perToken = (s.last - s.first) / time.Duration(s.output()-1)
	}
	c.stats.TPOT.observeTime(perToken)
	c.stats.RequestPrompt.observe(float64(s.prompt()))
	c.stats.RequestGeneration.observe(float64(s.output()))
	c.stats.RequestMaxTokens.observe(float64(s.req.MaxTokens))
	c.stats.PrefillComputed.observe(float64(max(0, s.prompt()-cached)))
	c.stats.RequestPreempted.observe(float64(s.preemptions))
}
