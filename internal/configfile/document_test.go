package configfile

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/tenant"
)

type inner struct {
	Address string          `yaml:"address"`
	Wait    tenant.Duration `yaml:"wait"`
	Key     Secret          `yaml:"api_key"`
}

type outer struct {
	Listen inner            `yaml:"listen"`
	On     bool             `yaml:"on"`
	Count  int              `yaml:"count"`
	Names  []string         `yaml:"names"`
	List   []inner          `yaml:"list"`
	By     map[string]inner `yaml:"by"`
}

func defaults() outer {
	return outer{Listen: inner{Address: ":1", Wait: tenant.Duration(time.Second)}, On: true, Names: []string{"a", "b"}}
}

func TestDecodeKeepsDefaults(t *testing.T) {
	t.Parallel()
	f := func(text string, change func(*outer)) {
		t.Helper()
		d, err := Parse("x.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		got, want := defaults(), defaults()
		if err := d.Decode(&got); err != nil {
			t.Fatal(err)
		}
		change(&want)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(Secret{})); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
	f("", func(*outer) {})
	f("# nothing but a comment\n", func(*outer) {})
	f("listen: {wait: 0s}\n", func(o *outer) { o.Listen.Wait = 0 }) // zero is not "left out"
	f("listen:\n  address: :8080\n", func(o *outer) { o.Listen.Address = ":8080" })
	f("on: false\nnames: [c]\n", func(o *outer) { o.On, o.Names = false, []string{"c"} })
	f("list:\n  - api_key: x-${A}\n", func(o *outer) { o.List = []inner{{Key: Secret{"x-${A}"}}} })
}

// Every error of a file says where, and shows nothing that could be a secret.
func TestErrors(t *testing.T) {
	t.Parallel()
	f := func(text, want string) {
		t.Helper()
		d, err := Parse("x.yaml", []byte(text))
		if err == nil {
			o := defaults()
			err = d.Decode(&o)
		}
		got := ""
		if err != nil {
			got = err.Error()
		}
		if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
	f("on: true\nlisen: 3\n", `
x.yaml:2:1: unknown field "lisen"
2 | lisen: …
  | ^`)
	f("list:\n  - address: x\n    adress: y\n", `
x.yaml:3:5: unknown field "adress"
3 |     adress: …
  |     ^`)
	f("list:\n  - {address: sk-0123456789, adress: y}\n", `
x.yaml:2:30: unknown field "adress"
2 | …
  | ^`)
	f("listen:\n  wait: 30\n", `
x.yaml:2:9: want a duration such as 30s or 10m, got "30"
2 |   wait: 30
  |         ^`)
	f("listen:\n  api_key: [sk-0123456789]\n", `
x.yaml:2:12: want a text that is not empty, in quotes if it looks like a number
2 |   api_key: …
  |            ^`)
	f("listen:\n  apikey: sk-0123456789\n", `
x.yaml:2:3: unknown field "apikey"
2 |   apikey: …
  |   ^`)
	f("sk-0123456789-abcdefgh-ABCDEFGH: x\n", `
x.yaml:1:1: unknown field (…)
1 | …
  | ^`)
	f("on: yes\n", `
x.yaml:1:5: want true or false, got a text
1 | on: yes
  |     ^`)
	f("count: [1]\n", `
x.yaml:1:8: want a number, got a list
1 | count: …
  |        ^`)
	f("listen: 5\n", `
x.yaml:1:9: int was used where mapping is expected
1 | listen: 5
  |         ^`)
	f("on: true\non: false\n", `
x.yaml:2:1: mapping key "on" already defined at [1:1]
2 | on: …
  | ^`)
	f("listen:\n", `
x.yaml:1:8: empty value: fill it in, or leave the key out
1 | listen:
  |        ^`)
	f("listen: &a {wait: 1s}\n", `
x.yaml:1:9: anchors and aliases are not used here: write the value out
1 | listen: …
  |         ^`)
	f("listen: !!str x\n", `
x.yaml:1:9: tags are not used here
1 | listen: …
  |         ^`)
	f("on: true\n---\non: false\n", `
x.yaml:3:3: a second document begins here; want one
3 | …
  | ^`)
	f("on: \"open\n", `
x.yaml:1:5: could not find end character of double-quoted text
1 | on: …
  |     ^`)
	f("on: true\n listen: x\n", "x.yaml:1:5: mapping value is not allowed in this context\n1 | on: true\n  |     ^")
	f(strings.Repeat("#\n", maxFileBytes/2)+"#\n", fmt.Sprintf("x.yaml: larger than %d bytes", maxFileBytes))
	f("\xff\xfe: 1\n", "x.yaml:1:1: unknown field (…)\n1 | …\n  | ^")
}

// What only the whole configuration can tell gets the place of the value, or of what is around it.
func TestFail(t *testing.T) {
	t.Parallel()
	d, err := Parse("x.yaml", []byte(`listen:
  address: here
list:
  - address: one
  - api_key: "sk-0123"
    wait: 3s
by:
  a.b: {wait: 1s}
  a: {wait: 2s}
`))
	if err != nil {
		t.Fatal(err)
	}
	f := func(path, want string) {
		t.Helper()
		if diff := cmp.Diff("x.yaml"+want, d.Fail(path, "wrong").Error()); diff != "" {
			t.Errorf("Fail(%q) (-want +got):\n%s", path, diff)
		}
	}
	f("listen.address", ":2:12: listen.address: wrong\n2 |   address: here\n  |            ^")
	f("listen.wait", ":1:1: listen.wait: wrong\n1 | listen:\n  | ^")
	f("list[1].api_key", ":5:14: list[1].api_key: wrong\n5 |   - api_key: …\n  |              ^")
	f("list[1].address", ":5:5: list[1].address: wrong\n5 |   - api_key: …\n  |     ^")
	f("list[7].address", ":3:1: list[7].address: wrong\n3 | list:\n  | ^")
	f("by.a.b.wait", ":8:15: by.a.b.wait: wrong\n8 | …\n  | ^") // the key that is there wins
	f("by.a.wait", ":9:13: by.a.wait: wrong\n9 | …\n  | ^")
	f("on", ": on: wrong")
}

func TestSecret(t *testing.T) {
	t.Parallel()
	env := map[string]string{"A": "one", "B": "two", "EMPTY": ""}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	f := func(text, want, wantErr string) {
		t.Helper()
		got, err := NewSecret(text).Reveal(lookup)
		gotErr := ""
		if err != nil {
			gotErr = err.Error()
		}
		if diff := cmp.Diff([]string{want, wantErr}, []string{got, gotErr}); diff != "" {
			t.Errorf("Reveal(%q) (-want +got):\n%s", text, diff)
		}
	}
	f("plain", "plain", "")
	f("${A}", "one", "")
	f("${A}-${B}$", "one-two$", "")
	f("$A $$ {B}", "$A $$ {B}", "")
	f("${C}", "", "the environment variable C is not set")
	f("${EMPTY}", "", "the environment variable EMPTY is empty")
	f("${a b}", "", "${…} does not name an environment variable: want letters, digits and _")
	s := NewSecret("sk-0123")
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "key", s, "in", struct{ K Secret }{s})
	shown := fmt.Sprintf("%s %v %+v %#v %d %q %x", s, s, struct{ K Secret }{s}, s, s, s, &s) + log.String()
	if strings.Contains(shown, "0123") {
		t.Errorf("the secret shows: %s", shown)
	}
	if !s.Literal() || NewSecret("${A}").Literal() || (Secret{}).Literal() {
		t.Error("Literal does not tell a secret from the name of a variable")
	}
}

// Whatever a file holds, reading it ends with a value or an error that has a place, and does not show a long word
// of the file.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"", "on: true\n", "listen: {address: a, wait: 3s}\n", "list:\n  - api_key: ${A}\n", "a: *b\n", "a: &b c\n", "- - - -\n",
		"on: [}\n", "? x\n: y\n", "\"\\ud800\": 1\n", "<<: {a: 1}\n", "names: [a, 'b', \"c\"]\n", "by: {x: {wait: 1}}\n", "---\n...\n---\na: 1\n",
		"listen: |\n  text\n", "count: 0x7fffffffffffffff1\n", "\t", "on: !!binary aaaa\n",
	} {
		f.Add(s)
	}
	const canary = "canary0123456789canary0123456789canary"
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ReplaceAll(text, "canary", "") + "\n" + canary + ": x\n"
		d, err := Parse("x.yaml", []byte(text))
		if err == nil {
			o := defaults()
			err = d.Decode(&o)
			_ = d.Fail("list[0].address", "wrong").Error()
			_ = d.Fail("by.x", "wrong").Error()
		}
		if err != nil && strings.Contains(err.Error(), canary) {
			t.Errorf("an error shows what may be a secret: %v", err)
		}
	})
}
