package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// errEngineGone is a request whose channel was closed before its last output: the engine died.
var errEngineGone = errors.New("engine closed the request without finishing it")

// run is the sequences of one HTTP request in the engine: one per prompt and choice.
type run struct {
	engine Backend
	seqs   []*sequence
	box    mailbox
	pumps  sync.WaitGroup

	merge     int           // engine outputs to put into one delta; ≤ 1: each is its own
	idleEvery time.Duration // idle is called when nothing came for so long; 0: never
	idle      func() error
}

// delta is what one step added to one choice.
type delta struct {
	seq            int
	text           string
	tokens         []int32
	logprobs       [][]engine.TokenLogprob
	promptLogprobs [][]engine.TokenLogprob // with the first output, if asked for
	first          bool                    // the sequence's first delta
	cached         int                     // prompt tokens not computed, as usage reports them
	here           int                     // prompt tokens found or read by this engine
	finish         engine.FinishReason     // FinishNone until the last
	stopReason     json.RawMessage         // with finish: a stop string, a stop token id or null
	stopString     bool                    // with finish: a stop string was the reason
	params         json.RawMessage         // with finish: kv_transfer_params, nil for none
}

// sequence turns the ids of one choice into text and finds stop strings in it.
type sequence struct {
	id    string // in the engine
	detok detokenizer
	stops []string
	// hold is how many characters at the end of the text wait for more, so that the beginning of a stop
	// string is not sent. It is the longest stop string less one, whatever the text says: so in vLLM.
	hold        int
	includeStop bool
	minTokens   int // stop strings before that many tokens are not seen

	text    []byte
	sent    int // bytes of text handed out
	checked int // bytes of text in which no stop string begins that is not over yet
	tokens  int
	started bool
	over    bool
}

func newSequence(id string, detok detokenizer, s *sampling) *sequence {
	q := &sequence{id: id, detok: detok, stops: s.stop, includeStop: s.includeStop, minTokens: s.minTokens}
	if !q.includeStop {
		for _, stop := range q.stops {
			q.hold = max(q.hold, utf8.RuneCountInString(stop)-1)
		}
	}
	return q
}

// push adds ids. ended says that the last of them ended the sequence in the engine (end of sequence or a
// stop token): it is then not part of the text. It returns the stop string that the text now contains.
func (q *sequence) push(ids []int32, ended bool) (stop string, matched bool) {
	for i, id := range ids {
		q.tokens++
		if !ended || q.includeStop || i < len(ids)-1 {
			q.text = append(q.text, q.detok.Push(id)...)
		}
		if q.tokens <= q.minTokens {
			q.checked = len(q.text)
		}
	}
	if len(q.stops) == 0 || q.tokens <= q.minTokens {
		return "", false
	}
	for _, stop := range q.stops {
		from := max(0, q.checked-len(stop)+1)
		at := bytes.Index(q.text[from:], []byte(stop))
		if at < 0 {
			continue
		}
		end := from + at
		if q.includeStop {
			end += len(stop)
		}
		q.text = q.text[:end]
		return stop, true
	}
	q.checked = len(q.text)
	return "", false
}

// take returns the text that may be handed out now: all of it at the end, else all but the held part.
func (q *sequence) take(final bool) string {
	end := len(q.text)
	if !final {
		for range q.hold {
			if end <= q.sent {
				return ""
			}
			_, w := utf8.DecodeLastRune(q.text[:end])
			end -= w
		}
	}
	if end <= q.sent {
		return ""
	}
	out := string(q.text[q.sent:end])
	q.sent = end
	return out
}

// prepare sets what a stream's faults say about its pace.
func (r *run) prepare(o *output) {
	r.merge = o.f.Interval
	r.idleEvery, r.idle = o.f.KeepAlive, o.comment
}

// start submits all requests. If one is refused, those before it are aborted.
func start(backend Backend, reqs []*engine.Request, seqs []*sequence) (*run, error) {
	r := &run{engine: backend, seqs: seqs}
	r.box.wake = make(chan struct{}, 1)
	for i, req := range reqs {
		out, err := backend.Submit(req)
		if err != nil {
			r.close()
			return nil, err
		}
		r.pumps.Add(1)
		go r.pump(i, out)
	}
	for i := len(reqs); i < len(seqs); i++ {
		seqs[i].over = true
	}
	return r, nil
}

// pump takes outputs off the engine as they come, so that a slow client never holds up a step.
func (r *run) pump(seq int, out <-chan engine.Output) {
	defer r.pumps.Done()
	for o := range out {
		r.box.put(event{seq: seq, out: o})
	}
	r.box.put(event{seq: seq, closed: true})
}

// close aborts what is not over and waits until the engine has let go of all sequences.
func (r *run) close() {
	for _, q := range r.seqs {
		if !q.over {
			q.over = true
			r.engine.Abort(q.id)
		}
	}
	r.pumps.Wait()
}

// deltas yields what the engine produces, until all sequences are over, ctx ends or one fails.
func (r *run) deltas(ctx context.Context) iter.Seq2[delta, error] {
	return func(yield func(delta, error) bool) {
		live := 0
		for _, q := range r.seqs {
			if !q.over {
				live++
			}
		}
		held := make([]engine.Output, len(r.seqs)) // outputs waiting to be merged
		waiting := make([]int, len(r.seqs))        // how many of them
		for live > 0 {
			ev, err := r.next(ctx)
			if err != nil {
				yield(delta{}, err)
				return
			}
			q := r.seqs[ev.seq]
			if q.over {
				continue // outputs after a stop string, or the end of the channel
			}
			if ev.closed || ev.out.Finish == engine.FinishError {
				q.over = true
				err := ev.out.Err
				if err == nil {
					err = errEngineGone
				}
				yield(delta{}, err)
				return
			}
			if q.started && r.merge > 1 {
				held[ev.seq] = joinOutputs(held[ev.seq], ev.out)
				waiting[ev.seq]++
				if ev.out.Finish == engine.FinishNone && waiting[ev.seq] < r.merge {
					continue
				}
				ev.out = held[ev.seq]
				held[ev.seq], waiting[ev.seq] = engine.Output{}, 0
			}
			d, ok := r.step(ev.seq, ev.out)
			if !ok {
				continue
			}
			if q.over {
				live--
			}
			if !yield(d, nil) {
				return
			}
		}
	}
}

// step applies one output. It reports false if there is nothing to tell: a step in which a long prompt
// was computed further.
func (r *run) step(seq int, out engine.Output) (delta, bool) {
	q := r.seqs[seq]
	if len(out.Tokens) == 0 && out.Finish == engine.FinishNone && q.tokens == 0 {
		return delta{}, false
	}
	d := delta{
		seq: seq, tokens: out.Tokens, logprobs: out.Logprobs, promptLogprobs: out.PromptLogprobs,
		first: !q.started, cached: out.CachedTokens,
		here: out.LocalHitTokens + out.PulledTokens, finish: out.Finish,
	}
	q.started = true
	stop, matched := q.push(out.Tokens, out.Finish == engine.FinishStop)
	d.text = q.take(matched || out.Finish != engine.FinishNone)
	switch {
	case matched:
		// The engine does not know stop strings: its request is aborted, and there are no params,
		// unless it ended by itself in this very step.
		d.finish = engine.FinishStop
		d.stopReason = appendString(nil, stop)
		d.stopString = out.Finish == engine.FinishNone
		if out.Finish == engine.FinishNone {
			r.engine.Abort(q.id)
		}
	case out.StopToken != nil:
		d.stopReason = appendInt(nil, int(*out.StopToken))
	}
	if out.Finish == engine.FinishLength || out.Finish == engine.FinishStop {
		d.params = out.Params
	}
	q.over = d.finish != engine.FinishNone
	return d, true
}

// joinOutputs puts two outputs of one sequence together, as --stream-interval does.
func joinOutputs(a, b engine.Output) engine.Output {
	b.Tokens = append(a.Tokens[:len(a.Tokens):len(a.Tokens)], b.Tokens...)
	b.Logprobs = append(a.Logprobs[:len(a.Logprobs):len(a.Logprobs)], b.Logprobs...)
	if a.PromptLogprobs != nil {
		b.PromptLogprobs = a.PromptLogprobs
	}
	return b
}

// next waits for an event. While none comes it calls idle every idleEvery.
func (r *run) next(ctx context.Context) (event, error) {
	for {
		if ev, ok := r.box.take(); ok {
			return ev, nil
		}
		var tick <-chan time.Time
		var timer *time.Timer
		if r.idleEvery > 0 {
			timer = time.NewTimer(r.idleEvery)
			tick = timer.C
		}
		select {
		case <-r.box.wake:
		case <-ctx.Done():
			return event{}, ctx.Err()
		case <-tick:
			if err := r.idle(); err != nil {
				return event{}, err
			}
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// mailbox is an unbounded queue from the pumps to the handler.
type mailbox struct {
	mu    sync.Mutex
	queue []event
	wake  chan struct{} // holds one token when the queue may be non-empty
}

type event struct {
	seq    int
	out    engine.Output
	closed bool // the engine's channel ended
}

func (m *mailbox) put(ev event) {
	m.mu.Lock()
	m.queue = append(m.queue, ev)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *mailbox) take() (event, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.queue) == 0 {
		return event{}, false
	}
	ev := m.queue[0]
	m.queue[0] = event{}
	m.queue = m.queue[1:]
	return ev, true
}
