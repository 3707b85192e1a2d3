package jinja

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// snippetTime is the clock that the testdata was made with.
func snippetTime() time.Time { return time.Date(2026, 3, 7, 14, 5, 9, 0, time.UTC) }

// TestJinjaSnippets compares pieces of template with what Jinja2 makes of them, errors included.
func TestJinjaSnippets(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join("testdata", "snippets.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Variables map[string]json.RawMessage `json:"variables"`
		Cases     []struct {
			Source string  `json:"source"`
			Want   *string `json:"want"`
			Error  string  `json:"error"`
			Syntax string  `json:"syntax"`
		} `json:"cases"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	for _, c := range file.Cases {
		template, err := Parse(c.Source)
		if err != nil {
			if c.Want != nil {
				t.Errorf("Parse(%q): %v", c.Source, err)
			}
			continue
		}
		vars := make(map[string]any)
		for name, raw := range file.Variables {
			if vars[name], err = Decode(raw); err != nil {
				t.Fatal(err)
			}
		}
		got, err := template.Execute(vars, snippetTime)
		if c.Want == nil {
			if err == nil {
				t.Errorf("%q rendered %q, want an error (%s)", c.Source, got, c.Error+c.Syntax)
			}
			var raised *RaisedError
			if errors.As(err, &raised) && raised.Message != c.Error {
				t.Errorf("%q raised %q, want %q", c.Source, raised.Message, c.Error)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v, want %q", c.Source, err, *c.Want)
			continue
		}
		if diff := cmp.Diff(*c.Want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.Source, diff)
		}
	}
}
