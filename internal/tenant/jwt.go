package tenant

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// tokens recognises the signed tokens of one issuer.
type tokens struct {
	cfg    JWTConfig // with defaults
	keys   keySource
	parser *jwt.Parser
}

var _ authenticator = (*tokens)(nil)

func newTokens(c JWTConfig, keys keySource, now func() time.Time) *tokens {
	c = c.withDefaults()
	options := []jwt.ParserOption{
		jwt.WithValidMethods(algorithms), jwt.WithExpirationRequired(), jwt.WithLeeway(time.Duration(c.Leeway)),
		jwt.WithTimeFunc(now), jwt.WithStrictDecoding(), jwt.WithIssuer(c.Issuer),
	}
	if !c.AnyAudience {
		options = append(options, jwt.WithAudience(c.Audience...))
	}
	return &tokens{cfg: c, keys: keys, parser: jwt.NewParser(options...)}
}

var (
	errForeign  = errors.New("another issuer's token")
	errCritical = errors.New("the token has critical extensions")
	errKeyID    = errors.New("the token's kid is not a string")
)

func (t *tokens) authenticate(ctx context.Context, r request) (Identity, error) {
	if strings.Count(r.credential, ".") != 2 {
		return Identity{}, errNotMine
	}
	claims := jwt.MapClaims{}
	var unavailable error
	_, err := t.parser.ParseWithClaims(r.credential, claims, func(tok *jwt.Token) (any, error) {
		// Nothing here is proven yet. The issuer decides only whose keys are asked for.
		if iss, _ := claims["iss"].(string); iss != t.cfg.Issuer {
			return nil, errForeign
		}
		if _, ok := tok.Header["crit"]; ok { // RFC 7515 §4.1.11: what is not understood must be refused
			return nil, errCritical
		}
		kid, ok := tok.Header["kid"].(string)
		if !ok && tok.Header["kid"] != nil {
			return nil, errKeyID
		}
		k, err := t.keys.key(ctx, kid, tok.Method.Alg())
		if err != nil && !errors.Is(err, errUnknownKey) {
			unavailable = err
		}
		return k.key, err
	})
	switch {
	case err == nil:
		return t.identify(claims)
	case unavailable != nil:
		return Identity{}, &AuthError{
			Status: http.StatusServiceUnavailable, Reason: KeysUnavailable, Cause: unavailable, RetryAfter: fetchTimeout,
			Message: "the token cannot be checked now: the issuer's keys are not available",
		}
	case errors.Is(err, errForeign), errors.Is(err, jwt.ErrTokenMalformed):
		return Identity{}, errNotMine
	}
	return Identity{}, refuseToken(err)
}

// refuseToken names what is wrong. The library's own texts are not passed on: they may quote the token.
func refuseToken(err error) *AuthError {
	for _, known := range []struct {
		err     error
		why     Reason
		message string
	}{
		{jwt.ErrTokenExpired, Expired, "the token has expired"},
		{jwt.ErrTokenNotValidYet, NotYetValid, "the token is not valid yet"},
		{jwt.ErrTokenInvalidAudience, BadToken, "the token is for another audience"},
		{jwt.ErrTokenRequiredClaimMissing, BadToken, "the token lacks exp or aud"},
		{jwt.ErrTokenInvalidClaims, BadToken, "the token has a malformed claim"},
		{errUnknownKey, BadToken, "the token is signed with a key that its issuer does not publish"},
		{errCritical, BadToken, "the token has critical extensions, and none is supported"},
		{errKeyID, BadToken, "the token's kid is not a string"},
	} {
		if errors.Is(err, known.err) {
			return unauthorized(known.why, known.message)
		}
	}
	return unauthorized(BadToken, "the token's signature is not valid, or its algorithm is not one of RS256, ES256 and EdDSA")
}

// identify reads who a proven token is about.
func (t *tokens) identify(claims jwt.MapClaims) (Identity, error) {
	name, ok := claim(claims, t.cfg.TenantClaim).(string)
	tenant := t.cfg.TenantPrefix + name
	if !ok || name == "" || checkTenant(tenant) != nil {
		return Identity{}, &AuthError{
			Status: http.StatusForbidden, Reason: NoTenant,
			Message: "the token's claim " + t.cfg.TenantClaim + " does not name a tenant",
		}
	}
	id := Identity{Tenant: tenant, Key: "jwt"}
	if t.cfg.ModelsClaim == "" {
		return id, nil
	}
	switch list := claim(claims, t.cfg.ModelsClaim).(type) {
	case nil:
		return id, nil
	case []any:
		id.Models = []string{}
		for _, m := range list {
			if s, ok := m.(string); ok && checkModels([]string{s}) == nil {
				id.Models = append(id.Models, s)
			}
		}
		if len(id.Models) == len(list) {
			return id, nil
		}
	}
	return Identity{}, &AuthError{
		Status: http.StatusForbidden, Reason: ModelNotAllowed,
		Message: "the token's claim " + t.cfg.ModelsClaim + " is not a list of models",
	}
}

// claim finds a claim by its name, or by a JSON pointer through nested objects. Nil if there is none.
func claim(claims map[string]any, name string) any {
	rest, ok := strings.CutPrefix(name, "/")
	if !ok {
		return claims[name]
	}
	var v any = claims
	for step := range strings.SplitSeq(rest, "/") {
		object, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = object[pointerEscapes.Replace(step)]
	}
	return v
}

// pointerEscapes are those of RFC 6901 §4.
var pointerEscapes = strings.NewReplacer("~1", "/", "~0", "~")

// validPointer reports whether each ~ of a pointer is part of an escape.
func validPointer(s string) bool {
	return !strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(s), "~")
}
