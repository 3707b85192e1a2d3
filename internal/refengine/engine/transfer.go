package engine

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/tarik-kv/tarik/internal/refengine/model"
)

// expiryMargin is how long before a handle's expiry a READ is declined already.
const expiryMargin = 5 * time.Second

// pin holds a finished request's blocks for another engine to read.
type pin struct {
	rid      string
	blocks   []int
	forever  bool          // the request was never tracked: nothing releases it
	deadline time.Duration // own clock; P: lease, D: TTL
	got      int           // readers that have reported
}

// readJob is a READ to do for a request, or a bare notification if local is empty.
type readJob struct {
	rid       string
	params    *transferParams
	local     []int // blocks to fill, in order; the last len(local) of the owner's list belong to them
	end       int   // tokens covered afterwards: local hit + pulled
	heartbeat bool  // an owner that renews its lease by heartbeats: A-type params
}

// pairBlocks returns the owner's blocks for the job's local ones: the last ones of its list, whatever
// number of tokens they were said to hold. An error here is an assertion that ends vLLM's worker.
func (j *readJob) pairBlocks() ([]int, error) {
	if len(j.params.groups) != 1 {
		return nil, &readError{kind: "transfer_setup_failed", err: fmt.Errorf("%d block groups, want 1", len(j.params.groups))}
	}
	src := j.params.groups[0]
	if len(src) < len(j.local) {
		return nil, &readError{fatal: true, err: phrasef("AssertionError: %d local blocks, %d remote", len(j.local), len(src))}
	}
	return src[len(src)-len(j.local):], nil
}

// late says whether the READ must be declined: it starts within the margin of the handle's expiry.
// offset is the owner's clock minus the own one. Without the key there is no guard.
func (j *readJob) late(now, offset time.Duration) bool {
	if len(j.local) == 0 || math.IsNaN(j.params.expiry) {
		return false
	}
	expiry := time.Duration(j.params.expiry*float64(time.Second)) - offset
	return now+expiryMargin >= expiry
}

// descriptors is the number of pieces a READ is posted in: per layer, one for each run of blocks that
// is contiguous on both sides.
func descriptors(local, remote []int, layers int) int {
	runs := 0
	for i := range local {
		if i == 0 || local[i] != local[i-1]+1 || remote[i] != remote[i-1]+1 {
			runs++
		}
	}
	return layers * runs
}

// readError is why a READ or notification failed.
type readError struct {
	kind  string // vLLM's word: handshake_failed, handshake_setup_failed, transfer_setup_failed, …
	fatal bool   // an assertion in vLLM's worker: the engine dies
	err   error
}

func (e *readError) Error() string { return e.kind + ": " + e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

// phrase is one of vLLM's own sentences, to be found in a log as it is.
type phrase string

func (p phrase) Error() string { return string(p) }

func phrasef(format string, args ...any) error { return phrase(fmt.Sprintf(format, args...)) }

// readReport is the end of a readJob.
type readReport struct {
	rid          string
	err          error          // nil: the blocks are filled
	declined     bool           // not started: the handle is about to expire
	notifyErr    error          // the READ went well, telling the owner did not
	contents     []blockContent // what the blocks hold, according to their owner
	bytes        int64
	descriptors  int
	xfer, posted time.Duration // from the READ's start: until the last byte, until it was posted
}

// effect is something for the shell to do: exactly one member is set.
type effect struct {
	read   *readJob
	notify *readJob // tell the owner only: the request was refused before admission
	beat   *heartbeat
}

// heartbeat asks one owner to renew its leases.
type heartbeat struct {
	params *transferParams // who: any request's params of that owner
	ids    []string
}

// message is the heartbeat on the wire. A comma in an id breaks it, as in vLLM.
func (h heartbeat) message() string { return "HB:" + strings.Join(h.ids, ",") }

func (c *core) takeEffects() []effect {
	e := c.effects
	c.effects = nil
	return e
}

// startReads hands out the READs admitted in this step.
func (c *core) startReads() {
	for _, j := range c.queued {
		c.effects = append(c.effects, effect{read: j})
	}
	c.queued = nil
}

// leaseShare is a part of the lease, in whole seconds as in vLLM. Leases too short for that, which
// only tests use, are divided exactly.
func (c *core) leaseShare(num, den time.Duration) time.Duration {
	share := c.cfg.kv.Lease * num / den
	if c.cfg.kv.Lease < 6*time.Second {
		return share
	}
	return share.Truncate(time.Second)
}

// extend is how far from now a heartbeat moves a lease, beatEvery the pause between heartbeats.
func (c *core) extend() time.Duration    { return c.leaseShare(2, 3) }
func (c *core) beatEvery() time.Duration { return c.leaseShare(1, 6) }

// finish ends s, keeps what must be kept and sends the last output, out completed by how it ended.
func (c *core) finish(now time.Duration, s *seq, how FinishReason, stop *int32, out Output) {
	switch s.state {
	case seqWaiting:
		c.waiting = remove(c.waiting, s)
	case seqRunning:
		c.running = remove(c.running, s)
	case seqParked, seqOrphan:
		c.parked = remove(c.parked, s)
	}
	s.state = seqEnded
	delete(c.byID, s.req.ID)
	c.countFinished(now, s, how)
	out.Finish, out.StopToken = how, stop
	if how == FinishError && out.Err == nil {
		out.Err = ErrTransfer
	}
	out.Params = c.retain(now, s, how)
	s.emit(out, c.cfg.release)
}

// retain pins s's blocks and returns the params for its reply, or frees them and returns nil.
func (c *core) retain(now time.Duration, s *seq, how FinishReason) []byte {
	p := s.params
	if p == nil {
		c.freeBlocks(s)
		return nil
	}
	if p.remotePrefill { // refused or aborted before admission: the owner must not wait for the lease
		if p.listed && p.complete {
			c.effects = append(c.effects, effect{notify: &readJob{rid: s.req.ID, params: p}})
		}
		c.freeBlocks(s)
		return nil
	}
	isP := p.remoteDecode
	if !isP && !c.flag() || how != FinishLength && how != FinishStop || s.req.DropParams {
		delete(c.tracked, s.req.ID)
		c.freeBlocks(s)
		return nil
	}
	if how == FinishStop {
		c.stepInFlight(s)
	}
	tokens := s.computed
	if d := c.faults.DraftTokens; d > 0 && c.grow(s, min(tokens+d, c.cfg.maxModelLen)) {
		tokens = min(tokens+d, c.cfg.maxModelLen)
	}
	k := &pin{rid: s.req.ID, blocks: s.blocks, forever: !c.tracked[s.req.ID]}
	s.blocks, s.hashedBlocks = nil, 0
	reply := replyParams{
		prefill: isP, blocks: k.blocks, engineID: c.cfg.engineID, requestID: s.req.ID,
		host: c.cfg.host, port: c.cfg.port, tokens: tokens, generation: c.generation, cached: -1,
	}
	if isP {
		k.deadline = now + c.cfg.kv.Lease
		if s.output() == 1 {
			reply.cached = s.localHit + s.pulled
		}
	} else {
		k.deadline = now + c.cfg.kv.DecoderTTL
		reply.expiry = k.deadline
	}
	c.pins = append(c.pins, k)
	c.pinByID[k.rid] = k
	return reply.marshal(c.cfg.release)
}

// stepInFlight is asynchronous scheduling: when EOS is found, a step that computes EOS' own KV has been
// launched already, so the last token counts as computed while it is still being written. No such step
// is launched if the request could not go on anyway.
func (c *core) stepInFlight(s *seq) {
	n := len(s.ids)
	if c.faults.SyncScheduling || s.output() >= s.req.MaxTokens || n >= c.cfg.maxModelLen || !c.grow(s, n) {
		return
	}
	b := (n - 1) / c.cfg.blockSize
	t := tail{
		rid: s.req.ID, block: s.blocks[b],
		chunk: model.Chunk{Tokens: s.ids[s.computed:], Start: s.computed, Blocks: s.blocks},
	}
	if k := &c.pool.blocks[t.block].content; n%c.cfg.blockSize == 1 || c.cfg.blockSize == 1 {
		*k = blockContent{parent: s.parent(b, c.cfg.blockSize), bad: s.tainted}
	}
	if n%c.cfg.blockSize == 0 && c.cfg.prefixCache {
		t.full, t.hash = true, s.blockHashes(b+1, c.cfg.blockSize)[b]
	}
	c.unwritten = append(c.unwritten, t)
	s.computed = n
}

// unpin frees a finished request's blocks; they stay cached until evicted.
func (c *core) unpin(k *pin) {
	for i, t := range c.unwritten {
		if t.rid == k.rid { // never write into a block that may be somebody else's
			c.unwritten = append(c.unwritten[:i], c.unwritten[i+1:]...)
			break
		}
	}
	for i := range c.pins {
		if c.pins[i] == k {
			c.pins = append(c.pins[:i], c.pins[i+1:]...)
			break
		}
	}
	delete(c.pinByID, k.rid)
	delete(c.tracked, k.rid)
	c.pool.release(k.blocks)
}

// readStarted notes that a job's handshake is done and bytes move.
func (c *core) readStarted(rid string) {
	if s := c.byID[rid]; s != nil && s.stage == fetchQueued {
		s.stage = fetchRunning
	}
}

// readDone takes the end of a READ, or of a bare notification.
func (c *core) readDone(now time.Duration, r readReport) {
	job := c.jobs[r.rid]
	delete(c.jobs, r.rid)
	if job == nil || c.dead != nil {
		return
	}
	s := c.byID[r.rid]
	var failure *readError
	switch {
	case errors.As(r.err, &failure) && failure.fatal:
		c.die(now, s, failure)
		return
	case r.declined:
		c.stats.KVExpired++
		c.cfg.logf("WARNING Declining expired remote read for request %s from engine %s", r.rid, job.params.engineID)
	case r.err != nil:
		handshake := failure != nil && strings.HasPrefix(failure.kind, "handshake")
		if !handshake || c.cfg.release.has(sinceCached) { // the same release began to count these
			c.stats.FailedTransfers++
		}
		c.logFailure("transfer_failed", r.err, job)
	case len(job.local) > 0:
		c.stats.BytesTransferred.observe(float64(r.bytes))
		c.stats.Descriptors.observe(float64(r.descriptors))
		c.stats.XferTime.observeTime(r.xfer)
		c.stats.PostTime.observeTime(r.posted)
	}
	if r.notifyErr != nil {
		c.stats.FailedNotifications++
		c.stats.FailedTransfers++
		c.logFailure("notification_failed", r.notifyErr, job)
	}
	if s == nil || s.state != seqParked && s.state != seqOrphan || len(job.local) == 0 {
		return // a bare notification: nobody waits for it
	}
	if s.state == seqOrphan {
		c.endOrphan(s)
		return
	}
	if r.err != nil || r.declined {
		c.loadFailed(now, s)
		return
	}
	c.noteRead(s, job, r.contents)
	c.cacheBlocks(s, job.end)
	s.computed = min(job.end, len(s.ids)-1)
	s.stage = fetchDone
	c.unpark(s)
}

// noteRead records what a READ really brought. It changes nothing: vLLM does not look.
func (c *core) noteRead(s *seq, j *readJob, contents []blockContent) {
	first := c.blocksFor(j.end) - len(j.local)
	wrong := false
	for i, id := range j.local {
		from := (first + i) * c.cfg.blockSize
		need := s.ids[from:min(j.end, from+c.cfg.blockSize)]
		k := contents[i]
		if !k.serves(s.parent(first+i, c.cfg.blockSize), need) {
			wrong, k.bad = true, true
		}
		c.pool.blocks[id].content = k
	}
	if wrong {
		c.stats.Misreads++
		s.tainted = true
	}
}

// contents describes blocks to a reader.
func (c *core) contents(ids []uint32) []blockContent {
	out := make([]blockContent, len(ids))
	for i, id := range ids {
		out[i] = c.pool.blocks[id].content
	}
	return out
}

// logFailure writes vLLM's line about a failed transfer. The words of what failed come before the
// context, the cause behind it.
func (c *core) logFailure(kind string, err error, j *readJob) {
	if failure := (*readError)(nil); errors.As(err, &failure) {
		kind, err = failure.kind, failure.err
	}
	p := j.params
	c.cfg.logf("ERROR NIXL transfer failure: %s | Context: {'failure_type': '%s', 'request_id': '%s', 'engine_id': '%s', 'remote_engine_id': '%s', 'remote_request_id': '%s', 'remote_host': '%s', 'remote_port': %s, 'num_local_blocks': %d}: %v",
		kind, kind, j.rid, c.cfg.engineID, p.engineID, p.requestID, p.host, p.port, len(j.local), err)
}

// endOrphan frees an aborted request whose READ has ended.
func (c *core) endOrphan(s *seq) {
	c.parked = remove(c.parked, s)
	s.state = seqEnded
	delete(c.byID, s.req.ID)
	c.freeBlocks(s)
}

func (c *core) unpark(s *seq) {
	c.parked = remove(c.parked, s)
	s.state = seqWaiting
	c.waiting = insertByArrival(c.waiting, s)
}

// loadFailed applies kv_load_failure_policy. Under recompute a request for P asks for its pull again and
// parks, and no READ is ever queued for it; releases up to 0.29 went on from a local hit if there was one.
func (c *core) loadFailed(now time.Duration, s *seq) {
	affected := s.pullEnd - s.hashedBlocks*c.cfg.blockSize
	if c.cfg.kv.FailurePolicy != "recompute" {
		c.cfg.logf("ERROR Failing 1 request(s) due to KV load failure (failure_policy=fail, %d tokens affected). Request IDs: {'%s'}", affected, s.req.ID)
		c.finish(now, s, FinishError, nil, Output{})
		return
	}
	c.cfg.logf("WARNING Recovered from KV load failure: 1 request(s) rescheduled (%d tokens affected).", affected)
	s.stage, s.tainted = fetchNone, false
	c.drowsy = c.faults.LazyWake
	if h := s.hashedBlocks * c.cfg.blockSize; h > 0 && !c.cfg.release.has(sinceOneFailure) {
		c.pool.release(s.blocks[s.hashedBlocks:])
		s.blocks = s.blocks[:s.hashedBlocks]
		s.computed, s.pulled = h, 0
	} else {
		c.freeBlocks(s)
		s.computed, s.admitted = 0, false
	}
	c.unpark(s)
}

// notified takes a side-channel message: "rid:n" from a reader, one of n, or "HB:rid,rid…".
func (c *core) notified(now time.Duration, msg string) {
	if c.cfg.kv == nil || c.dead != nil {
		return
	}
	if ids, ok := strings.CutPrefix(msg, "HB:"); ok {
		for _, id := range strings.Split(ids, ",") {
			if k := c.pinByID[id]; k != nil && !k.forever {
				k.deadline = max(k.deadline, now+c.extend())
			}
		}
		return
	}
	i := strings.LastIndexByte(msg, ':')
	if i < 0 {
		return
	}
	rid, readers := msg[:i], 1
	if _, err := fmt.Sscanf(msg[i+1:], "%d", &readers); err != nil {
		return
	}
	if !c.tracked[rid] {
		c.stats.NotificationsAfterExpiry++
		c.cfg.logf("ERROR Potentially invalid KV blocks for unrecognized request %s were retrieved by a decode worker. They may have expired.", rid)
		return
	}
	k := c.pinByID[rid]
	if k == nil {
		return // still running: nobody can have its handle yet
	}
	if k.got++; k.got >= readers {
		c.unpin(k)
	}
}

// tick reaps what ran out and sends heartbeats that are due. It is called before every step.
func (c *core) tick(now time.Duration) {
	if c.cfg.kv == nil || c.dead != nil {
		return
	}
	for i := 0; i < len(c.pins); {
		k := c.pins[i]
		if k.forever {
			i++
			continue
		}
		if k.deadline > now {
			if !c.cfg.release.has(sinceCached) {
				break // older reapers stop at the first live entry
			}
			i++
			continue
		}
		c.stats.KVExpired++
		c.cfg.logf("WARNING Releasing expired KV blocks for request %s which were retrieved by %d remote worker(s) before lease expired.", k.rid, k.got)
		c.unpin(k)
	}
	if c.beating && now >= c.nextBeat {
		c.beat(now)
	}
}

// beat sends one heartbeat to each owner with requests queued or receiving here.
func (c *core) beat(now time.Duration) {
	c.beating = false
	if !c.cfg.release.has(sinceLease) {
		return
	}
	type owner struct{ id, host, port string }
	beats := make(map[owner]*heartbeat)
	var order []owner
	for _, s := range c.parked {
		j := c.jobs[s.req.ID]
		if j == nil || !j.heartbeat {
			continue
		}
		o := owner{j.params.engineID, j.params.host, j.params.port}
		if beats[o] == nil {
			beats[o] = &heartbeat{params: j.params}
			order = append(order, o)
		}
		beats[o].ids = append(beats[o].ids, j.params.requestID)
	}
	for _, o := range order {
		c.effects = append(c.effects, effect{beat: beats[o]})
	}
	if len(order) > 0 {
		c.beating, c.nextBeat = true, now+c.beatEvery()
	}
}

// nextWake is the next time at which tick has something to do, if any.
func (c *core) nextWake() (time.Duration, bool) {
	at, ok := c.nextBeat, c.beating
	if c.dead != nil {
		return 0, false
	}
	for _, k := range c.pins {
		if k.forever {
			continue
		}
		if !ok || k.deadline < at {
			at, ok = k.deadline, true
		}
		if !c.cfg.release.has(sinceCached) {
			break
		}
	}
	return at, ok
}

// die ends EngineCore as an exception in it would: everything unfinished fails. With DeathAs500 only s does.
func (c *core) die(now time.Duration, s *seq, why error) {
	if c.faults.DeathAs500 && s != nil {
		c.cfg.logf("ERROR EngineCore survived by configuration: %v", why)
		if s.state == seqOrphan {
			c.endOrphan(s)
			return
		}
		c.finish(now, s, FinishError, nil, Output{Err: fmt.Errorf("%w: %w", ErrTransfer, why)})
		return
	}
	c.cfg.logf("ERROR EngineCore encountered a fatal error: %v", why)
	c.dead = why
	c.endAll(fmt.Errorf("%w: %w", ErrDead, why))
}

// endAll fails whatever has not ended; nothing is freed or sent.
func (c *core) endAll(err error) {
	var open []*seq
	for _, s := range c.byID {
		if s.state != seqEnded && s.state != seqOrphan {
			open = append(open, s)
		}
	}
	for _, s := range open {
		s.state = seqEnded
		s.emit(Output{Finish: FinishError, Err: err}, c.cfg.release)
	}
	c.ended = true
	c.effects, c.queued, c.unwritten = nil, nil, nil
}

// abortAll ends every request as the engine shuts down.
func (c *core) abortAll() {
	for _, list := range [][]*seq{c.running, c.waiting, c.parked} {
		for _, s := range list {
			if s.state != seqOrphan && s.state != seqEnded {
				s.state = seqEnded
				s.emit(Output{Finish: FinishAbort}, c.cfg.release)
			}
		}
	}
	c.ended = true
	c.effects, c.queued, c.unwritten = nil, nil, nil
}
