package tenant

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// headers makes a header of name, value, name, value, …
func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func TestCredential(t *testing.T) {
	t.Parallel()
	f := func(want string, pairs ...string) {
		t.Helper()
		got, refused := credential(headers(pairs...))
		if refused != nil {
			got = string(refused.Reason)
		}
		if got != want {
			t.Errorf("%q: %q, want %q", pairs, got, want)
		}
	}
	f("")
	f("k", "Authorization", "Bearer k")
	f("k", "Authorization", "bEaReR   k ")
	f("k", "X-Api-Key", "k")
	f("k", "X-Api-Key", " k ")
	f("k", "Authorization", "Bearer k", "X-Api-Key", "k")
	f("k", "Authorization", "Bearer k", "Authorization", "Bearer k")
	f("k", "Authorization", "Bearer k", "X-Api-Key", "")
	f("", "Authorization", "", "X-Api-Key", " ")
	f("several-credentials", "Authorization", "Bearer k", "X-Api-Key", "j")
	f("several-credentials", "Authorization", "Bearer k", "Authorization", "Bearer j")
	f("several-credentials", "X-Api-Key", "k", "X-Api-Key", "j")
	f("bad-token", "Authorization", "Basic azpq")
	f("bad-token", "Authorization", "Bearer")
	f("bad-token", "Authorization", "Bearer ")
	f("bad-token", "Authorization", "Bearer a b")
	f("bad-token", "Authorization", "k")
	f("bad-token", "X-Api-Key", string(make([]byte, maxCredentialBytes+1)))
}

func mustKeyFile(t *testing.T) apiKeys {
	t.Helper()
	set, err := parseKeys("keys.yaml", filled(keysExample))
	if err != nil {
		t.Fatal(err)
	}
	w := &watched[*keySet]{}
	w.now.Store(&reading[*keySet]{value: set})
	return apiKeys{w}
}

func mustGateway(t *testing.T, c HeaderConfig) *gateway {
	t.Helper()
	g, err := newGateway(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestChain(t *testing.T) {
	t.Parallel()
	s := signers()
	keys := mustKeyFile(t)
	tokens := newTokens(issuerConfig(), mustKeys(t, allKeys()), atEpoch)
	header := mustGateway(t, HeaderConfig{Name: "x-tenant", TrustedPeers: []string{"10.0.0.0/8", "2001:db8::1", "192.0.2.7"}, TenantPrefix: "gw/"})
	far := "203.0.113.9"
	f := func(what, want, peer string, chain []authenticator, pairs ...string) {
		t.Helper()
		h := headers(pairs...)
		r := request{header: h, now: epoch}
		r.credential, r.refused = credential(h)
		if peer != "" {
			r.peer = netip.MustParseAddr(peer)
		}
		if got := outcome(authenticate(t.Context(), chain, r)); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	const (
		unknown  = "Unauthorized: the credential is not known here"
		missing  = `Unauthorized: the request carries no credential; send "Authorization: Bearer KEY" or "X-Api-Key: KEY"`
		several  = "Unauthorized: the request carries different credentials; send one, in Authorization or in X-Api-Key"
		form     = `Unauthorized: the Authorization header is not of the form "Bearer CREDENTIAL"`
		oneNamed = "Forbidden: the header X-Tenant does not name one tenant"
	)
	all := []authenticator{keys, tokens, header}
	open := append(all[:3:3], everybody{})

	f("a key", "tenant acme models qwen3-32b,llama-*", far, all, "Authorization", "Bearer acme-ci")
	f("a key, Anthropic's way", "tenant acme", far, all, "X-Api-Key", "acme-people")
	f("a token", "tenant acme", far, all, "Authorization", "Bearer "+s.ec.sign(good(nil), nil))
	f("an unknown key", unknown, far, all, "X-Api-Key", "guess")
	f("nothing", missing, far, all)
	f("a bad token is final", "Unauthorized: the token has expired", far, open, "X-Api-Key", s.ec.sign(good(map[string]any{"exp": 1}), nil))
	f("two keys", several, far, all, "Authorization", "Bearer acme-ci", "X-Api-Key", "acme-people")
	f("another scheme", form, far, all, "Authorization", "Basic YTpi")

	f("the gateway's header", "tenant gw/acme", "10.2.3.4", all, "X-Tenant", "acme")
	f("of an IPv4-mapped peer", "tenant gw/acme", "::ffff:10.2.3.4", all, "X-Tenant", "acme")
	f("of a single address", "tenant gw/acme", "192.0.2.7", all, "X-Tenant", "acme")
	f("of IPv6 with a zone", "tenant gw/acme", "2001:db8::1%eth0", all, "X-Tenant", "acme")
	f("from anybody else", missing, far, all, "X-Tenant", "acme")
	f("from a neighbour of a single address", missing, "192.0.2.8", all, "X-Tenant", "acme")
	f("from nobody knows where", missing, "", all, "X-Tenant", "acme")
	f("with the client's one beside it", oneNamed, "10.2.3.4", all, "X-Tenant", "acme", "X-Tenant", "globex")
	f("empty", oneNamed, "10.2.3.4", open, "X-Tenant", "")
	f("too long", oneNamed, "10.2.3.4", all, "X-Tenant", string(make([]byte, 300)))
	f("beside whatever the client sends the gateway", "tenant gw/acme", "10.2.3.4", []authenticator{header, keys}, "X-Tenant", "acme", "Authorization", "Basic YTpi")
	f("left out by the gateway", form, "10.2.3.4", []authenticator{header, keys}, "Authorization", "Basic YTpi")

	f("nobody, where that is allowed", "tenant ", far, open)
	f("a wrong key is not nobody", unknown, far, open, "X-Api-Key", "guess")
	f("nor is a contradiction", several, far, open, "Authorization", "Bearer a", "X-Api-Key", "b")
	f("nor is another scheme", form, far, open, "Authorization", "Basic YTpi")
	f("alone it takes everything", "tenant ", far, []authenticator{everybody{alone: true}}, "Authorization", "Basic YTpi", "X-Api-Key", "x")
}

func TestKeyExpiry(t *testing.T) {
	t.Parallel()
	keys := mustKeyFile(t)
	expiry := time.Date(2027, 2, 1, 0, 0, 0, 0, time.UTC)
	f := func(now time.Time, want string) {
		t.Helper()
		if got := outcome(keys.authenticate(t.Context(), request{credential: "acme-ci", now: now})); got != want {
			t.Errorf("at %s: %s, want %s", now, got, want)
		}
	}
	f(expiry.Add(-1), "tenant acme models qwen3-32b,llama-*")
	f(expiry, "Unauthorized: the key has expired")
}

// A token that cannot be checked now is no wrong token.
func TestKeysUnavailable(t *testing.T) {
	t.Parallel()
	i := newIssuer()
	i.fail(errors.New("no route"))
	a := newTokens(issuerConfig(), i, atEpoch)
	_, err := a.authenticate(t.Context(), request{credential: signers().ed.sign(good(nil), nil)})
	var refused *AuthError
	if !errors.As(err, &refused) {
		t.Fatal(err)
	}
	h := http.Header{}
	refused.SetHeaders(h)
	if diff := cmp.Diff(headers("Retry-After", "5"), h); diff != "" || refused.Status != 503 || refused.Reason != KeysUnavailable || refused.Cause == nil {
		t.Errorf("%+v, headers (-want +got):\n%s", refused, diff)
	}
	if refused.Message != "the token cannot be checked now: the issuer's keys are not available" {
		t.Errorf("the client is told %q", refused.Message)
	}
}

func TestChallenges(t *testing.T) {
	t.Parallel()
	f := func(h http.Header, want string) {
		t.Helper()
		r := request{header: h, now: epoch}
		r.credential, r.refused = credential(h)
		_, err := authenticate(context.Background(), []authenticator{mustKeyFile(t)}, r)
		var refused *AuthError
		if !errors.As(err, &refused) {
			t.Fatal(err)
		}
		got := http.Header{}
		refused.SetHeaders(got)
		if diff := cmp.Diff(headers("WWW-Authenticate", want), got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", h, diff)
		}
	}
	f(headers(), `Bearer realm="tarik"`)
	f(headers("X-Api-Key", "guess"), `Bearer realm="tarik", error="invalid_token", error_description="unknown-credential"`)
	f(headers("Authorization", "Basic x"), `Bearer realm="tarik", error="invalid_token", error_description="bad-token"`)
}

func TestCheckModel(t *testing.T) {
	t.Parallel()
	f := func(models []string, model, want string) {
		t.Helper()
		err := Identity{Models: models}.CheckModel(model)
		got := "yes"
		if err != nil {
			got = outcome(Identity{}, err)
		}
		if got != want {
			t.Errorf("CheckModel(%q) with %q: %s, want %s", model, models, got, want)
		}
	}
	f(nil, "qwen3", "yes")
	f(nil, "", "yes")
	f([]string{"qwen3", "llama-*"}, "qwen3", "yes")
	f([]string{"qwen3", "llama-*"}, "llama-3", "yes")
	f([]string{"qwen3", "llama-*"}, "qwen3-32b", `Forbidden: this credential may not use the model "qwen3-32b"`)
	f([]string{"qwen3", "llama-*"}, "Qwen3", `Forbidden: this credential may not use the model "Qwen3"`)
	f([]string{"*"}, "anything", "yes")
	f([]string{"*"}, "", "Forbidden: the request names no model, and this credential may use some models only")
	f([]string{}, "qwen3", `Forbidden: this credential may not use the model "qwen3"`)
}
