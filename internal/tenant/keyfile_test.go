package tenant

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func hexDigest(key string) string {
	d := sha256.Sum256([]byte(key))
	return hex.EncodeToString(d[:])
}

const keysExample = `# made by hand
keys:
  - tenant: acme
    name: ci
    key_sha256: %acme-ci%
    expires: 2027-02-01
    models: [qwen3-32b, "llama-*"]
    limits: {concurrent: 2, requests_per_minute: 60, prompt_bytes: 64MiB, body_bytes: unlimited}
  - tenant: acme
    key_sha256: %acme-people%
  - tenant: "0123"
    name: ci
    key_sha256: "%globex%"
    expires: 2027-01-31T12:00:00+02:00
`

// filled puts digests of the named keys into a file.
func filled(file string) []byte {
	for _, key := range []string{"acme-ci", "acme-people", "globex"} {
		file = strings.ReplaceAll(file, "%"+key+"%", hexDigest(key))
	}
	return []byte(file)
}

func TestParseKeys(t *testing.T) {
	t.Parallel()
	s, err := parseKeys("keys.yaml", filled(keysExample))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]keyEntry{
		"acme-ci": {
			tenant: "acme", name: "ci", expires: time.Date(2027, 2, 1, 0, 0, 0, 0, time.UTC), models: []string{"qwen3-32b", "llama-*"},
			limits: &Limits{Concurrent: 2, RequestsPerMinute: 60, PromptBytes: 64 << 20, BodyBytes: Unlimited},
		},
		"acme-people": {tenant: "acme", name: hexDigest("acme-people")[:8]},
		"globex":      {tenant: "0123", name: "ci", expires: time.Date(2027, 1, 31, 10, 0, 0, 0, time.UTC)},
	}
	got := map[string]keyEntry{}
	for key, e := range want {
		e.digest = sha256.Sum256([]byte(key))
		want[key] = e
		found, ok := s.find(key)
		if !ok {
			t.Errorf("find(%q): not there", key)
		}
		got[key] = found
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(keyEntry{})); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	for _, other := range []string{"", "acme", "ACME-CI", "acme-ci ", hexDigest("acme-ci")} {
		if e, ok := s.find(other); ok {
			t.Errorf("find(%q) = %+v", other, e)
		}
	}
}

// Two digests that agree in their first half are two keys.
func TestKeysWithOnePrefix(t *testing.T) {
	t.Parallel()
	digest := hexDigest("acme-ci")
	twin := digest[:63] + string("0123456789abcdef"[(strings.IndexByte("0123456789abcdef", digest[63])+1)%16])
	s, err := parseKeys("keys.yaml", []byte("keys:\n  - {tenant: twin, key_sha256: \""+twin+"\"}\n  - {tenant: acme, key_sha256: \""+digest+"\"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if e, ok := s.find("acme-ci"); !ok || e.tenant != "acme" {
		t.Errorf("find = %+v, %v; want acme's", e, ok)
	}
}

func TestParseKeysErrors(t *testing.T) {
	t.Parallel()
	f := func(file, want string) {
		t.Helper()
		_, err := parseKeys("keys.yaml", filled(file))
		var at *FileError
		if !errors.As(err, &at) || err.Error() != want {
			t.Errorf("%s\n got %v\nwant %s", file, err, want)
		}
	}
	f("", "keys.yaml: is empty")
	f("# nothing\n", "keys.yaml: is empty")
	f("keys:\n", "keys.yaml:1:7: empty value: fill it in, or leave the field out")
	f("keys: 3\n", "keys.yaml:1:7: int was used where sequence is expected")
	f("- a\n", "keys.yaml:1:1: sequence was used where mapping is expected")
	f("keys: [\n", "keys.yaml:1:7: sequence end token ']' not found")
	f("keys: []\n---\nkeys: []\n", "keys.yaml:3:5: a second document begins here; want one")
	f("keys:\n  - tenant: a\n    key: b\n", `keys.yaml:3:5: unknown field "key"`)
	f("keys:\n  - tenant: a\n    tenant: b\n", `keys.yaml:3:5: mapping key "tenant" already defined at [2:5]`)
	f("keys:\n  - tenant: 0123\n", "keys.yaml:2:13: want a string, got integer: put it in quotes")
	f("keys:\n  - tenant: true\n", "keys.yaml:2:13: want a string, got bool: put it in quotes")
	f("keys:\n  - key_sha256: %globex%\n", "keys.yaml:2:17: keys[0].tenant: a tenant has a name")
	f("keys:\n  - tenant: \"a\\nb\"\n", "keys.yaml:2:13: keys[0].tenant: a tenant's name has no control characters")
	f("keys:\n  - tenant: a\n", "keys.yaml:2:13: keys[0].key_sha256: want the SHA-256 of the key as 64 hex digits, got 0 characters")
	f("keys:\n  - tenant: a\n    key_sha256: tarik_itself\n", "keys.yaml:3:17: keys[0].key_sha256: want the SHA-256 of the key as 64 hex digits, got 12 characters")
	f("keys:\n  - tenant: a\n    key_sha256: "+hexDigest("")+"\n", "keys.yaml:3:17: keys[0].key_sha256: is the SHA-256 of nothing")
	f("keys:\n  - tenant: a\n    expires:\n    key_sha256: %globex%\n", "keys.yaml:3:13: empty value: fill it in, or leave the field out")
	f("keys:\n  - tenant: a\n    expires: never\n    key_sha256: %globex%\n", `keys.yaml:3:14: want a time such as 2027-01-31T12:00:00Z or a date such as 2027-01-31, got "never"`)
	f("keys:\n  - tenant: a\n    expires: 2027-02-30\n", `keys.yaml:3:14: want a time such as 2027-01-31T12:00:00Z or a date such as 2027-01-31, got "2027-02-30"`)
	f("keys:\n  - tenant: a\n    key_sha256: %globex%\n    models: []\n", "keys.yaml:2:13: keys[0].models: is an empty list: leave it out to allow all models")
	f("keys:\n  - tenant: a\n    key_sha256: %globex%\n    models: ['a*b']\n", `keys.yaml:4:14: keys[0].models[0]: "a*b": want a model's name, or a prefix that ends in *`)
	f("keys:\n  - tenant: a\n    key_sha256: %globex%\n    limits: {concurrent: 0}\n", `keys.yaml:4:26: want a positive number or unlimited, got "0"`)
	f("keys:\n  - tenant: a\n    key_sha256: %globex%\n    limits: {burst: 3}\n", "keys.yaml:2:13: keys[0].limits.burst: has no effect without requests_per_minute")
	f("keys:\n  - tenant: a\n    key_sha256: %globex%\n    limits: {body_bytes: 3MB}\n", `keys.yaml:4:26: want a size such as 32MiB, or unlimited, got "3MB"`)
	f("keys:\n  - tenant: a\n    key_sha256: %globex%\n  - tenant: b\n    key_sha256: %globex%\n", "keys.yaml:5:17: keys[1].key_sha256: the same key as on line 3")
	f("keys:\n  - {tenant: a, name: x, key_sha256: %globex%}\n  - {tenant: a, name: x, key_sha256: %acme-ci%}\n", "keys.yaml:3:23: keys[1].name: the tenant's key on line 2 has the same name")
	f("a: &x 3\nb: *x\n", "keys.yaml:1:4: anchors and aliases are not used here: write the value out")
	f("keys: !!seq []\n", "keys.yaml:1:7: tags are not used here")
	f(strings.Repeat("#", maxFileBytes)+"\n", "keys.yaml: larger than 16777216 bytes")
}

// What GenerateKey writes, the file's parser reads, whatever the names are.
func TestGenerateKey(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tenant, name := rapid.String().Draw(t, "tenant"), rapid.String().Draw(t, "name")
		key, entry, err := GenerateKey(tenant, name)
		if bad := checkTenant(tenant) != nil || name != "" && checkTenant(name) != nil; bad || err != nil {
			if !bad || err == nil {
				t.Fatalf("GenerateKey(%q, %q): %v", tenant, name, err)
			}
			return
		}
		s, err := parseKeys("keys.yaml", []byte("keys:\n"+entry))
		if err != nil {
			t.Fatalf("%v in\n%s", err, entry)
		}
		e, ok := s.find(key)
		if !ok || e.tenant != tenant || name != "" && e.name != name {
			t.Fatalf("find: %v, tenant %q, name %q", ok, e.tenant, e.name)
		}
		if strings.Contains(entry, key) || len(key) != len(keyPrefix)+52 || strings.Trim(key[len(keyPrefix):], "abcdefghijklmnopqrstuvwxyz234567") != "" {
			t.Fatalf("key %q of entry\n%s", key, entry)
		}
	})
	a, _, _ := GenerateKey("acme", "")
	b, _, _ := GenerateKey("acme", "")
	if a == b {
		t.Errorf("two keys are one: %s", a)
	}
}

// FuzzParseKeys: no file ends the router, and no error shows more than a short word of it.
func FuzzParseKeys(f *testing.F) {
	f.Add(string(filled(keysExample)))
	f.Add("keys:\n  - tenant: a\n    expires: soon\n")
	f.Add("keys: [{tenant: a, limits: {concurrent: unlimited}}]")
	f.Add("? a\n: - b\n--- |\n x\n...\n%YAML 1.2\n")
	f.Fuzz(func(t *testing.T, file string) {
		s, err := parseKeys("keys.yaml", []byte(file))
		if (s == nil) == (err == nil) {
			t.Fatalf("set %v, error %v", s, err)
		}
		if err == nil {
			for _, entries := range s.byPrefix {
				for _, e := range entries {
					if checkTenant(e.tenant) != nil || checkTenant(e.name) != nil {
						t.Errorf("accepted %+v", e)
					}
				}
			}
			return
		}
		var at *FileError
		if !errors.As(err, &at) || at.Line < 0 || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %q", err)
		}
	})
}
