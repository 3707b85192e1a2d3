package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/tarik-kv/tarik/internal/edge"
	"github.com/tarik-kv/tarik/internal/tenant"
)

// check reads every file that c, which is valid, names, and writes what would run. It opens no port and asks no
// engine. Errors are [*usageError], with all that is wrong.
func (c config) check(w io.Writer, lookup func(string) (string, bool)) error {
	var errs []error
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, text string) { fmt.Fprintf(t, "%s\t%s\n", name, text) }
	part := func(name, section string, text string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", section, err))
			return
		}
		line(name, text)
	}
	text, err := c.Listen.Check()
	part("clients", "listen.tls", text, err)
	text, err = c.Admin.Check()
	part("operators", "admin.tls", text, err)
	o := edge.EngineOptions{Authenticates: c.authenticates(), Lookup: lookup}
	text, err = c.Prefill.Check(o)
	part("prefill", "prefill", text, err)
	text, err = c.Decode.Check(o)
	part("decode", "decode", text, err)
	if c.Reuse {
		line("reuse", "on; decode keeps what it holds for "+c.HandleTTL.String())
	} else {
		line("reuse", "off")
	}
	gate, err := tenant.New(c.Tenants, tenant.Deps{})
	part("tenants", "tenants", c.tenants(gate), err)
	line("limits", fmt.Sprintf("requests of up to %s, replies of up to %s", c.Limits.Body, c.Limits.Reply))
	for _, p := range c.Passthrough {
		line("passed on", fmt.Sprintf("%s %s to %s", strings.Join(p.Methods, ", "), p.Path, p.Engine))
	}
	file := c.Receipts.File
	if file == "" {
		file = "no file"
	}
	line("receipts", fmt.Sprintf("the newest %d, and %s", c.Receipts.Keep, file))
	line("log", c.Log.Level+", as "+c.Log.Format)
	line("stop", fmt.Sprintf("/health fails for %s, then %s for requests in progress", c.Shutdown.Delay, c.Shutdown.Drain))
	for _, warning := range c.warnings() {
		line("warning", warning)
	}
	if len(errs) > 0 {
		return &usageError{errors.Join(errs...)}
	}
	return t.Flush()
}

// tenants describes who may come in. gate is nil if its files could not be read.
func (c config) tenants(gate *tenant.Gate) string {
	if gate == nil {
		return ""
	}
	var by []string
	for _, a := range c.Tenants.Auth {
		switch {
		case a.Keys != nil:
			by = append(by, "keys in "+a.Keys.File)
		case a.JWT != nil:
			by = append(by, "tokens of "+a.JWT.Issuer)
		case a.Header != nil:
			by = append(by, "the header "+a.Header.Name+" of "+strings.Join(a.Header.TrustedPeers, ", "))
		case c.authenticates():
			by = append(by, "anybody without a credential")
		}
	}
	text := "anybody, as one"
	if len(by) > 0 {
		text = strings.Join(by, "; ")
	}
	switch {
	case !gate.Isolated():
		return text + "; caches are shared"
	case gate.SaltsLast():
		return text + "; caches are apart"
	}
	return text + "; caches are apart, and are lost at a restart (no salts.secrets_file)"
}
