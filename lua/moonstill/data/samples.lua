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
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local text_of = require 'moonstill.base.text'

local M = {}

--- The arrays by name, and the types of their elements.
M.names = { 'token', 'level', 'start', 'weight', 'row' }
M.types = { token = 'int32_t', level = 'uint8_t', start = 'int64_t', weight = 'float',
  row = 'int32_t' }

--- Tokens that are written together to a cache.
M.chunk = 2 ^ 20

-- Levels of the pairs 0 and 1, and 1 and 1.
local function new_levels()
  return { response = ffi.new('float[256]', 0, 1), all = ffi.new('float[256]', 1, 1), count = 2,
    find = { [0] = { [1] = 0 }, [1] = { [1] = 1 } } }
end

--- @class ms_samples
--- @package
--- @field count integer samples
--- @field tokens integer
--- @field path? string of the cache in which they are
--- @field levels { response: ffi.cdata*, all: ffi.cdata*, count: integer } weights by level
--- @field extremes table the largest id and the longest sample, with the places of their rows
local methods = {}
local class = { __index = methods }

-- on disk ----------------------------------------------------------------------------------------

local text_out = ffi.new 'char *[1]'
local writer_out, map_out = ffi.new 'ms_cache *[1]', ffi.new 'ms_map *[1]'

local function drop_writer(self)
  C.ms_cache_abort(ffi.gc(self.writer, nil))
  self.writer = nil
end

-- What was written comes back into memory.
local function give_up(self, why)
  if self.writer then
    for k, name in ipairs(M.names) do
      local stored, rest, all = self.stored[name], self[name], arrays.new(M.types[name])
      all:reserve(stored + rest.count)
      check(C.ms_cache_read(self.writer, k - 1, all.p, stored * all.size))
      ffi.copy(all.p + stored, rest.p, rest:bytes())
      all.count, self[name] = stored + rest.count, all
    end
    drop_writer(self)
  end
  self.path, self.hashes = nil, {}
  self.note(tostring(why))
end

local function write_out(self)
  if not self.writer then
    check(C.ms_cache_begin(self.path, #M.names, writer_out))
    self.writer = ffi.gc(writer_out[0], C.ms_cache_abort)
  end
  for k, name in ipairs(M.names) do
    check(C.ms_cache_add(self.writer, k - 1, self[name].p, self[name]:bytes()))
  end
end

-- What is in memory goes to the files.
local function spill(self)
  local ok, why = fail.pcall(write_out, self)
  if not ok then return give_up(self, why) end
  for _, name in ipairs(M.names) do
    local a = self[name]
    self.stored[name], a.count = self.stored[name] + a.count, 0
  end
end

-- Opens the files of a cache in the place of the arrays, which have the sizes that follow from the
-- numbers of samples and tokens.
local function map(self)
  local mapped = {}
  for k, name in ipairs(M.names) do
    check.file(C.ms_map_open(('%s/%d'):format(self.path, k - 1), map_out))
    local handle = ffi.gc(map_out[0], C.ms_map_close)
    local a = arrays.over(C.ms_map_data(handle), tonumber(C.ms_map_bytes(handle)), M.types[name],
      handle)
    local want = (name == 'token' or name == 'level') and self.tokens
      or self.count + (name == 'start' and 1 or 0)
    if a.count ~= want or a:bytes() ~= C.ms_map_bytes(handle) then
      error(('%s: its file of %ss has another size'):format(self.path, name), 0)
    end
    mapped[name] = a
  end
  for _, name in ipairs(M.names) do self[name] = mapped[name] end
  if self.writer then drop_writer(self) end
end

-- samples ----------------------------------------------------------------------------------------

--- No samples yet.
--- @return ms_samples
function M.new()
  local self = { count = 0, tokens = 0, stored = {}, hashes = {}, levels = new_levels(),
    extremes = { id = { value = -1 }, length = { value = 0 } } }
  for _, name in ipairs(M.names) do self[name], self.stored[name] = arrays.new(M.types[name]), 0 end
  self.start:add(0)
  return setmetatable(self, class)
end

--- Samples that a cache holds: an error where its files are not those of which `known` tells.
--- @param path string
--- @param known { count: integer, tokens: integer, levels: number[][], extremes: table,
---   hashes: table<string, string> }
--- @return ms_samples
function M.open(path, known)
  local self = M.new()
  self.path, self.count, self.tokens = path, known.count, known.tokens
  self.hashes, self.extremes = known.hashes, known.extremes
  for _, pair in ipairs(known.levels) do self:level_of(pair[1], pair[2]) end
  map(self)
  for _, name in ipairs(M.names) do
    if M.hash(self[name].p, self[name]:bytes()) ~= self.hashes[name] then
      error(('%s: its file of %ss is damaged'):format(path, name), 0)
    end
  end
  return self
end

--- Its levels as pairs of numbers, in order.
--- @return number[][]
function methods:weights()
  local list, levels = json.array(), self.levels
  for i = 0, levels.count - 1 do list[i + 1] = { levels.response[i], levels.all[i] } end
  return list
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
  if self.path and self.token.count >= M.chunk then spill(self) end
end

--- From now on the samples go to a cache at `path`, many at a time, so that memory stays as it is.
--- Where that fails (a full disk) they come back into memory, and `note` is called with the reason.
--- @param path string
--- @param note fun(why: string)
function methods:keep_at(path, note) self.path, self.note = path, note end

--- Ends the samples. Those that go to a cache are whole there, and mapped from it, once this is
--- done. Returns whether they are.
--- @param about fun(): string what the cache says of itself
--- @return boolean
function methods:seal(about)
  if not self.path then return false end
  spill(self)
  if not self.writer then return false end
  local ok, why = fail.pcall(function()
    for k, name in ipairs(M.names) do
      check(C.ms_cache_hash(self.writer, k - 1, text_out))
      self.hashes[name] = text_of(text_out[0])
    end
    check(C.ms_cache_commit(self.writer, about()))
    map(self)
  end)
  if ok then return true end
  give_up(self, why)
  return false
end

--- Gives up all that is on its way to a cache: the samples are not to be used any more.
function methods:drop()
  if self.writer then drop_writer(self) end
end

--- Takes back into memory what goes to a cache: nothing of it stays there.
--- @param why? string for the note; without it there is none
function methods:forget(why)
  if not why then self.note = function() end end
  if self.path then give_up(self, why) end
end

--- How many bytes its arrays have.
--- @return integer
function methods:bytes()
  local total = 0
  for _, name in ipairs(M.names) do total = total + self[name]:bytes() end
  return total
end

--- The first token of a sample and how many it has. Of a sample that there is.
--- @param i integer from 1
--- @return integer first
--- @return integer n
function methods:range(i)
  local first = tonumber(self.start.p[i - 1])
  return first, tonumber(self.start.p[i]) - first
end

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
function methods:hash_of(name)
  return self.hashes[name] or M.hash(self[name].p, self[name]:bytes())
end

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
