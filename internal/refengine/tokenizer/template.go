package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tarik-kv/tarik/internal/refengine/tokenizer/jinja"
)

// Template is a chat template, parsed once. It may render for several goroutines at the same time.
type Template struct {
	// Now is the clock that strftime_now reads; NewTemplate sets time.Now. Templates that print the
	// date make prompts change at midnight.
	Now func() time.Time

	source    string
	parsed    *jinja.Template
	variables map[string]any // what the model's files add: bos_token, eos_token …
	developer bool           // the template knows the role "developer"
}

// TemplateError is a message that the template itself raised with raise_exception: it does not
// accept this conversation. The engine answers 400 with the message.
type TemplateError struct{ Message string }

func (e *TemplateError) Error() string { return e.Message }

// NewTemplate parses the Jinja source of a chat template. Errors name the line.
func NewTemplate(src string) (*Template, error) {
	parsed, err := jinja.Parse(src)
	if err != nil {
		return nil, fmt.Errorf("parse chat template: %w", err)
	}
	return &Template{
		Now:       time.Now,
		source:    src,
		parsed:    parsed,
		developer: strings.Contains(src, `"developer"`) || strings.Contains(src, `'developer'`),
	}, nil
}

// Source returns the Jinja source.
func (t *Template) Source() string { return t.source }

// Render returns the text of a conversation.
//
// messages are chat messages as a client sends them, each a JSON object. tools are the request's tool
// definitions; with none the template sees tools = none. kwargs are further variables
// (chat_template_kwargs); values may be Go values as encoding/json makes them, or json.RawMessage
// where the order of keys matters.
//
// Messages are changed before the template sees them as the engine changes them: content parts of
// type text are joined with "\n" (the content format "string"; templates that loop over parts get the
// text all the same), a missing content is "", arguments of tool calls are parsed, and members that the
// engine does not know are dropped. The error is a *TemplateError if the template refused the
// conversation.
func (t *Template) Render(messages, tools []json.RawMessage, addGenerationPrompt bool, kwargs map[string]any) (string, error) {
	text, err := t.render(messages, tools, addGenerationPrompt, kwargs)
	var raised *jinja.RaisedError
	if errors.As(err, &raised) {
		return "", &TemplateError{Message: raised.Message}
	}
	if err != nil {
		return "", fmt.Errorf("render chat template: %w", err)
	}
	return text, nil
}

func (t *Template) render(messages, tools []json.RawMessage, addGenerationPrompt bool, kwargs map[string]any) (string, error) {
	vars := make(map[string]any, len(t.variables)+len(kwargs)+8)
	vars["documents"] = jinja.Null
	for name, value := range t.variables {
		vars[name] = value
	}
	for name, value := range kwargs {
		v, err := jinja.Value(value)
		if err != nil {
			return "", fmt.Errorf("variable %q: %w", name, err)
		}
		vars[name] = v
	}
	var err error
	if vars["messages"], err = t.conversation(messages); err != nil {
		return "", err
	}
	if vars["tools"], err = toolDefinitions(tools); err != nil {
		return "", err
	}
	vars["add_generation_prompt"] = addGenerationPrompt
	return t.parsed.Execute(vars, t.Now)
}
