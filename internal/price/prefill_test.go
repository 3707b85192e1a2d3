package price

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestKnowsNothing(t *testing.T) {
	t.Parallel()
	var p Prefill
	if got, want := p.Compute(2000), 2100*time.Millisecond; got != want {
		t.Errorf("Compute(2000) = %s without observations, want the guess of %s", got, want)
	}
}

func TestFindsTheLine(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.Float64Range(0, 200).Draw(t, "base")
		slope := rapid.Float64Range(0.01, 2).Draw(t, "slope")
		var p Prefill
		for i := range 200 {
			n := 100 + 137*i%4000
			p.Observe(n, time.Duration((base+slope*float64(n))*float64(time.Millisecond)))
		}
		for _, n := range []int{0, 500, 10_000} {
			got, want := float64(p.Compute(n))/1e6, base+slope*float64(n)
			if math.Abs(got-want) > 0.01*want+1 {
				t.Fatalf("Compute(%d) = %.1f ms, want %.1f ms", n, got, want)
			}
		}
	})
}

func TestOneLengthOnly(t *testing.T) {
	t.Parallel()
	var p Prefill
	for range 10 {
		p.Observe(1000, time.Second)
	}
	if got := p.Compute(2000); got < 1900*time.Millisecond || got > 2100*time.Millisecond {
		t.Errorf("Compute(2000) = %s after calls of 1000 tokens in 1 s each, want about 2 s", got)
	}
}

func TestForgets(t *testing.T) {
	t.Parallel()
	var p Prefill
	for i := range 1000 {
		p.Observe(500+i%7*100, time.Minute)
	}
	for i := range 300 {
		p.Observe(500+i%7*100, 100*time.Millisecond)
	}
	if got := p.Compute(800); got > time.Second {
		t.Errorf("Compute(800) = %s long after the engine became fast, want about 100 ms", got)
	}
}

// No observations make an estimate negative or absurd.
func TestNeverNegative(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var p Prefill
		for range rapid.IntRange(0, 50).Draw(t, "n") {
			p.Observe(rapid.IntRange(0, 100_000).Draw(t, "tokens"), time.Duration(rapid.IntRange(0, 600_000).Draw(t, "ms"))*time.Millisecond)
		}
		if d := p.Compute(rapid.IntRange(0, 1_000_000).Draw(t, "ask")); d < 0 {
			t.Fatalf("Compute = %s", d)
		}
	})
}
