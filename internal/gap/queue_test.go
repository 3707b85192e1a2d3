package gap

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const msec = time.Millisecond

func job(key string, costMs float64) Job[string] {
	return Job[string]{Key: key, CostMs: costMs, Until: time.Hour}
}

// startAll starts what may start and returns the keys, in order.
func startAll(q *Queue[string], now time.Duration, turns int) (keys []string) {
	for {
		j, ok, _ := q.Next(now, turns)
		if !ok {
			return keys
		}
		keys = append(keys, j.Key)
	}
}

func TestQueueShortestFirst(t *testing.T) {
	t.Parallel()
	q := &Queue[string]{Running: 2, Waiting: 10, Share: 0.25}
	for _, j := range []Job[string]{job("long", 900), job("short", 10), job("middle", 100)} {
		if gone := q.Add(j); gone != nil {
			t.Fatalf("Add(%v) = %v", j, gone)
		}
	}
	soon := job("soon", 1)
	soon.NotBefore = time.Second
	q.Add(soon)
	if diff := cmp.Diff([]string{"short", "middle"}, startAll(q, 0, 0)); diff != "" {
		t.Errorf("started first (-want +got):\n%s", diff)
	}
	q.Finished()
	q.Finished()
	if diff := cmp.Diff([]string{"soon", "long"}, startAll(q, time.Second, 0)); diff != "" {
		t.Errorf("started next (-want +got):\n%s", diff)
	}
}

func TestQueueNewestOfAConversation(t *testing.T) {
	t.Parallel()
	q := &Queue[string]{Running: 1, Waiting: 2}
	q.Add(job("a", 10))
	if diff := cmp.Diff([]Job[string]{job("a", 10)}, q.Add(job("a", 20))); diff != "" {
		t.Errorf("replaced (-want +got):\n%s", diff)
	}
	q.Add(job("b", 30))
	// Too many: the longest has to go, which may be the new one.
	if diff := cmp.Diff([]Job[string]{job("c", 40)}, q.Add(job("c", 40))); diff != "" {
		t.Errorf("no room for the longest (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Job[string]{job("b", 30)}, q.Add(job("d", 5))); diff != "" {
		t.Errorf("no room for the longest (-want +got):\n%s", diff)
	}
	if j, ok := q.Remove("a"); !ok || j != job("a", 20) {
		t.Errorf("Remove(a) = %v, %v", j, ok)
	}
	if _, ok := q.Remove("a"); ok || q.Len() != 1 {
		t.Errorf("removed twice, %d left", q.Len())
	}
}

func TestQueueBudget(t *testing.T) {
	t.Parallel()
	q := &Queue[string]{Running: 10, Waiting: 10, Share: 0.1}
	for i := range 3 {
		q.Add(job(fmt.Sprint(i), 100+float64(i)))
	}
	// Turns are there, and nothing has been saved up.
	if got := startAll(q, 0, 1); got != nil {
		t.Fatalf("started %v", got)
	}
	if got, want := q.Wake(0, 1), msec; got != want {
		t.Errorf("Wake = %v, want %v", got, want)
	}
	// A tenth of the time is theirs: the first one takes what has come up and more, the next one waits for it.
	if diff := cmp.Diff([]string{"0"}, startAll(q, 10*msec, 1)); diff != "" {
		t.Errorf("started (-want +got):\n%s", diff)
	}
	if got, least := q.Wake(10*msec, 1), 1000*msec; got < least || got > least+20*msec {
		t.Errorf("Wake = %v, want about %v", got, least)
	}
	if got := startAll(q, 995*msec, 1); got != nil {
		t.Errorf("started %v before its share had come up", got)
	}
	if diff := cmp.Diff([]string{"1"}, startAll(q, 1010*msec, 1)); diff != "" {
		t.Errorf("started (-want +got):\n%s", diff)
	}
	// The turns have gone.
	if diff := cmp.Diff([]string{"2"}, startAll(q, 1011*msec, 0)); diff != "" {
		t.Errorf("started (-want +got):\n%s", diff)
	}
}

// TestQueueNoShare: nothing starts while turns are there, and nobody looks every millisecond whether it may.
func TestQueueNoShare(t *testing.T) {
	t.Parallel()
	q := &Queue[string]{Running: 1, Waiting: 1}
	q.Add(job("a", 10))
	if got := startAll(q, time.Minute, 1); got != nil {
		t.Fatalf("started %v", got)
	}
	if got, want := q.Wake(time.Minute, 1), time.Hour; got != want {
		t.Errorf("Wake = %v, want %v, when the job is worth nothing any more", got, want)
	}
	if got, want := q.Wake(time.Minute, 0), time.Minute+msec; got != want {
		t.Errorf("Wake = %v without turns, want %v", got, want)
	}
}

func TestQueueFinishedTwice(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	new(Queue[string]).Finished()
}

// copyOf is q, to ask what it would do.
func copyOf[K comparable](q *Queue[K]) *Queue[K] {
	c := *q
	c.jobs = slices.Clone(q.jobs)
	return &c
}

// TestQueueAnyOrder does anything in any order, beside a list of what must be in the queue.
func TestQueueAnyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		q := &Queue[int]{
			Running: rapid.IntRange(0, 3).Draw(t, "running"), Waiting: rapid.IntRange(0, 5).Draw(t, "waiting"),
			Share: rapid.SampledFrom([]float64{0.01, 0.25, 1}).Draw(t, "share"),
		}
		var (
			now            time.Duration
			waiting        = map[int]Job[int]{}
			running        int
			charged, most  float64 // ms of jobs started beside turns
			limit, elapsed = q.Running, 0.0
		)
		out := func(what string, j Job[int]) {
			if have, ok := waiting[j.Key]; !ok || have != j {
				t.Fatalf("%s %+v, which is not in the queue", what, j)
			}
			delete(waiting, j.Key)
		}
		next := func(turns int) bool {
			before := copyOf(q)
			j, ok, expired := q.Next(now, turns)
			for _, e := range expired {
				if e.Until > now {
					t.Fatalf("%+v expired at %v", e, now)
				}
				out("expired", e)
			}
			for _, left := range waiting {
				if left.Until <= now {
					t.Fatalf("%+v is still there at %v", left, now)
				}
			}
			if !ok {
				for _, left := range waiting {
					if left.NotBefore <= now && running < limit && turns == 0 {
						t.Fatalf("%+v does not start at %v, though P has nothing to do", left, now)
					}
				}
				return false
			}
			out("started", j)
			running++
			switch {
			case running > limit:
				t.Fatalf("%d at once, at most %d", running, limit)
			case j.NotBefore > now:
				t.Fatalf("%+v starts at %v", j, now)
			}
			for _, left := range waiting {
				if left.NotBefore <= now && left.CostMs < j.CostMs {
					t.Fatalf("%+v starts before %+v, which is shorter", j, left)
				}
			}
			if turns > 0 {
				charged, most = charged+j.CostMs, max(most, j.CostMs)
				if bound := q.Share*elapsed + maxBudget + most; charged > bound+1e-6 {
					t.Fatalf("%v ms started beside turns in %v ms, at most %v; before: %+v", charged, elapsed, bound, before)
				}
			}
			return true
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"add", "add", "next", "next", "next", "finish", "remove", "limits", "pass"}).Draw(t, "what") {
			case "add":
				j := Job[int]{
					Key: rapid.IntRange(0, 6).Draw(t, "key"), CostMs: float64(rapid.IntRange(0, maxBudget).Draw(t, "cost")),
					NotBefore: now + time.Duration(rapid.IntRange(-500, 2000).Draw(t, "not before"))*msec,
				}
				j.Until = max(j.NotBefore, now) + time.Duration(rapid.IntRange(0, 20_000).Draw(t, "for"))*msec
				gone := q.Add(j)
				old, had := waiting[j.Key]
				if had {
					if len(gone) == 0 || gone[0] != old {
						t.Fatalf("Add(%+v) = %+v with %+v there", j, gone, old)
					}
					out("replaced", old)
					gone = gone[1:]
				}
				waiting[j.Key] = j
				for _, g := range gone {
					out("dropped", g)
					for _, left := range waiting {
						if left.CostMs > g.CostMs {
							t.Fatalf("dropped %+v with the longer %+v there", g, left)
						}
					}
				}
				if len(gone) > 0 && len(waiting) < q.Waiting {
					t.Fatalf("dropped %+v, though only %d wait", gone, len(waiting))
				}
			case "remove":
				key := rapid.IntRange(0, 6).Draw(t, "key")
				j, ok := q.Remove(key)
				if _, had := waiting[key]; had != ok {
					t.Fatalf("Remove(%d) = %v", key, ok)
				}
				if ok {
					out("removed", j)
				}
			case "finish":
				if running > 0 {
					q.Finished()
					running--
				}
			case "limits":
				q.Running = rapid.IntRange(0, 3).Draw(t, "running")
				limit = max(running, q.Running) // what runs goes on
			case "pass":
				d := time.Duration(rapid.IntRange(0, 30_000).Draw(t, "pass")) * msec
				now += d
				elapsed += float64(d / msec)
			case "next":
				turns := rapid.IntRange(0, 2).Draw(t, "turns")
				limit = q.Running
				if running > limit {
					limit = running
				}
				for next(turns) {
				}
				awake(t, q, now, turns)
			}
			if q.Len() != len(waiting) || q.Len() > q.Waiting {
				t.Fatalf("%d wait, want %d, at most %d", q.Len(), len(waiting), q.Waiting)
			}
		}
		// Whatever is left comes out in the end.
		q.Running, limit = running+100, running+100
		for i := 0; q.Len() > 0; i++ {
			if i > 100 {
				t.Fatalf("%d never come out", q.Len())
			}
			for next(0) {
			}
			if q.Len() > 0 {
				at := q.Wake(now, 0)
				if at <= now {
					t.Fatalf("Wake = %v at %v with %d waiting", at, now, q.Len())
				}
				elapsed += float64((at - now) / msec)
				now = at
			}
		}
		if len(waiting) > 0 {
			t.Fatalf("lost: %v", waiting)
		}
	})
}

// awake checks that Wake is not after the time at which Next has something to say: a job starts, or one is worth
// nothing any more. Nothing is left to be said at now.
func awake(t *rapid.T, q *Queue[int], now time.Duration, turns int) {
	at := q.Wake(now, turns)
	if q.running >= q.Running {
		return // first one of them has to finish
	}
	if at != 0 && at <= now {
		t.Fatalf("Wake = %v at %v", at, now)
	}
	probes := []time.Duration{now + msec, now + time.Second, now + time.Minute, now + 24*time.Hour}
	for _, j := range q.jobs {
		probes = append(probes, j.NotBefore, j.Until, now+time.Duration(-q.budget/q.Share*float64(msec))+2*msec)
	}
	for _, probe := range probes {
		if probe <= now || at != 0 && probe >= at {
			continue
		}
		if j, ok, expired := copyOf(q).Next(probe, turns); ok || len(expired) > 0 {
			t.Fatalf("Wake = %v at %v, but at %v Next = %+v, %v, %+v", at, now, probe, j, ok, expired)
		}
	}
	// And it leads somewhere: looking when told to is looking a few times.
	c := copyOf(q)
	for i := 0; c.Len() == q.Len() && c.Len() > 0; i++ {
		if i > 20 {
			t.Fatalf("Wake = %v, and 20 times later there is still nothing to do", at)
		}
		now = c.Wake(now, turns)
		c.Next(now, turns)
	}
}
