--- The order of an epoch over parts of a data set that come in it more often than once, or in part.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'

local M = {}

--- How many samples of a part an epoch has: `times` each, rounded, and at least one.
--- @param part { count: integer, times: number }
--- @return integer
function M.picks(part)
  return part.count > 0 and math.max(1, math.floor(part.times * part.count + 0.5)) or 0
end

--- How many samples an epoch has.
--- @param parts table[]
--- @return integer
function M.total(parts)
  local total = 0
  for _, part in ipairs(parts) do total = total + M.picks(part) end
  return total
end

--- Whether an epoch is anything but each sample once.
--- @param parts table[]
--- @return boolean
function M.repeats(parts)
  for _, part in ipairs(parts) do
    if part.times ~= 1 then return true end
  end
  return false
end

local PARTIAL = 2 ^ 40 -- streams of random numbers that no epoch has: one for each part

-- Samples of one part: whole passes, then as many as are left, of a fixed permutation of which each
-- epoch takes up where the one before ended.
local function fill(places, at, seed, epoch, k, part)
  local n = M.picks(part)
  if n == 0 then return end
  local whole = math.floor(n / part.count) * part.count
  local order = ffi.new('int32_t[?]', part.count)
  check(C.ms_permutation(seed, PARTIAL + k, part.count, order))
  for i = 0, whole - 1 do places[at + i] = part.first + i % part.count end
  for i = 0, n - whole - 1 do
    places[at + whole + i] = part.first + order[(i + epoch * (n - whole)) % part.count]
  end
end

--- The samples of an epoch, from 1, in its order.
--- @param parts { first: integer, count: integer, times: number }[]
--- @param seed integer
--- @param epoch integer
--- @return ffi.cdata* order int32_t[n]
--- @return integer n
function M.order(parts, seed, epoch)
  local n = check.integer('dataset:steps', 'samples of an epoch', M.total(parts), 0, check.INT32)
  local order = ffi.new('int32_t[?]', n)
  check(C.ms_permutation(seed, epoch, n, order))
  if M.repeats(parts) then
    local places, at = ffi.new('int32_t[?]', n), 0
    for k, part in ipairs(parts) do
      fill(places, at, seed, epoch, k, part)
      at = at + M.picks(part)
    end
    for k = 0, n - 1 do order[k] = places[order[k]] end
  end
  for k = 0, n - 1 do order[k] = order[k] + 1 end
  return order, n
end

return M
