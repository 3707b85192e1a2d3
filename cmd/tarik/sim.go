package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tarik-kv/tarik/internal/sim"
)

// simFlags are those that need more than pflag's own types, or belong together.
type simFlags struct {
	policies                         []string
	model, gpu, link, layout         string
	gpus, pool                       int
	bandwidth, latency, descriptorUs float64
	turns, first, growth             string
	reply, think                     string
	asJSON, plan, showModels         bool
	html                             string
	maxEngines                       int
	gpuCost                          float64
}

// syntheticFlags make up a workload; with a trace they have no effect and are refused.
var syntheticFlags = []string{"requests", "rate", "concurrency", "turns", "first", "growth", "reply", "think", "hidden", "edited", "max-len"}

func simCommand() *cobra.Command {
	var f simFlags
	o := sim.DefaultOptions()
	w := *o.Synthetic
	c := &cobra.Command{
		Use:   "sim [FILE…|-]",
		Short: "Simulate fleets of prefill and decode engines on a trace or a made-up workload",
		Long: `Plays requests against simulated engines, with the router's own decisions, and says what clients and
engines would see: time to first token, time between tokens, hit rate, pinned memory, load, and how many
requests a second keep the SLO. Policies are compared side by side.

Requests come from distributions (flags below) or from logs: JSON lines or CSV with a conversation, a
time, prompt tokens and output tokens, plain, gzip or zstd. docs/sim.md has formats, model and limits.

--plan searches the smallest fleet that keeps the SLO under that load, for each policy.

Exit status: 0 a report was written; 1 an input could not be read, or no fleet keeps the SLO, or an
output failed; 2 wrong usage.`,
		Example: `  tarik sim
  tarik sim --policy cache,return --prefill 2 --decode 2 --rate 0.05 --think lognormal:30,1
  tarik sim --model Llama-3.1-8B --gpu H100 --layout cross-layer --json
  tarik sim --prefill 4 --decode 4 --html report.html receipts.jsonl
  tarik sim --plan --rate 1 --slo-ttft 1s --slo-itl 40ms --max-engines 64
  tarik sim --show-models > models.json`,
		RunE: func(c *cobra.Command, args []string) error {
			if f.showModels {
				return showModels(c.OutOrStdout())
			}
			*o.Synthetic = w
			report, err := f.apply(c, &o, args)
			if err != nil {
				return err
			}
			debug.SetGCPercent(1000) // many small short-lived things, little that stays
			return f.run(c.Context(), o, report, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	fl := c.Flags()
	fl.StringSliceVar(&f.policies, "policy", policyNames(), "what is done about earlier turns; see docs/sim.md")
	fl.IntVar(&o.Prefills, "prefill", o.Prefills, "prefill engines")
	fl.IntVar(&o.Decodes, "decode", o.Decodes, "decode engines; policy single has as many engines as both together")
	fl.StringVar(&f.model, "model", "Qwen3-32B", "model by name, or a JSON file with one as --show-models prints them")
	fl.BoolVar(&f.showModels, "show-models", false, "print the models that are known, as JSON, and end")
	fl.StringVar(&f.gpu, "gpu", "H200", "GPU by name: "+gpuNames())
	fl.IntVar(&f.gpus, "gpus", 1, "GPUs of one engine")
	fl.IntVar(&f.pool, "pool-tokens", 0, "tokens of KV that one engine holds; 0: what the GPUs have room for")
	fl.StringVar(&f.layout, "layout", sim.LayoutPerLayer, "of KV blocks: "+sim.LayoutPerLayer+", "+sim.LayoutCrossLayer)
	fl.IntVar(&o.BlockSize, "block-size", o.BlockSize, "tokens in a block")
	fl.StringVar(&f.link, "link", "nvlink", "between engines: "+linkNames())
	fl.Float64Var(&f.bandwidth, "link-gbps", 0, "its bandwidth in GB/s; 0: as named")
	fl.Float64Var(&f.latency, "link-latency-ms", -1, "its latency; -1: as named")
	fl.Float64Var(&f.descriptorUs, "descriptor-us", -1, "what posting one descriptor takes; -1: as named")
	fl.IntVar(&o.BatchTokens, "batch-tokens", o.BatchTokens, "prompt tokens that an engine computes in one step")
	fl.IntVar(&o.Streams, "max-seqs", o.Streams, "streams that one D serves at once")
	fl.DurationVar(&o.TTL, "ttl", o.TTL, "how long D keeps a turn's blocks")
	fl.IntVar(&o.Threshold, "threshold", o.Threshold, "P pulls no fewer tokens")
	fl.IntVar(&o.AppendLimit, "append-limit", o.AppendLimit, "tokens that D computes for one append; 0: no limit")
	fl.DurationVar(&o.StallLimit, "stall-limit", o.StallLimit, "how long an append may keep one other stream waiting; 0: no limit")
	fl.Float64Var(&o.StallWeight, "stall-weight", o.StallWeight, "what a millisecond that another stream waits counts against one of the turn's own")
	fl.DurationVar(&o.SLO.TTFT, "slo-ttft", o.SLO.TTFT, "a good request has its first token within this time")
	fl.DurationVar(&o.SLO.ITL, "slo-itl", o.SLO.ITL, "and its other tokens, on average, that far apart")
	fl.Float64Var(&o.SLO.Share, "slo-share", o.SLO.Share, "share of requests that must be good, for --plan")
	fl.IntVar(&w.Requests, "requests", w.Requests, "requests to make up")
	fl.Float64Var(&w.Rate, "rate", w.Rate, "conversations that begin each second")
	fl.IntVar(&w.Concurrency, "concurrency", 0, "conversations that are open at any time, in place of --rate")
	fl.StringVar(&f.turns, "turns", w.Turns.String(), "turns of a conversation: N, exp:MEAN, lognormal:MEDIAN,SIGMA, uniform:LEAST,MOST, geometric:MEAN")
	fl.StringVar(&f.first, "first", w.First.String(), "tokens of the first prompt")
	fl.StringVar(&f.growth, "growth", w.Growth.String(), "tokens that a turn adds to the last prompt and reply")
	fl.StringVar(&f.reply, "reply", w.Reply.String(), "tokens of a reply")
	fl.StringVar(&f.think, "think", w.Think.String(), "seconds from a reply to the next turn")
	fl.Float64Var(&w.Hidden, "hidden", 0, "share of a reply that does not come back in the next prompt, such as reasoning")
	fl.Float64Var(&w.Edited, "edited", 0, "share of turns whose history is cut somewhere")
	fl.IntVar(&w.MaxLen, "max-len", w.MaxLen, "tokens of prompt and reply; a conversation that would get longer ends")
	fl.Float64Var(&o.Speed, "speed", o.Speed, "how much faster than it happened a trace is played")
	fl.Uint64Var(&o.Seed, "seed", o.Seed, "of the made-up workload; the same seed gives the same report")
	fl.IntVar(&o.Cells, "cells", 1, "independent parts that fleet and load are split into, to use more cores")
	fl.BoolVar(&f.plan, "plan", false, "search the smallest fleet that keeps the SLO")
	fl.IntVar(&f.maxEngines, "max-engines", 32, "engines that a plan may use")
	fl.Float64Var(&f.gpuCost, "gpu-cost", 1, "price of one GPU, in any unit, for --plan")
	fl.BoolVar(&f.asJSON, "json", false, "write the report as one JSON object")
	fl.StringVar(&f.html, "html", "", "write the report with charts to this file as well, one self-contained page")
	return c
}

func policyNames() []string {
	var list []string
	for _, p := range sim.Policies {
		list = append(list, string(p))
	}
	return list
}

func gpuNames() string {
	var list []string
	for _, g := range sim.GPUs {
		list = append(list, g.Name)
	}
	return strings.Join(list, ", ")
}

func linkNames() string {
	var list []string
	for name := range sim.Links {
		list = append(list, name)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

func showModels(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(sim.Models)
}

// apply makes options of flags and files. Errors are usage errors unless a file cannot be read.
func (f *simFlags) apply(c *cobra.Command, o *sim.Options, files []string) (*sim.Report, error) {
	usage := func(err error) (*sim.Report, error) { return nil, &usageError{err} }
	for _, p := range f.policies {
		if _, err := sim.ParsePolicy(p); err != nil {
			return usage(fmt.Errorf("--policy: %w", err))
		}
	}
	if len(f.policies) == 0 {
		return usage(errors.New("--policy: want at least one"))
	}
	gpu, err := sim.GPUNamed(f.gpu)
	if err != nil {
		return usage(fmt.Errorf("--gpu: %w", err))
	}
	model, err := loadModel(f.model)
	if err != nil {
		if errors.Is(err, errUnreadable) {
			return nil, fmt.Errorf("--model: %w", err)
		}
		return usage(fmt.Errorf("--model: %w", err))
	}
	link, ok := sim.Links[f.link]
	switch {
	case !ok:
		return usage(fmt.Errorf("--link %q: want %s", f.link, linkNames()))
	case f.layout != sim.LayoutPerLayer && f.layout != sim.LayoutCrossLayer:
		return usage(fmt.Errorf("--layout %q: want %s or %s", f.layout, sim.LayoutPerLayer, sim.LayoutCrossLayer))
	case f.gpus < 1 || f.gpus > 1024:
		return usage(fmt.Errorf("--gpus %d: want 1 to 1024", f.gpus))
	case o.BlockSize < 1:
		return usage(fmt.Errorf("--block-size %d: want 1 or more", o.BlockSize))
	case !f.plan && (c.Flags().Changed("max-engines") || c.Flags().Changed("gpu-cost") || c.Flags().Changed("slo-share")):
		return usage(errors.New("--max-engines, --gpu-cost and --slo-share belong to --plan"))
	case f.plan && (c.Flags().Changed("prefill") || c.Flags().Changed("decode") || c.Flags().Changed("cells")):
		return usage(errors.New("--plan finds --prefill and --decode itself, and has a use for all cores"))
	}
	if f.bandwidth != 0 {
		link.GBPerSecond = f.bandwidth
	}
	if f.latency >= 0 {
		link.LatencyMs = f.latency
	}
	if f.descriptorUs >= 0 {
		link.DescriptorUs = f.descriptorUs
	}
	o.Link = link
	o.Use(model, gpu, f.gpus, f.layout)
	if f.pool != 0 {
		o.PoolTokens = f.pool
	}
	if o.PoolTokens < o.BlockSize && f.pool == 0 {
		return usage(fmt.Errorf("%s does not fit on %d × %s: say --gpus, or --pool-tokens", model.Name, f.gpus, gpu.Name))
	}
	r := &sim.Report{
		Model: model.Name, GPU: gpu.Name, GPUs: f.gpus, Layout: f.layout, Link: link, Costs: o.Costs, KVBytes: o.KVBytes, Pool: o.PoolTokens, BlockSize: o.BlockSize,
		TTL: o.TTL.Seconds(), Seed: o.Seed, Measured: model.MeasuredOn(gpu, f.gpus),
		SLO: sim.ReportSLO{TTFTMs: float64(o.SLO.TTFT) / 1e6, ITLMs: float64(o.SLO.ITL) / 1e6, Share: o.SLO.Share},
	}
	if len(files) > 0 {
		for _, name := range syntheticFlags {
			if c.Flags().Changed(name) {
				return usage(fmt.Errorf("--%s makes requests up; with files it has no effect", name))
			}
		}
		trace, err := readTrace(files, c.InOrStdin())
		if err != nil {
			return nil, err
		}
		o.Synthetic, o.Trace, r.Bad = nil, trace.Rows, trace.Bad
		r.Workload = fmt.Sprintf("%d requests of %s", len(trace.Rows), strings.Join(files, ", "))
		if o.Speed != 1 {
			r.Workload += fmt.Sprintf(", %g times as fast", o.Speed)
		}
	} else {
		if c.Flags().Changed("speed") {
			return usage(errors.New("--speed is for files; --rate says how fast conversations begin"))
		}
		if err := f.distributions(c, o.Synthetic); err != nil {
			return usage(err)
		}
		s := o.Synthetic
		load := fmt.Sprintf("%g conversations/s", s.Rate)
		if s.Concurrency > 0 {
			load = fmt.Sprintf("%d open conversations", s.Concurrency)
		}
		r.Workload = fmt.Sprintf("%d requests, %s of %s turns; prompts %s + %s, replies %s, pauses %s s", s.Requests, load, s.Turns, s.First, s.Growth, s.Reply, s.Think)
	}
	for _, p := range f.policies {
		o.Policy = sim.Policy(p)
		if err := o.Validate(); err != nil {
			return usage(err)
		}
	}
	return r, nil
}

func (f *simFlags) distributions(c *cobra.Command, s *sim.Synthetic) error {
	if s.Concurrency != 0 {
		if c.Flags().Changed("rate") {
			return errors.New("--rate and --concurrency exclude each other")
		}
		s.Rate = 0
	}
	for _, d := range []struct {
		flag, text string
		to         *sim.Dist
	}{{"turns", f.turns, &s.Turns}, {"first", f.first, &s.First}, {"growth", f.growth, &s.Growth}, {"reply", f.reply, &s.Reply}, {"think", f.think, &s.Think}} {
		v, err := sim.ParseDist(d.text)
		if err != nil {
			return fmt.Errorf("--%s %w", d.flag, err)
		}
		*d.to = v
	}
	return nil
}

var errUnreadable = errors.New("cannot be read")

// loadModel finds a model by name, or reads a file if name looks like one.
func loadModel(name string) (sim.Model, error) {
	if !strings.ContainsAny(name, "/\\") && !strings.HasSuffix(name, ".json") {
		return sim.ModelNamed(name)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return sim.Model{}, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var m sim.Model
	if err := dec.Decode(&m); err != nil {
		return sim.Model{}, fmt.Errorf("%s: %w", name, err)
	}
	if dec.More() {
		return sim.Model{}, fmt.Errorf("%s: want one model, not a list", name)
	}
	if err := m.Validate(); err != nil {
		return sim.Model{}, fmt.Errorf("%s: %w", name, err)
	}
	return m, nil
}

func readTrace(files []string, stdin io.Reader) (*sim.Trace, error) {
	var t sim.TraceReader
	for _, name := range files {
		if name == "-" {
			if err := t.Read(name, stdin); err != nil {
				return nil, err
			}
			continue
		}
		if err := readFile(&t, name); err != nil {
			return nil, err
		}
	}
	return t.Done()
}

func readFile(t *sim.TraceReader, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.IsDir() {
		return fmt.Errorf("%s is a directory: name the files in it", name)
	}
	return t.Read(name, file)
}

func (f *simFlags) run(ctx context.Context, o sim.Options, r *sim.Report, stdout, stderr io.Writer) error {
	bad := 0
	for _, b := range r.Bad {
		bad += b.Count
	}
	if bad > 0 {
		fmt.Fprintf(stderr, "warning: %d lines were not read; the first: %s (%s)\n", bad, r.Bad[0].Reason, r.Bad[0].First)
	}
	bar := newStatusLine(stderr)
	defer bar.clear()
	if f.plan {
		p := sim.PlanOptions{MaxEngines: f.maxEngines, GPUs: f.gpus, GPUCost: f.gpuCost}
		for _, name := range f.policies {
			p.Policies = append(p.Policies, sim.Policy(name))
		}
		p.Progress = func(tried int, last sim.Fleet) {
			bar.show(fmt.Sprintf("%d fleets tried, last %s %dP %dD: %.1f %% within the SLO", tried, last.Policy, last.Prefills, last.Decodes, 100*last.Result.GoodShare))
		}
		plan, err := sim.Search(ctx, o, p)
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			return &usageError{err}
		}
		r.Plan = plan
	} else {
		o.Stop = func() bool { return ctx.Err() != nil }
		for _, name := range f.policies {
			o.Policy = sim.Policy(name)
			begin, shown := time.Now(), time.Time{}
			o.Progress = func(done int) {
				if now := time.Now(); now.Sub(shown) > 100*time.Millisecond {
					shown = now
					bar.show(fmt.Sprintf("%s  %d requests  %.0f/s", name, done, float64(done)/time.Since(begin).Seconds()))
				}
			}
			res, err := sim.Run(o)
			if err != nil {
				return &usageError{err}
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			r.Results = append(r.Results, res)
		}
	}
	bar.clear()
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
	if r.Plan != nil && r.Plan.Cheapest == nil {
		return fmt.Errorf("no fleet of at most %d engines keeps the SLO", f.maxEngines)
	}
	return nil
}
