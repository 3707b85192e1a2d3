package engine

import (
	"math"
	"slices"
	"testing"
)

func TestSampleGreedy(t *testing.T) {
	t.Parallel()
	r := &Request{}
	equal(t, "lowest id on ties", sample(r, nil, []float32{1, 3, 3, 2}, nil), 1)
	equal(t, "banned", sample(r, nil, []float32{1, 3, 3, 2}, []int32{1, 2, 99}), 3)
}

func TestSampleDistribution(t *testing.T) {
	t.Parallel()
	logits := []float32{float32(math.Log(1)), float32(math.Log(2)), float32(math.Log(4)), float32(math.Log(8))}
	f := func(what string, r Request, want ...float64) {
		t.Helper()
		const draws = 20_000
		counts := make([]float64, len(logits))
		seed := int64(7)
		r.Seed = &seed
		rng := newRNG(&r)
		for range draws {
			counts[sample(&r, rng, slices.Clone(logits), nil)]++
		}
		for i, n := range counts {
			if got := n / draws; math.Abs(got-want[i]) > 0.015 || want[i] == 0 && n > 0 {
				t.Errorf("%s: token %d drawn with probability %.3f, want %.3f", what, i, got, want[i])
			}
		}
	}
	f("temperature 1", Request{Temperature: 1}, 1./15, 2./15, 4./15, 8./15)
	f("temperature 0.5", Request{Temperature: 0.5}, 1./85, 4./85, 16./85, 64./85)
	f("top_k 2", Request{Temperature: 1, TopK: 2}, 0, 0, 1./3, 2./3)
	f("top_p 0.5", Request{Temperature: 1, TopP: 0.5}, 0, 0, 0, 1)
	f("top_p 0.6", Request{Temperature: 1, TopP: 0.6}, 0, 0, 1./3, 2./3)
}

// TestSeed: the same seed draws the same tokens, whatever the id; without one, the id decides.
func TestSeed(t *testing.T) {
	t.Parallel()
	seed := int64(3)
	reply := func(id string, seed *int64) []int32 {
		l := newLone(t, loneConfig())
		l.addRequest(Request{ID: id, Prompt: []int32{1, 2, 3}, MaxTokens: 20, Temperature: 1e6, Seed: seed, IgnoreEOS: true, Logprobs: -1, PromptLogprobs: -1})
		l.drain()
		return l.out[id].ids
	}
	equal(t, "seeded", reply("a", &seed), reply("b", &seed))
	equal(t, "unseeded, same id", reply("a", nil), reply("a", nil))
	if same(reply("a", nil), reply("b", nil)) {
		t.Error("two ids without seed drew the same 20 tokens")
	}
}

func TestLogprobs(t *testing.T) {
	t.Parallel()
	logits := []float32{0, 1, 2, 2}
	got := logprobs(logits, 0, 3)
	norm := math.Log(1 + math.E + 2*math.E*math.E)
	at := func(id int32) TokenLogprob { return TokenLogprob{id, float32(float64(logits[id]) - norm)} }
	equal(t, "sampled first, then the top", got, []TokenLogprob{at(0), at(2), at(3), at(1)})
	equal(t, "none but the sampled", logprobs(logits, 1, 0), []TokenLogprob{at(1)})
}

func TestPromptLogprobs(t *testing.T) {
	t.Parallel()
	cfg := loneConfig()
	cfg.maxBatched = 7 // several chunks
	l := newLone(t, cfg)
	prompt := ids(1, 20)
	l.add("warm", prompt, 2)
	l.drain()
	l.addRequest(Request{ID: "a", Prompt: prompt, MaxTokens: 2, Logprobs: 2, PromptLogprobs: 1, IgnoreEOS: true})
	var first *Output
	l.byID["a"].sink = func(o Output) {
		if first == nil {
			first = &o
		}
	}
	l.drain()
	equal(t, "entries", len(first.PromptLogprobs), 20)
	equal(t, "first entry", first.PromptLogprobs[0] == nil, true)
	for i, e := range first.PromptLogprobs[1:] {
		equal(t, "prompt token", e[0].ID, prompt[i+1])
		equal(t, "alternatives", len(e), 2)
	}
	equal(t, "output logprobs", len(first.Logprobs[0]), 3)
	equal(t, "output token", first.Logprobs[0][0].ID, first.Tokens[0])
	equal(t, "local hit", first.LocalHitTokens, 0)
}

// TestMinTokens: neither EOS nor a stop token comes before min_tokens.
func TestMinTokens(t *testing.T) {
	t.Parallel()
	prompt := ids(2, 40)
	free := cold(t, prompt, 3)
	l := newLone(t, loneConfig())
	l.addRequest(Request{ID: "a", Prompt: prompt, MaxTokens: 9, MinTokens: 2, StopTokenIDs: free[:1], Logprobs: -1, PromptLogprobs: -1})
	l.drain()
	if out := l.out["a"]; len(out.ids) < 2 || out.ids[0] == free[0] {
		t.Errorf("reply %v with min_tokens 2 and stop token %d", out.ids, free[0])
	}
	l.addRequest(Request{ID: "b", Prompt: prompt, MaxTokens: 9, StopTokenIDs: free[:1], Logprobs: -1, PromptLogprobs: -1})
	l.drain()
	equal(t, "without min_tokens", l.out["b"].ids, free[:1])
	equal(t, "stop token", *l.out["b"].StopToken, free[0])
}
