package configfile

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/token"
)

// Error says what is wrong with a configuration file, and where.
type Error struct {
	File         string
	Line, Column int // from 1, in characters; 0 if the whole file is meant
	Message      string
	// Excerpt is the line with what must not be shown left out, and a caret below the place; "" without a line.
	Excerpt string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s\n%s", e.File, e.Line, e.Column, e.Message, e.Excerpt)
}

// failAt is an [*Error] at a token, nil for the whole file.
func (d *Document) failAt(t *token.Token, message string) *Error {
	e := &Error{File: d.file, Message: message}
	if t == nil || t.Position == nil || t.Position.Line < 1 || t.Position.Line > len(d.lines) {
		return e
	}
	line := strings.TrimRight(d.lines[t.Position.Line-1], "\r")
	e.Line, e.Column = t.Position.Line, min(max(t.Position.Column, 1), utf8.RuneCountInString(line)+1)
	e.Excerpt = excerpt(line, e.Line, e.Column)
	return e
}

var (
	blockStart = regexp.MustCompile(`^[ -]*$`)                        // what may stand before a key
	blockKey   = regexp.MustCompile(`^[ -]*[a-z0-9_]{1,32}:[ ]*$`)    // what may stand before a value
	aKey       = regexp.MustCompile(`^[a-z0-9_]{1,32}:`)              // the key that an error is about
	secretKey  = regexp.MustCompile(`(?i)key|secret|token|pass|cred`) // whose value stays hidden
	plainValue = regexp.MustCompile(`^[A-Za-z0-9_./:-]{1,32}[ \t]*$`) // shown as it is
)

// excerpt is a line with a caret below column.
//
// It shows what stands before the place only if that is a key of a block, and what stands at the place only if it
// is a key, or a short plain value of a key that does not sound like a secret.
func excerpt(line string, number, column int) string {
	runes := []rune(line)
	before, after := string(runes[:column-1]), string(runes[column-1:])
	shown := "…"
	switch {
	case blockStart.MatchString(before):
		if key := aKey.FindString(after); key != "" {
			shown = before + key
			if len(key) < len(after) {
				shown += " …"
			}
			break
		}
		shown = before + "…"
	case blockKey.MatchString(before):
		shown = before + "…"
		if after == "" {
			shown = before
		}
		if plainValue.MatchString(after) && !secretKey.MatchString(before) {
			shown = before + after
		}
	default:
		before = ""
	}
	margin := strconv.Itoa(number)
	return fmt.Sprintf("%s | %s\n%s | %s^", margin, strings.TrimRight(shown, " \t"), strings.Repeat(" ", len(margin)), strings.Repeat(" ", utf8.RuneCountInString(before)))
}
