--- Values as texts: Python's str() and repr(), and JSON as transformers writes it.
---
--- Texts of the sample keep their origin inside of what is printed.

local ffi = require 'ffi'
local bounds = require 'moonstill.jinja.bounds'
local strings = require 'moonstill.jinja.strings'
local characters = require 'moonstill.jinja.characters'
local values = require 'moonstill.jinja.values'

local M = {}

local raise, concat = bounds.raise, strings.concat

-- numbers ----------------------------------------------------------------------------------------

-- The fewest digits that are this number again, as "d.ddde+dd".
local function shortest(x)
  for digits = math.abs(x) < 2.3e-308 and 0 or 14, 16 do
    local text = ('%.' .. digits .. 'e'):format(x)
    if tonumber(text) == x then return text end
  end
end

--- A float as Python's repr writes it.
--- @param x number
--- @return string
function M.float_text(x)
  if x ~= x then return 'nan' end
  if x == math.huge then return 'inf' end
  if x == -math.huge then return '-inf' end
  if x == 0 then return 1 / x < 0 and '-0.0' or '0.0' end
  local sign, first, rest, exponent = shortest(x):match '^(%-?)(%d)%.?(%d*)e([+-]%d+)$'
  local digits, e = (first .. rest):gsub('0+$', ''), tonumber(exponent)
  if digits == '' then digits = '0' end
  if e < -4 or e >= 16 then
    local tail = #digits > 1 and '.' .. digits:sub(2) or ''
    return ('%s%s%se%s%02d'):format(sign, digits:sub(1, 1), tail, e < 0 and '-' or '+', math.abs(e))
  end
  if e < 0 then return sign .. '0.' .. ('0'):rep(-e - 1) .. digits end
  if #digits <= e + 1 then return sign .. digits .. ('0'):rep(e + 1 - #digits) .. '.0' end
  return sign .. digits:sub(1, e + 1) .. '.' .. digits:sub(e + 2)
end

ffi.cdef 'int snprintf(char *, size_t, const char *, ...);'
local buffer = ffi.new 'char[1024]'

--- A number by a format of C: 'e', 'f' or 'g', with up to 400 digits. Lua's own format knows fewer,
--- and rounds a half upwards.
--- @param x number
--- @param type string
--- @param precision integer
function M.c_format(x, type, precision)
  local n = ffi.C.snprintf(buffer, 1024, '%.' .. precision .. type, ffi.cast('double', x))
  return (ffi.string(buffer, n):gsub(',', '.'))
end

--- An integer as text.
--- @return string
function M.integer_text(v)
  if type(v) == 'cdata' then return (tostring(v):gsub('LL$', '')) end
  return ('%.0f'):format(v)
end

-- repr -------------------------------------------------------------------------------------------

local short = { ['\n'] = '\\n', ['\r'] = '\\r', ['\t'] = '\\t', ['\\'] = '\\\\' }

local function escape_byte(c) return short[c] or ('\\x%02x'):format(c:byte()) end

local function escape_wide(c)
  local code, length = strings.code(c, 1)
  if characters.is_printable(code) and length == #c then return c end
  local form = code < 256 and '\\x%02x' or code < 65536 and '\\u%04x' or '\\U%08x'
  return form:format(code)
end

--- A text in quotes, as Python's repr writes it.
function M.quoted(v)
  if strings.is_markup(v) then return concat({ 'Markup(', M.quoted(strings.plain(v)), ')' }, 3) end
  local s = strings.text(v)
  local quote = s:find("'", 1, true) and not s:find('"', 1, true) and '"' or "'"
  local inner = strings.map(v, function(part)
    part = part:gsub('[%z\1-\31\127\\]', escape_byte)
    if quote == "'" then part = part:gsub("'", "\\'") end
    if not strings.is_ascii(part) then part = part:gsub('[\192-\255][\128-\191]*', escape_wide) end
    return part
  end)
  return concat({ quote, inner, quote }, 3)
end

local repr

-- Pieces of the elements, with commas.
local function list_pieces(v, open, close)
  local pieces = { open }
  for i = 1, v.n do
    if i > 1 then pieces[#pieces + 1] = ', ' end
    pieces[#pieces + 1] = repr(v[i])
  end
  pieces[#pieces + 1] = close
  return pieces
end

local function dict_pieces(v)
  local pieces = { '{' }
  for i = 1, v.n do
    if i > 1 then pieces[#pieces + 1] = ', ' end
    pieces[#pieces + 1] = repr(values.dict_key(v, i))
    pieces[#pieces + 1] = ': '
    pieces[#pieces + 1] = repr(v.map[v.keys[i]])
  end
  pieces[#pieces + 1] = '}'
  return pieces
end

local function range_text(v)
  local stop = v.stop
  if v.step == 1 then return ('range(%d, %d)'):format(v.start, stop) end
  return ('range(%d, %d, %d)'):format(v.start, stop, v.step)
end

local printers = {
  none = function() return 'None' end,
  undefined = function() return 'Undefined' end,
  float = function(v) return M.float_text(v.x) end,
  str = M.quoted,
  list = function(v) return concat(list_pieces(v, '[', ']')) end,
  tuple = function(v) return concat(list_pieces(v, '(', v.n == 1 and ',)' or ')')) end,
  view = function(v) return concat(list_pieces(v, v.name .. '([', '])')) end,
  dict = function(v) return concat(dict_pieces(v)) end,
  namespace = function(v) return concat { '<Namespace ', repr(v.attrs), '>' } end,
  range = range_text,
  macro = function(v) return concat { '<Macro ', v.name and repr(v.name) or 'anonymous', '>' } end,
  loop = function(v) return ('<LoopContext %d/%d>'):format(v.index0 + 1, v:length()) end,
  iterator = function(v) return '<' .. v.name .. ' object>' end,
  object = function(v) return '<' .. v.name .. ' object>' end,
  ['function'] = function(v) return '<function ' .. v.name .. '>' end,
  method = function(v)
    return ('<built-in method %s of %s object>'):format(v.name, values.type_name(v.self))
  end,
}

--- A value as Python's repr writes it.
function repr(v)
  local t = type(v)
  bounds.charge(1)
  if t == 'string' then return M.quoted(v) end
  if t == 'boolean' then return v and 'True' or 'False' end
  if t == 'number' or t == 'cdata' then return M.integer_text(v) end
  local depth = bounds.depth
  bounds.enter(bounds.MOST_NESTED, 'a value nested')
  local text = printers[v.kind](v)
  bounds.depth = depth
  return text
end
M.repr = repr

--- A value as Python's str writes it.
function M.str(v)
  if type(v) == 'string' then return v end
  if type(v) == 'table' then
    if v.kind == 'str' then return v end
    if v.kind == 'undefined' then return '' end
  end
  return repr(v)
end

-- JSON -------------------------------------------------------------------------------------------

local json_short = { ['"'] = '\\"', ['\\'] = '\\\\', ['\n'] = '\\n', ['\r'] = '\\r',
  ['\t'] = '\\t', ['\b'] = '\\b', ['\f'] = '\\f' }
local function json_escape(c) return json_short[c] or ('\\u%04x'):format(c:byte()) end

local function json_wide(c)
  local code = strings.code(c, 1)
  if code < 65536 then return ('\\u%04x'):format(code) end
  code = code - 65536
  return ('\\u%04x\\u%04x'):format(0xD800 + math.floor(code / 1024), 0xDC00 + code % 1024)
end

local function json_text(v) return (v:gsub('[%z\1-\31"\\]', json_escape)) end

local function json_ascii(v)
  return (json_text(v):gsub('\127', '\127'):gsub('[\192-\255][\128-\191]*', json_wide))
end

local function json_float(x)
  if x ~= x then return 'NaN' end
  if x == math.huge then return 'Infinity' end
  if x == -math.huge then return '-Infinity' end
  return M.float_text(x)
end

-- A key of an object: a text, or what JSON makes a text of.
local function json_key(v)
  local kind = values.kind(v)
  if kind == 'str' then return v end
  if kind == 'bool' then return v and 'true' or 'false' end
  if kind == 'none' then return 'null' end
  if kind == 'int' then return M.integer_text(v) end
  if kind == 'float' then return json_float(v.x) end
  raise('keys must be str, int, float, bool or None, not %s', values.type_name(v))
end

local write

-- Puts count parts between brackets; `part(i)` writes one.
local function write_list(w, open, close, count, part)
  if count == 0 then return w:put(open .. close) end
  w:put(open)
  w.depth = w.depth + 1
  local line = w.indent and '\n' .. w.indent:rep(w.depth)
  for i = 1, count do
    if i > 1 then w:put(w.comma) end
    if line then w:put(line) end
    part(i)
  end
  w.depth = w.depth - 1
  if line then w:put('\n' .. w.indent:rep(w.depth)) end
  w:put(close)
end

local function write_text(w, v)
  w:put '"'
  w:put(strings.map(v, w.escape))
  w:put '"'
end

local function sorted_order(v)
  local order = {}
  for i = 1, v.n do order[i] = i end
  bounds.charge(v.n)
  for i = 1, v.n do
    if values.kind(values.dict_key(v, i)) ~= values.kind(values.dict_key(v, 1)) then
      raise('sort_keys: keys of different types cannot be compared')
    end
  end
  table.sort(order, function(a, b) return v.keys[a] < v.keys[b] end)
  return order
end

local function write_dict(w, v)
  local order = w.sort_keys and sorted_order(v)
  write_list(w, '{', '}', v.n, function(i)
    i = order and order[i] or i
    write_text(w, json_key(values.dict_key(v, i)))
    w:put(w.colon)
    write(w, v.map[v.keys[i]])
  end)
end

local writers = {
  none = function(w) w:put 'null' end,
  bool = function(w, v) w:put(v and 'true' or 'false') end,
  int = function(w, v) w:put(M.integer_text(v)) end,
  float = function(w, v) w:put(json_float(v.x)) end,
  str = write_text,
  list = function(w, v) write_list(w, '[', ']', v.n, function(i) write(w, v[i]) end) end,
  dict = write_dict,
}
writers.tuple = writers.list

function write(w, v)
  local writer = writers[values.kind(v)]
  if not writer then
    raise('Object of type %s is not JSON serializable', values.type_name(v))
  end
  bounds.charge(1)
  local depth = bounds.depth
  bounds.enter(bounds.MOST_NESTED, 'a value nested')
  writer(w, v)
  bounds.depth = depth
end

local Writer = {}
Writer.__index = Writer
function Writer:put(piece)
  self.n = self.n + 1
  self[self.n] = piece
  self.bytes = self.bytes + #strings.text(piece)
  if self.bytes > bounds.MOST_BYTES then bounds.charge_bytes(self.bytes) end
end

--- A value as JSON. Options: indent (a text for each level, or nil), comma, colon, ascii,
--- sort_keys.
--- @param o table
function M.json(v, o)
  local w = setmetatable({ n = 0, depth = 0, bytes = 0, indent = o.indent, colon = o.colon or ': ',
    comma = o.comma or (o.indent and ',' or ', '), sort_keys = o.sort_keys,
    escape = o.ascii and json_ascii or json_text }, Writer)
  write(w, v)
  return concat(w, w.n)
end

return M
