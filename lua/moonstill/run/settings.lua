--- The settings of a run and of its recipe: those of the run itself, and those of each module whose
--- options are a part of them (`kd`, `optim`, ..).
local checkpoints = require 'moonstill.run.checkpoints'
local dataset = require 'moonstill.data.dataset'
local grid = require 'moonstill.base.grid'
local kd = require 'moonstill.loss.kd'
local model = require 'moonstill.model.model'
local optim = require 'moonstill.train.optim'
local packing = require 'moonstill.data.packing'
local schema = require 'moonstill.base.schema'
local transfer = require 'moonstill.loss.transfer'
local option = schema.option

local M = {}

--- What a configuration may hold. Of what a run does not read itself (models, data, `kd`) it tells
--- what has changed when it goes on.
M.options = schema.new('run.open', {
  student = schema.optional('string', 'model folder to train'),
  teacher = schema.optional('string', 'model folder to learn from'),
  layers = schema.optional('integer >= 0|list',
    'without student: how many of the teacher\'s layers, or which: [0,5]'),
  output = schema.optional('string', 'folder for the result (student/), checkpoints and metrics'),
  epochs = option(1, 'passes over the training data; fractions are fine', 'number >= 0 <= 10000'),
  max_steps = option(0, 'stop after this many optimiser steps; 0: by epochs', 'integer >= 0'),
  validate = option(0, 'steps between validations; 0: before the first step and after the last '
    .. 'one only', 'integer >= 0')
    :beside 'data.valid|data.split',
  seed = option(0, 'of shuffling and of random weights', 'integer >= 0'),
  resume = option('auto', 'go on from the last checkpoint, from a given one, or not',
    'auto|boolean|path'),
  threads = option(0, 'worker threads; 0: all cores; results do not depend on it',
    'integer >= 0 <= 4096'),
  device = model.options.device, dtype = model.options.dtype,
  recompute = model.options.recompute, frozen = model.options.frozen,
  data = dataset.options, batch = packing.options, kd = kd.options, optim = optim,
  checkpoint = checkpoints.options, grid = grid.options, teacher_grid = grid.options,
  log = schema.one_of({ 'first', 'all' }, 'first', 'which ranks say how they go: the first one, or '
    .. 'the others too, in logs/rank-N.log of the output'),
  trace = schema.optional('string', 'file for a timeline of what each rank does and waits for: '
    .. 'trace.json is for Chrome or Perfetto, and trace.svg beside it is a picture'),
  transfer = transfer.settings,
})

--- The keys that every recipe has.
M.common = { device = option('cpu', nil, 'string'), threads = 0, seed = 1, resume = 'auto',
  max_steps = 0, grid = grid.options {}, log = 'first', trace = schema.optional 'string',
  dtype = schema.one_of({ 'f32', 'bf16' }, 'f32', 'of the weights; bf16 keeps f32 masters') }

return M
