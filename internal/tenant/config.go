package tenant

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Config says who may come in and what for.
type Config struct {
	// Auth lists the authenticators in the order in which they are tried; the first that recognises the client
	// decides. Left out: none, which is one tenant and no check.
	Auth []AuthConfig `yaml:"auth"`
	// Salts keep the KV of tenants apart in the engines' prefix caches.
	Salts SaltsConfig `yaml:"salts"`
	// Limits bound what tenants use of the router.
	Limits LimitsConfig `yaml:"limits"`
	// ReloadInterval is how often the files named here are read again, at least 1s. Only content that differs
	// has an effect; a file that has become wrong is reported, and what was read from it before stays in force.
	// Left out: 10s.
	ReloadInterval Duration `yaml:"reload_interval"`
}

// AuthConfig is one authenticator: exactly one of its fields is set.
type AuthConfig struct {
	// Keys recognises API keys listed in a file.
	Keys *KeysConfig `yaml:"keys"`
	// JWT recognises signed tokens of one issuer.
	JWT *JWTConfig `yaml:"jwt"`
	// Header believes a gateway that has authenticated the client itself.
	Header *HeaderConfig `yaml:"header"`
	// None lets everybody in as the tenant without a name. After other authenticators it takes only requests
	// that carry no credential at all: a wrong key is refused, not served as nobody's.
	None bool `yaml:"none"`
}

// KeysConfig is the authenticator of API keys, sent as "Authorization: Bearer KEY" or "X-Api-Key: KEY".
type KeysConfig struct {
	// File lists the keys' hashes. It is read again every reload_interval. Required.
	File string `yaml:"file"`
}

// JWTConfig is the authenticator of JSON Web Tokens, sent as "Authorization: Bearer TOKEN" or
// "X-Api-Key: TOKEN". They are signed with RS256, ES256 or EdDSA (Ed25519), and the key decides which; none and
// the HMAC algorithms are refused. Tokens of other issuers are left to the authenticators after it.
type JWTConfig struct {
	// Issuer is what a token's iss must be. Required.
	Issuer string `yaml:"issuer"`
	// Audience lists what a token's aud may be: one of them must be in it. Required, because issuers sign tokens
	// for other services too, unless any_audience is set.
	Audience []string `yaml:"audience"`
	// AnyAudience accepts tokens meant for any service, for issuers that set no aud. Left out: false.
	AnyAudience bool `yaml:"any_audience"`
	// JWKSURL is where the issuer publishes its keys, https except on a loopback address. They are fetched when
	// first needed and every jwks_refresh; a token with an unknown key id fetches them at once, at most every
	// 30 s. A fetch takes at most 5 s and 1 MiB, and follows no redirect.
	JWKSURL string `yaml:"jwks_url"`
	// JWKSFile has the keys instead. It is read again every reload_interval.
	JWKSFile string `yaml:"jwks_file"`
	// JWKSRefresh is the time between fetches, at least 1m. It is how long a key that the issuer withdraws is
	// still accepted. Left out: 10m.
	JWKSRefresh Duration `yaml:"jwks_refresh"`
	// JWKSMaxAge is how long fetched keys are used while no new ones can be had, at least jwks_refresh. After it
	// tokens get 503. Left out: 24h.
	JWKSMaxAge Duration `yaml:"jwks_max_age"`
	// Leeway is how wrong the issuer's clock may be when exp and nbf are checked, at most 5m. Left out: 30s.
	// exp is required.
	Leeway Duration `yaml:"leeway"`
	// TenantClaim says which claim names the tenant: a name as it stands at the top level, or a JSON pointer
	// such as /org/id. Its value is a non-empty string; a token without it gets 403. Left out: sub, so that every
	// subject is a tenant of its own.
	TenantClaim string `yaml:"tenant_claim"`
	// ModelsClaim, if set, names a claim (like tenant_claim) with the list of models the client may use. A token
	// without the claim may use all; one whose claim is not a list of strings gets 403.
	ModelsClaim string `yaml:"models_claim"`
	// TenantPrefix is put before the tenant's name, so that this issuer cannot name a tenant of another
	// authenticator. Left out: none, and equal names are the same tenant.
	TenantPrefix string `yaml:"tenant_prefix"`
}

// HeaderConfig is the authenticator that believes a request header, if the connection comes from a trusted
// peer. From all others the header means nothing. It never reaches an engine.
type HeaderConfig struct {
	// Name of the header whose value is the tenant. Required.
	Name string `yaml:"name"`
	// TrustedPeers lists the addresses (10.1.2.3) and networks (10.0.0.0/8) of the gateways, as the router sees
	// the connection. Required. The gateway must overwrite the header on every request it forwards.
	TrustedPeers []string `yaml:"trusted_peers"`
	// TenantPrefix is put before the tenant's name, see jwt.tenant_prefix.
	TenantPrefix string `yaml:"tenant_prefix"`
}

// SaltsConfig says how cache_salt is made. A client's own cache_salt never reaches an engine as it is: it is one
// input of the salt, beside the tenant.
type SaltsConfig struct {
	// SecretsFile lists the secrets that salts are made with. Every replica of the router needs the same ones.
	// It is read again every reload_interval. Left out: a random secret, so that nothing an engine has cached
	// under a salt is found again after a restart, nor by another replica.
	SecretsFile string `yaml:"secrets_file"`
	// Isolation keeps each tenant's KV from all others. Off, tenants share cached prefixes, and each can find
	// out by timing what others have sent. Left out: on, except when nobody is authenticated, because then there
	// is one tenant.
	Isolation *bool `yaml:"isolation"`
}

// FieldError is one thing that is wrong with a Config.
type FieldError struct {
	Path    string // such as auth[1].jwt.issuer
	Message string
}

func (e *FieldError) Error() string { return e.Path + ": " + e.Message }

// Validate returns nil, or all that is wrong with c: [*FieldError] values joined. It reads no file.
func (c Config) Validate() error {
	var errs []error
	complain := func(path, message string) { errs = append(errs, &FieldError{path, message}) }
	for i, a := range c.Auth {
		a.validate(fmt.Sprintf("auth[%d]", i), complain)
		if a.None && i < len(c.Auth)-1 {
			complain(fmt.Sprintf("auth[%d].none", i), "must be the last one")
		}
	}
	c.Limits.validate("limits", complain)
	if d := time.Duration(c.ReloadInterval); d != 0 && d < time.Second {
		complain("reload_interval", fmt.Sprintf("%s: want at least 1s", d))
	}
	return errors.Join(errs...)
}

// lone reports whether there is one tenant only.
func (c Config) lone() bool { return len(c.Auth) == 0 || len(c.Auth) == 1 && c.Auth[0].None }

func (a AuthConfig) validate(path string, complain func(path, message string)) {
	set := 0
	for _, is := range []bool{a.Keys != nil, a.JWT != nil, a.Header != nil, a.None} {
		if is {
			set++
		}
	}
	if set != 1 {
		complain(path, "want exactly one of keys, jwt, header and none")
	}
	if a.Keys != nil && a.Keys.File == "" {
		complain(path+".keys.file", "missing")
	}
	if a.JWT != nil {
		a.JWT.validate(path+".jwt", complain)
	}
	if a.Header != nil {
		a.Header.validate(path+".header", complain)
	}
}

func (c JWTConfig) validate(path string, complain func(path, message string)) {
	if c.Issuer == "" {
		complain(path+".issuer", "missing: set it to the iss of the tokens")
	}
	switch {
	case len(c.Audience) == 0 && !c.AnyAudience:
		complain(path+".audience", "missing: list what the tokens' aud is for this service, or set any_audience")
	case len(c.Audience) > 0 && c.AnyAudience:
		complain(path+".any_audience", "contradicts audience")
	case slices.Contains(c.Audience, ""):
		complain(path+".audience", "has an empty string")
	}
	switch {
	case (c.JWKSURL == "") == (c.JWKSFile == ""):
		complain(path, "want exactly one of jwks_url and jwks_file")
	case c.JWKSURL != "":
		if err := checkJWKSURL(c.JWKSURL); err != nil {
			complain(path+".jwks_url", err.Error())
		}
	case c.JWKSRefresh != 0 || c.JWKSMaxAge != 0:
		complain(path, "jwks_refresh and jwks_max_age have no effect with jwks_file; see reload_interval")
	}
	d := c.withDefaults()
	if time.Duration(d.JWKSRefresh) < time.Minute {
		complain(path+".jwks_refresh", fmt.Sprintf("%s: want at least 1m", d.JWKSRefresh))
	}
	if d.JWKSMaxAge < d.JWKSRefresh {
		complain(path+".jwks_max_age", fmt.Sprintf("%s: want at least jwks_refresh, %s", d.JWKSMaxAge, d.JWKSRefresh))
	}
	if l := time.Duration(c.Leeway); l < 0 || l > 5*time.Minute {
		complain(path+".leeway", fmt.Sprintf("%s: want 0s to 5m", c.Leeway))
	}
	for _, f := range []struct{ name, pointer string }{{"tenant_claim", d.TenantClaim}, {"models_claim", c.ModelsClaim}} {
		if strings.HasPrefix(f.pointer, "/") && !validPointer(f.pointer) {
			complain(path+"."+f.name, fmt.Sprintf("%q: not a JSON pointer: ~ is written ~0, and / within a name ~1", f.pointer))
		}
	}
	checkPrefix(c.TenantPrefix, path+".tenant_prefix", complain)
}

func checkPrefix(prefix, path string, complain func(path, message string)) {
	if prefix == "" {
		return
	}
	if err := checkTenant(prefix + "x"); err != nil {
		complain(path, err.Error())
	}
}

// withDefaults fills in what is left out.
func (c JWTConfig) withDefaults() JWTConfig {
	if c.JWKSRefresh == 0 {
		c.JWKSRefresh = Duration(10 * time.Minute)
	}
	if c.JWKSMaxAge == 0 {
		c.JWKSMaxAge = max(Duration(24*time.Hour), c.JWKSRefresh)
	}
	if c.Leeway == 0 {
		c.Leeway = Duration(30 * time.Second)
	}
	if c.TenantClaim == "" {
		c.TenantClaim = "sub"
	}
	return c
}

// checkJWKSURL refuses places that anybody on the way could write keys into.
func checkJWKSURL(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" {
		return fmt.Errorf("%q: want a URL such as https://issuer.example/.well-known/jwks.json", s)
	}
	ip := net.ParseIP(u.Hostname())
	loopback := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	if u.Scheme != "https" && (u.Scheme != "http" || !loopback) {
		return fmt.Errorf("%q: want https: who can change the keys on their way can be any tenant", s)
	}
	return nil
}

func (c HeaderConfig) validate(path string, complain func(path, message string)) {
	name := http.CanonicalHeaderKey(c.Name)
	switch {
	case c.Name == "":
		complain(path+".name", "missing")
	case !validHeaderName(c.Name):
		complain(path+".name", fmt.Sprintf("%q: not a header's name", c.Name))
	case name == "Authorization" || name == "X-Api-Key" || name == "Host" || name == "Content-Type" || name == "Content-Length":
		complain(path+".name", fmt.Sprintf("%q: has another meaning; take a header that only the gateway sets", c.Name))
	}
	if len(c.TrustedPeers) == 0 {
		complain(path+".trusted_peers", "missing: list the gateways' addresses; without them anybody could be any tenant")
	}
	for i, s := range c.TrustedPeers {
		if _, err := ParsePeer(s); err != nil {
			complain(fmt.Sprintf("%s.trusted_peers[%d]", path, i), err.Error())
		}
	}
	checkPrefix(c.TenantPrefix, path+".tenant_prefix", complain)
}

// validHeaderName reports whether s is a token, RFC 9110 §5.6.2.
func validHeaderName(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		letter := 'a' <= r|0x20 && r|0x20 <= 'z'
		return !letter && !('0' <= r && r <= '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

// ParsePeer reads an address such as 10.1.2.3 or a network such as 10.0.0.0/8.
func ParsePeer(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("%q: want an address such as 10.1.2.3 or a network such as 10.0.0.0/8", s)
		}
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	switch {
	case p.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("%q: write the network in IPv4 form", s)
	case p.Bits() == 0:
		return netip.Prefix{}, fmt.Errorf("%q: trusts everybody", s)
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("%q: has bits beyond its length; the network is %s", s, p.Masked())
	}
	return p, nil
}

// sorted goes through m in the order of its keys.
func sorted[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}
