package analyze

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// WriteText writes the report for people. testdata/*.golden shows it.
func (r *Report) WriteText(w io.Writer) error {
	p := &printer{}
	p.head(r)
	p.verdict(r)
	p.what(r)
	p.shares(r)
	p.gaps(r)
	p.retention(r)
	p.patterns(r)
	p.groups("model", r.Models)
	p.groups("tenant", r.Tenants)
	p.input(r)
	p.definitions(r)
	_, err := io.WriteString(w, p.b.String())
	return err
}

type printer struct{ b strings.Builder }

func (p *printer) f(format string, args ...any) { fmt.Fprintf(&p.b, format, args...) }

func (p *printer) title(s string) { p.f("\n%s\n", s) }

func (p *printer) head(r *Report) {
	p.f("follow-up turns        %d\n", r.FollowUpTurns)
	bound := ""
	if r.RepeatedPromptShare != nil {
		bound = ">= "
	}
	p.f("repeated prompt share  %s%s\n", bound, percent(r.RepeatedPromptShare))
	p.f("later than %-11s %s\n", fmt.Sprintf("%g s", r.TTLSeconds), percent(r.LateTurnsShare))
}

func (p *printer) verdict(r *Report) {
	p.title("verdict: " + r.Verdict.Decision)
	p.wrap("  ", r.Verdict.Summary)
	for _, s := range r.Verdict.Reasons {
		p.wrap("  - ", s)
	}
	for _, s := range r.Verdict.Settings {
		p.wrap("  * ", s.Name+" "+s.Value+": "+s.Why)
	}
}

// wrap breaks s into lines of at most 100 characters; the first begins with lead, the others are indented as far.
func (p *printer) wrap(lead, s string) {
	indent := strings.Repeat(" ", len(lead))
	line := lead
	for i, word := range strings.Fields(s) {
		if i > 0 && len(line)+1+len(word) > 100 {
			p.f("%s\n", line)
			line = indent + word
			continue
		}
		if i > 0 {
			line += " "
		}
		line += word
	}
	p.f("%s\n", line)
}

func (p *printer) what(r *Report) {
	p.title("traffic (sizes in " + r.Unit + ")")
	p.f("  requests               %d", r.Requests)
	if r.OtherUnit > 0 {
		p.f("  (and %d whose size is known in another unit only; they count as turns, not in sums)", r.OtherUnit)
	}
	p.f("\n  conversations          %d, %d of one request\n", r.Conversations, r.SingleTurn)
	p.f("  found by               field %d, content %d, not at all %d\n", r.Identity.ByField, r.Identity.ByContent, r.Identity.None)
	if r.Duplicates > 0 {
		p.f("  duplicate lines        %d left out\n", r.Duplicates)
	}
	if r.SpanSeconds > 0 {
		p.f("  span                   %s\n", duration(r.SpanSeconds))
	}
	p.f("  prompts                %d in all, %d in follow-ups\n", r.Prompt.Total, r.Prompt.InFollowUp)
	p.quantiles([]line4{
		{"prompt", &r.Prompt.Length},
		{"reply", &r.Prompt.Reply},
		{"growth per turn", &r.Growth},
		{"not repeated per turn", &r.NewPerTurn},
		{"turns per conversation", &r.TurnsPerConv},
	}, "%.0f")
	c := &r.Concurrency
	if !c.Known {
		if c.WhyNot != "" {
			p.f("  at the same time       unknown: %s\n", c.WhyNot)
		}
		return
	}
	if r.Conversations > 0 {
		p.f("  open conversations     %d (p50) %d (p95) %d (max)\n", c.Conversations.P50, c.Conversations.P95, c.Conversations.Max)
		p.f("  kept by them           %d (p50) %d (p95) %d (max)\n", c.OpenPrompts.P50, c.OpenPrompts.P95, c.OpenPrompts.Max)
	}
	if c.Running.Max > 0 {
		p.f("  running requests       %d (p50) %d (p95) %d (max)\n", c.Running.P50, c.Running.P95, c.Running.Max)
	}
	p.f("  requests per minute    %d (p50) %d (p95) %d (max)\n", c.RequestRate.P50, c.RequestRate.P95, c.RequestRate.Max)
}

type line4 struct {
	name string
	q    *Quantiles
}

func (p *printer) quantiles(list []line4, format string) {
	any := false
	for _, l := range list {
		any = any || l.q.Count > 0
	}
	if !any {
		return
	}
	p.f("  %-22s %10s %10s %10s %10s %10s %10s\n", "", "mean", "p25", "p50", "p90", "p99", "max")
	for _, l := range list {
		if l.q.Count == 0 {
			continue
		}
		p.f("  %-22s", l.name)
		for _, v := range []float64{l.q.Mean, l.q.P25, l.q.P50, l.q.P90, l.q.P99, l.q.Max} {
			p.f(" %10s", fmt.Sprintf(format, v))
		}
		p.f("\n")
	}
}

func (p *printer) shares(r *Report) {
	s := &r.Share
	if s.ByCounts == nil {
		return
	}
	p.title("repeated share of the follow-ups' prompts")
	row := func(name string, v *float64) {
		if v != nil {
			p.f("  %-34s %s\n", name, percent(v))
		}
	}
	row("by counts", s.ByCounts)
	row("by counts, with the reply", s.ByCountsWithReply)
	row("by content, with the previous", s.Previous)
	row("by content, and its reply", s.PreviousReply)
	row("by content, best of all earlier", s.Best)
	if s.ContentFollowUps > 0 {
		p.f("  (content known for %d follow-ups)\n", s.ContentFollowUps)
	}
	if len(s.Blocks) > 0 {
		p.f("  in whole blocks of")
		for _, b := range s.Blocks {
			if b.Share != nil {
				p.f("  %d: %s", b.BlockSize, percent(b.Share))
			}
		}
		p.f("\n")
		if s.AtBlockSize == nil {
			p.f("  at --block-size %d: unknown, the log's own blocks do not divide it\n", s.BlockSize)
		} else if !slices.Contains(blockSizes, s.BlockSize) {
			p.f("  at --block-size %d: %s\n", s.BlockSize, percent(s.AtBlockSize))
		}
	}
	if h := r.History; h != nil {
		p.f("  history: changed in %d turns, shrunk in %d, the same prompt again in %d\n", h.Changed, h.Shrunk, h.Identical)
	}
	if l := r.Lines; l != nil && l.Conversations > 0 {
		p.f("  lines: %d conversations with several; %d requests outside the main line, %d of them side queries\n", l.Conversations, l.SideRequests, l.SideQueries)
	}
	if c := r.LogCached; c != nil {
		p.f("  the log's own cached count: %s of %d requests' prompts\n", percent(c.Share), c.Requests)
	}
}

func (p *printer) gaps(r *Report) {
	if r.Gaps.StartToStart.Count == 0 {
		return
	}
	p.title("gaps between turns, seconds")
	p.quantiles([]line4{{"idle (end to start)", &r.Gaps.Idle}, {"start to start", &r.Gaps.StartToStart}}, "%.1f")
	if r.Gaps.IdleLate != nil {
		p.f("  idle longer than %g s   %s\n", r.TTLSeconds, percent(r.Gaps.IdleLate))
	}
}

func (p *printer) retention(r *Report) {
	if len(r.TTL) == 0 {
		return
	}
	p.title("what keeping a turn's blocks would hold and pin")
	p.f("  %8s %14s %14s", "TTL", "turns in time", "repeated held")
	pinned, inUse, gb := r.TTL[0].PinnedMean != nil, r.TTL[0].PinnedToInUse != nil, r.TTL[0].PinnedPeakGB != nil
	if pinned {
		p.f(" %14s %14s", "pinned, mean", "pinned, peak")
	}
	if gb {
		p.f(" %10s", "peak GB")
	}
	if inUse {
		p.f(" %16s", "pinned/in use")
	}
	p.f("\n")
	for _, t := range r.TTL {
		p.f("  %8s %14s %14s", duration(t.Seconds), percent(t.TurnsInTime), percent(t.RepeatedHeld))
		if pinned {
			p.f(" %14.0f %14d", *t.PinnedMean, *t.PinnedPeak)
		}
		if gb {
			p.f(" %10.1f", *t.PinnedPeakGB)
		}
		if inUse {
			p.f(" %16.2f", *t.PinnedToInUse)
		}
		p.f("\n")
	}
}

func (p *printer) patterns(r *Report) {
	if len(r.Findings) == 0 {
		return
	}
	p.title("patterns")
	for _, f := range r.Findings {
		text := f.Code + ": " + f.Text
		if f.Offset != nil {
			text += fmt.Sprintf(". In %d follow-ups, at %s %d of the prompt (%s), %d bytes long", f.FollowUps, strings.TrimSuffix(r.Unit, "s"), *f.Offset, f.In, *f.Length)
			if f.Resolution != "" {
				text += ", resolution " + f.Resolution
			}
			if f.Moves != nil && *f.Moves > 0 {
				text += fmt.Sprintf(", moving by %d characters a turn", *f.Moves)
			}
		}
		if f.LostShare != nil {
			text += fmt.Sprintf(". Lost: %d %s, %s of the follow-ups' prompts", f.Lost, r.Unit, percent(f.LostShare))
		}
		p.wrap("  - ", text)
		p.wrap("    ", "-> "+f.Advice)
	}
}

func (p *printer) groups(kind string, list []Group) {
	if len(list) == 0 {
		return
	}
	p.title("by " + kind)
	p.f("  %-40s %10s %10s %10s %10s %10s\n", kind, "requests", "follow-ups", "repeated", "content", "late")
	for _, g := range list {
		p.f("  %-40s %10d %10d %10s %10s %10s\n", g.Name, g.Requests, g.FollowUpTurns, dash(g.RepeatedPromptShare), dash(g.ContentBest), dash(g.LateTurnsShare))
	}
}

func dash(v *float64) string {
	if v == nil {
		return "-"
	}
	return percent(v)
}

func (p *printer) input(r *Report) {
	p.title("input")
	p.f("  lines                  %d in %d files, %d bytes\n", r.Input.Lines, len(r.Input.Files), r.Input.Bytes)
	for _, f := range r.Input.Failed {
		p.f("  FAILED                 %s\n", f)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Input.Formats)) {
		p.f("  %-22s %d requests\n", name, r.Input.Formats[name])
	}
	for _, i := range r.Input.Skipped {
		p.f("  skipped                %d: %s (first at %s:%d)\n", i.Count, i.Reason, i.File, i.Line)
	}
	for _, i := range r.Input.Bad {
		p.f("  NOT READ               %d: %s (first at %s:%d)\n", i.Count, i.Reason, i.File, i.Line)
	}
	if r.Input.Spilled > 0 {
		p.f("  sorted on disk         %d bytes\n", r.Input.Spilled)
	}
	if r.Input.Limited > 0 || r.Identity.Forgotten > 0 {
		p.f("  limits of memory       %d conversations not compared with all earlier requests, %d hashes forgotten (raise --memory)\n", r.Input.Limited, r.Identity.Forgotten)
	}
}

func (p *printer) definitions(r *Report) {
	p.title("definitions")
	for _, d := range r.Definitions {
		p.wrap("  ", d.Name+": "+d.Text)
	}
}

// duration writes seconds as people do.
func duration(s float64) string {
	switch {
	case s < 120:
		return fmt.Sprintf("%gs", round(s))
	case s < 2*3600:
		return fmt.Sprintf("%gm", round(float64(int64(s/6))/10))
	}
	return fmt.Sprintf("%gh", round(float64(int64(s/360))/10))
}
