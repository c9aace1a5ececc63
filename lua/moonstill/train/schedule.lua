--- Schedules: values that change with the step.
---
---   schedules = { lr = ms.schedule.cosine { lr = 1e-3, warmup = 0.05 },
---     kd = function(state) return 0.9 - 0.4 * state.progress end }
---
--- A schedule is any function of a run's state, of which these use `step` (1 is the first) and
--- `total`. All of them reach their last value when the run ends, not before. Where a rate is meant
--- the options are those of a recipe's `optim`.

local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local optim = require 'moonstill.train.optim'
local schema = require 'moonstill.base.schema'

local M = {}

--- A recipe's `optim`, of which a schedule takes what is its own; and the ends of a straight line.
M.options = schema.new('schedule', {
  from = schema.optional('number', 'of linear without lr: the value at the first step'),
  to = schema.optional('number', 'of linear without lr: the value at the last step'),
}, optim)

-- The options over their defaults; an error where one of those named is not given.
local function read(options, ...)
  local o = schema.take('schedule', M.options, options)
  for i = 1, select('#', ...) do
    local name = (select(i, ...))
    if o[name] == nil then
      fail("schedule: '%s' must be given (%s)", name, schema.kind_text(M.options[name]))
    end
  end
  return o
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
local function rising(schedule, given, shape)
  local risen = schedule
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
function M.warmup(schedule, warmup)
  check.func('schedule', 'schedule', schedule)
  return rising(schedule, read({ warmup = warmup }).warmup)
end

--- Share of a run that lies before a step: 0 at the first, just below 1 at the last.
local function elapsed(state) return (state.step - 1) / state.total end

--- A fixed value; with a table, its `lr` after its `warmup`.
--- @param options number|table see `options`
--- @return fun(state: table): number
function M.constant(options)
  if type(options) == 'number' then
    return rising(function() return options end, 0, {})
  end
  local o = read(options, 'lr')
  return rising(function() return o.lr end, o.warmup, {})
end

--- A straight line: from `from` at the first step to `to` at the last; or, with `lr`, from the peak
--- towards `final`.
--- @param options table { from, to, warmup } or { lr, warmup, final }, see `options`
--- @return fun(state: table): number
function M.linear(options)
  local o = read(options)
  if o.lr then
    return rising(function(state) return o.lr * (1 - (1 - o.final) * elapsed(state)) end, o.warmup,
      {})
  end
  o = read(options, 'from', 'to')
  return rising(function(state)
    if state.total <= 1 then return o.from end
    local x = (state.step - 1) / (state.total - 1)
    return (1 - x) * o.from + x * o.to
  end, o.warmup, {})
end

--- Half a cosine from the peak towards `final`.
--- @param options { lr: number, warmup?: number, final?: number } see `options`
--- @return fun(state: table): number
function M.cosine(options)
  local o = read(options, 'lr')
  return rising(function(state)
    return o.lr * (o.final + (1 - o.final) * 0.5 * (1 + math.cos(math.pi * elapsed(state))))
  end, o.warmup, {})
end

--- Warm-up, stable, decay: the peak until the last `decay` of the steps (a share below 1 of what
--- follows the warm-up, or steps), then a straight line towards `final`.
--- @param options { lr: number, warmup?: number, decay?: number, final?: number } see `options`
--- @return fun(state: table): number
function M.wsd(options)
  local o = read(options, 'lr')
  return rising(function(state)
    local n = steps_of(o.decay, state.total)
    local into = state.step - 1 - (state.total - n)
    return into <= 0 and o.lr or o.lr * (1 - (1 - o.final) * into / n)
  end, o.warmup, { decay = o.decay })
end

--- The names that `of` knows, for `ms.one_of`.
M.names = optim.schedule.values

--- The schedule that `options.schedule` names, by default cosine.
--- @param options table a recipe's `optim`, see `options`
--- @return fun(state: table): number
function M.of(options)
  return M[read(options, 'lr').schedule](options)
end

return M
