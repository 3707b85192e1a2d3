package tenant

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"
)

// Gate is who may come in, under which salt, and how many at a time.
type Gate struct {
	chain    []authenticator
	files    []watchedFile
	issuers  []*urlKeys
	salts    func() secrets
	isolated bool
	lone     bool
	lasting  bool // the secret outlives the process
	own      []string
	interval time.Duration
	now      func() time.Time
	*Limiter
}

// watchedFile is a [watched] of whatever content.
type watchedFile interface {
	name() string
	reload() (changed bool, err error)
}

// Deps are what a Gate needs of the world. Zero fields have defaults.
type Deps struct {
	// Now is the clock, time.Now by default.
	Now func() time.Time
	// Client fetches issuers' keys, http.DefaultClient by default. Redirects are not followed in any case.
	Client *http.Client
}

// New checks c, reads the files it names, and returns the gate. It fetches nothing: an issuer that is down delays
// only its own tokens.
//
// Errors are [*FieldError] values (joined), [*FileError], or errors of reading a file.
func New(c Config, d Deps) (*Gate, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Client == nil {
		d.Client = http.DefaultClient
	}
	g := &Gate{lone: c.lone(), now: d.Now, interval: time.Duration(c.ReloadInterval), Limiter: NewLimiter(c.Limits, c.lone(), d.Now())}
	if g.interval == 0 {
		g.interval = 10 * time.Second
	}
	if g.isolated = !g.lone; c.Salts.Isolation != nil {
		g.isolated = *c.Salts.Isolation
	}
	if err := g.readSecrets(c.Salts.SecretsFile); err != nil {
		return nil, err
	}
	for i, a := range c.Auth {
		one, err := g.authenticator(a, d.Client)
		if err != nil {
			return nil, fmt.Errorf("auth[%d]: %w", i, err)
		}
		g.chain = append(g.chain, one)
	}
	if len(g.chain) == 0 {
		g.chain = []authenticator{everybody{alone: true}}
	}
	return g, nil
}

func (g *Gate) readSecrets(file string) error {
	if file == "" {
		random := secrets{{secret: randomBytes(minSecretBytes)}}
		g.salts = func() secrets { return random }
		return nil
	}
	w, err := watch(file, parseSecrets)
	if err != nil {
		return fmt.Errorf("salts.secrets_file: %w", err)
	}
	g.files = append(g.files, w)
	g.salts, g.lasting = w.get, true
	return nil
}

func (g *Gate) authenticator(a AuthConfig, client *http.Client) (authenticator, error) {
	switch {
	case a.Keys != nil:
		w, err := watch(a.Keys.File, parseKeys)
		if err != nil {
			return nil, err
		}
		g.files = append(g.files, w)
		return apiKeys{w}, nil
	case a.JWT != nil && a.JWT.JWKSFile != "":
		w, err := watch(a.JWT.JWKSFile, func(file string, data []byte) (jwks, error) {
			set, err := parseJWKS(data)
			if err != nil {
				return nil, &FileError{File: file, Message: err.Error()}
			}
			return set, nil
		})
		if err != nil {
			return nil, err
		}
		g.files = append(g.files, w)
		return newTokens(*a.JWT, fileKeys{w}, g.now), nil
	case a.JWT != nil:
		full := a.JWT.withDefaults()
		u := &urlKeys{
			url: full.JWKSURL, client: withoutRedirects(client), now: g.now,
			refresh: time.Duration(full.JWKSRefresh), maxAge: time.Duration(full.JWKSMaxAge),
		}
		g.issuers = append(g.issuers, u)
		return newTokens(full, u, g.now), nil
	case a.Header != nil:
		gw, err := newGateway(*a.Header)
		if err != nil {
			return nil, err
		}
		g.own = append(g.own, gw.name)
		return gw, nil
	}
	return everybody{alone: g.lone}, nil
}

// Authenticate says whose request this is. h is the client's header as it came, remote the address at the other
// end of the connection (not what X-Forwarded-For says). ctx bounds the wait for an issuer's keys, which happens
// when a token has a key id not seen before.
//
// Errors are [*AuthError].
func (g *Gate) Authenticate(ctx context.Context, h http.Header, remote netip.Addr) (Identity, error) {
	r := request{header: h, peer: remote, now: g.now()}
	if !g.lone { // else Authorization is for the engines, in whatever form they want it
		r.credential, r.refused = credential(h)
	}
	return authenticate(ctx, g.chain, r)
}

// StripCredentials removes from h what was addressed to this router: Authorization, X-Api-Key and the trusted
// header. A router that authenticates nobody leaves Authorization and X-Api-Key, because then they are meant for
// the engines.
func (g *Gate) StripCredentials(h http.Header) {
	for _, name := range g.own {
		h.Del(name)
	}
	if !g.lone {
		h.Del("Authorization")
		h.Del("X-Api-Key")
	}
}

// Salt is the cache_salt for a tenant's request: 32 lower-case hex digits, the same for the same tenant and
// clientSalt on every replica that has the same secrets file, and different for all others. clientSalt is what the
// client sent as cache_salt, "" for nothing: it separates a tenant's own users from each other and can do no more.
//
// It is "" only if isolation is off and the client sent none.
func (g *Gate) Salt(tenant, clientSalt string) string {
	return g.salts().salt(g.now(), g.isolated, tenant, clientSalt)
}

// SaltsLast reports whether salts are the same after a restart and on other replicas: there is a secrets file.
func (g *Gate) SaltsLast() bool { return g.lasting }

// Isolated reports whether tenants are kept apart in the engines' caches.
func (g *Gate) Isolated() bool { return g.isolated }

// Reload reads all files again. changed names those whose content was replaced. The error joins what is wrong with
// the others; what was read from them before stays in force.
func (g *Gate) Reload() (changed []string, err error) {
	var errs []error
	for _, f := range g.files {
		replaced, err := f.reload()
		if replaced {
			changed = append(changed, f.name())
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return changed, errors.Join(errs...)
}

// Run reloads the files every ReloadInterval and fetches issuers' keys when they are due, until ctx ends. It calls
// report when files were replaced, and when what is wrong changes: once when it begins and once, with nil, when it
// ends.
func (g *Gate) Run(ctx context.Context, report func(changed []string, err error)) {
	tick := time.NewTicker(g.interval)
	defer tick.Stop()
	wrong := ""
	for {
		changed, err := g.Reload()
		errs := []error{err}
		for _, u := range g.issuers {
			errs = append(errs, u.refreshIfDue(ctx))
		}
		if ctx.Err() != nil {
			return
		}
		err = errors.Join(errs...)
		now := ""
		if err != nil {
			now = err.Error()
		}
		if len(changed) > 0 || now != wrong {
			report(changed, err)
		}
		wrong = now
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
