--- Locks: one holder of a file at a time, in this process or any. The kernel takes a lock back when
--- its process ends, however it does.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local handles = require 'moonstill.base.handle'

local M = {}

local out = ffi.new 'ms_lock *[1]' -- scratch, read at once
local holder = ffi.new 'int32_t[1]'
local kept = ffi.new 'int32_t[1]'

local kind = handles.kind('lock', C.ms_lock_close, 'close')

--- @class ms_lock
local methods = {}

--- Gives the lock back. A second call does nothing.
function methods:close() kind.free(self) end
methods.free = methods.close

local STATES = { [C.MS_LOCK_KEPT] = 'kept', [C.MS_LOCK_ANEW] = 'anew', [C.MS_LOCK_LOST] = 'lost' }

--- Whether the lock still keeps others out. It does not once its file is removed or replaced: then
--- it is taken anew, unless another holder was quicker.
--- @return '"kept"'|'"anew"'|'"lost"'
--- @return integer? the other holder's process, 0 when unknown
function methods:keep()
  check(C.ms_lock_keep(kind.pointer(self), kept, holder))
  local state = STATES[kept[0]]
  return state, state == 'lost' and holder[0] or nil
end

local handle = ffi.metatype('struct { ms_lock *p; }', {
  __index = methods,
  __gc = methods.close,
  __tostring = function(self) return self.p ~= nil and 'lock' or 'lock (closed)' end,
})
kind.type = handle

local function try(path)
  check(C.ms_lock_open(path, out, holder))
  if out[0] ~= nil then return handle(out[0]) end
  return nil, holder[0]
end

--- Takes the file `path`, which is made when missing and stays.
--- @param path string
--- @return ms_lock? nil when there is another holder
--- @return integer? its process, 0 when unknown
function M.open(path)
  check.path('lock', path)
  local lock, process = try(path)
  if lock then return lock end
  collectgarbage() -- it may be held by an object of ours that an error left behind
  lock = try(path)
  return lock, process
end

return M
