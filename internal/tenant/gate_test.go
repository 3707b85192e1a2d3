package tenant

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, file, content string) {
	t.Helper()
	// By rename, as an operator should: the file is never seen half written.
	if err := os.WriteFile(file+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

func keysOf(tenants ...string) string {
	var b strings.Builder
	b.WriteString("keys:\n")
	for _, name := range tenants {
		fmt.Fprintf(&b, "  - tenant: %s\n    key_sha256: \"%s\"\n", name, hexDigest("key of "+name))
	}
	return b.String()
}

var far = netip.MustParseAddr("203.0.113.9")

func (g *Gate) who(t *testing.T, key string) string {
	t.Helper()
	return outcome(g.Authenticate(t.Context(), headers("X-Api-Key", key), far))
}

func TestReload(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "keys.yaml")
	write(t, file, keysOf("acme"))
	g, err := New(Config{Auth: []AuthConfig{{Keys: &KeysConfig{File: file}}}}, Deps{})
	if err != nil {
		t.Fatal(err)
	}
	f := func(what string, wantChanged []string, wantErr, wantAcme, wantGlobex string) {
		t.Helper()
		changed, err := g.Reload()
		got := ""
		if err != nil {
			got = strings.ReplaceAll(err.Error(), file, "keys.yaml")
		}
		if diff := cmp.Diff([]any{wantChanged, wantErr, wantAcme, wantGlobex}, []any{changed, got, g.who(t, "key of acme"), g.who(t, "key of globex")}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	const unknown = "Unauthorized: the credential is not known here"
	f("nothing has changed", nil, "", "tenant acme", unknown)
	write(t, file, keysOf("acme", "globex"))
	f("a key was added", []string{file}, "", "tenant acme", "tenant globex")
	write(t, file, keysOf("acme")+"  - tenant: initech\n    key: x\n")
	for range 2 {
		f("the file is wrong", nil, `keys.yaml:5:5: unknown field "key"`, "tenant acme", "tenant globex")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	f("the file is gone", nil, "read keys.yaml: no such file or directory", "tenant acme", "tenant globex")
	write(t, file, keysOf("acme", "globex"))
	f("the file is back as it was", nil, "", "tenant acme", "tenant globex")
	write(t, file, keysOf("globex"))
	f("a key was withdrawn", []string{file}, "", unknown, "tenant globex")
}

// Requests while files are replaced: each sees the old content or the new one. Run with -race.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keys, salts := filepath.Join(dir, "keys.yaml"), filepath.Join(dir, "salts.yaml")
	first, second := "secrets:\n  - {id: a, secret: "+secretText("a")+"}\n", "secrets:\n  - {id: b, secret: "+secretText("b")+"}\n"
	write(t, keys, keysOf("acme"))
	write(t, salts, first)
	g, err := New(Config{Auth: []AuthConfig{{Keys: &KeysConfig{File: keys}}}, Salts: SaltsConfig{SecretsFile: salts}}, Deps{})
	if err != nil {
		t.Fatal(err)
	}
	allowed := map[string]bool{g.Salt("acme", ""): true}
	write(t, salts, second)
	if _, err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	allowed[g.Salt("acme", "")] = true

	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if got := g.who(t, "key of acme"); got != "tenant acme" {
					t.Errorf("acme is %s", got)
				}
				if salt := g.Salt("acme", ""); !allowed[salt] {
					t.Errorf("salt %s", salt)
				}
				if lease, d := g.Acquire(Identity{Tenant: "acme"}, 10, time.Now()); d.OK() {
					lease.Release()
				}
			}
		})
	}
	for i := range 50 {
		write(t, keys, keysOf("acme", fmt.Sprint("other-", i)))
		write(t, salts, []string{first, second}[i%2])
		if changed, err := g.Reload(); err != nil || len(changed) != 2 {
			t.Errorf("reload %d: %v, %v", i, changed, err)
		}
	}
	close(stop)
	wg.Wait()
}

// What is wrong is told when it begins and when it ends.
func TestRun(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "keys.yaml")
	write(t, file, keysOf("acme"))
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		client := &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
			if !up.Load() {
				return nil, errors.New("no route")
			}
			return reply(200, allKeys()), nil
		})}
		c := issuerConfig()
		g, err := New(Config{Auth: []AuthConfig{{Keys: &KeysConfig{File: file}}, {JWT: &c}}}, Deps{Client: client})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		begin := time.Now()
		var reports []string
		var wg sync.WaitGroup
		wg.Go(func() {
			g.Run(ctx, func(changed []string, err error) {
				line := fmt.Sprintf("%s changed=%d", time.Since(begin), len(changed))
				if err != nil {
					line += " " + strings.ReplaceAll(strings.ReplaceAll(err.Error(), file, "keys.yaml"), "\n", "; ")
				}
				reports = append(reports, line)
			})
		})
		at := func(d time.Duration, do func()) {
			time.Sleep(time.Until(begin.Add(d)))
			synctest.Wait()
			do()
		}
		at(25*time.Second, func() { write(t, file, keysOf("acme", "globex")) })
		at(45*time.Second, func() { write(t, file, "keys: 3\n") })
		at(75*time.Second, func() { up.Store(true) })
		at(95*time.Second, func() { write(t, file, keysOf("globex")) })
		at(3*time.Minute, stop)
		wg.Wait()
		const noRoute = `fetch the issuer's keys: Get "https://issuer.example/keys": no route`
		want := []string{
			"0s changed=0 " + noRoute,
			"30s changed=1 " + noRoute,
			"50s changed=0 keys.yaml:1:7: int was used where sequence is expected; " + noRoute,
			"1m30s changed=0 keys.yaml:1:7: int was used where sequence is expected",
			"1m40s changed=1",
		}
		if diff := cmp.Diff(want, reports); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
	})
}

func TestStripCredentials(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "keys.yaml")
	write(t, file, keysOf("acme"))
	sent := func() http.Header {
		return headers("Authorization", "Bearer k", "X-Api-Key", "k", "X-Tenant", "acme", "X-Tenant", "globex", "Anthropic-Version", "2023-06-01")
	}
	f := func(c []AuthConfig, want http.Header) {
		t.Helper()
		g, err := New(Config{Auth: c}, Deps{})
		if err != nil {
			t.Fatal(err)
		}
		h := sent()
		g.StripCredentials(h)
		if diff := cmp.Diff(want, h); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	header := AuthConfig{Header: &HeaderConfig{Name: "x-tenant", TrustedPeers: []string{"10.0.0.0/8"}}}
	f([]AuthConfig{{Keys: &KeysConfig{File: file}}, header, {None: true}}, headers("Anthropic-Version", "2023-06-01"))
	f([]AuthConfig{header}, headers("Anthropic-Version", "2023-06-01"))
	f([]AuthConfig{{Keys: &KeysConfig{File: file}}}, headers("X-Tenant", "acme", "X-Tenant", "globex", "Anthropic-Version", "2023-06-01"))
	f([]AuthConfig{{None: true}}, sent())
	f(nil, sent())
}

func TestNewDefaults(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "keys.yaml")
	write(t, file, keysOf("acme"))
	type facts struct {
		Isolated, Last bool
		SaltOf         bool // a request without a client salt has one
		Lone           int  // requests that one tenant gets of the default 4096
		BodyLimit      int64
	}
	f := func(what string, c Config, want facts) {
		t.Helper()
		g, err := New(c, Deps{Now: atEpoch})
		if err != nil {
			t.Fatal(err)
		}
		got := facts{Isolated: g.Isolated(), Last: g.SaltsLast(), SaltOf: g.Salt("acme", "") != "", BodyLimit: g.BodyLimit(Identity{Tenant: "acme"})}
		for range 5000 {
			if _, d := g.Acquire(Identity{Tenant: "acme"}, 0, epoch); d.OK() {
				got.Lone++
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	keys := []AuthConfig{{Keys: &KeysConfig{File: file}}}
	f("nobody is authenticated", Config{}, facts{Lone: 4096, BodyLimit: 64 << 20})
	f("keys", Config{Auth: keys}, facts{Isolated: true, SaltOf: true, Lone: 3276, BodyLimit: 64 << 20})
	f("keys without isolation", Config{Auth: keys, Salts: SaltsConfig{Isolation: ptr(false)}}, facts{Lone: 3276, BodyLimit: 64 << 20})
	f("first come, first served", Config{Auth: keys, Limits: LimitsConfig{FairShare: 1}}, facts{Isolated: true, SaltOf: true, Lone: 4096, BodyLimit: 64 << 20})
	f("a tenant of its own kind", Config{Auth: keys, Limits: LimitsConfig{
		Tenant:  Limits{Concurrent: 2, BodyBytes: 1 << 20},
		Tenants: TenantLimits{"acme": {Concurrent: 7}},
	}}, facts{Isolated: true, SaltOf: true, Lone: 7, BodyLimit: 1 << 20})
}

// Two gates without a secrets file, and two runs of one, share no salt; with the same file they do.
func TestSaltsOfReplicas(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "salts.yaml")
	entry, err := GenerateSecret("first", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, "secrets:\n"+entry)
	salt := func(c SaltsConfig) string {
		g, err := New(Config{Salts: c}, Deps{})
		if err != nil {
			t.Fatal(err)
		}
		return g.Salt("", "user-1")
	}
	if a, b := salt(SaltsConfig{}), salt(SaltsConfig{}); a == b {
		t.Errorf("random secrets gave one salt %s", a)
	}
	if a, b := salt(SaltsConfig{SecretsFile: file}), salt(SaltsConfig{SecretsFile: file}); a != b || !validSalt.MatchString(a) {
		t.Errorf("one file gave %q and %q", a, b)
	}
}

func TestNewErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "bad.yaml"), "x: 1\n")
	write(t, filepath.Join(dir, "bad.json"), "{}")
	jwks := issuerConfig()
	jwks.JWKSURL, jwks.JWKSFile = "", filepath.Join(dir, "bad.json")
	f := func(c Config, want string) {
		t.Helper()
		_, err := New(c, Deps{})
		if err == nil || strings.ReplaceAll(err.Error(), dir+string(filepath.Separator), "") != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	f(Config{Auth: []AuthConfig{{Keys: &KeysConfig{File: filepath.Join(dir, "none.yaml")}}}}, "auth[0]: read none.yaml: no such file or directory")
	f(Config{Auth: []AuthConfig{{Keys: &KeysConfig{File: filepath.Join(dir, "bad.yaml")}}}}, `auth[0]: bad.yaml:1:1: unknown field "x"`)
	f(Config{Auth: []AuthConfig{{JWT: &jwks}}}, "auth[0]: bad.json: key set: no usable key among 0: ")
	f(Config{Salts: SaltsConfig{SecretsFile: filepath.Join(dir, "bad.yaml")}}, `salts.secrets_file: bad.yaml:1:1: unknown field "x"`)
	f(Config{Auth: []AuthConfig{{}}}, "auth[0]: want exactly one of keys, jwt, header and none")
}

// Keys from a JWKS file, end to end, with its replacement.
func TestJWKSFile(t *testing.T) {
	t.Parallel()
	s := signers()
	file := filepath.Join(t.TempDir(), "keys.json")
	write(t, file, string(keySetOf(s.ed.jwk())))
	c := issuerConfig()
	c.JWKSURL, c.JWKSFile = "", file
	g, err := New(Config{Auth: []AuthConfig{{JWT: &c}}}, Deps{Now: atEpoch})
	if err != nil {
		t.Fatal(err)
	}
	token := s.ec.sign(good(nil), nil)
	got := []string{g.who(t, token)}
	write(t, file, string(keySetOf(s.ec.jwk())))
	if _, err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	got = append(got, g.who(t, token))
	want := []string{"Unauthorized: the token is signed with a key that its issuer does not publish", "tenant acme"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
