package engine

import (
	"testing"
	"testing/synctest"
	"time"
)

// pinned reads a node's finished requests that hold blocks, and how many blocks.
func pinned(n *node) [2]int {
	synctest.Wait()
	s := n.Snapshot()
	return [2]int{s.Pins, s.Blocks.Pinned}
}

func TestPLease(t *testing.T) {
	t.Parallel()
	onPair(t, func(t *testing.T, x *pair) {
		prompt := ids(1, 600)
		a := x.p.run(prompt, 1, nullForm)
		equal(t, "after P's finish", pinned(x.p), [2]int{1, 5})
		time.Sleep(29 * time.Second)
		equal(t, "after 29 s", pinned(x.p), [2]int{1, 5})
		x.d.run(prompt, 4, string(a.Params))
		equal(t, "after D's notification", pinned(x.p), [2]int{0, 0})
		equal(t, "expired", x.p.Snapshot().KVExpired, 0)

		x.p.run(ids(2, 600), 1, nullForm)
		time.Sleep(30 * time.Second)
		equal(t, "after the lease", pinned(x.p), [2]int{0, 0})
		equal(t, "expired", x.p.Snapshot().KVExpired, 1)
		equal(t, "P's log", x.p.log.count("which were retrieved by 0 remote worker(s) before lease expired"), 1)
	})
}

func TestDRetains(t *testing.T) {
	t.Parallel()
	prompt := ids(3, 600)
	params := func(x *pair) string { return string(x.p.run(prompt, 1, nullForm).Params) }
	for name, c := range map[string]struct {
		play   func(x *pair)
		pinned [2]int // on D
	}{
		"length":        {func(x *pair) { x.d.run(prompt, 40, params(x)) }, [2]int{1, 5}},
		"no params":     {func(x *pair) { x.d.run(prompt, 40, "") }, [2]int{0, 0}},
		"empty params":  {func(x *pair) { x.d.run(prompt, 40, "{}") }, [2]int{0, 0}},
		"null params":   {func(x *pair) { x.d.run(prompt, 40, "null") }, [2]int{0, 0}},
		"params missed": {func(x *pair) { r := x.d.request(prompt, 40, params(x)); r.DropParams = true; x.d.do(r) }, [2]int{0, 0}},
		"stop token": {func(x *pair) {
			first := cold(x.t, prompt, 3)
			r := x.d.request(prompt, 40, params(x))
			r.StopTokenIDs = first[2:]
			got := x.d.do(r)
			equal(x.t, "stop token", *got.StopToken, first[2])
			equal(x.t, "finish", got.Finish, FinishStop)
		}, [2]int{1, 5}},
		"stop string or disconnect": {func(x *pair) {
			r := x.d.request(prompt, 400, params(x))
			ch, err := x.d.Submit(r)
			if err != nil {
				x.t.Fatal(err)
			}
			<-ch
			x.d.Abort(r.ID)
			got := collect(ch)
			equal(x.t, "finish", got.Finish, FinishAbort)
			equal(x.t, "params", string(got.Params), "")
		}, [2]int{0, 0}},
		"error": {func(x *pair) { x.d.run(prompt, 40, set(x.t, []byte(params(x)), "remote_engine_id", "gone")) }, [2]int{0, 0}},
		"n=2": {func(x *pair) {
			a := params(x)
			x.d.run(prompt, 40, a)
			x.d.run(prompt, 40, a)
		}, [2]int{2, 6}}, // four blocks are shared
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cd := measured()
				cd.Faults.StepCost = time.Millisecond
				x := newPair(t, measured(), cd)
				c.play(x)
				equal(t, "pinned on D", pinned(x.d), c.pinned)
				time.Sleep(480 * time.Second)
				equal(t, "after the TTL", pinned(x.d), [2]int{0, 0})
				equal(t, "expired", int(x.d.Snapshot().KVExpired), c.pinned[0])
				equal(t, "tracked", x.d.Snapshot().Tracked, 0)
			})
		})
	}
}

// TestRefusedBeforeAdmission: D never admitted the request, so it tells P at once.
func TestRefusedBeforeAdmission(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cd := measured()
		cd.MaxSeqs = 1
		cd.Faults.StepCost = time.Second
		x := newPair(t, measured(), cd)
		busy, err := x.d.Submit(x.d.request(ids(4, 100), 10, ""))
		if err != nil {
			t.Fatal(err)
		}
		a := x.p.run(ids(5, 600), 1, nullForm)
		r := x.d.request(ids(5, 600), 10, string(a.Params))
		ch, err := x.d.Submit(r)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		equal(t, "waiting", x.d.Snapshot().WaitingCapacity, 1)
		equal(t, "pinned on P", pinned(x.p), [2]int{1, 5})
		x.d.Abort(r.ID)
		equal(t, "finish", collect(ch).Finish, FinishAbort)
		collect(busy)
		equal(t, "pinned on P", pinned(x.p), [2]int{0, 0})
	})
}

func TestAppend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cd := measured()
		cd.KV = roleD()
		cd.KV.Lease = 480 * time.Second
		x := newPair(t, measured(), cd)
		// Turn 1 by the book, then 150 tokens more for D alone: it has 256 of 406 cached.
		prompt := ids(6, 241)
		_, d1 := x.turn(prompt, 40, nullForm)
		prompt = join(prompt, d1.ids, ids(7, 125))
		d2 := x.d.run(prompt, 20, `{"do_remote_decode":true}`)
		equal(t, "D's own cache", []int{len(prompt), d2.LocalHitTokens}, []int{406, 256})
		h := parseHandle(t, d2.Params)
		equal(t, "A-shaped", []bool{h.Prefill, h.Decode}, []bool{true, false})
		equal(t, "expiry", h.Expiry, 0)
		equal(t, "tokens", h.Tokens, 425)
		equal(t, "pinned, with the older B", pinned(x.d), [2]int{2, 5})

		time.Sleep(400 * time.Second)
		history := join(prompt, d2.ids)
		params := set(t, d2.Params, "do_remote_prefill", false, "do_remote_decode", true)
		next := join(history, ids(8, 70))
		o := x.call(next, params)
		equal(t, "next P call", o, outcome{FinishLength, right, 128, 297, 1})
		time.Sleep(80 * time.Second)
		equal(t, "after the older B's TTL", pinned(x.d), [2]int{0, 0})
	})
}

func TestReturn(t *testing.T) {
	t.Parallel()
	hangUp := func(x *pair, prompt []int32, params string) {
		x.t.Helper()
		r := x.p.request(prompt, 16, params)
		ch, err := x.p.Submit(r)
		if err != nil {
			x.t.Fatal(err)
		}
		if first := <-ch; len(first.Tokens) == 0 {
			x.t.Fatalf("first output %+v", first)
		}
		x.p.Abort(r.ID)
		equal(x.t, "finish", collect(ch).Finish, FinishAbort)
	}
	slowSteps := func() Config { c := measured(); c.Faults.StepCost = time.Millisecond; return c }
	t.Run("with B", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			x := newPair(t, slowSteps(), measured())
			history, b := x.conversation(9)
			time.Sleep(31 * time.Second)
			moved := source(x.p, func() { hangUp(x, history, string(b)) })
			equal(t, "the return", moved, sources{Local: 512, Pulled: 127, Computed: 1, Reads: 1, Blocks: 1, Descriptors: 30})
			equal(t, "pinned on P", pinned(x.p), [2]int{0, 0})
			equal(t, "pinned on D", pinned(x.d), [2]int{0, 0})
			equal(t, "the next turn", x.call(next(history), nullForm), outcome{FinishLength, right, 640, 0, 0})
		})
	})
	t.Run("without params", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			x := newPair(t, slowSteps(), measured())
			history, _ := x.conversation(9)
			time.Sleep(31 * time.Second)
			moved := source(x.p, func() { hangUp(x, history, "") })
			equal(t, "the return", moved, sources{Local: 512, Computed: 128})
			equal(t, "pinned on P", pinned(x.p), [2]int{0, 0})
			equal(t, "pinned on D", pinned(x.d), [2]int{1, 5})
			equal(t, "the next turn", x.call(next(history), nullForm), outcome{FinishLength, right, 640, 0, 1})
		})
	})
	t.Run("finished", func(t *testing.T) {
		t.Parallel()
		onPair(t, func(t *testing.T, x *pair) {
			history, b := x.conversation(9)
			x.p.run(history, 1, string(b))
			equal(t, "pinned on P, for nobody", pinned(x.p), [2]int{1, 5})
			time.Sleep(30 * time.Second)
			equal(t, "after the lease", pinned(x.p), [2]int{0, 0})
		})
	})
	t.Run("five in a row", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			x := newPair(t, slowSteps(), measured())
			for i := range 5 {
				history, b := x.conversation(50 + i)
				hangUp(x, history, string(b))
			}
			equal(t, "pinned on P", pinned(x.p), [2]int{0, 0})
			equal(t, "pinned on D", pinned(x.d), [2]int{0, 0})
		})
	})
}

// TestReleaseUnread: a P call with B, no tokens to pull and any prompt frees D's blocks.
func TestReleaseUnread(t *testing.T) {
	t.Parallel()
	onPair(t, func(t *testing.T, x *pair) {
		_, b := x.conversation(10)
		equal(t, "pinned on D", pinned(x.d), [2]int{1, 5})
		x.p.run([]int32{1, 2, 3}, 1, set(t, b, "remote_num_tokens", 0))
		equal(t, "pinned on D", pinned(x.d), [2]int{0, 0})
		equal(t, "READs", x.p.Snapshot().BytesTransferred.Count, 0)
	})
}

// TestHeartbeats: a D that waits for a slow link renews P's lease; when D dies, the lease runs out.
func TestHeartbeats(t *testing.T) {
	t.Parallel()
	slow := func() Config { c := measured(); c.Faults.LinkLatency = 100 * time.Second; return c }
	t.Run("renew", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			x := newPair(t, measured(), slow())
			prompt := ids(11, 600)
			a := x.p.run(prompt, 1, nullForm)
			got := x.d.run(prompt, 4, string(a.Params))
			equal(t, "reply", got.ids, cold(t, prompt, 4))
			s := x.p.Snapshot()
			equal(t, "expired, unrecognized", []uint64{s.KVExpired, s.NotificationsAfterExpiry}, []uint64{0, 0})
			equal(t, "pinned on P", pinned(x.p), [2]int{0, 0})
		})
	})
	t.Run("D dies", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			x := newPair(t, measured(), slow())
			prompt := ids(12, 600)
			a := x.p.run(prompt, 1, nullForm)
			ch, err := x.d.Submit(x.d.request(prompt, 4, string(a.Params)))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(52 * time.Second) // heartbeats every 5 s until now: the lease ends 20 s after the last
			equal(t, "pinned on P", pinned(x.p), [2]int{1, 5})
			equal(t, "fetch", x.d.Snapshot().FetchInProgress, 1)
			x.d.Kill()
			equal(t, "D's request", collect(ch).Err, ErrKilled)
			time.Sleep(17 * time.Second)
			equal(t, "pinned on P", pinned(x.p), [2]int{1, 5})
			time.Sleep(2 * time.Second)
			equal(t, "pinned on P", pinned(x.p), [2]int{0, 0})
			equal(t, "expired", x.p.Snapshot().KVExpired, 1)
		})
	})
	t.Run("a comma in an id breaks them", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			x := newPair(t, measured(), slow())
			prompt := ids(13, 600)
			r := x.p.request(prompt, 1, nullForm)
			r.ID = "cmpl-a,b"
			a := x.p.do(r)
			x.d.run(prompt, 4, string(a.Params))
			equal(t, "expired", x.p.Snapshot().KVExpired, 1)
		})
	})
}

// TestOldReaper: up to 0.30 the reaper stops at the first live entry, so a long TTL in front holds up
// shorter leases behind it.
func TestOldReaper(t *testing.T) {
	t.Parallel()
	for version, want := range map[string][2]int{"0.30.0": {2, 10}, "0.31.0": {1, 5}} {
		synctest.Test(t, func(t *testing.T) {
			c := measured()
			c.Version, c.KV = version, roleD()
			d := startNode(t, newNetwork(), c)
			d.run(ids(14, 600), 1, `{"do_remote_decode":true}`)
			d.mu.Lock()
			d.core.pins[0].deadline += 450 * time.Second // as long as a TTL
			d.mu.Unlock()
			d.run(ids(15, 600), 1, `{"do_remote_decode":true}`)
			time.Sleep(31 * time.Second)
			equal(t, version, pinned(d), want)
			time.Sleep(450 * time.Second)
			equal(t, version, pinned(d), [2]int{0, 0})
		})
	}
}

// TestAbortWhileReading: the blocks of a parked request stay until its READ has ended.
func TestAbortWhileReading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cp := measured()
		cp.Faults.LinkLatency = 10 * time.Second
		x := newPair(t, cp, measured())
		history, b := x.conversation(16)
		time.Sleep(31 * time.Second)
		r := x.p.request(next(history), 8, string(b))
		ch, err := x.p.Submit(r)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		x.p.Abort(r.ID)
		equal(t, "finish", collect(ch).Finish, FinishAbort)
		s := x.p.Snapshot()
		equal(t, "parked, deferred", []int{s.Blocks.Parked, s.WaitingDeferred}, []int{5, 0})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		equal(t, "parked after the READ", x.p.Snapshot().Blocks.Parked, 0)
		equal(t, "pinned on D", pinned(x.d), [2]int{0, 0})
	})
}

// TestEOS: under asynchronous scheduling an early EOS counts as computed, one at the limit does not.
func TestEOS(t *testing.T) {
	t.Parallel()
	prompt := ids(17, 600)
	for name, c := range map[string]struct {
		maxTokens int
		faults    Faults
		tokens    int
	}{
		"early":                 {40, Faults{}, 603},
		"early, sync":           {40, Faults{SyncScheduling: true}, 602},
		"at the limit":          {3, Faults{}, 602},
		"early, 4 draft tokens": {40, Faults{DraftTokens: 4}, 607},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cd := measured()
				cd.Faults = c.faults
				x := newPair(t, measured(), cd)
				a := x.p.run(prompt, 1, nullForm)
				r := x.d.request(prompt, c.maxTokens, string(a.Params))
				r.StopTokenIDs = cold(t, prompt, 3)[2:]
				d := x.d.do(r)
				equal(t, "finish, reply", [2]any{d.Finish, len(d.ids)}, [2]any{FinishStop, 3})
				equal(t, "tokens of B", parseHandle(t, d.Params).Tokens, c.tokens)
				if c.faults.DraftTokens == 0 {
					synctest.Wait() // the step in flight
					equal(t, "all of B is right", x.call(next(join(prompt, d.ids)), string(d.Params)).Right, true)
				}
			})
		})
	}
	t.Run("completes a block", func(t *testing.T) {
		t.Parallel()
		onPair(t, func(t *testing.T, x *pair) {
			prompt := ids(18, 637)
			a := x.p.run(prompt, 1, nullForm)
			r := x.d.request(prompt, 40, string(a.Params))
			r.StopTokenIDs = cold(t, prompt, 3)[2:]
			d := x.d.do(r)
			synctest.Wait()
			h := parseHandle(t, d.Params)
			equal(t, "tokens and blocks of B", []int{h.Tokens, len(h.Blocks[0])}, []int{640, 5})
			history := join(prompt, d.ids)
			got := x.d.run(next(history), 8, "")
			equal(t, "D's own cache", got.LocalHitTokens, 640)
			equal(t, "reply", got.ids, cold(t, next(history), 8))
		})
	})
}

// TestReregister: after sleep and wake a handle's newer generation makes P shake hands again; without
// the key P keeps its stale registration and fails.
func TestReregister(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dropKey bool
		want    FinishReason
	}{"generation in the handle": {false, FinishLength}, "key dropped": {true, FinishError}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onPair(t, func(t *testing.T, x *pair) {
				h, b := x.conversation(19)
				x.call(next(h), string(b))
				x.d.Reregister()
				prompt := ids(20, 600)
				d := x.d.run(prompt, 40, `{"do_remote_prefill":false,"do_remote_decode":true}`)
				params := set(t, d.Params, "do_remote_prefill", false, "do_remote_decode", true)
				if c.dropKey {
					params = set(t, []byte(params), "remote_registration_generation", nil)
				}
				equal(t, "finish", x.call(next(join(prompt, d.ids)), params).Finish, c.want)
			})
		})
	}
}
