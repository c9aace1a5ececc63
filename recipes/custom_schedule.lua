--- Schedules are functions of the run's state: here the weight of the teacher follows a rule.
---
---   moonstill recipes/custom_schedule.lua rule=plateau teacher=models/large layers=8 \
---     data.train=train.jsonl data.valid=valid.jsonl
---
--- A schedule is called once for each step, with `run.state`: there are `step` (this one, from 1),
--- `total`, `progress` (from 0 to 1), `epoch`, `tokens` (of all steps before), `loss` (of the step
--- before) and `validation` (the last one, with its `step`; nil before the first). Whatever it
--- returns is `step.NAME`.
---
--- It may keep fields of its own in the state: numbers, texts, booleans, and tables of these. They
--- are saved with each checkpoint, so that a run which was stopped decides as it would have. What a
--- local variable holds is lost then, and a clock or a random number is another one: a resumed run
--- repeats only what depends on the state.
local ms = require 'moonstill'

local cfg = ms.config({
  student = ms.optional 'path', teacher = ms.required 'path', layers = 0, output = 'out/scheduled',
  data = ms.dataset.options(), batch = { tokens = 8192, micro_tokens = 2048 }, epochs = 1,
  kd = ms.kd.options { temperature = 1, weight = ms.option(0.9, 'what the rule begins with') },
  rule = ms.one_of({ 'plateau', 'ratio', 'agreement' }, nil, 'what the weight follows'),
  patience = ms.option(2, 'validations without a better loss, after which the weight falls',
    'integer >= 1'):beside('rule', 'plateau'),
  factor = ms.option(0.5, 'of the weight then', 'number >= 0 <= 1'):beside('rule', 'plateau'),
  better = ms.option(0.005, 'by how many nats a better loss is lower', 'number >= 0')
    :beside('rule', 'plateau'),
  ratio = ms.option(1, 'of what the teacher adds to the loss to what the labels add',
    'number > 0'):beside('rule', 'ratio'),
  optim = ms.optimizer.options { warmup = 0.03, clip = 1,
    lr = ms.option(2e-5, 'at the peak; small models want more, up to 1e-2 at 0.5 M') },
  checkpoint = { every = 200, keep = 2 }, validate = 20, recompute = false,
}, { about = 'Distils with a weight of the teacher that follows the run.',
  smoke = function()
    local values = ms.smoke.distill()
    values.patience, values.better = 1, 0.2 -- such that the weight falls
    return values
  end })

local o = ms.setup(cfg, { teachers = { cfg.teacher }, on = cfg.kd.on })
local student, teacher = o.student, o.teachers[1]
if cfg.rule ~= 'ratio' and not o.valid then
  ms.config.refuse(("rule=%s looks at validations: it needs data.valid or data.split")
    :format(cfg.rule))
end

local rules = {}

--- The weight falls each time that the validation loss has not become better for a while: the
--- teacher leads at first, the labels have the last word.
function rules.plateau(state)
  local now = state.validation
  local own = state.plateau or { weight = cfg.kd.weight, stale = 0, seen = -1 }
  state.plateau = own
  if not now or now.step == own.seen then return own.weight end -- nothing new
  own.seen = now.step
  if not own.best or now.loss < own.best - cfg.better then
    own.best, own.stale = now.loss, 0
  else
    own.stale = own.stale + 1
  end
  if own.stale >= cfg.patience then own.weight, own.stale = own.weight * cfg.factor, 0 end
  return own.weight
end

--- Both parts of the loss stay in a ratio, however large each of them is: w kd = ratio (1 - w) ce.
function rules.ratio(state)
  local means = state.means
  if not means or means.ce + means.kd == 0 then return cfg.kd.weight end
  return cfg.ratio * means.ce / (means.kd + cfg.ratio * means.ce)
end

--- Any function will do: the more often the student's first choice is the teacher's, the less
--- weight the teacher has.
function rules.agreement(state)
  local now = state.validation
  return now and math.min(cfg.kd.weight, 1 - now.teacher_agree) or cfg.kd.weight
end

-- The means of the loss's terms over some ten steps, for `rules.ratio`: those of one jump about.
local function remember(state, step)
  local ce, kd = step:mean 'ce', step:mean 'kd'
  if step.skipped or not (ce and kd) then return end
  local means = state.means or { ce = ce, kd = kd }
  state.means = { ce = 0.9 * means.ce + 0.1 * ce, kd = 0.9 * means.kd + 0.1 * kd }
end

local run = ms.run.open(cfg, { student = student, data = o.train, carry = o.carry,
  validation = { data = o.valid, teacher = teacher, vocab = o.vocab },
  schedules = { lr = ms.schedule.of(cfg.optim), kd = rules[cfg.rule] } })

for step in run:steps() do
  for batch in step:micro_batches() do
    local target = teacher:targets(batch, cfg.kd)
    student:learn(batch, { ms.ce(1 - step.kd), ms.kd(target, step.kd, cfg.kd) })
    target:free()
  end
  step:update()
  remember(run.state, step)
end
run:finish()
