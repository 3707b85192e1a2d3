package tenant

import (
	"errors"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
)

// decode reads a Config as the router's configuration file is read.
func decode(text string) (Config, error) {
	var c Config
	err := yaml.UnmarshalWithOptions([]byte(text), &c, yaml.Strict())
	return c, err
}

func TestConfigYAML(t *testing.T) {
	t.Parallel()
	got, err := decode(`
auth:
  - keys: {file: keys.yaml}
  - jwt:
      issuer: https://issuer.example
      audience: [tarik]
      jwks_url: https://issuer.example/keys
      jwks_refresh: 5m
      jwks_max_age: 1h
      leeway: 10s
      tenant_claim: /org/id
  - header: {name: X-Tenant, trusted_peers: [10.0.0.0/8]}
  - none: true
salts: {secrets_file: salts.yaml, isolation: true}
limits:
  global: {concurrent: 512, prompt_bytes: 1GiB, requests_per_minute: unlimited}
  tenant: {requests_per_minute: 600, burst: 50}
  tenants:
    acme: {concurrent: 64, body_bytes: 1048576}
    "0123": {burst: 5}
    "": {concurrent: 1}
  fair_share: 0.5
  max_idle_tenants: 1000
reload_interval: 1m
`)
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Auth: []AuthConfig{
			{Keys: &KeysConfig{File: "keys.yaml"}},
			{JWT: &JWTConfig{
				Issuer: "https://issuer.example", Audience: []string{"tarik"}, JWKSURL: "https://issuer.example/keys", JWKSRefresh: Duration(5 * time.Minute),
				JWKSMaxAge: Duration(time.Hour), Leeway: Duration(10 * time.Second), TenantClaim: "/org/id",
			}},
			{Header: &HeaderConfig{Name: "X-Tenant", TrustedPeers: []string{"10.0.0.0/8"}}},
			{None: true},
		},
		Salts: SaltsConfig{SecretsFile: "salts.yaml", Isolation: ptr(true)},
		Limits: LimitsConfig{
			Global:    Limits{Concurrent: 512, PromptBytes: 1 << 30, RequestsPerMinute: Unlimited},
			Tenant:    Limits{RequestsPerMinute: 600, Burst: 50},
			Tenants:   TenantLimits{"acme": {Concurrent: 64, BodyBytes: 1 << 20}, "0123": {Burst: 5}, "": {Concurrent: 1}},
			FairShare: 0.5, MaxIdleTenants: 1000,
		},
		ReloadInterval: Duration(time.Minute),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
}

// A value of the wrong form is reported where it stands.
func TestConfigPositions(t *testing.T) {
	t.Parallel()
	f := func(text, want string) {
		t.Helper()
		_, err := decode(text)
		if err == nil || !strings.HasPrefix(err.Error(), want+"\n") {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		}
	}
	f("reload_interval: 10", `[1:18] want a duration such as 30s or 10m, got "10"`)
	f("reload_interval: [10s]", `[1:18] want a duration such as 30s or 10m, got a sequence`)
	f("limits: {global: {concurrent: -1}}", `[1:31] want a positive number or unlimited, got "-1"`)
	f("limits: {global: {concurrent: 1.5}}", `[1:31] want a positive number or unlimited, got "1.5"`)
	f("limits: {global: {body_bytes: 32 MiB}}", `[1:31] want a size such as 32MiB, or unlimited, got "32 MiB"`)
	f("limits: {global: {body_bytes: 9999999999GiB}}", `[1:31] want a size such as 32MiB, or unlimited, got "9999999999GiB"`)
	f("limits:\n  tenants:\n    0123: {concurrent: 1}", "[3:5] want a tenant's name, got integer: put it in quotes")
	f("limits:\n  tenants:\n    acme: {concurent: 1}", `[3:12] unknown field "concurent"`)
	f("limits:\n  tenants: [acme]", "[2:12] sequence was used where mapping is expected")
	f("auth: [{key: {}}]", `[1:9] unknown field "key"`)
}

func TestValidate(t *testing.T) {
	t.Parallel()
	f := func(c Config, want ...string) {
		t.Helper()
		var got []string
		if joined, ok := c.Validate().(interface{ Unwrap() []error }); ok {
			for _, err := range joined.Unwrap() {
				var field *FieldError
				if !errors.As(err, &field) {
					t.Errorf("%v is no FieldError", err)
				}
				got = append(got, err.Error())
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	token := func(change func(*JWTConfig)) Config {
		c := issuerConfig()
		change(&c)
		return Config{Auth: []AuthConfig{{JWT: &c}}}
	}
	header := func(name string, peers ...string) Config {
		return Config{Auth: []AuthConfig{{Header: &HeaderConfig{Name: name, TrustedPeers: peers}}}}
	}
	f(Config{})
	f(token(func(*JWTConfig) {}))
	f(header("X-Tenant", "10.0.0.0/8", "::1", "fd00::/8"))

	f(Config{ReloadInterval: Duration(time.Millisecond)}, "reload_interval: 1ms: want at least 1s")
	f(Config{Auth: []AuthConfig{{None: true}, {}, {Keys: &KeysConfig{}, None: true}}},
		"auth[0].none: must be the last one", "auth[1]: want exactly one of keys, jwt, header and none",
		"auth[2]: want exactly one of keys, jwt, header and none", "auth[2].keys.file: missing")

	f(token(func(c *JWTConfig) { *c = JWTConfig{} }),
		"auth[0].jwt.issuer: missing: set it to the iss of the tokens",
		"auth[0].jwt.audience: missing: list what the tokens' aud is for this service, or set any_audience",
		"auth[0].jwt: want exactly one of jwks_url and jwks_file")
	f(token(func(c *JWTConfig) { c.AnyAudience = true }), "auth[0].jwt.any_audience: contradicts audience")
	f(token(func(c *JWTConfig) { c.Audience = []string{""} }), "auth[0].jwt.audience: has an empty string")
	f(token(func(c *JWTConfig) { c.JWKSFile = "x" }), "auth[0].jwt: want exactly one of jwks_url and jwks_file")
	f(token(func(c *JWTConfig) { c.JWKSURL, c.JWKSFile, c.JWKSRefresh = "", "x", Duration(time.Hour) }), "auth[0].jwt: jwks_refresh and jwks_max_age have no effect with jwks_file; see reload_interval")
	f(token(func(c *JWTConfig) { c.JWKSRefresh = Duration(time.Second) }), "auth[0].jwt.jwks_refresh: 1s: want at least 1m")
	f(token(func(c *JWTConfig) { c.JWKSMaxAge = Duration(time.Minute) }), "auth[0].jwt.jwks_max_age: 1m0s: want at least jwks_refresh, 10m0s")
	f(token(func(c *JWTConfig) { c.JWKSRefresh = Duration(48 * time.Hour) }))
	f(token(func(c *JWTConfig) { c.Leeway = Duration(-time.Second) }), "auth[0].jwt.leeway: -1s: want 0s to 5m")
	f(token(func(c *JWTConfig) { c.Leeway = Duration(time.Hour) }), "auth[0].jwt.leeway: 1h0m0s: want 0s to 5m")
	f(token(func(c *JWTConfig) { c.TenantClaim, c.ModelsClaim = "/a~", "/b~2" }),
		`auth[0].jwt.tenant_claim: "/a~": not a JSON pointer: ~ is written ~0, and / within a name ~1`,
		`auth[0].jwt.models_claim: "/b~2": not a JSON pointer: ~ is written ~0, and / within a name ~1`)
	f(token(func(c *JWTConfig) { c.TenantClaim = "/a~0~1b" }))
	f(token(func(c *JWTConfig) { c.TenantPrefix = " x" }), "auth[0].jwt.tenant_prefix: a tenant's name has no space at either end")
	for _, u := range []string{"http://issuer.example/keys", "http://10.0.0.1/keys", "ftp://issuer.example/keys"} {
		f(token(func(c *JWTConfig) { c.JWKSURL = u }), `auth[0].jwt.jwks_url: "`+u+`": want https: who can change the keys on their way can be any tenant`)
	}
	for _, u := range []string{"issuer.example/keys", "https://", "https://user:pw@issuer.example/keys", "https://issuer.example/keys#x", "https://\x00"} {
		if err := checkJWKSURL(u); err == nil || !strings.Contains(err.Error(), "want a URL") {
			t.Errorf("%q: %v", u, err)
		}
	}
	for _, u := range []string{"http://127.0.0.1:8080/keys", "http://[::1]/keys", "http://localhost/keys"} {
		f(token(func(c *JWTConfig) { c.JWKSURL = u }))
	}

	f(header(""), "auth[0].header.name: missing", "auth[0].header.trusted_peers: missing: list the gateways' addresses; without them anybody could be any tenant")
	f(header("x tenant", "10.0.0.1"), `auth[0].header.name: "x tenant": not a header's name`)
	f(header("authorization", "10.0.0.1"), `auth[0].header.name: "authorization": has another meaning; take a header that only the gateway sets`)
	f(header("X-Tenant", "10.0.0.0/0", "0.0.0.0/0", "::/0", "10.0.0.1/8", "gateway", "fe80::1%eth0", "::ffff:10.0.0.0/104"),
		`auth[0].header.trusted_peers[0]: "10.0.0.0/0": trusts everybody`,
		`auth[0].header.trusted_peers[1]: "0.0.0.0/0": trusts everybody`,
		`auth[0].header.trusted_peers[2]: "::/0": trusts everybody`,
		`auth[0].header.trusted_peers[3]: "10.0.0.1/8": has bits beyond its length; the network is 10.0.0.0/8`,
		`auth[0].header.trusted_peers[4]: "gateway": want an address such as 10.1.2.3 or a network such as 10.0.0.0/8`,
		`auth[0].header.trusted_peers[5]: "fe80::1%eth0": want an address such as 10.1.2.3 or a network such as 10.0.0.0/8`,
		`auth[0].header.trusted_peers[6]: "::ffff:10.0.0.0/104": write the network in IPv4 form`)

	limits := func(l LimitsConfig) Config { return Config{Limits: l} }
	f(limits(LimitsConfig{Tenant: Limits{RequestsPerMinute: 60}, Tenants: TenantLimits{"acme": {Burst: 3}}}))
	f(limits(LimitsConfig{Global: Limits{Concurrent: -2, Burst: Unlimited}, Tenant: Limits{Burst: 3}}),
		"limits.global.concurrent: -2: want 1 to 2147483647, or unlimited", "limits.global.burst: unlimited: lift requests_per_minute instead",
		"limits.tenant.burst: has no effect without requests_per_minute")
	f(limits(LimitsConfig{Tenants: TenantLimits{"b": {Burst: 2}, "a\n": {RequestsPerMinute: maxRate + 1}}, FairShare: math.NaN(), MaxIdleTenants: -1}),
		"limits.tenants.a\n: a tenant's name has no control characters", "limits.tenants.a\n.requests_per_minute: 60000001: want 1 to 60000000, or unlimited",
		"limits.tenants.b.burst: has no effect without requests_per_minute", "limits.fair_share: NaN: want more than 0 and at most 1",
		"limits.max_idle_tenants: -1: want at least 1")
	f(limits(LimitsConfig{FairShare: 1.01}), "limits.fair_share: 1.01: want more than 0 and at most 1")
}

// placeholder stands for a hash or a secret in the documentation: a real one would be copied into use.
var placeholder = regexp.MustCompile(`(key_sha256|secret): "<[^>]*>"`)

// The configuration, keys and secrets shown in the documentation are read without complaint.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/tenants.md")
	if err != nil {
		t.Fatal(err)
	}
	read := map[string]int{}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1) {
		n := 0
		text := placeholder.ReplaceAllStringFunc(string(block[1]), func(field string) string {
			n++
			if strings.HasPrefix(field, "key_sha256") {
				return `key_sha256: "` + hexDigest(strconv.Itoa(n)) + `"`
			}
			return "secret: " + secretText(strconv.Itoa(n))
		})
		kind, _, _ := strings.Cut(text, ":")
		switch kind {
		case "keys":
			_, err = parseKeys("keys.yaml", []byte(text))
		case "secrets":
			_, err = parseSecrets("salts.yaml", []byte(text))
		default:
			var c Config
			kind = "config"
			if c, err = decode(text); err == nil {
				err = c.Validate()
			}
		}
		read[kind]++
		if err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
	}
	if read["keys"] < 1 || read["secrets"] < 2 || read["config"] < 4 {
		t.Errorf("examples read: %v", read)
	}
}

func TestBytesString(t *testing.T) {
	t.Parallel()
	got := map[Bytes]string{}
	for _, b := range []Bytes{0, 1, 1023, 1 << 10, 3 << 20, 2 << 30, 1<<30 + 1<<20, Unlimited} {
		got[b] = b.String()
	}
	want := map[Bytes]string{0: "0", 1: "1", 1023: "1023", 1 << 10: "1KiB", 3 << 20: "3MiB", 2 << 30: "2GiB", 1<<30 + 1<<20: "1025MiB", Unlimited: "unlimited"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
