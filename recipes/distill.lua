--- Distils a teacher into a student by its output distribution.
---
---   moonstill recipes/distill.lua recipes/distill.yaml student=models/small teacher=models/large
---
--- Without `student` it is made of some of the teacher's layers: layers=8, or layers=[0,1,5].
local ms = require 'moonstill'

local cfg = ms.config({
  student = ms.optional 'path', teacher = ms.required 'path', output = 'out/distilled',
  layers = ms.option(0, 'without student: how many of the teacher\'s layers, or which: [0,5]',
    'integer >= 0|list'),
  data = { train = ms.required 'paths', valid = ms.optional 'paths',
    max_tokens = 2048,
    over_long = ms.one_of { 'drop', 'truncate', 'error' }, on_error = ms.one_of { 'error', 'skip' },
    prompt_key = ms.optional 'string', answer_key = ms.optional 'string',
    text_key = ms.optional 'string', messages_key = ms.optional 'string',
    weight_key = ms.optional 'string', ignore = ms.optional 'list' },
  batch = { tokens = 8192, micro_tokens = 2048 },
  epochs = 1,
  kd = { objective = ms.one_of(ms.kd.objectives), temperature = 1,
    weight = ms.option(0.5, nil, 'number >= 0 <= 1'),
    first_weight = ms.option(0.9, 'weight at the first step, from where it goes to kd.weight',
      'number >= 0 <= 1'),
    target = ms.one_of(ms.kd.targets), k = 64,
    tail = ms.one_of(ms.kd.tails), on = ms.one_of(ms.kd.positions),
    t_scale = ms.option('auto', nil, 'auto|false|number > 0 <= 1e6'),
    beta = 0.5, lambda = 0.1, alpha = 0.5 },
  optim = { lr = ms.option(2e-5, 'at the peak; small models want more, up to 1e-2 at 0.5 M'),
    warmup = 0.03, final = 0, clip = 1, weight_decay = 0, beta1 = 0.9, beta2 = 0.999,
    schedule = ms.one_of(ms.schedule.names, 'cosine', 'of the learning rate'),
    decay = ms.option(0.2, 'wsd: share of the steps (below 1), or steps, in which lr falls') },
  checkpoint = { every = 200, keep = 2 },
  validate = ms.option(100, 'steps between validations'),
  recompute = ms.option(false, 'less memory for activations, a third more time'),
}, { about = 'Distils a teacher into a student by its output distribution.',
  smoke = ms.smoke.distill })
if not cfg.student and cfg.layers == 0 then
  ms.config.refuse "'student' must be given, or 'layers' to make one of the teacher's"
elseif cfg.student and cfg.layers ~= 0 then
  ms.config.refuse "'layers' makes a student of the teacher's layers: not beside 'student'"
end

-- Before any weights: a student that reads other tokens than its teacher cannot learn from it.
local chat = ms.chat.open(cfg.student or cfg.teacher, { cfg.teacher })

local held = { train = true, dtype = cfg.dtype, device = cfg.device, recompute = cfg.recompute }
local teacher = ms.model.open(cfg.teacher, { device = cfg.device })
local student
if cfg.student then
  student = ms.model.open(cfg.student, held)
else
  held.layers = cfg.layers
  student = ms.model.shrink(teacher, held)
end

cfg.data.max_tokens = chat:longest(cfg.data.max_tokens, student, teacher)
local train = ms.dataset.open(cfg.data.train, chat, cfg.data)
local valid = cfg.data.valid and ms.dataset.open(cfg.data.valid, chat, cfg.data)
train:fits(student, teacher)
train:check_counts(cfg.kd.on)
if valid then
  valid:fits(student, teacher)
  valid:check_counts 'response'
end
local how = { objective = cfg.kd.objective, temperature = cfg.kd.temperature, on = cfg.kd.on,
  target = cfg.kd.target, k = cfg.kd.k, tail = cfg.kd.tail, t_scale = cfg.kd.t_scale,
  beta = cfg.kd.beta, lambda = cfg.kd.lambda, alpha = cfg.kd.alpha,
  vocab = chat:vocab(student, teacher) }
if how.target == 'topk' and how.k > how.vocab then
  ms.config.refuse(("'kd.k' is %d, but the models share %d ids"):format(how.k, how.vocab))
end

local run = ms.run.open(cfg, { student = student, data = train,
  carry = cfg.student or cfg.teacher,
  schedules = { lr = ms.schedule.of(cfg.optim),
    kd = ms.schedule.linear { from = cfg.kd.first_weight, to = cfg.kd.weight } } })

for step in run:steps() do
  for batch in step:micro_batches() do
    local target = teacher:targets(batch, how)
    student:learn(batch, { ms.ce(1 - step.kd), ms.kd(target, step.kd, how) })
    target:free()
  end
  step:update()
  if step:every(cfg.validate) then
    run:validate { teacher = teacher, data = valid, vocab = how.vocab }
  end
end
run:validate { teacher = teacher, data = valid, vocab = how.vocab }
run:finish()
