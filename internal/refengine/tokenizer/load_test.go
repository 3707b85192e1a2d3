package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// edited returns a tokenizer.json of testdata with one member replaced, given by its path.
func edited(t *testing.T, name string, value string, path ...string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]any
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	at := file
	for _, key := range path[:len(path)-1] {
		at = at[key].(map[string]any)
	}
	at[path[len(path)-1]] = json.RawMessage(value)
	out, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestUnsupportedPartsAreNamed: what this package does not know is refused with its name, never ignored.
func TestUnsupportedPartsAreNamed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		base, value, want string
		path              []string
	}{
		{"smollm", `"WordPiece"`, `model of type "WordPiece"`, []string{"model", "type"}},
		{"smollm", `0.1`, "dropout", []string{"model", "dropout"}},
		{"smollm", `"##"`, `affix "##"`, []string{"model", "continuing_subword_prefix"}},
		{"smollm", `"</w>"`, `affix "</w>"`, []string{"model", "end_of_word_suffix"}},
		{"smollm", `{}`, "no vocabulary", []string{"model", "vocab"}},
		{"smollm", `{"a":-1}`, `token "a" has id -1`, []string{"model", "vocab"}},
		{"smollm", `{"a":99999999}`, `token "a" has id 99999999`, []string{"model", "vocab"}},
		{"smollm", `[["a","nope"]]`, `merge 0 joins "a" and "nope"`, []string{"model", "merges"}},
		{"smollm", `["ab"]`, `merge 0 is "ab"`, []string{"model", "merges"}},
		{"smollm", `[5]`, `merge 0 is not two tokens`, []string{"model", "merges"}},
		{"smollm", `{"type":"Lowercase"}`, `normalizer "Lowercase"`, []string{"normalizer"}},
		{"smollm", `{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"StripAccents"}]}`, `normalizer "StripAccents"`, []string{"normalizer"}},
		{"llama2", `{"type":"Replace","pattern":{"String":"a"},"content":"b"}`, `Replace of {"String":"a"} by "b"`, []string{"normalizer"}},
		{"llama2", `{"type":"Prepend","prepend":"x"}`, `Prepend of "x"`, []string{"normalizer"}},
		{"smollm", `{"type":"Whitespace"}`, `pre-tokenizer "Whitespace"`, []string{"pre_tokenizer"}},
		{"smollm", `{"type":"Split","pattern":{"Regex":"\\w+|x"},"behavior":"Isolated","invert":false}`, `unknown pattern "\\w+|x"`, []string{"pre_tokenizer"}},
		{"smollm", `{"type":"Split","pattern":{"Regex":"\\p{N}"},"behavior":"MergedWithNext","invert":false}`, `behavior "MergedWithNext"`, []string{"pre_tokenizer"}},
		{"smollm", `{"type":"Digits","individual_digits":true}`, "no ByteLevel step", []string{"pre_tokenizer"}},
		{"smollm", `{"type":"Metaspace","replacement":"_"}`, `replacement "_"`, []string{"pre_tokenizer"}},
		{"smollm", `{"type":"Metaspace","replacement":"▁","prepend_scheme":"sometimes"}`, `prepend_scheme "sometimes"`, []string{"pre_tokenizer"}},
		{"smollm", `{"type":"WordPiece"}`, `decoder "WordPiece"`, []string{"decoder"}},
		{"smollm", `{"type":"BertProcessing"}`, `post-processor "BertProcessing"`, []string{"post_processor"}},
		{"smollm", `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<x>","type_id":0}}],"special_tokens":{}}`, `does not say what "<x>" is`, []string{"post_processor"}},
		{"smollm", `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<x>","type_id":0}}],"special_tokens":{"<x>":{"ids":[123456]}}}`, `id 123456`, []string{"post_processor"}},
		{"smollm", `[{"id":3000000,"content":"x"}]`, `added token "x" has id 3000000`, []string{"added_tokens"}},
		{"smollm", `[{"id":3,"content":""}]`, `added token with id 3 is empty`, []string{"added_tokens"}},
		{"llama2", `"<nope>"`, `unknown token "<nope>"`, []string{"model", "unk_token"}},
	} {
		_, err := parseTokenizer(edited(t, c.base, c.value, c.path...))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s = %s: error %v, want one with %q", strings.Join(c.path, "."), c.value, err, c.want)
		}
	}
}

// TestKnownPatterns: published files write one pattern in several ways.
func TestKnownPatterns(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{
		patternGPT2, patternLlama3, patternQwen2, patternQwen35, patternO200k,
		strings.ReplaceAll(patternLlama3, `(?i:'s|'t|'re|'ve|'m|'ll|'d)`, `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])`),
	} {
		if _, ok := knownPattern(pattern); !ok {
			t.Errorf("pattern %q is unknown", pattern)
		}
	}
}

func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLoadDir(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/llama3.tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	vocabulary := string(data)
	hello := []json.RawMessage{json.RawMessage(`{"role":"user","content":"hi"}`)}
	for _, c := range []struct {
		name  string
		files map[string]string
		eos   []int32
		text  string // of the conversation; "" if there is no template
	}{
		{
			name:  "tokenizer only",
			files: map[string]string{},
		},
		{
			name: "template in the configuration",
			files: map[string]string{
				"tokenizer_config.json": `{"bos_token":"<|im_start|>","eos_token":{"content":"<|im_end|>","lstrip":false},"chat_template":"{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}"}`,
			},
			eos:  []int32{1},
			text: "<|im_start|>hi<|im_end|>",
		},
		{
			name: "named templates",
			files: map[string]string{
				"tokenizer_config.json": `{"eos_token":null,"chat_template":[{"name":"tool_use","template":"T"},{"name":"default","template":"D{{ messages[0].content }}"}]}`,
				"config.json":           `{"eos_token_id":2}`,
			},
			eos:  []int32{2},
			text: "Dhi",
		},
		{
			name: "a file of its own goes first",
			files: map[string]string{
				"tokenizer_config.json":  `{"eos_token":"<|im_end|>","chat_template":"wrong"}`,
				"chat_template.jinja":    "{{ messages[0].role }}\n",
				"generation_config.json": `{"eos_token_id":[2,1,0]}`,
				"config.json":            `{"eos_token_id":[5]}`,
			},
			eos:  []int32{1, 2, 0},
			text: "user",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.files["tokenizer.json"] = vocabulary
			tok, template, err := LoadDir(writeFiles(t, c.files))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.eos, tok.EOS()); diff != "" {
				t.Errorf("EOS (-want +got):\n%s", diff)
			}
			if template == nil {
				if c.text != "" {
					t.Errorf("no template, want one that renders %q", c.text)
				}
				return
			}
			got, err := template.Render(hello, nil, false, nil)
			if err != nil || got != c.text {
				t.Errorf("rendered %q (%v), want %q", got, err, c.text)
			}
		})
	}
}

func TestLoadDirErrors(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/llama3.tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	vocabulary := string(data)
	for _, c := range []struct {
		files map[string]string
		want  string
	}{
		{map[string]string{}, "tokenizer.json"},
		{map[string]string{"tokenizer.json": "{"}, "tokenizer.json"},
		{map[string]string{"tokenizer.json": vocabulary, "tokenizer_config.json": "{"}, "tokenizer_config.json"},
		{map[string]string{"tokenizer.json": vocabulary, "tokenizer_config.json": `{"chat_template":5}`}, "neither a text nor a list"},
		{map[string]string{"tokenizer.json": vocabulary, "tokenizer_config.json": `{"chat_template":[{"name":"x","template":"y"}]}`}, `no template called "default"`},
		{map[string]string{"tokenizer.json": vocabulary, "chat_template.jinja": "a\n{{ b"}, "line 2: tag is not closed"},
		{map[string]string{"tokenizer.json": vocabulary, "generation_config.json": "x"}, "generation_config.json"},
	} {
		_, _, err := LoadDir(writeFiles(t, c.files))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("LoadDir: error %v, want one with %q", err, c.want)
		}
	}
}

func TestLookups(t *testing.T) {
	t.Parallel()
	tok := loadTestTokenizer(t, "qwen2")
	id, ok := tok.ID("Ġthe")
	if !ok || tok.Token(id) != "Ġthe" || tok.Bytes(id) != " the" || tok.Special(id) {
		t.Errorf(`"Ġthe" is id %d (%t): token %q, bytes %q, special %t`, id, ok, tok.Token(id), tok.Bytes(id), tok.Special(id))
	}
	if _, ok := tok.ID("nope!"); ok {
		t.Error("ID found a token that does not exist")
	}
	end, _ := tok.ID("<|im_end|>")
	think, _ := tok.ID("<think>")
	if !tok.Special(end) || tok.Special(think) {
		t.Errorf("special: <|im_end|> %t, <think> %t, want true, false", tok.Special(end), tok.Special(think))
	}
	for _, id := range []int32{-1, int32(tok.VocabSize())} {
		if tok.Token(id) != "" || tok.Bytes(id) != "" || tok.Special(id) || tok.Decode([]int32{id}, false) != "" {
			t.Errorf("id %d outside the vocabulary stands for something", id)
		}
	}
}
