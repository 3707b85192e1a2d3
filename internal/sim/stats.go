package sim

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/tarik-kv/tarik/internal/turn"
)

// stats are counted while a run goes on.
type stats struct {
	ttft, tpot, e2e histogram
	byArm           map[turn.Arm]*armStats
	returnMs        histogram
	gaps, rets      map[[2]string]int
	whys            map[string]int

	turns, followUps        int
	good, goodTTFT, goodITL int
	late                    int
	prompt, followPrompt    int64
	local, pulled, computed int64 // of prompts by P
	followReused            int64
	appended, onD           int64 // prompts of appends: cached at D, computed by D
	output                  int64
	returnPulled            int64
	returnComputed          int64
	shareable               int64 // of follow-ups' prompts
	lastEnd                 time.Duration
}

type armStats struct {
	ttft histogram
	n    int
}

func (s *stats) why(w string) {
	if s.whys == nil {
		s.whys = map[string]int{}
	}
	s.whys[w]++
}

func (s *stats) gap(choice, why string) {
	if s.gaps == nil {
		s.gaps = map[[2]string]int{}
	}
	s.gaps[[2]string{choice, why}]++
}

func (s *stats) ret(state, why string) {
	if s.rets == nil {
		s.rets = map[[2]string]int{}
	}
	s.rets[[2]string{state, why}]++
}

// record counts a turn that has ended.
func (s *run) record(x *request) {
	st := &s.stats
	if x.arm == "" {
		x.arm = x.machine.Outcome().Arm
	}
	first := toMs(x.first)
	st.turns++
	st.ttft.add(first, 1)
	st.lastEnd = s.now
	whole := s.now - x.arrived
	st.e2e.add(toMs(whole), 1)
	good := x.first <= s.o.SLO.TTFT
	if good {
		st.goodTTFT++
	}
	fast := true
	if x.reply > 1 {
		each := toMs(whole-x.first) / float64(x.reply-1)
		st.tpot.add(each, 1)
		fast = each <= toMs(s.o.SLO.ITL)
	}
	if fast {
		st.goodITL++
	}
	if good && fast {
		st.good++
	}
	if st.byArm == nil {
		st.byArm = map[turn.Arm]*armStats{}
	}
	a := st.byArm[x.arm]
	if a == nil {
		a = &armStats{}
		st.byArm[x.arm] = a
	}
	a.n++
	a.ttft.add(first, 1)
	st.prompt += int64(x.prompt)
	st.output += int64(x.reply)
	reused := int64(x.pHas + x.pulled)
	if x.alone {
		reused = int64(x.dHas)
		st.appended += reused
		st.onD += int64(x.prompt) - reused
	} else {
		st.local += int64(x.pHas)
		st.pulled += int64(x.pulled)
		st.computed += int64(x.prompt) - reused
	}
	if x.number > 0 {
		st.followUps++
		st.followPrompt += int64(x.prompt)
		st.followReused += reused
		st.shareable += int64(max(x.text, x.common))
	}
}

// Result is what a run gave. Times in ms, sizes in tokens; shares from 0 to 1. Its JSON names are API.
type Result struct {
	Policy   Policy  `json:"policy"`
	Prefills int     `json:"prefills"`
	Decodes  int     `json:"decodes"`
	Requests int     `json:"requests"`
	Refused  int     `json:"refused"` // longer than an engine's KV pool
	Seconds  float64 `json:"seconds"` // simulated

	TTFT Quantiles `json:"ttft_ms"`
	ITL  Quantiles `json:"itl_ms"`  // every gap between two tokens of a stream
	TPOT Quantiles `json:"tpot_ms"` // mean gap of each request
	E2E  Quantiles `json:"e2e_ms"`
	Arms []ArmStat `json:"arms"`

	FollowUps       int     `json:"follow_ups"`
	HitRate         float64 `json:"hit_rate"`          // follow-ups' prompt tokens that nobody computed again
	Repeated        float64 `json:"repeated_share"`    // that an earlier turn of the conversation had
	LocalShare      float64 `json:"local_share"`       // of all prompt tokens: in P's cache
	PulledShare     float64 `json:"pulled_share"`      // read from D by turns
	AppendedShare   float64 `json:"appended_share"`    // in D's cache, of turns by D alone
	ComputedP       int64   `json:"computed_tokens_p"` // by turns
	ComputedD       int64   `json:"computed_tokens_d"`
	ReturnsPulled   int64   `json:"returns_pulled_tokens"`
	ReturnsComputed int64   `json:"returns_computed_tokens"`
	MovedToD        int64   `json:"moved_to_d_tokens"`

	RequestsPerSecond float64 `json:"requests_per_second"`
	GoodPerSecond     float64 `json:"requests_per_second_within_slo"`
	GoodShare         float64 `json:"share_within_slo"`
	GoodTTFT          float64 `json:"share_within_slo_ttft"`
	GoodITL           float64 `json:"share_within_slo_itl"`
	OutputPerSecond   float64 `json:"output_tokens_per_second"`

	PBusy       float64 `json:"p_busy_share"`
	DBusy       float64 `json:"d_busy_share"`
	DStreams    float64 `json:"d_streams_mean"` // of one D, while it is busy
	PinnedMean  float64 `json:"d_pinned_tokens_mean"`
	PinnedMax   int64   `json:"d_pinned_tokens_max"` // of one D
	PinnedGB    float64 `json:"d_pinned_gb_mean"`
	ActiveMean  float64 `json:"d_active_tokens_mean"` // of requests in progress, over all D
	KVRatio     float64 `json:"d_active_and_pinned_over_active"`
	LeasedMean  float64 `json:"p_leased_tokens_mean"`
	PoolTokens  int     `json:"pool_tokens"`
	EvictedP    int64   `json:"p_evicted_tokens"`
	EvictedD    int64   `json:"d_evicted_tokens"`
	LatePulls   int     `json:"late_pulls"`
	Returns     []Count `json:"returns"`
	GapChoices  []Count `json:"gap_choices"`
	Decisions   []Count `json:"decisions"`
	ReturnP50Ms float64 `json:"return_p50_ms"`

	ttft, itl histogram
	gaveUp    bool
}

// ArmStat is one arm's part.
type ArmStat struct {
	Arm   string    `json:"arm"`
	Turns int       `json:"turns"`
	TTFT  Quantiles `json:"ttft_ms"`
}

// Count is how often something happened.
type Count struct {
	What  string `json:"what"`
	Why   string `json:"why,omitempty"`
	Count int    `json:"count"`
}

func share(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

func counts(m map[[2]string]int) []Count {
	var list []Count
	for k, n := range m {
		list = append(list, Count{k[0], k[1], n})
	}
	slices.SortFunc(list, func(a, b Count) int {
		return cmp.Or(b.Count-a.Count, cmp.Compare(a.What, b.What), cmp.Compare(a.Why, b.Why))
	})
	return list
}

func (h *histogram) merge(o *histogram) {
	for i := range o.buckets {
		h.buckets[i] += o.buckets[i]
	}
	h.total += o.total
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

func mergeCounts[K comparable](a *map[K]int, b map[K]int) {
	if *a == nil {
		*a = map[K]int{}
	}
	for k, n := range b {
		(*a)[k] += n
	}
}

// merge adds another part of the same run.
func (s *stats) merge(o *stats) {
	for _, h := range [][2]*histogram{{&s.ttft, &o.ttft}, {&s.tpot, &o.tpot}, {&s.e2e, &o.e2e}, {&s.returnMs, &o.returnMs}} {
		h[0].merge(h[1])
	}
	for arm, a := range o.byArm {
		if s.byArm == nil {
			s.byArm = map[turn.Arm]*armStats{}
		}
		if s.byArm[arm] == nil {
			s.byArm[arm] = &armStats{}
		}
		s.byArm[arm].n += a.n
		s.byArm[arm].ttft.merge(&a.ttft)
	}
	mergeCounts(&s.gaps, o.gaps)
	mergeCounts(&s.rets, o.rets)
	mergeCounts(&s.whys, o.whys)
	for _, n := range [][2]*int{
		{&s.turns, &o.turns}, {&s.followUps, &o.followUps}, {&s.good, &o.good}, {&s.goodTTFT, &o.goodTTFT}, {&s.goodITL, &o.goodITL}, {&s.late, &o.late},
	} {
		*n[0] += *n[1]
	}
	for _, n := range [][2]*int64{
		{&s.prompt, &o.prompt},
		{&s.followPrompt, &o.followPrompt},
		{&s.local, &o.local},
		{&s.pulled, &o.pulled},
		{&s.computed, &o.computed},
		{&s.followReused, &o.followReused},
		{&s.appended, &o.appended},
		{&s.onD, &o.onD},
		{&s.output, &o.output},
		{&s.returnPulled, &o.returnPulled},
		{&s.returnComputed, &o.returnComputed},
		{&s.shareable, &o.shareable},
	} {
		*n[0] += *n[1]
	}
	s.lastEnd = max(s.lastEnd, o.lastEnd)
}

// result sums up the parts of a run.
func result(o Options, parts []*run) *Result {
	s := parts[0]
	for _, p := range parts[1:] {
		s.stats.merge(&p.stats)
		s.itl.merge(&p.itl)
		s.ps, s.ds = append(s.ps, p.ps...), append(s.ds, p.ds...)
		s.moved += p.moved
		s.refused += p.refused
	}
	st := &s.stats
	end := st.lastEnd
	sec := end.Seconds()
	per := func(n float64) float64 {
		if sec <= 0 {
			return 0
		}
		return n / sec
	}
	r := &Result{
		Policy: o.Policy, Prefills: len(s.ps), Decodes: len(s.ds), Requests: st.turns, Refused: s.refused, Seconds: sec,
		TTFT: st.ttft.quantiles(), ITL: s.itl.quantiles(), TPOT: st.tpot.quantiles(), E2E: st.e2e.quantiles(),
		FollowUps: st.followUps, HitRate: share(st.followReused, st.followPrompt), Repeated: share(st.shareable, st.followPrompt),
		LocalShare: share(st.local, st.prompt), PulledShare: share(st.pulled, st.prompt), AppendedShare: share(st.appended, st.prompt),
		ComputedP: st.computed, ComputedD: st.onD, ReturnsPulled: st.returnPulled, ReturnsComputed: st.returnComputed, MovedToD: s.moved,
		RequestsPerSecond: per(float64(st.turns)), GoodPerSecond: per(float64(st.good)), GoodShare: share(int64(st.good), int64(st.turns)),
		GoodTTFT: share(int64(st.goodTTFT), int64(st.turns)), GoodITL: share(int64(st.goodITL), int64(st.turns)),
		OutputPerSecond: per(float64(st.output)), PoolTokens: o.PoolTokens, LatePulls: st.late,
		Returns: counts(st.rets), GapChoices: counts(st.gaps), ReturnP50Ms: st.returnMs.quantile(0.5),
	}
	r.ttft, r.itl = st.ttft, s.itl
	for _, p := range parts {
		r.gaveUp = r.gaveUp || p.gaveUp
	}
	for _, arm := range slices.Sorted(maps.Keys(st.byArm)) {
		a := st.byArm[arm]
		r.Arms = append(r.Arms, ArmStat{string(arm), a.n, a.ttft.quantiles()})
	}
	for _, why := range slices.Sorted(maps.Keys(st.whys)) {
		r.Decisions = append(r.Decisions, Count{What: why, Count: st.whys[why]})
	}
	for i := range s.ps {
		p := &s.ps[i]
		r.PBusy += per(p.busy.Seconds()) / float64(len(s.ps))
		r.LeasedMean += p.pinnedMean(end)
		r.EvictedP += p.evicted
	}
	var sumK, busy, active float64
	for i := range s.ds {
		d := &s.ds[i]
		r.DBusy += per(d.busy.Seconds()) / float64(len(s.ds))
		r.PinnedMean += d.pinnedMean(end)
		r.PinnedMax = max(r.PinnedMax, d.pinnedMax)
		r.EvictedD += d.evicted
		sumK += d.sumK
		active += d.activeSum
		busy += toMs(d.busy)
	}
	if busy > 0 {
		r.DStreams = sumK / busy
	}
	r.PBusy, r.DBusy = min(r.PBusy, 1), min(r.DBusy, 1) // work of requests that were refused later may outlast the last reply
	if end > 0 && active > 0 {
		r.ActiveMean = active / toMs(end)
		r.KVRatio = (r.ActiveMean + r.PinnedMean) / r.ActiveMean
	}
	r.PinnedGB = r.PinnedMean * o.KVBytes / 1e9
	return r
}
