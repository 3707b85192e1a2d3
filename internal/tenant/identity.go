package tenant

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Identity is an authenticated client.
type Identity struct {
	// Tenant owns conversations and salts, "" for the only tenant of a router that authenticates nobody.
	Tenant string
	// Key names the credential for logs: the entry of the keys file, or the kind of authenticator. It is
	// never the credential itself.
	Key string
	// Limits are the credential's own, on top of the tenant's and the global ones; nil for none.
	Limits *Limits
	// Models are the only ones it may use: exact names, or prefixes that end in "*". Nil means all.
	Models []string
}

// CheckModel returns nil if the client may use model, else an [*AuthError] with status 403. A request that
// names no model asks for whatever the engine serves, so a client with a list must name one.
func (id Identity) CheckModel(model string) error {
	allows := func(pattern string) bool {
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
			return strings.HasPrefix(model, prefix)
		}
		return model == pattern
	}
	if id.Models == nil || model != "" && slices.ContainsFunc(id.Models, allows) {
		return nil
	}
	message := fmt.Sprintf("this credential may not use the model %q", bounded(model))
	if model == "" {
		message = "the request names no model, and this credential may use some models only"
	}
	return &AuthError{Status: http.StatusForbidden, Reason: ModelNotAllowed, Message: message}
}

// maxTenantBytes bounds a tenant's name: it is stored with all state that is the tenant's.
const maxTenantBytes = 256

// checkTenant says what is wrong with a tenant's name, whoever it comes from.
func checkTenant(name string) error {
	switch {
	case name == "":
		return errors.New("a tenant has a name")
	case len(name) > maxTenantBytes:
		return fmt.Errorf("a tenant's name has at most %d bytes, got %d", maxTenantBytes, len(name))
	case !utf8.ValidString(name):
		return errors.New("a tenant's name is UTF-8")
	case strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("a tenant's name has no control characters")
	case strings.TrimSpace(name) != name:
		return errors.New("a tenant's name has no space at either end")
	}
	return nil
}

// checkModels says what is wrong with a list of models.
func checkModels(models []string) error {
	for _, m := range models {
		if m == "" || strings.Contains(strings.TrimSuffix(m, "*"), "*") {
			return fmt.Errorf("%q: want a model's name, or a prefix that ends in *", bounded(m))
		}
	}
	return nil
}

// bounded shortens what a client sent to something that can be quoted back at it.
func bounded(s string) string {
	const most = 128
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
