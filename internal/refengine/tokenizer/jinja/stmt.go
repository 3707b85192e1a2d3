package jinja

import (
	"errors"
	"fmt"
	"strings"
)

// statement translates a block tag and emits it.
func (t *translator) statement(tokens []tagToken) error {
	if len(tokens) == 0 || tokens[0].kind != nameToken {
		return errors.New("expected the name of a statement")
	}
	keyword, args := tokens[0].text, tokens[1:]
	var out string
	var err error
	switch keyword {
	case "if", "elif", "do":
		out, err = t.expression(args)
	case "for":
		out, err = t.forStatement(args)
	case "set":
		out, err = t.setStatement(args)
	case "macro":
		out, err = t.macroStatement(args)
	case "call":
		out, err = t.callStatement(args)
	case "filter":
		out, err = t.filterStatement(args)
	case "with":
		out, err = t.arguments(args)
	case "else", "break", "continue", "endif", "endfor", "endset", "endmacro", "endcall", "endfilter", "endwith",
		"generation", "endgeneration":
		if len(args) > 0 {
			err = fmt.Errorf("unexpected %s after %q", describe(args[0]), keyword)
		}
	default:
		err = fmt.Errorf("unknown statement %q", keyword)
	}
	if err != nil {
		return err
	}
	if err := t.nest(keyword, keyword == "set" && find(args, operatorToken, "=") < 0); err != nil {
		return err
	}
	if keyword != "generation" && keyword != "endgeneration" { // marks what a trainer learns from; nothing to render
		t.emit("{% " + keyword + " " + out + " %}")
	}
	return nil
}

// nest keeps track of blocks. Only a set block has an end; a set statement has none.
func (t *translator) nest(keyword string, setBlock bool) error {
	enclosing := ""
	if n := len(t.blocks); n > 0 {
		enclosing = t.blocks[n-1].keyword
	}
	switch keyword {
	case "if", "for", "macro", "call", "filter", "with", "generation":
	case "set":
		if !setBlock {
			return nil
		}
	case "do":
		return nil
	case "elif":
		if enclosing != "if" {
			return errors.New(`"elif" outside "if"`)
		}
		return nil
	case "else":
		if enclosing != "if" && enclosing != "for" {
			return errors.New(`"else" outside "if" and "for"`)
		}
		return nil
	case "break", "continue":
		for _, b := range t.blocks {
			if b.keyword == "for" {
				return nil
			}
		}
		return fmt.Errorf("%q outside \"for\"", keyword)
	default: // an end
		if keyword != "end"+enclosing {
			return fmt.Errorf("unexpected %q", keyword)
		}
		t.blocks = t.blocks[:len(t.blocks)-1]
		return nil
	}
	if len(t.blocks) == maxTemplateDepth {
		return fmt.Errorf("blocks nested more than %d deep", maxTemplateDepth)
	}
	t.blocks = append(t.blocks, block{keyword, t.line})
	return nil
}

func (t *translator) filterStatement(args []tagToken) (string, error) {
	p := expressionParser{t: t, tokens: args}
	out, err := p.filter()
	if err == nil && p.at < len(args) {
		err = fmt.Errorf("unexpected %s after a filter", describe(args[p.at]))
	}
	return out, err
}

// forStatement: "x in values if condition", "k, v in pairs", "x in tree recursive".
func (t *translator) forStatement(args []tagToken) (string, error) {
	in := find(args, nameToken, "in")
	if in < 0 {
		return "", errors.New(`expected "in" in a for statement`)
	}
	targets := args[:in]
	if len(targets) == 1 && targets[0].is(groupToken, "(") {
		targets = targets[0].inner
	}
	var names []string
	for _, slot := range splitTokens(targets, ",") {
		if len(slot) != 1 || slot[0].kind != nameToken || isKeyword(slot[0].text) {
			return "", errors.New("expected one name or two as the loop variable")
		}
		names = append(names, slot[0].text)
	}
	if len(names) > 2 {
		return "", errors.New("more than two loop variables")
	}
	values := args[in+1:]
	suffix := ""
	if last := len(values) - 1; last >= 0 && values[last].is(nameToken, "recursive") {
		values, suffix = values[:last], " recursive"
	}
	if at := find(values, nameToken, "if"); at >= 0 {
		condition, err := t.expression(values[at+1:])
		if err != nil {
			return "", err
		}
		values, suffix = values[:at], " if "+condition+suffix
	}
	iterable, err := t.expression(values)
	if err != nil {
		return "", err
	}
	return strings.Join(names, " , ") + " in ( " + iterable + " ) | _each" + suffix, nil
}

// setStatement: "x = value", "ns.x = value", or "x" for a block up to endset.
func (t *translator) setStatement(args []tagToken) (string, error) {
	at := find(args, operatorToken, "=")
	target := args
	if at >= 0 {
		target = args[:at]
	}
	if len(target) == 0 || target[0].kind != nameToken || isKeyword(target[0].text) {
		return "", errors.New("expected a name after set")
	}
	if len(splitTokens(target, ",")) > 1 {
		return "", errors.New("set with several names is not supported")
	}
	if find(target, operatorToken, "|") >= 0 {
		return "", errors.New("a set block with a filter is not supported")
	}
	name := target[0].text
	for rest := target[1:]; len(rest) > 0; {
		if len(rest) < 2 || !rest[0].is(operatorToken, ".") || rest[1].kind != nameToken {
			return "", fmt.Errorf("unexpected %s in the target of set", describe(rest[0]))
		}
		name += "." + rest[1].text
		rest = rest[2:]
	}
	if at < 0 {
		return name, nil
	}
	value, err := t.expression(args[at+1:])
	return name + " = " + value, err
}

func (t *translator) macroStatement(args []tagToken) (string, error) {
	if len(args) != 2 || args[0].kind != nameToken || !args[1].is(groupToken, "(") {
		return "", errors.New(`expected "name(arguments)" after macro`)
	}
	var params []string
	for _, slot := range slotsOf(args[1].inner) {
		if len(slot) == 0 || slot[0].kind != nameToken {
			return "", errors.New("expected a name as macro argument")
		}
		param := slot[0].text
		if len(slot) > 1 {
			if !slot[1].is(operatorToken, "=") {
				return "", fmt.Errorf("unexpected %s in a macro argument", describe(slot[1]))
			}
			value, err := t.expression(slot[2:])
			if err != nil {
				return "", err
			}
			param += " = " + value
		}
		params = append(params, param)
	}
	return args[0].text + " ( " + strings.Join(params, " , ") + " )", nil
}

// callStatement keeps the call itself as it is: the engine passes the block to it as "caller".
func (t *translator) callStatement(args []tagToken) (string, error) {
	if len(args) != 2 || args[0].kind != nameToken || !args[1].is(groupToken, "(") {
		return "", errors.New(`expected "name(arguments)" after call`)
	}
	arguments, err := t.arguments(args[1].inner)
	return args[0].text + " ( " + arguments + " )", err
}
