package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/local"
)

// A sound pair gives no findings above info but what is true of its release, and doctor leaves nothing pinned on it.
func TestSoundPair(t *testing.T) {
	t.Parallel()
	told := func(o *Options) { o.PrefillKV, o.DecodeKV = []byte(goodP), []byte(goodD) }
	oldStreams := []string{"handle-in-streams warning decode"}
	for _, c := range []struct {
		name, as string
		spoil    func(r *rig)
		want     []string
	}{
		{"0.25", "vllm-0.25", func(*rig) {}, oldStreams},
		{"0.32", "vllm-0.32", func(*rig) {}, oldStreams},
		{"0.33", "vllm-0.33", func(*rig) {}, []string{}},
		{"0.33, settings not known", "vllm-0.33", func(r *rig) { r.with = nil }, []string{}},
		{"0.33, a long pull", "vllm-0.33", func(r *rig) {
			r.with = func(o *Options) { o.TransferTokens = DefaultTransferTokens }
			for i := range r.opt {
				r.opt[i] = func(o *local.EngineOptions) { o.KVTokens = 1 << 16 }
			}
		}, []string{}},
		{"0.33, blocks of 128", "vllm-0.33", func(r *rig) {
			for i := range r.opt {
				r.opt[i] = func(o *local.EngineOptions) { o.BlockSize = 128 }
			}
		}, []string{}},
		{"0.33, blocks larger than the conversation", "vllm-0.33", func(r *rig) {
			for i := range r.opt {
				r.opt[i] = func(o *local.EngineOptions) { o.BlockSize = 784 }
			}
		}, []string{}},
		{"0.25, prefill says nothing of cached tokens", "vllm-0.25", func(r *rig) {
			for i := range r.opt {
				r.opt[i] = func(o *local.EngineOptions) { o.NoTokenDetails = true }
			}
		}, oldStreams},
		{"0.33, no render endpoint, threshold 0", "vllm-0.33", func(r *rig) {
			r.kv[p] = with(goodP, ":64", ":0")
			r.with = func(o *Options) { o.PrefillKV = []byte(r.kv[p]) }
			r.opt[p] = func(o *local.EngineOptions) { o.NoScaleOut = true }
		}, []string{}},
		{"0.33, replies without token ids", "vllm-0.33", func(r *rig) {
			r.gate[d] = asking(replace(`,"return_token_ids":true`, ""))
		}, []string{}},
		{"0.33, in use by others", "vllm-0.33", func(r *rig) {
			g := metrics(bump(mRunning, "", 3))
			r.gate[p], r.gate[d] = g, g
		}, []string{}},
		{"0.33, keep-alive comments and merged deltas", "vllm-0.33", func(r *rig) {
			r.opt[d] = func(o *local.EngineOptions) { o.WireFaults.Comments, o.WireFaults.Interval = 1, 5 }
		}, []string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.as = [2]string{c.as, c.as}
			r.with = told
			c.spoil(r)
			rep, f := r.report()
			if diff := cmp.Diff(c.want, found(rep)); diff != "" {
				t.Errorf("findings (-want +got):\n%s\n%s", diff, text(rep))
			}
			if len(rep.Left) > 0 {
				t.Errorf("doctor says that it left %q", rep.Left)
			}
			if strings.HasSuffix(c.name, "a long pull") && len(f.Probe.Pulls) != 2 {
				t.Errorf("%d long pulls, want 2", len(f.Probe.Pulls))
			}
			for i, e := range r.e {
				s := e.Core.Snapshot()
				if s.Pins != 0 || s.Blocks.Pinned != 0 || s.Blocks.Parked != 0 || s.Blocks.Used != 0 {
					t.Errorf("engine %d: left behind %+v, %d pins", i, s.Blocks, s.Pins)
				}
				if s.KVExpired != 0 || s.FailedTransfers != 0 || s.NotificationsAfterExpiry != 0 {
					t.Errorf("engine %d counts %d expired, %d failed, %d late", i, s.KVExpired, s.FailedTransfers, s.NotificationsAfterExpiry)
				}
				if err := e.Core.CheckAccounting(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// The turns of the probe deliver what a conversation should: P finds its own prompt, and reads the replies.
func TestProbeTurns(t *testing.T) {
	t.Parallel()
	rep, f := newRig(t).report()
	const want = "turn 1: 160 prompt tokens, 0 local, 0 read, 160 computed; turn 2: 272 prompt tokens, 160 local, 79 read, 33 computed; turn 3: 384 prompt tokens, 0 local, 351 read, 33 computed"
	if got := f.Probe.summary(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	var calls []string
	for _, c := range rep.Probe {
		if c.Status != 200 || c.Error != "" {
			t.Errorf("%+v", c)
		}
		calls = append(calls, c.Name)
	}
	wantCalls := []string{
		"turn 1, prefill", "turn 1, decode", "turn 2, prefill", "turn 2, decode", "turn 3, prefill", "turn 3, decode",
		"warm prompt, its salt", "warm prompt, no salt", "warm prompt, another salt", "turn 2's prompt, another salt",
	}
	if diff := cmp.Diff(wantCalls, calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{}, found(rep)); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

// A handle is given at most once to an engine that does not answer, and to no engine that is known not to.
func TestProbeParksOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	untold(with(goodP, "true", "false"), goodD)(r)
	rep, f := r.report()
	s := r.e[p].Core.Snapshot()
	if s.Blocks.Parked == 0 || s.Blocks.Parked > 20 || f.Probe.P3 != nil {
		t.Errorf("%d blocks parked, want those of one small request; third turn: %v", s.Blocks.Parked, f.Probe.P3 != nil)
	}
	want := []string{
		"prefill has parked the request and keeps its blocks (272 tokens) until it is restarted",
		"decode keeps the blocks of one reply (239 tokens) until its TTL ends (480 s by default)",
	}
	if diff := cmp.Diff(want, rep.Left); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	// Told the settings, doctor leaves it alone.
	r.with = func(o *Options) { o.PrefillKV = []byte(r.kv[p]); o.Patience = 5 * time.Second }
	_, f = r.report()
	if got := r.e[p].Core.Snapshot().Blocks.Parked; got != s.Blocks.Parked || f.Probe.P2 != nil {
		t.Errorf("%d blocks parked, %d before", got, s.Blocks.Parked)
	}
}
