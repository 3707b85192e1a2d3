package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func settingChecks() []check {
	return []check{
		{"config-known", groupSettings, "the engines' --kv-transfer-config is known", configKnown, nil},
		{
			"connector", groupSettings, "both engines run the NIXL connector that pulls", connector,
			[]string{"roles", "flag-on-prefill", "flag-on-decode", "decode-reads-prefill", "pull-works", "handle-in-streams"},
		},
		{"roles", groupSettings, "roles are right", roles, nil},
		{"config-keys", groupSettings, "every key is one that the engine knows", configKeys, []string{"flag-on-prefill", "flag-on-decode"}},
		{"threshold-key", groupSettings, "the threshold has its right name, on prefill", thresholdKey, nil},
		{"threshold-value", groupSettings, "the threshold lets handles be read", thresholdValue, []string{"pull-works"}},
		{"failure-policy", groupSettings, `the failure policy is "fail" on both`, failurePolicy, []string{"flag-on-prefill", "pull-works", "decode-reads-prefill"}},
		{"buffer-device", groupSettings, "KV is moved from where it is", bufferDevice, []string{"flag-on-prefill", "pull-works"}},
		{"flag-on-decode", groupSettings, "bidirectional_kv_xfer is on on decode", flagOnDecode, []string{"pull-works", "handle-in-streams"}},
		{"flag-on-prefill", groupSettings, "bidirectional_kv_xfer is on on prefill", flagOnPrefill, []string{"pull-works"}},
		{"engine-id", groupSettings, "engine ids are new at each start", engineID, nil},
		{"decode-ttl", groupSettings, "decode keeps blocks long enough", decodeTTL, []string{"clock-and-expiry", "pull-works"}},
		{"router-age-limit", groupSettings, "the router gives handles up before decode does", routerAgeLimit, nil},
		{"lease", groupSettings, "prefill keeps blocks until decode has come", lease, nil},
		{"side-channel-host", groupSettings, "engines tell their peers an address that these can reach", sideChannelHost, []string{"decode-reads-prefill", "pull-works"}},
		{"side-channel-port", groupSettings, "side channels have a port each", sideChannelPort, []string{"decode-reads-prefill", "pull-works"}},
	}
}

func configKnown(f *Facts, v *verdict) {
	var from []string
	for _, e := range f.sides() {
		switch {
		case e.KVErr != "":
			v.find(Error, e.Role, "correct the JSON: python3 -m json.tool", "what was given as its configuration is not JSON").because("%s", e.KVErr)
		case e.KV != nil:
			from = append(from, e.Role+": "+e.KV.Source)
		case e.Log != nil && e.Log.FlagLine:
			from = append(from, e.Role+": its log, in part")
		}
	}
	if len(from) == 2 {
		v.ok("%s", strings.Join(from, ", "))
		return
	}
	if len(from) == 0 {
		from = []string{"nothing"}
	}
	v.find(Info, pair, "give doctor the logs (--prefill-log, --decode-log) or the JSON (--prefill-kv, --decode-kv)",
		"settings of an engine are not known: keys, threshold, policy and TTL are judged only by what the probe shows").
		because("known: %s", strings.Join(from, "; "))
}

func connector(f *Facts, v *verdict) {
	if !up(f, v) {
		return
	}
	const fix = `start it with --kv-transfer-config '{"kv_connector":"NixlConnector",…}': docs/serve.md has both lines`
	p := f.Probe
	for _, e := range f.sides() {
		if k := e.KV; k != nil {
			switch c := k.Connector(); {
			case c == pullConnector:
			case c == pushConnector && k.Flag():
				v.find(Error, e.Role, `"kv_connector":"NixlConnector"`, "NixlPushConnector cannot be bidirectional: such an engine refuses to start").because("%s: kv_connector %s, bidirectional_kv_xfer on", k.Source, c)
			case c == pushConnector:
				v.find(Error, e.Role, `"kv_connector":"NixlConnector"`, "NixlPushConnector is another protocol: it moves KV from prefill to decode only, and needs both legs at once").because("%s: kv_connector %s", k.Source, c)
			case c == "MultiConnector":
				multiConnector(e, v)
			default:
				v.find(Error, e.Role, `"kv_connector":"NixlConnector"`, "%s gives nothing back from decode to prefill", c).because("%s: kv_connector %s", k.Source, c)
			}
			continue
		}
		var call *Call
		if p != nil {
			call = map[string]*Call{prefill: p.P1, decode: p.D1}[e.Role]
		}
		switch {
		case call.ok() && call.Params:
		case call.ok() && e.Role == prefill:
			v.find(Error, e.Role, fix, "returns no kv_transfer_params: it runs as a plain server").because("a request with params was answered with none")
		case !e.Before.HasNIXL():
			v.find(Error, e.Role, fix, "has no NIXL connector: it runs as a plain server, and computes every prompt itself").
				because("no vllm:nixl_* in /metrics")
		}
	}
	v.ok("vllm:nixl_* in both engines' metrics")
}

// multiConnector looks at the order of several connectors: the first that matches takes the request.
func multiConnector(e *EngineFacts, v *verdict) {
	list, _ := e.KV.Extra["connectors"].([]any)
	var names []string
	for _, c := range list {
		m, _ := c.(map[string]any)
		name, _ := m["kv_connector"].(string)
		names = append(names, name)
	}
	if len(names) > 0 && (names[0] == "NixlConnector" || names[0] == pullConnector) {
		return
	}
	v.find(Error, e.Role, "put NixlConnector first in connectors", "another connector takes the requests first: handles are spent and nothing is read").
		because("%s: connectors %s", e.KV.Source, strings.Join(names, ", "))
}

func roles(f *Facts, v *verdict) {
	known := 0
	for _, e := range f.sides() {
		if e.KV == nil {
			continue
		}
		known++
		right := map[string]string{prefill: "kv_producer", decode: "kv_consumer"}[e.Role]
		switch role := e.KV.Role(); role {
		case right:
		case "kv_both":
			if e.since(23) {
				v.find(Warning, e.Role, fmt.Sprintf(`"kv_role":%q`, right), "kv_both is deprecated since vLLM 0.23 and will be refused").because("%s: kv_role kv_both, vLLM %s", e.KV.Source, e.Version)
			}
		case "kv_producer":
			v.find(Warning, e.Role, fmt.Sprintf(`"kv_role":%q`, right), "decode as kv_producer frees blocks that a step in flight may still write; are the URLs of prefill and decode swapped?").because("%s: kv_role %s", e.KV.Source, role)
		case "kv_consumer":
			v.find(Warning, e.Role, fmt.Sprintf(`"kv_role":%q`, right), "prefill is kv_consumer: it serves, but are the URLs of prefill and decode swapped?").because("%s: kv_role %s", e.KV.Source, role)
		default:
			v.find(Error, e.Role, fmt.Sprintf(`"kv_role":%q`, right), "an engine refuses to start with this role").because("%s: kv_role %q", e.KV.Source, role)
		}
	}
	if known == 0 {
		v.skip("settings are not known")
		return
	}
	v.ok("kv_producer and kv_consumer, as far as known")
}

func configKeys(f *Facts, v *verdict) {
	known := 0
	for _, e := range f.sides() {
		k := e.KV
		if k == nil {
			continue
		}
		known++
		if k.Written {
			topKeysOf(e, v)
		}
		for _, key := range unknown(k.Extra, extraKeys, []string{"connectors"}) {
			m := meant(key, slices.Concat(extraKeys, topKeys))
			if m == "kv_recompute_threshold" {
				continue // threshold-key
			}
			fix := "remove it"
			switch {
			case slices.Contains(topKeys, m):
				fix = fmt.Sprintf("%q is meant, and belongs to the top level", m)
			case m != "":
				fix = fmt.Sprintf("%q is meant", m)
			}
			s := Warning
			if m == "bidirectional_kv_xfer" && !k.Flag() {
				s = Error // the flag is off, and looks on
			}
			v.find(s, e.Role, fix, "vLLM %s does not know %q in kv_connector_extra_config and ignores it without a word", orUnknown(e.Version), key).because("%s", k.Source)
		}
		if s, ok := k.Extra["bidirectional_kv_xfer"].(string); ok {
			v.find(Warning, e.Role, `"bidirectional_kv_xfer":true, or false, without quotation marks`, "the flag is a text, and every text that is not empty counts as on").because("%s: bidirectional_kv_xfer %q", k.Source, s)
		}
		if _, ok := k.Extra["enable_cross_layers_blocks"]; ok && e.since(33) {
			v.find(Warning, e.Role, "remove it; large blocks (--block-size 128) are what helps", "vLLM %s has no enable_cross_layers_blocks for NIXL and ignores it", e.Version).because("%s", k.Source)
		}
	}
	if known == 0 {
		v.skip("settings are not known")
		return
	}
	v.ok("no key that the engine would refuse or ignore")
}

// topKeysOf looks at the top level of what an operator wrote: an unknown key there stops the engine from starting.
func topKeysOf(e *EngineFacts, v *verdict) {
	k := e.KV
	for _, key := range unknown(k.Top, topKeys) {
		switch {
		case slices.Contains(removedKeys, key):
			if e.since(32) {
				v.find(Error, e.Role, fmt.Sprintf("remove %q", key), "vLLM 0.32 and newer refuse to start with %q", key).because("%s; the engine that answers is %s, so it was started otherwise", k.Source, e.Version)
			}
		case slices.Contains(extraKeys, key):
			v.find(Error, e.Role, fmt.Sprintf("move %q into kv_connector_extra_config", key), "%q at the top level: an engine refuses to start with it", key).because("%s", k.Source)
		default:
			fix := fmt.Sprintf("remove %q", key)
			if m := meant(key, slices.Concat(topKeys, extraKeys)); slices.Contains(extraKeys, m) {
				fix = fmt.Sprintf("%q is meant, in kv_connector_extra_config", m)
			} else if m != "" {
				fix = fmt.Sprintf("%q is meant", m)
			}
			v.find(Error, e.Role, fix, "%q is no key of --kv-transfer-config: an engine refuses to start with it", key).because("%s", k.Source)
		}
	}
}

func orUnknown(s string) string {
	if s == "" {
		return "(unknown release)"
	}
	return s
}

func thresholdKey(f *Facts, v *verdict) {
	p, d := f.Prefill.KV, f.Decode.KV
	if p == nil && d == nil {
		v.skip("settings are not known")
		return
	}
	for _, e := range f.sides() {
		if e.KV == nil {
			continue
		}
		for _, key := range unknown(e.KV.Extra, extraKeys) {
			if meant(key, extraKeys) == "kv_recompute_threshold" {
				v.find(Warning, e.Role, fmt.Sprintf(`"kv_recompute_threshold":%v on prefill, and remove %q`, e.KV.Extra[key], key),
					"%q does nothing: vLLM %s ignores unknown keys of kv_connector_extra_config, and the threshold stays at %d", key, orUnknown(e.Version), defaultThreshold).
					because("%s: %s %v", e.KV.Source, key, e.KV.Extra[key])
			}
		}
	}
	if d != nil && p != nil {
		_, onD := d.Extra["kv_recompute_threshold"]
		_, onP := p.Extra["kv_recompute_threshold"]
		if onD && !onP {
			v.find(Warning, decode, `move "kv_recompute_threshold" to prefill`, "the threshold acts on prefill, where it is not set: it stays at %d", defaultThreshold).because("%s: kv_recompute_threshold %v", d.Source, d.Extra["kv_recompute_threshold"])
		}
	}
	v.ok("kv_recompute_threshold")
}

// routerProof is how many tokens the router lets P read before it trusts it with clients' handles.
const routerProof = 200

func thresholdValue(f *Facts, v *verdict) {
	if k := f.Prefill.KV; k != nil {
		if _, err := k.Threshold(); err != nil {
			v.find(Error, prefill, `"kv_recompute_threshold":64`, "kv_recompute_threshold: %v: an engine refuses to start with it", err).because("%s", k.Source)
			return
		}
	}
	n, known := f.Prefill.threshold()
	if known && n >= routerProof {
		v.find(Error, prefill, `"kv_recompute_threshold":64`, "a threshold of %d tokens: tarik proves prefill with %d tokens, which would not be read, so that it never gives it a handle", n, routerProof).
			because("replies shorter than the threshold would be computed again every turn in any case")
		return
	}
	if p := f.Probe; p != nil && p.P2.ok() && p.P3.ok() {
		two, twoPulled := pulled(p, p.P2)
		three, threePulled := pulled(p, p.P3)
		switch {
		case !twoPulled.known || !threePulled.known || two.offered < probeReply-1:
		case twoPulled.n == 0 && threePulled.n == 0:
			v.find(Error, prefill, `"kv_recompute_threshold":64`, "prefill took the handles and read nothing: its threshold is above %d tokens", three.offered).
				because("turn 2: %d tokens on offer, 0 read", two.offered).because("turn 3: %d tokens on offer, 0 read", three.offered)
			return
		case twoPulled.n == 0:
			v.find(Warning, prefill, `"kv_recompute_threshold":64`, "prefill computes replies of up to %d tokens again instead of reading them", two.offered).
				because("turn 2: %d tokens on offer, 0 read; turn 3: %d on offer, %d read", two.offered, three.offered, threePulled.n)
			return
		}
	}
	switch {
	case known && n == 0:
		v.ok("0: everything is read, and the line about the flag is not in the log")
	case known:
		v.ok("%d tokens", n)
	case f.Probe != nil && f.Probe.P2.ok():
		v.ok("the probe's reply of %d tokens was read", probeReply)
	default:
		v.skip("settings are not known, and the probe has read nothing")
	}
}

func failurePolicy(f *Facts, v *verdict) {
	const fix = `"kv_load_failure_policy":"fail" on both`
	known := false
	for _, e := range f.sides() {
		if e.KV != nil {
			known = true
			if policy := e.KV.Policy(); policy != "fail" {
				v.find(Error, e.Role, fix, "with policy %q a READ that fails hangs the request for ever and leaks its blocks", policy).because("%s: kv_load_failure_policy %q", e.KV.Source, policy)
				continue
			}
		}
		if e.Log != nil && e.Log.Seen[sawRecovered] > 0 {
			v.find(Error, e.Role, fix, `the policy is "recompute": requests whose READ failed hang`).because("log: %d × %q", e.Log.Seen[sawRecovered], sawRecovered)
		}
	}
	if p := f.Probe; p != nil && len(v.r.Findings) == 0 {
		for _, c := range []*Call{p.P2, p.P3, p.D1} {
			if c == nil || !c.TimedOut {
				continue
			}
			failed := c.P.Failed
			if c.Engine == decode {
				failed = c.D.Failed
			}
			if failed > 0 {
				v.find(Error, c.Engine, fix+"; then look why the READ fails", `a READ failed and the request was not answered: the policy is "recompute"`).
					because("%s: no answer in %.0f s, %s +%.0f", c.Name, c.Took.Seconds(), mFailed, failed)
			}
		}
	}
	if !known {
		v.skip("settings are not known; the probe saw no failed READ hang")
		return
	}
	v.ok("fail, as far as known")
}

func bufferDevice(f *Facts, v *verdict) {
	known := false
	for _, e := range f.sides() {
		if e.KV == nil {
			continue
		}
		known = true
		device, _ := e.setting("device_config", "device_config", "device_config", "device_type").(string)
		proven := f.Probe != nil && f.Probe.P2.ok()
		if e.KV.text("kv_buffer_device", "") != "cpu" || device == "cpu" || proven {
			continue
		}
		s := Warning // right on a CPU platform
		if device != "" || f.Probe != nil && f.Probe.P2 != nil && f.Probe.P2.TimedOut {
			s = Error
		}
		v.find(s, e.Role, `remove "kv_buffer_device"`, "on a GPU this engine would never start a pull: the request hangs").because("%s: kv_buffer_device cpu; device %q", e.KV.Source, device)
	}
	if !known {
		v.skip("settings are not known")
		return
	}
	v.ok("the platform's own")
}

const flagFix = `"kv_connector_extra_config":{"bidirectional_kv_xfer":true} on both engines`

func flagOnDecode(f *Facts, v *verdict) {
	d := f.Decode
	on, known, from := d.flag()
	p := f.Probe
	switch {
	case known && !on:
		v.find(Error, decode, flagFix, "decode keeps nothing after a turn and returns no handle").because("%s: bidirectional_kv_xfer is off", from)
	case p != nil && p.D1.ok() && p.Withheld == "" && !p.D1.Params:
		v.find(Error, decode, flagFix, "decode keeps nothing after a turn and returns no handle").
			because("an answer that was not streamed has kv_transfer_params null").because("%s: %.0f tokens read from prefill", p.D1.Name, p.D1.D.Pulled)
	case p != nil && p.D1.ok() && p.D1.Params:
		v.ok("decode returned a handle")
	case known:
		v.ok("%s", from)
	default:
		v.skip("settings are not known, and the probe did not get there")
	}
}

func flagOnPrefill(f *Facts, v *verdict) {
	on, known, from := f.Prefill.flag()
	p := f.Probe
	switch {
	case known && !on:
		v.find(Error, prefill, flagFix, "a handle given to this engine parks the request for ever and keeps its blocks until restart").
			because("%s: bidirectional_kv_xfer is off", from)
	case p != nil && p.P2 != nil && p.P2.TimedOut && !known && p.P2.Waits.Deferred > 0 && p.P2.P.Failed == 0:
		v.find(Error, prefill, flagFix+"; restart prefill, which keeps the probe's blocks until then",
			"prefill has parked the request with the handle and reads nothing: bidirectional_kv_xfer is off there").
			because("%s: no answer in %.0f s", p.P2.Name, p.P2.Took.Seconds()).
			because("%s{reason=\"deferred\"} %.0f, and no READ failed", mReason, p.P2.Waits.Deferred)
	case p != nil && p.P2.ok():
		v.ok("prefill took a handle and answered")
	case known:
		v.ok("%s", from)
	default:
		v.skip("settings are not known, and the probe did not get there")
	}
}

func engineID(f *Facts, v *verdict) {
	p, d := probeHandles(f)
	known := false
	for i, h := range []*HandleFacts{p, d} {
		e := f.sides()[i]
		set := ""
		if e.KV != nil && e.KV.Written {
			known = true
			set = e.KV.text("engine_id", "")
		}
		known = known || h != nil
		if set == "" && (h == nil || !h.Fixed) {
			continue
		}
		v.find(Warning, e.Role, `remove "engine_id"`, "the engine has the same id after a restart: handles of its former life look valid, and peers keep talking to a process that is gone").
			because("engine_id is set by hand")
	}
	for _, e := range f.sides() {
		if n := f.Probe.lives(e.Role); n > 1 {
			v.find(Warning, e.Role, "give doctor and the router each engine's own address; with data parallelism, one rank's",
				"answers come from %d engines: something balances between them, and what a turn leaves is in one of them", n).
				because("%d different remote_engine_id in the conversation's kv_transfer_params", n)
		}
	}
	if !known {
		v.skip("settings are not known, and there are no handles to look at")
		return
	}
	v.ok("made by the engines")
}

func decodeTTL(f *Facts, v *verdict) {
	ttl, known := f.Decode.ttl()
	if k := f.Prefill.KV; k != nil && f.Decode.KV != nil {
		_, onP := k.Extra["decoder_kv_blocks_ttl"]
		_, onD := f.Decode.KV.Extra["decoder_kv_blocks_ttl"]
		if onP && !onD {
			v.find(Warning, prefill, `move "decoder_kv_blocks_ttl" to decode`, "the TTL acts on decode, where it is not set: it stays at %d s", defaultTTL).because("%s: decoder_kv_blocks_ttl %v", k.Source, k.Extra["decoder_kv_blocks_ttl"])
		}
	}
	switch {
	case !known:
		v.skip("decode's TTL is not known: give --decode-kv or --decode-log")
	case ttl <= 30:
		v.find(Error, decode, `"decoder_kv_blocks_ttl":480`, "handles live for %.0f s, and a router gives them up 30 s before: none can be used", ttl).because("decoder_kv_blocks_ttl %.0f", ttl)
	case ttl < 60:
		v.find(Warning, decode, `"decoder_kv_blocks_ttl":480`, "handles live for %.0f s: agents that run tools pause for longer", ttl).because("decoder_kv_blocks_ttl %.0f", ttl)
	default:
		v.ok("%.0f s", ttl)
	}
}

func routerAgeLimit(f *Facts, v *verdict) {
	c := f.Config
	if c == nil {
		v.skip("no configuration file of the router was given (--config)")
		return
	}
	ttl, known := f.Decode.ttl()
	if !known {
		v.skip("decode's TTL is not known: give --decode-kv or --decode-log. The router uses handles for up to %s", c.HandleTTL-c.Margin)
		return
	}
	engine := time.Duration(ttl * float64(time.Second))
	switch {
	case c.HandleTTL > engine:
		v.find(Error, routing, fmt.Sprintf("handle_ttl: %s in %s, or \"decoder_kv_blocks_ttl\":%.0f on decode", engine, c.Source, c.HandleTTL.Seconds()),
			"the router uses handles for up to %s, decode keeps them for %s: turns in between fail first and are computed anew", c.HandleTTL-c.Margin, engine).
			because("%s: handle_ttl %s", c.Source, c.HandleTTL).because("decode: decoder_kv_blocks_ttl %.0f", ttl)
	case c.HandleTTL < engine/2:
		v.find(Info, routing, fmt.Sprintf("handle_ttl: %s", engine), "decode keeps blocks for %s that the router no longer uses", engine-c.HandleTTL).
			because("%s: handle_ttl %s", c.Source, c.HandleTTL).because("decode: decoder_kv_blocks_ttl %.0f", ttl)
	default:
		v.ok("%s of %s, given up %s before", c.HandleTTL, engine, c.Margin)
	}
}

// fewWaits is how many requests make a distribution of waiting times.
const fewWaits = 20

func lease(f *Facts, v *verdict) {
	if !up(f, v) {
		return
	}
	seconds, from := float64(defaultLease), "the default"
	if k := f.Prefill.KV; k != nil {
		seconds = k.Lease(f.Prefill.version())
		from = k.Source
	}
	wait, n := f.Decode.Before.Quantile(mQueue, 0.95)
	fix := fmt.Sprintf(`"kv_lease_duration":%.0f on prefill, and more decode capacity: heartbeats begin only when decode admits a request`, max(60, 4*wait))
	switch {
	case seconds < 5:
		v.find(Warning, prefill, `"kv_lease_duration":30`, "prefill keeps blocks for %.0f s only", seconds).because("kv_lease_duration %.0f (%s)", seconds, from)
	case n < fewWaits:
		v.ok("%.0f s (%s); decode has served too few requests to tell how long they wait", seconds, from)
	case wait >= seconds:
		v.find(Error, pair, fix, "requests wait longer in decode's queue than prefill keeps their blocks: decode then reads freed blocks, with status 200").
			because("%s: 95 %% of %.0f requests waited up to %.0f s", mQueue, n, wait).because("kv_lease_duration %.0f (%s)", seconds, from)
	case wait > seconds/2:
		v.find(Warning, pair, fix, "requests wait in decode's queue for more than half the time that prefill keeps their blocks").
			because("%s: 95 %% of %.0f requests waited up to %.0f s", mQueue, n, wait).because("kv_lease_duration %.0f (%s)", seconds, from)
	default:
		v.ok("%.0f s (%s); 95 %% of decode's requests wait up to %.1f s", seconds, from, wait)
	}
}

func sideChannelHost(f *Facts, v *verdict) {
	p, d := probeHandles(f)
	if p == nil && d == nil {
		v.skip("there are no handles to look at")
		return
	}
	for i, h := range []*HandleFacts{p, d} {
		if h == nil {
			continue
		}
		e := f.sides()[i]
		fix := fmt.Sprintf("start %s with VLLM_NIXL_SIDE_CHANNEL_HOST=%s", e.Role, e.host())
		reached := f.Probe.D1.ok() && f.Probe.D1.D.Reads > 0
		if e.Role == decode {
			reached = f.Probe.P2.ok() && f.Probe.P2.P.Reads > 0
		}
		switch {
		case onlyHere(h.Host) && !f.sameHost() && reached:
			v.find(Info, e.Role, fix, "tells its peer to look for it on the peer's own machine, and is found there: the engines share one").because("remote_host %s in its kv_transfer_params", h.Host)
		case onlyHere(h.Host) && !f.sameHost():
			v.find(Error, e.Role, fix, "tells its peer, which is on another machine, to look for it at %s", h.Host).
				because("remote_host %s in its kv_transfer_params", h.Host).because("prefill at %s, decode at %s", f.Prefill.host(), f.Decode.host())
		case h.Host == "0.0.0.0" || h.Host == "::":
			v.find(Warning, e.Role, fix, "tells its peer an address to listen on, not one to connect to").because("remote_host %s in its kv_transfer_params", h.Host)
		case h.Unresolved:
			v.find(Warning, e.Role, fix, "tells its peer a name that this machine cannot resolve; can the peer?").because("remote_host %s in its kv_transfer_params", h.Host)
		}
	}
	var at []string
	for i, h := range []*HandleFacts{p, d} {
		if h != nil {
			at = append(at, fmt.Sprintf("%s at %s:%d", f.sides()[i].Role, h.Host, h.Port))
		}
	}
	v.ok("%s", strings.Join(at, ", "))
}

// endpointPort finds the port in an endpoint such as tcp://*:5557.
var endpointPort = regexp.MustCompile(`:(\d+)$`)

// eventPorts looks for side channels where an engine publishes KV events.
func eventPorts(f *Facts, v *verdict, p, d *HandleFacts) (found bool) {
	for _, e := range f.sides() {
		config, _ := e.setting("kv_events_config", "kv_events_config", "kv_events_config", "").(map[string]any)
		endpoint, _ := config["endpoint"].(string)
		m := endpointPort.FindStringSubmatch(endpoint)
		if m == nil {
			continue
		}
		for i, h := range []*HandleFacts{p, d} {
			if o := f.sides()[i]; m[1] == strconv.Itoa(h.Port) && (o == e || f.sameHost()) {
				found = true
				v.find(Error, pair, "give KV events, and each side channel, ports of their own: both add the data-parallel rank to them", "%s publishes KV events at the port of %s's side channel", e.Role, o.Role).
					because("kv_events_config: endpoint %s", endpoint).because("remote_port %d", h.Port)
			}
		}
	}
	return found
}

func sideChannelPort(f *Facts, v *verdict) {
	p, d := probeHandles(f)
	switch {
	case p == nil || d == nil:
		if f.Probe == nil || f.Probe.P1 == nil {
			v.skip("there are no handles to look at")
			return
		}
		v.skip("decode returned no handle to compare with")
	case eventPorts(f, v, p, d):
	case p.Port == d.Port && p.Host == d.Host:
		v.find(Error, pair, "set VLLM_NIXL_SIDE_CHANNEL_PORT to ports that lie further apart than the data-parallel size, such as 5600 and 5700",
			"both engines say that they are at the same address: each would talk to itself").
			because("prefill: %s:%d", p.Host, p.Port).because("decode: %s:%d", d.Host, d.Port)
	default:
		v.ok("%d and %d", p.Port, d.Port)
	}
}
