package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/local"
)

// startEngines starts a prefill and a decode engine as a release of vLLM.
func startEngines(t *testing.T, as string) (p, d *local.Engine) {
	t.Helper()
	w, err := local.Load("")
	if err != nil {
		t.Fatal(err)
	}
	start := func(role string) *local.Engine {
		e, err := local.StartEngine(w, local.EngineOptions{
			Listen: "127.0.0.1:0", As: as, KVTokens: 1 << 17, Batch: 2048,
			KV: fmt.Appendf(nil, `{"kv_connector":"NixlConnector","kv_role":%q,"kv_connector_extra_config":{"bidirectional_kv_xfer":true,"kv_recompute_threshold":16}}`, role),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		return e
	}
	return start("kv_producer"), start("kv_consumer")
}

// pairPlan plays every policy on one pair.
func pairPlan(p, d string) Plan {
	plan := DefaultPlan()
	plan.Lengths, plan.New, plan.Reply, plan.Repeats = []int{256}, 64, 48, 2
	plan.Thinks, plan.Settle, plan.PCache = []ThinkTime{{}}, 0, []string{"on", "off"}
	for _, policy := range Policies {
		plan.Arms = append(plan.Arms, Arm{Name: string(policy), Prefill: p, Decode: d, Policy: policy, Header: http.Header{}})
	}
	plan.Base = string(PolicyNone)
	return plan
}

// By the engines' own counters each policy does what its name says, on engines whose streams carry handles and on such
// whose streams do not; and all policies give the same answers.
func TestPoliciesByTheEnginesCounters(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		as  string
		ids bool
	}{"0.33": {"vllm-0.33", false}, "0.25": {"vllm-0.25", false}, "0.33 ids": {"vllm-0.33", true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			as := c.as
			p, d := startEngines(t, as)
			plan := pairPlan(p.URL(), d.URL())
			for i := range plan.Arms {
				plan.Arms[i].IDs = c.ids
			}
			r, err := Run(t.Context(), plan, Surroundings{})
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range r.Warnings {
				if !strings.Contains(w, "were sent late") { // a busy machine
					t.Errorf("warning: %s", w)
				}
			}
			for _, a := range r.Answers {
				if a.Compared != 12 || a.Equal != 12 {
					t.Errorf("%s: %d of %d answers equal, want 12 of 12", a.Arm, a.Equal, a.Compared)
				}
			}
			if len(r.Cells) != 2 {
				t.Fatalf("%d cells, want 2", len(r.Cells))
			}
			for _, c := range r.Cells {
				for i := range c.Arms {
					a := &c.Arms[i]
					source := func(engine int, name string) float64 {
						return a.Engines[engine].Delta[`vllm:prompt_tokens_by_source_total{source="`+name+`"}`]
					}
					// Four later turns: with P's cache cold the policies that move KV read more than the two
					// histories of 256 tokens and more each; with a warm P little more than the replies.
					pulls := a.Arm == "held" || a.Arm == "return"
					pulled := source(0, "external_kv_transfer")
					if least := map[bool]float64{true: 4 * 256, false: 4 * 16}[c.Cell.cold()]; (pulled >= least) != pulls || !pulls && pulled != 0 {
						t.Errorf("%s, %s: P read %g tokens from D", c.Cell, a.Arm, pulled)
					}
					if a.Arm == "append" && source(1, "local_compute") < 4*64 {
						t.Errorf("%s: D computed %g tokens of four turns by itself", c.Cell, source(1, "local_compute"))
					}
					cached := *a.Later.Cached
					if cold := a.Arm == "none" && c.Cell.cold(); cold != (cached < 0.1) || !cold && cached < 0.6 {
						t.Errorf("%s, %s: %.2f of later prompts was cached", c.Cell, a.Arm, cached)
					}
				}
			}
			// Where a handle can be seen, no block stays on D for a turn that will not come. P tells D some time after
			// the last call has ended.
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for end := time.Now().Add(20 * time.Second); as == "vllm-0.33" && d.Core.Snapshot().Blocks.Pinned > 0; <-tick.C {
				if time.Now().After(end) {
					t.Fatalf("%d of D's blocks stay pinned", d.Core.Snapshot().Blocks.Pinned)
				}
			}
			for _, e := range []*local.Engine{p, d} {
				if err := e.Core.CheckAccounting(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// proxy passes everything on to an engine, but for what tamper answers itself.
func proxy(t *testing.T, engine string, tamper func(w http.ResponseWriter, body []byte) bool) string {
	t.Helper()
	u, err := url.Parse(engine)
	if err != nil {
		t.Fatal(err)
	}
	rp := httputil.NewSingleHostReverseProxy(u)
	rp.FlushInterval = -1
	rp.ErrorHandler = func(http.ResponseWriter, *http.Request, error) {} // clients that hang up
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body json.RawMessage
		if r.Method == http.MethodPost {
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			if tamper(w, body) {
				return
			}
			r.Body, r.ContentLength = bodyOf(body), int64(len(body))
		}
		rp.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// A pull that fails is tried once more without the handle, and said in the report. A failing return is said too, and
// costs no turn.
func TestFailuresOfPoliciesAreReported(t *testing.T) {
	t.Parallel()
	p, d := startEngines(t, "vllm-0.33")
	var pulls, returns atomic.Int64
	front := proxy(t, p.URL(), func(w http.ResponseWriter, body []byte) bool {
		s := string(body)
		switch {
		case !strings.Contains(s, `"remote_engine_id":"`) || strings.Contains(s, `"remote_num_tokens":0`):
			return false // no handle, or one that is released
		case strings.Contains(s, `"messages"`):
			pulls.Add(1)
		default:
			returns.Add(1)
		}
		http.Error(w, `{"error":{"message":"Internal server error"}}`, http.StatusInternalServerError)
		return true
	})
	plan := pairPlan(front, d.URL())
	plan.PCache, plan.Warmup = []string{"on"}, 0
	r, err := Run(t.Context(), plan, Surroundings{})
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		Arm             string
		Retried, Broken int
		Failures        map[string]int
		Turns           int
	}
	var got []row
	for _, a := range r.Cells[0].Arms {
		got = append(got, row{a.Arm, a.Retried, a.Turn1.PrepareFailed + a.Later.PrepareFailed, a.Failures, a.Turn1.Turns + a.Later.Turns})
	}
	none := map[string]int{}
	want := []row{{"none", 0, 0, none, 6}, {"held", 4, 0, none, 6}, {"return", 0, 4, none, 6}, {"oracle", 0, 0, none, 6}, {"append", 0, 0, none, 6}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("arms (-want +got):\n%s", diff)
	}
	if pulls.Load() != 4 || returns.Load() != 4 {
		t.Errorf("%d pulls and %d returns were refused, want 4 and 4", pulls.Load(), returns.Load())
	}
	if s := strings.Join(r.Warnings, "\n"); !strings.Contains(s, "return, 256 tokens") || !strings.Contains(s, "http-500: Internal server error") {
		t.Errorf("warnings do not name the failing return:\n%s", s)
	}
}

// The P call's own time is in TTFT, and the return's if the next turn has to wait for it, but not the oracle's.
func TestWhatIsTimedOfAPair(t *testing.T) {
	t.Parallel()
	p, d := startEngines(t, "vllm-0.33")
	const slow = 150 * time.Millisecond
	front := proxy(t, p.URL(), func(_ http.ResponseWriter, body []byte) bool {
		if strings.Contains(string(body), `"prompt":[`) && !strings.Contains(string(body), `"prompt":[1,2,3]`) {
			time.Sleep(slow) // returns and the oracle's work
		}
		return false
	})
	plan := pairPlan(front, d.URL())
	plan.PCache, plan.Repeats = []string{"on"}, 1
	j := memoryJournal()
	if _, err := Run(t.Context(), plan, Surroundings{Journal: j}); err != nil {
		t.Fatal(err)
	}
	for _, r := range j.groups[0].turns {
		if r.TTFT < r.P+r.D-0.01 {
			t.Errorf("%s, turn %d: TTFT %.2f ms is less than its parts, %.2f and %.2f", r.Arm, r.Turn, r.TTFT, r.P, r.D)
		}
		works := r.Turn < 3 && (r.Arm == "return" || r.Arm == "oracle")
		if works && r.PrepareMs < ms(slow) {
			t.Errorf("%s, turn %d: %.1f ms of work afterwards, want at least %v", r.Arm, r.Turn, r.PrepareMs, slow)
		}
		if waited := r.Late >= ms(slow); waited != (r.Arm == "return" && r.Turn > 1) {
			t.Errorf("%s, turn %d: sent %.1f ms late", r.Arm, r.Turn, r.Late)
		}
	}
}

func bodyOf(b []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(b)) }
