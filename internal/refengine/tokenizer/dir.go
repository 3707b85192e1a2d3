package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// tokenizerConfig is what tokenizer_config.json adds to tokenizer.json.
type tokenizerConfig struct {
	BOS          specialName     `json:"bos_token"`
	EOS          specialName     `json:"eos_token"`
	Pad          specialName     `json:"pad_token"`
	Unknown      specialName     `json:"unk_token"`
	ChatTemplate json.RawMessage `json:"chat_template"` // text, or a list of named texts
}

// specialName is a token by its text, which files write as a string or as an object with "content".
type specialName string

func (n *specialName) UnmarshalJSON(data []byte) error {
	var text *string
	if json.Unmarshal(data, &text) == nil {
		if text != nil {
			*n = specialName(*text)
		}
		return nil
	}
	var token struct {
		Content string `json:"content"`
	}
	if err := json.Unmarshal(data, &token); err != nil {
		return err
	}
	*n = specialName(token.Content)
	return nil
}

// LoadDir reads the tokenizer and the chat template of a model directory in the layout of Hugging
// Face: tokenizer.json, and if there are any tokenizer_config.json, chat_template.jinja,
// generation_config.json and config.json. The Template is nil if the model has none.
func LoadDir(dir string) (*Tokenizer, *Template, error) {
	data, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		return nil, nil, fmt.Errorf("load tokenizer: %w", err)
	}
	t, err := parseTokenizer(data)
	if err != nil {
		return nil, nil, fmt.Errorf("load tokenizer %s: %w", filepath.Join(dir, "tokenizer.json"), err)
	}
	var conf tokenizerConfig
	if err := readOptional(dir, "tokenizer_config.json", &conf); err != nil {
		return nil, nil, err
	}
	if err := t.loadEOS(dir, string(conf.EOS)); err != nil {
		return nil, nil, err
	}
	src, err := templateSource(dir, conf.ChatTemplate)
	if err != nil || src == "" {
		return t, nil, err
	}
	template, err := NewTemplate(src)
	if err != nil {
		return nil, nil, fmt.Errorf("load chat template of %s: %w", dir, err)
	}
	template.setTokens(conf)
	return t, template, nil
}

// setTokens gives the template the names of the model's special tokens.
func (t *Template) setTokens(conf tokenizerConfig) {
	t.variables = make(map[string]any)
	for name, text := range map[string]specialName{
		"bos_token": conf.BOS, "eos_token": conf.EOS, "pad_token": conf.Pad, "unk_token": conf.Unknown,
	} {
		if text != "" {
			t.variables[name] = string(text)
		}
	}
}

// readOptional decodes a file of the directory, if it exists.
func readOptional(dir, name string, into any) error {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		return fmt.Errorf("load %s: %w", filepath.Join(dir, name), err)
	}
	return nil
}

// loadEOS collects the ids that end a reply: the tokenizer's own, then those that the generation
// settings add, or the model's if there are none of either.
func (t *Tokenizer) loadEOS(dir, name string) error {
	if id, ok := t.index[name]; ok {
		t.eos = append(t.eos, id)
	}
	for _, file := range []string{"generation_config.json", "config.json"} {
		var conf struct {
			EOS json.RawMessage `json:"eos_token_id"`
		}
		if err := readOptional(dir, file, &conf); err != nil {
			return err
		}
		var one int32
		var many []int32
		if json.Unmarshal(conf.EOS, &many) != nil {
			many = nil
			if json.Unmarshal(conf.EOS, &one) == nil && string(conf.EOS) != "null" {
				many = []int32{one}
			}
		}
		for _, id := range many {
			if t.valid(id) && !slices.Contains(t.eos, id) {
				t.eos = append(t.eos, id)
			}
		}
		if len(t.eos) > 0 && file == "generation_config.json" {
			break
		}
	}
	return nil
}

// templateSource returns the template of a model directory, "" if it has none. Its own file goes
// before the configuration; of several named templates the one called "default" counts.
func templateSource(dir string, config json.RawMessage) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "chat_template.jinja"))
	if err == nil {
		return string(data), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("load chat template: %w", err)
	}
	if len(config) == 0 || string(config) == "null" {
		return "", nil
	}
	var text string
	if json.Unmarshal(config, &text) == nil {
		return text, nil
	}
	var named []struct {
		Name     string `json:"name"`
		Template string `json:"template"`
	}
	if err := json.Unmarshal(config, &named); err != nil {
		return "", fmt.Errorf("load chat template: chat_template in tokenizer_config.json is neither a text nor a list")
	}
	for _, n := range named {
		if n.Name == "default" {
			return n.Template, nil
		}
	}
	return "", errors.New(`load chat template: tokenizer_config.json has no template called "default"`)
}
