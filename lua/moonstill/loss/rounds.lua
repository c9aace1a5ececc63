--- Rounds: samples that the ranks of a student learn from, or are measured with, at one time. Ranks
--- that have a teacher and not its student, or the other way round, take the same samples, each by
--- its own packing: a round says who has which.
---
--- `target` asks for targets of a batch alone; so whoever makes a round says here which batches are
--- of it, and `kd.ask` looks.

local ranks = require 'moonstill.base.ranks'

local M = {}

local known = setmetatable({}, { __mode = 'k' }) -- by batch: { round, micro }

--- @param batch ms_batch
--- @param round table? nil: it is of none any more
--- @param micro? integer its place among the student's micro-batches; nil: it has no samples
function M.set(batch, round, micro) known[batch] = round and { round = round, micro = micro } end

--- @param batch ms_batch
--- @return table? round, integer? micro
function M.get(batch)
  local of = known[batch]
  if of then return of.round, of.micro end
end

local methods = {}
local class = { __index = methods }

--- @param of { run: ms_run, data: ms_dataset, number: integer?,
---   cut: fun(parts: integer): integer[][], number[], integer[]? } cut: samples of micro-batches
---   that so many models share, what each costs, and which model takes each, unless that follows
---   from the costs; number: of the run's step, nil where none is under way
function M.new(of)
  of.seen, of.packings = {}, {}
  return setmetatable(of, class)
end

-- All samples in order, and where each first occurs.
local function in_order(self)
  if self.samples then return self.samples, self.first end
  local list, first = {}, {}
  for _, micro in ipairs((self.cut(self.run.grid.shape.dp))) do
    for _, i in ipairs(micro) do list[#list + 1] = i end
  end
  table.sort(list)
  for at = #list, 1, -1 do first[list[at]] = at end
  self.samples, self.first = list, first
  return list, first
end

--- The round's samples in the order of their numbers, in which one may come twice: what they are
--- called by all ranks is their place in it, from 0.
--- @return integer[]
function methods:all() return (in_order(self)) end

--- How `parts` models share the round: the micro-batches, the places of their samples, and which
--- model takes each.
--- @param parts integer
--- @return { micro: integer[][], places: integer[][], takes: integer[] }
function methods:packing(parts)
  local known_one = self.packings[parts]
  if known_one then return known_one end
  local _, first = in_order(self)
  local micro, costs, takes = self.cut(parts)
  local places, seen = {}, {}
  for m, samples in ipairs(micro) do
    places[m] = {}
    for k, i in ipairs(samples) do
      places[m][k] = first[i] - 1 + (seen[i] or 0)
      seen[i] = (seen[i] or 0) + 1
    end
  end
  local packing = { micro = micro, places = places, takes = takes or (ranks.deal(costs, parts)) }
  self.packings[parts] = packing
  return packing
end

--- Whether targets of a model must come from other ranks.
--- @param model ms_model
--- @return boolean
function methods:carries(model) return not self.run.grid:is_same(model:grid()) end

--- Ends the round: what came for it is dropped.
function methods:finish()
  for _, x in ipairs(self.seen) do x:finish(self) end
end

return M
