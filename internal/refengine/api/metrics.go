package api

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// frontMetrics are counters of the front end itself; all others are the engine's.
type frontMetrics struct {
	stopStrings atomic.Int64 // sequences ended by a stop string: for the engine they are aborts

	mu       sync.Mutex
	choices  engine.Histogram      // request_params_n
	requests map[requestKey]uint64 // bounded: handlers are the routes, classes are five
}

type requestKey struct {
	handler, method, class string
}

var boundsN = []float64{1, 2, 5, 10, 20}

// observeN counts a request's n.
func (m *frontMetrics) observeN(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.choices.Counts == nil {
		m.choices = engine.Histogram{Bounds: boundsN, Counts: make([]uint64, len(boundsN)+1)}
	}
	i := 0
	for i < len(boundsN) && float64(n) > boundsN[i] {
		i++
	}
	m.choices.Counts[i]++
	m.choices.Count++
	m.choices.Sum += float64(n)
}

// counted counts the requests of a route by the class of their status.
func (s *Server) counted(route string, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		rec := &statusRecorder{ResponseWriter: w}
		defer func() {
			m := &s.metrics
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.requests == nil {
				m.requests = make(map[requestKey]uint64)
			}
			m.requests[requestKey{route, r.Method, strconv.Itoa(max(rec.status, 200)/100) + "xx"}]++
		}()
		h(rec, r)
	}
}

// statusRecorder remembers the status of a reply.
type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (r *statusRecorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the real writer.
func (r *statusRecorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (s *Server) metricsHandler() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(&collector{s: s, families: s.families()})
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
}

// snapshot is what one scrape shows.
type snapshot struct {
	engine.Stats
	choices     engine.Histogram
	stopStrings float64
}

// family is one metric of the engine. Exactly one of value, values and histogram is set.
type family struct {
	name string // without "vllm:"
	help string
	kind prometheus.ValueType

	value     func(*snapshot) float64
	label     string // of values
	labels    []string
	values    func(*snapshot) []float64 // one per label value
	histogram func(*snapshot) engine.Histogram
	noEngine  bool // has no label "engine"

	desc, created *prometheus.Desc // created: the gauge that Python's client adds to counters and histograms
}

// collector turns the engine's statistics into vLLM's families.
type collector struct {
	s        *Server
	families []family
}

var _ prometheus.Collector = (*collector)(nil)

func (c *collector) constLabels(f *family) prometheus.Labels {
	l := prometheus.Labels{"model_name": c.s.opts.ModelName}
	if !f.noEngine {
		l["engine"] = "0"
	}
	return l
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for i := range c.families {
		f := &c.families[i]
		var variable []string
		if f.values != nil {
			variable = []string{f.label}
		}
		f.desc = prometheus.NewDesc("vllm:"+f.name, f.help, variable, c.constLabels(f))
		ch <- f.desc
		if f.kind == prometheus.GaugeValue {
			continue
		}
		f.created = prometheus.NewDesc("vllm:"+createdName(f)+"_created", f.help, variable, c.constLabels(f))
		ch <- f.created
	}
	ch <- c.cacheConfig().Desc()
	ch <- httpRequests
}

// createdName is the name that "_created" is added to: a counter's without "_total".
func createdName(f *family) string {
	const total = "_total"
	if n := len(f.name) - len(total); f.histogram == nil && n > 0 && f.name[n:] == total {
		return f.name[:n]
	}
	return f.name
}

var httpRequests = prometheus.NewDesc("http_requests_total", "Requests by method, status and handler.",
	[]string{"handler", "method", "status"}, nil)

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	snap := &snapshot{Stats: c.s.opts.Engine.Snapshot(), stopStrings: float64(c.s.metrics.stopStrings.Load())}
	m := &c.s.metrics
	m.observeNone()
	m.mu.Lock()
	snap.choices = m.choices
	snap.choices.Counts = append([]uint64(nil), m.choices.Counts...)
	for k, n := range m.requests {
		ch <- prometheus.MustNewConstMetric(httpRequests, prometheus.CounterValue, float64(n), k.handler, k.method, k.class)
	}
	m.mu.Unlock()

	started := float64(c.s.started.UnixNano()) / 1e9
	for i := range c.families {
		f := &c.families[i]
		switch {
		case f.histogram != nil:
			ch <- constHistogram(f.desc, f.histogram(snap))
		case f.values != nil:
			for j, v := range f.values(snap) {
				ch <- prometheus.MustNewConstMetric(f.desc, f.kind, v, f.labels[j])
			}
		default:
			ch <- prometheus.MustNewConstMetric(f.desc, f.kind, f.value(snap))
		}
		if f.created == nil {
			continue
		}
		if f.values == nil {
			ch <- prometheus.MustNewConstMetric(f.created, prometheus.GaugeValue, started)
		}
		for _, l := range f.labels {
			ch <- prometheus.MustNewConstMetric(f.created, prometheus.GaugeValue, started, l)
		}
	}
	ch <- c.cacheConfig()
}

// observeNone makes the histogram of n exist before the first request.
func (m *frontMetrics) observeNone() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.choices.Counts == nil {
		m.choices = engine.Histogram{Bounds: boundsN, Counts: make([]uint64, len(boundsN)+1)}
	}
}

func constHistogram(desc *prometheus.Desc, h engine.Histogram) prometheus.Metric {
	buckets := make(map[float64]uint64, len(h.Bounds))
	var sum uint64
	for i, bound := range h.Bounds {
		sum += h.Counts[i]
		buckets[bound] = sum
	}
	return prometheus.MustNewConstHistogram(desc, h.Count, h.Sum, buckets)
}

// cacheConfig is vllm:cache_config_info, all of whose content is in its labels.
func (c *collector) cacheConfig() prometheus.Metric {
	cfg := c.s.config
	blocks, bs := cfg.Blocks, cfg.BlockSize
	concurrency := 0.0
	if cfg.MaxModelLen > 0 {
		concurrency = float64(blocks*bs) / float64(cfg.MaxModelLen)
	}
	title := func(b bool) string {
		if b {
			return "True"
		}
		return "False"
	}
	l := prometheus.Labels{
		"engine":                   "0",
		"_block_size_resolved":     "True",
		"block_size":               strconv.Itoa(bs),
		"num_gpu_blocks":           strconv.Itoa(blocks),
		"kv_cache_size_tokens":     strconv.Itoa(blocks * bs),
		"kv_cache_max_concurrency": pyFloat(concurrency),
		"enable_prefix_caching":    title(cfg.PrefixCaching),
	}
	for k, v := range cacheConfigLabels {
		l[k] = v
	}
	for k, v := range map[bool]map[string]string{false: cacheConfigOld, true: cacheConfigNew}[c.s.rel.ecParams] {
		l[k] = v
	}
	if c.s.rel.ecParams {
		l["effective_attention_block_size"] = strconv.Itoa(bs)
	}
	desc := prometheus.NewDesc("vllm:cache_config_info", "Configuration of the KV cache.", nil, l)
	return prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, 1)
}

// Labels of vllm:cache_config_info that mean nothing here: in all releases, in 0.25 and in 0.33.
var (
	cacheConfigLabels = map[string]string{
		"cache_dtype": "auto", "gpu_memory_utilization": "0.92", "hash_block_size": "None", "is_attention_free": "False",
		"kv_cache_dtype_skip_layers": "[]", "kv_cache_memory_bytes": "None", "kv_offloading_backend": "native",
		"kv_offloading_size": "None", "kv_sharing_fast_prefill": "False", "mamba_block_size": "None", "mamba_cache_dtype": "auto",
		"mamba_cache_mode": "none", "mamba_page_size_padded": "None", "mamba_ssm_cache_dtype": "auto", "num_cpu_blocks": "None",
		"num_gpu_blocks_override": "None", "prefix_caching_hash_algo": "sha256", "skip_page_size_padded": "None",
		"sliding_window": "None", "user_specified_block_size": "False",
	}
	cacheConfigOld = map[string]string{"calculate_kv_scales": "False", "user_specified_mamba_block_size": "False"}
	cacheConfigNew = map[string]string{
		"cache_hit_alignment_tokens": "None", "enable_mamba_shared_prefix_checkpoint": "False", "kv_cache_layout": "None",
		"prefix_cache_retention_interval": "0", "prefix_match_unit": "None", "replayssm_buffer_len": "16",
		"simple_cpu_offload_num_blocks": "None", "swa_bounded_replay": "True", "use_kda_recoverssm": "False", "use_replayssm": "False",
	}
)
