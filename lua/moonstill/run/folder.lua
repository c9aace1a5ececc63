--- The output folder of a run: one of its ranks makes it, and locks it for all of them, so that no
--- other run writes into it.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local lock = require 'moonstill.run.lock'
local ranks = require 'moonstill.base.ranks'

local M = {}

local function process_text(process)
  return process > 0 and (' (process %d)'):format(process) or ''
end

local function lock_path(run) return run.output .. '/run.lock' end

-- On the rank that writes: nil once the run has the lock, or the other holder's process.
local function take(run)
  check.file(C.ms_dir_make(run.output))
  local held, process = lock.open(lock_path(run))
  run.lock = held
  return process
end

local PATIENCE = 5 -- seconds until a file that one machine has made must be seen on the others

-- A file of a new name in the folder, of which no other folder can have one.
local function make_mark(output)
  local path = output .. '/.moonstill-seen-' .. ranks.random_name()
  check.file(C.ms_file_write(path, '', 0))
  return path
end

local function is_seen(path)
  local since = C.ms_clock()
  while C.ms_path_kind(path) == 0 do
    if C.ms_clock() - since > PATIENCE then return false end
    ffi.C.usleep(1e5)
  end
  return true
end

local function remove(path) os.remove(path) end

-- What one rank writes, the others read: all must have the same folder.
local function check_shared(run)
  local all = run.ranks
  if all.size == 1 then return end
  local path = all:write(make_mark, run.output)
  local blind = all:lacking(is_seen(path))
  all:write(remove, path)
  if not blind then return end
  fail('run.open: rank %d, on %s, does not see what rank 0, on %s, writes into %s: the output must '
    .. 'be a folder that all machines share', blind, all:from(blind, ranks.host()),
    all:first(ranks.host()), run.output)
end

--- Makes the folder and takes its lock; an error when another run has it, or some rank does not see
--- it.
--- @param run ms_run
function M.take(run)
  local process = run.ranks:write(take, run)
  run.locked = not process
  if not process then return check_shared(run) end
  fail('run.open: another run is in the folder %s%s: wait for its end, or give another output',
    run.output, process_text(process))
end

--- Gives the lock back. A second call does nothing.
function M.give_back(run)
  if run.lock then run.lock:close() end
  run.lock, run.locked = nil, false
end

local function make_again(run)
  if C.ms_path_kind(run.output) ~= 0 then return nil end
  check.file(C.ms_dir_make(run.output))
  return 'made'
end

-- On the rank that writes: what has become of the lock, and with it the process that has taken it.
local function look(run)
  local state, process = run.lock:keep()
  return state == 'lost' and process or state
end

--- Makes sure that the folder still is the run's own. Once run.lock is removed, another run can
--- take it: two would write into it, so this one ends, and leaves the folder to the other.
--- @param run ms_run
function M.hold(run)
  if run.ranks:write(make_again, run) then
    run:say(('note: %s was removed: it begins anew'):format(run.output))
  end
  local state = run.ranks:write(look, run)
  if state == 'anew' then
    run:say(('note: %s was removed or replaced: it is taken again'):format(lock_path(run)))
  elseif state ~= 'kept' then
    local step = run.state.step
    run:leave(1, ('run: %s was removed, and another run%s has taken the folder: this one ends in '
      .. 'step %d and leaves it to that'):format(lock_path(run), process_text(state), step))
  end
end

return M
