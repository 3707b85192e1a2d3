package main

import (
	"testing"
	"time"

	"github.com/tarik-kv/tarik/internal/bench"
)

func TestBenchProgressLine(t *testing.T) {
	t.Parallel()
	f := func(s bench.Progress, width int, want string) {
		t.Helper()
		if got := benchProgressLine(s, width); got != want {
			t.Errorf("benchProgressLine(%+v, %d) = %q, want %q", s, width, got, want)
		}
	}
	f(bench.Progress{Groups: 60, Cell: "2048 tokens"}, 79, "0 of 60 groups: 2048 tokens")
	f(bench.Progress{Groups: 60, Done: 12, Cell: "2048 tokens", Left: 95 * time.Second, Failures: 2}, 79, "12 of 60 groups, 1m35s left, 2 turns failed: 2048 tokens")
	f(bench.Progress{Groups: 60, Done: 12, Cell: "2048 tokens"}, 10, "12 of 60 g")
}

// Every setting has its flag: a recipe can say nothing that a command line cannot, and the other way round.
func TestBenchFlags(t *testing.T) {
	t.Parallel()
	c := benchCommand()
	s := bench.DefaultSettings()
	s.Override(&s, func(name string) bool {
		if c.Flags().Lookup(bench.Flag(name)) == nil {
			t.Errorf("setting %s has no flag --%s", name, bench.Flag(name))
		}
		return false
	})
}
