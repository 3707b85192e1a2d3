package engine

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// hang submits a request that is expected never to answer, gives up after 45 s and returns P's blocks
// and queue before and after that.
func (x *pair) hang(prompt []int32, params string) (waiting, afterwards Stats) {
	x.t.Helper()
	r := x.p.request(prompt, 8, params)
	ch, err := x.p.Submit(r)
	if err != nil {
		x.t.Fatal(err)
	}
	time.Sleep(45 * time.Second)
	synctest.Wait()
	if len(ch) > 0 {
		x.t.Fatalf("the request answered: %+v", <-ch)
	}
	waiting = x.p.Snapshot()
	x.p.Abort(r.ID)
	equal(x.t, "finish", collect(ch).Finish, FinishAbort)
	time.Sleep(time.Hour)
	synctest.Wait()
	return waiting, x.p.Snapshot()
}

// checkLeak checks what a hang looks like: parked and deferred, then gone from the queue but not from
// the pool, while other requests are fine.
func (x *pair) checkLeak(waiting, afterwards Stats, blocks int) {
	x.t.Helper()
	equal(x.t, "deferred", waiting.WaitingDeferred, 1)
	equal(x.t, "parked", waiting.Blocks.Parked, blocks)
	equal(x.t, "deferred after the abort", afterwards.WaitingDeferred, 0)
	equal(x.t, "parked for ever", afterwards.Blocks.Parked, blocks)
	prompt := ids(66, 300)
	equal(x.t, "another request", same(x.p.run(prompt, 8, "").ids, cold(x.t, prompt, 8)), true)
}

func TestCase21FlagOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		off := measured()
		off.KV = roleP()
		off.KV.Bidirectional = false
		x := newPair(t, off, measured())
		history, b := x.conversation(31)
		waiting, afterwards := x.hang(next(history), string(b))
		x.checkLeak(waiting, afterwards, 5)
		equal(t, "pulled", afterwards.BytesTransferred.Count, 0)
		equal(t, "promised", afterwards.ExternalHits, 127)
	})
}

func TestCase22Recompute(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		version string
		chill   bool // P has no local hit
		hangs   bool
	}{
		"0.33, warm": {"0.33.0", false, true},
		"0.33, cold": {"0.33.0", true, true},
		"0.29, warm": {"0.29.0", false, false},
		"0.29, cold": {"0.29.0", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cp, cd := measured(), measured()
				cp.Version, cd.Version = c.version, c.version
				cp.KV = roleP()
				cp.KV.FailurePolicy = "recompute"
				x := newPair(t, cp, cd)
				history, b := x.conversation(32)
				if c.chill {
					x.chill()
				}
				params := set(t, b, "remote_engine_id", "somebody-else")
				if c.hangs {
					waiting, afterwards := x.hang(next(history), params)
					x.checkLeak(waiting, afterwards, 5)
				} else {
					equal(t, "outcome", x.call(next(history), params), outcome{FinishLength, right, 512, 0, 1})
				}
				equal(t, "P's log", x.p.log.count("Recovered from KV load failure"), 1)
			})
		})
	}
	t.Run("D recovers", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			cd := measured()
			cd.KV = roleD()
			cd.KV.FailurePolicy = "recompute"
			x := newPair(t, measured(), cd)
			prompt := ids(33, 600)
			a := x.p.run(prompt, 1, nullForm)
			x.p.Kill()
			got := x.d.run(prompt, 8, string(a.Params))
			equal(t, "reply", got.ids, cold(t, prompt, 8))
			equal(t, "computed", x.d.Snapshot().PromptLocalCompute, 600)
		})
	})
}

func TestCase23AskedAgain(t *testing.T) {
	t.Parallel()
	t.Run("preempted, prefix cache off", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			cp := measured()
			cp.PrefixCaching = false
			cp.Blocks, cp.MaxModelLen = 13, 1280
			cp.Faults.StepCost = 10 * time.Millisecond // the READ is done within a step
			x := newPair(t, cp, measured())
			history, b := x.conversation(34)
			time.Sleep(31 * time.Second) // P's own lease: 12 blocks free
			other := x.p.request(ids(35, 600), 200, "")
			chOther, err := x.p.Submit(other) // 5 blocks, 7 in the end
			if err != nil {
				t.Fatal(err)
			}
			r := x.p.request(join(history, ids(36, 110)), 300, string(b)) // 6 blocks, 9 in the end
			ch, err := x.p.Submit(r)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "the other request", collect(chOther).Finish, FinishLength)
			time.Sleep(time.Minute)
			synctest.Wait()
			s := x.p.Snapshot()
			equal(t, "preemptions", s.Preemptions, 1)
			equal(t, "pulled once", s.BytesTransferred.Count, 1)
			equal(t, "deferred", s.WaitingDeferred, 1)
			x.p.Abort(r.ID)
			equal(t, "finish", collect(ch).Finish, FinishAbort)
			equal(t, "leaked", x.p.Snapshot().Blocks.Parked, 5)
		})
	})
	t.Run("buffer device cpu on a GPU", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			cp := measured()
			cp.KV = roleP()
			cp.KV.BufferDevice = "cpu"
			cp.Faults.LoadViaCPU = true
			x := newPair(t, cp, measured())
			history, b := x.conversation(37)
			waiting, afterwards := x.hang(next(history), string(b))
			x.checkLeak(waiting, afterwards, 5)
		})
	})
}

func TestCase24BadNumber(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]any{"string": "639", "float": rawJSON("300.0"), "list": []int{639}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onPair(t, func(t *testing.T, x *pair) {
				history, b := x.conversation(38)
				x.chill()
				params := set(t, b, "remote_num_tokens", value)

				x.p.SetFaults(Faults{DeathAs500: true})
				got := x.p.run(next(history), 8, params)
				equal(t, "finish", got.Finish, FinishError)
				equal(t, "dead", x.p.Dead(), nil)

				x.p.SetFaults(Faults{})
				got = x.p.run(next(history), 8, params)
				if !errors.Is(got.Err, ErrDead) || x.p.Dead() == nil {
					t.Errorf("reply's error %v, engine's %v: want a dead engine", got.Err, x.p.Dead())
				}
			})
		})
	}
	t.Run("a float beyond the prompt is not taken", func(t *testing.T) {
		t.Parallel()
		n := looseNumber{kind: looseFloat, f: 900}
		count, floating, err := n.pullable(840, 512)
		equal(t, "count", count, 328)
		equal(t, "floating", floating, false)
		equal(t, "error", err, nil)
	})
}

// rawJSON is a literal.
type rawJSON string

func (r rawJSON) MarshalJSON() ([]byte, error) { return []byte(r), nil }

func TestCase25RemotePrefillOnP(t *testing.T) {
	t.Parallel()
	t.Run("list too short for the prompt", func(t *testing.T) {
		t.Parallel()
		onPair(t, func(t *testing.T, x *pair) {
			history, b := x.conversation(39)
			x.chill()
			got := x.p.run(next(history), 8, set(t, b, "do_remote_prefill", true))
			equal(t, "error", errors.Is(got.Err, ErrDead), true)
		})
	})
	t.Run("list long enough", func(t *testing.T) {
		t.Parallel()
		onPair(t, func(t *testing.T, x *pair) {
			history, b := x.conversation(39)
			x.chill()
			prompt := join(history[:600], ids(40, 40)) // 5 blocks, as the list
			equal(t, "outcome", x.call(prompt, set(t, b, "do_remote_prefill", true)), outcome{FinishLength, wrong, 0, 640, 0})
		})
	})
	t.Run("no list", func(t *testing.T) {
		t.Parallel()
		onPair(t, func(t *testing.T, x *pair) {
			history, b := x.conversation(39)
			got := x.p.run(next(history), 8, set(t, b, "do_remote_prefill", true, "remote_block_ids", nil))
			equal(t, "error", errors.Is(got.Err, ErrDead), true)
		})
	})
	t.Run("a key missing", func(t *testing.T) {
		t.Parallel()
		onPair(t, func(t *testing.T, x *pair) {
			history, b := x.conversation(39)
			waiting, afterwards := x.hang(next(history), set(t, b, "do_remote_prefill", true, "remote_host", nil))
			x.checkLeak(waiting, afterwards, 7)
		})
	})
}

func TestCase26NoFlagsOnD(t *testing.T) {
	t.Parallel()
	for name, params := range map[string]string{
		"both false":       `{"do_remote_prefill":false,"do_remote_decode":false}`,
		"unknown key only": `{"prompt_token_ids":[1,2,3]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onPair(t, func(t *testing.T, x *pair) {
				prompt := ids(41, 600)
				d := x.d.run(prompt, 40, params)
				h := parseHandle(t, d.Params)
				equal(t, "tokens", h.Tokens, 639)
				equal(t, "a normal-looking B", []bool{h.Prefill, h.Decode}, []bool{false, true})
				o := x.call(next(join(prompt, d.ids)), string(d.Params))
				equal(t, "outcome", o, outcome{FinishLength, right, 0, 639, 1}) // the pull does not free it
				time.Sleep(24 * time.Hour)
				synctest.Wait()
				s := x.d.Snapshot()
				equal(t, "pinned for ever", []int{s.Pins, s.PinsForever, s.Blocks.Pinned}, []int{1, 1, 5})
			})
		})
	}
	t.Run("flag off", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			cd := measured()
			cd.KV = roleD()
			cd.KV.Bidirectional = false
			d := startNode(t, newNetwork(), cd)
			equal(t, "params", string(d.run(ids(41, 600), 40, `{"x":1}`).Params), "")
		})
	})
}

func TestCase27BlockOutOfRange(t *testing.T) {
	t.Parallel()
	onPair(t, func(t *testing.T, x *pair) {
		history, b := x.conversation(42)
		for _, id := range []int{200, 1 << 30, -1} {
			params := set(t, b, "remote_block_ids", [][]int{{1, 2, 3, 4, id}})
			equal(t, "outcome", x.call(next(history), params), outcome{FinishError, false, 512, 127, 1})
		}
		equal(t, "P's log", x.p.log.count("NIXL transfer failure: transfer_setup_failed"), 3)
		equal(t, "the whole handle still works", x.call(next(history), string(b)), outcome{FinishLength, right, 512, 127, 0})
	})
}

func TestCase28LateForTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		small := measured()
		small.Blocks, small.MaxModelLen = 9, 1024
		x := newPair(t, small, measured())
		prompt := ids(43, 600)
		a := x.p.run(prompt, 1, nullForm)
		time.Sleep(31 * time.Second)
		synctest.Wait()
		equal(t, "P's log", x.p.log.count("Releasing expired KV blocks for request"), 1)
		x.p.run(ids(44, 1000), 2, "")
		d := x.d.run(prompt, 8, string(a.Params))
		equal(t, "finish", d.Finish, FinishLength)
		equal(t, "right", same(d.ids, cold(t, prompt, 8)), false)
		equal(t, "P's complaints", x.p.log.count("Potentially invalid KV blocks for unrecognized request"), 1)
	})
}

func TestCase29TwoReadersOfA(t *testing.T) {
	t.Parallel()
	t.Run("n=2", func(t *testing.T) {
		t.Parallel()
		onPair(t, func(t *testing.T, x *pair) {
			prompt := ids(45, 600)
			a := x.p.run(prompt, 1, nullForm)
			for child := range 2 {
				d := x.d.run(prompt, 8, string(a.Params))
				equal(t, "reply", d.ids, cold(t, prompt, 8))
				equal(t, "P's complaints", x.p.log.count("unrecognized request"), child)
			}
			equal(t, "pinned on D", x.d.Snapshot().Pins, 2)
		})
	})
	t.Run("two prompts", func(t *testing.T) {
		t.Parallel()
		onPair(t, func(t *testing.T, x *pair) {
			first, second := ids(46, 600), ids(47, 590)
			a := x.p.run(first, 1, nullForm)
			equal(t, "first", same(x.d.run(first, 8, string(a.Params)).ids, cold(t, first, 8)), true)
			equal(t, "second", same(x.d.run(second, 8, string(a.Params)).ids, cold(t, second, 8)), false)
		})
	})
}
