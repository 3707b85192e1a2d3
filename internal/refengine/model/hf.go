package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// LoadDir loads a Hugging Face checkpoint: config.json and safetensors, in one file or in shards with an index.
//
// Weights in bfloat16 stay so; float16 and float32 become float32. A checkpoint that is not a Llama decoder, or
// needs something that this package does not compute, is an error that names it.
func LoadDir(dir string) (*Model, error) {
	m, err := loadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("load model from %s: %w", dir, err)
	}
	return m, nil
}

func loadDir(dir string) (*Model, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	cfg, tied, err := parseHFConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	cfg.Name = filepath.Base(filepath.Clean(dir))
	raw, err = os.ReadFile(filepath.Join(dir, "generation_config.json"))
	switch {
	case err == nil:
		var gen struct {
			EOS tokenIDs `json:"eos_token_id"`
		}
		if err := json.Unmarshal(raw, &gen); err != nil {
			return nil, fmt.Errorf("generation_config.json: %w", err)
		}
		cfg.addEOS(gen.EOS...)
	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	st, err := openSafetensors(dir)
	if err != nil {
		return nil, err
	}
	defer st.close()
	return (&loader{cfg: cfg, from: st, tied: tied}).load()
}

func (c *Config) addEOS(ids ...int32) {
	for _, id := range ids {
		if !slices.Contains(c.EOS, id) {
			c.EOS = append(c.EOS, id)
		}
	}
}

// hfConfig is what matters of config.json. A pointer is a field with a default that is not zero.
type hfConfig struct {
	Architectures []string `json:"architectures"`
	ModelType     string   `json:"model_type"`
	HiddenAct     *string  `json:"hidden_act"`

	VocabSize        int      `json:"vocab_size"`
	HiddenSize       int      `json:"hidden_size"`
	IntermediateSize int      `json:"intermediate_size"`
	Layers           int      `json:"num_hidden_layers"`
	Heads            int      `json:"num_attention_heads"`
	KVHeads          *int     `json:"num_key_value_heads"`
	HeadDim          *int     `json:"head_dim"`
	MaxPositions     *int     `json:"max_position_embeddings"`
	NormEps          *float64 `json:"rms_norm_eps"`
	Tied             bool     `json:"tie_word_embeddings"`

	RopeTheta      *float64 `json:"rope_theta"`
	RopeScaling    *hfRope  `json:"rope_scaling"`
	RopeParameters *hfRope  `json:"rope_parameters"` // both of the above, in newer checkpoints

	BOS tokenIDs `json:"bos_token_id"`
	EOS tokenIDs `json:"eos_token_id"`

	// Features that are refused unless off.
	SlidingWindow    *int            `json:"sliding_window"`
	UseSlidingWindow *bool           `json:"use_sliding_window"`
	PartialRotary    *float64        `json:"partial_rotary_factor"`
	Quantization     json.RawMessage `json:"quantization_config"`
}

type hfRope struct {
	Type                 string   `json:"rope_type"`
	OldType              string   `json:"type"`
	Theta                *float64 `json:"rope_theta"`
	Factor               float64  `json:"factor"`
	LowFreqFactor        float64  `json:"low_freq_factor"`
	HighFreqFactor       float64  `json:"high_freq_factor"`
	OriginalMaxPositions int      `json:"original_max_position_embeddings"`
}

// tokenIDs is a token id, a list of them, or null.
type tokenIDs []int32

// UnmarshalJSON implements json.Unmarshaler.
func (t *tokenIDs) UnmarshalJSON(raw []byte) error {
	var one *int32
	if err := json.Unmarshal(raw, &one); err == nil {
		if *t = nil; one != nil {
			*t = tokenIDs{*one}
		}
		return nil
	}
	var list []int32
	if err := json.Unmarshal(raw, &list); err != nil {
		return err
	}
	*t = list
	return nil
}

// architectures are those whose decoder is computed here. They differ in what Llama calls options.
var architectures = []string{"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"}

// parseHFConfig reads config.json. tied says that the head is the embedding.
func parseHFConfig(raw []byte) (cfg *Config, tied bool, err error) {
	var h hfConfig
	if err := json.Unmarshal(raw, &h); err != nil {
		return nil, false, err
	}
	if len(h.Architectures) != 1 || !slices.Contains(architectures, h.Architectures[0]) {
		return nil, false, fmt.Errorf("architecture %q is not supported, only %q", h.Architectures, architectures)
	}
	if h.HiddenAct != nil && *h.HiddenAct != "silu" && *h.HiddenAct != "swish" {
		return nil, false, fmt.Errorf("hidden_act %q is not supported, only silu", *h.HiddenAct)
	}
	if len(h.Quantization) > 0 && string(h.Quantization) != "null" {
		return nil, false, errors.New("quantization_config is not supported; use the unquantised checkpoint or a GGUF file")
	}
	if h.PartialRotary != nil && *h.PartialRotary != 1 {
		return nil, false, fmt.Errorf("partial_rotary_factor %g is not supported, only 1", *h.PartialRotary)
	}
	c := &Config{
		VocabSize: h.VocabSize, HiddenSize: h.HiddenSize, IntermediateSize: h.IntermediateSize,
		Layers: h.Layers, Heads: h.Heads,
		KVHeads:      or(h.KVHeads, h.Heads),
		MaxPositions: or(h.MaxPositions, 2048),
		NormEps:      or(h.NormEps, 1e-6),
		RopeTheta:    or(h.RopeTheta, 10000),
		BOS:          -1,
	}
	if h.HeadDim != nil {
		c.HeadDim = *h.HeadDim
	} else if h.Heads > 0 {
		c.HeadDim = h.HiddenSize / h.Heads
	}
	if len(h.BOS) > 0 {
		c.BOS = h.BOS[0]
	}
	c.addEOS(h.EOS...)
	windowed := h.UseSlidingWindow == nil || *h.UseSlidingWindow
	if windowed && h.SlidingWindow != nil && *h.SlidingWindow < c.MaxPositions {
		return nil, false, fmt.Errorf("sliding_window %d is not supported", *h.SlidingWindow)
	}
	for _, r := range []*hfRope{h.RopeScaling, h.RopeParameters} {
		if err := c.setRope(r); err != nil {
			return nil, false, err
		}
	}
	if err := c.validate(); err != nil {
		return nil, false, err
	}
	return c, h.Tied, nil
}

func or[T any](p *T, otherwise T) T {
	if p != nil {
		return *p
	}
	return otherwise
}

func (c *Config) setRope(r *hfRope) error {
	if r == nil {
		return nil
	}
	c.RopeTheta = or(r.Theta, c.RopeTheta)
	kind := r.Type
	if kind == "" {
		kind = r.OldType
	}
	switch kind {
	case "", "default":
	case "llama3":
		c.RopeScaling = &RopeScaling{
			Factor: r.Factor, LowFreqFactor: r.LowFreqFactor, HighFreqFactor: r.HighFreqFactor,
			OriginalMaxPositions: r.OriginalMaxPositions,
		}
	default:
		return fmt.Errorf("rope type %q is not supported, only default and llama3", kind)
	}
	return nil
}
