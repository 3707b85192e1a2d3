package analyze

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPublicTraces compares with what the scripts beside the public traces print, when TARIK_TRACES names the
// directory that holds them. Shares are given to four digits, gaps to 0.1 s, counts exactly.
func TestPublicTraces(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("TARIK_TRACES")
	if dir == "" {
		t.Skip("TARIK_TRACES names no directory")
	}
	type want struct {
		followUps, requests, conversations, single  int64
		counts, withReply, previous, best           float64
		gapIdle                                     bool
		p50, p90, p95, p99                          float64
		late, idleLate                              float64
		changed, changedHalf, shrunk, same, shorter int64
		lost                                        int64
		better                                      int64
		unit                                        string
		noHistory                                   bool
	}
	weka := want{
		followUps: 48561, requests: 49334, conversations: 773, single: 0,
		counts: 0.9852, withReply: 0.9885, previous: 0.9731, best: 0.9736,
		gapIdle: true, p50: 9.6, p90: 118.1, p95: 292.4, p99: 2125.2, late: 0.0343, idleLate: 0.0339,
		changed: 3321, changedHalf: 844, shrunk: 422, same: 10, shorter: 4701, lost: 70581952, unit: "tokens",
	}
	flat := weka
	flat.best, flat.noHistory = 0.9731, true // the rows tell the overlap with the previous request only
	for name, w := range map[string]want{
		"weka-claude-code/weka_requests.jsonl.gz":   flat,
		"weka-claude-code/weka_hash_delta.jsonl.gz": weka,
		"mooncake-fast25/conversation_trace.jsonl": {
			followUps: 3975, requests: 12031, conversations: 8056, single: 6044, counts: 0.8785, previous: 0.8608, best: 0.8608,
			p50: 126, p90: 480, p95: 612, p99: 1473, late: 0.1001, unit: "tokens", noHistory: true,
		},
		"mooncake-fast25/synthetic_trace.jsonl": {
			followUps: 1444, requests: 3993, conversations: 2549, single: 2250, counts: 0.9971, previous: 0.9857, best: 0.9857,
			p50: 53.6, p90: 299.6, p95: 423.2, p99: 608.7, late: 0.0305, unit: "tokens", noHistory: true,
		},
		"lmcache-agent-trace/miniswe.jsonl.gz": {
			followUps: 382, requests: 402, conversations: 20, counts: 0.9498, previous: 0.9498, best: 0.9498,
			p50: 1.1, p90: 2, p95: 2.3, p99: 3, unit: "characters",
		},
		"lmcache-agent-trace/magagent.jsonl.gz": {
			followUps: 721, requests: 746, conversations: 25, counts: 0.8175, previous: 0.4013, best: 0.8372,
			p50: 5.6, p90: 11.9, p95: 13.9, p99: 109.9, unit: "characters", changed: 404, shrunk: 223, same: 235, better: 311,
		},
		"azure-llm-2023/AzureLLMInferenceTrace_code.csv": {requests: 8819, unit: "tokens", noHistory: true},
		"azure-llm-2023/AzureLLMInferenceTrace_conv.csv": {requests: 19366, unit: "tokens", noHistory: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := DefaultOptions()
			o.Files = []string{filepath.Join(dir, filepath.FromSlash(name))}
			r, err := Run(context.Background(), o)
			if err != nil {
				t.Fatal(err)
			}
			type counts struct{ FollowUps, Requests, Conversations, Single, Bad int64 }
			if diff := cmp.Diff(
				counts{w.followUps, w.requests, w.conversations, w.single, 0},
				counts{r.FollowUpTurns, r.Requests, r.Conversations, r.SingleTurn, r.Input.BadLines},
			); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
			if r.Unit != w.unit {
				t.Errorf("unit %q, want %q", r.Unit, w.unit)
			}
			if w.followUps == 0 {
				if r.Verdict.Decision != "cannot-tell" || r.RepeatedPromptShare != nil {
					t.Errorf("verdict %+v, share %v; want cannot-tell and none", r.Verdict, show(r.RepeatedPromptShare))
				}
				return
			}
			for _, s := range []struct {
				name string
				got  *float64
				want float64
			}{
				{"repeated_prompt_share", r.RepeatedPromptShare, w.counts},
				{"content_previous", r.Share.Previous, w.previous},
				{"content_best_earlier", r.Share.Best, w.best},
				{"late_turns_share", r.LateTurnsShare, w.late},
			} {
				if !near(s.got, s.want) {
					t.Errorf("%s = %s, want %.4f", s.name, show(s.got), s.want)
				}
			}
			if w.withReply > 0 && !near(r.Share.ByCountsWithReply, w.withReply) {
				t.Errorf("by_counts_with_reply = %s, want %.4f", show(r.Share.ByCountsWithReply), w.withReply)
			}
			q := r.Gaps.StartToStart
			if w.gapIdle {
				q = r.Gaps.Idle
				if !near(r.Gaps.IdleLate, w.idleLate) {
					t.Errorf("idle_later_than_ttl_share = %s, want %.4f", show(r.Gaps.IdleLate), w.idleLate)
				}
			}
			tenth := func(v float64) int64 { return int64(v*10 + 0.5) }
			if diff := cmp.Diff(
				[]int64{tenth(w.p50), tenth(w.p90), tenth(w.p95), tenth(w.p99)},
				[]int64{tenth(q.P50), tenth(q.P90), tenth(q.P95), tenth(q.P99)},
			); diff != "" {
				t.Errorf("gap p50, p90, p95, p99 in 0.1 s (-want +got):\n%s", diff)
			}
			if w.noHistory {
				return
			}
			h := *r.History
			got := []int64{h.Changed, h.Shrunk, h.Identical}
			if diff := cmp.Diff([]int64{w.changed, w.shrunk, w.same}, got); diff != "" {
				t.Errorf("changed, shrunk, identical (-want +got):\n%s", diff)
			}
			if w.lost > 0 {
				if diff := cmp.Diff([]int64{w.changedHalf, w.shorter, w.lost}, []int64{h.ChangedHalf, h.ShortGrowth, h.Lost}); diff != "" {
					t.Errorf("changed in first half, grew less than reply, lost (-want +got):\n%s", diff)
				}
			}
			if w.better > 0 && r.Lines.BetterEarlier != w.better {
				t.Errorf("better earlier = %d, want %d", r.Lines.BetterEarlier, w.better)
			}
		})
	}
}
