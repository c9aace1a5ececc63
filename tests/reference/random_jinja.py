"""Templates made at random, for check_templates.py: a few expressions of mixed kinds, loops, macros,
blocks. Most are well typed, so that they come to an end; some are not, on purpose."""
import random

VARIABLES = {
    "s": "Hello World", "t": "  \u00dcber stra\u00dfe\n two\tlines \u3000", "e": "", "digits": "0042", "html": "<b>&\"'</b>",
    "long": "one two three, four-five six. seven eight nine ten eleven twelve", "n": 7, "z": 0, "m": -3, "f": 2.5, "one": 1.0,
    "big": 2**53 + 1, "large": -2**62 - 1, "huge": 1e22, "yes": True, "no": False, "nothing": None,
    "l": [3, 1, 2], "w": ["b", "A", "c", "a"], "mixed": [1, "x", None, True, 2.0, [1], {"k": 1}], "empty": [],
    "d": {"b": 1, "a": {"x": [1, 2]}, "C": "z"}, "nodict": {},
    "items": [{"k": "a", "v": 2, "g": {"h": 1}}, {"k": "B", "v": 1, "g": {"h": 2}}, {"k": "a", "v": 3.0}],
    "nested": [[1, 2], [3, [4, 5]], []],
}
STRINGS = ["s", "t", "e", "digits", "html", "long", "'a'", "'x,y,,z'", "\"it's\"", "'a\\nb'", "'%s|%5.2f'", "'{} {a}'", "'\u00e9\u0131'"]
INTS = ["n", "z", "m", "big", "large", "1", "2", "0", "-1", "10", "3", "yes"]
FLOATS = ["f", "one", "huge", "0.1", "1.5", "1e3", "100.0"]
LISTS = ["l", "w", "mixed", "empty", "items", "nested", "[1, 'a']", "('t', 2)", "range(4)", "[[1, 2], [3, 4]]", "d.values()"]
DICTS = ["d", "nodict", "items[0]", "{'q': 1, 'r': [2]}", "dict(a=1, b='x')"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable",
         "true", "false", "callable", "lower", "upper", "odd", "even"]
TEXT_FILTERS = ["upper", "lower", "title", "capitalize", "trim", "string", "trim('Hd ')", "replace('l', 'LL')", "replace('o', '', 1)",
                "indent", "indent(2)", "indent(2, true)", "indent(width=3, first=true, blank=true)", "indent('> ')", "center(20)",
                "truncate(9)", "truncate(9, true)", "truncate(10, false, '..', 0)", "default('d')", "default('d', true)", "safe",
                "e", "escape", "forceescape", "wordwrap(10)", "format(1, 2.5)", "tojson", "urlencode", "striptags", "reverse"]
LIST_FILTERS = ["list", "sort", "sort(reverse=true)", "sort(attribute='v')", "sort(case_sensitive=true)", "unique|list", "reverse|list",
                "batch(2)|list", "batch(2, 'x')|list", "slice(2)|list", "map('string')|list", "map(attribute='k')|list", "select|list",
                "map(attribute='v', default=0)|list", "map('upper')|list", "reject('none')|list", "select('string')|list",
                "selectattr('v', 'gt', 1)|list", "selectattr('k', 'equalto', 'a')|list", "rejectattr('g')|list", "select('in', [1, 2])|list",
                "selectattr('g.h', 'defined')|list", "groupby('k')|list", "map('length')|list", "map('first')|list",
                "selectattr('k', 'in', ['a'])|map(attribute='v')|list", "map('default', 'x')|list", "map('join', '-')|list"]
ANY_FILTERS = ["string", "tojson", "tojson(indent=2)", "tojson(sort_keys=true)", "tojson(separators=(',', ':'))", "default(1)", "length",
               "first", "last", "list", "count", "join", "pprint", "tojson(ensure_ascii=true)", "int", "float", "abs"]
TEXT_METHODS = ["upper()", "lower()", "title()", "capitalize()", "swapcase()", "strip()", "lstrip()", "rstrip()", "strip('Hd')",
                "lstrip(' H')", "rstrip('\\n')", "replace('l', '1')", "replace('l', '1', 1)", "zfill(8)", "center(15, '*')", "ljust(14, '.')",
                "rjust(14)", "removeprefix('He')", "removesuffix('ld')", "casefold()", "expandtabs(4)", "format(1, a=2)", "join(['1', '2'])",
                "replace('', '-')"]
LIST_METHODS = ["split()", "split(' ')", "split('l', 1)", "rsplit('l', 1)", "rsplit()", "splitlines()", "splitlines(true)", "partition('o')",
                "rpartition('o')", "split('o')", "split(none, 1)", "split(maxsplit=1)", "split(sep=',')"]
TRUTH_METHODS = ["startswith('He')", "endswith('ld')", "startswith(('x', 'H'))", "isdigit()", "isalpha()", "isalnum()", "isspace()",
                 "isupper()", "islower()", "istitle()", "isnumeric()", "isdecimal()", "isidentifier()", "isascii()"]
INT_METHODS = ["find('o')", "rfind('o')", "count('l')", "find('o', 5)", "index('o')", "find('q')"]


class Expressions:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def chance(self, p):
        return self.r.random() < p

    def any(self, depth=0):
        kinds = [self.text, self.text, self.int, self.float, self.truth, self.list, self.list, self.dict]
        return self.r.choice(kinds)(depth)

    def atom(self, names):
        if self.chance(0.04):
            return self.r.choice(["missing", "nothing", "d.none", "mixed[9]", *STRINGS, *INTS, *LISTS, *DICTS])
        return self.r.choice(names)

    def text(self, depth=0):
        r, d = self.r, depth + 1
        if depth > 3:
            return self.atom(STRINGS)
        return r.choice([
            lambda: self.atom(STRINGS), lambda: self.atom(STRINGS),
            lambda: f"({self.text(d)} + {self.text(d)})", lambda: f"({self.any(d)} ~ {self.any(d)})",
            lambda: f"{self.sub(d)}|{r.choice(TEXT_FILTERS)}", lambda: f"{self.sub(d)}.{r.choice(TEXT_METHODS)}",
            lambda: f"{self.sub(d)}|{r.choice(TEXT_FILTERS)}|{r.choice(TEXT_FILTERS)}",
            lambda: f"{self.sub(d)}[{self.slice()}]", lambda: f"{self.sub(d)}[{r.randint(-4, 4)}]",
            lambda: f"({self.text(d)} if {self.truth(d)} else {self.text(d)})", lambda: f"({self.any(d)})|string",
            lambda: f"{self.sequence(d)}|join({r.choice(['', repr(', '), repr('<'), repr('-')])})",
            lambda: f"({self.text(d)} * {r.choice(['2', '0', '3', 'n', 'm'])})", lambda: f"({self.any(d)})|tojson",
            lambda: f"(('%s and %r' if no else '%s|%5d|%-4s|%.1f|%x') % ({self.text(d)}, {self.int(d)}, 'q', {self.float(d)}, 255))",
            lambda: f"({self.text(d)} or {self.text(d)})", lambda: f"({self.text(d)} if {self.truth(d)})",
            lambda: f"'{{}}:{{:>6}}:{{:.2f}}:{{0!r}}'.format({self.text(d)}, {self.int(d)}, {self.float(d)})" if self.chance(0.3)
            else self.atom(STRINGS),
        ])()

    def sub(self, depth):
        text = self.text(depth)
        return text if text.isalnum() else f"({text})"

    def slice(self):
        def end():
            return self.r.choice(["", "", "1", "-1", "2", "-2", "0", "5", "100", "-100", "n"])
        return f"{end()}:{end()}" + (f":{self.r.choice(['', '1', '2', '-1', '-2'])}" if self.chance(0.3) else "")

    def int(self, depth=0):
        r, d = self.r, depth + 1
        if depth > 3:
            return self.atom(INTS)
        return r.choice([
            lambda: self.atom(INTS), lambda: self.atom(INTS),
            lambda: f"({self.int(d)} {r.choice(['+', '-', '*', '//', '%'])} {self.number(d)})", lambda: f"({self.any(d)})|length",
            lambda: f"{self.sub(d)}.{r.choice(INT_METHODS)}", lambda: f"({self.any(d)})|int", lambda: f"({self.text(d)})|int(default=5)",
            lambda: f"({self.number(d)})|abs", lambda: f"(-{self.int(d)})", lambda: f"({self.number(d)})|int",
            lambda: f"({self.list(d)})|sum" if self.chance(0.3) else "l|sum", lambda: "items|sum(attribute='v')",
            lambda: f"({self.list(d)}).index({self.any(d)})", lambda: f"({self.list(d)}).count({self.any(d)})",
            lambda: f"({self.text(d)})|wordcount", lambda: f"l|{r.choice(['max', 'min', 'first', 'last'])}", lambda: "digits|int(base=8)",
        ])()

    def float(self, depth=0):
        r, d = self.r, depth + 1
        if depth > 3:
            return self.atom(FLOATS)
        return r.choice([
            lambda: self.atom(FLOATS), lambda: self.atom(FLOATS),
            # not large integers over others: moonstill divides them as floats
            lambda: f"({self.number(d)} {r.choice(['+', '-', '*', '//', '%'])} {self.float(d)})",
            lambda: f"({self.float(d)} / {r.choice(['2', '3', '7', '4.0'])})", lambda: f"({self.any(d)})|float",
            lambda: f"({self.number(d)})|round({r.choice(['', '1', '2', '0', '-1'])})", lambda: f"({self.number(d)} ** {r.choice(['2', '-1', '0.5'])})",
            lambda: f"({self.float(d)})|round({r.choice(['1', '2'])}, '{r.choice(['floor', 'ceil', 'common'])}')", lambda: f"(-{self.float(d)})",
        ])()

    def number(self, depth=0):
        return self.int(depth) if self.chance(0.7) else self.float(depth)

    def truth(self, depth=0):
        r, d = self.r, depth + 1
        if depth > 3:
            return self.atom(["yes", "no", "true", "false", "n", "e", "l", "empty"])
        return r.choice([
            lambda: self.atom(["yes", "no", "true", "True", "false"]), lambda: f"(not {self.any(d)})",
            lambda: f"({self.any(d)} {r.choice(['==', '!='])} {self.any(d)})", lambda: f"({self.any(d)} is {r.choice(TESTS)})",
            lambda: f"({self.number(d)} {r.choice(['<', '<=', '>', '>=', '=='])} {self.number(d)})",
            lambda: f"({self.text(d)} {r.choice(['<', '<=', '>', '>=', '=='])} {self.text(d)})",
            lambda: f"({self.any(d)} {r.choice(['in', 'not in'])} {self.sequence(d)})", lambda: f"({self.text(d)} in {self.text(d)})",
            lambda: f"({self.any(d)} {r.choice(['and', 'or'])} {self.any(d)})", lambda: f"({self.any(d)} is not {r.choice(TESTS)})",
            lambda: f"{self.sub(d)}.{r.choice(TRUTH_METHODS)}", lambda: f"({self.int(d)} is divisibleby {r.choice(['2', '3'])})",
            lambda: f"({self.any(d)} is {r.choice(['sameas', 'eq', 'ne', 'in', 'equalto'])}({self.any(d)}))",
            lambda: f"({self.number(d)} < {self.number(d)} <= {self.number(d)})", lambda: f"({self.text(d)} in {self.dict(d)})",
            lambda: f"({self.list(d)} < {self.list(d)})" if self.chance(0.2) else "(l < [3, 2])",
        ])()

    def list(self, depth=0):
        r, d = self.r, depth + 1
        if depth > 3:
            return self.atom(LISTS)
        return r.choice([
            lambda: self.atom(LISTS), lambda: self.atom(LISTS), lambda: f"{self.sub(d)}.{r.choice(LIST_METHODS)}",
            lambda: f"({self.list(d)})|{r.choice(LIST_FILTERS)}", lambda: f"({self.list(d)})[{self.slice()}]",
            lambda: f"[{self.any(d)}, {self.any(d)}]", lambda: f"({self.list(d)} + {self.list(d)})", lambda: f"({self.dict(d)}).items()|list",
            lambda: f"({self.dict(d)})|items|list", lambda: f"({self.dict(d)})|dictsort", lambda: f"({self.dict(d)}).keys()|list",
            lambda: f"({self.dict(d)})|dictsort(by='value')" if self.chance(0.3) else "d|dictsort(true)", lambda: f"({self.text(d)})|list",
            lambda: f"range({self.int(d)}, {r.choice(['5', '10', '0'])}, {r.choice(['1', '2', '-1'])})|list" if self.chance(0.3)
            else "range(2, 9, 3)|list", lambda: f"({self.dict(d)})|list", lambda: f"({self.list(d)}) * 2",
            lambda: f"({self.list(d)})|{r.choice(LIST_FILTERS)}",
        ])()

    def sequence(self, depth=0):
        return f"({self.list(depth)})" if self.chance(0.8) else self.atom(["d", "s", "nothing", "w", "'abc'"])

    def dict(self, depth=0):
        r, d = self.r, depth + 1
        if depth > 2:
            return self.atom(DICTS)
        return r.choice([
            lambda: self.atom(DICTS), lambda: self.atom(DICTS), lambda: f"{{'k': {self.any(d)}, {self.text(d)}: {self.any(d)}}}",
            lambda: f"dict({r.choice(DICTS)}, z={self.any(d)})", lambda: f"({self.list(d)})[{r.choice(['0', '-1', '1'])}]",
            lambda: f"({self.dict(d)}).get('{r.choice(['a', 'b', 'q'])}', {self.any(d)})", lambda: f"d.{r.choice(['a', 'b', 'C', 'nope'])}",
            lambda: f"d['{r.choice(['a', 'b', 'nope'])}']", lambda: "d.a.x", lambda: f"({self.dict(d)})|{r.choice(ANY_FILTERS)}",
        ])()

    # statements --------------------------------------------------------------------------------------

    def cut(self):
        return self.r.choice(["", "", "", "-", "+"])

    def open(self, text):
        return "{%" + self.cut() + " " + text + " " + self.r.choice(["", "", "-"]) + "%}"

    def put(self):
        return "{{" + self.r.choice(["", "", "-"]) + " " + self.any(1) + " " + self.r.choice(["", "", "-"]) + "}}"

    def body(self, depth):
        return "".join(self.statement(depth + 1) for _ in range(self.r.choice([1, 1, 2])))

    def loop(self, depth):
        r = self.r
        inner = r.choice(["{{ x }}", "{{ loop.index }}:{{ loop.last }} ", "{{ loop.previtem }}{{ loop.nextitem }}", "{{ loop.cycle('a', 'b') }}",
                          "{% if x == 1 %}{% break %}{% endif %}{{ x }}", "{% if loop.first %}{% continue %}{% endif %}{{ x }}",
                          "{{ loop.changed(x) }}", "{{ loop.length }}{{ loop.revindex0 }}", "{% set q = x %}{{ q }}",
                          "{% set ns.c = ns.c + 1 %}", "{{ loop.depth }}"])
        if self.chance(0.15):
            return "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}"
        if self.chance(0.06):
            return "{% for x in nested recursive %}[{{ loop(x) if x is sequence else x }}]{{ loop.depth0 }}{% endfor %}"
        head = f"for x in {self.list(2)}" + (f" if {r.choice(['x', 'x is defined', 'x != 1', self.truth(3)])}" if self.chance(0.25) else "")
        other = self.open("else") + "none" if self.chance(0.2) else ""
        return self.open(head) + inner + self.body(depth) + other + self.open("endfor")

    def macro(self, depth):
        r = self.r
        caller = self.chance(0.3)
        head = self.open(f"macro go(a, b={self.any(3)}, c='q')")
        inner = r.choice(["{{ a }}|{{ b }}|{{ c }}", "{{ a ~ b }}", "{{ varargs }}{{ kwargs }}", "{{ a|upper }}"]) + ("{{ caller(1) }}" if caller else "")
        call = r.choice(["go(1)", f"go({self.any(2)}, c=2)", "go()", "go(1, 2, 3)", "go(b=1)", "go('x', 2, 3, 4, z=5)"])
        use = self.open(f"call(k) {call}") + "<{{ k }}>" + self.open("endcall") if caller else "{{ " + call + " }}{{ go('w')|length }}"
        return head + inner + self.body(depth + 2) + self.open("endmacro") + use

    def statement(self, depth=0):
        r = self.r
        if depth > 2:
            return self.put()
        return r.choice([
            self.put, self.put, self.put, lambda: r.choice(["text", "  ", "\n", "\n  ", "{# note #}", "{#- note -#}\n", "a\n\n", "{% raw %}{{ x }}{% endraw %}"]),
            lambda: self.open(f"if {self.truth(1)}") + self.body(depth) + (self.open(f"elif {self.any(2)}") + "E" if self.chance(0.3) else "")
            + (self.open("else") + self.body(depth) if self.chance(0.5) else "") + self.open("endif"),
            lambda: self.loop(depth), lambda: self.loop(depth), lambda: self.macro(depth), lambda: self.open(f"set v = {self.any(1)}") + "{{ v }}",
            lambda: self.open("set v") + self.body(depth) + self.open("endset") + "{{ v|length }}{{ v }}",
            lambda: self.open(f"set ns = namespace(c={self.any(2)}, q=1)") + "{% set ns.q = ns.c %}{{ ns.q }}",
            lambda: self.open(f"filter {r.choice(['upper', 'trim', 'indent(2)', 'replace(1, 2)'])}") + self.body(depth) + self.open("endfilter"),
            lambda: self.open(f"set p, q = {self.any(2)}, {self.any(2)}") + "{{ p }}{{ q }}",
            lambda: self.open(f"with w = {self.any(2)}") + "{{ w }}" + self.body(depth) + self.open("endwith"),
            lambda: self.open("generation") + self.body(depth) + self.open("endgeneration"),
        ])()

    def template(self):
        if self.chance(0.6):
            return "{{ " + self.any() + " }}"
        return "{% set ns = namespace(c=0) %}" + "".join(self.statement() for _ in range(self.r.randint(1, 4)))
