package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// fields is a request body, member by member. The getters convert as leniently as vLLM's schema does:
// "5", 5.0 and true are integers, 1 and "yes" are booleans. The first member that does not fit is kept in
// err and makes all later getters return their defaults.
type fields struct {
	m   map[string]json.RawMessage
	err *apiError
}

// parseFields reads a JSON object. If a member is given twice the last one counts.
func parseFields(body []byte) (*fields, *apiError) {
	trimmed := bytes.TrimLeft(body, " \t\r\n")
	if len(trimmed) == 0 {
		return nil, invalidBody("body", "missing", "", "Field required")
	}
	if !utf8.Valid(body) { // Go would take it, and say it again in replies
		return nil, invalidBody("body", "json_invalid", "", "JSON decode error")
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(body, &m); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			e := invalidBody("body", "json_invalid", "", "JSON decode error")
			e.message = strings.Replace(e.message, "('body',)", "('body', "+strconv.FormatInt(syntax.Offset, 10)+")", 1)
			return nil, e
		}
		return nil, invalidBody("body", "model_attributes_type", "",
			"Input should be a valid dictionary or object to extract fields from")
	}
	if m == nil { // the body is null
		return nil, invalidBody("body", "missing", "", "Field required")
	}
	return &fields{m: m}, nil
}

// raw returns the member, nil if it is missing or null.
func (f *fields) raw(name string) json.RawMessage {
	v := f.m[name]
	if isNull(v) {
		return nil
	}
	return v
}

// only returns the named members.
func (f *fields) only(names []string) *fields {
	m := make(map[string]json.RawMessage, len(names))
	for _, name := range names {
		if v, ok := f.m[name]; ok {
			m[name] = v
		}
	}
	return &fields{m: m}
}

func (f *fields) has(name string) bool { return f.raw(name) != nil }

func (f *fields) fail(name, kind, message string) {
	if f.err == nil {
		f.err = invalidBody("body."+name, kind, name, message)
	}
}

// refuse keeps an error found by a rule that is not about one member's type.
func (f *fields) refuse(e *apiError) {
	if f.err == nil {
		f.err = e
	}
}

func (f *fields) bool(name string, def bool) bool {
	v := f.raw(name)
	if v == nil || f.err != nil {
		return def
	}
	switch strings.ToLower(strings.Trim(string(v), `"`)) {
	case "true", "1", "1.0", "yes", "on", "t", "y":
		return true
	case "false", "0", "0.0", "no", "off", "f", "n":
		return false
	}
	f.fail(name, "bool_parsing", "Input should be a valid boolean, unable to interpret input")
	return def
}

// truthy is Python's idea of the member being set, for rules that look before types are checked.
func (f *fields) truthy(name string) bool {
	switch v := string(f.raw(name)); v {
	case "", "false", "0", "0.0", `""`, "[]", "{}":
		return false
	default:
		return true
	}
}

// int returns the member and whether it was given.
func (f *fields) int(name string, def int) (int, bool) {
	v := f.raw(name)
	if v == nil || f.err != nil {
		return def, false
	}
	n, ok := lenientInt(v)
	if !ok {
		f.fail(name, "int_parsing", "Input should be a valid integer, unable to parse string as an integer")
		return def, false
	}
	return n, true
}

func lenientInt(v json.RawMessage) (int, bool) {
	switch string(v) {
	case "true":
		return 1, true
	case "false":
		return 0, true
	}
	s := strings.TrimSpace(strings.Trim(string(v), `"`))
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return int(n), true
	}
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || x != math.Trunc(x) || math.Abs(x) > 1<<53 {
		return 0, false
	}
	return int(x), true
}

// float returns the member and whether it was given.
func (f *fields) float(name string, def float64) (float64, bool) {
	v := f.raw(name)
	if v == nil || f.err != nil {
		return def, false
	}
	s := strings.TrimSpace(strings.Trim(string(v), `"`))
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
		f.fail(name, "float_parsing", "Input should be a valid number, unable to parse string as a number")
		return def, false
	}
	return x, true
}

func (f *fields) string(name string) (string, bool) {
	v := f.raw(name)
	if v == nil || f.err != nil {
		return "", false
	}
	var s string
	if json.Unmarshal(v, &s) != nil {
		f.fail(name, "string_type", "Input should be a valid string")
		return "", false
	}
	return s, true
}

// strings reads one string or a list of them.
func (f *fields) strings(name string) []string {
	v := f.raw(name)
	if v == nil || f.err != nil {
		return nil
	}
	var one string
	if json.Unmarshal(v, &one) == nil {
		return []string{one}
	}
	var many []string
	if json.Unmarshal(v, &many) != nil {
		f.fail(name, "list_type", "Input should be a valid list")
		return nil
	}
	return many
}

// ids reads a list of token ids.
func (f *fields) ids(name string) []int32 {
	v := f.raw(name)
	if v == nil || f.err != nil {
		return nil
	}
	out, ok := parseIDs(v)
	if !ok {
		f.fail(name, "list_type", "Input should be a valid list")
	}
	return out
}

// parseIDs reads a JSON list of integers. v is valid JSON. Lists are long: nothing is allocated but the ids.
func parseIDs(v json.RawMessage) ([]int32, bool) {
	if len(v) == 0 || v[0] != '[' {
		return nil, false
	}
	out := make([]int32, 0, bytes.Count(v, []byte(","))+1)
	for i := 1; i < len(v); {
		switch c := v[i]; {
		case c == ' ' || c == ',' || c == '\n' || c == '\r' || c == '\t':
			i++
		case c == ']':
			return out, true
		case c == '-' || c >= '0' && c <= '9':
			from := i
			for i++; i < len(v) && v[i] >= '0' && v[i] <= '9'; i++ {
			}
			if c := v[i]; c == '.' || c == 'e' || c == 'E' {
				return nil, false
			}
			n, err := strconv.ParseInt(string(v[from:i]), 10, 32)
			if err != nil {
				return nil, false
			}
			out = append(out, int32(n))
		default:
			return nil, false
		}
	}
	return nil, false
}

// object reads a member that must be a JSON object.
func (f *fields) object(name string) map[string]json.RawMessage {
	v := f.raw(name)
	if v == nil || f.err != nil {
		return nil
	}
	var m map[string]json.RawMessage
	if json.Unmarshal(v, &m) != nil {
		f.fail(name, "dict_type", "Input should be a valid dictionary")
		return nil
	}
	return m
}

// list reads a member that must be a list of objects.
func (f *fields) list(name string) []json.RawMessage {
	v := f.raw(name)
	if v == nil || f.err != nil {
		return nil
	}
	var list []json.RawMessage
	if json.Unmarshal(v, &list) != nil {
		f.fail(name, "list_type", "Input should be a valid list")
		return nil
	}
	for _, x := range list {
		if len(x) == 0 || x[0] != '{' {
			f.fail(name, "dict_type", "Input should be a valid dictionary")
			return nil
		}
	}
	return list
}
