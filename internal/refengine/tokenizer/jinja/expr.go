package jinja

import (
	"errors"
	"fmt"
	"strings"
)

// Expressions are parsed with Jinja's own precedence and written back so that the engine below has no
// choice left: "and", "or" and filters stay as they are, every other operator becomes a call of one of
// the functions in jinja_op.go, and each operand is a literal, a name, a call or a parenthesis.

// expression translates tokens that must be one expression, or several with commas: a tuple.
func (t *translator) expression(tokens []tagToken) (string, error) {
	if len(splitTokens(tokens, ",")) > 1 {
		return t.listOf(tokens)
	}
	if err := t.deeper(); err != nil {
		return "", err
	}
	defer t.shallower()
	p := expressionParser{t: t, tokens: tokens}
	out, err := p.conditional()
	if err == nil && p.at < len(p.tokens) {
		err = fmt.Errorf("unexpected %s", describe(p.tokens[p.at]))
	}
	return out, err
}

func (t *translator) deeper() error {
	if t.depth++; t.depth > maxTemplateDepth {
		return fmt.Errorf("expression nested more than %d deep", maxTemplateDepth)
	}
	return nil
}

func (t *translator) shallower() { t.depth-- }

type expressionParser struct {
	t      *translator
	tokens []tagToken
	at     int
}

func (p *expressionParser) peek() tagToken {
	if p.at < len(p.tokens) {
		return p.tokens[p.at]
	}
	return tagToken{}
}

func (p *expressionParser) accept(kind tokenKind, text string) bool {
	if !p.peek().is(kind, text) {
		return false
	}
	p.at++
	return true
}

// conditional is "value if condition else other".
func (p *expressionParser) conditional() (string, error) {
	value, err := p.or()
	if err != nil {
		return "", err
	}
	for p.accept(nameToken, "if") {
		if err := p.t.deeper(); err != nil {
			return "", err
		}
		defer p.t.shallower()
		condition, err := p.or()
		if err != nil {
			return "", err
		}
		other := "_undefined"
		if p.accept(nameToken, "else") {
			if other, err = p.conditional(); err != nil {
				return "", err
			}
		}
		// Both sides are wrapped in lists, which count as true whatever they hold, so that "and" and
		// "or" choose by the condition alone and evaluate only the side they take.
		value = "( ( " + condition + " and [ " + value + " ] or [ " + other + " ] ) [ 0 ] )"
	}
	return value, nil
}

func (p *expressionParser) or() (string, error) { return p.logical("or", p.and) }

func (p *expressionParser) and() (string, error) { return p.logical("and", p.not) }

func (p *expressionParser) logical(operator string, operand func() (string, error)) (string, error) {
	out, err := operand()
	n := 1
	for ; err == nil && p.accept(nameToken, operator); n++ {
		var right string
		right, err = operand()
		out += " " + operator + " " + right
	}
	if n > 1 {
		out = "( " + out + " )"
	}
	return out, err
}

func (p *expressionParser) not() (string, error) {
	if !p.accept(nameToken, "not") {
		return p.comparison()
	}
	if err := p.t.deeper(); err != nil {
		return "", err
	}
	defer p.t.shallower()
	operand, err := p.not()
	return "_not ( " + operand + " )", err
}

// comparison is a chain of ==, <, in …: all of its links must hold.
func (p *expressionParser) comparison() (string, error) {
	out, err := p.sum()
	if err != nil {
		return "", err
	}
	links := 0
	for {
		operator := p.comparisonOperator()
		if operator == "" {
			break
		}
		right, err := p.sum()
		if err != nil {
			return "", err
		}
		out += " , '" + operator + "' , " + right
		links++
	}
	if links > 0 {
		out = "_compare ( " + out + " )"
	}
	return out, nil
}

func (p *expressionParser) comparisonOperator() string {
	tok := p.peek()
	switch {
	case tok.is(nameToken, "in"):
		p.at++
		return "in"
	case tok.is(nameToken, "not") && p.at+1 < len(p.tokens) && p.tokens[p.at+1].is(nameToken, "in"):
		p.at += 2
		return "not in"
	case tok.kind == operatorToken:
		switch tok.text {
		case "==", "!=", "<", "<=", ">", ">=":
			p.at++
			return tok.text
		}
	}
	return ""
}

func (p *expressionParser) sum() (string, error) { return p.arithmetic("+-", p.concatenation) }

func (p *expressionParser) concatenation() (string, error) { return p.arithmetic("~", p.product) }

func (p *expressionParser) product() (string, error) { return p.arithmetic("* / // %", p.power) }

func (p *expressionParser) power() (string, error) { return p.arithmetic("**", p.unary) }

// arithmetic parses operands joined by left-associative operators, one call for all of them.
func (p *expressionParser) arithmetic(operators string, operand func() (string, error)) (string, error) {
	out, err := operand()
	n := 1
	for ; err == nil; n++ {
		tok := p.peek()
		if tok.kind != operatorToken || !strings.Contains(operators, tok.text) || tok.text == "*" && operators == "**" {
			break
		}
		p.at++
		var right string
		right, err = operand()
		out += " , '" + tok.text + "' , " + right
	}
	if n > 1 {
		out = "_compute ( " + out + " )"
	}
	return out, err
}

func (p *expressionParser) unary() (string, error) {
	out, err := p.signed()
	if err != nil {
		return "", err
	}
	for {
		switch {
		case p.accept(operatorToken, "|"):
			filter, err := p.filter()
			if err != nil {
				return "", err
			}
			out = "( " + out + " | " + filter + " )"
		case p.accept(nameToken, "is"):
			if out, err = p.test(out); err != nil {
				return "", err
			}
		default:
			return out, nil
		}
	}
}

func (p *expressionParser) signed() (string, error) {
	tok := p.peek()
	if !tok.is(operatorToken, "-") && !tok.is(operatorToken, "+") {
		return p.operand()
	}
	p.at++
	if err := p.t.deeper(); err != nil {
		return "", err
	}
	defer p.t.shallower()
	operand, err := p.signed()
	if tok.text == "-" {
		operand = "_compute ( 0 , '-' , " + operand + " )"
	}
	return operand, err
}

// test is what follows "is": [not] name [argument or (arguments)].
func (p *expressionParser) test(subject string) (string, error) {
	negated := p.accept(nameToken, "not")
	name := p.peek()
	if name.kind != nameToken {
		return "", errors.New(`expected the name of a test after "is"`)
	}
	p.at++
	arguments := ""
	next := p.peek()
	var err error
	switch {
	case next.is(groupToken, "("):
		p.at++
		arguments, err = p.t.arguments(next.inner)
	case next.kind != 0 && next.kind != operatorToken && !(next.kind == nameToken && isKeyword(next.text)):
		arguments, err = p.operand()
	}
	if err != nil {
		return "", err
	}
	out := "_test ( " + subject + " , " + quote(name.text) + withComma(arguments) + " )"
	if negated {
		out = "_not ( " + out + " )"
	}
	return out, nil
}

// filter is what follows "|": name [(arguments)].
func (p *expressionParser) filter() (string, error) {
	name := p.peek()
	if name.kind != nameToken {
		return "", errors.New(`expected the name of a filter after "|"`)
	}
	p.at++
	next := p.peek()
	if !next.is(groupToken, "(") {
		return name.text, nil
	}
	p.at++
	arguments, err := p.t.arguments(next.inner)
	if arguments == "" {
		return name.text, err
	}
	return name.text + " ( " + arguments + " )", err
}

// operand is a literal, name or bracket with everything that hangs on it: .name, [item], [from:to],
// (arguments).
func (p *expressionParser) operand() (string, error) {
	out, err := p.primary()
	for err == nil {
		tok := p.peek()
		switch {
		case tok.is(operatorToken, "."):
			out, err = p.attribute(out)
		case tok.is(groupToken, "["):
			p.at++
			out, err = p.t.subscript(out, tok.inner)
		case tok.is(groupToken, "("):
			p.at++
			var arguments string
			arguments, err = p.t.arguments(tok.inner)
			out = "_call ( " + out + withComma(arguments) + " )"
		default:
			return out, nil
		}
	}
	return "", err
}

func (p *expressionParser) primary() (string, error) {
	tok := p.peek()
	p.at++
	switch tok.kind {
	case nameToken:
		switch tok.text {
		case "none", "None":
			return "_none", nil
		case "true", "True":
			return "True", nil
		case "false", "False":
			return "False", nil
		case "nil": // only the engine below knows this name
			return "_undefined", nil
		}
		if isKeyword(tok.text) {
			return "", fmt.Errorf("unexpected %q", tok.text)
		}
		return tok.text, nil
	case numberToken:
		return strings.ReplaceAll(tok.text, "_", ""), nil
	case stringToken:
		return quote(tok.text), nil
	case groupToken:
		return p.t.bracket(tok)
	case 0:
		return "", errors.New("expected an expression")
	}
	return "", fmt.Errorf("unexpected %s", describe(tok))
}

// attribute is ".name", or ".name(arguments)", a method.
func (p *expressionParser) attribute(of string) (string, error) {
	p.at++
	name := p.peek()
	if name.kind == numberToken {
		p.at++
		return "_item ( " + of + " , " + name.text + " )", nil
	}
	if name.kind != nameToken {
		return "", errors.New(`expected a name after "."`)
	}
	p.at++
	next := p.peek()
	if !next.is(groupToken, "(") {
		return of + "." + name.text, nil
	}
	p.at++
	arguments, err := p.t.arguments(next.inner)
	return "_method ( " + of + " , " + quote(name.text) + withComma(arguments) + " )", err
}

func withComma(arguments string) string {
	if arguments == "" {
		return ""
	}
	return " , " + arguments
}

// bracket translates a parenthesis, a list or a dictionary.
func (t *translator) bracket(tok tagToken) (string, error) {
	switch tok.text {
	case "(":
		if len(tok.inner) > 0 && len(splitTokens(tok.inner, ",")) == 1 {
			inner, err := t.expression(tok.inner)
			return "( " + inner + " )", err
		}
		return t.listOf(tok.inner)
	case "[":
		return t.listOf(tok.inner)
	}
	var pairs []string
	for _, slot := range slotsOf(tok.inner) {
		sides := splitTokens(slot, ":")
		if len(sides) != 2 {
			return "", errors.New(`expected "key: value" in a dictionary`)
		}
		for _, side := range sides {
			part, err := t.expression(side)
			if err != nil {
				return "", err
			}
			pairs = append(pairs, part)
		}
	}
	return "_dict ( " + strings.Join(pairs, " , ") + " )", nil
}

// listOf translates comma-separated expressions. Tuples are lists here: the difference shows only when
// one is printed.
func (t *translator) listOf(tokens []tagToken) (string, error) {
	var items []string
	for _, slot := range slotsOf(tokens) {
		item, err := t.expression(slot)
		if err != nil {
			return "", err
		}
		items = append(items, item)
	}
	return "_list ( " + strings.Join(items, " , ") + " )", nil
}

// subscript is "[item]" or a slice of up to three parts.
func (t *translator) subscript(of string, tokens []tagToken) (string, error) {
	if len(tokens) == 1 && tokens[0].kind == stringToken {
		return of + " [ " + quote(tokens[0].text) + " ]", nil
	}
	sides := splitTokens(tokens, ":")
	if len(sides) == 1 {
		item, err := t.expression(tokens)
		return "_item ( " + of + " , " + item + " )", err
	}
	if len(sides) > 3 {
		return "", errors.New("a slice has at most three parts")
	}
	out := "_slice ( " + of
	for _, side := range sides {
		part := "_none"
		if len(side) > 0 {
			var err error
			if part, err = t.expression(side); err != nil {
				return "", err
			}
		}
		out += " , " + part
	}
	return out + " )", nil
}

func (t *translator) arguments(tokens []tagToken) (string, error) {
	var out []string
	for _, slot := range slotsOf(tokens) {
		name := ""
		if len(slot) > 1 && slot[0].kind == nameToken && slot[1].is(operatorToken, "=") {
			name, slot = slot[0].text+" = ", slot[2:]
		}
		value, err := t.expression(slot)
		if err != nil {
			return "", err
		}
		out = append(out, name+value)
	}
	return strings.Join(out, " , "), nil
}

// splitTokens splits at every occurrence of an operator, outside brackets.
func splitTokens(tokens []tagToken, operator string) [][]tagToken {
	var out [][]tagToken
	from := 0
	for i, tok := range tokens {
		if tok.is(operatorToken, operator) {
			out = append(out, tokens[from:i])
			from = i + 1
		}
	}
	return append(out, tokens[from:])
}

// slotsOf splits at commas; nothing, or a comma at the end, makes no slot.
func slotsOf(tokens []tagToken) [][]tagToken {
	slots := splitTokens(tokens, ",")
	if last := len(slots) - 1; len(slots[last]) == 0 {
		slots = slots[:last]
	}
	return slots
}

func find(tokens []tagToken, kind tokenKind, text string) int {
	for i, tok := range tokens {
		if tok.is(kind, text) {
			return i
		}
	}
	return -1
}

func isKeyword(name string) bool {
	switch name {
	case "and", "or", "not", "in", "is", "if", "else", "elif", "for", "recursive":
		return true
	}
	return false
}

func describe(tok tagToken) string {
	if tok.kind == stringToken {
		return "a string"
	}
	return fmt.Sprintf("%q", tok.text)
}
