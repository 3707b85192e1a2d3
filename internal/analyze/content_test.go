package analyze

import (
	"encoding/json"
	"fmt"
	"testing"
)

// exchange is one turn of a conversation: all that was said before, and the reply.
type exchange struct {
	at    int
	users []string
	says  []string // replies; the last one is this turn's
}

// TestContentOfAPIs renders the same three turns as each API and log writes them. In all of them the history and the
// replies come back unchanged, and that must be seen: prompts repeat whole, replies too, and no pattern is found.
func TestContentOfAPIs(t *testing.T) {
	t.Parallel()
	asString := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	openAI := func(x exchange) []any {
		list := []any{said("system", words("s", 60))}
		for i, u := range x.users {
			list = append(list, said("user", u))
			if i+1 < len(x.users) {
				list = append(list, said("assistant", x.says[i]))
			}
		}
		return list
	}
	last := func(x exchange) string { return x.says[len(x.says)-1] }
	attribute := func(key, value string) m { return m{"key": key, "value": m{"stringValue": value}} }
	for name, line := range map[string]func(exchange) m{
		"chat completions": func(x exchange) m {
			return m{"request": m{"messages": openAI(x), "tools": []any{m{"type": "function"}}}, "response": m{"choices": []any{m{"message": said("assistant", last(x))}}}}
		},
		"bodies as strings": func(x exchange) m {
			return m{
				"request_body":  asString(m{"messages": openAI(x)}),
				"response_body": asString(m{"choices": []any{m{"message": said("assistant", last(x))}}}),
			}
		},
		"completions": func(x exchange) m {
			prompt := ""
			for i, u := range x.users {
				prompt += "\nuser: " + u + "\nassistant:"
				if i+1 < len(x.users) {
					prompt += x.says[i]
				}
			}
			return m{"request": m{"prompt": prompt}, "response": m{"choices": []any{m{"text": last(x)}}}}
		},
		"Anthropic": func(x exchange) m {
			block := func(s string) []any { return []any{m{"type": "text", "text": s}} }
			var list []any
			for i, u := range x.users {
				list = append(list, m{"role": "user", "content": block(u)})
				if i+1 < len(x.users) {
					list = append(list, m{"role": "assistant", "content": append(block(x.says[i]), m{"type": "tool_use", "id": "1", "name": "run", "input": m{"n": i}})},
						m{"role": "user", "content": []any{m{"type": "tool_result", "tool_use_id": "1", "content": "ok"}}})
				}
			}
			reply := append(block(last(x)), m{"type": "tool_use", "id": "1", "name": "run", "input": m{"n": len(x.says) - 1}})
			return m{"request": m{"system": block(words("s", 60)), "messages": list}, "response": m{"type": "message", "content": reply}}
		},
		"responses": func(x exchange) m {
			var list []any
			for i, u := range x.users {
				list = append(list, said("user", u))
				if i+1 < len(x.users) {
					list = append(list, m{"type": "message", "role": "assistant", "content": []any{m{"type": "output_text", "text": x.says[i]}}},
						m{"type": "function_call", "name": "run", "arguments": "{}"}, m{"type": "function_call_output", "output": "ok"})
				}
			}
			reply := []any{
				m{"type": "message", "role": "assistant", "content": []any{m{"type": "output_text", "text": last(x)}}},
				m{"type": "function_call", "name": "run", "arguments": "{}"},
			}
			return m{"request": m{"instructions": words("s", 60), "input": list}, "response": m{"object": "response", "output": reply}}
		},
		"Langfuse": func(x exchange) m {
			return m{"id": "o", "type": "GENERATION", "input": openAI(x), "output": said("assistant", last(x)), "usageDetails": m{"input": 1000 * len(x.users), "output": 50}}
		},
		"LiteLLM": func(x exchange) m {
			return m{
				"call_type": "acompletion", "prompt_tokens": 1000 * len(x.users), "completion_tokens": 50, "messages": openAI(x),
				"response": m{"choices": []any{m{"message": said("assistant", last(x))}}},
			}
		},
		"OpenTelemetry": func(x exchange) m {
			part := func(s string) []any { return []any{m{"type": "text", "content": s}} }
			var list []any
			for i, u := range x.users {
				list = append(list, m{"role": "user", "parts": part(u)})
				if i+1 < len(x.users) {
					list = append(list, m{"role": "assistant", "parts": part(x.says[i])})
				}
			}
			return m{"resourceSpans": []any{m{"scopeSpans": []any{m{"spans": []any{m{
				"startTimeUnixNano": fmt.Sprint((1760000000 + x.at) * 1e9),
				"attributes": []any{
					attribute("gen_ai.conversation.id", "c"),
					m{"key": "gen_ai.usage.input_tokens", "value": m{"intValue": fmt.Sprint(1000 * len(x.users))}},
					attribute("gen_ai.system_instructions", asString(part(words("s", 60)))),
					attribute("gen_ai.input.messages", asString(list)),
					attribute("gen_ai.output.messages", asString([]any{m{"role": "assistant", "parts": part(last(x))}})),
				},
			}}}}}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log []any
			var x exchange
			for i := range 3 {
				x.at = 30 * i
				x.users = append(x.users, words(fmt.Sprint("u", i, "-"), 40))
				x.says = append(x.says, words(fmt.Sprint("a", i, "-"), 30))
				l := line(x)
				if l["resourceSpans"] == nil {
					l["session_id"], l["ts"] = "c", 1760000000+x.at
				}
				log = append(log, l)
			}
			r := report(t, lines(t, log...))
			if r.FollowUpTurns != 2 || r.Share.ContentFollowUps != 2 || len(r.Findings) > 0 || r.History.Changed > 0 {
				t.Fatalf("follow-ups %d, with content %d, findings %v, history %+v", r.FollowUpTurns, r.Share.ContentFollowUps, codes(r), r.History)
			}
			// Two of three parts of what is new come from the user, one is the reply: with it more repeats.
			if *r.Share.PreviousReply < *r.Share.Previous+0.05 {
				t.Errorf("by content %s, with the reply %s: the reply is not recognised", show(r.Share.Previous), show(r.Share.PreviousReply))
			}
		})
	}
}
