package bench

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Verdicts of a comparison.
const (
	VerdictLess = "less"                // the interval of the ratio lies below 1
	VerdictMore = "more"                // it lies above
	VerdictNone = "no difference shown" // it covers 1
	VerdictFew  = "too few conversations"
)

// Report is what a run measured. Its JSON form is documented in docs/bench.md and is stable. Times are milliseconds.
type Report struct {
	Version     string            `json:"version"`
	Host        string            `json:"host"`
	RunID       string            `json:"run_id"`
	Started     time.Time         `json:"started"`
	Note        string            `json:"note,omitempty"`
	Model       string            `json:"model"`
	Engines     map[string]string `json:"engines,omitempty"`
	Plan        Plan              `json:"plan"`
	Calibration Calibration       `json:"calibration"`
	GroupsDone  int               `json:"groups_done"`
	GroupsLeft  int               `json:"groups_left"` // of a run that was stopped
	Base        string            `json:"base"`
	Cells       []CellReport      `json:"cells"`
	Answers     []AnswerReport    `json:"answers"`
	Warnings    []string          `json:"warnings"`
	Definitions []string          `json:"definitions"`
}

// CellReport is one combination of conditions.
type CellReport struct {
	Cell        Cell         `json:"cell"`
	Groups      int          `json:"groups"`
	Arms        []ArmReport  `json:"arms"`
	Comparisons []Comparison `json:"comparisons"`
}

// ArmReport is one arm in one cell.
type ArmReport struct {
	Arm      string         `json:"arm"`
	Turn1    Side           `json:"turn_1"`
	Later    Side           `json:"later_turns"`
	Failures map[string]int `json:"failures,omitempty"` // turns by kind
	NotSent  int            `json:"not_sent"`           // turns of conversations that had failed before
	Retried  int            `json:"retried,omitempty"`  // pd: P failed with a handle and was asked again without
	Engines  []EngineReport `json:"engines,omitempty"`

	ttfts []float64 // of later turns, sorted
}

// Side is turn 1 or the later turns. Metrics without values are nil.
type Side struct {
	Turns  int      `json:"turns"`
	Failed int      `json:"failed"`
	TTFT   *Summary `json:"ttft_ms"`
	ITL    *Summary `json:"itl_ms"`
	TPOT   *Summary `json:"tpot_ms"`
	Total  *Summary `json:"total_ms"`
	P      *Summary `json:"p_ms,omitempty"`
	D      *Summary `json:"d_ms,omitempty"`
	Late   *Summary `json:"late_ms,omitempty"` // of turns that were sent more than 5 ms after they were meant to start
	Prompt float64  `json:"prompt_tokens"`     // median
	// Cached is the median share of the prompt that the answers say was not computed; nil if none says. For a pd arm
	// it is P's number, for append D's.
	Cached *float64 `json:"cached_share"`
	// Prepare is how long the arm worked between turns; PrepareFailed how often that failed.
	Prepare       *Summary `json:"prepare_ms,omitempty"`
	PrepareFailed int      `json:"prepare_failed,omitempty"`
}

// EngineReport is what an engine's metrics say moved during the blocks of an arm.
type EngineReport struct {
	Engine string             `json:"engine"`
	Delta  map[string]float64 `json:"delta"`
	After  map[string]float64 `json:"after"` // gauges after the last block
	Errors int                `json:"errors,omitempty"`
}

// Comparison is an arm against the baseline over the conversations that both have played.
type Comparison struct {
	Arm                string    `json:"arm"`
	Turns              string    `json:"turns"`  // "1", "later"
	Metric             string    `json:"metric"` // "ttft_ms", "tpot_ms", "total_ms"
	Pairs              int       `json:"pairs"`  // of turns
	Conversations      int       `json:"conversations"`
	Ratio              float64   `json:"ratio"` // of medians, arm to baseline
	RatioInterval      *Interval `json:"ratio_interval"`
	Difference         float64   `json:"difference_ms"` // median over pairs, arm minus baseline
	DifferenceInterval *Interval `json:"difference_interval"`
	Verdict            string    `json:"verdict"`
}

// AnswerReport is the comparison of an arm's answers with the baseline's.
type AnswerReport struct {
	Arm      string `json:"arm"`
	Compared int    `json:"compared"` // turns
	Equal    int    `json:"equal"`
	// Later is how many of them were turns after the first, with LaterEqual of these equal.
	Later      int             `json:"later"`
	LaterEqual int             `json:"later_equal"`
	Differ     []AnswerDiffers `json:"differ,omitempty"` // at most 20
}

// AnswerDiffers names a turn that was answered otherwise.
type AnswerDiffers struct {
	Cell  string `json:"cell"`
	Group int    `json:"group"`
	Conv  int    `json:"conv"`
	Turn  int    `json:"turn"`
	At    int    `json:"at"` // first byte that differs
}

// resamples is how many times the bootstrap draws.
const resamples = 4000

// buildReport computes the report of complete groups.
func buildReport(h *Header, groups []group, left int) *Report {
	p := &h.Plan
	r := &Report{
		Version: h.Version, Host: h.Host, RunID: h.RunID, Started: h.Started, Note: p.Note, Model: h.Model, Engines: h.Engines, Plan: *p,
		Calibration: h.Calibration, GroupsDone: len(groups), GroupsLeft: left, Base: p.base().Name, Definitions: definitions(p),
	}
	for _, cell := range p.cells() {
		var in []group
		for _, g := range groups {
			if g.Cell == cell {
				in = append(in, g)
			}
		}
		if len(in) > 0 {
			r.Cells = append(r.Cells, r.cell(cell, in))
		}
	}
	r.Answers = answers(p, groups)
	r.Warnings = r.warnings(p, groups)
	return r
}

// convKey names a conversation of a cell.
type convKey struct{ repeat, conv int }

// table are the turns of an arm in a cell, without failures.
type table map[convKey]map[int]*TurnRecord

func (t table) keys() []convKey {
	return slices.SortedFunc(maps.Keys(t), func(a, b convKey) int {
		return cmp.Or(cmp.Compare(a.repeat, b.repeat), cmp.Compare(a.conv, b.conv))
	})
}

// clusters are values of the turns that in picks.
func (t table) clusters(in func(turn int) bool, values func(*TurnRecord) []float64) clusters {
	var c clusters
	for _, key := range t.keys() {
		var list []float64
		for _, turn := range slices.Sorted(maps.Keys(t[key])) {
			if in(turn) {
				list = append(list, values(t[key][turn])...)
			}
		}
		if len(list) > 0 {
			c = append(c, list)
		}
	}
	return c
}

func turn1(turn int) bool      { return turn == 1 }
func laterTurns(turn int) bool { return turn > 1 }

// one makes a value of a turn, or none.
func one(v float64, ok bool) []float64 {
	if !ok {
		return nil
	}
	return []float64{v}
}

func ttft(t *TurnRecord) []float64  { return one(t.TTFT, true) }
func total(t *TurnRecord) []float64 { return one(t.Total, true) }

// tpot is the mean time per output token after the first.
func tpot(t *TurnRecord) []float64 {
	return one((t.Total-t.TTFT)/float64(t.Completion-1), t.Completion > 1)
}

// tables are the turns by arm, and what failed.
func tables(p *Plan, groups []group) map[string]table {
	all := map[string]table{}
	for _, a := range p.Arms {
		all[a.Name] = table{}
	}
	for _, g := range groups {
		for i := range g.turns {
			t := &g.turns[i]
			if t.Error != "" || all[t.Arm] == nil {
				continue
			}
			key := convKey{g.Repeat, t.Conv}
			if all[t.Arm][key] == nil {
				all[t.Arm][key] = map[int]*TurnRecord{}
			}
			all[t.Arm][key][t.Turn] = t
		}
	}
	return all
}

func (r *Report) cell(cell Cell, groups []group) CellReport {
	p := &r.Plan
	c := CellReport{Cell: cell, Groups: len(groups)}
	all := tables(p, groups)
	rng := func() *rand.Rand { return rand.New(rand.NewPCG(p.Seed, 1)) } // the same report from the same journal
	for _, a := range p.Arms {
		t := all[a.Name]
		ar := ArmReport{Arm: a.Name, Turn1: side(t, turn1, rng), Later: side(t, laterTurns, rng), Failures: map[string]int{}}
		for _, g := range groups {
			for _, t := range g.turns {
				if t.Arm != a.Name {
					continue
				}
				if t.Error != "" {
					ar.Failures[t.Error]++
					if turn1(t.Turn) {
						ar.Turn1.Failed++
					} else {
						ar.Later.Failed++
					}
				}
				if t.Retried {
					ar.Retried++
				}
			}
			ar.NotSent += notSent(g, a.Name)
		}
		ar.Engines = engines(a.Name, groups)
		ar.ttfts = t.clusters(laterTurns, ttft).all()
		slices.Sort(ar.ttfts)
		c.Arms = append(c.Arms, ar)
	}
	base := all[r.Base]
	for _, a := range p.Arms {
		if a.Name == r.Base {
			continue
		}
		for _, turns := range []struct {
			name string
			in   func(int) bool
		}{{"1", turn1}, {"later", laterTurns}} {
			for _, m := range []struct {
				name   string
				values func(*TurnRecord) []float64
			}{{"ttft_ms", ttft}, {"tpot_ms", tpot}, {"total_ms", total}} {
				if cmp, ok := compareArms(all[a.Name], base, turns.in, m.values, rng()); ok {
					cmp.Arm, cmp.Turns, cmp.Metric = a.Name, turns.name, m.name
					c.Comparisons = append(c.Comparisons, cmp)
				}
			}
		}
	}
	return c
}

// notSent counts turns that another arm reached and this one did not, because its conversation had failed.
func notSent(g group, arm string) int {
	reached, own, broken := map[int]int{}, map[int]int{}, map[int]bool{}
	for _, t := range g.turns {
		reached[t.Conv] = max(reached[t.Conv], t.Turn)
		if t.Arm == arm {
			own[t.Conv] = max(own[t.Conv], t.Turn)
			broken[t.Conv] = broken[t.Conv] || t.Error != ""
		}
	}
	n := 0
	for conv := range broken {
		if broken[conv] {
			n += reached[conv] - own[conv]
		}
	}
	return n
}

// lateMs is how much later than meant a turn has to be sent to be called late, in ms: timers are not exact.
const lateMs = 5

func side(t table, in func(int) bool, rng func() *rand.Rand) Side {
	sum := func(values func(*TurnRecord) []float64) *Summary {
		return summarize(t.clusters(in, values), resamples, rng())
	}
	s := Side{
		TTFT: sum(ttft), Total: sum(total), TPOT: sum(tpot),
		ITL:     sum(func(t *TurnRecord) []float64 { return t.Gaps }),
		P:       sum(func(t *TurnRecord) []float64 { return one(t.P, t.P > 0) }),
		D:       sum(func(t *TurnRecord) []float64 { return one(t.D, t.D > 0) }),
		Late:    sum(func(t *TurnRecord) []float64 { return one(t.Late, t.Late >= lateMs) }),
		Prepare: sum(func(t *TurnRecord) []float64 { return one(t.PrepareMs, t.PrepareMs > 0) }),
	}
	if s.TTFT != nil {
		s.Turns = s.TTFT.Values
	}
	prompts := t.clusters(in, func(t *TurnRecord) []float64 { return one(float64(t.Prompt), t.Prompt > 0) }).all()
	if len(prompts) > 0 {
		s.Prompt = median(prompts)
	}
	cached := t.clusters(in, func(t *TurnRecord) []float64 {
		n := cmp.Or(t.PCached, t.Cached)
		if n == nil || t.Prompt == 0 {
			return nil
		}
		return one(float64(*n)/float64(t.Prompt), true)
	}).all()
	if len(cached) > 0 {
		m := median(cached)
		s.Cached = &m
	}
	for _, turns := range t {
		for turn, rec := range turns {
			if in(turn) && rec.PrepareError != "" {
				s.PrepareFailed++
			}
		}
	}
	return s
}

// compareArms compares turns that both arms have played; false if there are none, or no ratio.
func compareArms(arm, base table, in func(int) bool, values func(*TurnRecord) []float64, rng *rand.Rand) (Comparison, bool) {
	var p paired
	for _, key := range arm.keys() {
		var a, b []float64
		for _, turn := range slices.Sorted(maps.Keys(arm[key])) {
			other := base[key][turn]
			if !in(turn) || other == nil {
				continue
			}
			va, vb := values(arm[key][turn]), values(other)
			if len(va) == 1 && len(vb) == 1 {
				a, b = append(a, va[0]), append(b, vb[0])
			}
		}
		if len(a) > 0 {
			p.arm, p.base = append(p.arm, a), append(p.base, b)
		}
	}
	if len(p.arm) == 0 {
		return Comparison{}, false
	}
	c := Comparison{Pairs: len(p.arm.all()), Conversations: len(p.arm), Verdict: VerdictFew}
	var ci Interval
	var ok bool
	c.Ratio, ci, ok = p.ratio(resamples, rng)
	if math.IsNaN(c.Ratio) || math.IsInf(c.Ratio, 0) {
		return Comparison{}, false // the baseline's median is 0: whole answers in one read
	}
	if ok {
		c.RatioInterval = &ci
		switch {
		case ci.covers(1):
			c.Verdict = VerdictNone
		case ci.High < 1:
			c.Verdict = VerdictLess
		default:
			c.Verdict = VerdictMore
		}
	}
	var dci Interval
	if c.Difference, dci, ok = p.difference(resamples, rng); ok {
		c.DifferenceInterval = &dci
	}
	return c, true
}

// engines adds up what moved.
func engines(arm string, groups []group) []EngineReport {
	var list []EngineReport
	for _, g := range groups {
		for _, m := range g.metrics {
			if m.Arm != arm {
				continue
			}
			i := slices.IndexFunc(list, func(e EngineReport) bool { return e.Engine == m.Engine })
			if i < 0 {
				list = append(list, EngineReport{Engine: m.Engine, Delta: map[string]float64{}})
				i = len(list) - 1
			}
			if m.Error != "" {
				list[i].Errors++
				continue
			}
			for name, v := range m.Delta {
				list[i].Delta[name] += v
			}
			list[i].After = m.After
		}
	}
	return list
}

// maxDiffers is how many differing answers are named.
const maxDiffers = 20

func answers(p *Plan, groups []group) []AnswerReport {
	list := []AnswerReport{}
	if p.Separate == SeparateWords {
		return list
	}
	for _, a := range p.Arms {
		if a.Name == p.base().Name {
			continue
		}
		r := AnswerReport{Arm: a.Name}
		for _, g := range groups {
			for _, w := range g.answers {
				if w.Arm != a.Name {
					continue
				}
				r.Compared++
				if w.Turn > 1 {
					r.Later++
				}
				if w.Equal {
					r.Equal++
					if w.Turn > 1 {
						r.LaterEqual++
					}
				} else if len(r.Differ) < maxDiffers {
					r.Differ = append(r.Differ, AnswerDiffers{g.Cell.String(), g.Group, w.Conv, w.Turn, w.At})
				}
			}
		}
		list = append(list, r)
	}
	return list
}

// warnings are what a reader should know before believing the numbers.
func (r *Report) warnings(p *Plan, groups []group) []string {
	list := []string{}
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if r.GroupsLeft > 0 {
		add("stopped early: %d of %d groups were measured", r.GroupsDone, r.GroupsDone+r.GroupsLeft)
	}
	if r.Calibration.Guessed && len(p.Lengths) > 0 {
		add("%s does not count prompt tokens, so prompt lengths assume %g bytes per token", r.Base, r.Calibration.BytesPerToken)
	}
	if p.Separate == SeparateWords {
		add("answers were not compared: with --separate words the arms have different prompts")
	}
	full := map[string]float64{} // engine → largest share of KV in use after a block
	for _, c := range r.Cells {
		for _, a := range c.Arms {
			if a.Turn1.Cached != nil && *a.Turn1.Cached > 0.1 {
				add("%s, %s: %.0f %% of turn 1 was in a prefix cache already, so prompts meet across arms or runs; see --separate", a.Arm, c.Cell, 100**a.Turn1.Cached)
			}
			if n := sum(a.Failures); n > 0 {
				add("%s, %s: %d turns failed (%s) and %d were not sent for that; latencies are of the others", a.Arm, c.Cell, n, counts(a.Failures), a.NotSent)
			}
			if n := a.Turn1.PrepareFailed + a.Later.PrepareFailed; n > 0 {
				add("%s, %s: what the arm does between turns failed %d times: %s", a.Arm, c.Cell, n, firstPrepareError(groups, a.Arm))
			}
			if l := a.Later.Late; l != nil && !c.Cell.Load.Trace {
				why := "this machine was busy"
				if p.arm(a.Arm).Policy == PolicyReturn {
					why = "they waited for the return, which a longer --think would hide"
				}
				add("%s, %s: %d turns were sent late, by %.0f ms in the median, and that is in their TTFT: %s", a.Arm, c.Cell, l.Values, l.P50, why)
			}
			for _, e := range a.Engines {
				if e.Errors > 0 {
					add("%s, %s: metrics of %s could not be read for %d blocks", a.Arm, c.Cell, e.Engine, e.Errors)
				}
				for _, name := range []string{lateReads, failedTransfers} {
					if v := e.Delta[name]; v > 0 {
						add("%s, %s: %s moved by %g on %s", a.Arm, c.Cell, name, v, e.Engine)
					}
				}
				full[e.Engine] = max(full[e.Engine], e.After[kvUsage])
			}
		}
	}
	for _, e := range slices.Sorted(maps.Keys(full)) {
		if full[e] > 0.5 {
			add("%.0f %% of the KV of %s was still in use after a block: blocks kept for turns that will not come. Where streams carry no handle (before vLLM 0.33) only a short decoder_kv_blocks_ttl frees them", 100*full[e], e)
		}
	}
	for _, a := range r.Answers {
		if a.Equal < a.Compared {
			add("%s: %d of %d answers differ from %s's", a.Arm, a.Compared-a.Equal, a.Compared, r.Base)
		}
	}
	return list
}

func firstPrepareError(groups []group, arm string) string {
	for _, g := range groups {
		for _, t := range g.turns {
			if t.Arm == arm && t.PrepareError != "" {
				return t.PrepareError
			}
		}
	}
	return ""
}

func sum(m map[string]int) int {
	n := 0
	for _, v := range m {
		n += v
	}
	return n
}

func counts(m map[string]int) string {
	var list []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		list = append(list, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(list, ", ")
}
