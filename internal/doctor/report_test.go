package doctor

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write golden files anew")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := "testdata/" + name
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(read(t, name), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// TestGolden writes the report of a recorded pair, as text and as JSON.
func TestGolden(t *testing.T) {
	t.Parallel()
	f := recorded(t, "0.25.1", read(t, "vllm-0.25.1/P.metrics.after.txt"), read(t, "vllm-0.25.1/D.metrics.after.txt"))
	f.Prefill.Log, f.Decode.Log = engineLog(read(t, "vllm-0.25.1/P.start.log")), engineLog(read(t, "vllm-0.25.1/D.start.log"))
	f.Prefill.KV, f.Decode.KV = f.Prefill.Log.KV, f.Decode.Log.KV
	r := NewReport(f)
	golden(t, "recorded.golden", []byte(text(r)))
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "recorded.json.golden", b.Bytes())
	var c bytes.Buffer
	if err := r.WriteText(&c, true); err != nil {
		t.Fatal(err)
	}
	if plain := regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllString(c.String(), ""); plain != text(r) || plain == c.String() {
		t.Error("the coloured report is not the plain one in colours")
	}
}

// TestProbedJSON checks the shape of a probed pair's report, and that it gives nothing away.
func TestProbedJSON(t *testing.T) {
	t.Parallel()
	rep, _ := newRig(t).report()
	var b bytes.Buffer
	if err := rep.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Schema int
		Exit   int
		Probe  []map[string]any
		Left   []string
		Checks []map[string]any
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Schema != 1 || got.Exit != 0 || len(got.Probe) != 10 || got.Left == nil {
		t.Errorf("%s", b.Bytes())
	}
	for _, m := range []struct {
		object map[string]any
		keys   []string
	}{
		{got.Probe[0], []string{"cached_tokens", "engine", "error", "handle_tokens", "ms", "name", "output_tokens", "prompt_tokens", "status", "streamed"}},
		{got.Checks[0], []string{"docs", "findings", "group", "id", "note", "severity", "title"}},
	} {
		var keys []string
		for k := range m.object {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		if diff := cmp.Diff(m.keys, keys); diff != "" {
			t.Errorf("members (-want +got):\n%s", diff)
		}
	}
	// A report holds no handle, no id of an engine and no request.
	for _, secret := range []string{"remote_block_ids", "remote_engine_id", "cmpl-", "cache_salt"} {
		if strings.Contains(b.String(), secret) {
			t.Errorf("the report has %q in it", secret)
		}
	}
}

// TestDocumented: docs/doctor.md has a section for every check, in the same order, and none for another.
func TestDocumented(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	var sections []string
	for _, m := range regexp.MustCompile(`(?m)^### ([a-z0-9-]+)\n\n(.*)`).FindAllStringSubmatch(string(b), -1) {
		sections = append(sections, m[1])
		if len(m[2]) < 40 {
			t.Errorf("%s: explained by %q", m[1], m[2])
		}
	}
	if diff := cmp.Diff(CheckIDs(), sections); diff != "" {
		t.Errorf("sections of docs/doctor.md (-checks +sections):\n%s", diff)
	}
}

func TestChecksAreWellFormed(t *testing.T) {
	t.Parallel()
	ids := CheckIDs()
	name := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	for i, c := range checks() {
		if !name.MatchString(c.id) || slices.Contains(ids[:i], c.id) {
			t.Errorf("%q is no name, or is there twice", c.id)
		}
		for _, h := range c.hides {
			if at := slices.Index(ids, h); at <= i {
				t.Errorf("%s hides %s, which is not behind it", c.id, h)
			}
		}
	}
}

// TestNothingKnown: facts of engines that do not answer do not upset any check.
func TestNothingKnown(t *testing.T) {
	t.Parallel()
	f := &Facts{
		Prefill: &EngineFacts{Role: prefill, URL: "http://p", Err: "dial"}, Decode: &EngineFacts{Role: decode, URL: "http://d", Err: "dial"},
		NoProbe: "an engine does not answer",
	}
	r := NewReport(f)
	if diff := cmp.Diff([]string{"engine-reachable error prefill", "engine-reachable error decode"}, found(r)); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	if r.Exit != 2 || r.Severity != Error {
		t.Errorf("exit %d, severity %s", r.Exit, r.Severity)
	}
}

func TestExitCode(t *testing.T) {
	t.Parallel()
	for s, want := range map[Severity]int{OK: 0, Skipped: 0, Info: 0, Warning: 1, Error: 2} {
		if got := ExitCode(s); got != want {
			t.Errorf("%s: %d, want %d", s, got, want)
		}
	}
}
