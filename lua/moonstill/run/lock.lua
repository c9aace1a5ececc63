--- Locks: one holder of a file at a time, in this process or any. The kernel takes a lock back when
--- its process ends, however it does.
---
---   local lock, holder = ms.lock.open 'out/my.lock'
---   if not lock then error('process ' .. holder .. ' has it') end

local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local handles = require 'moonstill.base.handle'

local M = {}

local out = ffi.new 'ms_lock *[1]' -- scratch, read at once
local holder = ffi.new 'int32_t[1]'
local kept = ffi.new 'int32_t[1]'

--- A file that this process holds: see `ms.lock.open`.
--- @class ms_lock
local lock = handles.kind('lock', 'ms_lock', C.ms_lock_close, { verb = 'close' })
local methods = lock.methods

--- Gives the lock back. A second call does nothing.
function methods:close() methods.free(self) end

local STATES = { [C.MS_LOCK_KEPT] = 'kept', [C.MS_LOCK_ANEW] = 'anew', [C.MS_LOCK_LOST] = 'lost' }

--- Whether the lock still keeps others out. It does not once its file is removed or replaced: then
--- it is taken anew, unless another holder was quicker.
--- @return '"kept"'|'"anew"'|'"lost"'
--- @return integer? the other holder's process, 0 when unknown
function methods:keep()
  check(C.ms_lock_keep(lock.pointer(self), kept, holder))
  local state = STATES[kept[0]]
  return state, state == 'lost' and holder[0] or nil
end

local function try(path)
  check(C.ms_lock_open(path, out, holder))
  if out[0] ~= nil then return lock.new(out[0]) end
  return nil, holder[0]
end

--- Takes the file `path`, which is made when missing and stays.
--- @param path string
--- @return ms_lock? nil when there is another holder
--- @return integer? its process, 0 when unknown
function M.open(path)
  check.path('lock', path)
  local held, process = try(path)
  if held then return held end
  collectgarbage() -- it may be held by an object of ours that an error left behind
  held = try(path)
  return held, process
end

return M
