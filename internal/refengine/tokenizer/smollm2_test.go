package tokenizer

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/refengine/model"
)

var _ Metadata = (*model.GGUF)(nil)

// smollm2Cases is a recording of the reference implementation with SmolLM2-135M-Instruct: chats, how
// they are rendered and encoded, and what greedy decoding said.
type smollm2Cases struct {
	Cases []struct {
		Messages []json.RawMessage `json:"messages"`
		Rendered string            `json:"rendered"`
		Prompt   []int32           `json:"prompt_token_ids"`
		Reply    []int32           `json:"token_ids"`
		Text     string            `json:"text"`
	} `json:"cases"`
}

// TestSmolLM2Directory runs with TARIK_SMOLLM2_DIR, a model directory in the layout of Hugging Face.
func TestSmolLM2Directory(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("TARIK_SMOLLM2_DIR")
	if dir == "" {
		t.Skip("TARIK_SMOLLM2_DIR is not set")
	}
	tok, template, err := LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int32{2}, tok.EOS()); diff != "" {
		t.Errorf("EOS (-want +got):\n%s", diff)
	}
	checkSmolLM2Chats(t, tok, template)
	checkEncodings(t, tok, readEncodings(t, "smollm2-encode.json"))
}

// TestSmolLM2GGUF runs with TARIK_SMOLLM2_GGUF, a GGUF file of the same model.
func TestSmolLM2GGUF(t *testing.T) {
	t.Parallel()
	path := os.Getenv("TARIK_SMOLLM2_GGUF")
	if path == "" {
		t.Skip("TARIK_SMOLLM2_GGUF is not set")
	}
	file, err := model.OpenGGUF(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	tok, template, err := FromGGUF(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int32{2}, tok.EOS()); diff != "" {
		t.Errorf("EOS (-want +got):\n%s", diff)
	}
	checkSmolLM2Chats(t, tok, template)
}

func checkSmolLM2Chats(t *testing.T, tok *Tokenizer, template *Template) {
	t.Helper()
	data, err := os.ReadFile("../../../testdata/smollm2-greedy.json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded smollm2Cases
	if err := json.Unmarshal(data, &recorded); err != nil {
		t.Fatal(err)
	}
	for _, c := range recorded.Cases {
		text, err := template.Render(c.Messages, nil, true, nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.Rendered, text); diff != "" {
			t.Errorf("rendered (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(c.Prompt, tok.Encode(text)); diff != "" {
			t.Errorf("prompt ids of %q (-want +got):\n%s", text, diff)
		}
		if got := tok.Decode(c.Reply, false); got != c.Text {
			t.Errorf("reply = %q, want %q", got, c.Text)
		}
		if got := streamed(tok, c.Reply, true); got != c.Text {
			t.Errorf("streamed reply = %q, want %q", got, c.Text)
		}
	}
}
