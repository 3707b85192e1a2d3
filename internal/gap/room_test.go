package gap

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/price"
)

// A return that P has no room for does not wait there, and keeps nobody waiting; one that fits goes first.
func TestQueueRoom(t *testing.T) {
	t.Parallel()
	q := NewQueue[string]()
	q.Add(Job[string]{Key: "long", CostMs: 1, Until: time.Minute, Tokens: 40_000, Handle: true})
	q.Add(Job[string]{Key: "short", CostMs: 2, Until: time.Minute, Tokens: 10_000})
	q.Room = 20_000
	j, ok, _ := q.Next(0, 0)
	if !ok || j.Key != "short" {
		t.Fatalf("%v, %v: want short", j, ok)
	}
	if j, ok, _ = q.Next(0, 0); ok {
		t.Fatalf("%v was started without room", j)
	}
	if at := q.Wake(0, 0); at != time.Minute {
		t.Errorf("wakes at %v: want the end of its worth", at)
	}
	q.Room = 0
	if j, ok, _ = q.Next(0, 0); !ok || j.Key != "long" {
		t.Errorf("%v, %v: want long, since room is not known", j, ok)
	}
}

func TestQueuePress(t *testing.T) {
	t.Parallel()
	q := NewQueue[string]()
	for _, j := range []Job[string]{{Key: "a", Handle: true}, {Key: "b"}, {Key: "c", Handle: true}} {
		j.Until = time.Minute
		q.Add(j)
	}
	var gone []string
	for _, j := range q.Press() {
		gone = append(gone, j.Key)
	}
	if diff := cmp.Diff([]string{"a", "c"}, gone); diff != "" || q.Len() != 1 {
		t.Errorf("gone (-want +got):\n%s%d left, want 1", diff, q.Len())
	}
}

// While requests wait at D for room, its blocks go back at once, whatever else is decided.
func TestAfterFrees(t *testing.T) {
	t.Parallel()
	var m price.Models
	m.Seed(price.Costs{Recompute: price.Cost{Base: 20, PerToken: 0.1}, Pull: price.Cost{Base: 2, PerToken: 0.004}}, 0.1)
	var h Habit
	var s Survival
	for i := range 100 {
		h.Ended(2)
		h.Continued(2, 5*time.Second)
		s.Saw(time.Duration(i%20)*time.Second, true)
	}
	e := Ended{Number: 2, Prompt: 20_000, Reply: 1000, Ready: 20_000, Handle: true, Until: time.Hour, Load: 0.5}
	p := After(&m, &h, &s, 0, e)
	if p.Choice != Now || p.Free {
		t.Errorf("%+v: want a return with the blocks", p)
	}
	e.DecodeWaits = true
	if p = After(&m, &h, &s, 0, e); p.Choice != Now || !p.Free || p.CostMs < 90 {
		t.Errorf("%+v: want a return that computes the reply", p)
	}
	// A P that loses what it has while D replies would have to compute it all, in the place of others.
	for i := range 600 {
		s.Saw(time.Duration(i%20)*time.Second, i%3 == 0)
	}
	if p = After(&m, &h, &s, 0, e); p.Choice != LetGo {
		t.Errorf("%+v: want nothing done", p)
	}
}
