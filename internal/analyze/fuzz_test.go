package analyze

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// No input crashes the parsers, and rows keep what later stages rely on.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/formats/*")
	if err != nil || len(files) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data[:min(len(data), 600)])
	}
	f.Add([]byte(`{"conversation_id":"a","ts":1,"keep":99999999999,"new":[[1,99999999999]],"prompt_tokens":1}`))
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"tool_result"}]}],"response":"x"}`))
	f.Add([]byte("{\"log\":\"{\\\"log\\\":\\\"{}\\\"}\"}\nINFO Received request x: prompt: 'a\\x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := newParser(newNames(), []byte("salt"), nil)
		kind, columns := detect(data)
		s := splitter{in: bufio.NewReader(bytes.NewReader(data)), layout: kind, line: 1, limit: 1 << 20}
		var last turn
		for {
			j, err := s.next()
			if j != nil {
				j.layout, j.columns, j.source = kind, columns, "fuzz"
				b := p.parse(j)
				for i := range b.rows {
					last = checkRow(t, &b.rows[i], b.content[b.places[i].off:b.places[i].off+int64(b.places[i].len)], last)
				}
			}
			if err != nil {
				break
			}
		}
	})
}

// checkRow holds a row to what later stages rely on, and compares it with the one before.
func checkRow(t *testing.T, r *row, enc []byte, last turn) turn {
	for name, v := range map[string]int64{"output": r.output, "cached": r.cached, "shared": r.shared, "duration": r.dur} {
		if v < unknown {
			t.Errorf("%s = %d", name, v)
		}
	}
	if r.prompt < 0 || r.cached > r.prompt || r.unit >= units {
		t.Errorf("prompt %d, cached %d, unit %d", r.prompt, r.cached, r.unit)
	}
	var raw [rowSize]byte
	var back row
	r.encode(raw[:])
	if back.decode(raw[:]); back != *r {
		t.Errorf("row %+v comes back as %+v", *r, back)
	}
	c := conversations{}
	if r.kind == deltaContent {
		_, _ = c.expand(enc[:min(len(enc), 8)])
		return last
	}
	var cur turn
	cur.set(r, enc)
	if n := cur.size(len(cur.text)); r.kind != noContent && (n < 0 || n > r.prompt) {
		t.Errorf("content of %d in a prompt of %d", n, r.prompt)
	}
	if last.kind == textContent && r.kind == textContent {
		b := explain(&last, &cur)
		if b.at < 0 || b.at+b.after+b.resumes > len(cur.text) || b.before < 0 || b.kind >= breakKind(breakKinds) {
			t.Errorf("break %+v in a prompt of %d bytes", b, len(cur.text))
		}
	}
	return cur.keep()
}

func FuzzInstant(f *testing.F) {
	for _, s := range []string{"2023-11-16T18:17:03.9799600Z", "2024-02-29 23:59:60", "1999-12-31T00:00:00+05:30", "1760000000.125", "0.5", "-3", "1e9", "16/Nov/2023:18:17:03 +0100"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if want, err := time.Parse(time.RFC3339Nano, s); err == nil && want.Year() > 1700 && want.Year() < 2250 && want.Second() < 60 {
			got, ok := isoInstant([]byte(s))
			if ok && got != want.UnixNano() {
				t.Errorf("%q = %d, want %d", s, got, want.UnixNano())
			}
		}
		_, _ = numericInstant([]byte(s), 1e9)
		_, _ = writtenInstant([]byte(s))
		_, _ = vllmInstant([]byte(s))
	})
}

// What is encoded comes back, and pieces cover the text exactly.
func FuzzContent(f *testing.F) {
	f.Add([]byte(`[{"role":"system","content":"s"},{"role":"assistant","reasoning":"r","content":[{"type":"text","text":"x"}],"tool_calls":[{"function":{"name":"f"}}]}]`))
	f.Add([]byte(`"hi"`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if !json.Valid(raw) {
			return
		}
		var c content
		c.reset()
		c.messages(raw)
		n := len(c.text)
		c.reply()
		c.string(segAssistant, true, []byte(`"reply"`))
		prompt, reply, segs, replySegs := decodeContent(c.encode(nil))
		if !bytes.Equal(append(bytes.Clone(prompt), reply...), c.text) || len(prompt) != n {
			t.Errorf("decoded %q and %q, want %q cut at %d", prompt, reply, c.text, n)
		}
		if diff := cmp.Diff(c.segs, append(append([]seg{}, segs...), replySegs...), cmp.AllowUnexported(seg{})); diff != "" {
			t.Errorf("segments (-want +got):\n%s", diff)
		}
		total := 0
		for _, s := range segs {
			total += s.len
		}
		if total != len(prompt) {
			t.Errorf("pieces cover %d bytes of %d", total, len(prompt))
		}
	})
}
