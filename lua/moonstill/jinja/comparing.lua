--- Comparisons of values, as Python makes them.

local bounds = require 'moonstill.jinja.bounds'
local strings = require 'moonstill.jinja.strings'
local values = require 'moonstill.jinja.values'

local M = {}

local raise = bounds.raise

local equal

local function equal_lists(a, b)
  if a.n ~= b.n then return false end
  for i = 1, a.n do
    if not equal(a[i], b[i]) then return false end
  end
  return true
end

local function equal_dicts(a, b)
  if a.n ~= b.n then return false end
  for i = 1, a.n do
    local other = b.map[a.keys[i]]
    if other == nil or not equal(a.map[a.keys[i]], other) then return false end
  end
  return true
end

local function equal_ranges(a, b)
  return a.n == b.n and (a.n == 0 or a.start == b.start and (a.n == 1 or a.step == b.step))
end

local equals = { list = equal_lists, tuple = equal_lists, dict = equal_dicts, range = equal_ranges,
  undefined = function() return true end }

-- Two values that are neither texts nor numbers both.
local function equal_tables(a, b)
  if type(a) ~= 'table' or type(b) ~= 'table' or a.kind ~= b.kind then return false end
  local compare = equals[a.kind]
  if not compare then return false end
  local depth = bounds.depth
  bounds.enter(bounds.MOST_NESTED, 'a value nested')
  bounds.charge(1 + (a.n or 0))
  local same = compare(a, b)
  bounds.depth = depth
  return same
end

--- a == b
--- @return boolean
function equal(a, b)
  if a == b then return not (type(a) == 'table' and a.kind == 'float' and a.x ~= a.x) end
  local ta, tb = type(a), type(b)
  if ta == 'string' then return tb == 'table' and b.kind == 'str' and b.s == a end
  if ta == 'table' and a.kind == 'str' then
    return tb == 'string' and b == a.s or tb == 'table' and b.kind == 'str' and b.s == a.s
  end
  if ta == 'cdata' and tb == 'cdata' then return a == b end
  local x, y = values.number(a), values.number(b)
  if x and y then return x == y and (ta ~= 'cdata') == (tb ~= 'cdata') end
  return equal_tables(a, b)
end
M.equal = equal

local signs = { lt = '<', lteq = '<=', gt = '>', gteq = '>=' }

-- Whether x stands before y: of two numbers or two plain texts.
local function ordered(op, x, y)
  if op == 'lt' then return x < y end
  if op == 'lteq' then return x <= y end
  if op == 'gt' then return x > y end
  return x >= y
end

-- Lua compares texts by the locale: bytes are compared here, which is by code points.
local function text_order(x, y)
  if x == y then return 0 end
  local n = math.min(#x, #y)
  for i = 1, n, 32 do
    if x:sub(i, i + 31) ~= y:sub(i, i + 31) then
      for k = i, n do
        local a, b = x:byte(k), y:byte(k)
        if a ~= b then return a < b and -1 or 1 end
      end
    end
  end
  return #x < #y and -1 or #x > #y and 1 or 0
end

local function list_order(op, a, b)
  for i = 1, math.min(a.n, b.n) do
    if not equal(a[i], b[i]) then return M.order(op, a[i], b[i]) end
  end
  return ordered(op, a.n, b.n)
end

--- a < b, or another order: op is 'lt', 'lteq', 'gt' or 'gteq'.
--- @return boolean
function M.order(op, a, b)
  local x, y = values.number(a), values.number(b)
  if x and y then
    if type(a) == 'cdata' and type(b) == 'cdata' then return ordered(op, a, b) end
    return ordered(op, x, y)
  end
  if strings.is(a) and strings.is(b) then
    local s, t = strings.text(a), strings.text(b)
    bounds.charge(1 + math.min(#s, #t) / 32)
    return ordered(op, text_order(s, t), 0)
  end
  local kind, other = values.kind(a), values.kind(b)
  if kind == other and (kind == 'list' or kind == 'tuple') then
    local depth = bounds.depth
    bounds.enter(bounds.MOST_NESTED, 'a value nested')
    bounds.charge(1 + a.n)
    local result = list_order(op, a, b)
    bounds.depth = depth
    return result
  end
  if kind == 'undefined' then values.fail_undefined(a) end
  if other == 'undefined' then values.fail_undefined(b) end
  raise("'%s' not supported between instances of '%s' and '%s'", signs[op], values.type_name(a),
    values.type_name(b))
end

local function contains_text(whole, part)
  if not strings.is(part) then
    if values.kind(part) == 'undefined' then
      raise("'in <string>' requires string as left operand, not Undefined")
    end
    raise("'in <string>' requires string as left operand, not %s", values.type_name(part))
  end
  local s = strings.text(whole)
  bounds.charge(1 + #s / 64)
  return strings.find(s, strings.text(part)) ~= nil
end

--- x in container
--- @return boolean
function M.contains(container, x)
  local kind = values.kind(container)
  if kind == 'str' then return contains_text(container, x) end
  if kind == 'dict' then return values.dict_get(container, x) ~= nil end
  if kind == 'undefined' then return false end
  local step = values.try_iterate(container)
  if not step then
    raise("argument of type '%s' is not iterable", values.type_name(container))
  end
  local item = step()
  while item ~= nil do
    bounds.charge(1)
    if equal(item, x) then return true end
    item = step()
  end
  return false
end

--- The places of `count` keys in ascending order: a sort that keeps the order of equal ones.
--- @param keys any[]
--- @param count integer
--- @param reverse boolean
--- @return integer[]
function M.sorted_places(keys, count, reverse)
  local from, to = {}, {}
  for i = 1, count do from[i] = i end
  bounds.charge(count * 8)
  -- In reverse, equal ones keep their order too.
  local function goes_first(a, b)
    if reverse then return not M.order('lt', keys[a], keys[b]) end
    return not M.order('lt', keys[b], keys[a])
  end
  local width = 1
  while width < count do
    for low = 1, count, 2 * width do
      local middle, high = math.min(low + width, count + 1), math.min(low + 2 * width, count + 1)
      local i, j = low, middle
      for k = low, high - 1 do
        if i < middle and (j >= high or goes_first(from[i], from[j])) then
          to[k], i = from[i], i + 1
        else
          to[k], j = from[j], j + 1
        end
      end
    end
    from, to = to, from
    width = 2 * width
  end
  return from
end

return M
