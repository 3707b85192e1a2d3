package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tarik-kv/tarik/internal/analyze"
)

// analyzeFlags are those that need more than pflag's own types.
type analyzeFlags struct {
	memory, html string
	fields       []string
	asJSON       bool
}

func analyzeCommand() *cobra.Command {
	var f analyzeFlags
	o := analyze.DefaultOptions()
	c := &cobra.Command{
		Use:   "analyze FILE…|-",
		Short: "Say from traffic logs whether reuse across turns is worth having",
		Long: `Reads request logs and says how much of the prompts comes back from turn to turn, how late, what
keeping it would hold and pin, which pattern breaks the prefix, and whether to go on or to stop.

Formats are recognised by content, line by line; files may be gzip, zstd, bzip2 or tar, in any order
and of any size. At the least a line is {"conversation_id":…,"ts":…,"prompt_tokens":…}. docs/analyze.md
lists the rest: tarik's receipts, vLLM's request log, Envoy, nginx, LiteLLM, Langfuse, OpenTelemetry,
dumps of requests and responses, transcripts of coding agents, public traces.

The report holds salted hashes and numbers, never text. Exit status: 0 a report was written, whatever
it says; 1 nothing could be read, or an input or output failed; 2 wrong usage.`,
		Example: `  tarik analyze receipts.jsonl
  zcat access.log.gz | tarik analyze --json -
  tarik analyze --html report.html --ttl 120s --block-size 128 logs/*.jsonl.zst
  tarik analyze --field conversation=request.headers.x-chat-id dump.jsonl`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{fmt.Errorf("%s needs a file, or - for standard input; see '%s --help'", c.CommandPath(), c.CommandPath())}
			}
			o.Files, o.Stdin = args, c.InOrStdin()
			if err := f.apply(&o); err != nil {
				return &usageError{err}
			}
			if err := o.Validate(); err != nil {
				return &usageError{err}
			}
			debug.SetMemoryLimit(o.Memory)
			return runAnalyze(c.Context(), o, f, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	c.Flags().DurationVar(&o.TTL, "ttl", o.TTL, "how long D keeps a turn's blocks; late turns are counted against it")
	c.Flags().IntVar(&o.BlockSize, "block-size", o.BlockSize, "tokens in a block of the engines' KV cache")
	c.Flags().StringVar(&f.memory, "memory", "512MiB", "memory to use; what does not fit is sorted on disk, encrypted")
	c.Flags().StringVar(&o.TempDir, "temp-dir", "", "directory for sorting (default: the system's)")
	c.Flags().BoolVar(&f.asJSON, "json", false, "write the report as one JSON object")
	c.Flags().StringVar(&f.html, "html", "", "write the report with charts to this file as well, one self-contained page")
	c.Flags().StringArrayVar(&f.fields, "field", nil, "where the log keeps something under another name, ROLE=MEMBER or ROLE=MEMBER.MEMBER…; roles: "+strings.Join(analyze.Roles(), ", "))
	c.Flags().Int64Var(&o.KVBytesPerToken, "kv-bytes-per-token", 0, "KV of one token in bytes, to show pinned tokens in GB; 0 is unknown")
	c.Flags().Float64Var(&o.PrefillRate, "prefill-rate", 0, "prompt tokens that one node computes in a second, for the verdict; 0 is unknown")
	c.Flags().Int64Var(&o.NodeKVTokens, "node-kv-tokens", 0, "tokens of KV that one node holds, for the verdict; 0 is unknown")
	c.Flags().StringVar(&o.Salt, "salt", "", "makes hashes of conversations and tenants comparable between runs (default: random)")
	return c
}

func (f *analyzeFlags) apply(o *analyze.Options) error {
	n, err := parseSize(f.memory)
	if err != nil {
		return fmt.Errorf("--memory %q: %w", f.memory, err)
	}
	o.Memory = n
	o.Fields = map[string]string{}
	for _, s := range f.fields {
		role, path, ok := strings.Cut(s, "=")
		if !ok {
			return fmt.Errorf("--field %q: want ROLE=MEMBER", s)
		}
		o.Fields[role] = path
	}
	return nil
}

// parseSize reads a number of bytes with an optional unit: 512MiB, 2GiB, 1000000, 64M.
func parseSize(s string) (int64, error) {
	units := []struct {
		suffix string
		bytes  int64
	}{
		{"KiB", 1 << 10},
		{"MiB", 1 << 20},
		{"GiB", 1 << 30},
		{"TiB", 1 << 40},
		{"KB", 1e3},
		{"MB", 1e6},
		{"GB", 1e9},
		{"TB", 1e12},
		{"K", 1 << 10},
		{"M", 1 << 20},
		{"G", 1 << 30},
		{"T", 1 << 40},
		{"B", 1},
	}
	number, scale := s, int64(1)
	for _, u := range units {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			number, scale = rest, u.bytes
			break
		}
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || v < 0 || v*float64(scale) > 1<<62 {
		return 0, errors.New("want a size such as 512MiB")
	}
	return int64(v * float64(scale)), nil
}

func runAnalyze(ctx context.Context, o analyze.Options, f analyzeFlags, stdout, stderr io.Writer) error {
	bar := newProgress(stderr, o.Files)
	o.Progress = bar.show
	r, err := analyze.Run(ctx, o)
	bar.clear()
	if err != nil && !errors.Is(err, analyze.ErrNoRequests) {
		return err
	}
	if errors.Is(err, analyze.ErrNoRequests) {
		for _, i := range append(r.Input.Bad, r.Input.Skipped...) {
			fmt.Fprintf(stderr, "%s:%d: %s (%d lines)\n", i.File, i.Line, i.Reason, i.Count)
		}
		for _, f := range r.Input.Failed {
			fmt.Fprintln(stderr, f)
		}
		if r.Input.Lines == 0 && len(r.Input.Failed) == 0 {
			return fmt.Errorf("%w: the input is empty", err)
		}
		return fmt.Errorf("%w in %d lines; see docs/analyze.md for what is understood", err, r.Input.Lines)
	}
	if r.Input.BadLines*100 > r.Input.Lines {
		fmt.Fprintf(stderr, "warning: %d of %d lines were not read; the report says why\n", r.Input.BadLines, r.Input.Lines)
	}
	if f.html != "" {
		if err := writeFile(f.html, r.WriteHTML); err != nil {
			return fmt.Errorf("--html: %w", err)
		}
	}
	write := r.WriteText
	if f.asJSON {
		write = func(w io.Writer) error { return writeJSON(w, r) }
	}
	if err := write(stdout); err != nil {
		return err
	}
	if n := len(r.Input.Failed); n > 0 {
		return fmt.Errorf("%d of %d inputs could not be read to the end; the report covers the rest: %s", n, len(o.Files), r.Input.Failed[0])
	}
	return nil
}

// progress is one line on a terminal that says how far reading has come.
type progress struct {
	statusLine
	total int64 // bytes of all files, 0 if unknown
	begin time.Time
}

func newProgress(w io.Writer, files []string) *progress {
	p := &progress{statusLine: newStatusLine(w), begin: time.Now()}
	if p.out == nil {
		return p
	}
	for _, name := range files {
		info, err := os.Stat(name)
		if name == "-" || err != nil || !info.Mode().IsRegular() {
			p.total = 0
			break
		}
		p.total += info.Size()
	}
	return p
}

func (p *progress) show(s analyze.Progress) {
	if p.out == nil {
		return
	}
	p.statusLine.show(progressLine(s, p.total, time.Since(p.begin), p.width-1))
}

// progressLine writes where a run is: bar, share, speed and the time it will still take.
func progressLine(s analyze.Progress, total int64, elapsed time.Duration, width int) string {
	line := fmt.Sprintf("%s  %d requests", s.Stage, s.Requests)
	if s.Stage == "read" {
		line += fmt.Sprintf("  %.0f MB", float64(s.Bytes)/1e6)
		if sec := elapsed.Seconds(); sec > 0 {
			line += fmt.Sprintf("  %.0f MB/s", float64(s.Bytes)/1e6/sec)
		}
		if total > 0 && s.Bytes > 0 {
			done := min(1, float64(s.Bytes)/float64(total))
			left := time.Duration(float64(elapsed) * (1 - done) / done)
			const cells = 20
			n := int(done * cells)
			line = fmt.Sprintf("[%s%s] %3.0f %%  %s left  %s", strings.Repeat("#", n), strings.Repeat(".", cells-n), 100*done, left.Round(time.Second), line)
		}
	}
	return line[:min(len(line), width)]
}
