package tenant

import (
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func secretsOf(ids ...string) secrets {
	var s secrets
	for i, id := range ids {
		s = append(s, generation{id: id, secret: []byte(strings.Repeat(id, 32)), from: epoch.Add(time.Duration(i) * 24 * time.Hour)})
	}
	return s
}

// Salts outlive versions of this program: another derivation would make every engine's cache cold on an upgrade.
func TestSaltsAreStable(t *testing.T) {
	t.Parallel()
	s := secretsOf("a")
	got := map[string]string{}
	for _, c := range []struct{ tenant, client string }{{"", ""}, {"acme", ""}, {"acme", "user-1"}, {"globex", "user-1"}} {
		got[c.tenant+"+"+c.client] = s.salt(epoch, true, c.tenant, c.client)
	}
	got["shared"] = s.salt(epoch, false, "acme", "user-1")
	want := map[string]string{
		"+":             "d18fb03bc9acfc95135f4b1a7f18b863",
		"acme+":         "08b1635c3881811253b3b71bc73c2f98",
		"acme+user-1":   "01dbc6ebbcb17b97eed61ca37bd7df7b",
		"globex+user-1": "29bc8d07c3425be87724c8929e3e83cc",
		"shared":        "6c2687b1f6c716f180b3cbd4a0bc8a30",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("salts (-want +got):\n%s", diff)
	}
}

// vLLM's rules: at most 128 characters; none of @ / \ NUL.
var validSalt = regexp.MustCompile(`^[0-9a-f]{32}$`)

// I4, H06: what differs in tenant or client salt has another salt, and nothing a client sends can make another
// tenant's: the encoding has no two readings.
func TestSaltsNeverCollide(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type input struct{ tenant, client string }
		s := secretsOf("a", "b", "c")
		now := epoch.Add(time.Duration(rapid.Int64Range(0, int64(96*time.Hour)).Draw(t, "now_ns")))
		seen := map[string]input{}
		inputs := map[input]bool{}
		// Few letters and NULs, so that concatenations coincide often.
		part := rapid.StringMatching(`[ab\x00/]{0,4}`)
		for range 40 {
			in := input{part.Draw(t, "tenant"), part.Draw(t, "client")}
			salt := s.salt(now, true, in.tenant, in.client)
			if !validSalt.MatchString(salt) {
				t.Fatalf("salt(%q) = %q", in, salt)
			}
			if other, ok := seen[salt]; ok && other != in {
				t.Fatalf("%q and %q have one salt", in, other)
			}
			if s.salt(now, false, in.tenant, in.client) == salt {
				t.Fatalf("%q: the shared salt is the tenant's", in)
			}
			seen[salt] = in
			inputs[in] = true
		}
		if len(seen) != len(inputs) {
			t.Fatalf("%d salts for %d inputs", len(seen), len(inputs))
		}
	})
}

func TestSaltWithoutIsolation(t *testing.T) {
	t.Parallel()
	s := secretsOf("a")
	if got := s.salt(epoch, false, "acme", ""); got != "" {
		t.Errorf("no isolation, no client salt: %q, want none", got)
	}
	if a, b := s.salt(epoch, false, "acme", "x"), s.salt(epoch, false, "globex", "x"); a != b || !validSalt.MatchString(a) {
		t.Errorf("no isolation, one client salt: %q and %q, want one", a, b)
	}
	if got := s.salt(epoch, true, "", ""); !validSalt.MatchString(got) {
		t.Errorf("isolation, no tenant, no client salt: %q", got)
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	s := secretsOf("a", "b", "c")
	f := func(at time.Duration, want string) {
		t.Helper()
		if got := s.at(epoch.Add(at), "acme").id; got != want {
			t.Errorf("after %s: %s, want %s", at, got, want)
		}
	}
	f(-time.Hour, "a") // the first has been in force for ever
	f(0, "a")
	f(24*time.Hour-1, "a")
	f(24*time.Hour, "b")
	f(48*time.Hour-1, "b")
	f(48*time.Hour, "c")
	f(1000*time.Hour, "c")

	// Taking the old secrets out of the file changes nothing once they are out of force.
	now := epoch.Add(72 * time.Hour)
	if s.salt(now, true, "acme", "") != s[2:].salt(now, true, "acme", "") {
		t.Error("removing old secrets changed the salt")
	}
}

// With a spread tenants change over one by one, each once, evenly, and all within the spread.
func TestRotationSpread(t *testing.T) {
	t.Parallel()
	s := secretsOf("a", "b")
	s[1].spread = time.Hour
	start := s[1].from
	changed := func(at time.Duration) int {
		n := 0
		for i := range 1000 {
			tenant := fmt.Sprint("tenant-", i)
			if s.at(start.Add(at), tenant).id == "b" {
				n++
				if s.at(start.Add(at+time.Minute), tenant).id != "b" {
					t.Errorf("%s changed back", tenant)
				}
			}
		}
		return n
	}
	for _, c := range []struct {
		at          time.Duration
		least, most int
	}{{-1, 0, 0}, {0, 0, 0}, {15 * time.Minute, 200, 300}, {30 * time.Minute, 450, 550}, {time.Hour, 1000, 1000}} {
		if n := changed(c.at); n < c.least || n > c.most {
			t.Errorf("after %s %d of 1000 tenants have changed, want %d to %d", c.at, n, c.least, c.most)
		}
	}
}

func secretText(fill string) string {
	return base64.StdEncoding.EncodeToString([]byte(strings.Repeat(fill, 32)))
}

func TestParseSecrets(t *testing.T) {
	t.Parallel()
	got, err := parseSecrets("salts.yaml", []byte("secrets:\n  - {id: a, secret: "+secretText("a")+"}\n  - {id: b, secret: \""+secretText("b")+"\", from: 2027-01-02, spread: 1h}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := secretsOf("a", "b")
	want[0].from = time.Time{}
	want[1].spread = time.Hour
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(generation{})); diff != "" {
		t.Errorf("secrets (-want +got):\n%s", diff)
	}
}

func TestGenerateSecret(t *testing.T) {
	t.Parallel()
	first, err := GenerateSecret("2027-01", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	second, err := GenerateSecret(`it's "quoted"`, epoch)
	if err != nil {
		t.Fatal(err)
	}
	s, err := parseSecrets("salts.yaml", []byte("secrets:\n"+first+second))
	if err != nil {
		t.Fatalf("%v in\n%s%s", err, first, second)
	}
	if s[0].id != "2027-01" || s[1].id != `it's "quoted"` || !s[1].from.Equal(epoch) || len(s[0].secret) != 32 || string(s[0].secret) == string(s[1].secret) {
		t.Errorf("read back: %+v", s)
	}
	if _, err := GenerateSecret("", epoch); err == nil {
		t.Error("a secret without an id was made")
	}
}

func TestParseSecretsErrors(t *testing.T) {
	t.Parallel()
	a, b := secretText("a"), secretText("b")
	f := func(file, want string) {
		t.Helper()
		_, err := parseSecrets("salts.yaml", []byte(file))
		var at *FileError
		if !errors.As(err, &at) || err.Error() != want {
			t.Errorf("%s\n got %v\nwant %s", file, err, want)
		}
	}
	bad := "want at least 32 random bytes in base64; `openssl rand -base64 32` makes some"
	f("secrets: []", "salts.yaml: secrets: want at least one")
	f("secrets:\n  - id: a\n    secret: c2hvcnQ=\n", "salts.yaml:3:13: secrets[0].secret: "+bad)
	f("secrets:\n  - id: a\n", "salts.yaml:2:9: secrets[0].secret: "+bad)
	f("secrets:\n  - secret: "+a+"\n", "salts.yaml:2:13: secrets[0].id: a secret has a name")
	f("secrets:\n  - "+a+"\n", "salts.yaml:2:5: string was used where mapping is expected")
	f("secrets:\n  - id: a\n    "+a+": x\n", "salts.yaml:3:5: unknown field (…)")
	f("'0\""+a+"0\"': x\n", "salts.yaml:1:1: unknown field (…)") // the library quotes without escaping
	f("secrets:\n  - {id: a, from: "+a+"}\n", "salts.yaml:2:19: want a time such as 2027-01-31T12:00:00Z or a date such as 2027-01-31, got 44 characters")
	f("secrets:\n  - {id: a, secret: "+a+"}\n  - {id: b, secret: "+b+"}\n", "salts.yaml:3:10: secrets[1].from: missing: only the first secret has been in force for ever")
	f("secrets:\n  - {id: a, secret: "+a+"}\n  - {id: a, secret: "+b+", from: 2027-01-02}\n", "salts.yaml:3:10: secrets[1].id: the secret on line 2 has the same id")
	f("secrets:\n  - {id: a, secret: "+a+", from: 2027-01-02}\n  - {id: b, secret: "+b+", from: 2027-01-02}\n", "salts.yaml:3:10: secrets[1].from: want later than the secret before it: they are listed oldest first")
	f("secrets:\n  - {id: a, secret: "+a+", spread: -1s}\n", "salts.yaml:2:10: secrets[0].spread: want 0s to 720h0m0s")
	f("secrets:\n  - {id: a, secret: "+a+", spread: 60}\n", `salts.yaml:2:75: want a duration such as 30s or 10m, got "60"`)
}

// FuzzParseSecrets: no file ends the router, and wherever the secret was put by mistake, no error shows it.
func FuzzParseSecrets(f *testing.F) {
	const secret = "q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA="
	f.Add("secrets:\n  - id: a\n    secret: SECRET\n")
	f.Add("secrets:\n  - id: a\n    SECRET: b\n    from: SECRET\n    spread: SECRET\n")
	f.Add("SECRET\nSECRET: SECRET\n'SECRET': [\n")
	f.Add("secrets:\n  - &SECRET {id: *SECRET, secret: !SECRET x}\n")
	f.Fuzz(func(t *testing.T, file string) {
		s, err := parseSecrets("salts.yaml", []byte(strings.ReplaceAll(file, "SECRET", secret)))
		if (s == nil) == (err == nil) {
			t.Fatalf("secrets %v, error %v", s, err)
		}
		if err != nil && strings.Contains(err.Error(), secret[:16]) {
			t.Errorf("the error shows the secret: %v", err)
		}
	})
}
