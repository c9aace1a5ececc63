--- The methods of texts, lists, dicts and numbers: methods[kind][name] = { params, call }.
---
--- `call(self, ...)` gets an argument for each of `params`, nil for those that were not given. None
--- of them changes a value: the sandbox of chat templates takes those away.

local bounds = require 'moonstill.jinja.bounds'
local characters = require 'moonstill.jinja.characters'
local comparing = require 'moonstill.jinja.comparing'
local formatting = require 'moonstill.jinja.formatting'
local printing = require 'moonstill.jinja.printing'
local sorted = require 'moonstill.base.sorted'
local strings = require 'moonstill.jinja.strings'
local values = require 'moonstill.jinja.values'

local raise, concat = bounds.raise, strings.concat
local text, sub = strings.text, strings.sub
local NONE = values.NONE

local M = { str = {}, list = {}, tuple = {}, dict = {}, int = {}, float = {}, bool = {}, range = {},
  iterator = {}, view = {} }

local function given(v) return v ~= nil and v ~= NONE end

local function need_text(v, what)
  if strings.is(v) then return text(v) end
  if values.kind(v) == 'undefined' then values.fail_undefined(v) end
  raise('%s must be str, not %s', what, values.type_name(v))
end

local str = M.str
local function def(name, params, call, required)
  str[name] = { name = name, params = params, call = call, required = required or 0 }
end

-- ends -------------------------------------------------------------------------------------------

-- A set of the characters of a text.
local function char_set(v)
  local set = {}
  for _, c in ipairs(strings.characters(text(v))) do set[c] = true end
  return set
end

local function skip_set(s, set)
  local i = 1
  while i <= #s do
    local c = s:match('^[%z\1-\127\192-\255][\128-\191]*', i) or s:sub(i, i)
    if not set[c] then return i end
    i = i + #c
  end
  return i
end

local function skip_set_back(s, set)
  local j = #s
  while j >= 1 do
    local i = j
    while i > 1 and s:byte(i) >= 128 and s:byte(i) < 192 do i = i - 1 end
    if not set[s:sub(i, j)] then return j end
    j = i - 1
  end
  return 0
end

--- A text without blanks, or certain characters, at its ends.
--- @param left boolean
--- @param right boolean
function M.strip(v, chars, left, right)
  local s = text(v)
  local set = given(chars) and char_set(need_text(chars, 'strip arg'))
  local i, j = 1, #s
  if left then i = set and skip_set(s, set) or not set and strings.skip_blanks(s) end
  if right and i <= j then
    j = set and skip_set_back(s, set) or not set and strings.skip_blanks_back(s)
  end
  return sub(v, i, j)
end

def('strip', { 'chars' }, function(v, chars) return M.strip(v, chars, true, true) end)
def('lstrip', { 'chars' }, function(v, chars) return M.strip(v, chars, true, false) end)
def('rstrip', { 'chars' }, function(v, chars) return M.strip(v, chars, false, true) end)

-- A part of a text by Python's start and end: the bytes from, to (1-based, inclusive).
local function range_of(s, start, stop)
  if not given(start) and not given(stop) then return 1, #s end
  local n = strings.length(s)
  local function place(v, default)
    if not given(v) then return default end
    local i = values.index(v, 'slice indices')
    return i < 0 and math.max(i + n, 0) or math.min(i, n + 1)
  end
  local first, last = place(start, 0), math.min(place(stop, n), n)
  if first > n then return nil end
  local from = strings.offset(s, first)
  return from + 1, last <= first and from or strings.offset(s, last - first, from)
end

-- Whether a part of a text has an end: of one text, or of any in a tuple.
local function has_end(name, at_start)
  return function(v, affix, start, stop)
    local s = text(v)
    local from, to = range_of(s, start, stop)
    local function one(a)
      if not strings.is(a) then
        raise('%s first arg must be str or a tuple of str, not %s', name, values.type_name(a))
      end
      local t = text(a)
      if not from or #t > to - from + 1 then return false end
      if at_start then return s:sub(from, from + #t - 1) == t end
      return s:sub(to - #t + 1, to) == t
    end
    if values.kind(affix) ~= 'tuple' then return one(affix) end
    for i = 1, affix.n do
      if one(affix[i]) then return true end
    end
    return false
  end
end

def('startswith', { 'prefix', 'start', 'end' }, has_end('startswith', true), 1)
def('endswith', { 'suffix', 'start', 'end' }, has_end('endswith', false), 1)

def('removeprefix', { 'prefix' }, function(v, prefix)
  local s, p = text(v), need_text(prefix, 'removeprefix() argument')
  return s:sub(1, #p) == p and sub(v, #p + 1, #s) or v
end, 1)

def('removesuffix', { 'suffix' }, function(v, suffix)
  local s, p = text(v), need_text(suffix, 'removesuffix() argument')
  return p ~= '' and s:sub(-#p) == p and sub(v, 1, #s - #p) or v
end, 1)

-- splitting --------------------------------------------------------------------------------------

local function limit_of(maxsplit)
  local n = maxsplit == nil and -1 or values.index(maxsplit, 'maxsplit')
  return n < 0 and math.huge or n
end

local function split_blanks(v, most)
  local s, list, n = text(v), {}, 0
  local i = strings.skip_blanks(s)
  while i <= #s do
    n = n + 1
    local stop = i
    if n > most then
      list[n] = sub(v, i, #s)
      break
    end
    while stop <= #s and strings.skip_blanks(s, stop) == stop do stop = stop + 1 end
    list[n] = sub(v, i, stop - 1)
    i = strings.skip_blanks(s, stop)
  end
  return values.list(list, n)
end

local function split_text(v, separator, most)
  local s, sep = text(v), need_text(separator, 'separator')
  if sep == '' then raise 'empty separator' end
  local list, n, i = {}, 0, 1
  while true do
    local from, to = strings.find(s, sep, i)
    if n >= most then from = nil end
    n = n + 1
    list[n] = sub(v, i, (from or #s + 1) - 1)
    if not from then break end
    i = to + 1
  end
  bounds.charge(n)
  return values.list(list, n)
end

def('split', { 'sep', 'maxsplit' }, function(v, sep, maxsplit)
  local most = limit_of(maxsplit)
  if given(sep) then return split_text(v, sep, most) end
  return split_blanks(v, most)
end)

-- The last place before byte `stop` (exclusive) at which a text stands, or nil.
local function find_back(s, part, from, stop)
  local last = part:byte(-1)
  for i = stop - 1, from + #part - 1, -1 do
    if s:byte(i) == last then
      bounds.charge(#part / 64)
      if s:sub(i - #part + 1, i) == part then return i - #part + 1 end
    end
  end
  return nil
end

local function reversed(list, n)
  local other = {}
  for i = 1, n do other[i] = list[n + 1 - i] end
  return values.list(other, n)
end

local function rsplit_text(v, separator, most)
  local s, sep = text(v), need_text(separator, 'separator')
  if sep == '' then raise 'empty separator' end
  local list, n, stop = {}, 0, #s + 1
  while true do
    local from = n < most and find_back(s, sep, 1, stop) or nil
    n = n + 1
    list[n] = sub(v, from and from + #sep or 1, stop - 1)
    if not from then break end
    stop = from
  end
  return reversed(list, n)
end

local function rsplit_blanks(v, most)
  local s, list, n = text(v), {}, 0
  local j = strings.skip_blanks_back(s)
  while j >= 1 do
    n = n + 1
    if n > most then
      list[n] = sub(v, 1, j)
      break
    end
    local from = j
    while from >= 1 and strings.skip_blanks_back(s, from) == from do from = from - 1 end
    list[n] = sub(v, from + 1, j)
    j = strings.skip_blanks_back(s, from)
  end
  return reversed(list, n)
end

def('rsplit', { 'sep', 'maxsplit' }, function(v, sep, maxsplit)
  local most = limit_of(maxsplit)
  if given(sep) then return rsplit_text(v, sep, most) end
  return rsplit_blanks(v, most)
end)

local line_ends = { '\r\n', '\n', '\r', '\v', '\f', '\28', '\29', '\30', '\194\133', '\226\128\168',
  '\226\128\169' }

-- The end of a line that begins at byte i, or nil.
local function line_end_at(s, i)
  for _, ending in ipairs(line_ends) do
    if s:sub(i, i + #ending - 1) == ending then return ending end
  end
  return nil
end

--- The lines of a text, a list of texts.
function M.lines(v, keep)
  local s, list, n, i, from = text(v), {}, 0, 1, 1
  while true do
    local at = s:find('[\n\r\v\f\28\29\30\194\226]', i)
    if not at then break end
    local ending = line_end_at(s, at)
    i = at + (ending and #ending or 1)
    if ending then
      n = n + 1
      list[n] = sub(v, from, keep and i - 1 or at - 1)
      from = i
    end
  end
  if from <= #s then
    n = n + 1
    list[n] = sub(v, from, #s)
  end
  bounds.charge(n)
  return values.list(list, n)
end

def('splitlines', { 'keepends' }, function(v, keep)
  return M.lines(v, values.flag(keep))
end)

local function parts_around(v, from, length, missing)
  local s = text(v)
  if not from then return values.tuple(missing, 3) end
  return values.tuple({ sub(v, 1, from - 1), sub(v, from, from + length - 1),
    sub(v, from + length, #s) }, 3)
end

def('partition', { 'sep' }, function(v, separator)
  local sep = need_text(separator, 'separator')
  if sep == '' then raise 'empty separator' end
  return parts_around(v, (strings.find(text(v), sep)), #sep, { v, '', '' })
end, 1)

def('rpartition', { 'sep' }, function(v, separator)
  local s, sep = text(v), need_text(separator, 'separator')
  if sep == '' then raise 'empty separator' end
  return parts_around(v, find_back(s, sep, 1, #s + 1), #sep, { '', '', v })
end, 1)

-- finding and replacing --------------------------------------------------------------------------

local function find(v, part, start, stop, back)
  local s, p = text(v), need_text(part, 'argument')
  local from, to = range_of(s, start, stop)
  if not from then return -1 end
  local at
  if back then
    at = p == '' and to + 1 or find_back(s, p, from, to + 1)
  else
    at = strings.find(s, p, from)
    if at and at + #p - 1 > to then at = nil end
  end
  return at and strings.index_of(s, at - 1) or -1
end

local function finder(back, must)
  return function(v, part, start, stop)
    local at = find(v, part, start, stop, back)
    if must and at < 0 then raise 'substring not found' end
    return at
  end
end

local where = { 'sub', 'start', 'end' }
def('find', where, finder(false, false), 1)
def('rfind', where, finder(true, false), 1)
def('index', where, finder(false, true), 1)
def('rindex', where, finder(true, true), 1)

def('count', where, function(v, part, start, stop)
  local s, p = text(v), need_text(part, 'argument')
  local from, to = range_of(s, start, stop)
  if not from then return 0 end
  s = s:sub(from, to)
  if p == '' then return strings.length(s) + 1 end
  local n, i = 0, 1
  while true do
    local a, b = strings.find(s, p, i)
    if not a then return n end
    n, i = n + 1, b + 1
  end
end, 1)

local function replace_nothing(v, new, most)
  local pieces, list = {}, strings.characters(v)
  for i = 1, #list + 1 do
    if i <= most then pieces[#pieces + 1] = new end
    pieces[#pieces + 1] = list[i]
  end
  return concat(pieces)
end

--- A text with another in place of each (or the first `count`) of a third.
function M.replace(v, old, new, count)
  local s, p = text(v), need_text(old, 'replace() argument 1')
  need_text(new, 'replace() argument 2')
  local most = limit_of(count)
  if p == '' then return replace_nothing(v, new, most) end
  local pieces, n, i = {}, 0, 1
  while n < most do
    local from, to = strings.find(s, p, i)
    if not from then break end
    n = n + 1
    pieces[2 * n - 1], pieces[2 * n] = sub(v, i, from - 1), new
    i = to + 1
  end
  if n == 0 then return v end
  bounds.charge(n)
  pieces[2 * n + 1] = sub(v, i, #s)
  return concat(pieces, 2 * n + 1)
end

def('replace', { 'old', 'new', 'count' }, M.replace, 2)

-- letters ----------------------------------------------------------------------------------------

def('upper', {}, function(v) return strings.map(v, characters.upper) end)
def('lower', {}, function(v) return strings.map(v, characters.lower) end)
def('casefold', {}, function(v)
  return strings.map(v, function(s) return (characters.lower(s):gsub('\195\159', 'ss')) end)
end)

--- The first character of a text by a function, the others in small letters.
function M.capitalize(v, first)
  local stop = strings.offset(text(v), 1)
  local low = strings.map(v, characters.lower)
  local skip = #characters.lower(text(v):sub(1, stop))
  return concat({ strings.map(sub(v, 1, stop), first), sub(low, skip + 1, #text(low)) }, 2)
end

def('capitalize', {}, function(v) return M.capitalize(v, characters.title_char) end)

local function is_cased(code)
  return characters.is_upper(code) or characters.is_lower(code) or characters.is_title(code)
end

-- Small letters for the character at byte `at` of a text: a sigma depends on what is around it.
local function lower_in(v, at)
  return function(c)
    return c == '\206\163' and characters.small_sigma(text(v), at) or characters.lower(c)
  end
end

def('title', {}, function(v)
  local pieces, inside, at = {}, false, 1
  for i, c in ipairs(strings.characters(v)) do
    local cased = is_cased(strings.code(text(c), 1))
    local change = inside and lower_in(v, at) or characters.title_char
    pieces[i] = cased and strings.map(c, change) or c
    inside, at = cased, at + #text(c)
  end
  return concat(pieces)
end)

def('swapcase', {}, function(v)
  local pieces, at = {}, 1
  for i, c in ipairs(strings.characters(v)) do
    local code = strings.code(text(c), 1)
    pieces[i] = characters.is_upper(code) and strings.map(c, lower_in(v, at)) or
      characters.is_lower(code) and strings.map(c, characters.upper) or c
    at = at + #text(c)
  end
  return concat(pieces)
end)

for name, is in sorted.pairs { isalpha = characters.is_alpha, isalnum = characters.is_alnum,
  isdigit = characters.is_digit, isdecimal = characters.is_decimal,
  isnumeric = characters.is_numeric } do
  def(name, {}, function(v) return characters.all(text(v), is) end)
end

def('isspace', {}, function(v) return text(v) ~= '' and strings.skip_blanks(text(v)) > #text(v) end)
def('isascii', {}, function(v) return strings.is_ascii(text(v)) end)
def('isprintable', {}, function(v)
  return text(v) == '' or characters.all(text(v), characters.is_printable)
end)
def('isidentifier', {}, function(v)
  return text(v):find '^[%a_\128-\255][%w_\128-\255]*$' ~= nil
end)

-- Whether a text has letters of a case and none of the other.
local function only_case(is, is_other)
  return function(v)
    local s, found, i = text(v), false, 1
    while i <= #s do
      local code, length = strings.code(s, i)
      if is_other(code) or characters.is_title(code) then return false end
      found = found or is(code)
      i = i + length
    end
    return found
  end
end

def('isupper', {}, only_case(characters.is_upper, characters.is_lower))
def('islower', {}, only_case(characters.is_lower, characters.is_upper))
def('istitle', {}, function(v)
  local s, inside, found, i = text(v), false, false, 1
  while i <= #s do
    local code, length = strings.code(s, i)
    local upper, lower = characters.is_upper(code) or characters.is_title(code),
      characters.is_lower(code)
    if upper and inside or lower and not inside then return false end
    inside, found = upper or lower, found or upper or lower
    i = i + length
  end
  return found
end)

-- width ------------------------------------------------------------------------------------------

local function padder(align)
  return function(v, width, fill)
    local f = fill == nil and ' ' or need_text(fill, 'The fill character')
    if strings.length(f) ~= 1 then
      raise 'The fill character must be exactly one character long'
    end
    return formatting.pad(v, values.index(width, 'width'), align, f)
  end
end

def('ljust', { 'width', 'fillchar' }, padder '<', 1)
def('rjust', { 'width', 'fillchar' }, padder '>', 1)

--- A text in the middle of a width. Python puts the odd blank to the left of an even width.
function M.center(v, width, fill)
  local missing = width - strings.length(text(v))
  if missing <= 0 then return v end
  bounds.charge_bytes(missing * #fill)
  local left = math.floor(missing / 2) + (missing % 2 == 1 and width % 2 == 1 and 1 or 0)
  return concat({ fill:rep(left), v, fill:rep(missing - left) }, 3)
end

def('center', { 'width', 'fillchar' }, function(v, width, fill)
  local f = fill == nil and ' ' or need_text(fill, 'The fill character')
  if strings.length(f) ~= 1 then raise 'The fill character must be exactly one character long' end
  return M.center(v, values.index(width, 'width'), f)
end, 1)

def('zfill', { 'width' }, function(v, width)
  local missing = values.index(width, 'width') - strings.length(text(v))
  if missing <= 0 then return v end
  bounds.charge_bytes(missing)
  local sign = text(v):find '^[+-]' and 1 or 0
  return concat({ sub(v, 1, sign), ('0'):rep(missing), sub(v, sign + 1, #text(v)) }, 3)
end, 1)

def('expandtabs', { 'tabsize' }, function(v, tabsize)
  local size = tabsize == nil and 8 or values.index(tabsize, 'tabsize')
  local pieces, column = {}, 0
  for i, c in ipairs(strings.characters(v)) do
    local plain = text(c)
    if plain == '\t' then
      local blanks = size > 0 and size - column % size or 0
      pieces[i], column = strings.rep(' ', blanks), column + blanks
    else
      pieces[i], column = c, (plain == '\n' or plain == '\r') and 0 or column + 1
    end
  end
  return concat(pieces)
end)

def('join', { 'iterable' }, function(v, iterable)
  local items, n = values.elements(iterable)
  local pieces = {}
  for i = 1, n do
    if not strings.is(items[i]) then
      raise('sequence item %d: expected str instance, %s found', i - 1, values.type_name(items[i]))
    end
    if i > 1 then pieces[#pieces + 1] = v end
    pieces[#pieces + 1] = items[i]
  end
  return concat(pieces)
end, 1)

for _, name in ipairs { 'encode', 'translate', 'maketrans' } do
  def(name, { 'a', 'b', 'c' }, function() raise('str.%s is not known here', name) end)
end

-- lists, dicts, numbers --------------------------------------------------------------------------

local function list_index(v, x, start, stop)
  local function place(i, default)
    if i == nil then return default end
    i = values.index(i, 'slice indices')
    return i < 0 and math.max(i + v.n, 0) or i
  end
  for i = place(start, 0) + 1, math.min(place(stop, v.n), v.n) do
    bounds.charge(1)
    if comparing.equal(v[i], x) then return i - 1 end
  end
  raise('%s is not in %s', text(printing.repr(x)), v.kind)
end

local function list_count(v, x)
  local n = 0
  for i = 1, v.n do
    bounds.charge(1)
    if comparing.equal(v[i], x) then n = n + 1 end
  end
  return n
end

local list_params = { 'value', 'start', 'stop' }
for _, kind in ipairs { 'list', 'tuple' } do
  M[kind].index = { name = 'index', params = list_params, call = list_index, required = 1 }
  M[kind].count = { name = 'count', params = { 'value' }, call = list_count, required = 1 }
end
M.list.copy = { name = 'copy', params = {}, call = values.new_list, required = 0 }

local function dict_keys(d)
  local keys = {}
  bounds.charge(d.n)
  for i = 1, d.n do keys[i] = values.dict_key(d, i) end
  return values.view('dict_keys', keys, d.n)
end

local function dict_values(d)
  local list = {}
  bounds.charge(d.n)
  for i = 1, d.n do list[i] = d.map[d.keys[i]] end
  return values.view('dict_values', list, d.n)
end

--- The keys and values of a dict, as pairs.
function M.items(d)
  local list = {}
  bounds.charge(d.n)
  for i = 1, d.n do
    list[i] = values.tuple({ values.dict_key(d, i), d.map[d.keys[i]] }, 2)
  end
  return values.view('dict_items', list, d.n)
end

M.dict.keys = { name = 'keys', params = {}, call = dict_keys, required = 0 }
M.dict.values = { name = 'values', params = {}, call = dict_values, required = 0 }
M.dict.items = { name = 'items', params = {}, call = M.items, required = 0 }
M.dict.copy = { name = 'copy', params = {}, call = values.dict_copy, required = 0 }
M.dict.get = { name = 'get', params = { 'key', 'default' }, required = 1,
  call = function(d, key, default)
    local v = values.dict_get(d, key)
    if v ~= nil then return v end
    if default == nil then return NONE end
    return default
  end }

local function range_place(v, x)
  local i = values.number(x) and (values.number(x) - v.start) / v.step
  return i and i % 1 == 0 and i >= 0 and i < v.n and i or nil
end

M.range.index = { name = 'index', params = { 'value' }, required = 1, call = function(v, x)
  return range_place(v, x) or raise('%s is not in range', text(printing.repr(x)))
end }
M.range.count = { name = 'count', params = { 'value' }, required = 1,
  call = function(v, x) return range_place(v, x) and 1 or 0 end }

M.float.is_integer = { name = 'is_integer', params = {}, required = 0,
  call = function(v) return v.x % 1 == 0 end }
M.int.bit_length = { name = 'bit_length', params = {}, required = 0,
  call = function(v)
    local n, x = 0, math.abs(tonumber(v))
    while x >= 1 do n, x = n + 1, x / 2 end
    return n
  end }

-- Those that would change a value, which the sandbox takes away.
M.unsafe = {
  list = { append = true, clear = true, pop = true, reverse = true, insert = true, sort = true,
    extend = true, remove = true },
  dict = { clear = true, pop = true, popitem = true, setdefault = true, update = true },
}

return M
