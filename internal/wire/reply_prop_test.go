package wire

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tarik-kv/tarik/internal/kvp"
)

// escaped is a text as the content of a JSON string, cut where a delta may end: between two characters, of which
// some are escaped, or within a surrogate pair.
type escaped []string

func (e escaped) text(t *rapid.T) string {
	var s string
	if err := json.Unmarshal([]byte(`"`+strings.Join(e, "")+`"`), &s); err != nil {
		t.Fatalf("%q: %v", e, err)
	}
	return s
}

// pieces cuts e at random places into strings, quotes included; now and then one is empty.
func (e escaped) pieces(t *rapid.T) (list []string) {
	for len(e) > 0 {
		n := rapid.IntRange(0, min(4, len(e))).Draw(t, "piece")
		list = append(list, `"`+strings.Join(e[:n], "")+`"`)
		e = e[n:]
	}
	return list
}

// escape writes s in one of the many ways.
func escape(t *rapid.T, s string) (e escaped) {
	for _, r := range s {
		switch way := rapid.IntRange(0, 3).Draw(t, "way"); {
		case r == '"' || r == '\\':
			e = append(e, `\`+string(r))
		case r == '\n':
			e = append(e, []string{`\n`, `\u000a`}[way&1])
		case way > 0:
			e = append(e, string(r))
		case r > 0xffff:
			high, low := 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff
			e = append(e, fmt.Sprintf(`\u%04x`, high), fmt.Sprintf(`\u%04X`, low))
		default:
			e = append(e, fmt.Sprintf(`\u%04x`, r))
		}
	}
	return e
}

type saidCallModel struct {
	id, name string // without anything to be escaped
	args     string // an object
	escaped  escaped
}

// saidModel is a reply as it was meant.
type saidModel struct {
	text, reasoning escaped
	calls           []saidCallModel
}

func drawSaid(t *rapid.T) (m saidModel) {
	text := func(what string, least int) escaped {
		words := rapid.SliceOfN(rapid.SampledFrom([]string{"a", " word", "\n", `"`, `\`, "é", "今日", "😀", "{}", "data: ", "</think>", "\\u0041"}), least, 6)
		return escape(t, strings.Join(words.Draw(t, what), ""))
	}
	m.text, m.reasoning = text("text", 0), text("reasoning", 0)
	for i := range rapid.IntRange(0, 3).Draw(t, "calls") {
		args := rapid.SampledFrom([]string{`{}`, `{"a":1}`, `{"path":"a/b.go","old":"x\n\"😀\"","n":[1,{"b":null}]}`, `{"é":"\\"}`}).Draw(t, "arguments")
		m.calls = append(m.calls, saidCallModel{fmt.Sprintf("call-%d", i), rapid.SampledFrom([]string{"read", "edit"}).Draw(t, "name"), args, escape(t, args)})
	}
	if len(m.text) == 0 && len(m.calls) == 0 {
		m.text = text("text", 1)
	}
	return m
}

// interleave draws an order of events that keeps the order within each list.
func interleave(t *rapid.T, lists ...[]string) (all []string) {
	for {
		var left []int
		for i, l := range lists {
			if len(l) > 0 {
				left = append(left, i)
			}
		}
		if len(left) == 0 {
			return all
		}
		i := rapid.SampledFrom(left).Draw(t, "list")
		all = append(all, lists[i][0])
		lists[i] = lists[i][1:]
	}
}

func (m *saidModel) chat(t *rapid.T) (stream, whole string) {
	delta := func(s string) string {
		return `{"choices":[{"index":0,"delta":{` + s + `},"finish_reason":null}],"kv_transfer_params":null}`
	}
	name := rapid.SampledFrom([]string{"reasoning", "reasoning_content"}).Draw(t, "name of reasoning")
	var chunks []string
	for _, p := range m.reasoning.pieces(t) {
		chunks = append(chunks, delta(fmt.Sprintf(`%q:%s`, name, p)))
	}
	for _, p := range m.text.pieces(t) {
		chunks = append(chunks, delta(`"content":`+p))
	}
	var calls []string
	var lists [][]string
	for i, c := range m.calls {
		first := fmt.Sprintf(`"tool_calls":[{"index":%d,"type":"function","id":%q,"function":{"name":%q,"arguments":`, i, c.id, c.name)
		var list []string
		for _, p := range c.escaped.pieces(t) {
			if first != "" {
				list = append(list, delta(first+p+`}}]`))
				first = ""
				continue
			}
			list = append(list, delta(fmt.Sprintf(`"tool_calls":[{"index":%d,"function":{"arguments":%s}}]`, i, p)))
		}
		lists = append(lists, list)
		calls = append(calls, fmt.Sprintf(`{"id":%q,"type":"function","function":{"name":%q,"arguments":"%s"}}`, c.id, c.name, strings.Join(c.escaped, "")))
	}
	chunks = append(chunks, interleave(t, lists...)...)
	stream = events(append(append([]string{delta(`"role":"assistant","content":""`)}, chunks...), "[DONE]")...)
	message := `"role":"assistant","content":null`
	if len(m.text) > 0 {
		message = `"role":"assistant","content":"` + strings.Join(m.text, "") + `"`
	}
	if len(m.reasoning) > 0 {
		message += fmt.Sprintf(`,%q:"%s"`, name, strings.Join(m.reasoning, ""))
	}
	return stream, `{"choices":[{"index":0,"message":{` + message + `,"tool_calls":[` + strings.Join(calls, ",") + `]}}]}`
}

func (m *saidModel) messages(t *rapid.T) (stream, whole string) {
	list := []string{`{"type":"message_start","message":{"id":"m","content":[]}}`}
	var blocks []string
	block := func(start, kind, member string, pieces []string, more ...string) {
		index := len(blocks)
		list = append(list, fmt.Sprintf(`{"type":"content_block_start","content_block":%s,"index":%d}`, start, index))
		for _, p := range pieces {
			list = append(list, fmt.Sprintf(`{"type":"content_block_delta","delta":{"type":%q,%q:%s},"index":%d}`, kind, member, p, index))
		}
		for _, d := range more {
			list = append(list, fmt.Sprintf(`{"type":"content_block_delta","delta":%s,"index":%d}`, d, index))
		}
		list = append(list, fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, index))
	}
	if len(m.reasoning) > 0 {
		block(`{"type":"thinking","thinking":""}`, "thinking_delta", "thinking", m.reasoning.pieces(t), `{"type":"signature_delta","signature":"s"}`)
		blocks = append(blocks, `{"type":"thinking","thinking":"`+strings.Join(m.reasoning, "")+`","signature":"s"}`)
	}
	if len(m.text) > 0 {
		block(`{"type":"text","text":""}`, "text_delta", "text", m.text.pieces(t))
		blocks = append(blocks, `{"type":"text","text":"`+strings.Join(m.text, "")+`"}`)
	}
	for _, c := range m.calls {
		tool := fmt.Sprintf(`{"type":"tool_use","id":%q,"name":%q,"input":`, c.id, c.name)
		block(tool+`{}}`, "input_json_delta", "partial_json", c.escaped.pieces(t))
		blocks = append(blocks, tool+c.args+`}`)
	}
	return events(append(list, `{"type":"message_stop"}`)...), `{"type":"message","content":[` + strings.Join(blocks, ",") + `]}`
}

func (m *saidModel) completions(t *rapid.T) (stream, whole string) {
	var list []string
	for _, p := range m.text.pieces(t) {
		list = append(list, `{"choices":[{"index":0,"text":`+p+`,"finish_reason":null}]}`)
	}
	return events(append(list, "[DONE]")...), `{"choices":[{"index":0,"text":"` + strings.Join(m.text, "") + `"}]}`
}

func (m *saidModel) responses(t *rapid.T) (stream, whole string) {
	var list, items []string
	for _, p := range m.text.pieces(t) {
		list = append(list, `{"delta":`+p+`,"type":"response.output_text.delta"}`)
	}
	if len(m.text) > 0 {
		items = append(items, `{"type":"message","role":"assistant","content":[{"type":"output_text","text":"`+strings.Join(m.text, "")+`"}]}`)
	}
	for _, c := range m.calls {
		items = append(items, fmt.Sprintf(`{"type":"function_call","id":"fc","call_id":%q,"name":%q,"arguments":"%s"}`, c.id, c.name, strings.Join(c.escaped, "")))
	}
	whole = `{"id":"r","output":[` + strings.Join(items, ", ") + `],"status":"completed"}`
	return events(append(list, `{"response":`+whole+`,"type":"response.completed"}`)...), whole
}

// meant is what the message has to mean, decoded; nil if there is none.
func (m *saidModel) meant(t *rapid.T, endpoint kvp.Endpoint, thinking bool) any {
	type object = map[string]any
	text, reasoning := m.text.text(t), m.reasoning.text(t)
	var list []any
	switch endpoint {
	case kvp.Completions:
		if text == "" {
			return nil
		}
		return text
	case kvp.Responses:
		if text != "" {
			list = append(list, object{"type": "message", "role": "assistant", "content": []any{object{"type": "output_text", "text": text}}})
		}
		for _, c := range m.calls {
			list = append(list, object{"type": "function_call", "id": "fc", "call_id": c.id, "name": c.name, "arguments": c.args})
		}
		return list
	case kvp.Messages:
		if reasoning != "" && thinking {
			list = append(list, object{"type": "thinking", "thinking": reasoning, "signature": "s"})
		}
		if text != "" {
			list = append(list, object{"type": "text", "text": text})
		}
		for _, c := range m.calls {
			var input any
			if err := json.Unmarshal([]byte(c.args), &input); err != nil {
				t.Fatal(err)
			}
			list = append(list, object{"type": "tool_use", "id": c.id, "name": c.name, "input": input})
		}
		return object{"role": "assistant", "content": list}
	}
	message := object{"role": "assistant", "content": nil}
	if text != "" {
		message["content"] = text
	}
	if reasoning != "" && thinking {
		message["reasoning"] = reasoning
	}
	for _, c := range m.calls {
		list = append(list, object{"id": c.id, "type": "function", "function": object{"name": c.name, "arguments": c.args}})
	}
	if list != nil {
		message["tool_calls"] = list
	}
	return message
}

// However a reply is cut into events, the message is, byte for byte, that of the whole reply, and it means what
// was meant.
func TestMessageOfStreamIsMessageOfBody(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		m := drawSaid(rt)
		for endpoint, dialect := range map[kvp.Endpoint]func(*rapid.T) (string, string){
			kvp.Chat: m.chat, kvp.Completions: m.completions, kvp.Responses: m.responses, kvp.Messages: m.messages,
		} {
			stream, whole := dialect(rt)
			opt := Options{Endpoint: endpoint, KeepReply: 1 << 20}
			_, info, err := filterBody([]byte(whole), opt)
			if err != nil {
				rt.Fatalf("%s: %v", whole, err)
			}
			want := outcomeOf(&info.Reply)
			if d := cmp.Diff(want, said(endpoint, stream)); d != "" {
				rt.Fatalf("%s\n%s (-whole +stream):\n%s", whole, stream, d)
			}
			if thought := want.Message != want.WithoutThinking; thought && !info.Reply.Reasoned() {
				rt.Fatalf("%s: Reasoned is false, but %s is not %s", whole, want.Message, want.WithoutThinking)
			}
			for thinking, message := range map[bool]string{true: want.Message, false: want.WithoutThinking} {
				var got any
				if message != "" {
					if err := json.Unmarshal([]byte(asJSON(endpoint, message)), &got); err != nil {
						rt.Fatalf("%s: %s: %v", whole, message, err)
					}
				}
				wanted := m.meant(rt, endpoint, thinking)
				if list, ok := wanted.([]any); ok && len(list) == 0 {
					wanted = nil
				}
				if d := cmp.Diff(wanted, got); d != "" {
					rt.Fatalf("%s thinking %v (-meant +message):\n%s", whole, thinking, d)
				}
			}
			var ids []string
			for _, c := range m.calls {
				if endpoint != kvp.Completions {
					ids = append(ids, c.id)
				}
			}
			if d := cmp.Diff(ids, want.ToolCalls); d != "" {
				rt.Fatalf("%s (-meant +ToolCalls):\n%s", whole, d)
			}
			check(rt, opt, []byte(stream), rapid.IntRange(1, 60).Draw(rt, "size"))
			opt.KeepReply = rapid.IntRange(0, 100).Draw(rt, "keep")
			check(rt, opt, []byte(stream), 50)
		}
	})
}
