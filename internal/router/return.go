package router

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/conv"
	"github.com/tarik-kv/tarik/internal/gap"
	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/telemetry"
	"github.com/tarik-kv/tarik/internal/turn"
)

// After a turn the router prepares P for what the next prompt will begin with: the return. Package gap
// decides whether and when, turn.Return how; this file carries that out.

const (
	// returnBytes bounds the requests that are kept for returns that wait.
	returnBytes = 256 << 20
	// returnReply is the longest reply that is kept for a return, in bytes.
	returnReply = 2 << 20
	// maxHabits bounds how many kinds of traffic are told apart.
	maxHabits = 4096
)

// returner makes the returns of one P.
type returner struct {
	r    *Router
	wake chan struct{}
	atP  load // turns' calls
	// waits is how many returns wait, so that turns need not wake anybody for nothing.
	waits atomic.Int64

	mu       sync.Mutex
	queue    gap.Queue[conv.Key]
	jobs     map[conv.Key]*back // waiting and running
	bytes    int
	habits   map[habitKey]*gap.Habit
	survival gap.Survival
	echoes   map[string]*gap.Echo // by kind of probe
	tails    map[string][]int32   // what a rendering ends with behind the common beginning, by kind of probe
	running  sync.WaitGroup
}

// habitKey is a kind of traffic.
type habitKey struct{ tenant, model, path string }

// back is one return, from the end of its turn on.
type back struct {
	turn   conv.Turn
	id     string // of the turn, for its receipt
	q      *request
	said   []byte   // what stands for the reply in the next prompt
	calls  []string // ids of the tool calls in it
	ids    []int32  // the next prompt's beginning, if it is known without asking
	held   *kvp.Held
	prompt int // tokens that P has seen
	begun  time.Time
	size   int           // of the request's body, in bytes
	exact  *int          // tokens that P did not compute, if it said so
	took   time.Duration // of the P call

	overtaken chan struct{} // closed when the next turn has come
	overtake  sync.Once
	warming   atomic.Bool
	over      chan struct{} // closed at the end
	ready     bool          // P is prepared; to be read when over is closed
}

func newReturner(r *Router) *returner {
	return &returner{
		r: r, wake: make(chan struct{}, 1), jobs: map[conv.Key]*back{}, habits: map[habitKey]*gap.Habit{}, tails: map[string][]int32{}, echoes: map[string]*gap.Echo{},
		queue: gap.NewQueue[conv.Key](),
	}
}

// turnLeftP notes that a turn's call to P is over: returns may have their time now.
func (x *returner) turnLeftP() {
	if x.waits.Load() > 0 {
		x.wakeUp()
	}
}

func (x *returner) wakeUp() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// habit returns what is known of q's kind of traffic. Callers hold the lock.
func (x *returner) habit(q *request) *gap.Habit {
	key := habitKey{q.tenant, clip(q.model), q.endpoint.Path()}
	h := x.habits[key]
	if h == nil {
		if len(x.habits) >= maxHabits {
			clear(x.habits) // it is learned again soon enough
		}
		h = new(gap.Habit)
		x.habits[key] = h
	}
	return h
}

// came notes that the turn after prev has come. If P is being prepared for it, the result can be waited
// for; a return that has not begun is left to the turn itself.
func (x *returner) came(q *request, prev conv.Turn) *back {
	x.mu.Lock()
	defer x.mu.Unlock()
	if prev.Ended > 0 {
		x.habit(q).Continued(prev.Number, x.r.now()-prev.Ended)
	}
	b := x.jobs[prev.Key()]
	if b == nil {
		return nil
	}
	if _, waiting := x.queue.Remove(prev.Key()); waiting {
		x.waits.Store(int64(x.queue.Len()))
		x.settle(b, turn.Returned{State: turn.ReturnOvertaken, Why: turn.StillWaiting})
		return nil
	}
	if b.warming.Load() {
		return b
	}
	b.overtake.Do(func() { close(b.overtaken) })
	return nil
}

// found notes how much of what P was given was still there when the next turn came.
func (x *returner) found(prev conv.Turn, cached int) {
	if prev.Ready < 1 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.survival.Saw(x.r.now()-prev.ReadyAt, 2*cached >= prev.Ready)
}

// after decides what happens after a turn, and puts a return into the queue if that is it.
func (x *returner) after(b *back) {
	r := x.r
	now := r.now()
	_, _, busy := x.atP.now(now)
	ended := gap.Ended{
		Number: b.turn.Number, Prompt: b.turn.Prompt, Reply: b.turn.Reply, Ready: b.turn.Ready, Handle: b.held != nil,
		Load: busy, DecodeUsage: r.decode.Info().Usage, NoPrefixCache: r.prefill.Info().NoPrefixCache,
		DecodeWaits: r.decode.Info().Waiting > 0,
	}
	if b.held != nil {
		ended.Until = b.held.Until
	}
	prices := r.models()

	x.mu.Lock()
	defer x.mu.Unlock()
	h := x.habit(b.q)
	h.Ended(b.turn.Number)
	plan := gap.After(&prices, h, &x.survival, now, ended)
	switch {
	case b.said == nil && b.ids == nil:
		plan.Choice, plan.Why = gap.LetGo, gap.Why(turn.ReplyUnknown)
	case len(b.q.doc.Body())+x.bytes > returnBytes:
		plan.Choice, plan.Why = gap.LetGo, gap.Why(turn.NoRoom)
	}
	if plan.Choice == gap.Hold || plan.Choice == gap.LetGo {
		x.finish(b, turn.Returned{State: turn.ReturnSkipped, Why: turn.Reason(plan.Why)})
		if plan.Choice == gap.LetGo {
			x.letGo(b)
		}
		return
	}
	if plan.Free {
		x.letGo(b)
		b.held = nil
	}
	j := gap.Job[conv.Key]{
		Key: b.turn.Key(), CostMs: plan.CostMs, NotBefore: plan.NotBefore, Until: plan.Until,
		Tokens: b.turn.Prompt + b.turn.Reply, Handle: b.held != nil,
	}
	if old := x.jobs[j.Key]; old != nil {
		// The same turn once more, another reply. What was kept of the first one is gone from the store.
		if _, waiting := x.queue.Remove(j.Key); waiting {
			x.settle(old, turn.Returned{State: turn.ReturnDropped, Why: turn.Superseded})
		}
	}
	x.jobs[j.Key], b.size = b, len(b.q.doc.Body())
	x.bytes += b.size
	for _, gone := range x.queue.Add(j) {
		long := x.jobs[gone.Key]
		x.settle(long, turn.Returned{State: turn.ReturnDropped, Why: turn.NoRoom})
		x.letGo(long)
	}
	x.waits.Store(int64(x.queue.Len()))
	x.wakeUp()
}

// press gives back what D keeps for returns that wait: its own requests wait for room.
func (x *returner) press() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, j := range x.queue.Press() {
		b := x.jobs[j.Key]
		x.settle(b, turn.Returned{State: turn.ReturnDropped, Why: turn.DecodeTight})
		x.letGo(b)
	}
}

// letGo has D free what it keeps for b, unless the next turn has taken it.
func (x *returner) letGo(b *back) {
	if b.held != nil && x.r.store.Take(b.turn, b.held) {
		x.r.letGo([]*kvp.Held{b.held})
	}
}

// settle ends a return that is in jobs. Callers hold the lock.
func (x *returner) settle(b *back, out turn.Returned) {
	if x.jobs[b.turn.Key()] == b {
		delete(x.jobs, b.turn.Key())
	}
	x.bytes -= b.size
	x.finish(b, out)
}

// finish tells everybody how a return ended.
func (x *returner) finish(b *back, out turn.Returned) {
	r := x.r
	rc := telemetry.Return{State: string(out.State), Why: string(out.Why), Tokens: out.Tokens, Pulled: out.Pulled, Computed: out.Computed}
	if b.exact != nil && out.State == turn.ReturnDone {
		rc.Computed = max(0, out.Tokens-*b.exact)
	}
	if !b.begun.IsZero() {
		rc.Ms = ms(time.Since(b.begun))
	}
	if out.State == turn.ReturnDone {
		b.ready = true
		r.store.Returned(b.turn, out.Tokens, r.now())
		r.metrics.ReturnSeconds.Observe(rc.Ms / 1000)
		r.metrics.ReturnTokens.WithLabelValues("pulled").Add(float64(rc.Pulled))
		r.metrics.ReturnTokens.WithLabelValues("computed").Add(float64(rc.Computed))
	}
	r.metrics.Returns.WithLabelValues(rc.State, rc.Why).Inc()
	r.receipts.Settle(b.id, rc)
	close(b.over)
}

// run starts returns as they may start, until ctx ends.
func (x *returner) run(ctx context.Context) {
	defer x.running.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next := x.startAll(ctx)
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return
		case <-x.wake:
		case <-timer.C:
		}
	}
}

// startAll starts what may start now and returns when to look again.
func (x *returner) startAll(ctx context.Context) time.Duration {
	now := x.r.now()
	turns, _, _ := x.atP.now(now)
	room := x.r.roomAtP()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.queue.Room = room
	for {
		j, ok, expired := x.queue.Next(now, turns)
		for _, e := range expired {
			b := x.jobs[e.Key]
			x.settle(b, turn.Returned{State: turn.ReturnDropped, Why: turn.TooLate})
			x.letGo(b)
		}
		if !ok {
			break
		}
		b := x.jobs[j.Key]
		x.running.Go(func() {
			defer x.wakeUp()
			out := b.run(ctx, x.r)
			x.mu.Lock()
			defer x.mu.Unlock()
			x.queue.Finished()
			x.settle(b, out)
		})
	}
	x.waits.Store(int64(x.queue.Len()))
	if at := x.queue.Wake(now, turns); at > 0 {
		return at - now
	}
	return time.Hour
}

// run drives a return's machine to its end.
func (b *back) run(ctx context.Context, r *Router) turn.Returned {
	p := r.prefill.Info()
	b.begun = time.Now()
	start := turn.ReturnStart{Held: b.held, PromptTokens: b.prompt, NextTokens: b.turn.Prompt + b.turn.Reply, Threshold: r.cfg.Threshold, BlockSize: p.BlockSize, Price: r.models()}
	if len(p.Models) > 0 {
		start.MaxLen = p.Models[0].MaxLen
	}
	start.NoHandles = r.noHandles()
	if b.ids == nil && b.held != nil && start.NoHandles == "" {
		r.returns.mu.Lock()
		start.GoesOn = r.returns.echo(b.kind()).Sure()
		r.returns.mu.Unlock()
	}
	var m turn.Return
	events := make(chan turn.Event, 1)
	cancel := func() {}
	defer func() { cancel() }()
	leg := func(patience time.Duration, f func(ctx context.Context) turn.Event) {
		cancel()
		var legCtx context.Context
		legCtx, cancel = context.WithTimeout(ctx, patience)
		go func() {
			defer func() {
				if v := recover(); v != nil {
					r.bug("a return ended by a bug of the router", v)
					events <- nil
				}
			}()
			events <- f(legCtx)
		}()
	}
	overtaken := b.overtaken
	actions := m.Step(start)
	for {
		var now turn.Event
		for _, a := range actions {
			switch a := a.(type) {
			case turn.RenderNext:
				leg(renderPatience, func(ctx context.Context) turn.Event { return b.render(ctx, r) })
			case turn.Take:
				now = turn.Taken{OK: r.store.Take(b.turn, b.held), NoHandles: r.noHandles()}
			case turn.Warm:
				b.warming.Store(true)
				leg(a.Deadline, func(ctx context.Context) turn.Event { return b.warm(ctx, r, a) })
			case turn.Cancel:
				cancel()
			case turn.Free:
				r.letGo([]*kvp.Held{{Handle: a.Handle}})
			case turn.Distrust:
				r.distrust(a.Why)
			case turn.Returned:
				if a.State == turn.ReturnDone && b.held != nil && b.ids == nil && start.NoHandles == "" && !start.GoesOn {
					r.returns.mu.Lock()
					r.returns.echo(b.kind()).Saw(a.Whole)
					r.returns.mu.Unlock()
				}
				if a.State == turn.ReturnDone && a.Pulled > 0 {
					r.observePull(a.Pulled, a.Computed, a.Tokens-a.Computed, b.took)
				}
				return a
			default:
				panic("BUG: router: unknown action of a return")
			}
		}
		if now == nil {
			select {
			case now = <-events:
				if now == nil {
					return turn.Returned{State: turn.ReturnFailed, Why: turn.Bug}
				}
			case <-overtaken:
				overtaken = nil
				now = turn.Overtaken{}
			}
		}
		actions = m.Step(now)
	}
}

// echo returns what is known of how replies of a kind come back. Callers hold the lock.
func (x *returner) echo(kind string) *gap.Echo {
	e := x.echoes[kind]
	if e == nil {
		if len(x.echoes) >= maxHabits {
			clear(x.echoes)
		}
		e = new(gap.Echo)
		x.echoes[kind] = e
	}
	return e
}

// Two things that may be said next, which have no token in common, not even in part.
const (
	probeA = "x"
	probeB = "7"
)

// render finds out what the next prompt begins with.
func (b *back) render(ctx context.Context, r *Router) turn.Event {
	if b.ids != nil {
		return turn.RenderedNext{A: b.ids}
	}
	kind := b.kind()
	r.returns.mu.Lock()
	tail := r.returns.tails[kind]
	r.returns.mu.Unlock()
	first := b.renderWith(ctx, r, probeA)
	if n := len(first) - len(tail); len(tail) > 0 && n > 0 && slices.Equal(first[n:], tail) {
		// It ends as others of its kind did behind what any next prompt begins with: one rendering tells.
		return turn.RenderedNext{A: first, Tail: len(tail)}
	}
	if first == nil {
		return turn.RenderedNext{}
	}
	ev := turn.RenderedNext{A: first, B: b.renderWith(ctx, r, probeB)}
	if ev.B == nil {
		return turn.RenderedNext{}
	}
	n := kvp.CommonPrefix(ev.A, ev.B)
	if n < len(ev.A) && len(ev.A)-n <= maxTail {
		r.returns.mu.Lock()
		defer r.returns.mu.Unlock()
		if len(r.returns.tails) >= maxHabits {
			clear(r.returns.tails)
		}
		r.returns.tails[kind] = slices.Clone(ev.A[n:])
	}
	return ev
}

// maxTail is the longest tail that is kept, in tokens. Some templates put the system prompt behind it.
const maxTail = 256

// kind tells apart what usually makes a rendering end differently.
func (b *back) kind() string {
	parts := []string{b.q.endpoint.Path(), clip(b.q.model)}
	if len(b.calls) > 0 {
		parts = append(parts, "tool")
	}
	for _, name := range []string{"chat_template", "chat_template_kwargs", "reasoning_effort"} {
		parts = append(parts, clip(string(b.q.doc.Get(name))))
	}
	return strings.Join(parts, "\n")
}

// renderWith returns the token ids of the next prompt, if probe is what it says; nil if P cannot say.
func (b *back) renderWith(ctx context.Context, r *Router, probe string) []int32 {
	prompt := b.nextPrompt(probe)
	q := b.q
	if q.endpoint == kvp.Completions {
		body := members(q.doc, "model", "add_special_tokens")
		sep := ","
		if len(body) == len("{}") {
			sep = ""
		}
		body = slices.Concat(body[:len(body)-1], []byte(sep+`"prompt":`), prompt, []byte("}"))
		return r.askIDs(ctx, q, "/tokenize", bytesPayload(body), b.id)
	}
	e := q.doc.Edit()
	e.DeleteFold(ownFields...)
	e.Delete(previousID)
	e.Set(dialects[q.endpoint].prompt, prompt)
	if !r.prefill.Info().NoRender {
		if ids := r.askIDs(ctx, q, q.endpoint.Path()+"/render", editPayload(e), b.id); ids != nil {
			return ids
		}
	}
	if q.endpoint != kvp.Chat || !q.tokenizes() {
		return nil
	}
	doc, err := bodyedit.Scan(e.Bytes())
	if err != nil {
		return nil
	}
	return r.askIDs(ctx, q, "/tokenize", bytesPayload(members(doc, tokenizeFields...)), b.id)
}

// nextPrompt is the next prompt's messages, items or text, raw JSON, if probe is what it says.
func (b *back) nextPrompt(probe string) []byte {
	q := b.q
	if q.endpoint == kvp.Completions {
		return slices.Concat(q.prompt[:len(q.prompt)-1], b.said, []byte(probe+`"`))
	}
	out := slices.Clone(q.prompt[:len(q.prompt)-1])
	if len(bytes.TrimSpace(out)) > 1 {
		out = append(out, ',')
	}
	out = append(append(append(out, b.said...), ','), b.probe(probe)...)
	return append(out, ']')
}

// probe is a message of the role that comes next.
func (b *back) probe(text string) []byte {
	call := ""
	if len(b.calls) > 0 {
		call = string(quote(b.calls[0]))
	}
	switch {
	case call == "":
		return []byte(`{"role":"user","content":"` + text + `"}`)
	case b.q.endpoint == kvp.Chat:
		return []byte(`{"role":"tool","tool_call_id":` + call + `,"content":"` + text + `"}`)
	case b.q.endpoint == kvp.Responses:
		return []byte(`{"type":"function_call_output","call_id":` + call + `,"output":"` + text + `"}`)
	}
	return []byte(`{"role":"user","content":[{"type":"tool_result","tool_use_id":` + call + `,"content":"` + text + `"}]}`)
}

// warm makes the P call of a return.
func (b *back) warm(ctx context.Context, r *Router, w turn.Warm) turn.Event {
	c := call{engine: r.prefill, path: kvp.Completions.Path(), header: forEngine(b.q.header), id: newID()}
	late := func() bool { return ctx.Err() == context.DeadlineExceeded }
	if w.Params == nil {
		// Without params P keeps nothing when it ends, so it may end, and say what it computed.
		if w.IDs == nil {
			e := b.q.prefillBody(nil, nil)
			e.Delete(previousID, "kv_transfer_params")
			e.Set(dialects[b.q.endpoint].prompt, b.nextPrompt(probeA))
			c.path, c.body = b.q.endpoint.Path(), editPayload(e)
		} else {
			c.body = b.q.idsBody(nil, w.IDs, 0)
		}
		got := r.ask(ctx, c, r.cfg.MaxReply)
		if got.err != nil {
			return turn.Warmed{Late: late()}
		}
		if got.status == http.StatusOK {
			if p, err := readPrefill(got.body); err == nil && p.cached != nil {
				b.exact = p.cached
				r.observe(p.promptTokens-*p.cached, *p.cached, got.took)
			}
		}
		return turn.Warmed{Status: got.status}
	}
	r.metrics.HandlesUsed.WithLabelValues("return").Inc()
	c.body = b.q.idsBody(w.Params, w.IDs, w.MaxTokens)
	begin := time.Now()
	status := r.hangUp(ctx, c)
	b.took = time.Since(begin)
	return turn.Warmed{Status: status, Late: late() && status == 0}
}

// hangUp makes a streamed call and ends it at its first event. It returns the status, 0 if none came, or
// that of an error that is the first event.
func (r *Router) hangUp(ctx context.Context, c call) int {
	res, err := r.send(ctx, c)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return res.StatusCode
	}
	var first []byte
	buf := make([]byte, 1024)
	for len(first) < 64<<10 {
		n, err := res.Body.Read(buf)
		first = append(first, buf[:n]...)
		if _, data, ok := bytes.Cut(first, []byte("data:")); ok && bytes.IndexByte(data, '\n') >= 0 {
			line, _, _ := bytes.Cut(data, []byte("\n"))
			if object, ok := bodyedit.Lookup(bytes.TrimSpace(line), "error"); ok && !bodyedit.IsNull(object) {
				return errorStatus(object)
			}
			return http.StatusOK
		}
		if err != nil {
			return 0
		}
	}
	return 0
}
