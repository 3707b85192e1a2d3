package tenant

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/tarik-kv/tarik/internal/plainyaml"
)

// FileError says what is wrong with a keys or secrets file, and where. It never shows a line of the file, because
// any line may hold a secret, also one that was written to the wrong place.
type FileError struct {
	File         string
	Line, Column int // from 1; 0 if the whole file is meant
	Message      string
}

func (e *FileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Message)
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// maxFileBytes bounds keys and secrets files: more than 100000 keys.
const maxFileBytes = 16 << 20

// decodeStrict reads one YAML document into v. Unknown fields are errors, and so is whatever a person does not
// expect to be in such a file or that YAML reads otherwise than it looks: empty values (an "expires:" with
// nothing behind it would be no expiry), anchors, aliases, tags, merges, and more documents than one.
//
// Errors are [*FileError].
func decodeStrict(file string, data []byte, v any) (err error) {
	fail := func(t *token.Token, message string) error {
		e := &FileError{File: file, Message: message}
		if t != nil && t.Position != nil {
			e.Line, e.Column = t.Position.Line, t.Position.Column
		}
		return e
	}
	// The library reads what an operator wrote. Whatever it makes of it, a reload must not end the router.
	defer func() {
		if r := recover(); r != nil {
			err = fail(nil, "not readable as YAML")
		}
	}()
	if len(data) > maxFileBytes {
		return fail(nil, fmt.Sprintf("larger than %d bytes", maxFileBytes))
	}
	explain := func(err error) error {
		var own valueError
		var at yaml.Error
		switch {
		case errors.As(err, &own):
			return fail(own.Token, own.Message)
		case errors.As(err, &at):
			return fail(at.GetToken(), plainyaml.Redact(at.GetMessage()))
		}
		return fail(nil, plainyaml.Redact(err.Error()))
	}
	doc, err := parser.ParseBytes(data, 0)
	if err != nil {
		return explain(err)
	}
	var body ast.Node
	for _, d := range doc.Docs {
		if d.Body == nil || d.Body.Type() == ast.CommentType {
			continue
		}
		if body != nil {
			return fail(d.Body.GetToken(), "a second document begins here; want one")
		}
		body = d.Body
	}
	if body == nil {
		return fail(nil, "is empty")
	}
	if bad, why := plainyaml.Check(body, "field"); bad != nil {
		return fail(bad.GetToken(), why)
	}
	if err := yaml.NodeToValue(body, v, yaml.Strict()); err != nil {
		return explain(err)
	}
	return nil
}

// text is a string that stands in the file as one. YAML would read 0123 as a number and the library hand it
// over as "83", so a tenant could get another's name.
type text struct {
	value string
	at    *token.Token
}

func (s *text) UnmarshalYAML(n ast.Node) error {
	str, ok := n.(*ast.StringNode)
	if !ok {
		return errorAt(n, fmt.Sprintf("want a string, got %s: put it in quotes", strings.ToLower(n.Type().String())))
	}
	s.value, s.at = str.Value, n.GetToken()
	return nil
}

// fail is a [*FileError] at the place of s, or at fallback if s is left out.
func (s text) fail(file string, fallback *token.Token, message string) error {
	e := &FileError{File: file, Message: message}
	for _, t := range []*token.Token{s.at, fallback} {
		if t != nil && t.Position != nil {
			e.Line, e.Column = t.Position.Line, t.Position.Column
			break
		}
	}
	return e
}
