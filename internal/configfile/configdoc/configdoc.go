// Package configdoc writes the reference of the configuration file from the comments of the structs it is decoded
// into: one section for each struct, one entry for each field.
//
// It reads source, so it is for tests and go generate; no command links it. A field is named by its yaml tag; a type
// of another package of the module is looked up there; a type that is no struct and has no known name is shown as the
// kind below it. Everything without a comment is an error: a key that nobody has explained must not exist.
//
// Markdown has no state and may run several times at once.
package configdoc

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// words are what a type is called in the reference, by the name in the source.
var words = map[string]string{
	"string": "text", "bool": "true or false", "int": "number", "int64": "number", "float64": "number",
	"Duration": "duration", "Bytes": "size", "Count": "number", "Secret": "secret text",
}

// Markdown describes the struct typeName of the package in dir, below root, where go.mod is.
func Markdown(root, dir, typeName string) (string, error) {
	g := &generator{root: root, packages: map[string]*pkg{}, at: map[*structType]string{}}
	data, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`(?m)^module (\S+)$`).FindSubmatch(data)
	if m == nil {
		return "", errors.New("go.mod: no module line")
	}
	g.module = string(m[1])
	p, err := g.load(dir)
	if err != nil {
		return "", err
	}
	top, ok := p.structs[typeName]
	if !ok {
		return "", fmt.Errorf("%s has no struct %s", dir, typeName)
	}
	if err := g.top(top); err != nil {
		return "", err
	}
	return strings.TrimRight(g.out.String(), "\n") + "\n", nil
}

type generator struct {
	root, module string
	packages     map[string]*pkg
	at           map[*structType]string // path at which a struct has been described
	out          strings.Builder
}

// pkg is the parsed types of one package.
type pkg struct {
	dir     string
	structs map[string]*structType
	others  map[string]other // types that are no structs
}

// other is a type that is no struct, and where its names come from.
type other struct {
	is      ast.Expr
	imports map[string]string
}

type structType struct {
	name    string
	doc     string
	pkg     *pkg
	imports map[string]string // local name → path
	fields  []*ast.Field
}

func (g *generator) load(dir string) (*pkg, error) {
	if p := g.packages[dir]; p != nil {
		return p, nil
	}
	p := &pkg{dir: dir, structs: map[string]*structType{}, others: map[string]other{}}
	g.packages[dir] = p
	names, err := filepath.Glob(filepath.Join(g.root, dir, "*.go"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		p.add(f)
	}
	return p, nil
}

// add takes the types of a file.
func (p *pkg) add(f *ast.File) {
	imports := map[string]string{}
	for _, i := range f.Imports {
		to, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			continue // the parser has accepted it
		}
		local := path.Base(to)
		if i.Name != nil {
			local = i.Name.Name
		}
		imports[local] = to
	}
	for _, d := range f.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.TYPE {
			continue
		}
		for _, s := range decl.Specs {
			spec, ok := s.(*ast.TypeSpec)
			if !ok {
				continue
			}
			st, ok := spec.Type.(*ast.StructType)
			if !ok {
				p.others[spec.Name.Name] = other{spec.Type, imports}
				continue
			}
			text := spec.Doc.Text()
			if text == "" {
				text = decl.Doc.Text()
			}
			p.structs[spec.Name.Name] = &structType{spec.Name.Name, text, p, imports, st.Fields.List}
		}
	}
}

// kind is what a field holds.
type kind struct {
	word   string      // for the reference
	of     *structType // whose fields are keys below it, or nil
	suffix string      // of the path to those: "" , "[]" or ".NAME"
}

// resolve says what a type of s's file is.
func (g *generator) resolve(s *structType, e ast.Expr) (kind, error) {
	switch e := e.(type) {
	case *ast.StarExpr:
		return g.resolve(s, e.X)
	case *ast.ArrayType:
		k, err := g.resolve(s, e.Elt)
		k.word, k.suffix = "list of "+plural(k.word), "[]"
		return k, err
	case *ast.MapType:
		k, err := g.resolve(s, e.Value)
		k.word, k.suffix = "mapping of a name to "+k.word, ".NAME"
		return k, err
	case *ast.Ident:
		return g.named(s.pkg, s, e.Name)
	case *ast.SelectorExpr:
		local, ok := e.X.(*ast.Ident)
		if !ok {
			break
		}
		dir, ok := strings.CutPrefix(s.imports[local.Name], g.module+"/")
		if !ok {
			break
		}
		p, err := g.load(dir)
		if err != nil {
			return kind{}, err
		}
		return g.named(p, s, e.Sel.Name)
	}
	return kind{}, fmt.Errorf("%s: a field of a type that has no word: %T", s.name, e)
}

// named says what the type of that name in p is.
func (g *generator) named(p *pkg, s *structType, name string) (kind, error) {
	if w := words[name]; w != "" {
		return kind{word: w}, nil
	}
	if st := p.structs[name]; st != nil {
		return kind{word: "section", of: st}, nil
	}
	if o, ok := p.others[name]; ok {
		return g.resolve(&structType{name: name, pkg: p, imports: o.imports}, o.is)
	}
	return kind{}, fmt.Errorf("%s: a field of the unknown type %s", s.name, name)
}

func plural(word string) string {
	switch word {
	case "text", "section":
		return word + "s"
	}
	return word
}

// top writes the document: the struct's comment, an overview of the sections, then each of them.
func (g *generator) top(s *structType) error {
	intro, err := s.text(s.doc, s.name)
	if err != nil {
		return err
	}
	intro = strings.Replace(intro, "It ", "This ", 1)
	g.out.WriteString("# Configuration file\n\n" + wrap(intro, "") + "\n\n| key | |\n|--|--|\n")
	var fields []field
	for _, f := range s.fields {
		d, err := g.field(s, f)
		if err != nil {
			return err
		}
		fields = append(fields, d)
		first, _, _ := strings.Cut(strings.ReplaceAll(d.text, "\n", " "), ". ")
		fmt.Fprintf(&g.out, "| [`%s`](#%s) | %s |\n", d.key, d.key, strings.TrimSuffix(strings.TrimPrefix(first, "`"+d.key+"` "), "."))
	}
	for _, d := range fields {
		fmt.Fprintf(&g.out, "\n## %s\n\n", d.key)
		if d.kind.of == nil {
			g.out.WriteString(wrap(d.entry(d.kind.word), "") + "\n")
			continue
		}
		g.out.WriteString(wrap(d.text, "") + "\n")
		if err := g.section(d.kind.of, d.key+d.kind.suffix, d.kind.word); err != nil {
			return err
		}
	}
	return nil
}

// section writes the fields of s, whose keys are below path, and then the sections below it.
func (g *generator) section(s *structType, path, word string) error {
	if at := g.at[s]; at != "" {
		fmt.Fprintf(&g.out, "\nThe keys of this %s are those of [`%s`](#%s).\n", word, at, anchor(at))
		return nil
	}
	g.at[s] = path
	about, err := s.text(s.doc, s.name)
	if err != nil {
		return err
	}
	fmt.Fprintf(&g.out, "\n%s\n\n", wrap(about, ""))
	type below struct {
		s    *structType
		path string
		word string
	}
	var later []below
	for _, f := range s.fields {
		d, err := g.field(s, f)
		if err != nil {
			return err
		}
		word := d.kind.word
		if of := d.kind.of; of != nil {
			at := path + "." + d.key + d.kind.suffix
			if seen := g.at[of]; seen != "" {
				at = seen
			} else if i := slices.IndexFunc(later, func(b below) bool { return b.s == of }); i >= 0 {
				at = later[i].path
			} else {
				later = append(later, below{of, at, word})
			}
			word = fmt.Sprintf("[%s](#%s)", word, anchor(at))
		}
		g.out.WriteString(wrap("* "+d.entry(word), "  ") + "\n")
	}
	for _, b := range later {
		fmt.Fprintf(&g.out, "\n### %s\n", b.path)
		if err := g.section(b.s, b.path, b.word); err != nil {
			return err
		}
	}
	return nil
}

// width is where lines are broken, in characters.
const width = 118

// wrap breaks paragraphs into lines; all but the first begin with indent. What is between backticks or brackets may
// be broken at its spaces, which Markdown does not mind.
func wrap(text, indent string) string {
	paragraphs := strings.Split(text, "\n\n")
	for i, p := range paragraphs {
		var b strings.Builder
		column := 0
		for _, w := range strings.Fields(p) {
			n := len([]rune(w))
			switch {
			case column == 0:
			case column+1+n > width:
				b.WriteString("\n" + indent)
				column = len(indent)
			default:
				b.WriteByte(' ')
				column++
			}
			b.WriteString(w)
			column += n
		}
		paragraphs[i] = b.String()
	}
	return strings.Join(paragraphs, "\n\n"+indent)
}

// anchor is what a heading is linked by.
func anchor(heading string) string {
	return strings.ToLower(regexp.MustCompile(`[^A-Za-z0-9_ -]`).ReplaceAllString(heading, ""))
}

// field is one key.
type field struct {
	key  string
	kind kind
	text string // about it; begins with the key in backticks, as a rule
}

// entry is the text with the kind of value behind the key.
func (d field) entry(word string) string {
	name := "`" + d.key + "`"
	if rest, ok := strings.CutPrefix(d.text, name); ok {
		return "**" + name + "** (" + word + ")" + rest
	}
	return "**" + name + "** (" + word + "): " + d.text
}

// field describes one field of s.
func (g *generator) field(s *structType, f *ast.Field) (d field, err error) {
	if len(f.Names) != 1 || f.Tag == nil {
		return d, fmt.Errorf("%s: want one name and a yaml tag for each field", s.name)
	}
	name := f.Names[0].Name
	if d.key, err = yamlKey(f); err != nil || d.key == "" {
		return d, fmt.Errorf("%s.%s: no yaml tag", s.name, name)
	}
	if d.text, err = s.text(f.Doc.Text(), name); err != nil {
		return d, err
	}
	d.kind, err = g.resolve(s, f.Type)
	return d, err
}

func yamlKey(f *ast.Field) (string, error) {
	if f.Tag == nil {
		return "", errors.New("no tag")
	}
	tag, err := strconv.Unquote(f.Tag.Value)
	if err != nil {
		return "", err
	}
	key, _, _ := strings.Cut(reflect.StructTag(tag).Get("yaml"), ",")
	return key, nil
}

var (
	link     = regexp.MustCompile(`\[([A-Z][A-Za-z.]*)\]`)
	goWord   = regexp.MustCompile(`\b[A-Z][A-Za-z]*\b`)
	metric   = regexp.MustCompile(`\btarik_[a-z_]+(\{[a-z_]+="[a-z-]+"\})?`)
	variable = regexp.MustCompile(`\$\{[A-Z]+\}`)
)

// text is a comment as Markdown: names of the struct's fields become their keys, metrics and variables become code.
func (s *structType) text(doc, owner string) (string, error) {
	if strings.TrimSpace(doc) == "" {
		return "", fmt.Errorf("%s.%s: no comment", s.name, owner)
	}
	keys := map[string]string{}
	for _, f := range s.fields {
		if key, err := yamlKey(f); err == nil && len(f.Names) == 1 {
			keys[f.Names[0].Name] = key
		}
	}
	text := strings.TrimSpace(doc)
	if rest, ok := strings.CutPrefix(text, owner+" "); ok && keys[owner] == "" {
		text = "It " + rest
		if strings.HasSuffix(owner, "s") {
			text = "They " + rest
		}
	}
	text = link.ReplaceAllStringFunc(text, func(l string) string {
		name := l[1 : len(l)-1]
		if name == "Unlimited" { // a value, not a type
			return "`unlimited`"
		}
		return name
	})
	var b strings.Builder
	end := 0
	for _, m := range goWord.FindAllStringIndex(text, -1) {
		word := text[m[0]:m[1]]
		if key := keys[word]; key != "" && meansField(text, word, m[0]) {
			b.WriteString(text[end:m[0]] + "`" + key + "`")
			end = m[1]
		}
	}
	text = b.String() + text[end:]
	for _, code := range []*regexp.Regexp{metric, variable} {
		text = code.ReplaceAllString(text, "`$0`")
	}
	return text, nil
}

// meansField reports whether a word that is a field's name is meant as one: at the beginning of the comment, or where
// English would not write it so: with capitals inside, or alone in the middle of a sentence. All capitals are English.
func meansField(text, word string, at int) bool {
	if at == 0 {
		return true
	}
	if strings.ToUpper(word) == word {
		return false
	}
	if strings.ToLower(word[1:]) != word[1:] {
		return true
	}
	before := strings.TrimRight(text[:at], " \n")
	return !strings.HasSuffix(before, ".") && !strings.HasSuffix(before, ":") && !strings.HasSuffix(before, "/") && text[at-1] != '"' &&
		!strings.HasPrefix(text[at+len(word):], "-") && text[at-1] != '-'
}
