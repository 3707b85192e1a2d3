package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzParseTokenizer: any tokenizer.json is refused or gives a tokenizer whose ids are in its vocabulary.
func FuzzParseTokenizer(f *testing.F) {
	files, err := filepath.Glob("testdata/*.tokenizer.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, "The river, it's 12  wide\n<|im_end|> é中")
	}
	f.Add([]byte(`{"model":{"vocab":{"a":0,"b":1,"ab":2},"merges":["a b",["a","b"]]},"added_tokens":[{"id":3,"content":"<x>","lstrip":true,"rstrip":true,"single_word":true}],"pre_tokenizer":{"type":"ByteLevel"}}`), "abab <x> a")
	f.Add([]byte(`{"model":{"vocab":{"a":0}},"pre_tokenizer":{"type":"Metaspace"},"decoder":{"type":"Metaspace"}}`), " a a")
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		tok, err := parseTokenizer(data)
		if err != nil {
			return
		}
		ids := tok.EncodePrompt(text)
		for _, id := range ids {
			if id < 0 || int(id) >= tok.VocabSize() {
				t.Fatalf("Encode(%q) has id %d of %d", text, id, tok.VocabSize())
			}
		}
		whole := tok.Decode(ids, true)
		if !utf8.ValidString(whole) {
			t.Fatalf("Decode = %q, not valid UTF-8", whole)
		}
		if got := streamed(tok, ids, false); got != whole {
			t.Fatalf("stream %q, decoded %q", got, whole)
		}
	})
}

// FuzzEncode: byte-level vocabularies lose nothing, whatever the text.
func FuzzEncode(f *testing.F) {
	tiny, _ := Tiny()
	toks := []*Tokenizer{tiny}
	for _, name := range []string{"smollm", "digit-runs", "llama3", "o200k"} {
		toks = append(toks, loadTestTokenizer(f, name))
	}
	for _, c := range readEncodings(f, "smollm.encode.json") {
		f.Add(c.Text)
	}
	f.Add("\xff\xfe <|im_end|>\xe4\xb8")
	f.Fuzz(func(t *testing.T, text string) {
		for _, tok := range toks {
			ids := tok.Encode(text)
			var raw strings.Builder
			for _, id := range ids {
				raw.WriteString(tok.Bytes(id))
			}
			if raw.String() != text {
				t.Fatalf("Encode(%q) stands for %q", text, raw.String())
			}
			if got := tok.Decode(ids, false); utf8.ValidString(text) && got != text {
				t.Fatalf("Decode(Encode(%q)) = %q", text, got)
			}
		}
	})
}

// FuzzRender: whatever a client sends as messages is refused or rendered.
func FuzzRender(f *testing.F) {
	file := readRenderings(f)
	for _, messages := range file.Conversations {
		data, err := json.Marshal(messages)
		if err != nil {
			f.Fatal(err)
		}
		tools, err := json.Marshal(file.Tools)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, tools)
	}
	_, tiny := Tiny()
	templates := []*Template{tiny, loadTestTemplate(f, "thinking-tools.jinja"), loadTestTemplate(f, "agent-macros.jinja")}
	f.Fuzz(func(t *testing.T, messages, tools []byte) {
		var m, d []json.RawMessage
		if json.Unmarshal(messages, &m) != nil || json.Unmarshal(tools, &d) != nil {
			return
		}
		for _, template := range templates {
			text, err := template.Render(m, d, true, nil)
			if err == nil && !utf8.ValidString(text) {
				t.Fatalf("rendered %q, not valid UTF-8", text)
			}
		}
	})
}
