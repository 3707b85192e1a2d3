package turn

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tarik-kv/tarik/internal/price"
)

// mutation is a mistake made on purpose, to see whether a world notices.
type mutation string

const (
	none            mutation = ""
	unverified      mutation = "the prompt is not compared with what D holds"
	takeSaysYes     mutation = "the store gives a handle to all who ask"
	cutNumberOnly   mutation = "a cut shortens the number and not the list"
	cutListOnly     mutation = "a cut shortens the list and not the number"
	clampSkipped    mutation = "D's number of tokens is believed"
	handleAgain     mutation = "P is sent the handle again after it failed"
	putBack         mutation = "a handle is put back after use"
	flagsNotFlipped mutation = "P is sent what D returned after an append"
	inputToDecode   mutation = "D is sent what P was sent"
	tenantsMeet     mutation = "conversations are not told apart by tenant"
	clockIgnored    mutation = "a handle is used however old it is"
	trustIgnored    mutation = "a P that has not proved itself is given handles"
	freeForgotten   mutation = "handles that nobody uses are not freed"
	deadlineOff     mutation = "a P call with a handle may take any time"
)

// priced are prices, and by when what they bound must be over for a prompt of n tokens.
func priced(known bool) (p price.Models, bound func(n int) time.Duration) {
	least := 10 * time.Second
	if known {
		p, least = knownPrices(), 2*time.Second
	}
	return p, func(n int) time.Duration { return max(least, p.Recompute(n, 0).Bound()) }
}

// knownPrices are those of a P that computes a token in 40 ms.
var knownPrices = sync.OnceValue(func() (p price.Models) {
	p.Seed(price.Costs{Recompute: price.Cost{PerToken: 40}}, 0)
	return p
})

type seeded struct{ *rand.Rand }

func (s seeded) n(k int) int { return s.IntN(k) }

// play lets a world run for so many events and then to its end.
func (w *world) play(steps int) {
	for w.steps < steps && w.wrong == "" {
		w.next()
	}
	if w.wrong == "" {
		w.settleAll()
	}
}

// story is what happened last.
func (w *world) story() string {
	var b strings.Builder
	for i := max(0, w.steps-len(w.trail)); i < w.steps; i++ {
		s := w.trail[i%len(w.trail)]
		var did []string
		for _, a := range s.actions {
			did = append(did, show(a))
		}
		fmt.Fprintf(&b, "%5d %v: %s → %s\n", i, s.run, tell(s.event), strings.Join(did, "; "))
	}
	return b.String()
}

// tell prints an event in one line.
func tell(ev Event) string {
	switch ev := ev.(type) {
	case Start:
		held := "nothing"
		if ev.Held != nil {
			held = fmt.Sprintf("%s of %d known, %d prompt, request %s", ev.Held.Handle, len(ev.Held.Seq), ev.Held.PromptTokens, ev.Held.Handle.RequestID)
		}
		return fmt.Sprintf("start held=%s guessed=%t await=%s arm=%q plain=%q no-handles=%q no-render=%q", held, ev.Guessed, ev.Await, ev.Arm, ev.Plain, ev.NoHandles, ev.NoRender)
	case ReturnStart:
		held := "nothing"
		if ev.Held != nil {
			held = fmt.Sprintf("%s of %d known, request %s", ev.Held.Handle, len(ev.Held.Seq), ev.Held.Handle.RequestID)
		}
		return fmt.Sprintf("start return held=%s prompt=%d max=%d no-handles=%q", held, ev.PromptTokens, ev.MaxLen, ev.NoHandles)
	case Rendered:
		return fmt.Sprintf("rendered %d ids", len(ev.IDs))
	case RenderedNext:
		return fmt.Sprintf("rendered next, %d and %d ids, tail %d", len(ev.A), len(ev.B), ev.Tail)
	case PrefillDone:
		return fmt.Sprintf("prefill done, status %d, late %t, params %t", ev.Status, ev.Late, ev.Params != nil)
	case DecodeDone:
		return fmt.Sprintf("decode done, clean %t, handle %t, %d output tokens", ev.Clean, ev.Handle != nil, len(ev.Output))
	}
	return fmt.Sprintf("%T%+v", ev, ev)
}

// steps is how many events the seeded worlds see in sum: TARIK_STEPS, or fewer.
func steps(t *testing.T) int {
	n := defaultSteps
	if s := os.Getenv("TARIK_STEPS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

const defaultSteps = 200_000

// worldSteps is how long one world lasts, in events. Short ones are easier to read, long ones get farther.
const worldSteps = 5000

// TestWorld lets turns and returns meet in any order, with engines that fail, and checks after each
// event what must hold (see the list of mutations for what that is).
func TestWorld(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	for seed, left := uint64(1), steps(t); left > 0; seed, left = seed+1, left-worldSteps {
		w := newWorld(seeded{rand.New(rand.NewPCG(seed, 1))}, none)
		w.play(worldSteps)
		if w.wrong != "" {
			t.Fatalf("seed %d, event %d: %s\n%s", seed, w.steps, w.wrong, w.story())
		}
		for k, n := range w.seen {
			seen[k] += n
		}
	}
	t.Log(seen)
	// A world in which nothing happens shows nothing.
	for _, k := range []string{
		"pull", "cut", "release", "kept", "free", "append kept", "guessed", "client gone", "distrust", "hangs",
		"awaited", "awaited in vain", "return pulled", "return done", "return overtaken", "return failed", "return skipped",
		"arm local", "arm pull", "arm append", "arm recompute", "arm plain",
		"why verified", "why cut", "why pull-failed", "why pull-late", "why taken-by-another", "why no-common-prefix", "why handle-not-cutable",
		"why return-ready", "why return-late", "why handle-expired", "why engine-restarted", "why cannot-render",
		"why prefill-unproven", "why prefill-distrusted", "why price", "why decode-failed-once", "why prefill-kept-none",
	} {
		if seen[k] == 0 {
			t.Errorf("no world has seen %q", k)
		}
	}
}

// TestWorldNotices makes one mistake at a time.
func TestWorldNotices(t *testing.T) {
	t.Parallel()
	for _, m := range []struct {
		mut  mutation
		only string // the invariant that notices, alone
	}{
		// These are wrong on their face, and they end in wrong KV.
		{unverified, "I3"},
		{unverified, "I1"},
		{cutNumberOnly, "I3"},
		{cutNumberOnly, "I1"},
		{cutListOnly, "I3"},
		{cutListOnly, "I1"},
		{clampSkipped, "I3"},
		{clampSkipped, "I1"},
		{takeSaysYes, "I2"},
		{handleAgain, "I2"},
		{putBack, "I2"},
		{flagsNotFlipped, "I7"},
		{inputToDecode, "I7"},
		{tenantsMeet, "I4"},
		{clockIgnored, "I1"},
		{trustIgnored, "I7"},
		{freeForgotten, "lost"},
		{deadlineOff, "I6"},
	} {
		t.Run(fmt.Sprintf("%s: %s", m.only, m.mut), func(t *testing.T) {
			t.Parallel()
			for seed, left := uint64(1), defaultSteps; left > 0; seed, left = seed+1, left-worldSteps {
				w := newWorld(seeded{rand.New(rand.NewPCG(seed, 1))}, m.mut)
				w.only = m.only
				w.play(worldSteps)
				if w.wrong != "" {
					t.Logf("seed %d, event %d: %s", seed, w.steps, w.wrong)
					return
				}
			}
			t.Error("not noticed")
		})
	}
}

type drawn struct{ t *rapid.T }

var anyInt = map[int]*rapid.Generator[int]{}

func init() {
	for k := 1; k <= 2000; k++ {
		anyInt[k] = rapid.IntRange(0, k-1)
	}
}

func (d drawn) n(k int) int { return anyInt[k].Draw(d.t, "") }

// TestWorldSmall is TestWorld with worlds that rapid makes small when something is wrong.
func TestWorldSmall(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(drawn{t}, none)
		w.play(rapid.IntRange(1, 120).Draw(t, "steps"))
		if w.wrong != "" {
			t.Fatalf("%s\n%s", w.wrong, w.story())
		}
	})
}
