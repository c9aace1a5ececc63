--- Validation of a run's student: over a whole data set, with the normalisation of training.
local json = require 'moonstill.json'
local kd = require 'moonstill.kd'
local metrics = require 'moonstill.metrics'
local options_of = require 'moonstill.options'
local sorted = require 'moonstill.sorted'
local tally = require 'moonstill.tally'

local M = {}

local function validation_plan(run, data)
  run.validation = run.validation or setmetatable({}, { __mode = 'k' })
  if not run.validation[data] then
    local n = run.batch_size.micro_tokens
    run.validation[data] = data:steps(0, 0, { tokens = n, micro_tokens = n })
  end
  return run.validation[data]
end

local VALIDATION = { data = true, teacher = true, kd = true, vocab = true }

-- What is measured unless the caller says otherwise: the whole vocabulary at T = 1, which does not
-- change with what is trained on.
local function measure_of(run, options)
  if options.kd or not options.teacher then return options.kd end
  local vocab = options.vocab or math.min(run.student:info().vocab, options.teacher:info().vocab)
  return { objective = 'forward_kl', temperature = 1, target = 'hidden', vocab = vocab }
end

-- What was asked, for a later process: data, teacher and measure. nil when the data or the teacher
-- does not tell itself from others.
local function validation_key(options)
  local data, teacher = options.data, options.teacher
  local path = teacher and teacher:info().path
  if not data.fingerprint or (teacher and type(path) ~= 'string') then return nil end
  local ok, key = pcall(json.encode, { data = data:fingerprint(), kd = options.kd,
    vocab = options.vocab, teacher = path })
  return ok and key or nil
end

-- The result of the same validation after the same step: of this process, or of the one that
-- finished the run.
local function find_validation(run, options, key)
  local last = run.last_validations
  for _, v in ipairs(last and last.step == run.state.step and last or {}) do
    if v.data == options.data and v.teacher == options.teacher and v.kd == options.kd
      and v.vocab == options.vocab then return v.result end
  end
  for _, v in ipairs(run.finished and run.validated or {}) do
    if key and v.key == key then return v.result end
  end
end

local function keep_validation(run, options, key, result)
  local last = run.last_validations
  if not last or last.step ~= run.state.step then
    last = { step = run.state.step }
    run.last_validations = last
  end
  local finite = true
  for _, x in sorted.pairs(result) do finite = finite and x - x == 0 end
  last[#last + 1] = { data = options.data, teacher = options.teacher, kd = options.kd,
    vocab = options.vocab, key = finite and key or nil, result = result }
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

--- What `run:validate` does.
function M.validate(run, options)
  options_of.known('run:validate', VALIDATION, options, 3)
  local data = options.data
  if not data then return nil end
  local key = validation_key(options)
  local known = find_validation(run, options, key)
  if known then return known end
  local sums, measure = tally.new(), measure_of(run, options)
  for _, step in ipairs(validation_plan(run, data)) do
    for _, samples in ipairs(step) do
      local batch = data:batch(samples)
      local ok, why = pcall(evaluate_batch, run, options.teacher, measure, batch, sums)
      batch:free()
      if not ok then error(why, 0) end
    end
  end
  local ce, kl = sums:mean(1), sums:mean(2)
  local result = { loss = ce.value, agree = ce.agree }
  if kl then result.kl, result.kl_agree = kl.value, kl.agree end
  keep_validation(run, options, key, result)
  local both = ce.value + (kl and kl.value or 0)
  run.state.validation = both - both == 0 and result or nil -- a checkpoint holds finite numbers
  run:record { step = run.state.step, kind = 'validation', loss = metrics.number(ce.value),
    terms = sums:entry() }
  local line = ('validation after step %d: loss %.4f, top-1 %.1f %%'):format(run.state.step,
    ce.value, 100 * ce.agree)
  if kl then
    line = line .. (', %s %.4f, agreement with the teacher %.1f %%'):format(
      options.kd and 'kd' or 'KL to the teacher', kl.value, 100 * kl.agree)
  end
  run:say(line)
  return result
end

return M
