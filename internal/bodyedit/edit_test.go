package bodyedit

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func mustScan(tb testing.TB, body string) *Doc {
	tb.Helper()
	d, err := Scan([]byte(body))
	if err != nil {
		tb.Fatalf("Scan(%.80q): %v", body, err)
	}
	return d
}

func TestDelete(t *testing.T) {
	t.Parallel()
	f := func(body string, names []string, want string, wantCount int) {
		t.Helper()
		e := mustScan(t, body).Edit()
		if n := e.Delete(names...); n != wantCount {
			t.Errorf("Delete(%q) on %s = %d, want %d", names, body, n, wantCount)
		}
		if got := string(e.Bytes()); got != want {
			t.Errorf("Delete(%q) on %s\n got %s\nwant %s", names, body, got, want)
		}
	}
	of := func(names ...string) []string { return names }

	f(`{"a":1,"b":2,"c":3}`, of("a"), `{"b":2,"c":3}`, 1)
	f(`{"a":1,"b":2,"c":3}`, of("b"), `{"a":1,"c":3}`, 1)
	f(`{"a":1,"b":2,"c":3}`, of("c"), `{"a":1,"b":2}`, 1)
	f(`{"a":1,"b":2,"c":3}`, of("a", "b"), `{"c":3}`, 2)
	f(`{"a":1,"b":2,"c":3}`, of("b", "c"), `{"a":1}`, 2)
	f(`{"a":1,"b":2,"c":3}`, of("a", "c"), `{"b":2}`, 2)
	f(`{"a":1,"b":2,"c":3}`, of("a", "b", "c"), `{}`, 3)
	f(`{"a":1,"b":2,"c":3}`, of("d"), `{"a":1,"b":2,"c":3}`, 0)
	f(`{}`, of("a"), `{}`, 0)
	// white space goes with the member in front of which it stands, the closing brace keeps its own
	f("{\n  \"a\" : 1 ,\n  \"b\" : 2\n}\n", of("a"), "{\n  \"b\" : 2\n}\n", 1)
	f("{\n  \"a\" : 1 ,\n  \"b\" : 2\n}\n", of("b"), "{\n  \"a\" : 1\n}\n", 1)
	f("{\n  \"a\" : 1 ,\n  \"b\" : 2\n}\n", of("a", "b"), "{\n  \n}\n", 2)
	// every occurrence, whatever its spelling
	f(`{"a":1,"b":2,"\u0061":3,"a":4}`, of("a"), `{"b":2}`, 3)
	// a name inside a value is not a member
	f(`{"b":{"a":1},"c":"\"a\":1"}`, of("a"), `{"b":{"a":1},"c":"\"a\":1"}`, 0)
}

func TestDeleteFold(t *testing.T) {
	t.Parallel()
	body := `{"m":1,"kv_transfer_params":2,"KV_TRANSFER_PARAMS":3,"Kv_Transfer_\u0050arams":4,` +
		"\"\u212av_tran\u017ffer_params\":5," + `"kv_transfer_paramz":6,"kv_transfer_params ":7}`
	e := mustScan(t, body).Edit()
	if n := e.DeleteFold("kv_transfer_params", "cache_salt"); n != 4 {
		t.Errorf("DeleteFold = %d, want 4", n)
	}
	const want = `{"m":1,"kv_transfer_paramz":6,"kv_transfer_params ":7}`
	if got := string(e.Bytes()); got != want {
		t.Errorf("DeleteFold\n got %s\nwant %s", got, want)
	}
}

func TestSet(t *testing.T) {
	t.Parallel()
	f := func(body, want string, edit func(e *Edit)) {
		t.Helper()
		d := mustScan(t, body)
		e := d.Edit()
		edit(e)
		got := string(e.Bytes())
		if got != want {
			t.Errorf("edit of %s\n got %s\nwant %s", body, got, want)
		}
		if int64(len(got)) != e.Len() {
			t.Errorf("edit of %s: Len() = %d, want %d", body, e.Len(), len(got))
		}
		if string(d.Body()) != body {
			t.Errorf("edit of %s changed the body", body)
		}
	}
	one := []byte("1")

	f(`{}`, `{"x":1}`, func(e *Edit) { e.Set("x", one) })
	f(`{ }`, `{"x":1 }`, func(e *Edit) { e.Set("x", one) })
	f(`{"a":"b"}`, `{"a":"b","x":1,"y\"":1}`, func(e *Edit) { e.Set("x", one); e.Set(`y"`, one) })
	f("{\n \"a\": true\n}\n", "{\n \"a\": true,\"x\":1\n}\n", func(e *Edit) { e.Set("x", one) })
	f(`{"a": true ,"b":2}`, `{"a": 1 ,"b":2}`, func(e *Edit) { e.Set("a", one) })
	f(`{"a":0,"b":2,"\u0061":"zz"}`, `{"a":1,"b":2,"\u0061":1}`, func(e *Edit) { e.Set("a", one) })
	f(`{"a":0}`, `{"a":[2]}`, func(e *Edit) { e.Set("a", one); e.Set("a", []byte("[2]")) })
	f(`{"a":0}`, `{"a":0,"x":2}`, func(e *Edit) { e.Set("x", one); e.Set("x", []byte("2")) })
	// what the client said is gone, what the router says is appended: never merged
	f(`{"a":0,"kv":1,"KV":2,"b":3}`, `{"a":0,"b":3,"kv":{}}`, func(e *Edit) { e.DeleteFold("kv"); e.Set("kv", []byte("{}")) })
	f(`{"a":0,"kv":1}`, `{"a":0,"kv":{}}`, func(e *Edit) { e.Delete("kv"); e.Set("kv", []byte("{}")) })
	f(`{"kv":1}`, `{"kv":{}}`, func(e *Edit) { e.Delete("kv"); e.Set("kv", []byte("{}")) })
	f(`{"a":0}`, `{"a":0}`, func(e *Edit) { e.Set("x", one); e.Delete("x") })
	f(`{"a":0}`, `{}`, func(e *Edit) { e.Set("a", one); e.Delete("a") })
	// A12: the prefill leg of a streamed request
	f(`{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true},"max_completion_tokens":400}`,
		`{"model":"m","messages":[],"stream":false,"max_tokens":1}`, func(e *Edit) {
			e.Set("stream", []byte("false"))
			e.Delete("stream_options", "max_completion_tokens")
			e.Set("max_tokens", one)
		})
}

func TestNested(t *testing.T) {
	t.Parallel()
	const body = `{"choices":[{"index":0,"token_ids":[1,2],"prompt_token_ids":[3]},{"token_ids":[4]},{}],"usage":{"d":{"cached":7,"x":null}},"kv":{"a":1}}`
	f := func(want string, edit func(d *Doc, e *Edit)) {
		t.Helper()
		d := mustScan(t, body)
		e := d.Edit()
		edit(d, e)
		if got := string(e.Bytes()); got != want {
			t.Errorf("edit\n got %s\nwant %s", got, want)
		}
	}
	span := func(d *Doc, names ...string) Span {
		sp, ok := d.Path(names...)
		if !ok {
			t.Fatalf("no path %q", names)
		}
		return sp
	}

	f(`{"choices":[{"index":0},{},{}],"usage":{"d":{"cached":9,"x":null}}}`, func(d *Doc, e *Edit) {
		for el := range d.ElementsOf(span(d, "choices")) {
			e.DeleteMember(el, "token_ids")
			e.DeleteMember(el, "prompt_token_ids") // next to the one above: the commas must come out right
		}
		e.Replace(span(d, "usage", "d", "cached"), []byte("9"))
		e.Delete("kv")
	})
	// the outer change wins
	f(`{"choices":[],"kv":{"a":1},"new":1}`, func(d *Doc, e *Edit) {
		e.Replace(span(d, "usage", "d", "cached"), []byte("9"))
		e.SetMember(span(d, "usage"), "n", []byte("1"))
		e.Delete("usage")
		e.Replace(span(d, "choices"), []byte("[]"))
		for el := range d.ElementsOf(span(d, "choices")) {
			e.DeleteMember(el, "token_ids")
		}
		e.Set("new", []byte("1"))
	})
	f(`{"choices":[{"index":0,"token_ids":[1,2],"prompt_token_ids":[3]},{"token_ids":[4]},{"n":1}],"usage":{"d":{"cached":7,"x":0,"y":true}},"kv":{"b":2}}`,
		func(d *Doc, e *Edit) {
			var last Span
			for el := range d.ElementsOf(span(d, "choices")) {
				last = el
			}
			e.SetMember(last, "n", []byte("1"))
			e.SetMember(span(d, "usage", "d"), "x", []byte("0"))
			e.SetMember(span(d, "usage", "d"), "y", []byte("true"))
			e.DeleteMember(span(d, "kv"), "a")
			e.SetMember(span(d, "kv"), "b", []byte("2"))
			// not an object: nothing happens
			e.SetMember(span(d, "choices"), "z", []byte("0"))
			e.DeleteMember(span(d, "kv", "a"), "z")
		})
	// behind a value, also when what follows is removed
	f(`{"choices":[],"fp":1,"usage":{"d":{"cached":7,"x":null}},"end":2}`, func(d *Doc, e *Edit) {
		e.InsertAfter(span(d, "choices"), []byte(`,"fp":1`))
		e.InsertAfter(span(d, "usage"), []byte(`,"end":2`))
		e.Replace(span(d, "choices"), []byte("[]"))
		e.Delete("kv")
	})
	// the same span twice: the later one
	f(strings.Replace(body, ":7", ":2", 1), func(d *Doc, e *Edit) {
		e.Replace(span(d, "usage", "d", "cached"), []byte("1"))
		e.Replace(span(d, "usage", "d", "cached"), []byte("2"))
	})
}

func TestEditsAreIndependent(t *testing.T) {
	t.Parallel()
	d := mustScan(t, `{"model":"m","stream":true}`)
	p, dd := d.Edit(), d.Edit()
	p.Set("stream", []byte("false"))
	p.Set("max_tokens", []byte("1"))
	dd.Set("kv", []byte("{}"))
	got := []string{string(p.Bytes()), string(dd.Bytes()), string(d.Edit().Bytes())}
	want := []string{`{"model":"m","stream":false,"max_tokens":1}`, `{"model":"m","stream":true,"kv":{}}`, `{"model":"m","stream":true}`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("edits (-want +got):\n%s", diff)
	}
	// a later change shows in the output, and not in a reader made before it
	r := p.Reader()
	p.Delete("model")
	old, err := io.ReadAll(r)
	if err != nil || string(old) != want[0] {
		t.Errorf("reader made before the change = %s, %v, want %s", old, err, want[0])
	}
	if got := string(p.Bytes()); got != `{"stream":false,"max_tokens":1}` {
		t.Errorf("after the change = %s", got)
	}
}

func TestReader(t *testing.T) {
	t.Parallel()
	d := mustScan(t, `{"a":"0123456789","b":true,"c":[1,2,3]}`)
	e := d.Edit()
	e.Set("b", []byte("false"))
	e.Delete("a")
	e.Set("z", []byte(`"long value"`))
	want := `{"b":false,"c":[1,2,3],"z":"long value"}`

	if err := iotest.TestReader(e.Reader(), []byte(want)); err != nil {
		t.Error(err)
	}
	for size := 1; size < 12; size++ {
		var got []byte
		r, buf := e.Reader(), make([]byte, size)
		for {
			n, err := r.Read(buf)
			got = append(got, buf[:n]...)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if string(got) != want {
			t.Errorf("read by %d = %s, want %s", size, got, want)
		}
	}
	var buf bytes.Buffer
	r := e.Reader()
	if _, err := r.Read(make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(&buf, r); err != nil || n != e.Len()-7 || buf.String() != want[7:] {
		t.Errorf("WriteTo after 7 bytes = %d, %v, %s", n, err, buf.String())
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("Read at the end = %d, %v, want EOF", n, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	errFull := errors.New("full")
	if n, err := e.WriteTo(writerFunc(func(p []byte) (int, error) { return len(p) / 2, errFull })); !errors.Is(err, errFull) || n != 0 {
		t.Errorf("WriteTo a full disk = %d, %v", n, err)
	}
	if _, err := e.WriteTo(writerFunc(func(p []byte) (int, error) { return 0, nil })); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("WriteTo a short writer = %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestUnchangedBodyIsNotCopied(t *testing.T) {
	t.Parallel()
	d := mustScan(t, `{"a":1}`)
	e := d.Edit()
	e.Delete("b")
	if e.Changed() || &e.Bytes()[0] != &d.Body()[0] {
		t.Error("an edit without changes copies the body")
	}
	e.Set("b", []byte("1"))
	if !e.Changed() || e.Doc() != d {
		t.Error("an edit with changes says there are none")
	}
}

func TestBugs(t *testing.T) {
	t.Parallel()
	f := func(want string, edit func(d *Doc, e *Edit)) {
		t.Helper()
		defer func() {
			if got, _ := recover().(string); got != want {
				t.Errorf("panic %q, want %q", got, want)
			}
		}()
		d := mustScan(t, `{"a":[1,2],"b":2}`)
		edit(d, d.Edit())
	}
	f("BUG: Set without a value", func(_ *Doc, e *Edit) { e.Set("a", nil) })
	f("BUG: Replace outside the document", func(_ *Doc, e *Edit) { e.Replace(Span{3, 300}, nil) })
	f("BUG: InsertAfter outside the document", func(_ *Doc, e *Edit) { e.InsertAfter(Span{3, 300}, nil) })
	f("BUG: edits overlap", func(_ *Doc, e *Edit) {
		e.Replace(Span{5, 8}, nil)
		e.Replace(Span{6, 10}, nil)
		e.Len()
	})
}

// A field report: tools with ordered properties, HTML characters, U+2028, numbers that floats cannot hold,
// duplicate keys, deep nesting and unknown fields must all come out as they went in.
func TestF01EveryOtherByteIsTheSame(t *testing.T) {
	t.Parallel()
	body := "{ \"tools\": [{\"properties\":{\"z\":1,\"a\":2,\"m\":3}}],\"text\":\"<think>&\u2028\\u2028\\/ \\ud83d\\ude00\"," +
		`"big":12345678901234567890,"huge":1e400,"t":0.10,"zero":-0,"dup":1,"dup":2,"deep":` +
		strings.Repeat(`{"a":[`, 199) + strings.Repeat(`]}`, 199) + `,"x_unknown":{"k":[ ]},"stream" : true,"stop":null}`
	d := mustScan(t, body)
	e := d.Edit()
	e.Set("stream", []byte("false"))
	e.Set("max_tokens", []byte("1"))
	want := strings.Replace(body, `"stream" : true`, `"stream" : false`, 1)
	want = want[:len(want)-1] + `,"max_tokens":1}`
	if got := string(e.Bytes()); got != want {
		t.Errorf("edit\n got %s\nwant %s", got, want)
	}
}

// A field report: a client puts its own transfer parameters into the body, under any spelling.
func TestH01ClientParamsAreRemoved(t *testing.T) {
	t.Parallel()
	forged := `{"remote_host":"attacker.test","remote_port":4444}`
	for _, name := range []string{
		`kv_transfer_params`, `\u006bv_transfer_params`, `KV_TRANSFER_PARAMS`, `kv\u005Ftransfer\u005fparams`, "\u212av_transfer_params", `Kv_Transfer_Params`,
	} {
		for _, body := range []string{
			`{"` + name + `":` + forged + `,"model":"m"}`,
			`{"model":"m","` + name + `":` + forged + `}`,
			`{"` + name + `":null,"model":"m","` + name + `":` + forged + `}`,
		} {
			e := mustScan(t, body).Edit()
			if n := e.DeleteFold("kv_transfer_params"); n == 0 {
				t.Errorf("%s: nothing removed", body)
			}
			e.Set("kv_transfer_params", []byte(`{"do_remote_decode":true}`))
			if got, want := string(e.Bytes()), `{"model":"m","kv_transfer_params":{"do_remote_decode":true}}`; got != want {
				t.Errorf("%s\n got %s\nwant %s", body, got, want)
			}
		}
	}
}

func TestResetReuses(t *testing.T) {
	t.Parallel()
	var d Doc
	if err := d.Reset([]byte(`{"a":1,"b":2}`)); err != nil || d.Count() != 2 {
		t.Fatalf("Reset = %v, Count = %d", err, d.Count())
	}
	if err := d.Reset([]byte(`{"a":1,"b":`)); err == nil || d.Count() != 0 || len(d.Body()) != 0 {
		t.Errorf("after an error: %v, Count = %d", err, d.Count())
	}
	if err := d.Reset([]byte(`{"c":3}`)); err != nil || string(d.Get("c")) != "3" {
		t.Errorf("Reset after an error = %v", err)
	}
	if got := slices.Collect(func(yield func(string) bool) {
		for m := range d.Members() {
			if !yield(m.Name()) {
				return
			}
		}
	}); !slices.Equal(got, []string{"c"}) {
		t.Errorf("members = %q", got)
	}
}

func TestEditResetReuses(t *testing.T) {
	var d Doc
	e := new(Edit)
	var out []byte
	null := []byte("null")
	bodies := [][]byte{
		[]byte(`{"a":1,"kv":null,"o":{"x":[1],"y":2},"p":{"z":1}}`),
		[]byte(`{"kv":{},"o":{"y":1,"x":3}}`),
		[]byte(`{"o":{},"b":1}`),
	}
	want := []string{`{"a":1,"o":{"x":null},"p":{}}`, `{"o":{"x":null}}`, `{"o":{},"b":1}`}
	run := func(i int) {
		if err := d.Reset(bodies[i]); err != nil {
			t.Fatal(err)
		}
		e.Reset(&d)
		e.Delete("kv")
		if o, ok := d.Path("o"); ok {
			e.DeleteMember(o, "y")
		}
		if p, ok := d.Path("p"); ok {
			e.DeleteMember(p, "z")
		}
		if x, ok := d.Path("o", "x"); ok {
			e.Replace(x, null)
		}
		out = e.AppendTo(out[:0])
	}
	for range 3 {
		for i := range bodies {
			if run(i); string(out) != want[i] {
				t.Errorf("edit %d = %s, want %s", i, out, want[i])
			}
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		for i := range bodies {
			run(i)
		}
	}); n != 0 {
		t.Errorf("%v allocations per three edits, want 0", n)
	}
}

// A field report: image-heavy turns of agents are 9 to 31 MiB. Neither leg copies the body.
func TestJ02LargeBodiesAreNotCopied(t *testing.T) { // not parallel: it counts the allocations of the process
	body := []byte(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` +
		strings.Repeat("iVBORw0K", 31<<20/8) + `"}}]}],"stream":true,"model":"m"}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	d, err := Scan(body)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		e := d.Edit()
		e.Set("stream", []byte("false"))
		e.Set("max_tokens", []byte("1"))
		if n, err := io.Copy(io.Discard, e.Reader()); err != nil || n != int64(len(body)+len(`,"max_tokens":1`)+1) || n != e.Len() {
			t.Errorf("%d bytes, %v, Len = %d", n, err, e.Len())
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 64<<10 {
		t.Errorf("a turn of 31 MiB allocates %d bytes", n)
	}
}
