package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/tarik-kv/tarik/internal/bench"
	"github.com/tarik-kv/tarik/internal/local"
	"github.com/tarik-kv/tarik/internal/router"
)

// benchFlags are those of the command that are no part of what is measured.
type benchFlags struct {
	recipe, journal, from, json, md, html string
	resume, sameAnswers                   bool
	engines                               engineFlags
}

func benchCommand() *cobra.Command {
	var f benchFlags
	s := bench.DefaultSettings()
	c := &cobra.Command{
		Use:   "bench [--arm NAME=URL…]",
		Short: "Measure arms against each other: with and without reuse, or any endpoints",
		Long: `Plays the same conversations on two or more arms in one run and says what a turn costs on each: TTFT,
time between tokens, totals, errors, with intervals, whether a difference is one, whether the answers
are the same, and what the engines' own counters say has moved.

An arm is an OpenAI-compatible endpoint (NAME=http://router:8000), or a prefill and a decode engine
between which this command plays the router by hand: NAME=pd:http://p:8100,http://d:8200?policy=POLICY,
with policy none, held, return, oracle or append (and &prompt=ids for engines with dummy weights). Without any arm it starts two pairs of reference
engines on this machine, on with reuse and off without.

Turn 1 is kept apart from later turns. Latency counts from when a turn was meant to start. docs/bench.md
has the definitions, the form of the journal and of the JSON report; recipes/ has complete experiments.

Exit status: 0 a report was written, or Ctrl-C; 1 an arm failed its warm-up, a journal or an output failed,
or with --require-same-answers an answer differed; 2 wrong usage.`,
		Example: `  tarik bench
  tarik bench --recipe recipes/published.yaml --html report.html
  tarik bench --arm on=http://router-a:8000 --arm off=http://router-b:8000 --metrics on=http://p:8100,http://d:8200
  tarik bench --arm return='pd:http://p:8100,http://d:8200?policy=return' \
              --arm none='pd:http://p:8100,http://d:8200?policy=none' --journal run.jsonl
  tarik bench --journal run.jsonl --resume …the same arguments…
  tarik bench --from run.jsonl --html report.html`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runBench(c, &s, &f) },
	}
	l := c.Flags()
	l.StringArrayVar(&s.Arms, "arm", nil, "NAME=URL or NAME=pd:P,D?policy=…; the last is the baseline")
	l.StringArrayVar(&s.ColdArms, "cold-arm", nil, "NAME=URL of the same system with P's prefix cache off, for --p-cache off")
	l.StringArrayVar(&s.Metrics, "metrics", nil, "NAME=URL,URL of the engines behind an arm, read before and after each block")
	l.StringArrayVar(&s.ColdMetrics, "cold-metrics", nil, "the same for --cold-arm")
	l.StringArrayVar(&s.Headers, "header", nil, "NAME=Field: value, sent with every request of an arm")
	l.StringArrayVar(&s.KeyEnv, "key-env", nil, "NAME=VARIABLE that holds an arm's key, sent as Authorization: Bearer")
	l.StringArrayVar(&s.Body, "body", nil, `NAME=JSON whose members replace those of each request; null removes one`)
	l.StringVar(&s.Base, "base", "", "arm that the others are compared with (default: the last)")
	l.StringVar(&s.ModelName, "model-name", "", "model to ask for (default: the first that is served)")
	l.IntSliceVar(&s.Lengths, "lengths", nil, "prompt tokens of turn 1 (default: 2048,4096,8192,16384,24576; without arms 512,1024,2048,4096)")
	l.StringSliceVar(&s.PCache, "p-cache", s.PCache, "P's prefix cache: on, off, or both; how off is made is said in the report")
	l.IntSliceVar(&s.Concurrency, "concurrency", nil, "closed loop: conversations at once (default: 1)")
	l.Float64SliceVar(&s.Rate, "rate", nil, "open loop: conversations that arrive per second")
	l.StringSliceVar(&s.Think, "think", nil, "time between a reply and the next turn: 2s, or exp:2s for exponential times (default: 1s; without arms 200ms)")
	l.IntVar(&s.Turns, "turns", s.Turns, "turns of a conversation")
	l.IntVar(&s.New, "new", s.New, "tokens of each user message after the first")
	l.IntVar(&s.Reply, "reply", s.Reply, "tokens of each reply")
	l.BoolVar(&s.VariableReply, "variable-reply", false, "do not send min_tokens: for endpoints that refuse it")
	l.IntVar(&s.Repeats, "repeats", s.Repeats, "how often each combination is measured; below six conversations there are no intervals")
	l.IntVar(&s.Batch, "batch", 0, "conversations in a block (default: as many as run at once; 16 with --rate)")
	l.IntVar(&s.Warmup, "warmup", s.Warmup, "conversations on each arm that are not counted")
	l.StringVar(&s.Separate, "separate", s.Separate, "how arms on the same engines are kept apart: salt, words, none")
	l.IntVar(&s.Seed, "seed", s.Seed, "of texts, order and arrivals")
	l.StringVar(&s.Timeout, "timeout", s.Timeout, "limit of one turn")
	l.StringVar(&s.Settle, "settle", s.Settle, "pause after each block, for what an arm still does")
	l.StringVar(&s.Conversations, "conversations", "", "play these: a directory like test/conversations, or JSON lines of messages")
	l.StringVar(&s.Replay, "replay", "", "replay this trace, each turn at its time")
	l.Float64Var(&s.Speed, "speed", s.Speed, "of a replay")
	l.IntVar(&s.Limit, "limit", 0, "conversations to take from a file (default: all)")
	l.StringVar(&s.Note, "note", "", "a line for the report: hardware, versions, flags of the engines")
	l.StringVar(&f.recipe, "recipe", "", "YAML file with any of the above; flags win")
	l.StringVar(&f.journal, "journal", "", "keep results in this file, one JSON object a line")
	l.BoolVar(&f.resume, "resume", false, "go on with the journal where it ends")
	l.StringVar(&f.from, "from", "", "measure nothing: report from this journal")
	l.StringVar(&f.json, "json", "", "write the report as JSON to this file; - is standard output, instead of the text")
	l.StringVar(&f.md, "md", "", "write the report as Markdown to this file as well")
	l.StringVar(&f.html, "html", "", "write the report as one self-contained page with plots to this file as well")
	l.BoolVar(&f.sameAnswers, "require-same-answers", false, "fail if an arm answered otherwise than the baseline")
	f.engines.add(c)
	return c
}

func runBench(c *cobra.Command, flags *bench.Settings, f *benchFlags) error {
	if f.from != "" {
		j, err := bench.ReadJournal(f.from)
		if err != nil {
			return err
		}
		r, err := j.Report()
		if err != nil {
			return err
		}
		return f.write(r, c.OutOrStdout())
	}
	s := bench.DefaultSettings()
	if f.recipe != "" {
		data, err := os.ReadFile(f.recipe)
		if err != nil {
			return &usageError{fmt.Errorf("--recipe: %w", err)}
		}
		if err := s.ReadRecipe(f.recipe, data); err != nil {
			return &usageError{err}
		}
	}
	s.Override(flags, func(name string) bool { return c.Flags().Changed(bench.Flag(name)) })
	plan, err := s.Plan(os.LookupEnv)
	if err == nil {
		err = plan.Load(&s)
	}
	if err == nil && !s.Embedded() {
		err = plan.Validate()
	}
	if err == nil && f.resume && f.journal == "" {
		err = errors.New("--resume needs --journal")
	}
	if err != nil {
		return &usageError{err}
	}
	if s.Embedded() {
		stop, err := embedded(c.Context(), &plan, f.engines)
		defer stop()
		if err != nil {
			return err
		}
		if err := plan.Validate(); err != nil {
			return &usageError{err}
		}
	}
	o := bench.Surroundings{Version: version()}
	switch {
	case f.resume:
		o.Journal, err = bench.ResumeJournal(f.journal)
	case f.journal != "":
		o.Journal, err = bench.CreateJournal(f.journal)
	}
	if err != nil {
		return fmt.Errorf("--journal: %w", err)
	}
	if o.Journal != nil {
		defer o.Journal.Close()
	}
	bar := newBenchProgress(c.ErrOrStderr())
	o.Progress = bar.show
	r, err := bench.Run(c.Context(), plan, o)
	bar.clear()
	if errors.Is(err, bench.ErrNothing) && c.Context().Err() != nil {
		fmt.Fprintln(c.ErrOrStderr(), "stopped: nothing was measured")
		return nil
	}
	if err != nil {
		return err
	}
	return f.write(r, c.OutOrStdout())
}

// write writes all forms of the report.
func (f *benchFlags) write(r *bench.Report, stdout io.Writer) error {
	asJSON := func(w io.Writer) error { return writeJSON(w, r) }
	for _, out := range []struct {
		flag, name string
		write      func(io.Writer) error
	}{{"json", f.json, asJSON}, {"md", f.md, r.WriteMarkdown}, {"html", f.html, r.WriteHTML}} {
		if out.name == "" || out.name == "-" {
			continue
		}
		if err := writeFile(out.name, out.write); err != nil {
			return fmt.Errorf("--%s: %w", out.flag, err)
		}
	}
	show := r.WriteMarkdown
	if f.json == "-" {
		show = asJSON
	}
	if err := show(stdout); err != nil {
		return err
	}
	for _, a := range r.Answers {
		if f.sameAnswers && a.Equal < a.Compared {
			return fmt.Errorf("%s: %d of %d answers differ from %s's", a.Arm, a.Compared-a.Equal, a.Compared, r.Base)
		}
	}
	return nil
}

// embedded starts pairs of reference engines and routers on this machine and makes them the plan's arms: on with
// reuse, off without; where the plan wants P's prefix cache off, two more whose P runs without one.
func embedded(ctx context.Context, plan *bench.Plan, e engineFlags) (stop func(), err error) {
	var closers []func()
	stop = func() {
		for i := len(closers) - 1; i >= 0; i-- {
			closers[i]()
		}
	}
	w, err := local.Load(e.model)
	if err != nil {
		return stop, err
	}
	plan.Separate = bench.SeparateNone
	if plan.Note == "" {
		plan.Note = fmt.Sprintf("Reference engines as %s, model %s, in the client's own process and on its processors: the arms work, the milliseconds are a toy's.", e.as, w.Name)
	}
	for _, reuse := range []bool{true, false} {
		a := bench.Arm{Name: "off", Header: http.Header{}}
		if reuse {
			a.Name = "on"
		}
		for _, cache := range plan.PCache {
			p, err := startPair(ctx, w, e, reuse, cache == "off")
			if p != nil {
				closers = append(closers, p.close)
			}
			if err != nil {
				return stop, err
			}
			if cache == "off" {
				a.ColdURL, a.ColdMetrics = p.url, p.engines
			} else {
				a.URL, a.Metrics = p.url, p.engines
			}
		}
		if a.URL == "" {
			a.URL, a.Metrics = a.ColdURL, a.ColdMetrics
		}
		plan.Arms = append(plan.Arms, a)
	}
	return stop, nil
}

// enginePair is P, D and a router.
type enginePair struct {
	url     string
	engines []string
	close   func()
}

// startPair starts a pair with P's prefix cache on or off. With reuse off the engines do not transfer from D to P.
func startPair(ctx context.Context, w *local.Weights, e engineFlags, reuse, cold bool) (*enginePair, error) {
	var closers []func()
	p := &enginePair{close: func() {
		for i := len(closers) - 1; i >= 0; i-- {
			closers[i]()
		}
	}}
	for _, role := range []string{"kv_producer", "kv_consumer"} {
		o := e.o
		o.As, o.Listen = e.as, "127.0.0.1:0"
		o.NoPrefixCaching = cold && role == "kv_producer"
		o.KV = fmt.Appendf(nil, `{"kv_connector":"NixlConnector","kv_role":%q,"kv_load_failure_policy":"fail","kv_connector_extra_config":{"bidirectional_kv_xfer":%t}}`, role, reuse)
		engine, err := local.StartEngine(w, o)
		if err != nil {
			return p, err
		}
		closers = append(closers, func() { _ = engine.Close() })
		p.engines = append(p.engines, engine.URL())
	}
	cfg := router.DefaultConfig()
	cfg.Prefill, cfg.Decode, cfg.Reuse = p.engines[0], p.engines[1], reuse
	r, err := router.New(cfg)
	if err != nil {
		return p, err
	}
	closers = append(closers, r.Close)
	front, err := local.Listen("127.0.0.1:0", r.Handler())
	if err != nil {
		return p, err
	}
	closers = append(closers, func() { front.Close(time.Second) })
	p.url = front.URL()
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	return p, r.Ready(ctx)
}

// benchProgress is one line on a terminal, or one line now and then elsewhere.
type benchProgress struct {
	statusLine
	log  io.Writer
	last time.Time
}

// progressEvery is how often a run that is not watched on a terminal says where it is.
const progressEvery = 30 * time.Second

func newBenchProgress(w io.Writer) *benchProgress {
	return &benchProgress{statusLine: newStatusLine(w), log: w, last: time.Now()}
}

func (p *benchProgress) show(s bench.Progress) {
	line := benchProgressLine(s, p.width-1)
	switch {
	case p.out != nil:
		p.statusLine.show(line)
	case time.Since(p.last) >= progressEvery:
		p.last = time.Now()
		fmt.Fprintln(p.log, line)
	}
}

// benchProgressLine says how far a run is, in at most width characters.
func benchProgressLine(s bench.Progress, width int) string {
	line := fmt.Sprintf("%d of %d groups", s.Done, s.Groups)
	if s.Left > 0 {
		line += fmt.Sprintf(", %s left", s.Left.Round(time.Second))
	}
	if s.Failures > 0 {
		line += fmt.Sprintf(", %d turns failed", s.Failures)
	}
	if s.Cell != "" {
		line += ": " + s.Cell
	}
	return line[:min(len(line), width)]
}
