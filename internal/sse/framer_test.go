package sse

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// seen is what a test keeps of an event.
type seen struct {
	Raw     string
	Name    string
	Data    string
	HasData bool
	Partial bool
}

// frames feeds stream in pieces of the given sizes, the last size repeated, and returns all events.
// Fragments of one oversized event are joined: where they are cut depends on the reads.
func frames(tb testing.TB, f *Framer, stream []byte, sizes ...int) []seen {
	tb.Helper()
	var got []seen
	keep := func(ev Event) {
		if ev.Partial {
			if n := len(got); n > 0 && got[n-1].Partial && !strings.HasSuffix(got[n-1].Raw, "\n\n") {
				got[n-1].Raw += string(ev.Raw)
				return
			}
			got = append(got, seen{Raw: string(ev.Raw), Partial: true})
			return
		}
		got = append(got, seen{string(ev.Raw), string(ev.Name()), string(ev.Data()), ev.HasData(), false})
	}
	buf := make([]byte, 0, len(stream)) // reused by every read, as a relay does
	for k := 0; len(stream) > 0; k++ {
		n := min(sizes[min(k, len(sizes)-1)], len(stream))
		buf = append(buf[:0], stream[:n]...)
		stream = stream[n:]
		f.Feed(buf)
		for ev, ok := f.Next(); ok; ev, ok = f.Next() {
			keep(ev)
		}
		for i := range buf {
			buf[i] = '#'
		}
	}
	if ev, ok := f.Flush(); ok {
		keep(ev)
	}
	if _, ok := f.Flush(); ok {
		tb.Fatal("a second Flush returns an event")
	}
	return got
}

func TestFraming(t *testing.T) {
	t.Parallel()
	f := func(stream string, want ...seen) {
		t.Helper()
		for size := 1; size <= len(stream)+1; size++ {
			if diff := cmp.Diff(want, frames(t, new(Framer), []byte(stream), size)); diff != "" {
				t.Fatalf("%q in pieces of %d (-want +got):\n%s", stream, size, diff)
			}
		}
	}
	data := func(raw, payload string) seen { return seen{Raw: raw, Data: payload, HasData: true} }

	f("data: x\n\n", data("data: x\n\n", "x"))
	f("data: x\n\ndata: [DONE]\n\n", data("data: x\n\n", "x"), data("data: [DONE]\n\n", "[DONE]"))
	// A09: no space behind the colon; only one space belongs to the syntax
	f("data:x\n\ndata:  y \n\n", data("data:x\n\n", "x"), data("data:  y \n\n", " y "))
	f("event: message_stop\ndata: {}\n\n", seen{"event: message_stop\ndata: {}\n\n", "message_stop", "{}", true, false})
	f("data: {}\nevent:a\nid: 7\nretry: 5\nevent: b\n\n", seen{"data: {}\nevent:a\nid: 7\nretry: 5\nevent: b\n\n", "b", "{}", true, false})
	f("data: a\ndata: b\ndata\ndata:c\n\n", data("data: a\ndata: b\ndata\ndata:c\n\n", "a\nb\n\nc"))
	f("data\n\n", data("data\n\n", ""))
	// comments by themselves, and in front of data
	f(": keep-alive\n\n: ping\ndata: 1\n\n", seen{Raw: ": keep-alive\n\n"}, data(": ping\ndata: 1\n\n", "1"))
	f("dat: 1\nxdata: 2\n\n", seen{Raw: "dat: 1\nxdata: 2\n\n"})
	// blank lines between events
	f("\n\ndata: 1\n\n\n", seen{Raw: "\n"}, seen{Raw: "\n"}, data("data: 1\n\n", "1"), seen{Raw: "\n"})
	// CRLF: the last LF belongs to the event, even when it comes in the next read
	f("data: 1\r\n\r\ndata: 2\r\n\r\n", data("data: 1\r\n\r\n", "1"), data("data: 2\r\n\r\n", "2"))
	f("event: e\r\ndata: 1\r\ndata: 2\r\n\r\n", seen{"event: e\r\ndata: 1\r\ndata: 2\r\n\r\n", "e", "1\n2", true, false})
	// CR only
	f("data: 1\r\rdata: 2\rdata: 3\r\r", data("data: 1\r\r", "1"), data("data: 2\rdata: 3\r\r", "2\n3"))
	// the end of the stream
	f("data: 1\n\ndata: 2", data("data: 1\n\n", "1"), data("data: 2", "2"))
	f("data: 1\n\ndata: 2\n", data("data: 1\n\n", "1"), data("data: 2\n", "2"))
	f("data: 1\r\n\r", data("data: 1\r\n\r", "1"))
	f("data: 1\r\r", data("data: 1\r\r", "1"))
	f("")
	// a byte order mark at the start of the stream, and nowhere else
	f("\xef\xbb\xbfdata: 1\n\n\xef\xbb\xbfdata: 2\n\n", data("\xef\xbb\xbfdata: 1\n\n", "1"), seen{Raw: "\xef\xbb\xbfdata: 2\n\n"})
	f("\xef\xbb\xbfdata: 1\ndata: 2\n\n", data("\xef\xbb\xbfdata: 1\ndata: 2\n\n", "1\n2"))
	// an escaped line feed in JSON is not a line end; U+2028 and NUL are ordinary characters
	f("data: {\"a\":\"\\n\u2028\"}\x00\n\n", data("data: {\"a\":\"\\n\u2028\"}\x00\n\n", "{\"a\":\"\\n\u2028\"}\x00"))
	// characters of several bytes, cut at every place
	f("data: {\"c\":\"今日は😀\"}\n\n", data("data: {\"c\":\"今日は😀\"}\n\n", "{\"c\":\"今日は😀\"}"))
}

// A CR that ends a blank line may be half of a CRLF, so the event waits for one more byte, but only until the
// stream has shown that it ends its lines with CR alone.
func TestLoneCRDoesNotWait(t *testing.T) {
	t.Parallel()
	var f Framer
	f.Feed([]byte("data: 1\r\r"))
	ev, ok := f.Next()
	if !ok || string(ev.Raw) != "data: 1\r\r" {
		t.Errorf("Next = %q, %v, want the event at once", ev.Raw, ok)
	}
	if _, ok := f.Next(); ok {
		t.Error("another event")
	}
	f.Reset()
	f.Feed([]byte("data: 1\r\n\r"))
	if ev, ok := f.Next(); ok {
		t.Errorf("Next = %q, want to wait for the LF", ev.Raw)
	}
	if n := f.HeldBytes(); n != 10 {
		t.Errorf("HeldBytes = %d, want 10", n)
	}
	f.Feed([]byte("\n"))
	if ev, ok := f.Next(); !ok || string(ev.Raw) != "data: 1\r\n\r\n" {
		t.Errorf("Next = %q, %v", ev.Raw, ok)
	}
	if n := f.HeldBytes(); n != 0 {
		t.Errorf("HeldBytes = %d, want 0", n)
	}
}

func TestEventWithinOneReadIsNotCopied(t *testing.T) {
	t.Parallel()
	var f Framer
	chunk := []byte("data: 1\n\ndata: 2\n\n")
	f.Feed(chunk)
	ev, _ := f.Next()
	if &ev.Raw[0] != &chunk[0] || &ev.Data()[0] != &chunk[6] {
		t.Error("the event was copied")
	}
	if cap(ev.Raw) != len(ev.Raw) {
		t.Error("appending to Raw would overwrite the next event")
	}
}

func TestFeedTooEarly(t *testing.T) {
	t.Parallel()
	defer func() {
		if got := recover(); got != "BUG: Feed before Next has returned false" {
			t.Errorf("panic %v", got)
		}
	}()
	var f Framer
	f.Feed([]byte("data"))
	f.Feed([]byte("data"))
}

// A field report: a data line of 70 KiB, then one of 4 MiB, then the end of the stream.
func TestA03LongLines(t *testing.T) {
	t.Parallel()
	line := func(n int) string { return "data: {\"arguments\":\"" + strings.Repeat("x", n) + "\"}\n\n" }
	stream := line(70<<10) + line(4<<20) + "data: {\"finish_reason\":\"stop\"}\n\ndata: [DONE]\n\n"
	for _, size := range []int{1000, 4096, 32 << 10, len(stream)} {
		got := frames(t, new(Framer), []byte(stream), size)
		var all strings.Builder
		for _, ev := range got {
			all.WriteString(ev.Raw)
			if ev.Partial || !ev.HasData {
				t.Errorf("in pieces of %d: event of %d bytes was not looked at", size, len(ev.Raw))
			}
		}
		if len(got) != 4 || all.String() != stream {
			t.Errorf("in pieces of %d: %d events, bytes equal = %v, want 4", size, len(got), all.String() == stream)
		}
	}
}

// Above the limit bytes pass through uninspected, memory stays within the limit, and the next event is whole.
func TestA03AboveTheLimit(t *testing.T) {
	t.Parallel()
	small := "data: 1\n\n"
	for _, end := range []string{"\n\n", "\r\n\r\n"} {
		big := "data: " + strings.Repeat("x", 5000) + strings.Replace(end, end[:len(end)/2], end[:len(end)/2]+"data: y"+end[:len(end)/2], 1)
		stream := small + big + small + small
		for _, size := range []int{1, 7, 100, 999, 1001, 5000, len(stream)} {
			f := &Framer{MaxEventBytes: 1000}
			var all []byte
			var whole, partial int
			for rest := []byte(stream); len(rest) > 0; {
				n := min(size, len(rest))
				f.Feed(rest[:n])
				rest = rest[n:]
				for ev, ok := f.Next(); ok; ev, ok = f.Next() {
					all = append(all, ev.Raw...)
					if ev.Partial {
						partial++
					} else {
						whole++
					}
				}
				if f.HeldBytes() > 1000 {
					t.Fatalf("in pieces of %d: %d bytes held", size, f.HeldBytes())
				}
			}
			if ev, ok := f.Flush(); ok {
				t.Errorf("in pieces of %d: Flush = %q", size, ev.Raw)
			}
			if string(all) != stream || whole != 3 || partial == 0 {
				t.Errorf("in pieces of %d: %d whole, %d partial, bytes equal = %v", size, whole, partial, string(all) == stream)
			}
		}
	}
	// exactly at the limit is not above it
	f := &Framer{MaxEventBytes: len(small)}
	f.Feed([]byte(small))
	if ev, ok := f.Next(); !ok || ev.Partial {
		t.Errorf("an event of the limit's size: partial = %v", ev.Partial)
	}
}

func TestResetGivesHugeBuffersBack(t *testing.T) {
	t.Parallel()
	var f Framer
	f.Feed(bytes.Repeat([]byte("x"), 2*keptBytes))
	f.Next()
	f.Reset()
	if cap(f.held) != 0 || f.HeldBytes() != 0 {
		t.Errorf("cap = %d after Reset", cap(f.held))
	}
}

func TestAppendWithData(t *testing.T) {
	t.Parallel()
	f := func(raw, payload, want string) {
		t.Helper()
		var fr Framer
		fr.Feed([]byte(raw))
		ev, ok := fr.Next()
		if !ok {
			ev, _ = fr.Flush()
		}
		if got := string(ev.AppendWithData([]byte(">"), []byte(payload))); got != ">"+want {
			t.Errorf("AppendWithData(%q, %q) = %q, want %q", raw, payload, got, want)
		}
	}
	f("data: {}\n\n", "[1]", "data: [1]\n\n")
	f("data:{}\r\n\r\n", "[1]", "data:[1]\r\n\r\n")
	f(": c\nevent: e\ndata: {}\nid: 1\n\n", "[1]", ": c\nevent: e\ndata: [1]\nid: 1\n\n")
	f("data: {}", "[1]", "data: [1]")
	f("data\n\n", "[1]", "data: [1]\n\n")
	f(": c\n\n", "[1]", ": c\n\n")
	f("data: {\nid: 1\ndata: }\n\n", "{\"a\":\n1}", "data: {\"a\":\ndata: 1}\nid: 1\n\n")
	f("data: {\r\ndata: }\r\n\r\n", "{}", "data: {}\r\n\r\n")
	f("data: {\rdata: }\r\r", "{}", "data: {}\r\r")
	f("data: {\ndata: }", "1\n2", "data: 1\ndata: 2\n")
	f("data: {}\n\n", "1\n2", "data: 1\ndata: 2\n\n")
	f("\xef\xbb\xbfdata: {\ndata: }\n\n", "{}", "\xef\xbb\xbfdata: {}\n\n")
}

func recordings(tb testing.TB) map[string][]byte {
	tb.Helper()
	files, err := filepath.Glob("../../testdata/vllm-*/wire/*.sse")
	if err != nil || len(files) < 13 {
		tb.Fatalf("recordings: %d files, %v", len(files), err)
	}
	all := map[string][]byte{}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			tb.Fatal(err)
		}
		all[filepath.ToSlash(name)] = b
	}
	return all
}

// Every recorded stream comes out as it went in, in the same events, however it is split.
func TestRecordings(t *testing.T) {
	t.Parallel()
	for name, stream := range recordings(t) {
		want := frames(t, new(Framer), stream, len(stream))
		if n := bytes.Count(stream, []byte("\n\n")); len(want) != n {
			t.Errorf("%s: %d events, want %d", name, len(want), n)
		}
		for _, ev := range want {
			if !ev.HasData {
				t.Errorf("%s: event without data: %q", name, ev.Raw)
			}
		}
		for _, size := range []int{1, 2, 3, 7, 61, 235, 1448} {
			if diff := cmp.Diff(want, frames(t, new(Framer), stream, size)); diff != "" {
				t.Fatalf("%s in pieces of %d (-want +got):\n%s", name, size, diff)
			}
		}
	}
}

func TestAnySplit(t *testing.T) {
	t.Parallel()
	piece := rapid.SampledFrom([]string{"data: ", "data:", "data", "event: e", ": c", "x", "\n", "\r", "\r\n", "\n\n", "é", "\xef\xbb\xbf", "{\"a\":1}"})
	rapid.Check(t, func(rt *rapid.T) {
		stream := []byte(strings.Join(rapid.SliceOfN(piece, 0, 30).Draw(rt, "stream"), ""))
		want := frames(t, new(Framer), stream, len(stream)+1)
		sizes := rapid.SliceOfN(rapid.IntRange(1, 9), 1, 20).Draw(rt, "sizes")
		if diff := cmp.Diff(want, frames(t, new(Framer), stream, sizes...)); diff != "" {
			rt.Fatalf("%q in pieces of %v (-want +got):\n%s", stream, sizes, diff)
		}
	})
}

func FuzzFramer(f *testing.F) {
	for _, stream := range recordings(f) {
		f.Add(stream[:min(len(stream), 2048)], 100, 7, 0)
	}
	f.Add([]byte("data: 1\r\n\r\ndata: 2\r\r\n\n: c\n\n\xef\xbb\xbf"), 3, 1, 0)
	f.Add([]byte("data: 123456789\n\ndata: 1\n\n"), 3, 1, 10)
	f.Fuzz(func(t *testing.T, stream []byte, first, size, limit int) {
		if first < 1 || size < 1 || limit < 0 {
			return
		}
		whole := frames(t, &Framer{MaxEventBytes: limit}, stream, len(stream)+1)
		split := frames(t, &Framer{MaxEventBytes: limit}, stream, first, size)
		if limit == 0 {
			if diff := cmp.Diff(whole, split); diff != "" {
				t.Fatalf("%q split by %d, %d (-whole +split):\n%s", stream, first, size, diff)
			}
		}
		for _, got := range [][]seen{whole, split} {
			var all strings.Builder
			for _, ev := range got {
				all.WriteString(ev.Raw)
				if !ev.Partial && limit > 0 && len(ev.Raw) > limit {
					t.Fatalf("%q: event of %d bytes, limit %d", stream, len(ev.Raw), limit)
				}
			}
			if all.String() != string(stream) {
				t.Fatalf("%q comes out as %q", stream, all.String())
			}
		}
	})
}
