--- The output folder of a run: one of its ranks makes it, and locks it for all of them, so that no
--- other run writes into it.
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local exit = require 'moonstill.base.exit'
local lock = require 'moonstill.run.lock'

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

--- Makes the folder and takes its lock; an error when another run has it.
--- @param run ms_run
function M.take(run)
  local process = run.ranks:write(take, run)
  run.locked = not process
  if not process then return end
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
    run:close()
    exit(1, ('run: %s was removed, and another run%s has taken the folder: this one ends in step '
      .. '%d and leaves it to that'):format(lock_path(run), process_text(state), step))
  end
end

return M
