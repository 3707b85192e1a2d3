package bench

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// Metrics that the report names.
const (
	kvUsage         = "vllm:kv_cache_usage_perc"
	failedTransfers = "vllm:nixl_num_failed_transfers_total"
	lateReads       = "vllm:nixl_num_notifications_after_expiry_total"
)

// counters are the families that say what an engine did; gauges what state it is in. All of vLLM but the router's own.
var (
	counters = map[string]bool{
		"vllm:prompt_tokens_by_source_total": true, "vllm:prompt_tokens_total": true, "vllm:generation_tokens_total": true,
		"vllm:prefix_cache_queries_total": true, "vllm:prefix_cache_hits_total": true, "vllm:num_preemptions_total": true,
		"vllm:nixl_bytes_transferred_sum": true, "vllm:nixl_bytes_transferred_count": true, "vllm:nixl_xfer_time_seconds_sum": true,
		"vllm:nixl_num_failed_transfers_total": true, "vllm:nixl_num_kv_expired_reqs_total": true,
		"vllm:nixl_num_notifications_after_expiry_total": true, "vllm:request_success_total": true,
	}
	gauges = map[string]bool{"vllm:kv_cache_usage_perc": true, "vllm:num_requests_running": true, "vllm:num_requests_waiting": true}
	// engineLabels say which model and engine a sample is of, which the record says already.
	engineLabels = regexp.MustCompile(`(?:model_name|engine)="(?:[^"\\]|\\.)*",?`)
)

// readMetrics reads the Prometheus text form. Samples of families that differ only in engine or model are added.
func readMetrics(r io.Reader) (map[string]float64, error) {
	all := map[string]float64{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		end := strings.LastIndexByte(line, '}') + 1
		name, labels, _ := strings.Cut(line[:end], "{")
		if end == 0 {
			name, _, _ = strings.Cut(line, " ")
			end = len(name)
		}
		own := strings.HasPrefix(name, "tarik_") && (strings.HasSuffix(name, "_total") || strings.HasSuffix(name, "_sum"))
		if !counters[name] && !gauges[name] && !own {
			continue
		}
		value, _, _ := strings.Cut(strings.TrimSpace(line[end:]), " ") // a time stamp may follow
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		if labels = strings.TrimSuffix(engineLabels.ReplaceAllString(strings.TrimSuffix(labels, "}"), ""), ","); labels != "" {
			name += "{" + labels + "}"
		}
		all[name] += v
	}
	return all, lines.Err()
}

// family is the name of a sample without its labels.
func family(sample string) string {
	name, _, _ := strings.Cut(sample, "{")
	return name
}

// scrape reads the metrics of one engine.
func scrape(ctx context.Context, c *http.Client, engine string, header http.Header) (map[string]float64, error) {
	var m map[string]float64
	err := get(ctx, c, metricsURL(engine), header, func(r io.Reader) (err error) {
		m, err = readMetrics(r)
		return err
	})
	return m, err
}

// moved is what changed between two scrapes, and the gauges of the second.
func moved(before, after map[string]float64) (delta, state map[string]float64) {
	delta, state = map[string]float64{}, map[string]float64{}
	for name, v := range after {
		if gauges[family(name)] {
			state[name] = v
		} else if d := v - before[name]; d != 0 {
			delta[name] = d
		}
	}
	return delta, state
}
