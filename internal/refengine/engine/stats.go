package engine

import (
	"slices"
	"sort"
	"time"
)

// Histogram counts observations in buckets, Prometheus style.
type Histogram struct {
	Bounds []float64 // upper bounds, inclusive, ascending; +Inf is implied
	Counts []uint64  // per bucket, not cumulative; len(Bounds)+1, the last is +Inf
	Sum    float64
	Count  uint64
}

func newHistogram(bounds []float64) Histogram {
	return Histogram{Bounds: bounds, Counts: make([]uint64, len(bounds)+1)}
}

func (h *Histogram) observe(v float64) {
	h.Counts[sort.SearchFloat64s(h.Bounds, v)]++
	h.Sum += v
	h.Count++
}

func (h *Histogram) observeTime(d time.Duration) { h.observe(d.Seconds()) }

func (h Histogram) clone() Histogram {
	h.Counts = slices.Clone(h.Counts)
	return h
}

// Bucket bounds as the recordings show them.
var (
	boundsRequest    = []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	boundsTTFT       = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	boundsITL        = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	boundsTokens     = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000}
	boundsIteration  = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	boundsPreempt    = []float64{1, 2, 3, 4, 5, 10, 20}
	boundsXfer       = []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5}
	boundsPost       = []float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5}
	boundsBytes      = []float64{1 << 11, 1 << 13, 1 << 15, 1 << 17, 1 << 19, 1 << 21, 1 << 23, 1 << 25, 1 << 27, 1 << 29, 1 << 31, 1 << 33}
	boundsDescriptor = []float64{10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000}
)

// BlockStats says where the pool's blocks are. Free + Used + Parked + Pinned = Total.
type BlockStats struct {
	Total  int // blocks that can be handed out: the pool less block 0
	Free   int // in the free queue, Cached included
	Cached int // free but still holding a known prefix
	Used   int // of a running or waiting request, whoever else holds them
	Parked int // held only by requests waiting for a READ, or aborted while they did
	Pinned int // held only by finished requests, for another engine to read
}

// Stats is a snapshot of all counters (since the start) and gauges. vLLM's metric name stands behind
// each; the engine that reads counts a transfer, not the one that is read.
type Stats struct {
	Dead    bool // EngineCore has died: only Close helps
	DeadWhy string

	Blocks       BlockStats
	KVCacheUsage float64 // kv_cache_usage_perc: share of blocks not free, pinned ones included
	Pins         int     // finished requests whose blocks are held
	PinsForever  int     // of these, without any deadline
	Tracked      int     // requests that a notification may release

	Running         int  // num_requests_running
	WaitingCapacity int  // num_requests_waiting_by_reason{capacity}
	WaitingDeferred int  // … {deferred}: parked; an aborted parked request no longer counts
	FetchWaiting    int  // num_requests_kv_fetch_by_stage{waiting_to_start}
	FetchInProgress int  // … {in_progress}
	FetchCompleted  int  // … {completed_waiting}
	Consumer        bool // kv_role has a consumer side: only then vLLM shows the stages

	PrefixQueries, PrefixHits     uint64 // prefix_cache_{queries,hits}_total, tokens; failed requests included
	ExternalQueries, ExternalHits uint64 // external_prefix_cache_*: promises at admission

	PromptTokens       uint64 // prompt_tokens_total: at the first token, so of requests that did not fail
	PromptLocalCompute uint64 // prompt_tokens_by_source{local_compute}
	PromptLocalHit     uint64 // … {local_cache_hit}
	PromptExternal     uint64 // … {external_kv_transfer}: what was really pulled
	PromptCached       uint64 // prompt_tokens_cached_total
	GenerationTokens   uint64 // generation_tokens_total

	FinishedStop, FinishedLength, FinishedError uint64 // request_success_total; aborts by the front end count nowhere
	Preemptions                                 uint64 // num_preemptions_total

	XferTime, PostTime, BytesTransferred, Descriptors Histogram // nixl_*: one observation per READ
	FailedTransfers                                   uint64    // nixl_num_failed_transfers_total
	FailedNotifications                               uint64    // nixl_num_failed_notifications_total
	KVExpired                                         uint64    // nixl_num_kv_expired_reqs_total: leases and TTLs run out here, late reads declined here
	NotificationsAfterExpiry                          uint64    // nixl_num_notifications_after_expiry_total

	// Of the reference engine alone: what no real engine notices.
	Misreads     uint64 // READs that brought KV of other tokens, another salt or a wrong context
	PoisonedHits uint64 // requests that started from cached blocks such a READ had left

	TTFT              Histogram // time_to_first_token_seconds
	ITL               Histogram // inter_token_latency_seconds
	TPOT              Histogram // request_time_per_output_token_seconds
	E2E               Histogram // e2e_request_latency_seconds
	Queue             Histogram // request_queue_time_seconds: until the first computed chunk, a pull included
	Inference         Histogram // request_inference_time_seconds
	Prefill           Histogram // request_prefill_time_seconds
	Decode            Histogram // request_decode_time_seconds
	RequestPrompt     Histogram // request_prompt_tokens
	RequestGeneration Histogram // request_generation_tokens
	RequestMaxTokens  Histogram // request_params_max_tokens
	PrefillComputed   Histogram // request_prefill_kv_computed_tokens
	RequestPreempted  Histogram // request_num_preemptions
	IterationTokens   Histogram // iteration_tokens_total: per step, prompt tokens computed plus new tokens
}

func newStats() Stats {
	return Stats{
		XferTime:          newHistogram(boundsXfer),
		PostTime:          newHistogram(boundsPost),
		BytesTransferred:  newHistogram(boundsBytes),
		Descriptors:       newHistogram(boundsDescriptor),
		TTFT:              newHistogram(boundsTTFT),
		ITL:               newHistogram(boundsITL),
		TPOT:              newHistogram(boundsITL),
		E2E:               newHistogram(boundsRequest),
		Queue:             newHistogram(boundsRequest),
		Inference:         newHistogram(boundsRequest),
		Prefill:           newHistogram(boundsRequest),
		Decode:            newHistogram(boundsRequest),
		RequestPrompt:     newHistogram(boundsTokens),
		RequestGeneration: newHistogram(boundsTokens),
		RequestMaxTokens:  newHistogram(boundsTokens),
		PrefillComputed:   newHistogram(boundsTokens),
		RequestPreempted:  newHistogram(boundsPreempt),
		IterationTokens:   newHistogram(boundsIteration),
	}
}

func (s Stats) clone() Stats {
	for _, h := range []*Histogram{
		&s.XferTime, &s.PostTime, &s.BytesTransferred, &s.Descriptors, &s.TTFT, &s.ITL, &s.TPOT, &s.E2E,
		&s.Queue, &s.Inference, &s.Prefill, &s.Decode, &s.RequestPrompt, &s.RequestGeneration,
		&s.RequestMaxTokens, &s.PrefillComputed, &s.RequestPreempted, &s.IterationTokens,
	} {
		*h = h.clone()
	}
	return s
}
