package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// encoding is one case of a *.encode.json file, which testdata/make_encodings.py writes with the
// reference library. What equals the text, or the ids, is left out.
type encoding struct {
	Text    string  `json:"text"`
	IDs     []int32 `json:"ids"`
	Prompt  []int32 `json:"prompt"`  // with the post-processor; missing: as ids
	Decoded *string `json:"decoded"` // with special tokens; missing: as text
	Visible *string `json:"visible"` // without; missing: as decoded
}

func readEncodings(t testing.TB, name string) []encoding {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var cases []encoding
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	for i := range cases {
		c := &cases[i]
		if c.Prompt == nil {
			c.Prompt = c.IDs
		}
		if c.Decoded == nil {
			c.Decoded = &c.Text
		}
		if c.Visible == nil {
			c.Visible = c.Decoded
		}
	}
	return cases
}

func loadTestTokenizer(t testing.TB, name string) *Tokenizer {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	tok, err := parseTokenizer(data)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestReferenceLibrary compares small vocabularies of every supported kind with the reference library, on texts
// chosen to be hard to split.
func TestReferenceLibrary(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.tokenizer.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tokenizers in testdata (%v)", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".tokenizer.json")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkEncodings(t, loadTestTokenizer(t, name), readEncodings(t, name+".encode.json"))
		})
	}
}

func checkEncodings(t *testing.T, tok *Tokenizer, cases []encoding) {
	t.Helper()
	for _, c := range cases {
		ids := append([]int32{}, tok.Encode(c.Text)...)
		if diff := cmp.Diff(c.IDs, ids); diff != "" {
			t.Errorf("Encode(%q) (-want +got):\n%s", c.Text, diff)
		}
		if diff := cmp.Diff(c.Prompt, append([]int32{}, tok.EncodePrompt(c.Text)...)); diff != "" {
			t.Errorf("EncodePrompt(%q) (-want +got):\n%s", c.Text, diff)
		}
		if got := tok.Decode(c.IDs, false); got != *c.Decoded {
			t.Errorf("Decode of %q = %q, want %q", c.Text, got, *c.Decoded)
		}
		if got := tok.Decode(c.IDs, true); got != *c.Visible {
			t.Errorf("Decode of %q without special tokens = %q, want %q", c.Text, got, *c.Visible)
		}
		if got := streamed(tok, c.IDs, false); got != *c.Visible {
			t.Errorf("stream of %q = %q, want %q", c.Text, got, *c.Visible)
		}
	}
}

// streamed decodes ids one by one.
func streamed(tok *Tokenizer, ids []int32, keepSpecial bool) string {
	s := tok.NewStream()
	s.KeepSpecial = keepSpecial
	var b strings.Builder
	for _, id := range ids {
		b.WriteString(s.Push(id))
	}
	b.WriteString(s.Flush())
	return b.String()
}
