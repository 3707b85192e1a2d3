// Command tarik makes turn 40 of an agent cost what is new in turn 40, on vLLM with prefill and
// decode on different machines. See README.md.
//
// Nothing is decided here: flags are read, parts are put together.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is main with its surroundings as arguments. Exit codes: 0 done or stopped by a signal, 1
// something failed, 2 wrong usage.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C does not wait
	root := &cobra.Command{
		Use:   "tarik",
		Short: "KV reuse across turns for vLLM with separate prefill and decode engines",
		Long: `tarik is a router in front of a vLLM prefill engine (P) and decode engine (D). It keeps what each
turn needs to know of the last one, so that P reads from D the KV it lacks instead of computing it.

Try it on this machine, with nothing but this program:   tarik up --demo`,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetArgs(args)
	root.AddCommand(upCommand(), serveCommand(), engineCommand(), analyzeCommand(), simCommand(), benchCommand(), doctorCommand())
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &usageError{fmt.Errorf("%w\nSee '%s --help'", err, c.CommandPath())}
	})
	err := root.ExecuteContext(ctx)
	var usage *usageError
	var exit *exitError
	switch {
	case errors.As(err, &exit):
		if exit.error != nil {
			fmt.Fprintln(stderr, "tarik:", exit.error)
		}
		return exit.code
	case err == nil || errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintln(stderr, "tarik:", err)
		return 2
	}
	fmt.Fprintln(stderr, "tarik:", err)
	return 1
}

// usageError is a command line that cannot be meant.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// exitError ends the program with a status of its own.
type exitError struct {
	error // nil if all has been said
	code  int
}

func (e *exitError) Unwrap() error { return e.error }

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// logFlags are the same for all commands that run.
type logFlags struct{ level, format string }

func (l *logFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&l.level, "log-level", "info", "what is logged: debug, info, warn, error")
	c.Flags().StringVar(&l.format, "log-format", "text", "how it is logged: text, json")
}

func (l *logFlags) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return nil, &usageError{fmt.Errorf("--log-level %q: want debug, info, warn or error", l.level)}
	}
	o := &slog.HandlerOptions{Level: level}
	switch l.format {
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, &usageError{fmt.Errorf("--log-format %q: want text or json", l.format)}
}
