package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/tarik-kv/tarik/internal/doctor"
	"github.com/tarik-kv/tarik/internal/edge"
	"github.com/tarik-kv/tarik/internal/router"
	"github.com/tarik-kv/tarik/internal/tenant"
)

// side is what can be told about one engine.
type side struct{ kv, log, env string }

type doctorFlags struct {
	v               flagValues
	file, keyFile   string
	prefill, decode side
	o               doctor.Options
	host, asJSON    bool
	watch           time.Duration
}

func doctorCommand() *cobra.Command {
	var f doctorFlags
	c := &cobra.Command{
		Use:   "doctor --config FILE | --prefill URL --decode URL",
		Short: "Find what makes a pair look healthy while nothing is reused",
		Long: `Asks both engines what they are, plays a conversation of three turns through them as a router would, and
says what is wrong, how that shows, and what to set. docs/doctor.md explains every check.

The conversation is small and leaves nothing pinned on a sound pair. One risk cannot be avoided: a prefill
engine whose bidirectional_kv_xfer is off, or whose failure policy is "recompute", parks the request and
keeps some 20 blocks until it is restarted. Doctor does it once and says so, and not at all if it is told the
engine's settings. --no-probe leaves the conversation out.

What engines do not say over HTTP is in their logs and launch lines: give them, and more is checked.

Exit status: 0 nothing is wrong, 1 warnings, 2 errors, 3 the check could not be made.`,
		Example: `  tarik doctor --prefill http://10.0.0.1:8000 --decode http://10.0.0.2:8000
  tarik doctor --config tarik.yaml --prefill-log p.log --decode-log d.log
  tarik doctor --config tarik.yaml --router http://127.0.0.1:9091 --json
  tarik doctor --config tarik.yaml --watch 30s`,
		Args: func(c *cobra.Command, args []string) error { return notMade(noArgs(c, args)) },
		RunE: func(c *cobra.Command, _ []string) error {
			code, err := f.run(c.Context(), c.OutOrStdout(), c.Flags().Changed)
			if err == nil && code != 0 {
				return &exitError{code: code} // the report has been written, and says it
			}
			return notMade(err)
		},
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return notMade(fmt.Errorf("%w\nSee '%s --help'", err, c.CommandPath()))
	})
	fl := c.Flags()
	fl.StringVar(&f.file, "config", "", "the router's configuration file: URLs, keys and certificates of the engines, handle_ttl, tenants")
	fl.StringVar(&f.v.Prefill, "prefill", "", "URL of the prefill engine")
	fl.StringVar(&f.v.Decode, "decode", "", "URL of the decode engine")
	fl.StringVar(&f.keyFile, "api-key-file", "", "file with the engines' --api-key, if there is no configuration file")
	fl.StringVar(&f.o.Router, "router", "", "URL of a router's admin address, to look at its turns and counters")
	for _, s := range []struct {
		name string
		to   *side
	}{{"prefill", &f.prefill}, {"decode", &f.decode}} {
		fl.StringVar(&s.to.log, s.name+"-log", "", "log of the "+s.name+" engine")
		fl.StringVar(&s.to.kv, s.name+"-kv", "", "--kv-transfer-config of the "+s.name+" engine, as it was given: JSON, or @FILE")
		fl.StringVar(&s.to.env, s.name+"-env", "", "environment of the "+s.name+" engine: a file as env prints it, or /proc/PID/environ")
	}
	fl.BoolVar(&f.host, "host", false, "look at this machine's RDMA devices and UCX settings: where an engine runs")
	fl.BoolVar(&f.o.NoProbe, "no-probe", false, "play no conversation: nothing is computed, and the path is not tried")
	fl.DurationVar(&f.o.Patience, "patience", doctor.DefaultPatience, "how long each call of the conversation may take; one that hangs is left then")
	fl.IntVar(&f.o.TransferTokens, "transfer-tokens", doctor.DefaultTransferTokens, "tokens of the prompt by which transfers are measured if the engines have moved little so far; 0 leaves it out")
	fl.BoolVar(&f.asJSON, "json", false, "write the report as one JSON object; with --watch one line for each change")
	fl.DurationVar(&f.watch, "watch", 0, "look again every so often and write what has changed; the conversation is played again only when an engine was restarted")
	return c
}

// notMade ends the program if err is not nil. Its status is one of doctor's own: 2, as of wrong usage elsewhere, would
// say that engines are broken.
func notMade(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{error: err, code: 3}
}

// run makes the report and returns the exit status.
func (f *doctorFlags) run(ctx context.Context, out io.Writer, changed func(string) bool) (int, error) {
	if f.watch < 0 || f.o.Patience <= 0 || f.o.TransferTokens < 0 {
		return 0, errors.New("--watch and --transfer-tokens: want 0 or more; --patience: more than 0s")
	}
	if err := f.engines(changed); err != nil {
		return 0, err
	}
	if err := f.told(); err != nil {
		return 0, err
	}
	if f.host {
		f.o.Host = doctor.ThisHost().Look(ctx)
	}
	file, isFile := out.(*os.File)
	coloured := isFile && term.IsTerminal(int(file.Fd())) && os.Getenv("NO_COLOR") == ""
	if f.watch > 0 {
		first := true
		r, err := doctor.Watch(ctx, f.o, f.watch, func(r doctor.Report, c doctor.Changes) error {
			whole := first
			first = false
			switch {
			case f.asJSON:
				return json.NewEncoder(out).Encode(watchLine{r.Time, r.Severity, c})
			case whole:
				return r.WriteText(out, coloured)
			}
			return c.WriteText(out, r.Time, coloured)
		})
		return r.Exit, err
	}
	facts, err := doctor.Gather(ctx, f.o)
	if err != nil {
		return 0, fmt.Errorf("stopped: %w", err)
	}
	r := doctor.NewReport(facts)
	if f.asJSON {
		return r.Exit, r.WriteJSON(out)
	}
	return r.Exit, r.WriteText(out, coloured)
}

// watchLine is what --watch --json writes when something has changed, and at first.
type watchLine struct {
	Time     string          `json:"time"`
	Severity doctor.Severity `json:"severity"`
	doctor.Changes
}

// engines reads where the engines are and how they are reached.
func (f *doctorFlags) engines(changed func(string) bool) error {
	c, err := loadConfig(f.file, f.v, changed)
	if err != nil {
		return err
	}
	if f.keyFile != "" {
		c.Prefill.APIKeyFile, c.Decode.APIKeyFile = f.keyFile, f.keyFile
	}
	transport, err := edge.NewEngines([]edge.EngineConfig{c.Prefill, c.Decode}, edge.EngineOptions{
		Base: router.Transport(), Authenticates: c.authenticates(), Lookup: os.LookupEnv,
	})
	if err != nil {
		return err
	}
	f.o.Prefill, f.o.Decode, f.o.Client = c.Prefill.URL, c.Decode.URL, &http.Client{Transport: transport}
	f.o.RouterClient = &http.Client{}
	if f.file == "" {
		return nil
	}
	gate, err := tenant.New(c.Tenants, tenant.Deps{})
	if err != nil {
		return err
	}
	f.o.Config = &doctor.RouterConfig{
		Source: f.file, HandleTTL: time.Duration(c.HandleTTL), Margin: router.HandleMargin, Reuse: c.Reuse,
		Authenticates: c.authenticates(), Isolated: gate.Isolated(), SaltsLast: gate.SaltsLast(),
	}
	return nil
}

// told reads what was given about the engines.
func (f *doctorFlags) told() error {
	for _, s := range []struct {
		name string
		side
		kvTo  *[]byte
		logTo **doctor.LogFacts
		envTo *map[string]string
	}{
		{"prefill", f.prefill, &f.o.PrefillKV, &f.o.PrefillLog, &f.o.PrefillEnv},
		{"decode", f.decode, &f.o.DecodeKV, &f.o.DecodeLog, &f.o.DecodeEnv},
	} {
		if s.kv != "" {
			*s.kvTo = []byte(s.kv)
			if s.kv[0] == '@' {
				b, err := os.ReadFile(s.kv[1:])
				if err != nil {
					return fmt.Errorf("--%s-kv: %w", s.name, err)
				}
				*s.kvTo = b
			}
		}
		if s.log != "" {
			log, err := readEngineLog(s.log)
			if err != nil {
				return fmt.Errorf("--%s-log: %w", s.name, err)
			}
			*s.logTo = log
		}
		if s.env != "" {
			b, err := os.ReadFile(s.env)
			if err != nil {
				return fmt.Errorf("--%s-env: %w", s.name, err)
			}
			*s.envTo = doctor.ParseEnv(b)
		}
	}
	return nil
}

func readEngineLog(name string) (*doctor.LogFacts, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return doctor.ReadLog(file)
}
