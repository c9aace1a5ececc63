--- Trains a model on the answers of a data set.
---
---   moonstill recipes/sft.lua recipes/sft.yaml student=models/small data.train=chats.jsonl
local ms = require 'moonstill'

local cfg = ms.config({
  student = ms.required 'path', output = 'out/sft',
  data = ms.dataset.options(), batch = { tokens = 8192, micro_tokens = 2048 }, epochs = 1,
  on = ms.one_of({ 'response', 'all' }, nil, 'what is learned: the answers, or the prompts too'),
  optim = ms.optimizer.options { warmup = 0.03, clip = 1,
    lr = ms.option(2e-5, 'at the peak; small models want more, up to 1e-2 at 0.5 M') },
  checkpoint = { every = 200, keep = 2 }, validate = 100, recompute = false,
  frozen = '',
}, { about = 'Trains a model on the answers of a data set.', smoke = ms.smoke.sft })

local o = ms.setup(cfg, { on = cfg.on }) -- the model, its tokenizer, the data
local run = ms.run.open(cfg, { student = o.student, data = o.train,
  validation = { data = o.valid } })
local terms = { ms.ce(1, { on = cfg.on }) }

for step in run:steps() do
  for batch in step:micro_batches() do o.student:learn(batch, terms) end
  step:update()
end
run:finish()
