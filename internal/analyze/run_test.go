package analyze

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// report analyzes lines as if they came from standard input.
func report(t testing.TB, input string, set ...func(*Options)) *Report {
	t.Helper()
	r, err := analyzeText(input, set...)
	if err != nil {
		t.Fatalf("Run = %v, report %+v", err, r)
	}
	return r
}

func analyzeText(input string, set ...func(*Options)) (*Report, error) {
	o := DefaultOptions()
	o.Files, o.Stdin, o.Salt = []string{"-"}, strings.NewReader(input), "test"
	for _, f := range set {
		f(&o)
	}
	return Run(context.Background(), o)
}

// lines writes values as lines of JSON.
func lines(t testing.TB, values ...any) string {
	t.Helper()
	var b strings.Builder
	for _, v := range values {
		line, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(line)
		b.WriteByte('\n')
	}
	return b.String()
}

type m = map[string]any

// chat is a dump line: a request of conversation id at second at with messages, and the text of its reply.
func chat(id string, at float64, messages []any, reply any, more ...m) m {
	request := m{"model": "qwen", "messages": messages}
	line := m{"session_id": id, "ts": at, "request": request}
	if reply != nil {
		line["response"] = m{"choices": []any{m{"index": 0, "message": reply}}}
	}
	for _, extra := range more {
		for k, v := range extra {
			request[k] = v
		}
	}
	return line
}

func said(role, text string) m { return m{"role": role, "content": text} }

// words is a text of n different words.
func words(seed string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s%d ", seed, i*7919%100003)
	}
	return b.String()
}

func finding(r *Report, code string) *Finding {
	for i := range r.Findings {
		if r.Findings[i].Code == code {
			return &r.Findings[i]
		}
	}
	return nil
}

func codes(r *Report) []string {
	var list []string
	for _, f := range r.Findings {
		list = append(list, f.Code)
	}
	return list
}

// near reports whether got is within 0.00005 of want, the precision to which the traces' own scripts print.
func near(got *float64, want float64) bool { return got != nil && math.Abs(*got-want) < 0.00005+1e-9 }

func show(v *float64) string {
	if v == nil {
		return "null"
	}
	return fmt.Sprintf("%.6f", *v)
}

func seconds10(s int) func(*Options) {
	return func(o *Options) { o.TTL = time.Duration(s) * time.Second }
}

// reason of the first bad line, for tests of what is refused.
func badReasons(r *Report) map[string]int64 {
	out := map[string]int64{}
	for _, i := range r.Input.Bad {
		out[i.Reason] = i.Count
	}
	return out
}

var errNone = errors.New("no error")
