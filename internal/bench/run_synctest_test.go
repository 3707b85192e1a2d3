package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// within checks a number to 2 %.
func within(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 0.02*want {
		t.Errorf("%s = %g, want %g within 2 %%", what, got, want)
	}
}

// TestKnownDelays measures a server whose delays are drawn from a known list: p50 and p99 of TTFT, ITL and the total
// are those of the list.
func TestKnownDelays(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 5))
	delays := make([]float64, 5000)
	for i := range delays {
		delays[i] = 100 * math.Exp(0.7*r.NormFloat64()) // ms, with a long tail
	}
	var n atomic.Int64
	var used []float64 // of counted later turns, in no order
	e := &endpoint{gap: 20 * time.Millisecond, first: func(q asked) time.Duration {
		d := delays[int(n.Add(1))%len(delays)]
		if len(q.Messages) > 1 && q.number >= 5 { // 2 calibrations and a warm-up of 3 come before
			used = append(used, d)
		}
		return time.Duration(d * float64(time.Millisecond))
	}}
	p := smallPlan("one")
	p.Repeats, p.Turns = 60, 4
	virtual(t, p, hosts(map[string]*endpoint{"one": e}), func(t *testing.T, r *Report, _ *Journal) {
		s := r.Cells[0].Arms[0].Later
		slices.Sort(used)
		if s.Turns != len(used) {
			t.Fatalf("%d later turns measured, %d served", s.Turns, len(used))
		}
		within(t, "TTFT p50", s.TTFT.P50, quantile(used, 0.5))
		within(t, "TTFT p95", *s.TTFT.P95, quantile(used, 0.95))
		within(t, "TTFT p99", *s.TTFT.P99, quantile(used, 0.99))
		within(t, "ITL p50", s.ITL.P50, 20)
		within(t, "ITL p99", *s.ITL.P99, 20)
		within(t, "TPOT p50", s.TPOT.P50, 20)
		within(t, "total p50", s.Total.P50, quantile(used, 0.5)+60)
		if !s.TTFT.P50Interval.covers(quantile(used, 0.5)) {
			t.Errorf("interval %v does not hold the median %g", s.TTFT.P50Interval, quantile(used, 0.5))
		}
	})
}

// A server stalls once for ten seconds. In an open loop everybody who arrives meanwhile waits, and is charged for it:
// the arithmetic of arrivals says what TTFT must be. A client that waits for its turn to send would see one slow
// request.
func TestStallIsChargedToAllWhoWait(t *testing.T) {
	t.Parallel()
	const (
		rate  = 20.0
		stall = 10 * time.Second
		work  = 10 * time.Millisecond
	)
	var begin, until atomic.Int64 // of the stall, Unix nanoseconds
	e := &endpoint{first: func(q asked) time.Duration {
		if len(q.Messages) != 1 || q.Max == 1 || q.number < 3 {
			return work
		}
		if q.number == 103 { // the hundredth arrival
			begin.Store(time.Now().UnixNano())
			until.Store(time.Now().Add(stall).UnixNano())
		}
		return max(0, time.Until(time.Unix(0, until.Load()))) + work
	}}
	p := smallPlan("one")
	p.Turns, p.Repeats, p.Batch, p.Loads = 1, 1, 300, []Load{{Rate: rate}}
	virtual(t, p, hosts(map[string]*endpoint{"one": e}), func(t *testing.T, r *Report, j *Journal) {
		turns := j.groups[0].turns
		var offsets []float64
		for _, rec := range turns {
			offsets = append(offsets, rec.Offset)
		}
		slices.Sort(offsets)
		first := offsets[100] // of the stall
		for _, rec := range turns {
			want := ms(work)
			if wait := first + ms(stall) - rec.Offset; rec.Offset >= first && wait > 0 {
				want += wait
			}
			if math.Abs(rec.TTFT-want) > 1 {
				t.Fatalf("arrival at %.0f ms: TTFT %.1f ms, want %.1f", rec.Offset, rec.TTFT, want)
			}
		}
		// More than half of all arrivals fall into the stall, and wait five seconds on average.
		if s := r.Cells[0].Arms[0].Turn1; s.TTFT.Mean < 2000 || *s.TTFT.P95 < 8000 {
			t.Errorf("mean %.0f, p95 %.0f ms: the stall is hidden", s.TTFT.Mean, *s.TTFT.P95)
		}
	})
}

// In a replay a turn that was meant to start while the one before still ran is charged for the wait.
func TestReplayCountsFromTheTrace(t *testing.T) {
	t.Parallel()
	e := &endpoint{first: func(q asked) time.Duration {
		if strings.Contains(string(q.raw), "slow") {
			return 5 * time.Second
		}
		return 100 * time.Millisecond
	}}
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	rows := `{"timestamp":5000000,"session_id":"a","input":"slow start","output":"x"}
{"timestamp":7000000,"session_id":"a","input":"second","output":"x"}
{"timestamp":6000000,"session_id":"b","input":"other","output":"x"}
{"timestamp":20000000,"session_id":"a","input":"third","output":"x"}
`
	if err := os.WriteFile(trace, []byte(rows), 0o600); err != nil {
		t.Fatal(err)
	}
	p := smallPlan("one")
	p.Repeats = 1
	if err := p.Load(&Settings{Replay: trace}); err != nil {
		t.Fatal(err)
	}
	virtual(t, p, hosts(map[string]*endpoint{"one": e}), func(t *testing.T, _ *Report, j *Journal) {
		type turn struct {
			Conv, Turn         int
			Offset, TTFT, Late float64
		}
		var got []turn
		for _, r := range j.groups[0].turns {
			got = append(got, turn{r.Conv, r.Turn, r.Offset, r.TTFT, r.Late})
		}
		want := []turn{{0, 1, 0, 5000, 0}, {0, 2, 2000, 3100, 3000}, {0, 3, 15000, 100, 0}, {1, 1, 1000, 100, 0}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("turns (-want +got):\n%s", diff)
		}
	})
}

// Arms that differ are told apart, arms that do not are not, and the order in which they are played is mixed.
func TestArmsAreCompared(t *testing.T) {
	t.Parallel()
	slow := func(factor float64) *endpoint {
		r := rand.New(rand.NewPCG(uint64(100*factor), 1))
		return &endpoint{gap: 5 * time.Millisecond, first: func(asked) time.Duration {
			return time.Duration(factor * float64(100+20*r.Float64()) * float64(time.Millisecond))
		}}
	}
	p := smallPlan("fast", "same", "base")
	p.Repeats = 12
	p.Arms[0].Metrics = []string{"http://fast"}
	e := map[string]*endpoint{"fast": slow(0.6), "same": slow(1.0), "base": slow(1.001)}
	virtual(t, p, hosts(e), func(t *testing.T, r *Report, j *Journal) {
		verdicts := map[string]string{}
		for _, c := range r.Cells[0].Comparisons {
			if c.Turns == "later" && c.Metric == "ttft_ms" {
				verdicts[c.Arm] = c.Verdict
				if c.Pairs != 24 || c.Conversations != 12 {
					t.Errorf("%s: %d pairs of %d conversations, want 24 of 12", c.Arm, c.Pairs, c.Conversations)
				}
			}
		}
		if diff := cmp.Diff(map[string]string{"fast": VerdictLess, "same": VerdictNone}, verdicts); diff != "" {
			t.Errorf("verdicts (-want +got):\n%s", diff)
		}
		firsts := map[string]int{}
		for _, g := range j.groups {
			firsts[g.Order[0]]++
		}
		if len(firsts) != 3 {
			t.Errorf("arms that went first: %v, want each of them sometimes", firsts)
		}
		want := []EngineReport{{Engine: "http://fast", Delta: map[string]float64{"vllm:prompt_tokens_total": 10 * 12 * 3}, After: map[string]float64{kvUsage: 0.25}}}
		if diff := cmp.Diff(want, r.Cells[0].Arms[0].Engines); diff != "" {
			t.Errorf("engines (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]string{"http://fast": "1.2.3"}, r.Engines); diff != "" {
			t.Errorf("versions (-want +got):\n%s", diff)
		}
		for _, a := range r.Answers {
			if a.Compared != 36 || a.Equal != 36 {
				t.Errorf("answers of %s: %d of %d equal, want 36 of 36", a.Arm, a.Equal, a.Compared)
			}
		}
		if len(r.Warnings) > 0 {
			t.Errorf("warnings: %q", r.Warnings)
		}
		// The same conversations reached both arms, in the same words.
		for i := range e["same"].turns() {
			if a, b := e["same"].turns()[i], e["fast"].turns()[i]; string(a.Messages[0]) != string(b.Messages[0]) {
				t.Fatalf("turn %d: arms got different prompts", i)
			}
		}
	})
}

// A wrong answer is reported with its place, and what follows in that conversation is not compared.
func TestWrongAnswersAreReported(t *testing.T) {
	t.Parallel()
	bad := &endpoint{text: func(q asked, i int) string {
		if len(q.Messages) == 3 && i == 2 {
			return "WRONG "
		}
		return fmt.Sprintf("w%d ", i)
	}}
	good := &endpoint{text: func(_ asked, i int) string { return fmt.Sprintf("w%d ", i) }}
	p := smallPlan("bad", "good")
	p.Repeats = 2
	virtual(t, p, hosts(map[string]*endpoint{"bad": bad, "good": good}), func(t *testing.T, r *Report, _ *Journal) {
		cell := r.Cells[0].Cell.String()
		want := []AnswerReport{{Arm: "bad", Compared: 4, Equal: 2, Later: 2, Differ: []AnswerDiffers{
			{Cell: cell, Group: 0, Turn: 2, At: 6}, {Cell: cell, Group: 1, Turn: 2, At: 6},
		}}}
		if diff := cmp.Diff(want, r.Answers); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
		if s := text(t, r); !strings.Contains(s, "bad: 2 of 4 answers differ from good's") {
			t.Errorf("the report does not warn:\n%s", s)
		}
	})
}

// Each kind of failure is counted under its name, and ends its conversation only.
func TestFailuresAreCounted(t *testing.T) {
	t.Parallel()
	const stream = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"w\"}}]}\n\n"
	kinds := map[string]func(w http.ResponseWriter, q asked){
		"http-503": func(w http.ResponseWriter, _ asked) {
			http.Error(w, `{"error":{"message":"full"}}`, http.StatusServiceUnavailable)
		},
		FailMalformed: func(w http.ResponseWriter, _ asked) { fmt.Fprint(w, stream+"data: {\"choices\":[}\n\n") },
		FailCut:       func(w http.ResponseWriter, _ asked) { fmt.Fprint(w, stream) },
		FailEvent: func(w http.ResponseWriter, _ asked) {
			fmt.Fprint(w, stream+"data: {\"error\":{\"message\":\"engine died\",\"code\":500}}\n\ndata: [DONE]\n\n")
		},
		FailEmpty:   func(w http.ResponseWriter, _ asked) { fmt.Fprint(w, "data: {\"choices\":[]}\n\ndata: [DONE]\n\n") },
		FailTimeout: func(_ http.ResponseWriter, q asked) { <-q.gone },
		FailConnect: func(http.ResponseWriter, asked) { panic(http.ErrAbortHandler) },
	}
	for kind, fail := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			e := &endpoint{serve: func(w http.ResponseWriter, q asked) bool {
				bad := len(q.Messages) == 3 && q.number >= 3 // after the warm-up
				if bad {
					fail(w, q)
				}
				return bad
			}}
			p := smallPlan("one", "two")
			p.Repeats, p.Timeout = 1, time.Minute
			virtual(t, p, hosts(map[string]*endpoint{"one": e, "two": {}}), func(t *testing.T, r *Report, _ *Journal) {
				a := r.Cells[0].Arms[0]
				if diff := cmp.Diff(map[string]int{kind: 1}, a.Failures); diff != "" {
					t.Errorf("failures (-want +got):\n%s", diff)
				}
				if a.NotSent != 1 || a.Turn1.Turns != 1 || a.Later.Turns != 0 || a.Later.Failed != 1 {
					t.Errorf("%d not sent, %d first and %d later turns, %d failed; want 1, 1, 0, 1", a.NotSent, a.Turn1.Turns, a.Later.Turns, a.Later.Failed)
				}
				if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], kind+" 1") {
					t.Errorf("warnings %q", r.Warnings)
				}
			})
		})
	}
}

// An arm that does not work at all is found before anything is measured.
func TestBrokenArmEndsTheRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := &endpoint{serve: func(w http.ResponseWriter, _ asked) bool {
			http.Error(w, `{"error":{"message":"no such model"}}`, http.StatusNotFound)
			return true
		}}
		client, stop := serve(hosts(map[string]*endpoint{"one": broken, "two": {}}))
		defer stop()
		_, err := Run(t.Context(), smallPlan("one", "two"), Surroundings{Client: client})
		if want := "arm one: warm-up, turn 1: http-404: no such model"; err == nil || err.Error() != want {
			t.Errorf("error %v, want %q", err, want)
		}
	})
}

// A run that is stopped reports what is complete; going on measures the rest, and nothing twice. A torn line at the
// end of the journal does no harm.
func TestStopAndResume(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "run.jsonl")
	p := smallPlan("one", "two")
	p.Repeats, p.Lengths = 4, []int{256, 512}
	var first *Report
	synctest.Test(t, func(t *testing.T) {
		client, stop := serve(hosts(map[string]*endpoint{"one": {}, "two": {}}))
		defer stop()
		ctx, cancel := context.WithCancel(t.Context())
		j, err := CreateJournal(name)
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		first, err = Run(ctx, p, Surroundings{Client: client, Journal: j, Progress: func(s Progress) {
			if s.Done == 3 {
				time.AfterFunc(time.Second, cancel) // in the middle of a group
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
	})
	if first.GroupsDone != 3 || first.GroupsLeft != 5 || !strings.Contains(text(t, first), "stopped early: 3 of 8 groups") {
		t.Errorf("%d groups done, %d left, want 3 and 5:\n%s", first.GroupsDone, first.GroupsLeft, first.Warnings)
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(f, `{"type":"turn","group":3,"arm":"one","conv":0,"turn":1}`+"\n"+`{"type":"turn","gro`)
	_ = f.Close()
	if _, err := CreateJournal(name); err == nil {
		t.Error("a journal that is there was overwritten")
	}
	var second *Report
	var served int
	synctest.Test(t, func(t *testing.T) {
		one := &endpoint{}
		client, stop := serve(hosts(map[string]*endpoint{"one": one, "two": {}}))
		defer stop()
		j, err := ResumeJournal(name)
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		if second, err = Run(t.Context(), p, Surroundings{Client: client, Journal: j}); err != nil {
			t.Fatal(err)
		}
		served = len(one.turns())
	})
	if second.GroupsDone != 8 || second.GroupsLeft != 0 || second.RunID != first.RunID {
		t.Errorf("%d groups done, %d left of run %s, want 8 and 0 of %s", second.GroupsDone, second.GroupsLeft, second.RunID, first.RunID)
	}
	if want := 5*3 + 3; served != want { // five groups of three turns, and a warm-up
		t.Errorf("%d turns were sent after going on, want %d", served, want)
	}
	// The file says the same as the run.
	j, err := ReadJournal(name)
	if err != nil {
		t.Fatal(err)
	}
	third, err := j.Report()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(text(t, second), text(t, third)); diff != "" {
		t.Errorf("report of the run and of its journal (-run +journal):\n%s", diff)
	}
	// Another plan is not mixed in.
	other := p
	other.Reply = 99
	j, err = ResumeJournal(name)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if _, err := Run(t.Context(), other, Surroundings{Journal: j}); err == nil || !strings.Contains(err.Error(), "reply was 4 and is 99") {
		t.Errorf("error %v, want that reply was 4 and is 99", err)
	}
}

func TestStopBeforeTheFirstGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, stop := serve(hosts(map[string]*endpoint{"one": {}}))
		defer stop()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(500*time.Millisecond, cancel)
		p := smallPlan("one")
		p.Settle = time.Hour
		if _, err := Run(ctx, p, Surroundings{Client: client}); !errors.Is(err, ErrNothing) {
			t.Errorf("error %v, want %v", err, ErrNothing)
		}
	})
}

// N workers keep N conversations going, no more and no fewer while there are enough.
func TestClosedLoopConcurrency(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int64
	e := &endpoint{first: func(q asked) time.Duration {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); q.number > 5 && n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(time.Second)
		return 0
	}}
	p := smallPlan("one")
	p.Repeats, p.Batch, p.Turns, p.Loads, p.Thinks = 1, 12, 1, []Load{{Concurrency: 4}}, []ThinkTime{{}}
	virtual(t, p, hosts(map[string]*endpoint{"one": e}), func(t *testing.T, r *Report, j *Journal) {
		if most.Load() != 4 {
			t.Errorf("at most %d at once, want 4", most.Load())
		}
		if got := math.Round(j.groups[0].Seconds); got != 3 {
			t.Errorf("12 turns of 1 s, 4 at once, took %g s, want 3", got)
		}
		if r.Cells[0].Arms[0].Turn1.TTFT.Conversations != 12 {
			t.Errorf("%d conversations, want 12", r.Cells[0].Arms[0].Turn1.TTFT.Conversations)
		}
	})
}

// Exponential think times are the same on both arms and have the mean that was asked for.
func TestThinkTimes(t *testing.T) {
	t.Parallel()
	p := smallPlan("one", "two")
	p.Repeats, p.Turns, p.Thinks = 1, 100, []ThinkTime{{2 * time.Second, true}}
	p.New, p.Warmup = 1, 0
	virtual(t, p, hosts(map[string]*endpoint{"one": {}, "two": {}}), func(t *testing.T, _ *Report, j *Journal) {
		gaps := map[string][]float64{}
		var last TurnRecord
		for _, r := range j.groups[0].turns {
			if r.Turn > 1 {
				gaps[r.Arm] = append(gaps[r.Arm], r.Offset-last.Offset-last.Total)
			}
			last = r
		}
		if diff := cmp.Diff(gaps["one"], gaps["two"], cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 0.01 })); diff != "" {
			t.Errorf("think times differ between arms:\n%s", diff)
		}
		if m := mean(gaps["one"]); m < 1300 || m > 2700 {
			t.Errorf("mean think time %g ms, want about 2000", m)
		}
	})
}
