package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tarik-kv/tarik/internal/configfile"
	"github.com/tarik-kv/tarik/internal/edge"
	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/router"
	"github.com/tarik-kv/tarik/internal/tenant"
)

//go:generate go test -run ^TestConfigDoc$ -update .

// config is one YAML file, given with `tarik serve --config FILE`. `tarik serve --check --config FILE` reads it and
// every file it names, says what would run, and ends with 0, or says what is wrong and where, and ends with 2.
//
// Keys are snake_case, and one that is not listed here is an error. Only prefill.url and decode.url are required; what
// is left out has the default given with it, and a key without a value is an error. Command line flags override the
// file. Values with a unit are written with it: durations as 30s, 10m or 1h30m, sizes as a number of bytes or with
// KiB, MiB or GiB.
//
// SIGHUP reads the files of keys, secrets and certificates again, and so does the router by itself every
// tenants.reload_interval. What this file says takes effect at the next start.
type config struct {
	// Listen is where clients come in.
	Listen edge.ListenConfig `yaml:"listen"`
	// Admin is where operators look: GET /turns, /metrics, /engines and /health. It asks nobody who he is: keep it on
	// a loopback or private address, list who may connect in allow, or ask for client certificates with
	// tls.client_ca.
	Admin edge.ListenConfig `yaml:"admin"`
	// Shutdown says how the router stops.
	Shutdown edge.ShutdownConfig `yaml:"shutdown"`
	// Prefill is the engine that computes prompts (P).
	Prefill edge.EngineConfig `yaml:"prefill"`
	// Decode is the engine that generates (D).
	Decode edge.EngineConfig `yaml:"decode"`
	// Reuse says whether P is given handles of what D holds. false is for comparison: P's and D's own prefix caches
	// work all the same, and tarik_handles_used_total stays 0. Default: true.
	Reuse bool `yaml:"reuse"`
	// HandleTTL is D's decoder_kv_blocks_ttl, more than 30s. A handle is used until 30s before; a turn that comes
	// later computes its last reply anew, counted in tarik_handles_used_total{use="expired"}. Default: 8m.
	HandleTTL tenant.Duration `yaml:"handle_ttl"`
	// Return says whether P is prepared for the next turn after each one. false holds handles until the next turn
	// comes, as vLLM's example router does, and always uses them. Default: true.
	Return bool `yaml:"return"`
	// Append says whether D may serve a turn alone, from its own prefix cache, when that is cheaper and D's other
	// streams can bear it. It does nothing without return. Default: true.
	Append bool `yaml:"append"`
	// RecomputeThreshold is P's kv_recompute_threshold, in tokens. Default: 64, as vLLM's.
	RecomputeThreshold tenant.Count `yaml:"recompute_threshold"`
	// StreamKeepalive is how long a client that waits for a stream hears nothing before it gets the headers and a
	// comment (": keep-alive", which readers of event streams skip), and then how long between comments. It is for
	// hops and clients that give up silent connections: a prompt of 100 000 tokens can take a minute. 15s suits most.
	// The price: after the headers the status is 200 whatever follows, so what fails later is said in an error event.
	// 0s is never: the first thing sent is the engine's, with the engine's status. Default: 0s.
	StreamKeepalive tenant.Duration `yaml:"stream_keepalive"`
	// Limits bound what one request may bring and get.
	Limits limitsConfig `yaml:"limits"`
	// Tenants says who may come in and how much each may use; see [tenants.md](tenants.md).
	Tenants tenant.Config `yaml:"tenants"`
	// Identity says how clients name their conversations.
	Identity identityConfig `yaml:"identity"`
	// Passthrough lists paths beyond the router's own that go to an engine as they are, less what only a router may
	// say. Every other path is refused with 404. Left out: none.
	Passthrough []passConfig `yaml:"passthrough"`
	// Log says what is logged, to standard error.
	Log logConfig `yaml:"log"`
	// Receipts says what is kept of what each turn chose and delivered; see [receipts.md](receipts.md).
	Receipts receiptsConfig `yaml:"receipts"`
}

// limitsConfig is about single requests. How many may be in flight is in tenants.limits.
type limitsConfig struct {
	// Body is the largest request, in bytes, at least 1KiB, also after decompression. A larger one gets 413, counted
	// in tarik_edge_requests_refused_total{reason="body-too-large"}. Tenants and keys can have less:
	// tenants.limits.tenant.body_bytes. Default: 64MiB.
	Body tenant.Bytes `yaml:"body"`
	// Reply is the largest reply of an engine that is not streamed, in bytes. A larger one becomes 502. Default:
	// 256MiB.
	Reply tenant.Bytes `yaml:"reply"`
}

// identityConfig is about the names that clients give their conversations. A name is a hint: conversations are
// recognised by their content in any case.
type identityConfig struct {
	// Header is the operator's own header that names a conversation. It goes before the names that the router knows
	// of itself: conversation_id and session_id of the body, X-Conversation-Id, and what agents send. It never
	// reaches an engine. Left out: none.
	Header string `yaml:"header"`
}

// passConfig is one path.
type passConfig struct {
	// Path is what is passed on: exactly this path, or what begins with it if it ends in /. The router's own paths
	// cannot be listed. Required.
	Path string `yaml:"path"`
	// Engine is who gets it: prefill, decode, or any for the first of them that is up. Required.
	Engine string `yaml:"engine"`
	// Methods are the HTTP methods; others get 405. Default: [POST].
	Methods []string `yaml:"methods"`
}

// logConfig is about the log.
type logConfig struct {
	// Level is the least that is logged: debug, info, warn or error. At info each turn has one line. Default: info.
	Level string `yaml:"level"`
	// Format is text for people or json for machines. Default: text.
	Format string `yaml:"format"`
}

// receiptsConfig is about receipts. They hold sizes, times and names, never what was said.
type receiptsConfig struct {
	// File gets each turn's receipt as one line of JSON. It is appended to, and made if it is not there, for its owner
	// only. A file that can no longer be written to ends the receipts, not the turns. Left out: none.
	File string `yaml:"file"`
	// Keep is how many of the newest GET /turns can show, at some 500 bytes each. Default: 4096.
	Keep tenant.Count `yaml:"keep"`
}

// defaultConfig is what a file changes.
func defaultConfig() config {
	d := router.DefaultConfig()
	return config{
		Listen: edge.DefaultListen(":8080"), Admin: edge.DefaultListen("127.0.0.1:9091"), Shutdown: edge.DefaultShutdown(),
		Reuse: d.Reuse, HandleTTL: tenant.Duration(d.HandleTTL),
		Return: d.Return, Append: d.Append, RecomputeThreshold: tenant.Count(d.Threshold),
		Limits: limitsConfig{Body: tenant.Bytes(d.MaxBody), Reply: tenant.Bytes(d.MaxReply)},
		Log:    logConfig{Level: "info", Format: "text"}, Receipts: receiptsConfig{Keep: keptReceipts},
	}
}

// flagValues are the flags that say what the file can say too.
type flagValues struct {
	Listen, Admin, Prefill, Decode, Receipts, LogLevel, LogFormat string
	Reuse, Return, Append                                         bool
	Threshold                                                     int
	HandleTTL, Drain                                              time.Duration
	MaxBody                                                       int64
}

// flagOf is the flag for a path of the file.
var flagOf = map[string]string{
	"listen.address": "listen", "admin.address": "admin", "prefill.url": "prefill", "decode.url": "decode", "reuse": "reuse",
	"return": "return", "append": "append", "recompute_threshold": "recompute-threshold",
	"handle_ttl": "handle-ttl", "limits.body": "max-body", "shutdown.drain": "drain", "receipts.file": "receipts",
	"log.level": "log-level", "log.format": "log-format",
}

// override sets what was said on the command line.
func (c *config) override(v flagValues, changed func(flag string) bool) {
	for flag, set := range map[string]func(){
		"listen": func() { c.Listen.Address = v.Listen }, "admin": func() { c.Admin.Address = v.Admin },
		"prefill": func() { c.Prefill.URL = v.Prefill }, "decode": func() { c.Decode.URL = v.Decode },
		"return": func() { c.Return = v.Return }, "append": func() { c.Append = v.Append },
		"recompute-threshold": func() { c.RecomputeThreshold = tenant.Count(v.Threshold) },
		"reuse":               func() { c.Reuse = v.Reuse }, "handle-ttl": func() { c.HandleTTL = tenant.Duration(v.HandleTTL) },
		"max-body": func() { c.Limits.Body = tenant.Bytes(v.MaxBody) }, "drain": func() { c.Shutdown.Drain = tenant.Duration(v.Drain) },
		"receipts": func() { c.Receipts.File = v.Receipts }, "log-level": func() { c.Log.Level = v.LogLevel },
		"log-format": func() { c.Log.Format = v.LogFormat },
	} {
		if changed(flag) {
			set()
		}
	}
}

// loadConfig reads file, "" for none, and puts the flags over it. Errors are [*usageError], with all that is wrong.
func loadConfig(file string, v flagValues, changed func(flag string) bool) (config, error) {
	c := defaultConfig()
	var doc *configfile.Document
	if file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return c, &usageError{fmt.Errorf("--config: %w", err)}
		}
		if doc, err = configfile.Parse(file, data); err == nil {
			err = doc.Decode(&c)
		}
		if err != nil {
			return c, &usageError{err}
		}
	}
	c.override(v, changed)
	var errs []error
	c.validate(func(path, message string) {
		flag := flagOf[path]
		switch {
		case flag != "" && (changed(flag) || doc == nil):
			errs = append(errs, fmt.Errorf("--%s: %s", flag, message))
		case doc != nil:
			errs = append(errs, doc.Fail(path, message))
		default:
			errs = append(errs, fmt.Errorf("%s: %s", path, message))
		}
	})
	if len(errs) > 0 {
		return c, &usageError{errors.Join(errs...)}
	}
	c.fillIn()
	return c, nil
}

// fillIn sets what follows from elsewhere in a valid configuration.
func (c *config) fillIn() {
	if c.Tenants.Limits.Global.BodyBytes == 0 {
		c.Tenants.Limits.Global.BodyBytes = c.Limits.Body // one limit, one place
	}
	for i, p := range c.Passthrough {
		if p.Methods == nil {
			c.Passthrough[i].Methods = []string{"POST"}
		}
	}
}

// authenticates reports whether clients have to say who they are.
func (c config) authenticates() bool {
	return slices.ContainsFunc(c.Tenants.Auth, func(a tenant.AuthConfig) bool { return !a.None })
}

// validate reports all that is wrong with c. It reads no file.
func (c config) validate(complain edge.Complain) {
	under := func(section string) edge.Complain {
		return func(path, message string) { complain(section+"."+path, message) }
	}
	c.Listen.Validate(under("listen"))
	c.Admin.Validate(under("admin"))
	if _, port, _ := net.SplitHostPort(c.Listen.Address); c.Listen.Address == c.Admin.Address && port != "0" {
		complain("admin.address", "is listen.address; operators and clients need an address each")
	}
	c.Shutdown.Validate(under("shutdown"))
	if c.Prefill.URL == "" {
		complain("prefill.url", "the URL of the prefill engine is missing, such as http://10.0.0.1:8000")
	} else {
		c.Prefill.Validate(c.authenticates(), under("prefill"))
	}
	if c.Decode.URL == "" {
		complain("decode.url", "the URL of the decode engine is missing, such as http://10.0.0.2:8000")
	} else {
		c.Decode.Validate(c.authenticates(), under("decode"))
	}
	if time.Duration(c.HandleTTL) <= router.HandleMargin {
		complain("handle_ttl", fmt.Sprintf("%s: must be more than the safety margin of %s, or no handle could ever be used; set it to D's decoder_kv_blocks_ttl", c.HandleTTL, router.HandleMargin))
	}
	if k := time.Duration(c.StreamKeepalive); k != 0 && k < time.Second {
		complain("stream_keepalive", fmt.Sprintf("%s: want 1s or more, or 0s for never", c.StreamKeepalive))
	}
	c.Limits.validate(c.Tenants.Limits.Global, complain)
	var field *tenant.FieldError
	for _, err := range joined(c.Tenants.Validate()) {
		if errors.As(err, &field) {
			complain("tenants."+field.Path, field.Message)
		}
	}
	c.Identity.validate(c.Tenants, complain)
	for i, p := range c.Passthrough {
		p.validate(c.Passthrough[:i], under(fmt.Sprintf("passthrough[%d]", i)))
	}
	if err := new(slog.Level).UnmarshalText([]byte(c.Log.Level)); err != nil {
		complain("log.level", fmt.Sprintf("%q: want debug, info, warn or error", c.Log.Level))
	}
	if c.Log.Format != "text" && c.Log.Format != "json" {
		complain("log.format", fmt.Sprintf("%q: want text or json", c.Log.Format))
	}
	if c.Receipts.Keep < 1 || c.Receipts.Keep > 1_000_000 {
		complain("receipts.keep", "want 1 to 1000000")
	}
}

// joined takes apart what errors.Join has put together.
func joined(err error) []error {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		return several.Unwrap()
	}
	return nil
}

func (l limitsConfig) validate(global tenant.Limits, complain edge.Complain) {
	switch {
	case l.Body < 1<<10 || l.Body > 1<<40:
		complain("limits.body", fmt.Sprintf("%s: want 1KiB to 1024GiB", l.Body))
	case global.BodyBytes > l.Body || global.BodyBytes == tenant.Unlimited:
		complain("tenants.limits.global.body_bytes", fmt.Sprintf("%s: has no effect beyond limits.body, %s", global.BodyBytes, l.Body))
	}
	if l.Reply < 1<<10 || l.Reply > 1<<40 {
		complain("limits.reply", fmt.Sprintf("%s: want 1KiB to 1024GiB", l.Reply))
	}
}

// spoken are headers that mean something else than a conversation.
var spoken = []string{"Authorization", "X-Api-Key", "Host", "Content-Type", "Content-Length", "Content-Encoding", "Connection", "Cookie", "User-Agent", "X-Request-Id"}

func (i identityConfig) validate(t tenant.Config, complain edge.Complain) {
	taken := slices.Clone(spoken)
	for _, a := range t.Auth {
		if a.Header != nil {
			taken = append(taken, a.Header.Name)
		}
	}
	switch {
	case i.Header == "":
	case !edge.ValidHeader(i.Header):
		complain("identity.header", fmt.Sprintf("%q: not a header's name, or one that only the router may set", i.Header))
	case slices.ContainsFunc(taken, func(other string) bool { return strings.EqualFold(i.Header, other) }):
		complain("identity.header", fmt.Sprintf("%q: has another meaning", i.Header))
	}
}

// ownPaths are the router's.
var ownPaths = []string{
	kvp.Chat.Path(), kvp.Completions.Path(), kvp.Responses.Path(), kvp.Messages.Path(), kvp.Messages.Path() + "/count_tokens",
	"/tokenize", "/detokenize", "/v1/models", "/version", "/health",
}

func (p passConfig) validate(before []passConfig, complain edge.Complain) {
	switch {
	case p.Path == "":
		complain("path", "missing")
	case !strings.HasPrefix(p.Path, "/") || strings.ContainsAny(p.Path, "?#% {}*") || strings.Contains(p.Path, "//") || strings.Contains(p.Path+"/", "/../") || strings.Contains(p.Path+"/", "/./"):
		complain("path", fmt.Sprintf("%q: want a plain path such as /v1/embeddings, or /v1/audio/ for all below it", p.Path))
	case slices.ContainsFunc(ownPaths, func(own string) bool {
		return own == p.Path || strings.HasSuffix(p.Path, "/") && strings.HasPrefix(own, p.Path)
	}):
		complain("path", fmt.Sprintf("%q: covers a path that the router serves itself", p.Path))
	case slices.ContainsFunc(before, func(b passConfig) bool { return b.Path == p.Path }):
		complain("path", fmt.Sprintf("%q: is listed twice", p.Path))
	}
	if p.Engine != "prefill" && p.Engine != "decode" && p.Engine != "any" {
		complain("engine", "want prefill, decode or any")
	}
	for i, m := range p.Methods {
		if !slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}, m) {
			complain(fmt.Sprintf("methods[%d]", i), fmt.Sprintf("%q: want GET, HEAD, POST, PUT, PATCH or DELETE", m))
		}
	}
	if p.Methods != nil && len(p.Methods) == 0 {
		complain("methods", "an empty list; leave it out for POST")
	}
}

// router is the router's part of c.
func (c config) router() router.Config {
	r := router.DefaultConfig()
	r.Prefill, r.Decode, r.Reuse = c.Prefill.URL, c.Decode.URL, c.Reuse
	r.HandleTTL, r.MaxBody, r.MaxReply = time.Duration(c.HandleTTL), int64(c.Limits.Body), int64(c.Limits.Reply)
	r.Return, r.Append, r.Threshold = c.Return, c.Append, int(c.RecomputeThreshold)
	r.ConversationHeader, r.KeepAlive = c.Identity.Header, time.Duration(c.StreamKeepalive)
	return r
}

// reloadInterval is how often files are read again.
func (c config) reloadInterval() time.Duration {
	if c.Tenants.ReloadInterval > 0 {
		return time.Duration(c.Tenants.ReloadInterval)
	}
	return 10 * time.Second
}

// warnings are what is allowed and yet rarely meant, each with a stable code.
func (c config) warnings() []string {
	var list []string
	if !c.Admin.TLS.Asks() && len(c.Admin.Allow) == 0 && !loopback(c.Admin.Address) {
		list = append(list, "admin-open: anybody who reaches "+c.Admin.Address+" can see turns and metrics; set admin.allow, admin.tls.client_ca or a loopback address")
	}
	keys := slices.ContainsFunc(c.Tenants.Auth, func(a tenant.AuthConfig) bool { return a.Keys != nil || a.JWT != nil })
	if keys && c.Listen.TLS == nil && !loopback(c.Listen.Address) {
		list = append(list, "keys-unencrypted: clients send their credentials to "+c.Listen.Address+" in the clear; set listen.tls, or let something in front do it")
	}
	for _, e := range []struct {
		name string
		cfg  edge.EngineConfig
	}{{"prefill", c.Prefill}, {"decode", c.Decode}} {
		if e.cfg.APIKey.Literal() {
			list = append(list, "secret-in-file: "+e.name+".api_key is written out; use ${NAME} for an environment variable, or api_key_file")
		}
	}
	return list
}

// loopback reports whether an address to listen on is for this machine only.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
