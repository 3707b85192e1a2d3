package configdoc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// module writes the files of a module and returns its directory.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	files["go.mod"] = "module example.test/m\n"
	for name, text := range files {
		file := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // a test's
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	root := module(t, map[string]string{
		"cmd/a.go": `package a

import other "example.test/m/lib"

// file is what is read. Keys are strict.
//
// A second paragraph.
type file struct {
	// Listen is where. It has its own comment; see ReadTimeout.
	Listen *other.Listen ` + "`yaml:\"listen\"`" + `
	// Again is the same.
	Again other.Listen ` + "`yaml:\"again\"`" + `
	// ReadTimeout bounds reading, counted in tarik_x_total{why="late"}. ${HOME} is a variable. Default: 3s.
	ReadTimeout other.Duration ` + "`yaml:\"read_timeout\"`" + `
	// By is by name.
	By named ` + "`yaml:\"by\"`" + `
}

type named map[string]other.Entry
`,
		"lib/b.go": `package lib

type Duration int64

// Listen is an address, ` + strings.Repeat("word ", 30) + `end.
type Listen struct {
	// Address is a text. The rest is up to Allow.
	Address string ` + "`yaml:\"address\"`" + `
	// Allow lists who.
	Allow []string ` + "`yaml:\"allow\"`" + `
	// Entries are many.
	Entries []Entry ` + "`yaml:\"entries\"`" + `
}

// Entry is one.
type Entry struct {
	// On turns it on.
	On *bool ` + "`yaml:\"on\"`" + `
}
`,
	})
	got, err := Markdown(root, "cmd", "file")
	if err != nil {
		t.Fatal(err)
	}
	words := strings.TrimSpace(strings.Repeat("word ", 30))
	want := `# Configuration file

This is what is read. Keys are strict.

A second paragraph.

| key | |
|--|--|
| [` + "`listen`](#listen) | is where |" + `
| [` + "`again`](#again) | is the same |" + `
| [` + "`read_timeout`](#read_timeout) | bounds reading, counted in `tarik_x_total{why=\"late\"}` |" + `
| [` + "`by`](#by) | is by name |" + `

## listen

` + "`listen` is where. It has its own comment; see `read_timeout`." + `

It is an address, ` + words[:len("word ")*20-1] + `
` + words[len("word ")*20:] + ` end.

* ` + "**`address`** (text) is a text. The rest is up to `allow`." + `
* ` + "**`allow`** (list of texts) lists who." + `
* ` + "**`entries`** ([list of sections](#listenentries)) are many." + `

### listen.entries[]

It is one.

* ` + "**`on`** (true or false) turns it on." + `

## again

` + "`again` is the same." + `

The keys of this section are those of [` + "`listen`](#listen)." + `

## read_timeout

` + "**`read_timeout`** (duration) bounds reading, counted in `tarik_x_total{why=\"late\"}`. `${HOME}` is a variable." + `
Default: 3s.

## by

` + "`by` is by name." + `

The keys of this mapping of a name to section are those of [` + "`listen.entries[]`](#listenentries)." + `
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What nobody has explained must not be a key.
func TestMarkdownErrors(t *testing.T) {
	t.Parallel()
	f := func(fields, want string) {
		t.Helper()
		root := module(t, map[string]string{"p/a.go": "package p\n\n// file is it.\ntype file struct {\n" + fields + "\n}\n"})
		_, err := Markdown(root, "p", "file")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", fields, err, want)
		}
	}
	f("A string `yaml:\"a\"`", "file.A: no comment")
	f("// A is a.\nA string", "want one name and a yaml tag")
	f("// A is a.\nA string `json:\"a\"`", "file.A: no yaml tag")
	f("// A is a.\nA, B string `yaml:\"a\"`", "want one name and a yaml tag")
	f("// A is a.\nA chan int `yaml:\"a\"`", "a type that has no word")
	f("// A is a.\nA complex64 `yaml:\"a\"`", "the unknown type complex64")
	f("// A is a.\nA other.T `yaml:\"a\"`", "a type that has no word")
	if _, err := Markdown(module(t, map[string]string{}), "p", "file"); err == nil {
		t.Error("a package that is not there is described")
	}
}
