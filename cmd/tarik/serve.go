package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/tarik-kv/tarik/internal/local"
	"github.com/tarik-kv/tarik/internal/router"
	"github.com/tarik-kv/tarik/internal/telemetry"
)

// keptReceipts is how many receipts GET /turns can show.
const keptReceipts = 4096

// routerFlags are what serve and up have in common.
type routerFlags struct {
	receipts string
	ttl      time.Duration
	maxBody  int64
}

func (f *routerFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.receipts, "receipts", "", "append the receipt of every turn to this file, one JSON object a line")
	c.Flags().DurationVar(&f.ttl, "handle-ttl", 480*time.Second, "D's decoder_kv_blocks_ttl; handles are used until 30s before")
	c.Flags().Int64Var(&f.maxBody, "max-body", 64<<20, "largest request in bytes, also after decompression; more is answered with 413")
}

// config returns the router's configuration, and a function that closes the receipts.
func (f *routerFlags) config() (router.Config, func() error, error) {
	cfg := router.DefaultConfig()
	cfg.HandleTTL, cfg.MaxBody = f.ttl, f.maxBody
	cfg.Receipts = telemetry.NewReceipts(keptReceipts, nil)
	done := func() error { return nil }
	if f.receipts != "" {
		file, err := os.OpenFile(f.receipts, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return cfg, nil, fmt.Errorf("--receipts: %w", err)
		}
		cfg.Receipts = telemetry.NewReceipts(keptReceipts, file)
		done = func() error { return errors.Join(cfg.Receipts.Err(), file.Close()) }
	}
	return cfg, done, nil
}

func serveCommand() *cobra.Command {
	var (
		f                              routerFlags
		logs                           logFlags
		prefill, decode, listen, admin string
		reuse                          bool
		drain                          time.Duration
	)
	c := &cobra.Command{
		Use:   "serve --prefill URL --decode URL",
		Short: "Run the router in front of one prefill and one decode engine",
		Long: `Runs the router in front of one vLLM prefill engine (P) and one decode engine (D).

Clients speak OpenAI's /v1/chat/completions and /v1/completions to --listen. What the turns did is
at GET /turns on --admin, with GET /metrics and GET /engines beside it; keep that address private.

Both engines need --kv-transfer-config with bidirectional_kv_xfer true; docs/serve.md has the launch
lines. An engine that does not answer yet is waited for.`,
		Example: `  tarik serve --prefill http://10.0.0.1:8000 --decode http://10.0.0.2:8000
  tarik serve --prefill http://p:8000 --decode http://d:8000 --listen :80 --receipts turns.jsonl
  curl -s http://127.0.0.1:9091/turns?n=1`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := logs.logger(c.ErrOrStderr())
			if err != nil {
				return err
			}
			cfg, done, err := f.config()
			if err != nil {
				return err
			}
			cfg.Prefill, cfg.Decode, cfg.Reuse, cfg.Log = prefill, decode, reuse, log
			if err := cfg.Validate(); err != nil {
				return &usageError{err}
			}
			return errors.Join(serve(c.Context(), cfg, listen, admin, drain, log), done())
		},
	}
	c.Flags().StringVar(&prefill, "prefill", "", "URL of the prefill engine")
	c.Flags().StringVar(&decode, "decode", "", "URL of the decode engine")
	c.Flags().StringVar(&listen, "listen", ":8080", "address for clients")
	c.Flags().StringVar(&admin, "admin", "127.0.0.1:9091", "address for operators: /turns, /metrics, /engines")
	c.Flags().BoolVar(&reuse, "reuse", true, "give P the handles that D returns; false leaves only the engines' own prefix caches")
	c.Flags().DurationVar(&drain, "drain", 30*time.Second, "how long turns in progress may take to end when the router stops")
	f.add(c)
	logs.add(c)
	return c
}

func serve(ctx context.Context, cfg router.Config, listen, admin string, drain time.Duration, log *slog.Logger) error {
	r, err := router.New(cfg)
	if err != nil {
		return &usageError{err}
	}
	defer r.Close()
	back, err := local.Listen(admin, r.Admin())
	if err != nil {
		return fmt.Errorf("--admin: %w", err)
	}
	defer back.Close(time.Second)
	front, err := local.Listen(listen, r.Handler())
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	log.Info("ready", "listen", front.URL(), "admin", back.URL(), "prefill", cfg.Prefill, "decode", cfg.Decode)
	select {
	case <-ctx.Done():
		log.Info("stopping: turns in progress may end", "within", drain.String())
	case <-front.Done():
	case <-back.Done():
	}
	front.Close(drain)
	return errors.Join(front.Err(), back.Err())
}

// noArgs refuses arguments of commands that have none.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &usageError{fmt.Errorf("%s takes no arguments, but got %q; see '%s --help'", c.CommandPath(), args[0], c.CommandPath())}
	}
	return nil
}
