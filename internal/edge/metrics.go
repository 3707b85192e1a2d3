package edge

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tarik-kv/tarik/internal/tenant"
)

// Metrics are the edge's counters. Label values come from code only, so their number is bounded.
type Metrics struct {
	Refused     *prometheus.CounterVec
	Stripped    prometheus.Counter
	Stalled     *prometheus.CounterVec
	Panics      prometheus.Counter
	Connections *prometheus.GaugeVec
	Closed      *prometheus.CounterVec
	Handshakes  *prometheus.CounterVec
	NotAfter    *prometheus.GaugeVec
	Phase       *prometheus.GaugeVec
	Reloads     *prometheus.CounterVec
	EngineKeys  *prometheus.CounterVec
}

// NewMetrics registers the edge's counters with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		Refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tarik_edge_requests_refused_total",
			Help: "Requests answered before the router saw all of them, by HTTP status, reason and whose limit it was (key, tenant, global; empty if none).",
		}, []string{"status", "reason", "scope"}),
		Stripped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tarik_edge_headers_stripped_total",
			Help: "Requests from which headers were removed that only a router or gateway may send.",
		}),
		Stalled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tarik_edge_stalled_total",
			Help: "Clients given up because they took too long to send a request's body (request) or to read a piece of a reply (reply).",
		}, []string{"what"}),
		Panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tarik_edge_panics_total", Help: "Requests ended by a bug of the router.",
		}),
		Connections: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tarik_edge_connections", Help: "Open connections, idle ones included, by listener.",
		}, []string{"listener"}),
		Closed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tarik_edge_connections_refused_total",
			Help: "Connections closed as they came, by listener and why: limit (too many are open), peer (its address is not allowed).",
		}, []string{"listener", "why"}),
		Handshakes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tarik_edge_tls_failures_total", Help: "TLS handshakes that failed, by listener.",
		}, []string{"listener"}),
		NotAfter: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tarik_edge_certificate_not_after_seconds",
			Help: "Unix time in seconds at which the certificate in force ends, by listener.",
		}, []string{"listener"}),
		Phase: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tarik_edge_phase",
			Help: "How far a listener has got in stopping: 0 serving, 1 leaving (/health fails), 2 draining (new requests are refused), 3 stopped.",
		}, []string{"listener"}),
		Reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tarik_edge_reloads_total",
			Help: "Reloads of keys, secrets and certificates that replaced something (ok) or found something wrong (failed).",
		}, []string{"outcome"}),
		EngineKeys: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tarik_edge_engine_key_refused_total",
			Help: "Engine calls answered with 401 although they carried the engine's key from the configuration, by engine URL.",
		}, []string{"engine"}),
	}
	r.MustRegister(m.Refused, m.Stripped, m.Stalled, m.Panics, m.Connections, m.Closed, m.Handshakes, m.NotAfter, m.Phase, m.Reloads, m.EngineKeys)
	return m
}

// Watch also exports what l counts.
func (m *Metrics) Watch(r prometheus.Registerer, l *tenant.Limiter) {
	r.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "tarik_edge_requests_in_flight", Help: "Requests let in by the limits that have not ended.",
		}, func() float64 { return float64(l.Stats().Requests) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "tarik_edge_prompt_bytes_in_flight", Help: "Bytes of the bodies of requests in flight.",
		}, func() float64 { return float64(l.Stats().PromptBytes) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "tarik_edge_accounts", Help: "Tenants, and keys with limits of their own, that are active or remembered for the sake of their rate.",
		}, func() float64 { return float64(l.Stats().Accounts) }),
	)
}

// orNew is for callers that watch nothing.
func (m *Metrics) orNew() *Metrics {
	if m == nil {
		return NewMetrics(prometheus.NewRegistry())
	}
	return m
}

// count counts a refusal.
func (m *Metrics) count(f *refusal) {
	m.Refused.WithLabelValues(strconv.Itoa(f.status), f.code, string(f.scope)).Inc()
}
