--- What a value may be, in words: "integer >= 1", "path", "auto|false|number >= 0 <= 10". The
--- options of modules and the keys of configurations are declared in them, and help shows them.
---
--- Alternatives are separated by `|`: path, paths (one or a list), sources (paths too, or in the
--- place of one `{ path =, weight =, repeat =, limit = }`), string, number, integer, boolean, list,
--- table, function, the name of a kind of handle ("device") or of a class ("grid"); any other word
--- stands for itself.
--- Bounds may follow a number.
local fail = require 'moonstill.base.fail'
local handles = require 'moonstill.base.handle'
local json = require 'moonstill.base.json'
local sorted = require 'moonstill.base.sorted'
local strict = require 'moonstill.base.strict'

local M = {}

local function is_path(v) return type(v) == 'string' and v ~= '' end

local function is_paths(v)
  if not json.is_array(v) then return is_path(v) end
  for _, one in ipairs(v) do
    if not is_path(one) then return false end
  end
  return #v > 0
end

local function is_finite(v) return type(v) == 'number' and v == v and math.abs(v) < math.huge end

local IN_SOURCE = {
  path = is_path,
  weight = function(v) return is_finite(v) and v >= 0 and v <= 1e6 end,
  ['repeat'] = function(v) return is_finite(v) and v > 0 and v <= 1e6 end,
  limit = function(v) return is_finite(v) and v >= 1 and v % 1 == 0 end,
}

local function is_source(v)
  if not json.is_object(v) then return is_path(v) end
  for key, value in sorted.pairs(v) do
    if not (IN_SOURCE[key] and IN_SOURCE[key](value)) then return false end
  end
  return v.path ~= nil
end

local function is_sources(v)
  if not json.is_array(v) then return is_source(v) end
  for _, one in ipairs(v) do
    if not is_source(one) then return false end
  end
  return #v > 0
end

--- The paths in a value of the kind path, paths or sources.
--- @param value any
--- @return string[]
function M.paths(value)
  if type(value) == 'string' then return { value } end
  local list = {}
  for _, one in ipairs(json.is_array(value) and value or { value }) do
    list[#list + 1] = type(one) == 'string' and one or one.path
  end
  return list
end

local is_word = {
  path = is_path,
  paths = is_paths,
  sources = is_sources,
  ['function'] = function(v) return type(v) == 'function' end,
  string = function(v) return type(v) == 'string' end,
  number = is_finite,
  integer = function(v) return type(v) == 'number' and v % 1 == 0 and math.abs(v) <= 2 ^ 53 end,
  boolean = function(v) return type(v) == 'boolean' end,
  list = function(v) return json.is_array(v) or (json.is_object(v) and next(v) == nil) end,
  table = json.is_object,
}

local keeps = {
  ['<'] = function(a, b) return a < b end, ['<='] = function(a, b) return a <= b end,
  ['>'] = function(a, b) return a > b end, ['>='] = function(a, b) return a >= b end,
}

local function parse_bounds(alternative, text)
  local bounds = {}
  for sign, limit in text:gmatch '([<>]=?)%s*(%S+)' do
    bounds[#bounds + 1] = { keeps = keeps[sign], limit = tonumber(limit)
      or fail("kinds: no bound: '%s'", alternative) }
  end
  return bounds
end

local parsed = {} -- by kind: its alternatives

local function parse(kind)
  local list = parsed[kind]
  if list then return list end
  list = {}
  for alternative in kind:gmatch '[^|]+' do
    local word, bounds = alternative:match '^%s*(%S+)(.*)$'
    list[#list + 1] = { word = word, bounds = parse_bounds(alternative, bounds) }
  end
  parsed[kind] = list
  return list
end

local function is_one(value, alternative)
  local word = alternative.word
  local is = is_word[word]
  if not is then
    return handles.is(word, value) or strict.what(value) == word
      or type(value) ~= 'table' and tostring(value) == word
  end
  if not is(value) then return false end
  for _, bound in ipairs(alternative.bounds) do
    if not bound.keeps(value, bound.limit) then return false end
  end
  return true
end

--- The word of the alternative that a value is, such as "path"; nil where it is none.
--- @param kind string
--- @param value any
--- @return string?
function M.of(kind, value)
  for _, alternative in ipairs(parse(kind)) do
    if is_one(value, alternative) then return alternative.word end
  end
  return nil
end

local INT32 = ' <= 2147483647' -- what the core's integers hold: says nothing to a reader

--- A kind as its readers see it: "number >= 0 <= 10" is "number from 0 to 10". A bound that is the
--- core's own is left out, unless it is what keeps a value from being of that kind.
--- @param kind string
--- @param value? any
--- @return string
function M.text(kind, value)
  if not (type(value) == 'number' and value > 2 ^ 31 - 1) then kind = kind:gsub(INT32, '') end
  return (kind:gsub('>= (%S+) <= ([^|%s]+)', 'from %1 to %2'):gsub('|', ' or ')
    :gsub('%f[%a]sources%f[%A]', 'paths or {path:, weight:, repeat:, limit:}'))
end

--- A value as help and errors show it.
--- @param value any
--- @return string
function M.shown(value)
  if value == nil then return '' end
  if type(value) ~= 'table' then return tostring(value) end
  local ok, text = pcall(json.encode, value) -- a list may hold a NaN
  return ok and text or tostring(value)
end

return M
