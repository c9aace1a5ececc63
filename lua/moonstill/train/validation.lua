--- Validation of a run's student: over a whole data set, with the normalisation of training.
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local kd = require 'moonstill.loss.kd'
local metrics = require 'moonstill.run.metrics'
local options_of = require 'moonstill.base.options'
local packing = require 'moonstill.data.packing'
local schema = require 'moonstill.base.schema'
local sorted = require 'moonstill.base.sorted'
local strict = require 'moonstill.base.strict'
local tally = require 'moonstill.train.tally'
local teachers = require 'moonstill.loss.teacher'

local M = {}

local VALIDATION = { data = true, teacher = true, kd = true, vocab = true }

-- What a validation gives: what was not measured is nil.
local class = strict.class('validation', {}, { loss = true, agree = true, kl = true,
  kl_agree = true })

local function copy_of(t)
  local copy = {}
  for key, value in sorted.pairs(t) do copy[key] = value end
  return copy
end

-- How many ids take part: what was asked for, or those that both models have.
local function shared_ids(run, options)
  local asked, own = options.vocab or 0, options.kd and rawget(options.kd, 'vocab') or 0
  if asked ~= 0 and own ~= 0 and asked ~= own then
    fail('run:validate: vocab = %s, but kd.vocab = %s', tostring(asked), tostring(own))
  end
  if asked ~= 0 or own ~= 0 then return asked ~= 0 and asked or own end
  return math.min(teachers.vocab(run.student), teachers.vocab(options.teacher))
end

-- What is measured against a teacher: unless the caller says otherwise the whole vocabulary at
-- T = 1, which does not change with what is trained on.
local function measure_of(run, options)
  if not options.teacher then return nil end
  local measure = { objective = 'forward_kl', temperature = 1, target = 'hidden' }
  if options.kd then measure = schema.part(kd.options, options.kd) end
  measure.vocab = shared_ids(run, options)
  return measure
end

-- Everything that the result depends on, by value: equal keys have equal results, in this process
-- and in a later one. nil when the data does not tell itself from others.
local function key_of(run, options, measure)
  local data, teacher = options.data, options.teacher
  if not data.fingerprint then return nil end
  return json.encode { data = data:fingerprint(), student = run.student:hash(),
    teacher = teacher and teacher:hash(), measure = measure }
end

-- The result of the same validation after the same step: of this process, or of the one that
-- finished the run.
local function find_validation(run, key)
  local last = run.last_validations
  for _, list in ipairs { last and last.step == run.state.step and last or {},
    run.finished and run.validated or {} } do
    for _, v in ipairs(list) do
      if v.key == key then return copy_of(v.result) end
    end
  end
end

local function keep_validation(run, key, result)
  local last = run.last_validations
  if not last or last.step ~= run.state.step then
    last = { step = run.state.step }
    run.last_validations = last
  end
  last[#last + 1] = { key = key, result = copy_of(result) }
end

local function evaluate_batch(run, teacher, measure, batch, sums)
  local terms, target = { kd.ce(1) }, nil
  if teacher then
    target = teacher:targets(batch, measure)
    terms[2] = kd.term(target, 1, measure)
  end
  sums:add(terms, run.student:evaluate(batch, terms))
  if target then target:free() end
end

-- The samples of each micro-batch of a data set.
local function plan(data, size)
  local list = {}
  local steps = data:steps(0, 0, { tokens = size, micro_tokens = size })
  for step in packing.as_plan(steps):each() do
    for _, samples in ipairs(step) do list[#list + 1] = samples end
  end
  return list
end

local function evaluate(run, options, measure)
  local data, sums = options.data, tally.new(run.ranks)
  for _, samples in ipairs(run.ranks:share(plan(data, run.batch_size.micro_tokens))) do
    local batch = data:batch(samples)
    local ok, why = pcall(evaluate_batch, run, options.teacher, measure, batch, sums)
    batch:free()
    if not ok then error(why, 0) end
  end
  sums:sum()
  return sums
end

local function name_of(data)
  return data.paths and table.concat(data.paths, ', ') or 'the data set'
end

-- What was measured: a term that had no position gives nothing.
local function result_of(sums, data)
  local ce, kl = sums:mean 'ce', sums:mean 'kd'
  if not ((ce and ce.weight > 0) or (kl and kl.weight > 0)) then
    fail('run:validate: %s has nothing to measure: no token that counts has a weight above 0',
      name_of(data))
  end
  return { loss = ce.value, agree = ce.agree, kl = kl and kl.value, kl_agree = kl and kl.agree }
end

local function is_finite(result)
  for _, x in sorted.pairs(result) do
    if x - x ~= 0 then return false end
  end
  return true
end

local function line_of(run, result, measured)
  local parts = {}
  if result.loss then
    parts[1] = ('loss %.4f, top-1 %.1f %%'):format(result.loss, 100 * result.agree)
  end
  if result.kl then
    parts[#parts + 1] = ('%s %.4f, agreement with the teacher %.1f %%'):format(measured, result.kl,
      100 * result.kl_agree)
  end
  return ('validation after step %d: %s'):format(run.state.step, table.concat(parts, ', '))
end

--- What `run:validate` does.
function M.validate(run, options)
  options_of.known('run:validate', VALIDATION, options)
  if not options.data then return nil end
  local measure = measure_of(run, options)
  local key = key_of(run, options, measure)
  local known = key and find_validation(run, key)
  if known then return setmetatable(known, class) end
  local sums = evaluate(run, options, measure)
  local result = result_of(sums, options.data)
  local finite = is_finite(result)
  if key and finite then keep_validation(run, key, result) end
  run.state.validation = finite and copy_of(result) or nil -- a checkpoint holds finite numbers
  run:record { step = run.state.step, kind = 'validation', loss = metrics.number(result.loss),
    terms = sums:entry() }
  run:say(line_of(run, result, options.kd and 'kd' or 'KL to the teacher'))
  return setmetatable(result, class)
end

return M
