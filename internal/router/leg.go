package router

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tarik-kv/tarik/internal/fleet"
	"github.com/tarik-kv/tarik/internal/upstream"
)

// payload is a body in pieces, which nobody changes. It can be sent again.
type payload [][]byte

// call is one engine call.
type call struct {
	engine *fleet.Engine
	path   string
	body   payload
	header http.Header // the client's headers that concern an engine; the call's own
	id     string      // X-Request-Id
}

// jsonType is every call's Content-Type.
var jsonType = []string{"application/json"}

// send starts the call and returns the engine's answer as soon as its headers are there.
//
// It goes to the transport without an http.Client, which has nothing to add: an engine sends no
// cookies, and a redirect is an answer like any other.
func (r *Router) send(ctx context.Context, c call) (*http.Response, error) {
	u := *c.engine.URL
	u.Path += c.path
	if u.RawPath != "" {
		u.RawPath += c.path
	}
	c.header["Content-Type"] = jsonType
	c.header["X-Request-Id"] = []string{c.id}
	body := upstream.NewPieces(c.body...)
	req := &http.Request{
		Method: http.MethodPost, URL: &u, Header: c.header, Body: body, ContentLength: body.Len(), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		GetBody: func() (io.ReadCloser, error) { return upstream.NewPieces(c.body...), nil },
	}
	res, err := r.client.Transport.RoundTrip(req.WithContext(ctx))
	if err != nil {
		return nil, &url.Error{Op: http.MethodPost, URL: c.path, Err: err} // cause must not show more of it
	}
	if res.StatusCode < 500 {
		c.engine.Answered()
	}
	return res, nil
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
	size := int64(512)
	if res.ContentLength >= 0 {
		size = min(res.ContentLength+1, 1<<20) // what is announced is not yet there
	}
	b := make([]byte, 0, size)
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := res.Body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case int64(len(b)) > limit:
			return b, errTooLarge
		case errors.Is(err, io.EOF):
			return b, nil
		case err != nil:
			return b, err
		}
	}
}

// engineHeaders are the client's headers that an engine gets, unless its Connection header says that
// they are for the router. Everything else is between the client and the router: engines act on
// request ids, ranks and priorities. Trailers of either side end at the router (RFC 9110 §6.5.1):
// nobody needs them, and what comes behind a body has not been looked at.
var engineHeaders = []string{"Authorization", "Accept", "Accept-Language", "User-Agent", "Traceparent", "Tracestate", "Baggage"}

func forEngine(client http.Header) http.Header {
	h := make(http.Header, len(engineHeaders))
	for _, name := range engineHeaders {
		if v := client[name]; v != nil && !namedIn(client["Connection"], name) {
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
