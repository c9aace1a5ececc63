--- What a tensor is and holds: its dtype and shape, all of its content at once, views of a part.
--- `tensor.lua` makes tensors, `elements.lua` looks into them.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local handles = require 'moonstill.base.handle'
local options = require 'moonstill.base.options'
local sorted = require 'moonstill.base.sorted'

local M = {}

--- The most axes that a tensor has.
--- @package
M.MAX_RANK = tonumber(C.MS_MAX_RANK)

local out = ffi.new 'ms_tensor *[1]'            -- scratch, read at once
local shape = ffi.new('int64_t[?]', M.MAX_RANK) -- scratch, bounds checked before it is filled

local dtypes = { f32 = C.MS_F32, bf16 = C.MS_BF16, f16 = C.MS_F16, i32 = C.MS_I32, i64 = C.MS_I64,
                 u8 = C.MS_U8 }
local names = {}
for name, number in sorted.pairs(dtypes) do names[tonumber(number)] = name end

-- The dtype whose bytes an FFI array of these elements holds.
local cells = { float = 'f32', int = 'i32', ['int64_t'] = 'i64', ['unsigned char'] = 'u8' }

-- What `t[key]` and `t[key] = value` do: elements.lua says it.
local function element(t, key) return M.element(t, key) end
local function assign(t, key, value) return M.assign(t, key, value) end

--- A dense array on a device. It owns memory of the core: free it, or make it inside `ms.scope`.
--- Elements are counted from 1: where there are two axes `t[2][3]` reads one, `t[2][3] = 7` writes
--- it, `t[2]` is a row, a view of the same memory, and `#t` the number of rows.
--- @class ms_tensor
local tensor = handles.kind('tensor', 'ms_tensor', C.ms_tensor_free,
  { length = 'length', element = element, assign = assign })
local methods, pointer = tensor.methods, tensor.pointer

--- The kind of handle, for the other modules of this folder.
--- @package
M.kind = tensor

--- Takes over a tensor that the core handed out.
--- @package
--- @param p ffi.cdata* `ms_tensor *`
--- @return ms_tensor
function M.wrap(p) return tensor.new(p) end

-- Puts the sizes into `shape`; returns the rank.
local function fill_shape(...)
  local rank = select('#', ...)
  if rank < 1 or rank > M.MAX_RANK then
    fail('tensor: rank %d not in 1..%d', rank, M.MAX_RANK)
  end
  for i = 1, rank do
    local size = select(i, ...)
    shape[i - 1] = check.integer('tensor', 'size ' .. i, size, 1, check.EXACT)
  end
  return rank
end

--- A tensor of undefined content.
--- @package
--- @param p ffi.cdata* `ms_device *`
--- @param dtype string
--- @param ... integer the shape
--- @return ms_tensor
function M.allocate(p, dtype, ...)
  local number = dtypes[dtype]
  if not number then
    fail("tensor: no dtype '%s'; %s", tostring(dtype), options.instead(dtype, sorted.keys(dtypes)))
  end
  local rank = fill_shape(...)
  check(C.ms_tensor_new(p, number, rank, shape, out))
  return tensor.new(out[0])
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

-- Appends the numbers of a table, of nested tables in order.
local function flatten(x, list)
  for i = x[0] ~= nil and 0 or 1, #x do
    local v = x[i]
    if type(v) == 'table' then flatten(v, list)
    elseif type(v) == 'number' then list[#list + 1] = v
    else fail('tensor: element %d: number expected, got %s', #list + 1, type(v)) end
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

return M
