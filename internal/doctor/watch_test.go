package doctor

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// at are facts of an idle pair at a time, with P's metrics changed.
func at(t *testing.T, seconds int, change ...func(string) string) *Facts {
	t.Helper()
	m := read(t, "vllm-0.33.0/P.metrics.txt")
	for _, reset := range []func(string) string{bump(mLate, "", -7), bump(mFailed, "", -2), bump(mUsage, "", -0.009628610729023435)} {
		m = reset(m)
	}
	d := m
	for _, c := range change {
		m = c(m)
	}
	f := recorded(t, "0.33.0", m, d)
	f.Time = f.Time.Add(time.Duration(seconds) * time.Second)
	return f
}

// TestLeakAndHangOverTime: what does not move for longer than a lease is a leak, and a parked request that stays is hung.
func TestLeakAndHangOverTime(t *testing.T) {
	t.Parallel()
	held, parked := bump(mUsage, "", 0.02), []func(string) string{bump(mReason, "deferred", 1), bump(mWaiting, "", 1)}
	f := func(first, second *Facts, id string, want ...Severity) {
		t.Helper()
		second.Prefill.Earlier, second.Prefill.EarlierAt = first.Prefill.Before, first.Time
		got := []Severity{}
		for _, x := range result(t, NewReport(second), id).Findings {
			got = append(got, x.Severity)
		}
		if !cmp.Equal(got, append([]Severity{}, want...)) {
			t.Errorf("%s: %v, want %v", id, got, want)
		}
	}
	f(at(t, 0), at(t, 60), "leak-signs")
	f(at(t, 0), at(t, 60, held), "leak-signs", Info)
	f(at(t, 0, held), at(t, 20, held), "leak-signs", Info)                                // within the lease
	f(at(t, 0, held), at(t, 60, held), "leak-signs", Error)                               // beyond it
	f(at(t, 0, held), at(t, 60, held, bump(mSuccess, `"length"`, 1)), "leak-signs", Info) // it has worked since
	f(at(t, 0), at(t, 60, parked...), "hang-signs", Warning)
	f(at(t, 0, parked...), at(t, 60, parked...), "hang-signs", Error)
	f(at(t, 0, parked...), at(t, 60), "hang-signs")
}

func TestCompare(t *testing.T) {
	t.Parallel()
	r := func(usage float64, change ...func(string) string) Report {
		return NewReport(at(t, 0, append(change, bump(mUsage, "", usage))...))
	}
	names := func(list []Change) []string {
		out := []string{}
		for _, c := range list {
			out = append(out, fmt.Sprintf("%s %s", c.Check, c.Severity))
		}
		return out
	}
	f := func(a, b Report, want, gone []string) {
		t.Helper()
		c := Compare(a, b)
		if diff := cmp.Diff([2][]string{want, gone}, [2][]string{names(c.New), names(c.Gone)}); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
	}
	none := []string{}
	f(r(0), r(0), none, none)
	f(r(0.30), r(0.31), none, none) // numbers alone are no news
	f(r(0.30), r(0.01), []string{"leak-signs info"}, []string{"leak-signs warning"})
	f(r(0), r(0, bump(mLate, "", 1)), []string{"late-readers error"}, none)
	f(r(0, bump(mLate, "", 1)), r(0), none, []string{"late-readers error"})
}

// TestWatch: an engine that goes is told once, one that comes back is probed anew.
func TestWatch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var down atomic.Bool
	var calls atomic.Int32
	r.gate[d] = func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if strings.HasSuffix(req.URL.Path, "/completions") {
				calls.Add(1)
			}
			if down.Load() {
				http.Error(w, "down", http.StatusBadGateway)
				return
			}
			next.ServeHTTP(w, req)
		})
	}
	r.start()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var told []string
	var probed []int32
	last, err := Watch(ctx, r.options(), 5*time.Millisecond, func(rep Report, c Changes) error {
		for _, x := range c.New {
			told = append(told, "new "+x.Check)
		}
		for _, x := range c.Gone {
			told = append(told, "gone "+x.Check)
		}
		probed = append(probed, calls.Load())
		switch len(probed) {
		case 1:
			down.Store(true)
		case 2:
			down.Store(false)
		case 3:
			stop()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"new config-known", "new engine-reachable", "gone engine-reachable"}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("told (-want +got):\n%s\n%s", diff, text(last))
	}
	if diff := cmp.Diff([]int32{3, 3, 3}, probed); diff != "" {
		t.Errorf("calls of decode when told (-want +got):\n%s", diff)
	}
}

// TestWatchProbesAgain after an engine was restarted: its counters begin anew.
func TestWatchProbesAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	o := r.options()
	before, err := look(context.Background(), o, nil)
	if err != nil {
		t.Fatal(err)
	}
	same, err := look(context.Background(), o, before)
	if err != nil {
		t.Fatal(err)
	}
	if same.Probe != before.Probe || same.Prefill.Earlier == nil {
		t.Error("the probe was played again for the same engines, or the earlier look is forgotten")
	}
	old := r.urls
	r.start()
	if old == r.urls {
		t.Fatal("BUG: the same addresses")
	}
	o.Prefill, o.Decode = r.urls[p], r.urls[d]
	again, err := look(context.Background(), o, before)
	if err != nil {
		t.Fatal(err)
	}
	if again.Probe == nil || again.Probe == before.Probe {
		t.Error("the probe was not played again for new engines")
	}
}

func TestReborn(t *testing.T) {
	t.Parallel()
	f := func(change func(string) string, want bool) {
		t.Helper()
		a, b := at(t, 0), at(t, 1, change)
		if got := reborn(a.Prefill.Before, b.Prefill.Before); got != want {
			t.Errorf("reborn = %v, want %v", got, want)
		}
	}
	f(replace("nothing", ""), false)
	f(bump(mSuccess, `"length"`, 5), false)
	f(bump(mStart, "", 100), true)
	noStart := replace(mStart, "other")
	f(func(s string) string { return noStart(bump(mSuccess, `"length"`, -5)(s)) }, true)
}
