package gap

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	// An agent's turn on a P with time: 500 ms are saved for 50.
	usual := Situation{Likely: 0.9, SavesMs: 500, CostsMs: 50, Load: 0.3, Survives: 0.9, SurvivesAMoment: 0.9, Handle: true, Left: time.Minute, Soonest: time.Second, DecodeUsage: 0.2}
	f := func(want string, change func(*Situation)) {
		t.Helper()
		s := usual
		if change != nil {
			change(&s)
		}
		choice, why := s.Decide()
		if got := fmt.Sprintf("%s: %s", choice, why); got != want {
			t.Errorf("Decide(%+v) = %q, want %q", s, got, want)
		}
	}
	f("now: pays", nil)
	f("now: pays", func(s *Situation) { s.Handle = false })
	f("now: pays", func(s *Situation) { s.Load = 1 })
	f("now: pays", func(s *Situation) { s.DecodeUsage = 1 }) // the sooner D has its blocks back the better
	f("now: pays", func(s *Situation) { s.Likely, s.CostsMs = 0.1, 10 })

	// A P that keeps nothing at all.
	f("hold: held-for-turn", func(s *Situation) { s.Survives, s.SurvivesAMoment = 0.1, 0.2 })
	f("let-go: not-kept", func(s *Situation) { s.Survives, s.SurvivesAMoment, s.Handle = 0.1, 0.2, false })

	// Hardly anybody goes on from here, though P is idle.
	f("let-go: unlikely", func(s *Situation) { s.Likely, s.SavesMs, s.CostsMs, s.Load = 0.02, 500, 500, 0 })
	f("let-go: unlikely", func(s *Situation) { s.Likely = 0 })
	// P lacks nothing, or what it lacks costs others more than it saves.
	f("let-go: not-worth", func(s *Situation) { s.SavesMs = 0 })
	f("let-go: not-worth", func(s *Situation) { s.SavesMs = -20 })
	f("let-go: not-worth", func(s *Situation) { s.Load, s.CostsMs, s.Likely = 1, 500, 0.4 })
	// Neither can be seen, on engines that are fast or not known.
	f("now: pays", func(s *Situation) { s.SavesMs, s.CostsMs = 0, 0 })
	f("let-go: unlikely", func(s *Situation) { s.SavesMs, s.CostsMs, s.Likely = 0, 0, 0.1 })
	// A busy P would compute it on the turn otherwise, which is nearly sure to come.
	f("now: pays", func(s *Situation) { s.Load, s.CostsMs = 1, 500 })

	// P would have lost it by then: D keeps it meanwhile, if it has room and time.
	f("later: held-till-due", func(s *Situation) { s.Survives = 0.3 })
	f("let-go: not-kept", func(s *Situation) { s.Survives, s.Handle = 0.3, false })
	f("let-go: not-kept", func(s *Situation) { s.Survives, s.DecodeUsage = 0.3, 0.5 })
	f("let-go: not-kept", func(s *Situation) { s.Survives, s.Soonest = 0.3, 0 })
	f("let-go: not-kept", func(s *Situation) { s.Survives, s.Soonest = 0.3, time.Minute })
	f("let-go: not-kept", func(s *Situation) { s.Survives, s.Left = 0.3, 0 })
	// It is doubtful whether it pays at all, given that P may lose it.
	f("later: held-till-due", func(s *Situation) { s.Survives, s.Load, s.CostsMs = 0.6, 1, 800 })
}

// TestDecideDirection: more to save, less to pay, a likelier turn, a better cache never turn now into
// something else.
func TestDecideDirection(t *testing.T) {
	t.Parallel()
	share := rapid.Float64Range(0, 1)
	rapid.Check(t, func(t *rapid.T) {
		s := Situation{
			Likely: share.Draw(t, "likely"), SavesMs: rapid.Float64Range(-100, 5000).Draw(t, "saves"), CostsMs: rapid.Float64Range(0, 5000).Draw(t, "costs"),
			Load: share.Draw(t, "load"), Survives: share.Draw(t, "survives"), Handle: rapid.Bool().Draw(t, "handle"),
			Left: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "left")), DecodeUsage: share.Draw(t, "usage"),
			Soonest: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "soonest")),
		}
		choice, why := s.Decide()
		switch {
		case choice == "" || why == "":
			t.Fatalf("Decide = %q, %q", choice, why)
		case choice == Later && (!s.Handle || s.Soonest >= s.Left):
			t.Fatalf("put off, though D will not keep it so long")
		case choice != LetGo && s.Likely*s.SavesMs <= 0:
			t.Fatalf("%s, though nothing can be saved", choice)
		}
		if choice != Now {
			return
		}
		better := s
		better.Likely = max(s.Likely, share.Draw(t, "likelier"))
		better.SavesMs += rapid.Float64Range(0, 1000).Draw(t, "more")
		better.CostsMs *= share.Draw(t, "cheaper")
		better.Load *= share.Draw(t, "idler")
		better.Survives = max(s.Survives, share.Draw(t, "kept better"))
		if choice, why := better.Decide(); choice != Now {
			t.Fatalf("%+v is better than %+v, and is %s: %s", better, s, choice, why)
		}
	})
}
