"""Writes tests/fixtures/jinja/cases.json: what Jinja2 makes of small templates in the environment of
transformers' chat templates.

    python tests/reference/jinja_cases.py

Needs transformers and jinja2. A case is a template, or a template with variables; groups say what they are about."""
import datetime
import json
import os

from transformers.utils import chat_template_utils

VARIABLES = {
    "i": 7, "j": -3, "f": 2.5, "one": 1.0, "big": 9007199254740993, "t": True, "n": None,
    "s": "Hello, World", "u": "Grüße ΣΑΣ ß 日本 😀 İ", "blank": " \t x y \n", "lines": "a\nb\r\nc\n\nd",
    "l": [3, 1, 2], "e": [], "words": ["b", "A", "c", "a"], "d": {"b": 1, "a": {"c": [1, 2.0, None, True]}, "items": 5},
    "users": [{"name": "Ann", "age": 31, "city": "Rome"}, {"name": "bob", "age": 25, "city": "rome"},
              {"name": "Cid", "age": 31, "city": "Bern"}],
    "html": "<p class=\"x\">a &amp; b</p>", "empty": {}, "nested": [[1, [2]], {"k": "v'\""}],
}

GROUPS = {
    "printing": [
        "{{ i }} {{ f }} {{ one }} {{ big }} {{ t }} {{ n }} {{ undefinedname }}|",
        "{{ l }} {{ e }} {{ d }} {{ empty }} {{ nested }} {{ words }}",
        "{{ (1,) }} {{ () }} {{ (1, 'a') }} {{ [1.5, true, none] }}",
        "{{ 1e16 }} {{ 1e15 }} {{ 123456789012345.678 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1e-7 }} {{ 1.0 }} {{ 100.0 }}",
        "{{ 0.1 + 0.2 }} {{ 1/3 }} {{ 2/3 }} {{ 1e100 }} {{ 1e22 }} {{ 5e-324 }} {{ -0.0 }} {{ 1.7976931348623157e308 }}",
        "{{ 'it\\'s' }} {{ ['it\\'s'] }} {{ ['say \"x\"'] }} {{ ['\\'\"'] }} {{ ['a\\nb\\t\\\\'] }} {{ ['\\x00\\x7f\\u200b é'] }}",
        "{{ {'a': 1, 2: 'b', none: 1.0, true: []} }} {{ {1: 'a', 1.0: 'b', true: 'c'} }}",
        "{{ d.keys() }} {{ d.values() }} {{ {'a': 1}.items() }} {{ range(3) }} {{ range(1, 10, 2) }}",
        "{{ namespace(a=1, b='x') }} {{ [undefinedname] }} {{ u }} {{ [u] }}",
        "{{ 'a' 'b' \"c\" }} {{ 'x' ~ 1 ~ none ~ 2.0 ~ true }} {{ '\\u00e9\\x41\\101\\q' }}",
        "{{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }} {{ 1_0.5 }} {{ 00 }} {{ 1e3 }} {{ 1E+2 }}",
        "{{ -5 }} {{ +5 }} {{ - 5 }} {{ --5 }} {{ not true }} {{ -i }} {{ -f }} {{ -t }}",
    ],
    "arithmetic": [
        "{{ 7/2 }} {{ 7//2 }} {{ -7//2 }} {{ 7//-2 }} {{ -7%3 }} {{ 7%-3 }} {{ 7.5//2 }} {{ -7.5//2 }} {{ -7.5%2 }} {{ 7.5%-2 }}",
        "{{ 2**10 }} {{ 2**-1 }} {{ 2**0.5 }} {{ (-2)**3 }} {{ -2**2 }} {{ 2**3**2 }} {{ 0**0 }} {{ 1.5**2 }} {{ 2**62 }}",
        "{{ 6/3 }} {{ 6//3.0 }} {{ 1 + 1.0 }} {{ true + true }} {{ true * 3 }} {{ 3 - true }} {{ true / 2 }}",
        "{{ 9007199254740993 + 1 }} {{ big - 1 }} {{ big * 2 }} {{ big // 2 }} {{ big % 10 }} {{ -big }} {{ big + 0.5 }}",
        "{{ 9223372036854775807 }} {{ 9223372036854775806 + 1 }} {{ 4611686018427387904 * -2 }} {{ 3037000499 * 3037000499 }}",
        "{{ 'a' * 3 }} {{ 3 * 'ab' }} {{ [1] * 2 }} {{ 'x' * -1 }}| {{ (1, 2) + (3,) }} {{ [1] + [2] }} {{ 'a' + 'b' }}",
        "{{ 1 + 2 * 3 - 4 / 2 }} {{ (1 + 2) * 3 }} {{ 10 % 4 * 2 }} {{ 2 + 3 ~ 4 + 5 }} {{ 1 ~ 2 * 3 }}",
        "{{ 5 // 0.3 }} {{ 1e308 * 10 }} {{ 0 * -1 }} {{ 0.0 * -1 }} {{ -0.0 + 0 }} {{ 10 ** 18 }}",
        "{{ 1 + 'a' }}", "{{ 'a' + 1 }}", "{{ [1] + 'a' }}", "{{ 1 / 0 }}", "{{ 1 % 0 }}", "{{ 1.0 // 0 }}", "{{ none + 1 }}",
        "{{ undefinedname + 1 }}", "{{ 'a' - 1 }}", "{{ -'a' }}", "{{ {} + {} }}", "{{ 'a' * 1.5 }}", "{{ 0 ** -1 }}",
    ],
    "comparisons": [
        "{{ 1 == 1.0 }} {{ 1 == true }} {{ 0 == false }} {{ '1' == 1 }} {{ none == false }} {{ none == none }} {{ [] == () }}",
        "{{ [1, 2] == [1, 2.0] }} {{ {'a': 1} == {'a': true} }} {{ (1, 2) == (1, 2) }} {{ 'a' != 'b' }} {{ range(3) == range(0, 3) }}",
        "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 3 > 2 >= 2 }} {{ 1 == 1 == 1 }} {{ 'a' < 'b' }} {{ 'B' < 'a' }} {{ 'é' > 'z' }}",
        "{{ [1, 2] < [1, 3] }} {{ [1] < [1, 0] }} {{ (1, 'a') < (1, 'b') }} {{ true < 2 }} {{ 1.5 <= 1.5 }}",
        "{{ 'a' in 'abc' }} {{ 'd' not in 'abc' }} {{ '' in '' }} {{ 1 in [1, 2] }} {{ 1.0 in [1] }} {{ 'b' in d }} {{ 2 in range(3) }}",
        "{{ 'x' in undefinedname }} {{ undefinedname == undefinedname2 }} {{ undefinedname == none }} {{ undefinedname != 1 }}",
        "{{ big == 9007199254740992 }} {{ big > 9007199254740992 }} {{ big == 9007199254740993 }}",
        "{{ not 1 == 2 }} {{ not (1 in [1]) }} {{ 1 in [1] and 2 not in [1] }} {{ true and 'x' or 'y' }} {{ 0 or '' or none }} {{ 1 and 0 }}",
        "{{ 'yes' if e else 'no' }} {{ 'yes' if 0.0 else 'no' }} {{ 'yes' if '0' }} {{ 'no' if false }}| {{ 'a' if true else undefinedname.x }}",
        "{{ 1 < 'a' }}", "{{ none < 1 }}", "{{ [1] < (1,) }}", "{{ undefinedname < 1 }}", "{{ 1 in 'a' }}", "{{ 1 in 5 }}", "{{ {} < {} }}",
    ],
    "elements": [
        "{{ l[0] }} {{ l[-1] }} {{ l[5] }}| {{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ l[::2] }} {{ l[5:] }} {{ l[-2:] }} {{ l[2:0:-1] }}",
        "{{ s[0] }} {{ s[-1] }} {{ s[99] }}| {{ s[1:5] }} {{ s[::-1] }} {{ s[:0] }}| {{ s[-5:-1] }} {{ s[::3] }} {{ s[10:0:-4] }}",
        "{{ u[1] }} {{ u[-2] }} {{ u[2:7] }} {{ u[::-1] }} {{ u[17:] }} {{ u|length }} {{ u[-1:] }}",
        "{{ d['b'] }} {{ d.b }} {{ d['items'] }} {{ d.items is callable }} {{ d.a.c[1] }} {{ d['a']['c'][0] }} {{ d.x }}| {{ d['x'] }}|",
        "{{ d.get('b') }} {{ d.get('x') }} {{ d.get('x', 3) }} {{ (1, 2, 3)[1] }} {{ (1, 2, 3)[1:] }} {{ range(10)[2] }} {{ range(10)[2:5] }}",
        "{{ users[0].name }} {{ users.0.name }} {{ users[0]['age'] }} {{ l.x is defined }} {{ 'abc'.x is defined }} {{ n.x is defined }}",
        "{{ undefinedname.x }}", "{{ undefinedname['x'] }}", "{{ d.x.y }}", "{{ n.x.y }}", "{{ l[1:2:0] }}", "{{ l.append(1) }}", "{{ d.update({}) }}",
        "{{ d.__class__ }}|{{ s.__len__ }}|", "{{ d.__class__.x }}", "{{ ''.__class__.__mro__ }}", "{{ l['append'] }}|", "{{ l['a':'b'] }}",
        "{{ l[true] }} {{ l[1.0] }}| {{ d[['a']] }}| {{ {(1, 2): 3}[(1, 2)] }} {{ {1: 'x'}[1.0] }} {{ s['upper']() }}",
    ],
    "statements": [
        "{% if i > 5 %}a{% elif i > 3 %}b{% else %}c{% endif %}{% if not i %}x{% endif %}",
        "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }};{% endfor %}",
        "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{{ loop.previtem is defined }} {% endfor %}",
        "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}",
        "{% for x in e %}x{% else %}none{% endfor %}{% for x in l %}{% break %}{% else %}broken{% endfor %}{% for x in l %}{% continue %}{% else %}c{% endfor %}",
        "{% for x in l if x > 1 %}{{ x }}{{ loop.index }}/{{ loop.length }} {% endfor %}{% for x in l if x > 9 %}{% else %}no{% endfor %}",
        "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
        "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a+b+c }}{% endfor %}",
        "{% for c in 'añb' %}{{ c }}.{% endfor %}{% for x in (1, 2) %}{{ x }}{% endfor %}{% for x in undefinedname %}x{% endfor %}|{% for x in 1, 2 %}{{ x }}{% endfor %}",
        "{% set x = 1 %}{% for y in l %}{% set x = x + y %}{{ x }} {% endfor %}{{ x }}",
        "{% set ns = namespace(x=0) %}{% for y in l %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}{{ ns.y is defined }}",
        "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (a, b) = [b, a] %}{{ a }}{{ b }}{% set x %}block {{ a }}{% endset %}{{ x|upper }}{% set y | upper | replace('A', 'x') %}abc{% endset %}{{ y }}",
        "{% if false %}{% set i = 1 %}{% endif %}{{ i }}{% for x in l if x > 1 %}{{ loop.last }}{{ loop.length }}{% endfor %}",
        "{% if false %}{% set z = 1 %}{% endif %}{{ z is defined }}{% if true %}{% set z = 1 %}{% endif %}{{ z }}",
        "{{ s }}{% set s = 1 %}{{ s }}{% for q in [1] %}{% set s = 2 %}{{ s }}{% endfor %}{{ s }}",
        "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% with a = b %}{{ a }}{% endwith %}{{ a }}{% endwith %}{{ a is defined }}",
        "{% filter upper %}a{{ s }}{% endfilter %}{% filter indent(2, true) %}x\ny{% endfilter %}{% filter replace('a', 'b')|upper %}banana{% endfilter %}",
        "{% macro m(a, b=2, c='x') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c=5) }}{{ m(a=1, b=0) }}{{ m() }}{{ m.name }}{{ m.arguments }}",
        "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3, y='z') }}{{ m() }}",
        "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{% macro f(x) %}{% if x > 0 %}{{ x }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
        "{% macro m(x) %}<{{ caller(x, 2) }}>{% endmacro %}{% call(a, b) m(1) %}{{ a }}-{{ b }}{% endcall %}{% macro p() %}({{ caller() }}){% endmacro %}{% call p() %}in{% endcall %}",
        "{% macro m() %}{{ caller is defined }}{{ caller }}{% endmacro %}{{ m() }}{% call m() %}x{% endcall %}",
        "{% set g = 1 %}{% macro m() %}{{ g }}{% endmacro %}{{ m() }}{% set g = 2 %}{{ m() }}{% for g in [5] %}{{ m() }}{{ g }}{% endfor %}",
        "{% for x in [[1, [2, 3]], 4] recursive %}{{ loop.depth }}:{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %};{% endfor %}",
        "{% block a %}in{{ s }}{% endblock %}{% set v = 1 %}{% block b %}{{ v }}{% endblock %}{{ self.a() }}",
        "{% for x in l %}{% block c scoped %}{{ x }}{% endblock %}{% endfor %}{% for x in l %}{% block e %}{{ x }}|{% endblock e %}{% endfor %}",
        "{% generation %}a{{ s }}{% set k = 1 %}{% endgeneration %}{{ k is defined }}",
        "{% print 1, 'a' %}{% autoescape false %}{{ '<' }}{% endautoescape %}{# comment #}{% raw %}{{ x }}{% endraw %}",
        "{% set f = joiner('; ') %}{{ f() }}a{{ f() }}b{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}{{ c.reset() }}{{ c.next() }}",
        "{{ dict(a=1, b=2) }}{{ dict([('a', 1)], c=3) }}{{ dict({'x': 1}) }}{{ dict.fromkeys(['a', 'b'], 0) }}{{ range(5)|list }}{{ range(5, 1, -2)|list }}",
        "{% set x = {'a': [1, 2]} %}{% for k, v in x|items %}{{ k }}{{ v }}{% endfor %}{% for i in undefinedname|items %}x{% endfor %}",
        "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for a, b in [(1,)] %}{% endfor %}", "{% for a, b in [5] %}{% endfor %}", "{% for x in 5 %}{% endfor %}", "{% for x in none %}{% endfor %}",
        "{{ m(1, 2, 3) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "{{ 5() }}", "{{ raise_exception('bad ' ~ s) }}",
        "{% set ns.x = 1 %}", "{% set ns = namespace(_x=1) %}", "{% set d.x = 1 %}", "{{ range(100001) }}", "{{ range(1, 2, 0) }}", "{{ cycler() }}", "{{ range('a') }}",
    ],
    "whitespace": [
        "a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a {%- if true -%} b {%- endif -%} c", "a\n{%+ if true %}\nb{% endif +%}\nc", "  {{ 1 }}  \n  {{- 2 -}}  \n x",
        "x\n  {# c #}\ny {#- c -#} z", "x {% raw -%}  a {{ b }}  {%- endraw %} y", "x\n  {% raw %}\n a\n  {% endraw %}\n y", "{% if true %}\n\nx{% endif %}\n\n", "a\r\nb\rc\n",
        "{{ '}}' }}{{ '{%' }}{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a':{}} }}", "{{-1}}{{ -1 }}", "{%if true%}x{%endif%}", "\t{% if true %}\n\tx\n\t{% endif %}\n", "a\n\n   {%- if true %}   \nx{% endif %}",
        "{% set x = 'a\nb' %}{{ x }}", "x\u00a0{%- if true %}y{% endif %}", "line1\n   {{ 1 }}\n   {% if true %}  {% endif %}\nz", "{#- a -#}\n\n  x", "{% raw %}{% endraw %}x\n",
    ],
    "text methods": [
        "{{ blank.strip() }}|{{ blank.lstrip() }}|{{ blank.rstrip() }}|{{ 'xxayx'.strip('x') }}|{{ 'xyaxy'.strip('yx') }}|{{ 'éaé'.strip('é') }}|{{ 'a'.strip('') }}",
        "{{ 'a,b,,c'.split(',') }}{{ 'a,b,,c'.split(',', 1) }}{{ ' a  b '.split() }}{{ ' a  b c '.split(none, 1) }}{{ ''.split() }}{{ ''.split(',') }}{{ 'a--b'.split('--') }}",
        "{{ 'a,b,c'.rsplit(',', 1) }}{{ ' a b c '.rsplit(none, 1) }}{{ 'aaa'.rsplit('aa') }}{{ 'a b'.rsplit() }}{{ lines.splitlines() }}{{ lines.splitlines(true) }}{{ 'a\\x0bb\\u2028c'.splitlines() }}",
        "{{ s.startswith('He') }}{{ s.startswith(('x', 'He')) }}{{ s.endswith('ld') }}{{ s.endswith(('a',)) }}{{ s.startswith('e', 1) }}{{ s.endswith('H', 0, 1) }}{{ s.startswith('') }}{{ ''.startswith('', 1) }}",
        "{{ s.replace('l', 'L') }}{{ s.replace('l', '', 1) }}{{ 'ab'.replace('', '-') }}{{ 'ab'.replace('', '-', 2) }}{{ 'aaa'.replace('aa', 'b') }}{{ s.replace('l', 'x', -1) }}{{ s.replace('l', 'x', 0) }}",
        "{{ s.find('o') }}{{ s.rfind('o') }}{{ s.find('z') }}{{ s.index('W') }}{{ s.count('l') }}{{ u.find('日') }}{{ s.find('o', 5) }}{{ s.find('o', 5, 7) }}{{ 'aaa'.count('aa') }}{{ 'ab'.count('') }}{{ s.rfind('') }}{{ s.find('', 20) }}",
        "{{ u.upper() }}{{ u.lower() }}{{ u.title() }}{{ u.capitalize() }}{{ u.swapcase() }}{{ 'ΑΣ Σ'.lower() }}{{ 'they\\'re ok'.title() }}{{ 'ß'.casefold() }}{{ 'ŉ ǆ ﬁ ᾳ'.upper() }}{{ 'ǆ ﬁ'.title() }}",
        "{% set x = 'é' * 20 ~ 'a needle that is long' ~ 'y' * 5 %}{{ x.find('a needle that is long') }}{{ x.split('a needle that is long') }}{{ 'a needle that is long' in x }}{{ x.find('a needle that is longer') }}{{ x.replace('a needle that is long', '-') }}{{ x.count('a needle that is long') }}{{ 'y'.find('a needle that is long') }}{{ x.partition('a needle that is long')[0] }}{{ x.rfind('a needle that is long') }}",
        "{{ ','.join(['a', 'b']) }}{{ ''.join(('x',)) }}{{ '-'.join('abc') }}{{ ', '.join({'a': 1, 'b': 2}) }}{{ ''.join([]) }}",
        "{{ '12'.isdigit() }}{{ '1.2'.isdigit() }}{{ '²'.isdigit() }}{{ '²'.isdecimal() }}{{ '½'.isnumeric() }}{{ 'aé'.isalpha() }}{{ 'a1'.isalnum() }}{{ ' \\n'.isspace() }}{{ ''.isspace() }}{{ ''.isdigit() }}{{ 'aB'.islower() }}{{ 'ab1'.islower() }}{{ 'AB'.isupper() }}{{ 'Ab Cd'.istitle() }}{{ 'é'.isascii() }}{{ 'a_1'.isidentifier() }}",
        "{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('c') }}{{ 'abc'.removeprefix('x') }}{{ 'abc'.removesuffix('') }}{{ 'a-b-c'.partition('-') }}{{ 'a-b-c'.rpartition('-') }}{{ 'abc'.partition('-') }}{{ 'abc'.rpartition('-') }}",
        "{{ '5'.zfill(3) }}{{ '-5'.zfill(4) }}{{ '+5'.zfill(1) }}{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '.') }}|{{ 'ab'.center(5) }}|{{ 'ab'.center(5, '*') }}|{{ 'a'.center(4) }}|{{ 'é'.ljust(3, 'ü') }}|{{ 'a\\tb'.expandtabs(4) }}",
        "{{ 'a'.join(1) }}", "{{ ','.join([1]) }}", "{{ 'a'.split('') }}", "{{ 'a'.index('b') }}", "{{ s.nothing() }}", "{{ s.strip(1) }}", "{{ s.replace('a') }}", "{{ s.startswith(1) }}", "{{ s.upper(1) }}", "{{ 'a'.ljust(3, 'ab') }}",
        "{{ l.index(1) }}{{ l.count(1) }}{{ l.copy() }}{{ (1, 2, 1).count(1) }}{{ (1, 2).index(2) }}{{ d.copy() == d }}{{ 2.0.is_integer() }}{{ d.keys()|list }}{{ 'b' in d.keys() }}{{ d.values()|length }}", "{{ l.index(9) }}",
    ],
    "formatting": [
        "{{ '%s and %s' % ('a', 1) }}{{ '%s' % 'x' }}{{ '%s' % l }}{{ '%r' % 'x' }}{{ '%d%%' % 5 }}{{ '%5d|%-5d|%05d|%+d|% d' % (1, 2, 3, 4, 5) }}{{ '%x %X %o %#x' % (255, 255, 8, 255) }}",
        "{{ '%.2f' % 3.14159 }}{{ '%8.3f|' % 2.5 }}{{ '%-8.1f|' % 2.25 }}{{ '%e' % 12345.678 }}{{ '%g %g %g' % (0.0001, 1e20, 100000) }}{{ '%.3s|' % 'abcdef' }}{{ '%5s|%-5s|' % ('é', 'b') }}{{ '%c' % 65 }}{{ '%d' % 3.9 }}{{ '%d' % true }}",
        "{{ '%(a)s %(b)d' % {'a': 1, 'b': 2} }}{{ '%*d' % (5, 1) }}{{ '%.*f' % (2, 3.14159) }}{{ 'x' % () }}{{ '%s'|format('a') }}{{ '%(k)s'|format(k='v') }}{{ '%s %s'|format(1, none) }}{{ '%i' % big }}{{ '%.10d' % 42 }}{{ '%+.1e' % 0 }}{{ '%G' % 1e-10 }}",
        "{{ '{} {}'.format('a', 1) }}{{ '{1} {0}'.format('a', 'b') }}{{ '{x} {y[0]} {z.a}'.format(x=1, y=l, z=d) }}{{ '{{}}'.format() }}{{ '{!r}'.format('a') }}{{ '{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd') }}",
        "{{ '{:d} {:5d} {:05d} {:+d} {:x} {:#x} {:b} {:o} {:,} {:_}'.format(1, 2, 3, 4, 255, 255, 5, 8, 1234567, 1234567) }}{{ '{:.2f} {:8.3f} {:e} {:g} {:%} {:.1%} {}'.format(3.14159, 2.5, 12345.678, 0.0001, 0.5, 0.123, 1.0) }}",
        "{{ '{:{}}|'.format('a', 4) }}{{ '{:.2}|'.format('abc') }}{{ '{:>{w}}'.format('a', w=3) }}{{ '{}'.format(none) }}{{ '{}'.format(l) }}{{ '{:,.2f}'.format(1234567.891) }}{{ '{:c}'.format(65) }}{{ '{0}{0}'.format('x') }}{{ '{:=+6d}'.format(42) }}{{ '{a}'.format_map({'a': 1}) }}{{ '{:5}|{:5}|'.format(1, 1.5) }}{{ '{:n}'.format(5) }}",
        "{{ '%s %s' % 'a' }}", "{{ '%s' % ('a', 'b') }}", "{{ '%d' % 'a' }}", "{{ '%' % 1 }}", "{{ '%y' % 1 }}", "{{ '%(a)s' % {} }}", "{{ '{}'.format() }}", "{{ '{'.format() }}", "{{ '}'.format() }}", "{{ '{x}'.format() }}", "{{ '{:d}'.format('a') }}", "{{ '{:s}'.format(1) }}", "{{ '{0.__class__.__mro__}'.format('a') }}", "{{ '{} {0}'.format(1) }}", "{{ '%s'|format('a', k=1) }}",
    ],
    "json": [
        "{{ d|tojson }}{{ l|tojson }}{{ s|tojson }}{{ u|tojson }}{{ none|tojson }}{{ true|tojson }}{{ 1.0|tojson }}{{ big|tojson }}{{ (1, 'a')|tojson }}{{ {}|tojson }}{{ []|tojson }}",
        "{{ d|tojson(indent=2) }}", "{{ nested|tojson(indent=4) }}{{ []|tojson(indent=2) }}{{ {'a': {}}|tojson(indent=1) }}{{ [1]|tojson(indent=0) }}{{ [1]|tojson(indent='--') }}",
        "{{ d|tojson(separators=(',', ':')) }}{{ d|tojson(sort_keys=true) }}{{ u|tojson(ensure_ascii=true) }}{{ d|tojson(indent=2, separators=(',', ': ')) }}{{ d|tojson(ensure_ascii=false, sort_keys=True, indent=None) }}",
        "{{ 'a\"\\\\\\n\\t\\x01\\x7f</script>\\'&'|tojson }}{{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }}{{ [1e100, 0.1, 1e-7, -0.0]|tojson }}{{ (1e308 * 10)|tojson }}",
        "{{ undefinedname|tojson }}", "{{ range(3)|tojson }}", "{{ {(1, 2): 3}|tojson }}", "{{ d.items()|tojson }}", "{{ {'b': 1, 'a': {'d': 1, 'c': 2}}|tojson(sort_keys=true, indent=1) }}",
    ],
    "filters": [
        "{{ undefinedname|default('x') }}{{ ''|default('x') }}{{ ''|default('x', true) }}{{ none|d('x') }}{{ undefinedname|d }}|{{ 0|default(1, boolean=true) }}",
        "{{ l|length }}{{ s|count }}{{ d|length }}{{ undefinedname|length }}{{ l|first }}{{ l|last }}{{ e|first }}{{ e|last }}|{{ s|first }}{{ s|last }}{{ d|first }}{{ l|sum }}{{ l|min }}{{ l|max }}{{ e|min }}{{ words|max }}{{ words|min(case_sensitive=true) }}",
        "{{ l|sort }}{{ l|sort(reverse=true) }}{{ words|sort }}{{ words|sort(case_sensitive=true) }}{{ users|sort(attribute='age')|map(attribute='name')|list }}{{ users|sort(attribute='age,name', reverse=true)|map(attribute='name')|list }}{{ users|sort(attribute='city')|map(attribute='name')|join(',') }}",
        "{{ {'b': 1, 'A': 2, 'a': 0}|dictsort }}{{ {'b': 1, 'A': 2}|dictsort(true) }}{{ {'b': 1, 'A': 2}|dictsort(by='value') }}{{ {'b': 1, 'A': 2}|dictsort(reverse=true) }}",
        "{{ users|groupby('city') }}{% for c, us in users|groupby('city') %}{{ c }}:{{ us|map(attribute='name')|join('+') }};{% endfor %}{% for g in users|groupby('age') %}{{ g.grouper }}{{ g.list|length }}{% endfor %}{{ users|groupby('x', default='?')|length }}{{ users|groupby('city', case_sensitive=true)|map('first')|list }}",
        "{{ [1, 2, 1, 'a', 'A', 1.0]|unique|list }}{{ words|unique(true)|list }}{{ users|unique(attribute='city')|map(attribute='name')|list }}{{ l|reverse|list }}{{ s|reverse }}{{ (1, 2)|reverse|list }}",
        "{{ words|map('upper')|list }}{{ words|map('default', 'x')|join }}{{ users|map(attribute='x', default='-')|list }}{{ users|map(attribute='name')|map('length')|sum }}{{ ['a b', 'c']|map('replace', ' ', '_')|list }}{{ [[1, 2], [3]]|map('first')|list }}{{ l|map('string')|list }}{{ users|map(attribute='name.0')|list }}",
        "{{ range(6)|select('odd')|list }}{{ range(6)|reject('odd')|list }}{{ [0, 1, '', 'a']|select|list }}{{ [0, 1]|reject|list }}{{ users|selectattr('age', 'gt', 30)|map(attribute='name')|list }}{{ users|rejectattr('age', 'equalto', 31)|list|length }}{{ users|selectattr('name')|list|length }}{{ users|selectattr('x', 'defined')|list }}{{ l|select('in', [1, 2])|list }}{{ l|select('divisibleby', 3)|list }}",
        "{{ l|join(', ') }}{{ l|join }}{{ users|join(', ', attribute='name') }}{{ 'abc'|join('-') }}{{ [none, 1.0, true]|join('|') }}{{ undefinedname|join }}",
        "{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb'|indent(2, blank=true) }}|{{ 'a\nb\n'|indent('> ') }}|{{ 'a\r\nb'|indent(1) }}|{{ ''|indent(2, true) }}|",
        "{{ blank|trim }}|{{ 'xxaxx'|trim('x') }}|{{ 5|trim }}|{{ s|replace('l', 'L') }}|{{ s|replace('l', 'L', 1) }}|{{ 5|replace(5, 6) }}|{{ s|upper }}{{ s|lower }}{{ u|capitalize }}{{ 'heLLo wORLD (foo-bar [baz] <qux'|title }}|{{ none|upper }}|{{ 'it\\'s'|title }}",
        "{{ '42'|int }}{{ '42.7'|int }}{{ 'x'|int }}{{ 'x'|int(5) }}{{ '0x1f'|int(base=16) }}{{ '1f'|int(0, 16) }}{{ 3.9|int }}{{ -3.9|int }}{{ true|int }}{{ none|int }}{{ ' 7 '|int }}{{ '1_000'|int }}{{ '-5'|int }}{{ ''|int }}{{ [1]|int }}{{ '9007199254740993'|int }}{{ '1e3'|int }}",
        "{{ '4.5'|float }}{{ 'x'|float }}{{ 'x'|float(1.5) }}{{ 3|float }}{{ '1e3'|float }}{{ 'inf'|float }}{{ none|float }}{{ ' .5 '|float }}{{ '5.'|float }}{{ true|float }}{{ 'nan'|float }}{{ '-1_0.5'|float }}",
        "{{ 2.5|round }}{{ 3.5|round }}{{ 2.675|round(2) }}{{ 42.55|round(1, 'floor') }}{{ 42.55|round(1, 'ceil') }}{{ 42|round }}{{ 1234|round(-2) }}{{ 0.5|round }}{{ -1.5|round }}{{ 1.25|round(1) }}{{ 5|round(1) }}{{ 42.4|round|int }}{{ 5|round(0, 'ceil') }}{{ 1250|round(-2) }}{{ 1350.0|round(-2) }}",
        "{{ 2.5|round(none) }}{{ true|round(none) }}{{ -0.5|round(-1) }}{{ 1e16 // -3 }}{{ 0.5 // -3 }}{{ range(4).index(2) }}{{ range(4)[2:-9:2] }}{{ range(4)[0:5:-1] }}",
        "{{ 1|select('nothing') is iterable }}{{ (5|map('upper')) is defined }}{{ ['a']|truncate }}{{ '12'|int(base='x') }}{{ '0b11'|int(base=0) }}",
        "{{ 'x'|filesizeformat }}", "{{ l|sort('x') }}", "{{ [l] is filter }}", "{{ d[1:2] }}", "{{ i[1:2] }}", "{{ s.splitlines('x') }}", "{{ 5|select('odd')|list }}",
        "{{ -5|abs }}{{ -2.5|abs }}{{ true|abs }}{{ l|string }}{{ l|list }}{{ 'abc'|list }}{{ d|list }}{{ 5|string ~ 'x' }}{{ s|safe }}{{ '<&>\"\\''|escape }}{{ '<'|e }}{{ '&lt;'|forceescape }}{{ html|striptags }}{{ '<!-- x --> a  <b>b</b>'|striptags }}",
        "{{ 'a b/ü?&'|urlencode }}{{ {'a b': 'c/d', 'e': 1}|urlencode }}{{ [('x', 1)]|urlencode }}{{ 5|urlencode }}{{ {'a': 'x<', 'b': none, 'c': 1}|xmlattr }}{{ {'a': 1}|xmlattr(false) }}{{ 'one two, three_4'|wordcount }}{{ 'a'|center(5) }}|{{ 'ab'|center }}|",
        "{{ 'foo bar baz qux'|truncate(9) }}|{{ 'foo bar baz qux'|truncate(9, True) }}|{{ 'foo bar baz qux'|truncate(11) }}|{{ 'foo bar baz qux'|truncate(11, False, '...', 0) }}|{{ 'Grüße aus Köln am Rhein'|truncate(12, end='…', leeway=0) }}|",
        "{{ 'The quick brown fox jumps'|wordwrap(10) }}|{{ 'aaaaaaaaaaaaaaa bb'|wordwrap(5) }}|{{ 'aaaaaaaaaaaaaaa bb'|wordwrap(5, false) }}|{{ 'well-known thing-that-is'|wordwrap(8) }}|{{ 'a b c d'|wordwrap(3, wrapstring='/') }}|{{ 'x y\nlong line here'|wordwrap(6) }}",
        "{{ range(7)|slice(3)|list }}{{ range(7)|slice(3, 'x')|list }}{{ range(7)|batch(3)|list }}{{ range(7)|batch(3, 0)|list }}{{ 1000|filesizeformat }}{{ 1|filesizeformat }}{{ 1024|filesizeformat(true) }}{{ 123456789|filesizeformat }}{{ 5|filesizeformat }}",
        "{{ users[0]|attr('name') is defined }}{{ users[0]|attr('items') is callable }}{{ d|items|list }}{{ d|pprint }}{{ users|sum(attribute='age') }}{{ [[1], [2]]|sum(start=[]) }}{{ [1.5, 2]|sum }}{{ users|max(attribute='age') == users[0] }}{{ users|min(attribute='name') == users[0] }}",
        "{{ users * 3 | list | length }}", "{{ (users * 3)|pprint }}", "{{ 5|length }}", "{{ none|length }}", "{{ 5|join }}", "{{ [1, 'a']|sort }}", "{{ l|nothing }}", "{{ l|map('nothing')|list }}", "{{ l|map|list }}", "{{ [1, 'a']|max }}", "{{ undefinedname|int }}", "{{ 'a'|abs }}", "{{ l|round }}", "{{ l|dictsort }}", "{{ l|truncate(1, end='....') }}", "{{ range(3)|map('upper')|length }}", "{{ ['a']|sum }}", "{{ 'abcdef'|truncate(2) }}", "{{ l|items|list }}", "{{ {'a b': 1}|xmlattr }}", "{{ s|indent(none) }}", "{{ 5|indent }}", "{{ l|first(1) }}", "{{ l|join(x=1) }}", "{{ d|dictsort(by='x') }}",
        "{% if false %}{{ l|nothing }}{% endif %}ok{{ 'x' if true else (l|nothing) }}", "{{ -1|abs }}{{ (-1)|abs }}{{ 1 if l|length > 2 else 0 }}{{ not e|length }}{{ l|length * 2 }}{{ 'a' ~ 'b'|upper }}{{ 2 ** 3|abs }}",
    ],
    "tests": [
        "{{ 3 is odd }}{{ 4 is even }}{{ 9 is divisibleby 3 }}{{ 9 is divisibleby(2) }}{{ i is defined }}{{ zz is undefined }}{{ none is none }}{{ n is not none }}{{ true is boolean }}{{ 1 is boolean }}{{ true is true }}{{ 1 is true }}{{ false is false }}{{ 0 is false }}",
        "{{ 1 is integer }}{{ true is integer }}{{ 1.0 is integer }}{{ 1.0 is float }}{{ one is float }}{{ i is float }}{{ true is number }}{{ 'a' is number }}{{ big is integer }}{{ 'a' is string }}{{ s is string }}{{ l is string }}",
        "{{ d is mapping }}{{ l is mapping }}{{ l is sequence }}{{ s is sequence }}{{ d is sequence }}{{ (1,) is sequence }}{{ range(2) is sequence }}{{ 5 is sequence }}{{ undefinedname is sequence }}{{ d.items() is sequence }}{{ l is iterable }}{{ 5 is iterable }}{{ undefinedname is iterable }}{{ (l|map('abs')) is iterable }}",
        "{{ 'a' is lower }}{{ 'A' is upper }}{{ 'aB' is lower }}{{ range is callable }}{{ 5 is callable }}{{ 1 is eq 1 }}{{ 1 is ne 2 }}{{ 1 is lt 2 }}{{ 2 is gt 1 }}{{ 2 is ge 2 }}{{ 2 is le 1 }}{{ 1 is equalto 1.0 }}{{ 'a' is in 'abc' }}{{ 1 is in [1] }}{{ 1 is == 1 }}",
        "{{ 'upper' is filter }}{{ 'zz' is filter }}{{ 'odd' is test }}{{ 'zz' is test }}{{ none is sameas none }}{{ true is sameas true }}{{ 1 is sameas true }}{{ 'a' is escaped }}{{ not 1 is odd }}{{ 1 is not odd }}{{ 2 is odd or 3 is odd }}{{ 3 is odd and 2 is even }}",
        "{{ 1 is nothing }}", "{{ 'a' is odd }}", "{{ 1 is in 5 }}", "{{ 1 is lt 'a' }}", "{{ 1 is odd is even }}", "{{ 1 is divisibleby }}", "{{ 1 is divisibleby 0 }}",
    ],
    "texts marked as HTML": [
        "{{ html|safe }} {{ html|e }} {{ html|safe|e }} {{ html|safe|forceescape }} {{ [html|safe, s|safe] }} {{ html|safe is escaped }}",
        "{{ 'a<b'|safe + '<c>' }} {{ '<c>' + 'a<b'|safe }} {{ '<'|safe + '<'|safe }} {{ '<' ~ '<'|safe ~ 1 }} {{ '<'|safe * 2 + '<' }}",
        "{{ ('<'|safe).join(['<', '<'|safe, 1]) }} {{ ['<', '<'|safe]|join('<'|safe) }} {{ ('a<'|safe).replace('a', '<') + '<' }} {{ 'a<'|safe|replace('a', '<') + '<' }}",
        "{{ ('<%s>'|safe) % '<' }} {{ ('<%s %s>'|safe) % ('<', 1) }} {{ ('<%(a)s>'|safe) % {'a': '<'} }} {{ '<%s>'|safe|format('<') }} {{ ('<{}{a}>'|safe).format('<', a=['<']) }}",
        "{{ ('<a> <b>'|safe).split() }} {{ ('<a>'|safe).partition('a') }} {{ ('<a>'|safe).upper() + '<' }} {{ ('<a>'|safe)[1:] + '<' }} {{ ('<a>'|safe)[0] + '<' }} {{ ('<a'|safe).ljust(4) + '<' }}",
        "{{ '<a'|safe|upper + '<' }} {{ '<a'|safe|lower + '<' }} {{ '<a'|safe|capitalize + '<' }} {{ '<a'|safe|title + '<' }} {{ ' <a'|safe|trim + '<' }} {{ '<a'|safe|center(4) + '<' }} {{ '<a'|safe|string + '<' }}",
        "{{ '<a\nb'|safe|indent(2, true) + '<' }} {{ '<a b c d e f'|safe|truncate(8, true, '<', 0) + '<' }} {{ '<ab'|safe|reverse + '<' }} {{ '<ab'|safe|first + '<' }} {{ '<ab'|safe|last + '<' }} {{ '<ab'|safe|list }}",
        "{% set x %}{{ '<'|safe }}{% endset %}{{ x + '<' }} {% macro m() %}<{% endmacro %}{{ m() + '<' }} {{ {'<'|safe: 1} }} {{ ''|safe or 'empty' }} {{ '<'|safe|tojson + '<' }} {{ ('<'|safe).removesuffix('x') + '<' }} {{ '<'|safe * 0 + '<' }}",
    ],
    "rounding": [
        "{{ 2.5|round }} {{ -2.5|round }} {{ -0.4|round }} {{ -2.0|round(-1) }} {{ 25|round(-1) }} {{ 35|round(-1) }} {{ (-big)|round(-1) }} {{ big|round(-19) }} {{ 2.25|round(1) }}",
        "{{ (-0.1)|round(0, 'ceil') }} {{ (-0.0)|round(0, 'floor') }} {{ -1 // -1.5 }} {{ 1 // -1e300 }} {{ 0.0 // -1 }} {{ '%.1f' % 0.25 }} {{ '%.0f' % 2.5 }}",
    ],
    "what has no parts": [
        *("{% set x = " + x + " %}{{ x[1:2] }}" for x in ("5", "f", "n", "d", "d.values()", "true")), "{{ nothing[1:2] }}",
        "{{ range(1, 9, 2).index(5) }} {{ range(4).count(2) }} {{ range(4).count('a') }} {{ range(4).count(1.0) }} {{ range(5, 0, -2).index(3) }}",
        "{{ range(4).index(7) }}", "{{ nothing|truncate(3) }}|{{ [1, 2]|truncate(9) }}", "{{ [1, 2, 3]|truncate(1, leeway=0, end='') }}",
        "{{ 'a b\u3000\n \u3000'|wordwrap(3) }}|",
    ],
    "calls": [
        "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}{{ m(1, *[2]) }}{{ m(1, **{'b': 5}) }}{{ m(1, b=2,) }}{{ '{}{x}'.format(*[1], **{'x': 2}) }}",
        "{{ d.items()|list|length }}{% set f = s.upper %}{{ f() }}{{ [s.lower][0]() }}{{ strftime_now('%Y-%m-%d %H:%M:%S %B %b %A %a %j %y %I %p %-d %e %%') }}",
        "{{ strftime_now('%d %B %Y') }}{{ strftime_now('%U %W %V %G %u %w %D %F %T %R %r %C %h %n %c %x %X %Z') }}",
        "{{ m(1 }}", "{{ m(a=1, 2) }}", "{{ m(**{'a': 1}, 2) }}", "{{ s.upper }", "{% if %}{% endif %}", "{% for %}{% endfor %}", "{% nothing %}", "{% endif %}", "{% if true %}", "{% if true %}{% endfor %}", "{{ 1 + }}", "{{ 'abc }}", "{{ a b }}", "{{ [1, }}", "{{ {'a' 1} }}", "{# x", "{% raw %} x", "{{ 1 ! 2 }}", "{{ (1 }}", "{{ ) }}", "{{ }}", "{% set 1 = 2 %}", "{% set none = 2 %}", "{% macro m(a=1, b) %}{% endmacro %}", "{% for loop in l %}{{ loop.index }}{% endfor %}", "{% include 'x' %}", "{% extends 'x' %}", "{{ a.b.1.x is defined }}", "{{ a. }}", "{{ a|}}", "{% block a %}{% endblock %}{% block a %}{% endblock %}", "{% break %}", "{% call x %}{% endcall %}", "{% set x %}", "{{ '\\x4' }}",
    ],
}


def environment():
    env = chat_template_utils._cached_compile_jinja_template("").environment
    now = datetime.datetime(2025, 7, 10, 12, 0, 0)
    env.globals["strftime_now"] = now.strftime
    return env


def result(template):
    try:
        return {"template": template, "text": environment().from_string(template).render(**VARIABLES)}
    except Exception as error:  # whatever it is, the template fails
        return {"template": template, "error": f"{type(error).__name__}: {error}"}


def main():
    folder = os.path.join(os.path.dirname(__file__), "..", "fixtures", "jinja")
    os.makedirs(folder, exist_ok=True)
    groups = [{"name": name, "cases": [result(t) for t in templates]} for name, templates in GROUPS.items()]
    with open(os.path.join(folder, "cases.json"), "w") as file:
        json.dump({"variables": VARIABLES, "groups": groups}, file, ensure_ascii=False, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
