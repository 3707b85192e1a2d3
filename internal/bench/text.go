package bench

import (
	"bufio"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
)

// definitions say what the numbers mean, with this plan.
func definitions(p *Plan) []string {
	list := []string{
		"TTFT: from when a turn was meant to start until its first event with content arrived, ms. Total: until the stream ended.",
		"ITL: between events with content, ms, over all events of all turns. TPOT: (total − TTFT) / (completion tokens − 1).",
		"Turn 1 has nothing to reuse and is kept apart. Warm-up conversations are not counted.",
		fmt.Sprintf("Every conversation is played by all arms, one block after the other in random order; intervals are 95 %%, from %d bootstrap resamples of conversations. One interval in twenty misses.", resamples),
		"Ratio: median of the arm / median of the baseline. Where its interval covers 1, no difference was shown, which is not the same as none.",
	}
	if slices.Contains(p.PCache, "off") {
		for i := range p.Arms {
			list = append(list, coldness(&p.Arms[i]))
		}
	}
	if slices.ContainsFunc(p.Arms, func(a Arm) bool { return a.PD() }) {
		list = append(list, "Arms played by hand: TTFT is the P call and then the D call until its first content. Rendering a prompt to check a handle, the work of oracle, and releasing handles are not timed; a return is, if the next turn has to wait for it.")
	}
	switch p.Separate {
	case SeparateSalt:
		list = append(list, "Arms send the same prompts and are kept apart by cache_salt.")
	case SeparateWords:
		list = append(list, "Arms are kept apart by the first words of each prompt.")
	case SeparateNone:
		list = append(list, "Arms send the same prompts and are not kept apart: they have engines of their own.")
	}
	return list
}

// coldness says how an arm comes by a P without prefix cache.
func coldness(a *Arm) string {
	switch {
	case a.PD():
		return a.Name + ": P's prefix cache off is a fresh cache_salt on the P call of every turn; D keeps its cache."
	case a.ColdURL != "" && a.ColdURL == a.URL:
		return a.Name + ": the P behind " + a.URL + " is said to run without prefix cache."
	case a.ColdURL != "":
		return a.Name + ": P's prefix cache off is another endpoint, " + a.ColdURL + ", whose P runs without one."
	}
	return a.Name + ": P's prefix cache off is a fresh cache_salt every turn. D's cache misses as well, and a router that tells conversations apart by salt sees only first turns."
}

// WriteMarkdown writes the report for people.
func (r *Report) WriteMarkdown(out io.Writer) error {
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "# tarik bench: %s\n\n", r.Model)
	if r.Note != "" {
		fmt.Fprintf(w, "%s\n\n", r.Note)
	}
	for _, s := range r.facts() {
		fmt.Fprintf(w, "- %s\n", s)
	}
	if len(r.Warnings) > 0 {
		fmt.Fprintf(w, "\n## Read this first\n\n")
		for _, s := range r.Warnings {
			fmt.Fprintf(w, "- %s\n", s)
		}
	}
	for _, at := range r.settings() {
		fmt.Fprintf(w, "\n## %s\n", at)
		for _, t := range r.tables(at) {
			if len(t.rows) > 1 {
				fmt.Fprintf(w, "\n### %s\n\n", t.title)
				writeTable(w, t.rows)
			}
		}
	}
	if rows := r.answerRows(); len(rows) > 1 {
		fmt.Fprintf(w, "\n## Answers\n\n")
		writeTable(w, rows)
	}
	fmt.Fprintf(w, "\n## What the numbers mean\n\n")
	for _, s := range r.Definitions {
		fmt.Fprintf(w, "- %s\n", s)
	}
	return w.Flush()
}

// setting is what the cells of one section share: all but the length.
type setting struct {
	PCache string
	Load   Load
	Think  ThinkTime
}

func (c Cell) setting() setting { return setting{c.PCache, c.Load, c.Think} }

func (s setting) String() string { return Cell{0, s.PCache, s.Load, s.Think}.String() }

// settings are those of the cells, in their order.
func (r *Report) settings() []setting {
	var list []setting
	for _, c := range r.Cells {
		if !slices.Contains(list, c.Cell.setting()) {
			list = append(list, c.Cell.setting())
		}
	}
	return list
}

// in yields the cells of a setting.
func (r *Report) in(at setting) iter.Seq[*CellReport] {
	return func(yield func(*CellReport) bool) {
		for i := range r.Cells {
			if r.Cells[i].Cell.setting() == at && !yield(&r.Cells[i]) {
				return
			}
		}
	}
}

// titled is a table, its first row being the head.
type titled struct {
	title string
	rows  [][]string
}

func (r *Report) tables(at setting) []titled {
	return []titled{
		{"TTFT of later turns, ms", r.ttftRows(at, func(a *ArmReport) *Side { return &a.Later }, "later")},
		{"TTFT of turn 1, ms", r.ttftRows(at, func(a *ArmReport) *Side { return &a.Turn1 }, "1")},
		{"Later turns: after the first token, totals, and the parts of TTFT, ms", r.restRows(at)},
		{"Later turns against " + r.Base, r.comparisonRows(at)},
		{"Work of arms between turns, ms", r.prepareRows(at)},
		{"What moved in the engines", r.engineRows(at)},
	}
}

// length names a row of a table.
func (c *CellReport) length() string {
	if c.Cell.Length == 0 {
		return "given"
	}
	return fmt.Sprint(c.Cell.Length)
}

// facts are where and how it was measured.
func (r *Report) facts() []string {
	list := []string{
		fmt.Sprintf("%s, run %s, tarik %s", r.Started.UTC().Format("2006-01-02 15:04 MST"), r.RunID, r.Version),
		"client: " + r.Host,
	}
	for i := range r.Plan.Arms {
		a := &r.Plan.Arms[i]
		s := "arm " + a.Name + ": " + a.String()
		if a.Name == r.Base {
			s += " (baseline)"
		}
		list = append(list, s)
	}
	byVersion := map[string][]string{}
	for _, url := range slices.Sorted(maps.Keys(r.Engines)) {
		byVersion[r.Engines[url]] = append(byVersion[r.Engines[url]], url)
	}
	for _, v := range slices.Sorted(maps.Keys(byVersion)) {
		list = append(list, fmt.Sprintf("engines of version %s: %s", v, strings.Join(byVersion[v], ", ")))
	}
	p := &r.Plan
	what := fmt.Sprintf("synthetic conversations of %d turns, %d new tokens a turn, %d tokens a reply", p.Turns, p.New, p.Reply)
	if p.Source != "" {
		what = p.Source
	}
	return append(list, fmt.Sprintf("%s; %d of %d groups measured", what, r.GroupsDone, r.GroupsDone+r.GroupsLeft))
}

// ttftRows is a row for every cell and arm, with TTFT and what is known about it.
func (r *Report) ttftRows(at setting, side func(*ArmReport) *Side, turns string) [][]string {
	rows := [][]string{{"length", "prompt tokens", "arm", "n", "p50 [95 %]", "p95", "p99", "mean", "cached", "failed", "against " + r.Base}}
	for c := range r.in(at) {
		for j := range c.Arms {
			a := &c.Arms[j]
			s := side(a)
			if s.Turns+s.Failed == 0 {
				continue
			}
			row := []string{c.length(), "–", a.Arm, fmt.Sprint(s.Turns), withInterval(s.TTFT), optional(p95(s.TTFT)), optional(p99(s.TTFT)), "–", "–", fmt.Sprint(s.Failed), "–"}
			if s.Prompt > 0 {
				row[1] = fmt.Sprintf("%.0f", s.Prompt)
			}
			if s.TTFT != nil {
				row[7] = number(s.TTFT.Mean)
			}
			if s.Cached != nil {
				row[8] = fmt.Sprintf("%.0f %%", 100**s.Cached)
			}
			for _, m := range c.Comparisons {
				if m.Arm == a.Arm && m.Turns == turns && m.Metric == "ttft_ms" {
					row[10] = m.String()
				}
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// String says a comparison in a few words.
func (c *Comparison) String() string {
	if c.RatioInterval == nil {
		return fmt.Sprintf("%.2f×, %s", c.Ratio, c.Verdict)
	}
	s := fmt.Sprintf("%.2f× [%.2f, %.2f]", c.Ratio, c.RatioInterval.Low, c.RatioInterval.High)
	if c.Verdict == VerdictNone {
		s += ", " + c.Verdict
	}
	return s
}

func (r *Report) restRows(at setting) [][]string {
	rows := [][]string{{"length", "arm", "ITL p50", "ITL p95", "ITL p99", "TPOT p50 [95 %]", "total p50 [95 %]", "total p95", "P call p50", "D first p50"}}
	for c := range r.in(at) {
		for _, a := range c.Arms {
			if a.Later.Turns > 0 {
				s := &a.Later
				rows = append(rows, []string{
					c.length(), a.Arm, optional(p50(s.ITL)), optional(p95(s.ITL)), optional(p99(s.ITL)), withInterval(s.TPOT), withInterval(s.Total),
					optional(p95(s.Total)), optional(p50(s.P)), optional(p50(s.D)),
				})
			}
		}
	}
	return rows
}

func (r *Report) comparisonRows(at setting) [][]string {
	rows := [][]string{{"length", "metric", "arm", "conversations", "ratio [95 %]", "difference, ms [95 %]", "verdict"}}
	for c := range r.in(at) {
		for _, m := range c.Comparisons {
			if m.Turns != "later" {
				continue
			}
			ratio, diff := fmt.Sprintf("%.3f", m.Ratio), number(m.Difference)
			if m.RatioInterval != nil {
				ratio = fmt.Sprintf("%.3f [%.3f, %.3f]", m.Ratio, m.RatioInterval.Low, m.RatioInterval.High)
			}
			if m.DifferenceInterval != nil {
				diff = fmt.Sprintf("%s [%s, %s]", number(m.Difference), number(m.DifferenceInterval.Low), number(m.DifferenceInterval.High))
			}
			rows = append(rows, []string{c.length(), strings.TrimSuffix(m.Metric, "_ms"), m.Arm, fmt.Sprint(m.Conversations), ratio, diff, m.Verdict})
		}
	}
	return rows
}

func (r *Report) answerRows() [][]string {
	rows := [][]string{{"arm", "answers compared", "equal", "of later turns", "equal", "first that differs"}}
	for _, a := range r.Answers {
		where := "–"
		if len(a.Differ) > 0 {
			d := a.Differ[0]
			where = fmt.Sprintf("group %d, conversation %d, turn %d, byte %d (%s)", d.Group, d.Conv, d.Turn, d.At, d.Cell)
		}
		rows = append(rows, []string{a.Arm, fmt.Sprint(a.Compared), fmt.Sprint(a.Equal), fmt.Sprint(a.Later), fmt.Sprint(a.LaterEqual), where})
	}
	return rows
}

// engineRows is what proves that KV was found, moved or computed. All that moved is in the JSON report.
func (r *Report) engineRows(at setting) [][]string {
	const bySource = `vllm:prompt_tokens_by_source_total{source="%s"}`
	rows := [][]string{{
		"length", "arm", "engine", "prompt tokens from its cache", "read from the other", "computed", "reads", "MB", "failed", "expired", "read too late",
		"preempted", "KV in use after",
	}}
	for c := range r.in(at) {
		for _, a := range c.Arms {
			for _, e := range a.Engines {
				count := func(format string, args ...any) string {
					return fmt.Sprintf("%.0f", e.Delta[fmt.Sprintf(format, args...)])
				}
				use := "–"
				if v, ok := e.After[kvUsage]; ok {
					use = fmt.Sprintf("%.1f %%", 100*v)
				}
				rows = append(rows, []string{
					c.length(), a.Arm, e.Engine, count(bySource, "local_cache_hit"), count(bySource, "external_kv_transfer"), count(bySource, "local_compute"),
					count("vllm:nixl_bytes_transferred_count"), fmt.Sprintf("%.1f", e.Delta["vllm:nixl_bytes_transferred_sum"]/1e6), count(failedTransfers),
					count("vllm:nixl_num_kv_expired_reqs_total"), count(lateReads), count("vllm:num_preemptions_total"), use,
				})
			}
		}
	}
	return rows
}

func (r *Report) prepareRows(at setting) [][]string {
	rows := [][]string{{"length", "arm", "after", "n", "p50 [95 %]", "p95", "failed"}}
	for c := range r.in(at) {
		for _, a := range c.Arms {
			for i, s := range []*Side{&a.Turn1, &a.Later} {
				if s.Prepare != nil {
					after := []string{"turn 1", "later turns"}[i]
					rows = append(rows, []string{c.length(), a.Arm, after, fmt.Sprint(s.Prepare.Values), withInterval(s.Prepare), optional(p95(s.Prepare)), fmt.Sprint(s.PrepareFailed)})
				}
			}
		}
	}
	return rows
}

func p50(s *Summary) *float64 {
	if s == nil {
		return nil
	}
	return &s.P50
}

func p95(s *Summary) *float64 {
	if s == nil {
		return nil
	}
	return s.P95
}

func p99(s *Summary) *float64 {
	if s == nil {
		return nil
	}
	return s.P99
}

// number has about three digits.
func number(v float64) string {
	abs := max(v, -v)
	switch {
	case abs >= 100:
		return fmt.Sprintf("%.0f", v)
	case abs >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func optional(v *float64) string {
	if v == nil {
		return "–"
	}
	return number(*v)
}

func withInterval(s *Summary) string {
	switch {
	case s == nil:
		return "–"
	case s.P50Interval == nil:
		return number(s.P50)
	}
	return fmt.Sprintf("%s [%s, %s]", number(s.P50), number(s.P50Interval.Low), number(s.P50Interval.High))
}

// writeTable writes rows, the first being the head, as a Markdown table.
func writeTable(w io.Writer, rows [][]string) {
	for i, row := range rows {
		for _, c := range row {
			fmt.Fprintf(w, "| %s ", strings.ReplaceAll(c, "|", `\|`))
		}
		fmt.Fprintln(w, "|")
		if i == 0 {
			fmt.Fprintln(w, strings.Repeat("|--", len(row))+"|")
		}
	}
}
