package api

import (
	"bufio"
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// scrape is the shape of a /metrics page: by family its type and the labels of its samples, with the values
// of labels that enumerate something.
type scrape map[string]shape

type shape struct {
	Type   string
	Labels []string // sorted; of labels with a fixed set of values, "name=value"
}

// enumerated are labels whose values are part of the surface.
var enumerated = []string{"source", "reason", "stage", "finished_reason", "sleep_state"}

func parseMetrics(t *testing.T, page []byte) scrape {
	t.Helper()
	out := scrape{}
	sc := bufio.NewScanner(bytes.NewReader(page))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := sc.Text()
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, typ, _ := strings.Cut(rest, " ")
			s := out[name]
			s.Type = typ
			out[name] = s
			continue
		}
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, hasLabels := strings.Cut(line, "{")
		if !hasLabels {
			continue
		}
		labels, _, _ := strings.Cut(rest, "}")
		if strings.HasSuffix(name, "_bucket") {
			continue
		}
		family := name
		if _, ok := out[family]; !ok {
			for _, suffix := range []string{"_count", "_sum"} {
				family = strings.TrimSuffix(family, suffix)
			}
		}
		s := out[family]
		for pair := range strings.SplitSeq(labels, `",`) {
			key, value, _ := strings.Cut(pair, "=")
			if slices.Contains(enumerated, key) {
				key += "=" + strings.Trim(value, `"`)
			}
			if !slices.Contains(s.Labels, key) {
				s.Labels = append(s.Labels, key)
			}
		}
		slices.Sort(s.Labels)
		out[family] = s
	}
	for name := range out {
		if !strings.HasPrefix(name, "vllm:") {
			delete(out, name)
		}
	}
	return out
}

// Every family of vLLM's is there in its release, with its type and labels, and no other.
func TestMetricsConformance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ version, file, role string }{
		{"0.25.1", "D.metrics.txt", "kv_consumer"},
		{"0.33.0", "P.metrics.txt", "kv_producer"},
		{"0.33.0", "D.metrics.txt", "kv_consumer"},
	} {
		backend := &fakeBackend{config: engine.Config{Blocks: 728, KV: &engine.KVTransferConfig{Role: c.role}}}
		w := get(t, newTestServer(t, c.version, backend, nil), "/metrics")
		want, got := parseMetrics(t, read(t, c.version, c.file)), parseMetrics(t, w.Body.Bytes())
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s %s (-recorded +ours):\n%s", c.version, c.file, d)
		}
	}
}

// Values end up in the right families.
func TestMetricsValues(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{
		config: engine.Config{BlockSize: 16, Blocks: 100, MaxModelLen: 320, PrefixCaching: true, KV: &engine.KVTransferConfig{Role: "kv_both"}},
		stats: engine.Stats{
			KVCacheUsage: 0.25, Running: 3, WaitingCapacity: 2, WaitingDeferred: 5, FetchInProgress: 4,
			PromptTokens: 60, PromptLocalCompute: 10, PromptLocalHit: 20, PromptExternal: 30,
			PrefixHits: 7, ExternalHits: 8, FinishedStop: 2, FinishedError: 1, FailedTransfers: 6, NotificationsAfterExpiry: 9, KVExpired: 11,
			BytesTransferred: engine.Histogram{Bounds: []float64{2048, 8192}, Counts: []uint64{1, 2, 3}, Sum: 50000, Count: 6},
		},
		scripts: [][]engine.Output{says("stop here", engine.FinishLength)},
	}
	s := newTestServer(t, "0.33.0", backend, nil)
	post(t, s, "/v1/completions", `{"prompt":"x","stop":"p"}`)
	post(t, s, "/v1/completions", `{}`)
	page := get(t, s, "/metrics").Body.String()
	for _, want := range []string{
		`vllm:kv_cache_usage_perc{engine="0",model_name="smollm2"} 0.25`,
		`vllm:num_requests_running{engine="0",model_name="smollm2"} 3`,
		`vllm:num_requests_waiting{engine="0",model_name="smollm2"} 7`,
		`vllm:num_requests_waiting_by_reason{engine="0",model_name="smollm2",reason="deferred"} 5`,
		`vllm:num_requests_kv_fetch_by_stage{engine="0",model_name="smollm2",stage="in_progress"} 4`,
		`vllm:prompt_tokens_by_source_total{engine="0",model_name="smollm2",source="external_kv_transfer"} 30`,
		`vllm:prompt_tokens_by_source_total{engine="0",model_name="smollm2",source="local_cache_hit"} 20`,
		`vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="smollm2",source="p2p"} 8`,
		`vllm:request_success_total{engine="0",finished_reason="stop",model_name="smollm2"} 3`, // two by the engine, one stop string
		`vllm:request_success_total{engine="0",finished_reason="error",model_name="smollm2"} 1`,
		`vllm:nixl_num_failed_transfers_total{engine="0",model_name="smollm2"} 6`,
		`vllm:nixl_num_kv_expired_reqs_total{engine="0",model_name="smollm2"} 11`,
		`vllm:nixl_num_notifications_after_expiry_total{engine="0",model_name="smollm2"} 9`,
		`vllm:nixl_bytes_transferred_bucket{engine="0",model_name="smollm2",le="8192"} 3`,
		`vllm:nixl_bytes_transferred_count{engine="0",model_name="smollm2"} 6`,
		`vllm:nixl_bytes_transferred_sum{engine="0",model_name="smollm2"} 50000`,
		`vllm:request_params_n_count{engine="0",model_name="smollm2"} 1`,
		`http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 1`,
		`http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 1`,
	} {
		if !strings.Contains(page, want+"\n") {
			t.Errorf("no line %s", want)
		}
	}
	_, config, _ := strings.Cut(page, "vllm:cache_config_info{")
	for _, want := range []string{`block_size="16"`, `num_gpu_blocks="100"`, `kv_cache_size_tokens="1600"`, `kv_cache_max_concurrency="5.0"`, `enable_prefix_caching="True"`} {
		if !strings.Contains(config, want) {
			t.Errorf("cache_config_info has no %s", want)
		}
	}
}
