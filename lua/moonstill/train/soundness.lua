--- Whether a run's losses are sound, by their own history, and which checkpoint is known to be.
---
--- A step's loss is that of the weights which the steps before it made. So a checkpoint is known
--- to be sound once a step after it had a sound loss; until then the last one known to be is
--- kept, whatever `checkpoint.keep` says. A loss is far where it is above 3 times its level and 1
--- more, a norm where it is above 30 times its own: that happens, and passes. It is ruined where
--- it is not finite or above 100 times its level and 100 more; what follows teaches nothing, and
--- after as many such steps in a row as `optim.max_skips` the run ends. The level is a mean of
--- the past: of each new loss it takes a twentieth, of a far one a two-hundredth, of a ruined one
--- nothing.
---
--- In a run's state: `loss_level` and `norm_level`, absent before the first; `far` and `ruined`,
--- how many steps in a row were so; `sound`, the step of the checkpoint that is known to be, 0
--- for none.
local fail = require 'moonstill.base.fail'
local exit = require 'moonstill.base.exit'

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

-- What is said once when losses or norms leave their history.
local function note(run, step)
  local state = run.state
  run:say(('note: step %d has a loss of %.4g and a norm of %.3g, after %.4g and %.3g before: %s')
    :format(step.number, step.loss, step.grad_norm, state.loss_level, state.norm_level or 0,
    state.sound > 0 and ('the checkpoint of step %d is kept until that has passed')
      :format(state.sound) or 'there is no checkpoint from before'))
end

--- Takes in a step that is over.
--- @param run ms_run
--- @param step ms_step
function M.judge(run, step)
  local state, loss, norm = run.state, math.abs(step.loss), step.grad_norm
  if step.tally:empty() then return end
  if is_ruined(loss, state.loss_level) then
    state.ruined = state.ruined + 1
    return
  end
  local far = state.loss_level ~= nil and (loss > FAR * state.loss_level + 1
    or not step.skipped and state.norm_level ~= nil and norm > FAR_NORM * state.norm_level)
  if far and state.far == 0 then note(run, step) end
  if not far then state.sound = run.saved end
  state.loss_level = follow(state.loss_level, loss, far)
  if not step.skipped and norm > 0 then state.norm_level = follow(state.norm_level, norm, far) end
  state.far, state.ruined = far and state.far + 1 or 0, 0
end

-- Checkpoints that may be of ruined weights are put aside: the next start goes on from before.
local function diverged(run, what)
  local sound = run.state.sound
  run:set_aside_after(sound)
  run:close()
  exit(1, ('run: %s: it has diverged, and no student is saved. %s. A smaller optim.lr, or '
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
  if state.ruined == 0 or not state.loss_level then return end
  if not over and math.max(state.ruined, state.skips) < run.max_skips then return end
  diverged(run, ('the loss is %s at step %d, and was about %.4g before step %d'):format(
    state.loss and ('%.3g'):format(state.loss) or 'not finite', state.step, state.loss_level,
    state.step - state.ruined + 1))
end

--- Ends a run whose weights are not finite, as after an update that was far too large.
--- @param run ms_run
function M.check_weights(run)
  local ok, why = fail.pcall(run.student.check_finite, run.student)
  if not ok then diverged(run, ('after step %d: %s'):format(run.state.step, tostring(why))) end
end

return M
