--- Mutated chat templates and random tokens as templates, rendered with random variables: whatever
--- they are, compiling and rendering end in a text or an error with its place, soon, and with little
--- memory.
---
---   MS_LIB=build/libmoonstill.so LUA_PATH='lua/?.lua;lua/?/init.lua;?.lua;;' \
---     luajit tests/fuzz/templates.lua SECONDS [SEED]
local jinja = require 'moonstill.jinja.jinja'
local conversations = require 'tests.support.conversations'
local templates = require 'tests.support.templates'
local tools = require 'tests.support.tools'

local M = {}

-- What templates are made of, and what they should not be.
local TOKENS = {}
for token in ([[{{ {{- }} -}} {% {%- {%+ %} -%} {# #} ( ( ) ) [ ] { } , , : . . | | ~ + - * ** / // % = == != < <= > >=
  ' " for in if elif else endif endfor set endset macro endmacro call endcall filter endfilter raw endraw generation
  endgeneration break continue is not and or none true false recursive block with endwith include import x y
  messages message role content tools loop loop.index loop.previtem loop.cycle caller namespace ns ns.x varargs
  kwargs 0 1 -1 2 3.5 1e9 9007199254740993 9999999999999999999999 0x1f 1_000 'a' "b" '%s' '{}' '\n' '' '\x00'
  range dict cycler joiner lipsum strftime_now raise_exception self super __class__ __mro__ _x length trim join
  map select selectattr reject list sort unique tojson upper replace indent default first last int float string
  batch slice groupby sum round items dictsort center truncate wordwrap format e safe title reverse attr min max
  abs split strip startswith rsplit format get keys values index count find zfill rjust ljust append pop update
  join defined undefined string mapping iterable sameas divisibleby odd number callable boolean]]):gmatch '%S+' do
  TOKENS[#TOKENS + 1] = token
end
for _, big in ipairs {
  '1000000', '10000000000', "'a' * 1000000", 'range(1000000)', 'range(100000000000)', '2 ** 100000',
  "'x'|center(100000000)", "'x'|indent(10000000)", "'%999999999d' % 1", "'{:>999999999}'.format(1)",
  'x * x * x', "'x'.zfill(1e9)", '[[]] * 1000000',
  '{% for i in range(1000000) %}{% for i in range(1000000) %}', ('('):rep(300), ('[x, '):rep(300),
  ('-'):rep(300), ('{% if x %}'):rep(150), '{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}',
  "{% set x = x ~ x %}", '\0', '\255', '\195', "{% set ns.x = ns %}", "'a'.replace('', x)",
  "{% for x in x recursive %}{{ loop(x) }}{% endfor %}", "x.join(x)" } do
  TOKENS[#TOKENS + 1] = big
end

local function soup(random)
  local parts = { random(2) == 1 and '{{ ' or '{% ' }
  for _ = 1, random(30) do
    parts[#parts + 1] = TOKENS[random(#TOKENS)]
    if random(4) > 1 then parts[#parts + 1] = ' ' end
  end
  parts[#parts + 1] = random(3) == 1 and ' %}' or ' }}'
  return table.concat(parts)
end

local function words(text)
  local list = {}
  for word in text:gmatch '%S+' do list[#list + 1] = word end
  return list
end

local ATOMS = words [[x x messages messages[0] messages[0].content tools none true nothing '' 'ab' 'aé日' 0 1 -1 3 2.5
  -0.0 1e308 10000000 9223372036854775807 [] [1,'a'] (1,) {} {'a':1} range(5) range(10000000)
  namespace(a=1) dict(b=2) messages|length]]
local SIGNS = words '+ - * / // % ** ~ == < >= in and or'
local NAMES = words [[length trim join list sort unique tojson upper lower title capitalize replace indent default
  first last int float string batch slice groupby sum round items dictsort center truncate
  wordwrap format e safe reverse attr min max abs map select reject selectattr rejectattr count
  wordcount urlencode striptags pprint xmlattr filesizeformat forceescape random]]
local METHODS = words [[split rsplit strip lstrip rstrip replace startswith endswith find rfind index count join format
  upper title zfill center ljust rjust splitlines partition removeprefix expandtabs isdigit get
  keys values items copy encode pop append update translate format_map swapcase casefold
  is_integer bit_length]]
local TESTS = words [[defined none string mapping iterable odd even number sameas(x) divisibleby(x) in(x) lower
  callable eq(x)]]

-- An expression that can be read, whatever comes of it.
local function expression(random, depth)
  local function pick(list) return list[random(#list)] end
  local function inner() return expression(random, depth + 1) end
  local function several()
    local list = {}
    for i = 1, random(4) - 1 do list[i] = inner() end
    return table.concat(list, ', ')
  end
  local kind = depth > 4 and 1 or random(9)
  if kind <= 2 then return pick(ATOMS) end
  if kind == 3 then return '(' .. inner() .. ' ' .. pick(SIGNS) .. ' ' .. inner() .. ')' end
  if kind == 4 then return '(' .. inner() .. ')|' .. pick(NAMES) .. '(' .. several() .. ')' end
  if kind == 5 then return '(' .. inner() .. ')|' .. pick(NAMES) end
  if kind == 6 then return '(' .. inner() .. ').' .. pick(METHODS) .. '(' .. several() .. ')' end
  if kind == 7 then
    return '(' .. inner() .. ')[' .. inner() .. (random(2) == 1 and ':' .. inner() or '') .. ']'
  end
  if kind == 8 then return '(' .. inner() .. ' is ' .. pick(TESTS) .. ')' end
  return '[' .. inner() .. ', ' .. inner() .. ']'
end

local FORMS = { '{{ %s }}', '{%% for x in %s %%}{{ x }}{{ loop.index }}{%% endfor %%}',
  '{%% set x = %s %%}{{ x }}{{ x|length }}',
  '{%% if %s %%}a{%% endif %%}', '{%% macro m(a=%s) %%}{{ a ~ a }}{%% endmacro %%}{{ m() ~ m(1) }}',
  '{%% set ns = namespace(a=x) %%}{%% for i in range(40) %%}{%% set ns.a = %s ~ ns.a %%}{%% endfor %%}{{ ns.a }}',
  '{%% filter indent(3) %%}{{ %s }}{%% endfilter %%}', '{%% generation %%}{{ %s }}{%% endgeneration %%}' }

local function made(random)
  return (FORMS[random(#FORMS)]:gsub('%%%%', '%%'):gsub('%%s', function() return expression(random, 0) end))
end

-- One change: a piece of the text goes, is doubled or put elsewhere, a token comes in, or a word is another.
local function change(source, random)
  local from = random(#source + 1)
  local to = from + random(random(3) == 1 and 200 or 12) - 1
  local piece, kind = source:sub(from, to), random(8)
  local before, after = source:sub(1, from - 1), source:sub(to + 1)
  if kind == 1 then return before .. after end
  if kind == 2 then return before .. piece .. piece .. after end
  if kind == 3 then return before .. TOKENS[random(#TOKENS)] .. after end
  if kind == 4 then return before .. ' ' .. TOKENS[random(#TOKENS)] .. ' ' .. piece .. after end
  if kind == 5 then
    local rest = before .. after
    local at = random(#rest + 1)
    return rest:sub(1, at - 1) .. piece .. rest:sub(at)
  end
  local start, stop = source:find('[%w_]+', from)
  if not start then return source end
  local list = kind == 6 and ATOMS or kind == 7 and NAMES or TOKENS
  return source:sub(1, start - 1) .. list[random(#list)] .. source:sub(stop + 1)
end

local function mutate(source, random)
  for _ = 1, random(3) == 1 and random(4) or 1 do source = change(source, random) end
  return source
end

-- Where the data beside the repository is absent, a template that has something of all.
local OWN = [[
{%- macro part(c, sep='\n') -%}
  {%- if c is string %}{{ c|trim }}{% elif c is iterable and c is not mapping %}
    {%- for p in c if p.type == 'text' %}{{ p.text ~ sep }}{% else %}{{ raise_exception('no text') }}{% endfor %}
  {%- endif %}
{%- endmacro %}
{% set ns = namespace(last=-1, names=[]) %}
{%- for m in messages[::-1] %}
  {%- if m.role == 'user' and ns.last < 0 %}{% set ns.last = messages|length - loop.index0 %}{% endif %}
{%- endfor %}
{%- if tools %}{{ '<tools>' }}
  {%- for t in tools %}{{ t | tojson(indent=2) }}{{ '\n' if not loop.last }}{% endfor %}
{% endif %}
{%- for m in messages %}
  {%- if m.role == 'assistant' %}{% generation %}{% if m.reasoning_content is defined and '</think>' in m.content %}
    {{- m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ part(m.content) }}{% endif %}
    {%- for c in m.tool_calls or [] %}
      {%- for k, v in c.function.arguments|items %}{{ k }}={{ v|string|upper }}{% endfor %}
    {% endfor %}
  {% endgeneration %}{% else %}{% set x %}{{ part(m.content, sep=' ') }}{% endset %}{{ x|replace('a', 'b') }}{% endif %}
  {%- filter indent(2) %}{{ "%s|%5.1f"|format(m.role, loop.index / 3) }}{% endfilter %}
  {%- call(q) part2() %}{{ q }}{% endcall %}
{%- endfor %}{% if add_generation_prompt %}{{ bos_token + strftime_now('%d %b %Y') }}{% endif %}]]

local function text_of(random)
  return function()
    local parts = {}
    for _ = 1, random(6) - 1 do
        parts[#parts + 1] = random(3) == 1 and TOKENS[random(#TOKENS)] or ({ ' ', '\n', 'é', '日本', '<think>',
        '</think>', '<|im_end|>', '\240\159\166\153' })[random(8)]
    end
    return table.concat(parts)
  end
end

local SECONDS, MEGABYTES = 10, 400 -- of the processor; a rendering may make 64 MB of text and lists of as much

-- What a template or a rendering must not say: an error of Lua's, not of the template.
local LUAS = { 'attempt to', 'bad argument', 'stack overflow', 'not enough memory', '%.lua:', 'C stack',
  'table overflow', 'string length overflow', 'malformed', 'previous error', 'out of memory', 'table: 0x',
  'function: 0x' }

local function judge(source, ok, value, seconds)
  local function fault(why) error(('%s: %s\n%s'):format(why, tostring(value), source), 0) end
  if not ok then
    if type(value) ~= 'string' or not value:find '^fuzz: line %d+, column %d+: ' then
      fault 'an error without a place'
    end
    for _, word in ipairs(LUAS) do
      if value:find(word) and not source:find(word) then fault "an error of Lua's" end
    end
  end
  if seconds > SECONDS then fault(('%.1f s'):format(seconds)) end
end

local function once(source, variables)
  if collectgarbage 'count' > 50 * 1024 then collectgarbage() end -- what others left
  local start = os.clock()
  local ok, value = pcall(jinja.compile, source, 'fuzz')
  if ok then ok, value = pcall(value.render, value, variables, { now = templates.now }) end
  local memory = collectgarbage 'count' / 1024
  judge(source, ok, value, os.clock() - start)
  assert(memory < MEGABYTES, ('%.0f MB: %s'):format(memory, source))
  return ok
end

--- Runs `rounds` inputs; returns how many gave a text and how many an error.
--- @param seed integer
--- @param rounds integer
--- @return integer rendered
--- @return integer refused
function M.run(seed, rounds)
  local random = tools.random(seed)
  local sources, rendered = { OWN }, 0
  for _, each in ipairs(templates.all() or {}) do sources[#sources + 1] = each.source end
  for _ = 1, rounds do
    local variables = conversations.make(random, text_of(random), random(2) == 1)
    variables.x = ({ 1, 'ab', variables.messages, variables.tools, 2.5, {}, 1e15, '' })[random(8)]
    local kind = random(6)
    local source = kind == 1 and soup(random) or kind <= 3 and made(random)
      or mutate(kind == 4 and OWN or sources[random(#sources)], random)
    if once(source, variables) then rendered = rendered + 1 end
  end
  return rendered, rounds - rendered
end

if arg and arg[0] and arg[0]:find 'fuzz/templates%.lua$' then
  local stop, seed = os.time() + tonumber(arg[1] or 60), tonumber(arg[2] or 1)
  local rendered, refused = 0, 0
  while os.time() < stop do
    local fine, not_fine = M.run(seed, 500)
    rendered, refused, seed = rendered + fine, refused + not_fine, seed + 1
  end
  print(('%d rendered, %d refused, seeds up to %d'):format(rendered, refused, seed - 1))
end

return M
