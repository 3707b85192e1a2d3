package edge

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tarik-kv/tarik/internal/configfile"
	"github.com/tarik-kv/tarik/internal/tenant"
)

// ListenConfig is one address to listen on, and how connections to it are treated. HTTP/1.1 and HTTP/2 are both
// served, HTTP/2 without TLS only to clients that begin with it (h2c with prior knowledge).
type ListenConfig struct {
	// Address is host:port, or :port for every address of the machine. Port 0 is any free one. Default: :8080 for
	// clients, 127.0.0.1:9091 for operators.
	Address string `yaml:"address"`
	// TLS turns encryption on. Left out: plain HTTP.
	TLS *TLSConfig `yaml:"tls"`
	// Allow lists the addresses (10.1.2.3) and networks (10.0.0.0/8) that may connect, as the router sees them: not
	// those of X-Forwarded-For. All other connections are closed before a byte is read, and counted in
	// tarik_edge_connections_refused_total{why="peer"}. Left out: everybody may.
	Allow []string `yaml:"allow"`
	// HeaderBytes is the size of a request's first line and headers together, in bytes, at least 4KiB. More get 431
	// and the connection is closed. Default: 64KiB.
	HeaderBytes tenant.Bytes `yaml:"header_bytes"`
	// HeaderTimeout is how long a client may take for the TLS handshake, and then for a request's headers. After it
	// the connection is closed. Default: 30s.
	HeaderTimeout tenant.Duration `yaml:"header_timeout"`
	// BodyTimeout is how long a client may take for a request's body, plus one second for every 16 KiB of it that
	// have arrived. After it the request gets 408, counted in tarik_edge_stalled_total{what="request"}. Default: 30s.
	BodyTimeout tenant.Duration `yaml:"body_timeout"`
	// ReplyTimeout is how long a client may let one piece of a reply wait without reading. After it the connection
	// (in HTTP/2 the stream) is cut, counted in tarik_edge_stalled_total{what="reply"}. How long a reply takes as a
	// whole is not bounded. Default: 2m.
	ReplyTimeout tenant.Duration `yaml:"reply_timeout"`
	// IdleTimeout is how long a connection stays open without a request: agents pause between turns. Default: 2m.
	IdleTimeout tenant.Duration `yaml:"idle_timeout"`
	// Connections is how many connections may be open at a time, idle ones too. More are closed as they come,
	// counted in tarik_edge_connections_refused_total{why="limit"}; tarik_edge_connections has the present number.
	// unlimited lifts the limit. Default: 16384.
	Connections tenant.Count `yaml:"connections"`
	// Streams is how many requests one HTTP/2 connection may have in progress, at most 10000. A client that knows
	// the limit waits; more are refused by the protocol. Default: 250.
	Streams tenant.Count `yaml:"streams"`
}

// TLSConfig is a server's side of TLS. The files are PEM. They are read again every tenants.reload_interval, and at
// once on SIGHUP; connections that are open keep what they began with. When a certificate ends is in
// tarik_edge_certificate_not_after_seconds.
type TLSConfig struct {
	// Cert is the file with the server's certificate, followed by those of the CAs between it and the root. Required.
	Cert string `yaml:"cert"`
	// Key is the file with the private key of the first certificate. Required.
	Key string `yaml:"key"`
	// ClientCA is the file with the CAs whose client certificates are accepted. Left out: clients are not asked for
	// one.
	ClientCA string `yaml:"client_ca"`
	// ClientAuth says what a client without a certificate gets: required refuses the handshake, optional lets it in.
	// A certificate that is presented must be good in either case. It needs client_ca. Default: required.
	ClientAuth string `yaml:"client_auth"`
	// MinVersion is the oldest version that is spoken, 1.2 or 1.3. Default: 1.2.
	MinVersion string `yaml:"min_version"`
}

// EngineConfig is one engine and how to reach it.
type EngineConfig struct {
	// URL is where the engine listens, such as http://10.0.0.1:8000. A path in it is put before those of the API.
	// Required.
	URL string `yaml:"url"`
	// APIKey is the engine's own key (vllm serve --api-key), sent as "Authorization: Bearer KEY". ${NAME} in it is
	// the environment variable NAME. An engine that does not know the key makes requests fail with 502, not 401:
	// the mistake is not the client's. Left out: none.
	APIKey configfile.Secret `yaml:"api_key"`
	// APIKeyFile is a file with the key instead, on one line. It is read again every tenants.reload_interval and at
	// once on SIGHUP, so a key can be changed without a restart.
	APIKeyFile string `yaml:"api_key_file"`
	// Authorization says what becomes of the header "Authorization" of a client: replace puts the engine's key in its
	// place, pass hands it on and uses the engine's key only for the router's own calls, none removes it. pass needs
	// a router that authenticates nobody, because otherwise clients' credentials end there. Left out: replace if
	// there is a key; else pass if nobody is authenticated, and none if somebody is.
	Authorization string `yaml:"authorization"`
	// TLS is for an https URL. Left out: the CAs that the system trusts, no client certificate.
	TLS *EngineTLSConfig `yaml:"tls"`
}

// EngineTLSConfig is a client's side of TLS, 1.2 or newer. The files are PEM and are read again like those of
// listen.tls. An engine whose certificate is not good is not talked to; there is no way to turn that off.
type EngineTLSConfig struct {
	// CA is the file with the CAs that may have signed the engine's certificate. Left out: those of the system.
	CA string `yaml:"ca"`
	// Cert is the file with the certificate to show to the engine. It needs key. Left out: none.
	Cert string `yaml:"cert"`
	// Key is the file with the private key of cert.
	Key string `yaml:"key"`
	// ServerName is the name that the engine's certificate must have. Left out: the host of url.
	ServerName string `yaml:"server_name"`
}

// ShutdownConfig says how the router stops: on SIGTERM in this order, on SIGINT (Ctrl-C) without the delay. A second
// signal cuts everything at once. tarik_edge_phase shows where it is.
type ShutdownConfig struct {
	// Delay is how long the router goes on as usual while GET /health already answers 503, so that balancers stop
	// sending before anything is refused: a little more than they need to notice. Default: 5s.
	Delay tenant.Duration `yaml:"delay"`
	// Drain is how long requests in progress may then take to end, while new ones get 503 and "Connection: close".
	// What is left after it is cut. Default: 30s.
	Drain tenant.Duration `yaml:"drain"`
}

// DefaultListen is a listener on addr with the defaults.
func DefaultListen(addr string) ListenConfig {
	return ListenConfig{
		Address: addr, HeaderBytes: 64 << 10, HeaderTimeout: seconds(30), BodyTimeout: seconds(30), ReplyTimeout: seconds(120),
		IdleTimeout: seconds(120), Connections: 16384, Streams: 250,
	}
}

// DefaultShutdown is how a router stops unless told otherwise.
func DefaultShutdown() ShutdownConfig { return ShutdownConfig{Delay: seconds(5), Drain: seconds(30)} }

func seconds(n int) tenant.Duration { return tenant.Duration(time.Duration(n) * time.Second) }

// Complain is told what is wrong with a field. path is below that of the section, such as "tls.cert".
type Complain func(path, message string)

// Validate reports what is wrong with c. It reads no file.
func (c ListenConfig) Validate(complain Complain) {
	if host, port, err := net.SplitHostPort(c.Address); err != nil || !validPort(port) || strings.ContainsAny(host, "/ ") {
		complain("address", fmt.Sprintf("%q: want host:port or :port", c.Address))
	}
	for i, s := range c.Allow {
		if _, err := tenant.ParsePeer(s); err != nil {
			complain(fmt.Sprintf("allow[%d]", i), err.Error())
		}
	}
	if c.Allow != nil && len(c.Allow) == 0 {
		complain("allow", "an empty list lets nobody in; leave it out to let everybody in")
	}
	for _, f := range []struct {
		name  string
		value tenant.Duration
	}{
		{"header_timeout", c.HeaderTimeout}, {"body_timeout", c.BodyTimeout}, {"reply_timeout", c.ReplyTimeout}, {"idle_timeout", c.IdleTimeout},
	} {
		if f.value <= 0 {
			complain(f.name, fmt.Sprintf("%s: want more than 0s", f.value))
		}
	}
	if c.HeaderBytes < 4<<10 || c.HeaderBytes > 16<<20 {
		complain("header_bytes", fmt.Sprintf("%s: want 4KiB to 16MiB", c.HeaderBytes))
	}
	if c.Connections < 1 && c.Connections != tenant.Unlimited {
		complain("connections", fmt.Sprintf("%d: want 1 or more, or unlimited", c.Connections))
	}
	if c.Streams < 1 || c.Streams > 10000 {
		complain("streams", "want 1 to 10000")
	}
	if c.TLS != nil {
		c.TLS.validate(func(path, message string) { complain("tls."+path, message) })
	}
}

func validPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && (s == "0" || n > 0)
}

// Asks reports whether every client has to show a certificate. c may be nil.
func (c *TLSConfig) Asks() bool { return c != nil && c.ClientCA != "" && c.ClientAuth != "optional" }

func (c TLSConfig) validate(complain Complain) {
	if c.Cert == "" {
		complain("cert", "missing: the file of the server's certificate")
	}
	if c.Key == "" {
		complain("key", "missing: the file of the certificate's private key")
	}
	switch {
	case c.ClientAuth != "" && c.ClientAuth != "required" && c.ClientAuth != "optional":
		complain("client_auth", "want required or optional")
	case c.ClientAuth != "" && c.ClientCA == "":
		complain("client_auth", "has no effect without client_ca")
	}
	if c.MinVersion != "" && c.MinVersion != "1.2" && c.MinVersion != "1.3" {
		complain("min_version", "want 1.2 or 1.3")
	}
}

// What becomes of a client's Authorization on the way to an engine.
const (
	authorizationReplace = "replace"
	authorizationPass    = "pass"
	authorizationNone    = "none"
)

// Validate reports what is wrong with c. authenticates says that the router authenticates its clients. It reads no
// file and no variable.
func (c EngineConfig) Validate(authenticates bool, complain Complain) {
	u, err := url.Parse(c.URL)
	switch {
	case c.URL == "":
		complain("url", "missing: where the engine listens, such as http://10.0.0.1:8000")
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "":
		complain("url", "want a URL such as http://10.0.0.1:8000")
	case u.User != nil:
		complain("url", "has a user name or password in it; see api_key")
	case c.TLS != nil && u.Scheme != "https":
		complain("tls", "has no effect: url is not https")
	}
	hasKey := c.APIKey.IsSet() || c.APIKeyFile != ""
	if c.APIKey.IsSet() && c.APIKeyFile != "" {
		complain("api_key_file", "contradicts api_key: want one of them")
	}
	modes := []string{"", authorizationReplace, authorizationPass, authorizationNone}
	switch {
	case !slices.Contains(modes, c.Authorization):
		complain("authorization", "want replace, pass or none")
	case c.Authorization == authorizationReplace && !hasKey:
		complain("authorization", "replace needs api_key or api_key_file")
	case c.Authorization == authorizationPass && authenticates:
		complain("authorization", "pass has no effect: the router authenticates its clients, and their credentials end there")
	case c.Authorization == authorizationNone && hasKey:
		complain("authorization", "none contradicts api_key: the engine would not get it")
	}
	if t := c.TLS; t != nil {
		if (t.Cert == "") != (t.Key == "") {
			complain("tls", "cert and key need each other")
		}
		if *t == (EngineTLSConfig{}) {
			complain("tls", "says nothing; leave it out for the system's CAs")
		}
	}
}

// mode is what becomes of the client's Authorization.
func (c EngineConfig) mode(authenticates bool) string {
	switch {
	case c.Authorization != "":
		return c.Authorization
	case c.APIKey.IsSet() || c.APIKeyFile != "":
		return authorizationReplace
	case authenticates:
		return authorizationNone
	}
	return authorizationPass
}

// Validate reports what is wrong with c.
func (c ShutdownConfig) Validate(complain Complain) {
	if c.Delay < 0 {
		complain("delay", "want 0s or more")
	}
	if c.Drain < 0 {
		complain("drain", "want 0s or more")
	}
}
