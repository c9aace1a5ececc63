--- The objectives: what each is called, and its parameter with bounds, default and meaning where it
--- has one, as the core knows them.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local schema = require 'moonstill.base.schema'

local M = {}

-- In the order of the core's numbers.
local LIST = {}
for i = 1, C.ms_objectives() do
  local o = C.ms_objective_get(i - 1)
  LIST[i] = { name = ffi.string(o.name), meaning = ffi.string(o.meaning) }
  if o.parameter ~= nil then
    LIST[i].parameter = ffi.string(o.parameter)
    LIST[i].default = o.normal
    LIST[i].kind = ('number >= %g %s %g'):format(o.low, o.open ~= 0 and '<' or '<=', o.high)
  end
end

--- Their names; the first one is the default.
M.names = {}
--- By name, what they measure.
M.meanings = {}
--- By name, what the parameter of those that have one is called.
M.parameter = {}

local users = {} -- by parameter, the objectives that have it
for i, objective in ipairs(LIST) do
  local parameter = objective.parameter
  M.names[i], M.meanings[objective.name] = objective.name, objective.meaning
  M.parameter[objective.name] = parameter
  if parameter then
    users[parameter] = users[parameter] or {}
    table.insert(users[parameter], objective.name)
  end
end

--- The parameters, as options of `ms.kd`.
M.options = {}
for _, objective in ipairs(LIST) do
  local parameter = objective.parameter
  if parameter then
    local names = users[parameter]
    M.options[parameter] = schema.option(objective.default, 'of ' .. table.concat(names, ' and '),
      objective.kind):beside('objective', unpack(names))
  end
end

return M
