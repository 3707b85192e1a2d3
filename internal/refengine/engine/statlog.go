package engine

import (
	"fmt"
	"time"
)

// statEvery is the pause between vLLM's lines about itself.
const statEvery = 10 * time.Second

// statLog writes vLLM's periodic lines: what was done since the last one, and what waits.
type statLog struct {
	due  time.Duration // own clock; 0: nothing to say so far
	last Stats
}

// note is called before every step. It returns when to call again if nothing happens, if at all.
func (l *statLog) note(now time.Duration, c *core) (at time.Duration, ok bool) {
	busy := len(c.running)+len(c.waiting)+len(c.jobs) > 0
	for _, s := range c.parked {
		busy = busy || s.state == seqParked
	}
	switch {
	case l.due == 0 && !busy:
		return 0, false
	case l.due == 0:
		l.due = now + statEvery
	case now >= l.due:
		l.write(c)
		l.due = 0
		if busy {
			l.due = now + statEvery
		}
	}
	return l.due, l.due > 0
}

func (l *statLog) write(c *core) {
	s := c.snapshot()
	seconds := statEvery.Seconds()
	deferred := ""
	if s.WaitingDeferred > 0 {
		deferred = fmt.Sprintf(", Deferred: %d reqs, KV fetch: %d waiting to start, %d in progress", s.WaitingDeferred, s.FetchWaiting, s.FetchInProgress)
	}
	c.cfg.logf("INFO Engine 000: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, Running: %d reqs, Waiting: %d reqs%s, GPU KV cache usage: %.1f%%, Prefix cache hit rate: %.1f%%, External prefix cache hit rate: %.1f%%",
		float64(s.PromptTokens-l.last.PromptTokens)/seconds, float64(s.GenerationTokens-l.last.GenerationTokens)/seconds,
		s.Running, s.WaitingCapacity+s.WaitingDeferred, deferred, 100*s.KVCacheUsage,
		percent(s.PrefixHits, s.PrefixQueries), percent(s.ExternalHits, s.ExternalQueries))
	reads, failed := s.BytesTransferred.Count-l.last.BytesTransferred.Count, s.FailedTransfers-l.last.FailedTransfers
	expired, late := s.KVExpired-l.last.KVExpired, s.NotificationsAfterExpiry-l.last.NotificationsAfterExpiry
	if reads+failed+expired+late > 0 {
		bytes, xfer := s.BytesTransferred.Sum-l.last.BytesTransferred.Sum, s.XferTime.Sum-l.last.XferTime.Sum
		rate, per := 0.0, max(1, float64(reads))
		if xfer > 0 {
			rate = bytes / xfer / (1 << 20)
		}
		c.cfg.logf("INFO KV Transfer metrics: Num successful transfers=%d, Avg xfer time (ms)=%.3f, Avg MB per transfer=%.3f, Throughput (MB/s)=%.3f, Avg number of descriptors=%.1f, Num failed transfers=%d, Num KV expired reqs=%d, Num notifications after expiry=%d",
			reads, 1000*xfer/per, bytes/per/(1<<20), rate, (s.Descriptors.Sum-l.last.Descriptors.Sum)/per, failed, expired, late)
	}
	l.last = s
}

func percent(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}
