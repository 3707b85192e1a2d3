package analyze

import (
	"cmp"
	"slices"
)

// report turns what was counted into a Report.
func (c *collector) report() *Report {
	t := c.tally
	unit := tokens
	for i := range t.units {
		if t.units[i].requests > t.units[unit].requests {
			unit = unitOf(i)
		}
	}
	u := &t.units[unit]
	s := &t.byUnit[unit]
	r := &Report{
		FollowUpTurns: t.total.followUps,
		// Only one unit can be summed; turns and gaps are counted in all.
		RepeatedPromptShare: ratio(s.repeated, s.compared),
		LateTurnsShare:      ratio(t.total.late, t.total.timed),
		TTLSeconds:          c.o.TTL.Seconds(),
		Unit:                unit.String(),
		Requests:            u.requests,
		OtherUnit:           t.total.requests - u.requests,
		Conversations:       t.convs,
		SingleTurn:          t.single,
		Branches:            t.branches,
		Duplicates:          t.duplicates,
		SpanSeconds:         round(seconds(t.lastSeen - t.firstSeen)),
		Prompt:              Sizes{Total: u.prompt, InFollowUp: u.inFollowUps, Length: quantiles(&u.length, 1), Reply: quantiles(&u.reply, 1)},
		Gaps:                Gaps{StartToStart: quantiles(&t.s2s, 1e9), Idle: quantiles(&dist{}, 1)},
		Growth:              quantiles(&u.growth, 1),
		NewPerTurn:          quantiles(&u.added, 1),
		TurnsPerConv:        quantiles(&t.turns, 1),
		Models:              c.groups(t.models),
		Tenants:             c.groups(t.owners),
		Findings:            []Finding{},
		Identity: Identity{
			ByField: t.sources[0], ByContent: t.sources[1], None: t.sources[2], Fields: c.fields, Forgotten: c.forgotten,
		},
		Input: c.in,
	}
	if t.total.followUps == 0 {
		r.RepeatedPromptShare, r.LateTurnsShare = nil, nil
	}
	if t.durations > 0 {
		r.Gaps.Idle, r.Gaps.IdleLate = quantiles(&t.idle, 1e9), ratio(t.idleLate, t.gapTurns)
	}
	r.Share = c.shares(u, s)
	r.Concurrency = c.concurrency(u)
	r.TTL = c.retention(u, r.Concurrency.Known)
	if u.cachedTurns > 0 {
		r.LogCached = &LogCached{u.cachedTurns, ratio(u.cached, u.cachedOf)}
	}
	if t.hasHistory {
		h := t.history
		h.LostShare = ratio(h.Lost, s.repeated)
		r.History = &h
	}
	if t.hasLines {
		l := t.lines
		l.BetterEarlier, l.BetterShare = u.better, ratio(u.better, u.contentTurns)
		l.MainLineRepeats = ratio(t.mainRepeated, t.mainCompared)
		r.Lines = &l
	}
	if r.Input.Failed == nil {
		r.Input.Failed = []string{}
	}
	r.Input.Bad, r.Input.Skipped = issues(c.bad), issues(c.skipped)
	for _, i := range r.Input.Bad {
		r.Input.BadLines += i.Count
	}
	r.Input.Limited = t.limited
	r.Findings = c.findings(unit)
	r.Definitions = definitions(unit.String(), c.o)
	r.charts = c.charts(u)
	r.Verdict = c.verdict(r, u)
	return r
}

func unitOf(i int) unit { return unit(i) } //nolint:gosec // i is one of units

func quantiles(d *dist, scale float64) Quantiles {
	q := func(p float64) float64 { return round(float64(d.at(p)) / scale) }
	if d.n == 0 {
		return Quantiles{Exact: true}
	}
	return Quantiles{
		Count: d.n, Mean: round(d.mean() / scale), P5: q(5), P25: q(25), P50: q(50), P75: q(75), P90: q(90), P95: q(95), P99: q(99),
		Max: round(float64(d.max) / scale), Exact: d.exact(),
	}
}

func issues(m map[string]*Issue) []Issue {
	list := make([]Issue, 0, len(m))
	for _, i := range m {
		list = append(list, *i)
	}
	slices.SortFunc(list, func(a, b Issue) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason)) })
	return list
}

// maxGroups is how many models or tenants are shown by name; the rest are one group.
const maxGroups = 20

func (c *collector) groups(list []shares) []Group {
	type named struct {
		name string
		s    shares
	}
	var all []named
	for i, s := range list {
		if s.requests == 0 {
			continue
		}
		name := c.names.name(uint32(i))
		switch i {
		case nameless:
			name = "(none)"
		case otherName:
		default:
			name = name[1:] // without the letter that tells models from tenants
		}
		all = append(all, named{name, s})
	}
	if len(all) == 1 && all[0].name == "(none)" {
		return []Group{}
	}
	slices.SortFunc(all, func(a, b named) int {
		return cmp.Or(cmp.Compare(b.s.prompt, a.s.prompt), cmp.Compare(b.s.requests, a.s.requests), cmp.Compare(a.name, b.name))
	})
	out := []Group{}
	var rest shares
	for i, g := range all {
		if i >= maxGroups && len(all) > maxGroups+1 {
			rest.merge(&g.s)
			continue
		}
		out = append(out, g.s.group(g.name))
	}
	if rest.requests > 0 {
		out = append(out, rest.group("all others"))
	}
	return out
}

func (s *shares) merge(o *shares) {
	s.requests += o.requests
	s.prompt += o.prompt
	s.followUps += o.followUps
	s.late += o.late
	s.timed += o.timed
	s.compared += o.compared
	s.repeated += o.repeated
	s.content += o.content
	s.best += o.best
}

func (s *shares) group(name string) Group {
	return Group{
		Name: name, Requests: s.requests, FollowUpTurns: s.followUps, Prompt: s.prompt,
		RepeatedPromptShare: ratio(s.repeated, s.compared), ContentBest: ratio(s.best, s.content), LateTurnsShare: ratio(s.late, s.timed),
	}
}

func (c *collector) shares(u *unitSums, s *shares) Shares {
	out := Shares{
		ByCounts: ratio(s.repeated, s.compared), ByCountsWithReply: ratio(u.withReply, u.ofFollowUps), OfAllPrompts: ratio(s.repeated, u.prompt),
		ContentFollowUps: u.contentTurns,
		Previous:         ratio(u.previous, u.contentPrompt), PreviousReply: ratio(u.previousReply, u.contentPrompt), Best: ratio(u.best, u.contentPrompt),
		BlockSize: c.o.BlockSize, Blocks: []BlockShare{},
	}
	if u.contentTurns == 0 || u == &c.tally.units[bodyBytes] {
		return out
	}
	for i, size := range blockSizes {
		b := BlockShare{BlockSize: size}
		if fits(size, u.coarse) {
			b.Share = ratio(u.blocks[i], u.contentPrompt)
		}
		out.Blocks = append(out.Blocks, b)
	}
	if fits(c.o.BlockSize, u.coarse) {
		out.AtBlockSize = ratio(u.atSize, u.contentPrompt)
	}
	return out
}

// fits reports whether reuse in blocks of size can be told from hashes of blocks of coarse tokens, 0 if there are
// none.
func fits(size int, coarse int32) bool { return coarse == 0 || size%int(coarse) == 0 }

// relative reports whether times count from the start of each conversation: then many begin at the same instant.
func (t *tally) relative() bool {
	most := int64(0)
	for _, n := range t.atOnce {
		most = max(most, n)
	}
	return most >= 3 && most*10 >= t.convs*3
}

func (c *collector) concurrency(u *unitSums) Concurrency {
	t := c.tally
	switch {
	case !t.any:
		return Concurrency{WhyNot: "the input has no times"}
	case t.relative():
		return Concurrency{WhyNot: "times count from the start of each conversation, so what runs at the same time is not known"}
	}
	out := Concurrency{
		Known: true, Conversations: t.conversationsOpen.level(), Running: u.running.level(), OpenPrompts: u.open.level(), RequestRate: t.arrivals.perMinute(),
	}
	if span := seconds(t.lastSeen - t.firstSeen); span > 0 {
		out.NewPerSecond = round(float64(u.prompt-u.repeated) / span)
	}
	return out
}

// perMinute reads a timeline of events as a rate.
func (t *timeline) perMinute() Level {
	if t.change == nil {
		return Level{}
	}
	const minute = int64(60e9)
	first := floorDiv(t.lo*t.width, minute)
	n := floorDiv(t.hi*t.width, minute) - first + 1
	if n > 1<<20 || t.width > minute {
		return Level{}
	}
	list := make([]int64, n)
	sum := int64(0)
	for k := t.lo; k <= t.hi; k++ {
		list[floorDiv(k*t.width, minute)-first] += t.change[mod(k)]
		sum += t.change[mod(k)]
	}
	slices.Sort(list)
	return Level{Mean: round(float64(sum) / float64(n)), P50: list[len(list)/2], P95: list[min(len(list)-1, len(list)*95/100)], Max: list[len(list)-1], ResolutionSeconds: 60}
}

func (c *collector) retention(u *unitSums, together bool) []TTLPoint {
	t := c.tally
	out := []TTLPoint{}
	if t.gapTurns == 0 {
		return out
	}
	span := float64(t.lastSeen - t.firstSeen)
	for i, ttl := range t.ttls {
		p := &u.pins[i]
		point := TTLPoint{Seconds: seconds(ttl), TurnsInTime: ratio(p.turns, u.timed), RepeatedHeld: ratio(p.repeated, u.timedRepeated)}
		if together && span > 0 {
			mean := round(p.pinned.float() / span)
			peak := p.level.peak()
			point.PinnedMean, point.PinnedPeak = &mean, &peak
			if c.o.KVBytesPerToken > 0 && u == &t.units[tokens] {
				gb := round(float64(peak) * float64(c.o.KVBytesPerToken) / 1e9)
				point.PinnedPeakGB = &gb
			}
		}
		if inUse := u.inUse.float(); inUse > 0 {
			v := round(p.pinned.float() / inUse)
			point.PinnedToInUse = &v
		}
		out = append(out, point)
	}
	return out
}

// definitions are printed with every report: a share without its definition cannot be reproduced (K05).
func definitions(unit string, o *Options) []Definition {
	return []Definition{
		{"follow_up_turns", "requests that have an earlier request in their conversation, in the order of their start"},
		{"repeated_prompt_share", "sum of min(previous prompt, this prompt) over sum of this prompt, over follow-up turns; counts only. It is a lower bound of what could be reused where every prompt begins with the one before it; where histories are edited it is not, and the shares by content say so"},
		{"late_turns_share", "follow-up turns that started more than " + o.TTL.String() + " after the previous one started, over all follow-up turns with times"},
		{"unit", "all sizes are " + unit + "; prompts include their cached part, whatever the API that counted them calls input"},
		{"content_previous", "common prefix of this prompt with the previous prompt of the conversation, over the prompts of the follow-up turns whose content is known"},
		{"content_previous_with_reply", "the same with the previous prompt followed by its reply: what a decode engine holds"},
		{"content_best_earlier", "the same with the best of all earlier prompts of the conversation: what an unbounded prefix cache would hold"},
		{"content_in_blocks", "the larger of the last two, per turn rounded down to whole blocks; where sizes are characters, a token is taken for four"},
		{"idle gap", "from the end of the previous reply to this request, not below 0; start to start where the log has no durations"},
		{"pinned", "prompt and reply of a turn, from its end to the next turn of its conversation, the TTL or the end of the log, whichever comes first"},
		{"in time", "follow-up turns whose idle gap is at most the TTL"},
	}
}

type point struct{ x, y float64 }

// charts are what the HTML report draws.
type charts struct {
	gaps    []point // seconds, share of gaps up to it
	lengths []point // prompt length, share of requests up to it
	growth  []point
	open    []point // seconds from the start, open conversations
	running []point
}

func (c *collector) charts(u *unitSums) charts {
	t := c.tally
	gaps := &t.idle // the same as start to start where no duration is known
	out := charts{gaps: gaps.curve(1e9), lengths: u.length.curve(1), growth: u.added.curve(1)}
	if t.any && !t.relative() {
		out.open, out.running = t.conversationsOpen.curve(t.firstSeen), u.running.curve(t.firstSeen)
	}
	return out
}

// curve returns the cumulative distribution at 200 ranks.
func (d *dist) curve(scale float64) []point {
	if d.n == 0 {
		return nil
	}
	const steps = 200
	out := make([]point, 0, steps+1)
	for i := range steps + 1 {
		q := 100 * float64(i) / steps
		out = append(out, point{float64(d.at(q)) / scale, q / 100})
	}
	return out
}

// curve returns the highest level in each of at most 400 stretches of time.
func (t *timeline) curve(zero int64) []point {
	l := t.levels()
	if len(l) == 0 {
		return nil
	}
	step := max(1, (len(l)+399)/400)
	var out []point
	for i := 0; i < len(l); i += step {
		out = append(out, point{seconds((t.lo+int64(i))*t.width - zero), float64(slices.Max(l[i:min(len(l), i+step)]))})
	}
	return out
}
