package jinja

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/nikolalohinski/gonja/v2/builtins"
	controlstructures "github.com/nikolalohinski/gonja/v2/builtins/control_structures"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/parser"
)

// newEnvironment returns what templates can use: the statements and filters of the engine, with those
// replaced whose results differ from Python's, and without those that read files.
func newEnvironment() (*exec.Environment, error) {
	statements := make(map[string]parser.ControlStructureParser)
	for _, name := range []string{"if", "for", "set", "macro", "call", "filter", "with", "do", "break", "continue"} {
		statement, ok := controlstructures.All.Get(name)
		if !ok {
			return nil, fmt.Errorf("template engine has no statement %q", name)
		}
		statements[name] = statement
	}
	filters := exec.NewFilterSet(map[string]exec.FilterFunction{}).Update(builtins.Filters)
	own := make(map[string]exec.FilterFunction, len(ownFilters))
	for name, filter := range ownFilters {
		own[name] = guard(filter)
	}
	filters.Update(exec.NewFilterSet(own))

	tests := make(map[string]exec.TestFunction, len(ownTests))
	for name, test := range ownTests {
		tests[name] = guardTest(test)
	}
	return &exec.Environment{
		Context: exec.NewContext(map[string]any{
			"_none":     Null,
			"_call":     callFunction,
			"_method":   methodFunction,
			"_not":      notFunction,
			"_test":     testFunctionByName,
			"_compare":  compareFunction,
			"_compute":  computeFunction,
			"_item":     itemFunction,
			"_slice":    sliceFunction,
			"_list":     makeList,
			"_dict":     makeDict,
			"range":     rangeList,
			"dict":      dictFunction,
			"namespace": namespaceFunction,
		}),
		Filters:           filters,
		Tests:             exec.NewTestSet(map[string]exec.TestFunction{}).Update(builtins.Tests).Update(exec.NewTestSet(tests)),
		ControlStructures: exec.NewControlStructureSet(statements),
		Methods:           builtins.Methods,
	}, nil
}

// guard passes errors through, which the engine leaves to each filter.
func guard(filter exec.FilterFunction) exec.FilterFunction {
	return func(e *exec.Evaluator, in *exec.Value, args *exec.VarArgs) *exec.Value {
		if in.IsError() {
			return in
		}
		return filter(e, in, args)
	}
}

type testFunction func(in any, args *exec.VarArgs) (bool, error)

func guardTest(test testFunction) exec.TestFunction {
	return func(_ *exec.Evaluator, in *exec.Value, args *exec.VarArgs) (bool, error) {
		if in.IsError() {
			return false, errors.New(in.Error())
		}
		return test(plain(in), args)
	}
}

func failed(format string, args ...any) *exec.Value {
	return exec.AsValue(fmt.Errorf(format, args...))
}

// plain returns the value inside v in one of this package's kinds: nil (undefined), none, bool,
// string, int, float64, number, Object, list, or a function.
func plain(v *exec.Value) any {
	if v == nil || !v.Val.IsValid() {
		return nil
	}
	x := v.Interface()
	switch x := x.(type) {
	case *exec.Value:
		return plain(x)
	case none, bool, string, int, float64, number, Object, List:
		return x
	case exec.ValuesList:
		out := make(List, len(x))
		for i := range x {
			out[i] = plain(x[i])
		}
		return out
	case map[string]any: // a namespace
		return x
	}
	rv := reflect.ValueOf(x)
	switch rv.Kind() {
	case reflect.Slice, reflect.Array:
		out := make(List, rv.Len())
		for i := range out {
			out[i] = plain(exec.ToValue(rv.Index(i)))
		}
		return out
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return int(rv.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return int(rv.Uint())
	case reflect.Float32:
		return rv.Float()
	case reflect.String:
		return rv.String()
	}
	return x
}

// A template can ask for more than a process has: macros that call themselves, loops in loops, texts
// that double. The bounds are far above what a conversation needs.
const (
	maxCallDepth  = 60        // calls that are open
	maxLoopItems  = 1_000_000 // items of all loops of one rendering
	maxTextBytes  = 64 << 20  // of one text that operators make
	maxListLength = 1 << 20   // of one list that operators make
)

// usageKey is where a rendering keeps its usage.
const usageKey = "_usage"

type usage struct{ calls, items int }

func usageOf(e *exec.Evaluator) *usage {
	v, _ := e.Environment.Context.Get(usageKey)
	u, ok := v.(*usage)
	if !ok {
		panic("BUG: rendering without its usage")
	}
	return u
}

// callFunction is f(args): it calls what a name stands for.
func callFunction(e *exec.Evaluator, args *exec.VarArgs) *exec.Value {
	if len(args.Args) == 0 {
		return failed("nothing to call")
	}
	f := args.Args[0]
	rest := &exec.VarArgs{Args: args.Args[1:], KwArgs: args.KwArgs}
	if f.IsError() {
		return f
	}
	u := usageOf(e)
	if u.calls++; u.calls > maxCallDepth {
		return failed("calls nested more than %d deep", maxCallDepth)
	}
	defer func() { u.calls-- }()
	switch f := f.Interface().(type) {
	case exec.Macro:
		return f(rest)
	case func(*exec.VarArgs) *exec.Value:
		return f(rest)
	case func(*exec.Evaluator, *exec.VarArgs) *exec.Value:
		return f(e, rest)
	case nil:
		return failed("called something that is undefined")
	default:
		return failed("a value of type %s cannot be called", Kind(f))
	}
}

func makeList(_ *exec.Evaluator, args *exec.VarArgs) *exec.Value {
	out := make(List, len(args.Args))
	for i, arg := range args.Args {
		if arg.IsError() {
			return arg
		}
		out[i] = plain(arg)
	}
	return exec.AsValue(out)
}

// makeDict takes keys and values in turn.
func makeDict(_ *exec.Evaluator, args *exec.VarArgs) *exec.Value {
	out := make(Object, 0, len(args.Args)/2)
	for i := 0; i+1 < len(args.Args); i += 2 {
		if args.Args[i].IsError() {
			return args.Args[i]
		}
		if args.Args[i+1].IsError() {
			return args.Args[i+1]
		}
		out = out.Set(Text(plain(args.Args[i])), plain(args.Args[i+1]))
	}
	return exec.AsValue(out)
}

func dictFunction(_ *exec.Evaluator, args *exec.VarArgs) *exec.Value {
	out := Object{}
	if len(args.Args) > 0 {
		from, ok := plain(args.Args[0]).(Object)
		if !ok {
			return failed("dict() of a value that is not a mapping")
		}
		out = append(out, from...)
	}
	for _, key := range sortedKeys(args.KwArgs) {
		out = out.Set(key, plain(args.KwArgs[key]))
	}
	return exec.AsValue(out)
}

// namespaceFunction returns the one kind of value that templates may change.
func namespaceFunction(_ *exec.Evaluator, args *exec.VarArgs) *exec.Value {
	ns := make(map[string]any)
	for _, arg := range args.Args {
		if from, ok := plain(arg).(Object); ok {
			for _, m := range from {
				ns[m.Key] = m.Value
			}
		}
	}
	for key, value := range args.KwArgs {
		ns[key] = plain(value)
	}
	return exec.AsValue(ns)
}

// maxRange is the largest range() a template may ask for, as in Jinja's sandbox.
const maxRange = 100_000

func rangeList(_ *exec.Evaluator, args *exec.VarArgs) *exec.Value {
	var n [3]int
	if len(args.Args) < 1 || len(args.Args) > 3 {
		return failed("range() takes 1 to 3 arguments, got %d", len(args.Args))
	}
	for i, arg := range args.Args {
		v, ok := plain(arg).(int)
		if !ok {
			return failed("range() of a value that is not a whole number")
		}
		n[i] = v
	}
	start, stop, step := n[0], n[1], n[2]
	switch len(args.Args) {
	case 1:
		start, stop, step = 0, n[0], 1
	case 2:
		step = 1
	}
	if step == 0 {
		return failed("range() with step 0")
	}
	out := List{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(out) == maxRange {
			return failed("range() of more than %d numbers", maxRange)
		}
		out = append(out, i)
	}
	return exec.AsValue(out)
}

var ownTests = map[string]testFunction{
	"defined":   func(v any, _ *exec.VarArgs) (bool, error) { return v != nil, nil },
	"undefined": func(v any, _ *exec.VarArgs) (bool, error) { return v == nil, nil },
	"none":      func(v any, _ *exec.VarArgs) (bool, error) { return v == Null, nil },
	"true":      func(v any, _ *exec.VarArgs) (bool, error) { return v == true, nil },
	"false":     func(v any, _ *exec.VarArgs) (bool, error) { return v == false, nil },
	"boolean":   func(v any, _ *exec.VarArgs) (bool, error) { _, ok := v.(bool); return ok, nil },
	"string":    func(v any, _ *exec.VarArgs) (bool, error) { _, ok := v.(string); return ok, nil },
	"mapping": func(v any, _ *exec.VarArgs) (bool, error) {
		_, ok := v.(Object)
		return ok, nil
	},
	"integer": func(v any, _ *exec.VarArgs) (bool, error) {
		_, ok := v.(int)
		if n, big := v.(number); big {
			ok = !strings.ContainsAny(string(n), ".eE")
		}
		return ok, nil
	},
	"float": func(v any, _ *exec.VarArgs) (bool, error) {
		_, ok := v.(float64)
		if n, literal := v.(number); literal {
			ok = strings.ContainsAny(string(n), ".eE")
		}
		return ok, nil
	},
	"number": func(v any, _ *exec.VarArgs) (bool, error) {
		switch v.(type) {
		case int, float64, number, bool:
			return true, nil
		}
		return false, nil
	},
	// An undefined value is empty when iterated, and Jinja counts it as iterable and as a sequence.
	"iterable": func(v any, _ *exec.VarArgs) (bool, error) { return isIterable(v), nil },
	"sequence": func(v any, _ *exec.VarArgs) (bool, error) { return isIterable(v), nil },
	"in": func(v any, args *exec.VarArgs) (bool, error) {
		return contains(plain(args.First()), v)
	},
	"equalto": equalTest,
	"eq":      equalTest,
	"==":      equalTest,
	"ne":      func(v any, args *exec.VarArgs) (bool, error) { return !equal(v, plain(args.First())), nil },
	"sameas":  equalTest,
}

func equalTest(v any, args *exec.VarArgs) (bool, error) { return equal(v, plain(args.First())), nil }

func isIterable(v any) bool {
	switch v.(type) {
	case nil, string, List, Object, map[string]any:
		return true
	}
	return false
}

// contains is "item in v".
func contains(v, item any) (bool, error) {
	switch v := v.(type) {
	case nil:
		return false, nil
	case string:
		s, ok := item.(string)
		if !ok {
			return false, fmt.Errorf("%s in a string", Kind(item))
		}
		return strings.Contains(v, s), nil
	case List:
		for _, x := range v {
			if equal(x, item) {
				return true, nil
			}
		}
		return false, nil
	case Object:
		key, ok := item.(string)
		if !ok {
			return false, nil
		}
		_, found := v.Get(key)
		return found, nil
	case map[string]any:
		key, _ := item.(string)
		_, found := v[key]
		return found, nil
	}
	return false, fmt.Errorf("%s in %s, which holds nothing", Kind(item), Kind(v))
}

// equal is Python's ==.
func equal(a, b any) bool {
	switch a := a.(type) {
	case List:
		b, ok := b.(List)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !equal(a[i], b[i]) {
				return false
			}
		}
		return true
	case Object:
		b, ok := b.(Object)
		if !ok || len(a) != len(b) {
			return false
		}
		for _, m := range a {
			if v, found := b.Get(m.Key); !found || !equal(m.Value, v) {
				return false
			}
		}
		return true
	case nil:
		return b == nil
	}
	switch b.(type) {
	case List, Object, map[string]any:
		return false
	}
	if x, ok := asFloat(a); ok {
		y, ok := asFloat(b)
		return ok && x == y
	}
	if !reflect.TypeOf(a).Comparable() {
		return false
	}
	return a == b
}

// Kind names the kind of v for error messages: "a string", "a list".
func Kind(v any) string {
	switch v.(type) {
	case nil:
		return "an undefined value"
	case none:
		return "none"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case int, float64, number:
		return "a number"
	case List:
		return "a list"
	case Object:
		return "a mapping"
	}
	return fmt.Sprintf("%T", v)
}
