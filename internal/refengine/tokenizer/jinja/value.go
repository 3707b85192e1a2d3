package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"strconv"

	"github.com/nikolalohinski/gonja/v2/exec"
)

// Object is a mapping that keeps its keys in order: tool schemas are printed into the prompt.
type Object []Member

// Member is one key of an Object.
type Member struct {
	Key   string
	Value any
}

// List is a list; negative indices count from the end.
type List []any

// none is the type of Null.
type none [0]byte

// Null is JSON's null and the template's none. It is defined, unlike a missing name, which is a plain
// nil. (It is an empty array so that the template engine takes it for a value, and for a false one.)
var Null any = none{}

// number is one that a machine integer would change, kept as it was written.
type number string

var (
	_ exec.ItemGetter      = Object(nil)
	_ exec.AttributeGetter = Object(nil)
	_ exec.ItemGetter      = List(nil)
	_ exec.ItemGetter      = none{}
	_ exec.AttributeGetter = none{}
)

// Get returns the value of key.
func (o Object) Get(key string) (any, bool) {
	for i := range o {
		if o[i].Key == key {
			return o[i].Value, true
		}
	}
	return nil, false
}

// Set replaces the value of key in place, or adds it at the end.
func (o Object) Set(key string, value any) Object {
	for i := range o {
		if o[i].Key == key {
			o[i].Value = value
			return o
		}
	}
	return append(o, Member{key, value})
}

func (o Object) keys() List {
	keys := make(List, len(o))
	for i := range o {
		keys[i] = o[i].Key
	}
	return keys
}

func (o Object) values() List {
	values := make(List, len(o))
	for i := range o {
		values[i] = o[i].Value
	}
	return values
}

func (o Object) items() List {
	items := make(List, len(o))
	for i := range o {
		items[i] = List{o[i].Key, o[i].Value}
	}
	return items
}

// GetItem is o["key"].
func (o Object) GetItem(key any) (*exec.Value, bool) {
	if name, ok := key.(string); ok {
		if v, found := o.Get(name); found {
			return exec.AsValue(v), true
		}
	}
	return exec.AsValue(nil), false
}

// GetAttribute is o.key. Methods are reached another way: see methodFunction.
func (o Object) GetAttribute(name string) (*exec.Value, bool) { return o.GetItem(name) }

// GetItem is l[i], from the end for i < 0.
func (l List) GetItem(key any) (*exec.Value, bool) {
	i, ok := key.(int)
	if ok && i < 0 {
		i += len(l)
	}
	if !ok || i < 0 || i >= len(l) {
		return exec.AsValue(nil), false
	}
	return exec.AsValue(l[i]), true
}

// GetItem finds nothing: null["x"] is undefined.
func (none) GetItem(any) (*exec.Value, bool) { return exec.AsValue(nil), false }

// GetAttribute finds nothing: null.x is undefined.
func (none) GetAttribute(string) (*exec.Value, bool) { return exec.AsValue(nil), false }

// maxJSONDepth is how deep messages and tools may be nested. Python's own limit is about 1000.
const maxJSONDepth = 500

// Decode reads one JSON value. Keys keep their order; of a key that occurs twice the last value
// counts, at the place of the first, as in Python.
func Decode(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := decodeValue(d, maxJSONDepth)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return v, nil
}

func decodeValue(d *json.Decoder, depth int) (any, error) {
	tok, err := d.Token()
	if err != nil {
		return nil, err
	}
	if depth == 0 {
		return nil, fmt.Errorf("nested more than %d deep", maxJSONDepth)
	}
	switch tok := tok.(type) {
	case nil:
		return Null, nil
	case json.Number:
		return numberValue(tok.String()), nil
	case json.Delim:
		if tok == '[' {
			values := List{}
			for d.More() {
				v, err := decodeValue(d, depth-1)
				if err != nil {
					return nil, err
				}
				values = append(values, v)
			}
			_, err := d.Token()
			return values, err
		}
		return decodeObject(d, depth)
	default: // string, bool
		return tok, nil
	}
}

func decodeObject(d *json.Decoder, depth int) (any, error) {
	o := Object{}
	var at map[string]int // position by key, once there are many
	for d.More() {
		tok, err := d.Token()
		if err != nil {
			return nil, err
		}
		key, ok := tok.(string)
		if !ok {
			return nil, fmt.Errorf("object key is %v", tok)
		}
		v, err := decodeValue(d, depth-1)
		if err != nil {
			return nil, err
		}
		if at == nil && len(o) < 16 {
			o = o.Set(key, v)
			continue
		}
		if at == nil {
			at = make(map[string]int)
			for i := range o {
				at[o[i].Key] = i
			}
		}
		if i, twice := at[key]; twice {
			o[i].Value = v
			continue
		}
		at[key] = len(o)
		o = append(o, Member{key, v})
	}
	_, err := d.Token()
	return o, err
}

// numberValue keeps literal as an int if that prints the same.
func numberValue(literal string) any {
	if i, err := strconv.Atoi(literal); err == nil && strconv.Itoa(i) == literal {
		return i
	}
	return number(literal)
}

// Value converts what Go code passes as a variable: what encoding/json makes, integers, and the types
// of this package. Maps have no order, so their
// keys are sorted; pass json.RawMessage to keep an order.
func Value(v any) (any, error) {
	switch v := v.(type) {
	case nil:
		return Null, nil
	case bool, string, int, Object, List, none, number:
		return v, nil
	case int32:
		return int(v), nil
	case int64:
		return int(v), nil
	case float64:
		if i := int(v); float64(i) == v && i > -1<<53 && i < 1<<53 {
			return i, nil
		}
		return number(strconv.FormatFloat(v, 'g', -1, 64)), nil
	case json.Number:
		return numberValue(v.String()), nil
	case json.RawMessage:
		return Decode(v)
	case []any:
		out := make(List, len(v))
		for i := range v {
			item, err := Value(v[i])
			if err != nil {
				return nil, err
			}
			out[i] = item
		}
		return out, nil
	case map[string]any:
		keys := make([]string, 0, len(v))
		for key := range v {
			keys = append(keys, key)
		}
		sort.Strings(keys)
		out := make(Object, len(keys))
		for i, key := range keys {
			item, err := Value(v[key])
			if err != nil {
				return nil, err
			}
			out[i] = Member{key, item}
		}
		return out, nil
	default:
		return nil, fmt.Errorf("value of type %T", v)
	}
}
