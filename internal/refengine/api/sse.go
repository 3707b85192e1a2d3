package api

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"
)

// errOver ends a stream early on purpose: a fault said so and the client has been told.
var errOver = errors.New("stream ended by a fault")

// output writes one reply, whole or as events, with the request's faults.
type output struct {
	ctx    context.Context
	w      http.ResponseWriter
	rc     *http.ResponseController
	f      Faults
	events int
	buf    []byte

	unmarked bool                    // the stream ends without [DONE]
	failure  func(e *apiError) error // tells an error in the stream; nil: a data event
}

func newOutput(ctx context.Context, w http.ResponseWriter, f Faults) *output {
	return &output{ctx: ctx, w: w, rc: http.NewResponseController(w), f: f}
}

// wait is the delay before the first byte.
func (o *output) wait() error { return sleep(o.ctx, o.f.FirstDelay) }

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// document writes a whole reply.
func (o *output) document(status int, body []byte) {
	h := o.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	o.w.WriteHeader(status)
	if o.f.CutAt > 0 {
		_ = o.write(body[:len(body)/2])
		panic(http.ErrAbortHandler)
	}
	_ = o.write(body) // the client is gone: nobody to tell
}

// open sends the headers of a stream at once: the client knows that it was accepted before the first
// token is there, as from vLLM.
func (o *output) open() error {
	o.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	o.w.WriteHeader(http.StatusOK)
	return o.rc.Flush()
}

// event sends one data event.
func (o *output) event(data []byte) error { return o.named("", data) }

// named sends one event with a name, or without if it is "".
func (o *output) named(name string, data []byte) error {
	o.events++
	if o.f.Comments > 0 && (o.events-1)%o.f.Comments == 0 {
		if err := o.comment(); err != nil {
			return err
		}
	}
	switch o.events {
	case o.f.CutAt:
		panic(http.ErrAbortHandler)
	case o.f.ErrorAt:
		return errors.Join(errOver, o.fail(internalError()))
	}
	return o.data(name, data)
}

// fail ends the stream with an error event.
func (o *output) fail(e *apiError) error {
	if o.failure != nil {
		return o.failure(e)
	}
	if err := o.data("", e.json()); err != nil {
		return err
	}
	return o.done()
}

// done marks the end of a stream that has such a mark.
func (o *output) done() error {
	if o.unmarked {
		return nil
	}
	return o.data("", []byte("[DONE]"))
}

func (o *output) comment() error {
	o.buf = append(o.buf[:0], ": keep-alive"...)
	return o.finishLine()
}

func (o *output) data(name string, data []byte) error {
	o.buf = o.buf[:0]
	if name != "" {
		o.field("event", []byte(name))
		o.buf = append(o.buf, o.lineEnd()...)
	}
	o.field("data", data)
	return o.finishLine()
}

// field adds a line, without its end, to buf.
func (o *output) field(name string, value []byte) {
	o.buf = append(append(o.buf, name...), ':')
	if !o.f.NoSpace {
		o.buf = append(o.buf, ' ')
	}
	o.buf = append(o.buf, value...)
}

func (o *output) lineEnd() string {
	if o.f.CRLF {
		return "\r\n"
	}
	return "\n"
}

// finishLine ends the line in buf, adds the empty line and sends both.
func (o *output) finishLine() error {
	end := o.lineEnd()
	o.buf = append(append(o.buf, end...), end...)
	return o.write(o.buf)
}

// write sends b and flushes.
func (o *output) write(b []byte) error {
	if !o.f.OneByte {
		if _, err := o.w.Write(b); err != nil {
			return err
		}
		return o.rc.Flush()
	}
	for i := range b {
		if _, err := o.w.Write(b[i : i+1]); err != nil {
			return err
		}
		if err := o.rc.Flush(); err != nil {
			return err
		}
		if err := sleep(o.ctx, o.f.ByteDelay); err != nil {
			return err
		}
	}
	return nil
}
