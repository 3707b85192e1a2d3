package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

func signChecks() []check {
	return []check{
		{"late-readers", groupSigns, "nobody reads blocks that were given up", lateReaders, nil},
		{"unused-handles", groupSigns, "handles are used", unusedHandles, nil},
		{"unused-leases", groupSigns, "decode takes over what prefill computes", unusedLeases, nil},
		{"hang-signs", groupSigns, "no request is parked", hangSigns, nil},
		{"leak-signs", groupSigns, "idle engines hold nothing", leakSigns, nil},
		{"log-incompatible", groupSigns, "handshakes succeed (log)", logIncompatible, nil},
		{"log-failures", groupSigns, "transfers succeed (log)", logFailures, nil},
		{"log-late-readers", groupSigns, "nobody reads blocks that were given up (log)", logLateReaders, nil},
		{"log-expired", groupSigns, "blocks are taken before they expire (log)", logExpired, nil},
		{"log-bad-params", groupSigns, "params are complete (log)", logBadParams, nil},
		{"log-fatal", groupSigns, "the engine is alive (log)", logFatal, nil},
		{"log-peers", groupSigns, "peers stay the same (log)", logPeers, nil},
	}
}

func lateReaders(f *Facts, v *verdict) {
	if !up(f, v) {
		return
	}
	if !f.Prefill.Before.Has(mLate) && !f.Decode.Before.Has(mLate) {
		v.skip("vLLM %s does not count it; give the logs", f.Decode.Version)
		return
	}
	for _, e := range f.sides() {
		n := e.Before.Counters().Late
		if n == 0 {
			continue
		}
		text, fix := "somebody read blocks that decode had given up: wrong text is possible", "no handle twice, none after decoder_kv_blocks_ttl: use one router for this pair, and let its handle_ttl be the TTL or less"
		if e.Role == prefill {
			text, fix = "decode read blocks after prefill's lease for them had ended: wrong text is possible", `"kv_lease_duration":120 on prefill, or more decode capacity; n > 1 through prefill counts here too, and is harmless`
		}
		v.find(Error, e.Role, fix, "%s", text).because("%s %.0f since its start", mLate, n)
	}
	v.ok("%s 0", mLate)
}

// fewPins is how many runs of a TTL or lease make a pattern.
const fewPins = 20

func unusedHandles(f *Facts, v *verdict) {
	if !up(f, v) {
		return
	}
	p, d := f.Prefill.Before.Counters(), f.Decode.Before.Counters()
	if d.Expired < fewPins {
		v.ok("%.0f of %.0f replies of decode ran out unread", d.Expired, d.Requests)
		return
	}
	fix := "look at the router: GET /turns says why turns have no handle (doctor --router URL reads it)"
	if !f.Decode.Can.StreamHandle {
		fix = "run vLLM 0.33 on both: streams of " + f.Decode.Version + " carry no handle"
	}
	evidence := func() {
		v.because("decode: %s %.0f of %.0f requests", mExpired, d.Expired, d.Requests).
			because("prefill: %s{source=\"external_kv_transfer\"} %.0f", mSource, p.Pulled)
	}
	switch {
	case p.Pulled == 0:
		v.find(Error, pair, fix, "decode keeps replies for handles that nobody uses: prefill has read nothing since its start. Everything looks healthy, and nothing is reused")
		evidence()
	case d.Expired >= d.Requests/4:
		v.find(Warning, pair, fix, "%.0f %% of decode's replies run out unread, and fill its memory until then", 100*d.Expired/max(1, d.Requests))
		evidence()
	default:
		v.ok("%.0f of %.0f replies of decode ran out unread", d.Expired, d.Requests)
	}
}

func unusedLeases(f *Facts, v *verdict) {
	if !up(f, v) {
		return
	}
	p := f.Prefill.Before.Counters()
	if p.Expired >= fewPins && p.Expired >= p.Requests/4 {
		v.find(Warning, prefill, "hang up returns at their first token; give decode the same --max-model-len; look for clients that leave between the legs",
			"%.0f %% of prefill's prompts were never taken over by decode: each fills its memory for a lease", 100*p.Expired/max(1, p.Requests)).
			because("%s %.0f of %.0f requests (late READs that prefill declined count here too)", mExpired, p.Expired, p.Requests)
		return
	}
	v.ok("%.0f of %.0f ran out", p.Expired, p.Requests)
}

func hangSigns(f *Facts, v *verdict) {
	if !up(f, v) {
		return
	}
	for _, e := range f.sides() {
		first, last := e.Before.Load(), e.last().Load()
		reads := e.last().Counters().Reads - e.Before.Counters().Reads - f.Probe.reads(e.Role)
		still := first.Deferred > 0 && last.Deferred >= first.Deferred && reads <= 0
		if !still {
			continue
		}
		s, over := Warning, "during this run"
		if e.Earlier != nil && e.Earlier.Load().Deferred > 0 && e.Earlier.Counters().Reads == e.Before.Counters().Reads {
			s, over = Error, fmt.Sprintf("for %s", f.Time.Sub(e.EarlierAt).Round(time.Second))
		}
		v.find(s, e.Role, flagFix+`, and "kv_load_failure_policy":"fail"; restart the engine: it does not give such requests up`,
			"requests are parked for a transfer that does not come").
			because("%s{reason=\"deferred\"} %.0f %s, and no READ ended", mReason, last.Deferred, over).
			because("running %.0f", last.Running)
	}
	v.ok("deferred 0 or falling")
}

// reads is how many READs of an engine were the probe's.
func (p *Probe) reads(role string) (n float64) {
	if p == nil {
		return 0
	}
	for _, c := range append([]*Call{p.D1, p.P2, p.D2, p.P3, p.D3}, p.Pulls...) {
		if c != nil && c.Engine == role {
			n++
		}
	}
	if role == decode && len(p.Pulls) > 0 {
		n += float64(len(p.Pulls)) + 1
	}
	return n
}

// Shares of a pool that an idle engine holds.
const (
	someUsage = 0.05
	muchUsage = 0.5
)

func leakSigns(f *Facts, v *verdict) {
	if !up(f, v) {
		return
	}
	for _, e := range f.sides() {
		first, last := e.Before.Load(), e.last().Load()
		if !first.Idle() || first.Usage == 0 || !last.Idle() || last.Usage == 0 {
			continue
		}
		held := fmt.Sprintf("%s %.4f while nothing runs or waits: %.0f tokens", mUsage, first.Usage, first.Usage*float64(e.Before.Capacity()))
		limit, what, keeps := float64(defaultLease), "lease", someUsage
		if e.Role == decode {
			limit, what, keeps = defaultTTL, "TTL", muchUsage
			if ttl, known := e.ttl(); known {
				limit = ttl
			}
		} else if e.KV != nil {
			limit = e.KV.Lease(e.version())
		}
		watched := 0.0
		if old := e.Earlier; old != nil && old.Load().Idle() && old.Load().Usage >= first.Usage && old.Counters().Requests == e.Before.Counters().Requests {
			watched = f.Time.Sub(e.EarlierAt).Seconds()
		}
		switch {
		case watched > limit+5:
			v.find(Error, e.Role, "restart the engine; then look for requests with params that have no true flag, for handles sent to a prefill whose flag is off, and for kv_load_failure_policy",
				"blocks have leaked: they were not given back after the %s", what).because("%s, for %.0f s", held, watched)
		case first.Usage >= keeps:
			v.find(Warning, e.Role, fmt.Sprintf("watch whether it falls within %.0f s: tarik doctor --watch 30s; if not, blocks have leaked and only a restart helps", limit),
				"an idle engine holds a large part of its memory").because("%s", held)
		default:
			v.find(Info, e.Role, "", "an idle engine holds blocks: for up to %.0f s (its %s) that is as intended", limit, what).because("%s", held)
		}
	}
	v.ok("nothing is held, or the engines are busy")
}

// logs calls see for each engine whose log is known, and says so if there is none.
func logs(f *Facts, v *verdict, see func(e *EngineFacts, l *LogFacts)) {
	lines := 0
	for _, e := range f.sides() {
		if e.Log != nil {
			lines += e.Log.Lines
			see(e, e.Log)
		}
	}
	if lines == 0 {
		v.skip("the logs are not known (--prefill-log, --decode-log)")
		return
	}
	v.ok("%d lines of log", lines)
}

func logIncompatible(f *Facts, v *verdict) {
	logs(f, v, func(e *EngineFacts, l *LogFacts) {
		if n := l.Seen[sawHashMismatch]; n > 0 {
			v.find(Error, e.Role, "start both with the same release, --model, --dtype, --kv-cache-dtype, attention backend and --speculative-config: the hash is made of these", "a handshake was refused: the engines are not alike").
				because("log: %d × %q", n, sawHashMismatch)
		}
		if n := l.Seen[sawIDMismatch]; n > 0 {
			v.find(Warning, e.Role, "give each engine a side channel port of its own, and no fixed engine_id; after a restart of the peer a few of these are normal", "another engine than the expected one answered at an address").
				because("log: %d × %q", n, sawIDMismatch)
		}
	})
}

// failureFix says what each of vLLM's failure types wants.
var failureFix = map[string]string{
	"handshake_setup_failed": "the peer's side channel cannot be reached: VLLM_NIXL_SIDE_CHANNEL_HOST, _PORT, firewall",
	"handshake_failed":       "the peer's side channel does not answer, or another engine does: VLLM_NIXL_SIDE_CHANNEL_HOST, _PORT, restarts",
	"transfer_setup_failed":  "the peer is gone, or memory cannot be registered: compare the time with restarts of the peer",
	"transfer_failed":        "the fabric breaks transfers off: look at ibv_devinfo, EFA's security group (it must allow itself, outbound too) and at UCX's log",
	"notification_failed":    "bytes arrive and the message after them does not: the peer keeps blocks to its TTL",
}

func logFailures(f *Facts, v *verdict) {
	logs(f, v, func(e *EngineFacts, l *LogFacts) {
		for _, kind := range slices.Sorted(maps.Keys(l.Failures)) {
			fix := failureFix[kind]
			if fix == "" {
				fix = "look at the lines after it in the log"
			}
			v.find(Warning, e.Role, fix, "transfers have failed: %s", kind).because("log: %d × %q", l.Failures[kind], string(sawFailure)+kind)
		}
		if n := l.Seen[sawDeclined]; n > 0 {
			v.find(Warning, e.Role, "let the router give handles up earlier: handle_ttl is decode's TTL or less", "handles came too late and were declined").because("log: %d × %q", n, sawDeclined)
		}
	})
}

func logLateReaders(f *Facts, v *verdict) {
	logs(f, v, func(e *EngineFacts, l *LogFacts) {
		if n := l.Seen[sawLate]; n > 0 {
			v.find(Error, e.Role, "no handle twice, none late; on prefill: a longer kv_lease_duration, or more decode capacity", "blocks were read after they had been given up: wrong text is possible").
				because("log: %d × %q", n, sawLate)
		}
	})
}

func logExpired(f *Facts, v *verdict) {
	logs(f, v, func(e *EngineFacts, l *LogFacts) {
		n := l.Seen[sawExpired]
		switch {
		case n >= fewPins:
			v.find(Warning, e.Role, "see unused-handles (decode) and unused-leases (prefill)", "many blocks ran out unread").because("log: %d × %q", n, sawExpired)
		case n > 0:
			v.find(Info, e.Role, "", "some blocks ran out unread").because("log: %d × %q", n, sawExpired)
		}
	})
}

func logBadParams(f *Facts, v *verdict) {
	logs(f, v, func(e *EngineFacts, l *LogFacts) {
		if n := l.Seen[sawBadParams]; n > 0 {
			v.find(Warning, e.Role, "keep clients from sending kv_transfer_params: only a router may", "requests came with params that are not complete: nothing was read, and their blocks stay pinned").
				because("log: %d × %q", n, sawBadParams)
		}
	})
}

func logFatal(f *Facts, v *verdict) {
	logs(f, v, func(e *EngineFacts, l *LogFacts) {
		if n := l.Seen[sawFatal]; n > 0 {
			v.find(Error, e.Role, "restart it; the traceback before the line says why", "the engine behind the HTTP side has died").because("log: %d × %q", n, sawFatal)
		}
	})
}

func logPeers(f *Facts, v *verdict) {
	logs(f, v, func(e *EngineFacts, l *LogFacts) {
		replaced, broken := l.Seen[sawReplaced], l.Seen[sawBrokenPeer]
		if broken > 0 {
			v.find(Warning, e.Role, "if it goes on: restart this engine, and then the peer", "it has given up on a peer and tries again at growing intervals").because("log: %d × %q", broken, sawBrokenPeer)
		}
		if replaced > 0 {
			v.find(Info, e.Role, "", "a peer was restarted").because("log: %d × %q", replaced, strings.TrimSpace(string(sawReplaced)))
		}
	})
}
