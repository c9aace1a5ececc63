--- What a template's values are in Lua.
---
--- Booleans are Lua's. Integers are Lua numbers below 2^53 and int64_t from there on. Texts without
--- an origin are Lua strings. All else is a table with a `kind`: 'str' (strings.lua), 'float',
--- 'none', 'undefined', 'list' and 'tuple' { 1 .. n, n }, 'dict', 'namespace', 'range', 'iterator',
--- 'view', 'loop', 'macro', 'function', 'method'. No value is nil.

local ffi = require 'ffi'
local bounds = require 'moonstill.jinja.bounds'
local strings = require 'moonstill.jinja.strings'

local M = {}

local raise = bounds.raise
local int64 = ffi.typeof 'int64_t'
local EXACT = 2 ^ 53

--- None.
M.NONE = { kind = 'none' }

function M.float(x) return { kind = 'float', x = x } end

--- A list of the first n elements of a table, which it becomes.
function M.list(items, n)
  items.kind, items.n = 'list', n or #items
  return items
end

function M.tuple(items, n)
  items.kind, items.n = 'tuple', n or #items
  return items
end

--- An undefined value: its use is an error with these words.
--- @param words string
--- @param name? string the variable
function M.undefined(words, name) return { kind = 'undefined', words = words, name = name } end

--- Raises the error of an undefined value that is used.
function M.fail_undefined(v) raise(v.words:gsub('%%', '%%%%')) end

-- kinds ------------------------------------------------------------------------------------------

--- The kind of any value: 'bool', 'int', 'str', or the table's.
--- @return string
function M.kind(v)
  local t = type(v)
  if t == 'table' then return v.kind end
  if t == 'string' then return 'str' end
  if t == 'number' or t == 'cdata' then return 'int' end
  return 'bool'
end

local names = { none = 'NoneType', undefined = 'Undefined', loop = 'LoopContext', macro = 'Macro',
  namespace = 'Namespace', ['function'] = 'function', method = 'builtin_function_or_method' }

--- The name that Python has for the type of a value.
--- @return string
function M.type_name(v)
  local kind = M.kind(v)
  if kind == 'view' or kind == 'iterator' or kind == 'object' then return v.name end
  return names[kind] or kind
end

--- What Jinja calls an object in the message of an undefined attribute.
--- @return string
function M.object_name(v)
  local kind = M.kind(v)
  if kind == 'none' then return 'None' end
  if kind == 'namespace' then return 'jinja2.utils.Namespace object' end
  return M.type_name(v) .. ' object'
end

--- Whether a value is true, as Python has it.
--- @return boolean
function M.truth(v)
  local t = type(v)
  if t == 'boolean' then return v end
  if t == 'string' then return v ~= '' end
  if t == 'number' then return v ~= 0 end
  if t == 'cdata' then return true end
  local kind = v.kind
  if kind == 'none' or kind == 'undefined' then return false end
  if kind == 'str' then return v.s ~= '' end
  if kind == 'list' or kind == 'tuple' or kind == 'dict' or kind == 'view' or kind == 'range' then
    return v.n > 0
  end
  if kind == 'float' then return v.x ~= 0 end
  return true
end

-- numbers ----------------------------------------------------------------------------------------

--- An int64_t as the number that it is where that is exact.
function M.integer(v)
  local x = tonumber(v)
  if x > -EXACT and x < EXACT then return x end
  return v
end

--- A whole double as an integer.
--- @param x number
function M.whole(x)
  if x > -EXACT and x < EXACT then return x + 0 end
  if x >= 2 ^ 63 or x < -2 ^ 63 or x ~= x then raise 'an integer beyond 64 bits' end
  return int64(x)
end

--- The number of a value as a double, for comparisons and floats; nil where it is none.
function M.number(v)
  local t = type(v)
  if t == 'number' then return v end
  if t == 'boolean' then return v and 1 or 0 end
  if t == 'cdata' then return tonumber(v) end
  if t == 'table' and v.kind == 'float' then return v.x end
  return nil
end

--- An integer (or boolean) as a Lua number or int64_t; nil where it is none.
function M.as_integer(v)
  local t = type(v)
  if t == 'number' or t == 'cdata' then return v end
  if t == 'boolean' then return v and 1 or 0 end
  return nil
end

--- An integer that counts or points, as a Lua number; an error where it is none.
--- @param what string
--- @return number
function M.index(v, what)
  local x = M.as_integer(v)
  if not x then
    if M.kind(v) == 'undefined' then M.fail_undefined(v) end
    raise('%s must be an integer, not %s', what, M.type_name(v))
  end
  return tonumber(x)
end

--- A flag that Python takes as an integer: an error where it is none.
--- @return boolean
function M.flag(v)
  if v == nil then return false end
  local i = M.as_integer(v)
  if not i then
    if M.kind(v) == 'undefined' then M.fail_undefined(v) end
    raise("'%s' object cannot be interpreted as an integer", M.type_name(v))
  end
  return i ~= 0
end

-- dicts ------------------------------------------------------------------------------------------
-- { keys = hashes in order, map = hash to value, names = hash to key where the key is not its hash,
--   src = the source of keys that are texts, or srcs = hash to source, n }

local function tuple_hash(v)
  local parts = {}
  for i = 1, v.n do
    local hash = M.hash(v[i])
    parts[i] = type(hash) .. ':' .. #tostring(hash) .. ':' .. tostring(hash)
  end
  return '\255(' .. table.concat(parts, ',') .. ')'
end

--- What stands for a key in the table of a dict: equal keys have the same.
--- @return any
function M.hash(v)
  local t = type(v)
  if t == 'string' or t == 'number' then return v end
  if t == 'boolean' then return v and 1 or 0 end
  if t == 'cdata' then return '\255i' .. tostring(v) end
  local kind = v.kind
  if kind == 'str' then return v.s end
  if kind == 'float' then return v.x == v.x and v.x or '\255nan' end
  if kind == 'tuple' then
    bounds.charge(1 + v.n)
    return tuple_hash(v)
  end
  if kind == 'list' or kind == 'dict' then raise("unhashable type: '%s'", M.type_name(v)) end
  return v
end

--- An empty dict.
function M.dict() return { kind = 'dict', keys = {}, map = {}, n = 0 } end

--- Sets a key of a dict that is being made.
function M.dict_set(d, key, value)
  local hash = M.hash(key)
  if d.map[hash] == nil then
    d.n = d.n + 1
    d.keys[d.n] = hash
    if hash ~= key then
      d.names = d.names or {}
      d.names[hash] = key
    end
  end
  d.map[hash] = value
end

--- The value of a key, or nil.
function M.dict_get(d, key) return d.map[M.hash(key)] end

--- Key number i of a dict, as a value with its origin.
function M.dict_key(d, i)
  local hash = d.keys[i]
  if d.names and d.names[hash] ~= nil then return d.names[hash] end
  local source = d.src or d.srcs and d.srcs[hash]
  return source and strings.new(hash, source) or hash
end

--- A new dict with the entries of another.
function M.dict_copy(d)
  local copy = M.dict()
  bounds.charge(d.n)
  for i = 1, d.n do M.dict_set(copy, M.dict_key(d, i), d.map[d.keys[i]]) end
  return copy
end

-- iteration --------------------------------------------------------------------------------------

--- A value that is gone over once, by a function that returns the next element or nil.
--- @param name string what Python calls its type
--- @param step fun(): any
function M.iterator(name, step) return { kind = 'iterator', name = name, step = step } end

--- As `iterator`, of a generator: nothing is done, nor can go wrong, before the first element is
--- asked for. `start` returns the step.
--- @param start fun(): fun(): any
function M.generator(start)
  local step
  return M.iterator('generator', function()
    step = step or start()
    return step()
  end)
end

--- A thing that has the elements of a list but no places: what dict.keys() gives.
function M.view(name, items, n)
  items.kind, items.name, items.n = 'view', name, n or #items
  return items
end

local function step_list(v)
  local i = 0
  return function()
    i = i + 1
    if i <= v.n then return v[i] end
  end
end

local function step_dict(v)
  local i = 0
  return function()
    i = i + 1
    if i <= v.n then return M.dict_key(v, i) end
  end
end

local function step_range(v)
  local i = 0
  return function()
    i = i + 1
    if i <= v.n then return v.start + (i - 1) * v.step end
  end
end

local function step_nothing() return function() end end

local steps = { list = step_list, tuple = step_list, view = step_list, dict = step_dict,
  range = step_range, undefined = step_nothing,
  iterator = function(v) return v.step end,
  str = function(v) return step_list(M.list(strings.characters(v))) end }

--- A function that returns the elements of a value, one a call, then nil; nil where it has none.
--- @return (fun(): any)?
function M.try_iterate(v)
  local make = steps[M.kind(v)]
  return make and make(v)
end

--- As `try_iterate`; a value that has no elements is an error.
--- @return fun(): any
function M.iterate(v)
  local step = M.try_iterate(v)
  if not step then raise("'%s' object is not iterable", M.type_name(v)) end
  return step
end

--- The elements of a value as a table and their number. The table may be the value's own.
--- @return any[], integer
function M.elements(v)
  local kind = M.kind(v)
  if kind == 'list' or kind == 'tuple' or kind == 'view' then
    bounds.charge(v.n)
    return v, v.n
  end
  local step, list, n = M.iterate(v), {}, 0
  local x = step()
  while x ~= nil do
    n = n + 1
    list[n] = x
    bounds.charge(1)
    x = step()
  end
  return list, n
end

--- A new list of the elements of a value.
function M.new_list(v)
  local items, n = M.elements(v)
  local list = {}
  for i = 1, n do list[i] = items[i] end
  return M.list(list, n)
end

--- The length of a value, as len() has it.
--- @return integer
function M.length(v)
  local kind = M.kind(v)
  if kind == 'str' then return strings.length(strings.text(v)) end
  if kind == 'undefined' then return 0 end
  if kind == 'loop' then return v:length() end
  if v ~= nil and type(v) == 'table' and v.n and kind ~= 'iterator' then return v.n end
  raise("object of type '%s' has no len()", M.type_name(v))
end

return M
