package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the router's counters. Label values come from code and configuration only, so their
// number is bounded.
type Metrics struct {
	Turns        *prometheus.CounterVec
	TTFT         *prometheus.HistogramVec
	InFlight     prometheus.Gauge
	HandlesKept  prometheus.Counter
	HandlesUsed  *prometheus.CounterVec
	NoHandle     *prometheus.CounterVec
	Truncated    prometheus.Counter
	Stripped     prometheus.Counter
	BadParams    *prometheus.CounterVec
	PrefillTrust *prometheus.GaugeVec
	Panics       prometheus.Counter

	Returns       *prometheus.CounterVec
	ReturnTokens  *prometheus.CounterVec
	ReturnSeconds prometheus.Histogram

	// Every turn counts these, so that their labels are not looked up each time.
	LocalTokens, PulledTokens, ComputedTokens, UnknownTokens prometheus.Counter
	PrefillLeg, DecodeLeg                                    prometheus.Observer
}

// NewMetrics registers the router's counters with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	seconds := []float64{.005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 60, 120}
	tokens := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tarik_prompt_tokens_total",
		Help: "Prompt tokens of turns that P served, by source: local (P's prefix cache), pulled (read from D), computed; unknown if P did not say.",
	}, []string{"source"})
	legs := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "tarik_leg_seconds", Buckets: seconds,
		Help: "Seconds of one engine call, from sending it to the end of its reply, by leg.",
	}, []string{"leg"})
	m := &Metrics{
		Turns: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tarik_turns_total",
			Help: "Turns ended, by endpoint, arm, reason and HTTP status sent to the client.",
		}, []string{"endpoint", "arm", "why", "status"}),
		TTFT: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tarik_ttft_seconds", Buckets: seconds,
			Help: "Seconds from a request's arrival to the first token sent to the client, by arm.",
		}, []string{"arm"}),
		InFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tarik_turns_in_flight", Help: "Turns that have arrived and not ended.",
		}),
		HandlesKept: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tarik_handles_kept_total", Help: "Handles that D returned and the router kept for a next turn.",
		}),
		HandlesUsed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tarik_handles_used_total",
			Help: "Handles that left the router's store, by what became of them: pull, return, release, expired, restarted, replaced.",
		}, []string{"use"}),
		NoHandle: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tarik_replies_without_handle_total",
			Help: "Complete replies of D to a P/D turn that carried no handle, by endpoint and streaming.",
		}, []string{"endpoint", "streamed"}),
		Truncated: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tarik_streams_truncated_total", Help: "Replies of D that ended before their end mark.",
		}),
		Stripped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tarik_client_params_stripped_total",
			Help: "Requests from which fields were removed that only the router may send to an engine.",
		}),
		BadParams: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tarik_bad_params_total",
			Help: "Replies whose kv_transfer_params could not be used and were taken for none, by leg.",
		}, []string{"leg"}),
		Panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tarik_panics_total", Help: "Requests ended by a bug of the router; its log says which.",
		}),
		PrefillTrust: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tarik_prefill_handles_proven",
			Help: "1 if this P has proved that it reads handles, else 0, by engine URL.",
		}, []string{"prefill"}),
		Returns: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tarik_returns_total",
			Help: "Returns ended, by state (done, skipped, overtaken, dropped, failed) and reason.",
		}, []string{"state", "why"}),
		ReturnTokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tarik_return_tokens_total",
			Help: "Tokens that P was prepared with and did not have, by source: pulled (read from D), computed.",
		}, []string{"source"}),
		ReturnSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tarik_return_seconds", Buckets: seconds,
			Help: "Seconds a return took, rendering and P call.",
		}),

		LocalTokens: tokens.WithLabelValues("local"), PulledTokens: tokens.WithLabelValues("pulled"),
		ComputedTokens: tokens.WithLabelValues("computed"), UnknownTokens: tokens.WithLabelValues("unknown"),
		PrefillLeg: legs.WithLabelValues("prefill"), DecodeLeg: legs.WithLabelValues("decode"),
	}
	r.MustRegister(m.Returns, m.ReturnTokens, m.ReturnSeconds)
	r.MustRegister(m.Turns, tokens, m.TTFT, legs, m.InFlight, m.HandlesKept, m.HandlesUsed, m.NoHandle,
		m.Truncated, m.Stripped, m.BadParams, m.PrefillTrust, m.Panics)
	return m
}
