package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// inOneWrite is the size of a body in bytes up to which it is copied behind the head. It fits into any socket's buffer,
// so that writing it does not wait for an engine that answers first.
const inOneWrite = 32 << 10

// Transport makes calls to engines. See the package documentation.
type Transport struct {
	other   *http.Transport
	dial    func(ctx context.Context, network, addr string) (net.Conn, error)
	idleFor time.Duration
	most    int // idle connections to one address

	mu    sync.Mutex
	idle  map[string][]*conn // by address, the last used last
	sweep *time.Timer        // nil: none is due
}

var _ http.RoundTripper = (*Transport)(nil)

// New returns a Transport that dials as other does and keeps connections as long. other makes the calls that are not
// for it.
func New(other *http.Transport) *Transport {
	t := &Transport{other: other, dial: other.DialContext, idleFor: other.IdleConnTimeout, most: other.MaxIdleConnsPerHost, idle: map[string][]*conn{}}
	if t.dial == nil {
		t.dial = new(net.Dialer).DialContext
	}
	if t.most == 0 {
		t.most = http.DefaultMaxIdleConnsPerHost
	}
	return t
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	body, ok := simple(req)
	if !ok {
		return t.other.RoundTrip(req)
	}
	ctx := req.Context()
	buf := heads.Get().(*[]byte)
	defer heads.Put(buf)
	head, err := appendHead((*buf)[:0], req, body)
	if err != nil {
		return nil, err
	}
	switch {
	case body == nil:
	case body.size <= inOneWrite:
		for _, b := range body.list {
			head = append(head, b...)
		}
		body, *buf = nil, head
	default:
		head = bytes.Clone(head) // its writer may go on after this call
	}
	for {
		c, err := t.get(ctx, address(req))
		if err != nil {
			return nil, err
		}
		stop := context.AfterFunc(ctx, func() { _ = c.Conn.Close() })
		begun, sendErr := c.send(head, body)
		if sendErr != nil && !begun && c.used && ctx.Err() == nil {
			stop()
			c.discard()
			continue // it was closed between the look at it and now
		}
		if sendErr != nil {
			// An engine that refuses a body it has not read may have closed the connection behind its answer.
			_ = c.SetReadDeadline(time.Now().Add(lateAnswer))
		}
		res, err := c.receive(req)
		if err != nil {
			stop()
			c.discard()
			switch {
			case ctx.Err() != nil:
				err = ctx.Err()
			case sendErr != nil:
				err = sendErr
			case isEOF(err):
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("%s %s: %w", req.Method, c.addr, err)
		}
		b := &reply{from: res.Body, t: t, c: c, ctx: ctx, stop: stop}
		b.keep = !res.Close && !req.Close && sendErr == nil
		if res.Body == http.NoBody {
			b.end(true)
		} else {
			res.Body = b
		}
		return res, nil
	}
}

// lateAnswer is how long an answer is waited for on a connection that no longer takes the request.
const lateAnswer = 50 * time.Millisecond

var heads = sync.Pool{New: func() any { b := make([]byte, 0, 4096); return &b }}

// simple reports whether a call is one that t makes itself, and what its body is, nil for none.
func simple(req *http.Request) (*Pieces, bool) {
	if req.URL.Scheme != "http" || req.URL.User != nil || req.Trailer != nil || len(req.TransferEncoding) > 0 ||
		req.Header["Expect"] != nil || req.Header["Upgrade"] != nil || req.Header["Connection"] != nil {
		return nil, false
	}
	if req.Body == nil || req.Body == http.NoBody {
		return nil, req.Method == http.MethodGet
	}
	p, ok := req.Body.(*Pieces)
	return p, ok && req.Method == http.MethodPost && req.ContentLength == p.size
}

func address(req *http.Request) string {
	if u := req.URL; u.Port() == "" {
		return net.JoinHostPort(u.Hostname(), "80")
	}
	return req.URL.Host
}

// appendHead appends the request line and the headers.
func appendHead(b []byte, req *http.Request, body *Pieces) ([]byte, error) {
	host := req.Host
	if host == "" {
		host = req.URL.Host
	}
	target := req.URL.RequestURI()
	if !plain(host, false) || !plain(target, false) {
		return b, errors.New("a call with a space or control character in its address")
	}
	b = append(append(append(b, req.Method...), ' '), target...)
	b = append(append(append(b, " HTTP/1.1\r\nHost: "...), host...), "\r\n"...)
	for name, values := range req.Header {
		if name == "Host" || name == "Content-Length" || name == "Transfer-Encoding" {
			continue // what they are is not the headers' to say
		}
		if name == "" || !plain(name, false) || strings.IndexByte(name, ':') >= 0 {
			return b, errors.New("a call with a malformed header name")
		}
		for _, v := range values {
			if !plain(v, true) {
				return b, fmt.Errorf("a call with a control character in header %s", name)
			}
			b = append(append(append(append(b, name...), ": "...), v...), "\r\n"...)
		}
	}
	if body != nil {
		b = append(strconv.AppendInt(append(b, "Content-Length: "...), body.size, 10), "\r\n"...)
	}
	return append(b, "\r\n"...), nil
}

// plain reports whether s has nothing in it that would end the line, or, unless spaces may be there, the word.
func plain(s string, spaces bool) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && (!spaces || c != '\t') || c == 0x7f || c == ' ' && !spaces {
			return false
		}
	}
	return true
}

// receive reads a reply up to its body.
func (c *conn) receive(req *http.Request) (*http.Response, error) {
	c.inHead, c.left = true, maxHeadBytes
	for {
		res, err := http.ReadResponse(c.r, req)
		if err != nil {
			return nil, err
		}
		switch {
		case res.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("the engine wants to speak another protocol")
		case res.StatusCode >= 100 && res.StatusCode < 200:
			continue // informational; the real one follows, within maxHeadBytes
		}
		c.inHead = false
		return res, nil
	}
}

// get returns a connection to addr: the idle one used last, or a new one.
func (t *Transport) get(ctx context.Context, addr string) (*conn, error) {
	for {
		t.mu.Lock()
		list := t.idle[addr]
		if len(list) == 0 {
			t.mu.Unlock()
			break
		}
		c := list[len(list)-1]
		list[len(list)-1] = nil
		t.idle[addr] = list[:len(list)-1]
		t.mu.Unlock()
		if (t.idleFor == 0 || time.Since(c.since) < t.idleFor) && c.alive() {
			return c, nil
		}
		c.discard()
	}
	nc, err := t.dial(ctx, "tcp", addr)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	return newConn(nc, addr), nil
}

// put makes c idle.
func (t *Transport) put(c *conn) {
	c.used, c.since = true, time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	list := t.idle[c.addr]
	if len(list) >= t.most {
		_ = c.Conn.Close()
		return
	}
	t.idle[c.addr] = append(list, c)
	if t.sweep == nil && t.idleFor > 0 {
		t.sweep = time.AfterFunc(t.idleFor, t.closeOld)
	}
}

// closeOld closes connections that have been idle for too long.
func (t *Transport) closeOld() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweep = nil
	for addr, list := range t.idle {
		old := 0
		for old < len(list) && time.Since(list[old].since) >= t.idleFor {
			_ = list[old].Conn.Close()
			old++
		}
		if list = slices.Delete(list, 0, old); len(list) == 0 {
			delete(t.idle, addr)
			continue
		}
		t.idle[addr] = list
		if wait := t.idleFor - time.Since(list[0].since); t.sweep == nil {
			t.sweep = time.AfterFunc(max(wait, t.idleFor/8), t.closeOld)
		}
	}
}

// CloseIdleConnections closes what no call uses.
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, list := range t.idle {
		for _, c := range list {
			_ = c.Conn.Close()
		}
	}
	clear(t.idle)
	if t.sweep != nil {
		t.sweep.Stop()
		t.sweep = nil
	}
	t.other.CloseIdleConnections()
}
