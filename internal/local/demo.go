package local

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tarik-kv/tarik/internal/telemetry"
)

// demoSystem and demoTurns are an agent's conversation about a small program: a long set of rules
// first, then a task, then the outputs of tools, each longer than the agent's next step.
var demoSystem = strings.Repeat("You work on a small code base and change one file at a time. Read the file before you write it. "+
	"Run the test after each change and read what it prints. If the test fails, find the line that is wrong and say why. "+
	"Never guess the name of a function: look for it. Keep each answer short, and give one command at the end of it.\n", 8)

var demoTurns = []string{
	"The test of the order list fails when two orders have the same time. Find out why and make it right.",
	"$ ls\norder.go  order_test.go  main.go  README.md\n$ cat order.go\n" + demoFile,
	"$ go test ./...\n--- FAIL: TestSameTime\n    order_test.go:31: got [b a], want [a b]\n    order_test.go:32: the order of equal times must be the order of the input\nFAIL\n",
	"$ grep -n Slice order.go\n14:\tsort.Slice(list, func(i, j int) bool {\n$ go doc sort.Slice\nThe sort is not guaranteed to be stable: equal elements may be reversed from their original order. For a stable sort, use SliceStable.\n",
	"$ git diff\n-\tsort.Slice(list, func(i, j int) bool {\n+\tsort.SliceStable(list, func(i, j int) bool {\n$ go test ./...\nok  \torders\t0.012s\n",
	"Good. Now write one more test with three orders of the same time, and run everything again.",
}

const demoFile = `package orders

import "sort"

// Order is one line of the list.
type Order struct {
	Name string
	Time int64
}

// Sorted returns the list by time.
func Sorted(in []Order) []Order {
	list := append([]Order(nil), in...)
	sort.Slice(list, func(i, j int) bool {
		return list[i].Time < list[j].Time
	})
	return list
}
`

// demoReply is how many tokens the agent says each turn.
const demoReply = 160

// Demo plays an agent's conversation through two pairs, one with the return path and one without,
// turn by turn, and writes a table of where the tokens of each prompt came from. The replies of
// both are compared: a difference is an error.
func Demo(ctx context.Context, w io.Writer, on, off *Stack, model string) error {
	fmt.Fprintf(w, "An agent's conversation of %d turns, %d tokens a reply, played on both pairs.\n\n", len(demoTurns), demoReply)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tprompt\t│\treused on P\tcomputed\tTTFT ms\tthen in the gap\t│\treused on P\tcomputed\tTTFT ms\t")
	fmt.Fprintln(t, "turn\ttokens\t│\twith the return\t\t\tP reads from D\t│\twithout\t\t\t")
	var computed [2]int
	var ttft [2]float64
	history := []message{{"system", demoSystem}}
	for i, text := range demoTurns {
		history = append(history, message{"user", text})
		var rc [2]telemetry.Receipt
		var replies [2]string
		for j, s := range []*Stack{on, off} {
			reply, turn, err := say(ctx, s.URL(), model, history)
			if err != nil {
				return fmt.Errorf("turn %d: %w", i+1, err)
			}
			if rc[j], err = settled(ctx, s.AdminURL(), turn); err != nil {
				return fmt.Errorf("turn %d: %w", i+1, err)
			}
			replies[j] = reply
			computed[j] += value(rc[j].PComputedTokens)
			ttft[j] += value(rc[j].TTFTMs)
		}
		if replies[0] != replies[1] {
			return fmt.Errorf("turn %d: the replies differ, which must never happen:\n on:  %q\n off: %q", i+1, replies[0], replies[1])
		}
		a, b := rc[0], rc[1]
		pulled := 0
		if a.Return != nil {
			pulled = a.Return.Pulled
		}
		fmt.Fprintf(t, "%d\t%d\t│\t%d\t%d\t%.1f\t%d\t│\t%d\t%d\t%.1f\t\n", i+1, a.PromptTokens, value(a.PLocalTokens),
			value(a.PComputedTokens), value(a.TTFTMs), pulled, value(b.PLocalTokens), value(b.PComputedTokens), value(b.TTFTMs))
		history = append(history, message{"assistant", replies[0]})
	}
	fmt.Fprintf(t, "sum\t\t│\t\t%d\t%.1f\t\t│\t\t%d\t%.1f\t\n", computed[0], ttft[0], computed[1], ttft[1])
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nAll %d replies are equal, token for token. While clients waited, P computed %d prompt tokens with the return and %d without.\n",
		len(demoTurns), computed[0], computed[1])
	return nil
}

func value[T int | float64](p *T) T {
	if p == nil {
		return 0
	}
	return *p
}

// settled is the receipt of a turn once its return has ended: an agent's tools take longer than that.
func settled(ctx context.Context, admin, turn string) (telemetry.Receipt, error) {
	for {
		rc, err := receipt(ctx, admin, turn)
		if err != nil || rc.Return == nil || rc.Return.State != telemetry.Pending {
			return rc, err
		}
		select {
		case <-ctx.Done():
			return rc, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// say sends one streamed turn and returns the reply's text and the turn's id.
func say(ctx context.Context, base, model string, history []message) (reply, turn string, err error) {
	body, err := json.Marshal(map[string]any{
		"model": model, "messages": history, "max_tokens": demoReply, "min_tokens": demoReply, "temperature": 0, "stream": true,
	})
	if err != nil {
		return "", "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return "", "", err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", "", err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(res.Body, 4096)) // what there is of it
		return "", "", fmt.Errorf("HTTP %d: %s", res.StatusCode, b)
	}
	var text strings.Builder
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var ev struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if err := json.Unmarshal([]byte(data), &ev); err != nil {
			return "", "", fmt.Errorf("event %q: %w", data, err)
		}
		for _, c := range ev.Choices {
			text.WriteString(c.Delta.Content)
		}
	}
	return text.String(), res.Header.Get("X-Tarik-Turn"), lines.Err()
}

// receipt asks for one turn's receipt. It is written just after the reply's end, so it may have to
// be asked for more than once.
func receipt(ctx context.Context, admin, turn string) (telemetry.Receipt, error) {
	for range 100 {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/turns?turn="+turn, nil)
		if err != nil {
			return telemetry.Receipt{}, err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return telemetry.Receipt{}, err
		}
		var list []telemetry.Receipt
		err = json.NewDecoder(res.Body).Decode(&list)
		_ = res.Body.Close()
		if err != nil {
			return telemetry.Receipt{}, fmt.Errorf("GET /turns: %w", err)
		}
		if len(list) == 1 {
			return list[0], nil
		}
		select {
		case <-ctx.Done():
			return telemetry.Receipt{}, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return telemetry.Receipt{}, fmt.Errorf("no receipt for turn %s", turn)
}
