package api

import (
	"strconv"
	"strings"
)

// release says what one vLLM version puts on the wire. The recordings are of 0.25.1, 0.32.0 and 0.33.0;
// where the change in between has no known date, the release after the older recording's neighbours is
// assumed and the comment says so.
type release struct {
	version string // "0.33.0"
	minor   int    // 33

	streamParams   bool // chat and completions streams carry kv_transfer_params: 0.33
	weightVersions bool // choices have weight_versions: 0.33
	createdCache   bool // prompt_tokens_details has created_cache_tokens: seen in 0.33; 0.32 was recorded without details
	cacheWrite     bool // usage of responses has cache_write_tokens: seen in 0.32; as ecParams
	ecParams       bool // whole replies have ec_transfer_params: seen in 0.32, not in 0.25; assumed 0.29
	usageDetails   bool // usage has completion_tokens_details: as ecParams
	fullMessages   bool // messages name the stop sequence, count cached tokens apart and are never without a block: as ecParams
	thinkingBudget bool // messages check the thinking budget: 0.31
	incomplete     bool // responses cut by their limit end with response.incomplete, their last item is incomplete too: 0.33
	echoesMore     bool // responses repeat prompt_cache_key and friends: 0.33
	exactPrompt    bool // kv_transfer_params.prompt_token_ids replaces template and tokenizer: 0.32
	remoteCached   bool // a D reports P's remote_prefill_cached_tokens as its cached_tokens: 0.31
	scaleOutFlag   bool // render endpoints need --enable-scale-out: 0.30
	saltRules      bool // cache_salt is at most 128 characters, without "@/\" and NUL: 0.30
	lateNotes      bool // metrics nixl_num_notifications_after_expiry and friends: 0.32
}

const newestMinor = 33

// releaseOf reads "0.33.0", "0.33", "v0.33.0" or "vllm-0.33". Anything else, the empty string included,
// is the newest release that was recorded.
func releaseOf(version string) release {
	v := strings.TrimPrefix(strings.TrimPrefix(version, "vllm-"), "v")
	parts := strings.Split(v, ".")
	minor := newestMinor
	if len(parts) >= 2 && parts[0] == "0" {
		if n, err := strconv.Atoi(parts[1]); err == nil {
			minor = n
		}
	} else {
		v = "0." + strconv.Itoa(newestMinor) + ".0"
		parts = strings.Split(v, ".")
	}
	if len(parts) == 2 {
		v += ".0"
	}
	return release{
		version:        v,
		minor:          minor,
		streamParams:   minor >= 33,
		weightVersions: minor >= 33,
		createdCache:   minor >= 33,
		ecParams:       minor >= 29,
		usageDetails:   minor >= 29,
		cacheWrite:     minor >= 29,
		fullMessages:   minor >= 29,
		thinkingBudget: minor >= 31,
		incomplete:     minor >= 33,
		echoesMore:     minor >= 33,
		exactPrompt:    minor >= 32,
		remoteCached:   minor >= 31,
		scaleOutFlag:   minor >= 30,
		saltRules:      minor >= 30,
		lateNotes:      minor >= 32,
	}
}
