"""Writes snippets.json: pieces of template, and what Jinja2 makes of them.

    pip install jinja2==3.1.6
    python make_snippets.py

The environment is the one in which Hugging Face's transformers renders chat templates: sandboxed,
trim_blocks and lstrip_blocks, its own tojson, loop controls.
"""

import datetime
import json
import os

import jinja2
import jinja2.ext
import jinja2.sandbox

HERE = os.path.dirname(os.path.abspath(__file__))

VARIABLES = {
    "word": "river",
    "empty": "",
    "text": "  one two\n\nthree <b>&amp; 'q' \"d\"\t\\ end \n",
    "think": "<think>\nhm\n</think>\n\nthe answer\n",
    "unicode": "Fluß 河 😀 é",
    "yes": True,
    "no": False,
    "null": None,
    "zero": 0,
    "one": 1,
    "many": 12345,
    "half": 0.5,
    "whole": 2.0,
    "items": ["a", "b", "c", "d"],
    "single": ["only"],
    "nothing": [],
    "numbers": [3, 1, 2],
    "obj": {"z": 1, "a": "x<y", "m": {"k": [1, None, True, 0.5]}, "é": "ü"},
    "emptyobj": {},
    "people": [
        {"name": "Ann", "role": "user", "age": 30, "tags": ["x", "y"]},
        {"name": "Bob", "role": "assistant", "age": 20, "tags": []},
        {"name": "cat", "role": "user", "age": 5, "tags": ["z"]},
    ],
    "schema": {
        "type": "object",
        "properties": {"path": {"type": "string", "description": "a \"path\""}, "limit": {"type": "integer", "default": 10}, "after": {"type": ["string", "null"], "enum": ["q", None]}},
        "required": ["path"],
        "items": {"type": "string"},
    },
}

SNIPPETS = r"""
plain text, no tags
{{ word }}
{{word}}
{{- word -}}
a {{- word -}} b
a  {{ word }}  b
{{ null }}|{{ yes }}|{{ no }}|{{ zero }}|{{ half }}|{{ whole }}|{{ missing }}|
{{ items }} {{ obj }} {{ nothing }} {{ emptyobj }} {{ numbers }}
{{ ["it's", 'say "x"', "\n", "é"] }}
{{ (1, 2) | list }}
{{ none }} {{ None }} {{ true }} {{ True }} {{ false }} {{ False }}
{{ 1 }} {{ 1.0 }} {{ 1e3 }} {{ 1_000 }} {{ -1 }} {{ +1 }} {{ 1.5e-7 }} {{ 1e16 }}
{{ 'a' 'b' "c" }}
{{ 'a\nb\tc\\d\'e"f' }}
{{ "\x41\u00e9\U0001f600\101\q" }}
{{ '{{ not a tag }}' }} {{ "%}" }} {{ '#}' }}
{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ 7 / 2 }} {{ 7 % 3 }} {{ 2 ** 3 }} {{ 7 - 2 - 1 }} {{ 6 / 3 }}
{{ 'a' + 'b' }} {{ 'a' ~ 1 ~ none ~ true }} {{ 'ab' * 3 }}
{{ items + ['e'] }} {{ [1] + [2] + [] }}
{{ 1 + 0.5 }} {{ 3 * 0.5 }} {{ whole * 2 }} {{ 1 - 0.75 }}
{{ one == 1 }} {{ one == 1.0 }} {{ one == '1' }} {{ yes == 1 }} {{ null == none }} {{ null == false }} {{ missing == none }}
{{ 1 < 2 }} {{ 2 <= 1 }} {{ 'a' < 'b' }} {{ 1 != 2 }} {{ 'a' != 'a' }} {{ many > 100 }} {{ half >= 0.5 }}
{{ [1, 2] == [1, 2] }} {{ {'a': 1} == {'a': 1} }} {{ {'a': 1} == {'a': 2} }}
{{ yes and no }} {{ yes or no }} {{ not yes }} {{ not empty }} {{ empty or 'x' }} {{ word and 'y' }} {{ zero or none }} {{ items and 1 }}
{{ not yes or yes }} {{ not (yes or yes) }} {{ yes and not no }} {{ no and missing.x }} {{ yes or missing.x }}
{{ 'iv' in word }} {{ 'x' in word }} {{ 'a' in items }} {{ 'e' not in items }} {{ 'z' in obj }} {{ 'q' in obj }} {{ 1 in numbers }} {{ not 'a' in items }}
{{ 'a' in items and 'b' in items }} {{ 'x' in word or 'r' in word }} {{ ('a' in items) == true }}
{{ 'a' in items + ['q'] }} {{ 'RIVER' in word | upper }} {{ 'A' in (word | upper) }} {{ 'b' in obj.keys() }} {{ 'z' in obj.keys() }}
{{ 'yes' if yes else 'no' }} {{ 'yes' if no else 'no' }} {{ 'yes' if no }}|
{{ 'a' if no else 'b' if no else 'c' }} {{ ('a' if yes else 'b') + 'c' }} {{ 'x' ~ ('a' if no else 'b') ~ 'y' }}
{{ (items if yes else nothing) | length }} {{ [1 if yes else 2, 3 if no else 4] }} {{ {'k': 'v' if yes else 'w'} }}
{{ missing.x if missing is defined else 'ok' }} {{ none if yes else 1 }} {{ (none if yes else 1) is none }}
{{ 'a' if word == 'river' and not no else 'b' }} {{ word if word in ['river', 'lake'] else 'other' }}
{{ items[0] }} {{ items[-1] }} {{ single[-1] }} {{ items[3] }} {{ items[9] }}| {{ nothing[-1] is defined }}
{{ items[1:] }} {{ items[:2] }} {{ items[1:3] }} {{ items[-2:] }} {{ items[:-1] }} {{ items[::-1] }} {{ items[::2] }} {{ items[::-1][0] }}
{{ word[0] }} {{ word[-1] }} {{ word[1:3] }} {{ word[:-1] }} {{ word[::-1] }} {{ unicode[:6] }} {{ unicode[5] }} {{ unicode[-1] }}
{{ [1, 2, 3][-1] }} {{ [1][-1] }} {{ ('a', 'b')[1] }} {{ (items)[0] }} {{ {'a': 5}['a'] }} {{ {'a': 5}.a }}
{{ obj.z }} {{ obj['a'] }} {{ obj.m.k[0] }} {{ obj['m']['k'][-1] }} {{ obj.q }}| {{ obj['q'] }}| {{ obj.m['k'] | length }} {{ people[0].tags[1] }}
{{ schema['items'] }} {{ schema.properties.path.type }} {{ schema.properties['limit'].default }} {{ schema.type is string }}
{{ obj.items() | map('join', '=') | list }} {{ obj.keys() | list }} {{ obj.values() | list }} {{ obj.get('z') }} {{ obj.get('q') }} {{ obj.get('q', 'd') }} {{ obj.get('q', none) is none }}
{{ missing is defined }} {{ null is defined }} {{ word is defined }} {{ obj.q is defined }} {{ obj.z is defined }} {{ missing is undefined }} {{ missing is not defined }}
{{ null is none }} {{ missing is none }} {{ word is none }} {{ null is not none }} {{ word is not none }}
{{ word is string }} {{ one is string }} {{ null is string }} {{ items is string }} {{ 'x' is string and yes }}
{{ obj is mapping }} {{ items is mapping }} {{ word is mapping }} {{ emptyobj is mapping }}
{{ items is iterable }} {{ word is iterable }} {{ obj is iterable }} {{ one is iterable }} {{ null is iterable }} {{ items is sequence }} {{ word is sequence }} {{ obj is sequence }} {{ one is sequence }}
{{ one is number }} {{ half is number }} {{ word is number }} {{ one is integer }} {{ half is integer }} {{ half is float }} {{ yes is boolean }} {{ one is boolean }} {{ yes is integer }} {{ yes is number }}
{{ yes is true }} {{ one is true }} {{ no is false }} {{ zero is false }} {{ null is false }} {{ missing is false }}
{{ 4 is even }} {{ 3 is odd }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ word is eq 'river' }} {{ word is equalto('lake') }} {{ 1 is in [1, 2] }} {{ one is ne 2 }} {{ null is sameas none }}
{{ 'abc' is lower }} {{ 'ABC' is upper }} {{ not word is string }} {{ word is string == yes }}
{{ items | length }} {{ word | length }} {{ unicode | length }} {{ obj | length }} {{ nothing | count }} {{ emptyobj | length > 0 }} {{ items | length - 1 }}
{{ items | first }} {{ items | last }} {{ single | last }} {{ nothing | first }}| {{ word | first }} {{ word | last }}
{{ items | join }} {{ items | join(', ') }} {{ numbers | join('-') }} {{ people | join(', ', attribute='name') }} {{ nothing | join('x') }}|
{{ text | trim }}| {{ 'xxaxx' | trim('x') }} {{ 5 | trim }} {{ word | upper }} {{ 'ABC' | lower }} {{ 'hello WORLD' | capitalize }} {{ "they're bill's friends" | title }}
{{ word | replace('r', 'R') }} {{ word | replace('r', 'R', 1) }} {{ text | replace('\n', ' ') }} {{ 'aaa' | replace('a', 'b', 2) }}
{{ missing | default('d') }} {{ null | default('d') }} {{ null | default('d', true) }} {{ empty | default('d') }}| {{ empty | default('d', boolean=true) }} {{ word | d('x') }} {{ missing | default }}| {{ obj.q | default([]) }}
{{ items | list }} {{ word | list }} {{ obj | list }} {{ 'ab' | reverse }} {{ items | reverse | list }} {{ numbers | sort }} {{ numbers | sort(reverse=true) }} {{ numbers | max }} {{ numbers | min }} {{ numbers | sum }}
{{ 12 | string + '3' }} {{ null | string }} {{ yes | string }} {{ items | string }} {{ '12' | int + 1 }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ 3.9 | int }} {{ '2.5' | float }} {{ 2 | float }} {{ -3 | abs }} {{ 2.567 | round(1) }}
{{ people | map(attribute='name') | list }} {{ people | map(attribute='name') | join(', ') }} {{ items | map('upper') | list }} {{ people | map(attribute='nope', default='-') | join }}
{{ people | selectattr('role', 'equalto', 'user') | map(attribute='name') | list }} {{ people | selectattr('role', 'eq', 'user') | list | length }} {{ people | rejectattr('role', '==', 'user') | map(attribute='name') | list }} {{ people | selectattr('tags') | list | length }} {{ people | selectattr('age', '>', 10) | list | length }} {{ people | selectattr('nope', 'defined') | list }}
{{ numbers | select('odd') | list }} {{ numbers | reject('odd') | list }} {{ items | select('in', ['a', 'z']) | list }} {{ ['', 'a'] | select | list }}
{{ people | sort(attribute='age') | map(attribute='name') | join(',') }} {{ people | sum(attribute='age') }} {{ people | map(attribute='tags') | map('length') | list }} {{ people | groupby('role') | map('first') | list }} {{ items | batch(3) | map('join') | list }} {{ 'a b c' | wordcount }} {{ people | map(attribute='age') | max }} {{ items | sort(reverse=true) | first }}
{{ '<a&"b>' | e }} {{ '%s=%d' | format('x', 3) }} {{ word | center(9) }}| {{ 'a' | list | tojson }} {{ numbers | sort | tojson }} {{ items | batch(2) | list | tojson }} {{ '1.5' | float | tojson }} {{ 7 | float }} {{ 2.567 | round(1) | tojson }} {{ people | map(attribute='tags.0') | map('default', '-') | list }}
{{ items | unique | list }} {{ ['a', 'A', 'b', 'a'] | unique | list }} {{ obj | dictsort | map('first') | list }} {{ (obj.m | items | first)[0] }}
{{ 'a\nb\n\nc' | indent }}| {{ 'a\nb' | indent(2) }}| {{ 'a\nb' | indent(2, true) }}| {{ 'a\n\nb' | indent(width=3, blank=true) }}| {{ 'a\nb' | indent('> ') }}
{{ obj | tojson }} {{ items | tojson }} {{ text | tojson }} {{ unicode | tojson }} {{ null | tojson }} {{ yes | tojson }} {{ half | tojson }} {{ whole | tojson }} {{ many | tojson }}
{{ obj | tojson(indent=2) }} {{ emptyobj | tojson(indent=2) }} {{ nothing | tojson(indent=4) }} {{ [[], {}, [1]] | tojson(indent=1) }}
{{ obj | tojson(ensure_ascii=true) }} {{ unicode | tojson(ensure_ascii=True) }} {{ obj | tojson(sort_keys=true) }} {{ obj | tojson(separators=(',', ':')) }} {{ '\x00\x1f\x7f\u2028' | tojson }}
{{ {'b': 1, 'a': [yes, none]} | tojson }} {{ {'role': word, 'n': items[:1]} | tojson }} {{ "</script>&'" | tojson }}
{{ text | safe | length }} {{ word | upper | lower | capitalize | replace('R', 'L') }} {{ (word ~ '!') | upper }} {{ word ~ '!' | upper }} {{ 'a' ~ 'b' | upper ~ 'c' }}
{{ text.strip() }}| {{ text.lstrip() }}| {{ text.rstrip() }}| {{ 'xyax'.strip('xy') }} {{ '\n\na\n'.lstrip('\n') }}| {{ '\n\na\n'.rstrip('\n') }}| {{ think.strip('\n') }}
{{ 'a,b,,c'.split(',') }} {{ ' a  b c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'abc'.split('x') }} {{ ''.split(',') }} {{ ''.split() }} {{ ' a b c '.split(maxsplit=1) }} {{ 'a b c'.rsplit(none, 1) }} {{ 'a b c'.split(none, 1) }}
{{ think.split('</think>')[-1].lstrip('\n') }} {{ think.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') }} {{ word.split('</think>')[-1] }} {{ word.split('</think>')|last }}
{{ word.startswith('ri') }} {{ word.endswith('x') }} {{ word.startswith(('a', 'r')) }} {{ word.upper() }} {{ 'A'.lower() }} {{ 'a b'.title() }} {{ 'abc'.capitalize() }} {{ word.replace('r', '') }} {{ word.replace('r', 'x', 1) }}
{{ ', '.join(items) }} {{ word.find('v') }} {{ word.find('z') }} {{ 'aXbXc'.count('X') }} {{ '12'.isdigit() }} {{ 'x1'.isdigit() }} {{ 'ab'.isalpha() }} {{ ' '.isspace() }} {{ 'a\nb\r\nc'.splitlines() }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }}
{{ (word + '!').upper() }} {{ ('x' if yes else 'y').upper() }} {{ (word | upper).lower() }} {{ [word, 'b'][0].upper() }} {{ word.upper().lower().replace('r', 'q')[1:] }} {{ (text | trim).split('\n')[0] }} {{ items[0].upper() ~ items[-1].upper() }}
{% if yes %}a{% endif %}{% if no %}b{% else %}c{% endif %}{% if no %}1{% elif yes %}2{% else %}3{% endif %}
{% if missing %}a{% else %}b{% endif %}{% if nothing %}a{% else %}b{% endif %}{% if emptyobj %}a{% else %}b{% endif %}{% if null %}a{% else %}b{% endif %}{% if obj %}a{% endif %}{% if half %}a{% endif %}{% if zero %}a{% endif %}
{% if yes and (no or word == 'river') and not missing %}a{% endif %}{% if word is defined and word %}b{% endif %}{% if obj.q is not defined or obj.q %}c{% endif %}{% if items is string or items is mapping %}d{% endif %}
{% if word in ['a','river'] %}a{% endif %}{% if 'z' in obj and obj.z == 1 %}b{% endif %}{% if not ('q' in obj) %}c{% endif %}{% if 'q' not in obj and yes %}d{% endif %}
{% for x in items %}{{ x }}{% endfor %} {% for x in nothing %}{{ x }}{% else %}none{% endfor %} {% for x in missing %}{{ x }}{% else %}none{% endfor %}
{% for x in items %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}
{% for x in items %}{% if not loop.first %}, {% endif %}{{ x }}{% if loop.last %}.{% endif %}{% endfor %} {% for x in items[::-1] %}{{ x }}{% endfor %} {% for x in items | reverse %}{{ x }}{% endfor %}
{% for k, v in obj.items() %}{{ k }}={{ v }};{% endfor %} {% for k in obj %}{{ k }};{% endfor %} {% for k, v in obj | items %}{{ k }}{% endfor %} {% for (k, v) in obj | dictsort %}{{ k }}{% endfor %}
{% for name, p in schema.properties.items() %}{{ name }}:{{ p.type }}{% if name in schema.required %}!{% endif %}{% if p.enum %}{{ p.enum | tojson }}{% endif %} {% endfor %}
{% for p in people if p.role == 'user' %}{{ loop.index }}{{ p.name }}{% endfor %} {% for p in people if p.age > 10 and p.tags %}{{ p.name }}{% else %}-{% endfor %} {% for p in people if p.role == 'x' %}{% else %}-{% endfor %}
{% for c in 'héé' %}[{{ c }}]{% endfor %} {% for i in range(3) %}{{ i }}{% endfor %} {% for i in range(1, 4) %}{{ i }}{% endfor %} {% for i in range(6, 0, -2) %}{{ i }}{% endfor %} {{ range(3) | list }} {% for i in range(items | length - 1, -1, -1) %}{{ items[i] }}{% endfor %}
{% for x in items %}{% for y in numbers %}{{ x }}{{ y }}{{ loop.index0 }}{% endfor %}{{ loop.index0 }}{% endfor %}
{% for x in items %}{% if x == 'b' %}{% continue %}{% endif %}{% if x == 'd' %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in items %}{{ loop.cycle('odd', 'even') }}{% endfor %} {% for x in (items if yes else nothing) %}{{ x }}{% endfor %} {% for x in items + ['z'] %}{{ x }}{% endfor %} {% for x in [1, 2] %}{{ x }}{% endfor %} {% for x in 'a', 'b' %}{{ x }}{% endfor %}
{% for a, b in [[1, 2], [3, 4]] %}{{ a }}{{ b }};{% endfor %}
{% set x = 5 %}{{ x }} {% set x = x + 1 %}{{ x }} {% set y = 'a' if yes else 'b' %}{{ y }} {% set z = [] %}{{ z | length }} {% set q = none %}{{ q is none }} {% set u = missing %}{{ u is defined }}
{% set x = 1 %}{% for i in items %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}
{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }} {% if yes %}{% set w = 3 %}{% endif %}{{ w }}
{% set ns = namespace(a=1, b='x', c=none) %}{% for i in items %}{% set ns.a = ns.a + 1 %}{% if i == 'c' %}{% set ns.b = i %}{% endif %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns.c is none }}
{% set ns = namespace() %}{% set ns.flag = false %}{% if not ns.flag %}{% set ns.flag = none %}{% endif %}{{ ns.flag is none }}{{ ns.other is defined }} {% set ns.list = [] %}{% for i in items %}{% set ns.list = ns.list + [i ~ i] %}{% endfor %}{{ ns.list }} {{ ns.list[-1] }}
{% set block %}a{{ word }}b{% endset %}{{ block }}{{ block | length }} {% set block2 %}  x  {% endset %}{{ block2 | trim }}|
{% macro m(a, b='d') %}[{{ a }}{{ b }}]{% endmacro %}{{ m('x') }}{{ m('x', 'y') }}{{ m(b='q', a=1) }}{{ m() }} {{ m('x') | upper }} {{ m(m('i')) }} {{ m('x') ~ '!' }} {{ 'z' + m('x') }}
{% macro f(v, depth=0) %}{% if v is mapping %}{{ '{' }}{% for k, x in v.items() %}{{ k }}:{{ f(x, depth + 1) }}{% endfor %}{{ '}' }}{% elif v is string %}{{ v }}{% elif v is iterable %}[{% for x in v %}{{ f(x, depth + 1) }}{% endfor %}]{% else %}{{ v }}{% endif %}{% endmacro %}{{ f(obj) }} {{ f(schema) }}
{% macro outer() %}{{ word }}{{ caller() }}{% endmacro %}{% call outer() %}inner {{ word }}{% endcall %}
{% macro loopy(list) %}{% for x in list %}{{ x }}{{ loop.index }}{% endfor %}{% endmacro %}{% for x in items %}{{ loopy(numbers) }}{{ loop.index }}{% endfor %}
{% with a = 1, b = word %}{{ a }}{{ b }}{% endwith %}{{ a }}| {% filter upper %}abc {{ word }}{% endfilter %}
{% raw %}{{ word }} {% if %}{% endraw %} {% generation %}x{{ word }}{% endgeneration %} {# a comment #}|{#- trimmed -#}   |
{{ strftime_now('%d %b %Y') }} {{ strftime_now("%Y-%m-%d %H:%M:%S %A %B %j %p %I %-d %y %%") }}
{{ raise_exception('bad ' ~ word) }}
{% if no %}{{ raise_exception('not reached') }}{% endif %}{{ 'fine' if yes else raise_exception('not reached') }}
{{ missing.x }}
{{ missing['x'] }}
{{ null.x }}
{{ obj.q.r }}
{{ missing.strip() }}
{{ null.strip() }}
{{ missing() }}
{{ one + 'x' }}
{{ word + none }}
{{ missing + 'x' }}
{{ word.nope() }}
{{ 'x' in missing }} {{ missing | length }} {{ missing | list }} {{ missing | trim }}| {{ missing | join(',') }}| {{ missing | items | list }}
{{ 'x' in null }}
{{ null | length }}
{{ items | nope }}
{{ items is nope }}
{{ 1 is in 5 }}
{{ missing | tojson }}
{{ namespace | tojson }}
{{ {} }} {{ {}.x }}| {{ {'a': {}}['a'] }} {{ {'a': {'b': 1}}.a.b }} {{ [] }}
{{ [1, 2, ] }} {{ {'a': 1, } }} {{ (1, )[0] }}
{{ dict(a=1, b=2) }} {{ dict(a=1).a }} {{ {'a': 1}.items() | first | join }}
{{ not not yes }} {{ not missing is defined }} {{ not null is none }}
{{ yes if yes }} {{ (yes) }} {{ ((word)) }} {{ -one }} {{ - one + 2 }} {{ -(1 + 2) }}
{{ 10 - 5 - 2 }} {{ 2 * 3 + 4 * 5 }} {{ 100 // 7 % 3 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 3 ** 2 }} {{ 1 / 2 == 0.5 }}
{{ 1 < 2 and 2 < 3 }} {{ 1 == 1 == 1 }} {{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }}
{{ word is string and word is defined or missing }} {{ (word is string) and (items is not string) }} {{ (word is string) if yes else no }} {{ 'a' if word is not none else 'b' }} {{ 1 if items is defined and items is not none else 2 }}
{%- if yes -%}  a  {%- endif -%}  b
{%+ if yes %} a {%+ endif %} b
{{ "a" }}   {%- if yes %}   b{% endif %}
""".strip("\n").split("\n")

MULTILINE = [
    "a\n{% if yes %}\nb\n{% endif %}\nc\n",
    "a\n  {% if yes %}\n  b\n  {% endif %}\n  c\n\n",
    "  {% for x in items %}\n    {{ x }}\n  {% endfor %}\nend",
    "  {%- for x in items %}\n    {{- x }}\n  {%- endfor %}\nend\n\n",
    "{% for x in items -%}\n    {{ x }}\n\n  {%- endfor %}\n\nend",
    "{% for x in items %}\n{{ x }}\n\n{% endfor %}",
    "a {% if yes %} b {% endif %} c\n   {# comment #}\nd\n{# c #} e\n",
    "   {{ word }}\n   {{- word }}\n   {{ word -}}\n   x",
    "{%+ if yes %}\n  {%+ if yes %}x{% endif +%}\n y\n{% endif %}",
    "{%- set x = 1 -%}\n\n\n{{ x }}\n",
    "\n\n{{ word }}\n\n",
    "{% raw %}\n  {{ x }}\n{% endraw %}\n y",
    "x\n  {%- raw -%}  \n {{ x }} \n {%- endraw -%} \n y",
    "{# multi\nline #}\nx {#- a -#}\n y",
    "{{ [\n  1,\n  2,\n]\n| join(\n  ','\n) }}\n{{ 'a'\n   ~ 'b' }}",
    "{%- if word == 'river'\n   and yes\n   and not\n   no %}\nok\n{%- endif %}",
    "{%- set x = {\n  'a': 1,\n  'b': [\n    2\n  ]\n} -%}\n{{ x\n.a }}{{ x['b']\n[0] }}",
    "{{ 'line\nbreak in a string' }}\r\nwindows\r\n{% if yes %}\r\nx\r\n{% endif %}\r\n",
    "\t{% if yes %}\n\ttabs\n\t{% endif %}\n",
    "{% if yes %}a{% endif %}\n{% if yes %}b{% endif %}\n\n{% if no %}c{% endif %}\nd",
    "{% macro m(x) %}\n  <{{ x }}>\n{% endmacro %}\n{{ m('a') }}\n{{- m('b') -}}\nend",
    "{%- macro m(x) -%}\n  <{{ x }}>\n{%- endmacro -%}\n{{ m('a') }}\n{{- m('b') -}}\nend",
    "line one\n{{ raise_exception('on line two') }}",
    "\u00a0{% if yes %}\u00a0x\u00a0{%- endif %}\u2003{{- word }}",
]

BROKEN = [
    "{{", "{{ word", "{% if yes %}", "{% endif %}", "{% if %}x{% endif %}", "{{ }}", "{{ 1 + }}", "{{ (1 }}", "{{ [1 }}", "{{ 'a }}", "{% for x items %}{% endfor %}", "{% for x in items %}", "{% else %}", "{% unknown %}",
    "{# open", "{% set %}", "{% set x = %}", "{% macro %}{% endmacro %}", "{{ word word }}", "{{ word. }}", "{{ word | }}", "{{ word is }}", "{{ 1 ? 2 }}", "{{ ) }}", "{{ word) }}", "{{ a['b'] ] }}", "{{ (a] }}",
    "{{ items[1:2:3:4] }}", "{{ {'a' 1} }}", "{% if yes %}{% for x in items %}{% endif %}{% endfor %}", "x\ny\n{{ word",
]


def environment():
    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            lineno = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno)

        def _body(self, caller):
            return caller()

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime(2026, 3, 7, 14, 5, 9).strftime(f)
    return env


def main():
    env = environment()
    out = []
    for source in SNIPPETS + MULTILINE + BROKEN:
        case = {"source": source}
        try:
            case["want"] = env.from_string(source).render(**VARIABLES)
        except jinja2.exceptions.TemplateSyntaxError as e:
            case["syntax"] = str(e)
        except Exception as e:  # noqa: BLE001 - whatever it raises, rendering has to fail
            case["error"] = str(e)
        out.append(case)
    with open(os.path.join(HERE, "snippets.json"), "w", encoding="utf-8") as f:
        json.dump({"variables": VARIABLES, "cases": out}, f, ensure_ascii=False, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
