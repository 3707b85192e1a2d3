// Package plainyaml keeps the YAML that people write for tarik plain, and what its reader says free of secrets. The
// readers of the settings and of the keys both stand on it.
package plainyaml

import (
	"regexp"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// fieldName is what a message of the YAML library may quote.
var fieldName = regexp.MustCompile(`^"[a-z0-9_]{1,32}"( already defined at \[\d+:\d+\])?$`)

// Redact takes what was quoted from the file out of a message of the YAML library, unless it looks like a field's
// name. Secrets are longer. The library quotes without escaping, so the first quote may open anything.
func Redact(message string) string {
	i := strings.IndexByte(message, '"')
	if i < 0 || fieldName.MatchString(message[i:]) {
		return message
	}
	return message[:i] + "(…)"
}

// Check looks for YAML that a file people write settings or secrets in has no use for: what a person does not
// expect there, or that YAML reads otherwise than it looks. It returns the first such node, nil if there is none,
// and what is wrong with it. member is what the file's readers call a key: "key" or "field".
func Check(root ast.Node, member string) (bad ast.Node, why string) {
	c := checker{member: member}
	ast.Walk(&c, root)
	return c.bad, c.why
}

type checker struct {
	member string
	bad    ast.Node
	why    string
}

func (c *checker) Visit(n ast.Node) ast.Visitor {
	if c.bad != nil {
		return nil
	}
	switch n.Type() {
	case ast.NullType:
		c.bad, c.why = n, "empty value: fill it in, or leave the "+c.member+" out"
	case ast.AnchorType, ast.AliasType:
		c.bad, c.why = n, "anchors and aliases are not used here: write the value out"
	case ast.MergeKeyType:
		c.bad, c.why = n, "merge keys are not used here: write the "+c.member+"s out"
	case ast.TagType:
		c.bad, c.why = n, "tags are not used here"
	default:
		return c
	}
	return nil
}
