package tenant

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"time"
)

// request is what an authenticator may look at.
type request struct {
	header     http.Header
	credential string     // "" for none, or if refused says why there is none to go by
	refused    *AuthError // the credentials are malformed or contradict each other
	peer       netip.Addr
	now        time.Time
}

// authenticator recognises one kind of client.
type authenticator interface {
	// authenticate returns who the client is; or errNotMine, so that the next one is asked; or an [*AuthError],
	// which is final: a credential it knows must not be tried elsewhere after it turned out to be bad.
	authenticate(ctx context.Context, r request) (Identity, error)
}

var errNotMine = errors.New("not for this authenticator")

// apiKeys recognises the keys of a file.
type apiKeys struct{ *watched[*keySet] }

var _ authenticator = apiKeys{}

func (a apiKeys) authenticate(_ context.Context, r request) (Identity, error) {
	if r.credential == "" {
		return Identity{}, errNotMine
	}
	e, ok := a.get().find(r.credential)
	switch {
	case !ok:
		return Identity{}, errNotMine
	case !e.expires.IsZero() && !r.now.Before(e.expires):
		return Identity{}, unauthorized(Expired, "the key has expired")
	}
	return Identity{Tenant: e.tenant, Key: e.name, Limits: e.limits, Models: e.models}, nil
}

// gateway believes a header of trusted peers.
type gateway struct {
	name, prefix string
	peers        []netip.Prefix
}

var _ authenticator = (*gateway)(nil)

func newGateway(c HeaderConfig) (*gateway, error) {
	g := &gateway{name: http.CanonicalHeaderKey(c.Name), prefix: c.TenantPrefix}
	for _, s := range c.TrustedPeers {
		p, err := ParsePeer(s)
		if err != nil {
			return nil, err
		}
		g.peers = append(g.peers, p)
	}
	return g, nil
}

func (g *gateway) authenticate(_ context.Context, r request) (Identity, error) {
	values := r.header.Values(g.name)
	if len(values) == 0 || !g.trusts(r.peer) {
		return Identity{}, errNotMine
	}
	// Two values: one may be the client's own, which the gateway has not overwritten.
	tenant := g.prefix + values[0]
	if len(values) > 1 || values[0] == "" || checkTenant(tenant) != nil {
		return Identity{}, &AuthError{
			Status: http.StatusForbidden, Reason: NoTenant,
			Message: "the header " + g.name + " does not name one tenant",
		}
	}
	return Identity{Tenant: tenant, Key: "header"}, nil
}

// trusts reports whether a connection from peer may say who it is for. An address that is not known, as with a
// Unix socket, is not trusted.
func (g *gateway) trusts(peer netip.Addr) bool {
	peer = peer.Unmap().WithZone("")
	return peer.IsValid() && slices.ContainsFunc(g.peers, func(p netip.Prefix) bool { return p.Contains(peer) })
}

// everybody lets in who gets as far as this.
type everybody struct {
	alone bool // no other authenticator
}

var _ authenticator = everybody{}

func (e everybody) authenticate(_ context.Context, r request) (Identity, error) {
	if !e.alone && (r.credential != "" || r.refused != nil) {
		return Identity{}, errNotMine
	}
	return Identity{Key: "none"}, nil
}

// authenticate asks the chain.
func authenticate(ctx context.Context, chain []authenticator, r request) (Identity, error) {
	for _, a := range chain {
		id, err := a.authenticate(ctx, r)
		if !errors.Is(err, errNotMine) {
			return id, err
		}
	}
	if r.refused != nil {
		return Identity{}, r.refused
	}
	if r.credential == "" {
		return Identity{}, unauthorized(NoCredential, `the request carries no credential; send "Authorization: Bearer KEY" or "X-Api-Key: KEY"`)
	}
	return Identity{}, unauthorized(UnknownCredential, "the credential is not known here")
}
