--- What a run tells of itself while it goes.
local layout = require 'moonstill.base.layout'
local progress = require 'moonstill.base.progress'

local M = {}

-- Of the parts of a step's line, beside its count (1) and the time that is left (3).
local RANK = { terms = 2, rate = 4, norm = 5, weights = 6, lr = 7 }

--- Tokens per second of a step; nil when the clock has not moved.
--- @param step ms_step
--- @return number?
function M.rate(step) return step.seconds > 0 and step.tokens / step.seconds or nil end

--- A step that is over, as parts of a line of progress.
--- @param step ms_step
--- @return table[]
function M.step(step)
  local parts, rate = {}, M.rate(step)
  if step.tally:empty() then
    parts[1] = { 'no position has a weight', RANK.terms }
  else
    parts = step.tally:parts(RANK.terms, RANK.weights)
  end
  parts[#parts + 1] = { ('lr %.1e'):format(step.lr), RANK.lr }
  if step.skipped then
    parts[#parts + 1] = { 'SKIPPED', RANK.terms }
  elseif not step.tally:empty() then
    parts[#parts + 1] = { ('norm %.2f'):format(step.grad_norm), RANK.norm }
  end
  if rate then parts[#parts + 1] = { ('%.0f tok/s'):format(rate), RANK.rate } end
  return parts
end

local function bytes(n) return (progress.bytes(n):gsub(' ', layout.TIE)) end

--- What a run is of, and what memory it takes, in two lines.
--- @param run ms_run
--- @return string
function M.size(run)
  local info = run.student:info()
  return ('%s, %s parameters, %d steps\nmemory: weights %s, gradients %s, optimizer %s'):format(
    info.family, progress.count(info.parameters), run.state.total,
    bytes(info.memory.weights), bytes(info.memory.gradients),
    bytes(run.optimizer:bytes()))
end

--- What the ranks that share steps sent each other in the one that is over, beside the formula;
--- they all call it. What is sent beyond that are numbers of the run's own, such as losses.
--- @param run ms_run
--- @return string
function M.messages(run)
  local dp, gradients, weights, norm = run.grid.dp, run.optimizer:sends()
  return ('messages of a step of %d ranks: %s; by formula %s: gradients %s, weights %s, norm %s')
    :format(dp.size, bytes(dp:sum { run.step.sent }[1]), bytes(gradients + weights + norm),
      bytes(gradients), bytes(weights), bytes(norm))
end

return M
