--- Attributes, elements and slices of values, by the rules of Jinja's sandbox.

local bounds = require 'moonstill.jinja.bounds'
local methods = require 'moonstill.jinja.methods'
local printing = require 'moonstill.jinja.printing'
local strings = require 'moonstill.jinja.strings'
local values = require 'moonstill.jinja.values'

local M = {}

local raise, undefined = bounds.raise, values.undefined
local NONE = values.NONE

local function no_attribute(v, name)
  return undefined(("'%s' has no attribute '%s'"):format(values.object_name(v), name), name)
end

local function no_element(v, key)
  if strings.is(key) then return no_attribute(v, strings.text(key)) end
  return undefined(('%s has no element %s'):format(values.object_name(v),
    strings.text(printing.repr(key))))
end

-- Attributes that all of Python's objects have; none of them may be used.
local dunder = {}
for name in ([[class doc dir eq format ge getattribute getstate gt hash init init_subclass le lt ne
  new reduce reduce_ex repr setattr delattr sizeof str subclasshook]]):gmatch '%S+' do
  dunder['__' .. name .. '__'] = true
end

local function unsafe(v, name)
  return undefined(("access to attribute '%s' of '%s' object is unsafe."):format(name,
    values.type_name(v)), name)
end

-- Attributes of the kinds that have some which are no methods; nil for those that there are not.
local own = {
  namespace = function(v, name) return v.attrs.map[name] end,
  loop = function(v, name) return v:attribute(name) end,
  object = function(v, name) return v:attribute(name) end,
  range = function(v, name)
    if name == 'start' or name == 'step' or name == 'stop' then return v[name] end
  end,
  tuple = function(v, name)
    if v.fields and v.fields[name] then return v[v.fields[name]] end
  end,
  macro = function(v, name)
    if name == 'name' then return v.name or NONE end
    if name == 'arguments' then return v.arguments end
    if name == 'caller' or name == 'catch_kwargs' or name == 'catch_varargs' then
      return v[name] or false
    end
  end,
}

-- What getattr(v, name) has in Python, or nil.
local function attribute(v, name)
  local kind = values.kind(v)
  if kind == 'undefined' then
    if dunder[name] then return unsafe(v, name) end
    if name:find '^__' and name:find '__$' then return nil end
    values.fail_undefined(v)
  end
  local get = own[kind]
  local value = get and get(v, name)
  if value ~= nil then return value end
  if kind ~= 'namespace' and (dunder[name] or methods.unsafe[kind] and methods.unsafe[kind][name])
  then
    return unsafe(v, name)
  end
  local method = methods[kind] and methods[kind][name]
  if method then return { kind = 'method', name = name, self = v, method = method } end
  return nil
end

--- v.name: the attribute, else the element.
function M.getattr(v, name)
  local value = attribute(v, name)
  if value ~= nil then return value end
  local kind = values.kind(v)
  if kind == 'undefined' then values.fail_undefined(v) end
  if kind == 'dict' then
    value = v.map[name]
    if value ~= nil then return value end
  end
  return no_attribute(v, name)
end

--- The attribute alone, as the filter attr has it.
function M.only_attribute(v, name)
  local value = attribute(v, name)
  if value ~= nil then return value end
  return no_attribute(v, name)
end

-- elements ---------------------------------------------------------------------------------------

local function list_item(v, i)
  if i < 0 then i = i + v.n end
  if i >= 0 and i < v.n then return v[i + 1] end
end

local function range_item(v, i)
  if i < 0 then i = i + v.n end
  if i >= 0 and i < v.n then return v.start + i * v.step end
end

local function text_item(v, i)
  local s = strings.text(v)
  if strings.is_ascii(s) then
    if i < 0 then i = i + #s end
    if i >= 0 and i < #s then return strings.like(v, strings.sub(v, i + 1, i + 1)) end
    return nil
  end
  bounds.charge(1 + #s / 64)
  if i < 0 then i = i + strings.length(s) end
  if i < 0 then return nil end
  local from = strings.offset(s, i)
  if from >= #s then return nil end
  return strings.like(v, strings.sub(v, from + 1, strings.offset(s, 1, from)))
end

local items = { list = list_item, tuple = list_item, range = range_item, str = text_item }

--- v[key]: the element, else the attribute where the key is a text.
function M.getitem(v, key)
  local kind, value = values.kind(v), nil
  if kind == 'dict' then
    local key_kind = values.kind(key)
    if key_kind ~= 'list' and key_kind ~= 'dict' then value = values.dict_get(v, key) end
  elseif kind == 'undefined' then
    values.fail_undefined(v)
  elseif items[kind] then
    local i = values.as_integer(key)
    if i then value = items[kind](v, tonumber(i)) end
  end
  if value ~= nil then return value end
  if strings.is(key) then
    value = attribute(v, strings.text(key))
    if value ~= nil then return value end
  end
  return no_element(v, key)
end

-- slices -----------------------------------------------------------------------------------------

local function bound(v, default)
  if v == nil or v == NONE then return default end
  return values.index(v, 'slice indices')
end

-- The first index, the number of elements, the step and the end of a slice of n elements.
local function resolve(n, start, stop, step)
  step = bound(step, 1)
  if step == 0 then raise 'slice step cannot be zero' end
  local low, high = step < 0 and -1 or 0, step < 0 and n - 1 or n
  local function clip(i)
    if i < 0 then i = i + n end
    return math.max(low, math.min(i, high))
  end
  local first = clip(bound(start, step < 0 and math.huge or 0))
  local last = (stop == nil or stop == NONE) and (step < 0 and -1 or n) or clip(bound(stop))
  local count = math.ceil((last - first) / step)
  return first, math.max(count, 0), step, last
end

local function slice_text(v, start, stop, step)
  local s = strings.text(v)
  bounds.charge(1 + #s / 64)
  local n = strings.length(s)
  local first, count, by = resolve(n, start, stop, step)
  if by == 1 then
    local from = strings.offset(s, first)
    return strings.like(v, strings.sub(v, from + 1, strings.offset(s, count, from)))
  end
  local chars, pieces = strings.characters(v), {}
  for i = 1, count do pieces[i] = chars[first + (i - 1) * by + 1] end
  return strings.like(v, strings.concat(pieces, count))
end

local function slice_list(v, start, stop, step)
  local first, count, by = resolve(v.n, start, stop, step)
  local list = {}
  bounds.charge(count)
  for i = 1, count do list[i] = v[first + (i - 1) * by + 1] end
  return v.kind == 'tuple' and values.tuple(list, count) or values.list(list, count)
end

--- A range of n numbers.
function M.range(start, stop, step)
  local n = math.max(0, math.ceil((stop - start) / step))
  return { kind = 'range', start = start, stop = stop, step = step, n = n }
end

local function slice_range(v, start, stop, step)
  local first, _, by, last = resolve(v.n, start, stop, step)
  return M.range(v.start + first * v.step, v.start + last * v.step, by * v.step)
end

local slices = { str = slice_text, list = slice_list, tuple = slice_list, range = slice_range }

--- v[start:stop:step]; nil for what was left out.
function M.slice(v, start, stop, step)
  local kind = values.kind(v)
  if kind == 'undefined' then values.fail_undefined(v) end
  if slices[kind] then return slices[kind](v, start, stop, step) end
  if kind == 'dict' then raise "unhashable type: 'slice'" end
  raise("'%s' object is not subscriptable", values.type_name(v))
end

return M
