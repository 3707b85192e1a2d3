package api

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// families are vLLM's metrics in the release imitated. What this engine cannot have (image caches, sleep,
// queue limits) is there and says so.
func (s *Server) families() []family {
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	count := func(name, help string, v func(*snapshot) uint64) family {
		return family{name: name, help: help, kind: counter, value: func(s *snapshot) float64 { return float64(v(s)) }}
	}
	level := func(name, help string, v func(*snapshot) float64) family {
		return family{name: name, help: help, kind: gauge, value: v}
	}
	histogram := func(name, help string, v func(*snapshot) engine.Histogram) family {
		return family{name: name, help: help, kind: prometheus.UntypedValue, histogram: v}
	}
	none := func(*snapshot) uint64 { return 0 }
	f := []family{
		level("num_requests_running", "Requests in the running batch.", func(s *snapshot) float64 { return float64(s.Running) }),
		level("num_requests_waiting", "Requests that wait, parked ones included.",
			func(s *snapshot) float64 { return float64(s.WaitingCapacity + s.WaitingDeferred) }),
		{
			name: "num_requests_waiting_by_reason", kind: gauge, label: "reason", labels: []string{"capacity", "deferred"},
			help:   "Waiting requests by reason: capacity (no room in a step) or deferred (parked for a transfer).",
			values: func(s *snapshot) []float64 { return []float64{float64(s.WaitingCapacity), float64(s.WaitingDeferred)} },
		},
		{
			name: "engine_sleep_state", kind: gauge, label: "sleep_state", labels: []string{"awake", "weights_offloaded", "discard_all"},
			help:   "1 for the state the engine is in; this one is always awake.",
			values: func(*snapshot) []float64 { return []float64{1, 0, 0} },
		},
		level("kv_cache_usage_perc", "Share of blocks that are not free, pinned ones included; 1 is all.",
			func(s *snapshot) float64 { return s.KVCacheUsage }),
		count("prefix_cache_queries_total", "Tokens looked up in the prefix cache.", func(s *snapshot) uint64 { return s.PrefixQueries }),
		count("prefix_cache_hits_total", "Tokens found in the prefix cache.", func(s *snapshot) uint64 { return s.PrefixHits }),
		count("external_prefix_cache_queries_total", "Tokens looked for in other engines, at admission.",
			func(s *snapshot) uint64 { return s.ExternalQueries }),
		count("external_prefix_cache_hits_total", "Tokens promised by other engines at admission, also if they never came.",
			func(s *snapshot) uint64 { return s.ExternalHits }),
		count("mm_cache_queries_total", "Items looked up in the multi-modal cache.", none),
		count("mm_cache_hits_total", "Items found in the multi-modal cache.", none),
		count("num_preemptions_total", "Preemptions.", func(s *snapshot) uint64 { return s.Preemptions }),
		count("prompt_tokens_total", "Prompt tokens of requests that got a first token.", func(s *snapshot) uint64 { return s.PromptTokens }),
		{
			name: "prompt_tokens_by_source_total", kind: counter, label: "source",
			labels: []string{"local_compute", "local_cache_hit", "external_kv_transfer"},
			help:   "Prompt tokens of requests that got a first token, by where their KV came from.",
			values: func(s *snapshot) []float64 {
				return []float64{float64(s.PromptLocalCompute), float64(s.PromptLocalHit), float64(s.PromptExternal)}
			},
		},
		count("prompt_tokens_cached_total", "Prompt tokens not computed: found or read.", func(s *snapshot) uint64 { return s.PromptCached }),
		count("generation_tokens_total", "Tokens generated.", func(s *snapshot) uint64 { return s.GenerationTokens }),
		{
			name: "request_success_total", kind: counter, label: "finished_reason",
			labels: []string{"stop", "length", "abort", "error", "repetition"},
			help:   "Finished requests by reason; error is HTTP 500. Requests aborted by the client count nowhere.",
			values: func(s *snapshot) []float64 {
				return []float64{float64(s.FinishedStop) + s.stopStrings, float64(s.FinishedLength), 0, float64(s.FinishedError), 0}
			},
		},
		histogram("request_prompt_tokens", "Prompt tokens per request.", func(s *snapshot) engine.Histogram { return s.RequestPrompt }),
		histogram("request_generation_tokens", "Generated tokens per request.", func(s *snapshot) engine.Histogram { return s.RequestGeneration }),
		histogram("iteration_tokens_total", "Tokens per step.", func(s *snapshot) engine.Histogram { return s.IterationTokens }),
		histogram("request_max_num_generation_tokens", "Longest choice of a request, in tokens.",
			func(s *snapshot) engine.Histogram { return s.RequestGeneration }),
		histogram("request_params_n", "n per request.", func(s *snapshot) engine.Histogram { return s.choices }),
		histogram("request_params_max_tokens", "max_tokens per request.", func(s *snapshot) engine.Histogram { return s.RequestMaxTokens }),
		histogram("time_to_first_token_seconds", "Arrival to first token, in seconds.", func(s *snapshot) engine.Histogram { return s.TTFT }),
		histogram("inter_token_latency_seconds", "Time between tokens, in seconds.", func(s *snapshot) engine.Histogram { return s.ITL }),
		histogram("request_time_per_output_token_seconds", "Mean time per token after the first, in seconds.",
			func(s *snapshot) engine.Histogram { return s.TPOT }),
		histogram("e2e_request_latency_seconds", "Arrival to last token, in seconds.", func(s *snapshot) engine.Histogram { return s.E2E }),
		histogram("request_queue_time_seconds", "Time before the first computed chunk, a pull included, in seconds.",
			func(s *snapshot) engine.Histogram { return s.Queue }),
		histogram("request_inference_time_seconds", "First computed chunk to last token, in seconds.",
			func(s *snapshot) engine.Histogram { return s.Inference }),
		histogram("request_prefill_time_seconds", "First computed chunk to first token, in seconds.",
			func(s *snapshot) engine.Histogram { return s.Prefill }),
		histogram("request_decode_time_seconds", "First token to last token, in seconds.", func(s *snapshot) engine.Histogram { return s.Decode }),
		histogram("request_prefill_kv_computed_tokens", "Prompt tokens computed per request.",
			func(s *snapshot) engine.Histogram { return s.PrefillComputed }),
		count("estimated_flops_per_gpu_total", "Not estimated by this engine.", none),
		count("estimated_read_bytes_per_gpu_total", "Not estimated by this engine.", none),
		count("estimated_write_bytes_per_gpu_total", "Not estimated by this engine.", none),
	}
	if s.config.KV != nil {
		f = append(f,
			histogram("nixl_xfer_time_seconds", "Duration of a READ, in seconds.", func(s *snapshot) engine.Histogram { return s.XferTime }),
			histogram("nixl_post_time_seconds", "Time to post a READ, in seconds.", func(s *snapshot) engine.Histogram { return s.PostTime }),
			histogram("nixl_bytes_transferred", "Bytes per READ.", func(s *snapshot) engine.Histogram { return s.BytesTransferred }),
			histogram("nixl_num_descriptors", "Descriptors per READ.", func(s *snapshot) engine.Histogram { return s.Descriptors }),
			count("nixl_num_failed_transfers_total", "READs, handshakes and notifications that failed; not those that came too late.",
				func(s *snapshot) uint64 { return s.FailedTransfers }),
			count("nixl_num_failed_notifications_total", "Notifications that failed.", func(s *snapshot) uint64 { return s.FailedNotifications }),
			count("nixl_num_kv_expired_reqs_total", "Leases and TTLs that ran out here, and late READs declined here.",
				func(s *snapshot) uint64 { return s.KVExpired }),
		)
	}
	if s.rel.lateNotes {
		f = append(f, s.newerFamilies()...)
	}
	return f
}

// newerFamilies are those that came with 0.32.
func (s *Server) newerFamilies() []family {
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	f := []family{
		{
			name: "prompt_tokens_cached_by_source_total", kind: counter, label: "source",
			labels: []string{"device", "host", "p2p", "disk", "external_unspecified"},
			help:   "Tokens found at admission, by where; p2p counts promises.",
			values: func(s *snapshot) []float64 { return []float64{float64(s.PrefixHits), 0, float64(s.ExternalHits), 0, 0} },
		},
		{
			name: "admission_rejections_total", kind: counter, label: "reason", noEngine: true,
			labels: []string{"max_num_queued_reqs", "max_num_queued_tokens"},
			help:   "Requests refused because the queue was full; this engine has no such limit.",
			values: func(*snapshot) []float64 { return []float64{0, 0} },
		},
		{
			name: "request_num_preemptions", help: "Preemptions per request.", kind: prometheus.UntypedValue,
			histogram: func(s *snapshot) engine.Histogram { return s.RequestPreempted },
		},
	}
	if s.config.KV == nil {
		return f
	}
	f = append(f, family{
		name: "nixl_num_notifications_after_expiry_total", kind: counter,
		help:  "Notifications for blocks that were no longer pinned: they may have held something else when they were read.",
		value: func(s *snapshot) float64 { return float64(s.NotificationsAfterExpiry) },
	})
	if role := s.config.KV.Role; role == "kv_consumer" || role == "kv_both" {
		f = append(f, family{
			name: "num_requests_kv_fetch_by_stage", kind: gauge, label: "stage",
			labels: []string{"waiting_to_start", "in_progress", "completed_waiting"},
			help:   "Parked requests by stage of their READ.",
			values: func(s *snapshot) []float64 {
				return []float64{float64(s.FetchWaiting), float64(s.FetchInProgress), float64(s.FetchCompleted)}
			},
		})
	}
	return f
}
