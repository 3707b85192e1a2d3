package jinja

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestErrorsNameTheLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ source, want string }{
		{"a\nb\n{{ 1 + }}", "line 3: expected an expression"},
		{"{# a\nb #}\n{% if x %}\n{% unknown %}", `line 4: unknown statement "unknown"`},
		{"{% if x %}\n\n{% endfor %}", "line 3"},
		{"\n{% for x in y %}", "line 2"},
		{"{{ 'a\n\n' }}\n{{ \"\\u12\" }}", "line 4: escape"},
		{strings.Repeat("(", 1000) + "{{ " + strings.Repeat("(", 1000), "tag is not closed"},
		{"{{ " + strings.Repeat("(", 1000) + "1" + strings.Repeat(")", 1000) + " }}", "nested more than"},
		{"{{ " + strings.Repeat("not ", 1000) + "1 }}", "nested more than"},
		{"{{ " + strings.Repeat("-", 1000) + "1 }}", "nested more than"},
		{"{{ " + strings.Repeat("1 if 1 else ", 1000) + "1 }}", "nested more than"},
		{strings.Repeat("{% if x %}", 1000), "nested more than"},
		{strings.Repeat("x", maxSourceBytes+1), "bytes, want at most"},
	} {
		_, err := Parse(c.source)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Parse(%.40q): error %v, want one with %q", c.source, err, c.want)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("Parse(%.40q): error of %d bytes", c.source, len(err.Error()))
		}
	}
	for _, c := range []struct{ source, want string }{
		{"a\n{% if 1 %}\n{{ missing.x }}\n{% endif %}", "line 3:"},
		{"\n\n{% set x = 1 + 'a' %}", "line 3: a number + a string"},
		{"{% for m in messages %}\n{% for x in 5 %}{% endfor %}\n{% endfor %}", "line 2: a number cannot be iterated"},
		{"{{\n\n5 | tojson | nope }}", "filter 'nope' not found"},
		{"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls nested more than"},
		{"{{ range(1000000) }}", "range() of more than"},
		{"{{ 'x' * 100000000 }}", "text of more than"},
		{"{% for a in range(99) %}{% for b in range(99999) %}{% break %}{% endfor %}{% endfor %}", "loops over more than"},
		{"{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}", "text of more than"},
		{"{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x ~ 1 %}{% endfor %}", "text of more than"},
		{"{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}", "list of more than"},
		{"{{ 1 / 0 }}", "division by zero"},
		{"{{ 5() }}", "a value of type a number cannot be called"},
	} {
		template, err := Parse(c.source)
		if err != nil {
			t.Errorf("Parse(%q): %v", c.source, err)
			continue
		}
		_, err = template.Execute(map[string]any{"messages": List{"x"}}, snippetTime)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want one with %q", c.source, err, c.want)
		}
	}
}

func TestStrftime(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 5, 0, 7, 8, 123456789, time.UTC)
	got := strftime(now, "%Y-%m-%d %H:%M:%S.%f %y %e %I%p %-m/%-d/%-H %j %B %b %h %A %a %F %T %D %% %Q %")
	want := "2026-01-05 00:07:08.123456 26  5 12AM 1/5/0 005 January Jan Jan Monday Mon 2026-01-05 00:07:08 01/05/26 % %Q %"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("strftime (-want +got):\n%s", diff)
	}
}
