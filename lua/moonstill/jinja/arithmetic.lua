--- Operators between values: numbers as Python computes them, texts and lists put together.
---
--- Integers are exact up to 64 bits; what would be beyond is an error, never a rounded number.

local bit = require 'bit'
local ffi = require 'ffi'
local bounds = require 'moonstill.jinja.bounds'
local strings = require 'moonstill.jinja.strings'
local values = require 'moonstill.jinja.values'

local M = {}

local raise = bounds.raise
local int64 = ffi.typeof 'int64_t'
local EXACT, LOW = 2 ^ 53, ffi.new('int64_t', -0x7fffffffffffffffLL - 1)

local function beyond() raise 'an integer beyond 64 bits' end

local signs = { add = '+', sub = '-', mul = '*', div = '/', floordiv = '//', mod = '%',
  pow = '** or pow()' }

local function unsupported(op, a, b)
  if values.kind(a) == 'undefined' then values.fail_undefined(a) end
  if values.kind(b) == 'undefined' then values.fail_undefined(b) end
  if op == 'add' then
    local kind = values.kind(a)
    if kind == 'str' or kind == 'list' or kind == 'tuple' then
      raise('can only concatenate %s (not "%s") to %s', kind, values.type_name(b), kind)
    end
  end
  raise("unsupported operand type(s) for %s: '%s' and '%s'", signs[op], values.type_name(a),
    values.type_name(b))
end

-- integers ---------------------------------------------------------------------------------------

local integer = {}

function integer.add(a, b)
  local x, y = int64(a), int64(b)
  local r = x + y
  if bit.band(bit.bxor(x, r), bit.bxor(y, r)) < 0 then beyond() end
  return r
end

function integer.sub(a, b)
  local x, y = int64(a), int64(b)
  local r = x - y
  if bit.band(bit.bxor(x, y), bit.bxor(x, r)) < 0 then beyond() end
  return r
end

function integer.mul(a, b)
  local x, y = int64(a), int64(b)
  if math.abs(tonumber(x) * tonumber(y)) > 9.3e18 then beyond() end
  local r = x * y
  if x ~= 0 and (r / x ~= y or x == -1 and y == LOW) then beyond() end
  return r
end

function integer.floordiv(a, b)
  local x, y = int64(a), int64(b)
  if y == 0 then raise 'integer division or modulo by zero' end
  if x == LOW and y == -1 then beyond() end
  local q = x / y
  if q * y ~= x and (x < 0) ~= (y < 0) then q = q - 1 end
  return q
end

function integer.mod(a, b)
  local x, y = int64(a), int64(b)
  if y == 0 then raise 'integer modulo by zero' end
  if y == -1 then return int64(0) end
  local r = x % y
  if r ~= 0 and (r < 0) ~= (y < 0) then r = r + y end
  return r
end

function integer.pow(a, b)
  local result, base = int64(1), a
  while b > 0 do
    if b % 2 == 1 then result = integer.mul(result, base) end
    b = (b - b % 2) / 2
    if b > 0 then base = integer.mul(base, base) end
  end
  return result
end

-- What doubles compute exactly where operands and result are small; nil where they may not.
local small = {
  add = function(a, b) return a + b end,
  sub = function(a, b) return a - b end,
  mul = function(a, b) return a * b + 0 end,
}

local function power(a, b)
  if tonumber(b) < 0 then
    if tonumber(a) == 0 then raise '0.0 cannot be raised to a negative power' end
    return values.float(tonumber(a) ^ tonumber(b))
  end
  local base = tonumber(a)
  if base == 0 or base == 1 then return tonumber(b) == 0 and 1 or base end
  if base == -1 then return tonumber(b) % 2 == 0 and 1 or -1 end
  if tonumber(b) > 64 then beyond() end
  return values.integer(integer.pow(a, tonumber(b)))
end

local function divide(x, y)
  if y == 0 then raise 'division by zero' end
  return values.float(x / y)
end

local function on_integers(op, a, b)
  if op == 'div' then return divide(tonumber(a), tonumber(b)) end
  if op == 'pow' then return power(a, b) end
  if small[op] and type(a) == 'number' and type(b) == 'number' then
    local r = small[op](a, b)
    if r < EXACT and r > -EXACT then return r end
  end
  return values.integer(integer[op](a, b))
end

-- floats -----------------------------------------------------------------------------------------

-- Python's % of doubles: the sign of the divisor.
local function float_mod(x, y)
  if y == 0 then raise 'float modulo' end
  local r = math.fmod(x, y)
  if r ~= 0 then
    if (r < 0) ~= (y < 0) then r = r + y end
    return r
  end
  return y < 0 and -0.0 or 0.0
end

local floating = {
  add = function(x, y) return x + y end,
  sub = function(x, y) return x - y end,
  mul = function(x, y) return x * y end,
  mod = float_mod,
  floordiv = function(x, y)
    if y == 0 then raise 'float floor division by zero' end
    local r = math.fmod(x, y)
    local q = (x - r) / y
    if r ~= 0 and (r < 0) ~= (y < 0) then q = q - 1 end
    if q == 0 then return 1 / (x / y) < 0 and -0.0 or 0.0 end
    local whole = math.floor(q)
    return q - whole > 0.5 and whole + 1 or whole
  end,
  pow = function(x, y)
    if x == 0 and y < 0 then raise '0.0 cannot be raised to a negative power' end
    if x < 0 and y % 1 ~= 0 then raise 'a negative number to a fractional power' end
    local r = x ^ y
    if r == math.huge and x - x == 0 and y - y == 0 then raise 'Numerical result out of range' end
    return r
  end,
}

local function on_numbers(op, a, b)
  local x, y = values.as_integer(a), values.as_integer(b)
  if x and y then return on_integers(op, x, y) end
  x, y = values.number(a), values.number(b)
  if not x or not y then return nil end
  if op == 'div' then return divide(x, y) end
  return values.float(floating[op](x, y))
end

-- sequences --------------------------------------------------------------------------------------

local function join_lists(a, b)
  bounds.charge(a.n + b.n)
  local all = {}
  for i = 1, a.n do all[i] = a[i] end
  for i = 1, b.n do all[a.n + i] = b[i] end
  return a.kind == 'list' and values.list(all, a.n + b.n) or values.tuple(all, a.n + b.n)
end

local function repeat_list(a, times)
  local all, n = {}, math.max(0, times) * a.n
  bounds.charge(n)
  for i = 0, n - 1 do all[i + 1] = a[i % a.n + 1] end
  return a.kind == 'list' and values.list(all, n) or values.tuple(all, n)
end

local function repeated(a, b)
  local kind, times = values.kind(a), values.as_integer(b)
  if not times then
    if kind == 'str' or kind == 'list' or kind == 'tuple' then
      raise("can't multiply sequence by non-int of type '%s'", values.type_name(b))
    end
    return nil
  end
  if kind == 'str' then return strings.rep(a, tonumber(times)) end
  if kind == 'list' or kind == 'tuple' then return repeat_list(a, tonumber(times)) end
  return nil
end

local sequences = {
  add = function(a, b)
    if strings.is(a) then return strings.is(b) and strings.join2(a, b) or nil end
    local kind = values.kind(a)
    if kind == values.kind(b) and (kind == 'list' or kind == 'tuple') then
      return join_lists(a, b)
    end
  end,
  mul = function(a, b)
    if values.as_integer(a) and not values.as_integer(b) then a, b = b, a end
    if values.kind(b) == 'undefined' or values.kind(a) == 'undefined' then return nil end
    return repeated(a, b)
  end,
  mod = function(a, b) return strings.is(a) and M.format(a, b) or nil end,
}

--- The result of an operator: 'add', 'sub', 'mul', 'div', 'floordiv', 'mod', 'pow'.
function M.apply(op, a, b)
  local result = on_numbers(op, a, b)
  if result == nil and sequences[op] then result = sequences[op](a, b) end
  if result == nil then unsupported(op, a, b) end
  return result
end

--- -a ('sub') or +a ('add').
function M.sign(op, a)
  local x = values.as_integer(a)
  if x then return op == 'add' and x or M.apply('sub', 0, x) end
  if values.kind(a) == 'float' then return op == 'add' and a or values.float(-a.x) end
  if values.kind(a) == 'undefined' then values.fail_undefined(a) end
  raise("bad operand type for unary %s: '%s'", signs[op], values.type_name(a))
end

return M
