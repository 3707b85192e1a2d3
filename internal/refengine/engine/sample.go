package engine

import (
	"cmp"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
)

// newRNG makes a request's random source. Without a seed it derives from the id: a replay of the same
// requests draws the same tokens.
func newRNG(r *Request) *rand.Rand {
	if r.Temperature <= 0 {
		return nil
	}
	if r.Seed != nil {
		return rand.New(rand.NewPCG(uint64(*r.Seed), 0))
	}
	h := fnv.New64a()
	h.Write([]byte(r.ID))
	return rand.New(rand.NewPCG(h.Sum64(), 1))
}

// argmax returns the most likely id, the lowest one on ties.
func argmax(logits []float32) int32 {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	return int32(best)
}

// sample draws one token id. logits is [vocab] and may be overwritten. banned ids cannot come.
func sample(r *Request, rng *rand.Rand, logits []float32, banned []int32) int32 {
	for _, id := range banned {
		if id >= 0 && int(id) < len(logits) {
			logits[id] = float32(math.Inf(-1))
		}
	}
	if r.Temperature <= 0 || rng == nil {
		return argmax(logits)
	}
	ids := make([]int32, len(logits))
	for i := range ids {
		ids[i] = int32(i)
	}
	top := len(ids)
	if r.TopK > 0 && r.TopK < top {
		top = r.TopK
	}
	if top < len(ids) || r.TopP > 0 && r.TopP < 1 {
		slices.SortFunc(ids, func(a, b int32) int {
			return cmp.Or(cmp.Compare(logits[b], logits[a]), cmp.Compare(a, b))
		})
		ids = ids[:top]
	}
	most := math.Inf(-1)
	for _, id := range ids {
		most = max(most, float64(logits[id]))
	}
	weights := make([]float64, len(ids))
	total := 0.0
	for i, id := range ids {
		weights[i] = math.Exp((float64(logits[id]) - most) / r.Temperature)
		total += weights[i]
	}
	if r.TopP > 0 && r.TopP < 1 {
		kept := 0.0
		for i, w := range weights {
			kept += w
			if kept >= r.TopP*total {
				ids, weights, total = ids[:i+1], weights[:i+1], kept
				break
			}
		}
	}
	x := rng.Float64() * total
	chosen := ids[0]
	for i, w := range weights {
		if w > 0 {
			chosen = ids[i] // rounding may use up x only after the last weight
		}
		if x < w {
			break
		}
		x -= w
	}
	return chosen
}

// logprobs reports the log probabilities of id and of the n most likely ids, from raw logits.
func logprobs(logits []float32, id int32, n int) []TokenLogprob {
	most := float64(slices.Max(logits))
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - most)
	}
	norm := most + math.Log(sum)
	at := func(id int32) TokenLogprob {
		return TokenLogprob{ID: id, Logprob: float32(float64(logits[id]) - norm)}
	}
	out := []TokenLogprob{at(id)}
	if n <= 0 {
		return out
	}
	// The best n by insertion: n is small.
	best := make([]int32, 0, n+1)
	for i := range logits {
		if len(best) == n && logits[i] <= logits[best[n-1]] {
			continue
		}
		j := len(best)
		for j > 0 && logits[i] > logits[best[j-1]] {
			j--
		}
		best = slices.Insert(best, j, int32(i))
		if len(best) > n {
			best = best[:n]
		}
	}
	for _, b := range best {
		out = append(out, at(b))
	}
	return out
}
