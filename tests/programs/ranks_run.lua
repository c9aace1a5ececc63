--- A run that tests/spec/ranks_spec.lua makes alone and with several ranks: each writes down what it has
--- in the end.
local ms = require 'moonstill'
local json = require 'moonstill.base.json'
local ranks = require 'moonstill.base.ranks'
local recipe = require 'tests.programs.run_recipe'
local tools = require 'tests.support.tools'

local cfg = ms.config { output = 'out', results = 'results', steps = 2, resume = true,
  tp = 1, whole_teacher = false, ids = 40, target = 'logits', shard = 'none' }

local grid, larger = ms.grid { tp = cfg.tp }, {}
for key, value in pairs(recipe.config) do larger[key] = value end
larger.vocab_size = cfg.ids
local student = ms.model.create(recipe.config, 1, { train = true, dtype = 'f32', grid = grid })
local teacher = ms.model.create(larger, 2, { dtype = 'f32', vocab_cut = student:info().vocab,
  grid = not cfg.whole_teacher and grid or nil })
local how = { target = cfg.target, temperature = 2, vocab = math.min(cfg.ids, student:info().vocab),
  k = cfg.target == 'topk' and 9 or nil }
local run = ms.run.open({ output = cfg.output, resume = cfg.resume and 'auto', seed = 1, epochs = 0,
  max_steps = cfg.steps, optim = { lr = 1e-3, shard = cfg.shard }, batch = { tokens = 120, micro_tokens = 40 },
  checkpoint = { every = 2, keep = 1 } },
  { student = student, data = recipe.data(60), schedules = { kd = ms.schedule.constant(0.5) } })
local norms = {}
for step in run:steps() do
  for batch in step:micro_batches() do
    local target = teacher:targets(batch, how)
    student:learn(batch, { ms.ce(1 - step.kd), ms.kd(target, step.kd, how) })
    target:free()
  end
  norms[#norms + 1] = { step:norm 'response', step:norm 'all', step.tokens }
  step:update()
  if step:every(2) then run:validate { data = recipe.data(9), teacher = teacher, kd = how.k and how } end
end
run:finish()
tools.write(('%s/rank-%d.json'):format(cfg.results, ranks.world().rank), json.encode {
  state = run.state, norms = json.array(norms), id = run.id, hash = student:hash(),
  said = student:generate({ { 1, 2, 3 }, { 4 }, { 5, 6 } }, { max_new = 6, stop = {}, temperature = 0.7,
    seed = 3 }) })
