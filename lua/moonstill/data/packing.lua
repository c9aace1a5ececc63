--- Plans of an epoch: which samples make a step, and how a step is cut into micro-batches.
---
--- Pure functions of lengths and order, so a plan can be made again anywhere. Nothing is padded
--- and no sample is cut: segments of a batch do not see each other, so packing is a matter of room.

local arrays = require 'moonstill.data.arrays'
local check = require 'moonstill.base.check'
local json = require 'moonstill.base.json'
local ranks = require 'moonstill.base.ranks'
local samples = require 'moonstill.data.samples'
local schema = require 'moonstill.base.schema'
local strict = require 'moonstill.base.strict'
local option = schema.option

local M = {}

--- The `batch` of a configuration.
M.options = schema.new('packing', {
  tokens = option(8192, 'tokens of an optimiser step', 'integer >= 1'),
  micro_tokens = option(2048, 'tokens of one forward and backward pass', 'integer >= 1'),
  width = option(8192, 'what a token costs in matrices, in multiples of its look at another one: '
    .. 'micro-batches cost about the same', 'number >= 0'),
})

--- What a sample costs, in multiples of one token's share of the attention: its tokens pass through
--- matrices (`width` stands for them), and each of them looks at those before it.
--- @param length integer tokens
--- @param width number see `options`
--- @return number
function M.cost(length, width) return length * width + length * length end

-- Samples by falling cost into `bins` micro-batches, each into the cheapest that has room. nil when
-- one finds no room. Samples are places in the step, `length` has theirs.
local function distribute(sorted, length, bins, micro_tokens, width)
  local list, cost, tokens = {}, {}, {}
  for b = 1, bins do list[b], cost[b], tokens[b] = {}, 0, 0 end
  for _, k in ipairs(sorted) do
    local best
    for b = 1, bins do
      local fits = tokens[b] == 0 or tokens[b] + length[k] <= micro_tokens
      if fits and (not best or cost[b] < cost[best]) then best = b end
    end
    if not best then return nil end
    list[best][#list[best] + 1] = k
    cost[best] = cost[best] + M.cost(length[k], width)
    tokens[best] = tokens[best] + length[k]
  end
  return list
end

-- Back into the order of the step: samples within a micro-batch, micro-batches by their first. Then
-- places become samples.
local function in_order(list, step)
  for _, micro in ipairs(list) do table.sort(micro) end
  table.sort(list, function(a, b) return a[1] < b[1] end)
  for _, micro in ipairs(list) do
    for m, k in ipairs(micro) do micro[m] = step[k] end
  end
  return list
end

-- How many micro-batches there are at least, so that all of them are a multiple of `parts`.
local function bins_of(total, micro_tokens, alone, parts)
  if total == 0 then return 0 end
  return math.ceil((math.ceil(total / micro_tokens) + alone) / parts) * parts - alone
end

-- Those in which something is.
local function filled(list)
  local some = {}
  for _, micro in ipairs(list) do
    if #micro > 0 then some[#some + 1] = micro end
  end
  return some
end

--- Cuts a step into micro-batches of at most `micro_tokens` tokens and about equal cost, as few as
--- that allows. A longer sample gets a micro-batch of its own.
--- @param step integer[] samples, of which one may come twice
--- @param lengths integer[]|ffi.cdata* of samples, from 1
--- @param micro_tokens integer
--- @param width? number see `cost`
--- @param parts? integer that share them: their number is a multiple of it, where there are enough
---   samples; default 1
--- @return integer[][]
function M.micro_batches(step, lengths, micro_tokens, width, parts)
  width, parts = width or M.options.width.default, parts or 1
  local total, length, sorted, alone = 0, {}, {}, {}
  for k, i in ipairs(step) do
    length[k] = lengths[i]
    if length[k] >= micro_tokens then
      alone[#alone + 1] = { k }
    else
      total = total + length[k]
      sorted[#sorted + 1] = k
    end
  end
  table.sort(sorted, function(a, b)
    if length[a] ~= length[b] then return length[a] > length[b] end
    return a < b
  end)
  local bins, list = bins_of(total, micro_tokens, #alone, parts), nil
  while not list do
    list = distribute(sorted, length, bins, micro_tokens, width)
    bins = bins + parts
  end
  list = filled(list)
  for _, micro in ipairs(alone) do list[#list + 1] = micro end
  return in_order(list, step)
end

-- plans ------------------------------------------------------------------------------------------

--- The steps of an epoch: each is a list of micro-batches, which are lists of numbers of samples.
--- @class ms_plan
local methods = {}
local class = strict.class('plan', methods, { list = true })

--- How many steps it has.
--- @return integer
function methods:count() return self.steps end

--- One step: a list of micro-batches, each a list of samples. Made when it is asked for.
--- @param k integer from 1
--- @param parts? integer as for `ms.packing.micro_batches`; a list of steps is as it is
--- @return integer[][]
function methods:step(k, parts)
  check.integer('plan', 'step', k, 1, self.steps)
  if self.list then return self.list[k] end
  local step, first = {}, self.first + self.cut.p[k - 1]
  for at = first, self.first + self.cut.p[k] - 1 do step[#step + 1] = tonumber(self.order[at]) end
  return M.micro_batches(step, self.lengths, self.options.micro_tokens, self.options.width, parts)
end

--- What each micro-batch of a list costs: of a plan that knows no lengths, its samples.
--- @param list integer[][]
--- @return number[]
function methods:costs(list)
  local costs = {}
  for m, micro in ipairs(list) do
    costs[m] = self.list and #micro or 0
    for _, i in ipairs(self.list and {} or micro) do
      costs[m] = costs[m] + M.cost(self.lengths[i], self.options.width)
    end
  end
  return costs
end

--- Which of the models of a grid takes each sample of a step.
--- @package
--- @param k integer the step, from 1
--- @param parts integer how many models there are
--- @return integer[] # the samples, ascending; one may come twice
--- @return integer[] # the model of each, from 0
function methods:owners(k, parts)
  local list, all, numbers, owners = self:step(k, parts), {}, {}, {}
  local takes = ranks.deal(self:costs(list), parts)
  for m, micro in ipairs(list) do
    for _, i in ipairs(micro) do all[#all + 1] = { i, takes[m] } end
  end
  table.sort(all, function(a, b)
    if a[1] ~= b[1] then return a[1] < b[1] end
    return a[2] < b[2]
  end)
  for n, entry in ipairs(all) do numbers[n], owners[n] = entry[1], entry[2] end
  return numbers, owners
end

--- A hash of which samples make each step: equal for equal plans.
--- @return string
function methods:hash()
  local order = self.list or self.order
  local text = type(order) == 'table' and json.encode(order)
  local hash = text and samples.hash(text, #text)
    or samples.hash(order + self.first, 4 * self.cut.p[self.steps])
  return self.list and hash or hash .. samples.hash(self.cut.p, self.cut:bytes())
end

--- Iterates over the steps.
--- @return fun(): integer[][]?
function methods:each()
  local k = 0
  return function()
    k = k + 1
    return k <= self.steps and self:step(k) or nil
  end
end

--- All steps as one list, for small data.
--- @return integer[][][]
function methods:all()
  local list = {}
  for step in self:each() do list[#list + 1] = step end
  return list
end

-- Cuts an epoch into steps of at most `tokens` tokens, in the order given; a longer sample makes a
-- step of its own, and the last step is what is left. An array of where each begins, and the end.
local function cut(lengths, order, count, first, tokens)
  local at, room = arrays.new 'int32_t', 0
  for k = 0, count - 1 do
    local length = lengths[tonumber(order[first + k])]
    if k == 0 or length > room then
      at:add(k)
      room = tokens
    end
    room = room - length
  end
  at:add(count)
  return at
end

--- The plan of an epoch, in which every place of `order` occurs once. It keeps `lengths` and
--- `order`, and makes its steps when they are asked for: an epoch may have millions of samples.
--- @param lengths integer[]|ffi.cdata* of samples, from 1
--- @param order integer[]|ffi.cdata* the samples in the order of the epoch
--- @param count integer how many there are in `order`
--- @param first integer index of the first in `order`: 0 for the FFI, 1 for tables
--- @param options? table a recipe's `batch`, see `options`
--- @param what? string what errors begin with, default "packing"
--- @return ms_plan
function M.plan(lengths, order, count, first, options, what)
  local o = schema.take(what or 'packing', M.options, options)
  local at = cut(lengths, order, count, first, o.tokens)
  return setmetatable({ lengths = lengths, order = order, first = first, options = o, cut = at,
    steps = at.count - 1 }, class)
end

--- A list of steps as a plan; a plan is returned as it is.
--- @param steps integer[][][]|ms_plan
--- @return ms_plan
function M.as_plan(steps)
  if getmetatable(steps) == class then return steps end
  return setmetatable({ list = steps, steps = #steps }, class)
end

return M
