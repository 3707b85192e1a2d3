package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"time"
)

// ErrNothing says that a run ended before its first group was complete.
var ErrNothing = errors.New("nothing was measured")

// run is a run in progress.
type run struct {
	plan    *Plan
	client  *http.Client
	model   string
	id      string
	part    string // "" for the first part of a run, another for each that goes on with it
	journal *Journal
	scale   Calibration
	blocks  map[string]int // block size by decode engine, tokens
	show    func(Progress)
}

// Run measures what the plan says and returns the report. When ctx ends, the group in progress is given up and the
// report covers what is complete; the error is then nil, or [ErrNothing].
func Run(ctx context.Context, plan Plan, s Surroundings) (*Report, error) {
	if err := plan.Validate(); err != nil {
		return nil, err
	}
	r := &run{plan: &plan, client: s.Client, journal: s.Journal, show: s.Progress, blocks: map[string]int{}}
	if r.client == nil {
		r.client = NewClient()
		defer r.client.CloseIdleConnections()
	}
	if r.journal == nil {
		r.journal = memoryJournal()
	}
	if r.show == nil {
		r.show = func(Progress) {}
	}
	if old := r.journal.header; old != nil {
		if err := samePlan(old.Plan, plan); err != nil {
			return nil, err
		}
	}
	left := r.left()
	if len(left) > 0 {
		if err := r.prepare(ctx, s.Version); err != nil {
			if ctx.Err() != nil {
				err = r.nothing()
			}
			if err != nil {
				return nil, err
			}
			return r.report(), nil
		}
		if err := r.groups(ctx, left); err != nil {
			return nil, err
		}
	}
	if err := r.nothing(); err != nil {
		return nil, err
	}
	return r.report(), nil
}

func (r *run) nothing() error {
	if len(r.journal.groups) == 0 {
		return ErrNothing
	}
	return nil
}

func (r *run) report() *Report {
	h := *r.journal.header
	h.Plan.Repeats, h.Plan.Note = r.plan.Repeats, r.plan.Note
	return buildReport(&h, r.journal.groups, len(r.left()))
}

// task is a group to measure.
type task struct {
	number int
	cell   Cell
	repeat int
}

// left are the groups that the journal does not have, in the order in which they are measured: each repeat is one pass
// over all cells in random order, so that what drifts during the run touches all cells alike.
func (r *run) left() []task {
	cells := r.plan.cells()
	var list []task
	for repeat := range r.plan.Repeats {
		order := rand.New(rand.NewPCG(r.plan.Seed, uint64(repeat))).Perm(len(cells))
		for _, i := range order {
			t := task{repeat*len(cells) + i, cells[i], repeat}
			if !slices.ContainsFunc(r.journal.groups, func(g group) bool { return g.Group == t.number }) {
				list = append(list, t)
			}
		}
	}
	return list
}

// prepare finds out what has to be known before the first group, and warms the arms up.
func (r *run) prepare(ctx context.Context, version string) error {
	p := r.plan
	r.model = p.Model
	for i := range p.Arms {
		a := &p.Arms[i]
		if a.PD() {
			r.blocks[a.Decode] = a.BlockSize
			if a.BlockSize == 0 {
				n, err := blockSizeOf(ctx, r.client, a.Decode, a.Header)
				if err != nil {
					return fmt.Errorf("arm %s: %w", a.Name, err)
				}
				r.blocks[a.Decode] = n
			}
		}
		if r.model == "" {
			name, err := firstModel(ctx, r.client, cmp.Or(a.URL, a.Prefill), a.Header)
			if err != nil {
				return fmt.Errorf("arm %s: ask for the model: %w", a.Name, err)
			}
			r.model = name
		}
	}
	h := Header{Type: "run", Format: journalFormat, Started: time.Now().UTC(), Version: version, Host: host(), Model: r.model, Plan: *p, Engines: r.versions(ctx)}
	if old := r.journal.header; old != nil {
		r.id, r.scale = old.RunID, old.Calibration
		r.part = fmt.Sprintf("-%016x", rand.Uint64()) // a group that was cut off must not find its own prompts in a cache
	} else {
		r.id = fmt.Sprintf("%016x", rand.Uint64()) // another run must not find this one's prompts in a cache
		var f *Failure
		base := p.base()
		q := r.query(identity{run: r.id}, base, 0, Turn{}, nil)
		q.salt = ""
		if r.scale, f = calibrate(ctx, r.player(base, false), q); f != nil {
			return fmt.Errorf("arm %s: calibrate: %w", base.Name, f)
		}
		h.RunID, h.Calibration = r.id, r.scale
	}
	if err := r.journal.begin(h); err != nil {
		return err
	}
	return r.warm(ctx)
}

// host describes the client's machine.
func host() string {
	return fmt.Sprintf("%s/%s, %d CPUs, %s", runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), runtime.Version())
}

// versions asks all engines for theirs; what does not answer is left out.
func (r *run) versions(ctx context.Context) map[string]string {
	all := map[string]string{}
	for i := range r.plan.Arms {
		a := &r.plan.Arms[i]
		for _, engine := range slices.Concat(a.engines(false), a.engines(true)) {
			if _, ok := all[engine]; ok {
				continue
			}
			var v struct {
				Version string `json:"version"`
			}
			if get(ctx, r.client, engine+"/version", a.Header, func(b io.Reader) error { return json.NewDecoder(b).Decode(&v) }) == nil && v.Version != "" {
				all[engine] = v.Version
			}
		}
	}
	return all
}

// warm plays conversations that are not counted, on each arm in each state of P's cache: connections, handshakes and
// compiled kernels belong to nobody's first turn. An arm that cannot play one is an error now and not in an hour.
func (r *run) warm(ctx context.Context) error {
	for _, cache := range slices.Compact(slices.Sorted(slices.Values(r.plan.PCache))) {
		cell := r.plan.cells()[0]
		cell.PCache, cell.Think, cell.Load = cache, ThinkTime{}, Load{Concurrency: 1}
		for i := range r.plan.Arms {
			a := &r.plan.Arms[i]
			for n := range r.plan.Warmup {
				id := identity{r.id + r.part, cell, -1 - n, 0}
				c := r.conversation(id)
				c.Turns = c.Turns[:min(len(c.Turns), 3)]
				for _, t := range r.play(ctx, a, id, c, time.Now(), nil) {
					if t.record.Error != "" {
						return fmt.Errorf("arm %s: warm-up, turn %d: %s: %s", a.Name, t.record.Turn, t.record.Error, t.record.Detail)
					}
				}
			}
		}
	}
	return ctx.Err()
}

// groups measures. It returns nil when ctx ends.
func (r *run) groups(ctx context.Context, left []task) error {
	all := len(r.journal.groups) + len(left)
	failures := 0
	spent := map[bool]float64{} // seconds and weight of what was measured
	for i, t := range left {
		show := Progress{Groups: all, Done: all - len(left) + i, Cell: t.cell.String(), Failures: failures}
		if w := spent[true]; w > 0 {
			rest := 0.0
			for _, t := range left[i:] {
				rest += r.weight(t.cell)
			}
			show.Left = time.Duration(spent[false] / w * rest * float64(time.Second))
		}
		r.show(show)
		begin := time.Now()
		g := r.group(ctx, t)
		if ctx.Err() != nil {
			return nil
		}
		g.Seconds = time.Since(begin).Seconds()
		for _, t := range g.turns {
			if t.Error != "" {
				failures++
			}
		}
		spent[false] += g.Seconds
		spent[true] += r.weight(t.cell)
		if err := r.journal.add(*g); err != nil {
			return err
		}
	}
	r.show(Progress{Groups: all, Done: all, Failures: failures})
	return nil
}

// weight is how long a cell may take compared with others.
func (r *run) weight(c Cell) float64 {
	think := float64(r.plan.Turns) * c.Think.Mean.Seconds()
	return float64(r.plan.batch(c.Load)) * (1 + think + float64(c.Length)/2000)
}

// played is one turn with its answer, which is compared and then forgotten.
type played struct {
	record TurnRecord
	text   string
}

// group plays the same conversations on all arms, one arm after the other in random order.
func (r *run) group(ctx context.Context, t task) *group {
	g := &group{GroupRecord: GroupRecord{Type: "group", Group: t.number, Cell: t.cell, Repeat: t.repeat}}
	id := identity{r.id + r.part, t.cell, t.repeat, 0}
	order := rand.New(rand.NewPCG(id.seed("order"), 0)).Perm(len(r.plan.Arms))
	answers := map[string][]played{}
	for _, i := range order {
		a := &r.plan.Arms[i]
		g.Order = append(g.Order, a.Name)
		engines := a.engines(t.cell.cold())
		before := make([]map[string]float64, len(engines))
		faults := make([]error, len(engines))
		for k, e := range engines {
			before[k], faults[k] = scrape(ctx, r.client, e, a.Header)
		}
		answers[a.Name] = r.block(ctx, a, id)
		_ = sleepUntil(ctx, time.Now().Add(r.plan.Settle)) // the caller looks at ctx
		for k, e := range engines {
			m := MetricsRecord{Type: "metrics", Group: t.number, Arm: a.Name, Engine: e}
			after, err := scrape(ctx, r.client, e, a.Header)
			if err = errors.Join(faults[k], err); err != nil {
				m.Error = err.Error()
			} else {
				m.Delta, m.After = moved(before[k], after)
			}
			g.metrics = append(g.metrics, m)
		}
		if ctx.Err() != nil {
			return nil
		}
		for _, p := range answers[a.Name] {
			p.record.Group = t.number
			g.turns = append(g.turns, p.record)
		}
	}
	if r.plan.Separate != SeparateWords {
		base := r.plan.base().Name
		for i := range r.plan.Arms {
			if a := r.plan.Arms[i].Name; a != base {
				g.answers = append(g.answers, compare(t.number, a, answers[a], answers[base])...)
			}
		}
	}
	return g
}

// compare compares the answers of an arm with the baseline's, conversation by conversation, up to the first that
// differs: what follows it has another prompt.
func compare(group int, arm string, got, want []played) []AnswerRecord {
	type key struct{ conv, turn int }
	base := map[key]*played{}
	for i := range want {
		base[key{want[i].record.Conv, want[i].record.Turn}] = &want[i]
	}
	var list []AnswerRecord
	parted := map[int]bool{} // conversations
	for i := range got {
		t := &got[i].record
		b := base[key{t.Conv, t.Turn}]
		if b == nil || parted[t.Conv] || t.Error != "" || b.record.Error != "" {
			continue
		}
		a := AnswerRecord{Type: "answer", Group: group, Arm: arm, Conv: t.Conv, Turn: t.Turn, Equal: got[i].text == b.text}
		if !a.Equal {
			parted[t.Conv] = true
			for a.At < len(got[i].text) && a.At < len(b.text) && got[i].text[a.At] == b.text[a.At] {
				a.At++
			}
		}
		list = append(list, a)
	}
	return list
}

// block plays the conversations of a group on one arm and returns all turns, by conversation and turn.
func (r *run) block(ctx context.Context, a *Arm, id identity) []played {
	load := id.cell.Load
	n := r.plan.batch(load)
	begin := time.Now()
	starts := make([]*time.Time, n) // nil: as soon as a worker is free
	workers := load.Concurrency
	if load.Rate > 0 || load.Trace {
		workers = n
		arrivals := rand.New(rand.NewPCG(id.seed("arrivals"), 0)) // the same for all arms
		at := begin
		for i := range starts {
			start := at
			starts[i] = &start
			if !load.Trace {
				at = at.Add(time.Duration(arrivals.ExpFloat64() / load.Rate * float64(time.Second)))
			}
		}
	}
	var (
		all  = make([][]played, n)
		next = make(chan int, n)
		wait sync.WaitGroup
	)
	for i := range n {
		next <- i
	}
	close(next)
	for range min(workers, n) {
		wait.Go(func() {
			for i := range next {
				own := id
				own.index = i
				start := time.Now()
				if starts[i] != nil {
					start = *starts[i]
				}
				all[i] = r.play(ctx, a, own, r.conversation(own), start, &begin)
			}
		})
	}
	wait.Wait()
	return slices.Concat(all...)
}

// conversation is the one with this identity, the same on all arms.
func (r *run) conversation(id identity) Conversation {
	p := r.plan
	if n := len(p.Conversations); n > 0 {
		return p.Conversations[(max(id.repeat, 0)*p.batch(id.cell.Load)+id.index)%n]
	}
	return synthetic(id.seed("text"), p.Turns, id.cell.Length, p.New)
}

func (r *run) player(a *Arm, cold bool) player {
	switch {
	case a.PD():
		return &pair{client: r.client, arm: a, blockSize: r.blocks[a.Decode]}
	case cold && a.ColdURL != "":
		return &openAI{client: r.client, arm: a, base: a.ColdURL}
	}
	return &openAI{client: r.client, arm: a, base: a.URL}
}

// query is turn k of a conversation on an arm.
func (r *run) query(id identity, a *Arm, k int, t Turn, messages []json.RawMessage) query {
	q := query{
		model: r.model, messages: messages, tools: t.Tools, maxTokens: cmp.Or(t.MaxTokens, r.plan.Reply), fixed: r.plan.FixedReply,
		first: k == 0, id: id.salt(a, "request", fmt.Sprint(k))[:24],
	}
	if r.plan.Separate == SeparateSalt {
		q.salt = id.salt(a)
	}
	q.coldSalt, q.nextCold = q.salt, q.salt
	if id.cell.cold() {
		switch {
		case a.PD():
			q.coldSalt, q.nextCold = id.salt(a, "P", fmt.Sprint(k)), id.salt(a, "P", fmt.Sprint(k+1))
		case a.ColdURL == "":
			q.salt = id.salt(a, "turn", fmt.Sprint(k))
		}
	}
	return q
}

// play plays one conversation. It is meant to start at start; block is the begin of the block, nil for a warm-up.
func (r *run) play(ctx context.Context, a *Arm, id identity, c Conversation, start time.Time, block *time.Time) []played {
	if block == nil {
		block = &start
	}
	p := r.player(a, id.cell.cold())
	think := rand.New(rand.NewPCG(id.seed("think"), 0)) // the same for all arms
	nonce := id.nonce(a, r.plan.Separate)
	var (
		list    []played
		replies []string
	)
	build := func(k int) (query, *Failure) {
		t := c.Turns[k]
		messages, err := t.Expand(r.scale, replies)
		if err == nil {
			messages, err = begin(messages, nonce)
		}
		if err != nil {
			return query{}, failed(FailExpand, "%v", err)
		}
		return r.query(id, a, k, t, messages), nil
	}
	at := func(k int) time.Time { return start.Add(time.Duration(float64(c.Turns[k].At) / r.plan.Speed)) }
	meant := start
	trace := id.cell.Load.Trace
	if trace {
		meant = at(0)
	}
	q, f := build(0)
	if f == nil {
		f = r.between(ctx, p, nil, nil, &q).failure
		if now := time.Now(); now.After(meant) && id.cell.Load.Concurrency > 0 {
			meant = now
		}
	}
	for k := range c.Turns {
		rec := TurnRecord{Type: "turn", Arm: a.Name, Conv: id.index, Turn: k + 1, Offset: ms(meant.Sub(*block))}
		if f == nil && sleepUntil(ctx, meant) != nil {
			return list
		}
		var text string
		var answer *reply
		if f == nil {
			answer, f = r.turn(ctx, p, &q, meant, &rec)
		}
		if f != nil {
			rec.Error, rec.Detail = f.Kind, f.Detail
			return append(list, played{rec, ""})
		}
		text = answer.text.String()
		replies = append(replies, answer.content.String())
		end := time.Now()
		var next *query
		if k+1 < len(c.Turns) {
			gap := id.cell.Think.Mean
			if id.cell.Think.Exponential {
				gap = time.Duration(think.ExpFloat64() * float64(gap))
			}
			meant = end.Add(gap)
			if trace {
				meant = at(k + 1)
			}
			var n query
			if n, f = build(k + 1); f == nil {
				next = &n
			}
		}
		did := r.between(ctx, p, &q, answer, next)
		if a.PD() {
			rec.PrepareMs = ms(time.Since(end))
		}
		if did.failure != nil {
			rec.PrepareError = did.failure.Error()
		}
		if now := time.Now(); !did.counted && now.After(meant) && !trace {
			meant = now
		}
		list = append(list, played{rec, text})
		if next != nil {
			q = *next
		}
	}
	return list
}

// between is what the arm does after a turn, bounded like a turn.
func (r *run) between(ctx context.Context, p player, q *query, answer *reply, next *query) prepared {
	ctx, stop := context.WithTimeout(ctx, r.plan.Timeout)
	defer stop()
	return p.prepare(ctx, q, answer, next)
}

// turn sends one turn and fills in what was measured.
func (r *run) turn(ctx context.Context, p player, q *query, meant time.Time, rec *TurnRecord) (*reply, *Failure) {
	ctx, stop := context.WithTimeout(ctx, r.plan.Timeout)
	defer stop()
	sent := time.Now()
	answer, l, f := p.turn(ctx, q)
	rec.Late = ms(sent.Sub(meant))
	rec.P, rec.D, rec.PCached, rec.Cached, rec.Retried = ms(l.prefill), ms(l.decode), l.pCached, l.dCached, l.retried
	if f != nil {
		return nil, f
	}
	rec.TTFT, rec.Total, rec.Finish, rec.Answer = ms(answer.first.Sub(meant)), ms(answer.last.Sub(meant)), answer.finish, answer.digest()
	for _, g := range answer.gaps {
		rec.Gaps = append(rec.Gaps, ms(g))
	}
	if u := answer.usage; u != nil {
		rec.Prompt, rec.Completion = u.Prompt, u.Completion
	}
	return answer, nil
}

// ms is a duration in milliseconds, to the microsecond.
func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// sleepUntil returns an error if ctx ends first.
func sleepUntil(ctx context.Context, t time.Time) error {
	d := time.Until(t)
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
