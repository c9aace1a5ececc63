--- Two teachers, each a term of the loss, whose shares change as the run goes.
---
---   moonstill recipes/two_teachers.lua teacher=models/maths second=models/code layers=8 \
---     data.train=train.jsonl data.valid=valid.jsonl first_share=1 share=0.5
---
--- The loss of a position is (1 - w) ce + w (a kd(first) + (1 - a) kd(second)), with w = kd.weight
--- and a from `first_share` to `share`. A step measures each term by itself, under its name; a
--- validation is against one teacher, so there are two of them. Any number of teachers works alike.
---
--- Teachers must read the same tokens as the student, id by id: where one does not, it is an error
--- that names the first id which means something else. Models may have more rows than the
--- tokenizer has ids; a divergence is over the ids that all three share.
local ms = require 'moonstill'

local cfg = ms.config({
  student = ms.optional 'path', teacher = ms.required('path', 'model folder of the first teacher'),
  second = ms.required('path', 'model folder of the second teacher'),
  layers = 0, output = 'out/two-teachers',
  data = ms.dataset.options(), batch = { tokens = 8192, micro_tokens = 2048 }, epochs = 1,
  kd = ms.kd.options { temperature = 1,
    weight = ms.option(0.5, 'of both teachers together; the labels have the rest') },
  first_share = ms.option(0.5, 'the first teacher\'s part of kd.weight at the first step, from '
    .. 'where it goes to share', 'number >= 0 <= 1'),
  share = ms.option(0.5, 'the first teacher\'s part of kd.weight at the last step',
    'number >= 0 <= 1'),
  optim = ms.optimizer.options { warmup = 0.03, clip = 1,
    lr = ms.option(2e-5, 'at the peak; small models want more, up to 1e-2 at 0.5 M') },
  checkpoint = { every = 200, keep = 2 }, validate = 100, recompute = false,
}, { about = 'Distils two teachers into one student.', smoke = ms.smoke.two_teachers })

local o = ms.setup(cfg, { teachers = { cfg.teacher, cfg.second }, on = cfg.kd.on })
local student, names = o.student, { 'first', 'second' }

local run = ms.run.open(cfg, { student = student, data = o.train, carry = o.carry,
  schedules = { lr = ms.schedule.of(cfg.optim),
    share = ms.schedule.linear { from = cfg.first_share, to = cfg.share } } })

--- The student against each teacher: forward KL over all ids, whatever it learns by.
local function validate()
  for i, teacher in ipairs(o.teachers) do
    run:validate { data = o.valid, teacher = teacher, vocab = o.vocab,
      kd = { name = names[i] } }
  end
end

if run.state.step == 0 then validate() end
for step in run:steps() do
  local weights = { cfg.kd.weight * step.share, cfg.kd.weight * (1 - step.share) }
  for batch in step:micro_batches() do
    local terms, targets = { ms.ce(1 - cfg.kd.weight) }, {}
    for i, teacher in ipairs(o.teachers) do
      targets[i] = teacher:targets(batch, cfg.kd)
      terms[i + 1] = ms.kd(targets[i], weights[i], cfg.kd, { name = names[i] })
    end
    student:learn(batch, terms)
    for _, target in ipairs(targets) do target:free() end
  end
  step:update()
  if step:every(cfg.validate) or step.number == run.state.total then validate() end
end
run:finish()
