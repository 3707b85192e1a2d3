package router_test

import (
	"strings"
	"testing"
)

// F11: an agent's side query shares the session and not the beginning. It neither takes nor covers
// the main line's handle.
func TestF11SideQuery(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	say := func(body string) (arm, why string) {
		t.Helper()
		h := g.post(t, chatPath, body, "X-Session-Id", "s-1")
		if h.status != 200 {
			t.Fatalf("HTTP %d %s", h.status, h.body)
		}
		rc := g.receipt(t, h)
		return rc.Arm, rc.Why
	}
	say(chat(true, long(300)))
	if arm, why := say(chat(false, strings.Repeat("y", 40))); arm == "pull" || why != "no-common-prefix" {
		t.Errorf("the side query: arm %s why %s, want no-common-prefix", arm, why)
	}
	if arm, why := say(chat(true, long(300), "ok", "go on")); arm != "pull" {
		t.Errorf("the main line after it: arm %s why %s, want a pull", arm, why)
	}
}
