--- What a template is given, from plain Lua values: texts of the sample get their origin here.

local ffi = require 'ffi'
local json = require 'moonstill.base.json'
local bounds = require 'moonstill.jinja.bounds'
local strings = require 'moonstill.jinja.strings'
local values = require 'moonstill.jinja.values'

local M = {}

local raise = bounds.raise
local EXACT = 2 ^ 53
local is_int64 = ffi.typeof 'int64_t'

-- A number that stands in a table under a key, or in none.
local function number(v, holder, key)
  if v % 1 ~= 0 or v - v ~= 0 then return values.float(v) end
  if holder then
    if json.is_float(holder, key) then return values.float(v) end
    local exact = json.exact(holder, key)
    if exact then return values.integer(exact) end
  end
  if v > EXACT or v < -EXACT then return values.float(v) end
  return values.whole(v)
end

local convert

local function list_of(t, source)
  local list, n = {}, #t
  for i = 1, n do list[i] = convert(t[i], source, t, i) end
  return values.list(list, n)
end

local function dict_of(t, source)
  local keys, map = json.keys(t), {}
  local n = #keys
  for i = 1, n do
    local key = keys[i]
    if type(key) ~= 'string' then raise('a table of the sample has the key %s', tostring(key)) end
    map[key] = convert(t[key], source, t, key)
  end
  return { kind = 'dict', keys = keys, map = map, n = n, src = source }
end

-- The value of a Lua value; texts in it come from `source`, if that is given.
function convert(v, source, holder, key)
  local t = type(v)
  if t == 'string' then return source and strings.new(v, source) or v end
  if t == 'number' then return number(v, holder, key) end
  if t == 'boolean' then return v end
  if v == json.null or v == nil then return values.NONE end
  if t == 'cdata' and ffi.istype(is_int64, v) then return values.integer(v) end
  if t ~= 'table' then raise('a %s among the variables', t) end
  local depth = bounds.depth
  bounds.enter(bounds.MOST_NESTED * 3, 'a variable nested')
  local result = (json.is_array(v) and list_of or dict_of)(v, source)
  bounds.depth = depth
  return result
end

-- One message: its fields are sources of their own.
local function message_of(t, i, add)
  if not json.is_object(t) then return convert(t, add(i, nil)) end
  local keys, map, sources = json.keys(t), {}, {}
  local n = #keys
  for k = 1, n do
    local key = keys[k]
    if type(key) ~= 'string' then raise('message %d has the key %s', i, tostring(key)) end
    sources[key] = add(i, key)
    map[key] = convert(t[key], sources[key], t, key)
  end
  return { kind = 'dict', keys = keys, map = map, n = n, srcs = sources }
end

local function messages_of(t, add)
  if type(t) ~= 'table' or not json.is_array(t) then return convert(t, add(nil, 'messages')) end
  local list, n = {}, #t
  for i = 1, n do list[i] = message_of(t[i], i, add) end
  return values.list(list, n)
end

local of_the_sample = { tools = true, documents = true }

--- The value of the variable `name`. Sources are added to `sources` as they are needed.
--- @param given table all variables
--- @param sources { message?: integer, field?: string }[]
function M.value(given, name, sources)
  local v = rawget(given, name)
  if v == nil then return nil end
  local function add(message, field)
    sources[#sources + 1] = { message = message, field = field }
    return #sources
  end
  if name == 'messages' then return messages_of(v, add) end
  return convert(v, of_the_sample[name] and add(nil, name) or nil, given, name)
end

return M
