package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/analyze"
)

func TestParseSize(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int64{
		"512MiB": 512 << 20, "2GiB": 2 << 30, "1.5GiB": 3 << 29, "64M": 64 << 20, "1000000": 1e6, "1 KB": 1000, "7B": 7,
	} {
		if got, err := parseSize(in); err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "MiB", "-1", "lots", "1e30", "5 apples"} {
		if got, err := parseSize(in); err == nil {
			t.Errorf("parseSize(%q) = %d, want an error", in, got)
		}
	}
}

func TestProgressLine(t *testing.T) {
	t.Parallel()
	f := func(want string, s analyze.Progress, total int64, elapsed time.Duration, width int) {
		t.Helper()
		if diff := cmp.Diff(want, progressLine(s, total, elapsed, width)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	read := analyze.Progress{Stage: "read", Bytes: 250e6, Requests: 1234}
	f("[#####...............]  25 %  30s left  read  1234 requests  250 MB  25 MB/s", read, 1e9, 10*time.Second, 100)
	f("read  1234 requests  250 MB  25 MB/s", read, 0, 10*time.Second, 100) // standard input has no end that is known
	f("[#####...............]  25 ", read, 1e9, 10*time.Second, 27)
	f("[####################] 100 %  0s left  read  1234 requests  250 MB  25 MB/s", read, 1e8, 10*time.Second, 100)
	f("compare  1234 requests", analyze.Progress{Stage: "compare", Bytes: 250e6, Requests: 1234}, 1e9, 10*time.Second, 100)
}

// Nothing but a terminal sees a progress line.
func TestNoProgressIntoFiles(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	p := newProgress(&b, []string{"-"})
	p.show(analyze.Progress{Stage: "read"})
	p.clear()
	if b.Len() > 0 {
		t.Errorf("wrote %q", b.String())
	}
}
