--- Which optimiser step a batch belongs to. A term is divided by the weights of the whole step, and
--- its results are the step's to add up; but `model:learn(batch, terms)` is given a batch alone. So
--- whoever makes a step says here which batches are its own, and `learn` asks.
---
--- A step has `step:norm(on)` (on: 'response' or 'all'); `step:record(batch, terms, results)`,
--- called before the core learns, when the results are not written yet, which gives the core's
--- group where this batch is the step's last; and `step:learnt(batch)`, called when it is learnt.

local M = {}

local steps = setmetatable({}, { __mode = 'k' })

--- @param batch ms_batch
--- @param step table? nil: it belongs to none any more
function M.set(batch, step) steps[batch] = step end

--- The step of a batch; nil for a batch that stands alone, whose terms take their own norms.
--- @param batch ms_batch
--- @return table?
function M.get(batch) return steps[batch] end

return M
