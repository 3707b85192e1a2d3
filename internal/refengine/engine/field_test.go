package engine

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Tests here replay field reports, named after their ids.

// TestB01ClientsLeaveDuringTransfer: 40 clients leave 10 to 200 ms after P's reply, in the middle of D's
// READ; afterwards 20 normal requests finish and both pools are back where they were.
func TestB01ClientsLeaveDuringTransfer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cd := measured()
		cd.Faults.LinkLatency = 100 * time.Millisecond
		cd.Faults.StepCost = 5 * time.Millisecond
		x := newPair(t, measured(), cd)
		for i := range 40 {
			prompt := ids(i, 300)
			a := x.p.run(prompt, 1, nullForm)
			r := x.d.request(prompt, 40, string(a.Params))
			ch, err := x.d.Submit(r)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(10*time.Millisecond + time.Duration(i)*190*time.Millisecond/39)
			x.d.Abort(r.ID)
			collect(ch)
		}
		for i := range 20 {
			_, d := x.turn(ids(100+i, 300), 8, nullForm)
			equal(t, "finish", d.Finish, FinishLength)
		}
		time.Sleep(481 * time.Second)
		synctest.Wait()
		for _, n := range []*node{x.p, x.d} {
			s := n.Snapshot()
			equal(t, "free blocks", s.Blocks.Free, s.Blocks.Total)
		}
	})
}

// TestB02ClientsLeaveBetweenLegs: nobody tells P, so its blocks stay for the lease and no longer.
func TestB02ClientsLeaveBetweenLegs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cp := measured()
		cp.Blocks, cp.MaxModelLen = 1+3*60, 8192
		p := startNode(t, newNetwork(), func() Config { cp.KV = roleP(); return cp }())
		for i := range 60 {
			p.run(ids(i, 300), 1, nullForm)
		}
		equal(t, "pinned", pinned(p), [2]int{60, 180})
		start := time.Now()
		equal(t, "request 61", p.run(ids(61, 300), 1, nullForm).Finish, FinishLength)
		equal(t, "it waited for the lease", time.Since(start), 30*time.Second)
	})
}

// TestB04OrphansNeedTheirReport: requests aborted while their peer is dead hold blocks only as long as
// the READ takes to fail.
func TestB04OrphansNeedTheirReport(t *testing.T) {
	t.Parallel()
	onPair(t, func(t *testing.T, x *pair) {
		var aborted []string
		params := set(t, func() []byte { _, b := x.conversation(1); return b }(), "remote_port", 9)
		for i := range 30 {
			r := x.p.request(join(ids(i, 640), ids(50, 100)), 8, params)
			ch, err := x.p.Submit(r)
			if err != nil {
				t.Fatal(err)
			}
			aborted = append(aborted, r.ID)
			synctest.Wait()
			x.p.Abort(r.ID)
			collect(ch)
		}
		s := x.p.Snapshot()
		equal(t, "parked, waiting", []int{s.Blocks.Parked, s.WaitingDeferred}, []int{150, 0})
		time.Sleep(6 * time.Second)
		synctest.Wait()
		equal(t, "parked after the handshakes failed", x.p.Snapshot().Blocks.Parked, 0)
		equal(t, "count", len(aborted), 30)
	})
}

// TestC09PromptAroundABlock: prompts of one token less, exactly and one more than full blocks, D warm with
// most of them, give the tokens of a cold run. A token that the router appends between the legs makes
// block counts differ at the boundary: then D reads wrong blocks or dies.
func TestC09PromptAroundABlock(t *testing.T) {
	t.Parallel()
	for _, length := range []int{2047, 2048, 2049} {
		for _, warm := range []int{0, 31 * 64} {
			for _, appended := range []bool{false, true} {
				name := fmt.Sprintf("%d tokens, D has %d, appended %v", length, warm, appended)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						cfg := measured()
						cfg.BlockSize, cfg.Blocks = 64, 400
						x := newPair(t, cfg, cfg)
						prompt := ids(1, length)
						if warm > 0 {
							x.d.run(prompt[:warm+1], 1, "")
						}
						a := x.p.run(prompt, 1, nullForm)
						if appended {
							prompt = join(prompt, a.ids)
						}
						d := x.d.run(prompt, 8, string(a.Params))
						switch {
						case appended && length == 2048 && warm == 0:
							equal(t, "D is dead", x.d.Dead() != nil, true)
						case appended:
							// At best the appended token's KV is missing, at worst all blocks are shifted.
							equal(t, "wrong READs", x.d.Snapshot().Misreads, 1)
						default:
							equal(t, "wrong READs", x.d.Snapshot().Misreads, 0)
							equal(t, "reply", d.ids, cold(t, prompt, 8))
						}
					})
				})
			}
		}
	}
}

// TestC16PinsStarveNewcomers: pinned blocks are not evicted under pressure. New users wait for a TTL, and
// a notification lets them in.
func TestC16PinsStarveNewcomers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cd := measured()
		cd.Blocks, cd.MaxModelLen = 21, 2048
		x := newPair(t, measured(), cd)
		h, b := x.conversation(1) // 5 blocks
		x.conversation(2)
		x.conversation(3)
		equal(t, "pinned on D", pinned(x.d), [2]int{3, 15})
		start := time.Now()
		ch, err := x.d.Submit(x.d.request(ids(4, 1000), 8, ""))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Second)
		synctest.Wait()
		s := x.d.Snapshot()
		equal(t, "waiting, running", []int{s.WaitingCapacity, s.Running}, []int{1, 0})
		x.call(next(h), string(b))
		equal(t, "finish", collect(ch).Finish, FinishLength)
		equal(t, "waited", time.Since(start), 100*time.Second)
	})
}

// TestG02PRestartsDuringRead: P restarts while D reads from it; that request fails, the next is fine.
func TestG02PRestartsDuringRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cp, cd := measured(), measured()
		cp.SideChannelListen = "127.0.0.1:5700"
		cd.Faults.LinkBytesPerSecond = 128 * fakeFloats * 4 // a block a second
		x := newPair(t, cp, cd)
		prompt := ids(1, 1200)
		a := x.p.run(prompt, 1, nullForm)
		ch, err := x.d.Submit(x.d.request(prompt, 8, string(a.Params)))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		x.p.Kill()
		equal(t, "the READ under way", collect(ch).Finish, FinishError)
		cp.KV = roleP()
		x.p = startNode(t, x.net, cp)
		x.d.SetFaults(Faults{})
		_, d := x.turn(prompt, 8, nullForm)
		equal(t, "the next turn", d.ids, cold(t, prompt, 8))
	})
}
