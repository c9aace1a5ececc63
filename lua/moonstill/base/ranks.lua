--- Ranks: processes that work on one run, each making the same calls in the same order. They alone
--- answer whether this process writes (`ranks.writes`, `ranks:write`) and whether it prints
--- (`ranks.prints`, `ranks:say`): the first one does both.
---
--- What depends on more than the configuration, the data and the run's state (a clock, a signal,
--- what is in a folder) may differ between ranks: all take what the first has, `ranks:first`.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local printable = require 'moonstill.base.printable'
local screen = require 'moonstill.base.screen'

local M = {}

local numbers, room = nil, 0           -- scratch, read at once
local length = ffi.new 'int32_t[1]'

--- group: the core's `ms_group *`; rank, from 0, and size; writes, prints: whether this rank does.
--- @class ms_ranks
--- @package
local methods = {}

--- Adds a list of numbers up over the ranks, in place.
--- @param list number[]
--- @return number[] list
function methods:sum(list)
  local n = #list
  if n > room then numbers, room = ffi.new('double[?]', 2 * n), 2 * n end
  for i = 1, n do numbers[i - 1] = list[i] end
  check(C.ms_group_sum(self.group, numbers, n))
  for i = 1, n do list[i] = numbers[i - 1] end
  return list
end

-- A value as bytes, of which the first tells its type.
local function pack(value)
  if value == nil then return '' end
  if type(value) == 'number' then return ('n%.17g'):format(value) end
  return 's' .. value
end

local function unpack_value(bytes)
  if bytes == '' then return nil end
  local rest = bytes:sub(2)
  return bytes:byte() == ('n'):byte() and tonumber(rest) or rest
end

--- What the first rank calls this with.
--- @param value string|number|nil
--- @return string|number|nil
function methods:first(value)
  local bytes = pack(value)
  length[0] = #bytes
  check(C.ms_group_broadcast(self.group, length, 4))
  local n = length[0]
  local data = ffi.new('char[?]', n + 1)
  ffi.copy(data, bytes, math.min(n, #bytes))
  check(C.ms_group_broadcast(self.group, data, n))
  return unpack_value(ffi.string(data, n))
end

--- Calls `body` on the rank that writes. All ranks wait for it, and get what it returns.
--- @param body fun(...): string|number|nil
--- @return string|number|nil
function methods:write(body, ...)
  local value
  if self.writes then value = body(...) end
  return self:first(value)
end

--- Prints a line on stderr.
--- @param line string
function methods:say(line)
  if self.prints then io.stderr:write(screen.wrapped(2, printable(line), 2), '\n') end
end

--- This rank's part of a list of micro-batches, of which every rank gets some.
--- @param list table
--- @return table
function methods:share(list)
  if #list > 0 and #list < self.size then
    error(('%d micro-batches cannot be shared by %d ranks: a smaller batch.micro_tokens makes more')
      :format(#list, self.size), 0)
  end
  local part = {}
  for i = self.rank + 1, #list, self.size do part[#part + 1] = list[i] end
  return part
end

local class = { __index = methods }

local function ranks_of(group)
  local rank = C.ms_group_rank(group)
  return setmetatable({ group = group, rank = rank, size = C.ms_group_size(group),
    writes = rank == 0, prints = rank == 0 }, class)
end

local world = ranks_of(C.ms_group_self())

--- All ranks that this process works with: so far it is alone.
--- @return ms_ranks
function M.world() return world end

return M
