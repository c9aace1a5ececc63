--- Adds up what the terms of a loss give over the batches of a step, or of a validation set.
---
--- Results are kept as they come and read when the tally is asked for something, so that adding
--- waits for nothing.

local fail = require 'moonstill.base.fail'
local metrics = require 'moonstill.run.metrics'
local progress = require 'moonstill.base.progress'
local result = require 'moonstill.loss.result'
local sorted = require 'moonstill.base.sorted'

local M = {}

local AS_IN = { ce = "as in ms.ce(weight, { name = 'prompts' })",
  kd = "as in ms.kd(target, weight, cfg, { name = 'large' })" }

local function names_of(terms)
  local names, taken = {}, {}
  for i, term in ipairs(terms) do
    local name = term:called()
    if taken[name] then
      fail("two terms of a step are called '%s': one of them needs a name of its own, %s", name,
        AS_IN[term.kind])
    end
    names[i], taken[name] = name, true
  end
  return names
end

-- An error unless the terms of a call are those of the calls before it, in whatever order.
local function check_names(self, names)
  local there = {}
  for _, name in ipairs(names) do there[name] = self.terms[name] end
  if #names == #self.names and #sorted.keys(there) == #names then return end
  fail('the terms %s, after %s in the same step: every micro-batch takes the same ones, where a '
    .. 'weight of 0 leaves one out', table.concat(names, ', '),
    table.concat(self.names, ', '))
end

-- What is said first where several have changed: the others follow from these.
local FIRST = { 'kind', 'objective', 'target' }

local function check_same(name, key, now, before)
  if now == before then return end
  fail('the term %s has %s = %s, after %s in the same step: within a step only its weight may '
    .. 'change; what is another loss is a term of its own', name, key, tostring(now),
    tostring(before))
end

local function check_meaning(name, now, before)
  for _, keys in ipairs { FIRST, sorted.keys(now, before) } do
    for _, key in ipairs(keys) do check_same(name, key, now[key], before[key]) end
  end
end

-- calls: { result, factor }, not read yet. sums: of what was measured. share: the sum of each value
-- times the factor that it was learnt with, which was between `least` and `most`.
local function begin_term(term, norms)
  return { kind = term.kind, meaning = term:meaning(), norm = norms and norms[term.on] or 0,
    calls = {}, sums = { value = 0, weight = 0, rows = 0 }, share = 0, least = math.huge,
    most = -math.huge }
end

local function add_call(t, given, factor)
  for _, field in ipairs(result.fields) do
    local x = given[field]
    if x then t.sums[field] = (t.sums[field] or 0) + x end
  end
  if given.weight == 0 then return end -- it has no say, nor has a call that failed
  t.share = t.share + factor * given.value
  t.least, t.most = math.min(t.least, factor), math.max(t.most, factor)
end

-- Reads what has come since the last time.
local function read(t)
  for _, call in ipairs(t.calls) do add_call(t, call.result, call.factor) end
  t.calls = {}
  return t
end

local methods = {}

--- Forgets everything.
function methods:clear() self.calls, self.names, self.terms = 0, {}, {} end

--- Adds what one call gives. All calls have terms of the same names, and of each name the same
--- meaning; the weights may change.
--- @param terms ms_term[]
--- @param results ms_result[] one for each; they may be written later
--- @param norms? { response: number, all: number } of the step
function methods:add(terms, results, norms)
  local names = names_of(terms)
  if self.calls > 0 then check_names(self, names) end
  for i, name in ipairs(names) do
    local t = self.terms[name]
    if t then check_meaning(name, terms[i]:meaning(), t.meaning) end
  end
  for i, name in ipairs(names) do
    local t = self.terms[name] or begin_term(terms[i], norms)
    self.terms[name] = t
    t.calls[#t.calls + 1] = { result = results[i], factor = terms[i].weight }
  end
  if self.calls == 0 then self.names = names end
  self.calls = self.calls + 1
end

-- Iterates over the names, in the order of the first call, and what there is of each.
local function each(self)
  local i = 0
  return function()
    i = i + 1
    local name = self.names[i]
    if name then return name, read(self.terms[name]) end
  end
end

--- The loss: each term's mean over its positions, each position times the weight that the term had
--- when it was learnt.
--- @return number
function methods:loss()
  local loss = 0
  for _, t in each(self) do
    if t.norm > 0 then loss = loss + t.share / t.norm end
  end
  return loss
end

--- Whether no term had a position.
function methods:empty()
  for _, t in each(self) do
    if t.norm > 0 then return false end
  end
  return true
end

--- The first term that has not seen each position of its step once: its name, the weight it saw,
--- and what there is. nil when all have.
--- @return string?, number?, number?
function methods:incomplete()
  for name, t in each(self) do
    -- both are sums of the same floats in double, in another order
    if math.abs(t.sums.weight - t.norm) > 1e-9 * t.norm then return name, t.sums.weight, t.norm end
  end
end

--- Means over the positions of a term, with their `weight` and `rows`; nil when there is no such
--- term. What was not measured is not there, which without positions is all of it.
--- @param name string
function methods:mean(name)
  local t = self.terms[name]
  if not t then return nil end
  local sums = read(t).sums
  local mean = { weight = sums.weight, rows = sums.rows }
  for _, field in ipairs(result.fields) do
    if not mean[field] and sums[field] and sums.weight > 0 then
      mean[field] = sums[field] / sums.weight
    end
  end
  return mean
end

-- What a divergence is, beside its name.
local function add_divergence(said, t, mean)
  for _, field in ipairs { 'teacher_mass', 'student_mass', 'teacher_entropy',
    'student_entropy' } do said[field] = metrics.number(mean[field]) end
  said.objective = t.meaning.objective
  said.temperature = t.meaning.temperature ~= 1 and t.meaning.temperature or nil
end

--- The mean of each term that adds to the loss, for who follows it over steps: its name, and a key
--- that changes with the objective.
--- @return { name: string, key: string, mean: number }[]
function methods:judged()
  local list = {}
  for name, t in each(self) do
    if t.share ~= 0 and t.sums.weight > 0 then
      local objective = t.meaning.objective
      list[#list + 1] = { name = name, mean = t.sums.value / t.sums.weight,
        key = objective and ('%s (%s)'):format(name, objective) or name }
    end
  end
  return list
end

--- What metrics.jsonl says of each term.
function methods:entry()
  local entry = {}
  for name, t in each(self) do
    local mean = self:mean(name)
    local said = { loss = metrics.number(mean.value), rows = mean.rows, weight = mean.weight,
      agree = metrics.number(mean.agree) }
    if t.kind ~= 'ce' then add_divergence(said, t, mean) end
    entry[name] = said
  end
  return entry
end

-- The weight of a term as it is told: nil where it is 1, and was whenever it was asked before.
local function weight_text(self, name, t)
  if t.least ~= t.most then
    self.weighted[name] = true
    return ('x %.2g to %.2g'):format(t.least, t.most)
  end
  self.weighted[name] = self.weighted[name] or t.most ~= 1
  return self.weighted[name] and ('x %.2g'):format(t.most) or nil
end

--- The terms as parts of a line, see `progress`: each one's mean, and the weight that it had, or
--- had from .. to in this step: "ce 2.1034", "x 0.3", "kd 0.4011", "x 0 to 0.7".
--- @param rank integer of the means, of which the first matters most
--- @param weight_rank integer of the weights
--- @return table[]
function methods:parts(rank, weight_rank)
  local parts = {}
  for name, t in each(self) do
    rank = rank + 0.01
    if not (t.sums.weight > 0) then
      parts[#parts + 1] = { name .. ' of no positions', rank }
    else
      local mean = progress.number('%.4f', t.sums.value / t.sums.weight)
      parts[#parts + 1] = { ('%s %s'):format(name, mean), rank }
      local factor = weight_text(self, name, t)
      if factor then parts[#parts + 1] = { factor, weight_rank, glue = ' ' } end
    end
  end
  return parts
end

--- The terms and their weights: "ce 2.1034 x 0.3  kd 0.4011 x 0.7".
--- @return string
function methods:describe() return progress.fit(self:parts(1, 1), math.huge) end

local function sum_term(t, ranks)
  local fields, numbers = result.fields_of[t.kind], { t.share }
  for i, field in ipairs(fields) do numbers[i + 1] = t.sums[field] or 0 end
  ranks:sum(numbers)
  t.share = numbers[1]
  for i, field in ipairs(fields) do t.sums[field] = numbers[i + 1] end
end

--- Adds up what all ranks have, once each has added its calls: what is asked from then on is of all
--- of them, but for the range of a term's weights, which is this rank's.
function methods:sum()
  for _, name in ipairs(sorted.keys(self.terms)) do sum_term(read(self.terms[name]), self.ranks) end
end

local class = { __index = methods }

--- @param ranks ms_ranks whose calls are added up
function M.new(ranks)
  local self = setmetatable({ ranks = ranks, weighted = {} }, class) -- weights that are told
  self:clear()
  return self
end

return M
