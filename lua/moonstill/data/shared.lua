--- Samples of the ranks of a machine: the first of them encodes the rows, or finds them in the
--- cache, and the others map what it has: from the cache, or else from a private folder in memory
--- that is gone once all have it.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local kept = require 'moonstill.data.kept'
local ranks = require 'moonstill.base.ranks'

ffi.cdef 'int mkdir(const char *path, unsigned mode); int rmdir(const char *path);'

local M = {}

--- Where private folders are made, where the first one has room.
--- @package
M.places = { '/dev/shm', os.getenv 'TMPDIR' or '/tmp' }

local function discard(folder)
  C.ms_cache_remove(folder .. '/data')
  ffi.C.rmdir(folder)
end

-- Puts samples that are in memory into a private folder, and maps them from there. Its path; nil
-- where no place has room: then they stay where they are.
local function put(s, report, lines, list)
  for _, place in ipairs(M.places) do
    local folder = ('%s/moonstill-data-%s'):format(place, ranks.random_name())
    if ffi.C.mkdir(folder, 448) == 0 then -- 0700
      s:keep_at(folder .. '/data', function() end)
      if kept.keep(s, report, lines, list) then return folder end
      ffi.C.rmdir(folder)
    end
  end
end

-- All cores of the machine are this rank's while the others wait.
local function with_cores(machine, f, ...)
  local threads = C.ms_threads_get()
  check(C.ms_threads_set(threads * machine.size))
  local results = { fail.pcall(f, ...) }
  check(C.ms_threads_set(threads))
  return unpack(results, 1, 6)
end

-- On the first rank of the machine.
local function give(machine, list, source)
  local ok, s, report, lines, line, hash = with_cores(machine, source.obtain, true)
  machine:first(not ok and tostring(s) or nil)
  if not ok then error(s, 0) end
  local folder = not s.path and s.count > 0 and put(s, report, lines, list) or nil
  machine:first(hash)
  machine:first(s.path)
  local fine = machine:sum { 0, 0 }[2] == 0 -- all have mapped it, or never will
  if folder then discard(folder) end
  if not fine then M.refuse(source) end
  return s, report, line
end

--- @package
function M.refuse(source)
  error(source.name .. ': filter or map gave other rows on some ranks: what they do may depend on '
    .. 'the row alone', 0)
end

-- On the others.
local function take(machine, list, source)
  local counted, mine = fail.pcall(source.hash) -- meanwhile
  local why = machine:first(nil)
  if why then error(why, 0) end
  local differs = machine:first(nil) ~= (counted and mine or nil)
  local path = machine:first(nil)
  local s, report
  if path and not differs then s, report = kept.find(path, list) end
  if machine:sum { 0, differs and 1 or 0 }[2] > 0 then M.refuse(source) end
  if s then return s, report end
  s, report = source.obtain(false) -- it cannot be seen here: each for itself
  return s, report
end

--- The samples of sources, their report, and a line about the cache. All ranks call it.
--- @param list table[] what `sources.take` gives
--- @param source { name: string, obtain: fun(hashes: boolean), hash: fun(): string? } obtain: gives
---   samples, report, lines, a line and, where it is asked for, the hash of rows that functions
---   have made; hash: that hash
--- @return ms_samples
--- @return ms_report
--- @return string?
function M.obtain(list, source)
  local machine = ranks.is_writing() and ranks.alone() or ranks.machine()
  if machine.size == 1 then
    local s, report, _, line = source.obtain(false)
    return s, report, line
  end
  if machine.writes then return give(machine, list, source) end
  return take(machine, list, source)
end

return M
