package bodyedit

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// nested returns an object whose member x holds depth-1 containers inside each other.
func nested(depth int) string {
	return `{"x":` + strings.Repeat("[", depth-1) + strings.Repeat("]", depth-1) + `}`
}

func TestScanAccepts(t *testing.T) {
	t.Parallel()
	f := func(body string, want ...string) {
		t.Helper()
		d, err := Scan([]byte(body))
		if err != nil {
			t.Fatalf("Scan(%.80q): %v", body, err)
		}
		var got []string
		for m := range d.Members() {
			got = append(got, m.Name()+"="+string(m.Raw))
			if raw := string(d.Bytes(m.Span)); raw != string(m.Raw) {
				t.Errorf("Scan(%.80q): span of %s holds %q, want %q", body, m.Name(), raw, m.Raw)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Scan(%.80q) members (-want +got):\n%s", body, diff)
		}
		if !json.Valid([]byte(body)) {
			t.Errorf("Scan(%.80q) accepts what encoding/json refuses", body)
		}
	}

	f(`{}`)
	f(" \t\r\n{ \n} ")
	f(`{"a":1}`, "a=1")
	f(`{ "a" : 1 , "b":[ 1, {"c" : "}"} ] }`, "a=1", `b=[ 1, {"c" : "}"} ]`)
	// the second occurrence is reported as well: engines take the last one
	f(`{"a":1,"a":null}`, "a=1", "a=null")
	// an escaped name is the same name
	f(`{"\u006bv_transfer_params":{}}`, "kv_transfer_params={}")
	f(`{"a\"b":"\"","":""}`, `a"b="\""`, `=""`)
	// numbers stay text: nothing is rounded
	f(`{"n":12345678901234567890,"e":1e400,"t":0.10,"z":-0,"x":-1.5E+3}`,
		"n=12345678901234567890", "e=1e400", "t=0.10", "z=-0", "x=-1.5E+3")
	// U+2028, an escaped NUL, a lone surrogate, bytes that are not UTF-8
	f("{\"s\":\"\u2028\\u0000\\ud800\xff\"}", "s=\"\u2028\\u0000\\ud800\xff\"")
	f(`{"a":true,"b":false,"c":null}`, "a=true", "b=false", "c=null")
	deep := nested(400)
	f(deep, "x="+deep[5:len(deep)-1])
	deep = nested(MaxDepth)
	f(deep, "x="+deep[5:len(deep)-1])
}

func TestScanRefuses(t *testing.T) {
	t.Parallel()
	f := func(body string, offset int, reason string) {
		t.Helper()
		_, err := Scan([]byte(body))
		var got *SyntaxError
		if !errors.As(err, &got) {
			t.Fatalf("Scan(%.80q) = %v, want a SyntaxError", body, err)
		}
		if diff := cmp.Diff(&SyntaxError{offset, reason}, got); diff != "" {
			t.Errorf("Scan(%.80q) (-want +got):\n%s", body, diff)
		}
	}

	f(``, 0, reasonEnd)
	f(`  `, 2, reasonEnd)
	f(`[]`, 0, reasonObject)
	f(`null`, 0, reasonObject)
	f("\xef\xbb\xbf{}", 0, reasonObject)   // byte order mark
	f("{\x00\"\x00a\x00", 1, reasonName)   // UTF-16, little endian
	f("\x00{\x00\"\x00a", 0, reasonObject) // UTF-16, big endian
	f(`{`, 1, reasonEnd)
	f(`{"a"`, 4, reasonEnd)
	f(`{"a":`, 5, reasonEnd)
	f(`{"a":1`, 6, reasonEnd)
	f(`{"a":1,`, 7, reasonEnd)
	f(`{"a":1,}`, 7, reasonName)
	f(`{,}`, 1, reasonName)
	f(`{"a":1 "b":2}`, 7, reasonNext)
	f(`{"a" 1}`, 5, reasonColon)
	f(`{"a":1}}`, 7, reasonTrailing)
	f(`{"a":1} x`, 8, reasonTrailing)
	f(`{"a":[1,]}`, 8, reasonValue)
	f(`{"a":[1}}`, 7, reasonNext)
	f(`{"a":{"b":1]}`, 11, reasonNext)
	f(`{"a":[`, 6, reasonEnd)
	f(`{"a":tru}`, 5, reasonValue)
	f(`{"a":NaN}`, 5, reasonValue)
	f(`{"a":'b'}`, 5, reasonValue)
	f(`{"a":01}`, 6, reasonNext)
	f(`{"a":-}`, 6, reasonNumber)
	f(`{"a":1.}`, 7, reasonNumber)
	f(`{"a":1e}`, 7, reasonNumber)
	f(`{"a":.5}`, 5, reasonValue)
	f(`{"a":"b`, 7, reasonEnd)
	f(`{"a":"\x"}`, 6, reasonEscape)
	f(`{"a":"\u12g4"}`, 6, reasonEscape)
	f(`{"a":"\`, 6, reasonEscape)
	f("{\"a\":\"\x00\"}", 6, reasonControl)
	f("{\"a\":\"0123456789\n\"}", 16, reasonControl)
	f(nested(MaxDepth+1), 5+MaxDepth-1, reasonDepth)
	f(`{"x":`+strings.Repeat(`{"a":`, 1e6), 5+5*(MaxDepth-1), reasonDepth)
}

func TestSyntaxErrorText(t *testing.T) {
	t.Parallel()
	_, err := Scan([]byte(`{"secret":"abc" "def"}`))
	const want = "json at byte 16: want a comma or the end of the object or array"
	if err == nil || err.Error() != want {
		t.Errorf("Scan = %v, want %q", err, want)
	}
}

// A string is scanned eight bytes at a time; every kind of byte must be seen at every place.
func TestStringAtEveryOffset(t *testing.T) {
	t.Parallel()
	for pad := range 20 {
		for _, c := range []string{`"`, `\"`, `\\`, `\u00e9`, "\x1f", "\x00", "\x7f", "\x80", "\xff", "é", "!", "#", "[", "]", " "} {
			for tail := range 10 {
				body := `{"` + strings.Repeat("x", pad) + c + strings.Repeat("y", tail) + `":1}`
				_, err := Scan([]byte(body))
				if want := json.Valid([]byte(body)); (err == nil) != want {
					t.Fatalf("Scan(%q) = %v, encoding/json says valid = %v", body, err, want)
				}
			}
		}
	}
}

func TestLookups(t *testing.T) {
	t.Parallel()
	body := `{"a":1,"KV_Transfer_Params":{},"\u006bv_transfer_params":2,"kv_tran\u017ffer_params":3,"a":{"b":{"c":[true]},"b":{"c":5}}}`
	d, err := Scan([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(d.Get("a")); got != `{"b":{"c":[true]},"b":{"c":5}}` {
		t.Errorf("Get(a) = %s, want the last one", got)
	}
	if got := d.Get("zzz"); got != nil {
		t.Errorf("Get(zzz) = %s, want nil", got)
	}
	if got := string(d.Get("kv_transfer_params")); got != "2" {
		t.Errorf("Get(kv_transfer_params) = %s, want 2", got)
	}
	if got := d.CountFold("kv_transfer_params", "cache_salt"); got != 3 {
		t.Errorf("CountFold = %d, want 3", got)
	}
	sp, ok := d.Path("a", "b", "c")
	if got := string(d.Bytes(sp)); !ok || got != "5" {
		t.Errorf("Path(a, b, c) = %s, %v, want 5", got, ok)
	}
	if _, ok := d.Path("a", "x"); ok {
		t.Error("Path(a, x) found something")
	}
	if sp, ok := d.Path(); !ok || sp != d.Root() {
		t.Errorf("Path() = %v, want the root", sp)
	}
	if d.Count() != 5 || !d.Has("a") || d.Has("b") {
		t.Errorf("Count, Has = %d, %v, %v", d.Count(), d.Has("a"), d.Has("b"))
	}
	if got, ok := Lookup([]byte(` {"x":1,"x":2}`), "x"); !ok || string(got) != "2" {
		t.Errorf("Lookup = %s, %v, want 2", got, ok)
	}
}

func TestIteratorsStop(t *testing.T) {
	t.Parallel()
	members := func(raw string) (got []string) {
		for m := range Members([]byte(raw)) {
			got = append(got, fmt.Sprintf("%s=%s", m.RawName, m.Raw))
		}
		return got
	}
	elements := func(raw string) (got []string) {
		for e := range Elements([]byte(raw)) {
			got = append(got, string(e))
		}
		return got
	}
	eq := func(what string, got []string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	eq("object", members(` { "a" : 1 , "b" : [ 2 ] } `), "a=1", "b=[ 2 ]")
	eq("array", elements(` [ 1 , {"a":[]} , "," ] `), "1", `{"a":[]}`, `","`)
	eq("empty object", members(`{ }`))
	eq("empty array", elements(`[ ]`))
	eq("members of an array", members(`[1]`))
	eq("elements of an object", elements(`{"a":1}`))
	eq("nothing", elements(``))
	// malformed text ends the walk where it is malformed
	eq("cut object", members(`{"a":1,"b":`), "a=1")
	eq("no comma", members(`{"a":1 "b":2}`), "a=1")
	eq("no name", members(`{"a":1,2}`), "a=1")
	eq("no colon", members(`{"a" 1}`))
	eq("cut array", elements(`[1,2`), "1", "2")
	eq("bad element", elements(`[1,x]`), "1")
	for range Members([]byte(`{"a":1,"b":2}`)) {
		break
	}
	for range Elements([]byte(`[1,2]`)) {
		break
	}
}

func TestValues(t *testing.T) {
	t.Parallel()
	type result struct {
		Kind   Kind
		Bool   string
		Int    string
		Float  string
		String string
	}
	f := func(raw string, want result) {
		t.Helper()
		got := result{Kind: KindOf([]byte(raw))}
		if v, ok := Bool([]byte(raw)); ok {
			got.Bool = fmt.Sprint(v)
		}
		if v, ok := Int([]byte(raw)); ok {
			got.Int = fmt.Sprint(v)
		}
		if v, ok := Float([]byte(raw)); ok {
			got.Float = fmt.Sprint(v)
		}
		if v, ok := String([]byte(raw)); ok {
			got.String = v
			if text := string(AppendText(nil, []byte(raw))); text != v || !TextIs([]byte(raw), v) {
				t.Errorf("AppendText(%s) = %q, TextIs = %v, want %q", raw, text, TextIs([]byte(raw), v), v)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("values of %s (-want +got):\n%s", raw, diff)
		}
	}

	f(``, result{})
	f(`null`, result{Kind: Null})
	f(`true`, result{Kind: True, Bool: "true"})
	f(`false`, result{Kind: False, Bool: "false"})
	f(`[1]`, result{Kind: Array})
	f(`{}`, result{Kind: Object})
	f(`0`, result{Kind: Number, Int: "0", Float: "0"})
	f(`-0`, result{Kind: Number, Int: "0", Float: "-0"})
	f(`300`, result{Kind: Number, Int: "300", Float: "300"})
	f(`300.0`, result{Kind: Number, Float: "300"}) // an engine that wants an int dies of this
	f(`3e2`, result{Kind: Number, Float: "300"})
	f(`1e400`, result{Kind: Number})
	f(`9223372036854775807`, result{Kind: Number, Int: "9223372036854775807", Float: "9.223372036854776e+18"})
	f(`-9223372036854775808`, result{Kind: Number, Int: "-9223372036854775808", Float: "-9.223372036854776e+18"})
	f(`9223372036854775808`, result{Kind: Number, Float: "9.223372036854776e+18"})
	f(`-9223372036854775809`, result{Kind: Number, Float: "-9.223372036854776e+18"})
	f(`12345678901234567890`, result{Kind: Number, Float: "1.2345678901234567e+19"})
	f(`"300"`, result{Kind: Text, String: "300"})
	f(`"a\"\\\/\b\f\n\r\té\u00e9\u2028"`, result{Kind: Text, String: "a\"\\/\b\f\n\r\téé\u2028"})
	f(`"\ud83d\ude00"`, result{Kind: Text, String: "😀"})
	f(`"\ud83dx\ude00\ud83d\u0041"`, result{Kind: Text, String: "\ufffdx\ufffd\ufffdA"})
	if !IsNull([]byte("null")) || IsNull([]byte(`"null"`)) || IsNull(nil) {
		t.Error("IsNull is wrong")
	}
	if TextIs([]byte(`1`), "1") || TextIs([]byte(`"ab"`), "a") {
		t.Error("TextIs is wrong")
	}
	if got := string(AppendText([]byte("x"), []byte("1"))); got != "x" {
		t.Errorf("AppendText of a number = %q, want x", got)
	}
}

func TestAppendString(t *testing.T) {
	t.Parallel()
	f := func(s, want string) {
		t.Helper()
		if got := string(AppendString(nil, s)); got != want {
			t.Errorf("AppendString(%q) = %s, want %s", s, got, want)
		}
	}
	f("", `""`)
	f("plain", `"plain"`)
	f("<a>&é\u2028", "\"<a>&é\u2028\"") // no HTML escaping
	f("a\"b\\c\nd\re\tf\x00g\x1f", `"a\"b\\c\nd\re\tf\u0000g\u001f"`)
}

// Objects sees what Elements and Members see.
func TestObjects(t *testing.T) {
	t.Parallel()
	type object struct {
		Raw     string
		Members []string
	}
	for _, raw := range []string{
		``, `[]`, ` [ ] `, `{}`, `"x"`, `[{}]`, `[{"a":1}]`, ` [ { "a" : [ 1 , {"b":2} ] , "a" : "]" } , 3 , "x" , [ {"no":1} ] , null , {"c":{}} ] `,
		`[{"a":1},{"b":2},{"c":"\"}"}]`, `[{"a":1},{"b"`, `[{"a":1}`, `[1,{"a":1},`, `[{"a":1}{"b":2}]`, `[{"a" 1}]`, `[{"a":1,}]`, `[{"a":1]`,
	} {
		var want, got []object
		for el := range Elements([]byte(raw)) {
			o := object{Raw: string(el)}
			for m := range Members(el) {
				o.Members = append(o.Members, m.Name()+"="+string(m.Raw))
			}
			want = append(want, o)
		}
		var members []string
		for el := range Objects([]byte(raw), func(m Member) { members = append(members, m.Name()+"="+string(m.Raw)) }) {
			got = append(got, object{string(el), members})
			members = nil
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Objects(%s) (-Elements and Members +Objects):\n%s", raw, diff)
		}
	}
}
