package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/tarik-kv/tarik/internal/local"
	"github.com/tarik-kv/tarik/internal/router"
	"github.com/tarik-kv/tarik/internal/telemetry"
)

// startPatience bounds the start of the local pair: its engines are here and load no weights.
const startPatience = 30 * time.Second

func upCommand() *cobra.Command {
	var (
		e             engineFlags
		receipts      string
		logs          logFlags
		listen, admin string
		demo          bool
	)
	c := &cobra.Command{
		Use:   "up",
		Short: "Run prefill, decode and router on this machine",
		Long: `Runs a prefill engine, a decode engine and the router in front of them in one process on loopback:
reference engines with a tiny built-in model, or with yours. Stop it with Ctrl-C.

With --demo it plays an agent's conversation instead, with the return path on and off side by side,
and ends.`,
		Example: `  tarik up
  tarik up --listen 127.0.0.1:8080 --admin 127.0.0.1:9091
  tarik up --demo
  tarik up --demo --model ./SmolLM2-135M-Instruct`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("log-level") {
				logs.level = "warn" // the ready lines say what matters
			}
			log, err := logs.logger(c.ErrOrStderr())
			if err != nil {
				return err
			}
			cfg := router.DefaultConfig()
			var done func() error
			if cfg.Receipts, done, err = openReceipts(keptReceipts, receipts); err != nil {
				return err
			}
			w, err := local.Load(e.model)
			if err != nil {
				return err
			}
			o := local.StackOptions{Listen: listen, Admin: admin, As: e.as, Return: true, Engine: e.o, Router: cfg, Log: log}
			if demo {
				return errors.Join(playDemo(c.Context(), c.OutOrStdout(), w, o), done())
			}
			return errors.Join(up(c.Context(), c.OutOrStdout(), w, o, log), done())
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "address for clients; port 0 is any free one")
	c.Flags().StringVar(&admin, "admin", "127.0.0.1:0", "address for operators; port 0 is any free one")
	c.Flags().BoolVar(&demo, "demo", false, "play an agent's conversation with and without the return path, print a table, and end")
	e.add(c)
	c.Flags().StringVar(&receipts, "receipts", "", "append the receipt of every turn to this file, one JSON object a line")
	logs.add(c)
	return c
}

func start(ctx context.Context, w *local.Weights, o local.StackOptions) (*local.Stack, error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	return local.Up(ctx, w, o)
}

func up(ctx context.Context, out io.Writer, w *local.Weights, o local.StackOptions, log *slog.Logger) error {
	s, err := start(ctx, w, o)
	if err != nil {
		return err
	}
	defer s.Close()
	name := w.Name
	if o.Engine.Name != "" {
		name = o.Engine.Name
	}
	fmt.Fprintf(out, `tarik is up (model %s, engines as vLLM %s). Ctrl-C stops it.

  clients    %s
  operators  %s/turns   /metrics   /engines
  prefill    %s
  decode     %s

Say something, then go on with the conversation and see what P no longer computes:

  curl -s %s/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"%s","messages":[{"role":"user","content":"Tell me about the river."}],"max_tokens":40}'
  curl -s '%s/turns?n=2'

`, name, o.As, s.URL(), s.AdminURL(), s.P.URL(), s.D.URL(), s.URL(), name, s.AdminURL())
	<-ctx.Done()
	log.Info("stopping")
	return nil
}

func playDemo(ctx context.Context, out io.Writer, w *local.Weights, o local.StackOptions) error {
	o.Router.Append = false // what P is spared is what there is to see
	on, err := start(ctx, w, o)
	if err != nil {
		return err
	}
	defer on.Close()
	o.Return, o.Listen, o.Admin = false, "127.0.0.1:0", "127.0.0.1:0"
	o.Router.Receipts = telemetry.NewReceipts(keptReceipts, nil)
	off, err := start(ctx, w, o)
	if err != nil {
		return err
	}
	defer off.Close()
	name := w.Name
	if o.Engine.Name != "" {
		name = o.Engine.Name
	}
	return local.Demo(ctx, out, on, off, name)
}
