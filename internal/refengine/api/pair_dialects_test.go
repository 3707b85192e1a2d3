package api

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// said is what one turn gave, in any dialect.
type said struct {
	ID     string
	Text   string
	Tokens []int32 // reply's ids, of responses only
	Output int     // reply tokens
	End    string
	KV     json.RawMessage
}

// say asks an engine and reads its answer: a document, or a stream's last events.
func say(t *testing.T, s *Server, path, body string) said {
	t.Helper()
	w := post(t, s, path, body)
	if w.Code != 200 {
		t.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
	doc := w.Body.String()
	if strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream") {
		events := dataEvents(doc)
		if path == "/v1/messages" {
			heard := hearMessage(t, doc)
			return said{Text: heard.Text, End: heard.End}
		}
		hearResponse(t, doc)
		var ev struct{ Response json.RawMessage }
		if err := json.Unmarshal([]byte(events[len(events)-1]), &ev); err != nil {
			t.Fatal(err)
		}
		doc = string(ev.Response)
	}
	var r struct {
		ID       string
		Output   responseItems
		Content  []struct{ Text string }
		Messages []struct{ Tokens []int32 } `json:"output_messages"`
		Status   string
		Reason   string `json:"stop_reason"`
		Usage    struct {
			Output int `json:"output_tokens"`
		}
		KV json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal([]byte(doc), &r); err != nil {
		t.Fatal(err)
	}
	out := said{ID: r.ID, Text: r.Output.spoken().Text, Output: r.Usage.Output, End: r.Status + r.Reason, KV: r.KV}
	for _, c := range r.Content {
		out.Text += c.Text
	}
	for _, m := range r.Messages {
		out.Tokens = append(out.Tokens, m.Tokens...)
	}
	return out
}

// rendered returns the ids that a body's prompt has on its route.
func rendered(t *testing.T, s *Server, path, body string) []int32 {
	t.Helper()
	var doc struct {
		IDs []int32 `json:"token_ids"`
	}
	w := post(t, s, path+"/render", body)
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil || w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return doc.IDs
}

// cutHandle returns the handle for as much of D's sequence as the next prompt begins with.
func cutHandle(t *testing.T, handle json.RawMessage, sequence, prompt []int32, blockSize int) string {
	t.Helper()
	k := 0
	for k < len(sequence)-1 && k < len(prompt) && sequence[k] == prompt[k] {
		k++
	}
	m := map[string]json.RawMessage{}
	var blocks [][]int
	var tokens int
	if json.Unmarshal(handle, &m) != nil || json.Unmarshal(m["remote_block_ids"], &blocks) != nil || json.Unmarshal(m["remote_num_tokens"], &tokens) != nil {
		t.Fatalf("handle %s", handle)
	}
	k = min(k, tokens)
	blocks[0] = blocks[0][:(k+blockSize-1)/blockSize]
	m["remote_num_tokens"] = appendInt(nil, k)
	m["remote_block_ids"], _ = json.Marshal(blocks)
	out, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

const longAsk = "please list the files of the project and say what each one is for, one line for each file, in the order of the list; " +
	"then read the first file of the list and say which part of the project it is for"

// A conversation of two turns by responses, the second by previous_response_id, and by messages: over a real pair
// with the handle of the first turn, cut to what the second prompt begins with, the answers are those of an engine
// alone, and the second turn's P, which has not seen the first, has pulled.
func TestPairDialects(t *testing.T) {
	t.Parallel()
	const limits = `"temperature":0,"max_output_tokens":60,"enable_response_messages":true,`
	const message = `{"model":"smollm2","temperature":0,"max_tokens":60,`
	user := func(text string) string { return `{"role":"user","content":` + string(appendString(nil, text)) + `}` }
	for _, c := range []struct {
		name, path, limit string
		first             string
		second            func(first said) string // by the engine that gave the first answer
		secondOnP         func(first said) string // P has not stored D's response
	}{
		{
			"responses", "/v1/responses", `"max_output_tokens":60`, `{` + limits + `"stream":true,"input":"` + longAsk + `"}`,
			func(first said) string {
				return `{` + limits + `"stream":true,"input":"next","previous_response_id":"` + first.ID + `"}`
			},
			func(first said) string {
				answer := `{"type":"message","role":"assistant","content":[{"type":"output_text","text":` + string(appendString(nil, first.Text)) + `}]}`
				return `{` + limits + `"input":[` + user(longAsk) + `,` + answer + `,` + user("next") + `]}`
			},
		},
		{
			"messages", "/v1/messages", `"max_tokens":60`, message + `"messages":[` + user(longAsk) + `]}`,
			func(first said) string {
				return message + `"stream":true,"messages":[` + user(longAsk) + `,{"role":"assistant","content":[{"type":"text","text":` +
					string(appendString(nil, first.Text)) + `}]},` + user("next") + `]}`
			},
			nil,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var servers []*Server
			var engines []*engine.Engine
			for _, role := range []string{"", "kv_producer", "kv_consumer", "kv_producer"} {
				s, e := newEngine(t, "0.33.0", role)
				s.opts.ResponsesStore = true
				servers, engines = append(servers, s), append(engines, e)
			}
			alone, p, d, other := servers[0], servers[1], servers[2], servers[3]
			with := func(body, kv string) string {
				return strings.TrimSuffix(body, "}") + `,"kv_transfer_params":` + kv + `}`
			}
			onP := func(body, kv string) string {
				body = strings.Replace(strings.Replace(body, `"stream":true,`, "", 1), c.limit, c.limit[:len(c.limit)-2]+"1", 1)
				return with(body, kv)
			}
			want := say(t, alone, c.path, c.first)
			a := say(t, p, c.path, onP(c.first, nullForm))
			got := say(t, d, c.path, with(c.first, string(a.KV)))
			handle, first := got.KV, got
			got.KV, got.ID = nil, ""
			if d := cmp.Diff(said{Text: want.Text, Tokens: want.Tokens, Output: want.Output, End: want.End}, got); d != "" {
				t.Fatalf("turn 1 (-alone +pair):\n%s", d)
			}
			if isNull(handle) {
				t.Fatal("D gave no handle")
			}

			second := c.second
			if c.secondOnP != nil {
				second = c.secondOnP
			}
			next := rendered(t, p, c.path, second(first))
			if d := cmp.Diff(rendered(t, alone, c.path, c.second(want)), next); d != "" {
				t.Fatalf("the second prompts differ (-alone +P):\n%s", d)
			}
			sequence := rendered(t, p, c.path, c.first)
			sequence = append(sequence, alone.text.Encode(first.Text)...)
			cut := cutHandle(t, handle, sequence, next, alone.blockSize)

			want = say(t, alone, c.path, c.second(want))
			a = say(t, other, c.path, onP(second(first), cut))
			got = say(t, d, c.path, with(c.second(first), string(a.KV)))
			want.ID, want.KV, got.ID, got.KV = "", nil, "", nil
			if d := cmp.Diff(want, got); d != "" || want.Text == "" {
				t.Errorf("turn 2 (-alone +pair):\n%s", d)
			}
			if stats := engines[3].Snapshot(); stats.BytesTransferred.Count != 1 || stats.PromptExternal == 0 {
				t.Errorf("P pulled %d tokens in %d transfers", stats.PromptExternal, stats.BytesTransferred.Count)
			}
			for _, e := range engines {
				if err := e.CheckAccounting(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
