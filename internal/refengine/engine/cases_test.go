package engine

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// The cases are what a P can be sent, numbered as in docs/engine.md. "D pinned" is checked right after
// the P call: a handle that was spent leaves nothing pinned on D, others wait for the TTL.

// next returns a prompt that goes on from history, 840 tokens for a history of 640.
func next(history []int32) []int32 { return join(history, ids(77, 200)) }

// outcome is what a P call with a handle led to.
type outcome struct {
	Finish        FinishReason
	Right         bool // its tokens are those of a cold engine
	Local, Pulled int
	PinnedOnD     int // requests
}

const right, wrong = true, false

// call sends P a request and compares its 8-token continuation with a cold engine's.
func (x *pair) call(prompt []int32, params string) outcome {
	x.t.Helper()
	return x.callWith(x.p.request(prompt, 8, params))
}

func (x *pair) callWith(r *Request) outcome {
	x.t.Helper()
	before := x.p.Snapshot()
	got := x.p.do(r)
	synctest.Wait()
	after := x.p.Snapshot()
	o := outcome{Finish: got.Finish, Local: got.LocalHitTokens, Pulled: got.PulledTokens, PinnedOnD: x.d.Snapshot().Pins}
	if got.Finish == FinishLength {
		o.Right = same(got.ids, cold(x.t, r.Prompt, 8))
		noticed := after.Misreads+after.PoisonedHits > before.Misreads+before.PoisonedHits
		if noticed == o.Right && r.Salt == "" {
			x.t.Errorf("right tokens: %v, a wrong READ or poisoned hit counted: %v", o.Right, noticed)
		}
	} else if got.Err == nil {
		x.t.Errorf("finish %q without an error", got.Finish)
	}
	return o
}

func same(a, b []int32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// chill empties P's prefix cache. P's own leases must have run out.
func (x *pair) chill() {
	x.t.Helper()
	if !x.p.ResetPrefixCache() {
		x.t.Fatal("P still holds blocks")
	}
}

func TestCase01WholeHandle(t *testing.T) {
	t.Parallel()
	t.Run("cold", func(t *testing.T) {
		t.Parallel()
		onPair(t, func(t *testing.T, x *pair) {
			history, b := x.conversation(1)
			x.chill()
			var o outcome
			moved := source(x.p, func() { o = x.call(next(history), string(b)) })
			equal(t, "outcome", o, outcome{FinishLength, right, 0, 639, 0})
			equal(t, "tokens by source", moved, sources{Local: 0, Pulled: 639, Computed: 201, Reads: 1, Blocks: 5, Descriptors: 30})
		})
	})
	t.Run("warm", func(t *testing.T) {
		t.Parallel()
		onPair(t, func(t *testing.T, x *pair) {
			history, b := x.conversation(1)
			var o outcome
			moved := source(x.p, func() { o = x.call(next(history), string(b)) })
			equal(t, "outcome", o, outcome{FinishLength, right, 512, 127, 0})
			equal(t, "tokens by source", moved, sources{Local: 512, Pulled: 127, Computed: 201, Reads: 1, Blocks: 1, Descriptors: 30})
		})
	})
}

func TestCase02BelowThreshold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prompt, reply, threshold int
		want                     outcome
	}{
		"63 of 64": {560, 16, 64, outcome{FinishLength, right, 512, 0, 0}},
		"64 of 64": {560, 17, 64, outcome{FinishLength, right, 512, 64, 0}},
		"always":   {560, 2, 0, outcome{FinishLength, right, 512, 49, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cp := measured()
				cp.KV = roleP()
				cp.KV.Threshold = c.threshold
				x := newPair(t, cp, measured())
				prompt := ids(2, c.prompt)
				_, d := x.turn(prompt, c.reply, nullForm)
				equal(t, "outcome", x.call(next(join(prompt, d.ids)), string(d.Params)), c.want)
			})
		})
	}
	t.Run("P has more than B", func(t *testing.T) {
		t.Parallel()
		onPair(t, func(t *testing.T, x *pair) {
			history, b := x.conversation(3)
			x.p.run(next(history), 1, "")
			equal(t, "outcome", x.call(next(history), string(b)), outcome{FinishLength, right, 768, 0, 0})
		})
	})
}

func TestCase03PromptLogprobs(t *testing.T) {
	t.Parallel()
	onPair(t, func(t *testing.T, x *pair) {
		history, b := x.conversation(4)
		r := x.p.request(next(history), 8, string(b))
		r.PromptLogprobs = 0
		equal(t, "outcome", x.callWith(r), outcome{FinishLength, right, 0, 0, 0})
	})
}

func TestCase04NoNumber(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]any{"missing": nil, "null": jsonNull{}, "zero": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onPair(t, func(t *testing.T, x *pair) {
				history, b := x.conversation(5)
				o := x.call(next(history), set(t, b, "remote_num_tokens", value))
				equal(t, "outcome", o, outcome{FinishLength, right, 512, 0, 0})
			})
		})
	}
}

// jsonNull writes null.
type jsonNull struct{}

func (jsonNull) MarshalJSON() ([]byte, error) { return []byte("null"), nil }

func TestCase05NoListOrKey(t *testing.T) {
	t.Parallel()
	for name, kv := range map[string][]any{
		"list null":  {"remote_block_ids", jsonNull{}},
		"list empty": {"remote_block_ids", []int{}},
		"no engine":  {"remote_engine_id", nil},
		"no request": {"remote_request_id", nil},
		"no host":    {"remote_host", nil},
		"no port":    {"remote_port", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onPair(t, func(t *testing.T, x *pair) {
				history, b := x.conversation(6)
				equal(t, "outcome", x.call(next(history), set(t, b, kv...)), outcome{FinishLength, right, 512, 0, 1})
				warned := 1
				if kv[0] == "remote_block_ids" {
					warned = 0
				}
				equal(t, "warnings", x.p.log.count("Got invalid KVTransferParams"), warned)
				time.Sleep(480 * time.Second)
				synctest.Wait()
				equal(t, "pinned on D after the TTL", x.d.Snapshot().Pins, 0)
			})
		})
	}
}

func TestCase06Cut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ k, blocks int }{{384, 3}, {128, 1}, {300, 3}, {639, 5}} {
		onPair(t, func(t *testing.T, x *pair) {
			history, b := x.conversation(7)
			x.chill()
			list := parseHandle(t, b).Blocks[0]
			params := set(t, b, "remote_num_tokens", c.k, "remote_block_ids", [][]int{list[:c.blocks]})
			equal(t, "outcome", x.call(next(history), params), outcome{FinishLength, right, 0, c.k, 0})
		})
	}
}

func TestCase07NumberCutOnly(t *testing.T) {
	t.Parallel()
	onPair(t, func(t *testing.T, x *pair) {
		history, b := x.conversation(8)
		x.chill()
		equal(t, "outcome", x.call(next(history), set(t, b, "remote_num_tokens", 384)), outcome{FinishLength, wrong, 0, 384, 0})
	})
}

func TestCase08ListTooShort(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(h handle) []any{
		"list cut only":    func(h handle) []any { return []any{"remote_block_ids", [][]int{h.Blocks[0][:3]}} },
		"empty group":      func(handle) []any { return []any{"remote_block_ids", [][]int{{}}} },
		"number too large": func(handle) []any { return []any{"remote_num_tokens", 800} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onPair(t, func(t *testing.T, x *pair) {
				history, b := x.conversation(9)
				x.chill()
				params := set(t, b, change(parseHandle(t, b))...)
				got := x.p.run(next(history), 8, params)
				synctest.Wait()
				if !errors.Is(got.Err, ErrDead) || x.p.Dead() == nil {
					t.Errorf("reply's error %v, engine's %v: want a dead engine", got.Err, x.p.Dead())
				}
				if _, err := x.p.Submit(x.p.request(history, 1, "")); !errors.Is(err, ErrDead) {
					t.Errorf("a dead engine answers submit with %v", err)
				}
			})
		})
	}
}

func TestCase09ShortPrompt(t *testing.T) {
	t.Parallel()
	onPair(t, func(t *testing.T, x *pair) {
		history, b := x.conversation(10)
		prompt := join(history[:300], ids(55, 100))
		var o outcome
		moved := source(x.p, func() { o = x.call(prompt, string(b)) })
		equal(t, "outcome", o, outcome{FinishLength, wrong, 256, 144, 0})
		equal(t, "tokens by source", moved, sources{Local: 256, Pulled: 144, Computed: 0, Reads: 1, Blocks: 2, Descriptors: 30})
	})
}

func TestCase10OtherTokens(t *testing.T) {
	t.Parallel()
	onPair(t, func(t *testing.T, x *pair) {
		_, b := x.conversation(11)
		x.chill()
		prompt := ids(99, 840)
		equal(t, "outcome", x.call(prompt, string(b)), outcome{FinishLength, wrong, 0, 639, 0})
		// The wrong blocks are now cached under the right hashes.
		equal(t, "the same prompt, null form", x.call(prompt, nullForm), outcome{FinishLength, wrong, 768, 0, 0})
	})
}

func TestCase11OtherSalt(t *testing.T) {
	t.Parallel()
	onPair(t, func(t *testing.T, x *pair) {
		victim := ids(12, 600)
		a := x.p.request(victim, 1, nullForm)
		a.Salt = "victim"
		pa := x.p.do(a)
		d := x.d.request(victim, 40, string(pa.Params))
		d.Salt = "victim"
		rd := x.d.do(d)
		thief := x.p.request(join(ids(13, 640), ids(14, 200)), 8, string(rd.Params))
		thief.Salt = "thief"
		equal(t, "outcome", x.callWith(thief), outcome{FinishLength, wrong, 0, 639, 0})
	})
}

func TestCase12WrongRequestID(t *testing.T) {
	t.Parallel()
	onPair(t, func(t *testing.T, x *pair) {
		history, b := x.conversation(15)
		o := x.call(next(history), set(t, b, "remote_request_id", "cmpl-gone"))
		equal(t, "outcome", o, outcome{FinishLength, right, 512, 127, 1})
		equal(t, "D's complaints", x.d.log.count("Potentially invalid KV blocks for unrecognized request cmpl-gone"), 1)
		equal(t, "notifications after expiry", x.d.Snapshot().NotificationsAfterExpiry, 1)
	})
}

func TestCase13HandleTwice(t *testing.T) {
	t.Parallel()
	onPair(t, func(t *testing.T, x *pair) {
		history, b := x.conversation(16)
		prompt := next(history)
		equal(t, "first", x.call(prompt, string(b)), outcome{FinishLength, right, 512, 127, 0})
		equal(t, "second", x.call(prompt, string(b)), outcome{FinishLength, right, 768, 0, 0})
		equal(t, "D's complaints", x.d.log.count("Potentially invalid KV blocks for unrecognized request"), 1)
	})
}

func TestCase14BlocksReused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		small := measured()
		small.Blocks, small.MaxModelLen = 9, 1024
		x := newPair(t, measured(), small)
		history, b := x.conversation(17)
		equal(t, "first", x.call(next(history), string(b)), outcome{FinishLength, right, 512, 127, 0})
		time.Sleep(31 * time.Second) // P's lease
		synctest.Wait()
		x.chill()
		x.d.run(ids(18, 1000), 2, "") // takes all of D's blocks
		equal(t, "second", x.call(next(history), string(b)), outcome{FinishLength, wrong, 0, 639, 0})
	})
}

func TestCase15Expired(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		age  time.Duration
		want outcome
		left int // pinned on D: it is not told, but may have reaped the blocks itself
	}{
		"in time":        {474 * time.Second, outcome{FinishLength, right, 512, 127, 0}, 0},
		"within 5 s":     {475 * time.Second, outcome{FinishError, false, 512, 127, 1}, 1},
		"after the TTL":  {481 * time.Second, outcome{FinishError, false, 512, 127, 0}, 0},
		"ten minutes on": {600 * time.Second, outcome{FinishError, false, 512, 127, 0}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onPair(t, func(t *testing.T, x *pair) {
				history, b := x.conversation(19)
				time.Sleep(c.age)
				before := x.p.Snapshot()
				equal(t, "outcome", x.call(next(history), string(b)), c.want)
				s := x.p.Snapshot()
				if c.want.Finish == FinishError {
					equal(t, "expired on P", s.KVExpired-before.KVExpired, 1)
					equal(t, "failed transfers", s.FailedTransfers, 0)
					equal(t, "P's log", x.p.log.count("Declining expired remote read for"), 1)
					equal(t, "P's log", x.p.log.count("Failing 1 request(s) due to KV load failure (failure_policy=fail, 127 tokens affected)"), 1)
				}
				equal(t, "P stays healthy", x.call(next(history), nullForm).Right, true)
			})
		})
	}
}

func TestCase16ExpiryDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		small := measured()
		small.Blocks, small.MaxModelLen = 9, 1024
		x := newPair(t, measured(), small)
		history, b := x.conversation(20)
		x.chill()
		time.Sleep(481 * time.Second)
		x.d.run(ids(21, 1000), 2, "")
		params := set(t, b, "remote_blocks_expiry_time", nil)
		equal(t, "outcome", x.call(next(history), params), outcome{FinishLength, wrong, 0, 639, 0})
		equal(t, "D's complaints", x.d.log.count("Potentially invalid KV blocks for unrecognized request"), 1)
	})
}

func TestCase17UnknownEngine(t *testing.T) {
	t.Parallel()
	for version, failed := range map[string]uint64{"0.33.0": 1, "0.31.0": 1, "0.30.0": 0} {
		synctest.Test(t, func(t *testing.T) {
			cfg := measured()
			cfg.Version = version
			x := newPair(t, cfg, cfg)
			history, b := x.conversation(22)
			o := x.call(next(history), set(t, b, "remote_engine_id", "somebody-else"))
			equal(t, "outcome", o, outcome{FinishError, false, 512, 127, 1})
			equal(t, "P's log", x.p.log.count("Remote NIXL agent engine ID mismatch"), 1)
			equal(t, "P's log", x.p.log.count("NIXL transfer failure: handshake_failed"), 1)
			equal(t, "failed transfers of "+version, x.p.Snapshot().FailedTransfers, failed)
			equal(t, "retry", x.call(next(history), nullForm), outcome{FinishLength, right, 512, 0, 1})
		})
	}
}

func TestCase18NobodyListens(t *testing.T) {
	t.Parallel()
	onPair(t, func(t *testing.T, x *pair) {
		history, b := x.conversation(23)
		start := time.Now()
		o := x.call(next(history), set(t, b, "remote_port", 9))
		equal(t, "outcome", o, outcome{FinishError, false, 512, 127, 1})
		equal(t, "seconds", int(time.Since(start).Seconds()), 5)
		equal(t, "failed transfers", x.p.Snapshot().FailedTransfers, 1)
	})
}

func TestCase19KilledAfterHandshake(t *testing.T) {
	t.Parallel()
	onPair(t, func(t *testing.T, x *pair) {
		h1, b1 := x.conversation(24)
		h2, b2 := x.conversation(25)
		equal(t, "first", x.call(next(h1), string(b1)), outcome{FinishLength, right, 512, 127, 1})
		x.d.Kill()
		start := time.Now()
		got := x.p.run(next(h2), 8, string(b2))
		equal(t, "finish", got.Finish, FinishError)
		equal(t, "at once", time.Since(start), 0)
		equal(t, "failed transfers", x.p.Snapshot().FailedTransfers, 1)
		equal(t, "retry", same(x.p.run(next(h2), 8, nullForm).ids, cold(t, next(h2), 8)), true)
	})
}

func TestCase20Restarted(t *testing.T) {
	t.Parallel()
	restart := func(t *testing.T, version, oldID, newID string) (x *pair, history []int32, b []byte) {
		cp, cd := measured(), measured()
		cp.Version, cd.Version = version, version
		cd.SideChannelListen = "127.0.0.1:5700"
		cd.KV = roleD()
		cd.KV.EngineID = oldID
		x = newPair(t, cp, cd)
		h1, b1 := x.conversation(26)
		x.p.run(next(h1), 1, string(b1)) // a handshake
		history, b = x.conversation(27)
		x.d.Kill()
		cd.KV = roleD()
		cd.KV.EngineID = newID
		x.d = startNode(t, x.net, cd)
		return x, history, b
	}
	t.Run("new id", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			x, h, b := restart(t, "0.33.0", "", "")
			equal(t, "old handle", x.p.run(next(h), 8, string(b)).Finish, FinishError)
			h, b = x.conversation(28)
			equal(t, "new handle", x.call(next(h), string(b)), outcome{FinishLength, right, 512, 127, 0})
		})
	})
	t.Run("same id", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			x, h, b := restart(t, "0.33.0", "decode-0", "decode-0")
			equal(t, "old handle", x.p.run(next(h), 8, string(b)).Finish, FinishError)
			equal(t, "P's log", x.p.log.count("Local NIXL metadata for remote engine decode-0 was invalidated"), 1)
			h, b = x.conversation(28)
			equal(t, "new handle", x.call(next(h), string(b)), outcome{FinishLength, right, 512, 127, 0})
			equal(t, "P's log", x.p.log.count("Released NIXL state for replaced or locally invalid remote engine decode-0"), 1)
		})
	})
	t.Run("same id, 0.31", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			x, _, _ := restart(t, "0.31.0", "decode-0", "decode-0")
			for range 3 {
				h, b := x.conversation(28)
				equal(t, "new handle", x.call(next(h), string(b)).Finish, FinishError)
				time.Sleep(10 * time.Minute)
			}
			time.Sleep(time.Hour) // engine_ttl
			h, b := x.conversation(29)
			equal(t, "after engine_ttl", x.call(next(h), string(b)), outcome{FinishLength, right, 512, 127, 0})
		})
	})
}
