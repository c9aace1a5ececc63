--- Texts in lines of a width: wordwrap, as Python's textwrap breaks lines, and pprint.

local bounds = require 'moonstill.jinja.bounds'
local methods = require 'moonstill.jinja.methods'
local printing = require 'moonstill.jinja.printing'
local strings = require 'moonstill.jinja.strings'
local values = require 'moonstill.jinja.values'
local comparing = require 'moonstill.jinja.comparing'

local M = {}

local concat, text = strings.concat, strings.text

local BLANK = '[\t\n\v\f\r ]'

-- Where the piece that begins at byte i of a word ends: behind a hyphen between letters, or at the
-- word's end.
local function hyphen_end(word, i)
  local at = i
  while true do
    local _, stop = word:find('[%w_!"\'&.,?\128-\255][%-]+', at)
    if not stop then return #word end
    bounds.charge(1 + (stop - i) / 8)
    local letters = word:sub(i, stop):find '[%a_\128-\255][%a_\128-\255]%-$' or
      word:sub(i, stop):find '[%a_\128-\255]%-[%a_\128-\255]%-$'
    if letters and word:find('^[%a_\128-\255]%-?[%a_\128-\255]', stop + 1) then return stop end
    at = stop + 1
  end
end

-- A line as words and the blanks between them.
local function chunks_of(v, hyphens)
  local s, list, i = text(v), {}, 1
  while i <= #s do
    local is_blank = s:find('^' .. BLANK, i) ~= nil
    local stop = (s:find(is_blank and '[^\t\n\v\f\r ]' or BLANK, i) or #s + 1) - 1
    if is_blank or not hyphens then
      list[#list + 1] = strings.sub(v, i, stop)
    else
      local word, from = s:sub(i, stop), 1
      while from <= #word do
        local last = hyphen_end(word, from)
        list[#list + 1] = strings.sub(v, i + from - 1, i + last - 1)
        from = last + 1
      end
    end
    i = stop + 1
  end
  return list
end

local function is_blank(v) return strings.skip_blanks(text(v)) > #text(v) end
local function width_of(v) return strings.length(text(v)) end

-- The chunks of one line from `at` on, into `line`; returns the next chunk and the line's width.
local function fill(chunks, at, line, width)
  local used = 0
  while chunks[at] and used + width_of(chunks[at]) <= width do
    line[#line + 1] = chunks[at]
    used, at = used + width_of(chunks[at]), at + 1
  end
  return at, used
end

-- Puts as much of a word that is too long as there is room for.
local function break_word(chunks, at, line, room, hyphens)
  local chunk = chunks[at]
  local s = text(chunk)
  bounds.charge(1 + #s / 8)
  local stop = strings.offset(s, math.max(room, 1))
  if hyphens then
    local hyphen = s:sub(1, stop):match '^.*()%-'
    if hyphen and s:sub(1, hyphen - 1):find '[^-]' then stop = hyphen end
  end
  line[#line + 1] = strings.sub(chunk, 1, stop)
  chunks[at] = strings.sub(chunk, stop + 1, #s)
end

local function wrap_line(v, width, long, hyphens)
  local chunks, lines, at = chunks_of(v, hyphens), {}, 1
  while chunks[at] do
    local line, used = {}, nil
    bounds.charge(1)
    if #lines > 0 and is_blank(chunks[at]) then at = at + 1 end
    at, used = fill(chunks, at, line, width)
    if chunks[at] and width_of(chunks[at]) > width then
      if long then
        break_word(chunks, at, line, width - used, hyphens)
      elseif #line == 0 then
        line[1], at = chunks[at], at + 1
      end
    end
    if #line > 0 and is_blank(line[#line]) then line[#line] = nil end
    if #line > 0 then lines[#lines + 1] = concat(line) end
  end
  return lines
end

local function join(separator, list)
  return methods.str.join.call(separator, values.list(list, #list))
end

--- A text in lines of a width, with a text between them.
function M.wrap(v, width, long, wrapstring, hyphens)
  if width <= 0 then bounds.raise('invalid width %d (must be > 0)', width) end
  local lines, wrapped = methods.lines(v), {}
  for i = 1, lines.n do
    wrapped[i] = join(wrapstring, wrap_line(lines[i], width, long, hyphens))
  end
  return join(wrapstring, wrapped)
end

-- pprint -----------------------------------------------------------------------------------------

local function sorted_dict(v)
  local keys = {}
  for i = 1, v.n do keys[i] = values.dict_key(v, i) end
  local copy = values.dict()
  for _, place in ipairs(comparing.sorted_places(keys, v.n, false)) do
    values.dict_set(copy, keys[place], M.sorted(v.map[v.keys[place]]))
  end
  return copy
end

--- A value with all dicts in the order of their keys.
function M.sorted(v)
  local kind = values.kind(v)
  if kind == 'dict' then return sorted_dict(v) end
  if kind ~= 'list' and kind ~= 'tuple' then return v end
  local list = {}
  for i = 1, v.n do list[i] = M.sorted(v[i]) end
  return kind == 'list' and values.list(list, v.n) or values.tuple(list, v.n)
end

local brackets = { list = { '[', ']' }, tuple = { '(', ')' }, dict = { '{', '}' } }

local function pretty(pieces, v, indent, allowance)
  local rep, kind = printing.repr(v), values.kind(v)
  if width_of(rep) <= 80 - indent - allowance or not brackets[kind] or v.n == 0 then
    pieces[#pieces + 1] = rep
    return
  end
  pieces[#pieces + 1] = brackets[kind][1]
  for i = 1, v.n do
    if i > 1 then pieces[#pieces + 1] = ',\n' .. (' '):rep(indent + 1) end
    local left = i == v.n and allowance + 1 or 1
    if kind == 'dict' then
      local key = printing.repr(values.dict_key(v, i))
      pieces[#pieces + 1] = key
      pieces[#pieces + 1] = ': '
      pretty(pieces, v.map[v.keys[i]], indent + 3 + width_of(key), left)
    else
      pretty(pieces, v[i], indent + 1, left)
    end
  end
  pieces[#pieces + 1] = (kind == 'tuple' and v.n == 1 and ',' or '') .. brackets[kind][2]
end

--- A value over several lines where it is longer than one, keys of dicts in order.
function M.pretty(v)
  local pieces = {}
  pretty(pieces, M.sorted(v), 0, 0)
  return concat(pieces)
end

return M
