package analyze

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnreadableInput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	good := strings.Repeat(`{"conversation_id":"a","ts":1,"prompt_tokens":10}`+"\n", 3000)
	var gz bytes.Buffer
	z := gzip.NewWriter(&gz)
	if _, err := io.WriteString(z, good); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, file, says string
		none             bool // no request was found
	}{
		{"missing", filepath.Join(dir, "missing"), "no such file", false},
		{"directory", dir, "is a directory", false},
		{"empty", write("empty", nil), ErrNoRequests.Error(), true},
		{"blank lines", write("blank", []byte("\n\n  \n")), ErrNoRequests.Error(), true},
		{"xz", write("a.xz", append([]byte{0xfd, '7', 'z', 'X', 'Z', 0}, make([]byte, 600)...)), "xz -dc", true},
		{"zip", write("a.zip", append([]byte("PK\x03\x04"), make([]byte, 600)...)), "unzip -p", true},
		{"cut gzip", write("cut.gz", gz.Bytes()[:gz.Len()-30]), "unexpected EOF", false},
		{"noise", write("noise", bytes.Repeat([]byte{0, 1, 2, 0xff, 0xfe, '\n'}, 500)), ErrNoRequests.Error(), true},
		{"UTF-16", write("utf16", []byte{0xff, 0xfe, '{', 0, '"', 0, 'a', 0}), ErrNoRequests.Error(), true},
		{"broken array", write("array", []byte("[\n{\"ts\":1},\n x")), "want a JSON object", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := DefaultOptions()
			o.Files = []string{c.file}
			r, err := Run(context.Background(), o)
			said := ""
			if err != nil {
				said = err.Error()
			}
			if r != nil {
				said += strings.Join(r.Input.Failed, " ")
			}
			if !strings.Contains(said, c.says) || c.none != errors.Is(err, ErrNoRequests) {
				t.Errorf("said %q (%v), want …%s…", said, err, c.says)
			}
		})
	}
}

// Every line is counted once: as a request, as skipped or as bad, with its place.
func TestBadLinesAreCountedAndPlaced(t *testing.T) {
	t.Parallel()
	r := report(t, strings.Join([]string{
		`{"conversation_id":"a","ts":1,"prompt_tokens":10}`,
		`not a log line`,
		``,
		`{"conversation_id":"a","ts":2,"prompt_tokens":10`,
		`{"conversation_id":"a","ts":"yesterday","prompt_tokens":10}`,
		`{"conversation_id":"a","ts":3,"prompt_tokens":1e99}`,
		`{"conversation_id":"a","ts":3,"prompt_tokens":-1}`,
		`{"conversation_id":"a","ts":3,"prompt_tokens":1.5}`,
		`{"unknown":true}`,
		strings.Repeat(`{"a":`, 2000) + "1" + strings.Repeat("}", 2000),
		`INFO 10-09 08:53:00 [loggers.py:1] nothing`,
		`not a log line either`,
		`{"conversation_id":"a","ts":4,"prompt_tokens":20}`,
	}, "\n"))
	want := []Issue{
		{errUsageRange.Error(), 3, "standard input", 6},
		{badText, 2, "standard input", 2},
		{badJSON, 2, "standard input", 4},
		{badShape, 1, "standard input", 9},
		{badTime, 1, "standard input", 5},
	}
	if diff := cmp.Diff(want, r.Input.Bad); diff != "" {
		// Reasons of the same count are sorted by their words.
		got := map[string]Issue{}
		for _, i := range r.Input.Bad {
			got[i.Reason] = i
		}
		for _, w := range want {
			if got[w.Reason] != w {
				t.Errorf("bad lines: %+v, want %+v", got[w.Reason], w)
			}
		}
	}
	if r.Requests != 2 || r.Input.Lines != 12 || r.Input.BadLines != 9 || r.Input.Skipped[0].Count != 1 {
		t.Errorf("requests %d, lines %d, bad %d, skipped %v", r.Requests, r.Input.Lines, r.Input.BadLines, r.Input.Skipped)
	}
}

// A record longer than the limit is dropped and counted, whatever stands around it.
func TestTooLongLine(t *testing.T) {
	t.Parallel()
	const limit = 3 << 20
	input := "short 1\n" + strings.Repeat("x", limit+2*chunkSize) + "\nshort 2\nshort 3"
	s := splitter{in: bufio.NewReaderSize(strings.NewReader(input), chunkSize), line: 1, limit: limit}
	var got []string
	long := 0
	for {
		j, err := s.next()
		if j != nil {
			long += j.tooLong
			got = append(got, strings.Fields(string(j.data))...)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(strings.Fields("short 1 short 2 short 3"), got); diff != "" || long != 1 || s.line != 4 {
		t.Errorf("long %d, line %d, (-want +got):\n%s", long, s.line, diff)
	}
}

// The same records as lines, as one array, pretty-printed, wrapped in an object, and one after the other.
func TestLayoutsAgree(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/formats/otlp.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	records := strings.Split(strings.TrimSpace(string(data)), "\n")
	pretty := strings.ReplaceAll(strings.Join(records, "\n"), `,"`, ",\n  \"")
	for name, input := range map[string]string{
		"lines":   strings.Join(records, "\n"),
		"CRLF":    strings.Join(records, "\r\n") + "\r\n",
		"array":   "[" + strings.Join(records, ",") + "]",
		"pretty":  "[\n" + strings.ReplaceAll(pretty, "}\n{", "},\n{") + "\n]\n",
		"values":  pretty,
		"wrapped": `{"data":[` + strings.Join(records, ",") + `]}`,
		"BOM":     "\xef\xbb\xbf" + strings.Join(records, "\n"),
	} {
		r := report(t, input)
		if r.Requests != 6 || r.FollowUpTurns != 4 || show(r.RepeatedPromptShare) != "0.750000" || r.Input.BadLines != 0 {
			t.Errorf("%s: requests %d, follow-ups %d, share %s, bad %v", name, r.Requests, r.FollowUpTurns, show(r.RepeatedPromptShare), r.Input.Bad)
		}
	}
}

// A run that is stopped ends at once, also while it waits for a terminal.
func TestStop(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	defer w.Close()
	dir := t.TempDir()
	done := make(chan error, 1)
	go func() {
		o := DefaultOptions()
		o.Files, o.Stdin, o.spillAt, o.TempDir = []string{"-"}, r, 1000, dir
		_, err := Run(ctx, o)
		done <- err
	}()
	if _, err := io.WriteString(w, strings.Repeat(`{"conversation_id":"a","ts":1,"prompt_tokens":10}`+"\n", 50000)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v, want %v", err, context.Canceled)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left on disk: %v, %v", entries, err)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	f := func(says string, set func(*Options)) {
		t.Helper()
		o := DefaultOptions()
		o.Files = []string{"x"}
		set(&o)
		err := o.Validate()
		if err == nil {
			err = errNone
		}
		if !strings.Contains(err.Error(), says) {
			t.Errorf("Validate = %v, want …%s…", err, says)
		}
	}
	f("no error", func(*Options) {})
	f("no file", func(o *Options) { o.Files = nil })
	f("TTL", func(o *Options) { o.TTL = 0 })
	f("block size", func(o *Options) { o.BlockSize = 0 })
	f("memory", func(o *Options) { o.Memory = 1 })
	f("negative", func(o *Options) { o.PrefillRate = -1 })
	f("read once", func(o *Options) { o.Files = []string{"-", "-"} })
	f(`field "chat"`, func(o *Options) { o.Fields = map[string]string{"chat": "x"} })
	f("no member", func(o *Options) { o.Fields = map[string]string{"time": ""} })
}
