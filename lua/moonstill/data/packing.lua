--- Plans of an epoch: which samples make a step, and how a step is cut into micro-batches.
---
--- Pure functions of lengths and order, so a plan can be made again anywhere. Nothing is padded
--- and no sample is cut: segments of a batch do not see each other, so packing is a matter of room.

local schema = require 'moonstill.base.schema'
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
--- @param length integer
--- @param width number
function M.cost(length, width) return length * width + length * length end

--- Cuts an epoch into steps of at most `tokens` tokens, in the order given; a longer sample makes a
--- step of its own, and the last step is what is left.
--- @param lengths integer[] of the samples, from 1
--- @param order integer[]|ffi.cdata* the samples in the order of the epoch
--- @param count integer how many there are in `order`
--- @param first integer index of the first in `order`: 0 for the FFI, 1 for tables
--- @param tokens integer
--- @return integer[][]
function M.steps(lengths, order, count, first, tokens)
  local steps, step, room = {}, nil, 0
  for k = first, first + count - 1 do
    local i = tonumber(order[k])
    if not step or lengths[i] > room then
      step, room = {}, tokens
      steps[#steps + 1] = step
    end
    step[#step + 1] = i
    room = room - lengths[i]
  end
  return steps
end

-- Samples by falling cost into `bins` micro-batches, each into the cheapest that has room. nil when
-- one finds no room.
local function distribute(sorted, lengths, bins, micro_tokens, width)
  local list, cost, tokens = {}, {}, {}
  for b = 1, bins do list[b], cost[b], tokens[b] = {}, 0, 0 end
  for _, i in ipairs(sorted) do
    local best
    for b = 1, bins do
      local fits = tokens[b] == 0 or tokens[b] + lengths[i] <= micro_tokens
      if fits and (not best or cost[b] < cost[best]) then best = b end
    end
    if not best then return nil end
    list[best][#list[best] + 1] = i
    cost[best] = cost[best] + M.cost(lengths[i], width)
    tokens[best] = tokens[best] + lengths[i]
  end
  return list
end

-- Back into the order of the step: samples within a micro-batch, micro-batches by their first.
local function in_order(list, place)
  local function before(a, b) return place[a] < place[b] end
  for _, micro in ipairs(list) do table.sort(micro, before) end
  table.sort(list, function(a, b) return place[a[1]] < place[b[1]] end)
  return list
end

--- Cuts a step into micro-batches of at most `micro_tokens` tokens and about equal cost, as few as
--- that allows. A longer sample gets a micro-batch of its own.
--- @param step integer[] samples
--- @param lengths integer[]
--- @param micro_tokens integer
--- @param width? number see `cost`
--- @return integer[][]
function M.micro_batches(step, lengths, micro_tokens, width)
  width = width or M.options.width.default
  local total, place, sorted, alone = 0, {}, {}, {}
  for k, i in ipairs(step) do
    place[i] = k
    if lengths[i] >= micro_tokens then
      alone[#alone + 1] = { i }
    else
      total = total + lengths[i]
      sorted[#sorted + 1] = i
    end
  end
  table.sort(sorted, function(a, b)
    if lengths[a] ~= lengths[b] then return lengths[a] > lengths[b] end
    return place[a] < place[b]
  end)
  local bins, list = math.ceil(total / micro_tokens), nil
  while not list do
    list = distribute(sorted, lengths, bins, micro_tokens, width)
    bins = bins + 1
  end
  for _, micro in ipairs(alone) do list[#list + 1] = micro end
  return in_order(list, place)
end

--- The plan of an epoch: a list of steps, each a list of micro-batches, each a list of samples.
--- Every sample of `order` occurs once.
--- @param lengths integer[]
--- @param order integer[]|ffi.cdata*
--- @param count integer
--- @param first integer
--- @param options? table a recipe's `batch`, see `options`
--- @return integer[][][]
function M.plan(lengths, order, count, first, options)
  local o = schema.take('packing', M.options, options)
  local steps = M.steps(lengths, order, count, first, o.tokens)
  for k, step in ipairs(steps) do
    steps[k] = M.micro_batches(step, lengths, o.micro_tokens, o.width)
  end
  return steps
end

return M
