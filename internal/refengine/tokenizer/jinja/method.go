package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nikolalohinski/gonja/v2/exec"
)

// methodFunction is v.name(arguments): v, name, arguments.
func methodFunction(e *exec.Evaluator, args *exec.VarArgs) *exec.Value {
	v := args.Args[0]
	name := args.Args[1].String()
	rest := &exec.VarArgs{Args: args.Args[2:], KwArgs: args.KwArgs}
	switch self := plain(v).(type) {
	case nil:
		return failed("method %q of an undefined value", name)
	case string, Object, List:
		return callMethod(self, name, rest)
	}
	// What is left are the engine's own values, such as loop, and functions kept in a namespace.
	f, ok := v.Get(name)
	if !ok || f.IsError() {
		return failed("%s has no method %q", Kind(plain(v)), name)
	}
	return callFunction(e, &exec.VarArgs{Args: append([]*exec.Value{f}, rest.Args...), KwArgs: rest.KwArgs})
}

// callMethod calls a method of a Python str, dict or list.
func callMethod(self any, name string, args *exec.VarArgs) *exec.Value {
	for i, arg := range args.Args {
		if arg.IsError() {
			return args.Args[i]
		}
	}
	var result any
	var ok bool
	switch self := self.(type) {
	case string:
		result, ok = stringMethod(self, name, arguments{args})
	case Object:
		result, ok = objectMethod(self, name, arguments{args})
	case List:
		result, ok = listMethod(self, name, arguments{args})
	}
	if !ok {
		return failed("%s has no method %q that takes these arguments", Kind(self), name)
	}
	return exec.AsValue(result)
}

// arguments reads call arguments by position or name.
type arguments struct{ *exec.VarArgs }

func (a arguments) at(i int, name string) (any, bool) {
	if i < len(a.Args) {
		return plain(a.Args[i]), true
	}
	if v, ok := a.KwArgs[name]; ok && name != "" {
		return plain(v), true
	}
	return nil, false
}

func (a arguments) text(i int, name string) (string, bool) {
	v, _ := a.at(i, name)
	s, ok := v.(string)
	return s, ok
}

func (a arguments) integer(i int, name string, fallback int) int {
	v, _ := a.at(i, name)
	if n, ok := v.(int); ok {
		return n
	}
	return fallback
}

func stringMethod(s, name string, args arguments) (any, bool) {
	switch name {
	case "strip", "lstrip", "rstrip":
		cutset, given := args.text(0, "chars")
		drop := func(r rune) bool { return strings.ContainsRune(cutset, r) }
		if !given {
			drop = unicode.IsSpace
		}
		if name != "rstrip" {
			s = strings.TrimLeftFunc(s, drop)
		}
		if name != "lstrip" {
			s = strings.TrimRightFunc(s, drop)
		}
		return s, true
	case "split", "rsplit":
		return splitText(s, name == "rsplit", args)
	case "splitlines":
		return splitLines(s), true
	case "startswith", "endswith":
		match := strings.HasPrefix
		if name == "endswith" {
			match = strings.HasSuffix
		}
		v, _ := args.at(0, "")
		switch v := v.(type) {
		case string:
			return match(s, v), true
		case List:
			for _, x := range v {
				if t, ok := x.(string); ok && match(s, t) {
					return true, true
				}
			}
			return false, true
		}
		return nil, false
	case "replace":
		from, ok1 := args.text(0, "old")
		to, ok2 := args.text(1, "new")
		return strings.Replace(s, from, to, args.integer(2, "count", -1)), ok1 && ok2
	case "upper":
		return strings.ToUpper(s), true
	case "lower", "casefold":
		return strings.ToLower(s), true
	case "capitalize":
		_, w := utf8.DecodeRuneInString(s)
		return strings.ToUpper(s[:w]) + strings.ToLower(s[w:]), true
	case "title":
		return titleCase(s), true
	case "join":
		v, _ := args.at(0, "")
		items, ok := each(v)
		parts := make([]string, len(items))
		for i, item := range items {
			part, isText := item.(string)
			ok = ok && isText
			parts[i] = part
		}
		return strings.Join(parts, s), ok
	case "find", "index":
		sub, ok := args.text(0, "")
		at := strings.Index(s, sub)
		if at > 0 {
			at = utf8.RuneCountInString(s[:at])
		}
		return at, ok && (name == "find" || at >= 0)
	case "count":
		sub, ok := args.text(0, "")
		return strings.Count(s, sub), ok
	case "isdigit", "isnumeric", "isdecimal":
		return s != "" && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsDigit(r) }) < 0, true
	case "isalpha":
		return s != "" && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsLetter(r) }) < 0, true
	case "isspace":
		return s != "" && strings.TrimSpace(s) == "", true
	case "isupper":
		return s != strings.ToLower(s) && s == strings.ToUpper(s), true
	case "islower":
		return s != strings.ToUpper(s) && s == strings.ToLower(s), true
	case "removeprefix":
		prefix, ok := args.text(0, "")
		return strings.TrimPrefix(s, prefix), ok
	case "removesuffix":
		suffix, ok := args.text(0, "")
		return strings.TrimSuffix(s, suffix), ok
	}
	return nil, false
}

// splitText is str.split and str.rsplit: at a separator, or at runs of white space.
func splitText(s string, fromRight bool, args arguments) (any, bool) {
	separator, given := args.text(0, "sep")
	limit := args.integer(1, "maxsplit", -1)
	if given && separator == "" {
		return nil, false
	}
	out := List{}
	if !given {
		for limit != 0 || fromRight {
			if fromRight && limit >= 0 {
				return splitBlanksFromRight(s, limit), true
			}
			s = strings.TrimLeftFunc(s, unicode.IsSpace)
			end := strings.IndexFunc(s, unicode.IsSpace)
			if end < 0 {
				break
			}
			out = append(out, s[:end])
			s = s[end:]
			limit--
		}
		if s = strings.TrimLeftFunc(s, unicode.IsSpace); s != "" {
			out = append(out, s)
		}
		return out, true
	}
	if !fromRight {
		n := -1
		if limit >= 0 {
			n = limit + 1
		}
		for _, part := range strings.SplitN(s, separator, n) {
			out = append(out, part)
		}
		return out, true
	}
	for limit != 0 {
		at := strings.LastIndex(s, separator)
		if at < 0 {
			break
		}
		out = append(out, s[at+len(separator):])
		s = s[:at]
		limit--
	}
	out = append(out, s)
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out, true
}

func splitBlanksFromRight(s string, limit int) List {
	var out List
	for s = strings.TrimRightFunc(s, unicode.IsSpace); s != "" && limit > 0; limit-- {
		at := strings.LastIndexFunc(s, unicode.IsSpace)
		if at < 0 {
			break
		}
		_, w := utf8.DecodeRuneInString(s[at:])
		out = append(List{s[at+w:]}, out...)
		s = strings.TrimRightFunc(s[:at], unicode.IsSpace)
	}
	if s != "" {
		out = append(List{s}, out...)
	}
	return out
}

func splitLines(s string) List {
	out := List{}
	for s != "" {
		end := strings.IndexFunc(s, func(r rune) bool {
			return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
		})
		if end < 0 {
			return append(out, s)
		}
		out = append(out, s[:end])
		_, w := utf8.DecodeRuneInString(s[end:])
		if strings.HasPrefix(s[end:], "\r\n") {
			w = 2
		}
		s = s[end+w:]
	}
	return out
}

func titleCase(s string) string {
	inWord := false
	return strings.Map(func(r rune) rune {
		was := inWord
		inWord = unicode.IsLetter(r)
		if !inWord {
			return r
		}
		if was {
			return unicode.ToLower(r)
		}
		return unicode.ToTitle(r)
	}, s)
}

func objectMethod(o Object, name string, args arguments) (any, bool) {
	switch name {
	case "items":
		return o.items(), true
	case "keys":
		return o.keys(), true
	case "values":
		return o.values(), true
	case "copy":
		return append(Object(nil), o...), true
	case "get":
		key, ok := args.text(0, "")
		if v, found := o.Get(key); found {
			return v, ok
		}
		if fallback, given := args.at(1, ""); given {
			return fallback, ok
		}
		return Null, ok
	}
	return nil, false
}

func listMethod(l List, name string, args arguments) (any, bool) {
	v, given := args.at(0, "")
	switch name {
	case "copy":
		return append(List(nil), l...), true
	case "index":
		for i := range l {
			if equal(l[i], v) {
				return i, given
			}
		}
	case "count":
		n := 0
		for i := range l {
			if equal(l[i], v) {
				n++
			}
		}
		return n, given
	}
	return nil, false
}
