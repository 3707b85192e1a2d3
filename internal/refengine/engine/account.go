package engine

import "fmt"

// snapshot returns all counters, and the gauges as of now.
func (c *core) snapshot() Stats {
	s := c.stats.clone()
	s.Blocks = c.blockStats()
	s.KVCacheUsage = 1 - float64(s.Blocks.Free)/float64(s.Blocks.Total)
	s.Pins, s.Tracked, s.Running = len(c.pins), len(c.tracked), len(c.running)
	for _, k := range c.pins {
		if k.forever {
			s.PinsForever++
		}
	}
	s.WaitingCapacity = len(c.waiting)
	for _, q := range c.waiting {
		if q.stage == fetchDone {
			s.FetchCompleted++
		}
	}
	for _, q := range c.parked {
		if q.state == seqOrphan {
			continue
		}
		s.WaitingDeferred++
		if q.stage == fetchRunning {
			s.FetchInProgress++
		} else {
			s.FetchWaiting++
		}
	}
	s.Consumer = c.cfg.kv != nil && c.cfg.kv.Role != "kv_producer"
	if c.dead != nil {
		s.Dead, s.DeadWhy = true, c.dead.Error()
	}
	return s
}

// blockStats sorts every block under its first owner in the order used, parked, pinned.
func (c *core) blockStats() BlockStats {
	b := BlockStats{Total: c.pool.usable(), Free: c.pool.free, Cached: c.pool.cached}
	seen := make(map[int]bool)
	count := func(n *int, ids []int) {
		for _, id := range ids {
			if !seen[id] {
				seen[id] = true
				*n++
			}
		}
	}
	for _, list := range [][]*seq{c.running, c.waiting} {
		for _, s := range list {
			count(&b.Used, s.blocks)
		}
	}
	for _, s := range c.parked {
		count(&b.Parked, s.blocks)
	}
	for _, k := range c.pins {
		count(&b.Pinned, k.blocks)
	}
	return b
}

// check verifies the block accounting: every block is free or owned by exactly the lists that mention
// it, the prefix cache is consistent, and every request is where its state says.
func (c *core) check() error {
	owners := make(map[int]int)
	own := func(what string, ids []int) error {
		mine := make(map[int]bool, len(ids))
		for _, id := range ids {
			if id < 1 || id > c.pool.usable() || mine[id] {
				return fmt.Errorf("%s: block %d is out of range or listed twice", what, id)
			}
			mine[id] = true
			owners[id]++
		}
		return nil
	}
	listed := 0
	for state, list := range map[seqState][]*seq{seqWaiting: c.waiting, seqRunning: c.running, seqParked: c.parked} {
		for _, s := range list {
			listed++
			if !c.ended && s.state != state && (state != seqParked || s.state != seqOrphan) {
				return fmt.Errorf("request %s is in list %d with state %d", s.req.ID, state, s.state)
			}
			if !c.ended && c.byID[s.req.ID] != s {
				return fmt.Errorf("request %s is listed but unknown", s.req.ID)
			}
			if s.computed > len(s.blocks)*c.cfg.blockSize || s.hashedBlocks > len(s.blocks) {
				return fmt.Errorf("request %s: %d computed tokens, %d hashed blocks, %d blocks", s.req.ID, s.computed, s.hashedBlocks, len(s.blocks))
			}
			if err := own("request "+s.req.ID, s.blocks); err != nil {
				return err
			}
		}
	}
	if !c.ended && listed != len(c.byID) {
		return fmt.Errorf("%d requests listed, %d known", listed, len(c.byID))
	}
	if len(c.pins) != len(c.pinByID) {
		return fmt.Errorf("%d pins listed, %d known", len(c.pins), len(c.pinByID))
	}
	for _, k := range c.pins {
		if c.pinByID[k.rid] != k {
			return fmt.Errorf("pin %s is listed but unknown", k.rid)
		}
		if k.forever == c.tracked[k.rid] {
			return fmt.Errorf("pin %s: without deadline: %v, tracked: %v", k.rid, k.forever, c.tracked[k.rid])
		}
		if err := own("pin "+k.rid, k.blocks); err != nil {
			return err
		}
	}
	if err := c.pool.check(owners); err != nil {
		return err
	}
	b := c.blockStats()
	if b.Free+b.Used+b.Parked+b.Pinned != b.Total {
		return fmt.Errorf("blocks do not add up: %+v", b)
	}
	return nil
}
