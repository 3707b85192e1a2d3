package model

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rounding is what storing in a number format and reading back does to a value.
var rounding = map[string]func(float32) float32{
	"F32":  func(v float32) float32 { return v },
	"F16":  func(v float32) float32 { return fromF16(toF16(v)) },
	"BF16": func(v float32) float32 { return fromBF16(toBF16(v)) },
}

func TestLoadDir(t *testing.T) {
	t.Parallel()
	for dtype, round := range rounding {
		want := randomModel(testConfig(), 1, false)
		dir := writeFiles(t, map[string][]byte{
			"config.json":       hfConfigOf(want.cfg, map[string]any{"attention_bias": true}),
			"model.safetensors": safetensorsFile(hfTensors(want, dtype)),
		})
		got, err := LoadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		mustEqualWeights(t, want, got, round, round)
		if kept := got.embed.bf16 != nil; kept != (dtype == "BF16") {
			t.Errorf("%s: weights kept as bfloat16: %v", dtype, kept)
		}
		cfg := want.cfg
		cfg.Name, cfg.BOS, cfg.EOS = "random-model", 1, []int32{2, 7}
		if diff := cmp.Diff(cfg, got.Config()); diff != "" {
			t.Errorf("%s: config (-want +got):\n%s", dtype, diff)
		}
	}
}

// A checkpoint in shards is read where its index says, tied embeddings are shared, and generation_config.json adds ends of sequence.
func TestLoadDirShardedAndTied(t *testing.T) {
	t.Parallel()
	want := randomModel(testConfig(), 2, false)
	want.head = want.embed
	tensors := hfTensors(want, "BF16")
	wrong := rawTensor{"model.norm.weight", "F32", []int{3}, make([]byte, 12)} // also in the first file, but not according to the index
	index := map[string]string{}
	for i, tn := range tensors {
		index[tn.name] = []string{"a.safetensors", "b.safetensors"}[i%2]
	}
	index["model.norm.weight"] = "b.safetensors"
	var a, b []rawTensor
	for _, tn := range tensors {
		if index[tn.name] == "a.safetensors" {
			a = append(a, tn)
		} else {
			b = append(b, tn)
		}
	}
	rawIndex, err := json.Marshal(map[string]any{"weight_map": index})
	if err != nil {
		t.Fatal(err)
	}
	dir := writeFiles(t, map[string][]byte{
		"config.json":                  hfConfigOf(want.cfg, map[string]any{"tie_word_embeddings": true}),
		"generation_config.json":       []byte(`{"eos_token_id": 9}`),
		"model.safetensors.index.json": rawIndex,
		"a.safetensors":                safetensorsFile(append(a, wrong)),
		"b.safetensors":                safetensorsFile(b),
	})
	got, err := LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	mustEqualWeights(t, want, got, rounding["BF16"], rounding["BF16"])
	if got.head != got.embed {
		t.Error("tied embeddings are stored twice")
	}
	if diff := cmp.Diff([]int32{2, 7, 9}, got.cfg.EOS); diff != "" {
		t.Errorf("ends of sequence (-want +got):\n%s", diff)
	}
}

func TestLoadDirErrors(t *testing.T) {
	t.Parallel()
	m := randomModel(testConfig(), 1, false)
	tensors := hfTensors(m, "BF16")
	f := func(want string, extra map[string]any, file []byte) {
		t.Helper()
		dir := writeFiles(t, map[string][]byte{"config.json": hfConfigOf(m.cfg, extra), "model.safetensors": file})
		if _, err := LoadDir(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("LoadDir: %v, want an error with %q", err, want)
		}
	}
	good := safetensorsFile(tensors)
	f("architecture [\"GPT2LMHeadModel\"] is not supported", map[string]any{"architectures": []string{"GPT2LMHeadModel"}}, good)
	f("hidden_act \"gelu\"", map[string]any{"hidden_act": "gelu"}, good)
	f("quantization_config", map[string]any{"quantization_config": map[string]any{"quant_method": "gptq"}}, good)
	f("rope type \"yarn\"", map[string]any{"rope_scaling": map[string]any{"type": "yarn", "factor": 4}}, good)
	f("sliding_window 64", map[string]any{"sliding_window": 64}, good)
	f("partial_rotary_factor", map[string]any{"partial_rotary_factor": 0.5}, good)
	f("hidden_size is 0", map[string]any{"hidden_size": 0}, good)
	f("num_hidden_layers is 5000", map[string]any{"num_hidden_layers": 5000}, good)
	f("not a multiple of num_key_value_heads", map[string]any{"num_key_value_heads": 4}, good)
	f("head_dim 12", map[string]any{"head_dim": 12}, good)
	f("cannot unmarshal", map[string]any{"hidden_size": "large"}, good)
	f("tensor model.layers.3.input_layernorm.weight is missing", map[string]any{"num_hidden_layers": 4}, good)
	f("that a 2-layer Llama decoder does not have, such as model.layers.2.", map[string]any{"num_hidden_layers": 2}, good)
	f("has shape [51 40], want [52 40]", map[string]any{"vocab_size": 52}, good)
	f("tensor lm_head.weight is missing", nil, safetensorsFile(slices.DeleteFunc(slices.Clone(tensors), func(t rawTensor) bool { return t.name == "lm_head.weight" })))
	f("model.layers.0.self_attn.q_norm.weight", nil, safetensorsFile(append(tensors[:len(tensors):len(tensors)],
		rawTensor{"model.layers.0.self_attn.q_norm.weight", "BF16", []int{8}, make([]byte, 16)})))
	f("number format \"I8\" is not supported", nil, safetensorsFile([]rawTensor{{"x", "I8", []int{1}, []byte{1}}}))
	f("header of", nil, good[:100])
	f("in a file of 8", nil, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})
	f("data_offsets", nil, good[:len(good)-1])

	dir := writeFiles(t, map[string][]byte{
		"config.json":                  hfConfigOf(m.cfg, nil),
		"model.safetensors.index.json": []byte(`{"weight_map": {"x": "../x.safetensors"}}`),
	})
	if _, err := LoadDir(dir); err == nil || !strings.Contains(err.Error(), "not a file of this directory") {
		t.Errorf("LoadDir followed an index out of its directory: %v", err)
	}
}

// ggufConfig is a shape whose rows are whole blocks of every number format.
func ggufConfig() Config {
	return Config{
		VocabSize: 20, HiddenSize: 256, IntermediateSize: 256, Layers: 1, Heads: 4, KVHeads: 2, HeadDim: 64,
		MaxPositions: 128, RopeTheta: 5000, NormEps: 0.25, BOS: -1,
	}
}

func TestLoadGGUF(t *testing.T) {
	t.Parallel()
	for dtype, round := range rounding {
		want := randomModel(ggufConfig(), 3, false)
		file := ggufOf(want, dtype)
		path := filepath.Join(t.TempDir(), "random.gguf")
		if err := os.WriteFile(path, file.bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := LoadGGUF(path)
		if err != nil {
			t.Fatal(err)
		}
		mustEqualWeights(t, want, got, round, rounding["F32"])
		cfg := want.cfg
		cfg.Name, cfg.BOS, cfg.EOS = "random", 1, []int32{2}
		if diff := cmp.Diff(cfg, got.Config()); diff != "" {
			t.Errorf("%s: config (-want +got):\n%s", dtype, diff)
		}
		g, err := OpenGGUF(path)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		texts, _ := g.Strings("tokenizer.ggml.tokens")
		kinds, _ := g.Ints("tokenizer.ggml.token_type")
		scores, _ := g.Floats("tokenizer.ggml.scores")
		layers, _ := g.Int("llama.block_count")
		theta, _ := g.Float("llama.rope.freq_base")
		arch, _ := g.String("general.architecture")
		if diff := cmp.Diff(
			[]any{[]string{"<s>", "</s>"}, []int64{3, 3}, []float64{0, -1.5}, int64(1), 5000.0, "llama"},
			[]any{texts, kinds, scores, layers, theta, arch}); diff != "" {
			t.Errorf("metadata (-want +got):\n%s", diff)
		}
	}
}

// Quantised tensors are widened block by block, rounded to bfloat16, and their rotary rows put in order.
func TestLoadGGUFQuantised(t *testing.T) {
	t.Parallel()
	for _, f := range ggufFormats {
		if f.elements == 1 {
			continue
		}
		want := randomModel(ggufConfig(), 3, false)
		file := ggufOf(want, "F32")
		r := random{state: 11}
		expect := map[string][]float32{}
		for i := range file.tensors {
			tn := &file.tensors[i]
			if len(tn.shape) != 2 {
				continue
			}
			var raw []byte
			var values []float32
			for range tn.shape[0] * tn.shape[1] / f.elements {
				block := make([]byte, f.bytes)
				for j := range block {
					block[j] = byte(r.next()) &^ 0x40 // as a float16's exponent: below 2, and never infinite
				}
				out := make([]float32, f.elements)
				f.decode(block, out)
				raw, values = append(raw, block...), append(values, out...)
			}
			tn.dtype, tn.data = f.name, raw
			if strings.Contains(tn.name, "attn_q.") || strings.Contains(tn.name, "attn_k.") {
				values = deinterleave(values, tn.shape[0], 64)
			}
			expect[hfName(tn.name)] = values
		}
		path := filepath.Join(t.TempDir(), "quantised.gguf")
		if err := os.WriteFile(path, file.bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := LoadGGUF(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, tn := range hfTensors(got, "F32") {
			if values, ok := expect[tn.name]; ok && !bytes.Equal(encode("BF16", values), encode("BF16", floats(tn.data))) {
				t.Errorf("%s: tensor %s differs", f.name, tn.name)
			}
		}
		if got.embed.bf16 == nil {
			t.Errorf("%s: widened to float32, want bfloat16", f.name)
		}
	}
}

// deinterleave undoes interleave.
func deinterleave(values []float32, rows, dim int) []float32 {
	cols := len(values) / rows
	var out []float32
	for head := 0; head < rows; head += dim {
		for odd := range 2 {
			for i := range dim / 2 {
				out = append(out, values[(head+2*i+odd)*cols:][:cols]...)
			}
		}
	}
	return out
}

// The recording holds random blocks of each format and what gguf-py 0.19.0 makes of them.
func TestDequantiseMatchesReference(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/gguf-blocks.json")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []struct{ Type, Bytes, Values string }
	if err := json.Unmarshal(raw, &blocks); err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks {
		f := ggufFormats[ggufTypeOf(b.Type)]
		src, err := hex.DecodeString(b.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		bits, err := hex.DecodeString(b.Values)
		if err != nil {
			t.Fatal(err)
		}
		want := make([]float32, len(bits)/4)
		for i := range want {
			want[i] = math.Float32frombits(binary.BigEndian.Uint32(bits[4*i:]))
		}
		got := make([]float32, len(want))
		for i := range len(src) / f.bytes {
			f.decode(src[i*f.bytes:][:f.bytes], got[i*f.elements:][:f.elements])
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", b.Type, diff)
		}
	}
}

// A converter writes llama3 rescaling as a factor for each frequency.
func TestLoadGGUFRopeFactors(t *testing.T) {
	t.Parallel()
	m := randomModel(ggufConfig(), 3, false)
	file := ggufOf(m, "F32")
	factors := make([]float32, 32)
	for i := range factors {
		factors[i] = 1 + float32(i)
	}
	file.tensors = append(file.tensors, rawTensor{"rope_freqs.weight", "F32", []int{32}, encode("F32", factors)})
	g, err := parseGGUF(bytes.NewReader(file.bytes()), int64(len(file.bytes())))
	if err != nil {
		t.Fatal(err)
	}
	got, err := g.load()
	if err != nil {
		t.Fatal(err)
	}
	want := ropeFrequencies(&m.cfg)
	for i := range want {
		want[i] /= factors[i]
	}
	if diff := cmp.Diff(want, got.invFreq); diff != "" {
		t.Errorf("frequencies (-want +got):\n%s", diff)
	}
}

func TestLoadGGUFErrors(t *testing.T) {
	t.Parallel()
	f := func(want string, change func(*ggufFile)) {
		t.Helper()
		file := ggufOf(randomModel(ggufConfig(), 3, false), "F32")
		change(file)
		raw := file.bytes()
		g, err := parseGGUF(bytes.NewReader(raw), int64(len(raw)))
		if err == nil {
			_, err = g.load()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("load: %v, want an error with %q", err, want)
		}
	}
	set := func(key string, v any) func(*ggufFile) {
		return func(f *ggufFile) {
			if _, ok := f.meta[key]; !ok {
				f.keys = append(f.keys, key)
			}
			f.meta[key] = v
		}
	}
	f("version 1", func(f *ggufFile) { f.version = 1 })
	f("architecture \"phi3\" is not supported", set("general.architecture", "phi3"))
	f("llama.rope.scaling.type \"yarn\"", set("llama.rope.scaling.type", "yarn"))
	f("expert_count 8", set("llama.expert_count", uint32(8)))
	f("rope.dimension_count 32", set("llama.rope.dimension_count", uint32(32)))
	f("llama.block_count is missing, or not a number", set("llama.block_count", "one"))
	f("general.alignment is 0", set("general.alignment", uint32(0)))
	f("comes twice", func(f *ggufFile) { f.keys = append(f.keys, "general.architecture") })
	f("tensor \"output_norm.weight\" comes twice", func(f *ggufFile) {
		for _, tn := range f.tensors {
			if tn.name == "output_norm.weight" {
				f.tensors = append(f.tensors, tn)
			}
		}
	})
	f("has shape [256], want [20 256]", func(f *ggufFile) {
		for i := range f.tensors {
			if f.tensors[i].name == "output.weight" {
				f.tensors[i].shape = []int{256}
			}
		}
	})
	f("blk.0.attn_q_norm.weight", func(f *ggufFile) {
		f.tensors = append(f.tensors, rawTensor{"blk.0.attn_q_norm.weight", "F32", []int{1}, make([]byte, 4)})
	})

	file := ggufOf(randomModel(ggufConfig(), 3, false), "F32")
	raw := file.bytes()
	at := bytes.Index(raw, []byte("token_embd.weight")) + len("token_embd.weight") + 4 + 16 // its number format
	binary.LittleEndian.PutUint32(raw[at:], 23)
	if g, err := parseGGUF(bytes.NewReader(raw), int64(len(raw))); err != nil {
		t.Error(err)
	} else if _, err = g.load(); err == nil || !strings.Contains(err.Error(), "tensor token_embd.weight: number format type 23 is not supported") {
		t.Errorf("load: %v, want an error about the number format", err)
	}

	whole := ggufOf(randomModel(ggufConfig(), 3, false), "F32").bytes()
	for _, n := range []int{0, 3, 10, 30, 200, len(whole) / 2, len(whole) - 64} {
		if _, err := parseGGUF(bytes.NewReader(whole[:n]), int64(n)); err == nil {
			t.Errorf("a file cut after %d of %d bytes was accepted", n, len(whole))
		}
	}
}
