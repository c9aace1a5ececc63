--- The tokens of a template: data between the tags, and what stands in them.
---
--- Every token has a type (of operators their name), a value, and the byte of the source at which
--- it begins. The source is what Jinja makes of the text first: lines end in "\n", and one line end
--- at the end is left out.

local bounds = require 'moonstill.jinja.bounds'
local strings = require 'moonstill.jinja.strings'
local values = require 'moonstill.jinja.values'
local ffi = require 'ffi'

local M = {}

local function fail(at, format, ...)
  bounds.at = at
  bounds.raise(format, ...)
end

-- The names of operators. Those of two signs are looked for first.
local operators = { ['+'] = 'add', ['-'] = 'sub', ['/'] = 'div', ['//'] = 'floordiv', ['*'] = 'mul',
  ['%'] = 'mod', ['**'] = 'pow', ['~'] = 'tilde', ['['] = 'lbracket', [']'] = 'rbracket',
  ['('] = 'lparen', [')'] = 'rparen', ['{'] = 'lbrace', ['}'] = 'rbrace', ['=='] = 'eq',
  ['!='] = 'ne', ['>'] = 'gt', ['>='] = 'gteq', ['<'] = 'lt', ['<='] = 'lteq', ['='] = 'assign',
  ['.'] = 'dot', [':'] = 'colon', ['|'] = 'pipe', [','] = 'comma', [';'] = 'semicolon' }
local closes = { ['('] = ')', ['['] = ']', ['{'] = '}' }

-- numbers and texts ------------------------------------------------------------------------------

local bases = { b = { '01', 2 }, o = { '0-7', 8 }, x = { '%da-fA-F', 16 } }

-- Where digits with single underscores between them end; nil if none begin at `at`.
local function digits_end(s, at, class)
  local stop = nil
  local one = '^_?[' .. class .. ']+'
  local _, to = s:find('^[' .. class .. ']+', at)
  while to do
    stop = to
    _, to = s:find(one, stop + 1)
  end
  return stop
end

-- The value of digits in a base: exact up to 64 bits.
local function integer_of(digits, base, at)
  digits = digits:gsub('^0+', '')
  if #digits <= 15 and base <= 10 then return tonumber(digits, base) or 0 end
  local value, most = ffi.new 'uint64_t', ffi.new('uint64_t', 9223372036854775807ULL)
  for i = 1, #digits do
    local digit = tonumber(digits:sub(i, i), 16)
    if value > (most - digit) / base then fail(at, 'an integer beyond 64 bits') end
    value = value * base + digit
  end
  return values.integer(ffi.cast('int64_t', value))
end

-- A float that begins at `at`: its end, or nil.
local function float_end(s, at)
  if s:sub(at - 1, at - 1) == '.' then return nil end
  local stop = digits_end(s, at, '%d')
  if not stop then return nil end
  local fraction = s:sub(stop + 1, stop + 1) == '.' and digits_end(s, stop + 2, '%d')
  local last = fraction or stop
  local _, sign = s:find('^[eE][+-]?', last + 1)
  local exponent = sign and digits_end(s, sign + 1, '%d')
  return exponent or fraction or nil
end

-- A number that begins at `at`: its end, type and value; nil if none does.
local function number_at(s, at)
  local stop = float_end(s, at)
  if stop then
    local text = s:sub(at, stop):gsub('_', '')
    return stop, 'float', values.float(tonumber(text))
  end
  local base = bases[s:match('^0([box])', at) or s:match('^0([BOX])', at) and
    s:sub(at + 1, at + 1):lower()]
  if base then
    stop = digits_end(s, s:sub(at + 2, at + 2) == '_' and at + 3 or at + 2, base[1])
    if stop then
      local text = s:sub(at + 2, stop):gsub('_', '')
      return stop, 'integer', integer_of(text, base[2], at)
    end
  end
  stop = digits_end(s, at, s:sub(at, at) == '0' and '0' or '%d')
  local text = s:sub(at, stop):gsub('_', '')
  return stop, 'integer', integer_of(text, 10, at)
end

local escapes = { n = '\n', t = '\t', r = '\r', ['\\'] = '\\', ["'"] = "'", ['"'] = '"', a = '\a',
  b = '\b', f = '\f', v = '\v', ['\n'] = '' }
local widths = { x = 2, u = 4, U = 8 }

local function escaped_char(s, i, at)
  local width = widths[s:sub(i, i)]
  local hex = s:match('^%x+', i + 1) or ''
  if #hex < width then fail(at, 'a \\%s in a text needs %d digits', s:sub(i, i), width) end
  local c = tonumber(hex:sub(1, width), 16)
  if c > 0x10FFFF or c >= 0xD800 and c < 0xE000 then
    fail(at, '\\%s%s in a text is no character', s:sub(i, i), hex:sub(1, width))
  end
  return strings.char(c), i + 1 + width
end

-- What a text between quotes stands for.
local function unescape(s, at)
  if not s:find('\\', 1, true) then return s end
  local parts, i = {}, 1
  while true do
    local stop = s:find('\\', i, true)
    parts[#parts + 1] = s:sub(i, (stop or 0) - 1)
    if not stop then break end
    i = stop + 1
    local c = s:sub(i, i)
    local octal = s:match('^[0-7][0-7]?[0-7]?', i)
    if escapes[c] then
      parts[#parts + 1], i = escapes[c], i + 1
    elseif octal then
      parts[#parts + 1], i = strings.char(tonumber(octal, 8)), i + #octal
    elseif widths[c] then
      parts[#parts + 1], i = escaped_char(s, i, at)
    elseif c == 'N' then
      fail(at, '\\N in a text: characters by name are not known')
    else
      parts[#parts + 1] = '\\'
    end
  end
  return table.concat(parts)
end

-- A text in quotes that begins at `at`: where it ends, and what it stands for.
local function string_at(s, at)
  local quote, i = s:sub(at, at), at + 1
  while true do
    local stop = s:find('[\\' .. quote .. ']', i)
    if not stop then return nil end
    if s:sub(stop, stop) == quote then return stop, unescape(s:sub(at + 1, stop - 1), at) end
    i = stop + 2
  end
end

-- tags -------------------------------------------------------------------------------------------

-- What follows the end of a tag: blanks after "-", one line end after a block with trim_blocks.
local function after_end(self, sign, last, block)
  if sign == '-' then return strings.skip_blanks(self.source, last + 1) end
  local trims = block and sign ~= '+' and self.trim_blocks
  return trims and self.source:sub(last + 1, last + 1) == '\n' and last + 2 or last + 1
end

local function add(self, type, value, at)
  local n = self.count + 1
  self.count = n
  self.types[n], self.values[n], self.at[n] = type, value, at
end

-- The end of a tag at `at`: the byte after it and what it trims; nil if it does not end there.
local function tag_end(self, at, close)
  local sign, last = self.source:match('^([-+]?)' .. (close == '}}' and '}}' or '%%}') .. '()', at)
  if not sign or sign == '+' and close == '}}' then return nil end
  return after_end(self, sign, last - 1, close == '%}')
end

local function bracket(self, sign, at)
  local open = self.open
  if closes[sign] then
    open[#open + 1] = closes[sign]
  elseif sign == ')' or sign == ']' or sign == '}' then
    local want = table.remove(open)
    if not want then fail(at, "unexpected '%s'", sign) end
    if want ~= sign then fail(at, "unexpected '%s', expected '%s'", sign, want) end
  end
end

local function operator(self, at)
  local s = self.source
  local sign = s:sub(at, at + 1)
  if not operators[sign] then sign = s:sub(at, at) end
  if not operators[sign] then
    local _, length = strings.code(s, at)
    fail(at, "unexpected character '%s'", s:sub(at, at + length - 1))
  end
  bracket(self, sign, at)
  add(self, operators[sign], sign, at)
  return at + #sign
end

-- One token inside a tag; returns the byte after it.
local function token(self, at)
  local s = self.source
  local c = s:sub(at, at)
  if c:find '%d' then
    local stop, type, value = number_at(s, at)
    add(self, type, value, at)
    return stop + 1
  end
  local stop = select(2, s:find('^[%a_\128-\255][%w_\128-\255]*', at))
  if stop then
    local name = s:sub(at, stop)
    self.words[name] = true
    add(self, 'name', name, at)
    return stop + 1
  end
  if c == '"' or c == "'" then
    local last, value = string_at(s, at)
    if last then
      self.words[value] = true
      add(self, 'string', value, at)
      return last + 1
    end
  end
  return operator(self, at)
end

-- The tokens of a tag, up to and with its end; returns the byte after it.
local function tag(self, at, close)
  local s = self.source
  self.open = {}
  while true do
    local after = #self.open == 0 and tag_end(self, at, close)
    if after then
      add(self, close == '}}' and 'variable_end' or 'block_end', close, at)
      return after
    end
    local next_at = strings.skip_blanks(s, at)
    if next_at > #s then
      if next_at == at then return at end
    elseif next_at == at then
      next_at = token(self, at)
    end
    at = next_at
  end
end

-- data -------------------------------------------------------------------------------------------

-- Data before a tag with its sign: without the blanks that the sign, or lstrip_blocks, takes.
local function data(self, from, to, sign, is_variable)
  local s = self.source
  if sign == '-' then
    to = math.max(strings.skip_blanks_back(s:sub(from, to)) + from - 1, from - 1)
  elseif sign ~= '+' and self.lstrip_blocks and not is_variable then
    local text = s:sub(from, to)
    local line = text:match '^.*()\n'
    if (line or self.line_starts) and strings.skip_blanks(text, (line or 0) + 1) > #text then
      to = from + (line or 0) - 1
    end
  end
  if to >= from then add(self, 'data', s:sub(from, to), from) end
end

local function comment(self, at)
  local stop = self.source:find('#}', at, true)
  if not stop then fail(at, 'Missing end of comment tag') end
  local sign = stop > at and self.source:sub(stop - 1, stop - 1) or ''
  return after_end(self, sign:match '[-+]' or '', stop + 1, true)
end

-- The text of a raw block, which begins at `at`.
local function raw(self, at)
  local s = self.source
  local from, sign, _, ending, last = nil, nil, nil, nil, nil
  local next_at = at
  repeat
    from = s:find('{%', next_at, true)
    if not from then fail(at, 'Missing end of raw directive') end
    next_at = from + 2
    sign = s:match('^[-+]?', next_at)
    local word = strings.skip_blanks(s, next_at + #sign)
    if s:sub(word, word + 5) == 'endraw' then
      ending, last = s:match('^([-+]?)%%}()', strings.skip_blanks(s, word + 6))
    end
  until ending
  data(self, at, from - 1, sign, false)
  return after_end(self, ending, last - 1, true)
end

-- The end of "{% raw %}" that begins at `at`, where the sign has been read; nil if it is none.
local function raw_begin(self, at)
  local s = self.source
  local word = strings.skip_blanks(s, at)
  if s:sub(word, word + 2) ~= 'raw' then return nil end
  local sign, last = s:match('^(%-?)%%}()', strings.skip_blanks(s, word + 3))
  if not sign then return nil end
  return sign == '-' and strings.skip_blanks(s, last) or last
end

local function one_tag(self, kind, at, after)
  if kind == '#' then return comment(self, after) end
  if kind == '{' then
    add(self, 'variable_begin', '{{', at)
    return tag(self, after, '}}')
  end
  local text = raw_begin(self, after)
  if text then
    self.line_starts = self.source:sub(text - 1, text - 1) == '\n'
    return raw(self, text)
  end
  add(self, 'block_begin', '{%', at)
  return tag(self, after, '%}')
end

local function prepare(source)
  source = source:gsub('\r\n', '\n'):gsub('\r', '\n')
  return source:sub(-1) == '\n' and source:sub(1, -2) or source
end

--- The tokens of a template: { source, types, values, at, count, words }; the last one is 'eof'.
--- `words` holds all identifiers and texts that stand in tags.
--- @param source string
--- @param options { trim_blocks: boolean, lstrip_blocks: boolean }
function M.read(source, options)
  local self = { source = prepare(source), types = {}, values = {}, at = {}, count = 0, words = {},
    trim_blocks = options.trim_blocks, lstrip_blocks = options.lstrip_blocks, line_starts = true }
  local s, at = self.source, 1
  while at <= #s do
    local from = s:find('{[%%{#]', at)
    if not from then
      add(self, 'data', s:sub(at), at)
      break
    end
    local kind = s:sub(from + 1, from + 1)
    local sign = s:match('^[-+]?', from + 2)
    data(self, at, from - 1, sign, kind == '{')
    at = one_tag(self, kind, from, from + 2 + #sign)
    self.line_starts = s:sub(at - 1, at - 1) == '\n'
  end
  add(self, 'eof', '', #s + 1)
  return self
end

return M
