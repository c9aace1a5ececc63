--- Tensors: dense arrays on one device. `ms.tensor("cpu", 2, 3)` makes one.
---
--- Elements are counted from 1, as in Lua's tables: where there are two axes `t[2][3]` is an
--- element, and so is `t:at(2, 3)`; `t[2]` is a row, a view of the same memory; `t[2][3] = 7` or
--- `t:set(2, 3, 7)` writes one; `#t` is the size of the first axis.
---
--- A tensor owns memory that the Lua collector cannot see. Free it, or make it inside `ms.scope`;
--- the finalizer is only a net for mistakes.
local C = require 'moonstill.C'
local callable = require 'moonstill.base.callable'
local check = require 'moonstill.base.check'
local devices = require 'moonstill.tensor.device'
local elements = require 'moonstill.tensor.elements'
local picture = require 'moonstill.tensor.picture'
local storage = require 'moonstill.tensor.storage'

local M = { wrap = storage.wrap }

storage.kind.text = picture.text
storage.element, storage.assign = elements.get, elements.put

-- A tensor from what stands behind the device: [dtype,] sizes, or [dtype,] a nested table.
local function new(dev, dtype, ...)
  if type(dtype) ~= 'string' then return new(dev, 'f32', dtype, ...) end
  local first = ...
  if type(first) == 'table' then
    local list, sizes = elements.flat(first)
    return devices.on(dev, storage.allocate, dtype, unpack(sizes)):write(list)
  end
  local t = devices.on(dev, storage.allocate, dtype, ...)
  check(C.ms_tensor_zero(t.p))
  return t
end

--- Makes a tensor of zeros; or one of what a nested table holds:
--- `ms.tensor("cpu", {{1, 2}, {3, 4}})`.
--- @param dev ms_device|string such as "cpu"
--- @param dtype string|integer 'f32' (when left out), 'bf16', 'f16', 'i32', 'i64' or 'u8'
--- @param ... integer|table the shape, outermost first; or tables of numbers, all alike
--- @return ms_tensor
function M.new(dev, dtype, ...) return new(dev, dtype, ...) end

return callable(M, 'new')
