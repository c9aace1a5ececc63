--- The step that `moonstill plan` is about: its samples, how many rows each of them has, and the
--- models that they belong to.

local chats = require 'moonstill.text.chat'
local config = require 'moonstill.run.config'
local dataset = require 'moonstill.data.dataset'
local ends = require 'moonstill.text.ends'
local kd = require 'moonstill.loss.kd'
local lengths_of = require 'moonstill.prompt.lengths'
local packing = require 'moonstill.data.packing'
local plans = require 'moonstill.run.plan'
local progress = require 'moonstill.base.progress'
local schema = require 'moonstill.base.schema'

local M = {}

-- Samples of equal lengths, as many as a step has; half of their tokens are learnt.
local function assumed(cfg)
  local lengths, order, batch = {}, {}, rawget(cfg, 'batch')
  local tokens = schema.take('batch', packing.options, batch).tokens
  local n = math.max(1, math.floor(tokens / cfg.sample_tokens))
  for i = 1, n do lengths[i], order[i] = cfg.sample_tokens, i end
  return { plan = packing.plan(lengths, order, n, 1, batch), step = 1,
    rows_of = function() return math.floor(cfg.sample_tokens / 2) end,
    note = ('%d tokens each are assumed, of which half are learnt, for there is no data.train')
      :format(cfg.sample_tokens) }
end

-- Of each sample how many tokens are learnt.
local function counter(data, on)
  return function(i)
    local _, n, response, all = data:sample(i)
    local weights, count = on == 'all' and all or response, 0
    for t = 0, n - 2 do
      if weights[t] > 0 then count = count + 1 end
    end
    return count
  end
end

-- The samples of the data.
local function real(cfg, asked)
  local first = cfg.student or cfg.teacher
  if not first then
    config.refuse 'student=FOLDER or teacher=FOLDER is needed, for the tokenizer of the data'
  end
  local chat = chats.open(first, { cfg.student and cfg.teacher or nil }, cfg.data)
  cfg.data.max_tokens = lengths_of.longest(chat, cfg)
  local data = dataset.sets(cfg.data, chat, { seed = cfg.seed })
  local plan = data:steps(cfg.seed, 0, rawget(cfg, 'batch'))
  if cfg.step > plan:count() then
    config.refuse(('step = %d, but an epoch has %d'):format(cfg.step, plan:count()))
  end
  return { plan = plan, step = cfg.step, rows_of = counter(data, asked.on),
    note = ('step %d of %d'):format(cfg.step, plan:count()) }
end

-- A size of the teacher, from its config.json.
local function size_of(cfg, asked, key, what)
  if not cfg.teacher then
    config.refuse(("teacher=FOLDER is needed: kd.target is '%s', and %s are not known without it")
      :format(asked.target, what))
  end
  local size = ends.settings(cfg.teacher, 'config.json')[key]
  if type(size) ~= 'number' then
    config.refuse(("%s/config.json has no '%s'"):format(cfg.teacher, key))
  end
  return size
end

-- Bytes of a row, and what to say of it.
local function row_of(cfg, asked)
  if asked.target == 'topk' then
    local dtype = rawget(cfg.transfer, 'dtype') or 'f32'
    return plans.row_bytes('topk', asked.k, dtype), ('the %d likeliest ids'):format(asked.k)
  elseif asked.target == 'hidden' then
    local width = size_of(cfg, asked, 'hidden_size', 'its hidden states')
    return plans.row_bytes('hidden', width, asked.dtype), ('hidden states of %d'):format(width)
  end
  local width = size_of(cfg, asked, 'vocab_size', 'its logits')
  return plans.row_bytes('logits', width, 'f32'), ('logits of %d ids'):format(width)
end

-- With hidden states the student's ranks need the teacher's head: each its part of the ids.
local function head_note(cfg, asked, tp)
  if asked.target ~= 'hidden' then return nil end
  local ids = size_of(cfg, asked, 'vocab_size', 'its ids')
  local width = size_of(cfg, asked, 'hidden_size', 'its hidden states')
  return ('once, at the start, each of the student\'s ranks reads its part of the teacher\'s head '
    .. 'from its folder: about %s as f32, half as bf16'):format(progress.bytes(4 * width
      * math.ceil(ids / tp)))
end

--- The step that a configuration has, on layouts of student and teacher.
--- @param cfg table
--- @param at { student: table, teacher: table } see `grid.layout`
--- @return { rows: integer[], from: integer[], to: integer[], row_bytes: integer, notes: string[] }
function M.of(cfg, at)
  local data, asked = rawget(cfg, 'data'), schema.take('kd', kd.options, cfg.kd)
  local of = data and rawget(data, 'train') and real(cfg, asked) or assumed(cfg)
  local samples, to = of.plan:owners(of.step, at.student.dp)
  local _, from = of.plan:owners(of.step, at.teacher.dp)
  local rows, total = {}, 0
  for k, i in ipairs(samples) do
    rows[k] = of.rows_of(i)
    total = total + rows[k]
  end
  local row_bytes, what = row_of(cfg, asked)
  return { rows = rows, from = from, to = to, row_bytes = row_bytes, notes = {
    ('%d samples, %d rows; %s'):format(#samples, total, of.note),
    ('a row of targets: %d bytes, %s'):format(row_bytes, what),
    head_note(cfg, asked, at.student.tp),
  } }
end

return M
