--- moonstill: `local ms = require "moonstill"`. A module is loaded when it is first used.
local fail = require 'moonstill.base.fail'
local names = require 'moonstill.names'

local M = { _VERSION = '0.1.0' }

local function unknown(name)
  local sorted, options = require 'moonstill.base.sorted', require 'moonstill.base.options'
  local near = options.nearest(tostring(name), sorted.keys(names))
  local hint = near and ("; did you mean '%s'?"):format(near) or ''
  return ("moonstill has no '%s'%s"):format(tostring(name), hint)
end

setmetatable(M, {
  __index = function(_, name)
    local place = names[name]
    if not place then fail(unknown(name)) end
    local ok, value = pcall(require, 'moonstill.' .. place.module)
    if not ok then fail(value) end
    if place.field then
      value = value[place.field]
    elseif type(value) == 'table' then
      require 'moonstill.base.strict'.names('ms.' .. name, value)
    end
    rawset(M, name, value)
    return value
  end,
  __tostring = function() return ('moonstill %s; help() helps'):format(M._VERSION) end,
})

return M
