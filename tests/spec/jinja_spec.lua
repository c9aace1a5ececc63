--- Jinja: against what Jinja2 made of the same templates (tests/reference/jinja_cases.py); origins; bounds.
local jinja = require 'moonstill.jinja.jinja'
local json = require 'moonstill.base.json'
local tools = require 'tests.support.tools'

local NOW = { year = 2025, month = 7, day = 10, hour = 12 }
local fixture = json.read('tests/fixtures/jinja/cases.json', { ordered = true })

local function render(source, given, options)
  return jinja.compile(source, 't'):render(given or {}, options or { now = NOW })
end

-- The spans of a rendering as texts: "text:source text:source".
local function marked(source, given)
  local text, spans, _, sources = render(source, given)
  local words = {}
  for i = 1, #spans, 3 do
    local s = sources[spans[i + 2]]
    local from = s.message and s.message .. '.' .. tostring(s.field) or s.field
    words[#words + 1] = text:sub(spans[i] + 1, spans[i + 1]) .. ':' .. from
  end
  return table.concat(words, ' '), text
end

local function fails(what, source, given)
  tools.fails(what, function() return render(source, given) end)
end

describe('jinja renders as Jinja2:', function()
  for _, group in ipairs(fixture.groups) do
    it(group.name, function()
      for _, case in ipairs(group.cases) do
        local ok, got = pcall(render, case.template, fixture.variables)
        if case.text then
          assert.equal(case.text, got, case.template)
        else
          assert.is_false(ok, case.template .. ' gave ' .. tostring(got) .. ', not ' .. case.error)
          assert.is_truthy(got:find '^t: line %d+, column %d+: ', got)
        end
      end
    end)
  end

  it('without trim_blocks and lstrip_blocks where that is asked for', function()
    local t = jinja.compile('a\n  {% if true %}\n  b{% endif %}\n', 't', { trim_blocks = false,
      lstrip_blocks = false })
    assert.equal('a\n  \n  b', (t:render {}))
  end)
end)

describe('jinja, the variables:', function()
  it('are plain Lua values, with what JSON keeps beside them', function()
    local text = '{"z":1.0,"a":{"y":9007199254740993,"b":[2.0,3]},"n":null}'
    local given = json.decode(text, 'v', { ordered = true })
    assert.equal("{'y': 9007199254740993, 'b': [2.0, 3]} 1.0 None", (render('{{ a }} {{ z }} {{ n }}', given)))
    given.a.b[1], given.a.c = 5, 'new'
    assert.equal("{'y': 9007199254740993, 'b': [5, 3], 'c': 'new'}", (render('{{ a }}', given)))
    assert.equal("{'a': 1, 'b': 0.5, 'c': [], 'd': {}, 'e': None, 'f': [1]}", (render('{{ v }}',
      { v = { b = 0.5, a = 1, c = json.array(), d = {}, e = json.null, f = { 1 } } })))
    assert.equal('1e+300 inf', (render('{{ x }} {{ y }}', { x = 1e300, y = math.huge })))
  end)

  it('that no template can hold are an error', function()
    fails('a function among the variables', '{{ f }}', { f = print })
    local circle = {}
    circle[1] = circle
    fails('nested more than', '{{ f }}', { f = circle })
  end)

  it('are found by name, and nothing of Lua is', function()
    for _, name in ipairs { 'string', 'os', 'io', 'require', '_G', 'print', 'debug', 'set_attribute' } do
      assert.equal('False', (render('{{ ' .. name .. ' is defined }}')))
    end
    for _, word in ipairs { 'kind', 's', 'src', 'n', 'map', 'call', '__index', '__metatable', 'rep', 'gsub' } do
      assert.equal('False', (render(('{{ m.%s is defined or l.%s is defined or t.%s is defined }}')
        :format(word, word, word), { messages = {}, m = {}, l = json.array(), t = 'x' })), word)
    end
    fails("'str object' has no attribute 'rep'", "{{ 'x'.rep(2) }}")
    fails("access to attribute '__class__' of 'str' object is unsafe.", "{{ 'x'.__class__.x }}")
    fails("access to attribute 'append' of 'list' object is unsafe.", "{{ [1].append(2) }}")
  end)
end)

describe('jinja, the origin of texts:', function()
  local given = { messages = { { role = 'user', content = ' a<|x|>b ' }, { role = 'tool', content = 'Zß',
    tool_calls = { { name = 'f', arguments = { key = 'val"ue' } } } } }, tools = { { name = 'get' } }, bos = '<s>' }
  local function content(expression)
    return (marked('{% set m = messages[0].content %}{{ ' .. expression .. ' }}', given))
  end

  it('is the message and the field, the variable, or none', function()
    assert.equal('user:1.role  a<|x|>b :1.content',
      (marked('<{{ messages[0].role }}>{{ messages[0].content }}', given)))
    assert.equal('f:2.tool_calls val"ue:2.tool_calls get:tools', (marked('{{ messages[1].tool_calls[0].name }}.' ..
      '{{ messages[1].tool_calls[0].arguments.key }}.{{ tools[0].name }}{{ bos }}', given)))
    assert.same({ '', '<s>x' }, { marked('{{ bos }}x', given) })
  end)

  it('is kept by operators, slices and filters', function()
    assert.equal('a<|x|>b:1.content', content "'(' + m|trim + ')'")
    assert.equal('a<|x|>b:1.content', content "'(' ~ m.strip() ~ ')'")
    assert.equal('<|x:1.content', content 'm[2:5]')
    assert.equal(' a<|:1.content |>b :1.content', content "m|replace('x', 'y')")
    assert.equal('<|x|>:1.content', content "('(' ~ m ~ ')')[3:8]")
    assert.equal('b :1.content', content "('(' ~ m ~ ')')[8:]")
    assert.equal(' A<|X|>B :1.content', content 'm|upper')
    assert.equal('a<|x|>b:1.content', content "'%s.' % m.split()[0]")
    assert.equal('a<|x|>b:1.content', content "'{}.'.format(m|trim)")
    assert.equal(' a<:1.content x:1.content >b :1.content', content "m.split('|')|join('+')")
    assert.equal(' b>|x|<a :1.content', content 'm|reverse')
    assert.equal(' a<|x|>b :1.content', content "m|indent(3, true)")
    assert.equal(' a<|x|>b :1.content', content "[m]|string")
    assert.equal('ZSS:2.content zß:2.content',
      (marked('{{ messages[1].content|upper }}-{{ messages[1].content.lower() }}', given)))
    assert.equal('', content "m|length ~ (m == 'x') ~ ('a' in m)")
  end)

  it('is kept by JSON and by macros, also of keys', function()
    assert.equal('name:tools get:tools', (marked('{{ tools[0]|tojson }}', given)))
    assert.equal('arguments:2.tool_calls key:2.tool_calls val\\"ue:2.tool_calls name:2.tool_calls f:2.tool_calls',
      (marked('{{ messages[1].tool_calls[0]|tojson }}', given)))
    assert.equal('key:2.tool_calls',
      (marked('{% for k in messages[1].tool_calls[0].arguments %}{{ k }}{% endfor %}', given)))
    assert.equal('get:tools', (marked('{% macro m(x) %}[{{ x.name }}]{% endmacro %}{{ m(tools[0]) }}', given)))
    assert.equal('get:tools', (marked('{% set x %}[{{ tools[0].name }}]{% endset %}{{ x }}', given)))
  end)

  it('makes one span of neighbours from one place', function()
    local _, spans = render('{{ messages[0].content[:3] }}{{ messages[0].content[3:] }}', given)
    assert.equal(3, #spans)
    assert.same({ 0, 9 }, { spans[1], spans[2] })
  end)
end)

describe('jinja, generation blocks:', function()
  it('have their bytes', function()
    local t = jinja.compile('{% for m in messages %}é{% generation %}{{ m.content }}!{% endgeneration %}\n' ..
      '{% endfor %}', 't')
    local text, _, generation = t:render { messages = { { content = 'a' }, { content = 'ü' } } }
    assert.same({ 'éa!éü!', { 2, 4, 6, 9 } }, { text, generation })
    assert.is_true(t.has_generation)
    assert.is_false(jinja.compile('x', 't').has_generation)
  end)

  it('inside of a text that is put together first have no known place', function()
    local _, _, generation = render '{% set x %}{% generation %}a{% endgeneration %}{% endset %}{{ x }}'
    assert.is_nil(generation)
  end)
end)

describe('jinja, the words of a template:', function()
  it('are names, attributes and texts', function()
    local t = jinja.compile("data {{ a.b['c d'] }}{% if tools %}{% endif %}", 't')
    for word, there in pairs { a = true, b = true, ['c d'] = true, tools = true, data = false, e = false } do
      assert.equal(there, t:mentions(word), word)
    end
  end)
end)

describe('jinja, errors:', function()
  it('say line and column', function()
    fails("t: line 2, column 5: 'x' is undefined", 'ä\n{{ x.y }}')
    fails('t: line 1, column 8: expected token', 'é {{ a b }}')
    fails("t: line 3, column 4: stop: 'x'", "a\n\n{{ raise_exception(\"stop: 'x'\") }}")
    fails("line 1, column 9: 'dict object' has no attribute 'b'", '{{ (a.b).c }}', { a = {} })
    fails('100% wrong', "{{ raise_exception('100% wrong') }}")
    fails('line 1, column 9: integer division or modulo by zero', '{% if 1 // 0 %}{% endif %}')
  end)

  it('of what only Python has say so', function()
    fails('a chat template stands alone', "{% include 'x' %}")
    fails('a chat template stands alone', "{% extends 'x' %}")
    fails('beyond 64 bits', '{{ 9223372036854775807 + 1 }}')
    fails('beyond 64 bits', '{{ 2 ** 64 }}')
    fails('beyond 64 bits', '{{ 9223372036854775808 }}')
    fails('beyond 64 bits', '{{ 4611686018427387904 * 2 }}')
    fails('characters by name', [[{{ '\N{BULLET}' }}]])
    fails('draws by chance', '{{ [1]|random }}')
  end)
end)

describe('jinja, bounds:', function()
  local hostile = {
    "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "{{ 'x' * 1000000000000 }}", "{{ 'x'|center(1000000000000) }}", "{{ '%1000000000d' % 1 }}",
    "{{ [1] * 10000000000 }}",
    "{{ '{:>1000000000}'.format(1) }}", "{{ 'x'|indent(10000000000, true) }}", "{{ '%.1000000f' % 1 }}",
    "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
    "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}" ..
      "{{ ns.s|tojson }}",
    "{% set ns = namespace(s=[1]) %}{% for i in range(5000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
    "{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(90) %}{% set ns.s = [ns.s, ns.s] %}" ..
      "{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}",
    "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}", "{{ 10 ** 1000000000 }}",
    "{{ (range(100000)|list * 1000)|sort|length }}",
    "{% for i in range(100000) %}{{ s.replace('x', 'y')|length }}{% endfor %}",
    "{{ 'a,' * 100000000 }}", "{{ range(0, 1000000000) }}",
  }
  it('end what would not end', function()
    for _, source in ipairs(hostile) do
      local start = os.clock()
      fails('t: line 1, column ', source, { s = ('x'):rep(100000) })
      assert.is_true(os.clock() - start < 20, source)
    end
  end)

  it('hold for texts of the sample that are made to be slow', function()
    local n = 100000
    local a, mixed = ('a'):rep(n), ('1-'):rep(n)
    for _, source in ipairs { "{{ (a ~ 'b') in a }}", "{{ a.find(a[1:] ~ 'b') }}", "{{ a.replace(a[9:] ~ 'b', '') }}",
      "{{ a.split(a[9:] ~ 'b')|length }}", "{{ a.count(a[9:] ~ 'b') }}", "{{ a.rsplit('b' ~ a[9:], 1)|length }}",
      "{{ mixed|wordwrap(9)|length }}", "{{ a|wordwrap(1)|length }}", "{{ ('<!-- >' * 50000)|striptags|length }}",
      "{{ ('{}' * 50000).format(*range(50000))|length }}", "{{ a|title|length }}",
      "{{ mixed.split('-')|join('+')|title|length }}",
      "{{ a }}\n{{ none.x.y }}", "{{ a|list|join('-')|upper|length }}" } do
      local start = os.clock()
      pcall(render, source:gsub('}}\n', '}}' .. ('x'):rep(n) .. '\n'), { messages = {}, a = a, mixed = mixed })
      pcall(render, '{% set a, mixed = tools %}' .. source, { tools = { a, mixed } })
      assert.is_true(os.clock() - start < 10, source)
    end
  end)

  it('hold for what is nested deep in a template', function()
    local n = 30000
    for _, source in ipairs { '{{ ' .. ('('):rep(n) .. '1' .. (')'):rep(n) .. ' }}',
      '{{ ' .. ('['):rep(n), '{{ ' .. ('-'):rep(n) .. '1 }}', '{{ ' .. ('not '):rep(n) .. '1 }}',
      '{{ 1' .. (' + 1'):rep(n) .. ' }}', '{{ x' .. ('|upper'):rep(n) .. ' }}', '{{ x' .. ('.a'):rep(n) .. ' }}',
      '{{ x' .. ('()'):rep(n) .. ' }}', '{{ 1' .. (' if 1 else 1'):rep(n) .. ' }}', ('{% if 1 %}'):rep(n),
      '{{ 1' .. (' and 1'):rep(n) .. ' }}', '{{ 1' .. (' is odd'):rep(n) .. ' }}', ('{% for x in y %}'):rep(n),
      '{{ {' .. ('1:{'):rep(n), '{% set ' .. ('('):rep(n) .. ' %}' } do
      tools.fails('t: line 1, column ', jinja.compile, source, 't')
    end
    assert.equal('1' .. ('1'):rep(100), (render('{{ 1' .. (' ~ 1'):rep(100) .. ' }}')))
  end)

  it('hold for large templates', function()
    tools.fails('bytes of template', jinja.compile, ('x'):rep(2 ^ 20 + 1), 't')
    local parts = {}
    for i = 1, 20000 do parts[i] = ('{%% if a%d %%}{%% set a%d = 1 %%}{%% endif %%}'):format(i, i) end
    tools.fails('t: line 1, column ', jinja.compile, table.concat(parts), 't')
    local start = os.clock()
    for _, piece in ipairs { '{{', '{%', '{#', '{% raw %}', '{{ "', '\\', '{%- ', ' ', '{{ 1 }}',
      '\n  {% if x %}{% endif %}' } do
      pcall(jinja.compile, piece:rep(math.floor(200000 / #piece)), 't')
    end
    assert.is_true(os.clock() - start < 30)
  end)

  it('leave the next rendering as it was', function()
    pcall(render, '{% macro m() %}{{ m() }}{% endmacro %}{% set x %}{{ m() }}{% endset %}')
    assert.equal('a', (render 'a'))
  end)
end)

describe('jinja, dates:', function()
  it('are those of now where none is given', function()
    assert.equal(os.date '%Y-%m-%d', (render("{{ strftime_now('%Y-%m-%d') }}", {}, {})))
  end)

  it('have the weeks of the calendar', function()
    for _, case in ipairs { { 2021, 1, 3, '2020 53 01 00 7 0 003' }, { 2024, 12, 30, '2025 01 52 53 1 1 365' },
      { 2024, 2, 29, '2024 09 08 09 4 4 060' }, { 2000, 1, 1, '1999 52 00 00 6 6 001' } } do
      assert.equal(case[4], (render("{{ strftime_now('%G %V %U %W %u %w %j') }}", {},
        { now = { year = case[1], month = case[2], day = case[3] } })))
    end
    fails('the code %Q is not known', "{{ strftime_now('%Q') }}")
  end)
end)
