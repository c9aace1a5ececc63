--- Which optimiser step a batch belongs to. A term's norm is the sum of weights over the whole
--- step, and its results are the step's to add up; but `model:learn(batch, terms)` is called with a
--- batch alone. So whoever makes a step binds its batches here, and `learn` asks.
---
--- A step has `step:norm(on)` (on: 'response' or 'all'); `step:record(batch, terms, results)`,
--- called before the core learns: `results` are what `learn` returns, and are not written yet; and
--- `step:learnt(batch)`, called when that has gone well.

local M = {}

local steps = setmetatable({}, { __mode = 'k' })

--- @param batch ms_batch
--- @param step table? nil unbinds
function M.bind(batch, step) steps[batch] = step end

--- The step of a batch; nil for a batch that stands alone, whose terms take their own norms.
--- @param batch ms_batch
--- @return table?
function M.step(batch) return steps[batch] end

return M
