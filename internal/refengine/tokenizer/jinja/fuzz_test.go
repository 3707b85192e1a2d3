package jinja

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzTemplate: any source either fails with a short error or renders, twice the same. It never panics, and never runs
// away: recursion, loops and texts are bounded.
func FuzzTemplate(f *testing.F) {
	data, err := os.ReadFile(filepath.Join("testdata", "snippets.json"))
	if err != nil {
		f.Fatal(err)
	}
	var file struct {
		Variables json.RawMessage `json:"variables"`
		Cases     []struct {
			Source string `json:"source"`
		} `json:"cases"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		f.Fatal(err)
	}
	for _, c := range file.Cases {
		f.Add(c.Source)
	}
	f.Fuzz(func(t *testing.T, source string) {
		if strings.Count(source, "range") > 1 { // nested loops of 100 000: bounded, but slow
			t.Skip()
		}
		template, err := Parse(source)
		if err != nil {
			if len(err.Error()) > 2000+2*len(source) {
				t.Fatalf("error of %d bytes", len(err.Error()))
			}
			return
		}
		render := func() (string, error) {
			variables, err := Decode(file.Variables)
			if err != nil {
				t.Fatal(err)
			}
			vars := make(map[string]any)
			for _, m := range variables.(Object) {
				vars[m.Key] = m.Value
			}
			return template.Execute(vars, snippetTime)
		}
		first, err1 := render()
		second, err2 := render()
		if strings.Contains(source, "random") {
			return
		}
		if first != second || (err1 == nil) != (err2 == nil) {
			t.Fatalf("rendered %q (%v), then %q (%v)", first, err1, second, err2)
		}
	})
}

// FuzzDecode: JSON comes out as encoding/json reads it, and tojson writes it so that it means the same.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"z":1,"a":[true,false,null,"x\u0000\ud83d\ude00<&>\u2028"],"m":{}}`, `[]`, `"\\\"\/\b\f\n\r\t"`, `-0`, `1e400`, `0.10`,
		`12345678901234567890`, `{"a":1,"b":2,"a":3}`, `{"a":}`, `[1,]`, `1 2`, ``, `nul`, `"\ud800"`, "\"\xff\"", `[[[[1]]]]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := Decode(data)
		if valid := json.Valid(data); valid != (err == nil) {
			if valid && strings.Contains(err.Error(), "nested more than") {
				return
			}
			t.Fatalf("Decode(%q): error %v, but json.Valid is %t", data, err, valid)
		}
		if err != nil {
			return
		}
		var b strings.Builder
		if err := writeJSON(&b, v, jsonStyle{indent: -1, item: ", ", key: ": "}, 0); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(unordered(t, data), unordered(t, []byte(b.String()))); diff != "" {
			t.Fatalf("%q was written as %q (-read +written):\n%s", data, b.String(), diff)
		}
	})
}

func unordered(t *testing.T, data []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("decode %q: %v", data, err)
	}
	return v
}
