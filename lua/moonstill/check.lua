--- The one place that turns a status of the core into a Lua error.
local ffi = require 'ffi'
local C = require 'moonstill.C'

--- Raises the core's last message when `status` is a failure.
--- @param status integer what a function of the core returned
--- @param level? integer whom to blame, as in `error`; default the caller of the caller
return function(status, level)
  if status ~= 0 then error(ffi.string(C.ms_last_error()), (level or 2) + 1) end
end
