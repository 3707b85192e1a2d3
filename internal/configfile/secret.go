package configfile

import (
	"fmt"
	"log/slog"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// Secret is a text that must not be shown. In the file, ${NAME} in it stands for an environment variable; a
// dollar sign in front of anything else is itself. The zero Secret is none.
type Secret struct{ text string }

var (
	_ fmt.Formatter  = Secret{}
	_ slog.LogValuer = Secret{}
)

// NewSecret is for values that do not come from a file.
func NewSecret(text string) Secret { return Secret{text} }

// UnmarshalYAML takes a string that is not empty.
func (s *Secret) UnmarshalYAML(n ast.Node) error {
	str, ok := n.(*ast.StringNode)
	if !ok || str.Value == "" {
		return &yaml.SyntaxError{Message: "want a text that is not empty, in quotes if it looks like a number", Token: n.GetToken()}
	}
	s.text = str.Value
	return nil
}

// IsSet reports whether there is a secret.
func (s Secret) IsSet() bool { return s.text != "" }

// Format writes nothing of the secret, whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, s.LogValue()) }

// LogValue is what a log gets.
func (s Secret) LogValue() slog.Value {
	if s.text == "" {
		return slog.StringValue("none")
	}
	return slog.StringValue("(secret)")
}

var variable = regexp.MustCompile(`\$\{([^}]*)\}`)

// Literal reports whether the file holds the secret itself rather than the name of a variable.
func (s Secret) Literal() bool { return s.text != "" && !variable.MatchString(s.text) }

// Reveal returns the secret with the variables replaced. lookup is [os.LookupEnv] outside of tests. A variable that
// is not set, or empty, is an error: a secret that is half there must not be used.
func (s Secret) Reveal(lookup func(string) (string, bool)) (string, error) {
	var err error
	text := variable.ReplaceAllStringFunc(s.text, func(v string) string {
		name := v[2 : len(v)-1]
		value, ok := lookup(name)
		switch {
		case !variableName.MatchString(name):
			err = fmt.Errorf("${…} does not name an environment variable: want letters, digits and _")
		case !ok:
			err = fmt.Errorf("the environment variable %s is not set", name)
		case value == "":
			err = fmt.Errorf("the environment variable %s is empty", name)
		}
		return value
	})
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(text), nil
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)
