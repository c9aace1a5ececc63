--- Operations on tensors, one kernel each: `ms.ops.rmsnorm(y, nil, x, w, 1e-5)`.
---
--- Each is the function of core/moonstill.h of that name without the `ms_`, with tensors for its
--- pointers and nil for NULL; shapes and meaning are documented there. They return nothing, except
--- `sum_squares` and `not_finite`, which return a number.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local handles = require 'moonstill.base.handle'
local sorted = require 'moonstill.base.sorted'

local M = {}

-- How many arguments of each are tensors; they come first.
local tensors = {
  linear = 3, linear_dx = 3, linear_dw = 3, bias = 2, bias_db = 2, embed = 3, embed_dw = 3,
  gather = 3, scatter = 3, rmsnorm = 4, rmsnorm_backward = 6, rope = 4, attention = 6,
  attention_backward = 10, attention_cached = 7, swiglu = 3, swiglu_backward = 5, geglu = 3,
  geglu_backward = 5, add = 2, adamw = 5,
}

-- Where the first number after the tensors is an integer: its name and range.
local flag = { 'add', 0, 1 }
local integers = { linear = flag, linear_dx = flag, linear_dw = flag, rmsnorm_backward = flag,
  rope = { 'sign', -1, 1 }, attention = { 'window', 0, check.INT32 },
  attention_backward = { 'window', 0, check.INT32 }, adamw = { 'step', 1, check.EXACT } }

-- Numbers that may be left out are the last ones: how many there are, and the values of these.
local defaults = { linear = { 1, 0 }, linear_dx = { 1, 0 }, linear_dw = { 1, 0 }, embed = { 1, 1 },
  embed_dw = { 1, 1 }, rmsnorm = { 2, 0 }, rmsnorm_backward = { 2, 0, 0 }, attention = { 3, 0 },
  attention_backward = { 3, 0 }, attention_cached = { 2, 0 }, add = { 1, 1 } }

-- Puts what was left out behind the n of `args`; returns how many there are then.
local function complete(args, n, count, optional)
  if not optional then return n end
  local last = count + optional[1]
  if n < last - (#optional - 1) then return n end
  for i = n + 1, last do args[i] = optional[#optional - (last - i)] end
  return math.max(n, last)
end

local function call(name, count)
  local f = C['ms_' .. name]
  return function(...)
    local args, n = { ... }, math.max(select('#', ...), count)
    for i = 1, count do
      if args[i] ~= nil then args[i] = handles.pointer('tensor', args[i]) end
    end
    n = complete(args, n, count, defaults[name])
    local integer = integers[name]
    if integer then
      check.integer(name, integer[1], args[count + 1], integer[2], integer[3])
    end
    local ok, status = pcall(f, unpack(args, 1, n))
    if not ok then fail('%s: %s', name, status) end -- another number of arguments
    check(status)
  end
end

for name, count in sorted.pairs(tensors) do M[name] = call(name, count) end

local sum = ffi.new 'double[1]'

--- The sum of the squares, in double; not finite exactly when an element is not.
--- @param x ms_tensor
--- @return number
function M.sum_squares(x)
  check(C.ms_sum_squares(handles.pointer('tensor', x), sum))
  return sum[0]
end

local place = ffi.new 'int64_t[1]'

--- The index, from 0 and row by row, of the first NaN or infinity; nil when there is none.
--- @param x ms_tensor f32 or bf16
--- @return integer?
function M.not_finite(x)
  check(C.ms_not_finite(handles.pointer('tensor', x), place))
  if place[0] >= 0 then return tonumber(place[0]) end
end

return M
