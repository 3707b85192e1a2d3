package tenant

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// keyEntry is one key of a keys file.
//
// The file has the SHA-256 of the key as the client sends it. A slow password hash would protect nothing more: a
// generated key has 256 random bits, which nobody can try out, and it would let anybody who can send requests
// keep the router busy hashing.
type keyEntry struct {
	digest  [sha256.Size]byte
	tenant  string
	name    string
	expires time.Time // zero: never
	models  []string  // nil: all
	limits  *Limits   // nil: none of its own
}

// keySet is the content of a keys file. It does not change.
type keySet struct {
	// byPrefix finds entries by the first half of their digest. What the time of a map access could tell about a
	// digest is worthless: nobody can choose a key whose digest begins in a given way. The other half is compared
	// in constant time all the same.
	byPrefix map[[sha256.Size / 2]byte][]keyEntry
	count    int
}

// find returns the entry of the presented key.
func (s *keySet) find(presented string) (keyEntry, bool) {
	digest := sha256.Sum256([]byte(presented))
	for _, e := range s.byPrefix[prefixOf(digest)] {
		if subtle.ConstantTimeCompare(e.digest[:], digest[:]) == 1 {
			return e, true
		}
	}
	return keyEntry{}, false
}

func prefixOf(digest [sha256.Size]byte) (p [sha256.Size / 2]byte) {
	copy(p[:], digest[:])
	return p
}

// keysFile is a keys file as it is written.
type keysFile struct {
	Keys []keyRecord `yaml:"keys"`
}

type keyRecord struct {
	Tenant    text    `yaml:"tenant"`
	KeySHA256 text    `yaml:"key_sha256"`
	Name      text    `yaml:"name"`
	Expires   moment  `yaml:"expires"`
	Models    []text  `yaml:"models"`
	Limits    *Limits `yaml:"limits"`
}

// moment is a time in YAML: RFC 3339, or a date, which means its first moment in UTC. The library's own reading
// of times gives the zero time for a value that is none, and a key with a mistyped expiry would never expire.
type moment struct{ time.Time }

func (m *moment) UnmarshalYAML(n ast.Node) error {
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, scalar(n)); err == nil {
			m.Time = t.UTC()
			return nil
		}
	}
	return errorAt(n, fmt.Sprintf("want a time such as 2027-01-31T12:00:00Z or a date such as 2027-01-31, got %s", shown(n)))
}

// parseKeys reads a keys file. Errors are [*FileError].
func parseKeys(file string, data []byte) (*keySet, error) {
	var f keysFile
	if err := decodeStrict(file, data, &f); err != nil {
		return nil, err
	}
	s := &keySet{byPrefix: make(map[[sha256.Size / 2]byte][]keyEntry, len(f.Keys)), count: len(f.Keys)}
	digests := make(map[[sha256.Size]byte]*token.Token, len(f.Keys))
	names := make(map[partyName]*token.Token, len(f.Keys))
	for i, r := range f.Keys {
		e, err := r.entry(file, fmt.Sprintf("keys[%d]", i))
		if err != nil {
			return nil, err
		}
		if at := digests[e.digest]; at != nil {
			return nil, r.KeySHA256.fail(file, nil, fmt.Sprintf("keys[%d].key_sha256: the same key as on line %d", i, at.Position.Line))
		}
		digests[e.digest] = r.KeySHA256.at
		name := partyName{KeyScope, e.tenant, e.name}
		if at := names[name]; at != nil {
			return nil, r.Name.fail(file, r.KeySHA256.at, fmt.Sprintf("keys[%d].name: the tenant's key on line %d has the same name", i, at.Position.Line))
		}
		names[name] = r.KeySHA256.at
		p := prefixOf(e.digest)
		s.byPrefix[p] = append(s.byPrefix[p], e)
	}
	return s, nil
}

// entry checks what the types do not. Values are not quoted: a key could have been put in the wrong place.
func (r keyRecord) entry(file, path string) (keyEntry, error) {
	e := keyEntry{tenant: r.Tenant.value, name: r.Name.value, expires: r.Expires.Time, limits: r.Limits}
	if err := checkTenant(e.tenant); err != nil {
		return e, r.Tenant.fail(file, r.KeySHA256.at, path+".tenant: "+err.Error())
	}
	digest, err := hex.DecodeString(r.KeySHA256.value)
	if err != nil || len(digest) != sha256.Size {
		return e, r.KeySHA256.fail(file, r.Tenant.at, fmt.Sprintf(
			"%s.key_sha256: want the SHA-256 of the key as 64 hex digits, got %d characters", path, len(r.KeySHA256.value)))
	}
	copy(e.digest[:], digest)
	if e.digest == sha256.Sum256(nil) {
		return e, r.KeySHA256.fail(file, nil, path+".key_sha256: is the SHA-256 of nothing")
	}
	if e.name == "" {
		e.name = hex.EncodeToString(digest[:4])
	} else if err := checkTenant(e.name); err != nil {
		return e, r.Name.fail(file, nil, path+".name: "+strings.Replace(err.Error(), "tenant", "key", 1))
	}
	if r.Models != nil && len(r.Models) == 0 {
		return e, r.Tenant.fail(file, nil, path+".models: is an empty list: leave it out to allow all models")
	}
	for i, m := range r.Models {
		if err := checkModels([]string{m.value}); err != nil {
			return e, m.fail(file, r.Tenant.at, fmt.Sprintf("%s.models[%d]: %v", path, i, err))
		}
		e.models = append(e.models, m.value)
	}
	if r.Limits != nil {
		var wrong []string
		complain := func(path, message string) { wrong = append(wrong, path+": "+message) }
		r.Limits.validate(path+".limits", complain)
		r.Limits.needsRate(path+".limits", complain)
		if len(wrong) > 0 {
			return e, r.Tenant.fail(file, nil, strings.Join(wrong, "; "))
		}
	}
	return e, nil
}

// keyPrefix makes a key recognisable, to people and to scanners that look for leaked secrets.
const keyPrefix = "tarik_"

// GenerateKey makes a new API key of 256 random bits and the entry to put below "keys:" in the keys file. The
// key itself is kept nowhere: show it once. name may be empty.
func GenerateKey(tenant, name string) (key, entry string, err error) {
	if err := checkTenant(tenant); err != nil {
		return "", "", err
	}
	if name == "" {
		name = "key-" + rand.Text()[:8]
	}
	if err := checkTenant(name); err != nil {
		return "", "", fmt.Errorf("name: %w", err)
	}
	key = keyPrefix + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(randomBytes(32)))
	digest := sha256.Sum256([]byte(key))
	entry = fmt.Sprintf("  - tenant: %s\n    name: %s\n    key_sha256: %s\n", quoteYAML(tenant), quoteYAML(name), quoteYAML(hex.EncodeToString(digest[:])))
	return key, entry, nil
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails; it ends the program instead
	return b
}

// quoteYAML writes s as a double-quoted scalar. The escapes that JSON needs for it are YAML's too.
func quoteYAML(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic("BUG: tenant: a string that is not JSON: " + err.Error())
	}
	return string(b)
}

// appendField appends s so that no two lists of fields give the same bytes: the length first.
func appendField(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint64(b, uint64(len(s))), s...)
}
