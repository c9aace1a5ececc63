--- Values put into texts: "%s" % x, and the format specs of str.format.

local bounds = require 'moonstill.jinja.bounds'
local arithmetic = require 'moonstill.jinja.arithmetic'
local markup = require 'moonstill.jinja.markup'
local printing = require 'moonstill.jinja.printing'
local strings = require 'moonstill.jinja.strings'
local values = require 'moonstill.jinja.values'

local M = {}

local raise, concat = bounds.raise, strings.concat

-- Pads a text to a width in characters. align: '<', '>', '^'.
local function pad(v, width, align, fill)
  local missing = width - strings.length(strings.text(v))
  if missing <= 0 then return v end
  bounds.charge_bytes(missing * #fill)
  local left = align == '>' and missing or align == '^' and math.floor(missing / 2) or 0
  return concat({ fill:rep(left), v, fill:rep(missing - left) }, 3)
end
M.pad = pad

-- numbers ----------------------------------------------------------------------------------------

local bases = { o = 8, x = 16, X = 16, b = 2 }
local prefixes = { o = '0o', x = '0x', X = '0X', b = '0b' }

-- The digits of an integer's size in a base.
local function digits_of(v, base)
  if base == 10 then return (printing.integer_text(v):gsub('^-', '')) end
  local rest = type(v) == 'number' and math.abs(v) or v
  if type(v) == 'cdata' and v < 0 then rest = -v end
  if rest == 0 then return '0' end
  local parts = {}
  while rest ~= 0 do
    local digit = tonumber(rest % base)
    table.insert(parts, 1, ('0123456789abcdef'):sub(digit + 1, digit + 1))
    rest = (rest - digit) / base
  end
  return table.concat(parts)
end

-- A float's size with a type of C's: e, f, g. Python writes two digits of exponents at least, too.
local function float_digits(x, type, precision, alternate)
  x = math.abs(x)
  if x ~= x then return type:find '%u' and 'NAN' or 'nan' end
  if x == math.huge then return type:find '%u' and 'INF' or 'inf' end
  if precision > 400 then raise('a precision of %d digits; the limit is 400', precision) end
  local low = type == 'F' and 'f' or type
  local text = printing.c_format(x, low, precision)
  if alternate and not text:find('.', 1, true) then text = text:gsub('^%d+', '%0.') end
  return text
end

local function sign_of(negative, sign)
  if negative then return '-' end
  return sign == '+' and '+' or sign == ' ' and ' ' or ''
end

-- "%..." % x -------------------------------------------------------------------------------------

local function as_real(v, type)
  local x = values.number(v)
  if x then return x end
  raise('%%%s format: a real number is required, not %s', type, values.type_name(v))
end

-- The integer of %d and its like; floats lose their fraction for %d.
local function as_whole(v, type)
  local i = values.as_integer(v)
  if i then return i end
  if values.kind(v) == 'float' and not bases[type] then
    if v.x - v.x ~= 0 then raise('cannot convert float infinity or NaN to integer') end
    return values.whole(v.x < 0 and math.ceil(v.x) or math.floor(v.x))
  end
  local what = bases[type] and 'an integer is required' or 'a real number is required'
  raise('%%%s format: %s, not %s', type, what, values.type_name(v))
end

local function is_negative(v) return v < 0 end

local function percent_integer(f, v)
  local i = as_whole(v, f.type)
  local digits = digits_of(i, bases[f.type] or 10)
  if f.type == 'X' then digits = digits:upper() end
  if f.precision then
    bounds.charge_bytes(f.precision)
    digits = ('0'):rep(f.precision - #digits) .. digits
  end
  local prefix = f.flags:find('#', 1, true) and prefixes[f.type] or ''
  return sign_of(is_negative(i), f.sign) .. prefix, digits
end

local function percent_float(f, v)
  local x = as_real(v, f.type)
  local negative = x < 0 or x == 0 and 1 / x < 0
  local alternate = f.flags:find('#', 1, true) ~= nil
  return sign_of(negative, f.sign), float_digits(x, f.type, f.precision or 6, alternate)
end

local function percent_text(f, v)
  local text
  if f.type == 'c' then
    if strings.is(v) and strings.length(strings.text(v)) == 1 then
      text = v
    else
      local code = values.as_integer(v)
      if not code then raise('%%c requires int or char') end
      text = strings.char(tonumber(code))
    end
  else
    text = f.type == 's' and printing.str(v) or printing.repr(v)
  end
  if f.precision then
    local s = strings.text(text)
    text = strings.sub(text, 1, strings.offset(s, f.precision))
  end
  return text
end

local kinds = { s = 'text', r = 'text', a = 'text', c = 'text', d = 'integer', i = 'integer',
  u = 'integer', o = 'integer', x = 'integer', X = 'integer', e = 'float', E = 'float', f = 'float',
  F = 'float', g = 'float', G = 'float' }

local function percent_one(f, v)
  local left = f.flags:find('-', 1, true)
  local kind = kinds[f.type]
  if kind == 'text' then return pad(percent_text(f, v), f.width, left and '<' or '>', ' ') end
  local sign, digits
  if kind == 'integer' then sign, digits = percent_integer(f, v) end
  if kind == 'float' then sign, digits = percent_float(f, v) end
  if f.flags:find('0', 1, true) and not left then
    digits = pad(digits, f.width - #sign, '>', '0')
  end
  return pad(sign .. digits, f.width, left and '<' or '>', ' ')
end

-- Reads one conversion behind "%" at byte i: its parts, and the byte after it.
local function read_conversion(s, i, take)
  local f = { flags = '', width = 0 }
  if s:sub(i, i) == '(' then
    local depth, j = 1, i + 1
    while depth > 0 do
      local c = s:sub(j, j)
      if c == '' then raise 'incomplete format key' end
      depth = depth + (c == '(' and 1 or c == ')' and -1 or 0)
      j = j + 1
    end
    f.key, i = s:sub(i + 1, j - 2), j
  end
  local width, precision
  f.flags, i = s:match('^([-+ #0]*)()', i)
  width, i = s:match('^(%*?%d*)()', i)
  if width == '*' then
    width = values.index(take(), '* wants int: a width')
    if width < 0 then f.flags, width = f.flags .. '-', -width end
  end
  f.width = tonumber(width) or 0
  precision, i = s:match('^(%.?%*?%d*)()', i)
  if precision == '.*' then
    f.precision = values.index(take(), '* wants int: a precision')
  elseif precision ~= '' then
    f.precision = tonumber(precision:sub(2)) or 0
  end
  i = s:match('^[hlL]?()', i)
  f.type = s:sub(i, i)
  f.sign = f.flags:find('+', 1, true) and '+' or f.flags:find(' ', 1, true) and ' ' or ''
  return f, i + 1
end

-- A function that gives the arguments one after another, and one that says whether all were used.
local function taker(args)
  local is_tuple, used = values.kind(args) == 'tuple', 0
  local count = is_tuple and args.n or 1
  local function take()
    used = used + 1
    if used > count then raise 'not enough arguments for format string' end
    return is_tuple and args[used] or args
  end
  return take, function()
    if used < count and values.kind(args) ~= 'dict' and not (is_tuple and args.n == 0) then
      raise 'not all arguments converted during string formatting'
    end
    if is_tuple and used < count then
      raise 'not all arguments converted during string formatting'
    end
  end
end

local function by_key(args, key)
  if values.kind(args) ~= 'dict' then raise 'format requires a mapping' end
  local v = values.dict_get(args, key)
  if v == nil then raise("KeyError: '%s'", key) end
  return v
end

--- format % args
function M.percent(format, args)
  if strings.is_markup(format) then
    return strings.markup(M.percent(strings.plain(format), markup.operand(args)))
  end
  local s, pieces, i = strings.text(format), {}, 1
  local take, finish = taker(args)
  while true do
    local stop = s:find('%', i, true)
    pieces[#pieces + 1] = strings.sub(format, i, (stop or #s + 1) - 1)
    if not stop then break end
    bounds.charge(1)
    local f
    f, i = read_conversion(s, stop + 1, take)
    if f.type == '%' then
      pieces[#pieces + 1] = '%'
    elseif f.type == '' then
      raise 'incomplete format'
    elseif not kinds[f.type] then
      raise("unsupported format character '%s'", f.type == '%' and '%%' or f.type)
    else
      local v
      if f.key then v = by_key(args, f.key) else v = take() end
      pieces[#pieces + 1] = percent_one(f, v)
    end
  end
  finish()
  return concat(pieces)
end
arithmetic.format = M.percent

-- format specs -----------------------------------------------------------------------------------

-- [[fill]align][sign][#][0][width][grouping][.precision][type]
local function read_spec(spec)
  local f, i = { fill = ' ' }, 1
  local _, length = strings.code(spec .. ' ', 1)
  if spec:sub(length + 1, length + 1):find '[<>=^]' then
    f.fill, f.align, i = spec:sub(1, length), spec:sub(length + 1, length + 1), length + 2
  elseif spec:find '^[<>=^]' then
    f.align, i = spec:sub(1, 1), 2
  end
  local zero, width, precision
  f.sign, f.alternate, zero, width, f.grouping, precision, f.type, i =
    spec:match('^([-+ ]?)(#?)(0?)(%d*)([,_]?)(%.?%d*)(.?)()', i)
  if i ~= #spec + 1 or precision == '.' then raise('Invalid format specifier') end
  if zero == '0' and not f.align then f.fill, f.align = '0', '=' end
  f.width, f.precision = tonumber(width) or 0, tonumber(precision:sub(2))
  return f
end

local function grouped(digits, sign, size)
  if sign == '' then return digits end
  local whole, rest = digits:match '^(%x+)(.*)$'
  if not whole then return digits end
  local head = #whole % size
  local parts = { head > 0 and whole:sub(1, head) or nil }
  for i = head + 1, #whole, size do parts[#parts + 1] = whole:sub(i, i + size - 1) end
  return table.concat(parts, sign) .. rest
end

local function finish_number(f, sign, digits)
  local align = f.align or '>'
  if align == '=' then
    digits = pad(digits, f.width - #sign, '>', f.fill)
    return sign .. digits
  end
  return pad(sign .. digits, f.width, align, f.fill)
end

local function spec_integer(f, v)
  local type = f.type
  if type == 'c' then return pad(strings.char(tonumber(v)), f.width, f.align or '<', f.fill) end
  if f.precision then raise 'Precision not allowed in integer format specifier' end
  local base = bases[type]
  local digits = digits_of(v, base or 10)
  if type == 'X' then digits = digits:upper() end
  local prefix = f.alternate == '#' and prefixes[type] or ''
  return finish_number(f, sign_of(is_negative(v), f.sign) .. prefix,
    grouped(digits, f.grouping, base and 4 or 3))
end

local function spec_float(f, x)
  local negative = x < 0 or x == 0 and 1 / x < 0
  local type, digits = f.type, nil
  if type == '' and not f.precision then
    digits = printing.float_text(math.abs(x))
  elseif type == '' then
    digits = float_digits(x, 'g', math.max(f.precision, 1), false)
    if not digits:find '[.en]' then digits = digits .. '.0' end
  elseif type == '%' then
    digits = float_digits(x * 100, 'f', f.precision or 6, false) .. '%'
  else
    local g = type == 'n' and 'g' or type
    digits = float_digits(x, g, f.precision or 6, f.alternate == '#')
  end
  return finish_number(f, sign_of(negative, f.sign), grouped(digits, f.grouping, 3))
end

local float_types = 'eEfFgGn%'

local function unknown_code(f, v)
  raise("Unknown format code '%s' for object of type '%s'", f.type == '%' and '%%' or f.type,
    values.type_name(v))
end

local function spec_text(f, v)
  if f.type ~= '' and f.type ~= 's' then unknown_code(f, v) end
  if f.align == '=' then raise "'=' alignment not allowed in string format specifier" end
  if f.precision then v = strings.sub(v, 1, strings.offset(strings.text(v), f.precision)) end
  return pad(v, f.width, f.align or '<', f.fill)
end

--- format(v, spec), as an f-string's field has it.
--- @param spec string
function M.with_spec(v, spec)
  if spec == '' then return printing.str(v) end
  local f = read_spec(spec)
  local kind = values.kind(v)
  if kind == 'str' then return spec_text(f, v) end
  local is_float_type = f.type ~= '' and float_types:find(f.type, 1, true)
  if kind == 'int' or kind == 'bool' and f.type ~= '' then
    if is_float_type then return spec_float(f, values.number(v)) end
    if not ('bcdoxX'):find(f.type, 1, true) then unknown_code(f, v) end
    return spec_integer(f, values.as_integer(v))
  end
  if kind == 'float' then
    if f.type ~= '' and not is_float_type then unknown_code(f, v) end
    return spec_float(f, v.x)
  end
  if kind == 'bool' then return spec_text(f, printing.str(v)) end
  if kind == 'undefined' then return spec_text(f, '') end
  raise('unsupported format string passed to %s.__format__', values.type_name(v))
end

return M
