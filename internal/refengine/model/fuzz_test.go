package model

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
)

// A file that parses has only tensors that can be read, and loading it gives a model or an error.
func FuzzSafetensors(f *testing.F) {
	m := randomModel(Config{VocabSize: 4, HiddenSize: 8, IntermediateSize: 8, Layers: 1, Heads: 1, KVHeads: 1, HeadDim: 8, MaxPositions: 16, RopeTheta: 1e4}, 1, false)
	f.Add(safetensorsFile(hfTensors(m, "BF16")))
	f.Add(safetensorsFile(hfTensors(m, "F32")))
	f.Add(safetensorsFile([]rawTensor{{"scalar", "F32", nil, make([]byte, 4)}, {"empty", "F16", []int{0, 3}, nil}}))
	header := func(json string) { f.Add(append(binary.LittleEndian.AppendUint64(nil, uint64(len(json))), json...)) }
	header(`{"x":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}`)
	header(`{"x":{"dtype":"F32","shape":[-1],"data_offsets":[4,0]}}`)
	header(`{"x":{"dtype":"BF16","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807]}}`)
	header(`{"x":null,"y":[]}`)
	f.Add(binary.LittleEndian.AppendUint64(nil, math.MaxUint64))
	f.Fuzz(func(t *testing.T, raw []byte) {
		tensors, err := parseSafetensors(bytes.NewReader(raw), int64(len(raw)))
		if err != nil {
			return
		}
		st := &safetensors{tensors: tensors}
		for name, tn := range tensors {
			found, ok := st.find(name)
			if !ok {
				t.Fatalf("tensor %q is listed and not found", name)
			}
			n := 1
			for _, d := range tn.shape {
				n *= d
			}
			if err := found.read(0, make([]float32, n)); err != nil {
				t.Fatalf("tensor %q %v cannot be read: %v", name, tn.shape, err)
			}
		}
		cfg := m.cfg
		loaded, err := (&loader{cfg: &cfg, from: st}).load()
		if err == nil {
			loaded.Forward(loaded.NewPool(1, 4), []Chunk{{Tokens: []int32{1, 2}, Blocks: []int{0}, Logits: 1}})
		}
	})
}

// A file that parses has only tensors that lie in it, and loading it gives a model or an error.
func FuzzGGUF(f *testing.F) {
	c := Config{VocabSize: 4, HiddenSize: 32, IntermediateSize: 32, Layers: 1, Heads: 4, KVHeads: 2, HeadDim: 8, MaxPositions: 16, RopeTheta: 1e4, NormEps: 1e-5}
	whole := ggufOf(randomModel(c, 1, false), "BF16")
	f.Add(whole.bytes())
	whole.version = 2
	f.Add(whole.bytes())
	f.Add(whole.bytes()[:500])
	le := binary.LittleEndian
	head := func(tensors, entries uint64) []byte {
		return le.AppendUint64(le.AppendUint64(append([]byte("GGUF"), 3, 0, 0, 0), tensors), entries)
	}
	f.Add(head(math.MaxUint64, 0))
	f.Add(head(0, math.MaxInt64))
	f.Add(append(head(0, 1), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff))
	f.Fuzz(func(t *testing.T, raw []byte) {
		g, err := parseGGUF(bytes.NewReader(raw), int64(len(raw)))
		if err != nil {
			return
		}
		for name, tn := range g.tensors {
			if end := tn.offset + tn.bytes; end < tn.offset || end > g.data.Size() {
				t.Fatalf("tensor %q ends at %d of %d bytes", name, end, g.data.Size())
			}
		}
		m, err := g.load()
		if err == nil && m.cfg.VocabSize > 2 && m.cfg.MaxPositions > 2 {
			m.Forward(m.NewPool(1, 4), []Chunk{{Tokens: []int32{1, 2}, Blocks: []int{0}, Logits: 1}})
		}
	})
}

// The configuration is untrusted as well.
func FuzzHFConfig(f *testing.F) {
	f.Add(hfConfigOf(testConfig(), nil))
	f.Add(hfConfigOf(testConfig(), map[string]any{"rope_scaling": nil, "rope_parameters": map[string]any{"rope_theta": 1e6, "rope_type": "default"}}))
	f.Add([]byte(`{"architectures":["LlamaForCausalLM"],"num_attention_heads":-1,"eos_token_id":[1,2],"bos_token_id":null}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, _, err := parseHFConfig(raw)
		if err != nil {
			return
		}
		if err := c.validate(); err != nil {
			t.Fatalf("accepted, and then: %v", err)
		}
		for i, v := range ropeFrequencies(c) {
			if i < 64 && !(v >= 0) {
				t.Fatalf("frequency %d is %v", i, v)
			}
		}
	})
}
