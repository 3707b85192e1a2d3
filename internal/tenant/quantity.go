package tenant

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// Duration is a [time.Duration] in YAML: "30s", "10m". A bare number is refused, because it has no unit.
type Duration time.Duration

// UnmarshalYAML reports the position of a value that is no duration.
func (d *Duration) UnmarshalYAML(n ast.Node) error {
	v, err := time.ParseDuration(scalar(n))
	if err != nil {
		return errorAt(n, fmt.Sprintf("want a duration such as 30s or 10m, got %s", shown(n)))
	}
	*d = Duration(v)
	return nil
}

func (d Duration) String() string { return time.Duration(d).String() }

// Unlimited is the value of a [Count] or [Bytes] that lifts a limit.
const Unlimited = -1

// Count is a number of things. The zero value means "not set here"; in YAML it is a positive number or
// "unlimited".
type Count int64

// UnmarshalYAML reports the position of a value that is no count.
func (c *Count) UnmarshalYAML(n ast.Node) error {
	if scalar(n) == "unlimited" {
		*c = Unlimited
		return nil
	}
	v, err := strconv.ParseInt(scalar(n), 10, 64)
	if err != nil || v <= 0 {
		return errorAt(n, fmt.Sprintf("want a positive number or unlimited, got %s", shown(n)))
	}
	*c = Count(v)
	return nil
}

// Bytes is an amount of memory. The zero value means "not set here"; in YAML it is a positive number of bytes,
// a number with KiB, MiB or GiB, or "unlimited".
type Bytes int64

var byteUnits = []struct {
	name  string
	bytes int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"", 1}}

// UnmarshalYAML reports the position of a value that is no size.
func (b *Bytes) UnmarshalYAML(n ast.Node) error {
	text := scalar(n)
	if text == "unlimited" {
		*b = Unlimited
		return nil
	}
	for _, u := range byteUnits {
		digits, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		v, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || v <= 0 || v > math.MaxInt64/u.bytes {
			break
		}
		*b = Bytes(v * u.bytes)
		return nil
	}
	return errorAt(n, fmt.Sprintf("want a size such as 32MiB, or unlimited, got %s", shown(n)))
}

func (b Bytes) String() string {
	if b == Unlimited {
		return "unlimited"
	}
	for _, u := range []int{2, 1, 0} { // GiB, MiB, KiB
		if unit := byteUnits[u]; b != 0 && int64(b)%unit.bytes == 0 {
			return strconv.FormatInt(int64(b)/unit.bytes, 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// scalar is the text of a scalar as it stands in the file, "" for anything else.
func scalar(n ast.Node) string {
	if _, ok := n.(ast.ScalarNode); !ok {
		return ""
	}
	return n.GetToken().Value
}

// shown quotes a short scalar in an error message. What is longer than a quantity could be a secret in the wrong
// place.
func shown(n ast.Node) string {
	switch s := scalar(n); {
	case s == "":
		return "a " + strings.ToLower(n.Type().String())
	case len(s) > 32:
		return fmt.Sprintf("%d characters", len(s))
	default:
		return strconv.Quote(s)
	}
}

// valueError is an error of a value that knows where it stands, in the library's form, so that the configuration
// file's errors all look alike. Its message shows no secret.
type valueError struct{ *yaml.SyntaxError }

// errorAt is a [valueError] at n.
func errorAt(n ast.Node, message string) error {
	return valueError{&yaml.SyntaxError{Message: message, Token: n.GetToken()}}
}
