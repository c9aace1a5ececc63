--- Validation of a run's student: what was measured after which step, told and remembered.
---
--- A run that was opened with a `validation` measures by itself: before its first step, in every
--- step that `cfg.validate` divides, and after the last one. In its state, `validated` is the step
--- of the last such measurement, so that none is made twice, nor left out where a run was stopped
--- before it; `validated_first` is what was measured before the first step.
local C = require 'moonstill.C'
local handles = require 'moonstill.base.handle'
local json = require 'moonstill.base.json'
local measuring = require 'moonstill.train.measuring'
local metrics = require 'moonstill.run.metrics'
local options_of = require 'moonstill.base.options'
local others = require 'moonstill.run.others'
local progress = require 'moonstill.base.progress'
local sorted = require 'moonstill.base.sorted'

local M = {}

local VALIDATION = { data = true, teacher = true, kd = true, vocab = true }

local function copy_of(t)
  local copy = {}
  for key, value in sorted.pairs(t) do copy[key] = value end
  return copy
end

-- Everything that the result depends on, by value: equal keys have equal results, in this process
-- and in a later one. nil when the data does not tell itself from others.
local function key_of(run, options, how)
  local data, teacher = options.data, options.teacher
  if not data.fingerprint or teacher and not run.grid:is_same(teacher:grid()) then return nil end
  return json.encode { data = data:fingerprint(), student = run.student:hash(),
    teacher = teacher and teacher:hash(), measure = how }
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

local function is_finite(result)
  for _, x in sorted.pairs(result) do
    if x - x ~= 0 then return false end
  end
  return true
end

-- What schedules see of a result; a checkpoint holds finite numbers.
local function remember(run, result)
  if not is_finite(result) then
    run.state.validation = nil
    return
  end
  run.state.validation = copy_of(result)
  run.state.validation.step = run.state.step
end

local function place(run)
  local step = run.state.step
  return step == 0 and 'before step 1' or ('after step %d'):format(step)
end

-- nil when it was stopped.
local function measure(run, options, how, stop)
  local all = copy_of(options)
  all.student, all.micro_tokens, all.ranks = run.student, run.batch_size.micro_tokens, run.grid.dp
  all.progress, all.stop, all.run = run.progress, stop, run
  local result, entry = measuring.measure(all)
  if not result or run.away then return nil end
  run:record { step = run.state.step, kind = 'validation', loss = metrics.number(result.loss),
    terms = entry }
  local parts = measuring.parts(('validation %s'):format(place(run)), result, how)
  run:say(progress.fit(parts, run.progress:columns()))
  return result
end

--- What a run's validation must be; also that of `run.open`.
--- @param what string what errors begin with
--- @param options? table
--- @return table
function M.check(what, options)
  local o = options_of.known(what, VALIDATION, options)
  if o.data ~= nil then handles.object(what, 'data', o.data, 'dataset', 'steps') end
  if o.teacher ~= nil then handles.object(what, 'teacher', o.teacher, 'model') end
  return o
end

-- What `measuring` is told of the two models.
local function measured_by(run, options)
  return { student = run.student, teacher = options.teacher, kd = options.kd,
    vocab = options.vocab }
end

-- Ranks without the student are to measure with those that have it, or to take what these know.
local function tell(run, known)
  if #run.others == 0 then return end
  others.tell(run, 'validation', { known = known and true or false })
end

-- What ranks without the student do; they wait for each round, so that none is far ahead.
local function measure_away(run, options, stop)
  local letter = run.away:expect 'validation'
  if letter.none then return nil end
  if not letter.known then
    local how = measuring.divergence(measured_by(run, options))
    measure(run, options, how, stop)
  end
  letter = run.away:expect 'validated'
  return letter.result and measuring.result(letter.result, measuring.divergence(measured_by(run,
    options)))
end

-- The result, known or measured; nil when it was stopped.
local function result_of(run, options, stop)
  local how = measuring.divergence(measured_by(run, options))
  local key = key_of(run, options, how)
  local known = key and find_validation(run, key)
  tell(run, known)
  local result = known and measuring.result(known, how) or measure(run, options, how, stop)
  if not result then
    if #run.others > 0 then others.tell(run, 'validated', {}) end
    return nil
  end
  if key and not known and is_finite(result) then keep_validation(run, key, result) end
  remember(run, result)
  return result
end

local function tell_result(run, result)
  if #run.others == 0 then return end
  others.tell(run, 'validated', { result = is_finite(result) and result or nil })
end

-- What ended a measurement is asked of the first rank with the student; asking keeps the others
-- from running ahead.
local function asks(run)
  if #run.others == 0 then return function() return run.ranks:first(C.ms_interrupted()) ~= 0 end end
  return function() return run.grid.world:from(run.grid.ranks[1], C.ms_interrupted()) ~= 0 end
end

--- What `run:validate` does.
function M.validate(run, options)
  M.check('run:validate', options)
  if not options.data then return nil end
  local stop
  if #run.others > 0 then
    local ask = asks(run)
    function stop() ask() end
  end
  if run.away then return measure_away(run, options, stop) end
  local result = result_of(run, options, stop)
  if result then tell_result(run, result) end
  return result
end

-- Whether the run may have to measure now, between two steps or when it is over: all ranks know it.
local function may_be_due(run, over)
  local step, every = run.state.step, run.cfg.validate or 0
  if not (run.validation and run.validation.data) or run.finished then return false end
  return step == 0 or over or every > 0 and step % every == 0
end

-- Whether it has to, which ranks with the student know.
local function is_due(run)
  return run.state.validated ~= run.state.step and run.state.ruined == 0
end

-- Said at the end: by what the run taught, the divergence from the teacher or the loss, it made the
-- student worse.
local function note_worse(run, result)
  local first = run.state.validated_first or {}
  local how = measuring.divergence(measured_by(run, run.validation))
  local name = how and how.name or 'loss'
  local before, after = first[name], result[name]
  if not before or not after or after <= 1.01 * before then return end
  run:say(('note: on the validation data the %s is worse than before the first step, %.4f after '
    .. '%.4f: a smaller optim.lr, fewer epochs or more data may help'):format(
    how and measuring.words_of(how) or name, after, before))
end

--- The measurement of a run that makes it by itself, where one is due. A request to end stops it:
--- it is made when the run goes on.
--- @param run ms_run
--- @param over boolean whether no step follows
function M.between_steps(run, over)
  if not may_be_due(run, over) then return end
  local stop = asks(run)
  if run.away then
    measure_away(run, run.validation, stop)
    return
  end
  if not is_due(run) or run.ranks:first(C.ms_interrupted()) ~= 0 then
    if #run.others > 0 then others.tell(run, 'validation', { none = true }) end
    return
  end
  local result = result_of(run, run.validation, stop)
  if not result then return end
  run.state.validated = run.state.step
  if run.state.step == 0 then run.state.validated_first = run.state.validation end
  tell_result(run, result)
  if over then note_worse(run, result) end
end

return M
