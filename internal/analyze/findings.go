package analyze

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// patterns describe breaks: a stable code, what it is, and what to do.
var patterns = [breakKinds]struct{ code, text, advice string }{
	clockBreak: {
		"clock-in-prompt", "a time of day is written into the prompt",
		"put it behind the history (into the newest user message), or write the date only",
	},
	volatileBreak: {
		"volatile-span", "a short piece of the prompt is another one each time",
		"take it out of the prompt, or put it behind the history",
	},
	growingHead: {
		"growing-head", "the head of the prompt grows: something is added in front of the history",
		"put what grows behind the history; until then a handle kept for the next turn only pins memory",
	},
	reasoningBreak: {
		"reasoning-dropped", "thinking that was generated is not in the next prompt, so what was said after it stands elsewhere",
		"expected with templates that drop thinking: only reuse up to the thinking is possible, and a prompt prepared without it (the return) is the way to keep the rest warm; if clients or proxies drop the field, let them send it back",
	},
	replyBreak: {
		"reply-changed", "the reply comes back changed in the next prompt",
		"send replies back as they came; tool calls written anew and trimmed texts do this",
	},
	reorderedBreak: {
		"json-reordered", "tool definitions have the same bytes in another order: something decodes and encodes the JSON",
		"keep the order of members; a proxy that parses bodies into maps does this",
	},
	shortenedBreak: {
		"history-shortened", "a part of the history is gone: a window that slides, or an edit",
		"drop history in large steps, not a message each turn: every step costs the whole prompt behind it",
	},
	insertedBreak: {
		"history-inserted", "something is put into the middle of the history",
		"add what is new at the end",
	},
	editedBreak: {
		"history-edited", "a longer piece of the history or of the head is replaced",
		"replace as late in the prompt as possible",
	},
	rewrittenBreak: {
		"history-rewritten", "nothing behind the break comes back: a compaction, or another prompt under the same conversation id",
		"nothing to gain unless it happens often; then look at what rewrites the history",
	},
}

func (c *collector) findings(unit unit) []Finding {
	t := c.tally
	u := &t.units[unit]
	out := []Finding{}
	for kind := range t.breaks {
		s := &t.breaks[kind]
		rare := s.turns*20 < u.contentTurns && s.lost[unit]*200 < u.contentPrompt
		if kind == int(noBreak) || s.turns == 0 || rare {
			continue
		}
		p := patterns[kind]
		f := Finding{Code: p.code, Text: p.text, Advice: p.advice, FollowUps: s.turns, Lost: s.lost[unit], LostShare: ratio(s.lost[unit], u.contentPrompt)}
		offset, length := s.offset.at(50), s.len.at(50)
		f.Offset, f.Length = &offset, &length
		if s.moves.n > 0 {
			m := s.moves.at(50)
			f.Moves = &m
		}
		f.In = segKind(most(s.segs[:])).String()
		if kind == int(volatileBreak) && (f.In == segSystem.String() || f.In == segTools.String()) {
			f.Code = "volatile-head"
		}
		if len(s.resolution) > 0 {
			f.Resolution = slices.MaxFunc(slices.Sorted(maps.Keys(s.resolution)), func(a, b string) int { return cmp.Compare(s.resolution[a], s.resolution[b]) })
		}
		f.Example = hashName(s.example)
		out = append(out, f)
	}
	slices.SortStableFunc(out, func(a, b Finding) int { return cmp.Compare(b.Lost, a.Lost) })
	return append(out, c.otherFindings(u)...)
}

func most(counts []int64) int {
	k := 0
	for i, n := range counts {
		if n > counts[k] {
			k = i
		}
	}
	return k
}

// otherFindings are patterns of counts and of conversations as a whole.
func (c *collector) otherFindings(u *unitSums) []Finding {
	t := c.tally
	var out []Finding
	add := func(code string, turns int64, advice, format string, args ...any) *Finding {
		out = append(out, Finding{Code: code, FollowUps: turns, Text: fmt.Sprintf(format, args...), Advice: advice})
		return &out[len(out)-1]
	}
	if n := t.lines.SideQueries; n > 0 {
		f := add("side-queries", n, "answer them with the conversation's own system prompt and tools, or give them an id of their own",
			"%d requests stand alone beside the main line of their conversation: another system prompt or other tools in front of the same history; each computes its prompt anew", n)
		f.Lost, f.LostShare = t.lines.SideQueryPrompt, ratio(t.lines.SideQueryPrompt, u.contentPrompt)
	}
	if u.better*50 > u.contentTurns {
		add("interleaved-lines", u.better, "give each line (sub-agent, branch) an id of its own; reuse by content needs no id",
			"in %d of %d follow-ups an earlier request of the conversation shares more than the previous one: one id is used by several lines", u.better, u.contentTurns)
	}
	if h := &t.history; h.Changed > 0 && u.contentTurns > 0 && h.Changed*1000 > u.contentTurns {
		f := add("history-changed", h.Changed, "by counts alone these turns look repeated; a pull by position would have read wrong blocks, a check by content does not",
			"in %d of %d follow-ups the previous prompt is not the beginning of this one; the share by counts is no lower bound there", h.Changed, u.contentTurns)
		f.Lost, f.LostShare = h.Lost, ratio(h.Lost, u.contentPrompt)
	}
	if h := &t.history; h.ShortGrowth*100 > u.contentTurns && u.contentTurns > 0 {
		add("reply-not-sent-back", h.ShortGrowth, "thinking left out by the template or the client does this; it limits reuse to the history in front of the reply",
			"in %d follow-ups the history is kept but the prompt grew by less than the reply was long", h.ShortGrowth)
	}
	if t.firstCachedTurns >= 5 && t.firstCachedAll*10 >= t.firstCachedTurns*9 {
		add("cached-tokens-is-transfer", t.firstCachedAll, "the count comes from the decode engine, to which all tokens that prefill sent are cached; use tarik's receipts, or the prefill engine's own count",
			"%d of %d first requests of a conversation claim that their whole prompt was cached: this is what was transferred, not what was reused", t.firstCachedAll, t.firstCachedTurns)
	}
	if t.switches > 0 {
		add("model-switch", t.switches, "KV of one model is of no use to another; the shares above count these turns as repeated",
			"%d follow-ups use another model than the turn before", t.switches)
	}
	if t.collisions > 0 {
		add("shared-conversation-ids", t.collisions, "make ids unique per tenant; the router keeps tenants apart in any case",
			"%d conversation ids are used by more than one tenant", t.collisions)
	}
	if t.gapTurns >= 10 && t.zeroGaps*10 >= t.gapTurns*9 {
		add("no-think-time", t.zeroGaps, "replay with the pauses of real clients: back to back, nothing ever expires",
			"%d of %d turns follow within 50 ms: this looks like a replay without pauses, and says nothing about expiry", t.zeroGaps, t.gapTurns)
	}
	if t.noTimes > 0 {
		add("no-times", t.noTimes, "without times there are no gaps, and order is that of the input", "%d requests have no time", t.noTimes)
	}
	return out
}
