--- Distils a teacher into a student by its output distribution.
---
---   moonstill recipes/distill.lua recipes/distill.yaml student=models/small teacher=models/large
---
--- Without `student` it is made of some of the teacher's layers: layers=8, or layers=[0,1,5].
local ms = require 'moonstill'

local cfg = ms.config({
  student = ms.optional 'path', teacher = ms.required 'path', layers = 0, output = 'out/distilled',
  data = ms.dataset.options(), batch = { tokens = 8192, micro_tokens = 2048 }, epochs = 1,
  kd = ms.kd.options { temperature = 1,
    first_weight = ms.option(0.9, 'weight at the first step, from where it goes to kd.weight',
      'number >= 0 <= 1') },
  optim = ms.optimizer.options { warmup = 0.03, clip = 1,
    lr = ms.option(2e-5, 'at the peak; small models want more, up to 1e-2 at 0.5 M') },
  checkpoint = { every = 200, keep = 2 }, validate = 100, recompute = false,
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
local train, valid = ms.dataset.sets(cfg.data, chat, { seed = cfg.seed })
train:fits(student, teacher)
train:check_counts(cfg.kd.on)
if valid then
  valid:fits(student, teacher)
  valid:check_counts 'response'
end
cfg.kd.vocab = chat:vocab(student, teacher, cfg.kd.vocab)
if cfg.kd.target == 'topk' and cfg.kd.k > cfg.kd.vocab then
  ms.config.refuse(("'kd.k' is %d, but the models share %d ids"):format(cfg.kd.k, cfg.kd.vocab))
end

local run = ms.run.open(cfg, { student = student, data = train,
  carry = cfg.student or cfg.teacher,
  validation = { data = valid, teacher = teacher, vocab = cfg.kd.vocab },
  schedules = { lr = ms.schedule.of(cfg.optim),
    kd = ms.schedule.linear { from = cfg.kd.first_weight, to = cfg.kd.weight } } })

for step in run:steps() do
  for batch in step:micro_batches() do
    local target = teacher:targets(batch, cfg.kd)
    student:learn(batch, { ms.ce(1 - step.kd), ms.kd(target, step.kd, cfg.kd) })
    target:free()
  end
  step:update()
end
run:finish()
