--- Models that other ranks have: what `ms.model` gives where a grid leaves a rank out. Calls that
--- compute do nothing, so that all ranks run one recipe; facts are told by a rank that has the
--- model.

local fail = require 'moonstill.base.fail'
local kd = require 'moonstill.loss.kd'
local results = require 'moonstill.loss.result'
local sorted = require 'moonstill.base.sorted'
local strict = require 'moonstill.base.strict'

local M = {}

--- A model that this rank does not have. Its calls do nothing.
--- @class ms_absent
--- @package
local methods = {}
local class = strict.class('model', methods)

function class:__tostring()
  return ('model %s of other ranks: %s'):format(self.facts.info.family, tostring(self.on))
end

--- @param grid ms_grid that leaves this rank out
--- @param facts { info: table, config: table, ends: integer[] }
--- @return ms_absent
function M.new(grid, facts)
  facts.info.memory = { weights = 0, gradients = 0, activations = 0 } -- of this rank
  strict.names('model info', facts.info)
  return setmetatable({ on = grid, facts = facts }, class)
end

function methods:grid() return self.on end
function methods:info() return self.facts.info end
function methods:config() return self.facts.config end
function methods:ends() return sorted.copy(self.facts.ends) end

--- What adds to a model or looks at it, and gives it back.
for _, name in ipairs { 'add_ends', 'set_text', 'save', 'check_finite', 'zero_gradients' } do
  methods[name] = function(self) return self end
end

function methods:free() end -- luacheck: ignore 212
function methods:parameters() return function() end end -- luacheck: ignore 212

--- Learns nothing: results of no positions.
function methods:learn(_, terms) return (results.list(terms)) end -- luacheck: ignore 212
methods.evaluate = methods.learn

function methods:evaluate_parts(_, terms) return results.list(terms), {} end -- luacheck: ignore 212

function methods:targets(batch, options)
  return kd.ask(self, nil, batch, options)
end

for _, name in ipairs { 'hash', 'logits', 'generate', 'stream', 'pieces' } do
  methods[name] = function(self)
    fail('model:%s: other ranks have the model (%s), and what it gives does not come here yet',
      name, tostring(self.on))
  end
end

return M
