--- Whether a run learns. Steps that taught nothing are counted, by their reasons; a run that has
--- learnt nothing, or whose gradients stay not finite, fails, and fails again when it is started
--- again, until something has changed.
local M = {}

-- Counters of a run's state: steps that taught nothing, why, and what to do.
local REASONS = {
  { key = 'skipped', words = 'skipped, as their gradient was not finite',
    advice = 'the weights of student and teacher (is a term of the loss nan?) and at their dtype' },
  { key = 'empty', words = 'without a position that counts',
    advice = 'the weights of the data and at what the terms are on' },
  { key = 'still', words = 'with a gradient of 0',
    advice = 'the weights of the terms and at whether the teacher is another model' },
}

local function reason_of(step)
  if step.tally:empty() then return 'empty' end
  if step.skipped then return 'skipped' end
  if step.grad_norm == 0 then return 'still' end -- a rate of 0 is what was asked for
end

--- Counts a step that is over.
--- @param state table of the run
--- @param step ms_step
function M.count(state, step)
  local reason = reason_of(step)
  if reason then state[reason] = (state[reason] or 0) + 1 end
  state.skips = step.skipped and state.skips + 1 or 0
end

-- A field of each reason that a run's steps had, as one text; nil where all steps taught something.
local function each_reason(state, format)
  local parts = {}
  for _, reason in ipairs(REASONS) do
    local n = state[reason.key] or 0
    if n > 0 then parts[#parts + 1] = format(n, reason) end
  end
  return parts[1] and table.concat(parts, '; ')
end

--- What is said of the steps that taught nothing: "3 of them skipped, ..", or nil.
--- @param state table of the run
--- @return string?
function M.describe(state)
  return each_reason(state, function(n, reason)
    return ('%d of them %s'):format(n, reason.words)
  end)
end

local function advice(state)
  return each_reason(state, function(_, reason) return reason.advice end)
    or 'the loop, which made no step'
end

-- How many steps taught something.
local function learnt(state)
  local n = state.step
  for _, reason in ipairs(REASONS) do n = n - (state[reason.key] or 0) end
  return n
end

-- A run that has learnt nothing saves nothing, so that the next start sees whatever was changed;
-- but from an earlier checkpoint it would go on.
local function fail(run, format, ...)
  local anew = run.saved > 0 and learnt(run.state) == 0 and '; then resume=false begins anew' or ''
  run:leave(1, 'run: ' .. format:format(...) .. anew)
end

--- Ends a run that is over and has learnt nothing: its student would be the one that it began with.
--- @param run ms_run
function M.check_end(run)
  local state = run.state
  if learnt(state) > 0 then return end
  fail(run, 'nothing was learnt in %d steps%s, so no student is saved. Look at %s', state.step,
    state.step > 0 and (' (%s)'):format(M.describe(state)) or '', advice(state))
end

--- Ends a run whose gradients stay not finite.
--- @param run ms_run
--- @param tally ms_tally of the last step
function M.check_skips(run, tally)
  local state = run.state
  if state.skips < run.max_skips then return end
  local what = ('the gradient was not finite in %d steps in a row, up to step %d: %s')
    :format(state.skips, state.step, tally:describe())
  if learnt(state) == 0 then
    fail(run, '%s; nothing was learnt before them. Look at %s', what, advice(state))
  end
  run:checkpoint()
  fail(run, '%s; the weights before them are saved in %s. A smaller optim.lr, or optim.clip, may '
    .. 'help', what, run:checkpoint_path(state.step))
end

--- Called when a run goes on from a checkpoint: one that was stopped for its skips does so only
--- when something is different.
--- @param run ms_run
--- @param path string the checkpoint
--- @param different boolean whether settings have changed, or the checkpoint was named
function M.resume(run, path, different)
  local state = run.state
  if state.skips < run.max_skips then return end
  if different and state.step < state.total then
    state.skips = 0
    return
  end
  error(('run: stopped after step %d of %d, as the gradient was not finite in %d steps in a row, '
    .. 'and nothing has changed since then: a smaller optim.lr, or optim.clip, may help; resume=%s '
    .. 'tries again from there, resume=false begins anew'):format(state.step, state.total,
    state.skips, path), 0)
end

return M
