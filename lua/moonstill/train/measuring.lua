--- Losses over a whole data set, with the normalisation of training: the cross-entropy of the
--- labels and, with a teacher, a divergence from it. No run is needed.
local C = require 'moonstill.C'
local batches = require 'moonstill.data.batch'
local fail = require 'moonstill.base.fail'
local kd = require 'moonstill.loss.kd'
local packing = require 'moonstill.data.packing'
local progress = require 'moonstill.base.progress'
local ranks = require 'moonstill.base.ranks'
local rounds = require 'moonstill.loss.rounds'
local sorted = require 'moonstill.base.sorted'
local strict = require 'moonstill.base.strict'
local tally = require 'moonstill.train.tally'
local teachers = require 'moonstill.loss.teacher'

local M = {}

-- Of a result: a divergence cannot be called so.
local TAKEN = { loss = true, agree = true, teacher_agree = true, step = true, ce = true }

-- What is measured against a teacher where the caller does not say it: the whole vocabulary at
-- T = 1, which does not change with what is trained on.
local DEFAULT = { objective = kd.objectives[1], temperature = 1, target = 'hidden' }

local DRAWN_AFTER = 1 -- seconds: what takes less draws nothing

-- How many ids take part: what was asked for, or those that both models have.
local function shared_ids(o)
  local asked, own = o.vocab or 0, o.kd and rawget(o.kd, 'vocab') or 0
  if asked ~= 0 and own ~= 0 and asked ~= own then
    fail('validation: vocab = %s, but kd.vocab = %s', tostring(asked), tostring(own))
  end
  if asked ~= 0 or own ~= 0 then return asked ~= 0 and asked or own end
  return math.min(teachers.vocab(o.student), teachers.vocab(o.teacher))
end

--- What is measured against the teacher, as the options of `ms.kd`; its name is that of the
--- objective unless `kd` has one. nil without a teacher.
--- @param o table see `measure`
--- @return table?
function M.divergence(o)
  if not o.teacher then return nil end
  local how = {}
  for key in sorted.pairs(kd.term_options()) do
    how[key] = o.kd and rawget(o.kd, key) -- a configuration is strict
    if how[key] == nil then how[key] = DEFAULT[key] end
  end
  how.name = how.name or how.objective
  if TAKEN[how.name] then
    fail("validation: a divergence cannot be called '%s': give kd another name", how.name)
  end
  how.vocab = shared_ids(o)
  return how
end

--- What was measured over a data set: means over its positions. Beside what is listed there is the
--- divergence from a teacher, in nats a token, under the name of its objective (`forward_kl`) or
--- the one that `kd.name` gives it. What was not measured is nil.
--- @class ms_validation
--- @field loss? number cross-entropy of the labels, in nats a token
--- @field agree? number share of the tokens whose label is the model's first choice
--- @field teacher_agree? number share of the tokens whose first choice is the teacher's
local classes = {} -- by the name of the divergence

--- A table of numbers as a validation's result: loss (cross-entropy in nats a token), agree (the
--- share of tokens whose label is the model's first choice), the divergence from the teacher under
--- its name, and teacher_agree (the share whose first choice is the teacher's). What was not
--- measured is nil.
--- @param values table<string, number>
--- @param how? table see `divergence`
--- @return ms_validation
function M.result(values, how)
  local name = how and how.name or DEFAULT.objective
  classes[name] = classes[name] or strict.class('validation', {}, { loss = true, agree = true,
    teacher_agree = true, [name] = true })
  return setmetatable(values, classes[name])
end

-- What the student gives for a batch; `each` is told what each of its samples has of that.
local function results_of(o, batch, terms, samples)
  if not o.each then return o.student:evaluate(batch, terms) end
  local results, parts = o.student:evaluate_parts(batch, terms)
  if samples then o.each(parts, samples) end
  return results
end

local function evaluate_batch(o, how, batch, sums, samples)
  local terms, target = { kd.ce(1) }, nil
  if how then
    target = o.teacher:targets(batch, how)
    terms[2] = kd.term(target, 1, how)
  end
  sums:add(terms, results_of(o, batch, terms, samples))
  if target then target:free() end
end

-- A rank that has no samples left evaluates a batch in which nothing counts.
local function evaluate_samples(o, how, round, own, sums)
  local samples = own and round.list[own]
  local batch = samples and o.data:batch(samples) or batches.idle()
  if o.run then rounds.set(batch, round, own) end
  local ok, why = pcall(evaluate_batch, o, how, batch, sums, samples)
  if ok then round:finish() end
  batch:free()
  if not ok then error(why, 0) end
end

-- The micro-batches of a data set, and what each costs.
local function micro_batches(o)
  local list = {}
  local steps = packing.as_plan(o.data:steps(0, 0, { tokens = o.micro_tokens,
    micro_tokens = o.micro_tokens }))
  for step in steps:each() do
    for _, samples in ipairs(step) do list[#list + 1] = samples end
  end
  return list, steps:costs(list)
end

-- Rounds, in each of which a model evaluates at most one micro-batch: `own[model]` is its place in
-- `list`.
local function plan(o, size)
  local list, costs = micro_batches(o)
  local takes, most = ranks.deal(costs, size)
  local of, done = {}, {}
  for k = 1, most do
    of[k] = { run = o.run, data = o.data, list = {}, costs = {}, takes = {}, own = {} }
  end
  for m, samples in ipairs(list) do
    local model = takes[m]
    done[model] = (done[model] or 0) + 1
    local round = of[done[model]]
    local at = #round.list + 1
    round.list[at], round.costs[at], round.takes[at] = samples, costs[m], model
    round.own[model] = at
  end
  for k, round in ipairs(of) do
    function round.cut(parts)
      return round.list, round.costs, parts == size and round.takes or nil
    end
    of[k] = rounds.new(round)
  end
  return of
end

local function describe(at, seconds)
  local left = (seconds - at.began) / at.done * (at.total - at.done)
  return ('validation: batch %d of %d  left %s'):format(at.done, at.total, progress.duration(left))
end

local function draw(o, at)
  if not o.progress or C.ms_clock() - at.clock < DRAWN_AFTER then return end
  at.began = at.clock - o.progress.began
  o.progress:draw(describe, at)
end

-- false when it was asked to stop.
local function evaluate(o, how, sums)
  local own = plan(o, o.ranks and o.ranks.size or o.student:grid().shape.dp)
  local number = o.ranks and o.ranks:number()
  local at = { done = 0, total = #own, clock = C.ms_clock() }
  for _, round in ipairs(own) do -- on every rank as often: each makes the same calls
    at.done = at.done + 1
    evaluate_samples(o, how, round, number and round.own[number], sums)
    if o.stop and o.stop() then return false end
    draw(o, at)
  end
  if o.ranks then sums:sum() end
  return true
end

local function name_of(data)
  return data.paths and table.concat(data.paths, ', ') or 'the data set'
end

-- What was measured: a term that had no position gives nothing.
local function values_of(sums, how, data)
  local ce, divergence = sums:mean 'ce', how and sums:mean(how.name)
  if not ((ce and ce.weight > 0) or (divergence and divergence.weight > 0)) then
    fail('validation: %s has nothing to measure: no token that counts has a weight above 0',
      name_of(data))
  end
  local values = { loss = ce.value, agree = ce.agree }
  if divergence then
    values[how.name], values.teacher_agree = divergence.value, divergence.agree
  end
  return values
end

--- Measures a student over a data set.
--- @param o table student; data: the set; teacher?; kd?: what to measure against it, as for
---   `ms.kd`, by default forward KL over the whole vocabulary at T = 1; vocab?: how many ids the
---   models share, by default those that both and their tokenizers have; micro_tokens: of a batch;
---   ranks?: that share the data, by default those of the student's `grid.dp`; progress?: an
---   `ms_progress` whose `draw` is called after each batch; stop?: a function asked after each
---   batch, which ends it with true; each?: a function that is told the parts of each batch, see
---   `model:evaluate_parts`; run?: the run that measures, whose teacher may be on other ranks
--- @return ms_validation? # nil when it was stopped; true on a rank without the student
--- @return table entry the `terms` of a line of metrics.jsonl
function M.measure(o)
  local all = { ranks = o.student:grid().dp }
  for _, key in ipairs { 'student', 'data', 'teacher', 'kd', 'vocab', 'micro_tokens', 'ranks',
    'progress', 'stop', 'each', 'run' } do
    if o[key] ~= nil then all[key] = o[key] end
  end
  local how, sums = M.divergence(all), tally.new(all.ranks)
  if not evaluate(all, how, sums) then return nil end
  if not all.ranks then return true end
  return M.result(values_of(sums, how, all.data), how), sums:entry()
end

local WORDS = { kl = 'KL', js = 'JS', tvd = 'TVD' }

--- An objective in words: "forward KL".
--- @param objective string
--- @return string
function M.in_words(objective)
  return (objective:gsub('_', ' '):gsub('%a+', WORDS))
end

--- What a line calls the divergence: "forward KL", "large (forward KL)".
--- @param how table see `divergence`
--- @return string
function M.words_of(how)
  local words = M.in_words(how.objective)
  return how.name == how.objective and words or ('%s (%s)'):format(how.name, words)
end

--- A result as parts of a line, see `progress`.
--- @param what string what the line begins with
--- @param result ms_validation
--- @param how? table see `divergence`
--- @return table[]
function M.parts(what, result, how)
  local parts = { { what .. ':', 1 } }
  local function add(format, value, rank, glue)
    if not value then return end
    glue = glue or #parts == 1 and ' ' or ', '
    parts[#parts + 1] = { progress.number(format, value), rank, glue = glue }
  end
  add('loss %.4f', result.loss, 2)
  add('top-1 %.1f %%', result.agree and 100 * result.agree, 4)
  local divergence = how and result[how.name]
  if divergence then
    local words = M.words_of(how)
    add('%s', ('%s %s'):format(words, progress.number('%.4f', divergence)), 3)
    add('%s', 'to the teacher', 5, ' ')
    add('agreement %.1f %%', 100 * result.teacher_agree, 6)
  end
  return parts
end

return M
