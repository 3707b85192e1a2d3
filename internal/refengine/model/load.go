package model

import (
	"fmt"
	"runtime"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sync/errgroup"
)

// weights is an open checkpoint. Tensors go by their Hugging Face names, whatever the file calls them.
type weights interface {
	// find returns a tensor, or false if the checkpoint has none of that name.
	find(name string) (tensor, bool)
	// all returns the names of all tensors, in the words of the file where it has another name for something unknown.
	all() []string
}

// tensor is one tensor of an open checkpoint. A vector is a single row.
type tensor struct {
	shape []int // outermost dimension first
	bf16  bool  // bfloat16 is what the file's values become
	// read fills dst with whole rows, the file's row `first` and those after it.
	read func(first int, dst []float32) error
	// place says where the file's row belongs; nil: where it is.
	place func(row int) int
}

// readFloats is about how many values are in memory besides the weights while a matrix is read.
const readFloats = 1 << 16

// loader builds a Model from a checkpoint.
type loader struct {
	cfg  *Config
	from weights
	tied bool // embedding and head are one matrix
}

// load reads all weights. The checkpoint must hold exactly the tensors of the decoder that cfg describes: one more
// means that it is something else, and its output would be wrong without a sign.
func (ld *loader) load() (*Model, error) {
	c := ld.cfg
	if err := c.validate(); err != nil {
		return nil, err
	}
	m := &Model{cfg: *c, invFreq: ropeFrequencies(c)}
	if err := ld.checkNames(); err != nil {
		return nil, err
	}
	m.layers = make([]layer, c.Layers) // there are tensors for each, checkNames has seen them
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	g.Go(func() (err error) {
		m.embed, err = ld.matrix(c.HiddenSize, part{"model.embed_tokens.weight", c.VocabSize})
		return err
	})
	if !ld.tied {
		g.Go(func() (err error) {
			m.head, err = ld.matrix(c.HiddenSize, part{"lm_head.weight", c.VocabSize})
			return err
		})
	}
	g.Go(func() (err error) {
		m.norm, err = ld.vector("model.norm.weight", c.HiddenSize)
		return err
	})
	for i := range m.layers {
		g.Go(func() error { return ld.layer(&m.layers[i], fmt.Sprintf("model.layers.%d.", i)) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if ld.tied {
		m.head = m.embed
	}
	return m, nil
}

// layerTensors are a layer's tensors; those that end in .bias may be missing.
var layerTensors = []string{
	"input_layernorm.weight", "post_attention_layernorm.weight",
	"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.o_proj.weight",
	"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias", "self_attn.o_proj.bias",
	"mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
	"mlp.gate_proj.bias", "mlp.up_proj.bias", "mlp.down_proj.bias",
}

// checkNames compares what the checkpoint has with what the decoder needs.
func (ld *loader) checkNames() error {
	known := map[string]bool{"model.embed_tokens.weight": true, "model.norm.weight": true, "lm_head.weight": true}
	need := []string{"model.embed_tokens.weight", "model.norm.weight"}
	if !ld.tied {
		need = append(need, "lm_head.weight")
	}
	for _, name := range need {
		if _, ok := ld.from.find(name); !ok {
			return fmt.Errorf("tensor %s is missing", name)
		}
	}
	for i := range ld.cfg.Layers {
		for _, t := range layerTensors {
			name := fmt.Sprintf("model.layers.%d.%s", i, t)
			if known[name] = true; strings.HasSuffix(t, ".bias") {
				continue
			}
			if _, ok := ld.from.find(name); !ok {
				return fmt.Errorf("tensor %s is missing", name)
			}
		}
	}
	var extra []string
	for _, name := range ld.from.all() {
		// Old checkpoints store the rotary frequencies, which follow from the configuration.
		if !known[name] && !strings.HasSuffix(name, "rotary_emb.inv_freq") {
			extra = append(extra, name)
		}
	}
	if len(extra) > 0 {
		sort.Strings(extra)
		return fmt.Errorf("%d tensors that a %d-layer Llama decoder does not have, such as %s", len(extra), ld.cfg.Layers, extra[0])
	}
	return nil
}

func (ld *loader) layer(ly *layer, prefix string) (err error) {
	c := ld.cfg
	if ly.attnNorm, err = ld.vector(prefix+"input_layernorm.weight", c.HiddenSize); err != nil {
		return err
	}
	if ly.mlpNorm, err = ld.vector(prefix+"post_attention_layernorm.weight", c.HiddenSize); err != nil {
		return err
	}
	for _, l := range []struct {
		to    *linear
		cols  int
		parts []part
	}{
		{&ly.qkv, c.HiddenSize, []part{{"self_attn.q_proj", c.qRows()}, {"self_attn.k_proj", c.kvRows()}, {"self_attn.v_proj", c.kvRows()}}},
		{&ly.out, c.qRows(), []part{{"self_attn.o_proj", c.HiddenSize}}},
		{&ly.gateUp, c.HiddenSize, []part{{"mlp.gate_proj", c.IntermediateSize}, {"mlp.up_proj", c.IntermediateSize}}},
		{&ly.down, c.IntermediateSize, []part{{"mlp.down_proj", c.HiddenSize}}},
	} {
		if l.to.bias, err = ld.bias(prefix, l.parts); err != nil {
			return err
		}
		parts := slices.Clone(l.parts)
		for i := range parts {
			parts[i].name = prefix + parts[i].name + ".weight"
		}
		if l.to.w, err = ld.matrix(l.cols, parts...); err != nil {
			return err
		}
	}
	return nil
}

// part is a tensor that is stacked with others in one matrix.
type part struct {
	name string
	rows int
}

// matrix stacks parts of `cols` columns. It is kept as bfloat16 if all of them are.
func (ld *loader) matrix(cols int, parts ...part) (*matrix, error) {
	rows, bf16 := 0, true
	for _, p := range parts {
		t, ok := ld.from.find(p.name)
		if !ok {
			return nil, fmt.Errorf("tensor %s is missing", p.name)
		}
		if want := []int{p.rows, cols}; !slices.Equal(t.shape, want) {
			return nil, fmt.Errorf("tensor %s has shape %v, want %v", p.name, t.shape, want)
		}
		rows += p.rows
		bf16 = bf16 && t.bf16
	}
	m := newMatrix(rows, cols, bf16)
	perRead := max(1, readFloats/cols)
	buf := make([]float32, perRead*cols)
	base := 0
	for _, p := range parts {
		t, _ := ld.from.find(p.name)
		for first := 0; first < p.rows; first += perRead {
			n := min(perRead, p.rows-first)
			if err := t.read(first, buf[:n*cols]); err != nil {
				return nil, fmt.Errorf("tensor %s: %w", p.name, err)
			}
			for i := range n {
				at := first + i
				if t.place != nil {
					at = t.place(at)
				}
				m.setRow(base+at, buf[i*cols:][:cols])
			}
		}
		base += p.rows
	}
	return m, nil
}

// vector reads a one-dimensional tensor of n values.
func (ld *loader) vector(name string, n int) ([]float32, error) {
	t, ok := ld.from.find(name)
	if !ok {
		return nil, fmt.Errorf("tensor %s is missing", name)
	}
	if !slices.Equal(t.shape, []int{n}) {
		return nil, fmt.Errorf("tensor %s has shape %v, want [%d]", name, t.shape, n)
	}
	v := make([]float32, n)
	if err := t.read(0, v); err != nil {
		return nil, fmt.Errorf("tensor %s: %w", name, err)
	}
	if t.place == nil {
		return v, nil
	}
	placed := make([]float32, n)
	for i, x := range v {
		placed[t.place(i)] = x
	}
	return placed, nil
}

// bias stacks the biases of parts; one that is missing is zero. It returns nil if all are.
func (ld *loader) bias(prefix string, parts []part) ([]float32, error) {
	var stacked []float32
	found := false
	for _, p := range parts {
		name := prefix + p.name + ".bias"
		v := make([]float32, p.rows)
		if _, ok := ld.from.find(name); ok {
			var err error
			if v, err = ld.vector(name, p.rows); err != nil {
				return nil, err
			}
			found = true
		}
		stacked = append(stacked, v...)
	}
	if !found {
		return nil, nil
	}
	return stacked, nil
}
