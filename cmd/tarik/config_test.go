package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/configfile"
	"github.com/tarik-kv/tarik/internal/configfile/configdoc"
	"github.com/tarik-kv/tarik/internal/edge"
	"github.com/tarik-kv/tarik/internal/tenant"
)

var update = flag.Bool("update", false, "write docs/config.md anew")

// TestConfigDoc compares docs/config.md with the comments it is made of.
func TestConfigDoc(t *testing.T) {
	t.Parallel()
	want, err := configdoc.Markdown("../..", "cmd/tarik", "config")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("..", "..", "docs", "config.md")
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil { //nolint:gosec // a document
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/config.md is stale (-want +got); `go generate ./cmd/tarik` writes it anew:\n%s", diff)
	}
}

// The defaults that the comments promise are those that the program has.
func TestConfigDocDefaults(t *testing.T) {
	t.Parallel()
	doc, err := configdoc.Markdown("../..", "cmd/tarik", "config")
	if err != nil {
		t.Fatal(err)
	}
	entry := regexp.MustCompile("(?s)\\*\\*`([a-z_]+)`\\*\\*.*?(?:\n\\* |\n\n|$)")
	promised := regexp.MustCompile(`Default:\s(\S+?)\.(\s|$)`)
	checked := 0
	for _, section := range strings.Split(doc, "\n## ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		text, _, _ = strings.Cut(text, "\n### ")
		top := member(reflect.ValueOf(defaultConfig()), name)
		for len(text) > 0 {
			m := entry.FindStringSubmatchIndex(text)
			if m == nil {
				break
			}
			key, about := text[m[2]:m[3]], text[m[0]:m[1]]
			text = text[max(m[1]-3, m[3]):]
			def := promised.FindStringSubmatch(about)
			if def == nil {
				continue
			}
			v := top
			if key != name && top.Kind() == reflect.Struct {
				v = member(top, key)
			}
			if got := shown(v); v.Kind() != reflect.Slice && got != def[1] {
				t.Errorf("%s: %s is documented to be %s by default, and is %s", name, key, def[1], got)
			}
			checked++
		}
	}
	if checked < 15 {
		t.Errorf("only %d defaults found in the document", checked)
	}
}

// member is the field of a struct with that yaml key.
func member(v reflect.Value, key string) reflect.Value {
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("yaml") == key {
			return v.Field(i)
		}
	}
	panic("BUG: config_test: no key " + key)
}

// shown is a value as it is written in the file.
func shown(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case tenant.Duration:
		s := x.String()
		for _, zero := range []string{"m0s", "h0m"} {
			if strings.HasSuffix(s, zero) {
				s = s[:len(s)-2]
			}
		}
		return s
	case tenant.Bytes:
		return x.String()
	}
	return fmt.Sprint(v.Interface())
}

// load is loadConfig of a file with that text and these flags.
func load(t *testing.T, text string, v flagValues, flags ...string) (config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tarik.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := loadConfig(file, v, changed(flags...))
	if err != nil {
		var usage *usageError
		if !errors.As(err, &usage) {
			t.Errorf("the error is a %T, want one of usage, for exit code 2", err)
		}
		err = errors.New(strings.ReplaceAll(err.Error(), filepath.Dir(file)+string(filepath.Separator), ""))
	}
	return c, err
}

func changed(flags ...string) func(string) bool {
	return func(name string) bool {
		for _, f := range flags {
			if f == name {
				return true
			}
		}
		return false
	}
}

const pair = "prefill: {url: http://p:8000}\ndecode: {url: http://d:8000}\n"

var comparer = cmp.Options{cmp.AllowUnexported(configfile.Secret{})}

func TestLoadConfig(t *testing.T) {
	t.Parallel()
	f := func(text string, v flagValues, flags []string, change func(*config)) {
		t.Helper()
		got, err := load(t, text, v, flags...)
		if err != nil {
			t.Fatal(err)
		}
		want := defaultConfig()
		want.Prefill.URL, want.Decode.URL = "http://p:8000", "http://d:8000"
		want.Tenants.Limits.Global.BodyBytes = want.Limits.Body
		change(&want)
		if diff := cmp.Diff(want, got, comparer); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	f(pair, flagValues{}, nil, func(*config) {})
	f(pair+"listen:\n  address: :443\n  tls: {cert: c, key: k}\n  idle_timeout: 5m\n", flagValues{}, nil, func(c *config) {
		c.Listen.Address, c.Listen.IdleTimeout = ":443", tenant.Duration(5*time.Minute)
		c.Listen.TLS = &edge.TLSConfig{Cert: "c", Key: "k"}
	})
	f(pair+"limits: {body: 32MiB}\nshutdown: {delay: 0s}\nreuse: false\n", flagValues{}, nil, func(c *config) {
		c.Limits.Body, c.Tenants.Limits.Global.BodyBytes, c.Shutdown.Delay, c.Reuse = 32<<20, 32<<20, 0, false
	})
	f(pair+"passthrough:\n  - {path: /v1/embeddings, engine: decode}\n  - {path: /v1/audio/, engine: any, methods: [POST, GET]}\n", flagValues{}, nil, func(c *config) {
		c.Passthrough = []passConfig{{"/v1/embeddings", "decode", []string{"POST"}}, {"/v1/audio/", "any", []string{"POST", "GET"}}}
	})
	// Flags override the file, each of them, and those that were not given do not.
	v := flagValues{
		Listen: ":1", Admin: "127.0.0.1:2", Prefill: "http://x:1", Decode: "http://y:1", Receipts: "r", LogLevel: "warn", LogFormat: "json",
		Reuse: false, HandleTTL: time.Hour, Drain: time.Minute, MaxBody: 1 << 20, Threshold: 16,
	}
	all := []string{"listen", "admin", "prefill", "decode", "receipts", "log-level", "log-format", "reuse", "handle-ttl", "drain", "max-body", "return", "append", "recompute-threshold"}
	f(pair+"listen: {address: :3}\nlog: {level: debug}\nhandle_ttl: 2h\n", v, all, func(c *config) {
		c.Listen.Address, c.Admin.Address, c.Prefill.URL, c.Decode.URL = v.Listen, v.Admin, v.Prefill, v.Decode
		c.Receipts.File, c.Log.Level, c.Log.Format, c.Reuse = v.Receipts, v.LogLevel, v.LogFormat, v.Reuse
		c.Return, c.Append, c.RecomputeThreshold = false, false, 16
		c.HandleTTL, c.Shutdown.Drain, c.Limits.Body = tenant.Duration(v.HandleTTL), tenant.Duration(v.Drain), tenant.Bytes(v.MaxBody)
		c.Tenants.Limits.Global.BodyBytes = tenant.Bytes(v.MaxBody)
	})
	f(pair+"listen: {address: :3}\n", v, nil, func(c *config) { c.Listen.Address = ":3" })
	if len(flagOf) != len(all) {
		t.Errorf("flagOf has %d flags, override %d", len(flagOf), len(all))
	}
}

func TestLoadConfigErrors(t *testing.T) {
	t.Parallel()
	f := func(text, want string) {
		t.Helper()
		_, err := load(t, text, flagValues{})
		got := ""
		if err != nil {
			got = err.Error()
		}
		if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	f("lisen: {address: :1}\n", `
tarik.yaml:1:1: unknown field "lisen"
1 | lisen: …
  | ^`)
	f(pair+"listen:\n  tls:\n    certificate: c\n", `
tarik.yaml:5:5: unknown field "certificate"
5 |     certificate: …
  |     ^`)
	f(pair+"shutdown:\n  drain: 30\n", `
tarik.yaml:4:10: want a duration such as 30s or 10m, got "30"
4 |   drain: 30
  |          ^`)
	f(pair+"limits:\n  body: 32MB\n", `
tarik.yaml:4:9: want a size such as 32MiB, or unlimited, got "32MB"
4 |   body: 32MB
  |         ^`)
	f("decode: {url: http://d:8000}\n", `
tarik.yaml: prefill.url: the URL of the prefill engine is missing, such as http://10.0.0.1:8000`)
	// All that is wrong is said at once.
	f(`prefill:
  url: p:8000
decode:
  url: http://d:8000
  authorization: pass
handle_ttl: 30s
limits: {body: 1MiB}
tenants:
  auth:
    - keys: {file: ""}
    - none: true
      header: {name: X-Tenant}
  limits:
    global: {body_bytes: 2MiB}
log: {level: loud, format: xml}
receipts: {keep: 9999999}
`, `
tarik.yaml:2:8: prefill.url: want a URL such as http://10.0.0.1:8000
2 |   url: p:8000
  |        ^
tarik.yaml:5:18: decode.authorization: pass has no effect: the router authenticates its clients, and their credentials end there
5 |   authorization: pass
  |                  ^
tarik.yaml:6:13: handle_ttl: 30s: must be more than the safety margin of 30s, or no handle could ever be used; set it to D's decoder_kv_blocks_ttl
6 | handle_ttl: 30s
  |             ^
tarik.yaml:14:26: tenants.limits.global.body_bytes: 2MiB: has no effect beyond limits.body, 1MiB
14 | …
   | ^
tarik.yaml:10:20: tenants.auth[0].keys.file: missing
10 | …
   | ^
tarik.yaml:11:7: tenants.auth[1]: want exactly one of keys, jwt, header and none
11 |     - none: …
   |       ^
tarik.yaml:12:7: tenants.auth[1].header.trusted_peers: missing: list the gateways' addresses; without them anybody could be any tenant
12 |       header: …
   |       ^
tarik.yaml:15:14: log.level: "loud": want debug, info, warn or error
15 | …
   | ^
tarik.yaml:15:28: log.format: "xml": want text or json
15 | …
   | ^
tarik.yaml:16:18: receipts.keep: want 1 to 1000000
16 | …
   | ^`)
	for name, why := range map[string]string{
		"x-tenant": "has another meaning", "Authorization": "has another meaning", "X-Request-Id": "has another meaning",
		"X-Tarik-Turn": "not a header's name, or one that only the router may set", "X:": "not a header's name, or one that only the router may set",
	} {
		f(fmt.Sprintf("%sidentity:\n  header: %q\ntenants:\n  auth:\n    - header: {name: X-Tenant, trusted_peers: [10.0.0.1]}\n", pair, name),
			fmt.Sprintf("tarik.yaml:4:11: identity.header: %q: %s\n4 |   header: …\n  |           ^", name, why))
	}
	f(pair+"admin: {address: \":8080\"}\n", `
tarik.yaml:3:18: admin.address: is listen.address; operators and clients need an address each
3 | …
  | ^`)
	f(pair+`passthrough:
  - path: v1/embeddings
    engine: decode
  - path: /v1/
    engine: all
  - path: /a/../b
    engine: any
    methods: [BREW]
  - path: /v1/embeddings
    engine: any
    methods: []
  - path: /v1/embeddings
    engine: any
  - engine: any
`, `
tarik.yaml:4:11: passthrough[0].path: "v1/embeddings": want a plain path such as /v1/embeddings, or /v1/audio/ for all below it
4 |   - path: v1/embeddings
  |           ^
tarik.yaml:6:11: passthrough[1].path: "/v1/": covers a path that the router serves itself
6 |   - path: /v1/
  |           ^
tarik.yaml:7:13: passthrough[1].engine: want prefill, decode or any
7 |     engine: all
  |             ^
tarik.yaml:8:11: passthrough[2].path: "/a/../b": want a plain path such as /v1/embeddings, or /v1/audio/ for all below it
8 |   - path: /a/../b
  |           ^
tarik.yaml:10:15: passthrough[2].methods[0]: "BREW": want GET, HEAD, POST, PUT, PATCH or DELETE
10 | …
   | ^
tarik.yaml:13:5: passthrough[3].methods: an empty list; leave it out for POST
13 |     methods: …
   |     ^
tarik.yaml:14:11: passthrough[4].path: "/v1/embeddings": is listed twice
14 |   - path: /v1/embeddings
   |           ^
tarik.yaml:16:5: passthrough[5].path: missing
16 |   - engine: …
   |     ^`)

	// Without a file, and for what a flag says, the flag is named.
	named := func(file string, v flagValues, want string, flags ...string) {
		t.Helper()
		_, err := loadConfig(file, v, changed(flags...))
		if err == nil || err.Error() != want {
			t.Errorf("%v: %v, want %s", flags, err, want)
		}
	}
	named("", flagValues{}, "--prefill: the URL of the prefill engine is missing, such as http://10.0.0.1:8000\n--decode: the URL of the decode engine is missing, such as http://10.0.0.2:8000")
	named("", flagValues{Prefill: "http://p:1", Decode: "d:1"}, "--decode: want a URL such as http://10.0.0.1:8000", "prefill", "decode")
	named("none.yaml", flagValues{}, "--config: open none.yaml: no such file or directory")
	_, err := load(t, pair, flagValues{HandleTTL: time.Second}, "handle-ttl")
	if err == nil || !strings.HasPrefix(err.Error(), "--handle-ttl: 1s: must be more than") {
		t.Errorf("a flag over a file: %v", err)
	}
}

func TestConfigWarnings(t *testing.T) {
	t.Parallel()
	f := func(text string, want ...string) {
		t.Helper()
		c, err := load(t, text, flagValues{})
		if err != nil {
			t.Fatal(err)
		}
		var codes []string
		for _, w := range c.warnings() {
			code, _, _ := strings.Cut(w, ":")
			codes = append(codes, code)
		}
		if diff := cmp.Diff(want, codes); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	const keys = "tenants: {auth: [{keys: {file: k}}]}\n"
	f(pair)
	f(pair + keys + "listen: {address: \"localhost:1\"}\n")
	f(pair+keys, "keys-unencrypted")
	f(pair + keys + "listen: {tls: {cert: c, key: k}}\n")
	f(pair+"admin: {address: \":9091\"}\n", "admin-open")
	f(pair+"admin: {address: \":9091\", tls: {cert: c, key: k, client_ca: ca, client_auth: optional}}\n", "admin-open")
	f(pair + "admin: {address: \":9091\", tls: {cert: c, key: k, client_ca: ca}}\n")
	f(pair + "admin: {address: \":9091\", allow: [10.0.0.1]}\n")
	f("prefill: {url: http://p:1, api_key: \"${P}\"}\ndecode: {url: http://d:1, api_key: written}\n", "secret-in-file")
}

// The router's own part is all that the file says about it.
func TestRouterConfig(t *testing.T) {
	t.Parallel()
	c, err := load(t, pair+"handle_ttl: 90s\nstream_keepalive: 15s\nreuse: false\nidentity: {header: X-Own}\nlimits: {body: 2MiB, reply: 3MiB}\n", flagValues{})
	if err != nil {
		t.Fatal(err)
	}
	r := c.router()
	got := fmt.Sprint(r.Prefill, r.Decode, r.Reuse, r.HandleTTL, r.MaxBody, r.MaxReply, r.ConversationHeader, r.KeepAlive, c.reloadInterval())
	if want := fmt.Sprint("http://p:8000", "http://d:8000", false, 90*time.Second, 2<<20, 3<<20, "X-Own", 15*time.Second, 10*time.Second); got != want {
		t.Errorf("router() = %s, want %s", got, want)
	}
	if err := r.Validate(); err != nil {
		t.Errorf("the router refuses a configuration that was found good: %v", err)
	}
}

// The documents' YAML is what the program reads.
func TestDocumentedConfig(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"serve.md", "tls.md"} {
		data, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(data), -1)
		if len(blocks) == 0 {
			t.Errorf("docs/%s has no YAML", name)
		}
		for i, b := range blocks {
			text := b[1]
			if !strings.Contains(text, "prefill:") {
				text += "prefill: {url: http://p:8000}\n"
			}
			if !strings.Contains(text, "decode:") {
				text += "decode: {url: http://d:8000}\n"
			}
			if _, err := load(t, text, flagValues{}); err != nil {
				t.Errorf("docs/%s, block %s: %v", name, strconv.Itoa(i+1), err)
			}
		}
	}
}
