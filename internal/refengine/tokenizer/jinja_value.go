package tokenizer

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

// The values a template sees. Strings, booleans and whole numbers are Go's own; the other kinds of
// JSON need types that behave like Python's:
//
//   - object keeps its keys in order, because tool schemas are printed into the prompt;
//   - list counts from the end for negative indices;
//   - none is JSON's null, which is defined, unlike a missing name (a plain nil);
//   - number is one that a machine integer would change, kept as it was written.
type (
	object []member
	member struct {
		key   string
		value any
	}
	list   []any
	none   [0]byte
	number string
)

// theNone is an empty array so that the template engine takes it for a value, and for a false one.
var theNone = none{}

var (
	_ exec.ItemGetter      = object(nil)
	_ exec.AttributeGetter = object(nil)
	_ exec.ItemGetter      = list(nil)
	_ exec.ItemGetter      = none{}
	_ exec.AttributeGetter = none{}
)

func (o object) get(key string) (any, bool) {
	for i := range o {
		if o[i].key == key {
			return o[i].value, true
		}
	}
	return nil, false
}

// set replaces the value of key in place, or adds it at the end.
func (o object) set(key string, value any) object {
	for i := range o {
		if o[i].key == key {
			o[i].value = value
			return o
		}
	}
	return append(o, member{key, value})
}

func (o object) keys() list {
	keys := make(list, len(o))
	for i := range o {
		keys[i] = o[i].key
	}
	return keys
}

func (o object) values() list {
	values := make(list, len(o))
	for i := range o {
		values[i] = o[i].value
	}
	return values
}

func (o object) items() list {
	items := make(list, len(o))
	for i := range o {
		items[i] = list{o[i].key, o[i].value}
	}
	return items
}

// GetItem is o["key"].
func (o object) GetItem(key any) (*exec.Value, bool) {
	if name, ok := key.(string); ok {
		if v, found := o.get(name); found {
			return exec.AsValue(v), true
		}
	}
	return exec.AsValue(nil), false
}

// GetAttribute is o.key. Methods are reached another way: see callMethod.
func (o object) GetAttribute(name string) (*exec.Value, bool) { return o.GetItem(name) }

// GetItem is l[i], from the end for i < 0.
func (l list) GetItem(key any) (*exec.Value, bool) {
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

// decodeJSON reads one JSON value. Keys keep their order; of a key that occurs twice the last value
// counts, at the place of the first, as in Python.
func decodeJSON(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := decodeValue(d, maxJSONDepth)
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
		if errors.Is(err, io.EOF) {
			return nil, io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return decodeFrom(d, tok, depth)
}

func decodeFrom(d *json.Decoder, tok json.Token, depth int) (any, error) {
	if depth == 0 {
		return nil, fmt.Errorf("nested more than %d deep", maxJSONDepth)
	}
	switch tok := tok.(type) {
	case nil:
		return theNone, nil
	case json.Number:
		return numberValue(tok.String()), nil
	case json.Delim:
		if tok == '[' {
			values := list{}
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
	o := object{}
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
			o = o.set(key, v)
			continue
		}
		if at == nil {
			at = make(map[string]int)
			for i := range o {
				at[o[i].key] = i
			}
		}
		if i, twice := at[key]; twice {
			o[i].value = v
			continue
		}
		at[key] = len(o)
		o = append(o, member{key, v})
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

// templateValue converts what Go code passes as a template variable. Maps have no order, so their
// keys are sorted; pass json.RawMessage to keep an order.
func templateValue(v any) (any, error) {
	switch v := v.(type) {
	case nil:
		return theNone, nil
	case bool, string, int, object, list, none, number:
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
		return decodeJSON(v)
	case []any:
		out := make(list, len(v))
		for i := range v {
			item, err := templateValue(v[i])
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
		out := make(object, len(keys))
		for i, key := range keys {
			item, err := templateValue(v[key])
			if err != nil {
				return nil, err
			}
			out[i] = member{key, item}
		}
		return out, nil
	default:
		return nil, fmt.Errorf("template variable of type %T", v)
	}
}
