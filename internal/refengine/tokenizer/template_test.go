package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// renderings are conversations and how Jinja2 renders them; see testdata/make_renderings.py.
type renderings struct {
	Conversations map[string][]json.RawMessage `json:"conversations"`
	Tools         []json.RawMessage            `json:"tools"`
	Runs          []struct {
		AddGenerationPrompt bool                       `json:"add_generation_prompt"`
		Tools               bool                       `json:"tools"`
		Kwargs              map[string]json.RawMessage `json:"kwargs"`
	} `json:"runs"`
	Cases []struct {
		Template     string  `json:"template"`
		Conversation string  `json:"conversation"`
		Run          int     `json:"run"`
		Want         *string `json:"want"`
		Error        string  `json:"error"`
	} `json:"cases"`
}

func readRenderings(t testing.TB) renderings {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "renderings.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file renderings
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	return file
}

func loadTestTemplate(t testing.TB, name string) *Template {
	t.Helper()
	source := []byte(tinyTemplate)
	var err error
	if name != "tiny.jinja" {
		if source, err = os.ReadFile(filepath.Join("testdata", "templates", name)); err != nil {
			t.Fatal(err)
		}
	}
	template, err := NewTemplate(string(source))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	template.Now = snippetTime
	template.setTokens(tokenizerConfig{BOS: "<s>", EOS: "</s>"})
	return template
}

// TestRenderings renders whole conversations with templates written in the manner of well-known models and compares
// the text with Jinja2's. All cases of one template share one Template and run at the same time.
func TestRenderings(t *testing.T) {
	t.Parallel()
	file := readRenderings(t)
	templates := make(map[string]*Template)
	for _, c := range file.Cases {
		if templates[c.Template] == nil {
			templates[c.Template] = loadTestTemplate(t, c.Template)
		}
		template := templates[c.Template]
		t.Run(fmt.Sprintf("%s/%s/%d", c.Template, c.Conversation, c.Run), func(t *testing.T) {
			t.Parallel()
			run := file.Runs[c.Run]
			var tools []json.RawMessage
			if run.Tools {
				tools = file.Tools
			}
			kwargs := make(map[string]any)
			for name, value := range run.Kwargs {
				kwargs[name] = value
			}
			got, err := template.Render(file.Conversations[c.Conversation], tools, run.AddGenerationPrompt, kwargs)
			if c.Want == nil {
				if err == nil {
					t.Fatalf("rendered %q, want an error (%s)", got, c.Error)
				}
				var raised *TemplateError
				if errors.As(err, &raised) && raised.Message != c.Error {
					t.Errorf("raised %q, want %q", raised.Message, c.Error)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(*c.Want, got); diff != "" {
				t.Errorf("text (-want +got):\n%s", diff)
			}
		})
	}
}

// snippetTime is the clock that testdata/make_renderings.py uses.
func snippetTime() time.Time { return time.Date(2026, 3, 7, 14, 5, 9, 0, time.UTC) }
