package analyze

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// growing is a conversation of n turns whose system prompt system(turn) writes; user messages and replies are
// distinct and of some length.
func growing(id string, n int, gap float64, system func(int) string) []any {
	var out []any
	var history []any
	for i := range n {
		history = append(history, said("user", words(fmt.Sprintf("u%s%d-", id, i), 30)))
		messages := append([]any{said("system", system(i))}, history...)
		answer := said("assistant", words(fmt.Sprintf("a%s%d-", id, i), 30))
		out = append(out, chat(id, 1.76e9+float64(i)*gap, messages, answer))
		history = append(history, answer)
	}
	return out
}

func TestAppendOnlyChatHasNoPatterns(t *testing.T) {
	t.Parallel()
	r := report(t, lines(t, growing("c", 12, 30, func(int) string { return words("s", 200) })...))
	if len(r.Findings) > 0 {
		t.Errorf("findings = %+v, want none", r.Findings)
	}
	if r.FollowUpTurns != 11 || *r.Share.Previous != *r.RepeatedPromptShare || *r.Share.PreviousReply < *r.Share.Previous {
		t.Errorf("follow-ups %d, by counts %s, by content %s, with reply %s", r.FollowUpTurns, show(r.RepeatedPromptShare), show(r.Share.Previous), show(r.Share.PreviousReply))
	}
}

// The reasoning that the engine generated is not in the next prompt; (a) and (b) are two names of one member.
func TestF02ReasoningRenamedOrDropped(t *testing.T) {
	t.Parallel()
	thought, answer := words("think", 400), words("answer", 60)
	first := []any{said("system", words("s", 100)), said("user", "why?")}
	for name, c := range map[string]struct {
		back m
		want []string
	}{
		"a same name":         {m{"role": "assistant", "content": answer, "reasoning": thought}, nil},
		"b old name":          {m{"role": "assistant", "content": answer, "reasoning_content": thought}, nil},
		"c neither":           {m{"role": "assistant", "content": answer}, []string{"reasoning-dropped"}},
		"d both, and unequal": {m{"role": "assistant", "content": answer, "reasoning": thought, "reasoning_content": "other"}, []string{"reply-changed"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reply := m{"role": "assistant", "content": answer, "reasoning": thought}
			next := append(append([]any{}, first...), c.back, said("user", "and now?"))
			r := report(t, lines(t, chat("c", 100, first, reply), chat("c", 160, next, nil)))
			if diff := cmp.Diff(c.want, codes(r)); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
			if c.want != nil && c.want[0] == "reasoning-dropped" {
				// What is lost is the answer: D holds it, at a place where the next prompt has it not.
				f := r.Findings[0]
				if f.Lost < int64(len(answer))-8 || f.Lost > int64(len(answer))+8 || f.In != "reasoning" {
					t.Errorf("lost %d in %q, want about %d in reasoning", f.Lost, f.In, len(answer))
				}
			}
		})
	}
}

// The template, or the client, drops earlier thinking of a tool chain once the user speaks.
func TestF03ThinkingDroppedFromHistory(t *testing.T) {
	t.Parallel()
	var history []any
	history = append(history, said("system", words("s", 100)), said("user", "mend it"))
	var log []any
	for i := range 6 {
		call := m{
			"role": "assistant", "content": "", "reasoning": words(fmt.Sprintf("t%d-", i), 80),
			"tool_calls": []any{m{"id": fmt.Sprint(i), "type": "function", "function": m{"name": "run", "arguments": words(fmt.Sprintf("x%d-", i), 20)}}},
		}
		log = append(log, chat("c", float64(100+10*i), append([]any{}, history...), call))
		history = append(history, call, m{"role": "tool", "content": words(fmt.Sprintf("o%d-", i), 60)})
	}
	var stripped []any
	for _, x := range history {
		msg := m{}
		for k, v := range x.(m) {
			if k != "reasoning" {
				msg[k] = v
			}
		}
		stripped = append(stripped, msg)
	}
	log = append(log, chat("c", 400, append(stripped, said("user", "tell me a joke")), nil))
	r := report(t, lines(t, log...))
	f := finding(r, "reasoning-dropped")
	if f == nil {
		t.Fatalf("findings = %v, want reasoning-dropped", codes(r))
	}
	// The break is at the first tool call: behind system prompt and question.
	if f.FollowUps != 1 || *f.Offset < 300 || *f.Offset > 1200 {
		t.Errorf("reasoning-dropped in %d follow-ups at %d, want one at the first call", f.FollowUps, *f.Offset)
	}
}

func TestF04VolatileHead(t *testing.T) {
	t.Parallel()
	hash := []string{"ab12c", "f09e1", "77aa0", "1bc2d", "e5e5f", "90b1a", "c0ffe", "d00d1"}
	r := report(t, lines(t, growing("c", 8, 20, func(i int) string {
		return "x-agent-billing: v=1; h=" + hash[i] + ";\n" + words("rule", 900)
	})...))
	f := finding(r, "volatile-head")
	if f == nil {
		t.Fatalf("findings = %v, want volatile-head", codes(r))
	}
	// One separator stands in front of the system prompt.
	if f.FollowUps != 7 || *f.Offset != 1+int64(len("x-agent-billing: v=1; h=")) || *f.Length != 5 || f.In != "system" {
		t.Errorf("volatile-head: %d follow-ups, offset %d, length %d, in %q; want 7, 25, 5, system", f.FollowUps, *f.Offset, *f.Length, f.In)
	}
	if *f.LostShare < 0.9 {
		t.Errorf("lost share %s, want more than 0.9", show(f.LostShare))
	}
	if r.Verdict.Decision != "stop" || !strings.Contains(r.Verdict.Summary, "prefix breaks") {
		t.Errorf("verdict %q: %s; want stop until the prefix is mended", r.Verdict.Decision, r.Verdict.Summary)
	}
	if r.Lines.SideRequests != 0 {
		t.Errorf("side requests = %d, want 0: a volatile head makes no new line", r.Lines.SideRequests)
	}
}

// Without any id the conversation is found by what was said in it.
func TestF04VolatileHeadWithoutID(t *testing.T) {
	t.Parallel()
	log := growing("c", 8, 20, func(i int) string { return fmt.Sprintf("h=%x;\n", i*7919+65536) + words("rule", 900) })
	for _, l := range log {
		delete(l.(m), "session_id")
	}
	r := report(t, lines(t, log...))
	if r.FollowUpTurns != 7 || r.Conversations != 1 || r.Identity.ByContent != 8 || finding(r, "volatile-head") == nil {
		t.Errorf("follow-ups %d, conversations %d, identity %+v, findings %v", r.FollowUpTurns, r.Conversations, r.Identity, codes(r))
	}
}

func TestF05HeadGrowsEveryTurn(t *testing.T) {
	t.Parallel()
	r := report(t, lines(t, growing("c", 9, 20, func(i int) string {
		s := words("rule", 300)
		for k := range i + 1 {
			s += fmt.Sprintf("<left>%d</left>\n", 14999436-k*1013)
		}
		return s
	})...))
	f := finding(r, "growing-head")
	if f == nil {
		t.Fatalf("findings = %v, want growing-head", codes(r))
	}
	line := int64(len("<left>14999436</left>\n"))
	if f.FollowUps != 8 || f.In != "system" || *f.Length != line || *f.Moves != line {
		t.Errorf("growing-head: %d follow-ups in %q, length %d, moving by %d; want 8 in system, %d, %d", f.FollowUps, f.In, *f.Length, *f.Moves, line, line)
	}
}

func TestF08Clock(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, resolution string
		now              func(conv, turn int) string
	}{
		{"minute", "minute", func(_, i int) string { return fmt.Sprintf("2026-03-01T09:%02d", 10+i) }},
		{"second", "second", func(_, i int) string { return fmt.Sprintf("2026-03-01 09:10:%02d", 10+i) }},
		{"microsecond", "microsecond", func(_, i int) string { return fmt.Sprintf("2026-03-01T09:10:11.%06dZ", 123456+i*7919) }},
		{"day changes", "day", func(_, i int) string { return fmt.Sprintf("2026-03-%02d", 1+i) }},
		{"words", "minute", func(_, i int) string { return fmt.Sprintf("Sunday, March 1, 2026 at 9:%02d", 10+i) }},
		{"Unix seconds", "second", func(_, i int) string { return fmt.Sprint(1772356200 + 37*i) }},
		{"the same day", "", func(int, int) string { return "2026-03-01" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var log []any
			for conv := range 3 {
				log = append(log, growing(fmt.Sprint("c", conv), 20, 45, func(i int) string {
					return words("head", 160) + "now: " + c.now(conv, i) + "\n" + words("tail", 240)
				})...)
			}
			r := report(t, lines(t, log...))
			f := finding(r, "clock-in-prompt")
			if c.resolution == "" {
				if len(r.Findings) > 0 {
					t.Errorf("findings = %v, want silence on the same day", codes(r))
				}
				return
			}
			if f == nil {
				t.Fatalf("findings = %v, want clock-in-prompt", codes(r))
			}
			at := int64(1 + len(words("head", 160)))
			if f.FollowUps != 57 || f.Resolution != c.resolution || *f.Offset < at || *f.Offset > at+60 || *f.LostShare < 0.4 {
				t.Errorf("clock: %d follow-ups, resolution %q, offset %d (prompt head %d), lost %s", f.FollowUps, f.Resolution, *f.Offset, at, show(f.LostShare))
			}
		})
	}
}

func TestF11SideQuery(t *testing.T) {
	t.Parallel()
	tools := []any{m{"type": "function", "function": m{"name": "run", "parameters": m{"type": "object"}}}}
	log := growing("c", 6, 30, func(int) string { return words("agent", 300) })
	for _, l := range log {
		l.(m)["request"].(m)["tools"] = tools
	}
	// Between turns 3 and 4 a suggestion is asked for: the same history behind another system prompt, no tools.
	history := log[3].(m)["request"].(m)["messages"].([]any)
	side := append([]any{said("system", "Suggest what the user may ask next.")}, history[1:]...)
	log = append(log, chat("c", 1.76e9+80, append(side, said("user", "Suggest.")), said("assistant", "Run the tests")))
	r := report(t, lines(t, log...))
	if r.Lines == nil || r.Lines.Conversations != 1 || r.Lines.SideRequests != 1 || r.Lines.SideQueries != 1 {
		t.Fatalf("lines = %+v, want one side query", r.Lines)
	}
	if f := finding(r, "side-queries"); f == nil || f.FollowUps != 1 {
		t.Errorf("findings = %v, want side-queries", codes(r))
	}
	if *r.Lines.MainLineRepeats < 0.8 || *r.Share.Best < *r.Share.Previous {
		t.Errorf("main line repeats %s, best %s, previous %s", show(r.Lines.MainLineRepeats), show(r.Share.Best), show(r.Share.Previous))
	}
	for _, code := range []string{"volatile-head", "volatile-span", "history-edited", "history-rewritten"} {
		if finding(r, code) != nil {
			t.Errorf("the side query is reported as %s too", code)
		}
	}
}

func TestF14CacheControlMarksAreNoChange(t *testing.T) {
	t.Parallel()
	part := func(text string, mark bool) m {
		p := m{"type": "text", "text": text}
		if mark {
			p["cache_control"] = m{"type": "ephemeral"}
		}
		return p
	}
	var log []any
	for i := range 5 {
		var messages []any
		for k := range 2*i + 1 {
			role := []string{"user", "assistant"}[k%2]
			messages = append(messages, m{"role": role, "content": []any{part(words(fmt.Sprint("m", k, "-"), 40), k >= 2*i-1)}})
		}
		request := m{"model": "m", "messages": messages, "system": []any{part(words("sys", 100), true)}}
		if i%2 == 1 {
			request["tools"] = []any{m{"name": "run", "cache_control": m{"type": "ephemeral"}}}
		} else {
			request["tools"] = []any{m{"name": "run"}}
		}
		log = append(log, m{"session_id": "c", "ts": 100 + i, "request": request})
	}
	r := report(t, lines(t, log...))
	if *r.Share.Previous != *r.RepeatedPromptShare || r.History.Changed != 0 {
		t.Errorf("content %s, counts %s, changed %d: marks count as a change", show(r.Share.Previous), show(r.RepeatedPromptShare), r.History.Changed)
	}
}

func TestF01ReorderedTools(t *testing.T) {
	t.Parallel()
	log := lines(t, growing("c", 4, 30, func(int) string { return words("s", 50) })...)
	var b strings.Builder
	for i, l := range strings.Split(strings.TrimSpace(log), "\n") {
		tools := `"tools":[{"name":"run","z":1,"a":2,"m":3}],"messages"`
		if i%2 == 1 {
			tools = `"tools":[{"a":2,"m":3,"name":"run","z":1}],"messages"`
		}
		b.WriteString(strings.Replace(l, `"messages"`, tools, 1) + "\n")
	}
	r := report(t, b.String())
	if f := finding(r, "json-reordered"); f == nil || f.FollowUps != 3 || f.In != "tools" {
		t.Errorf("findings = %+v, want json-reordered in 3 follow-ups", r.Findings)
	}
}

// The length of each turn is its own, not that of the first turn.
func TestK03LengthsPerTurn(t *testing.T) {
	t.Parallel()
	var log []any
	for i := range 10 {
		log = append(log, m{"conversation_id": "c", "ts": i * 10, "prompt_tokens": 1000 * (i + 1)})
	}
	r := report(t, lines(t, log...))
	// Σ min = 1000+…+9000, Σ this = 2000+…+10000.
	if r.Prompt.Total != 55000 || r.Prompt.InFollowUp != 54000 || *r.RepeatedPromptShare != round(45000.0/54000) || r.Growth.P50 != 1000 {
		t.Errorf("total %d, in follow-ups %d, share %s, growth %v", r.Prompt.Total, r.Prompt.InFollowUp, show(r.RepeatedPromptShare), r.Growth.P50)
	}
}

// Four APIs, one truth: every line is a prompt of 1000 tokens, 800 of them cached, and a reply of 50.
func TestK04InputTokensOfDifferentAPIs(t *testing.T) {
	t.Parallel()
	log := strings.Join([]string{
		`{"id":"chatcmpl-1","object":"chat.completion","created":1760000000,"model":"m","choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":50,"total_tokens":1050,"prompt_tokens_details":{"cached_tokens":800}}}`,
		`{"id":"resp_1","object":"response","created_at":1760000010,"model":"m","output":[],"usage":{"input_tokens":1000,"input_tokens_details":{"cached_tokens":800},"output_tokens":50,"total_tokens":1050}}`,
		`{"ts":1760000020,"response":{"id":"msg_1","type":"message","model":"m","content":[],"usage":{"input_tokens":150,"cache_creation_input_tokens":50,"cache_read_input_tokens":800,"output_tokens":50}}}`,
		`{"timestamp":"2025-10-09T08:53:50Z","type":"event_msg","payload":{"type":"token_count","info":{"total_token_usage":{"input_tokens":1000,"cached_input_tokens":800,"output_tokens":50,"total_tokens":1050},"last_token_usage":{"input_tokens":1000,"cached_input_tokens":800,"output_tokens":50,"total_tokens":1050}}}}`,
		`{"ts":1760000040,"response":{"usageMetadata":{"promptTokenCount":1000,"cachedContentTokenCount":800,"candidatesTokenCount":50,"totalTokenCount":1050}}}`,
		`{"ts":1760000050,"usage":{"inputTokens":200,"cacheReadInputTokens":800,"cacheWriteInputTokens":0,"outputTokens":50,"totalTokens":1050}}`,
		`{"id":"o","traceId":"t","type":"GENERATION","startTime":"2025-10-09T08:54:20Z","model":"m","usageDetails":{"input":200,"input_cached_tokens":800,"output":50,"total":1050}}`,
		// Not one of them: refused, not guessed.
		`{"ts":1760000060,"usage":{"input_tokens":1000,"input_tokens_details":{"cached_tokens":800},"cache_read_input_tokens":800,"output_tokens":50}}`,
		`{"ts":1760000070,"usage":{"prompt_tokens":100,"completion_tokens":50,"prompt_tokens_details":{"cached_tokens":800}}}`,
		`{"ts":1760000080,"usage":{"prompt_tokens":-5,"completion_tokens":50}}`,
		`{"ts":1760000090,"usage":{"tokens":1000}}`,
	}, "\n")
	r := report(t, log)
	if r.Requests != 7 || r.Prompt.Total != 7000 || r.Prompt.Reply.Mean != 50 || r.LogCached.Requests != 7 || *r.LogCached.Share != 0.8 {
		t.Errorf("requests %d, total %d, reply %v, cached %+v; want 7, 7000, 50, 80 %% of 7", r.Requests, r.Prompt.Total, r.Prompt.Reply.Mean, r.LogCached)
	}
	want := map[string]int64{errUsageShape.Error(): 1, errUsageSum.Error(): 1, errUsageRange.Error(): 1, badShape: 1}
	if diff := cmp.Diff(want, badReasons(r)); diff != "" {
		t.Errorf("bad lines (-want +got):\n%s", diff)
	}
}

// A vector small enough to check by hand, with its definitions in the report.
func TestK05DefinitionsAndVector(t *testing.T) {
	t.Parallel()
	r := report(t, strings.Join([]string{
		`{"timestamp":0,"input_length":1100,"output_length":10,"hash_ids":[1,2,3]}`,
		`{"timestamp":60000,"input_length":2000,"output_length":10,"hash_ids":[1,2,4,5]}`,
		`{"timestamp":90000,"input_length":2100,"output_length":10,"hash_ids":[1,2,4,6,7]}`,
		`{"timestamp":95000,"input_length":700,"output_length":10,"hash_ids":[1,9]}`,
	}, "\n"))
	// Request 2 continues 1, whose full blocks are 1 2: 1024 tokens. Request 3 continues 2, whose full blocks are
	// 1 2 4: 1536 tokens. Request 4 shares one block only, which may be everybody's system prompt.
	type vector struct {
		FollowUps, Conversations int64
		Counts, Best             float64
		At512                    float64
	}
	got := vector{r.FollowUpTurns, r.Conversations, *r.RepeatedPromptShare, *r.Share.Best, 0}
	for _, b := range r.Share.Blocks {
		if b.BlockSize == 512 {
			got.At512 = *b.Share
		}
		if b.BlockSize < 512 && b.Share != nil {
			t.Errorf("share at blocks of %d given, but the trace has blocks of 512", b.BlockSize)
		}
	}
	want := vector{2, 2, round((1100.0 + 2000) / 4100), round((1024.0 + 1536) / 4100), round((1024.0 + 1536) / 4100)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	names := map[string]bool{}
	for _, d := range r.Definitions {
		names[d.Name] = true
	}
	for _, n := range []string{"follow_up_turns", "repeated_prompt_share", "late_turns_share", "content_best_earlier", "content_in_blocks"} {
		if !names[n] {
			t.Errorf("no definition of %s", n)
		}
	}
}

func TestK07GapsAndCurve(t *testing.T) {
	t.Parallel()
	for _, scale := range []int{0, 1, 10} {
		var log []any
		for c := range 4 {
			for i := range 8 {
				log = append(log, m{"conversation_id": fmt.Sprint(c), "ts": 1.76e9 + float64(c*13+i*30*scale), "prompt_tokens": 4000 + 900*i, "completion_tokens": 100})
			}
		}
		r := report(t, lines(t, log...), seconds10(60))
		late := map[int]float64{0: 0, 1: 0, 10: 1}[scale]
		if *r.LateTurnsShare != late {
			t.Errorf("×%d: late = %s, want %g", scale, show(r.LateTurnsShare), late)
		}
		if got := finding(r, "no-think-time") != nil; got != (scale == 0) {
			t.Errorf("×%d: no-think-time reported: %v", scale, got)
		}
		for i := range r.TTL {
			p := &r.TTL[i]
			want := 0.0
			if float64(30*scale) <= p.Seconds {
				want = 1
			}
			if *p.TurnsInTime != want || i > 0 && (*p.PinnedPeak < *r.TTL[i-1].PinnedPeak || *p.PinnedMean < *r.TTL[i-1].PinnedMean) {
				t.Errorf("×%d, TTL %g s: in time %s, want %g; pinned %v", scale, p.Seconds, show(p.TurnsInTime), want, *p.PinnedPeak)
			}
		}
	}
}

// A shared head of 240 tokens: nothing at blocks of 784, about half at blocks of 16.
func TestD14BlockLargerThanSharedPrefix(t *testing.T) {
	t.Parallel()
	ids := func(from, n int) []int {
		var list []int
		for i := range n {
			list = append(list, from+i)
		}
		return list
	}
	var log []any
	for i := range 6 {
		log = append(log, m{"session_id": "c", "ts": 100 + i, "prompt_token_ids": append(ids(1000, 240), ids(10000*(i+1), 250)...)})
	}
	r := report(t, lines(t, log...), func(o *Options) { o.BlockSize = 784 })
	if r.Unit != "tokens" || *r.Share.AtBlockSize != 0 || *r.Share.Blocks[0].Share != round(240.0/490) {
		t.Errorf("unit %s, share at 784 = %s, at 16 = %s; want 0 and %.6f", r.Unit, show(r.Share.AtBlockSize), show(r.Share.Blocks[0].Share), 240.0/490)
	}
}

func TestI02CachedTokensAreTransfers(t *testing.T) {
	t.Parallel()
	var log []any
	for c := range 6 {
		for i := range 3 {
			n := 9000 + 1000*i
			log = append(log, m{"conversation_id": fmt.Sprint(c), "ts": 1000*c + 20*i, "usage": m{"prompt_tokens": n, "completion_tokens": 9, "prompt_tokens_details": m{"cached_tokens": n - 1}}})
		}
	}
	r := report(t, lines(t, log...))
	if f := finding(r, "cached-tokens-is-transfer"); f == nil || f.FollowUps != 6 {
		t.Errorf("findings = %v, want cached-tokens-is-transfer", codes(r))
	}
}

// Hit rates of engine counters have another denominator in each version: refused, with the tool that knows them.
func TestI03MetricsScrapeIsRefused(t *testing.T) {
	t.Parallel()
	r, err := analyzeText("# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.\n# TYPE vllm:prefix_cache_queries_total counter\nvllm:prefix_cache_queries_total{engine=\"0\"} 1000.0\nvllm:prefix_cache_hits_total{engine=\"0\"} 600.0\n")
	if err == nil || r == nil {
		t.Fatalf("err = %v, want ErrNoRequests", err)
	}
	if diff := cmp.Diff(map[string]int64{badMetrics: 4}, badReasons(r)); diff != "" {
		t.Errorf("bad lines (-want +got):\n%s", diff)
	}
}

func TestJ07Verdict(t *testing.T) {
	t.Parallel()
	single := func() (log []any) {
		for i := range 50 {
			log = append(log, m{"conversation_id": fmt.Sprint(i), "ts": 1.76e9 + float64(i), "prompt_tokens": 300})
		}
		return log
	}
	multi := func(first, step int) (log []any) {
		for c := range 20 {
			for i := range 15 {
				log = append(log, m{"conversation_id": fmt.Sprint(c), "ts": 1.76e9 + float64(c*3+i*25), "prompt_tokens": first + step*i, "completion_tokens": step / 2, "duration_s": 4})
			}
		}
		return log
	}
	for _, c := range []struct {
		name, decision, says string
		log                  []any
		set                  func(*Options)
	}{
		{"one turn each", "stop", "a single node with prefix caching is the simpler answer", single(), nil},
		{"short turns", "stop", "A single node with prefix caching is the simpler answer", multi(60, 40), nil},
		{"long turns", "go-on", "Go on", multi(8000, 1500), nil},
		{"long turns, little of it", "stop", "idle most of the time", multi(8000, 1500), func(o *Options) { o.PrefillRate, o.NodeKVTokens = 50000, 5_000_000 }},
		{"long turns, small node", "go-on", "Go on", multi(8000, 1500), func(o *Options) { o.PrefillRate, o.NodeKVTokens = 50000, 100_000 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.set == nil {
				c.set = func(*Options) {}
			}
			r := report(t, lines(t, c.log...), c.set, func(o *Options) { o.KVBytesPerToken = 262144 })
			if r.Verdict.Decision != c.decision || !strings.Contains(r.Verdict.Summary, c.says) {
				t.Errorf("verdict %s: %s; want %s: …%s…", r.Verdict.Decision, r.Verdict.Summary, c.decision, c.says)
			}
			if c.decision == "go-on" && (len(r.Verdict.Settings) < 3 || !strings.Contains(r.Verdict.Settings[0].Why, "GB pinned")) {
				t.Errorf("settings = %+v, want a TTL with its cost in GB", r.Verdict.Settings)
			}
		})
	}
}
