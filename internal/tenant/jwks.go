package tenant

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
)

// The algorithms that tokens may be signed with. The key decides which one it is; what the token says must agree.
const (
	algRSA     = "RS256"
	algEC      = "ES256"
	algEd25519 = "EdDSA"
)

var algorithms = []string{algRSA, algEC, algEd25519}

// verifyKey is an issuer's public key with the one algorithm it is used with, so that a token cannot have, say, an
// RSA key's bytes used as an HMAC secret.
type verifyKey struct {
	id  string // kid, "" if the set does not name it
	alg string
	key crypto.PublicKey // *rsa.PublicKey, *ecdsa.PublicKey or ed25519.PublicKey
}

// jwks is an issuer's set of keys. It does not change.
type jwks []verifyKey

// find returns the key that a token with this header was signed with. A token without a kid must leave no choice.
func (s jwks) find(kid, alg string) (verifyKey, bool) {
	var found []verifyKey
	for _, k := range s {
		if k.alg == alg && (kid == "" || k.id == kid) {
			found = append(found, k)
		}
	}
	if len(found) != 1 {
		return verifyKey{}, false
	}
	return found[0], true
}

const (
	maxJWKSBytes = 1 << 20
	maxJWKSKeys  = 256
)

// jwk is a key as RFC 7517 writes it.
type jwk struct {
	Kty    string   `json:"kty"`
	Kid    string   `json:"kid"`
	Use    string   `json:"use"`
	KeyOps []string `json:"key_ops"`
	Alg    string   `json:"alg"`
	Crv    string   `json:"crv"`
	N      string   `json:"n"`
	E      string   `json:"e"`
	X      string   `json:"x"`
	Y      string   `json:"y"`
	D      string   `json:"d"`
	K      string   `json:"k"`
}

// parseJWKS reads a JSON Web Key Set. Keys that are for something else or that cannot be used are left out, as
// RFC 7517 §5 asks: an issuer that adds one must not lock everybody out. A set without any usable key is an error
// that says why for each.
func parseJWKS(data []byte) (jwks, error) {
	if len(data) > maxJWKSBytes {
		return nil, fmt.Errorf("key set: larger than %d bytes", maxJWKSBytes)
	}
	var doc struct {
		Keys []json.RawMessage `json:"keys"`
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&doc); err != nil {
		return nil, errors.New("key set: not a JSON object with a list of keys")
	}
	if d.More() {
		return nil, errors.New("key set: something follows the JSON object")
	}
	if len(doc.Keys) > maxJWKSKeys {
		return nil, fmt.Errorf("key set: %d keys, want at most %d", len(doc.Keys), maxJWKSKeys)
	}
	var set jwks
	var unusable []string
	for i, raw := range doc.Keys {
		k, err := parseJWK(raw)
		if err == nil && slices.ContainsFunc(set, func(other verifyKey) bool { return other.id == k.id && other.alg == k.alg && k.id != "" }) {
			err = errors.New("a second key with this kid")
		}
		if err != nil {
			unusable = append(unusable, fmt.Sprintf("keys[%d]: %v", i, err))
			continue
		}
		set = append(set, k)
	}
	if len(set) == 0 {
		return nil, fmt.Errorf("key set: no usable key among %d: %s", len(doc.Keys), strings.Join(unusable[:min(len(unusable), 4)], "; "))
	}
	return set, nil
}

func parseJWK(raw []byte) (verifyKey, error) {
	var j jwk
	if err := json.Unmarshal(raw, &j); err != nil {
		return verifyKey{}, errors.New("not a JSON Web Key")
	}
	switch {
	case j.D != "" || j.K != "":
		return verifyKey{}, errors.New("holds a private or shared key: publish public ones only")
	case j.Use != "" && j.Use != "sig":
		return verifyKey{}, fmt.Errorf("use is %q, want sig", bounded(j.Use))
	case j.KeyOps != nil && !slices.Contains(j.KeyOps, "verify"):
		return verifyKey{}, errors.New("key_ops lacks verify")
	}
	k := verifyKey{id: j.Kid}
	var err error
	switch j.Kty {
	case "RSA":
		k.alg = algRSA
		k.key, err = rsaKey(j)
	case "EC":
		k.alg = algEC
		k.key, err = ecKey(j)
	case "OKP":
		k.alg = algEd25519
		k.key, err = ed25519Key(j)
	default:
		err = fmt.Errorf("kty is %q, want RSA, EC or OKP", bounded(j.Kty))
	}
	if err == nil && j.Alg != "" && j.Alg != k.alg && !(k.alg == algEd25519 && j.Alg == "Ed25519") {
		err = fmt.Errorf("alg is %q, want %s for this key", bounded(j.Alg), k.alg)
	}
	return k, err
}

// rsaKey accepts moduli of 2048 to 8192 bits: shorter ones can be factored, longer ones cost each request more
// time than they are worth.
func rsaKey(j jwk) (*rsa.PublicKey, error) {
	n, err := unbase64(j.N)
	if err != nil {
		return nil, fmt.Errorf("n: %w", err)
	}
	e, err := unbase64(j.E)
	if err != nil {
		return nil, fmt.Errorf("e: %w", err)
	}
	modulus, exponent := new(big.Int).SetBytes(n), new(big.Int).SetBytes(e)
	if bits := modulus.BitLen(); bits < 2048 || bits > 8192 || modulus.Bit(0) == 0 {
		return nil, fmt.Errorf("n has %d bits, want an odd number of 2048 to 8192", bits)
	}
	if !exponent.IsInt64() || exponent.Int64() < 3 || exponent.Int64() > 1<<31-1 || exponent.Bit(0) == 0 {
		return nil, errors.New("e is no exponent, 65537 is usual")
	}
	return &rsa.PublicKey{N: modulus, E: int(exponent.Int64())}, nil
}

func ecKey(j jwk) (*ecdsa.PublicKey, error) {
	if j.Crv != "P-256" {
		return nil, fmt.Errorf("crv is %q, want P-256", bounded(j.Crv))
	}
	point := []byte{4} // uncompressed, SEC 1 §2.3.3
	for _, f := range []struct{ name, value string }{{"x", j.X}, {"y", j.Y}} {
		b, err := unbase64(f.value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		if len(b) != 32 {
			return nil, fmt.Errorf("%s has %d bytes, want 32", f.name, len(b))
		}
		point = append(point, b...)
	}
	return ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
}

func ed25519Key(j jwk) (ed25519.PublicKey, error) {
	if j.Crv != "Ed25519" {
		return nil, fmt.Errorf("crv is %q, want Ed25519", bounded(j.Crv))
	}
	x, err := unbase64(j.X)
	if err != nil {
		return nil, fmt.Errorf("x: %w", err)
	}
	if len(x) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("x has %d bytes, want %d", len(x), ed25519.PublicKeySize)
	}
	return ed25519.PublicKey(x), nil
}

func unbase64(s string) ([]byte, error) {
	b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(s, "="))
	if err != nil || len(b) == 0 {
		return nil, errors.New("want base64url")
	}
	return b, nil
}
