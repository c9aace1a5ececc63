--- Jinja's filters: filters[name] = { name, params, call, required }; `call(value, ...)`.
---
--- All but those that draw by chance. Nothing is escaped for HTML but where a filter says so.

local bounds = require 'moonstill.jinja.bounds'
local arithmetic = require 'moonstill.jinja.arithmetic'
local attributes = require 'moonstill.jinja.attributes'
local calls = require 'moonstill.jinja.calls'
local characters = require 'moonstill.jinja.characters'
local comparing = require 'moonstill.jinja.comparing'
local formatting = require 'moonstill.jinja.formatting'
local methods = require 'moonstill.jinja.methods'
local printing = require 'moonstill.jinja.printing'
local strings = require 'moonstill.jinja.strings'
local tests = require 'moonstill.jinja.tests'
local values = require 'moonstill.jinja.values'
local wrapping = require 'moonstill.jinja.wrapping'

local M = {}

local raise, concat, text = bounds.raise, strings.concat, strings.text
local NONE, str = values.NONE, printing.str

local function def(name, params, call, required)
  M[name] = { name = name, params = params, call = call, required = required or 0 }
end

local function given(v) return v ~= nil and v ~= NONE end
local function nothing() return nil end
local function flag(v) return v ~= nil and values.truth(v) end
local function whole(v, default, what)
  if v == nil then return default end
  return values.index(v, what or 'argument')
end

-- A text, where Python would fail to find a method of one.
local function as_text(v, what)
  if strings.is(v) then return v end
  if values.kind(v) == 'undefined' then values.fail_undefined(v) end
  raise('%s must be str, not %s', what or 'the value', values.type_name(v))
end

-- attributes of elements -------------------------------------------------------------------------

local function parts_of(attribute)
  if not given(attribute) then return {} end
  if not strings.is(attribute) then return { attribute } end
  local parts = {}
  for part in (text(attribute) .. '.'):gmatch '([^.]*)%.' do
    parts[#parts + 1] = part:find '^%d+$' and tonumber(part) or part
  end
  return parts
end

local function ignore_case(v)
  if strings.is(v) then return characters.lower(text(v)) end
  return v
end

-- A function that looks a dotted attribute up. `after` changes what it finds.
local function getter(attribute, default, after)
  local parts = parts_of(attribute)
  return function(v)
    for _, part in ipairs(parts) do
      v = attributes.getitem(v, part)
      if given(default) and values.kind(v) == 'undefined' then v = default end
    end
    bounds.charge(1)
    if after then return after(v) end
    return v
  end
end

local function cased(case_sensitive) return not flag(case_sensitive) and ignore_case or nil end

-- Several attributes with commas between them: a list of what is found.
local function multi_getter(attribute, after)
  local getters = {}
  if strings.is(attribute) then
    for part in (text(attribute) .. ','):gmatch '([^,]*),' do
      getters[#getters + 1] = getter(part, nil, after)
    end
  else
    getters[1] = getter(attribute, nil, after)
  end
  return function(v)
    local found = {}
    for i, get in ipairs(getters) do found[i] = get(v) end
    return values.list(found, #found)
  end
end

-- texts ------------------------------------------------------------------------------------------

def('string', {}, str)
def('safe', {}, function(v) return strings.markup(str(v)) end)

-- Defines a filter that is a function of the value's text; what is marked as HTML stays so.
local function def_text(name, params, change)
  def(name, params, function(v, a)
    v = str(v)
    return strings.like(v, change(v, a))
  end)
end

def_text('upper', {}, methods.str.upper.call)
def_text('lower', {}, methods.str.lower.call)
def_text('capitalize', {}, methods.str.capitalize.call)
def_text('trim', { 'chars' }, function(v, chars) return methods.strip(v, chars, true, true) end)
def_text('center', { 'width' }, function(v, width)
  return methods.center(v, whole(width, 80, 'width'), ' ')
end)

def('replace', { 'old', 'new', 'count' }, function(v, old, new, count)
  if count == NONE then count = nil end
  return methods.replace(strings.plain(str(v)), str(old), str(new), count)
end, 2)

-- Words begin after blanks and some signs.
def('title', {}, function(v)
  v = str(v)
  local s, pieces, i = text(v), {}, 1
  while i <= #s do
    local stop = i
    while stop <= #s and (s:find('^[-({%[<]', stop) or strings.skip_blanks(s, stop) > stop) do
      stop = s:find('^[-({%[<]', stop) and stop + 1 or strings.skip_blanks(s, stop)
    end
    if stop > i then pieces[#pieces + 1] = strings.sub(v, i, stop - 1) end
    i = stop
    while stop <= #s and not s:find('^[-({%[<]', stop) and strings.skip_blanks(s, stop) == stop do
      stop = stop + 1
    end
    if stop > i then
      pieces[#pieces + 1] = methods.capitalize(strings.sub(v, i, stop - 1), characters.upper)
    end
    i = stop
  end
  return concat(pieces)
end)

def('format', {}, nil)
M.format.raw = function(v, args, n, kw)
  if n > 0 and kw and kw.n > 0 then
    raise "can't handle positional and keyword arguments at the same time"
  end
  if kw and kw.n > 0 then return formatting.percent(str(v), kw) end
  local copy = {}
  for i = 1, n do copy[i] = args[i] end
  return formatting.percent(str(v), values.tuple(copy, n))
end

local function indent_lines(v, by, blank)
  local lines = methods.lines(strings.join2(v, '\n'))
  local pieces = {}
  for i = 1, lines.n do
    if i > 1 then pieces[#pieces + 1] = '\n' end
    if i > 1 and (blank or text(lines[i]) ~= '') then pieces[#pieces + 1] = by end
    pieces[#pieces + 1] = lines[i]
  end
  return concat(pieces)
end

def('indent', { 'width', 'first', 'blank' }, function(v, width, first, blank)
  local by = width
  if not strings.is(width) then by = strings.rep(' ', whole(width, 4, 'width')) end
  local result = strings.like(v, indent_lines(as_text(v), by, flag(blank)))
  if flag(first) then result = strings.join2(strings.like(v, by), result) end
  return result
end)

local truncate_params = { 'length', 'killwords', 'end', 'leeway' }
def('truncate', truncate_params, function(v, length, kill, ending, leeway)
  length, leeway = whole(length, 255, 'length'), given(leeway) and whole(leeway) or 5
  ending = ending == nil and '...' or as_text(ending, 'end')
  local tail = strings.length(text(ending))
  if length < tail then raise('expected length >= %d, got %d', tail, length) end
  if leeway < 0 then raise('expected leeway >= 0, got %d', leeway) end
  if values.length(v) <= length + leeway then return v end
  local cut = strings.sub(as_text(v), 1, strings.offset(text(v), length - tail))
  if not flag(kill) then cut = methods.str.rsplit.call(cut, ' ', 1)[1] end
  return strings.join2(strings.like(v, cut), ending)
end)

def('wordwrap', { 'width', 'break_long_words', 'wrapstring', 'break_on_hyphens' },
  function(v, width, long, wrapstring, hyphens)
    return wrapping.wrap(as_text(v), whole(width, 79, 'width'), long == nil or flag(long),
      given(wrapstring) and as_text(wrapstring) or '\n', hyphens == nil or flag(hyphens))
  end)

def('wordcount', {}, function(v)
  local s, n, inside, i = text(str(v)), 0, false, 1
  while i <= #s do
    local code, length = strings.code(s, i)
    local is_word = code == 95 or characters.is_alnum(code)
    if is_word and not inside then n = n + 1 end
    inside, i = is_word, i + length
  end
  return n
end)

local function escape(v) return strings.escape(str(v)) end

def('escape', {}, escape)
def('e', {}, escape)
def('forceescape', {}, function(v) return strings.escape(strings.plain(str(v))) end)

local entities = { amp = '&', lt = '<', gt = '>', quot = '"', apos = "'", nbsp = '\194\160' }
local function unescape(s)
  return (s:gsub('&(#?[xX]?%w+);', function(name)
    local code = name:match '^#(%d+)$' and tonumber(name:sub(2)) or
      name:match '^#[xX](%x+)$' and tonumber(name:sub(3), 16)
    if code and code > 0 and code < 0x110000 then return strings.char(code) end
    return entities[name]
  end))
end

-- A text without what stands from one text to another.
local function without(v, open, close)
  local s, pieces, i = text(v), {}, 1
  while true do
    local from = s:find(open, i, true)
    local _, to = s:find(close, from or #s + 1, true)
    pieces[#pieces + 1] = strings.sub(v, i, (from and to and from or #s + 1) - 1)
    if not from or not to then return concat(pieces) end
    i = to + 1
  end
end

def('striptags', {}, function(v)
  local bare = without(without(strings.plain(str(v)), '<!--', '-->'), '<', '>')
  return strings.map(methods.str.join.call(' ', methods.str.split.call(bare)), unescape)
end)

local function quote_url(v, for_query)
  return strings.map(str(v), function(s)
    s = s:gsub(for_query and '[^%w_.~-]' or '[^%w_.~/-]', function(c)
      return ('%%%02X'):format(c:byte())
    end)
    return for_query and s:gsub('%%20', '+') or s
  end)
end

local function pair_of(v)
  local items, n = values.elements(v)
  if n ~= 2 then raise('expected pairs of a key and a value, got %d values', n) end
  return items[1], items[2]
end

def('urlencode', {}, function(v)
  if strings.is(v) or not values.try_iterate(v) then return quote_url(v, false) end
  local items, n = values.elements(values.kind(v) == 'dict' and methods.items(v) or v)
  local pieces = {}
  for i = 1, n do
    local key, value = pair_of(items[i])
    if i > 1 then pieces[#pieces + 1] = '&' end
    pieces[#pieces + 1] = quote_url(key, true)
    pieces[#pieces + 1] = '='
    pieces[#pieces + 1] = quote_url(value, true)
  end
  return concat(pieces)
end)

def('xmlattr', { 'autospace' }, function(v, autospace)
  if values.kind(v) ~= 'dict' then raise("'%s' has no items", values.object_name(v)) end
  local pieces = {}
  for i = 1, v.n do
    local key, value = values.dict_key(v, i), v.map[v.keys[i]]
    if value ~= NONE and values.kind(value) ~= 'undefined' then
      if text(as_text(key)):find '[%s/>=]' then
        raise("Invalid character in attribute name: '%s'", text(key))
      end
      if #pieces > 0 or autospace == nil or flag(autospace) then pieces[#pieces + 1] = ' ' end
      for _, piece in ipairs { escape(key), '="', escape(value), '"' } do
        pieces[#pieces + 1] = piece
      end
    end
  end
  return concat(pieces)
end)

def('filesizeformat', { 'binary' }, function(v, binary)
  local size = M.float.call(v, values.NONE).x
  if not size then raise 'the size is no number' end
  local base = flag(binary) and 1024 or 1000
  if size == 1 then return '1 Byte' end
  if size < base then return ('%d Bytes'):format(size) end
  local units = { 'kB', 'MB', 'GB', 'TB', 'PB', 'EB', 'ZB', 'YB' }
  if flag(binary) then
    for i, unit in ipairs(units) do units[i] = unit:sub(1, 1):upper() .. 'iB' end
  end
  for i, unit in ipairs(units) do
    local limit = base ^ (i + 1)
    if size < limit or i == #units then
      return printing.c_format(base * size / limit, 'f', 1) .. ' ' .. unit
    end
  end
end)

def('pprint', {}, function(v) return wrapping.pretty(v) end)

local json_params = { 'ensure_ascii', 'indent', 'separators', 'sort_keys' }
def('tojson', json_params, function(v, ascii, indent, separators, sort_keys)
  local o = { ascii = flag(ascii), sort_keys = flag(sort_keys) }
  if given(indent) then
    o.indent = strings.is(indent) and text(indent) or (' '):rep(math.min(1000, whole(indent, 0)))
  end
  if given(separators) then
    local items, n = values.elements(separators)
    if n ~= 2 then raise('separators: expected 2 texts, got %d', n) end
    o.comma, o.colon = as_text(items[1]), as_text(items[2])
  end
  return printing.json(v, o)
end)

-- values -----------------------------------------------------------------------------------------

local function default(v, other, boolean)
  if values.kind(v) == 'undefined' or flag(boolean) and not values.truth(v) then
    if other == nil then return '' end
    return other
  end
  return v
end
def('default', { 'default_value', 'boolean' }, default)
def('d', { 'default_value', 'boolean' }, default)

for _, name in ipairs { 'length', 'count' } do def(name, {}, values.length) end
def('list', {}, values.new_list)
def('attr', { 'name' }, function(v, name)
  return attributes.only_attribute(v, text(as_text(name)))
end, 1)

def('items', {}, function(v)
  return values.generator(function()
    if values.kind(v) == 'undefined' then return nothing end
    if values.kind(v) ~= 'dict' then raise 'Can only get item pairs from a mapping.' end
    return values.iterate(methods.items(v))
  end)
end)

local by_prefix = { ['0b'] = 2, ['0o'] = 8, ['0x'] = 16 }
local prefixes = { [2] = '0b', [8] = '0o', [16] = '0x' }

-- An integer written in a base, as Python's int() reads it; nil if it is none.
local function read_integer(s, base)
  if not base or base ~= 0 and (base < 2 or base > 36) then return nil end
  s = s:sub(strings.skip_blanks(s), strings.skip_blanks_back(s)):lower()
  local sign, digits = s:match '^([+-]?)(.*)$'
  if base == 0 then base = by_prefix[digits:sub(1, 2)] or not digits:find '^0_*[1-9]' and 10 end
  if not base then return nil end
  local prefix = prefixes[base]
  if prefix and digits:sub(1, 2) == prefix then digits = digits:sub(3):gsub('^_', '') end
  if not digits:find '^%w[%w_]*$' or digits:find '__' or digits:find '_$' then return nil end
  digits = digits:gsub('_', '')
  local value = 0
  for c in digits:gmatch '.' do
    local digit = tonumber(c, 36)
    if not digit or digit >= base then return nil end
    value = arithmetic.apply('add', arithmetic.apply('mul', value, base), digit)
  end
  return sign == '-' and arithmetic.sign('sub', value) or value
end

-- A float as Python's float() reads it; nil if it is none.
local function read_float(s)
  s = s:sub(strings.skip_blanks(s), strings.skip_blanks_back(s)):lower()
  local sign, rest = s:match '^([+-]?)(.*)$'
  local x = rest == 'inf' and math.huge or rest == 'infinity' and math.huge or
    rest == 'nan' and 0 / 0 or nil
  if not x then
    if not rest:find '^%d[%d_]*%.?[%d_]*' and not rest:find '^%.%d' then return nil end
    if not rest:find '^[%d_]*%.?[%d_]*e?[+-]?[%d_]*$' or rest:find '__' or rest:find 'e$' then
      return nil
    end
    x = tonumber((rest:gsub('_', '')))
  end
  return x and (sign == '-' and -x or x)
end

local function truncated(x)
  if x - x ~= 0 then return nil end
  return values.whole(x < 0 and math.ceil(x) or math.floor(x))
end

def('int', { 'default', 'base' }, function(v, otherwise, base)
  if otherwise == nil then otherwise = 0 end
  if values.kind(v) == 'undefined' then values.fail_undefined(v) end
  local result
  if strings.is(v) then
    local b = base == nil and 10 or values.as_integer(base)
    result = read_integer(text(v), b and tonumber(b))
    if not result then
      local x = read_float(text(v))
      result = x and truncated(x)
    end
  else
    local x = values.number(v)
    result = values.as_integer(v) or x and truncated(x)
  end
  if result == nil then return otherwise end
  return result
end)

def('float', { 'default' }, function(v, otherwise)
  if values.kind(v) == 'undefined' then values.fail_undefined(v) end
  local x
  if strings.is(v) then x = read_float(text(v)) else x = values.number(v) end
  if x then return values.float(x) end
  if otherwise == nil then return values.float(0) end
  return otherwise
end)

def('abs', {}, function(v)
  if values.kind(v) == 'float' then return values.float(math.abs(v.x)) end
  local i = values.as_integer(v)
  if not i then
    if values.kind(v) == 'undefined' then values.fail_undefined(v) end
    raise("bad operand type for abs(): '%s'", values.type_name(v))
  end
  return comparing.order('lt', i, 0) and arithmetic.sign('sub', i) or i
end)

-- round(x, precision) of Python: to the nearest, a half to the even one, by the exact value.
local function round_common(x, precision)
  if precision > 22 or x - x ~= 0 then return x end
  if precision >= 0 then return tonumber(printing.c_format(x, 'f', precision)) end
  local unit = 10 ^ -precision
  local q = x / unit
  local low = math.floor(q)
  local up = q - low > 0.5 or q - low == 0.5 and low % 2 == 1
  local result = (up and low + 1 or low) * unit
  return result == 0 and x < 0 and -0.0 or result
end

-- The same of an integer, at the tens and beyond.
local function round_integer(v, places)
  if places > 18 then return 0 end
  local unit = arithmetic.apply('pow', 10, places)
  local q, r = arithmetic.apply('floordiv', v, unit), arithmetic.apply('mod', v, unit)
  local twice = arithmetic.apply('mul', r, 2)
  local half = comparing.equal(twice, unit)
  local up = comparing.order('gt', twice, unit) or
    half and comparing.equal(arithmetic.apply('mod', q, 2), 1)
  return arithmetic.apply('mul', up and arithmetic.apply('add', q, 1) or q, unit)
end

def('round', { 'precision', 'method' }, function(v, precision, method)
  method = method == nil and 'common' or text(as_text(method))
  local to_integer = precision == NONE and method == 'common'
  precision = to_integer and 0 or whole(precision, 0)
  if method ~= 'common' and method ~= 'ceil' and method ~= 'floor' then
    raise 'method must be common, ceil or floor'
  end
  local x = values.number(v)
  if not x then
    if values.kind(v) == 'undefined' then values.fail_undefined(v) end
    raise("type %s doesn't define __round__ method", values.type_name(v))
  end
  local is_integer = values.as_integer(v) ~= nil
  if method == 'common' then
    if to_integer then return values.whole(round_common(x, 0)) end
    if not is_integer then return values.float(round_common(x, precision)) end
    v = values.as_integer(v)
    return precision >= 0 and v or round_integer(v, -precision)
  end
  local unit = 10 ^ precision
  -- of whole numbers, which have no -0
  return values.float(((method == 'ceil' and math.ceil or math.floor)(x * unit) + 0) / unit)
end)

-- sequences --------------------------------------------------------------------------------------

def('first', {}, function(v)
  local x = values.iterate(v)()
  if x == nil then return values.undefined 'No first item, sequence was empty.' end
  return x
end)

local reversible = { str = true, list = true, tuple = true, dict = true, view = true, range = true }

-- The elements of what can be gone over from its end.
local function backwards(v)
  if not reversible[values.kind(v)] then
    if values.kind(v) == 'undefined' then return {}, 0 end
    raise("'%s' object is not reversible", values.type_name(v))
  end
  return values.elements(v)
end

def('last', {}, function(v)
  local items, n = backwards(v)
  if n == 0 then return values.undefined 'No last item, sequence was empty.' end
  return strings.like(v, items[n])
end)

def('random', {}, function()
  raise 'random: a chat template that draws by chance cannot be learnt from'
end)

def('reverse', {}, function(v)
  if strings.is(v) then return attributes.slice(v, nil, nil, -1) end
  local items, n = values.elements(v)
  local i = n + 1
  local name = values.kind(v) == 'list' and 'list_reverseiterator' or 'reversed'
  return values.iterator(name, function()
    i = i - 1
    return items[i]
  end)
end)

def('join', { 'd', 'attribute' }, function(v, separator, attribute)
  local items, n = values.elements(v)
  local get = given(attribute) and getter(attribute)
  local pieces, sep = {}, separator == nil and '' or str(separator)
  for i = 1, n do
    if i > 1 then pieces[#pieces + 1] = sep end
    pieces[#pieces + 1] = str(get and get(items[i]) or not get and items[i])
  end
  bounds.charge(n)
  return concat(pieces)
end)

local function by_places(items, places)
  local list = {}
  for i, place in ipairs(places) do list[i] = items[place] end
  return values.list(list, #places)
end

local function sort_by(v, get, reverse)
  local items, n = values.elements(v)
  local keys = {}
  for i = 1, n do keys[i] = get(items[i]) end
  return by_places(items, comparing.sorted_places(keys, n, values.flag(reverse)))
end

def('sort', { 'reverse', 'case_sensitive', 'attribute' },
  function(v, reverse, case_sensitive, attribute)
    return sort_by(v, multi_getter(attribute, cased(case_sensitive)), reverse)
  end)

def('dictsort', { 'case_sensitive', 'by', 'reverse' }, function(v, case_sensitive, by, reverse)
  by = by == nil and 'key' or text(as_text(by))
  if by ~= 'key' and by ~= 'value' then
    raise 'You can only sort by either "key" or "value"'
  end
  if values.kind(v) ~= 'dict' then
    if values.kind(v) == 'undefined' then values.fail_undefined(v) end
    raise("'%s' has no attribute 'items'", values.object_name(v))
  end
  local place, after = by == 'key' and 1 or 2, cased(case_sensitive)
  return sort_by(methods.items(v), function(pair)
    return after and after(pair[place]) or not after and pair[place]
  end, reverse)
end)

def('unique', { 'case_sensitive', 'attribute' }, function(v, case_sensitive, attribute)
  return values.generator(function()
    local get, seen, step = getter(attribute, nil, cased(case_sensitive)), {}, values.iterate(v)
    return function()
      for item in step do
        local hash = values.hash(get(item))
        if not seen[hash] then
          seen[hash] = true
          return item
        end
      end
    end
  end)
end)

local function extreme(op)
  return function(v, case_sensitive, attribute)
    local get, step = getter(attribute, nil, cased(case_sensitive)), values.iterate(v)
    local best = step()
    if best == nil then return values.undefined 'No aggregated item, sequence was empty.' end
    local key = get(best)
    while true do
      local item = step()
      if item == nil then return best end
      local k = get(item)
      if comparing.order(op, k, key) then best, key = item, k end
    end
  end
end
def('min', { 'case_sensitive', 'attribute' }, extreme 'lt')
def('max', { 'case_sensitive', 'attribute' }, extreme 'gt')

def('sum', { 'attribute', 'start' }, function(v, attribute, start)
  local get, step, total = getter(attribute), values.iterate(v), start
  if total == nil then total = 0 end
  if strings.is(total) then raise "sum() can't sum strings [use ''.join(seq) instead]" end
  for item in step do total = arithmetic.apply('add', total, get(item)) end
  return total
end)

def('groupby', { 'attribute', 'default', 'case_sensitive' },
  function(v, attribute, otherwise, case_sensitive)
    local get = getter(attribute, otherwise, cased(case_sensitive))
    local plain = getter(attribute, otherwise)
    local ordered, groups = sort_by(v, get, false), {}
    local key, list
    for i = 1, ordered.n do
      local item = ordered[i]
      local k = get(item)
      if not list or not comparing.equal(k, key) then
        key, list = k, values.list({}, 0)
        local group = values.tuple({ plain(item), list }, 2)
        group.fields = { grouper = 1, list = 2 }
        groups[#groups + 1] = group
      end
      list.n = list.n + 1
      list[list.n] = item
    end
    return values.list(groups, #groups)
  end, 1)

local function slices_of(v, slices, fill)
  local items, n = values.elements(v)
  local count = whole(slices, 1, 'slices')
  if count == 0 then raise 'integer division or modulo by zero' end
  bounds.charge(math.abs(count))
  local size, extra, at, list = math.floor(n / count), n % count, 0, {}
  for k = 1, count do
    local part, length = {}, size + (k <= extra and 1 or 0)
    for i = 1, length do part[i] = items[at + i] end
    at = at + length
    if given(fill) and k > extra then
      length = length + 1
      part[length] = fill
    end
    list[k] = values.list(part, length)
  end
  return values.iterate(values.list(list))
end

def('slice', { 'slices', 'fill_with' }, function(v, slices, fill)
  return values.generator(function() return slices_of(v, slices, fill) end)
end, 1)

local function batches_of(v, linecount, fill)
  local items, n = values.elements(v)
  local size, list, part = whole(linecount, 1, 'linecount'), {}, values.list({}, 0)
  for i = 1, n do
    if part.n == size and (i > 1 or size == 0) then
      list[#list + 1], part = part, values.list({}, 0)
    end
    part.n = part.n + 1
    part[part.n] = items[i]
  end
  if part.n > 0 then
    if given(fill) then
      bounds.charge(math.max(0, size - part.n))
      while part.n < size do
        part.n = part.n + 1
        part[part.n] = fill
      end
    end
    list[#list + 1] = part
  end
  return values.iterate(values.list(list))
end

def('batch', { 'linecount', 'fill_with' }, function(v, linecount, fill)
  return values.generator(function() return batches_of(v, linecount, fill) end)
end, 1)

-- filters and tests by name ----------------------------------------------------------------------

local function rest_of(args, n, from)
  local rest = {}
  for i = from, n do rest[i - from + 1] = args[i] end
  return rest, math.max(0, n - from + 1)
end

tests.filter = { name = 'filter', params = {}, required = 0,
  call = function(v) return type(M[values.hash(v)]) == 'table' end }
tests.test = { name = 'test', params = {}, required = 0,
  call = function(v) return type(tests[values.hash(v)]) == 'table' end }

--- A filter by its name, which a template gave.
function M.named(name)
  local filter = strings.is(name) and M[text(name)]
  if type(filter) ~= 'table' then raise("No filter named '%s'.", text(printing.str(name))) end
  return filter
end

local function mapper(args, n, kw)
  if n == 0 and kw and kw.map.attribute ~= nil then
    for i = 1, kw.n do
      if kw.keys[i] ~= 'attribute' and kw.keys[i] ~= 'default' then
        raise("Unexpected keyword argument '%s'", kw.keys[i])
      end
    end
    return getter(kw.map.attribute, kw.map.default)
  end
  if n == 0 then raise 'map requires a filter argument' end
  local filter, rest, count = M.named(args[1]), rest_of(args, n, 2)
  return function(item) return calls.invoke(filter, item, rest, count, kw) end
end

M.map = { name = 'map', raw = function(v, args, n, kw)
  return values.generator(function()
    if not values.truth(v) then return nothing end
    local change, step = mapper(args, n, kw), values.iterate(v)
    return function()
      local item = step()
      if item == nil then return nil end
      return change(item)
    end
  end)
end }

-- A function that says whether an element is taken.
local function chooser(args, n, kw, by_attribute)
  local at, get = 1, nil
  if by_attribute then
    if n == 0 then raise 'Missing parameter for attribute name' end
    get, at = getter(args[1]), 2
  end
  if n < at then
    return function(item) return values.truth(get and get(item) or not get and item) end
  end
  local test, rest, count = tests.named(args[at]), rest_of(args, n, at + 1)
  return function(item)
    if get then item = get(item) end
    return values.truth(calls.invoke(test, item, rest, count, kw))
  end
end

local function chosen(name, by_attribute, wanted)
  M[name] = { name = name, raw = function(v, args, n, kw)
    return values.generator(function()
      if not values.truth(v) then return nothing end
      local takes, step = chooser(args, n, kw, by_attribute), values.iterate(v)
      return function()
        for item in step do
          bounds.charge(1)
          if takes(item) == wanted then return item end
        end
      end
    end)
  end }
end
chosen('select', false, true)
chosen('reject', false, false)
chosen('selectattr', true, true)
chosen('rejectattr', true, false)

return M
