--- Ends a recipe with an exit status: an error whose value carries `exit` and a message, which the
--- command line takes for what it says. Nothing is cut off: scopes free, callers may catch it.
local check = require 'moonstill.base.check'

local leaving = { __tostring = function(e) return e.message end }

--- @param exit integer the process's exit status
--- @param message string what stands on stderr
return function(exit, message)
  check.integer('exit', 'exit', exit, 0, 255)
  check.text('exit', 'message', message)
  error(setmetatable({ exit = exit, message = message }, leaving), 0)
end
