--- Samples side by side in bare arrays: no sample and no token is an object of Lua's.
---
--- `token` and `level` have an element for each token, `start` the first token of each sample and
--- the end of the last one, `weight` and `row` an element for each sample: what multiplies its
--- positions' weights, and the number of the row that it comes from. The level of a position is the
--- number of its two weights in `levels`: there are few different pairs.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local arrays = require 'moonstill.data.arrays'
local check = require 'moonstill.base.check'
local text_of = require 'moonstill.base.text'

local M = {}

--- The arrays by name, and the types of their elements.
M.names = { 'token', 'level', 'start', 'weight', 'row' }
M.types = { token = 'int32_t', level = 'uint8_t', start = 'int64_t', weight = 'float',
  row = 'int32_t' }

--- Levels of the pairs 0 and 1, and 1 and 1.
local function new_levels()
  return { response = ffi.new('float[256]', 0, 1), all = ffi.new('float[256]', 1, 1), count = 2,
    find = { [0] = { [1] = 0 }, [1] = { [1] = 1 } } }
end

--- @class ms_samples
--- @field count integer samples
--- @field tokens integer
--- @field levels { response: ffi.cdata*, all: ffi.cdata*, count: integer } weights by level
--- @field extremes table the largest id and the longest sample, with the places of their rows
local methods = {}
local class = { __index = methods }

--- No samples yet.
--- @return ms_samples
function M.new()
  local self = { count = 0, tokens = 0, levels = new_levels(),
    extremes = { id = { value = -1 }, length = { value = 0 } } }
  for _, name in ipairs(M.names) do self[name] = arrays.new(M.types[name]) end
  self.start:add(0)
  return setmetatable(self, class)
end

--- The level of a pair of weights.
--- @param response number where answers are learnt
--- @param all number where everything is
--- @return integer
function methods:level_of(response, all)
  local levels = self.levels
  local row = levels.find[response]
  local level = row and row[all]
  if level then return level end
  level = levels.count
  if level > 255 then error('more than 256 different weights', 0) end
  row = row or {}
  levels.find[response], row[all] = row, level
  levels.response[level], levels.all[level], levels.count = response, all, level + 1
  return level
end

-- Notes the largest value so far, and the place of its row.
local function note_extreme(self, name, value, place)
  local known = self.extremes[name]
  if value > known.value then known.value, known.place = value, place end
end

--- Appends a sample: tokens first .. first + n - 1 of `ids` with the levels of their positions. The
--- last one predicts nothing.
--- @param ids ffi.cdata* int32_t[]
--- @param level ffi.cdata* uint8_t[]
--- @param first integer
--- @param n integer
--- @param from { weight: number, row: integer, place: string } where it comes from
function methods:add(ids, level, first, n, from)
  local largest = 0
  self.token:reserve(n)
  self.level:reserve(n)
  local at = self.token.count
  ffi.copy(self.token.p + at, ids + first, 4 * n)
  ffi.copy(self.level.p + at, level + first, n)
  self.level.p[at + n - 1] = 0
  for t = first, first + n - 1 do largest = math.max(largest, ids[t]) end
  note_extreme(self, 'id', largest, from.place)
  note_extreme(self, 'length', n, from.place)
  self.token.count, self.level.count = at + n, at + n
  self.count, self.tokens = self.count + 1, self.tokens + n
  self.start:add(self.tokens)
  self.weight:add(from.weight)
  self.row:add(from.row)
end

--- The first token of a sample and how many it has. Of a sample that there is.
--- @param i integer from 1
--- @return integer first
--- @return integer n
function methods:range(i)
  local first = tonumber(self.start.p[i - 1])
  return first, tonumber(self.start.p[i]) - first
end

local text_out = ffi.new 'char *[1]'

--- A hash of memory.
--- @param data ffi.cdata*|string
--- @param bytes integer
--- @return string
function M.hash(data, bytes)
  local there = type(data) == 'string' and #data or type(data) == 'cdata' and ffi.sizeof(data) or 0
  local pointer = tostring(ffi.typeof(type(data) == 'cdata' and data or 'int')):find '%*>'
  check.integer('hash', 'bytes', bytes, 0, pointer and check.EXACT or there)
  check(C.ms_hash(data, bytes, text_out))
  return text_of(text_out[0])
end

--- The hash of an array by name.
--- @param name string
--- @return string
function methods:hash_of(name) return M.hash(self[name].p, self[name]:bytes()) end

--- A hash of all samples as they are learnt: their tokens, cuts and weights.
--- @return string
function methods:fingerprint()
  local parts = {}
  for _, levels in ipairs { self.levels.response, self.levels.all } do
    parts[#parts + 1] = M.hash(levels, ffi.sizeof(levels))
  end
  for _, name in ipairs { 'token', 'level', 'start', 'weight' } do
    parts[#parts + 1] = self:hash_of(name)
  end
  local all = table.concat(parts)
  return M.hash(all, #all)
end

return M
