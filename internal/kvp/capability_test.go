package kvp

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCapabilityOf(t *testing.T) {
	t.Parallel()
	f := func(version, want string) {
		t.Helper()
		c, err := CapabilityOf(version)
		if err != nil {
			t.Fatalf("CapabilityOf(%s): %v", version, err)
		}
		got := c.Version.String()
		for _, b := range []struct {
			name string
			on   bool
		}{
			{"newer", c.Newer},
			{"render", c.Render},
			{"heartbeats", c.LeaseHeartbeats},
			{"exact-list", c.BlockListExact},
			{"expiry", c.ExpiryInHandle},
			{"render-flag", c.RenderNeedsFlag},
			{"cached", c.PrefillCached},
			{"exact-prompt", c.ExactPrompt},
			{"stream", c.StreamHandle},
		} {
			if b.on {
				got += " " + b.name
			}
		}
		if got != want {
			t.Errorf("CapabilityOf(%s)\n got %s\nwant %s", version, got, want)
		}
		if c.Exact != version {
			t.Errorf("Exact = %s, want %s", c.Exact, version)
		}
	}
	const (
		v21 = " render"
		v22 = v21 + " heartbeats"
		v25 = v22 + " exact-list"
		v26 = v25 + " expiry"
		v30 = v26 + " render-flag"
		v31 = v30 + " cached"
		v32 = v31 + " exact-prompt"
		v33 = v32 + " stream"
	)
	f("0.21.0", "0.21.0"+v21)
	f("0.22.1", "0.22.1"+v22)
	f("0.23.0", "0.23.0"+v22)
	f("0.24.0", "0.24.0"+v22)
	f("0.25.1", "0.25.1"+v25)
	f("0.26.0", "0.26.0"+v26)
	f("0.29.0", "0.29.0"+v26)
	f("0.30.0", "0.30.0"+v30)
	f("0.31.0", "0.31.0"+v31)
	f("0.32.0", "0.32.0"+v32)
	f("0.33.0", "0.33.0"+v33)
	f("v0.33.0", "0.33.0"+v33)
	f("0.33.0+cu129", "0.33.0"+v33)
	f("0.33.0.post1", "0.33.0"+v33)
	f("0.33.1rc1.dev3+g123abc", "0.33.1"+v33)
	f("0.34.0", "0.34.0 newer"+v33)
	f("1.0.0", "1.0.0 newer"+v33)
	// builds before a release are not trusted to have what it brought
	f("0.33.0rc1", "0.33.0"+v32)
	f("0.33.0.dev12+gabc", "0.33.0"+v32)
	f("0.33.0b2", "0.33.0"+v32)
	f("0.32.0a1", "0.32.0"+v31)
}

func TestCapabilityRefuses(t *testing.T) {
	t.Parallel()
	old := func(v string) string {
		return fmt.Sprintf("engine version %q: decode engines return handles since 0.21.0; run 0.21.0 or newer", v)
	}
	bad := func(v string) string {
		return fmt.Sprintf("engine version %q: want a release such as 0.33.0", v)
	}
	f := func(version, want string) {
		t.Helper()
		c, err := CapabilityOf(version)
		if err == nil || err.Error() != want || c != (Capability{}) {
			t.Errorf("CapabilityOf(%q) = %+v, %v, want %s", version, c, err, want)
		}
	}
	for _, v := range []string{"0.20.2", "0.11.0", "0.0.0", "0.21.0rc2", "0.1.dev1"} {
		want := old(v)
		if strings.Contains(v, "dev1") {
			want = bad(v) // a build without tags says nothing about what it has
		}
		f(v, want)
	}
	for _, v := range []string{"", "v", "0", "0.33", "0.33.", "a.b.c", "0.33.x", "0.33.0x", "0.33.0-1", "0.1234567.0", "-1.0.0", "unknown"} {
		f(v, bad(v))
	}
}

func TestHandleInReply(t *testing.T) {
	t.Parallel()
	table := func(version string) (got []string) {
		c, err := CapabilityOf(version)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range []Endpoint{Chat, Completions, Responses, Messages} {
			got = append(got, fmt.Sprintf("%v %v %v", e, c.HandleInReply(e, false), c.HandleInReply(e, true)))
		}
		return got
	}
	old := []string{"chat true false", "completions true false", "responses true true", "messages true false"}
	if diff := cmp.Diff(old, table("0.32.0")); diff != "" {
		t.Errorf("0.32 (-want +got):\n%s", diff)
	}
	now := []string{"chat true true", "completions true true", "responses true true", "messages true false"}
	if diff := cmp.Diff(now, table("0.33.0")); diff != "" {
		t.Errorf("0.33 (-want +got):\n%s", diff)
	}
	if (Capability{}).HandleInReply(Chat, false) {
		t.Error("an unknown engine returns handles")
	}
}

func TestVersionCompare(t *testing.T) {
	t.Parallel()
	ordered := []Version{{0, 21, 0}, {0, 21, 1}, {0, 22, 0}, {1, 0, 0}}
	for i, a := range ordered {
		for j, b := range ordered {
			if got, want := a.Compare(b), compareInts(i, j); got != want {
				t.Errorf("%v.Compare(%v) = %d, want %d", a, b, got, want)
			}
		}
	}
}

func compareInts(a, b int) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
