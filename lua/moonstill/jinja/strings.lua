--- Texts that know where they came from.
---
--- A text of the template is a Lua string. One that holds anything of the sample is a table:
---   { kind = 'str', s = text, src = number }                all of it is from one source
---   { kind = 'str', s = text, spans = { from, to, source, ... } }    0-based, half open, ascending
--- and one that is marked as HTML, which `html` says and only `markup` makes (markup.lua).
--- All changes are made of `sub` and `concat`, which keep the origin; `map` changes each part by
--- itself. What has no origin left is a Lua string again.

local ffi = require 'ffi'
local bounds = require 'moonstill.jinja.bounds'

local M = {}

local byte = string.byte

--- A text that is from one source as a whole.
--- @param s string
--- @param source integer
function M.new(s, source)
  if s == '' then return s end
  return { kind = 'str', s = s, src = source }
end

--- Whether a value is a text.
--- @param v any
--- @return boolean
function M.is(v) return type(v) == 'string' or type(v) == 'table' and v.kind == 'str' end

--- The plain text of a text.
--- @return string
function M.text(v) return type(v) == 'string' and v or v.s end

-- The simplest form of a text with these spans.
local function made(s, spans)
  local n = #spans
  if n == 0 then return s end
  if n == 3 and spans[1] == 0 and spans[2] == #s then
    return { kind = 'str', s = s, src = spans[3] }
  end
  return { kind = 'str', s = s, spans = spans }
end

-- Adds a span behind the others; one that goes on with the last one's source makes that longer.
local function add_span(spans, from, to, source)
  local n = #spans
  if n > 0 and spans[n - 1] == from and spans[n] == source then
    spans[n - 1] = to
  else
    spans[n + 1], spans[n + 2], spans[n + 3] = from, to, source
  end
end

--- The bytes i to j of a text, 1-based and with both ends, as string.sub for positive numbers.
function M.sub(v, i, j)
  if type(v) == 'string' then return v:sub(i, j) end
  local s = v.s:sub(i, j)
  if #s == #v.s then return v end
  if v.src or s == '' then return M.new(s, v.src) end
  local spans, low, high = {}, i - 1, i - 1 + #s
  local old = v.spans
  bounds.charge(1 + #old / 48)
  for k = 1, #old, 3 do
    local from, to = math.max(old[k], low), math.min(old[k + 1], high)
    if from < to then add_span(spans, from - low, to - low, old[k + 2]) end
  end
  return made(s, spans)
end

-- Adds the spans of a text that begins at `at`.
local function add_spans(spans, v, at)
  if v.src then return add_span(spans, at, at + #v.s, v.src) end
  local old = v.spans
  for k = 1, #old, 3 do add_span(spans, at + old[k], at + old[k + 1], old[k + 2]) end
end

--- Joins the pieces 1 to n. The list is not changed.
--- @param pieces any[] texts
--- @param n? integer
function M.concat(pieces, n)
  n = n or #pieces
  local plain, spans, at = nil, nil, 0
  for i = 1, n do
    local piece = pieces[i]
    if type(piece) == 'string' then
      at = at + #piece
      if plain then plain[i] = piece end
    else
      if not plain then
        plain, spans = {}, {}
        for k = 1, i - 1 do plain[k] = pieces[k] end
      end
      plain[i] = piece.s
      add_spans(spans, piece, at)
      at = at + #piece.s
    end
  end
  bounds.charge_bytes(at)
  if not plain then return table.concat(pieces, '', 1, n) end
  return made(table.concat(plain, '', 1, n), spans)
end

--- Joins two texts, as `+` does: where one is marked as HTML, the other is escaped.
function M.join2(a, b)
  if type(a) == 'string' and type(b) == 'string' then
    bounds.charge_bytes(#a + #b)
    return a .. b
  end
  if M.is_markup(a) or M.is_markup(b) then
    return M.markup(M.concat({ M.escape(a), M.escape(b) }, 2))
  end
  return M.concat({ a, b }, 2)
end

--- The pieces of a text that have one origin each: function(piece, source or nil).
local function each_part(v, visit)
  local spans, at = v.spans, 0
  for k = 1, #spans, 3 do
    if spans[k] > at then visit(v.s:sub(at + 1, spans[k]), nil) end
    visit(v.s:sub(spans[k] + 1, spans[k + 1]), spans[k + 2])
    at = spans[k + 1]
  end
  if at < #v.s then visit(v.s:sub(at + 1), nil) end
end

--- A text changed by a function of plain texts, each part with an origin of its own by itself.
--- @param change fun(s: string): string
function M.map(v, change)
  if type(v) == 'string' then return change(v) end
  if v.src then return M.new(change(v.s), v.src) end
  local pieces = {}
  each_part(v, function(s, source)
    s = change(s)
    pieces[#pieces + 1] = source and M.new(s, source) or s
  end)
  return M.concat(pieces)
end

--- Repeats a text.
function M.rep(v, n)
  local s = M.text(v)
  if n <= 0 or s == '' then return M.like(v, '') end
  bounds.charge_bytes(#s * n)
  if type(v) == 'string' then return v:rep(n) end
  if v.src then return M.like(v, M.new(s:rep(n), v.src)) end
  local pieces = {}
  for i = 1, n do pieces[i] = v end
  bounds.charge(n)
  return M.like(v, M.concat(pieces, n))
end

-- HTML -------------------------------------------------------------------------------------------

--- Whether a value is a text that is marked as HTML.
function M.is_markup(v) return type(v) == 'table' and v.html == true end

--- A text, marked as HTML.
function M.markup(v)
  if type(v) == 'string' then return { kind = 'str', s = v, spans = {}, html = true } end
  return { kind = 'str', s = v.s, src = v.src, spans = v.spans, html = true }
end

--- A text without that mark.
function M.plain(v)
  if not M.is_markup(v) then return v end
  if v.src then return M.new(v.s, v.src) end
  return made(v.s, v.spans)
end

--- A text that was made of another: marked if that is.
function M.like(model, v)
  if M.is_markup(model) then return M.markup(v) end
  return v
end

local html = { ['&'] = '&amp;', ['<'] = '&lt;', ['>'] = '&gt;', ["'"] = '&#39;', ['"'] = '&#34;' }
local function escape_plain(s) return (s:gsub('[&<>\'"]', html)) end

--- A text as HTML; what is marked as that stays as it is.
function M.escape(v)
  if M.is_markup(v) then return v end
  return M.markup(M.map(v, escape_plain))
end

ffi.cdef 'void *memmem(const void *, size_t, const void *, size_t);'

--- Where a plain text stands in another, from byte `from` on, as string.find: but of a long one in
--- time that grows with the sum of their lengths, not with the product.
--- @param s string
--- @param part string
--- @param from? integer
--- @return integer?, integer?
function M.find(s, part, from)
  from = from or 1
  if #part <= 16 then return s:find(part, from, true) end
  if from - 1 + #part > #s then return nil end
  local base = ffi.cast('const char *', s)
  local found = ffi.C.memmem(base + (from - 1), #s - from + 1, part, #part)
  if found == nil then return nil end
  local at = tonumber(ffi.cast('const char *', found) - base) + 1
  return at, at + #part - 1
end

-- characters -------------------------------------------------------------------------------------

--- Whether a plain text holds nothing but ASCII, where bytes are characters.
--- @param s string
function M.is_ascii(s) return not s:find '[\128-\255]' end

-- Bytes that begin no character: 10xxxxxx.
local function is_inside(b) return b >= 128 and b < 192 end

--- The number of characters of a plain text.
--- @param s string
--- @return integer
function M.length(s)
  if M.is_ascii(s) then return #s end
  local p, n = ffi.cast('const uint8_t *', s), 0
  for i = 0, #s - 1 do
    if not is_inside(p[i]) then n = n + 1 end
  end
  return n
end

--- The byte (0-based) at which character `index` (0-based) of a plain text begins; for the number
--- of characters, the end.
--- @param s string
--- @param index integer
--- @param from? integer a byte that begins a character, to count from
--- @return integer
function M.offset(s, index, from)
  local p, n, i = ffi.cast('const uint8_t *', s), #s, from or 0
  while index > 0 and i < n do
    i = i + 1
    while i < n and is_inside(p[i]) do i = i + 1 end
    index = index - 1
  end
  return i
end

--- The number of characters before byte `at` (0-based).
--- @return integer
function M.index_of(s, at) return M.length(s:sub(1, at)) end

--- The code point of the character that begins at byte i (1-based), and its length in bytes. Bytes
--- that are no UTF-8 stand for themselves.
--- @param s string
--- @param i integer
function M.code(s, i)
  local a, b, c, d = byte(s, i, i + 3)
  if a < 0xC0 or not b then return a, 1 end
  if a < 0xE0 then return (a - 0xC0) * 64 + b - 128, 2 end
  if not c then return a, 1 end
  if a < 0xF0 then return (a - 0xE0) * 4096 + (b - 128) * 64 + c - 128, 3 end
  if not d then return a, 1 end
  return (a - 0xF0) * 262144 + (b - 128) * 4096 + (c - 128) * 64 + d - 128, 4
end

--- A code point as UTF-8.
--- @param c integer
--- @return string
function M.char(c)
  local char, floor = string.char, math.floor
  if c < 0x80 then return char(c) end
  if c < 0x800 then return char(0xC0 + floor(c / 64), 128 + c % 64) end
  local last = 128 + c % 64
  local next_last = 128 + floor(c / 64) % 64
  if c < 0x10000 then return char(0xE0 + floor(c / 4096), next_last, last) end
  return char(0xF0 + floor(c / 262144), 128 + floor(c / 4096) % 64, next_last, last)
end

--- The characters of a text, as texts.
--- @return any[]
function M.characters(v)
  v = M.plain(v)
  local s, list = M.text(v), {}
  bounds.charge(#s)
  local i, n = 1, 0
  while i <= #s do
    local stop = i
    while stop < #s and is_inside(byte(s, stop + 1)) do stop = stop + 1 end
    n = n + 1
    list[n] = M.sub(v, i, stop)
    i = stop + 1
  end
  return list
end

-- blanks -----------------------------------------------------------------------------------------

local blank = {} -- what Python calls a space, as UTF-8
for _, c in ipairs { 9, 10, 11, 12, 13, 28, 29, 30, 31, 32, 0x85, 0xA0, 0x1680, 0x2028, 0x2029,
  0x202F, 0x205F, 0x3000 } do blank[M.char(c)] = true end
for c = 0x2000, 0x200A do blank[M.char(c)] = true end

--- Whether a character is a space.
--- @param c string
function M.is_blank(c) return blank[c] == true end

-- The blank that begins at byte i: its length, or nil.
local function blank_at(s, i)
  local b = byte(s, i)
  if b < 128 then return (b == 32 or b >= 9 and b <= 13 or b >= 28 and b <= 31) and 1 or nil end
  if b == 0xC2 then return blank[s:sub(i, i + 1)] and 2 or nil end
  if b >= 0xE1 and b <= 0xE3 then return blank[s:sub(i, i + 2)] and 3 or nil end
  return nil
end

-- The blank that ends at byte j: its length, or nil.
local function blank_before(s, j)
  local b = byte(s, j)
  if b < 128 then return blank_at(s, j) end
  for length = 2, 3 do
    if j >= length and blank[s:sub(j - length + 1, j)] then return length end
  end
  return nil
end

--- The first byte of a plain text, from i on, that is no blank; #s + 1 if there is none.
--- @param s string
--- @param i? integer
--- @return integer
function M.skip_blanks(s, i)
  i = i or 1
  while i <= #s do
    local length = blank_at(s, i)
    if not length then return i end
    i = i + length
  end
  return i
end

--- The last byte of a plain text, from j downwards, that is no blank; 0 if there is none.
--- @param s string
--- @param j? integer
--- @return integer
function M.skip_blanks_back(s, j)
  j = j or #s
  while j >= 1 do
    local length = blank_before(s, j)
    if not length then return j end
    j = j - length
  end
  return 0
end

return M
