package edge

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/tarik-kv/tarik/internal/tenant"
)

// TestMain fails if anything that was started is still running at the end.
func TestMain(m *testing.M) {
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// patience ends a test that hangs; nothing is asserted about how long anything takes.
const patience = 30 * time.Second

// authority is a CA of a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t}
	a.cert, a.key, a.pem = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

func (a *authority) sign(c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey, []byte) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if c.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		a.t.Fatal(err)
	}
	if c.NotBefore = time.Now().Add(-time.Hour); c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	parent, parentKey := a.cert, a.key
	if parent == nil {
		parent, parentKey = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, parentKey)
	if err != nil {
		a.t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		a.t.Fatal(err)
	}
	return c, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// issue makes a certificate for name and 127.0.0.1, and its key, both as PEM.
func (a *authority) issue(name string) (cert, key []byte) {
	a.t.Helper()
	_, k, cert := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// pair is issue for a client's configuration.
func (a *authority) pair(name string) tls.Certificate {
	a.t.Helper()
	cert, key := a.issue(name)
	p, err := tls.X509KeyPair(cert, key)
	if err != nil {
		a.t.Fatal(err)
	}
	return p
}

// write puts content into a file of dir, by rename as an operator should, and returns its name.
func write(t *testing.T, dir, name string, content []byte) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	return file
}

// testLog collects lines.
type testLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *testLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *testLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *testLog) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// local is a listener for tests.
func local() ListenConfig { return DefaultListen("127.0.0.1:0") }

// started is a Server of a test with what it says.
type started struct {
	*Server
	t       *testing.T
	log     *testLog
	metrics *prometheus.Registry
}

func start(t *testing.T, c ListenConfig, h http.Handler) *started {
	t.Helper()
	c.Validate(func(path, message string) { t.Errorf("%s: %s", path, message) })
	s := &started{t: t, log: &testLog{}, metrics: prometheus.NewRegistry()}
	var err error
	if s.Server, err = Listen(c, h, Options{Log: s.log.logger(), Metrics: NewMetrics(s.metrics)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(0) })
	return s
}

func (s *started) addr() string { return s.ln.Addr().String() }

// count is the sum of a metric over all label values that contain the given ones.
func count(t *testing.T, r *prometheus.Registry, name string, labels ...string) (sum float64) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	metrics:
		for _, m := range f.GetMetric() {
			have := map[string]bool{}
			for _, l := range m.GetLabel() {
				have[l.GetValue()] = true
			}
			for _, want := range labels {
				if !have[want] {
					continue metrics
				}
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

// raw is a client that sends bytes.
type raw struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, addr string) *raw {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &raw{t, c, bufio.NewReader(c)}
}

func (c *raw) send(s string) *raw {
	c.t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		c.t.Fatalf("send: %v", err)
	}
	return c
}

// answer reads one response: its status and body. The status is 0 if the connection ends instead.
func (c *raw) answer() (status int, body string, header http.Header) {
	c.t.Helper()
	res, err := http.ReadResponse(c.r, nil)
	if err != nil {
		if e, ok := err.(net.Error); ok && e.Timeout() {
			c.t.Fatalf("no answer: %v", err)
		}
		return 0, "", nil
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		body = "(broken) "
	}
	if res.Close {
		res.Header.Set("Connection", "close") // http.ReadResponse takes it out
	}
	return res.StatusCode, body + string(b), res.Header
}

// answers reads responses until the connection ends.
func (c *raw) answers() (statuses []int) {
	c.t.Helper()
	for {
		status, _, _ := c.answer()
		if status == 0 {
			return statuses
		}
		statuses = append(statuses, status)
	}
}

// client is one for a test, with its own connections.
func client(t *testing.T, change func(*http.Transport)) *http.Client {
	t.Helper()
	tr := &http.Transport{}
	if change != nil {
		change(tr)
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

// call makes a request and reads the answer.
func call(t *testing.T, c *http.Client, method, url string, body io.Reader, headers ...string) (status int, text string, res *http.Response, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err = c.Do(req)
	if err != nil {
		return 0, "", nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), res, err
}

// echo answers with what it was sent.
func echo(w http.ResponseWriter, req *http.Request) {
	b, err := io.ReadAll(req.Body)
	if err != nil {
		http.Error(w, "could not read: "+err.Error(), http.StatusTeapot)
		return
	}
	_, _ = fmt.Fprintf(w, "%s %s %s %d", req.Proto, req.Method, req.URL.Path, len(b))
}

// newGate is a gate with the keys "key-of-NAME" for tenants, and the clock at now.
func newGate(t *testing.T, limits tenant.LimitsConfig, tenants ...string) *tenant.Gate {
	t.Helper()
	c := tenant.Config{Limits: limits}
	if len(tenants) > 0 {
		var b strings.Builder
		b.WriteString("keys:\n")
		for _, name := range tenants {
			fmt.Fprintf(&b, "  - {tenant: %s, name: k, key_sha256: \"%x\"}\n", name, sum("key-of-"+name))
		}
		c.Auth = []tenant.AuthConfig{{Keys: &tenant.KeysConfig{File: write(t, t.TempDir(), "keys.yaml", []byte(b.String()))}}}
	}
	g, err := tenant.New(c, tenant.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}
