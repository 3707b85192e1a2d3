package gap

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// talk is a conversation of so many turns.
func (h *Habit) talk(turns int, gap time.Duration) {
	for n := 1; n <= turns; n++ {
		h.Ended(n)
		if n < turns {
			h.Continued(n, gap)
		}
	}
}

func TestProbability(t *testing.T) {
	t.Parallel()
	var nothing Habit
	if got := nothing.Probability(1); got != 0.5 {
		t.Errorf("Probability(1) = %v while nothing is known, want 0.5", got)
	}

	var once Habit // classification, embeddings of a batch job: nobody goes on
	for range 100 {
		once.talk(1, 0)
	}
	if got := once.Probability(1); got >= 0.05 {
		t.Errorf("Probability(1) = %.3f after a hundred requests that nobody went on from, want less than 0.05", got)
	}

	var agent Habit
	for range 5 {
		agent.talk(20, time.Second)
	}
	if got := agent.Probability(7); got <= 0.9 {
		t.Errorf("Probability(7) = %.3f after five agents of 20 turns, want more than 0.9", got)
	}
	for range 50 {
		agent.talk(20, time.Second)
	}
	for _, n := range []int{1, 2, 19} {
		if got := agent.Probability(n); got <= 0.9 {
			t.Errorf("Probability(%d) = %.3f after 55 agents of 20 turns, want more than 0.9", n, got)
		}
	}

	// Both kinds at once: what is asked once says nothing of those that have gone on.
	var both Habit
	for range 40 {
		both.talk(20, time.Second)
		for range 20 {
			both.talk(1, 0)
		}
	}
	if got := both.Probability(1); got >= 0.2 {
		t.Errorf("Probability(1) = %.3f of one in twenty, want less than 0.2", got)
	}
	if got := both.Probability(2); got <= 0.9 {
		t.Errorf("Probability(2) = %.3f of agents, want more than 0.9", got)
	}

	// The traffic changes: a few hundred turns are enough to see it.
	for range 600 {
		agent.talk(1, 0)
	}
	if got := agent.Probability(1); got >= 0.1 {
		t.Errorf("Probability(1) = %.3f, 600 requests after the agents have gone, want less than 0.1", got)
	}
}

// TestProbabilityBounds: shares stay shares, whatever is reported in whatever order.
func TestProbabilityBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var h Habit
		var s Survival
		for range rapid.IntRange(0, 60).Draw(t, "reports") {
			n := rapid.IntRange(-1, 3).Draw(t, "number")
			d := time.Duration(rapid.Int64().Draw(t, "gap"))
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				h.Ended(n)
			case 1:
				h.Continued(n, d) // of turns before this process as well
			default:
				s.Saw(d, rapid.Bool().Draw(t, "there"))
			}
		}
		d := time.Duration(rapid.Int64().Draw(t, "age"))
		for what, p := range map[string]float64{
			"Probability(1)": h.Probability(1), "Probability(2)": h.Probability(2), "Within": h.Within(d), "At": s.At(d),
		} {
			if !(p >= 0 && p <= 1) {
				t.Fatalf("%s = %v, want a share", what, p)
			}
		}
		last := time.Duration(0)
		for q := 0.0; q <= 1; q += 0.125 {
			after, ok := h.Gap(q)
			if after < last || ok && after < leastGap || !ok && after != 0 {
				t.Fatalf("Gap(%v) = %v, %v after %v", q, after, ok, last)
			}
			last = after
		}
	})
}

func TestGap(t *testing.T) {
	t.Parallel()
	var h Habit
	h.talk(3, time.Second)
	if _, ok := h.Gap(0.5); ok {
		t.Error("Gap is known after two gaps")
	}
	h = Habit{}
	// Tools take a second, and every tenth time somebody thinks for a minute.
	for i := range 200 {
		gap := time.Second
		if i%10 == 9 {
			gap = time.Minute
		}
		h.Ended(2)
		h.Continued(2, gap)
	}
	f := func(q float64, want time.Duration) {
		t.Helper()
		// Buckets are half an octave wide, and their upper end is told.
		got, ok := h.Gap(q)
		if !ok || got < want || got > want*3/2 {
			t.Errorf("Gap(%v) = %v, %v, want %v or a little more", q, got, ok, want)
		}
	}
	f(0.1, time.Second)
	f(0.5, time.Second)
	f(0.85, time.Second)
	f(0.95, time.Minute)
	f(1, time.Minute)

	g := func(d time.Duration, want float64) {
		t.Helper()
		if got := h.Within(d); math.Abs(got-want) > 0.02 {
			t.Errorf("Within(%v) = %.3f, want %.2f", d, got, want)
		}
	}
	g(0, 0)
	g(500*time.Millisecond, 0)
	g(2*time.Second, 0.9)
	g(time.Hour, 1)
	if got := new(Habit).Within(time.Second); got != 1 {
		t.Errorf("Within = %v while nothing is known, want 1", got)
	}
}

// TestGapFollows a quantile of what was seen, for any gaps.
func TestGapFollows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		gap := time.Duration(rapid.Int64Range(int64(leastGap), int64(time.Hour)).Draw(t, "gap"))
		var h Habit
		for range 5 {
			h.Continued(1, gap)
		}
		got, ok := h.Gap(rapid.Float64Range(0.01, 1).Draw(t, "q"))
		if !ok || got < gap || float64(got) > float64(gap)*math.Sqrt2*1.0001 {
			t.Fatalf("Gap = %v, %v when all were %v", got, ok, gap)
		}
		if w := h.Within(gap); w != 1 {
			t.Fatalf("Within(%v) = %v when all were as long", gap, w)
		}
	})
}

func TestSurvival(t *testing.T) {
	t.Parallel()
	var s Survival
	near := func(what string, age time.Duration, least, most float64) {
		t.Helper()
		if got := s.At(age); got < least || got > most {
			t.Errorf("%s: At(%v) = %.3f, want %v to %v", what, age, got, least, most)
		}
	}
	near("nothing is known", time.Minute, 0.9, 0.9)

	// What is older than a minute is gone.
	for range 50 {
		s.Saw(5*time.Second, true)
		s.Saw(2*time.Minute, false)
	}
	near("kept", 5*time.Second, 0.95, 1)
	near("kept older", time.Second, 0.9, 1)
	near("lost", 2*time.Minute, 0, 0.1)
	near("lost younger", 10*time.Minute, 0, 0.3)
	near("lost far younger", 2*time.Hour, 0, 0.9)

	// The cache has become larger.
	for range 400 {
		s.Saw(2*time.Minute, true)
	}
	near("kept now", 2*time.Minute, 0.8, 1)
	near("kept older now", time.Minute, 0.9, 1)
}

// TestSurvivalDirection: one more that was kept raises no doubt, one more that was lost no hope, at any age.
func TestSurvivalDirection(t *testing.T) {
	t.Parallel()
	ages := rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.Int64Range(0, int64(3*time.Hour)).Draw(t, "age"))
	})
	rapid.Check(t, func(t *rapid.T) {
		var s Survival
		for range rapid.IntRange(0, 30).Draw(t, "seen") {
			s.Saw(ages.Draw(t, "age"), rapid.Bool().Draw(t, "there"))
		}
		at, seen := ages.Draw(t, "at"), ages.Draw(t, "seen at")
		if bucketOf(at) == bucketOf(seen) {
			return // the older ones there count less from then on
		}
		before := s.At(at)
		more, less := s, s
		if more.Saw(seen, true); bucketOf(seen) > bucketOf(at) && s.kept[bucketOf(seen)].n == 0 && more.At(at) < before {
			t.Fatalf("At(%v) fell from %v to %v when %v was kept", at, before, more.At(at), seen)
		}
		if less.Saw(seen, false); s.kept[bucketOf(seen)].n == 0 && less.At(at) > before {
			t.Fatalf("At(%v) rose from %v to %v when %v was lost", at, before, less.At(at), seen)
		}
	})
}
