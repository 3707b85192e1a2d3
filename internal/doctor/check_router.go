package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

func routerChecks() []check {
	return []check{
		{"router-reachable", groupRouter, "the router answers", routerReachable, nil},
		{"router-engines", groupRouter, "the router uses these engines", routerEngines, []string{"router-trust"}},
		{"router-trust", groupRouter, "the router gives prefill handles", routerTrust, nil},
		{"router-reuse", groupRouter, "turns reuse what their predecessors left", routerReuse, nil},
		{"router-handles", groupRouter, "the router gets handles", routerHandles, nil},
		{"reuse-on", groupRouter, "reuse is on in the router's configuration", reuseOn, nil},
		{"tenant-isolation", groupRouter, "tenants have salts of their own", tenantIsolation, nil},
	}
}

// routed reports whether a router was asked and answered, and says so if not.
func routed(f *Facts, v *verdict) bool {
	switch {
	case f.Router == nil:
		v.skip("no router was given (--router)")
	case f.Router.Err != "":
		v.skip("the router does not answer")
	default:
		return true
	}
	return false
}

func routerReachable(f *Facts, v *verdict) {
	switch {
	case f.Router == nil:
		v.skip("no router was given (--router)")
	case f.Router.Err != "":
		v.find(Error, routing, "give --router the admin address, such as http://127.0.0.1:9091", "does not answer as a router does").because("%s", f.Router.Err)
	default:
		v.ok("%s", f.Router.URL)
	}
}

func routerEngines(f *Facts, v *verdict) {
	if !routed(f, v) {
		return
	}
	r := f.Router
	for _, e := range f.sides() {
		for _, known := range r.Engines {
			if known.Role != e.Role {
				continue
			}
			switch {
			case strings.TrimSuffix(known.URL, "/") != e.URL:
				v.find(Warning, routing, "give doctor the engines that the router uses", "uses another %s engine than the one looked at", e.Role).
					because("router: %s", known.URL).because("doctor: %s", e.URL)
			case !known.Up:
				v.find(Error, routing, "let the router reach the engine", "takes %s for down", e.Role).because("%s", known.Why)
			}
		}
	}
	if r.Mismatch != "" {
		v.find(Error, routing, "make the engines alike", "does not take the engines for a pair").because("%s", r.Mismatch)
	}
	v.ok("the same, and both up")
}

func routerTrust(f *Facts, v *verdict) {
	if !routed(f, v) {
		return
	}
	for _, e := range f.Router.Engines {
		if e.Role != prefill || e.Handles == "" || e.Handles == "proven" {
			continue
		}
		s := Warning // it may still be trying
		if e.Handles == "distrusted" {
			s = Error
		}
		why := e.Why
		if why == "" {
			why = "not tried yet"
		}
		v.find(s, routing, "mend what the findings above name; the router tries again by itself within 5 minutes", "gives prefill no handles: it is %s", e.Handles).because("%s", why)
	}
	v.ok("proven")
}

// whyFix says what each reason of a receipt wants.
var whyFix = map[string]string{
	"no-handle":          flagFix + "; and vLLM 0.33 if clients stream",
	"handle-expired":     `a longer "decoder_kv_blocks_ttl" on decode, and the same handle_ttl in the router`,
	"engine-restarted":   "keep decode from restarting",
	"no-common-prefix":   "keep histories as they were: no volatile text at the head, no dropped reasoning, no edited replies (tarik analyze names the pattern)",
	"cannot-render":      "start prefill with --enable-scale-out",
	"prefill-unproven":   "see router-trust",
	"prefill-distrusted": "see router-trust",
	"reuse-off":          "reuse: true in the router's configuration",
	"pull-failed":        "see transport-failures and pull-works",
	"pull-late":          "see transport-rate and transport-descriptors",
	"decode-tight":       "run vLLM 0.33, or lower decoder_kv_blocks_ttl",
	"prefill-kept-none":  "see connector",
	"prefill-failed":     "look at prefill's log",
	"below-threshold":    `a smaller "kv_recompute_threshold" on prefill`,
	"first-turn":         "let clients name their conversations (conversation_id, X-Session-Id), and keep one conversation on one router",
	"handle-not-cutable": "keep histories as they were: this model's handles cannot be cut",
	"decode-failed-once": "look at decode's log",
	"several-replies":    "ask for n = 1",
	"prefill-had-it":     "",
	"taken-by-another":   "let a client wait for a turn's end before it sends the next",
	"client-left":        "",
	"prompt-logprobs":    "ask for no prompt_logprobs",
	"several-prompts":    "send one prompt at a time",
	"verified":           "",
	"cut":                "",
}

// fewTurns is how many follow-up turns make a pattern, and smallTurn is the prompt, in tokens, that is too short to count.
const (
	fewTurns  = 5
	smallTurn = 256
)

func routerReuse(f *Facts, v *verdict) {
	if !routed(f, v) {
		return
	}
	var turns, prompts, reused, unsaid int
	why := map[string]int{}
	for _, t := range f.Router.Turns {
		if t.Number < 2 || t.Status != 200 || t.Prompt < smallTurn {
			continue
		}
		turns++
		why[t.Why]++
		if t.Local == nil || t.Pulled == nil {
			unsaid++
			continue
		}
		prompts += t.Prompt
		reused += *t.Local + *t.Pulled
	}
	if turns-unsaid < fewTurns {
		v.skip("too few turns to tell: %d that follow another, of %d", turns, len(f.Router.Turns))
		return
	}
	reasons := slices.SortedFunc(maps.Keys(why), func(a, b string) int { return why[b] - why[a] })
	list := make([]string, len(reasons))
	for i, r := range reasons {
		list[i] = fmt.Sprintf("%s %d", r, why[r])
	}
	share := float64(reused) / float64(max(1, prompts))
	s := OK
	switch {
	case reused == 0:
		s = Error
	case share < 0.2:
		s = Warning
	}
	if s == OK {
		v.ok("%d turns that follow another: %.0f %% of their prompt tokens were not computed", turns, 100*share)
		return
	}
	fix := whyFix[reasons[0]]
	if fix == "" {
		fix = "docs/receipts.md explains the reasons"
	}
	v.find(s, routing, fix, "%d turns that follow another reused %d of %d prompt tokens", turns, reused, prompts).because("reasons in GET /turns: %s", strings.Join(list, ", "))
}

func routerHandles(f *Facts, v *verdict) {
	if !routed(f, v) {
		return
	}
	m := f.Router.Metrics
	without, kept := m.Sum("tarik_replies_without_handle_total"), m.Sum("tarik_handles_kept_total")
	streamed := m.Sum("tarik_replies_without_handle_total", "streamed", "true")
	if bad := m.Sum("tarik_bad_params_total"); bad > 0 {
		v.find(Warning, routing, "look for a gateway between router and engines that rewrites JSON", "%.0f replies had kv_transfer_params that cannot be used", bad).because("tarik_bad_params_total %.0f", bad)
	}
	switch {
	case without < fewTurns || without <= kept:
		v.ok("kept %.0f, replies without %.0f", kept, without)
	default:
		fix := flagFix
		if streamed > without/2 {
			fix += "; streams carry handles since vLLM 0.33, streams of /v1/messages never"
		}
		v.find(Warning, routing, fix, "decode returned no handle in %.0f replies, %.0f of them streamed", without, streamed).
			because("tarik_replies_without_handle_total %.0f, tarik_handles_kept_total %.0f", without, kept)
	}
}

func reuseOn(f *Facts, v *verdict) {
	switch {
	case f.Config == nil:
		v.skip("no configuration file of the router was given (--config)")
	case !f.Config.Reuse:
		v.find(Warning, routing, "reuse: true in "+f.Config.Source, "the router gives prefill no handles").because("%s: reuse false", f.Config.Source)
	default:
		v.ok("%s", f.Config.Source)
	}
}

func tenantIsolation(f *Facts, v *verdict) {
	c := f.Config
	switch {
	case c == nil:
		v.skip("no configuration file of the router was given (--config)")
	case c.Authenticates && !c.Isolated:
		v.find(Warning, routing, "tenants.salts.isolation: true in "+c.Source, "tenants share cached prefixes, and can find out by timing what others have sent").because("%s: tenants.salts.isolation false", c.Source)
	case c.Isolated && !c.SaltsLast:
		v.find(Info, routing, "tenants.salts.secrets_file in "+c.Source, "salts are made of a secret of the router's process: after a restart the engines' caches are cold, and replicas do not share them").because("%s: no tenants.salts.secrets_file", c.Source)
	case !c.Authenticates:
		v.ok("one tenant")
	default:
		v.ok("%s", c.Source)
	}
}
