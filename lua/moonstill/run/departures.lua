--- Where a run's plan departs from what was asked for: a line for each, said before its next step.
local C = require 'moonstill.C'
local checkpoints = require 'moonstill.run.checkpoints'
local json = require 'moonstill.base.json'
local packing = require 'moonstill.data.packing'
local progress = require 'moonstill.base.progress'
local schedule = require 'moonstill.train.schedule'
local sorted = require 'moonstill.base.sorted'

local M = {}

local function fewer_steps(run)
  local most, total = run.cfg.max_steps or 0, run.state.total
  if total >= most then return nil end
  return ('the data gives %d steps in %g epochs, so max_steps = %d is not reached; epochs=0 goes '
    .. 'on until it is'):format(total, run.cfg.epochs or 1, most)
end

-- A part of an epoch is rounded to whole steps, which is said where it changes the run by more than
-- a hundredth.
local function other_part(run)
  local asked, made = run.part.asked, run.part.made
  if not asked or run.state.total == run.cfg.max_steps then return nil end
  if math.abs(made - asked) <= 0.01 * run.state.total then return nil end
  return ('the last part of epochs = %g would be %.3g steps: it has %d'):format(run.cfg.epochs,
    asked, made)
end

local function large_micro_batch(run)
  local given, size = run.cfg.batch and run.cfg.batch.micro_tokens, run.batch_size
  if not given or given <= size.tokens or given == packing.options.micro_tokens.default then
    return nil
  end
  return ('batch.micro_tokens = %d, but a step has %d tokens (batch.tokens), and so has a pass')
    :format(given, size.tokens)
end

local function long_sample(run)
  if not run.data.longest then return nil end
  local size, tokens, place = run.batch_size, run.data:longest()
  if tokens > size.tokens then
    return ('%s has %d tokens, more than batch.tokens = %d: such samples are steps of their own')
      :format(place, tokens, size.tokens)
  elseif tokens > size.micro_tokens then
    return ('%s has %d tokens, more than batch.micro_tokens = %d: such samples are passes of their '
      .. 'own, and take their memory'):format(place, tokens, size.micro_tokens)
  end
end

-- All answers have a weight of 0, but some prompt has not: preflight refuses data without a weight.
local function only_prompts(run)
  if not run.data.counts or run.data:counts 'response' then return nil end
  return 'all weights of answers are 0: only terms with on = "all" learn'
end

-- The data has a tokenizer, and none is saved beside the student.
local function no_tokenizer(run)
  if not run.data.chat then return nil end
  local folder = run.carry or run.student:info().path
  if folder ~= json.null and C.ms_path_kind(folder .. '/tokenizer.json') == 1 then return nil end
  return 'no tokenizer goes along with the student: give run.open the folder of one as carry'
end

-- transformers would leave out a part of the student's activations in training.
local function no_dropout(run)
  for key, p in sorted.pairs(run.student:config()) do
    if (key:find 'dropout' or key:find 'pdrop') and type(p) == 'number' and p > 0 then
      return ("the student's config.json has %s = %g: no dropout is applied"):format(key, p)
    end
  end
end

local function value_at(f, step, total)
  return f { step = step, total = total, progress = (step - 1) / math.max(1, total - 1) }
end

-- A schedule's rise, and its fall at the end, may have more steps than the run.
local function long_warmup(run, name, f, shape)
  local warmup, total = shape.warmup, run.state.total
  if warmup < 1 or warmup < total then return nil end
  return ('%s warms up in %d steps, but the run has %d: it rises to %.2e, and no further')
    :format(name, warmup, total, value_at(f, total, total))
end

local function long_decay(run, name, _, shape)
  local decay, total = shape.decay or 0, run.state.total
  local left = total - schedule.steps_of(shape.warmup, total)
  if decay < 1 or decay <= left then return nil end
  return ('%s falls in the last %d steps, but the run has %d after its warm-up: it falls in all of '
    .. 'them'):format(name, decay, left)
end

-- The run has more steps, or fewer, than when its checkpoint was made: schedules, which follow the
-- share of the run that is over, jump here.
local function other_total(run)
  local state, before = run.state, run.total_before
  if not before or before == state.total or state.step >= state.total then return nil end
  local line = ('%d steps in all, %d when the checkpoint was made: schedules are stretched')
    :format(state.total, before)
  local lr = run.schedules.lr
  if not schedule.shape(lr) then return line end
  local was, now = value_at(lr, state.step, before), value_at(lr, state.step + 1, state.total)
  if math.abs(now - was) <= 0.01 * math.max(now, was) then return line end
  return ('%s, and lr goes from %.2e in step %d to %.2e in step %d'):format(line, was, state.step,
    now, state.step + 1)
end

local USUAL_RATE = 2e-5 -- for models of billions of parameters that were trained before

-- A peak learning rate for so many parameters, trained from random weights: the fit LR(N) =
-- 0.003239 - 0.0001395 ln N of Kaplan et al., Scaling Laws for Neural Language Models (2020),
-- appendix D.6. The toys of recipes/quickstart.lua, of 0.2 M, want 5e-3, where it gives 1.5e-3.
local function guessed_rate(parameters) return 0.003239 - 0.0001395 * math.log(parameters) end

-- The usual rate hardly moves a small model, not even one that was trained before, which takes
-- about a tenth of what random weights take.
local function small_rate(run)
  local rate = run.cfg.optim and run.cfg.optim.lr
  if run.state.step > 0 or not rate or rate <= 0 or rate > USUAL_RATE then return nil end
  local parameters = run.student:info().parameters
  local guess = guessed_rate(parameters)
  if guess / 10 < 2 * rate then return nil end
  return ('optim.lr = %.2g is a rate for large models; for %s parameters a guess is %.0e for a '
    .. 'student that was trained before, %.0e from random weights'):format(rate,
    progress.count(parameters), guess / 10, guess)
end

local function rare_checkpoints(run)
  local every, total = run.every, run.state.total
  if every <= total or every == checkpoints.options.every.default then return nil end
  return ('checkpoint.every = %d, but the run has %d steps: it is saved at its end only')
    :format(every, total)
end

local function no_checkpoint_kept(run)
  return run.keep == 0 and 'checkpoint.keep = 0 keeps one, from which the run can go on' or nil
end

local OF_RUN = { fewer_steps, other_part, other_total, large_micro_batch, long_sample,
  only_prompts, no_tokenizer, no_dropout, small_rate, rare_checkpoints, no_checkpoint_kept }
local OF_SCHEDULE = { long_warmup, long_decay }

local function say_all(run, lines, ...)
  for _, line_of in ipairs(lines) do
    local line = line_of(run, ...)
    if line then run:say('note: ' .. line) end
  end
end

--- @param run ms_run with its plan made, and brought to where it goes on
function M.say(run)
  say_all(run, OF_RUN)
  for _, name in ipairs(run.schedule_names) do
    local f = run.schedules[name]
    local shape = schedule.shape(f)
    if shape then say_all(run, OF_SCHEDULE, name, f, shape) end
  end
end

return M
