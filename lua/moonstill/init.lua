--- moonstill: `local ms = require "moonstill"`. A module is loaded when it is first used.
local M = { _VERSION = '0.1.0' }

-- The module that gives each name of `ms` where the name is not the module's own.
local from = { option = 'config', required = 'config', optional = 'config', one_of = 'config',
  ce = 'kd' }

-- In the executable the docstrings know what else there is.
local function unknown(name)
  local found, docs = pcall(require, 'moonstill.docs')
  local sorted, options_of = require 'moonstill.sorted', require 'moonstill.options'
  local near = found and options_of.nearest(tostring(name), sorted.keys(docs, from))
  local hint = near and ("; did you mean '%s'?"):format(near) or ''
  return ("moonstill has no '%s'%s"):format(name, hint)
end

setmetatable(M, {
  __index = function(_, name)
    local module = from[name]
    local ok, value = pcall(require, 'moonstill.' .. (module or name))
    if not ok then
      if value:find("module 'moonstill." .. name .. "' not found", 1, true) then
        value = unknown(name)
      end
      error(value, 2)
    end
    if module then value = value[name] end
    rawset(M, name, value)
    return value
  end,
})

return M
