package analyze

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Limits of the verdict. They are round numbers on purpose: near them the answer is "measure".
const (
	leastRepeatedOfAll = 0.10 // of all prompts, below: nothing to reuse
	leastContentShare  = 0.30 // of follow-up prompts by content, below: prefixes are broken
	leastPerTurn       = 1024 // repeated tokens per follow-up, below: computing them is cheap
	idleNode           = 0.10 // share of a node's prefill time, below: one node is enough
	holdGoal           = 0.95 // of what an hour would hold
	shortGap           = 2 * time.Second
	handleMargin       = 30 * time.Second // how long before its end a handle is no longer used
)

func percent(v *float64) string {
	if v == nil {
		return "unknown"
	}
	return fmt.Sprintf("%.1f %%", 100**v)
}

// verdict turns a report into advice.
func (c *collector) verdict(r *Report, u *unitSums) Verdict {
	v := Verdict{Reasons: []string{}, Settings: []Setting{}}
	say := func(format string, args ...any) { v.Reasons = append(v.Reasons, fmt.Sprintf(format, args...)) }
	if r.FollowUpTurns == 0 && r.Identity.ByField+r.Identity.ByContent == 0 {
		v.Decision = "cannot-tell"
		v.Summary = "Cannot tell: the log has no conversation field and no content, so repetition cannot be computed."
		say("name the member that holds the conversation with --field conversation=NAME, or give logs with prompts, token ids or block hashes")
		if c.hints["request_id"] > 0 {
			say("request_id is there, but it names requests: it cannot link turns")
		}
		if c.hints["trace_id"] > 0 {
			say("trace ids are there; where one trace is a whole conversation, name the member with --field")
		}
		return v
	}
	share := r.Share.ByCounts
	exact := false
	if 2*r.Share.ContentFollowUps >= u.growth.n && r.Share.ContentFollowUps > 0 {
		share, exact = higher(r.Share.Best, r.Share.PreviousReply), true
	}
	ofAll := ratio(u.repeated, u.prompt)
	perTurn := int64(0)
	if u.growth.n > 0 {
		perTurn = u.repeated / u.growth.n
	}
	tokensPerTurn := perTurn
	if r.Unit != "tokens" {
		tokensPerTurn = perTurn / charsPerToken
	}

	stop := func(format string, args ...any) {
		if v.Decision == "" {
			v.Decision = "stop"
			v.Summary = "Stop: " + fmt.Sprintf(format, args...)
		}
	}
	switch {
	case r.FollowUpTurns == 0:
		stop("no request follows another of its conversation. There is nothing to reuse between turns; a single node with prefix caching is the simpler answer.")
	case ofAll == nil || share == nil:
		v.Decision = "cannot-tell"
		v.Summary = "Cannot tell: the log has turns, but no sizes that can be compared."
	case exact && *share < leastContentShare && r.Share.ByCounts != nil && *r.Share.ByCounts > 2**share:
		stop("prompts look repeated by their lengths (%s) but by content only %s of a follow-up is: the prefix breaks. Mend that first (see the patterns); until then neither this nor a single node with prefix caching can reuse much.", percent(r.Share.ByCounts), percent(share))
	case *ofAll < leastRepeatedOfAll:
		stop("only %s of all prompt %s were there in an earlier turn. A single node with prefix caching is the simpler answer.", percent(ofAll), r.Unit)
	case tokensPerTurn < leastPerTurn:
		stop("a follow-up repeats %d tokens on average, which any prefill engine computes faster than it could fetch them with all that goes with it. A single node with prefix caching is the simpler answer.", tokensPerTurn)
	}
	if share != nil {
		if exact {
			say("%s of the follow-ups' prompts were there before, by content (%s by counts): %d %s a turn", percent(share), percent(r.Share.ByCounts), perTurn, r.Unit)
		} else {
			say("at least %s of the follow-ups' prompts were there before if histories only grow (by counts; the log has no content to check it): %d %s a turn", percent(share), perTurn, r.Unit)
		}
	}
	if c.o.PrefillRate > 0 && v.Decision != "cannot-tell" {
		say("computing that again takes %.2f s a turn at %g tokens/s", float64(tokensPerTurn)/c.o.PrefillRate, c.o.PrefillRate)
	}
	if r.LateTurnsShare != nil {
		say("%s of the follow-ups start more than %g s after the previous one", percent(r.LateTurnsShare), r.TTLSeconds)
	}
	c.load(r, say, stop)
	if v.Decision == "" {
		c.goOn(r, &v, say)
	}
	return v
}

func higher(a, b *float64) *float64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

// load asks whether one node would do.
func (c *collector) load(r *Report, say func(string, ...any), stop func(string, ...any)) {
	if !r.Concurrency.Known || r.Unit != "tokens" || r.SpanSeconds <= 0 {
		return
	}
	fresh, open := r.Concurrency.NewPerSecond, r.Concurrency.OpenPrompts.Max
	say("with perfect reuse %.0f new prompt tokens remain to compute per second, and all open conversations together hold at most %d tokens of KV", fresh, open)
	if c.o.PrefillRate == 0 || c.o.NodeKVTokens == 0 {
		return
	}
	busy := fresh / c.o.PrefillRate
	say("one node of %g tokens/s and %d tokens of KV would spend %.1f %% of its time on them", c.o.PrefillRate, c.o.NodeKVTokens, 100*busy)
	if busy < idleNode && open <= c.o.NodeKVTokens {
		stop("one node holds the KV of all conversations and is idle most of the time. A single node with prefix caching is the simpler answer at this load (if the log is a sample, scale it up first).")
	}
}

// goOn says with which settings.
func (c *collector) goOn(r *Report, v *Verdict, say func(string, ...any)) {
	v.Decision = "go-on"
	v.Summary = "Go on: enough comes back each turn to be worth keeping."
	set := func(name, value, format string, args ...any) {
		v.Settings = append(v.Settings, Setting{name, value, fmt.Sprintf(format, args...)})
	}
	if p := bestTTL(r.TTL); p != nil {
		hold := time.Duration(p.Seconds*float64(time.Second)) + handleMargin
		pinned := "what it pins cannot be told from this log"
		switch {
		case p.PinnedPeakGB != nil:
			pinned = fmt.Sprintf("at most %.1f GB pinned on D at a time", *p.PinnedPeakGB)
		case p.PinnedPeak != nil:
			pinned = fmt.Sprintf("at most %d %s pinned on D at a time, %.0f on average", *p.PinnedPeak, r.Unit, *p.PinnedMean)
		case p.PinnedToInUse != nil:
			pinned = fmt.Sprintf("%.1f times what running requests hold", *p.PinnedToInUse)
		}
		set("serve --handle-ttl", hold.String(), "handles are used until 30 s before it, for %g s: that holds %s of what comes back; %s", p.Seconds, percent(p.RepeatedHeld), pinned)
		set("D's decoder_kv_blocks_ttl", hold.String(), "the same as --handle-ttl")
	}
	late := r.Gaps.IdleLate
	if late == nil {
		late = r.LateTurnsShare
	}
	if late != nil && *late > 0.02 {
		say("%s of the turns come too late for a held handle; preparing P right after the turn (the return) covers them, a longer TTL mostly pins memory", percent(late))
	}
	gap := r.Gaps.Idle
	if gap.Count == 0 {
		gap = r.Gaps.StartToStart
	}
	if gap.Count > 0 && gap.P25 < shortGap.Seconds() {
		say("a quarter of the turns follow within %.1f s: they may overtake a return, and then use the handle itself", gap.P25)
	}
	if b := r.Share.AtBlockSize; b != nil {
		set("block size", fmt.Sprint(r.Share.BlockSize), "%s of a follow-up is reusable in whole blocks of %d tokens; see the table for others", percent(b), r.Share.BlockSize)
	}
	if r.Identity.ByField > r.Identity.ByContent {
		var names []string
		for name := range r.Identity.Fields {
			names = append(names, name)
		}
		slices.Sort(names)
		set("conversation id", strings.Join(names, ", "), "%d requests name their conversation; send the same to the router", r.Identity.ByField)
	} else {
		set("conversation id", "not needed", "conversations were found by content, as the router does")
	}
	for _, f := range r.Findings {
		if f.LostShare != nil && *f.LostShare > 0.02 && f.Code != "history-changed" {
			say("pattern %s costs %s of the follow-ups' prompts: mend it for more", f.Code, percent(f.LostShare))
		}
	}
}

// bestTTL returns the shortest retention that holds nearly all that the longest one would.
func bestTTL(list []TTLPoint) *TTLPoint {
	if len(list) == 0 || list[len(list)-1].RepeatedHeld == nil {
		return nil
	}
	goal := holdGoal * *list[len(list)-1].RepeatedHeld
	for i := range list {
		if *list[i].RepeatedHeld >= goal {
			return &list[i]
		}
	}
	return nil
}
