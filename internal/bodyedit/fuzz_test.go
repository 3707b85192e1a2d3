package bodyedit

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// seeds adds the recorded bodies and the awkward ones of the field reports to a fuzz corpus.
func seeds(f *testing.F) {
	files, err := filepath.Glob("../../testdata/vllm-*/wire/*.json")
	if err != nil || len(files) < 50 {
		f.Fatalf("recordings: %d files, %v", len(files), err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		if len(b) < 4096 {
			f.Add(b)
		}
	}
	for _, s := range []string{
		`{}`, ` { } `, `{"a":1}`, `{"a":1,"a":2}`, `{"\u0061":1,"A":2}`, nested(400), nested(MaxDepth + 1),
		`{"n":12345678901234567890,"e":1e400,"t":0.10,"z":-0}`, "{\"s\":\"\u2028\\u0000\xff\"}", `{"a":[{"b":[]},{}],"c":{}}`,
		"{\n\t\"a\" : [ 1 , 2 ] ,\r\n \"b\" : { \"c\" : null }\n}\n", `{"a":1,}`, `{"a":"\ud800"}`,
	} {
		f.Add([]byte(s))
	}
}

// depthOf is the deepest nesting of a well-formed text.
func depthOf(b []byte) int {
	depth, deepest := 0, 0
	dec := json.NewDecoder(bytes.NewReader(b))
	for {
		tok, err := dec.Token()
		if err != nil {
			return deepest
		}
		switch tok {
		case json.Delim('{'), json.Delim('['):
			depth++
			deepest = max(deepest, depth)
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
}

func FuzzScan(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := Scan(b)
		trimmed := bytes.TrimLeft(b, " \t\r\n")
		want := json.Valid(b) && len(trimmed) > 0 && trimmed[0] == '{' && depthOf(b) <= MaxDepth
		if (err == nil) != want {
			t.Fatalf("Scan(%q) = %v, encoding/json says %v", b, err, want)
		}
		if err != nil {
			if se := new(SyntaxError); !errors.As(err, &se) || se.Offset < 0 || se.Offset > len(b) {
				t.Fatalf("Scan(%q): %v", b, err)
			}
			return
		}
		checkMembers(t, b, d)
	})
}

// checkMembers compares the members of d with what encoding/json decodes.
func checkMembers(t *testing.T, b []byte, d *Doc) {
	t.Helper()
	var want map[string]json.RawMessage
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatal(err)
	}
	got := map[string]json.RawMessage{}
	for m := range d.Members() {
		got[decodeName(t, m.RawName)] = m.Raw
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("members of %q (-want +got):\n%s", b, diff)
	}
	for m := range d.Members() {
		var viaRaw, viaDoc []string
		for x := range Members(m.Raw) {
			viaRaw = append(viaRaw, string(x.RawName)+"="+string(x.Raw))
		}
		for x := range d.MembersOf(m.Span) {
			viaDoc = append(viaDoc, string(x.RawName)+"="+string(d.Bytes(x.Span)))
		}
		for x := range Elements(m.Raw) {
			viaRaw = append(viaRaw, string(x))
		}
		for x := range d.ElementsOf(m.Span) {
			viaDoc = append(viaDoc, string(d.Bytes(x)))
		}
		if diff := cmp.Diff(viaRaw, viaDoc); diff != "" {
			t.Fatalf("items of %q (-raw +doc):\n%s", m.Raw, diff)
		}
		switch KindOf(m.Raw) {
		case Object:
			var inner map[string]json.RawMessage
			if err := json.Unmarshal(m.Raw, &inner); err != nil || len(inner) > len(viaRaw) {
				t.Fatalf("members of %q: %d, want at least %d", m.Raw, len(viaRaw), len(inner))
			}
		case Array:
			var inner []json.RawMessage
			if err := json.Unmarshal(m.Raw, &inner); err != nil || len(inner) != len(viaRaw) {
				t.Fatalf("elements of %q: %d, want %d", m.Raw, len(viaRaw), len(inner))
			}
		case Text:
			var want string
			if err := json.Unmarshal(m.Raw, &want); err != nil {
				t.Fatal(err)
			}
			if got, _ := String(m.Raw); strings.ToValidUTF8(got, "\ufffd") != strings.ToValidUTF8(want, "\ufffd") && !bytes.ContainsFunc(m.Raw, func(r rune) bool { return r == '\ufffd' }) {
				t.Fatalf("String(%q) = %q, want %q", m.Raw, got, want)
			}
		}
	}
}

// decodeName decodes a member name as encoding/json does.
func decodeName(t *testing.T, raw []byte) string {
	t.Helper()
	var s string
	if err := json.Unmarshal([]byte(`"`+string(raw)+`"`), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// decode decodes a body without losing digits.
func decode(t *testing.T, b []byte) map[string]any {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var m map[string]any
	if err := dec.Decode(&m); err != nil {
		t.Fatalf("edited body %q: %v", b, err)
	}
	return m
}

func FuzzEdit(f *testing.F) {
	files, err := filepath.Glob("../../testdata/vllm-*/wire/*.req.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, "stream", "max_tokens", "kv_transfer_params", `{"do_remote_decode":true}`)
	}
	f.Add([]byte(`{"a":1,"b":2,"a":3,"\u0061":4}`), "a", "c", "b", `[]`)
	f.Add([]byte(`{ }`), "", "a", "a", `1`)
	f.Fuzz(func(t *testing.T, b []byte, drop, set, both, value string) {
		d, err := Scan(b)
		if err != nil || !json.Valid([]byte(value)) || !validNames(b, drop, set, both) || depthOf([]byte(value)) > MaxDepth-1 {
			return
		}
		e := d.Edit()
		e.Delete(drop)
		e.Set(set, []byte(value))
		e.Delete(both)
		e.Set(both, []byte(value))
		got := e.Bytes()

		want := decode(t, b)
		delete(want, drop)
		var v any
		dec := json.NewDecoder(strings.NewReader(value))
		dec.UseNumber()
		if err := dec.Decode(&v); err != nil {
			t.Fatal(err)
		}
		want[set], want[both] = v, v
		if diff := cmp.Diff(want, decode(t, got)); diff != "" {
			t.Fatalf("edit of %q = %q (-want +got):\n%s", b, got, diff)
		}
		if e.Len() != int64(len(got)) {
			t.Fatalf("Len = %d, want %d", e.Len(), len(got))
		}
		if _, err := Scan(got); err != nil {
			t.Fatalf("edit of %q = %q: %v", b, got, err)
		}
		// What was not edited stands in the result with the same bytes and in the same order.
		at := 0
		for m := range d.Members() {
			if m.Is(drop) || m.Is(set) || m.Is(both) {
				continue
			}
			whole := b[m.nameAt:m.Span.End]
			k := bytes.Index(got[at:], whole)
			if k < 0 {
				t.Fatalf("edit of %q = %q lost %q", b, got, whole)
			}
			at += k + len(whole)
		}
	})
}

// validNames reports whether names can be compared with those of b through encoding/json, which replaces
// broken UTF-8 and lone surrogates while this package compares bytes.
func validNames(b []byte, names ...string) bool {
	if strings.ToValidUTF8(string(b), "") != string(b) || bytes.Contains(b, []byte("\ufffd")) || bytes.Contains(bytes.ToLower(b), []byte(`\ud`)) || bytes.Contains(bytes.ToLower(b), []byte(`\uf`)) {
		return false
	}
	for _, n := range names {
		if strings.ToValidUTF8(n, "") != n || strings.Contains(n, "\ufffd") {
			return false
		}
	}
	return true
}

// genJSON draws a JSON value as text, with white space wherever JSON allows it.
func genJSON(t *rapid.T, depth int) string {
	ws := rapid.SampledFrom([]string{"", "", "", " ", "\n  ", "\t", "\r\n"})
	kinds := 5
	if depth == 0 {
		kinds = 3
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return rapid.SampledFrom([]string{"null", "true", "false", "0", "-0", "1e400", "0.10", "12345678901234567890"}).Draw(t, "scalar")
	case 1, 2:
		return rapid.SampledFrom([]string{`""`, `"a"`, `"\""`, `"}{][,:"`, `"\\"`, "\"\u2028é\"", `"\ud83d\ude00"`, `"0123456789abcdef"`}).Draw(t, "string")
	case 3:
		return genObject(t, depth-1)
	default:
		var s strings.Builder
		s.WriteString("[" + ws.Draw(t, "ws"))
		for i := range rapid.IntRange(0, 3).Draw(t, "elements") {
			if i > 0 {
				s.WriteString("," + ws.Draw(t, "ws"))
			}
			s.WriteString(genJSON(t, depth-1) + ws.Draw(t, "ws"))
		}
		return s.String() + "]"
	}
}

func genObject(t *rapid.T, depth int) string {
	ws := rapid.SampledFrom([]string{"", "", "", " ", "\n  "})
	var s strings.Builder
	s.WriteString("{" + ws.Draw(t, "ws"))
	for i := range rapid.IntRange(0, 5).Draw(t, "members") {
		if i > 0 {
			s.WriteString("," + ws.Draw(t, "ws"))
		}
		name := rapid.SampledFrom([]string{`"a"`, `"b"`, `"c"`, `"d"`, `"\u0061"`, `"A"`, `""`}).Draw(t, "name")
		s.WriteString(name + ws.Draw(t, "ws") + ":" + ws.Draw(t, "ws") + genJSON(t, depth) + ws.Draw(t, "ws"))
	}
	return s.String() + "}"
}

// Any sequence of edits, at the top and inside, means what the same sequence means on the decoded object.
func TestEditsMatchModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		body := []byte(genObject(rt, 3))
		d, err := Scan(body)
		if err != nil {
			rt.Fatalf("Scan(%q): %v", body, err)
		}
		model := decode(t, body)
		e := d.Edit()
		gone := map[string]bool{} // names whose value is no longer that of the document
		names := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "", "A"})
		for range rapid.IntRange(0, 8).Draw(rt, "edits") {
			name := names.Draw(rt, "name")
			value := genJSON(rt, 1)
			inner, innerOK := innerObject(d, model, name)
			innerOK = innerOK && !gone[name]
			switch rapid.IntRange(0, 3).Draw(rt, "op") {
			case 0:
				e.Delete(name)
				delete(model, name)
				gone[name] = true
			case 1:
				e.Set(name, []byte(value))
				gone[name] = true
				model[name] = decode(t, []byte(`{"v":`+value+`}`))["v"]
			case 2:
				if sp, ok := d.Path(name); ok && innerOK {
					e.DeleteMember(sp, "a")
					delete(inner, "a")
				}
			case 3:
				if sp, ok := d.Path(name); ok && innerOK {
					e.SetMember(sp, "b", []byte(value))
					inner["b"] = decode(t, []byte(`{"v":`+value+`}`))["v"]
				}
			}
		}
		got := e.Bytes()
		if diff := cmp.Diff(model, decode(t, got)); diff != "" {
			rt.Fatalf("edit of %s = %s (-want +got):\n%s", body, got, diff)
		}
		var viaReader bytes.Buffer
		if n, err := e.WriteTo(&viaReader); err != nil || n != e.Len() || !bytes.Equal(viaReader.Bytes(), got) {
			rt.Fatalf("WriteTo = %d, %v, %s, want %s", n, err, viaReader.Bytes(), got)
		}
	})
}

// innerObject returns the object that the model holds under name.
func innerObject(d *Doc, model map[string]any, name string) (map[string]any, bool) {
	m, ok := d.Find(name)
	if !ok || KindOf(m.Raw) != Object {
		return nil, false
	}
	inner, ok := model[name].(map[string]any)
	return inner, ok
}

// What ScanList remembers is what Objects finds, and it refuses what Scan refuses, for the same reason.
func FuzzScanList(f *testing.F) {
	seeds(f)
	for _, s := range []string{
		`{"a":[]}`, `{"a":[{}]}`, `{"a":[ { "x" : 1 , "x" : "]}" } , [{"no":0}] , null , {"y":{}} ] }`, `{"a":[{"b":1}],"a":[2]}`, `{"a":[1],"a":3}`,
		`{"\u0061":[{"b":1}]}`, `{"a":[{"b":1},]}`, `{"a":[{"b":1,}]}`, `{"a":[{"b":1}`, `{"a":[{"b":1}]`, `{"a":[{"b" 1}]}`, `{"a":[{"b":1]}`, `{"a":[,]}`, `{"a":`, `{"a":[`,
		`{"a":[{`, `{"messages":[{"role":"user","content":"hi"}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, name := range []string{"a", "messages", "choices"} {
			d, err := ScanList(b, name)
			plain, plainErr := Scan(b)
			if diff := cmp.Diff(plainErr, err, cmp.Comparer(func(a, b error) bool { return (a == nil) == (b == nil) && (a == nil || a.Error() == b.Error()) })); diff != "" {
				t.Fatalf("ScanList(%q, %q) (-Scan +ScanList):\n%s", b, name, diff)
			}
			if err != nil {
				continue
			}
			checkMembers(t, b, d)
			type object struct {
				Raw     string
				Members []string
			}
			list := func(elements func(func(Member)) func(func([]byte) bool)) (all []object) {
				var members []string
				for el := range elements(func(m Member) { members = append(members, string(m.RawName)+"="+string(m.Raw)) }) {
					all = append(all, object{string(el), members})
					members = nil
				}
				return all
			}
			want := list(func(visit func(Member)) func(func([]byte) bool) { return Objects(plain.Get(name), visit) })
			got := list(func(visit func(Member)) func(func([]byte) bool) { return d.Listed(visit) })
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("Listed of %q in %q (-Objects +Listed):\n%s", name, b, diff)
			}
		}
	})
}
