package tokenizer

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func raws(texts ...string) []json.RawMessage {
	var out []json.RawMessage
	for _, text := range texts {
		out = append(out, json.RawMessage(text))
	}
	return out
}

// seen renders what the template gets to see as JSON.
func seen(t *testing.T, source string, messages, tools []json.RawMessage, kwargs map[string]any) string {
	t.Helper()
	template, err := NewTemplate(source)
	if err != nil {
		t.Fatal(err)
	}
	text, err := template.Render(messages, tools, false, kwargs)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestMessagesAsTheTemplateSeesThem(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{`{"role":"user","content":"x","extra":1}`, `{"role": "user", "content": "x"}`},
		{`{"content":"x","name":"ann","role":"user"}`, `{"role": "user", "content": "x", "name": "ann"}`},
		{`{"role":"user","content":[{"type":"text","text":"a"},"b",{"type":"text","text":"c","cache_control":{}},{"text":"d"}]}`, `{"role": "user", "content": "a\nb\nc\nd"}`},
		{`{"role":"user","content":[{"type":"text","text":null},{"type":"text"},{"type":"text","text":""}]}`, `{"role": "user", "content": ""}`},
		{`{"role":"assistant","content":[{"type":"refusal","refusal":"no"},{"type":"output_text","text":"b"}]}`, `{"role": "assistant", "content": "no\nb"}`},
		{`{"role":"assistant","content":null}`, `{"role": "assistant", "content": ""}`},
		{`{"role":"assistant"}`, `{"role": "assistant", "content": ""}`},
		{`{"role":"assistant","content":"x","reasoning":"r","reasoning_content":"other"}`, `{"role": "assistant", "content": "x", "reasoning": "r", "reasoning_content": "r"}`},
		{`{"role":"assistant","content":"x","reasoning":null,"reasoning_content":"r"}`, `{"role": "assistant", "content": "x", "reasoning": "r", "reasoning_content": "r"}`},
		{`{"role":"user","content":"x","reasoning":"r","tool_calls":[1],"tool_call_id":"i"}`, `{"role": "user", "content": "x"}`},
		{`{"role":"assistant","content":"x","tool_calls":[]}`, `{"role": "assistant", "content": "x"}`},
		{`{"role":"assistant","content":"x","tool_calls":null}`, `{"role": "assistant", "content": "x"}`},
		{
			`{"role":"assistant","tool_calls":[{"function":{"arguments":"{\"z\":1,\"a\":{\"y\":0.10,\"b\":[]},\"z\":12345678901234567890}","name":"f"},"type":"function","id":"1","index":0}]}`,
			`{"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": {"z": 12345678901234567890, "a": {"y": 0.10, "b": []}}, "name": "f"}, "type": "function", "id": "1", "index": 0}]}`,
		},
		{`{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{broken"}}]}`, `{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}`},
		{`{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"[1]"}}]}`, `{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}`},
		{`{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}`, `{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}`},
		{`{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"b":1,"a":2}}}]}`, `{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"b": 1, "a": 2}}}]}`},
		{`{"role":"tool","content":"x","tool_call_id":"1","name":5}`, `{"role": "tool", "content": "x", "tool_call_id": "1"}`},
	} {
		if diff := cmp.Diff(c.want, seen(t, "{{ messages[0] | tojson }}", raws(c.in), nil, nil)); diff != "" {
			t.Errorf("message %s (-want +got):\n%s", c.in, diff)
		}
	}
}

func TestRefusedMessages(t *testing.T) {
	t.Parallel()
	template, err := NewTemplate("{{ messages }}")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ in, want string }{
		{`[]`, "messages[0] is a list, want an object"},
		{`{"role":"user","content":"x"`, "messages[0]: unexpected EOF"},
		{`{"role":"user"} {}`, "more than one JSON value"},
		{`{"content":"x"}`, "role is missing"},
		{`{"role":5}`, "role is missing or not a string"},
		{`{"role":"user","content":5}`, "content is a number"},
		{`{"role":"user","content":[5]}`, "content[0]: part is a number"},
		{`{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}`, `content[0]: part of type "image_url": only text`},
		{`{"role":"user","content":[{"type":"text","text":5}]}`, "text of a part is a number"},
		{`{"role":"assistant","tool_calls":[5]}`, "tool_calls entries must be objects"},
		{`{"role":"assistant","tool_calls":[{"type":"custom","custom":{}}]}`, `must be of type "function"`},
		{`{"role":"user","content":` + strings.Repeat("[", 2000), "nested more than"},
	} {
		_, err := template.Render(raws(c.in), nil, false, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("message %.60s: error %v, want one with %q", c.in, err, c.want)
		}
	}
	for _, c := range []struct{ in, want string }{
		{`5`, "tools[0] is a number"},
		{`{"type":"function"}`, "tools[0] has no function"},
		{`{`, "tools[0]: unexpected EOF"},
	} {
		_, err := template.Render(nil, raws(c.in), false, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("tool %s: error %v, want one with %q", c.in, err, c.want)
		}
	}
}

// TestToolsKeepTheirOrder: schemas are printed into the prompt, so each key has to stay where it was.
func TestToolsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	const source = "{{ tools | tojson }}"
	for _, c := range []struct{ in, want string }{
		{
			`{"function":{"parameters":{"z":1,"a":{"é":"<&>","b":[1.0,1e400,-0,12345678901234567890]}},"name":"f","extra":1},"extra":2}`,
			`[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"z": 1, "a": {"é": "<&>", "b": [1.0, 1e400, -0, 12345678901234567890]}}}}]`,
		},
		{
			`{"type":"function","function":{"strict":false,"name":"f","description":"d"}}`,
			`[{"type": "function", "function": {"name": "f", "description": "d", "parameters": null, "strict": false}}]`,
		},
		{
			`{"type":"function","function":{"name":"f","strict":null}}`,
			`[{"type": "function", "function": {"name": "f", "description": null, "parameters": null}}]`,
		},
	} {
		if diff := cmp.Diff(c.want, seen(t, source, nil, raws(c.in), nil)); diff != "" {
			t.Errorf("tool %s (-want +got):\n%s", c.in, diff)
		}
	}
	if got := seen(t, "{{ tools is none }} {{ tools is defined }}", nil, nil, nil); got != "True True" {
		t.Errorf("without tools the template sees %q, want none", got)
	}
}

func TestManyKeysKeepTheirOrder(t *testing.T) {
	t.Parallel()
	var in, want []string
	for i := range 100 {
		key := `"` + strings.Repeat("k", 100-i) + `"`
		in = append(in, key+":0", key+":1")
		want = append(want, key+": 1")
	}
	in = append(in, in...)
	got := seen(t, "{{ x | tojson }}", nil, nil, map[string]any{"x": json.RawMessage("{" + strings.Join(in, ",") + "}")})
	if diff := cmp.Diff("{"+strings.Join(want, ", ")+"}", got); diff != "" {
		t.Errorf("object (-want +got):\n%s", diff)
	}
}

func TestVariables(t *testing.T) {
	t.Parallel()
	got := seen(t, "{{ [n, b, s, i, l, f, g, j, r, a, m] | tojson }}", nil, nil, map[string]any{
		"n": nil, "b": true, "s": "x", "i": 1, "l": int64(2), "f": 3.0, "g": 0.5, "j": json.Number("1e9"),
		"r": json.RawMessage(`{"b":1,"a":2}`), "a": []any{nil, 1.5}, "m": map[string]any{"b": 1, "a": map[string]any{}},
	})
	want := `[null, true, "x", 1, 2, 3, 0.5, 1e9, {"b": 1, "a": 2}, [null, 1.5], {"a": {}, "b": 1}]`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("variables (-want +got):\n%s", diff)
	}
	template, _ := NewTemplate("x")
	for _, v := range []any{struct{}{}, json.RawMessage("{"), []any{struct{}{}}, map[string]any{"a": struct{}{}}} {
		if _, err := template.Render(nil, nil, false, map[string]any{"v": v}); err == nil || !strings.Contains(err.Error(), `variable "v"`) {
			t.Errorf("variable %v: error %v, want one that names it", v, err)
		}
	}
	// The caller's variables do not replace the conversation.
	if got := seen(t, "{{ messages | length }}{{ tools }}", nil, nil, map[string]any{"messages": "xx", "tools": 5}); got != "0None" {
		t.Errorf("rendered %q, want %q", got, "0None")
	}
}

func TestTemplateErrorsNameTheLine(t *testing.T) {
	t.Parallel()
	_, err := NewTemplate("a\n{{ b")
	if want := "parse chat template: line 2: tag is not closed"; err == nil || err.Error() != want {
		t.Errorf("NewTemplate: error %v, want %s", err, want)
	}
	template, err := NewTemplate("a\n{{ b.c }}")
	if err != nil {
		t.Fatal(err)
	}
	_, err = template.Render(nil, nil, false, nil)
	if err == nil || !strings.HasPrefix(err.Error(), "render chat template: line 2: ") {
		t.Errorf("Render: error %v, want one that names line 2", err)
	}
}

func TestRaisedByTheTemplate(t *testing.T) {
	t.Parallel()
	template, err := NewTemplate("{% macro m() %}{{ raise_exception('no: ' ~ messages | length) }}{% endmacro %}{% for x in [1] %}{{ m() ~ 'x' }}{% endfor %}")
	if err != nil {
		t.Fatal(err)
	}
	_, err = template.Render(raws(`{"role":"user"}`), nil, false, nil)
	var raised *TemplateError
	if !errors.As(err, &raised) || raised.Message != "no: 1" {
		t.Errorf("error %v, want a TemplateError with the template's own message", err)
	}
}
