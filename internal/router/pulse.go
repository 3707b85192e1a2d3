package router

import (
	"bytes"
	"cmp"
	"net/http"
	"sync"
	"time"

	"github.com/tarik-kv/tarik/internal/kvp"
)

// pulse keeps the connection of a client that waits for a stream alive while the engines are silent:
// hops on the way and clients themselves give up connections on which nothing moves for a while, and
// a long prompt takes longer than that.
//
// After a silence of every it sends the headers of a stream, if they are not out, and a comment,
// which a reader of events ignores. From then on the status is 200: whatever fails later can only be
// said as an event. Comments stand between events, never in one.
//
// The methods are safe for concurrent use; all of them do nothing on a nil pulse. Whoever writes to
// the client while a pulse goes on must hold it.
type pulse struct {
	every time.Duration
	w     http.ResponseWriter
	http2 bool

	mu      sync.Mutex
	timer   *time.Timer
	last    time.Time // when something was last sent, or the pulse began
	open    bool      // the headers have been sent
	inEvent bool      // only a part of the last event has
	over    bool
}

// newPulse starts a pulse, nil if every is 0. It must be stopped.
func newPulse(w http.ResponseWriter, every time.Duration, http2 bool) *pulse {
	if every <= 0 {
		return nil
	}
	p := &pulse{every: every, w: w, http2: http2, last: time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(every, p.beat)
	return p
}

var comment = []byte(": keep-alive\n\n")

func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	if rest := p.every - time.Since(p.last); rest > 0 || p.inEvent {
		p.timer.Reset(max(rest, p.every/8))
		return
	}
	rc := http.NewResponseController(p.w)
	_ = rc.SetWriteDeadline(time.Now().Add(writePatience)) // not every writer has deadlines
	if !p.open {
		streamHeaders(p.w.Header())
		p.w.WriteHeader(http.StatusOK)
		p.open = true
	}
	_, err := p.w.Write(comment)
	if err == nil {
		err = rc.Flush()
	}
	if err != nil {
		p.over = true // the client has left; the server says so to the turn
		return
	}
	if p.http2 {
		_ = rc.SetWriteDeadline(time.Time{}) // here it ends the stream when it passes, write or no write
	}
	p.last = time.Now()
	p.timer.Reset(p.every)
}

// begin sends the headers of the stream with those of from, unless they are out already.
func (p *pulse) begin(w http.ResponseWriter, from http.Header) {
	if p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.open {
			return
		}
		p.open = true
	}
	copyHeaders(w.Header(), from)
	streamHeaders(w.Header())
	w.WriteHeader(http.StatusOK)
}

// hold keeps comments away until release.
func (p *pulse) hold() {
	if p != nil {
		p.mu.Lock()
	}
}

// release ends hold. inEvent says that what was written ends in the middle of an event.
func (p *pulse) release(now time.Time, inEvent bool) {
	if p != nil {
		p.last, p.inEvent = now, inEvent
		p.mu.Unlock()
	}
}

// stop ends p and reports whether it has sent the headers.
func (p *pulse) stop() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	p.timer.Stop()
	return p.open
}

// streamHeaders are those of every stream. Nobody on the way may hold events back or change them.
func streamHeaders(h http.Header) {
	h.Set("Content-Type", cmp.Or(h.Get("Content-Type"), eventStream))
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
}

// lateAnswer is an answer in one piece as an event of a stream that has begun.
func lateAnswer(ep kvp.Endpoint, body []byte, failed bool) []byte {
	var b []byte
	if failed && ep == kvp.Messages {
		b = append(b, "event: error\n"...)
	}
	for line := range bytes.Lines(bytes.ReplaceAll(bytes.TrimSpace(body), []byte{'\r'}, nil)) {
		b = append(append(append(b, "data: "...), bytes.TrimSuffix(line, []byte{'\n'})...), '\n')
	}
	return append(b, '\n')
}
