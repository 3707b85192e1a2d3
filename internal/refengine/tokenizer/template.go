package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
)

// Template is a chat template, parsed once. It may render for several goroutines at the same time.
type Template struct {
	// Now is the clock that strftime_now reads; NewTemplate sets time.Now. Templates that print the
	// date make prompts change at midnight.
	Now func() time.Time

	source    string
	lines     []int // of the translated source → of the source
	parsed    *exec.Template
	variables map[string]any // what the model's files add: bos_token, eos_token …
	developer bool           // the template knows the role "developer"
}

// TemplateError is a message that the template itself raised with raise_exception: it does not
// accept this conversation. The engine answers 400 with the message.
type TemplateError struct{ Message string }

func (e *TemplateError) Error() string { return e.Message }

// maxTemplateBytes bounds the source of a template; the largest published ones have some 30 kB.
const maxTemplateBytes = 1 << 20

// templateName is the only name the engine can load.
const templateName = "chat_template"

// NewTemplate parses the Jinja source of a chat template. Errors name the line.
func NewTemplate(src string) (_ *Template, err error) {
	if len(src) > maxTemplateBytes {
		return nil, fmt.Errorf("chat template of %d bytes, want at most %d", len(src), maxTemplateBytes)
	}
	t := &Template{
		Now:       time.Now,
		source:    src,
		developer: strings.Contains(src, `"developer"`) || strings.Contains(src, `'developer'`),
	}
	translated, lines, err := translate(src)
	if err != nil {
		return nil, fmt.Errorf("parse chat template: %w", err)
	}
	t.lines = lines
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("parse chat template: template engine: %v", r)
		}
	}()
	environment, err := environmentOnce()
	if err != nil {
		return nil, err
	}
	conf := config.New()
	conf.KeepTrailingNewline = true
	parsed, err := exec.NewTemplate(templateName, conf, singleSource(translated), environment)
	if err != nil {
		if inner := errors.Unwrap(err); inner != nil {
			err = inner // the outer one quotes the whole template
		}
		return nil, fmt.Errorf("parse chat template: %s", t.originalLine(err.Error()))
	}
	t.parsed = parsed
	return t, nil
}

var environmentOnce = sync.OnceValues(newEnvironment)

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
// type text are joined with "\n", a missing content is "", arguments of tool calls are parsed, and
// members that the engine does not know are dropped. The error is a *TemplateError if the template
// refused the conversation.
func (t *Template) Render(messages, tools []json.RawMessage, addGenerationPrompt bool, kwargs map[string]any) (text string, err error) {
	vars := make(map[string]any, len(t.variables)+len(kwargs)+8)
	for name, value := range t.variables {
		vars[name] = value
	}
	for name, value := range kwargs {
		v, err := templateValue(value)
		if err != nil {
			return "", fmt.Errorf("render chat template: variable %q: %w", name, err)
		}
		vars[name] = v
	}
	if vars["messages"], err = t.conversation(messages); err != nil {
		return "", fmt.Errorf("render chat template: %w", err)
	}
	if vars["tools"], err = toolDefinitions(tools); err != nil {
		return "", fmt.Errorf("render chat template: %w", err)
	}
	if _, ok := vars["documents"]; !ok {
		vars["documents"] = theNone
	}
	vars["add_generation_prompt"] = addGenerationPrompt
	return t.execute(vars)
}

func (t *Template) execute(vars map[string]any) (text string, err error) {
	defer func() {
		if r := recover(); r != nil {
			text, err = "", fmt.Errorf("render chat template: template engine: %v", r)
		}
	}()
	var raised *TemplateError
	vars["raise_exception"] = func(args *exec.VarArgs) *exec.Value {
		raised = &TemplateError{Message: display(plain(args.First()))}
		return exec.AsValue(raised)
	}
	vars["strftime_now"] = func(args *exec.VarArgs) *exec.Value {
		return exec.AsValue(strftime(t.Now(), display(plain(args.First()))))
	}
	depth := 0
	vars[depthKey] = &depth
	text, err = t.parsed.ExecuteToString(exec.NewContext(vars))
	if raised != nil {
		return "", raised
	}
	if err != nil {
		return "", fmt.Errorf("render chat template: %s", t.originalLine(err.Error()))
	}
	return text, nil
}

var lineInMessage = regexp.MustCompile(`(?i)\bline:?[ =](\d+)`)

// originalLine reduces an error of the engine to its cause and the line of the source. The engine
// wraps a cause once per enclosing block, each with a line of the translated text; the last is the
// closest.
func (t *Template) originalLine(message string) string {
	found := lineInMessage.FindAllStringSubmatch(message, -1)
	cause := message
	if i := strings.LastIndex(message, ": "); i >= 0 && !strings.Contains(message[i:], "(Line") {
		cause = message[i+2:]
	}
	if len(found) == 0 {
		return cause
	}
	n, err := strconv.Atoi(found[len(found)-1][1])
	if err != nil || n < 1 || n > len(t.lines) {
		return cause
	}
	return fmt.Sprintf("line %d: %s", t.lines[n-1], cause)
}

// singleSource is a loader that knows one template and nothing else: templates cannot read files.
type singleSource string

var _ loaders.Loader = singleSource("")

func (s singleSource) Read(name string) (io.Reader, error) {
	if name != templateName {
		return nil, fmt.Errorf("a chat template cannot load %q", name)
	}
	return strings.NewReader(string(s)), nil
}

func (s singleSource) Resolve(name string) (string, error) { return name, nil }

func (s singleSource) Inherit(string) (loaders.Loader, error) { return s, nil }
