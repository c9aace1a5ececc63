--- One optimiser step of a run, as the loop of a recipe sees it.
local C = require 'moonstill.C'
local batch_of = require 'moonstill.data.batch'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local learning = require 'moonstill.train.learning'
local others = require 'moonstill.run.others'
local ranks = require 'moonstill.base.ranks'
local rounds = require 'moonstill.loss.rounds'
local step_of = require 'moonstill.loss.step_of'
local soundness = require 'moonstill.train.soundness'
local sorted = require 'moonstill.base.sorted'
local strict = require 'moonstill.base.strict'
local tally = require 'moonstill.train.tally'

local M = {}

--- One optimiser step of a run: `for step in run:steps() do`. One object serves for all of them.
--- The value of each schedule has its name: `step.lr`, `step.kd`.
---
---   for batch in step:micro_batches() do student:learn(batch, { ms.ce(1) }) end
---   step:update()
--- @class ms_step
--- @field number integer counts from 1, over all epochs
--- @field lr number the learning rate of the step
--- @field norms { response: number, all: number } see `norm`
--- @field tokens integer of its batches, on all ranks
--- @field seconds number how long it took; after `update`
--- @field loss number the sum of its terms, each times its weight; after `update`
--- @field grad_norm number norm of the gradient before clipping; after `update`
--- @field sent integer bytes that this rank sent to those that share the step; after `update`
--- @field skipped boolean whether the gradient was not finite, so that nothing changed; after
---   `update`
local methods = {}
local class = strict.class('step', methods, nil, { 'number', 'lr', 'tokens', 'seconds', 'loss',
  'grad_norm', 'skipped', 'sent' })

function class:__tostring() return 'step ' .. self.number end

-- On ranks that do not have the student: what the ranks that have it say of the last step that was
-- updated here, which is waited for.
local TOLD = { loss = 0, grad_norm = 0, skipped = false, seconds = 0 }
local away = { what = 'step', __tostring = class.__tostring }

function away.__index(self, name)
  if TOLD[name] ~= nil then
    local told = self.run.away:told()
    return told and told[name] or TOLD[name]
  end
  if name == 'norms' or name == 'tokens' then return M.measured(self)[name] end
  return class.__index(self, name)
end

--- @param run ms_run
--- @return ms_step
function M.new(run)
  local step = { run = run, batches = {}, at = 0, unlearnt = {}, left = 0, planned = {}, number = 0,
    open = false, used = false, began = 0 }
  if run.away then return setmetatable(step, away) end
  step.norms, step.tokens, step.seconds = { response = 0, all = 0 }, 0, 0
  step.tally, step.loss, step.grad_norm, step.skipped = tally.new(run.grid.dp), 0, 0, false
  step.sent, step.sent_before = 0, 0
  return setmetatable(step, class)
end

--- Sums over the samples that are planned, on a rank that learns from none of them.
--- @param step ms_step
--- @return { norms: { response: number, all: number }, tokens: integer }
function M.measured(step)
  local known = rawget(step, 'sums')
  if known then return known end
  local samples = step:samples()
  local sums = { norms = { response = 0, all = 0 }, tokens = 0 }
  if #samples > 0 then
    local batch = step.run.data:batch(samples)
    sums.norms.response, sums.norms.all = batch:weight 'response', batch:weight 'all'
    sums.tokens = batch:tokens()
    batch:free()
  end
  step.sums = sums
  return sums
end

--- Whether steps have something of a name, which no schedule can have then.
--- @param step ms_step
--- @param name string
function M.has(step, name)
  return rawget(step, name) ~= nil or methods[name] ~= nil or TOLD[name] ~= nil
    or name == 'norms' or name == 'tokens'
end

--- The sum of the weights of all micro-batches, of all ranks, which a term's loss is divided by.
--- @param on '"response"'|'"all"'
--- @return number
function methods:norm(on) return self.norms[on] end

--- For `model:learn`, before it learns a batch: adds up what each term gives, which is read at
--- `update`. For the last batch that is left it gives the group over which gradients are summed.
--- @package
--- @return ffi.cdata*? `ms_group *`
function methods:record(batch, terms, results)
  self.tally:add(terms, results, self.norms)
  return self.unlearnt[batch] and self.left == 1 and self.run.grid.dp.group or nil
end

--- For `model:learn`, after it has learnt a batch.
--- @package
function methods:learnt(batch)
  if not self.unlearnt[batch] then return end
  self.unlearnt[batch] = nil
  self.left = self.left - 1
end

local function next_batch(self)
  self.run:finish_checkpoint(false)
  self.at = self.at + 1
  return self.batches[self.at]
end

--- Iterates over this rank's batches of the step, whose sizes are those of `batch.micro_tokens`: on
--- every rank as many.
--- @return fun(): ms_batch?
function methods:micro_batches()
  if self.run.dataless and not self.used then
    fail('step:micro_batches: the run has no data: step:use { batches } comes first')
  end
  self.at = 0
  return next_batch, self
end

--- Frees the step's batches.
function M.drop_batches(self)
  if rawget(self, 'round') then self.round:finish() end
  self.round = nil
  for i = #self.batches, 1, -1 do
    step_of.set(self.batches[i], nil)
    rounds.set(self.batches[i], nil)
    self.batches[i]:free()
    self.unlearnt[self.batches[i]] = nil
    self.batches[i] = nil
  end
  self.left = 0
end

--- Takes the batches that are planned for the step: of its micro-batches, lists of samples, this
--- rank's part.
--- @param step ms_step
--- @param plan ms_plan
--- @param index integer the step's place in it
--- @param run ms_run
function M.plan(step, plan, index, run)
  local dp = run.grid.dp
  step.planned = plan:step(index, run.grid.shape.dp)
  step.round = rounds.new { run = run, data = run.data, number = step.number, cut = function(parts)
    local list = parts == run.grid.shape.dp and step.planned or plan:step(index, parts)
    return list, plan:costs(list)
  end }
  if run.away then return M.take(step, batch_of.idle()) end
  local takes = ranks.deal(plan:costs(step.planned), dp.size)
  for m, samples in ipairs(step.planned) do
    if takes[m] == run.grid:model() then
      local began = C.ms_trace_begin()
      M.take(step, run.data:batch(samples), m)
      C.ms_trace_end(began, C.MS_TRACE_DATA, 'batch')
    end
  end
end

--- Makes a batch one of the step's, which frees it.
--- @param batch ms_batch
--- @param micro? integer its place among the micro-batches that are planned
function M.take(self, batch, micro)
  step_of.set(batch, self)
  if rawget(self, 'round') then rounds.set(batch, self.round, micro) end
  self.batches[#self.batches + 1] = batch
  self.unlearnt[batch] = true
  self.left = self.left + 1
end

-- An error where the ranks over which the student is cut have other batches: each of them has a
-- part of what one rank computes.
local function check_alike(self, sums)
  local tp = self.run.grid.tp
  if tp.size == 1 or tp:same(table.concat(sums, ' ')) then return end
  error('step:use: ranks that share a model have other batches; what makes them may not differ '
    .. 'between ranks', 0)
end

--- Adds up the weights and tokens of the step, of all ranks, once its batches are taken. A rank
--- that has fewer batches than another gets some in which nothing counts: all make equally many
--- calls.
function M.measure(self)
  local sums, dp = { 0, 0, 0 }, self.run.grid.dp
  for _, batch in ipairs(self.batches) do
    sums[1] = sums[1] + batch:weight 'response'
    sums[2] = sums[2] + batch:weight 'all'
    sums[3] = sums[3] + batch:tokens()
  end
  check_alike(self, sums)
  self.norms.response, self.norms.all, self.tokens = unpack(dp:sum(sums))
  for _ = #self.batches + 1, dp:most(#self.batches) do M.take(self, batch_of.idle()) end
end

--- Puts other batches in place of the planned ones, such as those made of a student's own answers:
--- on each rank those that it is to learn. The step frees them. To be called before anything is
--- learned. Of none at all nothing is learnt, and the step counts as one without a position.
--- @param batches ms_batch[]
function methods:use(batches)
  check.table('step:use', 'batches', batches)
  if #self.run.others > 0 then
    fail('step:use: the student lies on some of the ranks (%s), and batches that it makes do not '
      .. 'come to the others yet: give it all ranks', tostring(self.run.grid))
  end
  if not self.open then fail('step:use: outside its step') end
  if self.tally.calls > 0 then fail('step:use: the step has learned already') end
  self.used = true
  M.drop_batches(self)
  for _, batch in ipairs(batches) do M.take(self, batch) end
  M.measure(self)
end

--- The samples of the data set that are planned for the step, in the order of their numbers, which
--- count from 1: on every rank all of them. `part` gives this rank's part of what is made of them.
--- @return integer[]
function methods:samples()
  local list = {}
  for _, samples in ipairs(self.planned) do
    for _, i in ipairs(samples) do list[#list + 1] = i end
  end
  table.sort(list) -- however they are cut into micro-batches
  return list
end

--- This rank's part of a list that is the same on all: neighbours, about as many on each. Ranks
--- over which the student is cut have the same part.
---
---   local mine, before = step:part(prompts)
---   step:use(batches_of(mine, before))
--- @param list table
--- @return table # the part
--- @return integer # how many entries lie before it
function methods:part(list)
  check.table('step:part', 'list', list)
  if self.run.away then return {}, #list end
  return self.run.grid.dp:part(list)
end

--- A term's mean over the positions of the step, as it is before it is weighted; after `update`, of
--- all ranks. nil where it had no position, or no such term was learned.
--- @param name string what metrics call it: "ce", "kd", or its `name`
--- @return number?
function methods:mean(name)
  if self.run.away then
    local told = self.run.away:told()
    return told and told.means[name]
  end
  local mean = self.tally:mean(name)
  return mean and mean.value
end

--- True in every n-th step; never for 0.
--- @param n integer
--- @return boolean
function methods:every(n)
  check.integer('step:every', 'n', n, 0, check.EXACT)
  return n > 0 and self.number % n == 0
end

local function bytes_sent(self)
  local all = 0
  for _, bytes in sorted.pairs(self.run.grid.dp:sent()) do all = all + bytes end
  return all
end

--- The optimiser's update, at `step.lr`; the gradients are zeroed. A step in which no position was
--- supervised, or whose gradient is not finite, updates nothing.
--- @return ms_step self
function methods:update()
  local run, state = self.run, self.run.state
  if not self.open then fail('step:update: called twice, or outside its step') end
  if run.away then
    self.open = false
    run.away.closed = self.number
    M.drop_batches(self)
    return self
  end
  if self.tally.calls == 0 and not (self.used and #self.batches == 0) then
    fail('step:update: nothing was learned in this step')
  end
  self.tally:sum()
  local name, seen, all = self.tally:incomplete()
  if name then -- losses are divided by the whole step's weights
    fail('step:update: the term %s learned from weights of %g, the step has %g: every '
      .. 'micro-batch is to be learned once, with all terms in one call', name, seen, all)
  end
  self.loss = self.tally:loss()
  self.skipped, self.grad_norm = false, 0
  run:finish_checkpoint(true)
  if self.tally:empty() then
    run.student:zero_gradients()
  else
    self.grad_norm, self.skipped = run.optimizer:step(self.lr)
  end
  learning.count(state, self)
  soundness.judge(run, self)
  state.tokens = state.tokens + self.tokens
  state.loss = not self.skipped and self.loss - self.loss == 0 and self.loss or nil
  self.seconds = C.ms_clock() - self.began
  self.sent = bytes_sent(self) - self.sent_before
  self.open = false
  M.drop_batches(self)
  run:report(self)
  soundness.check(run)
  learning.check_skips(run, self.tally)
  others.tell_step(run, self)
  return self
end

--- Begins a step, whose batches are then taken and measured.
--- @param number integer
function M.begin(self, number)
  self.number, self.began, self.open, self.used = number, C.ms_clock(), true, false
  self.sums = nil
  if self.run.away then return end
  self.sent_before = bytes_sent(self)
  self.tally:clear()
end

--- An error when a step is under way: nothing may be left undone when it is over.
function M.check_closed(self)
  if not self.open then return end
  fail('run: step:update() was not called in step ' .. self.number)
end

return M
