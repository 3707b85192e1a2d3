package bench

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write golden files anew")

// recorded is a run of three policies on two reference engines.
func recorded(t *testing.T) *Report {
	t.Helper()
	j, err := ReadJournal("testdata/run.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	r, err := j.Report()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestMarkdownReport(t *testing.T) {
	t.Parallel()
	golden(t, "report.golden.md", []byte(text(t, recorded(t))))
}

func TestJSONReport(t *testing.T) {
	t.Parallel()
	b, err := json.MarshalIndent(recorded(t), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "report.golden.json", append(b, '\n'))
}

// The page is well formed, has its plots in it, and loads nothing.
func TestHTMLReport(t *testing.T) {
	t.Parallel()
	r := recorded(t)
	r.Note = `<script>alert("x")</script>` // whatever an operator writes stays text
	var b bytes.Buffer
	if err := r.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(bytes.NewReader(b.Bytes()))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	elements := map[string]int{}
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not well formed: %v", err)
		}
		start, ok := tok.(xml.StartElement)
		if !ok {
			continue
		}
		elements[start.Name.Local]++
		for _, a := range start.Attr {
			if a.Name.Local == "src" || a.Name.Local == "href" || strings.HasPrefix(a.Name.Local, "on") {
				t.Errorf("<%s %s=%q>: the page must need nothing else", start.Name.Local, a.Name.Local, a.Value)
			}
		}
	}
	for _, name := range []string{"script", "link", "iframe", "img"} {
		if elements[name] > 0 {
			t.Errorf("%d <%s>", elements[name], name)
		}
	}
	if n := len(r.settings()); elements["svg"] < 4*n || elements["table"] < 5*n {
		t.Errorf("%d plots and %d tables for %d sections", elements["svg"], elements["table"], n)
	}
	if m := regexp.MustCompile(`(?i)url\(|@import|<!--`).FindString(b.String()); m != "" {
		t.Errorf("the page has %q", m)
	}
	if !strings.Contains(b.String(), "&lt;script&gt;") {
		t.Error("the note is not escaped or not there")
	}
}

// Pages of runs with one length, with none, and without any success can be written.
func TestHTMLOfLittle(t *testing.T) {
	t.Parallel()
	p := smallPlan("one", "two")
	h := &Header{Plan: p, Model: "m"}
	for name, turns := range map[string][]TurnRecord{
		"one turn": {{Type: "turn", Arm: "one", Turn: 1, TTFT: 5, Total: 9}},
		"failures": {{Type: "turn", Arm: "one", Turn: 1, Error: FailCut}},
	} {
		g := group{GroupRecord: GroupRecord{Cell: p.cells()[0]}, turns: turns}
		r := buildReport(h, []group{g}, 7)
		if err := r.WriteHTML(io.Discard); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := r.WriteMarkdown(io.Discard); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestJournalErrors(t *testing.T) {
	t.Parallel()
	f := func(content, want string) {
		t.Helper()
		_, err := ReadJournal(write(t, "j.jsonl", content))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", content, err, want)
		}
	}
	const run = `{"type":"run","format":1}` + "\n"
	f("", "no run in this file")
	f(`{"type":"run","format":1}`, "no run in this file") // torn
	f("hello\n", "line 1: no record of a journal")
	f(`{"type":"turn"}`+"\n", "line 1: a journal begins with a record of type run")
	f(run+run, "line 2: a journal begins with a record of type run")
	f(`{"type":"run","format":9}`+"\n", "format 9, want 1")
	f(run+`{"type":"story"}`+"\n", `line 2: a record of type "story"`)
	j, err := ReadJournal(write(t, "j.jsonl", run))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Report(); !errors.Is(err, ErrNothing) {
		t.Errorf("report of an empty journal: %v, want %v", err, ErrNothing)
	}
}

// FuzzJournal: no file breaks the reader or the report.
func FuzzJournal(f *testing.F) {
	raw, err := os.ReadFile("testdata/run.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	lines := bytes.SplitAfter(raw, []byte("\n"))
	f.Add(bytes.Join(lines[:20], nil))
	f.Add([]byte(`{"type":"run","format":1}` + "\n" + `{"type":"group"}` + "\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		j := &Journal{}
		if _, err := j.read(bytes.NewReader(raw)); err != nil {
			return
		}
		if j.header.Plan.Validate() != nil {
			return
		}
		if r, err := j.Report(); err == nil {
			if err := r.WriteMarkdown(io.Discard); err != nil {
				t.Error(err)
			}
		}
	})
}
