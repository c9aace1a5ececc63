--- What a call of `learn` or `evaluate` gave: a list with a result for each term, from 1.
---
---   local r = student:evaluate(batch, { ms.ce(), ms.kd(target) })
---   print(r[1].value / r[1].weight, r[2].student_entropy)
---
--- Of its positions a result has the sums `value` (of the losses, a factor for the temperature
--- included), `weight` and `rows` (how many there are); and, of what was measured, `agree` (the top
--- choice is the label, or the teacher's), `student_mass` and `teacher_mass` (in the support),
--- `student_entropy` and `teacher_entropy`, each weighted as the positions are. What was not
--- measured is nil. A field is fetched when it is read, so that whoever only keeps results waits
--- for nothing, and it never changes.

local ffi = require 'ffi'
local fail = require 'moonstill.base.fail'
local options_of = require 'moonstill.base.options'
local sorted = require 'moonstill.base.sorted'

local M = {}

local ALWAYS, SOMETIMES = 'always', 'with positions'

-- By kind of term. Cross-entropy has no teacher and looks at the label alone; its support is that.
local MEASURED = {
  ce = { value = ALWAYS, weight = ALWAYS, rows = ALWAYS, agree = SOMETIMES,
         student_mass = SOMETIMES },
  kd = { value = ALWAYS, weight = ALWAYS, rows = ALWAYS, agree = SOMETIMES,
         student_mass = SOMETIMES, teacher_mass = SOMETIMES, student_entropy = SOMETIMES,
         teacher_entropy = SOMETIMES },
}

--- The names of all fields, and of those that a kind of term can have.
M.fields = sorted.keys(MEASURED.kd)
M.fields_of = { ce = sorted.keys(MEASURED.ce), kd = M.fields }

local known = {}
for _, name in ipairs(M.fields) do known[name] = true end

--- What one term of a loss gave: sums over its positions. `value / weight` is the mean loss of a
--- position, in nats; and so are the others' means. What was not measured is nil.
--- @class ms_result
--- @field value number sum of the losses, each times its position's weight; a divergence has its
---   factor for the temperature
--- @field weight number sum of the weights of the positions
--- @field rows number how many positions there are
--- @field agree? number weight of the positions where the student's likeliest token is the label,
---   or the teacher's
--- @field student_mass? number the student's probability of the ids that count: the label, or the
---   teacher's top k
--- @field teacher_mass? number the teacher's probability of these
--- @field student_entropy? number the student's entropy, in nats
--- @field teacher_entropy? number the teacher's
local class = { what = 'result' }

function class.__index(self, name)
  if not known[name] then
    fail("a result has no '%s'; %s", tostring(name),
      options_of.instead(name, M.fields))
  end
  local when, sums = MEASURED[self.kind][name], self.memory[self.at]
  if not when or (when == SOMETIMES and not (sums.weight > 0)) then return nil end
  return sums[name]
end

local function read_only() fail('what a call gave does not change') end
class.__newindex = read_only

function class.__tostring(self)
  local weight = self.weight
  if weight == 0 then return 'no positions' end
  return ('%.6g a position (value %.6g, weight %.6g, %.1f %% top-1 agreement)'):format(
    self.value / weight, self.value, weight, 100 * self.agree / weight)
end

--- What a call of `learn` or `evaluate` gave: a list with a result for each term, in their order,
--- from 1: `results[1].value`.
--- @class ms_results
local list_class = { what = 'results', __newindex = read_only }

-- A number out of range is nil, which ends a loop.
function list_class.__index(_, key)
  if type(key) == 'number' then return nil end
  fail("results have no '%s': there is a list with one for each term, as in results[1].value",
    tostring(key))
end

function list_class.__tostring(self)
  local lines = {}
  for i, each in ipairs(self) do lines[i] = ('%d: %s'):format(i, tostring(each)) end
  return table.concat(lines, '\n')
end

--- Results that nobody has written yet, and the memory for the core to write them to.
--- @param terms ms_term[]
--- @return ms_result[]
--- @return ffi.cdata* ms_term_result[#terms]
function M.list(terms)
  local memory, list = ffi.new('ms_term_result[?]', math.max(#terms, 1)), {}
  for i, term in ipairs(terms) do
    list[i] = setmetatable({ memory = memory, at = i - 1, kind = term.kind }, class)
  end
  return setmetatable(list, list_class), memory
end

return M
