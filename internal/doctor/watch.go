package doctor

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Watch looks again every interval until ctx ends and calls changed with the first report, and then with each that says
// something else than the one before. The probe is played at first and whenever an engine was restarted: it costs both
// engines a small request or two. What it showed stays in force until then.
//
// It returns the last report. The error is changed's.
func Watch(ctx context.Context, o Options, interval time.Duration, changed func(r Report, c Changes) error) (Report, error) {
	var before *Facts
	var last Report
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		f, err := look(ctx, o, before)
		if err != nil {
			return last, nil //nolint:nilerr // the watch was ended
		}
		r := NewReport(f)
		if c := Compare(last, r); before == nil || !c.Empty() {
			if err := changed(r, c); err != nil {
				return r, err
			}
		}
		before, last = f, r
		select {
		case <-ctx.Done():
			return last, nil
		case <-tick.C:
		}
	}
}

// look gathers facts, with the probe only if there is none of these engines' lives.
func look(ctx context.Context, o Options, before *Facts) (*Facts, error) {
	if before == nil {
		return remember(Gather(ctx, o))
	}
	quiet := o
	quiet.NoProbe = true
	f, err := Gather(ctx, quiet)
	if err != nil {
		return nil, err
	}
	restarted := before.Probe == nil && before.NoProbe != "" && !o.NoProbe && whyNoProbe(f, false) == ""
	for i, e := range f.sides() {
		old := before.sides()[i]
		restarted = restarted || e.Err == "" && old.known != nil && reborn(old.known, e.Before)
	}
	if restarted && !o.NoProbe {
		return remember(Gather(ctx, o))
	}
	f.Probe, f.NoProbe = before.Probe, before.NoProbe
	for i, e := range f.sides() {
		old := before.sides()[i]
		if e.known = e.last(); e.Err != "" {
			e.known = old.known
		}
		if old.Err == "" {
			e.Earlier, e.EarlierAt = old.last(), before.Time
			if old.Earlier != nil && steady(old.Earlier, e.Before) {
				e.Earlier, e.EarlierAt = old.Earlier, old.EarlierAt // nothing has moved since then
			}
		}
	}
	return f, nil
}

// remember notes the scrapes of a first look.
func remember(f *Facts, err error) (*Facts, error) {
	if err != nil {
		return nil, err
	}
	for _, e := range f.sides() {
		if e.Err == "" {
			e.known = e.last()
		}
	}
	return f, nil
}

// reborn reports whether an engine is another process than it was: its start time has changed, or counters have fallen.
func reborn(was, is Metrics) bool {
	if was.Has(mStart) && is.Has(mStart) {
		return was.Sum(mStart) != is.Sum(mStart)
	}
	x, y := was.Counters(), is.Counters()
	return y.Requests < x.Requests || y.Reads < x.Reads || y.Local+y.Pulled+y.Computed < x.Local+x.Pulled+x.Computed
}

// steady reports whether an engine has done nothing between two scrapes and holds as much as before.
func steady(a, b Metrics) bool {
	x, y := a.Counters(), b.Counters()
	return x.Requests == y.Requests && x.Reads == y.Reads && a.Load().Usage <= b.Load().Usage && a.Load().Deferred <= b.Load().Deferred
}

// Change is a finding that has come, or gone.
type Change struct {
	Check string `json:"check"`
	Finding
}

// Changes are what is different between two reports.
type Changes struct {
	New  []Change `json:"new"`
	Gone []Change `json:"gone"`
}

// Empty reports whether nothing is different.
func (c Changes) Empty() bool { return len(c.New) == 0 && len(c.Gone) == 0 }

// Compare finds the findings that have come and gone. A finding is the same if check, subject, severity and text, without
// the numbers in it, are.
func Compare(before, after Report) Changes {
	c := Changes{New: []Change{}, Gone: []Change{}}
	old, now := findings(before), findings(after)
	for _, f := range now {
		if !slices.ContainsFunc(old, f.same) {
			c.New = append(c.New, f)
		}
	}
	for _, f := range old {
		if !slices.ContainsFunc(now, f.same) {
			c.Gone = append(c.Gone, f)
		}
	}
	return c
}

func findings(r Report) (list []Change) {
	for _, c := range r.Checks {
		for _, f := range c.Findings {
			list = append(list, Change{c.ID, f})
		}
	}
	return list
}

func (c Change) same(o Change) bool {
	return c.Check == o.Check && c.Subject == o.Subject && c.Severity == o.Severity && wordsOf(c.Text) == wordsOf(o.Text)
}

// wordsOf is a text without its numbers.
func wordsOf(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r == '.' {
			return -1
		}
		return r
	}, text)
}

// WriteText writes the changes for people.
func (c Changes) WriteText(w io.Writer, at string, coloured bool) error {
	b := &strings.Builder{}
	for _, f := range c.New {
		fmt.Fprintf(b, "%s  %s %s: %s: %s\n", at, paint(coloured, f.Severity, fmt.Sprintf("%-5s", labels[f.Severity])), f.Check, f.Subject, f.Text)
		for _, e := range f.Evidence {
			fmt.Fprintf(b, "          %s\n", e)
		}
		if f.Fix != "" {
			fmt.Fprintf(b, "          fix: %s\n", f.Fix)
		}
	}
	for _, f := range c.Gone {
		fmt.Fprintf(b, "%s  %s %s: %s: %s\n", at, paint(coloured, OK, "gone "), f.Check, f.Subject, f.Text)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
