package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// statusLine is one line on a terminal that is written over and over.
type statusLine struct {
	out   io.Writer // nil: not a terminal
	width int
}

func newStatusLine(w io.Writer) statusLine {
	l := statusLine{width: 80}
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return l
	}
	l.out = f
	if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 20 {
		l.width = n
	}
	return l
}

func (l statusLine) show(text string) {
	if l.out != nil {
		fmt.Fprintf(l.out, "\r%-*.*s", l.width-1, l.width-1, text)
	}
}

func (l statusLine) clear() {
	if l.out != nil {
		fmt.Fprintf(l.out, "\r%*s\r", l.width-1, "")
	}
}

// writeJSON writes a report for programs.
func writeJSON(w io.Writer, report any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	return enc.Encode(report)
}

func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
