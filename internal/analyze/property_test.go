package analyze

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// conversationsOf draws conversations of raw texts. If append only, each prompt begins with the one before it.
func conversationsOf(t *rapid.T, appendOnly bool) []any {
	var log []any
	at := 0
	text := rapid.StringOfN(rapid.RuneFrom([]rune("ab ü\n→🙂")), 0, 12, -1)
	for c := range rapid.IntRange(1, 4).Draw(t, "conversations") {
		prompt := ""
		for range rapid.IntRange(1, 7).Draw(t, "turns") {
			reply := text.Draw(t, "reply")
			if !appendOnly && len(prompt) > 0 && rapid.Bool().Draw(t, "edit") {
				r := []rune(prompt)
				k := rapid.IntRange(0, len(r)-1).Draw(t, "at")
				prompt = string(r[:k]) + text.Draw(t, "instead") + string(r[min(len(r), k+rapid.IntRange(0, 3).Draw(t, "less")):])
			}
			prompt += text.Draw(t, "new")
			at += rapid.IntRange(1, 900).Draw(t, "gap")
			log = append(log, m{"session_id": fmt.Sprint("c", c), "ts": 1000 + at, "input": prompt, "output": reply})
			if rapid.Bool().Draw(t, "send reply back") {
				prompt += reply
			}
		}
	}
	return log
}

// Where histories only grow, the share by counts is a lower bound of the share by content. Everywhere, what two
// prompts have in common is at most the shorter of them, and the best of all earlier is at least the previous.
func TestShareBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		appendOnly := rapid.Bool().Draw(rt, "append only")
		log := conversationsOf(rt, appendOnly)
		r := report(t, lines(t, log...))
		s := r.Share
		if r.RepeatedPromptShare == nil {
			return
		}
		counts, previous, reply, best := *r.RepeatedPromptShare, *s.Previous, *s.PreviousReply, *s.Best
		if !(0 <= previous && previous <= counts && previous <= reply && previous <= best && max(reply, best) <= 1) {
			rt.Fatalf("previous %g, counts %g, with reply %g, best %g: want previous <= each of them, none above 1", previous, counts, reply, best)
		}
		if appendOnly && (counts > max(reply, best) || counts != previous || r.History.Changed != 0) {
			rt.Fatalf("histories only grow, but counts %g, previous %g, with reply %g, best %g, changed %d", counts, previous, reply, best, r.History.Changed)
		}
		for i := 1; i < len(s.Blocks); i++ {
			if b := *s.Blocks[i].Share; b > max(reply, best)+1e-6 {
				rt.Fatalf("blocks of %d reuse %g, more than the content's %g", s.Blocks[i].BlockSize, b, max(reply, best))
			}
		}
	})
}

// The three numbers, computed in the plainest way.
func TestThreeNumbersAgainstPlainCode(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		type request struct {
			conv   string
			ts     float64
			tokens int64
		}
		var all []request
		var log []any
		ttl := rapid.IntRange(1, 600).Draw(rt, "ttl")
		for range rapid.IntRange(1, 40).Draw(rt, "requests") {
			q := request{
				fmt.Sprint(rapid.IntRange(0, 5).Draw(rt, "conv")), float64(rapid.IntRange(0, 100000).Draw(rt, "ts")) / 10,
				int64(rapid.IntRange(0, 5000).Draw(rt, "tokens")),
			}
			all = append(all, q)
			log = append(log, m{"conversation_id": q.conv, "ts": q.ts, "prompt_tokens": q.tokens})
		}
		slices.SortStableFunc(all, func(a, b request) int { return cmp.Compare(a.ts, b.ts) })
		last := map[string]request{}
		var turns, late, repeated, total int64
		for _, q := range all {
			if p, ok := last[q.conv]; ok {
				turns++
				repeated += min(p.tokens, q.tokens)
				total += q.tokens
				if math.Round((q.ts-p.ts)*10) > float64(10*ttl) {
					late++
				}
			}
			last[q.conv] = q
		}
		r := report(t, lines(t, log...), seconds10(ttl))
		type three struct {
			Turns           int64
			Repeated, Share string
		}
		want := three{turns, show(ratio(repeated, total)), show(ratio(late, turns))}
		if diff := gocmp.Diff(want, three{r.FollowUpTurns, show(r.RepeatedPromptShare), show(r.LateTurnsShare)}); diff != "" {
			rt.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

func reportJSON(t testing.TB, r *Report) string {
	t.Helper()
	r.Input.Spilled, r.Input.Bytes = 0, 0
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The order of lines and the memory at hand change nothing.
func TestOrderAndMemoryDoNotMatter(t *testing.T) {
	t.Parallel()
	log := growing("x", 9, 31, func(i int) string { return words("s", 40) + fmt.Sprint(i%3) })
	log = append(log, growing("y", 7, 17, func(int) string { return words("z", 40) })...)
	for i := range 60 {
		log = append(log, m{"conversation_id": fmt.Sprint(i % 7), "ts": 1.76e9 + float64(i)*13.7, "prompt_tokens": 100 * i, "completion_tokens": i})
	}
	for i := range 12 {
		log = append(log, m{"timestamp": 1000 * i, "input_length": 512*i + 600, "hash_ids": slices.Repeat([]int{1}, i+2)})
	}
	text := strings.SplitAfter(strings.TrimSpace(lines(t, log...))+"\n", "\n")
	want := reportJSON(t, report(t, strings.Join(text, "")))
	for i, spill := range []int64{2000, 5000, 9000, 20000, 1 << 30} {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		order := slices.Clone(text)
		random.Shuffle(len(order), func(a, b int) { order[a], order[b] = order[b], order[a] })
		r := report(t, strings.Join(order, ""), func(o *Options) { o.spillAt = spill })
		if (r.Input.Spilled > 0) != (spill < 1<<30) {
			t.Errorf("budget %d: %d bytes on disk", spill, r.Input.Spilled)
		}
		// Where an issue was seen first depends on the order; there are none here.
		if diff := gocmp.Diff(want, reportJSON(t, r)); diff != "" {
			t.Fatalf("budget %d (-in order, in memory +shuffled, on disk):\n%s", spill, diff)
		}
	}
}

func TestSorterAgainstSort(t *testing.T) {
	t.Parallel()
	// 66 runs are folded into one and two; a run costs a compressor, so few are drawn.
	for i, budget := range []int64{1, 700, 2500, 6000, 1 << 20} {
		random := rand.New(rand.NewPCG(2, uint64(i)))
		s := &sorter{ctx: context.Background(), budget: budget, tempDir: t.TempDir(), byTime: i%2 == 0}
		type entry struct {
			r       row
			content string
		}
		var want, got []entry
		for k := range 66 {
			r := newRow()
			r.conv, r.start, r.seq = 1+random.Uint64N(4), random.Int64N(7)-3, uint64(k)
			r.model, r.kind, r.flags, r.dur = 7, textContent, linked, int64(k)
			e := entry{r, strings.Repeat(string(rune('a'+k%26)), random.IntN(60))}
			want = append(want, e)
			if err := s.add(&r, []byte(e.content)); err != nil {
				t.Fatal(err)
			}
		}
		slices.SortStableFunc(want, func(a, b entry) int {
			ka, kb := s.key(&a.r), s.key(&b.r)
			return ka.compare(&kb)
		})
		if err := s.all(func(r *row, b []byte) error { got = append(got, entry{*r, string(b)}); return nil }); err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(want, got, gocmp.AllowUnexported(entry{}, row{})); diff != "" {
			t.Fatalf("budget %d (-sorted +sorter):\n%s", budget, diff)
		}
	}
}

func TestLeavesFindTheBest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		l := leaves{budget: 1 << 20}
		var all [][]byte
		for range rapid.IntRange(1, 40).Draw(rt, "texts") {
			text := []byte(rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 0, 9, -1).Draw(rt, "text"))
			want := 0
			for _, a := range all {
				want = max(want, common(a, text))
			}
			if got, _ := l.best(text); got != want {
				rt.Fatalf("best(%q) among %q = %d, want %d", text, all, got, want)
			}
			l.add(text, len(all))
			all = append(all, text)
		}
	})
}

func TestLeavesStayInBudget(t *testing.T) {
	t.Parallel()
	l := leaves{budget: 1000}
	for i := range 100 {
		l.add(bytes.Repeat([]byte{byte('a' + i%26), byte(i)}, 50), 0)
		if l.bytes > 1000 {
			t.Fatalf("after %d texts %d bytes are held, budget 1000", i+1, l.bytes)
		}
	}
	if !l.shed || len(l.list) != 10 {
		t.Errorf("shed %v, %d texts; want true, 10", l.shed, len(l.list))
	}
}

func TestDistAgainstSort(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(-1<<40, 1<<50), 1, 300).Draw(rt, "values")
		exact, binned := &dist{}, &dist{plus: make([]int64, bins), minus: make([]int64, bins)}
		for _, v := range values {
			exact.add(v)
			binned.add(v)
		}
		slices.Sort(values)
		for _, q := range []float64{0, 1, 5, 25, 50, 75, 90, 95, 99, 100} {
			want := values[min(len(values)-1, int(float64(len(values))*q/100))]
			if got := exact.at(q); got != want {
				rt.Fatalf("p%g = %d, want %d", q, got, want)
			}
			if got := binned.at(q); math.Abs(float64(got-want)) > math.Abs(float64(want))/1000 {
				rt.Fatalf("binned p%g = %d, want %d within 0.1 %%", q, got, want)
			}
		}
	})
}

func TestTimelineAgainstSweep(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		var line timeline
		type change struct{ at, v int64 }
		var all []change
		span := rapid.SampledFrom([]int64{5000, 5_000_000, 400_000_000}).Draw(rt, "span in ms")
		for range rapid.IntRange(1, 60).Draw(rt, "intervals") {
			from := rapid.Int64Range(-span, span).Draw(rt, "from") * firstWidth
			to := from + rapid.Int64Range(0, span).Draw(rt, "length")*firstWidth
			v := rapid.Int64Range(1, 1000).Draw(rt, "v")
			all = append(all, change{from, v}, change{to, -v})
			line.add(from, v)
			line.add(to, -v)
		}
		// A sweep at the timeline's own width.
		slices.SortFunc(all, func(a, b change) int { return cmp.Compare(floorDiv(a.at, line.width), floorDiv(b.at, line.width)) })
		level, peak := int64(0), int64(0)
		for i, c := range all {
			level += c.v
			if i+1 == len(all) || floorDiv(all[i+1].at, line.width) != floorDiv(c.at, line.width) {
				peak = max(peak, level)
			}
		}
		if got := line.peak(); got != peak {
			rt.Fatalf("peak %d at width %d ms, want %d", got, line.width/firstWidth, peak)
		}
		if l := line.levels(); l[len(l)-1] != 0 {
			rt.Fatalf("the last level is %d, want 0", l[len(l)-1])
		}
	})
}

// A piece is put into, taken from or replaced in a text of unique words: resume finds where the texts meet.
func TestResumeFindsTheGap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		tail := words("w", 40)
		digits := rapid.StringOfN(rapid.RuneFrom([]rune("0123456789")), 0, 30, -1)
		x, y := digits.Draw(rt, "before"), digits.Draw(rt, "after")
		a, b := []byte(x+tail), []byte(y+tail)
		if len(x) > 0 && len(y) > 0 && x[0] == y[0] || x == "" && y == "" {
			return // they would not differ in their first byte
		}
		i, j, n := resume(a, b)
		if len(x)-i != len(y)-j || i > len(x) || n < len(tail) {
			rt.Fatalf("resume(%q…, %q…) = %d, %d, %d; want the tail of %d bytes behind %d and %d", x, y, i, j, n, len(tail), len(x), len(y))
		}
	})
}
