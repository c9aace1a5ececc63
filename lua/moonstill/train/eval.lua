--- How good models are on data: loss, agreement with the labels, the divergence from a teacher, and
--- how many answers are exact.
---
---   local report = ms.eval(student, valid, { teacher = teacher, exact = 100 })
---   local one = report.students[1]
---   print(one.loss, one.forward_kl, one.exact, report.teacher.loss)
---
--- What is measured is what `run:validate` measures, in the same way: equal models, data and
--- `batch.micro_tokens` give the same numbers to the last bit.
---
--- Errors (`loss_error`, ..) are standard errors over samples. A mean over tokens is sum v / sum w,
--- with v and w the sums of a sample; with u = v - mean * w its error is
--- sqrt(n / (n - 1) * sum u^2) / sum w. That of a difference of two models has the difference of
--- their u in the place of u, since both saw the same samples: what is hard for both does not
--- count. That of the share p of exact answers is sqrt(p (1 - p) / (n - 1)).

local chats = require 'moonstill.text.chat'
local dataset = require 'moonstill.data.dataset'
local fail = require 'moonstill.base.fail'
local handles = require 'moonstill.base.handle'
local models = require 'moonstill.model.model'
local packing = require 'moonstill.data.packing'
local progress = require 'moonstill.base.progress'
local ranks = require 'moonstill.base.ranks'
local schema = require 'moonstill.base.schema'
local scope = require 'moonstill.base.scope'
local scoring = require 'moonstill.train.scoring'
local sorted = require 'moonstill.base.sorted'
local option, optional = schema.option, schema.optional

local M = {}

--- What `ms.eval` takes. data: how files are read, where they are given.
M.options = schema.new('eval', {
  teacher = optional('path|model', 'divergence and agreement are to it; it is measured as well'),
  data = dataset.options, batch = packing.options,
  device = models.options.device, dtype = models.options.dtype,
  quiet = option(false, 'nothing is printed'),
}, scoring.options)

local function open_models(own, given, o)
  local list = type(given) == 'table' and given or { given }
  if #list == 0 then fail 'eval: no model' end
  local opened = {}
  for i, one in ipairs(list) do
    if type(one) == 'string' then
      opened[i] = own(models.open(one, { device = o.device, dtype = o.dtype }))
    else
      handles.pointer('model', one)
      opened[i] = one
    end
  end
  return opened
end

-- A data set as it is, or files that are read by the first model's tokenizer and template.
local function open_data(own, data, students, teacher, o)
  if type(data) == 'table' and rawget(data, 'samples') and rawget(data, 'chat') then return data end
  local others = { unpack(students, 2) }
  others[#others + 1] = teacher
  local chat = own(chats.open(students[1], others, schema.part(chats.options, o.data)))
  local how = sorted.copy(o.data)
  how.train, how.valid, how.split = nil, nil, nil
  how.quiet = o.quiet or o.data.quiet
  for _, model in ipairs { students[1], unpack(others) } do
    how.max_tokens = math.min(how.max_tokens, model:info().context)
  end
  return dataset.open(data, chat, how)
end

--- Measures models on data: `ms.eval(student, data, options)`.
--- @param students ms_model|string|(ms_model|string)[] models or their folders
--- @param data ms_dataset|string|table a data set, or what `ms.dataset.open` reads
--- @param options? table see `options`
--- @return { data: table, students: table[], teacher?: table, differences: table[] } of each model
---   loss, perplexity, agree and, with a teacher, the divergence under the objective's name and
---   teacher_agree; exact, the share of exact answers, and answers, their counts; NAME_error is the
---   standard error of each. differences: each student less the first. What was not measured is nil
function M.measure(students, data, options)
  local o = schema.take('eval', M.options, options)
  return scope(function(own)
    local opened = open_models(own, students, o)
    local teacher = o.teacher and open_models(own, { o.teacher }, o)[1]
    local set = open_data(own, data, opened, teacher, o)
    o.micro_tokens = o.batch.micro_tokens
    local shown = progress.new(ranks.world(), { quiet = o.quiet })
    local report = scoring.measure(opened, teacher, set, o, { progress = shown,
      say = function(line) if not o.quiet then ranks.world():say(line) end end })
    shown:clear()
    return report
  end)
end

return setmetatable(M, {
  calls = 'measure',
  __call = function(_, ...) return M.measure(...) end,
})
