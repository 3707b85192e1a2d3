package tenant

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/goccy/go-yaml/token"
)

// Labels of what a secret is used for, so that no value made for one purpose is one for another.
const (
	saltLabel   = "tarik/cache-salt/v1"
	rotateLabel = "tarik/salt-rotation/v1"
)

// saltDigits is the length of a salt: 128 bits as lower-case hex. vLLM takes up to 128 characters and none of
// @ / \ NUL.
const saltDigits = 32

// generation is one secret and when it comes into force.
type generation struct {
	id     string
	secret []byte
	from   time.Time     // of the first one without effect: it is in force before all others
	spread time.Duration // tenants change over one by one within this time after from
}

// secrets are the generations of a secrets file, oldest first, at least one. They do not change.
type secrets []generation

// at returns the generation in force for a tenant at now. It depends on nothing else, so that all replicas with
// the same file agree.
func (s secrets) at(now time.Time, tenant string) generation {
	for i := len(s) - 1; i > 0; i-- {
		g := s[i]
		since := now.Sub(g.from)
		if since < 0 {
			continue
		}
		if since < g.spread {
			// The tenant's turn, as a part of the spread that is evenly distributed over tenants.
			part := float64(binary.BigEndian.Uint64(g.sum(rotateLabel, tenant))>>11) / (1 << 53)
			if float64(since) < part*float64(g.spread) {
				continue
			}
		}
		return g
	}
	return s[0]
}

// sum is the HMAC of the fields.
func (g generation) sum(fields ...string) []byte {
	mac := hmac.New(sha256.New, g.secret)
	var b []byte
	for _, f := range fields {
		b = appendField(b, f)
	}
	mac.Write(b)
	return mac.Sum(nil)
}

// salt is the cache_salt of a tenant's requests that carry clientSalt, at now. Without isolation tenants share
// salts, and a request without a clientSalt has none: "".
func (s secrets) salt(now time.Time, isolated bool, tenant, clientSalt string) string {
	g := s.at(now, tenant)
	var sum []byte
	switch {
	case isolated:
		sum = g.sum(saltLabel, "tenant", tenant, clientSalt)
	case clientSalt != "":
		sum = g.sum(saltLabel, "shared", clientSalt)
	default:
		return ""
	}
	return hex.EncodeToString(sum)[:saltDigits]
}

// secretsFile is a secrets file as it is written.
type secretsFile struct {
	Secrets []secretRecord `yaml:"secrets"`
}

type secretRecord struct {
	ID     text     `yaml:"id"`
	Secret text     `yaml:"secret"`
	From   moment   `yaml:"from"`
	Spread Duration `yaml:"spread"`
}

const (
	minSecretBytes = 32
	maxSpread      = 30 * 24 * time.Hour
)

// parseSecrets reads a secrets file. Errors are [*FileError] and show nothing of a secret.
func parseSecrets(file string, data []byte) (secrets, error) {
	var f secretsFile
	if err := decodeStrict(file, data, &f); err != nil {
		return nil, err
	}
	if len(f.Secrets) == 0 {
		return nil, &FileError{File: file, Message: "secrets: want at least one"}
	}
	var s secrets
	lines := map[string]*token.Token{}
	for i, r := range f.Secrets {
		path := fmt.Sprintf("secrets[%d]", i)
		if err := checkTenant(r.ID.value); err != nil {
			return nil, r.ID.fail(file, r.Secret.at, path+".id: "+strings.Replace(err.Error(), "a tenant", "a secret", 1))
		}
		if at := lines[r.ID.value]; at != nil {
			return nil, r.ID.fail(file, nil, fmt.Sprintf("%s.id: the secret on line %d has the same id", path, at.Position.Line))
		}
		lines[r.ID.value] = r.ID.at
		secret, err := base64.StdEncoding.Strict().DecodeString(r.Secret.value)
		if err != nil || len(secret) < minSecretBytes {
			return nil, r.Secret.fail(file, r.ID.at, fmt.Sprintf("%s.secret: want at least %d random bytes in base64; `openssl rand -base64 32` makes some", path, minSecretBytes))
		}
		switch {
		case i > 0 && r.From.IsZero():
			return nil, r.ID.fail(file, nil, path+".from: missing: only the first secret has been in force for ever")
		case i > 0 && !r.From.After(f.Secrets[i-1].From.Time):
			return nil, r.ID.fail(file, nil, path+".from: want later than the secret before it: they are listed oldest first")
		case r.Spread < 0 || time.Duration(r.Spread) > maxSpread:
			return nil, r.ID.fail(file, nil, fmt.Sprintf("%s.spread: want 0s to %s", path, maxSpread))
		}
		s = append(s, generation{r.ID.value, secret, r.From.Time, time.Duration(r.Spread)})
	}
	return s, nil
}

// GenerateSecret makes a new secret and the entry to put at the end of "secrets:" in the secrets file. from is
// when it comes into force, zero for the first one of a file.
func GenerateSecret(id string, from time.Time) (entry string, err error) {
	if err := checkTenant(id); err != nil {
		return "", fmt.Errorf("id: %w", err)
	}
	entry = fmt.Sprintf("  - id: %s\n    secret: %s\n", quoteYAML(id), quoteYAML(base64.StdEncoding.EncodeToString(randomBytes(minSecretBytes))))
	if !from.IsZero() {
		entry += fmt.Sprintf("    from: %s\n", from.UTC().Format(time.RFC3339))
	}
	return entry, nil
}
