package edge

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"
)

// serverTLS is a listener's certificates as they are in force.
type serverTLS struct {
	*files[*served]
}

// served is one reading of a listener's files.
type served struct {
	config *tls.Config
	leaf   *x509.Certificate // the server's own
	cas    int               // that may sign client certificates
}

// loadServerTLS reads the files of c, which is valid.
func loadServerTLS(c TLSConfig) (*serverTLS, error) {
	names := []string{c.Cert, c.Key}
	if c.ClientCA != "" {
		names = append(names, c.ClientCA)
	}
	f, err := readFiles(names, c.parse)
	if err != nil {
		return nil, err
	}
	return &serverTLS{f}, nil
}

// parse makes a server's configuration from what its files hold.
func (c TLSConfig) parse(contents [][]byte) (*served, error) {
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", c.Cert, c.Key, err)
	}
	s := &served{leaf: pair.Leaf, config: &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
	}}
	if c.MinVersion == "1.3" {
		s.config.MinVersion = tls.VersionTLS13
	}
	if c.ClientCA == "" {
		return s, nil
	}
	if s.config.ClientCAs, s.cas, err = parseCAs(c.ClientCA, contents[2]); err != nil {
		return nil, err
	}
	s.config.ClientAuth = tls.RequireAndVerifyClientCert
	if c.ClientAuth == "optional" {
		s.config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	// A resumed session is not asked for its certificate again: a CA that was taken out would live on in tickets.
	s.config.SessionTicketsDisabled = true
	return s, nil
}

// parseCAs reads a file of CA certificates. Unlike [x509.CertPool.AppendCertsFromPEM] it does not pass over what it
// cannot read: a CA that is missing is found out at once, not by its clients.
func parseCAs(name string, data []byte) (pool *x509.CertPool, n int, err error) {
	pool = x509.NewCertPool()
	for ; ; n++ {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, 0, fmt.Errorf("%s: holds a %s; want certificates only", name, block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: certificate %d: %w", name, n+1, err)
		}
		pool.AddCert(c)
	}
	if n == 0 {
		return nil, 0, fmt.Errorf("%s: holds no certificate; want PEM", name)
	}
	return pool, n, nil
}

// config is for [http.Server]: each handshake gets what is in force when it begins.
func (s *serverTLS) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.get().config, nil },
	}
}

// describe says what is served, for `tarik serve --check`.
func (s *served) describe(c TLSConfig) string {
	text := "TLS " + c.MinVersion
	if c.MinVersion == "" {
		text = "TLS 1.2"
	}
	text += fmt.Sprintf(" or newer, certificate of %s valid until %s", nameOf(s.leaf), s.leaf.NotAfter.UTC().Format(time.RFC3339))
	switch {
	case s.config.ClientAuth == tls.RequireAndVerifyClientCert:
		text += fmt.Sprintf(", client certificates of %d CAs required", s.cas)
	case s.cas > 0:
		text += fmt.Sprintf(", client certificates of %d CAs optional", s.cas)
	}
	return text
}

// nameOf is what a certificate is for.
func nameOf(c *x509.Certificate) string {
	switch {
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	case len(c.IPAddresses) > 0:
		return c.IPAddresses[0].String()
	}
	return c.Subject.CommonName
}

// engineTLS makes a client's configuration from what the files hold: the CA's if one is named, then certificate and
// key if they are.
func (c EngineTLSConfig) parse(contents [][]byte) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	var err error
	if c.CA != "" {
		if config.RootCAs, _, err = parseCAs(c.CA, contents[0]); err != nil {
			return nil, err
		}
		contents = contents[1:]
	}
	if c.Cert != "" {
		pair, err := tls.X509KeyPair(contents[0], contents[1])
		if err != nil {
			return nil, fmt.Errorf("certificate %s with key %s: %w", c.Cert, c.Key, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// names are the files that parse wants.
func (c EngineTLSConfig) names() []string {
	var names []string
	for _, n := range []string{c.CA, c.Cert, c.Key} {
		if n != "" {
			names = append(names, n)
		}
	}
	return names
}
