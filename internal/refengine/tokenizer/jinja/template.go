package jinja

import (
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

// Template is a parsed template.
type Template struct {
	lines  []int // of the translated source → of the source
	parsed *exec.Template
}

// RaisedError is a message that the template itself raised with raise_exception.
type RaisedError struct{ Message string }

func (e *RaisedError) Error() string { return e.Message }

// maxSourceBytes bounds the source of a template; the largest published ones have some 30 kB.
const maxSourceBytes = 1 << 20

// Parse parses the source of a template. Errors name the line.
func Parse(source string) (_ *Template, err error) {
	if len(source) > maxSourceBytes {
		return nil, fmt.Errorf("template of %d bytes, want at most %d", len(source), maxSourceBytes)
	}
	translated, lines, err := translate(source)
	if err != nil {
		return nil, err
	}
	t := &Template{lines: lines}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("template engine: %v", r)
		}
	}()
	environment, err := environmentOnce()
	if err != nil {
		return nil, err
	}
	conf := config.New()
	conf.KeepTrailingNewline = true
	t.parsed, err = exec.NewTemplate(templateName, conf, singleSource(translated), environment)
	if err != nil {
		if inner := errors.Unwrap(err); inner != nil {
			err = inner // the outer one quotes the whole template
		}
		return nil, t.located(err)
	}
	return t, nil
}

var environmentOnce = sync.OnceValues(newEnvironment)

// Execute renders the template. variables are values as Decode and Value return them; the map belongs
// to Execute from then on. now is the clock behind strftime_now.
//
// The error is a *RaisedError if the template called raise_exception, and names the line otherwise.
func (t *Template) Execute(variables map[string]any, now func() time.Time) (text string, err error) {
	defer func() {
		if r := recover(); r != nil {
			text, err = "", fmt.Errorf("template engine: %v", r)
		}
	}()
	var raised *RaisedError
	variables["raise_exception"] = func(args *exec.VarArgs) *exec.Value {
		raised = &RaisedError{Message: Text(plain(args.First()))}
		return exec.AsValue(raised)
	}
	variables["strftime_now"] = func(args *exec.VarArgs) *exec.Value {
		return exec.AsValue(strftime(now(), Text(plain(args.First()))))
	}
	variables[usageKey] = new(usage)
	text, err = t.parsed.ExecuteToString(exec.NewContext(variables))
	if raised != nil {
		return "", raised
	}
	if err != nil {
		return "", t.located(err)
	}
	return text, nil
}

var lineInMessage = regexp.MustCompile(`(?i)\bline:?[ =](\d+)`)

// located reduces an error of the engine to its cause and the line of the source. The engine wraps a
// cause once per enclosing block, each with a line of the translated text; the last is the closest.
func (t *Template) located(err error) error {
	message := err.Error()
	cause := message
	if i := strings.LastIndex(message, ": "); i >= 0 && !strings.Contains(message, "(Line: ") {
		cause = message[i+2:]
	}
	found := lineInMessage.FindAllStringSubmatch(message, -1)
	if len(found) == 0 {
		return errors.New(cause)
	}
	n, err := strconv.Atoi(found[len(found)-1][1])
	if err != nil || n < 1 || n > len(t.lines) {
		return errors.New(cause)
	}
	return fmt.Errorf("line %d: %s", t.lines[n-1], cause)
}

// templateName is the only name that can be loaded.
const templateName = "chat_template"

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
