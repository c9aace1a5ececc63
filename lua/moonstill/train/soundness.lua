--- Whether a run's losses are sound, by their own history, and which checkpoint is known to be.
---
--- A step's losses are those of the weights which the steps before it made. So a checkpoint is
--- known to be sound once a step after it had sound losses; until then the last one known to be is
--- kept, whatever `checkpoint.keep` says. Each term is judged by its own mean, whatever its weight,
--- so that weights may move; a term of weight 0 is not judged. A term is far where it is above 3
--- times its level and 1 more, a norm where it is above 30 times its own: that happens, and passes.
--- It is ruined where it is not finite or above 100 times its level and 100 more; what follows
--- teaches nothing, and after as many such steps in a row as `optim.max_skips` the run ends. The
--- level is a mean of the past: of each new loss it takes a twentieth, in a far step a
--- two-hundredth, in a ruined one nothing.
---
--- In a run's state: `levels` of the terms and `norm_level`, absent before the first; `far` and
--- `ruined`, how many steps in a row were so; `ruined_by`, in words; `sound`, the step of the
--- checkpoint that is known to be, 0 for none.
local fail = require 'moonstill.base.fail'
local progress = require 'moonstill.base.progress'

local M = {}

local FAR, RUINED = 3, 100 -- times the level, and 1 or 100 more
local FAR_NORM = 30
local NEW, NEW_FAR = 1 / 20, 1 / 200

local function is_ruined(loss, level)
  return loss - loss ~= 0 or level ~= nil and loss > RUINED * level + 100
end

local function follow(level, value, far)
  if not level then return value end
  return level + (far and NEW_FAR or NEW) * (value - level)
end

local function told(x) return progress.number('%.4g', x) end

-- The first term that is ruined, in words; nil where none is.
local function ruin_of(terms, levels)
  for _, term in ipairs(terms) do
    local level = levels[term.key]
    if is_ruined(math.abs(term.mean), level) then
      return ('%s is %s%s'):format(term.name, told(term.mean),
        level and (', and was about %s'):format(told(level)) or '')
    end
  end
end

-- What left its history, in words; nil where nothing did.
local function far_words(step, terms, state)
  local words = {}
  for _, term in ipairs(terms) do
    local level = state.levels[term.key]
    if level and math.abs(term.mean) > FAR * level + 1 then
      words[#words + 1] = ('%s rose from %s to %s'):format(term.name, told(level),
        told(term.mean))
    end
  end
  if not step.skipped and state.norm_level and step.grad_norm > FAR_NORM * state.norm_level then
    words[#words + 1] = ('the norm rose from %.3g to %.3g'):format(state.norm_level,
      step.grad_norm)
  end
  return words[1] and table.concat(words, ', and ')
end

-- What is said once when losses or norms leave their history.
local function note(run, step, what)
  local state = run.state
  run:say(('note: in step %d %s: %s'):format(step.number, what,
    state.sound > 0 and ('the checkpoint of step %d is kept until that has passed')
      :format(state.sound) or 'there is no checkpoint from before'))
end

--- Takes in a step that is over.
--- @param run ms_run
--- @param step ms_step
function M.judge(run, step)
  local state, norm = run.state, step.grad_norm
  if step.tally:empty() then return end
  local terms = step.tally:judged()
  state.levels = state.levels or {}
  state.ruined_by = ruin_of(terms, state.levels)
  if state.ruined_by then
    state.ruined = state.ruined + 1
    return
  end
  local far = far_words(step, terms, state)
  if far and state.far == 0 then note(run, step, far) end
  if not far then state.sound = run.saved end
  for _, term in ipairs(terms) do
    state.levels[term.key] = follow(state.levels[term.key], math.abs(term.mean), far)
  end
  if not step.skipped and norm > 0 then state.norm_level = follow(state.norm_level, norm, far) end
  state.far, state.ruined = far and state.far + 1 or 0, 0
end

-- Checkpoints that may be of ruined weights are put aside: the next start goes on from before.
local function diverged(run, what)
  local sound = run.state.sound
  run:set_aside_after(sound)
  run:leave(1, ('run: %s: it has diverged, and no student is saved. %s. A smaller optim.lr, or '
    .. 'optim.clip, may help'):format(what, sound > 0
      and ('The next start goes on from step %d, the last that is sound'):format(sound)
      or 'There is no checkpoint from before: the next start begins anew'))
end

--- Ends a run whose losses are ruined: at once when it is over, otherwise after `optim.max_skips`
--- of them, or of steps that were skipped, in a row. Checkpoints that may be of ruined weights
--- are put aside, so that the next start goes on from the last sound one.
--- @param run ms_run
--- @param over? boolean
function M.check(run, over)
  local state = run.state
  if state.ruined == 0 or not next(state.levels or {}) then return end
  if not over and math.max(state.ruined, state.skips) < run.max_skips then return end
  diverged(run, ('at step %d %s before step %d'):format(state.step, state.ruined_by,
    state.step - state.ruined + 1))
end

--- Ends a run whose weights are not finite, as after an update that was far too large.
--- @param run ms_run
function M.check_weights(run)
  local ok, why = fail.pcall(run.student.check_finite, run.student)
  if not ok then diverged(run, ('after step %d: %s'):format(run.state.step, tostring(why))) end
end

return M
