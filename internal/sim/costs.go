package sim

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Costs are what an engine takes for its work. All in ms; n, ctx in tokens.
type Costs struct {
	// A step that computes prompt tokens takes StepMs + (FloorMs³ + c³)^⅓ with c = Σ (TokenMs·n + PairMs·n·(ctx + n/2)):
	// launching kernels (FloorMs) and running them overlap.
	StepMs  float64 `json:"step_ms"`
	FloorMs float64 `json:"floor_ms"`
	TokenMs float64 `json:"token_ms"`
	PairMs  float64 `json:"pair_ms"`
	// A step of D takes DecodeMs + StreamMs·streams + ContextMs·(tokens of all streams).
	DecodeMs  float64 `json:"decode_ms"`
	StreamMs  float64 `json:"stream_ms"`
	ContextMs float64 `json:"context_ms"`
	// A call takes FrontMs + FrontTokenMs·prompt before the engine sees it: HTTP, tokens, hashes. It is not the
	// engine's own thread.
	FrontMs      float64 `json:"front_ms"`
	FrontTokenMs float64 `json:"front_token_ms"`
	// A prompt is proved to begin with what a handle covers by rendering it, which takes RenderMs + RenderTokenMs·prompt.
	RenderMs      float64 `json:"render_ms"`
	RenderTokenMs float64 `json:"render_token_ms"`
	// HandoffMs is what D's leg takes besides transfer and step.
	HandoffMs float64 `json:"handoff_ms"`
}

// Compute is how long a step takes whose kernels take c ms.
func (c *Costs) Compute(ms float64) float64 {
	if c.FloorMs == 0 {
		return c.StepMs + ms
	}
	return c.StepMs + math.Cbrt(c.FloorMs*c.FloorMs*c.FloorMs+ms*ms*ms)
}

// Kernels is what computing n tokens after ctx others takes, without the floor.
func (c *Costs) Kernels(n, ctx float64) float64 { return c.TokenMs*n + c.PairMs*n*(ctx+n/2) }

// Step is a step of D.
func (c *Costs) Step(streams int, context float64) float64 {
	return c.DecodeMs + c.StreamMs*float64(streams) + c.ContextMs*context
}

// Front is what comes before the engine.
func (c *Costs) Front(prompt int) float64 { return c.FrontMs + c.FrontTokenMs*float64(prompt) }

// Render is how long the engines take to say a prompt's token ids.
func (c *Costs) Render(prompt int) float64 { return c.RenderMs + c.RenderTokenMs*float64(prompt) }

// Link moves KV between engines.
type Link struct {
	LatencyMs    float64 `json:"latency_ms"`
	GBPerSecond  float64 `json:"gb_per_second"`
	DescriptorUs float64 `json:"descriptor_us"`
	// Posting is the part of the descriptors' time that the reading engine's own thread is busy, 0 to 1.
	Posting float64 `json:"posting"`
}

// transfer is what moving n tokens takes, and for how long the reader's thread is busy with it. perToken are bytes and
// descriptors.
func (l *Link) transfer(n int, bytesPerToken, descriptorsPerToken float64) (ms, posting float64) {
	if n <= 0 {
		return 0, 0
	}
	d := math.Ceil(float64(n)*descriptorsPerToken) * l.DescriptorUs / 1000
	wire := 0.0
	if l.GBPerSecond > 0 {
		wire = float64(n) * bytesPerToken / (l.GBPerSecond * 1e6)
	}
	return l.LatencyMs + max(wire, d), d * l.Posting
}

// Hardware is a GPU, as its maker describes it.
type Hardware struct {
	Name      string  `json:"name"`
	TFLOPS    float64 `json:"tflops"` // bf16, dense
	TBPerSec  float64 `json:"tb_per_second"`
	MemoryGiB float64 `json:"memory_gib"`
}

// GPUs that are known by name.
var GPUs = []Hardware{
	{"A100-80G", 312, 2.04, 79},
	{"L40S", 362, 0.864, 44},
	{"H100", 989, 3.35, 79},
	{"H200", 989, 4.8, 139},
	{"B200", 2250, 8, 178},
	{"MI300X", 1307, 5.3, 191},
}

// Links that are known by name. NVLink and the cost of a descriptor are measured (docs/sim.md), the others are what
// such a link delivers at best.
var Links = map[string]Link{
	"nvlink":  {LatencyMs: 1.5, GBPerSecond: 280, DescriptorUs: 3.8, Posting: 0.85},
	"rdma400": {LatencyMs: 2, GBPerSecond: 45, DescriptorUs: 3.8, Posting: 0.85},
	"rdma100": {LatencyMs: 2, GBPerSecond: 11, DescriptorUs: 3.8, Posting: 0.85},
	"tcp10":   {LatencyMs: 3, GBPerSecond: 1.1, DescriptorUs: 3.8, Posting: 0.85},
}

// Layouts of the KV pool, by how many descriptors a block takes.
const (
	LayoutPerLayer   = "per-layer"   // one for K and one for V of every layer: as shipped
	LayoutCrossLayer = "cross-layer" // one for all
)

// Model is a language model on one engine.
type Model struct {
	Name      string  `json:"name"`
	Layers    int     `json:"layers"` // that have KV
	Regions   int     `json:"regions"`
	KVBytes   float64 `json:"kv_bytes_per_token"`
	Params    float64 `json:"params_1e9"`
	Active    float64 `json:"active_params_1e9"`
	PairFLOPs float64 `json:"flops_per_token_pair"` // of attention
	Weights   float64 `json:"bytes_per_param"`
	// Costs, if set, are measured, for the GPU and number of GPUs named.
	Costs      *Costs `json:"costs,omitempty"`
	CostsGPU   string `json:"costs_gpu,omitempty"`
	CostsCount int    `json:"costs_gpu_count,omitempty"`
}

// full is a model with plain attention: layers × heads × head size, KV heads, parameters in 10⁹.
func full(name string, layers, heads, kvHeads, dim int, params, active, weights float64) Model {
	return Model{
		Name: name, Layers: layers, Regions: 2 * layers, KVBytes: float64(2 * layers * kvHeads * dim * 2), Params: params, Active: active,
		PairFLOPs: float64(4 * layers * heads * dim), Weights: weights,
	}
}

// latent is a model with multi-head latent attention.
func latent(name string, layers, heads int, kvBytes, params, active, weights, pair float64) Model {
	if pair == 0 {
		pair = float64(2 * layers * heads * (192 + 128))
	}
	return Model{Name: name, Layers: layers, Regions: layers, KVBytes: kvBytes, Params: params, Active: active, PairFLOPs: pair, Weights: weights}
}

// Models that are known by name, from their public configurations. GLM-5's attention is sparse: a token looks at no more
// than 2048 others, and a small indexer at all.
var Models = []Model{
	full("SmolLM2-135M", 30, 9, 3, 64, 0.135, 0.135, 2),
	full("Qwen3-0.6B", 28, 16, 8, 128, 0.6, 0.6, 2),
	full("Llama-3.1-8B", 32, 32, 8, 128, 8.03, 8.03, 2),
	full("Qwen3-8B", 36, 32, 8, 128, 8.2, 8.2, 2),
	full("Mistral-Small-24B", 40, 32, 8, 128, 23.6, 23.6, 2),
	full("Qwen3-30B-A3B", 48, 32, 4, 128, 30.5, 3.3, 2),
	measured(full("Qwen3-32B", 64, 64, 8, 128, 32.8, 32.8, 2), "H200", 1, Costs{
		FloorMs: 48, TokenMs: 0.1043, PairMs: 3.1e-6, DecodeMs: 19, StreamMs: 0.06, ContextMs: 6e-5, FrontTokenMs: frontMsToken, HandoffMs: 11,
		RenderMs: renderMs, RenderTokenMs: renderMsToken,
	}),
	full("Llama-3.3-70B", 80, 64, 8, 128, 70.6, 70.6, 2),
	full("Qwen3-235B-A22B", 94, 64, 4, 128, 235, 22, 2),
	{Name: "Qwen3.5-397B-A17B", Layers: 15, Regions: 30, KVBytes: 30 << 10, Params: 397, Active: 17, PairFLOPs: 4 * 15 * 32 * 256, Weights: 2},
	latent("DeepSeek-V3", 61, 128, 61*576*2, 671, 37, 1, 0),
	latent("Kimi-K2.5", 61, 64, 61*576*2, 1040, 32, 0.6, 0),
	latent("GLM-5", 78, 64, 97.8*1024, 744, 40, 2, 78*32*128*2),
	latent("GLM-5-FP8", 78, 64, 60*1024, 744, 40, 1, 78*32*128*2),
}

func measured(m Model, gpu string, n int, c Costs) Model {
	m.Costs, m.CostsGPU, m.CostsCount = &c, gpu, n
	return m
}

// ModelNamed finds a model.
func ModelNamed(name string) (Model, error) {
	names := ""
	for _, m := range Models {
		if m.Name == name {
			return m, nil
		}
		names += " " + m.Name
	}
	return Model{}, fmt.Errorf("unknown model %q; known:%s", name, names)
}

// GPUNamed finds a GPU.
func GPUNamed(name string) (Hardware, error) {
	names := ""
	for _, g := range GPUs {
		if g.Name == name {
			return g, nil
		}
		names += " " + g.Name
	}
	return Hardware{}, fmt.Errorf("unknown GPU %q; known:%s", name, names)
}

// What of a GPU's figures a real engine gets out of it. Both come from one measurement: Qwen3-32B in bf16 on one H200.
const (
	computeShare  = 0.64
	bandwidth     = 0.72
	perDoubling   = 0.9 // what is left of it each time the number of GPUs of an engine doubles
	memoryShare   = 0.9
	activationGiB = 1.5
	frontMsToken  = 0.0019
	renderMs      = 0.5
	renderMsToken = 0.001
	floorPerLayer = 0.75 // ms of launching kernels, without graphs
)

// CostsOn are a model's costs on n GPUs for each engine: measured ones where there are some, else what the GPU's
// figures give. They are then good for comparing fleets, not for promises.
func (m *Model) CostsOn(g Hardware, n int) Costs {
	if m.MeasuredOn(g, n) {
		return *m.Costs
	}
	scale := float64(n) * math.Pow(perDoubling, math.Log2(float64(n)))
	flops := g.TFLOPS * 1e12 * computeShare * scale
	if m.Weights <= 1 {
		flops *= 1.6 // fp8 arithmetic
	}
	bytes := g.TBPerSec * 1e12 * bandwidth * scale
	// A batch of a few streams touches little more than the active parameters; many touch all.
	read := min(m.Params, 1.5*m.Active) * 1e9 * m.Weights
	c := Costs{
		FloorMs: floorPerLayer * float64(max(m.Regions/2, m.Layers)), TokenMs: 2 * m.Active * 1e9 / flops * 1000, PairMs: m.PairFLOPs / flops * 1000,
		DecodeMs: read / bytes * 1000, StreamMs: 0.06, ContextMs: m.KVBytes / bytes * 1000, FrontTokenMs: frontMsToken, HandoffMs: 11,
		RenderMs: renderMs, RenderTokenMs: renderMsToken,
	}
	c.DecodeMs = max(c.DecodeMs, 2)
	return c
}

// PoolOn is how many tokens of KV fit.
func (m *Model) PoolOn(g Hardware, n int) int {
	free := g.MemoryGiB*memoryShare*float64(n) - m.Params*1e9*m.Weights/(1<<30) - activationGiB*float64(n)
	return int(free * (1 << 30) / m.KVBytes)
}

// descriptors of one token, on one of n GPUs that read at the same time.
func (m *Model) descriptors(layout string, blockSize int) float64 {
	if layout == LayoutCrossLayer {
		return 1 / float64(blockSize)
	}
	return float64(m.Regions) / float64(blockSize)
}

func (c *Costs) validate() error {
	for _, v := range []float64{
		c.StepMs, c.FloorMs, c.TokenMs, c.PairMs, c.DecodeMs, c.StreamMs, c.ContextMs, c.FrontMs, c.FrontTokenMs, c.HandoffMs, c.RenderMs, c.RenderTokenMs,
	} {
		if !(v >= 0) || v > 1e6 {
			return fmt.Errorf("costs: %v ms is not a cost", v)
		}
	}
	if c.StepMs+c.FloorMs+c.TokenMs <= 0 || c.DecodeMs+c.StreamMs <= 0 {
		return errors.New("costs: computing and decoding take some time")
	}
	return nil
}

func ms(f float64) time.Duration { return time.Duration(f * float64(time.Millisecond)) }

func toMs(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// MeasuredOn reports whether the model's costs were measured there.
func (m *Model) MeasuredOn(g Hardware, n int) bool {
	return m.Costs != nil && (m.CostsGPU == "" || m.CostsGPU == g.Name && m.CostsCount == n)
}

// Validate says what is wrong with a model that was read from a file.
func (m *Model) Validate() error {
	for _, v := range []struct {
		name  string
		value float64
		most  float64
	}{
		{"layers", float64(m.Layers), 1e5},
		{"regions", float64(m.Regions), 1e6},
		{"kv_bytes_per_token", m.KVBytes, 1e9},
		{"params_1e9", m.Params, 1e7},
		{"active_params_1e9", m.Active, 1e7},
		{"bytes_per_param", m.Weights, 16},
	} {
		if !(v.value > 0 && v.value <= v.most) {
			return fmt.Errorf("%s is %v: want more than 0, at most %g", v.name, v.value, v.most)
		}
	}
	switch {
	case m.Name == "":
		return errors.New("it has no name")
	case !(m.PairFLOPs >= 0 && m.PairFLOPs < 1e15):
		return fmt.Errorf("flops_per_token_pair is %v", m.PairFLOPs)
	case m.Active > m.Params:
		return errors.New("more active parameters than parameters")
	case m.Costs == nil:
		return nil
	}
	return m.Costs.validate()
}
