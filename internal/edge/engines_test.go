package edge

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tarik-kv/tarik/internal/configfile"
)

// engineStub answers with the Authorization it got, or 401 if it wants another one.
func engineStub(want string) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		got := req.Header.Get("Authorization")
		if want != "" && got != want {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = fmt.Fprintf(w, "%s %s", req.URL.Path, got)
	}
}

// engines is a client over Engines.
func engines(t *testing.T, o EngineOptions, list ...EngineConfig) (*Engines, *http.Client) {
	t.Helper()
	for _, c := range list {
		c.Validate(o.Authenticates, func(path, message string) { t.Errorf("%s: %s", path, message) })
	}
	o.Base = &http.Transport{DisableCompression: true}
	es, err := NewEngines(list, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(es.CloseIdleConnections)
	return es, &http.Client{Transport: es, Timeout: patience}
}

func TestAuthorization(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(engineStub(""))
	t.Cleanup(s.Close)
	key := configfile.NewSecret("sk-${NAME}")
	lookup := func(string) (string, bool) { return "engine", true }
	f := func(c EngineConfig, authenticates bool, client, want string) {
		t.Helper()
		c.URL = s.URL
		_, cl := engines(t, EngineOptions{Authenticates: authenticates, Lookup: lookup}, c)
		var headers []string
		if client != "" {
			headers = []string{"Authorization", client}
		}
		_, got, _, err := call(t, cl, "POST", s.URL+"/x", strings.NewReader("abc"), headers...)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff("/x "+want, got); diff != "" {
			t.Errorf("%+v, client %q (-want +got):\n%s", c, client, diff)
		}
	}
	const theirs, ours = "Bearer theirs", "Bearer sk-engine"
	// By default: what was given to the engine by whoever may.
	f(EngineConfig{}, false, theirs, theirs)
	f(EngineConfig{}, false, "", "")
	f(EngineConfig{}, true, theirs, "") // it should have been stripped before; it does not pass here either
	f(EngineConfig{APIKey: key}, false, theirs, ours)
	f(EngineConfig{APIKey: key}, true, "", ours)
	f(EngineConfig{APIKey: key, Authorization: "replace"}, true, theirs, ours)
	f(EngineConfig{APIKey: key, Authorization: "pass"}, false, theirs, theirs)
	f(EngineConfig{APIKey: key, Authorization: "pass"}, false, "", ours) // a call of the router's own
	f(EngineConfig{Authorization: "pass"}, false, theirs, theirs)
	f(EngineConfig{Authorization: "none"}, false, theirs, "")
	file := write(t, t.TempDir(), "key", []byte("sk-file\n"))
	f(EngineConfig{APIKeyFile: file}, false, theirs, "Bearer sk-file")
}

// A RoundTripper does not change the request: a retry, or another leg with the same header, must find it as it was.
func TestRequestIsNotChanged(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(engineStub(""))
	t.Cleanup(s.Close)
	es, _ := engines(t, EngineOptions{}, EngineConfig{URL: s.URL, APIKey: configfile.NewSecret("k")})
	for _, h := range []http.Header{nil, {"Authorization": {"Bearer theirs"}}} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", s.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = h
		want := h.Clone()
		res, err := es.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if diff := cmp.Diff(want, req.Header); diff != "" {
			t.Errorf("the header after the call (-want +got):\n%s", diff)
		}
	}
}

// TestH02OnlyEngines: whatever URL comes about, calls go to configured engines only, and each gets its own key.
func TestH02OnlyEngines(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(engineStub(""))
	t.Cleanup(s.Close)
	other := httptest.NewServer(engineStub(""))
	t.Cleanup(other.Close)
	_, c := engines(t, EngineOptions{},
		EngineConfig{URL: s.URL, APIKey: configfile.NewSecret("root")},
		EngineConfig{URL: s.URL + "/p", APIKey: configfile.NewSecret("p")},
		EngineConfig{URL: s.URL + "/p/d/", APIKey: configfile.NewSecret("d")})
	f := func(url, want string) {
		t.Helper()
		_, got, _, err := call(t, c, "GET", url, nil)
		if err != nil {
			got = "error"
			if errors.Is(err, errUnknownEngine) {
				got = "unknown"
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", url, diff)
		}
	}
	f(s.URL+"/v1/models", "/v1/models Bearer root")
	f(s.URL+"/p/v1/models", "/p/v1/models Bearer p")
	f(s.URL+"/p", "/p Bearer p")
	f(s.URL+"/px", "/px Bearer root")
	f(s.URL+"/p/d/v1", "/p/d/v1 Bearer d")
	f(s.URL+"/p/dx", "/p/dx Bearer p")
	f(other.URL+"/v1/models", "unknown")
	f("https"+strings.TrimPrefix(s.URL, "http")+"/x", "unknown")
	f("http://attacker.test/", "unknown")
	_, only := engines(t, EngineOptions{}, EngineConfig{URL: s.URL + "/p"})
	if _, _, _, err := call(t, only, "POST", s.URL+"/reset_prefix_cache", strings.NewReader("x")); !errors.Is(err, errUnknownEngine) {
		t.Errorf("a path beside the engine's: %v, want an error", err)
	}
	for u, want := range map[string]string{"http://A.b": "a.b:80", "https://a.b": "a.b:443", "http://a:81/x": "a:81", "http://[::1]": "[::1]:80"} {
		parsed, err := url.Parse(u)
		if err != nil || address(parsed) != want {
			t.Errorf("address(%s) = %s, %v, want %s", u, address(parsed), err, want)
		}
	}
}

// An engine that does not take the router's key is the operator's business: the call fails, and the log says why.
func TestKeyRefused(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(engineStub("Bearer new"))
	t.Cleanup(s.Close)
	dir := t.TempDir()
	var log testLog
	metrics := prometheus.NewRegistry()
	o := EngineOptions{Log: log.logger(), Metrics: NewMetrics(metrics)}
	es, c := engines(t, o, EngineConfig{URL: s.URL, APIKeyFile: write(t, dir, "key", []byte("old"))})
	f := func(want string) {
		t.Helper()
		_, got, _, err := call(t, c, "POST", s.URL+"/x", strings.NewReader("abc"), "Authorization", "Bearer theirs")
		var refused *KeyRefusedError
		if errors.As(err, &refused) {
			got = refused.Error()
		}
		if got != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	f("the engine refuses the key that the router has for it (api_key)")
	f("the engine refuses the key that the router has for it (api_key)")
	write(t, dir, "key", []byte("two words"))
	if changed, err := es.Reload(); err == nil || changed != nil {
		t.Errorf("Reload() = %v, %v, want an error", changed, err)
	} else if strings.Contains(err.Error(), "two words") {
		t.Errorf("the error shows the key: %v", err)
	}
	write(t, dir, "key", []byte("new\n"))
	if changed, err := es.Reload(); err != nil || len(changed) != 1 {
		t.Errorf("Reload() = %v, %v", changed, err)
	}
	f("/x Bearer new")
	if n := strings.Count(log.String(), "refuses the key"); n != 1 {
		t.Errorf("%d lines, want one:\n%s", n, &log)
	}
	if n := count(t, metrics, "tarik_edge_engine_key_refused_total", s.URL); n != 2 {
		t.Errorf("%v counted, want 2", n)
	}
	if strings.Contains(log.String(), "old") {
		t.Errorf("the log shows the key:\n%s", &log)
	}
	// With the client's own Authorization a 401 is the client's.
	_, pass := engines(t, EngineOptions{}, EngineConfig{URL: s.URL, Authorization: "pass", APIKey: configfile.NewSecret("new")})
	if status, _, _, err := call(t, pass, "GET", s.URL+"/x", nil, "Authorization", "Bearer theirs"); err != nil || status != 401 {
		t.Errorf("got %d, %v, want the engine's 401", status, err)
	}
}

func TestEngineTLS(t *testing.T) {
	t.Parallel()
	servers, routers, others := newAuthority(t, "servers"), newAuthority(t, "routers"), newAuthority(t, "others")
	s := httptest.NewUnstartedServer(engineStub(""))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{servers.pair("engine.test")}, ClientCAs: routers.pool(), ClientAuth: tls.RequireAndVerifyClientCert}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // of handshakes that are to fail
	s.StartTLS()
	t.Cleanup(s.Close)
	dir := t.TempDir()
	cert, key := routers.issue("router")
	bad, badKey := others.issue("router")
	ca := write(t, dir, "ca", servers.pem)
	good := EngineTLSConfig{CA: ca, Cert: write(t, dir, "cert", cert), Key: write(t, dir, "key", key)}
	f := func(what string, c EngineTLSConfig, want string) *Engines {
		t.Helper()
		es, cl := engines(t, EngineOptions{}, EngineConfig{URL: s.URL, TLS: &c})
		_, got, _, err := call(t, cl, "GET", s.URL+"/x", nil)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %q", what, got, want)
		}
		return es
	}
	f("all good", good, "/x ")
	f("the name of the certificate", EngineTLSConfig{ca, good.Cert, good.Key, "engine.test"}, "/x ")
	f("another name", EngineTLSConfig{ca, good.Cert, good.Key, "other.test"}, "valid for engine.test, not other.test")
	f("no client certificate", EngineTLSConfig{CA: ca}, "certificate required")
	f("a client certificate of another CA", EngineTLSConfig{CA: ca, Cert: write(t, dir, "bad", bad), Key: write(t, dir, "badkey", badKey)}, "certificate")
	f("another CA", EngineTLSConfig{CA: write(t, dir, "other", others.pem), Cert: good.Cert, Key: good.Key}, "unknown authority")
	f("the system's CAs", EngineTLSConfig{Cert: good.Cert, Key: good.Key}, "unknown authority")

	// The CA is replaced while the router runs; idle connections to an engine that is trusted no more are closed.
	es, c := engines(t, EngineOptions{}, EngineConfig{URL: s.URL, TLS: &good})
	if status, _, _, err := call(t, c, "GET", s.URL+"/x", nil); err != nil || status != 200 {
		t.Fatal(status, err)
	}
	write(t, dir, "ca", others.pem)
	if changed, err := es.Reload(); err != nil || len(changed) != 1 {
		t.Errorf("Reload() = %v, %v", changed, err)
	}
	if status, _, _, err := call(t, c, "GET", s.URL+"/x", nil); err == nil {
		t.Errorf("got %d, want the engine not to be trusted", status)
	}
	write(t, dir, "ca", servers.pem)
	if _, err := es.Reload(); err != nil {
		t.Error(err)
	}
	if status, _, _, err := call(t, c, "GET", s.URL+"/x", nil); err != nil || status != 200 {
		t.Errorf("got %d, %v", status, err)
	}
}

func TestNewEnginesErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := func(c EngineConfig, want string) {
		t.Helper()
		c.URL = "https://engine.test"
		_, err := NewEngines([]EngineConfig{c}, EngineOptions{Base: &http.Transport{}, Lookup: func(name string) (string, bool) { return "a\nb", name == "MULTI" }})
		got := ""
		if err != nil {
			got = strings.ReplaceAll(err.Error(), dir, "")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	f(EngineConfig{APIKey: configfile.NewSecret("${NONE}")}, "api_key: the environment variable NONE is not set")
	f(EngineConfig{APIKey: configfile.NewSecret("${MULTI}")}, "api_key: its value has characters that a key cannot have; want one line of printable ASCII")
	f(EngineConfig{APIKeyFile: dir + "/none"}, "api_key_file: read /none: no such file or directory")
	f(EngineConfig{APIKeyFile: write(t, dir, "empty", []byte(" \n"))}, "api_key_file: /empty is empty")
	f(EngineConfig{APIKeyFile: write(t, dir, "long", []byte(strings.Repeat("x", 5000)))}, "api_key_file: /long is longer than 4096 characters")
	f(EngineConfig{TLS: &EngineTLSConfig{CA: dir + "/none"}}, "tls: read /none: no such file or directory")
	f(EngineConfig{TLS: &EngineTLSConfig{CA: write(t, dir, "ca", []byte("x"))}}, "tls: /ca: holds no certificate; want PEM")
}

func TestCheckEngine(t *testing.T) {
	t.Parallel()
	f := func(c EngineConfig, authenticates bool, want string) {
		t.Helper()
		c.URL = "http://p:8000"
		got, err := c.Check(EngineOptions{Authenticates: authenticates})
		if err != nil {
			got = err.Error()
		}
		if diff := cmp.Diff("http://p:8000, "+want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	key := configfile.NewSecret("k")
	f(EngineConfig{}, false, "with the client's Authorization")
	f(EngineConfig{}, true, "without Authorization")
	f(EngineConfig{APIKey: key}, true, "with the engine's own key")
	f(EngineConfig{APIKey: key, Authorization: "pass"}, false, "with the client's Authorization, else the engine's key")
	ca := newAuthority(t, "ca")
	cert, k := ca.issue("x")
	dir := t.TempDir()
	c := EngineConfig{TLS: &EngineTLSConfig{CA: write(t, dir, "ca", ca.pem), Cert: write(t, dir, "cert", cert), Key: write(t, dir, "key", k)}}
	f(c, true, "without Authorization, certificate checked against "+dir+"/ca, client certificate "+dir+"/cert")
}
