package turn

import (
	"fmt"
	"strings"
	"testing"

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

// TestHistories plays the files in testdata: an event a command, the actions and the state below.
//
//	start held=640 prompt=600 [guessed]  D holds 640 tokens of which 600 were the prompt; one more is known
//	start without=first-turn | plain=echo | no-handles=reuse-off | no-render=cannot-render
//	rendered total=840 common=640    the prompt's ids; without arguments: it cannot be rendered
//	taken [no]
//	prefill-done status=200 params cached=639 prompt=840 [late]
//	decode-began · decode-failed status=500 · decode-done [clean] [handle=900] [output=61] · client-gone
func TestHistories(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var m *Machine
		var promptLen int
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			num := func(name string, or int) int {
				n := or
				d.MaybeScanArgs(t, name, &n)
				return n
			}
			word := func(name string) Reason {
				s := ""
				d.MaybeScanArgs(t, name, &s)
				return Reason(s)
			}
			var ev Event
			switch d.Cmd {
			case "start":
				m = &Machine{}
				promptLen = num("total", 0)
				s := Start{
					Plain: word("plain"), Without: word("without"), NoHandles: word("no-handles"), NoRender: word("no-render"),
					BlockSize: blockSize, Guessed: d.HasArg("guessed"),
				}
				if n := num("held", 0); n > 0 {
					s.Held = &kvp.Held{Handle: handle(n), Seq: sequence(n + 1), PromptTokens: num("prompt", n)}
				}
				ev = s
			case "rendered":
				promptLen = num("total", 0)
				r := Rendered{}
				if promptLen > 0 {
					r.IDs = diverging(promptLen, num("common", 0))
				}
				ev = r
			case "taken":
				ev = Taken{OK: !d.HasArg("no")}
			case "prefill-done":
				p := PrefillDone{Status: num("status", 0), Late: d.HasArg("late"), Prompt: num("prompt", promptLen)}
				if d.HasArg("params") {
					p.Params = []byte(`{"a":1}`)
				}
				if n := num("cached", -1); n >= 0 {
					p.Cached = &n
				}
				ev = p
			case "decode-began":
				ev = DecodeBegan{}
			case "decode-failed":
				ev = DecodeFailed{Status: num("status", 0)}
			case "decode-done":
				done := DecodeDone{Clean: d.HasArg("clean"), Output: sequence(num("output", 0))}
				if n := num("handle", 0); n > 0 {
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
		if a.Params != nil {
			s = "decode with P's params"
		}
		if a.Brief {
			s += ", one token for nobody"
		}
		return s + ", " + ids(a.IDs)
	case Keep:
		if a.Handle == nil {
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
