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
  teacher_grid = ms.grid.options {}, transfer = ms.transfer.settings {},
}, { about = 'Distils a teacher into a student by its output distribution.',
  smoke = ms.smoke.distill })

-- Models, tokenizer and data, each checked against the others: a student that reads other tokens
-- than its teacher cannot learn from it.
local o = ms.setup(cfg, { teachers = { cfg.teacher }, on = cfg.kd.on })
local student, teacher = o.student, o.teachers[1]

local run = ms.run.open(cfg, {
  student = student, data = o.train, carry = o.carry,
  validation = { data = o.valid, teacher = teacher, vocab = o.vocab },
  schedules = {
    lr = ms.schedule.of(cfg.optim),
    kd = ms.schedule.linear { from = cfg.kd.first_weight, to = cfg.kd.weight },
  } })

for step in run:steps() do
  for batch in step:micro_batches() do
    local target = teacher:targets(batch, cfg.kd)
    student:learn(batch, { ms.ce(1 - step.kd), ms.kd(target, step.kd, cfg.kd) })
    target:free()
  end
  step:update()
end
run:finish()
