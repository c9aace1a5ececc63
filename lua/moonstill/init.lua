--- moonstill: `local ms = require "moonstill"`. A module is loaded when it is first used.
local fail = require 'moonstill.base.fail'

local M = { _VERSION = '0.1.0' }

-- Where each name of `ms` is found: its module, and the field of it for those after the line.
local from = {
  batch = 'data.batch', bpe = 'text.bpe', cache = 'data.cache', chat = 'text.chat',
  config = 'run.config',
  dataset = 'data.dataset', device = 'tensor.device', exit = 'base.exit',
  generate = 'model.generate', json = 'base.json', kd = 'loss.kd', lock = 'run.lock',
  model = 'model.model', ops = 'tensor.ops', optimizer = 'train.optimizer',
  packing = 'data.packing', plot = 'plot.plot', run = 'run.run', schedule = 'train.schedule',
  scope = 'base.scope', smoke = 'toy.smoke', sorted = 'base.sorted', target = 'loss.target',
  tensor = 'tensor.tensor', tokenizer = 'text.tokenizer', toy = 'toy.toy',
  ----
  ce = 'loss.kd', one_of = 'base.schema', option = 'base.schema', optional = 'base.schema',
  required = 'base.schema',
}
local is_field = { ce = true, one_of = true, option = true, optional = true, required = true }

local function unknown(name)
  local sorted, options = require 'moonstill.base.sorted', require 'moonstill.base.options'
  local near = options.nearest(tostring(name), sorted.keys(from))
  local hint = near and ("; did you mean '%s'?"):format(near) or ''
  return ("moonstill has no '%s'%s"):format(tostring(name), hint)
end

setmetatable(M, {
  __index = function(_, name)
    if not from[name] then fail(unknown(name)) end
    local ok, value = pcall(require, 'moonstill.' .. from[name])
    if not ok then fail(value) end
    if is_field[name] then
      value = value[name]
    elseif type(value) == 'table' then
      require 'moonstill.base.strict'.names('ms.' .. name, value)
    end
    rawset(M, name, value)
    return value
  end,
})

return M
