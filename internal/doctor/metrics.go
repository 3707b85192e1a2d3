package doctor

import (
	"bufio"
	"bytes"
	"math"
	"sort"
	"strconv"
	"strings"
)

// Sample is one line of a Prometheus exposition.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// Metrics is what GET /metrics said at one time: family name → samples, in the order of the text. Several
// data-parallel ranks of one engine have a sample each.
type Metrics map[string][]Sample

// ParseMetrics reads a text exposition. Lines it cannot read are left out: an exporter's slip must not hide the rest.
func ParseMetrics(text []byte) Metrics {
	m := Metrics{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, len(text)+1)
	for lines.Scan() {
		if name, s, ok := parseSample(lines.Text()); ok {
			m[name] = append(m[name], s)
		}
	}
	return m
}

func parseSample(line string) (name string, s Sample, ok bool) {
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' {
		return "", s, false
	}
	end := strings.IndexAny(line, "{ \t")
	if end <= 0 {
		return "", s, false
	}
	name, line = line[:end], line[end:]
	s.Labels = map[string]string{}
	if line[0] == '{' {
		if line, ok = parseLabels(line[1:], s.Labels); !ok {
			return "", s, false
		}
	}
	fields := strings.Fields(line) // a time stamp may follow
	if len(fields) == 0 {
		return "", s, false
	}
	v, err := strconv.ParseFloat(fields[0], 64)
	if err != nil || math.IsNaN(v) {
		return "", s, false
	}
	s.Value = v
	return name, s, true
}

// parseLabels reads up to the closing brace and returns what is behind it.
func parseLabels(text string, to map[string]string) (rest string, ok bool) {
	for {
		text = strings.TrimLeft(text, " ,")
		if rest, done := strings.CutPrefix(text, "}"); done {
			return rest, true
		}
		name, value, found := strings.Cut(text, `="`)
		if !found || name == "" {
			return "", false
		}
		var b strings.Builder
		i := 0
		for ; i < len(value) && value[i] != '"'; i++ {
			c := value[i]
			if c == '\\' && i+1 < len(value) {
				i++
				if c = value[i]; c == 'n' {
					c = '\n'
				}
			}
			b.WriteByte(c)
		}
		if i == len(value) {
			return "", false
		}
		to[name], text = b.String(), value[i+1:]
	}
}

// Sum adds the samples of a family whose labels include the given pairs (name, value, …). It is 0 for a family that is
// not there; see Has.
func (m Metrics) Sum(name string, labels ...string) float64 {
	sum := 0.0
	for _, s := range m[name] {
		if s.has(labels) {
			sum += s.Value
		}
	}
	return sum
}

// Has reports whether the family is there at all.
func (m Metrics) Has(name string) bool { return len(m[name]) > 0 }

func (s Sample) has(labels []string) bool {
	for i := 0; i+1 < len(labels); i += 2 {
		if s.Labels[labels[i]] != labels[i+1] {
			return false
		}
	}
	return true
}

// Label is the value of a label of the first sample of a family, "" if there is none.
func (m Metrics) Label(name, label string) string {
	if len(m[name]) == 0 {
		return ""
	}
	return m[name][0].Labels[label]
}

// Quantile is the upper bound of the bucket of a histogram in which the q-th part of all observations lies, and how many
// observations there are. Buckets of several ranks are added. +Inf means above the last bound.
func (m Metrics) Quantile(name string, q float64) (bound float64, count float64) {
	sums := map[float64]float64{}
	for _, s := range m[name+"_bucket"] {
		le, err := strconv.ParseFloat(s.Labels["le"], 64)
		if err == nil {
			sums[le] += s.Value
		}
	}
	bounds := make([]float64, 0, len(sums))
	for b := range sums {
		bounds = append(bounds, b)
	}
	sort.Float64s(bounds)
	if len(bounds) == 0 {
		return 0, 0
	}
	count = sums[bounds[len(bounds)-1]]
	for _, b := range bounds {
		if count > 0 && sums[b] >= q*count {
			return b, count
		}
	}
	return 0, count
}

// Names of vLLM's metrics, and what each is good for. See docs/engine.md, "What to believe".
const (
	mBytes       = "vllm:nixl_bytes_transferred"
	mXfer        = "vllm:nixl_xfer_time_seconds"
	mPost        = "vllm:nixl_post_time_seconds"
	mDescriptors = "vllm:nixl_num_descriptors"
	mFailed      = "vllm:nixl_num_failed_transfers_total"
	mNotifyFail  = "vllm:nixl_num_failed_notifications_total"
	mExpired     = "vllm:nixl_num_kv_expired_reqs_total"
	mLate        = "vllm:nixl_num_notifications_after_expiry_total"
	mSource      = "vllm:prompt_tokens_by_source_total"
	mSuccess     = "vllm:request_success_total"
	mRunning     = "vllm:num_requests_running"
	mWaiting     = "vllm:num_requests_waiting"
	mReason      = "vllm:num_requests_waiting_by_reason"
	mUsage       = "vllm:kv_cache_usage_perc"
	mQueue       = "vllm:request_queue_time_seconds"
	mCache       = "vllm:cache_config_info"
	mStart       = "process_start_time_seconds"
)

// Load is what an engine is doing, from one scrape.
type Load struct {
	Running, Waiting, Deferred float64 // requests; deferred ones are parked for a transfer, and are among the waiting
	Usage                      float64 // share of the KV pool not free, pinned blocks included: the mean over the ranks
}

// Load reads the gauges.
func (m Metrics) Load() Load {
	return Load{
		Running: m.Sum(mRunning), Waiting: m.Sum(mWaiting), Deferred: m.Sum(mReason, "reason", "deferred"),
		Usage: m.Sum(mUsage) / max(1, float64(len(m[mUsage]))),
	}
}

// Idle reports whether nothing runs and nothing waits.
func (l Load) Idle() bool { return l.Running == 0 && l.Waiting == 0 }

// Counters are those that doctor compares over time.
type Counters struct {
	Local, Pulled, Computed          float64 // prompt tokens by source, of requests that did not fail
	Requests                         float64 // finished, all reasons
	Bytes, Reads, Xfer, Post, Pieces float64 // READs by this engine: bytes, number, seconds, seconds of posting, descriptors
	Failed, NotifyFailed             float64
	Expired, Late                    float64 // blocks given up unread, and late READs declined here; readers that came after that
}

// Counters reads the counters.
func (m Metrics) Counters() Counters {
	return Counters{
		Local: m.Sum(mSource, "source", "local_cache_hit"), Pulled: m.Sum(mSource, "source", "external_kv_transfer"),
		Computed: m.Sum(mSource, "source", "local_compute"), Requests: m.Sum(mSuccess),
		Bytes: m.Sum(mBytes + "_sum"), Reads: m.Sum(mBytes + "_count"), Xfer: m.Sum(mXfer + "_sum"), Post: m.Sum(mPost + "_sum"),
		Pieces: m.Sum(mDescriptors + "_sum"), Failed: m.Sum(mFailed), NotifyFailed: m.Sum(mNotifyFail),
		Expired: m.Sum(mExpired), Late: m.Sum(mLate),
	}
}

// Since is what was counted after earlier.
func (c Counters) Since(earlier Counters) Counters {
	return Counters{
		Local: c.Local - earlier.Local, Pulled: c.Pulled - earlier.Pulled, Computed: c.Computed - earlier.Computed,
		Requests: c.Requests - earlier.Requests, Bytes: c.Bytes - earlier.Bytes, Reads: c.Reads - earlier.Reads,
		Xfer: c.Xfer - earlier.Xfer, Post: c.Post - earlier.Post, Pieces: c.Pieces - earlier.Pieces,
		Failed: c.Failed - earlier.Failed, NotifyFailed: c.NotifyFailed - earlier.NotifyFailed,
		Expired: c.Expired - earlier.Expired, Late: c.Late - earlier.Late,
	}
}

// BlockSize is the number of tokens in a block, 0 if the engine does not say.
func (m Metrics) BlockSize() int {
	n, _ := strconv.Atoi(m.Label(mCache, "block_size")) // 0 if it is no number
	return max(0, n)
}

// Capacity is how many tokens the KV pool holds, 0 if the engine does not say.
func (m Metrics) Capacity() int {
	if n, err := strconv.Atoi(m.Label(mCache, "kv_cache_size_tokens")); err == nil && n > 0 {
		return n
	}
	n, _ := strconv.Atoi(m.Label(mCache, "num_gpu_blocks")) // 0 if it is no number
	return max(0, n) * m.BlockSize()
}

// HasNIXL reports whether the engine runs with a NIXL connector: without one its metrics are not there.
func (m Metrics) HasNIXL() bool { return m.Has(mFailed) || m.Has(mBytes+"_count") }
