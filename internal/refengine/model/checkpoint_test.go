package model

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// rawTensor is a tensor as a checkpoint file holds it.
type rawTensor struct {
	name  string
	dtype string
	shape []int // outermost dimension first
	data  []byte
}

// encode stores values in a number format. A float16 must be exact.
func encode(dtype string, values []float32) []byte {
	var b []byte
	for _, v := range values {
		switch dtype {
		case "F32":
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		case "BF16":
			b = binary.LittleEndian.AppendUint16(b, toBF16(v))
		case "F16":
			b = binary.LittleEndian.AppendUint16(b, toF16(v))
		}
	}
	return b
}

// toF16 truncates to a normal half, which is enough for test weights.
func toF16(v float32) uint16 {
	b := math.Float32bits(v)
	exp := int(b>>23&0xff) - 127 + 15
	if exp <= 0 {
		return uint16(b >> 16 & 0x8000)
	}
	return uint16(b>>16&0x8000 | uint32(exp)<<10 | b>>13&0x3ff)
}

// hfTensors returns a model's weights under their Hugging Face names.
func hfTensors(m *Model, dtype string) []rawTensor {
	var out []rawTensor
	c := &m.cfg
	matrix := func(name string, w *matrix, first, rows int) {
		var values []float32
		for r := range rows {
			values = append(values, rowOf(w, first+r)...)
		}
		out = append(out, rawTensor{name, dtype, []int{rows, w.cols}, encode(dtype, values)})
	}
	vector := func(name string, v []float32) {
		out = append(out, rawTensor{name, dtype, []int{len(v)}, encode(dtype, v)})
	}
	stacked := func(prefix string, l *linear, names []string, rows []int) {
		at := 0
		for i, name := range names {
			matrix(prefix+name+".weight", l.w, at, rows[i])
			if l.bias != nil {
				vector(prefix+name+".bias", l.bias[at:at+rows[i]])
			}
			at += rows[i]
		}
	}
	matrix("model.embed_tokens.weight", m.embed, 0, c.VocabSize)
	if m.head != m.embed {
		matrix("lm_head.weight", m.head, 0, c.VocabSize)
	}
	vector("model.norm.weight", m.norm)
	for i := range m.layers {
		ly, prefix := &m.layers[i], fmt.Sprintf("model.layers.%d.", i)
		vector(prefix+"input_layernorm.weight", ly.attnNorm)
		vector(prefix+"post_attention_layernorm.weight", ly.mlpNorm)
		stacked(prefix+"self_attn.", &ly.qkv, []string{"q_proj", "k_proj", "v_proj"}, []int{c.qRows(), c.kvRows(), c.kvRows()})
		stacked(prefix+"self_attn.", &ly.out, []string{"o_proj"}, []int{c.HiddenSize})
		stacked(prefix+"mlp.", &ly.gateUp, []string{"gate_proj", "up_proj"}, []int{c.IntermediateSize, c.IntermediateSize})
		stacked(prefix+"mlp.", &ly.down, []string{"down_proj"}, []int{c.HiddenSize})
	}
	return out
}

// safetensorsFile lays tensors out as a safetensors file.
func safetensorsFile(tensors []rawTensor) []byte {
	header := map[string]any{"__metadata__": map[string]string{"format": "pt"}}
	var data []byte
	for _, t := range tensors {
		header[t.name] = map[string]any{"dtype": t.dtype, "shape": t.shape, "data_offsets": []int{len(data), len(data) + len(t.data)}}
		data = append(data, t.data...)
	}
	raw, err := json.Marshal(header)
	if err != nil {
		panic(err)
	}
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(raw))), raw...), data...)
}

// hfConfigOf returns a config.json for a shape; extra members win.
func hfConfigOf(c Config, extra map[string]any) []byte {
	m := map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "hidden_act": "silu",
		"vocab_size": c.VocabSize, "hidden_size": c.HiddenSize, "intermediate_size": c.IntermediateSize,
		"num_hidden_layers": c.Layers, "num_attention_heads": c.Heads, "num_key_value_heads": c.KVHeads, "head_dim": c.HeadDim,
		"max_position_embeddings": c.MaxPositions, "rms_norm_eps": c.NormEps, "rope_theta": c.RopeTheta,
		"bos_token_id": 1, "eos_token_id": []int{2, 7}, "tie_word_embeddings": false,
	}
	if s := c.RopeScaling; s != nil {
		m["rope_scaling"] = map[string]any{
			"rope_type": "llama3", "factor": s.Factor, "low_freq_factor": s.LowFreqFactor,
			"high_freq_factor": s.HighFreqFactor, "original_max_position_embeddings": s.OriginalMaxPositions,
		}
	}
	for k, v := range extra {
		m[k] = v
	}
	raw, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return raw
}

func writeFiles(t *testing.T, files map[string][]byte) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "random-model")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// ggufFile lays out metadata and tensors as a GGUF file. Metadata values are string, uint32, float32, []string, []int32 or []float32.
type ggufFile struct {
	version uint32
	keys    []string
	meta    map[string]any
	tensors []rawTensor
}

func (f *ggufFile) bytes() []byte {
	le := binary.LittleEndian
	var b []byte
	text := func(s string) { b = append(le.AppendUint64(b, uint64(len(s))), s...) }
	b = append(b, "GGUF"...)
	b = le.AppendUint32(b, f.version)
	b = le.AppendUint64(b, uint64(len(f.tensors)))
	b = le.AppendUint64(b, uint64(len(f.keys)))
	for _, key := range f.keys {
		text(key)
		switch v := f.meta[key].(type) {
		case string:
			b = le.AppendUint32(b, ggufString)
			text(v)
		case uint32:
			b = le.AppendUint32(le.AppendUint32(b, ggufUint32), v)
		case float32:
			b = le.AppendUint32(le.AppendUint32(b, ggufFloat32), math.Float32bits(v))
		case bool:
			b = append(le.AppendUint32(b, ggufBool), 1)
		case []string:
			b = le.AppendUint64(le.AppendUint32(le.AppendUint32(b, ggufArray), ggufString), uint64(len(v)))
			for _, s := range v {
				text(s)
			}
		case []int32:
			b = le.AppendUint64(le.AppendUint32(le.AppendUint32(b, ggufArray), ggufInt32), uint64(len(v)))
			for _, n := range v {
				b = le.AppendUint32(b, uint32(n))
			}
		case []float32:
			b = le.AppendUint64(le.AppendUint32(le.AppendUint32(b, ggufArray), ggufFloat32), uint64(len(v)))
			for _, n := range v {
				b = le.AppendUint32(b, math.Float32bits(n))
			}
		default:
			panic(fmt.Sprintf("metadata of type %T", v))
		}
	}
	at := 0
	for _, t := range f.tensors {
		text(t.name)
		b = le.AppendUint32(b, uint32(len(t.shape)))
		for i := range t.shape {
			b = le.AppendUint64(b, uint64(t.shape[len(t.shape)-1-i]))
		}
		b = le.AppendUint32(b, uint32(ggufTypeOf(t.dtype)))
		b = le.AppendUint64(b, uint64(at))
		at += (len(t.data) + 31) / 32 * 32
	}
	b = append(b, make([]byte, (32-len(b)%32)%32)...)
	for _, t := range f.tensors {
		b = append(b, t.data...)
		b = append(b, make([]byte, (32-len(t.data)%32)%32)...)
	}
	return b
}

func ggufTypeOf(name string) ggufType {
	for kind, f := range ggufFormats {
		if f.name == name {
			return kind
		}
	}
	panic("no number format " + name)
}

// ggufOf returns a file with a model's weights, its matrices in one number format and its vectors in F32.
func ggufOf(m *Model, dtype string) *ggufFile {
	c := &m.cfg
	f := &ggufFile{version: 3, meta: map[string]any{
		"general.architecture":                   "llama",
		"llama.embedding_length":                 uint32(c.HiddenSize),
		"llama.feed_forward_length":              uint32(c.IntermediateSize),
		"llama.block_count":                      uint32(c.Layers),
		"llama.context_length":                   uint32(c.MaxPositions),
		"llama.attention.head_count":             uint32(c.Heads),
		"llama.attention.head_count_kv":          uint32(c.KVHeads),
		"llama.attention.key_length":             uint32(c.HeadDim),
		"llama.attention.layer_norm_rms_epsilon": float32(c.NormEps),
		"llama.rope.freq_base":                   float32(c.RopeTheta),
		"tokenizer.ggml.bos_token_id":            uint32(1),
		"tokenizer.ggml.eos_token_id":            uint32(2),
		"tokenizer.ggml.tokens":                  []string{"<s>", "</s>"},
		"tokenizer.ggml.token_type":              []int32{3, 3},
		"tokenizer.ggml.scores":                  []float32{0, -1.5},
	}}
	for key := range f.meta {
		f.keys = append(f.keys, key)
	}
	rename := map[string]string{}
	for gguf, hf := range ggufTop {
		rename[hf] = gguf
	}
	for _, t := range hfTensors(m, "F32") {
		t.name = ggufName(t.name, rename)
		values := floats(t.data)
		if strings.Contains(t.name, "attn_q.") || strings.Contains(t.name, "attn_k.") {
			values = interleave(values, t.shape[0], c.HeadDim)
		}
		if t.dtype = "F32"; len(t.shape) == 2 {
			t.dtype = dtype
		}
		t.data = encode(t.dtype, values)
		f.tensors = append(f.tensors, t)
	}
	return f
}

func ggufName(hf string, top map[string]string) string {
	if name, ok := top[hf]; ok {
		return name
	}
	rest, _ := strings.CutPrefix(hf, "model.layers.")
	layer, rest, _ := strings.Cut(rest, ".")
	for gguf, name := range ggufLayer {
		if suffix, ok := strings.CutPrefix(rest, name+"."); ok {
			return "blk." + layer + "." + gguf + "." + suffix
		}
	}
	panic("no GGUF name for " + hf)
}

// interleave orders rows as GGUF files have them: of each head, rows 0, dim/2, 1, dim/2+1, …
func interleave(values []float32, rows, dim int) []float32 {
	cols := len(values) / rows
	var out []float32
	for head := 0; head < rows; head += dim {
		for i := range dim / 2 {
			out = append(out, values[(head+i)*cols:][:cols]...)
			out = append(out, values[(head+i+dim/2)*cols:][:cols]...)
		}
	}
	return out
}

// mustEqualWeights compares all weights of two models, want's first rounded as the file rounds them.
func mustEqualWeights(t *testing.T, want, got *Model, matrix, vector func(float32) float32) {
	t.Helper()
	a, b := hfTensors(want, "F32"), hfTensors(got, "F32")
	if len(a) != len(b) {
		t.Fatalf("%d tensors, want %d", len(b), len(a))
	}
	for i := range a {
		round := vector
		if len(a[i].shape) == 2 {
			round = matrix
		}
		values := floats(a[i].data)
		for j := range values {
			values[j] = round(values[j])
		}
		if !bytes.Equal(encode("F32", values), b[i].data) {
			t.Errorf("tensor %s differs", a[i].name)
		}
	}
}

func floats(raw []byte) []float32 {
	values := make([]float32, len(raw)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return values
}
