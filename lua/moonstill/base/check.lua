--- What is asked of values before they go on: `check(status)` is the one place that turns a status
--- of the core into a Lua error; `check.integer` and `check.integers` keep fractions and numbers
--- that are too large from the core, which would cut them without a word.
local ffi = require 'ffi'
local C = require 'moonstill.C'

local M = {
  INT32 = 2 ^ 31 - 1, -- the largest that the core's int32_t has
  EXACT = 2 ^ 53,     -- up to here a Lua number is every integer
  NOWHERE = -1,       -- a level: of errors that name a file, where the caller's line says nothing
}

local function bound(x) return x == M.EXACT and '2^53' or ('%.0f'):format(x) end

local function shown(value)
  if type(value) == 'string' then return ("'%s' (a string)"):format(value) end
  if type(value) == 'number' and value % 1 == 0 then return ('%.17g'):format(value) end
  return tostring(value)
end

local function fits(value, low, high)
  return type(value) == 'number' and value >= low and value <= high and value % 1 == 0
end

--- An error unless `value` is an integer in low .. high. Returns it.
--- @param what string what errors begin with
--- @param name string of the argument or option
--- @param value any
--- @param low integer
--- @param high integer
--- @param level? integer whom to blame, as in `error`; default the caller of the caller
--- @return integer
function M.integer(what, name, value, low, high, level)
  if fits(value, low, high) then return value end
  error(('%s: %s = %s, expected an integer in %s..%s'):format(what, name, shown(value), bound(low),
    bound(high)), (level or 2) + 1)
end

--- An error unless `value` is a number in low .. high. Returns it.
--- @param what string what errors begin with
--- @param name string of the argument or option
--- @param value any
--- @param low number
--- @param high number
--- @param level? integer whom to blame, as in `error`; default the caller of the caller
--- @return number
function M.number(what, name, value, low, high, level)
  if type(value) == 'number' and value >= low and value <= high then return value end
  error(('%s: %s = %s, expected a number in %.6g..%.6g'):format(what, name, shown(value), low,
    high), (level or 2) + 1)
end

local function expected(what, name, wanted, value, level)
  local got = value == nil and 'nothing' or 'a ' .. type(value)
  error(('%s: %s is %s, expected %s'):format(what, name, got, wanted), level + 1)
end

--- An error unless `value` is a string, for the core: without a zero byte, at which C ends a text.
--- @param what string what errors begin with
--- @param name string of the argument or option
--- @param value any
--- @param level? integer whom to blame, as in `error`; default the caller of the caller
--- @return string
function M.text(what, name, value, level)
  level = (level or 2) + 1
  if type(value) ~= 'string' then expected(what, name, 'a string', value, level) end
  local zero = value:find('\0', 1, true)
  if zero then
    error(('%s: %s has a zero byte at %d: %q'):format(what, name, zero, value:sub(1, 80)), level)
  end
  return value
end

--- The same for a path.
--- @param what string what errors begin with
--- @param path any
--- @param level? integer whom to blame, as in `error`; default the caller of the caller
--- @return string
function M.path(what, path, level) return (M.text(what, 'path', path, (level or 2) + 1)) end

--- An error unless `value` is a table.
--- @param what string what errors begin with
--- @param name string of the argument or option
--- @param value any
--- @param level? integer whom to blame, as in `error`; default the caller of the caller
--- @return table
function M.table(what, name, value, level)
  if type(value) ~= 'table' then expected(what, name, 'a table', value, (level or 2) + 1) end
  return value
end

--- An error unless `value` is a function.
--- @param what string what errors begin with
--- @param name string of the argument or option
--- @param value any
--- @param level? integer whom to blame, as in `error`; default the caller of the caller
--- @return function
function M.func(what, name, value, level)
  if type(value) ~= 'function' then expected(what, name, 'a function', value, (level or 2) + 1) end
  return value
end

--- An error unless `value` is an array of the FFI of `count` such cells or more. A pointer to them
--- has no length: it is taken as it is.
--- @param what string what errors begin with
--- @param name string of the argument or option
--- @param value any
--- @param cell string 'int' or 'float', as the FFI calls them
--- @param count integer
--- @param level? integer whom to blame, as in `error`; default the caller of the caller
--- @return ffi.cdata*
function M.cells(what, name, value, cell, count, level)
  level = (level or 2) + 1
  if type(value) ~= 'cdata' then expected(what, name, 'an FFI array of ' .. cell, value, level) end
  local ctype = tostring(ffi.typeof(value))
  local of, shape = ctype:match '^ctype<c?o?n?s?t? ?([%w_ ]-) ([*%[].*)>$'
  if of ~= cell or not (shape == '*' or shape:find '^%[[%d?]+%]$') then
    error(('%s: %s is %s, expected an FFI array of %s'):format(what, name, ctype, cell), level)
  end
  if shape == '*' then
    if value == nil then error(('%s: %s is a null pointer'):format(what, name), level) end
    return value
  end
  local there = ffi.sizeof(value) / ffi.sizeof(cell)
  if there < count then
    error(('%s: %s has %d cells, %.0f are needed'):format(what, name, there, count), level)
  end
  return value
end

--- An error unless every element of a Lua array is an integer in low .. high. Returns the array.
--- @param what string what errors begin with
--- @param name string of one element
--- @param list integer[]
--- @param low integer
--- @param high integer
--- @param level? integer whom to blame, as in `error`; default the caller of the caller
--- @return integer[]
function M.integers(what, name, list, low, high, level)
  M.table(what, name, list, (level or 2) + 1)
  for i = 1, #list do
    if not fits(list[i], low, high) then
      M.integer(what, ('%s %d'):format(name, i), list[i], low, high, (level or 2) + 1)
    end
  end
  return list
end

--- An error unless `value` is a weight that f32 holds, as the core's are: a number from 0 on, not
--- infinite there, and 0 there only where it is 0. It blames no line: weights come from files.
--- @param what string whose weight it is
--- @param value any
--- @return number
function M.weight(what, value)
  local held = type(value) == 'number' and tonumber(ffi.cast('float', value))
  if held and held >= 0 and held < math.huge and (held > 0 or value == 0) then return value end
  local text = type(value) == 'number' and ('%.9g'):format(value) or shown(value)
  error(('%s: weight %s is no number from 0 on that f32 holds'):format(what, text), 0)
end

--- `check(status, level)` raises the core's last message when `status` is a failure. level: whom to
--- blame, as in `error`; default the caller of the caller.
return setmetatable(M, {
  __call = function(_, status, level)
    if status ~= 0 then error(ffi.string(C.ms_last_error()), (level or 2) + 1) end
  end,
})
