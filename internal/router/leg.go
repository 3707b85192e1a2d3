package router

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tarik-kv/tarik/internal/fleet"
)

// payload is a body that can be sent again: Reader starts over at each call.
type payload interface {
	Len() int64
	Reader() io.Reader
}

// call is one engine call.
type call struct {
	engine *fleet.Engine
	path   string
	body   payload
	header http.Header // the client's headers that concern an engine
	id     string      // X-Request-Id
}

// send starts the call and returns the engine's answer as soon as its headers are there.
func (r *Router) send(ctx context.Context, c call) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.engine.String()+c.path, c.body.Reader())
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", c.engine, err)
	}
	req.ContentLength = c.body.Len()
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(c.body.Reader()), nil }
	for name, values := range c.header {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", c.id)
	res, err := r.client.Do(req)
	if err == nil && res.StatusCode < 500 {
		c.engine.Answered()
	}
	return res, err
}

// answer is an engine's whole reply, kept to be looked at or passed on.
type answer struct {
	status int // 0: none came
	header http.Header
	body   []byte
	err    error
	took   time.Duration
}

// errTooLarge is an engine's reply over the limit.
var errTooLarge = errors.New("reply too large")

// ask makes a call and reads the whole reply, at most limit bytes.
func (r *Router) ask(ctx context.Context, c call, limit int64) answer {
	begin := time.Now()
	res, err := r.send(ctx, c)
	if err != nil {
		return answer{err: err, took: time.Since(begin)}
	}
	a := answer{status: res.StatusCode, header: res.Header}
	a.body, a.err = readAll(res, limit)
	a.took = time.Since(begin)
	return a
}

// readAll reads and closes a reply's body, at most limit bytes.
func readAll(res *http.Response, limit int64) ([]byte, error) {
	defer res.Body.Close()
	if res.ContentLength > limit {
		return nil, errTooLarge
	}
	var buf bytes.Buffer
	if res.ContentLength > 0 {
		buf.Grow(int(res.ContentLength) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(io.LimitReader(res.Body, limit+1))
	if n > limit {
		err = errTooLarge
	}
	return buf.Bytes(), err
}

// engineHeaders are the client's headers that an engine gets. Everything else is between the
// client and the router: engines act on request ids, ranks and priorities.
var engineHeaders = []string{"Authorization", "Accept", "Accept-Language", "User-Agent", "Traceparent", "Tracestate", "Baggage"}

func forEngine(client http.Header) http.Header {
	h := make(http.Header, len(engineHeaders))
	for _, name := range engineHeaders {
		if v := client[name]; v != nil {
			h[name] = v
		}
	}
	return h
}

// hopHeaders end at the router, RFC 9110 §7.6.1, as do lengths that no longer fit.
var hopHeaders = map[string]bool{
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true, "Transfer-Encoding": true,
	"Upgrade": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Content-Length": true,
	"X-Request-Id": true, // the router's own id on the engine's side; the client gets its own back
	"Server":       true, // what runs behind the router is nobody's business …
	"Date":         true, // … and when, the router's own server says
}

// copyHeaders copies what an engine says to the client, less what is between the engine and the
// router: the headers above and those that Connection names.
func copyHeaders(to, from http.Header) {
	for name, values := range from {
		if !hopHeaders[name] && !namedIn(from["Connection"], name) {
			to[name] = values
		}
	}
}

func namedIn(connection []string, name string) bool {
	for _, list := range connection {
		for item := range strings.SplitSeq(list, ",") {
			if http.CanonicalHeaderKey(strings.TrimSpace(item)) == name {
				return true
			}
		}
	}
	return false
}

// newID is an id of the router's own: 16 hex digits.
func newID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
