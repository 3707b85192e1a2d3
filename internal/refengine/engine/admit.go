package engine

import "time"

// admit decides what a waiting request with nothing computed starts from: its own prefix cache, a READ
// from another engine, or nothing. It takes the blocks and either parks s or leaves it for the step
// with n tokens to compute. ok is false if there is no room; then nothing has changed.
//
// The decision is asked again after a preemption and after a failed load, but the READ is queued only
// the first time: a request that is asked again and still wants its pull waits for ever.
func (c *core) admit(now time.Duration, s *seq, budget int) (n int, ok bool) {
	p := s.params
	hits := c.match(s)
	h := len(hits) * c.cfg.blockSize
	ext := 0
	if p != nil {
		var err error
		if ext, err = c.wanted(s, h); err != nil {
			c.waiting = remove(c.waiting, s)
			c.die(now, s, err)
			return 0, true
		}
	}
	if s.req.PromptLogprobs >= 0 {
		hits, h, ext = nil, 0, 0 // every prompt position's logits are wanted
	}
	tokens := h + ext
	if ext == 0 {
		n = min(len(s.ids)-h, budget)
		tokens = h + n
	}
	fresh := c.blocksFor(tokens) - len(hits)
	idle := 0
	for _, id := range hits {
		if c.pool.blocks[id].refs == 0 {
			idle++
		}
	}
	if fresh+idle > c.pool.free {
		return 0, false
	}
	for _, id := range hits {
		c.pool.touch(id)
		s.tainted = s.tainted || c.pool.blocks[id].content.bad
	}
	if s.tainted {
		c.stats.PoisonedHits++
	}
	s.blocks, s.hashedBlocks, s.computed = append([]int(nil), hits...), len(hits), h
	for range fresh {
		s.blocks = append(s.blocks, c.pool.take())
	}
	c.countAdmission(s, h, ext)
	if !s.admitted {
		s.admitted, s.localHit, s.pulled = true, h, ext
	}
	if p != nil {
		if err := c.queueRead(now, s, h, ext); err != nil {
			c.waiting = remove(c.waiting, s)
			c.freeBlocks(s)
			c.die(now, s, err)
			return 0, true
		}
	}
	if ext > 0 { // also when no READ was queued
		c.waiting = remove(c.waiting, s)
		c.parked = append(c.parked, s)
		s.state, s.pullEnd = seqParked, h+ext
	}
	return n, true
}

// wanted is the number of tokens to pull beyond the local hit h. The flag is not looked at here. An
// error is an exception that ends vLLM's engine.
func (c *core) wanted(s *seq, h int) (int, error) {
	p := s.params
	if p.remotePrefill {
		return len(s.ids) - h, nil
	}
	if !p.remoteDecode || !p.listed || !p.complete {
		return 0, nil
	}
	count, floating, err := p.tokens.pullable(s.prompt(), h)
	if err != nil {
		return 0, err
	}
	if t := c.cfg.kv.Threshold; count <= 0 || t > 0 && count < t {
		return 0, nil
	}
	if floating {
		return 0, phrasef("TypeError: 'float' object cannot be interpreted as an integer")
	}
	return count, nil
}

// queueRead makes the READ or the bare notification that the params ask for, once.
func (c *core) queueRead(now time.Duration, s *seq, h, ext int) error {
	p := s.params
	if p.remoteDecode || p.remotePrefill && c.flag() {
		c.tracked[s.req.ID] = true
	}
	if !p.remotePrefill && (!p.remoteDecode || !c.flag() || p.processed) {
		return nil
	}
	switch {
	case p.listed && p.complete:
		if c.faults.LoadViaCPU && c.cfg.kv.BufferDevice == "cpu" && ext > 0 {
			break // the save branch wins
		}
		job := &readJob{
			rid: s.req.ID, params: p, heartbeat: p.remotePrefill,
			local: append([]int(nil), s.blocks[h/c.cfg.blockSize:]...),
			end:   h + ext,
		}
		if ext == 0 {
			job.local = nil
		}
		c.queued = append(c.queued, job)
		c.jobs[job.rid] = job
		if job.heartbeat && !c.beating {
			c.beating, c.nextBeat = true, now+c.beatEvery()
		}
		s.stage = fetchQueued
	case p.listed:
		c.cfg.logf("WARNING Got invalid KVTransferParams: %s. This request will not utilize KVTransfer", s.req.ID)
	case ext != 0:
		return phrasef("AssertionError: num_external_tokens == 0")
	}
	p.remotePrefill, p.processed = false, true
	return nil
}

// countAdmission counts hits and promises; a preempted request was counted the first time.
func (c *core) countAdmission(s *seq, h, ext int) {
	if s.preemptions > 0 {
		return
	}
	if s.req.PromptLogprobs < 0 && c.cfg.prefixCache {
		c.stats.PrefixQueries += uint64(len(s.ids))
		c.stats.PrefixHits += uint64(h)
	}
	if c.cfg.kv != nil {
		c.stats.ExternalQueries += uint64(len(s.ids) - h)
		c.stats.ExternalHits += uint64(ext)
	}
}
