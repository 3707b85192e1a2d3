package jinja

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/nikolalohinski/gonja/v2/exec"
)

// notFunction is "not v".
func notFunction(_ *exec.Evaluator, args *exec.VarArgs) *exec.Value {
	return exec.AsValue(!args.First().IsTrue())
}

// testFunctionByName is "v is name(arguments)": v, name, arguments.
func testFunctionByName(e *exec.Evaluator, args *exec.VarArgs) *exec.Value {
	rest := &exec.VarArgs{Args: args.Args[2:], KwArgs: args.KwArgs}
	return e.ExecuteTestByName(Text(plain(args.Args[1])), args.Args[0], rest)
}

// compareFunction is a chain of comparisons: operand, operator, operand, operator, operand …
func compareFunction(_ *exec.Evaluator, args *exec.VarArgs) *exec.Value {
	left := plain(args.Args[0])
	for i := 1; i+1 < len(args.Args); i += 2 {
		right := plain(args.Args[i+1])
		holds, err := compare(left, args.Args[i].String(), right)
		if err != nil {
			return exec.AsValue(err)
		}
		if !holds {
			return exec.AsValue(false)
		}
		left = right
	}
	return exec.AsValue(true)
}

func compare(a any, operator string, b any) (bool, error) {
	switch operator {
	case "==":
		return equal(a, b), nil
	case "!=":
		return !equal(a, b), nil
	case "in":
		return contains(b, a)
	case "not in":
		found, err := contains(b, a)
		return !found, err
	}
	order, ok := order(a, b)
	if !ok {
		return false, fmt.Errorf("%s %s %s", Kind(a), operator, Kind(b))
	}
	switch operator {
	case "<":
		return order < 0, nil
	case "<=":
		return order <= 0, nil
	case ">":
		return order > 0, nil
	default:
		return order >= 0, nil
	}
}

// order compares numbers, texts or lists.
func order(a, b any) (int, bool) {
	if x, ok := a.(string); ok {
		y, ok := b.(string)
		return strings.Compare(x, y), ok
	}
	if x, ok := a.(List); ok {
		y, ok := b.(List)
		for i := 0; ok && i < len(x) && i < len(y); i++ {
			if c, comparable := order(x[i], y[i]); !comparable || c != 0 {
				return c, comparable
			}
		}
		return len(x) - len(y), ok
	}
	x, ok1 := asFloat(a)
	y, ok2 := asFloat(b)
	switch {
	case x < y:
		return -1, ok1 && ok2
	case x > y:
		return 1, ok1 && ok2
	}
	return 0, ok1 && ok2
}

// computeFunction applies arithmetic from the left: operand, operator, operand …
func computeFunction(_ *exec.Evaluator, args *exec.VarArgs) *exec.Value {
	if text, ok := joinTexts(args.Args); ok {
		checked, err := checkedText(text)
		if err != nil {
			return exec.AsValue(err)
		}
		return exec.AsValue(checked)
	}
	left := plain(args.Args[0])
	for i := 1; i+1 < len(args.Args); i += 2 {
		result, err := compute(left, args.Args[i].String(), plain(args.Args[i+1]))
		if err != nil {
			return exec.AsValue(err)
		}
		left = result
	}
	return exec.AsValue(left)
}

// joinTexts is the common case, a chain of texts put together, without a copy for each link.
func joinTexts(args []*exec.Value) (string, bool) {
	var texts [16]string
	parts := texts[:0]
	for i, arg := range args {
		if !arg.Val.IsValid() {
			return "", false
		}
		s, ok := arg.Interface().(string)
		if !ok || i%2 == 1 && s != "+" && s != "~" {
			return "", false
		}
		if i%2 == 0 {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ""), true
}

var errDivision = errors.New("division by zero")

func checkedText(s string) (any, error) {
	if len(s) > maxTextBytes {
		return nil, fmt.Errorf("text of more than %d bytes", maxTextBytes)
	}
	return s, nil
}

func compute(a any, operator string, b any) (any, error) {
	if operator == "~" {
		return checkedText(Text(a) + Text(b))
	}
	switch x := a.(type) {
	case string:
		if y, ok := b.(string); ok && operator == "+" {
			return checkedText(x + y)
		}
		if n, ok := b.(int); ok && operator == "*" {
			if n > maxTextBytes/max(len(x), 1) {
				return nil, fmt.Errorf("text of more than %d bytes", maxTextBytes)
			}
			return strings.Repeat(x, max(n, 0)), nil
		}
	case List:
		if y, ok := b.(List); ok && operator == "+" {
			if len(x)+len(y) > maxListLength {
				return nil, fmt.Errorf("list of more than %d items", maxListLength)
			}
			return append(append(make(List, 0, len(x)+len(y)), x...), y...), nil
		}
	}
	if x, ok := asInt(a); ok {
		if y, ok := asInt(b); ok {
			return computeInts(x, operator, y)
		}
	}
	x, ok1 := asFloat(a)
	y, ok2 := asFloat(b)
	if !ok1 || !ok2 {
		return nil, fmt.Errorf("%s %s %s", Kind(a), operator, Kind(b))
	}
	switch operator {
	case "+":
		return x + y, nil
	case "-":
		return x - y, nil
	case "*":
		return x * y, nil
	case "**":
		return math.Pow(x, y), nil
	}
	if y == 0 {
		return nil, errDivision
	}
	switch operator {
	case "/":
		return x / y, nil
	case "//":
		return math.Floor(x / y), nil
	default: // "%": the sign is that of the divisor
		return x - y*math.Floor(x/y), nil
	}
}

func asInt(v any) (int, bool) {
	switch v := v.(type) {
	case int:
		return v, true
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

func computeInts(x int, operator string, y int) (any, error) {
	switch operator {
	case "+":
		return x + y, nil
	case "-":
		return x - y, nil
	case "*":
		return x * y, nil
	case "**":
		if power := math.Pow(float64(x), float64(y)); y < 0 || math.Abs(power) >= 1<<53 {
			return power, nil
		}
		return int(math.Pow(float64(x), float64(y))), nil
	}
	if y == 0 {
		return nil, errDivision
	}
	if operator == "/" {
		return float64(x) / float64(y), nil
	}
	quotient, remainder := x/y, x%y
	if remainder != 0 && (remainder < 0) != (y < 0) { // Python rounds down, Go towards zero
		quotient--
		remainder += y
	}
	if operator == "//" {
		return quotient, nil
	}
	return remainder, nil
}

// itemFunction is v[key].
func itemFunction(_ *exec.Evaluator, args *exec.VarArgs) *exec.Value {
	key := plain(args.Args[1])
	switch v := plain(args.Args[0]).(type) {
	case nil:
		return failed("item %q of an undefined value", Text(key))
	case string:
		chars := []rune(v)
		i, ok := key.(int)
		if i < 0 {
			i += len(chars)
		}
		if !ok || i < 0 || i >= len(chars) {
			return exec.AsValue(nil)
		}
		return exec.AsValue(string(chars[i]))
	case List:
		item, _ := v.GetItem(key)
		return item
	case Object:
		item, _ := v.GetItem(key)
		return item
	case map[string]any:
		name, _ := key.(string)
		return exec.AsValue(v[name])
	}
	return exec.AsValue(nil)
}

// sliceFunction is v[from:to:step]: v, from, to and maybe step, none where left out.
func sliceFunction(_ *exec.Evaluator, args *exec.VarArgs) *exec.Value {
	var length int
	v := plain(args.Args[0])
	var chars []rune
	var items List
	switch v := v.(type) {
	case string:
		chars = []rune(v)
		length = len(chars)
	case List:
		items = v
		length = len(items)
	default:
		return failed("slice of %s", Kind(v))
	}
	step := 1
	if len(args.Args) > 3 {
		if n, ok := plain(args.Args[3]).(int); ok {
			step = n
		}
	}
	if step == 0 {
		return failed("slice with step 0")
	}
	bound := func(i, missing int) (int, bool) {
		switch n := plain(args.Args[i]).(type) {
		case none:
			return missing, true
		case int:
			if n < 0 {
				n += length
			}
			if step > 0 {
				return min(max(n, 0), length), true
			}
			return min(max(n, -1), length-1), true
		}
		return 0, false
	}
	first, last := 0, length
	if step < 0 {
		first, last = length-1, -1
	}
	from, ok1 := bound(1, first)
	to, ok2 := bound(2, last)
	if !ok1 || !ok2 {
		return failed("slice with a bound that is not a whole number")
	}
	if items != nil {
		if step == 1 {
			return exec.AsValue(items[from:max(from, to):max(from, to)])
		}
		out := List{}
		for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
			out = append(out, items[i])
		}
		return exec.AsValue(out)
	}
	var out []rune
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		out = append(out, chars[i])
	}
	return exec.AsValue(string(out))
}
