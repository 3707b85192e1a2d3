package tokenizer

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// metadata is a GGUF file's key-value part in memory.
type metadata map[string]any

var _ Metadata = metadata(nil)

func (m metadata) String(key string) (string, bool)    { return get[string](m, key) }
func (m metadata) Int(key string) (int64, bool)        { return get[int64](m, key) }
func (m metadata) Strings(key string) ([]string, bool) { return get[[]string](m, key) }
func (m metadata) Ints(key string) ([]int64, bool)     { return get[[]int64](m, key) }

func get[T any](m metadata, key string) (T, bool) {
	v, ok := m["tokenizer."+key[len("tokenizer."):]].(T)
	return v, ok
}

// ggufOf writes a tokenizer.json of testdata as a GGUF file would hold it.
func ggufOf(t *testing.T, name, pre string) metadata {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name + ".tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Model struct {
			Vocab  map[string]int32 `json:"vocab"`
			Merges [][2]string      `json:"merges"`
		} `json:"model"`
		Added []struct {
			ID      int32  `json:"id"`
			Content string `json:"content"`
			Special bool   `json:"special"`
		} `json:"added_tokens"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	size := len(file.Model.Vocab)
	for _, tok := range file.Added {
		size = max(size, int(tok.ID)+1)
	}
	tokens, kinds := make([]string, size), make([]int64, size)
	for token, id := range file.Model.Vocab {
		tokens[id], kinds[id] = token, 1
	}
	for _, tok := range file.Added {
		tokens[tok.ID], kinds[tok.ID] = tok.Content, ggufUserDefined
		if tok.Special {
			kinds[tok.ID] = ggufControl
		}
	}
	var merges []string
	for _, m := range file.Model.Merges {
		merges = append(merges, m[0]+" "+m[1])
	}
	return metadata{
		"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre,
		"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": merges,
		"tokenizer.ggml.bos_token_id": int64(0), "tokenizer.ggml.eos_token_id": int64(1),
		"tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
	}
}

// TestGGUF: the same vocabulary in the other format encodes alike.
func TestGGUF(t *testing.T) {
	t.Parallel()
	for name, pre := range map[string]string{"smollm": "smollm", "llama3": "llama-bpe", "o200k": "gpt-4o"} {
		file := ggufOf(t, name, pre)
		tok, template, err := FromGGUF(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]int32{1}, tok.EOS()); diff != "" {
			t.Errorf("%s: EOS (-want +got):\n%s", name, diff)
		}
		cases := readEncodings(t, name+".encode.json")
		for i := range cases {
			cases[i].Prompt = cases[i].IDs // the file does not ask for a first token
		}
		checkEncodings(t, tok, cases)
		text, err := template.Render([]json.RawMessage{json.RawMessage(`{"role":"user","content":"hi"}`)}, nil, false, nil)
		if want := tok.Token(0) + "hi" + tok.Token(1); err != nil || text != want {
			t.Errorf("%s: rendered %q (%v), want %q", name, text, err, want)
		}
	}
}

func TestGGUFBeginOfText(t *testing.T) {
	t.Parallel()
	file := ggufOf(t, "smollm", "default")
	file["tokenizer.ggml.add_bos_token"] = int64(1)
	delete(file, "tokenizer.chat_template")
	tok, template, err := FromGGUF(file)
	if err != nil || template != nil {
		t.Fatalf("FromGGUF: template %v, error %v, want neither", template, err)
	}
	want := append([]int32{0}, tok.Encode("the river")...)
	if diff := cmp.Diff(want, tok.EncodePrompt("the river")); diff != "" {
		t.Errorf("prompt (-want +got):\n%s", diff)
	}
}

func TestGGUFErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key   string
		value any
		want  string
	}{
		{"tokenizer.ggml.model", "llama", `model "llama"`},
		{"tokenizer.ggml.pre", "chatglm-bpe", `pre-tokenizer "chatglm-bpe"`},
		{"tokenizer.ggml.tokens", []string{}, "vocabulary of 0 tokens"},
		{"tokenizer.ggml.token_type", []int64{1}, "1 token types"},
		{"tokenizer.ggml.merges", []string{"ab"}, `merge 0 is "ab"`},
		{"tokenizer.ggml.merges", []string{"a nope!"}, `merge 0 joins "a" and "nope!"`},
		{"tokenizer.chat_template", "{% if %}", "chat template"},
	} {
		file := ggufOf(t, "smollm", "smollm")
		file[c.key] = c.value
		_, _, err := FromGGUF(file)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s = %v: error %v, want one with %q", c.key, c.value, err, c.want)
		}
	}
	file := ggufOf(t, "smollm", "smollm")
	file["tokenizer.ggml.add_bos_token"] = int64(1)
	file["tokenizer.ggml.bos_token_id"] = int64(-1)
	if _, _, err := FromGGUF(file); err == nil {
		t.Error("add_bos_token without a bos_token_id was accepted")
	}
}
