package tokenizer

import (
	"errors"
	"fmt"
	"strings"
)

// statement translates a block tag and emits it. change is +1 if it opens a block, -1 if it closes one.
func (t *translator) statement(flat []tagToken) (change int, err error) {
	tokens := group(flat)
	if len(tokens) == 0 || tokens[0].kind != nameToken {
		return 0, errors.New("expected the name of a statement")
	}
	keyword, args := tokens[0].text, tokens[1:]
	out := keyword
	switch keyword {
	case "generation", "endgeneration": // marks what a trainer learns from; nothing to render
		return 0, nil
	case "if":
		change = 1
		out, err = t.withExpression(keyword, args)
	case "elif":
		out, err = t.withExpression(keyword, args)
	case "do":
		out, err = t.withExpression(keyword, args)
	case "for":
		change = 1
		out, err = t.forStatement(args)
	case "set":
		change, out, err = t.setStatement(args)
	case "macro":
		change = 1
		out, err = t.macroStatement(args)
	case "call":
		change = 1
		out, err = t.callStatement(args)
	case "filter":
		change = 1
		p := expressionParser{t: t, tokens: args}
		out, err = p.filter()
		out = keyword + " " + out
		if err == nil && p.at < len(args) {
			err = fmt.Errorf("unexpected %s after a filter", describe(args[p.at]))
		}
	case "with":
		change = 1
		var arguments string
		arguments, err = t.arguments(args)
		out = keyword + " " + arguments
	case "else", "break", "continue":
		if len(args) > 0 {
			err = fmt.Errorf("unexpected %s after %q", describe(args[0]), keyword)
		}
	case "endif", "endfor", "endset", "endmacro", "endcall", "endfilter", "endwith":
		change = -1
	default:
		err = fmt.Errorf("unknown statement %q", keyword)
	}
	if err != nil {
		return 0, err
	}
	t.emit("{% " + out + " %}")
	return change, nil
}

func (t *translator) withExpression(keyword string, args []tagToken) (string, error) {
	expr, err := t.expression(args)
	return keyword + " " + expr, err
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
	return "for " + strings.Join(names, " , ") + " in ( " + iterable + " ) | _each" + suffix, nil
}

// setStatement: "x = value", "ns.x = value", or "x" for a block up to endset.
func (t *translator) setStatement(args []tagToken) (change int, out string, err error) {
	at := find(args, operatorToken, "=")
	target := args
	if at >= 0 {
		target = args[:at]
	}
	if len(target) == 0 || target[0].kind != nameToken || isKeyword(target[0].text) {
		return 0, "", errors.New("expected a name after set")
	}
	if len(splitTokens(target, ",")) > 1 {
		return 0, "", errors.New("set with several names is not supported")
	}
	if find(target, operatorToken, "|") >= 0 {
		return 0, "", errors.New("a set block with a filter is not supported")
	}
	name := target[0].text
	for rest := target[1:]; len(rest) > 0; {
		if len(rest) < 2 || !rest[0].is(operatorToken, ".") || rest[1].kind != nameToken {
			return 0, "", fmt.Errorf("unexpected %s in the target of set", describe(rest[0]))
		}
		name += "." + rest[1].text
		rest = rest[2:]
	}
	if at < 0 {
		return 1, "set " + name, nil
	}
	value, err := t.expression(args[at+1:])
	return 0, "set " + name + " = " + value, err
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
	return "macro " + args[0].text + " ( " + strings.Join(params, " , ") + " )", nil
}

// callStatement keeps the call itself as it is: the engine passes the block to it as "caller".
func (t *translator) callStatement(args []tagToken) (string, error) {
	if len(args) != 2 || args[0].kind != nameToken || !args[1].is(groupToken, "(") {
		return "", errors.New(`expected "name(arguments)" after call`)
	}
	arguments, err := t.arguments(args[1].inner)
	return "call " + args[0].text + " ( " + arguments + " )", err
}
