package tenant

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
)

// signer is an issuer's key pair.
type signer struct {
	kid     string
	method  jwt.SigningMethod
	private crypto.Signer
}

// signers are made once: RSA keys take time.
var signers = sync.OnceValue(func() (s struct{ rsa, ec, ed, foreign signer }) {
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	e, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	_, d, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	_, other, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	s.rsa = signer{"rsa-1", jwt.SigningMethodRS256, r}
	s.ec = signer{"ec-1", jwt.SigningMethodES256, e}
	s.ed = signer{"ed-1", jwt.SigningMethodEdDSA, d}
	s.foreign = signer{"ed-1", jwt.SigningMethodEdDSA, other}
	return s
})

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// jwk is the public half.
func (s signer) jwk() map[string]any {
	j := map[string]any{"kid": s.kid, "use": "sig", "alg": s.method.Alg()}
	switch k := s.private.Public().(type) {
	case *rsa.PublicKey:
		j["kty"], j["n"], j["e"] = "RSA", b64(k.N.Bytes()), b64(big.NewInt(int64(k.E)).Bytes())
	case *ecdsa.PublicKey:
		point, err := k.Bytes()
		if err != nil {
			panic(err)
		}
		j["kty"], j["crv"], j["x"], j["y"] = "EC", "P-256", b64(point[1:33]), b64(point[33:])
	case ed25519.PublicKey:
		j["kty"], j["crv"], j["x"] = "OKP", "Ed25519", b64(k)
	}
	return j
}

func keySetOf(keys ...map[string]any) []byte {
	b, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		panic(err)
	}
	return b
}

func allKeys() []byte {
	s := signers()
	return keySetOf(s.rsa.jwk(), s.ec.jwk(), s.ed.jwk())
}

// good is the claims of a token that is accepted, with changes: nil deletes.
func good(changes map[string]any) jwt.MapClaims {
	c := jwt.MapClaims{"iss": "https://issuer.example", "aud": "tarik", "sub": "acme", "exp": epoch.Add(time.Hour).Unix()}
	maps.Copy(c, changes)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

// sign makes a token, with changes of its header: nil deletes.
func (s signer) sign(claims jwt.MapClaims, header map[string]any) string {
	t := jwt.NewWithClaims(s.method, claims)
	t.Header["kid"] = s.kid
	maps.Copy(t.Header, header)
	maps.DeleteFunc(t.Header, func(_ string, v any) bool { return v == nil })
	signed, err := t.SignedString(s.private)
	if err != nil {
		panic(err)
	}
	return signed
}

// staticKeys is a keySource that is just there.
type staticKeys jwks

func (s staticKeys) key(_ context.Context, kid, alg string) (verifyKey, error) {
	if k, ok := jwks(s).find(kid, alg); ok {
		return k, nil
	}
	return verifyKey{}, errUnknownKey
}

func mustKeys(t testing.TB, data []byte) staticKeys {
	t.Helper()
	set, err := parseJWKS(data)
	if err != nil {
		t.Fatal(err)
	}
	return staticKeys(set)
}

func atEpoch() time.Time { return epoch }

func issuerConfig() JWTConfig {
	return JWTConfig{Issuer: "https://issuer.example", Audience: []string{"tarik", "tarik-test"}, JWKSURL: "https://issuer.example/keys"}
}

// outcome is an authentication in one line.
func outcome(id Identity, err error) string {
	var refused *AuthError
	switch {
	case err == nil:
		s := "tenant " + id.Tenant
		if id.Models != nil {
			s += " models " + strings.Join(id.Models, ",")
		}
		return s
	case errors.Is(err, errNotMine):
		return "not mine"
	case errors.As(err, &refused):
		return http.StatusText(refused.Status) + ": " + refused.Message
	}
	return err.Error()
}

func TestJWT(t *testing.T) {
	t.Parallel()
	s := signers()
	c := issuerConfig()
	a := newTokens(c, mustKeys(t, allKeys()), atEpoch)
	with := func(a *tokens, token, want string) {
		t.Helper()
		if got := outcome(a.authenticate(t.Context(), request{credential: token})); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	f := func(token, want string) { t.Helper(); with(a, token, want) }
	claims := func(name string, v any) string { return s.ec.sign(good(map[string]any{name: v}), nil) }
	const (
		badSignature = "Unauthorized: the token's signature is not valid, or its algorithm is not one of RS256, ES256 and EdDSA"
		badClaim     = "Unauthorized: the token has a malformed claim"
		missing      = "Unauthorized: the token lacks exp or aud"
		noSuchKey    = "Unauthorized: the token is signed with a key that its issuer does not publish"
		noTenant     = "Forbidden: the token's claim sub does not name a tenant"
	)

	// All three kinds of keys.
	f(s.rsa.sign(good(nil), nil), "tenant acme")
	f(s.ec.sign(good(nil), nil), "tenant acme")
	f(s.ed.sign(good(nil), nil), "tenant acme")
	// Without a kid, the algorithm leaves one key.
	f(s.ed.sign(good(nil), map[string]any{"kid": nil}), "tenant acme")

	// Not tokens, or not of this issuer: for others to look at.
	f("", "not mine")
	f("tarik_abc", "not mine")
	f("a.b.c", "not mine")
	f("..", "not mine")
	f(claims("iss", "https://other.example"), "not mine")
	f(claims("iss", nil), "not mine")
	f(claims("iss", 3), "not mine")

	// exp, nbf, aud; 30 s of leeway.
	f(claims("exp", epoch.Add(-29*time.Second).Unix()), "tenant acme")
	f(claims("exp", epoch.Add(-30*time.Second).Unix()), "Unauthorized: the token has expired")
	f(claims("exp", nil), missing)
	f(claims("exp", 0), missing)
	f(claims("exp", "tomorrow"), badClaim)
	f(claims("nbf", epoch.Add(30*time.Second).Unix()), "tenant acme")
	f(claims("nbf", epoch.Add(31*time.Second).Unix()), "Unauthorized: the token is not valid yet")
	f(claims("aud", []string{"other", "tarik-test"}), "tenant acme")
	f(claims("aud", "other"), "Unauthorized: the token is for another audience")
	f(claims("aud", nil), missing)
	f(claims("aud", []any{1}), badClaim)

	// The tenant.
	f(claims("sub", nil), noTenant)
	f(claims("sub", ""), noTenant)
	f(claims("sub", 7), noTenant)
	f(claims("sub", "a\x00b"), noTenant)
	f(claims("sub", strings.Repeat("x", 257)), noTenant)

	// The signature.
	f(s.foreign.sign(good(nil), nil), badSignature)
	f(s.ed.sign(good(nil), map[string]any{"kid": "ed-2"}), noSuchKey)
	f(s.ed.sign(good(nil), map[string]any{"kid": 1}), "Unauthorized: the token's kid is not a string")
	f(s.ed.sign(good(nil), map[string]any{"crit": []string{"b64"}, "b64": false}), "Unauthorized: the token has critical extensions, and none is supported")
	token := s.ec.sign(good(nil), nil)
	parts := strings.Split(token, ".")
	f(parts[0]+"."+parts[1]+".", badSignature)
	f(parts[0]+"."+strings.Split(claims("sub", "globex"), ".")[1]+"."+parts[2], badSignature)

	// The algorithm: none, a public key as an HMAC secret, another hash or padding than the key's one, a kid of
	// another kind of key.
	none, err := jwt.NewWithClaims(jwt.SigningMethodNone, good(nil)).SignedString(jwt.UnsafeAllowNoneSignatureType)
	if err != nil {
		t.Fatal(err)
	}
	f(none, badSignature)
	der, err := x509.MarshalPKIXPublicKey(s.rsa.private.Public())
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range [][]byte{der, s.ed.private.Public().(ed25519.PublicKey), {}} {
		hs := jwt.NewWithClaims(jwt.SigningMethodHS256, good(nil))
		hs.Header["kid"] = "rsa-1"
		forged, err := hs.SignedString(secret)
		if err != nil {
			t.Fatal(err)
		}
		f(forged, badSignature)
	}
	f(signer{"rsa-1", jwt.SigningMethodRS512, s.rsa.private}.sign(good(nil), nil), badSignature)
	f(signer{"rsa-1", jwt.SigningMethodPS256, s.rsa.private}.sign(good(nil), nil), badSignature)
	f(s.ed.sign(good(nil), map[string]any{"kid": "rsa-1"}), noSuchKey)
	f(s.ed.sign(good(nil), map[string]any{"alg": "RS256", "kid": "rsa-1"}), badSignature)
	f(s.ed.sign(good(nil), map[string]any{"alg": nil}), badSignature)

	// Options.
	c.AnyAudience, c.Audience = true, nil
	c.TenantClaim, c.ModelsClaim, c.TenantPrefix = "/org/name", "https://example.com/models", "corp/"
	a = newTokens(c, mustKeys(t, allKeys()), atEpoch)
	org := map[string]any{"name": "acme"}
	f(s.ec.sign(good(map[string]any{"aud": nil, "org": org}), nil), "tenant corp/acme")
	f(s.ec.sign(good(map[string]any{"org": org, "https://example.com/models": []string{"qwen3", "llama-*"}}), nil), "tenant corp/acme models qwen3,llama-*")
	f(s.ec.sign(good(map[string]any{"org": org, "https://example.com/models": []string{}}), nil), "tenant corp/acme models ")
	f(s.ec.sign(good(map[string]any{"org": org, "https://example.com/models": "qwen3"}), nil), "Forbidden: the token's claim https://example.com/models is not a list of models")
	f(s.ec.sign(good(map[string]any{"org": org, "https://example.com/models": []any{"qwen3", 1}}), nil), "Forbidden: the token's claim https://example.com/models is not a list of models")
	f(s.ec.sign(good(map[string]any{"org": "acme"}), nil), "Forbidden: the token's claim /org/name does not name a tenant")
	f(s.ec.sign(good(nil), nil), "Forbidden: the token's claim /org/name does not name a tenant")

	// Two keys of one kind: a token without a kid may be either's.
	two := s.foreign
	two.kid = "ed-2"
	a = newTokens(issuerConfig(), mustKeys(t, keySetOf(s.ed.jwk(), two.jwk())), atEpoch)
	f(s.ed.sign(good(nil), map[string]any{"kid": nil}), noSuchKey)
	f(two.sign(good(nil), nil), "tenant acme")
}

func TestClaim(t *testing.T) {
	t.Parallel()
	claims := map[string]any{"a": "1", "a/b": "2", "c": map[string]any{"d/e": "3", "~": "4", "": "5"}, "/x": "6"}
	got := map[string]any{}
	for _, name := range []string{"a", "a/b", "/a", "/a~1b", "/c/d~1e", "/c/~0", "/c/", "/x", "/c/d", "/a/b", "c.d", "/~01"} {
		got[name] = claim(claims, name)
	}
	want := map[string]any{
		"a": "1", "a/b": "2", "/a": "1", "/a~1b": "2", "/c/d~1e": "3", "/c/~0": "4", "/c/": "5", "/x": nil, "/c/d": nil, "/a/b": nil,
		"c.d": nil, "/~01": nil,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
}

func TestParseJWKS(t *testing.T) {
	t.Parallel()
	s := signers()
	// with is a key with changes: nil deletes.
	with := func(s signer, changes map[string]any) map[string]any {
		j := s.jwk()
		maps.Copy(j, changes)
		maps.DeleteFunc(j, func(_ string, v any) bool { return v == nil })
		return j
	}
	ids := func(set jwks) (ids []string) {
		for _, k := range set {
			ids = append(ids, k.id+" "+k.alg)
		}
		return ids
	}
	set, err := parseJWKS(keySetOf(
		s.rsa.jwk(), s.ec.jwk(), s.ed.jwk(),
		with(s.ed, map[string]any{"kid": "bare", "use": nil, "alg": nil, "unknown": 1}),
		with(s.ed, map[string]any{"kid": "rfc9864", "alg": "Ed25519"}),
		with(s.ed, map[string]any{"kid": "ops", "key_ops": []string{"verify"}}),
		map[string]any{"kty": "oct", "k": "c2VjcmV0", "kid": "hmac", "alg": "HS256"},
		with(s.rsa, map[string]any{"kid": "enc", "use": "enc", "alg": "RSA-OAEP"}),
	))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"rsa-1 RS256", "ec-1 ES256", "ed-1 EdDSA", "bare EdDSA", "rfc9864 EdDSA", "ops EdDSA"}, ids(set)); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}

	f := func(data []byte, want string) {
		t.Helper()
		set, err := parseJWKS(data)
		if err == nil || err.Error() != "key set: "+want {
			t.Errorf("got %v, %v, want %s", ids(set), err, want)
		}
	}
	one := func(s signer, name string, v any, want string) {
		t.Helper()
		f(keySetOf(with(s, map[string]any{name: v})), "no usable key among 1: keys[0]: "+want)
	}
	f(nil, "not a JSON object with a list of keys")
	f([]byte("[]"), "not a JSON object with a list of keys")
	f([]byte("{}"), "no usable key among 0: ")
	f([]byte(`{"keys":[3]}`), "no usable key among 1: keys[0]: not a JSON Web Key")
	f(append(allKeys(), "{}"...), "something follows the JSON object")
	f(make([]byte, maxJWKSBytes+1), "larger than 1048576 bytes")
	f([]byte(`{"keys":[`+strings.Repeat("{},", maxJWKSKeys)+`{}]}`), "257 keys, want at most 256")
	one(s.rsa, "kty", "oct", `kty is "oct", want RSA, EC or OKP`)
	one(s.rsa, "d", "AQAB", "holds a private or shared key: publish public ones only")
	one(s.rsa, "use", "enc", `use is "enc", want sig`)
	one(s.rsa, "key_ops", []string{"sign"}, "key_ops lacks verify")
	one(s.rsa, "alg", "PS256", `alg is "PS256", want RS256 for this key`)
	one(s.ec, "alg", "RS256", `alg is "RS256", want ES256 for this key`)
	one(s.rsa, "n", nil, "n: want base64url")
	one(s.rsa, "n", "AQAB", "n has 17 bits, want an odd number of 2048 to 8192")
	one(s.rsa, "n", b64(make([]byte, 2000)), "n has 0 bits, want an odd number of 2048 to 8192")
	one(s.rsa, "n", b64(append([]byte{1}, make([]byte, 2000)...)), "n has 16001 bits, want an odd number of 2048 to 8192")
	one(s.rsa, "e", "AQ", "e is no exponent, 65537 is usual")
	one(s.rsa, "e", b64([]byte{255, 255, 255, 255, 255, 255, 255, 255, 255}), "e is no exponent, 65537 is usual")
	one(s.ec, "crv", "P-384", `crv is "P-384", want P-256`)
	one(s.ec, "x", "AQAB", "x has 3 bytes, want 32")
	one(s.ec, "y", "!", "y: want base64url")
	one(s.ed, "crv", "X25519", `crv is "X25519", want Ed25519`)
	one(s.ed, "x", "AQAB", "x has 3 bytes, want 32")
	if _, err := parseJWKS(keySetOf(with(s.ec, map[string]any{"y": b64(make([]byte, 32))}))); err == nil {
		t.Error("a point off the curve was accepted")
	}
	set, err = parseJWKS(keySetOf(s.ed.jwk(), s.foreign.jwk()))
	if err != nil || len(set) != 1 || !set[0].key.(ed25519.PublicKey).Equal(s.ed.private.Public()) {
		t.Errorf("two keys with one kid: %v, %v; want the first", ids(set), err)
	}
}

// FuzzJWT: no token but the one that was signed is accepted, whatever its header or claims say, and none ends the
// router. The keys are the same in every process, so that a finding can be repeated.
func FuzzJWT(f *testing.F) {
	ed := signer{"ed-1", jwt.SigningMethodEdDSA, ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))}
	private, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), append(make([]byte, 31), 7))
	if err != nil {
		f.Fatal(err)
	}
	ec := signer{"ec-1", jwt.SigningMethodES256, private}
	a := newTokens(issuerConfig(), mustKeys(f, keySetOf(ed.jwk(), ec.jwk())), atEpoch)
	valid := ed.sign(good(nil), nil)
	for _, seed := range []string{
		valid, "a.b.c", "..",
		ed.sign(good(map[string]any{"exp": "x"}), map[string]any{"kid": nil}),
		b64([]byte(`{"alg":"none"}`)) + "." + b64([]byte(`{"iss":"https://issuer.example"}`)) + ".",
		b64([]byte(`{"alg":"ES256","kid":["x"],"crit":3}`)) + "." + b64([]byte(`{"iss":"https://issuer.example","exp":1e400}`)) + ".AA",
		b64([]byte(`{"alg":"ES256","kid":"ec-1"}`)) + "." + b64([]byte(`{"iss":"https://issuer.example"}`)) + "." + b64(make([]byte, 64)),
		b64([]byte(`null`)) + "." + b64([]byte(`null`)) + ".AA",
	} {
		part := strings.Split(seed, ".")
		f.Add(decoded(part[0]), decoded(part[1]), decoded(part[2]))
	}
	f.Fuzz(func(t *testing.T, header, claims, signature []byte) {
		token := b64(header) + "." + b64(claims) + "." + b64(signature)
		id, err := a.authenticate(t.Context(), request{credential: token})
		var refused *AuthError
		switch {
		case err == nil && token != valid:
			t.Fatalf("accepted %q as %+v", token, id)
		case err == nil, errors.Is(err, errNotMine):
		case !errors.As(err, &refused) || refused.Status != 401:
			t.Fatalf("%q: %v", token, err)
		}
	})
}

// decoded is the bytes of a token's part, or the part itself.
func decoded(part string) []byte {
	if b, err := base64.RawURLEncoding.DecodeString(part); err == nil {
		return b
	}
	return []byte(part)
}

// FuzzParseJWKS: no key set ends the router, and every key taken from one has its algorithm's type.
func FuzzParseJWKS(f *testing.F) {
	f.Add(allKeys())
	f.Add([]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","alg":""}]}`))
	f.Add([]byte(`{"keys":[{"kty":"RSA","n":"","e":"AQAB"},{"kty":"EC"},null,[]]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		set, err := parseJWKS(data)
		if (len(set) == 0) == (err == nil) {
			t.Fatalf("%d keys, error %v", len(set), err)
		}
		for _, k := range set {
			var ok bool
			switch k.alg {
			case algRSA:
				_, ok = k.key.(*rsa.PublicKey)
			case algEC:
				_, ok = k.key.(*ecdsa.PublicKey)
			case algEd25519:
				_, ok = k.key.(ed25519.PublicKey)
			}
			if !ok {
				t.Fatalf("a %T for %q", k.key, k.alg)
			}
			// Verifying with it must not end the router either.
			_ = jwt.GetSigningMethod(k.alg).Verify("x", make([]byte, 64), k.key)
		}
	})
}
