package edge

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tarik-kv/tarik/internal/upstream"
)

// EngineOptions are what Engines need besides their configuration. Zero fields have defaults.
type EngineOptions struct {
	// Base says how connections are made and kept; each engine gets a copy. Required.
	Base *http.Transport
	// Authenticates says that the router authenticates its clients.
	Authenticates bool
	// Lookup is where ${NAME} in a key comes from. Required if a key has one.
	Lookup  func(name string) (string, bool)
	Log     *slog.Logger // default: none
	Metrics *Metrics     // default: not exported
}

// Engines is the transport to the configured engines, and to nothing else: a request to another address is an error.
type Engines struct {
	engines []*engine
	log     *slog.Logger
	m       *Metrics
}

var (
	_ http.RoundTripper = (*Engines)(nil)
	_ Reloader          = (*Engines)(nil)
)

// engine is one engine's part.
type engine struct {
	url  *url.URL
	mode string
	base *http.Transport
	key  func() string // "" for none
	keys *files[string]
	tls  *files[*tls.Config] // nil: the base's

	now     atomic.Pointer[transport]
	refused atomic.Bool // it has refused the key, and that has been said
}

// NewEngines reads the files that the engines, which are valid, name.
func NewEngines(list []EngineConfig, o EngineOptions) (*Engines, error) {
	es := &Engines{log: o.Log, m: o.Metrics.orNew()}
	if es.log == nil {
		es.log = slog.New(slog.DiscardHandler)
	}
	for _, c := range list {
		e, err := newEngine(c, o)
		if err != nil {
			return nil, err
		}
		es.engines = append(es.engines, e)
	}
	return es, nil
}

func newEngine(c EngineConfig, o EngineOptions) (*engine, error) {
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, err
	}
	e := &engine{url: u, mode: c.mode(o.Authenticates), base: o.Base, key: func() string { return "" }}
	switch {
	case c.APIKeyFile != "":
		if e.keys, err = readFiles([]string{c.APIKeyFile}, func(contents [][]byte) (string, error) { return parseKey(c.APIKeyFile, contents[0]) }); err != nil {
			return nil, fmt.Errorf("api_key_file: %w", err)
		}
		e.key = e.keys.get
	case c.APIKey.IsSet():
		key, err := c.APIKey.Reveal(o.Lookup)
		if err == nil {
			key, err = parseKey("its value", []byte(key))
		}
		if err != nil {
			return nil, fmt.Errorf("api_key: %w", err)
		}
		e.key = func() string { return key }
	}
	if c.TLS != nil {
		if e.tls, err = readFiles(c.TLS.names(), c.TLS.parse); err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
	}
	e.renew()
	return e, nil
}

// transport is what carries calls: upstream's, which is the faster, where there is no TLS.
type transport interface {
	http.RoundTripper
	CloseIdleConnections()
}

// parseKey checks a key of an engine. Errors show nothing of it.
func parseKey(where string, data []byte) (string, error) {
	key := strings.TrimSpace(string(data))
	switch {
	case key == "":
		return "", fmt.Errorf("%s is empty", where)
	case len(key) > 4096:
		return "", fmt.Errorf("%s is longer than 4096 characters", where)
	case strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("%s has characters that a key cannot have; want one line of printable ASCII", where)
	}
	return key, nil
}

// renew makes a transport of what is in force. Calls in progress go on with the one before.
func (e *engine) renew() {
	t := e.base.Clone()
	if e.tls != nil {
		t.TLSClientConfig = e.tls.get().Clone()
	} else if t.TLSClientConfig == nil {
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if t.TLSHandshakeTimeout == 0 {
		t.TLSHandshakeTimeout = 10 * time.Second
	}
	var now transport = t
	if e.url.Scheme == "http" {
		now = upstream.New(t)
	}
	if old := e.now.Swap(&now); old != nil {
		(*old).CloseIdleConnections()
	}
}

// Reload reads keys, CAs and certificates again. See [Reloader].
func (es *Engines) Reload() (changed []string, err error) {
	var errs []error
	for _, e := range es.engines {
		if e.keys != nil {
			some, err := e.keys.Reload()
			changed, errs = append(changed, some...), append(errs, err)
			if len(some) > 0 {
				e.refused.Store(false)
			}
		}
		if e.tls != nil {
			some, err := e.tls.Reload()
			changed, errs = append(changed, some...), append(errs, err)
			if len(some) > 0 {
				e.renew()
			}
		}
	}
	return changed, errors.Join(errs...)
}

// CloseIdleConnections is for [http.Client.CloseIdleConnections].
func (es *Engines) CloseIdleConnections() {
	for _, e := range es.engines {
		(*e.now.Load()).CloseIdleConnections()
	}
}

// errUnknownEngine is a call to an address that the configuration does not have.
var errUnknownEngine = errors.New("not one of the engines")

// KeyRefusedError is an engine's 401 to a call with the key that the configuration has for it. It is no answer for a
// client, whose own key is another matter.
type KeyRefusedError struct{ Engine string }

func (e *KeyRefusedError) Error() string {
	return "the engine refuses the key that the router has for it (api_key)"
}

// RoundTrip makes a call to one of the engines, with the Authorization that is configured for it.
func (es *Engines) RoundTrip(req *http.Request) (*http.Response, error) {
	e := es.find(req.URL)
	if e == nil {
		if req.Body != nil {
			_ = req.Body.Close() // a RoundTripper must
		}
		return nil, fmt.Errorf("call %s: %w", req.URL.Host, errUnknownEngine)
	}
	out := *req // a RoundTripper must not change the request
	out.Header = maps.Clone(req.Header)
	if out.Header == nil {
		out.Header = http.Header{}
	}
	own := e.authorize(out.Header)
	res, err := (*e.now.Load()).RoundTrip(&out)
	if err != nil || !own {
		return res, err
	}
	if res.StatusCode != http.StatusUnauthorized {
		e.refused.Store(false)
		return res, nil
	}
	_, _ = io.CopyN(io.Discard, res.Body, 4096) // so that the connection can be used again
	_ = res.Body.Close()
	es.m.EngineKeys.WithLabelValues(e.url.Redacted()).Inc()
	if !e.refused.Swap(true) {
		es.log.Error("an engine refuses the key that is configured for it", "engine", e.url.Redacted(), "hint", "api_key or api_key_file must be the engine's --api-key")
	}
	return nil, &KeyRefusedError{e.url.Redacted()}
}

// authorize sets the Authorization of a call and reports whether it is the engine's own key.
func (e *engine) authorize(h http.Header) (own bool) {
	if e.mode == authorizationPass && h.Get("Authorization") != "" {
		return false
	}
	h.Del("Authorization")
	key := e.key()
	if key == "" {
		return false
	}
	h.Set("Authorization", "Bearer "+key)
	return true
}

// find returns the engine at u: of those at its address, the one with the longest path that u is at or below.
func (es *Engines) find(u *url.URL) (found *engine) {
	for _, e := range es.engines {
		path := strings.TrimSuffix(e.url.Path, "/")
		if u.Scheme != e.url.Scheme || address(u) != address(e.url) || u.Path != path && !strings.HasPrefix(u.Path, path+"/") {
			continue
		}
		if found == nil || len(path) > len(strings.TrimSuffix(found.url.Path, "/")) {
			found = e
		}
	}
	return found
}

// address is where u leads, with its port.
func address(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// Check reads the files of c, which is valid, and describes the engine in one line.
func (c EngineConfig) Check(o EngineOptions) (string, error) {
	if o.Base == nil {
		o.Base = &http.Transport{}
	}
	e, err := newEngine(c, o)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	b.WriteString(c.URL)
	switch {
	case e.mode == authorizationReplace:
		b.WriteString(", with the engine's own key")
	case e.mode == authorizationPass && e.key() != "":
		b.WriteString(", with the client's Authorization, else the engine's key")
	case e.mode == authorizationPass:
		b.WriteString(", with the client's Authorization")
	default:
		b.WriteString(", without Authorization")
	}
	if c.TLS != nil && c.TLS.CA != "" {
		b.WriteString(", certificate checked against " + c.TLS.CA)
	}
	if c.TLS != nil && c.TLS.Cert != "" {
		b.WriteString(", client certificate " + c.TLS.Cert)
	}
	return b.String(), nil
}
