package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/sse"
	"github.com/tarik-kv/tarik/internal/turn"
	"github.com/tarik-kv/tarik/internal/wire"
)

// reply is D's reply while it is on its way to the client.
type reply struct {
	res       *http.Response
	streaming bool
	s         *stream
	whole     *bodyedit.Edit // of a reply in one piece
	info      *wire.Info
	inEvent   bool   // only a part of the last event was there
	response  []byte // of /v1/responses: the whole response object
	tail      []byte // the end mark and what comes with it, not yet sent
}

// stream is the memory that relaying takes, used again by later streams.
type stream struct {
	buf    []byte // what is read of D
	framer sse.Framer
	filter wire.Filter
	out    []byte // filtered, not yet sent
}

var streams = sync.Pool{New: func() any { return &stream{buf: make([]byte, leastRead)} }}

// A stream's buffer is small, because most streams are a token now and then and there are thousands of
// them, and grows while D sends more at once than fits.
const (
	leastRead = 4 << 10
	mostRead  = 64 << 10
)

// read reads what there is of D's stream.
func (p *reply) read() ([]byte, error) {
	s := p.s
	n, err := p.res.Body.Read(s.buf)
	b := s.buf[:n]
	if n == len(s.buf) && n < mostRead {
		s.buf = make([]byte, 2*n)
	}
	return b, err
}

// close gives the reply's connection and memory back.
func (p *reply) close() {
	_ = p.res.Body.Close() // whatever is left of it is nobody's
	if p.s != nil && cap(p.s.out) <= maxPooled && (p.whole == nil || len(p.whole.Doc().Body()) <= maxPooled) {
		if len(p.s.buf) > leastRead {
			p.s.buf = make([]byte, leastRead)
		}
		streams.Put(p.s)
	}
	p.s, p.whole, p.info = nil, nil, nil // these two are the stream's memory
}

// maxPooled is how large a stream's buffer may have grown to be used again, in bytes: a rare event of
// megabytes must not stay in memory for ever.
const maxPooled = 1 << 20

// drainFor is how long D's stream is still read when its client has left. A D that ends in that time
// has kept blocks, and only the end of its stream says which.
const drainFor = 100 * time.Millisecond

// drain reads a stream that no client gets to its end, if that comes soon. The call must be cancelled
// afterwards.
func (t *run) drain(p *reply) {
	defer time.AfterFunc(drainFor, t.cancel).Stop()
	for p.streaming && !p.info.Done {
		b, err := p.read()
		p.take(b)
		p.s.out = p.s.out[:0]
		if err != nil {
			return
		}
	}
}

// discard drops a reply that no client gets. D keeps what a handle in it names, so it is told.
func (t *run) discard(p *reply) {
	if p.info.Handle != nil {
		if h, err := kvp.ParseHandle(p.info.Handle); err == nil {
			t.r.sawDecode(h.EngineID)
			t.r.letGo([]*kvp.Held{{Handle: h}})
		}
	}
	p.close()
}

// decode makes a D call and reports how it begins.
func (t *run) decode(ctx context.Context, a turn.Decode) {
	r, q := t.r, t.q
	t.receipt.Decode = r.decode.String()
	if a.IDs == nil && a.Params != nil && t.promptIDs != nil {
		a.IDs, t.ids = t.promptIDs, t.promptIDs // P has rendered the prompt: D need not
	}
	if !r.decode.Info().Can.ExactPrompt && q.endpoint != kvp.Completions {
		a.IDs = nil // it renders the prompt itself; began compares
	}
	// The ids tell what D holds afterwards. There is no use in them without a handle.
	wantIDs := dialects[q.endpoint].ids && r.cfg.Reuse && a.Params != nil && r.decode.Info().Can.HandleInReply(q.endpoint, q.streaming)
	wantIDs = wantIDs || r.cfg.Reuse && r.cfg.Return && q.byIDs() // they are the next prompt's beginning
	c := call{
		engine: r.decode, path: q.endpoint.Path(), header: forEngine(q.header), id: t.id,
		body: editPayload(q.decodeBody(a.Params, a.IDs, wantIDs, a.Brief)),
	}
	t.asked, t.gaveParams = time.Now(), a.Params != nil
	t.visible = t.wireOptions() // here, since the machine goes on while the leg runs
	t.spawn(func() turn.Event {
		ev := t.began(ctx, c)
		if _, failed := ev.(turn.DecodeFailed); failed {
			t.decodeTook += time.Since(t.asked)
		}
		return ev
	})
}

// began sends the D call and returns DecodeBegan with the first of its reply in t.reply, or
// DecodeFailed with what D said in t.failed. Until then nothing has been sent to the client.
func (t *run) began(ctx context.Context, c call) turn.Event {
	res, err := t.r.send(ctx, c)
	if err != nil {
		t.failed = answer{err: err}
		return turn.DecodeFailed{}
	}
	if res.StatusCode != http.StatusOK {
		t.failed = answer{status: res.StatusCode, header: res.Header}
		t.failed.body, t.failed.err = readAll(res, t.r.cfg.MaxReply)
		if res.StatusCode < 400 {
			t.failed = answer{err: fmt.Errorf("HTTP %d is no answer to a request", res.StatusCode)}
			return turn.DecodeFailed{}
		}
		return turn.DecodeFailed{Status: res.StatusCode}
	}
	p := &reply{res: res}
	media := mediaType(res.Header.Get("Content-Type"))
	p.streaming = media == eventStream || media == "" && t.q.streaming
	switch coding := res.Header.Get("Content-Encoding"); {
	case coding != "" && coding != "identity":
		err = errors.New("its reply is compressed, which nobody asked for") // and may hide a handle
	case p.streaming:
		err = t.firstEvent(p)
	default:
		err = t.wholeReply(p)
	}
	switch {
	case err != nil:
		t.failed = answer{err: err}
		p.close()
		return turn.DecodeFailed{}
	case p.info.Failed():
		t.failed = answer{status: errorStatus(p.info.Error), header: http.Header{"Content-Type": {"application/json"}}, body: errorBody(t.q.endpoint, p.info.Error)}
	case t.ids != nil && len(p.info.PromptIDs) > 0 && !slices.Equal(t.ids, p.info.PromptIDs):
		// P computed, or read, the KV of another prompt than the one D would continue.
		t.failed = answer{err: errors.New("decode renders the prompt differently")}
	default:
		t.reply = p
		t.beganAfter = time.Since(t.asked)
		return turn.DecodeBegan{}
	}
	t.discard(p)
	return turn.DecodeFailed{Status: t.failed.status}
}

const eventStream = "text/event-stream"

// mediaType is a Content-Type without its parameters, in lower case.
func mediaType(contentType string) string {
	switch contentType {
	case "application/json", eventStream, eventStream + "; charset=utf-8": // what engines say
		return contentType[:min(len(contentType), len(eventStream))]
	}
	media, _, _ := mime.ParseMediaType(contentType)
	return media
}

// wireOptions say what this client may see.
func (t *run) wireOptions() wire.Options {
	o := wire.Options{
		Endpoint: t.q.endpoint, KeepTokenIDs: t.q.wantsIDs, KeepPromptIDs: t.q.wantsIDs,
		KeepUsageChunk: t.q.wantsUsage, KeepContinuousUsage: t.q.wantsRunningUsage,
	}
	if t.r.cfg.Reuse && t.r.cfg.Return && t.q.plain == "" && len(t.q.chain) > 0 {
		o.KeepReply = returnReply
	}
	if f := t.r.decode.Info().Fingerprint; f != "" {
		o.Fingerprint = []byte(f)
	}
	if cached := t.machine.Outcome().Cached; cached != nil {
		o.OverrideCachedTokens, o.CachedTokens = true, *cached
	}
	return o
}

// wholeReply reads a reply that is not a stream.
func (t *run) wholeReply(p *reply) error {
	body, err := readAll(p.res, t.r.cfg.MaxReply)
	if err != nil {
		return err
	}
	p.s = streams.Get().(*stream)
	p.s.out, p.info = p.s.out[:0], p.s.filter.Info()
	p.whole, err = p.s.filter.Body(body, t.visible)
	if err != nil {
		return err
	}
	p.info.Done = true
	if t.q.endpoint == kvp.Responses {
		p.response = body
		if t.q.previous != "" {
			p.whole.Set(previousID, quote(t.q.previous)) // the engine did not get to see it
		}
	}
	return nil
}

// firstEvent reads a stream up to its first event with content, a comment being none. An engine
// may say 200 and then that it failed.
func (t *run) firstEvent(p *reply) error {
	p.s = streams.Get().(*stream)
	p.s.framer.Reset()
	p.s.filter.Reset(t.visible)
	p.s.out = p.s.out[:0]
	p.info = p.s.filter.Info()
	for {
		b, err := p.read()
		if p.take(b) {
			if dialects[t.q.endpoint].choices && p.info.Done && p.info.Choices == 0 && p.info.Error == nil {
				return errNoEvent
			}
			return nil
		}
		if err != nil {
			return errNoEvent
		}
		if len(p.s.out) > maxComments {
			p.s.out = p.s.out[:0]
		}
	}
}

var errNoEvent = errors.New("its stream ended before its first event")

// maxComments bounds what is kept of comments that come before the first event, in bytes: they tell
// nothing, and an engine may send them for hours.
const maxComments = 8 << 10

// take filters what was read into out, and tail from the end mark on. It reports whether any event
// had a payload.
func (p *reply) take(b []byte) (payload bool) {
	p.s.framer.Feed(b)
	for ev, ok := p.s.framer.Next(); ok; ev, ok = p.s.framer.Next() {
		payload = p.event(&ev) || payload
	}
	return payload
}

func (p *reply) event(ev *sse.Event) (payload bool) {
	if name := ev.Name(); !ev.Partial && (string(name) == "response.completed" || string(name) == "response.incomplete") {
		response, _ := bodyedit.Lookup(ev.Data(), "response")
		p.response = bytes.Clone(response)
	}
	_, out := p.s.filter.Event(*ev)
	if p.info.Done {
		p.tail = append(p.tail, out...)
	} else {
		p.s.out = append(p.s.out, out...)
	}
	p.inEvent = ev.Partial // its last part is Partial too; the next whole event ends the doubt
	return ev.HasData() || ev.Partial
}

// writePatience is how long a client may take to read what it was sent.
const writePatience = time.Minute

// relay sends D's reply to the client as it comes and reports how it ended. The end itself is held
// back (see complete): the next turn may come the moment the client sees it, and must find the
// handle.
func (t *run) relay(client context.Context) turn.Event {
	p := t.reply
	t.receipt.Status = http.StatusOK
	if p.streaming {
		cancel := t.cancel
		stop := context.AfterFunc(client, func() { time.AfterFunc(drainFor, cancel) }) // ends a read that waits for D
		t.pulse.begin(t.w, p.res.Header)
		t.relayStream(p, http.NewResponseController(t.w))
		stop()
	}
	if p.response != nil && p.info.Done && !p.info.Failed() {
		t.r.remember(t.q, p.response)
	}
	took := time.Since(t.asked)
	t.decodeTook += took
	t.r.metrics.DecodeLeg.Observe(took.Seconds())
	t.left = t.left || client.Err() != nil
	return t.ended(p.info)
}

// ended turns what was learned of a reply into the event that ends it.
func (t *run) ended(in *wire.Info) turn.DecodeDone {
	rc, m := &t.receipt, t.r.metrics
	rc.OutputTokens = len(in.TokenIDs)
	if in.HasUsage {
		rc.PromptTokens, rc.OutputTokens = in.Usage.PromptTokens, in.Usage.CompletionTokens
		if in.Usage.HasCachedTokens {
			cached := in.Usage.CachedTokens // in is used again by other streams
			rc.DCachedTokens = &cached
		}
	}
	done := turn.DecodeDone{Clean: in.Done && !in.Failed(), Prompt: in.PromptIDs, Output: in.TokenIDs}
	if !in.Done && !t.left {
		m.Truncated.Inc()
	}
	t.r.decode.SawFingerprint(in.Fingerprint)
	if t.q.streaming {
		t.learnDecode(rc.PromptTokens, rc.DCachedTokens)
	}
	var h kvp.Handle
	var err error
	if in.Handle != nil {
		h, err = t.handle(in.Handle)
	}
	switch {
	case in.Handle == nil:
		if done.Clean && t.gaveParams && !t.appended && !in.StopString && t.r.unseenReply(t.q) {
			t.r.unseen.add(rc.PromptTokens+rc.OutputTokens, t.r.now()+t.r.cfg.HandleTTL)
		}
		if done.Clean && t.gaveParams && t.r.cfg.Reuse {
			m.NoHandle.WithLabelValues(t.q.endpoint.Path(), strconv.FormatBool(t.q.streaming)).Inc()
		}
	case err != nil:
		m.BadParams.WithLabelValues(string(turn.LegDecode)).Inc()
		t.r.log.Warn("decode returned a handle that cannot be used", "turn", t.id, "error", err)
	case in.Handles == 1:
		t.r.sawDecode(h.EngineID)
		t.r.decode.SawHandle()
		done.Handle = &h
	}
	return done
}

// handle reads what D returned: what it keeps of an append looks as if D were a prefill engine.
func (t *run) handle(raw []byte) (kvp.Handle, error) {
	if !t.appended || raw == nil {
		return kvp.ParseHandle(raw)
	}
	a, err := kvp.ParsePrefilled(raw)
	if err != nil {
		return kvp.Handle{}, err
	}
	return a.FlipAppend(), nil
}

// complete sends what was held back, or makes a broken reply end as broken.
func (t *run) complete() {
	p := t.reply
	if p == nil {
		return
	}
	defer p.close()
	opened := t.pulse.stop()
	switch {
	case !p.streaming && opened:
		_, _ = t.w.Write(lateAnswer(t.q.endpoint, p.whole.Bytes(), false)) // the client has left
	case !p.streaming:
		copyHeaders(t.w.Header(), p.res.Header)
		t.w.Header().Set("Content-Length", strconv.FormatInt(p.whole.Len(), 10))
		t.w.WriteHeader(http.StatusOK)
		_, _ = p.whole.WriteTo(t.w) // the client has left
	case p.info.Done:
		_, _ = t.w.Write(p.tail) // the same
	default:
		// It must not look finished: an event that says so, and no end of the chunked body.
		_, _ = t.w.Write((&failure{status: http.StatusBadGateway, code: "stream-truncated", message: "the decode engine ended its stream early"}).in(t.q.endpoint).event())
		_ = http.NewResponseController(t.w).Flush() // the same
		t.broken = true
	}
}

func (t *run) firstToken(now time.Time) {
	if t.receipt.TTFTMs == nil && t.reply.info.Content {
		ttft := ms(now.Sub(t.begin))
		t.receipt.TTFTMs = &ttft
	}
}

// passOn gives the client the failed engine's own answer.
func (t *run) passOn() {
	if namesParams(t.failed.body) {
		f := &failure{status: t.failed.status, code: "engine-error", message: "the engine refused the request"}
		t.fail(f)
		return
	}
	t.receipt.Error = "engine-error"
	if t.pulse.stop() {
		t.receipt.Status = http.StatusOK
		_, _ = t.w.Write(lateAnswer(t.q.endpoint, t.failed.body, true)) // the client has left
		return
	}
	copyHeaders(t.w.Header(), t.failed.header)
	t.receipt.Status = t.failed.status
	t.w.Header().Set("Content-Length", strconv.Itoa(len(t.failed.body)))
	t.w.WriteHeader(t.failed.status)
	_, _ = t.w.Write(t.failed.body) // the client has left
}

// namesParams reports whether an engine's error repeats what only the router may say and see: some
// validation errors show the whole body they are about.
func namesParams(body []byte) bool { return bytes.Contains(body, []byte(kvp.Member)) }

// refuse answers for an engine that gave no answer.
func (t *run) refuse(leg turn.Leg) {
	f := &failure{status: http.StatusBadGateway, code: string(leg) + "-failed", message: "the " + string(leg) + " engine did not answer"}
	if t.failed.err != nil {
		f.message += ": " + cause(t.failed.err)
	}
	t.fail(f)
}

// fail gives the client f, as an event if its stream has begun.
func (t *run) fail(f *failure) {
	f = f.in(t.q.endpoint)
	t.receipt.Status, t.receipt.Error = f.status, f.code
	if t.pulse.stop() {
		t.receipt.Status = http.StatusOK
		_, _ = t.w.Write(f.event()) // the client has left
		return
	}
	f.write(t.w)
}

// errorStatus is the HTTP status that an error object of an engine names, 500 if it names none.
func errorStatus(object []byte) int {
	code, _ := bodyedit.Lookup(object, "code")
	if n, ok := bodyedit.Int(code); ok && n >= 400 && n < 600 {
		return int(n)
	}
	return http.StatusInternalServerError
}

// errorBody is an engine's error object, which came as an event, as the body of an error.
func errorBody(ep kvp.Endpoint, object []byte) []byte {
	if object == nil {
		return (&failure{status: http.StatusBadGateway, code: "decode-failed", message: "the decode engine reports that the generation failed"}).in(ep).body()
	}
	head := `{"error":`
	if ep == kvp.Messages {
		head = `{"type":"error","error":`
	}
	return append(append([]byte(head), object...), '}')
}

// endPatience is how long the end of a body may come after the end mark.
const endPatience = time.Second

// relayStream is the loop that every streamed token passes through.
func (t *run) relayStream(p *reply, rc *http.ResponseController) {
	var deadline time.Time
	var grace *time.Timer
	var w watch
	for {
		if len(p.s.out) > 0 {
			now := time.Now()
			if deadline.Sub(now) < writePatience/2 {
				deadline = now.Add(writePatience)
				_ = rc.SetWriteDeadline(deadline) // not every writer has deadlines
			}
			t.pulse.hold()
			_, err := t.w.Write(p.s.out)
			if err == nil {
				err = rc.Flush()
			}
			t.pulse.release(now, p.inEvent)
			if err != nil {
				t.left = true
				t.drain(p)
				return
			}
			if t.http2 {
				// Here a deadline ends the stream when it passes, write or no write.
				deadline = time.Time{}
				_ = rc.SetWriteDeadline(deadline) // as above
			}
			p.s.out = p.s.out[:0]
			t.firstToken(now)
			if !t.appended {
				w.event(t.r, now)
			}
		}
		if p.info.Done && grace == nil {
			// The end of the body follows the end mark at once, and then the connection can be used
			// again. A D that keeps it open must not keep the client.
			grace = time.AfterFunc(endPatience, t.cancel)
			defer grace.Stop()
		}
		b, err := p.read()
		p.take(b)
		if err == nil {
			continue
		}
		if ev, ok := p.s.framer.Flush(); ok {
			p.event(&ev)
		}
		t.pulse.stop()
		_, _ = t.w.Write(p.s.out) // the client has left
		t.firstToken(time.Now())
		return
	}
}
