package model

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
)

// LoadGGUF loads a GGUF file of architecture "llama" with tensors in F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K.
//
// Quantised matrices are widened and rounded to bfloat16, F16 and F32 become float32.
func LoadGGUF(path string) (*Model, error) {
	g, err := OpenGGUF(path)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	m, err := g.load()
	if err != nil {
		return nil, fmt.Errorf("load model from %s: %w", path, err)
	}
	if m.cfg.Name == "" {
		m.cfg.Name = strings.TrimSuffix(filepath.Base(path), ".gguf")
	}
	return m, nil
}

// load reads configuration and weights.
func (g *GGUF) load() (*Model, error) {
	c, err := g.config()
	if err != nil {
		return nil, err
	}
	w := &ggufWeights{g: g, cfg: c, names: map[string]string{}}
	for _, name := range g.names {
		if kind := g.tensors[name].kind; ggufFormats[kind].bytes == 0 {
			return nil, fmt.Errorf("tensor %s: number format %s is not supported", name, kind)
		}
		if name != ggufRopeFreqs {
			w.names[hfName(name)] = name
		}
	}
	_, untied := g.tensors["output.weight"]
	m, err := (&loader{cfg: c, from: w, tied: !untied}).load()
	if err != nil {
		return nil, err
	}
	if _, ok := g.tensors[ggufRopeFreqs]; ok {
		// Long-context rescaling, worked out by the converter: a factor for each frequency.
		factors, err := (&loader{cfg: c, from: w}).vector(ggufRopeFreqs, c.HeadDim/2)
		if err != nil {
			return nil, err
		}
		for i, f := range factors {
			if !(f > 0) {
				return nil, fmt.Errorf("tensor %s has a factor of %g", ggufRopeFreqs, f)
			}
			m.invFreq[i] = float32(float64(m.invFreq[i]) / float64(f))
		}
	}
	return m, nil
}

const ggufRopeFreqs = "rope_freqs.weight"

// config reads the shape from the metadata. The vocabulary's size is the embedding's.
func (g *GGUF) config() (*Config, error) {
	arch, ok := g.String("general.architecture")
	if !ok {
		return nil, errors.New("general.architecture is missing")
	}
	if arch != "llama" {
		return nil, fmt.Errorf("architecture %q is not supported, only llama", arch)
	}
	if kind, ok := g.String("llama.rope.scaling.type"); ok && kind != "none" {
		return nil, fmt.Errorf("llama.rope.scaling.type %q is not supported", kind)
	}
	if n, ok := g.Int("llama.expert_count"); ok && n > 0 {
		return nil, fmt.Errorf("llama.expert_count %d: mixtures of experts are not supported", n)
	}
	c := &Config{BOS: -1}
	c.Name, _ = g.String("general.name")
	for _, f := range []struct {
		to        *int
		key       string
		otherwise func() int
	}{
		{&c.HiddenSize, "llama.embedding_length", nil},
		{&c.IntermediateSize, "llama.feed_forward_length", nil},
		{&c.Layers, "llama.block_count", nil},
		{&c.MaxPositions, "llama.context_length", nil},
		{&c.Heads, "llama.attention.head_count", nil},
		{&c.KVHeads, "llama.attention.head_count_kv", func() int { return c.Heads }},
		{&c.HeadDim, "llama.attention.key_length", func() int { return c.HiddenSize / max(c.Heads, 1) }},
	} {
		v, ok := g.Int(f.key)
		switch {
		case ok && v >= 0 && v <= math.MaxInt32:
			*f.to = int(v)
		case ok:
			return nil, fmt.Errorf("%s is %d", f.key, v)
		case f.otherwise != nil:
			*f.to = f.otherwise()
		default:
			return nil, fmt.Errorf("%s is missing, or not a number", f.key)
		}
	}
	for key, want := range map[string]int{"llama.attention.value_length": c.HeadDim, "llama.rope.dimension_count": c.HeadDim} {
		if v, ok := g.Int(key); ok && v != int64(want) {
			return nil, fmt.Errorf("%s %d is not supported, only the head's %d", key, v, want)
		}
	}
	if c.NormEps, ok = g.Float("llama.attention.layer_norm_rms_epsilon"); !ok {
		return nil, errors.New("llama.attention.layer_norm_rms_epsilon is missing, or not a number")
	}
	if c.RopeTheta, ok = g.Float("llama.rope.freq_base"); !ok {
		c.RopeTheta = 10000
	}
	embed, ok := g.tensors["token_embd.weight"]
	if !ok || len(embed.dims) != 2 {
		return nil, errors.New("tensor token_embd.weight is missing, or not a matrix")
	}
	c.VocabSize = embed.dims[1]
	if id, ok := g.Int("tokenizer.ggml.bos_token_id"); ok {
		c.BOS = int32(id)
	}
	for _, key := range []string{"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"} {
		if id, ok := g.Int(key); ok && id >= 0 && id < int64(c.VocabSize) {
			c.addEOS(int32(id))
		}
	}
	return c, nil
}

// ggufWeights presents a file's tensors under their Hugging Face names.
type ggufWeights struct {
	g     *GGUF
	cfg   *Config
	names map[string]string // Hugging Face name: the file's
}

var ggufTop = map[string]string{
	"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight",
}

var ggufLayer = map[string]string{
	"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
	"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
	"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}

// hfName translates blk.3.attn_q.weight to model.layers.3.self_attn.q_proj.weight. An unknown name stays as it is.
func hfName(name string) string {
	if top, ok := ggufTop[name]; ok {
		return top
	}
	if parts := strings.Split(name, "."); len(parts) == 4 && parts[0] == "blk" {
		if layer, ok := ggufLayer[parts[2]]; ok {
			return "model.layers." + parts[1] + "." + layer + "." + parts[3]
		}
	}
	return name
}

func (w *ggufWeights) all() []string {
	var names []string
	for name := range w.names {
		names = append(names, name)
	}
	return names
}

func (w *ggufWeights) find(name string) (tensor, bool) {
	file, ok := w.names[name]
	if name == ggufRopeFreqs {
		file, ok = name, true
	}
	t, known := w.g.tensors[file]
	if !ok || !known {
		return tensor{}, false
	}
	shape := slices.Clone(t.dims)
	slices.Reverse(shape)
	found := tensor{shape: shape, bf16: t.kind != ggufF32 && t.kind != ggufF16, read: func(first int, dst []float32) error {
		return w.g.read(t, first, dst)
	}}
	if heads := w.rotaryHeads(name); heads > 0 {
		// The file pairs neighbouring rows for the rotation, this package pairs row i with row i+HeadDim/2.
		dim := w.cfg.HeadDim
		found.place = func(row int) int {
			head, i := row/dim, row%dim
			return head*dim + i%2*(dim/2) + i/2
		}
	}
	return found, true
}

// rotaryHeads returns how many heads a query or key projection has, and 0 for other tensors.
func (w *ggufWeights) rotaryHeads(name string) int {
	switch {
	case strings.Contains(name, ".q_proj."):
		return w.cfg.Heads
	case strings.Contains(name, ".k_proj."):
		return w.cfg.KVHeads
	}
	return 0
}

// read widens rows of a tensor of a known number format. Quantised values are not yet rounded to bfloat16: storing them does that.
func (g *GGUF) read(t ggufTensor, first int, dst []float32) error {
	f := ggufFormats[t.kind]
	rowBlocks := 1
	if len(t.dims) > 1 {
		rowBlocks = t.dims[0] / f.elements
	}
	raw := make([]byte, len(dst)/f.elements*f.bytes)
	if _, err := g.data.ReadAt(raw, t.offset+int64(first)*int64(rowBlocks)*int64(f.bytes)); err != nil {
		return err
	}
	for len(dst) > 0 {
		f.decode(raw[:f.bytes], dst[:f.elements])
		raw, dst = raw[f.bytes:], dst[f.elements:]
	}
	return nil
}
