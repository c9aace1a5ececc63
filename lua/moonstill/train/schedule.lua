--- Schedules: values that change with the step.
---
--- A schedule is any function of a run's state, of which these use `step` (1 is the first) and
--- `total`. All of them reach their last value when the run ends, not before. Where a rate is meant
--- the options are those of a recipe's `optim`: `lr` is the peak, `warmup` the share of the steps
--- (below 1) or the number of steps in which it rises, `final` the rate at the end as a share of
--- the peak (0 unless given).

local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local options_of = require 'moonstill.base.options'
local sorted = require 'moonstill.base.sorted'

local M = {}

--- What a recipe's `optim` may say for a schedule.
M.keys = { schedule = true, lr = true, warmup = true, final = true, decay = true }

-- What any of the schedules may be given: `optim` is passed whole, so the optimiser's and the run's
-- keys are known too.
local keys
local function known(options)
  if not keys then
    keys = { from = true, to = true }
    -- the optimiser's have M.keys too
    for key in sorted.pairs(require 'moonstill.train.optimizer'.keys) do keys[key] = true end
  end
  return options_of.known('schedule', keys, options)
end

-- A share of the steps, below 1, or a number of steps.
local function share_or_steps(name, value)
  if type(value) == 'number' and value >= 0 and value < 1 then return value end
  if type(value) ~= 'number' or not (value >= 0) then
    fail('schedule: %s must be a number, at least 0, not %s', name, tostring(value))
  end
  local words = name .. ' (a share below 1, or steps)'
  return check.integer('schedule', words, value, 0, check.EXACT)
end

local function number(options, name, default)
  local value = options[name]
  if value == nil then value = default end
  if type(value) ~= 'number' or value ~= value or math.abs(value) == math.huge then
    fail('schedule: %s must be a number, not %s', name, tostring(value))
  end
  return value
end

--- Steps that a setting means in a run of `total`: a share below 1, or a number of steps.
--- @param setting number
--- @param total integer
--- @return integer
function M.steps_of(setting, total)
  check.number('schedule', 'setting', setting, 0, math.huge)
  check.number('schedule', 'total', total, 0, math.huge)
  local n = setting < 1 and math.ceil(setting * total - 1e-9) or math.floor(setting)
  return math.max(0, math.min(n, total))
end
local steps_of = M.steps_of

local shapes = setmetatable({}, { __mode = 'k' }) -- by schedule

--- The warm-up of one of this module's schedules, and where it ends in one the decay, as they were
--- given; nil for any other function. Such a schedule looks at `step` and `total` only and keeps
--- nothing, so it can be asked at any time.
--- @param schedule function
--- @return { warmup: number, decay?: number }?
function M.shape(schedule) return shapes[schedule] end

-- Of a schedule of this module `shape` is known.
local function rising(schedule, warmup, shape)
  local given, risen = share_or_steps('warmup', warmup), schedule
  if given > 0 then
    local inner = { step = 0, total = 0, progress = 0 } -- its own; all else is the state's
    function risen(state)
      local n = steps_of(given, state.total)
      setmetatable(inner, { __index = state, __newindex = state })
      inner.step = math.max(1, state.step - n)
      inner.total = math.max(1, state.total - n)
      inner.progress = (inner.step - 1) / math.max(1, inner.total - 1)
      local value = schedule(inner)
      return state.step <= n and value * state.step / (n + 1) or value
    end
  end
  if shape then shapes[risen] = { warmup = given, decay = shape.decay } end
  return risen
end

--- Puts a linear rise before a schedule: in the first n steps step / (n + 1) of the value with
--- which the schedule then begins. The schedule sees only the steps that are left; what it keeps in
--- the state is kept there.
--- @param schedule fun(state: table): number
--- @param warmup number share of the steps (below 1), or steps
--- @return fun(state: table): number
function M.warmup(schedule, warmup) return rising(schedule, warmup) end

--- Share of a run that lies before a step: 0 at the first, just below 1 at the last.
local function elapsed(state) return (state.step - 1) / state.total end

--- A fixed value; with a table, its `lr` after its `warmup`.
--- @param options number|table
function M.constant(options)
  if type(options) == 'number' then
    return rising(function() return options end, 0, {})
  end
  local peak = number(known(options), 'lr')
  return rising(function() return peak end, number(options, 'warmup', 0), {})
end

--- A straight line: from `from` at the first step to `to` at the last; or, with `lr`, from the peak
--- towards `final`.
--- @param options table { from, to, warmup } or { lr, warmup, final }
function M.linear(options)
  check.table('schedule', 'options', options)
  local warmup = number(known(options), 'warmup', 0)
  if options.lr then
    local peak, final = number(options, 'lr'), number(options, 'final', 0)
    return rising(function(state) return peak * (1 - (1 - final) * elapsed(state)) end, warmup, {})
  end
  local from, to = number(options, 'from'), number(options, 'to')
  return rising(function(state)
    if state.total <= 1 then return from end
    local x = (state.step - 1) / (state.total - 1)
    return (1 - x) * from + x * to
  end, warmup, {})
end

--- Half a cosine from the peak towards `final`.
--- @param options { lr: number, warmup?: number, final?: number }
function M.cosine(options)
  local peak, final = number(known(options), 'lr'), number(options, 'final', 0)
  return rising(function(state)
    return peak * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * elapsed(state))))
  end, number(options, 'warmup', 0), {})
end

--- Warm-up, stable, decay: the peak until the last `decay` of the steps (a share below 1 of what
--- follows the warm-up, or steps; default 0.2), then a straight line towards `final`.
--- @param options { lr: number, warmup?: number, decay?: number, final?: number }
function M.wsd(options)
  local peak, final = number(known(options), 'lr'), number(options, 'final', 0)
  local decay = share_or_steps('decay', number(options, 'decay', 0.2))
  return rising(function(state)
    local n = steps_of(decay, state.total)
    local into = state.step - 1 - (state.total - n)
    return into <= 0 and peak or peak * (1 - (1 - final) * into / n)
  end, number(options, 'warmup', 0), { decay = decay })
end

--- The names that `of` knows, for `ms.one_of`.
M.names = { 'cosine', 'linear', 'constant', 'wsd' }

--- The schedule that `options.schedule` names, by default cosine.
--- @param options table a recipe's `optim`
function M.of(options)
  check.table('schedule', 'options', options)
  local name = options.schedule or 'cosine'
  for _, each in ipairs(M.names) do
    if name == each then return M[name](options) end
  end
  fail("schedule: '%s' is none of %s", tostring(name), table.concat(M.names, ', '))
end

return M
