--- The objectives: what each is called, and its parameter with bounds, default and meaning where it
--- has one.
local schema = require 'moonstill.base.schema'

local M = {}

-- In the order of the core's numbers.
local LIST = {
  { name = 'forward_kl' },
  { name = 'reverse_kl' },
  { name = 'js', parameter = 'beta', default = 0.5, kind = 'number >= 0 <= 1' },
  { name = 'skewed_forward_kl', parameter = 'lambda', default = 0.1, kind = 'number >= 0 < 1' },
  { name = 'skewed_reverse_kl', parameter = 'lambda', default = 0.1, kind = 'number >= 0 < 1' },
  { name = 'adaptive_kl', parameter = 'alpha', default = 0.5, kind = 'number >= 0 <= 1' },
  { name = 'tvd' },
}

--- Their names; the first one is the default.
M.names = {}
--- By name, what the parameter of those that have one is called.
M.parameter = {}

local users = {} -- by parameter, the objectives that have it
for i, objective in ipairs(LIST) do
  local parameter = objective.parameter
  M.names[i] = objective.name
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
