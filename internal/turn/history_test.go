package turn

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/kvp"
)

const blockSize = 16

// handle is a B as D returns it, over n tokens.
func handle(n int) kvp.Handle {
	ids := make([]string, (n+blockSize-1)/blockSize)
	for i := range ids {
		ids[i] = fmt.Sprint(100 + i)
	}
	h, err := kvp.ParseHandle(fmt.Appendf(nil, `{"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[%s]],"remote_engine_id":"d-1",`+
		`"remote_request_id":"r","remote_host":"127.0.0.1","remote_port":5700,"tp_size":1,"remote_num_tokens":%d}`, strings.Join(ids, ","), n))
	if err != nil {
		panic(err)
	}
	return h
}

// sequence is 0, 1, 2, …: what D holds in these histories.
func sequence(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(i)
	}
	return ids
}

// diverging is a prompt of n tokens whose first k are those D holds.
func diverging(n, k int) []int32 {
	ids := sequence(n)
	for i := k; i < n; i++ {
		ids[i] = int32(50_000 + i)
	}
	return ids
}

// histories runs f for each history in a directory.
func histories(t *testing.T, dir string, f func(t *testing.T, path string)) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no histories in %s: %v", dir, err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			t.Parallel()
			f(t, path)
		})
	}
}

// number, word and duration read an argument of a command.
func number(t *testing.T, d *datadriven.TestData, name string, or int) int {
	d.MaybeScanArgs(t, name, &or)
	return or
}

func word(t *testing.T, d *datadriven.TestData, name string) (s string) {
	d.MaybeScanArgs(t, name, &s)
	return s
}

func duration(t *testing.T, d *datadriven.TestData, name string) time.Duration {
	s := word(t, d, name)
	if s == "" {
		return 0
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return v
}

// TestHistories plays the files in testdata: an event a command, the actions and the state below.
//
//	start held=640 prompt=600 [guessed]  D holds 640 tokens of which 600 were the prompt; one more is known
//	start … arm=append | await=3s
//	awaited [no]
//	start without=first-turn | plain=echo | no-handles=reuse-off | no-render=cannot-render
//	rendered total=840 common=640    the prompt's ids; without arguments: it cannot be rendered
//	taken [no]
//	prefill-done status=200 params cached=639 prompt=840 [late]
//	decode-began · decode-failed status=500 · decode-done [clean] [handle=900] [output=61] · client-gone
func TestHistories(t *testing.T) {
	t.Parallel()
	histories(t, "testdata", func(t *testing.T, path string) {
		var m *Machine
		var promptLen int
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var ev Event
			switch d.Cmd {
			case "start":
				m = &Machine{}
				promptLen = number(t, d, "total", 0)
				s := Start{
					Plain: Reason(word(t, d, "plain")), Without: Reason(word(t, d, "without")),
					NoHandles: Reason(word(t, d, "no-handles")), NoRender: Reason(word(t, d, "no-render")),
					BlockSize: blockSize, Guessed: d.HasArg("guessed"), Arm: Arm(word(t, d, "arm")), Await: duration(t, d, "await"),
				}
				if n := number(t, d, "held", 0); n > 0 {
					s.Held = &kvp.Held{Handle: handle(n), Seq: sequence(n + 1), PromptTokens: number(t, d, "prompt", n)}
				}
				ev = s
			case "awaited":
				ev = Awaited{OK: !d.HasArg("no")}
			case "rendered":
				promptLen = number(t, d, "total", 0)
				r := Rendered{}
				if promptLen > 0 {
					r.IDs = diverging(promptLen, number(t, d, "common", 0))
				}
				ev = r
			case "taken":
				ev = Taken{OK: !d.HasArg("no")}
			case "prefill-done":
				p := PrefillDone{Status: number(t, d, "status", 0), Late: d.HasArg("late"), Prompt: number(t, d, "prompt", promptLen)}
				if d.HasArg("params") {
					p.Params = []byte(`{"a":1}`)
				}
				if n := number(t, d, "cached", -1); n >= 0 {
					p.Cached = &n
				}
				ev = p
			case "decode-began":
				ev = DecodeBegan{}
			case "decode-failed":
				ev = DecodeFailed{Status: number(t, d, "status", 0)}
			case "decode-done":
				done := DecodeDone{Clean: d.HasArg("clean"), Output: sequence(number(t, d, "output", 0))}
				if n := number(t, d, "handle", 0); n > 0 {
					h := handle(n)
					done.Handle = &h
				}
				if d.HasArg("ids") {
					done.Prompt = sequence(promptLen)
				}
				ev = done
			case "client-gone":
				ev = ClientGone{}
			default:
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			var out strings.Builder
			for _, a := range m.Step(ev) {
				fmt.Fprintln(&out, show(a))
			}
			o := m.Outcome()
			fmt.Fprintf(&out, "= %s", m)
			if o.Cached != nil {
				fmt.Fprintf(&out, " local=%d pulled=%d computed=%d", *o.Local, *o.Pulled, o.Prompt-*o.Cached)
			}
			return out.String() + "\n"
		})
	})
}

func fieldOf(params []byte, name string) string {
	v, _ := bodyedit.Lookup(params, name)
	return string(v)
}

// show prints an action in one line.
func show(a Action) string {
	ids := func(ids []int32) string {
		if ids == nil {
			return "own rendering"
		}
		return fmt.Sprintf("%d ids", len(ids))
	}
	switch a := a.(type) {
	case Prefill:
		s := fmt.Sprintf("prefill %s, %s", a.Form, ids(a.IDs))
		switch a.Form {
		case FormRelease:
			s += fmt.Sprintf(", handle of %s tokens", fieldOf(a.Params, "remote_num_tokens"))
		case FormPull:
			h, err := kvp.ParseHandle(a.Params)
			if err != nil {
				return s + ": " + err.Error()
			}
			s += fmt.Sprintf(", handle of %d tokens in %d blocks, deadline %s", h.Tokens, h.BlockCount(), a.Deadline)
		}
		return s
	case Decode:
		s := "decode without params"
		switch {
		case a.Append && bytes.Equal(a.Params, kvp.AppendForm):
			s = "decode alone and keep the blocks"
		case a.Append:
			s = "decode alone, with wrong params"
		case a.Params != nil:
			s = "decode with P's params"
		}
		if a.Brief {
			s += ", one token for nobody"
		}
		return s + ", " + ids(a.IDs)
	case Await:
		return fmt.Sprintf("await the return, at most %s", a.Deadline)
	case Warm:
		s := "warm by messages"
		if a.IDs != nil {
			s = fmt.Sprintf("warm with %d ids", len(a.IDs))
		}
		switch h, err := kvp.ParseHandle(a.Params); {
		case a.Params == nil:
			s += ", no params"
		case fieldOf(a.Params, "remote_num_tokens") == "0":
			s += ", handle of 0 tokens"
		case err != nil:
			return s + ": " + err.Error()
		default:
			s += fmt.Sprintf(", handle of %d tokens in %d blocks", h.Tokens, h.BlockCount())
		}
		return s + fmt.Sprintf(", for %d tokens, deadline %s", a.MaxTokens, a.Deadline.Round(time.Millisecond))
	case Returned:
		return fmt.Sprintf("returned: %s why=%s tokens=%d pulled=%d computed=%d", a.State, orDash(string(a.Why)), a.Tokens, a.Pulled, a.Computed)
	case RenderNext:
		return "render what comes next"
	case Keep:
		switch {
		case !a.Complete && a.Handle != nil:
			return "keep a handle of a reply that the client does not have"
		case !a.Complete:
			return "keep the turn, without its reply"
		case a.Handle == nil:
			return "keep the turn"
		}
		return fmt.Sprintf("keep the turn and a handle of %d tokens, %d known, %d prompt", a.Handle.Tokens, len(a.Seq), a.PromptTokens)
	case Free:
		return fmt.Sprintf("free a handle of %d tokens", a.Handle.Tokens)
	case PassOn:
		return fmt.Sprintf("pass on the answer of %s", a.Leg)
	case Refuse:
		return fmt.Sprintf("refuse: %s failed", a.Leg)
	case Distrust:
		return fmt.Sprintf("distrust P: %s", a.Why)
	}
	return strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%T", a), "turn."), "{}"))
}
