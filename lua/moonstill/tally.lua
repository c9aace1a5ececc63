--- Adds up what the terms of a loss give over the batches of a step, or of a validation set.

local metrics = require 'moonstill.metrics'

local M = {}

-- The fields of a result that are sums over positions, weighted by the term's position weights.
local FIELDS = { 'value', 'weight', 'rows', 'agree', 'teacher_mass', 'student_mass',
  'teacher_entropy', 'student_entropy' }

-- "ce", "kd", and "kd2" for a second one of a kind.
local function name_terms(self, terms)
  local seen = {}
  for i, term in ipairs(terms) do
    local kind = term.name or term.kind
    seen[kind] = (seen[kind] or 0) + 1
    self.names[i] = seen[kind] == 1 and kind or kind .. seen[kind]
  end
end

local methods = {}

--- Forgets everything, keeping the tables.
function methods:clear()
  self.calls = 0
  for i = 1, self.terms do
    for _, field in ipairs(FIELDS) do self.sums[i][field] = 0 end
  end
end

--- Adds what one call gave.
--- @param terms table[] the terms, always as many and in the same order
--- @param results table[] an `ms_term_result` for each
--- @param norms? { response: number, all: number } of the step
function methods:add(terms, results, norms)
  if self.calls == 0 then
    self.terms = #terms
    name_terms(self, terms)
  elseif self.terms ~= #terms then
    error(('%d terms, after %d in the same step'):format(#terms, self.terms), 3)
  end
  self.calls = self.calls + 1
  for i, term in ipairs(terms) do
    local sum, result = self.sums[i], results[i]
    if not sum then
      sum = {}
      for _, field in ipairs(FIELDS) do sum[field] = 0 end
      self.sums[i] = sum
    end
    sum.factor, sum.norm = term.weight, norms and norms[term.on] or 0
    for _, field in ipairs(FIELDS) do sum[field] = sum[field] + result[field] end
  end
end

--- The loss: each term's mean over its positions, times its weight.
--- @return number
function methods:loss()
  local loss = 0
  for i = 1, self.terms do
    local sum = self.sums[i]
    if sum.norm > 0 then loss = loss + sum.factor * (sum.value / sum.norm) end
  end
  return loss
end

--- Whether no term had a position.
function methods:empty()
  for i = 1, self.terms do
    if self.sums[i].norm > 0 then return false end
  end
  return true
end

--- The first term that has not seen each position of its step once: its name, the weight it saw,
--- and what there is. nil when all have.
--- @return string?, number?, number?
function methods:incomplete()
  for i = 1, self.terms do
    local sum = self.sums[i]
    -- both are sums of the same floats in double, in another order
    if math.abs(sum.weight - sum.norm) > 1e-9 * sum.norm then
      return self.names[i], sum.weight, sum.norm
    end
  end
end

--- Means over the positions of a term; nil when there is no such term, NaN without positions.
--- @param i integer
function methods:mean(i)
  local sum = i <= self.terms and self.sums[i]
  if not sum then return nil end
  local mean = { weight = sum.weight, rows = sum.rows }
  for _, field in ipairs(FIELDS) do
    if field ~= 'weight' and field ~= 'rows' then mean[field] = sum[field] / sum.weight end
  end
  return mean
end

--- What metrics.jsonl says of each term.
function methods:entry()
  local entry = {}
  for i = 1, self.terms do
    local mean = self:mean(i)
    local t = { loss = metrics.number(mean.value), rows = mean.rows, weight = mean.weight,
      agree = metrics.number(mean.agree), student_entropy = metrics.number(mean.student_entropy) }
    if self.names[i] ~= 'ce' then
      t.teacher_mass = metrics.number(mean.teacher_mass)
      t.student_mass = metrics.number(mean.student_mass)
      t.teacher_entropy = metrics.number(mean.teacher_entropy)
    end
    entry[self.names[i]] = t
  end
  return entry
end

--- The loss as a sum: "0.30 ce 2.1034 + 0.70 kd 0.4011"; a single term of weight 1 is "ce 2.1034".
--- @return string
function methods:describe()
  local parts = {}
  for i = 1, self.terms do
    local sum = self.sums[i]
    local factor = self.terms == 1 and sum.factor == 1 and '' or ('%.2f '):format(sum.factor)
    parts[i] = ('%s%s %.4f'):format(factor, self.names[i], sum.value / sum.weight)
  end
  return table.concat(parts, ' + ')
end

local class = { __index = methods }

function M.new() return setmetatable({ calls = 0, terms = 0, sums = {}, names = {} }, class) end

return M
