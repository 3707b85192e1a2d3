package engine

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestSideChannelFaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil   func(x *pair)
		seconds float64
		want    FinishReason
	}{
		"closed before the handshake": {func(x *pair) { x.d.CloseSideChannel() }, 5, FinishError},
		"silent":                      {func(x *pair) { x.d.SetFaults(Faults{SilentSide: true}) }, 5, FinishError},
		"slow handshake":              {func(x *pair) { x.d.SetFaults(Faults{HandshakeDelay: 4 * time.Second}) }, 4, FinishLength},
		"too slow a handshake":        {func(x *pair) { x.d.SetFaults(Faults{HandshakeDelay: 6 * time.Second}) }, 5, FinishError},
		"next READ fails":             {func(x *pair) { x.p.SetFaults(Faults{FailReads: 1}) }, 0, FinishError},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onPair(t, func(t *testing.T, x *pair) {
				history, b := x.conversation(1)
				c.spoil(x)
				start := time.Now()
				equal(t, "finish", x.p.run(next(history), 8, string(b)).Finish, c.want)
				equal(t, "seconds", time.Since(start).Seconds(), c.seconds)
				equal(t, "retry", x.p.run(next(history), 8, nullForm).Finish, FinishLength)
			})
		})
	}
}

// TestHandshakeWaits: a peer that starts to listen within the timeout is still found.
func TestHandshakeWaits(t *testing.T) {
	t.Parallel()
	onPair(t, func(t *testing.T, x *pair) {
		cd := measured()
		cd.KV, cd.SideChannelListen = roleD(), "127.0.0.1:7000"
		cd.KV.EngineID = "late"
		history, b := x.conversation(1)
		params := set(t, b, "remote_engine_id", "late", "remote_port", 7000)
		ch, err := x.p.Submit(x.p.request(next(history), 8, params))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		startNode(t, x.net, cd)
		got := collect(ch)
		equal(t, "finish, pulled", []any{got.Finish, got.PulledTokens}, []any{FinishLength, 127})
		equal(t, "wrong blocks", x.p.Snapshot().Misreads, 1)
	})
}

// TestStalePeers: with this fault P fails every transfer to an address whose engine was replaced.
func TestStalePeers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cp, cd := measured(), measured()
		cp.Faults.StalePeers = true
		cd.SideChannelListen = "127.0.0.1:5700"
		x := newPair(t, cp, cd)
		h, b := x.conversation(1)
		equal(t, "before", x.call(next(h), string(b)).Finish, FinishLength)
		x.d.Kill()
		cd.KV = roleD()
		x.d = startNode(t, x.net, cd)
		for range 2 {
			h, b = x.conversation(2)
			equal(t, "after", x.call(next(h), string(b)).Finish, FinishError)
		}
	})
}

// TestLazyWake: an idle engine that recovers from a failed load sleeps until the next request.
func TestLazyWake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cd := measured()
		cd.KV = roleD()
		cd.KV.FailurePolicy = "recompute"
		cd.Faults.LazyWake = true
		x := newPair(t, measured(), cd)
		prompt := ids(1, 300)
		a := x.p.run(prompt, 1, nullForm)
		x.p.Kill()
		ch, err := x.d.Submit(x.d.request(prompt, 8, string(a.Params)))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		equal(t, "outputs while idle", len(ch), 0)
		x.d.run(ids(2, 20), 1, "")
		equal(t, "finish", collect(ch).Finish, FinishLength)
	})
}

// TestClockJump: a D whose clock jumps ahead frees early; P's guard holds only if it was told after.
func TestClockJump(t *testing.T) {
	t.Parallel()
	onPair(t, func(t *testing.T, x *pair) {
		x.conversation(1)
		x.d.SetFaults(Faults{ClockEpoch: time.Hour})
		equal(t, "pinned on D", pinned(x.d), [2]int{0, 0})
		h, b := x.conversation(2) // D has read P; P has not met D yet
		equal(t, "offset of the new clock", x.call(next(h), string(b)), outcome{FinishLength, right, 512, 127, 0})
	})
}

func TestCloseAndKill(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(e *Engine)
		want FinishReason
		err  error
		next error
	}{
		"close": {func(e *Engine) { _ = e.Close() }, FinishAbort, nil, ErrClosed},
		"kill":  {func(e *Engine) { e.Kill() }, FinishError, ErrKilled, ErrKilled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cp := measured()
				cp.Faults.LinkLatency, cp.Faults.StepCost, cp.MaxSeqs = time.Hour, time.Second, 1
				x := newPair(t, cp, measured())
				history, b := x.conversation(1)
				var chans []<-chan Output
				for _, r := range []*Request{
					x.p.request(next(history), 8, string(b)), x.p.request(ids(2, 100), 100, ""), x.p.request(ids(3, 100), 100, ""),
				} {
					ch, err := x.p.Submit(r)
					if err != nil {
						t.Fatal(err)
					}
					chans = append(chans, ch)
				}
				time.Sleep(10 * time.Second)
				c.end(x.p.Engine)
				for _, ch := range chans { // parked, running, waiting
					got := collect(ch)
					equal(t, "finish", got.Finish, c.want)
					equal(t, "error", errors.Is(got.Err, c.err), true)
				}
				_, err := x.p.Submit(x.p.request(ids(2, 10), 1, ""))
				equal(t, "submit", errors.Is(err, c.next), true)
				x.p.Abort("whatever")
				equal(t, "D still holds its blocks", pinned(x.d), [2]int{1, 5})
			})
		})
	}
}

func TestResetPrefixCache(t *testing.T) {
	t.Parallel()
	onPair(t, func(t *testing.T, x *pair) {
		history, b := x.conversation(1)
		equal(t, "while pinned", x.d.ResetPrefixCache(), false)
		x.call(next(history), string(b))
		synctest.Wait()
		equal(t, "free", x.d.ResetPrefixCache(), true)
		equal(t, "cached", x.d.Snapshot().Blocks.Cached, 0)
	})
}

func TestStatLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cp := measured()
		cp.Faults.LinkLatency = 25 * time.Second
		x := newPair(t, cp, measured())
		history, b := x.conversation(1)
		x.call(next(history), string(b))
		time.Sleep(time.Minute)
		synctest.Wait()
		equal(t, "while parked", x.p.log.count("Waiting: 1 reqs, Deferred: 1 reqs, KV fetch: 0 waiting to start, 1 in progress"), 2)
		equal(t, "the READ", x.p.log.count("KV Transfer metrics: Num successful transfers=1,"), 1)
	})
}

// TestCounters compares with the relations that the recorded /metrics show.
func TestCounters(t *testing.T) {
	t.Parallel()
	onPair(t, func(t *testing.T, x *pair) {
		h, b := x.conversation(1)                              // P: 600
		x.call(next(h), set(t, b, "remote_engine_id", "gone")) // 840 failed, 127 promised
		x.call(next(h), string(b))                             // 840: 512 + 127
		x.p.run(ids(9, 100), 4, "")                            // 100
		type counters struct {
			Prompt, Compute, Hit, External, Cached, Queries, Hits, ExtQueries, ExtHits, Length, Error, Generated uint64
			Finished, PrefillComputed                                                                            float64
		}
		s := x.p.Snapshot()
		got := counters{
			s.PromptTokens, s.PromptLocalCompute, s.PromptLocalHit, s.PromptExternal, s.PromptCached, s.PrefixQueries, s.PrefixHits,
			s.ExternalQueries, s.ExternalHits, s.FinishedLength, s.FinishedError, s.GenerationTokens,
			float64(s.E2E.Count), s.PrefillComputed.Sum,
		}
		equal(t, "counters", got, counters{
			Prompt: 1540, Compute: 901, Hit: 512, External: 127, Cached: 639, // of requests that did not fail
			Queries: 2380, Hits: 1024, ExtQueries: 1356, ExtHits: 254, // promises of all
			Length: 3, Error: 1, Generated: 13, Finished: 4, PrefillComputed: 901 + 840,
		})
	})
}
