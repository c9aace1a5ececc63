--- What a data set is read from: files, or rows of a Lua table, each with how much it counts
--- (`weight`), how often it comes in an epoch (`repeat`) and how many of its rows are read
--- (`limit`).

local C = require 'moonstill.C'
local fail = require 'moonstill.base.fail'
local handles = require 'moonstill.base.handle'
local json = require 'moonstill.base.json'
local kinds = require 'moonstill.base.kinds'
local options_of = require 'moonstill.base.options'

local M = {}

local KEYS = { path = true, rows = true, weight = true, ['repeat'] = true, limit = true }

local function check_rows(rows)
  for i, row in ipairs(rows) do
    if not json.is_object(row) then
      fail('dataset: row %d of the table is %s, and a row is an object', i, handles.what(row))
    end
  end
  return rows
end

-- A slip of the pen in a source would make a row of it.
local function is_meant(value)
  return json.is_object(value) and (json.is_array(value.rows)
    or type(value.path) == 'string' and C.ms_path_kind(value.path) ~= 0)
end

local function one(value)
  if type(value) == 'string' then value = { path = value } end
  local rows = rawget(value, 'rows')
  local known = rows and { path = '-', weight = value.weight, limit = value.limit,
    ['repeat'] = value['repeat'] } or value
  if is_meant(value) then options_of.known('dataset: a source', KEYS, value) end
  if rows and value.path then fail('dataset: a source has a path or rows, not both') end
  if not kinds.of('sources', known) then
    fail('dataset: %s expected, got %s', kinds.text 'sources', kinds.shown(known))
  end
  return { name = rows and 'rows' or value.path, path = not rows and value.path or nil,
    rows = rows and check_rows(rows), weight = value.weight or 1, times = value['repeat'] or 1,
    limit = value.limit }
end

local function is_source(value)
  return type(value) == 'string' or kinds.of('sources', value) or is_meant(value)
end

--- The sources that a value names: a path, `{ path =, weight =, repeat =, limit = }` or the same
--- with `rows`, a list of these, or a list of rows.
--- @param value any
--- @return { name: string, path?: string, rows?: table[], weight: number, times: number,
---   limit?: integer }[]
function M.take(value)
  if not json.is_array(value) and is_source(value) then return { one(value) } end
  if not json.is_array(value) or #value == 0 then
    fail('dataset: a path or a list of paths expected, got %s',
      type(value) == 'table' and next(value) == nil and 'an empty list' or handles.what(value))
  end
  if not is_source(value[1]) then return { one { rows = value } } end
  local list = {}
  for i, each in ipairs(value) do
    if not is_source(each) then
      fail('dataset: source %d is %s, expected a path or { path = .. }', i, kinds.shown(each))
    end
    list[i] = one(each)
  end
  return list
end

--- How many bytes of text a file has, as far as that is known: of a compressed one it is not.
--- @param path string
--- @return integer?
function M.bytes(path)
  if path:find '%.gz$' or path:find '%.zst$' then return nil end
  local file = io.open(path, 'rb')
  local bytes = file and file:seek 'end'
  if file then file:close() end
  return bytes
end

--- The files of a list of sources.
--- @param list table[]
--- @return string[]
function M.paths(list)
  local paths = {}
  for _, source in ipairs(list) do paths[#paths + 1] = source.path end
  return paths
end

return M
