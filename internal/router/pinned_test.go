package router_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tarik-kv/tarik/internal/local"
	"github.com/tarik-kv/tarik/internal/router"
)

// TestB03DecodeRefuses: D refuses what P has computed, here because its limit is lower. The client
// gets D's own answer, once. What P keeps for D then stays until P's lease ends: only D's word frees it
// earlier, and D has never taken the request in. The lease is short for that reason (30 s by default,
// 6 s here); limits that differ are a mistake of configuration.
func TestB03DecodeRefuses(t *testing.T) {
	t.Parallel()
	pr := newPair(t, false, func(_, d *local.EngineOptions, _ *router.Config) { d.MaxLen = 224 })
	pr.settle(t, 0)
	calls := 0
	pr.gateD.hooks(func(*http.Request) { calls++ }, nil)
	for _, stream := range []bool{false, true} {
		h := pr.rig.post(t, chatPath, jsonOf(body(stream, 4, prompt+prompt)))
		if h.status != http.StatusBadRequest || !strings.Contains(h.body, "maximum context length") {
			t.Errorf("streamed %v: HTTP %d %s, want D's 400", stream, h.status, h.body)
		}
		if rc := pr.rig.receipt(t, h); rc.Status != 400 || rc.Error != "engine-error" || rc.HeldTokens != 0 {
			t.Errorf("receipt %+v", rc)
		}
	}
	pr.gateD.hooks(nil, nil)
	if calls != 2 {
		t.Errorf("%d D calls for two turns", calls)
	}
	if st := pr.p.Core.Snapshot(); st.Blocks.Pinned == 0 {
		t.Error("P keeps nothing for a D that has refused: the comment above is wrong, and something better can be said")
	}
	pr.settle(t, 0) // the lease ends
}

// A client that half-closes is taken for gone, and both engines are at rest again.
func TestHalfCloseFreesBlocks(t *testing.T) {
	t.Parallel()
	pr := newPair(t, false, func(_, d *local.EngineOptions, _ *router.Config) { d.Faults.StepCost = 5 * time.Millisecond })
	pr.settle(t, 0)
	for _, stream := range []bool{true, false} {
		generated := pr.d.Core.Snapshot().GenerationTokens
		c := dialRaw(t, pr.rig.url)
		c.send(postText(chatPath, jsonOf(body(stream, 4000, prompt))))
		until(t, "D generates", func() bool { return pr.d.Core.Snapshot().GenerationTokens > generated+3 })
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		pr.settle(t, 0)
		until(t, "the turn has ended", func() bool { return pr.inFlight(t) == "0" })
		if rc := pr.rig.receipts.Newest(1)[0]; rc.Status != 499 || rc.Why != "client-left" {
			t.Errorf("streamed %v: receipt %+v", stream, rc)
		}
		_ = c.Close()
	}
}
