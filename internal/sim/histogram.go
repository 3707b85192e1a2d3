package sim

import "math"

// histogram counts durations in ms, in buckets that grow by 1 %: quantiles are within half of that. The zero value is
// empty. Weights need not be whole: a fluid stream makes parts of tokens.
type histogram struct {
	buckets [histBuckets]float64
	total   float64
	sum     float64
	max     float64
}

const (
	histLeast   = 0.01 // ms
	histGrowth  = 1.01
	histBuckets = 2320 // to some 3 h
)

var histLog = 1 / math.Log(histGrowth)

func (h *histogram) add(ms, weight float64) {
	if !(weight > 0) {
		return
	}
	i := 0
	if ms > histLeast {
		i = min(int(math.Log(ms/histLeast)*histLog)+1, histBuckets-1)
	}
	h.buckets[i] += weight
	h.total += weight
	h.sum += ms * weight
	h.max = max(h.max, ms)
}

// quantile is the value that a share q of the weight does not exceed.
func (h *histogram) quantile(q float64) float64 {
	if h.total == 0 {
		return 0
	}
	sum := 0.0
	for i, w := range h.buckets {
		if sum += w; sum >= q*h.total && w > 0 {
			if i == 0 {
				return histLeast
			}
			return min(histLeast*math.Pow(histGrowth, float64(i)-0.5), h.max)
		}
	}
	return h.max
}

func (h *histogram) mean() float64 {
	if h.total == 0 {
		return 0
	}
	return h.sum / h.total
}

// Quantiles of a duration, in ms.
type Quantiles struct {
	Count float64 `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

func (h *histogram) quantiles() Quantiles {
	return Quantiles{
		Count: math.Round(h.total), Mean: h.mean(), P50: h.quantile(0.5), P90: h.quantile(0.9), P95: h.quantile(0.95), P99: h.quantile(0.99), Max: h.max,
	}
}
