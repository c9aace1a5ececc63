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

ffi.cdef 'int usleep(unsigned microseconds);'

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

--- What a rank calls this with.
--- @param rank integer
--- @param value string|number|nil
--- @return string|number|nil
function methods:from(rank, value)
  local bytes = pack(value)
  length[0] = #bytes
  check(C.ms_group_broadcast(self.group, length, 4, rank))
  local n = length[0]
  local data = ffi.new('char[?]', n + 1)
  ffi.copy(data, bytes, math.min(n, #bytes))
  check(C.ms_group_broadcast(self.group, data, n, rank))
  return unpack_value(ffi.string(data, n))
end

--- What the first rank calls this with.
--- @param value string|number|nil
--- @return string|number|nil
function methods:first(value) return self:from(0, value) end

--- Whether all ranks call this with the same.
--- @param value string|number|nil
--- @return boolean # the same on all
function methods:same(value)
  return self:sum { self:first(value) == value and 0 or 1 }[1] == 0
end

local writing = false -- whether a body runs: what it calls is this rank's alone

--- Calls `body` on the rank that writes. All ranks wait for it, and get what it returns, or fail as
--- it failed. Within a body it is only called.
--- @param body fun(...): string|number|nil
--- @return string|number|nil
function methods:write(body, ...)
  if writing or self.size == 1 then return body(...) end
  local ok, value = true, nil
  if self.writes then
    writing = true
    ok, value = pcall(body, ...)
    writing = false
  end
  local failed = self:first(not ok and tostring(value) or nil)
  if failed then error(self.writes and value or failed, 0) end
  return self:first(value)
end

--- Prints a line on stderr.
--- @param line string
function methods:say(line)
  if self.prints then io.stderr:write(screen.wrapped(2, printable(line), 2), '\n') end
end

--- This rank's part of a list of micro-batches: dealt out in turn, so that it may be empty.
--- @param list table
--- @return table
function methods:share(list)
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

local world
local group = ffi.new 'ms_group *[1]'

--- All ranks that this process works with: those that it was launched with, or it alone. The first
--- call joins them.
--- @return ms_ranks
function M.world()
  if not world then
    check(C.ms_group_world(group))
    world = ranks_of(group[0])
  end
  return world
end

--- This process alone, for what every rank works out by itself and in whole.
--- @return ms_ranks
function M.alone() return ranks_of(C.ms_group_self()) end

--- The number of this process among those it was launched with, which is known before it joins
--- them.
--- @return integer
function M.number() return tonumber(os.getenv 'OMPI_COMM_WORLD_RANK') or 0 end

--- Whether this rank, which fails, is to say why: what goes wrong on one goes wrong on most, and
--- one of them says it, the first one where it is among them. Takes a moment on the others.
--- @return boolean
function M.says_why()
  if M.number() == 0 then return C.ms_group_fails() ~= 0 end
  ffi.C.usleep(2e5)
  local first = C.ms_group_fails()
  if first == -1 then ffi.C.usleep(2e6) end -- if the first one has ended, so has this one by then
  return first ~= 0
end

--- Writes a file, as a whole or not at all, on the rank that writes; all wait for it.
--- @param path string
--- @param bytes string
function M.write_file(path, bytes)
  M.world():write(function() check(C.ms_file_write(path, bytes, #bytes)) end)
end

--- Ends all ranks that this one has joined, with a status; alone it does nothing.
--- @param status integer
function M.abort(status) C.ms_group_abort(status) end

return M
