package price

import (
	"testing"
	"time"
)

// TestFlatGuess: costs without a context term are learned from the first call on, too, though nothing is
// ever seen of that term.
func TestFlatGuess(t *testing.T) {
	t.Parallel()
	var m Models
	for i := range 3 {
		m.ObserveHandoff(200+50*i, 3*time.Millisecond)
		m.ObservePull(200+50*i, 3*time.Millisecond)
	}
	for name, e := range map[string]Estimate{"handoff": m.Handoff(230), "pull": m.Pull(230)} {
		if e.Ms < 2 || e.Ms > 4 {
			t.Errorf("%s: %+v after three calls of 3 ms", name, e)
		}
	}
}
