package turn

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/tarik-kv/tarik/internal/kvp"
)

// TestReturnHistories plays the files in testdata/return: an event a command, the actions and the state below.
//
//	start held=640 prompt=600 [groups]    D holds 640 tokens of which 600 were the prompt; one more is known
//	start prompt=600                      nothing is held; 0: it is not known what P has seen
//	start … max-len=700 latest=1s known   of P; of D's lease; P's speed is known
//	rendered-next total=660 common=640 differs=12    the second rendering differs in the last 12 of 660 ids
//	rendered-next total=660 common=640 tail=12       one rendering
//	rendered-next                                    it cannot be rendered
//	taken [no] · overtaken · warmed status=200 [late]
func TestReturnHistories(t *testing.T) {
	t.Parallel()
	histories(t, "testdata/return", func(t *testing.T, path string) {
		var m *Return
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var ev Event
			switch d.Cmd {
			case "start":
				m = &Return{}
				s := ReturnStart{
					PromptTokens: number(t, d, "prompt", 0), MaxLen: number(t, d, "max-len", 0),
					BlockSize: blockSize, Threshold: 64,
				}
				s.Price, _ = priced(d.HasArg("known"))
				if n := number(t, d, "held", 0); n > 0 {
					h := handle(n)
					if d.HasArg("groups") {
						h = inGroups(n)
					}
					s.Held = &kvp.Held{Handle: h, Seq: sequence(n + 1), PromptTokens: s.PromptTokens, Within: duration(t, d, "latest")}
				}
				ev = s
			case "rendered-next":
				r := RenderedNext{Tail: number(t, d, "tail", 0)}
				if n := number(t, d, "total", 0); n > 0 {
					r.A = diverging(n, number(t, d, "common", 0))
				}
				if n := number(t, d, "differs", 0); n > 0 {
					r.B = append([]int32(nil), r.A...)
					for i := len(r.B) - n; i < len(r.B); i++ {
						r.B[i] = int32(90_000 + i)
					}
				}
				ev = r
			case "taken":
				tk := Taken{OK: !d.HasArg("no")}
				if d.HasArg("distrusted") {
					tk.NoHandles = PrefillDistrust
				}
				ev = tk
			case "overtaken":
				ev = Overtaken{}
			case "warmed":
				ev = Warmed{Status: number(t, d, "status", 0), Late: d.HasArg("late")}
			default:
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			var out strings.Builder
			for _, a := range m.Step(ev) {
				fmt.Fprintln(&out, show(a))
			}
			fmt.Fprintf(&out, "= %s\n", returnStates[m.state])
			if m.Warming() != (m.state == returnWarming) {
				d.Fatalf(t, "Warming() = %t while %s", m.Warming(), returnStates[m.state])
			}
			return out.String()
		})
	})
}

// inGroups is a handle that cannot be cut: the second group is a window.
func inGroups(n int) kvp.Handle {
	h, err := kvp.ParseHandle([]byte(strings.Replace(string(handle(n).Raw()), "]],", "],[1,2]],", 1)))
	if err != nil {
		panic(err)
	}
	return h
}
