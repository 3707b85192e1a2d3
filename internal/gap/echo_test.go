package gap

import "testing"

func TestEcho(t *testing.T) {
	t.Parallel()
	var e Echo
	for i := range 3 {
		if e.Sure() {
			t.Fatalf("sure after %d", i)
		}
		e.Saw(true)
	}
	looked := 0
	for range 80 {
		if !e.Sure() {
			looked++
			e.Saw(true)
		}
	}
	if looked != 10 {
		t.Errorf("looked %d times of 80, want 10", looked)
	}
	e.Saw(false)
	if e.Sure() {
		t.Error("sure right after one that came back otherwise")
	}
}
