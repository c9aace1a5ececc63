--- The ids that rows of one file have had. Of each a hash of 64 bits is kept, outside LuaJIT's
--- memory, so that many millions fit: two different ids of ten million are taken for one another
--- with a chance of 3 in a million.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local arrays = require 'moonstill.data.arrays'
local bit = require 'bit'
local check = require 'moonstill.base.check'
local text_of = require 'moonstill.base.text'

local M = {}

local out = ffi.new 'char *[1]'
local FIRST = 1024 -- slots at the beginning; always a power of two

local methods = {}
methods.__index = methods

-- Slots of three numbers: the two halves of a hash, and the row that has it (0: none).
local function slots(count)
  local a = arrays.new 'uint32_t'
  a:reserve(3 * count)
  ffi.fill(a.p, 12 * count)
  return a
end

-- The slot that has this hash, or the free one where it belongs.
local function find(p, count, high, low)
  local i = bit.band(low, count - 1)
  while true do
    local slot = 3 * i
    if p[slot + 2] == 0 or (p[slot] == high and p[slot + 1] == low) then return slot end
    i = bit.band(i + 1, count - 1)
  end
end

local function put(p, slot, high, low, row)
  p[slot], p[slot + 1], p[slot + 2] = high, low, row
end

local function grow(self)
  local old, more, count = self.slots.p, slots(2 * self.room), 2 * self.room
  for k = 0, 3 * (self.room - 1), 3 do
    if old[k + 2] ~= 0 then
      put(more.p, find(more.p, count, old[k], old[k + 1]), old[k], old[k + 1], old[k + 2])
    end
  end
  self.slots, self.room = more, count
end

local function hash_of(id)
  check(C.ms_hash(id, #id, out))
  local text = text_of(out[0])
  return tonumber(text:sub(1, 8), 16), tonumber(text:sub(9, 16), 16)
end

--- An error when a row before had this id.
--- @param id string|number|ffi.cdata*
--- @param row integer the row's number, from 1
function methods:add(id, row)
  id = type(id) == 'number' and ('%.17g'):format(id) or tostring(id)
  local high, low = hash_of(id)
  local slot = find(self.slots.p, self.room, high, low)
  local before = self.slots.p[slot + 2]
  if before ~= 0 then
    error(('duplicate id "%s": row %d has it too; data.ignore=[id] takes ids as not there')
      :format(id, before), 0)
  end
  put(self.slots.p, slot, high, low, row)
  self.count = self.count + 1
  if 2 * self.count > self.room then grow(self) end
end

--- @return table
function M.new()
  return setmetatable({ count = 0, room = FIRST, slots = slots(FIRST) }, methods)
end

return M
