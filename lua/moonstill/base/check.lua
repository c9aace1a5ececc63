--- What is asked of values before they go on: `check(status)` and `check.file(status)` are where a
--- status of the core becomes a Lua error; `check.integer` and `check.integers` keep fractions and
--- numbers that are too large from the core, which would cut them without a word.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local fail = require 'moonstill.base.fail'

local M = {
  INT32 = 2 ^ 31 - 1, -- the largest that the core's int32_t has
  EXACT = 2 ^ 53,     -- up to here a Lua number is every integer
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
--- @return integer
function M.integer(what, name, value, low, high)
  if fits(value, low, high) then return value end
  fail('%s: %s = %s, expected an integer in %s..%s', what, name, shown(value), bound(low),
    bound(high))
end

--- An error unless `value` is a number in low .. high. Returns it.
--- @param what string what errors begin with
--- @param name string of the argument or option
--- @param value any
--- @param low number
--- @param high number
--- @return number
function M.number(what, name, value, low, high)
  if type(value) == 'number' and value >= low and value <= high then return value end
  fail('%s: %s = %s, expected a number in %.6g..%.6g', what, name, shown(value), low, high)
end

local function expected(what, name, wanted, value)
  local got = value == nil and 'nothing' or 'a ' .. type(value)
  fail('%s: %s is %s, expected %s', what, name, got, wanted)
end

--- An error unless `value` is a string, for the core: without a zero byte, at which C ends a text.
--- @param what string what errors begin with
--- @param name string of the argument or option
--- @param value any
--- @return string
function M.text(what, name, value)
  if type(value) ~= 'string' then expected(what, name, 'a string', value) end
  local zero = value:find('\0', 1, true)
  if zero then
    fail('%s: %s has a zero byte at %d: %q', what, name, zero, value:sub(1, 80))
  end
  return value
end

--- The same for a path.
--- @param what string what errors begin with
--- @param path any
--- @return string
function M.path(what, path) return M.text(what, 'path', path) end

--- An error unless `value` is a table.
--- @param what string what errors begin with
--- @param name string of the argument or option
--- @param value any
--- @return table
function M.table(what, name, value)
  if type(value) ~= 'table' then expected(what, name, 'a table', value) end
  return value
end

--- An error unless `value` is a function.
--- @param what string what errors begin with
--- @param name string of the argument or option
--- @param value any
--- @return function
function M.func(what, name, value)
  if type(value) ~= 'function' then expected(what, name, 'a function', value) end
  return value
end

--- An error unless `value` is an array of the FFI of `count` such cells or more. A pointer to them
--- has no length: it is taken as it is.
--- @param what string what errors begin with
--- @param name string of the argument or option
--- @param value any
--- @param cell string 'int' or 'float', as the FFI calls them
--- @param count integer
--- @return ffi.cdata*
function M.cells(what, name, value, cell, count)
  if type(value) ~= 'cdata' then expected(what, name, 'an FFI array of ' .. cell, value) end
  local ctype = tostring(ffi.typeof(value))
  local of, shape = ctype:match '^ctype<c?o?n?s?t? ?([%w_ ]-) ([*%[].*)>$'
  if of ~= cell or not (shape == '*' or shape:find '^%[[%d?]+%]$') then
    fail('%s: %s is %s, expected an FFI array of %s', what, name, ctype, cell)
  end
  if shape == '*' then
    if value == nil then fail('%s: %s is a null pointer', what, name) end
    return value
  end
  local there = ffi.sizeof(value) / ffi.sizeof(cell)
  if there < count then
    fail('%s: %s has %d cells, %.0f are needed', what, name, there, count)
  end
  return value
end

--- An error unless every element of a Lua array is an integer in low .. high. Returns the array.
--- @param what string what errors begin with
--- @param name string of one element
--- @param list integer[]
--- @param low integer
--- @param high integer
--- @return integer[]
function M.integers(what, name, list, low, high)
  M.table(what, name, list)
  for i = 1, #list do
    if not fits(list[i], low, high) then
      M.integer(what, ('%s %d'):format(name, i), list[i], low, high)
    end
  end
  return list
end

--- An error unless `value` is a weight that f32 holds, as the core's are: a number from 0 on, not
--- infinite there, and 0 there only where it is 0.
--- @param what string whose weight it is
--- @param value any
--- @return number
function M.weight(what, value)
  local held = type(value) == 'number' and tonumber(ffi.cast('float', value))
  if held and held >= 0 and held < math.huge and (held > 0 or value == 0) then return value end
  local text = type(value) == 'number' and ('%.9g'):format(value) or shown(value)
  fail('%s: weight %s is no number from 0 on that f32 holds', what, text)
end

--- Raises the core's last message when `status` is a failure. It names a file, so that no line of
--- the caller's stands before it.
--- @param status integer
function M.file(status)
  if status ~= 0 then error(ffi.string(C.ms_last_error()), 0) end
end

--- `check(status)` raises the core's last message when `status` is a failure.
return setmetatable(M, {
  __call = function(_, status)
    if status ~= 0 then fail(ffi.string(C.ms_last_error())) end
  end,
})
