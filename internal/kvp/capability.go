package kvp

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Version is a release of the engine: its first three numbers.
type Version struct{ Major, Minor, Patch int }

// Compare orders versions.
func (v Version) Compare(o Version) int {
	return cmp.Or(cmp.Compare(v.Major, o.Major), cmp.Compare(v.Minor, o.Minor), cmp.Compare(v.Patch, o.Patch))
}

func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

// First and last releases whose behaviour is known.
var (
	oldest = Version{0, 21, 0}
	newest = Version{0, 33, 0}
)

// Capability is what an engine can do over HTTP, judged by its version. The release in which a field became true
// stands behind it.
type Capability struct {
	Version Version
	Exact   string // as the engine says it; P and D must agree in it to the letter
	Newer   bool   // newer than what is known, and taken for the newest known

	// Render: the render endpoints exist. An engine that has them closed answers 403 or 404.
	// RenderNeedsFlag (0.30): they are closed without --enable-scale-out.
	Render, RenderNeedsFlag bool

	LeaseHeartbeats bool // 0.22: readers renew P's lease; before, it is fixed
	BlockListExact  bool // 0.25: the list of a handle covers exactly its tokens, see Fields.Consistent
	ExpiryInHandle  bool // 0.26: P refuses a read that comes too late; before, the router's clock is the only guard
	PrefillCached   bool // 0.31: P says how many prompt tokens it did not compute, see Fields.PrefillCached
	ExactPrompt     bool // 0.32: chat and messages take token ids instead of rendering, see WithPromptTokenIDs
	StreamHandle    bool // 0.33: streams of chat and completions carry the handle
}

// since lists the capabilities in the order of the releases that brought them.
var since = []struct {
	from Version
	set  func(c *Capability)
}{
	{oldest, func(c *Capability) { c.Render = true }},
	{Version{0, 22, 0}, func(c *Capability) { c.LeaseHeartbeats = true }},
	{Version{0, 25, 0}, func(c *Capability) { c.BlockListExact = true }},
	{Version{0, 26, 0}, func(c *Capability) { c.ExpiryInHandle = true }},
	{Version{0, 30, 0}, func(c *Capability) { c.RenderNeedsFlag = true }},
	{Version{0, 31, 0}, func(c *Capability) { c.PrefillCached = true }},
	{Version{0, 32, 0}, func(c *Capability) { c.ExactPrompt = true }},
	{Version{0, 33, 0}, func(c *Capability) { c.StreamHandle = true }},
}

// CapabilityOf returns what the engine that calls itself version can do. version is what GET /version says, such as
// 0.33.0, 0.33.1rc1.dev3+g123 or v0.25.1.
//
// A release candidate or development build of a release that brought something is not trusted to have it yet. The
// error says what is wrong in words for an operator: an engine before 0.21 returns no handles.
func CapabilityOf(version string) (Capability, error) {
	v, early, err := parseVersion(version)
	if err != nil {
		return Capability{}, err
	}
	if v.Compare(oldest) < 0 || early && v == oldest {
		return Capability{}, fmt.Errorf("engine version %q: decode engines return handles since %v; run %v or newer", version, oldest, oldest)
	}
	c := Capability{Version: v, Exact: version, Newer: Version{v.Major, v.Minor, 0}.Compare(newest) > 0}
	for _, s := range since {
		if at := v.Compare(s.from); at > 0 || at == 0 && !early {
			s.set(&c)
		}
	}
	return c, nil
}

// HandleInReply reports whether D's reply carries the handle where this router can take it.
func (c Capability) HandleInReply(e Endpoint, streaming bool) bool {
	switch {
	case c.Version == Version{}:
		return false
	case !streaming || e == Responses:
		return true
	case e == Chat || e == Completions:
		return c.StreamHandle
	}
	return false // streams of messages never do
}

// parseVersion reads the numbers at the beginning of a version. early says that it comes before the release of
// these numbers: 0.33.0rc1, 0.33.0.dev5.
func parseVersion(s string) (v Version, early bool, err error) {
	bad := func() (Version, bool, error) {
		return Version{}, false, fmt.Errorf("engine version %q: want a release such as %v", s, newest)
	}
	rest, _, _ := strings.Cut(strings.TrimPrefix(s, "v"), "+")
	numbers := []*int{&v.Major, &v.Minor, &v.Patch}
	for i, n := range numbers {
		end := 0
		for end < len(rest) && '0' <= rest[end] && rest[end] <= '9' {
			end++
		}
		if *n, err = strconv.Atoi(rest[:end]); err != nil || end > 6 {
			return bad()
		}
		rest = rest[end:]
		if i < len(numbers)-1 {
			var dot bool
			if rest, dot = strings.CutPrefix(rest, "."); !dot {
				return bad()
			}
		}
	}
	switch {
	case rest == "", strings.HasPrefix(rest, ".post"):
		return v, false, nil
	case strings.HasPrefix(rest, "rc"), strings.HasPrefix(rest, "a"), strings.HasPrefix(rest, "b"), strings.HasPrefix(rest, ".dev"):
		return v, true, nil
	}
	return bad()
}
