package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/tarik-kv/tarik/internal/edge"
	"github.com/tarik-kv/tarik/internal/fleet"
	"github.com/tarik-kv/tarik/internal/router"
	"github.com/tarik-kv/tarik/internal/telemetry"
	"github.com/tarik-kv/tarik/internal/tenant"
)

// keptReceipts is how many receipts GET /turns can show, if nothing else is said.
const keptReceipts = 4096

// openReceipts returns where receipts go, and a function that closes them.
func openReceipts(keep int, file string) (*telemetry.Receipts, func() error, error) {
	if file == "" {
		return telemetry.NewReceipts(keep, nil), func() error { return nil }, nil
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("receipts: %w", err)
	}
	r := telemetry.NewReceipts(keep, f)
	return r, func() error { return errors.Join(r.Err(), f.Close()) }, nil
}

func serveCommand() *cobra.Command {
	var (
		v     flagValues
		file  string
		check bool
	)
	c := &cobra.Command{
		Use:   "serve --prefill URL --decode URL",
		Short: "Run the router in front of one prefill and one decode engine",
		Long: `Runs the router in front of one vLLM prefill engine (P) and one decode engine (D).

Clients speak OpenAI's or Anthropic's interface to --listen. What the turns did is at GET /turns on
--admin, with GET /metrics and GET /engines beside it; keep that address private.

Both engines need --kv-transfer-config with bidirectional_kv_xfer true; docs/serve.md has the launch
lines. An engine that does not answer yet is waited for.

Everything else, such as who may come in, limits, TLS and keys of the engines, is in a file given with
--config; docs/config.md lists what it can say. Flags override it. SIGHUP reads the files it names
again. Ctrl-C lets turns in progress end; a second one does not wait.`,
		Example: `  tarik serve --prefill http://10.0.0.1:8000 --decode http://10.0.0.2:8000
  tarik serve --prefill http://p:8000 --decode http://d:8000 --listen :80 --receipts turns.jsonl
  tarik serve --config tarik.yaml --check
  curl -s http://127.0.0.1:9091/turns?n=1`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := loadConfig(file, v, c.Flags().Changed)
			if err != nil {
				return err
			}
			if check {
				return cfg.check(c.OutOrStdout(), os.LookupEnv)
			}
			return serve(c.Context(), cfg, c.ErrOrStderr())
		},
	}
	d := defaultConfig()
	f := c.Flags()
	f.StringVar(&file, "config", "", "YAML file with everything that can be said; flags override it")
	f.BoolVar(&check, "check", false, "read the configuration and the files it names, say what would run, and end")
	f.StringVar(&v.Prefill, "prefill", "", "URL of the prefill engine")
	f.StringVar(&v.Decode, "decode", "", "URL of the decode engine")
	f.StringVar(&v.Listen, "listen", d.Listen.Address, "address for clients")
	f.StringVar(&v.Admin, "admin", d.Admin.Address, "address for operators: /turns, /metrics, /engines")
	f.BoolVar(&v.Reuse, "reuse", d.Reuse, "give P the handles that D returns; false leaves only the engines' own prefix caches")
	f.BoolVar(&v.Return, "return", d.Return, "prepare P for the next turn after each one; false holds handles until the next turn")
	f.BoolVar(&v.Append, "append", d.Append, "let D serve a turn alone when that is cheaper and its other streams can bear it")
	f.IntVar(&v.Threshold, "recompute-threshold", int(d.RecomputeThreshold), "P's kv_recompute_threshold, in tokens")
	f.DurationVar(&v.HandleTTL, "handle-ttl", time.Duration(d.HandleTTL), "D's decoder_kv_blocks_ttl; handles are used until 30s before")
	f.DurationVar(&v.Drain, "drain", time.Duration(d.Shutdown.Drain), "how long turns in progress may take to end when the router stops")
	f.Int64Var(&v.MaxBody, "max-body", int64(d.Limits.Body), "largest request in bytes, also after decompression; more is answered with 413")
	f.StringVar(&v.Receipts, "receipts", "", "append the receipt of every turn to this file, one JSON object a line")
	f.StringVar(&v.LogLevel, "log-level", d.Log.Level, "what is logged: debug, info, warn, error")
	f.StringVar(&v.LogFormat, "log-format", d.Log.Format, "how it is logged: text, json")
	return c
}

// serve runs what c says until ctx ends.
func serve(ctx context.Context, c config, stderr io.Writer) (err error) {
	log, err := (&logFlags{c.Log.Level, c.Log.Format}).logger(stderr)
	if err != nil {
		return err
	}
	for _, w := range c.warnings() {
		log.Warn(w)
	}
	receipts, closeReceipts, err := openReceipts(int(c.Receipts.Keep), c.Receipts.File)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeReceipts()) }()

	registry := prometheus.NewRegistry()
	metrics := edge.NewMetrics(registry)
	gate, err := tenant.New(c.Tenants, tenant.Deps{})
	if err != nil {
		return &usageError{err}
	}
	metrics.Watch(registry, gate.Limiter)
	if gate.Isolated() && !gate.SaltsLast() {
		log.Warn("salts are made of a secret of this process: after a restart the engines' caches are cold, and replicas do not share them", "hint", "set tenants.salts.secrets_file")
	}
	engines, err := edge.NewEngines([]edge.EngineConfig{c.Prefill, c.Decode}, edge.EngineOptions{
		Base: router.Transport(), Authenticates: c.authenticates(), Lookup: os.LookupEnv, Log: log, Metrics: metrics,
	})
	if err != nil {
		return &usageError{err}
	}
	rc := c.router()
	rc.Receipts, rc.Log, rc.Registry, rc.Transport, rc.Salt = receipts, log, registry, engines, gate.Salt
	for _, p := range c.Passthrough {
		pass := router.Pass{Path: p.Path, Methods: p.Methods}
		if p.Engine != "any" {
			pass.Engine = fleet.Role(p.Engine)
		}
		rc.Pass = append(rc.Pass, pass)
	}
	r, err := router.New(rc)
	if err != nil {
		return &usageError{err}
	}
	defer r.Close()
	front, err := edge.Listen(c.Listen, edge.Gate(r.Handler(), gate, edge.GateOptions{Log: log, Metrics: metrics}),
		edge.Options{Name: "clients", Log: log, Metrics: metrics})
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer front.Close(0) // after Shutdown there is nothing left
	back, err := edge.Listen(c.Admin, front.Health(r.Admin()), edge.Options{Name: "admin", Log: log, Metrics: metrics})
	if err != nil {
		return fmt.Errorf("--admin: %w", err)
	}
	defer back.Close(time.Second)
	defer reloading(gate, edge.Reloaders{engines, front, back}, c.reloadInterval(), metrics, log)()
	log.Info("ready", "listen", front.URL(), "admin", back.URL(), "prefill", c.Prefill.URL, "decode", c.Decode.URL)
	select {
	case <-ctx.Done():
	case <-front.Done():
	case <-back.Done():
	}
	how := c.Shutdown
	if cause := context.Cause(ctx); cause != nil && cause.Error() == os.Interrupt.String()+" signal received" {
		how.Delay = 0 // Ctrl-C: somebody waits
	}
	front.Shutdown(context.WithoutCancel(ctx), how)
	return errors.Join(front.Err(), back.Err())
}

// reloading reads the files of the gate and of the others again at each SIGHUP and every interval, and
// has the gate fetch its issuers' keys when they are due: what an issuer has withdrawn must not live on.
// It returns what stops that.
func reloading(gate *tenant.Gate, others edge.Reloaders, interval time.Duration, m *edge.Metrics, log *slog.Logger) (stop func()) {
	report := func(changed []string, err error) {
		if err != nil {
			m.Reloads.WithLabelValues("failed").Inc()
			log.Error("a file cannot be used; what was read from it before stays in force", "error", err)
		}
		if len(changed) > 0 {
			m.Reloads.WithLabelValues("ok").Inc()
			log.Info("files reloaded", "files", changed)
		}
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() {
		all := append(edge.Reloaders{gate}, others...)
		for {
			select {
			case <-ctx.Done():
				return
			case <-hup:
				changed, err := all.Reload()
				report(changed, err)
				log.Info("SIGHUP: files were read again", "changed", len(changed))
			}
		}
	})
	tasks.Go(func() { gate.Run(ctx, report) })
	tasks.Go(func() { others.Run(ctx, interval, report) })
	return func() {
		signal.Stop(hup)
		cancel()
		tasks.Wait()
	}
}

// noArgs refuses arguments of commands that have none.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &usageError{fmt.Errorf("%s takes no arguments, but got %q; see '%s --help'", c.CommandPath(), args[0], c.CommandPath())}
	}
	return nil
}
