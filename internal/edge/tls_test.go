package edge

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// secured is a listener with TLS whose files are in dir.
type secured struct {
	*started
	dir string
	ca  *authority // of the server's certificate
}

func startTLS(t *testing.T, change func(*TLSConfig)) *secured {
	t.Helper()
	s := &secured{dir: t.TempDir(), ca: newAuthority(t, "servers")}
	cert, key := s.ca.issue("tarik.test")
	cfg := local()
	cfg.TLS = &TLSConfig{Cert: write(t, s.dir, "cert", cert), Key: write(t, s.dir, "key", key)}
	if change != nil {
		change(cfg.TLS)
	}
	s.started = start(t, cfg, http.HandlerFunc(echo))
	return s
}

// ask makes one request on a new connection, with the server's CA and whatever change adds.
func (s *secured) ask(change func(*tls.Config)) (status int, peer string, err error) {
	s.t.Helper()
	c := client(s.t, func(tr *http.Transport) {
		tr.TLSClientConfig = &tls.Config{RootCAs: s.ca.pool()}
		if change != nil {
			change(tr.TLSClientConfig)
		}
	})
	status, _, res, err := call(s.t, c, "GET", s.URL()+"/x", nil)
	if err != nil {
		return 0, "", err
	}
	return status, res.TLS.PeerCertificates[0].Subject.CommonName, nil
}

func TestTLS(t *testing.T) {
	t.Parallel()
	s := startTLS(t, nil)
	f := func(what string, change func(*tls.Config), wantErr string) {
		t.Helper()
		status, _, err := s.ask(change)
		switch {
		case wantErr == "" && (err != nil || status != 200):
			t.Errorf("%s: %d, %v", what, status, err)
		case wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)):
			t.Errorf("%s: %d, %v, want an error with %q", what, status, err, wantErr)
		}
	}
	f("the right CA", nil, "")
	f("TLS 1.2", func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }, "")
	f("TLS 1.1", func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }, "protocol version")
	f("another CA", func(c *tls.Config) { c.RootCAs = newAuthority(t, "others").pool() }, "unknown authority")
	f("another name", func(c *tls.Config) { c.ServerName = "other.test" }, "valid for tarik.test")
	for range 1000 { // the server hears of it after the client
		if count(t, s.metrics, "tarik_edge_tls_failures_total", "clients") >= 3 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if n := count(t, s.metrics, "tarik_edge_tls_failures_total", "clients"); n != 3 {
		t.Errorf("%v failed handshakes counted, want 3", n)
	}
	newer := startTLS(t, func(c *TLSConfig) { c.MinVersion = "1.3" })
	if _, _, err := newer.ask(func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }); err == nil {
		t.Error("min_version 1.3 speaks TLS 1.2")
	}
}

func TestClientCertificates(t *testing.T) {
	t.Parallel()
	clients, others := newAuthority(t, "clients"), newAuthority(t, "others")
	for _, mode := range []string{"", "required", "optional"} {
		t.Run("client_auth "+mode, func(t *testing.T) {
			t.Parallel()
			s := startTLS(t, func(c *TLSConfig) {
				c.ClientCA, c.ClientAuth = write(t, t.TempDir(), "ca", clients.pem), mode
			})
			f := func(what string, pair *tls.Certificate, good bool) {
				t.Helper()
				status, _, err := s.ask(func(c *tls.Config) {
					// Presented whatever the server says it accepts, as an attacker would.
					c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
						if pair == nil {
							return &tls.Certificate{}, nil
						}
						return pair, nil
					}
				})
				if got := err == nil && status == 200; got != good {
					t.Errorf("%s: %d, %v; let in: %v, want %v", what, status, err, got, good)
				}
			}
			good, bad, own := clients.pair("agent"), others.pair("agent"), s.ca.pair("agent")
			f("a good one", &good, true)
			f("none", nil, mode == "optional")
			f("one of another CA", &bad, false)
			f("one of the server's own CA", &own, false)
		})
	}
}

func TestReload(t *testing.T) {
	t.Parallel()
	clients, later := newAuthority(t, "clients"), newAuthority(t, "later")
	dir := t.TempDir()
	s := startTLS(t, func(c *TLSConfig) { c.ClientCA = write(t, dir, "ca", clients.pem) })
	cache := tls.NewLRUClientSessionCache(8)
	agent, other := clients.pair("agent"), later.pair("agent")
	f := func(what string, pair tls.Certificate, wantPeer string) {
		t.Helper()
		_, peer, _ := s.ask(func(c *tls.Config) { // "" if it is refused
			c.Certificates, c.ClientSessionCache, c.ServerName = []tls.Certificate{pair}, cache, "tarik.test"
			c.VerifyConnection, c.InsecureSkipVerify = nil, true // certificates of two names follow each other
		})
		if peer != wantPeer {
			t.Errorf("%s: the server is %q, want %q", what, peer, wantPeer)
		}
	}
	reload := func(wantChanged []string, wantErr string) {
		t.Helper()
		changed, err := s.Reload()
		for i := range changed {
			changed[i] = strings.TrimPrefix(changed[i], s.dir)
			changed[i] = strings.TrimPrefix(changed[i], dir)
		}
		got := ""
		if err != nil {
			got = strings.ReplaceAll(strings.ReplaceAll(err.Error(), s.dir, ""), dir, "")
		}
		if diff := cmp.Diff([]any{wantChanged, wantErr}, []any{changed, got}); diff != "" {
			t.Errorf("Reload() (-want +got):\n%s", diff)
		}
	}
	f("before", agent, "tarik.test")
	reload(nil, "")

	cert, key := s.ca.issue("new.test")
	write(t, s.dir, "cert", cert)
	reload(nil, "certificate /cert with key /key: tls: private key does not match public key")
	f("a certificate without its key", agent, "tarik.test")
	write(t, s.dir, "key", key)
	reload([]string{"/cert", "/key"}, "")
	f("a new certificate", agent, "new.test")

	write(t, dir, "ca", []byte("not PEM"))
	reload(nil, "/ca: holds no certificate; want PEM")
	f("a CA file that is none", agent, "new.test")
	write(t, dir, "ca", append([]byte(nil), key...))
	reload(nil, "/ca: holds a EC PRIVATE KEY; want certificates only")
	write(t, dir, "ca", later.pem)
	reload([]string{"/ca"}, "")
	f("a CA that was taken out, whatever sessions remember", agent, "")
	f("the CA that came in", other, "new.test")

	if err := os.Remove(dir + "/ca"); err != nil {
		t.Fatal(err)
	}
	reload(nil, "read /ca: no such file or directory")
	f("a file that is gone", other, "new.test")
	if n := count(t, s.metrics, "tarik_edge_certificate_not_after_seconds"); n != float64(s.tls.get().leaf.NotAfter.Unix()) {
		t.Errorf("the end of the certificate is exported as %v", n)
	}
}

// Connections go on while certificates change. Run with -race.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	s := startTLS(t, nil)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, peer, err := s.ask(func(c *tls.Config) { c.ServerName = "tarik.test" }); err != nil || peer != "tarik.test" {
				t.Errorf("%q, %v", peer, err)
			}
		}
	}()
	for range 10 {
		cert, key := s.ca.issue("tarik.test")
		write(t, s.dir, "cert", cert)
		_, _ = s.Reload() // the pair does not fit
		write(t, s.dir, "key", key)
		if changed, err := s.Reload(); len(changed) != 2 || err != nil {
			t.Errorf("Reload() = %v, %v", changed, err)
		}
	}
	close(stop)
	<-done
}

func TestCheckListen(t *testing.T) {
	t.Parallel()
	ca, dir := newAuthority(t, "ca"), t.TempDir()
	cert, key := ca.issue("tarik.test")
	files := &TLSConfig{Cert: write(t, dir, "cert", cert), Key: write(t, dir, "key", key), ClientCA: write(t, dir, "ca", append(ca.pem, newAuthority(t, "b").pem...))}
	_, _, old := ca.sign(&x509.Certificate{NotAfter: time.Now().Add(-time.Minute)})
	write(t, dir, "old", old)
	f := func(c ListenConfig, want string) {
		t.Helper()
		got, err := c.Check()
		if err != nil {
			got = strings.ReplaceAll(err.Error(), dir, "")
		}
		got = strings.ReplaceAll(got, ca.cert.NotAfter.UTC().Format(time.RFC3339), "LATER")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Check() (-want +got):\n%s", diff)
		}
	}
	c := DefaultListen(":8080")
	f(c, ":8080, plain HTTP/1.1 and HTTP/2")
	c.Allow = []string{"10.0.0.0/8", "10.1.2.3"}
	f(c, ":8080, plain HTTP/1.1 and HTTP/2, for 10.0.0.0/8, 10.1.2.3 only")
	c.Allow, c.TLS = nil, files
	got, err := c.Check()
	if want := ", client certificates of 2 CAs required"; err != nil || !strings.HasPrefix(got, ":8080, TLS 1.2 or newer, certificate of tarik.test valid until ") || !strings.HasSuffix(got, want) {
		t.Errorf("Check() = %q, %v", got, err)
	}
	c.TLS = &TLSConfig{Cert: dir + "/none", Key: files.Key}
	f(c, "read /none: no such file or directory")
	c.TLS = &TLSConfig{Cert: files.Key, Key: files.Key}
	if _, err := c.Check(); err == nil {
		t.Error("a key is taken for a certificate")
	}
	if _, err := Listen(c, nil, Options{}); err == nil {
		t.Error("Listen takes a key for a certificate")
	}
	if _, err := Listen(DefaultListen("127.0.0.1:99999"), nil, Options{}); err == nil {
		t.Error("Listen takes a port that is none")
	}
}
