package edge

import (
	"net/http"
	"sync"
	"time"
)

// reply is a ResponseWriter that knows whether an answer has begun, that can be made to give another answer than
// the handler's, and that gives up a client who does not read.
type reply struct {
	http.ResponseWriter
	rc       *http.ResponseController
	path     string
	patience time.Duration // for one write, 0 for ever
	stalled  func()        // is told when it is over

	mu      sync.Mutex
	begun   bool      // the status has been sent
	instead *refusal  // is sent when the handler begins to answer, or ends
	mute    bool      // what the handler writes is nobody's
	until   time.Time // when the write in progress has taken too long, zero if there is none
	timer   *time.Timer
}

func newReply(w http.ResponseWriter, path string, patience time.Duration, stalled func()) *reply {
	return &reply{ResponseWriter: w, rc: http.NewResponseController(w), path: path, patience: patience, stalled: stalled}
}

// Unwrap gives [http.ResponseController] the deadlines.
func (r *reply) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// replace makes f the answer, if none has begun: whatever the handler says after its request's body turned out to be
// refused is not the reason.
func (r *reply) replace(f *refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.begun && r.instead == nil {
		r.instead = f
	}
}

// begin settles whose answer it is and reports whether it is the handler's.
func (r *reply) begin() bool {
	r.mu.Lock()
	first := !r.begun
	r.begun = true
	if first {
		r.mute = r.instead != nil
	}
	mute := r.mute
	r.mu.Unlock()
	if first && mute {
		r.instead.write(r.ResponseWriter, r.path)
	}
	return !mute
}

// end is called when the handler has returned. It reports whether an answer has begun.
func (r *reply) end() bool {
	r.mu.Lock()
	begun, instead := r.begun, r.instead
	r.mu.Unlock()
	if !begun && instead != nil {
		r.begin()
		return true
	}
	return begun
}

func (r *reply) WriteHeader(status int) {
	if status >= 100 && status < 200 { // informational: the answer is still to come
		r.ResponseWriter.WriteHeader(status)
		return
	}
	if r.begin() {
		r.ResponseWriter.WriteHeader(status)
	}
}

func (r *reply) Write(b []byte) (int, error) {
	if !r.begin() {
		return len(b), nil
	}
	r.watch()
	n, err := r.ResponseWriter.Write(b)
	r.written()
	return n, err
}

// FlushError is Flush for [http.ResponseController].
func (r *reply) FlushError() error {
	if !r.begin() {
		return nil
	}
	return r.send()
}

// send flushes the answer, whosever it is.
func (r *reply) send() error {
	r.watch()
	err := r.rc.Flush()
	r.written()
	return err
}

// Flush implements [http.Flusher].
func (r *reply) Flush() { _ = r.FlushError() } // the next write says so too

// watch begins the time that a write may take, and written ends it.
//
// A write deadline alone would not do: in HTTP/2 it ends the stream when it passes, write or no write.
func (r *reply) watch() {
	if r.patience <= 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.until = time.Now().Add(r.patience)
	if r.timer == nil {
		r.timer = time.AfterFunc(r.patience, r.giveUp)
	} else {
		r.timer.Reset(r.patience)
	}
}

func (r *reply) written() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.until = time.Time{}
	if r.timer != nil {
		r.timer.Stop()
	}
}

// giveUp ends a write in progress, and with it the connection or stream.
func (r *reply) giveUp() {
	if !r.late() {
		return // it is about a write that has ended just now
	}
	r.stalled()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.until.IsZero() {
		_ = r.rc.SetWriteDeadline(time.Unix(1, 0)) // not every writer has deadlines
	}
}

func (r *reply) late() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.until.IsZero() && !time.Now().Before(r.until)
}
