package doctor

import (
	"fmt"
	"strconv"
	"strings"
)

func engineChecks() []check {
	return []check{
		{"engine-reachable", groupEngines, "both engines answer", engineReachable, []string{"version-known", "same-version", "same-model", "same-limits", "block-size", "cache-layout", "prefix-caching", "dev-mode", "connector"}},
		{"version-known", groupEngines, "the engines' release can do it and is known", versionKnown, nil},
		{
			"same-version", groupEngines, "both engines are of the same release", sameVersion,
			[]string{"decode-reads-prefill", "pull-works", "log-incompatible"},
		},
		{"same-model", groupEngines, "both engines serve the same model", sameModel, nil},
		{"same-limits", groupEngines, "both engines take prompts of the same length", sameLimits, nil},
		{"block-size", groupEngines, "both engines have blocks of the same size", blockSizes, []string{"decode-reads-prefill", "pull-works"}},
		{"cache-layout", groupEngines, "both engines keep KV in the same form", cacheLayout, []string{"decode-reads-prefill", "pull-works"}},
		{"parallel-sizes", groupEngines, "tensor and context parallel sizes fit", parallelSizes, []string{"decode-reads-prefill", "pull-works"}},
		{"speculation", groupEngines, "speculative decoding is the same on both", speculation, []string{"decode-reads-prefill", "pull-works"}},
		{"prefix-caching", groupEngines, "both engines have their prefix cache on", prefixCaching, nil},
		{"dev-mode", groupEngines, "development endpoints are closed", devMode, nil},
		{"token-details", groupEngines, "prefill says how many tokens it reused", tokenDetails, nil},
		{"render", groupEngines, "prefill renders prompts for the router", renderOpen, nil},
	}
}

func engineReachable(f *Facts, v *verdict) {
	for _, e := range f.sides() {
		switch {
		case e.Err == "":
		case strings.Contains(e.Err, "HTTP 401"), strings.Contains(e.Err, "HTTP 403"):
			v.find(Error, e.Role, "give doctor the engine's key: api_key of a configuration file (--config), or --api-key-file",
				"the engine wants a key").because("%s: %s", e.URL, e.Err)
		case strings.Contains(e.Err, "/health: HTTP 503"):
			v.find(Error, e.Role, "restart the engine; its log says what ended EngineCore", "the HTTP side answers, but the engine behind it is dead").
				because("%s: %s", e.URL, e.Err)
		default:
			v.find(Error, e.Role, fmt.Sprintf("start the engine, or correct the URL: curl -i %s/health", e.URL), "does not answer as an engine does").
				because("%s: %s", e.URL, e.Err)
		}
	}
	if f.Prefill.URL == f.Decode.URL {
		v.find(Error, pair, "run two engines, and give both URLs", "prefill and decode are the same engine: there is nobody to hand over to").because("%s", f.Prefill.URL)
	}
	if f.Prefill.Err == "" && f.Decode.Err == "" {
		v.ok("%s, %s", f.Prefill.URL, f.Decode.URL)
	}
}

// up reports whether both engines could be asked, and says so if not.
func up(f *Facts, v *verdict) bool {
	if f.Prefill.Err != "" || f.Decode.Err != "" {
		v.skip("an engine does not answer")
		return false
	}
	return true
}

func versionKnown(f *Facts, v *verdict) {
	for _, e := range f.sides() {
		switch {
		case e.Err != "":
		case e.CanErr != "":
			v.find(Error, e.Role, "run vLLM 0.33", "this release cannot do it, or is no release").because("%s", e.CanErr)
		case e.Can.Newer:
			v.find(Info, e.Role, "", "release %s is newer than this doctor: it is taken for %s", e.Version, "0.33").because("GET /version: %s", e.Version)
		default:
			oldRelease(e, v)
		}
	}
	v.ok("%s, %s", f.Prefill.Version, f.Decode.Version)
}

// sinceFixed are faults of older releases that no setting mends, with the release that has them no more.
var sinceFixed = []struct {
	minor int
	text  string
}{
	{25, "before 0.25 handles of engines with speculative decoding name blocks too many"},
	{26, "before 0.26 handles have no expiry: a READ that comes too late brings other text's KV with status 200; keep handle_ttl at decoder_kv_blocks_ttl or below"},
	{27, "before 0.27 an engine that spans several machines can give blocks up at once: use engines of one machine each"},
	{30, "before 0.30 hybrid models (sliding window, state space) go on with garbage after a READ that failed: do not use them"},
}

func oldRelease(e *EngineFacts, v *verdict) {
	old := false
	for _, s := range sinceFixed {
		if e.since(s.minor) {
			continue
		}
		if !old {
			v.find(Info, e.Role, "run vLLM 0.33", "release %s has faults that no setting mends", e.Version)
		}
		old = true
		v.because("%s", s.text)
	}
}

func sameVersion(f *Facts, v *verdict) {
	if !up(f, v) {
		return
	}
	p, d := f.Prefill.Version, f.Decode.Version
	if p != d {
		v.find(Error, pair, "run the same release on both: an upgrade replaces P and D of a pair together",
			"the engines cannot talk to each other: the handshake compares the exact release").
			because("prefill: %s", p).because("decode: %s", d)
		return
	}
	v.ok("%s", p)
}

func sameModel(f *Facts, v *verdict) {
	if !up(f, v) {
		return
	}
	p, d := f.Prefill, f.Decode
	switch {
	case p.model() == "" || d.model() == "":
		v.find(Error, pair, "", "an engine serves no model").because("prefill: %q", p.model()).because("decode: %q", d.model())
	case p.model() != d.model():
		v.find(Error, pair, "give both engines the same --served-model-name", "the engines serve models of different names").
			because("prefill: %q", p.model()).because("decode: %q", d.model())
	case p.Models[0].Root != d.Models[0].Root:
		v.find(Error, pair, "start both engines with the same --model, to the letter",
			"the engines have loaded the model by different names, and the handshake compares them").
			because("prefill: %q", p.Models[0].Root).because("decode: %q", d.Models[0].Root)
	default:
		v.ok("%s", p.model())
	}
}

func sameLimits(f *Facts, v *verdict) {
	if !up(f, v) {
		return
	}
	p, d := f.Prefill.maxLen(), f.Decode.maxLen()
	switch {
	case p == 0 || d == 0:
		v.skip("an engine does not say its max_model_len")
	case p != d:
		v.find(Warning, pair, fmt.Sprintf("start both with --max-model-len %d", min(p, d)),
			"the engines take prompts of different lengths: what the second refuses leaves the first one's blocks pinned").
			because("prefill: max_model_len %d", p).because("decode: max_model_len %d", d)
	default:
		v.ok("max_model_len %d", p)
	}
}

func blockSizes(f *Facts, v *verdict) {
	if !up(f, v) {
		return
	}
	p, d := f.Prefill.Before.BlockSize(), f.Decode.Before.BlockSize()
	switch {
	case p == 0 || d == 0:
		v.find(Error, pair, "check the URLs: is this vLLM?", "an engine does not say its block size").
			because("vllm:cache_config_info in /metrics: prefill %d, decode %d", p, d)
	case p != d:
		v.find(Error, pair, fmt.Sprintf("start both with --block-size %d", max(p, d)),
			"the block sizes differ: blocks can be read in both directions only if they are equal").
			because("prefill: block_size %d", p).because("decode: block_size %d", d)
	case p > 256:
		v.find(Info, pair, "", "a block is %d tokens: up to %d tokens of each prompt are computed again every turn, and a shared prefix shorter than a block is never found", p, p-1).
			because("vllm:cache_config_info: block_size %d", p)
	default:
		v.ok("%d tokens", p)
	}
}

// cacheLayout compares what the engines say about the form of their KV.
func cacheLayout(f *Facts, v *verdict) {
	if !up(f, v) {
		return
	}
	p, d := f.Prefill.Before, f.Decode.Before
	for _, l := range []struct{ label, fix string }{
		{"cache_dtype", "start both with the same --kv-cache-dtype"},
		{"kv_cache_layout", "start both with the same VLLM_KV_CACHE_LAYOUT"},
		{"sliding_window", "start both with the same model and the same --disable-hybrid-kv-cache-manager"},
	} {
		a, b := p.Label(mCache, l.label), d.Label(mCache, l.label)
		if a != b && a != "" && b != "" {
			v.find(Error, pair, l.fix, "the KV of one engine is no KV for the other").
				because("prefill: %s %s", l.label, a).because("decode: %s %s", l.label, b)
		}
	}
	v.ok("cache_dtype %s", p.Label(mCache, "cache_dtype"))
}

// parallelSizes looks at what the engines write into their params.
func parallelSizes(f *Facts, v *verdict) {
	p, d := probeHandles(f)
	if p == nil || d == nil {
		a, aok := f.Prefill.setting("tensor_parallel_size", "tensor_parallel_size", "parallel_config", "tensor_parallel_size").(float64)
		b, bok := f.Decode.setting("tensor_parallel_size", "tensor_parallel_size", "parallel_config", "tensor_parallel_size").(float64)
		if !aok || !bok {
			v.skip("no handles and no settings to compare")
			return
		}
		p, d = &HandleFacts{TP: int(a), DCP: 1}, &HandleFacts{TP: int(b), DCP: 1}
	}
	switch small, large := min(p.TP, d.TP), max(p.TP, d.TP); {
	case small < 1:
		v.skip("an engine does not say")
		return
	case large%small != 0:
		v.find(Error, pair, "choose --tensor-parallel-size so that one divides the other", "neither tensor parallel size divides the other").
			because("prefill: tp_size %d", p.TP).because("decode: tp_size %d", d.TP)
	case p.TP > d.TP && !f.Decode.since(26):
		v.find(Warning, pair, "run vLLM 0.26 or newer, or equal --tensor-parallel-size", "prefill is spread over more GPUs than decode: older releases fail at the first transfer").
			because("prefill: tp_size %d", p.TP).because("decode: tp_size %d, vLLM %s", d.TP, f.Decode.Version)
	}
	if d.DCP > 1 || d.Groups > 1 {
		v.find(Info, decode, "", "this model's handles cannot be cut: a turn whose history was edited computes everything").
			because("dcp_size %d, %d groups of blocks", d.DCP, d.Groups)
	}
	v.ok("tp_size %d and %d", p.TP, d.TP)
}

// lives is how many engine ids a role's replies had in the conversation.
func (p *Probe) lives(role string) int {
	if p == nil {
		return 0
	}
	ids := map[string]bool{}
	for _, c := range []*Call{p.P1, p.D1, p.P2, p.D2, p.P3, p.D3} {
		if c != nil && c.Engine == role && c.Handle != nil && c.Handle.engineID != "" {
			ids[c.Handle.engineID] = true
		}
	}
	return len(ids)
}

// probeHandles are the first params of each engine that the probe has seen.
func probeHandles(f *Facts) (p, d *HandleFacts) {
	if f.Probe == nil {
		return nil, nil
	}
	for _, c := range []*Call{f.Probe.P1, f.Probe.P2} {
		if c != nil && c.Handle != nil && c.Handle.Err == "" && p == nil {
			p = c.Handle
		}
	}
	for _, c := range []*Call{f.Probe.D1, f.Probe.D2, f.Probe.D3} {
		if c != nil && c.Handle != nil && c.Handle.Err == "" && d == nil {
			d = c.Handle
		}
	}
	return p, d
}

// speculative returns the method of speculative decoding, "" for none; known says whether settings are known at all.
func (e *EngineFacts) speculative() (method string, known bool) {
	known = e.Settings != nil || e.Log != nil && (e.Log.Args != nil || e.Log.Engine != nil)
	switch s := e.setting("speculative_config", "speculative_config", "speculative_config", "method").(type) {
	case map[string]any:
		method, _ = s["method"].(string)
		if method == "" {
			method, _ = s["model"].(string)
		}
	case string:
		method = s
	}
	return method, known
}

func speculation(f *Facts, v *verdict) {
	p, pKnown := f.Prefill.speculative()
	d, dKnown := f.Decode.speculative()
	if !pKnown || !dKnown {
		v.skip("settings are not known: give both logs (--prefill-log, --decode-log)")
		return
	}
	harmless := func(m string) bool { return m == "" || strings.Contains(m, "ngram") || m == "suffix" }
	switch {
	case p != d && !(harmless(p) && harmless(d)):
		v.find(Error, pair, "give both engines the same --speculative-config", "one engine has a draft model and the other has not: its layers change the form of the KV").
			because("prefill: %q", p).because("decode: %q", d)
	case d != "" && !f.Decode.Can.BlockListExact:
		v.find(Error, decode, "run vLLM 0.25 or newer, or no speculative decoding on decode", "with speculative decoding handles of %s name blocks too many: P reads the wrong ones", f.Decode.Version).
			because("decode: %q", d)
	default:
		v.ok("%q and %q", p, d)
	}
}

func prefixCaching(f *Facts, v *verdict) {
	if !up(f, v) {
		return
	}
	said := false
	for _, e := range f.sides() {
		label := e.Before.Label(mCache, "enable_prefix_caching")
		said = said || label != ""
		if label != "False" {
			continue
		}
		s, text := Error, "the prefix cache is off: nothing that was computed or read is ever found again"
		if e.Role == decode {
			s, text = Warning, "the prefix cache is off: decode reads the whole prompt from prefill every turn"
		}
		v.find(s, e.Role, "start it without --no-enable-prefix-caching", "%s", text).because("vllm:cache_config_info: enable_prefix_caching False")
	}
	p := f.Probe
	switch {
	case len(v.r.Findings) > 0:
	case p != nil && p.Warm.ok() && p.Warm.Cached != nil && p.WarmHas > 0 && *p.Warm.Cached == 0:
		v.find(Error, prefill, "send both legs of a conversation to the same prefill engine process; look for a balancer between doctor and it, and for --data-parallel-size",
			"the same prompt, twice in a row under one salt, is computed twice").
			because("%d tokens, of which %d fill whole blocks; found: 0", p.Warm.Prompt, p.WarmHas)
	case p != nil && p.Warm.ok() && p.Warm.Cached != nil:
		v.ok("a prompt sent twice: %d of %d tokens found", *p.Warm.Cached, p.Warm.Prompt)
	case !said:
		v.skip("the engines do not say")
	default:
		v.ok("enable_prefix_caching True")
	}
}

func devMode(f *Facts, v *verdict) {
	if !up(f, v) {
		return
	}
	for _, e := range f.sides() {
		if e.DevMode {
			v.find(Warning, e.Role, "start it without VLLM_SERVER_DEV_MODE", "whoever reaches the engine can put it to sleep, drop its caches and run code in it").
				because("GET %s/server_info answers", e.URL)
		}
	}
	v.ok("GET /server_info does not answer")
}

func tokenDetails(f *Facts, v *verdict) {
	p := f.Probe
	switch {
	case p == nil || p.Warm == nil || !p.Warm.ok():
		v.skip("the probe was not played to the end")
	case p.Warm.Cached == nil && f.Prefill.Can.PrefillCached:
		v.find(Info, prefill, "start it with --enable-prompt-tokens-details", "replies do not say how many prompt tokens were cached; with handles the engine says so by other means").
			because("usage.prompt_tokens_details is not there")
	case p.Warm.Cached == nil:
		v.find(Info, prefill, "start it with --enable-prompt-tokens-details", "replies do not say how many prompt tokens were cached: receipts of the router have no tokens by source").
			because("usage.prompt_tokens_details is not there, and vLLM %s says it nowhere else", f.Prefill.Version)
	default:
		v.ok("cached_tokens %d", *p.Warm.Cached)
	}
}

func renderOpen(f *Facts, v *verdict) {
	if !up(f, v) {
		return
	}
	switch e := f.Prefill; {
	case e.Render == 0:
		v.skip("the render endpoint could not be asked")
	case e.Render == 200:
		v.ok("POST /v1/completions/render answers")
	case e.Render == 403:
		v.find(Info, prefill, "start it with --enable-scale-out", "the render endpoints are closed: the router asks /tokenize, which does not know reasoning_effort and documents").
			because("POST /v1/completions/render: HTTP 403")
	default:
		v.find(Info, prefill, "", "the render endpoint does not work: the router asks /tokenize, which does not know reasoning_effort and documents").
			because("POST /v1/completions/render: HTTP %s", strconv.Itoa(e.Render))
	}
}
