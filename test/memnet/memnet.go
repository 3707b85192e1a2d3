// Package memnet is a network in memory, for tests in which time is not the machine's: connections are
// pipes, and nothing takes any time but what engines are told to take.
package memnet

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
)

// Net is one network. The zero value is empty. It is safe for concurrent use.
type Net struct {
	mu    sync.Mutex
	open  map[string]*listener
	ports int
}

type addr string

func (a addr) Network() string { return "tcp" }
func (a addr) String() string  { return string(a) }

// Listen opens an address; port 0 is any.
func (n *Net) Listen(at string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if port == "0" {
		n.ports++
		at = net.JoinHostPort(host, fmt.Sprint(20_000+n.ports))
	}
	if n.open[at] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: addr(at), Err: fmt.Errorf("address already in use")}
	}
	if n.open == nil {
		n.open = map[string]*listener{}
	}
	l := &listener{net: n, at: addr(at), conns: make(chan net.Conn), closed: make(chan struct{})}
	n.open[at] = l
	return l, nil
}

// Dial connects to an address that somebody listens on.
func (n *Net) Dial(ctx context.Context, at string) (net.Conn, error) {
	n.mu.Lock()
	l := n.open[at]
	n.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: addr(at), Err: fmt.Errorf("connection refused")}
	if l == nil {
		return nil, refused
	}
	here, there := net.Pipe()
	select {
	case l.conns <- conn{there, l.at}:
		return conn{here, l.at}, nil
	case <-l.closed:
		return nil, refused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Transport is an HTTP client's side of the network.
func (n *Net) Transport() *http.Transport {
	return &http.Transport{
		DialContext:        func(ctx context.Context, _, at string) (net.Conn, error) { return n.Dial(ctx, at) },
		DisableCompression: true, MaxIdleConnsPerHost: 64,
	}
}

// conn is a pipe with an address, which servers want to know.
type conn struct {
	net.Conn
	at addr
}

func (c conn) RemoteAddr() net.Addr { return c.at }
func (c conn) LocalAddr() net.Addr  { return c.at }

type listener struct {
	net    *Net
	at     addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.net.mu.Lock()
		defer l.net.mu.Unlock()
		delete(l.net.open, string(l.at))
	})
	return nil
}

func (l *listener) Addr() net.Addr { return l.at }
