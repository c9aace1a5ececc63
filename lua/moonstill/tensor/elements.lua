--- Single elements of tensors, and what is told of all of them: sums, extremes, tables. Everything
--- is read and written through the core, in parts: a device's memory need not be the host's.
local ffi = require 'ffi'
local fail = require 'moonstill.base.fail'
local storage = require 'moonstill.tensor.storage'

local M = {}

--- @class ms_tensor
local methods = storage.kind.methods
local shape = methods.shape
local PART = 65536 -- elements that are read at once

-- places -----------------------------------------------------------------------------------------

-- Sizes or indices as errors show them.
local function shape_text(sizes) return '[' .. table.concat(sizes, ', ') .. ']' end

-- The place of an element, counted from 0 in the order of memory, from its indices: one for each of
-- the first axes.
local function place_of(sizes, indices)
  local place = 0
  for axis, size in ipairs(sizes) do
    local i = indices[axis]
    place = place * size
    if i ~= nil then
      if type(i) ~= 'number' or i < 1 or i > size or i % 1 ~= 0 then
        fail('tensor: index %d = %s, expected an integer in 1..%d for %s', axis, tostring(i), size,
          shape_text(sizes))
      end
      place = place + i - 1
    end
  end
  return place
end

-- The indices of a place.
local function indices_of(sizes, place)
  local indices = {}
  for axis = #sizes, 1, -1 do
    indices[axis] = place % sizes[axis] + 1
    place = math.floor(place / sizes[axis])
  end
  return indices
end

local function check_count(sizes, count)
  if count ~= #sizes then
    fail('tensor: %d ind%s for %s, which has %d ax%s', count, count == 1 and 'ex' or 'ices',
      shape_text(sizes), #sizes, #sizes == 1 and 'is' or 'es')
  end
end

-- A view that is needed for a moment only.
local function with_view(t, place, f, value, ...)
  local view = t:view(place, ...)
  local ok, result = pcall(f, view, value)
  view:free()
  if not ok then error(result, 0) end
  return result
end

-- single elements --------------------------------------------------------------------------------

local function read_one(view) return view:read()[1] end

local function write(view, list) view:write(list) end

--- One element: `t:at(2, 3)`. Indices count from 1.
--- @param ... integer one for each axis
--- @return number
function methods:at(...)
  local sizes = { shape(self) }
  check_count(sizes, select('#', ...))
  return with_view(self, place_of(sizes, { ... }), read_one, nil, 1)
end

--- Sets one element: `t:set(2, 3, value)`. Indices count from 1.
--- @param ... integer one for each axis, and the value
--- @return ms_tensor self
function methods:set(...)
  local sizes, given, count = { shape(self) }, { ... }, select('#', ...)
  check_count(sizes, math.max(0, count - 1))
  local value = given[count]
  if type(value) ~= 'number' then
    fail('tensor: set: the value is a %s, not a number', type(value))
  end
  given[count] = nil
  local ok, why = fail.pcall(with_view, self, place_of(sizes, given), write, { value }, 1)
  if not ok then
    fail('tensor: element %s of %s: %s', shape_text(given), shape_text(sizes), why)
  end
  return self
end

-- The view of what lies at one index of the first axis.
local function row_of(t, sizes, i)
  return t:view(place_of(sizes, { i }), unpack(sizes, 2))
end

--- What `t[i]` is: an element, or a view of a row.
--- @package
--- @param t ms_tensor
--- @param i any
function M.get(t, i)
  local sizes = { shape(t) }
  if #sizes == 1 then return t:at(i) end
  return row_of(t, sizes, i)
end

--- What `t[i] = value` does: sets an element, or a row from a table or a tensor.
--- @package
--- @param t ms_tensor
--- @param i any
--- @param value any
function M.put(t, i, value)
  local sizes = { shape(t) }
  if #sizes == 1 then return t:set(i, value) end
  local row = row_of(t, sizes, i)
  local ok, why = pcall(type(value) == 'cdata' and row.copy or row.write, row, value)
  row:free()
  if not ok then error(why, 0) end
end

--- The size of the first axis: what `#t` is.
--- @return integer
function methods:length() return (shape(self)) end

-- all elements -----------------------------------------------------------------------------------

-- Calls f(buffer, count, first place) for the elements, a part at a time.
local function each_part(t, f)
  local total = methods.count(t)
  for from = 0, total - 1, PART do
    local n = math.min(PART, total - from)
    local buffer = ffi.new('double[?]', n)
    with_view(t, from, function(view) view:read(buffer) end, nil, n)
    f(buffer, n, from)
  end
end

--- The sum of all elements, in double.
--- @return number
function methods:sum()
  local sum = 0
  each_part(self, function(buffer, n)
    for i = 0, n - 1 do sum = sum + buffer[i] end
  end)
  return sum
end

--- The mean of all elements, in double.
--- @return number
function methods:mean() return methods.sum(self) / self:count() end

-- The first element that no other one is beyond, with its indices; a NaN, if there is any.
local function extreme(t, beyond)
  local best, place
  each_part(t, function(buffer, n, from)
    for i = 0, n - 1 do
      local x = buffer[i]
      if not place or best == best and (x ~= x or beyond(x, best)) then
        best, place = x, from + i
      end
    end
  end)
  return best, unpack(indices_of({ shape(t) }, place))
end

local function is_greater(a, b) return a > b end
local function is_less(a, b) return a < b end

--- The greatest element and its indices: `local value, row, column = t:max()`. It is NaN where
--- there is one.
--- @return number value
--- @return integer ... the indices of the first such element, from 1
function methods:max() return extreme(self, is_greater) end

--- The least element and its indices, as `max` gives them.
--- @return number value
--- @return integer ... the indices of the first such element, from 1
function methods:min() return extreme(self, is_less) end

-- tables -----------------------------------------------------------------------------------------

local function nested(list, sizes, axis, place)
  local t = {}
  local stride = 1
  for k = axis + 1, #sizes do stride = stride * sizes[k] end
  for i = 1, sizes[axis] do
    local from = place + (i - 1) * stride
    t[i] = axis == #sizes and list[from + 1] or nested(list, sizes, axis + 1, from)
  end
  return t
end

--- All elements as a Lua table of numbers, or of such tables, one for each axis: `t:table()[2][3]`.
--- @return table
function methods:table() return nested(methods.read(self), { shape(self) }, 1, 0) end

-- A table's first key, and how many elements there are from it on: arrays may begin at 0.
local function extent(x)
  local first = x[0] ~= nil and 0 or 1
  return first, #x - first + 1
end

-- The sizes of a nested table, by what comes first in it.
local function sizes_of(x)
  local sizes = {}
  while type(x) == 'table' do
    local first, size = extent(x)
    if size == 0 then fail('tensor: a table without elements') end
    if #sizes == storage.MAX_RANK then
      fail('tensor: tables in tables, more than %d deep', #sizes)
    end
    sizes[#sizes + 1] = size
    x = x[first]
  end
  return sizes
end

-- Appends the numbers of a nested table of these sizes; `where` is how one writes its place.
local function append(list, x, sizes, axis, where)
  local name = where == '' and 'it' or where
  if axis > #sizes then
    if type(x) ~= 'number' then fail('tensor: %s is a %s, not a number', name, type(x)) end
    list[#list + 1] = x
    return
  end
  if type(x) ~= 'table' then
    fail('tensor: %s is a %s, and the first one there a table', name, type(x))
  end
  local first, size = extent(x)
  if size ~= sizes[axis] then
    fail('tensor: %s has %d element%s, and the first one there %d', name, size,
      size == 1 and '' or 's', sizes[axis])
  end
  for i = first, first + size - 1 do
    append(list, x[i], sizes, axis + 1, ('%s[%d]'):format(where, i))
  end
end

--- The numbers of a nested table in order, and its sizes; an error where parts of it are not alike.
--- @package
--- @param x table
--- @return number[]
--- @return integer[]
function M.flat(x)
  local list, sizes = {}, sizes_of(x)
  append(list, x, sizes, 1, '')
  return list, sizes
end

return M
