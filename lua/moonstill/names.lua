--- The public names: what `ms.NAME` is, by name. `module` is where it is found, and `field` what of
--- it is meant, where that is not the module itself.

local M = {
  batch = { module = 'data.batch' },
  bpe = { module = 'text.bpe' },
  cache = { module = 'data.cache' },
  ce = { module = 'loss.kd', field = 'ce' },
  chat = { module = 'text.chat' },
  config = { module = 'run.config' },
  dataset = { module = 'data.dataset' },
  device = { module = 'tensor.device' },
  exit = { module = 'base.exit' },
  generate = { module = 'model.generate' },
  help = { module = 'prompt.help' },
  json = { module = 'base.json' },
  kd = { module = 'loss.kd' },
  lock = { module = 'run.lock' },
  model = { module = 'model.model' },
  one_of = { module = 'base.schema', field = 'one_of' },
  ops = { module = 'tensor.ops' },
  optimizer = { module = 'train.optimizer' },
  option = { module = 'base.schema', field = 'option' },
  optional = { module = 'base.schema', field = 'optional' },
  packing = { module = 'data.packing' },
  plot = { module = 'plot.plot' },
  required = { module = 'base.schema', field = 'required' },
  run = { module = 'run.run' },
  schedule = { module = 'train.schedule' },
  scope = { module = 'base.scope' },
  smoke = { module = 'toy.smoke' },
  sorted = { module = 'base.sorted' },
  target = { module = 'loss.target' },
  tensor = { module = 'tensor.tensor' },
  tokenizer = { module = 'text.tokenizer' },
  toy = { module = 'toy.toy' },
}

return M
