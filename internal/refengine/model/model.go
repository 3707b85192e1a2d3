package model

import (
	"errors"
	"fmt"
	"math"
)

// Config is the shape of a Llama-family decoder, in the words of Hugging Face's config.json.
type Config struct {
	Name             string // what /v1/models calls "root" when nothing else is said
	VocabSize        int    // rows of the embedding
	HiddenSize       int
	IntermediateSize int
	Layers           int
	Heads            int // query heads
	KVHeads          int
	HeadDim          int
	MaxPositions     int // tokens
	RopeTheta        float64
	RopeScaling      *RopeScaling // nil: plain rotary embedding
	NormEps          float64
	BOS              int32   // -1: none
	EOS              []int32 // any of these ends a sequence
}

// RopeScaling is the "llama3" long-context rescaling of rotary frequencies.
type RopeScaling struct {
	Factor, LowFreqFactor, HighFreqFactor float64
	OriginalMaxPositions                  int
}

// Chunk is a run of one sequence's tokens to compute in one step.
type Chunk struct {
	Tokens []int32 // ids at positions Start … Start+len(Tokens)-1
	Start  int     // KV of positions [0, Start) is already in Blocks
	Blocks []int   // block table, covers at least ⌈(Start+len(Tokens))/blockSize⌉ blocks
	Logits int     // logits are wanted for this many of the last tokens (0 … len(Tokens))
}

// Model is a decoder's weights and its shape. It does not change once made.
type Model struct {
	cfg     Config
	embed   *matrix // [VocabSize][HiddenSize]
	head    *matrix // the same as embed when the checkpoint ties them
	norm    []float32
	layers  []layer
	invFreq []float32 // [HeadDim/2], radians per position
}

// layer is one decoder layer. Biases are nil where the checkpoint has none.
type layer struct {
	attnNorm []float32 // [HiddenSize]
	qkv      linear    // [(Heads+2*KVHeads)*HeadDim][HiddenSize]: q rows, then k, then v
	out      linear    // [HiddenSize][Heads*HeadDim]
	mlpNorm  []float32 // [HiddenSize]
	gateUp   linear    // [2*IntermediateSize][HiddenSize]: gate rows, then up
	down     linear    // [HiddenSize][IntermediateSize]
}

// linear is y = W x + b.
type linear struct {
	w    *matrix
	bias []float32 // nil: none
}

// Config returns the model's shape. The caller must not change what it points to.
func (m *Model) Config() Config { return m.cfg }

// Bounds on the shape of a checkpoint. They are far above every known model and keep products of two of
// them within an int64, so that a forged config is an error and not an overflow.
const (
	maxWidth     = 1 << 20
	maxVocab     = 1 << 24
	maxLayers    = 1 << 12
	maxPositions = 1 << 28
)

// validate says what in a shape cannot be computed.
func (c *Config) validate() error {
	for _, f := range []struct {
		name  string
		value int
		limit int
	}{
		{"vocab_size", c.VocabSize, maxVocab},
		{"hidden_size", c.HiddenSize, maxWidth},
		{"intermediate_size", c.IntermediateSize, maxWidth},
		{"num_hidden_layers", c.Layers, maxLayers},
		{"num_attention_heads", c.Heads, maxWidth},
		{"num_key_value_heads", c.KVHeads, maxWidth},
		{"head_dim", c.HeadDim, maxWidth},
		{"max_position_embeddings", c.MaxPositions, maxPositions},
	} {
		if f.value < 1 || f.value > f.limit {
			return fmt.Errorf("%s is %d, want 1 to %d", f.name, f.value, f.limit)
		}
	}
	switch {
	case c.Heads%c.KVHeads != 0:
		return fmt.Errorf("num_attention_heads %d is not a multiple of num_key_value_heads %d", c.Heads, c.KVHeads)
	case c.HeadDim%8 != 0:
		return fmt.Errorf("head_dim %d is not a multiple of 8", c.HeadDim)
	case c.Heads*c.HeadDim > maxWidth:
		return fmt.Errorf("%d heads of %d are wider than %d", c.Heads, c.HeadDim, maxWidth)
	case !(c.NormEps >= 0 && c.NormEps < 1):
		return fmt.Errorf("rms_norm_eps is %g, want 0 to 1", c.NormEps)
	case !(c.RopeTheta > 0) || math.IsInf(c.RopeTheta, 0):
		return fmt.Errorf("rope_theta is %g, want a positive number", c.RopeTheta)
	}
	if s := c.RopeScaling; s != nil {
		if !(s.Factor >= 1) || !(s.LowFreqFactor > 0) || !(s.HighFreqFactor > s.LowFreqFactor) || s.OriginalMaxPositions < 1 {
			return errors.New("rope_scaling needs factor >= 1, 0 < low_freq_factor < high_freq_factor and original_max_position_embeddings >= 1")
		}
	}
	return nil
}

// qRows and kvRows are how many outputs of the fused projection are queries, and keys (or values).
func (c *Config) qRows() int  { return c.Heads * c.HeadDim }
func (c *Config) kvRows() int { return c.KVHeads * c.HeadDim }
