package configfile

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/tarik-kv/tarik/internal/plainyaml"
)

// maxFileBytes bounds a configuration file.
const maxFileBytes = 4 << 20

// Document is a configuration file that is YAML.
type Document struct {
	file  string
	lines []string
	body  ast.Node // nil for an empty file
}

// Parse reads a file's content. name is what errors call it. Errors are [*Error].
func Parse(name string, data []byte) (d *Document, err error) {
	d = &Document{file: name, lines: strings.Split(string(data), "\n")}
	defer d.guard(&err)
	if len(data) > maxFileBytes {
		return nil, d.failAt(nil, fmt.Sprintf("larger than %d bytes", maxFileBytes))
	}
	f, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, d.explain(err)
	}
	for _, doc := range f.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if d.body != nil {
			return nil, d.failAt(doc.Body.GetToken(), "a second document begins here; want one")
		}
		d.body = doc.Body
	}
	if d.body == nil {
		return d, nil
	}
	if bad, why := plainyaml.Check(d.body, "key"); bad != nil {
		return nil, d.failAt(bad.GetToken(), why)
	}
	return d, nil
}

// Decode sets what the file says in v, a pointer to a struct. What it does not say stays as it is. Errors are
// [*Error].
func (d *Document) Decode(v any) (err error) {
	defer d.guard(&err)
	if d.body == nil {
		return nil
	}
	if err := yaml.NodeToValue(d.body, v, yaml.Strict()); err != nil {
		return d.explain(err)
	}
	return nil
}

// guard turns a panic of the YAML library into an error: it reads whatever an operator wrote.
func (d *Document) guard(err *error) {
	if r := recover(); r != nil {
		*err = d.failAt(nil, "not readable as YAML")
	}
}

// goType finds the library's words for a value of the wrong type.
var goType = regexp.MustCompile(`^cannot unmarshal (\S+).* (?:into|of type) (\S+)$`)

// wanted says in an operator's words what a Go type is.
var wanted = map[string]string{"bool": "true or false", "string": "a text", "int": "a number", "int64": "a number", "float64": "a number"}

// explain is a library's error with its place, in words that show nothing of the file.
func (d *Document) explain(err error) error {
	var at yaml.Error
	if !errors.As(err, &at) {
		return d.failAt(nil, plainyaml.Redact(err.Error()))
	}
	message := at.GetMessage()
	if m := goType.FindStringSubmatch(message); m != nil {
		want := wanted[strings.TrimPrefix(m[2], "*")]
		if want == "" {
			want = "another kind of value"
		}
		message = "want " + want + ", got " + kind(m[1])
	}
	return d.failAt(at.GetToken(), redactUnknown(message))
}

// kind names a Go type of the library for an operator.
func kind(goName string) string {
	switch {
	case strings.HasPrefix(goName, "[]"):
		return "a list"
	case strings.HasPrefix(goName, "map"):
		return "a mapping"
	case goName == "string":
		return "a text"
	case strings.Contains(goName, "int"), strings.Contains(goName, "float"):
		return "a number"
	}
	return "another kind"
}

// redactUnknown takes what was quoted from the file out of the messages by which the library quotes keys. Those of
// values come from this module and quote with care.
func redactUnknown(message string) string {
	if strings.HasPrefix(message, "want ") {
		return message
	}
	return plainyaml.Redact(message)
}

// Fail is an [*Error] about the value at path, such as "tenants.auth[0].jwt.issuer", or about the innermost thing
// around it that the file has.
func (d *Document) Fail(path, message string) error {
	return d.failAt(d.locate(path), path+": "+message)
}

// locate returns the token of the innermost node on the way to path, nil for the whole file.
func (d *Document) locate(path string) *token.Token {
	var at *token.Token
	n := d.body
	for path != "" && n != nil {
		switch x := n.(type) {
		case *ast.SequenceNode:
			digits, rest, _ := strings.Cut(strings.TrimPrefix(path, "["), "]")
			i, err := strconv.Atoi(digits)
			if err != nil || i < 0 || i >= len(x.Values) {
				return at
			}
			path, n = strings.TrimPrefix(rest, "."), x.Values[i]
			at = n.GetToken()
			if m, ok := n.(ast.MapNode); ok { // the place of a mapping is its first key
				if pairs := m.MapRange(); pairs.Next() {
					at = pairs.Key().GetToken()
				}
			}
		case ast.MapNode:
			value, key, rest := member(x, path)
			if value == nil {
				return at
			}
			path, n, at = rest, value, key
			if _, ok := n.(ast.ScalarNode); ok && path == "" {
				at = n.GetToken()
			}
		default:
			return at
		}
	}
	return at
}

// member finds the member of m that path begins with. A key may have dots in it, so the longest one wins.
func member(m ast.MapNode, path string) (value ast.Node, key *token.Token, rest string) {
	longest := -1
	for pairs := m.MapRange(); pairs.Next(); {
		k := pairs.Key().GetToken()
		after, ok := strings.CutPrefix(path, k.Value)
		if !ok || len(k.Value) <= longest || after != "" && after[0] != '.' && after[0] != '[' {
			continue
		}
		longest = len(k.Value)
		value, key, rest = pairs.Value(), k, strings.TrimPrefix(after, ".")
	}
	return value, key, rest
}
