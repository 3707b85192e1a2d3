package router

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tarik-kv/tarik/internal/conv"
	"github.com/tarik-kv/tarik/internal/fleet"
	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/telemetry"
	"github.com/tarik-kv/tarik/internal/turn"
	"github.com/tarik-kv/tarik/internal/wire"
)

// lingerFor bounds how long a D call whose client has left may take to its first event. The READ of
// P's blocks is running; when it ends P frees them.
const lingerFor = 2 * time.Second

// renderPatience bounds asking for a prompt's token ids. A P that is slower than that at text is
// better asked to compute.
const renderPatience = 5 * time.Second

// run is one turn in progress. It belongs to the goroutine of its client's request, which also waits
// for its legs; only what a client's leaving asks for comes from another, see clientLeft.
type run struct {
	r     *Router
	q     *request
	w     http.ResponseWriter
	http2 bool
	id    string // X-Tarik-Turn, and X-Request-Id on both legs
	begin time.Time

	machine turn.Machine
	now     turn.Event         // an event that came of an action itself
	next    func() turn.Event  // the leg that an action began
	cancel  context.CancelFunc // ends the leg in progress
	open    context.Context    // of the last leg without a deadline
	linger  *time.Timer        // ends the leg that goes on without its client

	mu    sync.Mutex // with it, clientLeft uses machine, cancel and linger while inLeg
	inLeg bool
	gone  bool // the machine knows that the client has left
	bug   any  // a panic of clientLeft

	prev conv.Turn // the turn this one continues
	held *kvp.Held

	failed answer    // the reply of the leg that failed last
	reply  *reply    // D's, once it has begun
	broken bool      // it ended early: the client's connection must not end well
	left   bool      // the client has stopped reading
	asked  time.Time // when the D call began
	// The legs' times, retries included.
	prefillTook, decodeTook time.Duration
	visible                 wire.Options
	pulse                   *pulse  // nil: the client waits in silence
	gaveParams              bool    // P's params went with it
	ids                     []int32 // the exact prompt that P was given, nil if it rendered one itself
	promptIDs               []int32 // the prompt as P has rendered it, nil if it did not say
	receipt                 telemetry.Receipt

	ahead      *back         // the return that is preparing P for this turn
	chosen     time.Time     // when the arm was
	appended   bool          // D serves the turn alone
	dHas       int           // tokens of the prompt that D is taken to have
	beganAfter time.Duration // from asking D to its first event
	expected   float64       // ms that the P call in flight is expected to take
	kept       *turn.Keep    // what is known at the end, nil if nothing can follow
	stored     conv.Turn     // the turn as it was stored
	heldNow    *kvp.Held     // with it
	replyIDs   []int32       // of a prompt that is token ids
	said       []byte        // what stands for the reply in the next prompt, nil if unknown
	calls      []string      // ids of the tool calls in it
}

// serveTurn carries out one turn from request to receipt.
func (r *Router) serveTurn(w http.ResponseWriter, req *http.Request, q *request, begin time.Time) {
	t := &run{r: r, q: q, w: w, id: newID(), begin: begin, http2: req.ProtoMajor >= 2, cancel: func() {}}
	t.receipt = telemetry.Receipt{
		Turn: t.id, Time: begin.UTC(), Endpoint: q.endpoint.Path(), Model: clip(q.model), Streamed: q.streaming,
	}
	h := w.Header()
	h["X-Tarik-Turn"] = []string{t.id}
	if own := req.Header["X-Request-Id"]; len(own) > 0 && own[0] != "" {
		h["X-Request-Id"] = own[:1:1]
	}
	r.metrics.InFlight.Inc()
	defer r.metrics.InFlight.Dec()
	defer func() { t.cancel() }()
	defer t.endAppend()
	if q.streaming {
		t.pulse = newPulse(w, r.cfg.KeepAlive, t.http2)
		defer t.pulse.stop()
	}
	t.loop(req.Context())
	if t.reply != nil && !t.reply.streaming {
		t.firstToken(time.Now())
	}
	t.finish() // first, so that whoever has the reply finds its receipt
	t.startReturn()
	t.complete()
	if t.broken {
		panic(http.ErrAbortHandler)
	}
}

// loop feeds the machine until it is done.
func (t *run) loop(client context.Context) {
	told := make(chan struct{})
	stop := context.AfterFunc(client, func() {
		defer close(told)
		t.clientLeft()
	})
	defer func() {
		t.cancel()
		if !stop() {
			<-told
		}
		if t.linger != nil {
			t.linger.Stop()
		}
	}()
	legs := context.WithoutCancel(client) // a leg ends when the machine says so
	actions := t.machine.Step(t.start())
	for {
		for _, a := range actions {
			if _, ok := a.(turn.Done); ok {
				return
			}
			t.do(legs, client, a)
		}
		var ev turn.Event
		if t.now != nil {
			ev, t.now = t.now, nil
			if _, ok := ev.(turn.DecodeDone); ok && t.left && !t.gone {
				t.gone = true
				t.machine.Step(turn.ClientGone{}) // its Cancel is done: the relay has ended
			}
		} else {
			ev = t.await(client)
		}
		actions = t.machine.Step(ev)
	}
}

// await carries out the leg that was begun, in this goroutine: one of its own would cost every turn
// more than all that is decided in it. Meanwhile clientLeft may step the machine, and nobody else.
func (t *run) await(client context.Context) turn.Event {
	leg := t.next
	t.next = nil
	t.mu.Lock()
	if client.Err() != nil && !t.gone {
		t.leave()
	}
	t.inLeg = true
	t.mu.Unlock()
	ev := leg()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inLeg = false
	if t.bug != nil {
		panic(t.bug)
	}
	return ev
}

// clientLeft is called when the client has left, from another goroutine.
func (t *run) clientLeft() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.inLeg || t.gone {
		return // await will see it, or the relay has
	}
	defer func() {
		if t.bug = recover(); t.bug != nil {
			t.cancel()
		}
	}()
	t.leave()
}

// leave tells the machine that the client has left and does what it asks for.
func (t *run) leave() {
	t.gone = true
	for _, a := range t.machine.Step(turn.ClientGone{}) {
		switch a.(type) {
		case turn.Cancel:
			t.cancel()
		case turn.Linger:
			t.linger = time.AfterFunc(lingerFor, t.cancel)
		default:
			panic(fmt.Sprintf("BUG: router: %T for a client that has left", a))
		}
	}
}

// start gathers what is known before anything is asked.
func (t *run) start() turn.Start {
	r, q := t.r, t.q
	p := r.prefill.Info()
	s := turn.Start{Plain: q.plain, BlockSize: p.BlockSize, Without: turn.FirstTurn, Price: r.models(), Unverified: r.unverified}
	if s.Plain == "" && r.unseenFull(q) {
		s.Plain = turn.DecodeTight
	}
	prev, held, found := r.store.Find(q.chain, q.id)
	t.prev = prev
	if found {
		s.Held, s.Without, s.Guessed = held, turn.NoHandle, prev.ByName
	}
	t.receipt.TurnNumber = conv.Successor(prev, t.id).Number
	t.receipt.Conversation = conv.Successor(prev, t.id).Conversation
	switch {
	case held != nil && held.Until <= r.now():
		s.Held, s.Without = nil, turn.HandleExpired
	case held != nil && held.Handle.EngineID != r.decode.Info().EngineID:
		s.Held, s.Without = nil, turn.EngineRestarted
	}
	if found && !prev.ByName {
		if b := r.returns.came(q, prev); b != nil {
			s.Held, t.ahead = nil, b
		}
		if prev.Returned && s.Held == nil {
			s.Without = turn.ReturnReady
		}
	}
	t.held = s.Held
	if s.Held != nil {
		s.NoHandles = r.noHandles()
		s.NoRender = r.canRender(q)
	}
	if !r.cfg.Reuse {
		s.Held, s.Without, s.NoHandles = nil, turn.ReuseOff, ""
	}
	t.chosen = time.Now()
	if s.Plain == "" {
		t.expected = s.Price.Recompute(t.estimate(), 0).Ms
	}
	if s.Plain == "" && r.cfg.Reuse && r.cfg.Return && found && !prev.ByName {
		t.choose(&s)
	}
	return s
}

// noHandles says why P is not given handles now, "" if it is.
func (r *Router) noHandles() turn.Reason {
	switch r.prefill.Info().Trust {
	case fleet.Unproven:
		return turn.PrefillUnproven
	case fleet.Distrusted:
		return turn.PrefillDistrust
	}
	return ""
}

// do carries out one action.
func (t *run) do(legs, client context.Context, a turn.Action) {
	switch a := a.(type) {
	case turn.Render:
		ctx := t.leg(legs, renderPatience)
		t.spawn(func() turn.Event {
			begin := time.Now()
			ids := t.r.render(ctx, t.q, t.id)
			t.receipt.RenderMs = ms(time.Since(begin))
			t.r.renderMs.Store(math.Float64bits(t.receipt.RenderMs))
			return turn.Rendered{IDs: ids}
		})
	case turn.Await:
		ctx, b := t.leg(legs, a.Deadline), t.ahead
		t.spawn(func() turn.Event {
			select {
			case <-b.over:
				return turn.Awaited{OK: b.ready}
			case <-ctx.Done():
				return turn.Awaited{}
			}
		})
	case turn.Take:
		t.now = turn.Taken{OK: t.r.store.Take(t.prev, t.held), NoHandles: t.r.noHandles()}
	case turn.Prefill:
		t.prefill(t.leg(legs, a.Deadline), a)
	case turn.Decode:
		t.decode(t.leg(legs, 0), a)
	case turn.Relay:
		t.priced()
		t.r.streams.Add(1)
		t.now = t.relay(client)
		t.r.streams.Add(-1)
	case turn.Cancel:
		if t.reply != nil { // D had begun: the rest of its reply is nobody's
			t.drain(t.reply)
			t.cancel()
			t.note()
			t.discard(t.reply)
			t.reply = nil
			t.now = turn.DecodeDone{}
		} else {
			t.cancel()
		}
	case turn.PassOn:
		t.passOn()
	case turn.Refuse:
		t.refuse(a.Leg)
	case turn.Distrust:
		t.r.distrust(a.Why)
	case turn.Keep:
		t.keep(a)
	case turn.Free:
		t.r.letGo([]*kvp.Held{{Handle: a.Handle}})
	default:
		panic("BUG: router: unknown action")
	}
}

// spawn has a leg carried out next.
func (t *run) spawn(leg func() turn.Event) { t.next = leg }

// leg begins the context of the next leg and ends that of the one before. Legs without a deadline share one.
func (t *run) leg(parent context.Context, deadline time.Duration) context.Context {
	if deadline <= 0 && t.open != nil && t.open.Err() == nil {
		return t.open
	}
	t.cancel()
	if deadline > 0 {
		var ctx context.Context
		ctx, t.cancel = context.WithTimeout(parent, deadline)
		return ctx
	}
	t.open, t.cancel = context.WithCancel(parent)
	return t.open
}

func (t *run) prefill(ctx context.Context, a turn.Prefill) {
	r, q := t.r, t.q
	t.receipt.Prefill = r.prefill.String()
	c := call{engine: r.prefill, path: q.endpoint.Path(), header: forEngine(q.header), id: t.id}
	can := r.prefill.Info().Can
	switch {
	case a.IDs != nil && q.endpoint != kvp.Completions && !can.ExactPrompt && a.Form == turn.FormPull:
		// The ids were compared with what D holds; an engine that would render anew is given them.
		c.path, c.body = kvp.Completions.Path(), q.idsBody(a.Params, a.IDs, 0)
		t.ids = a.IDs
	case a.IDs != nil && q.endpoint != kvp.Completions && !can.ExactPrompt:
		c.body = editPayload(q.prefillBody(a.Params, nil))
	default:
		e := q.prefillBody(a.Params, a.IDs)
		if a.IDs == nil && q.endpoint == kvp.Chat && can.ExactPrompt {
			e.Set("return_token_ids", jsonTrue) // so that D need not render the prompt once more
		}
		c.body = editPayload(e)
		t.ids = a.IDs
	}
	switch a.Form {
	case turn.FormPull:
		r.metrics.HandlesUsed.WithLabelValues("pull").Inc()
	case turn.FormRelease:
		r.metrics.HandlesUsed.WithLabelValues("release").Inc()
	}
	expected, tokens := t.expected, t.estimate()
	r.returns.atP.begin(r.now(), expected, tokens)
	t.spawn(func() turn.Event {
		got := r.ask(ctx, c, r.cfg.MaxReply)
		r.returns.atP.end(r.now(), expected, tokens)
		r.returns.turnLeftP()
		t.failed = got
		t.prefillTook += got.took
		r.metrics.PrefillLeg.Observe(got.took.Seconds())
		ev := turn.PrefillDone{Status: got.status, Late: ctx.Err() == context.DeadlineExceeded}
		switch {
		case got.err != nil:
			ev.Status = 0
		case got.status < 400 && got.status != http.StatusOK:
			ev.Status, t.failed.err = 0, fmt.Errorf("HTTP %d is no answer to a request", got.status)
		case got.status != http.StatusOK && namesParams(got.body):
			// It repeats what it was sent. D gets the client's request as it is and can say the same.
			ev.Status, t.failed.err = 0, errors.New("it refused the request")
		}
		if ev.Status == http.StatusOK {
			p, err := readReply(got.body)
			if err != nil {
				ev.Status, t.failed.err = 0, err
			} else {
				if a := r.forDecode(p.params); a == nil {
					p.readParams()
				} else if ev.Params, p.engineID = a.Raw(), a.EngineID; a.PrefillCached != nil {
					p.cached = a.PrefillCached
				}
				ev.Cached, ev.Prompt = p.cached, p.promptTokens
				t.promptIDs = p.promptIDs
				r.sawPrefill(p.engineID)
				if p.cached != nil && a.Form == turn.FormNull {
					r.observe(p.promptTokens-*p.cached, *p.cached, got.took)
					r.returns.found(t.prev, *p.cached)
				}
			}
		}
		return ev
	})
}

// finish writes the receipt.
func (t *run) finish() {
	out := t.machine.Outcome()
	rc := &t.receipt
	rc.Arm, rc.Why = string(out.Arm), string(out.Why)
	if out.Prompt > 0 {
		rc.PromptTokens = out.Prompt
	}
	rc.PLocalTokens, rc.PPulledTokens = out.Local, out.Pulled
	if out.Cached != nil {
		computed := out.Prompt - *out.Cached
		rc.PComputedTokens = &computed
	}
	if out.Why == turn.ClientLeft {
		rc.Status = statusClientLeft
	}
	rc.PMs, rc.DMs, rc.TotalMs = ms(t.prefillTook), ms(t.decodeTook), ms(time.Since(t.begin))
	m := t.r.metrics
	m.Turns.WithLabelValues(rc.Endpoint, rc.Arm, rc.Why, strconv.Itoa(rc.Status)).Inc()
	if rc.TTFTMs != nil {
		m.TTFT.WithLabelValues(rc.Arm).Observe(*rc.TTFTMs / 1000)
	}
	switch {
	case rc.Prefill == "":
	case out.Cached == nil:
		m.UnknownTokens.Add(float64(rc.PromptTokens))
	default:
		m.LocalTokens.Add(float64(*out.Local))
		m.PulledTokens.Add(float64(*out.Pulled))
		m.ComputedTokens.Add(float64(*rc.PComputedTokens))
	}
	if t.returns() {
		rc.Return = &telemetry.Return{State: telemetry.Pending}
	}
	t.r.receipts.Add(*rc)
	t.r.logTurn(rc)
}

// forDecode checks P's params before D gets them: an engine given anything but a complete A may
// die, or read its own memory. nil is none. They can be nothing that P was sent, which is never of
// this shape.
func (r *Router) forDecode(params []byte) *kvp.Prefilled {
	if params == nil {
		return nil
	}
	a, err := kvp.ParsePrefilled(params)
	if err != nil {
		r.metrics.BadParams.WithLabelValues(string(turn.LegPrefill)).Inc()
		r.log.Warn("prefill returned params that cannot be used", "prefill", r.prefill.String(), "error", err)
		return nil
	}
	return &a
}

// clip bounds what a client chooses and the router keeps or logs.
func clip(s string) string {
	if len(s) > maxName {
		return s[:maxName]
	}
	return s
}

// statusClientLeft is the customary status for a request whose client did not wait.
const statusClientLeft = 499

// keep stores the turn for the next one, with what D holds.
func (t *run) keep(a turn.Keep) {
	r := t.r
	if a.Handle != nil {
		t.heldNow = &kvp.Held{Handle: *a.Handle, Seq: a.Seq, PromptTokens: a.PromptTokens, Until: r.now() + r.cfg.HandleTTL - HandleMargin}
		switch {
		case t.appended:
			t.heldNow.Until, t.heldNow.Within = r.now()+appendTTL, appendWithin
		case !r.decode.Info().Can.ExpiryInHandle:
			t.heldNow.Within = blindWithin
		}
		t.receipt.HeldTokens = a.Handle.Tokens
		r.metrics.HandlesKept.Inc()
	}
	next := conv.Successor(t.prev, t.id)
	out := t.machine.Outcome()
	next.Ended, next.PromptBytes = r.now(), len(t.q.prompt)
	next.Prompt, next.Reply = max(out.Prompt, t.receipt.PromptTokens), t.receipt.OutputTokens
	next.Ready, next.ReadyAt = t.prev.Ready, t.prev.ReadyAt
	next.Prefill, next.Decode = r.prefill.Info().EngineID, r.decode.Info().EngineID
	if out.Prompt > 0 { // P has had it
		next.Ready, next.ReadyAt = out.Prompt, r.now()
	}
	var lost []*kvp.Held
	t.stored, lost = r.store.Put(t.q.chain, t.q.id, next, t.heldNow)
	r.letGo(lost)
	t.note()
	t.kept = &a
}

// blindWithin bounds P calls with handles of engines before 0.26, which tell no expiry: with rendering
// before it, it is less than HandleMargin.
const blindWithin = 20 * time.Second

// note keeps what the assistant said, while it is there: the next prompt will say it again.
func (t *run) note() {
	if t.reply == nil || t.said != nil || !t.r.cfg.Return || !t.r.cfg.Reuse {
		return
	}
	if t.q.byIDs() {
		t.replyIDs = slices.Clone(t.reply.info.TokenIDs)
		return
	}
	said := &t.reply.info.Reply
	t.calls = said.ToolCalls()
	thoughts := ""
	if said.Reasoned() { // whether that comes back is up to the client
		thoughts = t.q.reasoning(len(t.calls) > 0)
	}
	t.said, _ = said.AppendMessage(nil, t.q.endpoint, thoughts)
	if len(t.said) == 0 {
		t.said = nil
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
