package jinja

import (
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nikolalohinski/gonja/v2/exec"
)

// ownFilters replace the engine's where the result differs from Jinja's for some value, and add what
// translate needs.
var ownFilters = map[string]exec.FilterFunction{
	"_print": func(_ *exec.Evaluator, v *exec.Value, _ *exec.VarArgs) *exec.Value {
		return exec.AsValue(Text(plain(v)))
	},
	"_each": loopFilter,

	"string": func(_ *exec.Evaluator, v *exec.Value, _ *exec.VarArgs) *exec.Value {
		return exec.AsValue(Text(plain(v)))
	},
	"safe":   func(_ *exec.Evaluator, v *exec.Value, _ *exec.VarArgs) *exec.Value { return v },
	"tojson": tojsonFilter,
	"items":  itemsFilter,
	"list":   eachFilter,
	"length": lengthFilter,
	"count":  lengthFilter,
	"first":  func(_ *exec.Evaluator, v *exec.Value, _ *exec.VarArgs) *exec.Value { return element(v, 0) },
	"last":   func(_ *exec.Evaluator, v *exec.Value, _ *exec.VarArgs) *exec.Value { return element(v, -1) },

	"default": defaultFilter,
	"d":       defaultFilter,
	"trim": func(_ *exec.Evaluator, v *exec.Value, args *exec.VarArgs) *exec.Value {
		return callMethod(Text(plain(v)), "strip", args)
	},
	"replace": func(_ *exec.Evaluator, v *exec.Value, args *exec.VarArgs) *exec.Value {
		return callMethod(Text(plain(v)), "replace", args)
	},
	"upper": func(_ *exec.Evaluator, v *exec.Value, args *exec.VarArgs) *exec.Value {
		return exec.AsValue(strings.ToUpper(Text(plain(v))))
	},
	"lower": func(_ *exec.Evaluator, v *exec.Value, args *exec.VarArgs) *exec.Value {
		return exec.AsValue(strings.ToLower(Text(plain(v))))
	},
	"capitalize": func(_ *exec.Evaluator, v *exec.Value, args *exec.VarArgs) *exec.Value {
		return callMethod(Text(plain(v)), "capitalize", args)
	},
	"join":     joinFilter,
	"reverse":  reverseFilter,
	"dictsort": dictsortFilter,
	"int":      intFilter,
	"map":      mapFilter,
	"selectattr": func(e *exec.Evaluator, v *exec.Value, a *exec.VarArgs) *exec.Value {
		return selectFilter(e, v, a, true, true)
	},
	"rejectattr": func(e *exec.Evaluator, v *exec.Value, a *exec.VarArgs) *exec.Value {
		return selectFilter(e, v, a, true, false)
	},
	"select": func(e *exec.Evaluator, v *exec.Value, a *exec.VarArgs) *exec.Value {
		return selectFilter(e, v, a, false, true)
	},
	"reject": func(e *exec.Evaluator, v *exec.Value, a *exec.VarArgs) *exec.Value {
		return selectFilter(e, v, a, false, false)
	},
	"indent": indentFilter,
	"unique": uniqueFilter,
}

// each returns what iterating over v gives: items of a list, keys of a mapping, characters of a
// string, nothing for an undefined value.
func each(v any) (List, bool) {
	switch v := v.(type) {
	case nil:
		return List{}, true
	case List:
		return v, true
	case Object:
		return v.keys(), true
	case map[string]any:
		out := List{}
		for _, key := range sortedKeys(v) {
			out = append(out, key)
		}
		return out, true
	case string:
		out := make(List, 0, len(v))
		for _, r := range v {
			out = append(out, string(r))
		}
		return out, true
	}
	return nil, false
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// loopFilter is what a for statement iterates over.
func loopFilter(e *exec.Evaluator, v *exec.Value, args *exec.VarArgs) *exec.Value {
	items := eachFilter(e, v, args)
	u := usageOf(e)
	if u.items += items.Len(); u.items > maxLoopItems {
		return failed("loops over more than %d items", maxLoopItems)
	}
	return items
}

func eachFilter(_ *exec.Evaluator, v *exec.Value, _ *exec.VarArgs) *exec.Value {
	items, ok := each(plain(v))
	if !ok {
		return failed("%s cannot be iterated", Kind(plain(v)))
	}
	return exec.AsValue(items)
}

func tojsonFilter(_ *exec.Evaluator, v *exec.Value, args *exec.VarArgs) *exec.Value {
	style := jsonStyle{indent: -1, item: ", ", key: ": "}
	positional := []string{"ensure_ascii", "indent", "separators", "sort_keys"}
	options := make(map[string]any)
	for i, arg := range args.Args {
		if i >= len(positional) {
			return failed("tojson takes at most %d arguments", len(positional))
		}
		options[positional[i]] = plain(arg)
	}
	for key, arg := range args.KwArgs {
		options[key] = plain(arg)
	}
	if n, ok := options["indent"].(int); ok {
		style.indent = max(n, 0)
		style.item = ","
	}
	if s, ok := options["separators"].(List); ok && len(s) == 2 {
		style.item, style.key = Text(s[0]), Text(s[1])
	}
	style.ascii = options["ensure_ascii"] == true
	style.sortedKeys = options["sort_keys"] == true
	var b strings.Builder
	if err := writeJSON(&b, plain(v), style, 0); err != nil {
		return exec.AsValue(err)
	}
	return exec.AsValue(b.String())
}

func itemsFilter(_ *exec.Evaluator, v *exec.Value, _ *exec.VarArgs) *exec.Value {
	switch v := plain(v).(type) {
	case nil:
		return exec.AsValue(List{})
	case Object:
		return exec.AsValue(v.items())
	default:
		return failed("items of %s", Kind(v))
	}
}

func lengthFilter(_ *exec.Evaluator, v *exec.Value, _ *exec.VarArgs) *exec.Value {
	switch v := plain(v).(type) {
	case string:
		return exec.AsValue(utf8.RuneCountInString(v))
	default:
		items, ok := each(v)
		if !ok {
			return failed("length of %s", Kind(v))
		}
		return exec.AsValue(len(items))
	}
}

func element(v *exec.Value, i int) *exec.Value {
	items, ok := each(plain(v))
	if !ok {
		return failed("%s cannot be iterated", Kind(plain(v)))
	}
	item, _ := items.GetItem(i)
	return item
}

// defaultFilter: default(value, boolean=false). The second argument makes every false value count as
// missing.
func defaultFilter(_ *exec.Evaluator, v *exec.Value, args *exec.VarArgs) *exec.Value {
	fallback, falsy := exec.AsValue(""), false
	if len(args.Args) > 0 {
		fallback = args.Args[0]
	}
	if len(args.Args) > 1 {
		falsy = args.Args[1].IsTrue()
	}
	if arg, ok := args.KwArgs["default_value"]; ok {
		fallback = arg
	}
	if arg, ok := args.KwArgs["boolean"]; ok {
		falsy = arg.IsTrue()
	}
	if plain(v) == nil || falsy && !v.IsTrue() {
		return fallback
	}
	return v
}

func joinFilter(_ *exec.Evaluator, v *exec.Value, args *exec.VarArgs) *exec.Value {
	separator, attribute := "", ""
	if len(args.Args) > 0 {
		separator = Text(plain(args.Args[0]))
	}
	if arg, ok := args.KwArgs["d"]; ok {
		separator = Text(plain(arg))
	}
	if arg, ok := args.KwArgs["attribute"]; ok {
		attribute = Text(plain(arg))
	}
	items, ok := each(plain(v))
	if !ok {
		return failed("%s cannot be iterated", Kind(plain(v)))
	}
	parts := make([]string, len(items))
	for i, item := range items {
		if attribute != "" {
			item = attributeOf(item, attribute)
		}
		parts[i] = Text(item)
	}
	return exec.AsValue(strings.Join(parts, separator))
}

func reverseFilter(_ *exec.Evaluator, v *exec.Value, _ *exec.VarArgs) *exec.Value {
	items, ok := each(plain(v))
	if !ok {
		return failed("%s cannot be iterated", Kind(plain(v)))
	}
	out := make(List, len(items))
	for i := range items {
		out[len(items)-1-i] = items[i]
	}
	if _, text := plain(v).(string); text {
		var b strings.Builder
		for _, c := range out {
			b.WriteString(Text(c))
		}
		return exec.AsValue(b.String())
	}
	return exec.AsValue(out)
}

func dictsortFilter(_ *exec.Evaluator, v *exec.Value, args *exec.VarArgs) *exec.Value {
	o, ok := plain(v).(Object)
	if !ok {
		return failed("dictsort of %s", Kind(plain(v)))
	}
	sorted := append(Object(nil), o...)
	sort.SliceStable(sorted, func(i, j int) bool {
		return strings.ToLower(sorted[i].Key) < strings.ToLower(sorted[j].Key)
	})
	return exec.AsValue(sorted.items())
}

func intFilter(_ *exec.Evaluator, v *exec.Value, args *exec.VarArgs) *exec.Value {
	fallback := exec.AsValue(0)
	if len(args.Args) > 0 {
		fallback = args.Args[0]
	}
	switch v := plain(v).(type) {
	case int:
		return exec.AsValue(v)
	case string:
		text := strings.TrimSpace(v)
		if n, err := strconv.Atoi(text); err == nil {
			return exec.AsValue(n)
		}
		if f, err := strconv.ParseFloat(text, 64); err == nil {
			return exec.AsValue(int(f))
		}
		return fallback
	default:
		if f, ok := asFloat(v); ok {
			return exec.AsValue(int(f))
		}
		return fallback
	}
}

func asFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case int:
		return float64(v), true
	case float64:
		return v, true
	case number:
		f, err := strconv.ParseFloat(string(v), 64)
		return f, err == nil
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

// attributeOf follows a dotted path.
func attributeOf(v any, path string) any {
	for _, name := range strings.Split(path, ".") {
		switch o := v.(type) {
		case Object:
			v, _ = o.Get(name)
		case List:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(o) {
				return nil
			}
			v = o[i]
		default:
			return nil
		}
	}
	return v
}

// mapFilter: map(attribute="a.b", default=x), or map("filter", arguments…).
func mapFilter(e *exec.Evaluator, v *exec.Value, args *exec.VarArgs) *exec.Value {
	items, ok := each(plain(v))
	if !ok {
		return failed("%s cannot be iterated", Kind(plain(v)))
	}
	out := make(List, 0, len(items))
	if attribute, ok := args.KwArgs["attribute"]; ok {
		path := Text(plain(attribute))
		for _, item := range items {
			value := attributeOf(item, path)
			if value == nil {
				if fallback, ok := args.KwArgs["default"]; ok {
					value = plain(fallback)
				}
			}
			out = append(out, value)
		}
		return exec.AsValue(out)
	}
	if len(args.Args) == 0 {
		return failed("map needs a filter or an attribute")
	}
	name := Text(plain(args.Args[0]))
	rest := &exec.VarArgs{Args: args.Args[1:], KwArgs: args.KwArgs}
	for _, item := range items {
		result := e.ExecuteFilterByName(name, exec.AsValue(item), rest)
		if result.IsError() {
			return result
		}
		out = append(out, plain(result))
	}
	return exec.AsValue(out)
}

// selectFilter is select, reject, selectattr and rejectattr: keep the items for which a test says keep.
func selectFilter(e *exec.Evaluator, v *exec.Value, args *exec.VarArgs, byAttribute, keep bool) *exec.Value {
	items, ok := each(plain(v))
	if !ok {
		return failed("%s cannot be iterated", Kind(plain(v)))
	}
	rest := args.Args
	attribute := ""
	if byAttribute {
		if len(rest) == 0 {
			return failed("selectattr needs an attribute")
		}
		attribute, rest = Text(plain(rest[0])), rest[1:]
	}
	test := ""
	if len(rest) > 0 {
		test, rest = Text(plain(rest[0])), rest[1:]
	}
	out := List{}
	for _, item := range items {
		value := item
		if byAttribute {
			value = attributeOf(item, attribute)
		}
		passed := exec.AsValue(value).IsTrue()
		if test != "" {
			result := e.ExecuteTestByName(test, exec.AsValue(value), &exec.VarArgs{Args: rest, KwArgs: args.KwArgs})
			if result.IsError() {
				return result
			}
			passed = result.IsTrue()
		}
		if passed == keep {
			out = append(out, item)
		}
	}
	return exec.AsValue(out)
}

// indentFilter: indent(width=4, first=false, blank=false).
func indentFilter(_ *exec.Evaluator, v *exec.Value, args *exec.VarArgs) *exec.Value {
	options := [3]any{4, false, false}
	for i, arg := range args.Args {
		if i < len(options) {
			options[i] = plain(arg)
		}
	}
	for i, name := range []string{"width", "first", "blank"} {
		if arg, ok := args.KwArgs[name]; ok {
			options[i] = plain(arg)
		}
	}
	prefix, isText := options[0].(string)
	if n, ok := options[0].(int); ok && !isText {
		prefix = strings.Repeat(" ", min(max(n, 0), 1000))
	}
	lines := strings.Split(Text(plain(v)), "\n")
	for i := range lines {
		first, blank := options[1] == true, options[2] == true
		if i == 0 && !first || i > 0 && lines[i] == "" && !blank {
			continue
		}
		lines[i] = prefix + lines[i]
	}
	return exec.AsValue(strings.Join(lines, "\n"))
}

func uniqueFilter(_ *exec.Evaluator, v *exec.Value, _ *exec.VarArgs) *exec.Value {
	items, ok := each(plain(v))
	if !ok {
		return failed("%s cannot be iterated", Kind(plain(v)))
	}
	out := List{}
	for _, item := range items {
		fold := func(v any) any {
			if s, ok := v.(string); ok {
				return strings.ToLower(s)
			}
			return v
		}
		seen := false
		for _, other := range out {
			seen = seen || equal(fold(other), fold(item))
		}
		if !seen {
			out = append(out, item)
		}
	}
	return exec.AsValue(out)
}
