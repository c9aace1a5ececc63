--- Tensors: dense arrays on one device. `ms.tensor(device, 2, 3)` makes one.
---
--- A tensor owns memory that the Lua collector cannot see. Free it, or make it inside `ms.scope`;
--- the finalizer is only a net for mistakes.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local handles = require 'moonstill.base.handle'
local sorted = require 'moonstill.base.sorted'

local M = {}

local MAX_RANK = tonumber(C.MS_MAX_RANK)
local out = ffi.new 'ms_tensor *[1]'         -- scratch, read at once
local shape = ffi.new('int64_t[?]', MAX_RANK) -- scratch, bounds checked before it is filled

local dtypes = { f32 = C.MS_F32, bf16 = C.MS_BF16, f16 = C.MS_F16, i32 = C.MS_I32, i64 = C.MS_I64,
                 u8 = C.MS_U8 }
local names = {}
for name, number in sorted.pairs(dtypes) do names[tonumber(number)] = name end

-- The dtype whose bytes an FFI array of these elements holds.
local cells = { float = 'f32', int = 'i32', ['int64_t'] = 'i64', ['unsigned char'] = 'u8' }

--- A dense array on a device. It owns memory of the core: free it, or make it inside `ms.scope`.
--- @class ms_tensor
local tensor = handles.kind('tensor', 'ms_tensor', C.ms_tensor_free)
local methods, pointer = tensor.methods, tensor.pointer

--- Takes over a tensor that the core handed out.
--- @package
--- @param p ffi.cdata* `ms_tensor *`
--- @return ms_tensor
function M.wrap(p) return tensor.new(p) end

-- Puts the sizes into `shape`; returns the rank.
local function fill_shape(...)
  local rank = select('#', ...)
  if rank < 1 or rank > MAX_RANK then
    fail('tensor: rank %d not in 1..%d', rank, MAX_RANK)
  end
  for i = 1, rank do
    local size = select(i, ...)
    shape[i - 1] = check.integer('tensor', 'size ' .. i, size, 1, check.EXACT)
  end
  return rank
end

local function new(dev, dtype, ...)
  local number = dtypes[dtype]
  if not number then fail("tensor: no dtype '%s'", dtype) end
  local p, rank = handles.pointer('device', dev), fill_shape(...)
  check(C.ms_tensor_new(p, number, rank, shape, out))
  return tensor.new(out[0])
end

--- Makes a tensor whose content is undefined.
--- @param dev ms_device
--- @param dtype string|integer 'f32' (when left out), 'bf16', 'f16', 'i32', 'i64' or 'u8'
--- @param ... integer the shape, outermost first
--- @return ms_tensor
function M.new(dev, dtype, ...)
  if type(dtype) == 'string' then return new(dev, dtype, ...) end
  return new(dev, 'f32', dtype, ...)
end

--- Like `new`, filled with zeros.
--- @param dev ms_device
--- @param dtype string|integer as in `new`
--- @param ... integer the shape
--- @return ms_tensor
function M.zeros(dev, dtype, ...)
  local t
  if type(dtype) == 'string' then
    t = new(dev, dtype, ...)
  else
    t = new(dev, 'f32', dtype, ...)
  end
  check(C.ms_tensor_zero(t.p))
  return t
end

--- 'f32', 'bf16', ...
--- @return string
function methods:dtype() return names[C.ms_tensor_dtype(pointer(self))] end

--- The sizes, outermost first: `local rows, cols = t:shape()`.
--- @return integer ...
function methods:shape()
  local p, sizes = pointer(self), {}
  for i = 1, C.ms_tensor_rank(p) do sizes[i] = tonumber(C.ms_tensor_size(p, i - 1)) end
  return unpack(sizes)
end

--- The number of elements.
--- @return integer
function methods:count() return tonumber(C.ms_tensor_size(pointer(self), -1)) end

-- The name of an FFI array's elements and their number.
local function array_of(x)
  local cell = type(x) == 'cdata' and tostring(ffi.typeof(x)):match '^ctype<([%w_ ]-) %[[%d?]+%]>$'
  if not cell then fail('tensor: a table or an FFI array expected') end
  return cell, ffi.sizeof(x) / ffi.sizeof(cell)
end

-- Appends the numbers of a table, nested tables in order.
local function flatten(x, list)
  for i = x[0] ~= nil and 0 or 1, #x do
    local v = x[i]
    if type(v) == 'table' then flatten(v, list)
    elseif type(v) == 'number' then list[#list + 1] = v
    else fail('tensor: number expected, got ' .. type(v)) end
  end
  return list
end

--- Sets all elements, from a table (nested tables are taken in order) or an FFI array of numbers;
--- the count must be the tensor's. Values are converted to its dtype, to nearest.
--- @param x table|ffi.cdata*
--- @return ms_tensor self
function methods:write(x)
  local p, n, from = pointer(self), nil, nil
  if type(x) == 'table' then
    x = flatten(x, {})
    n, from = #x, 1
  elseif type(x) == 'cdata' then
    local cell, count = array_of(x)
    if cells[cell] == names[C.ms_tensor_dtype(p)] then
      check(C.ms_tensor_write(p, x, ffi.sizeof(x)))
      return self
    end
    n, from = count, 0
  else
    fail('tensor: a table or an FFI array expected, got ' .. type(x))
  end
  local buffer = ffi.new('double[?]', math.max(n, 1))
  for i = 0, n - 1 do buffer[i] = tonumber(x[from + i]) end
  check(C.ms_tensor_write_double(p, buffer, n))
  return self
end

--- All elements in order: as a table of numbers, or in `into`, an FFI array of doubles or of the
--- tensor's own dtype that is exactly as long.
--- @param into? ffi.cdata*
--- @return table|ffi.cdata*
function methods:read(into)
  local p = pointer(self)
  local n = tonumber(C.ms_tensor_size(p, -1))
  if into then
    local cell, count = array_of(into)
    if cells[cell] == names[C.ms_tensor_dtype(p)] then
      check(C.ms_tensor_read(p, into, ffi.sizeof(into)))
    elseif cell == 'double' then
      check(C.ms_tensor_read_double(p, into, count))
    else
      fail('tensor: %s into an array of %s', self:dtype(), cell)
    end
    return into
  end
  local buffer, list = ffi.new('double[?]', n), {}
  check(C.ms_tensor_read_double(p, buffer, n))
  for i = 1, n do list[i] = buffer[i - 1] end
  return list
end

--- A tensor over part of this one's memory, which it keeps alive.
--- @param offset integer first element, counted from 0
--- @param ... integer the shape
--- @return ms_tensor
function methods:view(offset, ...)
  local p, rank = pointer(self), fill_shape(...)
  check.integer('tensor', 'offset', offset, 0, check.EXACT)
  check(C.ms_tensor_view(p, C.ms_tensor_dtype(p), offset, rank, shape, out))
  return tensor.new(out[0])
end

--- Sets all elements from another tensor of as many, converting dtypes.
--- @param from ms_tensor
--- @return ms_tensor self
function methods:copy(from)
  check(C.ms_tensor_copy(pointer(self), pointer(from)))
  return self
end

-- Which of n things to show: all, or the first and last three with a gap (0) between.
local function shown(n)
  if n <= 7 then
    local all = {}
    for i = 1, n do all[i] = i end
    return all
  end
  return { 1, 2, 3, 0, n - 2, n - 1, n }
end

-- One row of `cols` elements from `offset`; reads only what it shows.
local function row_text(t, offset, cols)
  local words = {}
  for k, i in ipairs(shown(cols)) do
    if i == 0 then words[k] = '...'
    else
      local one = t:view(offset + i - 1, 1)
      words[k] = ('%10.5g'):format(one:read()[1])
      one:free()
    end
  end
  return table.concat(words, ' ')
end

-- 'tensor f32 [512, 896] on cpu' and up to seven rows of the last axis.
function tensor.text(t)
  local sizes = { t:shape() }
  local cols = sizes[#sizes]
  local lines = { ('tensor %s [%s] on %s'):format(t:dtype(), table.concat(sizes, ', '),
    ffi.string(C.ms_device_spec(C.ms_tensor_device(t.p)))) }
  for _, r in ipairs(shown(t:count() / cols)) do
    lines[#lines + 1] = r == 0 and '       ...' or row_text(t, (r - 1) * cols, cols)
  end
  return table.concat(lines, '\n')
end

return setmetatable(M, {
  calls = 'new',
  __call = function(_, dev, dtype, ...)
    if type(dtype) == 'string' then return new(dev, dtype, ...) end
    return new(dev, 'f32', dtype, ...)
  end,
})
