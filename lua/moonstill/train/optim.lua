--- The `optim` of a configuration: what AdamW, the schedule of the learning rate and the run are
--- told. It is handed whole to each of them.
local schema = require 'moonstill.base.schema'
local option = schema.option

local STEPS = 'number >= 0 < 1|integer >= 1'

return schema.new('optim', {
  lr = schema.optional('number >= 0 <= 10', 'peak learning rate'),
  schedule = schema.one_of({ 'cosine', 'linear', 'constant', 'wsd' }, 'cosine',
    'of the learning rate', {
      cosine = 'half a cosine from the peak to final',
      linear = 'a straight line from the peak to final', constant = 'the peak',
      wsd = 'the peak until the last decay of the steps, then a line to final' }),
  warmup = option(0, 'share of the steps (below 1), or steps, in which lr rises from 0', STEPS),
  final = option(0, 'lr at the end, as a share of the peak', 'number >= 0 <= 10')
    :beside('schedule', 'cosine', 'linear', 'wsd'),
  decay = option(0.2, 'wsd: share of the steps (below 1), or steps, in which lr falls', STEPS)
    :beside('schedule', 'wsd'),
  -- PyTorch's defaults, but for the decay
  beta1 = option(0.9, 'AdamW', 'number >= 0 < 1'),
  beta2 = option(0.999, 'AdamW', 'number >= 0 < 1'),
  eps = option(1e-8, 'AdamW', 'number > 0 <= 1'),
  weight_decay = option(0, 'decoupled; not for norms and biases', 'number >= 0 <= 10'),
  clip = option(0, 'largest global gradient norm; 0: no clipping', 'number >= 0 <= 1e9'),
  shard = schema.one_of({ 'none', 'optimizer' }, 'none',
    'what ranks that learn the same model have a part of each', {
      none = 'nothing: each has all of AdamW\'s memory',
      optimizer = 'its moments and f32 masters, which then exist once over all of them' }),
  max_skips = option(5, 'stop after this many non-finite gradients in a row', 'integer >= 1'),
})
