package sim

import (
	"bytes"
	"compress/gzip"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func readTrace(t testing.TB, text string) (*Trace, error) {
	t.Helper()
	var r TraceReader
	if err := r.Read("t", strings.NewReader(text)); err != nil {
		return nil, err
	}
	return r.Done()
}

func TestTraceFormats(t *testing.T) {
	t.Parallel()
	two := []Row{{Conv: 0, Prompt: 1000, Output: 50, Shared: -1}, {Conv: 0, Prompt: 1200, Output: 60, Shared: -1, Start: 20 * time.Second}}
	for name, c := range map[string]struct {
		text string
		want []Row
	}{
		"the least": {
			`{"conversation_id":"A","ts":1760000000,"prompt_tokens":1000,"completion_tokens":50}` + "\n" +
				`{"conversation_id":"A","ts":1760000020,"prompt_tokens":1200,"completion_tokens":60}`, two,
		},
		"receipts": {
			`{"turn":"a","conversation":"a","turn_number":1,"time":"2026-01-02T03:04:05Z","prompt_tokens":1000,"output_tokens":50,"price":{"arm":"x"}}` + "\n" +
				`{"turn":"b","conversation":"a","turn_number":2,"time":"2026-01-02T03:04:25Z","prompt_tokens":1200,"output_tokens":60,"price":null}`, two,
		},
		"any order, milliseconds": {
			`{"session_id":"A","timestamp":1760000020000,"input_tokens":1200,"output_tokens":60}` + "\n\n" +
				`{"session_id":"A","timestamp":"1760000000000","input_tokens":1000,"output_tokens":50}`, two,
		},
		"csv with conversations": {"session_id,timestamp,prompt_tokens,output_tokens\nA,5,1000,50\nA,25,1200,60\n", two},
		"csv without": {
			"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.9799600,3180,8\n",
			[]Row{{Conv: 0, Prompt: 4808, Output: 10, Shared: -1}, {Conv: 1, Prompt: 3180, Output: 8, Shared: -1, Start: time.Second}},
		},
		"block hashes": {
			`{"timestamp": 0, "input_length": 1600, "output_length": 500, "hash_ids": [0, 1, 2, 3]}` + "\n" +
				`{"timestamp": 3000, "input_length": 700, "output_length": 5, "hash_ids": [0, 9]}` + "\n" +
				`{"timestamp": 9000, "input_length": 2100, "output_length": 7, "hash_ids": [0, 1, 2, 4, 5]}`,
			[]Row{{Conv: 0, Prompt: 1600, Output: 500, Shared: -1}, {Conv: 0, Prompt: 2100, Output: 7, Shared: 1536, Block: 512, Start: 9 * time.Second}, {Conv: 1, Prompt: 700, Output: 5, Shared: -1, Start: 3 * time.Second}},
		},
		"what is shared, in blocks": {
			`{"session":"A","ts":0,"prompt_tokens":200,"output_tokens":9,"shared_prefix_tokens":0,"block_size":64}` + "\n" +
				`{"session":"A","ts":1,"prompt_tokens":300,"output_tokens":9,"shared_prefix_tokens":192,"block_size":64}`,
			[]Row{{Prompt: 200, Output: 9, Block: 64}, {Prompt: 300, Output: 9, Shared: 192, Block: 64, Start: time.Second}},
		},
		"no reply length": {`{"conversation":"A","ts":0,"prompt_tokens":9}`, []Row{{Prompt: 9, Output: usualReply, Shared: -1}}},
	} {
		tr, err := readTrace(t, c.text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(c.want, tr.Rows); diff != "" || len(tr.Bad) > 0 {
			t.Errorf("%s: rows (-want +got), %v:\n%s", name, tr.Bad, diff)
		}
	}
}

func TestTraceCompressed(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(`{"conversation":"A","ts":0,"prompt_tokens":9}`))
	z.Close()
	var r TraceReader
	if err := r.Read("x.gz", bytes.NewReader(b.Bytes())); err != nil {
		t.Fatal(err)
	}
	if tr, err := r.Done(); err != nil || len(tr.Rows) != 1 {
		t.Errorf("%v, %v", tr, err)
	}
	var cut TraceReader
	if err := cut.Read("x.gz", bytes.NewReader(b.Bytes()[:b.Len()-9])); err == nil {
		t.Error("a file that breaks off was read")
	}
}

// What cannot be read is counted, placed and named; what can is used.
func TestTraceBadLines(t *testing.T) {
	t.Parallel()
	tr, err := readTrace(t, `{"conversation":"A","ts":0,"prompt_tokens":9}
nonsense
{"conversation":"A","ts":1}
{"conversation":"A","ts":1,"prompt_tokens":-4}
{"conversation":"A","ts":1,"prompt_tokens":1e300}
{"conversation":"A","ts":"yesterday","prompt_tokens":4}
{"conversation":"A","ts":2,"prompt_tokens":4,"hash_ids":["x"]}
more nonsense
`)
	if err != nil {
		t.Fatal(err)
	}
	want := []BadLine{
		{errJSON.Error(), 2, "t:2"}, {errPrompt.Error(), 1, "t:3"}, {errRange.Error(), 2, "t:4"}, {errTime.Error(), 1, "t:6"}, {"hash_ids are no numbers", 1, "t:7"},
	}
	if diff := cmp.Diff(want, tr.Bad); diff != "" || len(tr.Rows) != 1 {
		t.Errorf("%d rows, bad lines (-want +got):\n%s", len(tr.Rows), diff)
	}
	for _, text := range []string{"", "\n\n", "lorem\nipsum\n", "prompt_tokens,ts\n"} {
		if _, err := readTrace(t, text); !errors.Is(err, ErrNoRows) {
			t.Errorf("%q: %v, want ErrNoRows", text, err)
		}
	}
	if _, err := readTrace(t, `{"ts":0,"prompt_tokens":1}`+"\n"+`{"ts":1760000000,"prompt_tokens":1}`); err == nil || !strings.Contains(err.Error(), "spans") {
		t.Errorf("times of two logs: %v", err)
	}
}

// A trace of hostile numbers is played to its end.
func TestTraceExtremes(t *testing.T) {
	t.Parallel()
	o := DefaultOptions()
	o.Synthetic, o.Policy = nil, Append
	tr, err := readTrace(t, `{"conversation":"A","ts":0,"prompt_tokens":16777216,"output_tokens":16777216}
{"conversation":"A","ts":0,"prompt_tokens":0,"output_tokens":0}
{"conversation":"A","ts":0,"prompt_tokens":0,"output_tokens":0}
{"conversation":"B","ts":300000000,"prompt_tokens":250000,"output_tokens":1}
{"conversation":"B","ts":300000000,"prompt_tokens":1,"output_tokens":1}
{"conversation":"B","ts":300000000,"prompt_tokens":250000,"output_tokens":1}
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range Policies {
		o.Policy, o.Trace = p, tr.Rows
		r, err := Run(o)
		if err != nil || r.Requests != 5 || r.Refused != 1 {
			t.Errorf("%s: %+v, %v", p, r.Requests, err)
		}
	}
}

func FuzzTrace(f *testing.F) {
	f.Add([]byte(`{"conversation_id":"A","ts":1760000000,"prompt_tokens":1000,"completion_tokens":50}`))
	f.Add([]byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"))
	f.Add([]byte(`{"timestamp": 0, "input_length": 1600, "output_length": 500, "hash_ids": [0, 1, 2, 3]}` + "\n" + `{"timestamp": 1, "input_length": 1600, "hash_ids": [0, 1, 2, 3]}`))
	f.Add([]byte("{\"ts\":-1e18,\"prompt_tokens\":\"7\"}\n{\"ts\":9e18,\"prompt_tokens\":7}"))
	f.Add([]byte{0x1f, 0x8b, 8, 0})
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		var r TraceReader
		if r.Read("t", bytes.NewReader(data)) != nil {
			return
		}
		tr, err := r.Done()
		if err != nil {
			return
		}
		bad := 0
		for _, b := range tr.Bad {
			bad += b.Count
		}
		if len(tr.Rows)+bad != tr.Lines {
			t.Fatalf("%d rows and %d bad lines of %d", len(tr.Rows), bad, tr.Lines)
		}
		for i, row := range tr.Rows {
			if row.Prompt < 0 || row.Output < 0 || row.Start < 0 || i > 0 && row.Conv == tr.Rows[i-1].Conv && row.Start < tr.Rows[i-1].Start {
				t.Fatalf("row %d: %+v", i, row)
			}
		}
		if len(tr.Rows) > 50 {
			return
		}
		o := DefaultOptions()
		o.Synthetic, o.Trace, o.Policy = nil, tr.Rows, Append
		res, err := Run(o)
		if err != nil {
			t.Fatal(err)
		}
		if res.Requests+res.Refused < len(tr.Rows) {
			t.Fatalf("%d done and %d refused of %d", res.Requests, res.Refused, len(tr.Rows))
		}
	})
}
