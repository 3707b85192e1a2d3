package analyze

import (
	"bytes"
	"compress/gzip"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"github.com/tarik-kv/tarik/internal/telemetry"
)

// All files of testdata/formats tell of the same traffic, each in the form of another log:
//
//	conversation A  0 s 1000, 20 s 1400, 50 s 1900, 600 s 2500 prompt tokens; B  5 s 800, 905 s 1000
//
// So 4 follow-ups, Σ min = 1000+1400+1900+800 of Σ this = 1400+1900+2500+1000, and two of four gaps over 480 s.
func TestFormats(t *testing.T) {
	t.Parallel()
	type same struct {
		FollowUps, Requests, Conversations int64
		Share, Late                        string
		Total                              int64
		Unit, Format                       string
	}
	const truth, late = "0.750000", "0.500000"
	for _, c := range []struct {
		file, format, unit string
		cached             int64 // requests with a cached count of the log's own
		content            bool  // content is known: by content it is the same
		skipped, bad       int64
		durations          bool
		fields             map[string]string
	}{
		{file: "minimal.jsonl", format: "JSON lines"},
		{file: "milliseconds.jsonl", format: "JSON lines"},
		{file: "relative.jsonl", format: "JSON lines"},
		{file: "receipts.jsonl", format: "tarik receipts", cached: 6, skipped: 1, durations: true},
		{file: "envoy.jsonl", format: "Envoy access log", skipped: 3, durations: true},
		{file: "nginx.jsonl", format: "nginx access log", unit: "bytes", durations: true},
		{file: "litellm.jsonl", format: "LiteLLM", durations: true},
		{file: "litellm-callback.jsonl", format: "LiteLLM", durations: true},
		{file: "langfuse.json", format: "Langfuse", cached: 6, skipped: 1, durations: true},
		{file: "otlp.jsonl", format: "OpenTelemetry spans", cached: 6, skipped: 2, durations: true},
		{file: "requests.csv", format: "CSV"},
		{file: "docker.jsonl", format: "JSON lines"},
		{file: "cri.log", format: "JSON lines"},
		{file: "nested.jsonl", format: "request and response dump", fields: map[string]string{"conversation": "request.headers.x-chat"}},
		{file: "claude.jsonl", format: "Claude Code transcript", cached: 6, skipped: 1},
		{file: "mooncake.jsonl", format: "hash trace", content: true},
		{file: "differences.jsonl", format: "hash trace by differences", content: true},
		{file: "text.jsonl", format: "text trace", unit: "characters", content: true},
		{file: "text-no-id.jsonl", format: "text trace", unit: "characters", content: true},
		{file: "vllm-0.8.log", format: "vLLM request log", content: true, skipped: 3},
		{file: "vllm-0.11.log", format: "vLLM request log", content: true, skipped: 6},
	} {
		t.Run(c.file, func(t *testing.T) {
			t.Parallel()
			o := DefaultOptions()
			o.Files, o.Fields = []string{filepath.Join("testdata", "formats", c.file)}, c.fields
			r, err := Run(context.Background(), o)
			if err != nil {
				t.Fatalf("Run = %v (%+v)", err, r)
			}
			total := int64(8600)
			if c.unit == "" {
				c.unit = "tokens"
			}
			got := same{r.FollowUpTurns, r.Requests, r.Conversations, show(r.RepeatedPromptShare), show(r.LateTurnsShare), r.Prompt.Total, r.Unit, ""}
			for f := range r.Input.Formats {
				got.Format += f
			}
			if diff := cmp.Diff(same{4, 6, 2, truth, late, total, c.unit, c.format}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			skipped := int64(0)
			for _, i := range r.Input.Skipped {
				skipped += i.Count
			}
			if skipped != c.skipped || r.Input.BadLines != c.bad {
				t.Errorf("skipped %v, bad %v; want %d and %d", r.Input.Skipped, r.Input.Bad, c.skipped, c.bad)
			}
			if n := r.LogCached; n == nil != (c.cached == 0) || n != nil && n.Requests != c.cached {
				t.Errorf("cached counts of %+v, want of %d requests", n, c.cached)
			}
			if c.content && (r.Share.ContentFollowUps != 4 || show(r.Share.Best) != truth) {
				t.Errorf("by content %s of %d follow-ups, want %s of 4", show(r.Share.Best), r.Share.ContentFollowUps, truth)
			}
			// All logs with durations say two seconds, so the shortest gap of 20 s leaves 18.
			if idle := r.Gaps.Idle; c.durations != (idle.Count == 4) || c.durations && idle.P5 != 18 {
				t.Errorf("idle gaps %+v", idle)
			}
		})
	}
}

// One file is one session; each count stands twice.
func TestCodexTranscript(t *testing.T) {
	t.Parallel()
	o := DefaultOptions()
	o.Files = []string{"testdata/formats/codex.jsonl"}
	r, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Requests != 4 || r.FollowUpTurns != 3 || r.Duplicates != 4 || r.Prompt.Total != 6800 || show(r.LogCached.Share) != "0.500000" {
		t.Errorf("requests %d, follow-ups %d, duplicates %d, total %d, cached %s", r.Requests, r.FollowUpTurns, r.Duplicates, r.Prompt.Total, show(r.LogCached.Share))
	}
}

func TestWholeSessionsInOneDocument(t *testing.T) {
	t.Parallel()
	o := DefaultOptions()
	o.Files = []string{"testdata/formats/kv-cache-tester.json"}
	r, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Requests != 6 || r.FollowUpTurns != 4 || show(r.Share.Best) != "0.750000" {
		t.Errorf("requests %d, follow-ups %d, best %s", r.Requests, r.FollowUpTurns, show(r.Share.Best))
	}
}

// A dump with text but without any id: conversation and prefix are found by content, branches too.
func TestDumpByContent(t *testing.T) {
	t.Parallel()
	log := growing("x", 6, 30, func(int) string { return words("s", 80) })
	log = append(log, growing("y", 4, 40, func(int) string { return words("s", 80) })...)
	for _, l := range log {
		delete(l.(m), "session_id")
	}
	r := report(t, lines(t, log...))
	if r.Conversations != 2 || r.FollowUpTurns != 8 || r.Identity.ByContent != 10 || *r.Share.Best != *r.RepeatedPromptShare || len(r.Findings) > 0 {
		t.Errorf("conversations %d, follow-ups %d, identity %+v, best %s, counts %s, findings %v",
			r.Conversations, r.FollowUpTurns, r.Identity, show(r.Share.Best), show(r.RepeatedPromptShare), codes(r))
	}
}

func TestCompressedAndMixedInput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plain, err := os.ReadFile("testdata/formats/minimal.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	half := bytes.IndexByte(plain[150:], '\n') + 151
	write := func(name string, data []byte) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	var gz, zs bytes.Buffer
	// Two members in one file, as log rotation appends them.
	for _, part := range [][]byte{plain[half:], []byte("\n")} {
		g := gzip.NewWriter(&gz)
		if _, err := g.Write(part); err != nil {
			t.Fatal(err)
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	}
	z, err := zstd.NewWriter(&zs)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(plain[:half]); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	o := DefaultOptions()
	// The later half first: order does not matter. Names do not say how a file is packed.
	o.Files = []string{write("a.log", gz.Bytes()), write("b.log", zs.Bytes())}
	r, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.FollowUpTurns != 4 || show(r.RepeatedPromptShare) != "0.750000" || show(r.LateTurnsShare) != "0.500000" {
		t.Errorf("%d %s %s", r.FollowUpTurns, show(r.RepeatedPromptShare), show(r.LateTurnsShare))
	}
}

// What the router writes today is read, whatever members it has by now.
func TestOwnReceipts(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	rs := telemetry.NewReceipts(8, &b)
	n := func(v int) *int { return &v }
	for i := range 3 {
		rs.Add(telemetry.Receipt{
			Turn: string(rune('a' + i)), Conversation: "a", TurnNumber: i + 1, Time: time.Unix(1760000000+int64(60*i), 0).UTC(),
			Endpoint: "/v1/chat/completions", Model: "m", Arm: "pull", Why: "verified", PromptTokens: 1000 + 500*i, OutputTokens: 50,
			PLocalTokens: n(100), PPulledTokens: n(400), PComputedTokens: n(500 + 500*i), TotalMs: 1500, Status: 200,
		})
	}
	if err := rs.Err(); err != nil {
		t.Fatal(err)
	}
	r := report(t, b.String())
	type got struct {
		FollowUps, Total int64
		Share, Cached    string
		Idle             float64
		Formats          map[string]int64
	}
	want := got{2, 4500, show(ratio(2500, 3500)), show(ratio(1500, 4500)), 58.5, map[string]int64{"tarik receipts": 3}}
	if diff := cmp.Diff(want, got{r.FollowUpTurns, r.Prompt.Total, show(r.RepeatedPromptShare), show(r.LogCached.Share), r.Gaps.Idle.P50, r.Input.Formats}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
