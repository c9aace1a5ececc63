--- Grids: how the ranks that were launched together share a model and its steps.
---
---   local grid = ms.grid()
---   local student = ms.model.open('models/small', { train = true, grid = grid })
---   local all = grid.dp:sum { mine }[1] -- a sum of one's own over all samples
---
--- A model is cut over `tp` ranks, each of which has some of its heads, of its intermediate size
--- and of its ids; there are `dp` such models, each of which learns another part of a step. With
--- `ranks` only some have the model: on the others its calls do nothing, so that all run the same
--- recipe. Without a grid every rank has the whole model. The ranks of a model are neighbours: rank
--- number d * tp + t has part t of model d. Those of one model see the same samples, so what is
--- counted over samples is summed over `grid.dp`, and what all must agree on over `grid.world`.
---
--- Every rank makes a grid at the same place of its program, since ranks become groups together;
--- grids that are made alike share them.

local callable = require 'moonstill.base.callable'
local fail = require 'moonstill.base.fail'
local ranks = require 'moonstill.base.ranks'
local schema = require 'moonstill.base.schema'
local sorted = require 'moonstill.base.sorted'
local strict = require 'moonstill.base.strict'

local M = {}

--- How ranks are laid out.
M.options = schema.new('grid', {
  dp = schema.optional('integer >= 1', 'how many parts a step\'s samples have, each learnt by a '
    .. 'model of its own; by default the ranks, divided by tp'),
  tp = schema.option(1, 'how many ranks a model is cut over', 'integer >= 1'),
  ranks = schema.optional('string|integer >= 0', 'which ranks, by their numbers: "0-3" or "0,2"; '
    .. 'by default all'),
})

local NOT_YET = { pp = 'layers on several ranks', cp = 'a text cut over ranks',
  ep = 'experts on several ranks' }

--- What a key asks for that grids are to have one day, in words; nil for any other.
--- @package
--- @param key? string
--- @return string?
function M.not_yet(key)
  local words = NOT_YET[key or '']
  return words and ("'%s' (%s) is not there yet; dp and tp are"):format(key, words)
end

--- A layout of ranks: see `ms.grid`. `dp`, `tp` and `world` are ranks, which have sums.
--- @class ms_grid
--- @field dp ms_ranks the ranks that have this rank's part of a model, and learn other samples
--- @field tp ms_ranks the ranks over which this rank's model is cut
--- @field all ms_ranks those that the grid is of
--- @field world ms_ranks all that were launched together
--- @field ranks integer[] the numbers of those that the grid is of, in its order
--- @field holds boolean whether this rank is one of them; a rank that is not has neither dp nor tp
---   nor all
local methods = {}
local class = strict.class('grid', methods, { dp = true, tp = true, all = true },
  { 'dp', 'tp', 'all', 'world', 'ranks', 'holds' })

--- Where each rank is: its number, which model it belongs to, and which part it has of that, each
--- from 0.
--- @return { rank: integer, dp: integer, tp: integer }[]
function methods:places()
  local list = {}
  local tp = self.shape.tp
  for i, rank in ipairs(self.ranks) do
    list[i] = { rank = rank, dp = math.floor((i - 1) / tp), tp = (i - 1) % tp }
  end
  return list
end

--- Whether all ranks that were launched are in it, in their order.
--- @package
--- @return boolean
function methods:is_whole()
  for i, rank in ipairs(self.ranks) do
    if rank ~= i - 1 then return false end
  end
  return #self.ranks == self.world.size
end

--- Whether another grid has the same ranks in the same places.
--- @package
--- @param other ms_grid
--- @return boolean
function methods:is_same(other)
  return table.concat(self.ranks, ' ') == table.concat(other.ranks, ' ')
    and self.shape.dp == other.shape.dp and self.shape.tp == other.shape.tp
end

--- Which of its models this rank has a part of, from 0; nil on a rank that it leaves out.
--- @package
--- @return integer?
function methods:model() return self.holds and self.dp.rank or nil end

--- This rank's number among all that were launched.
--- @package
--- @return integer
function methods:here() return self.world.rank end

--- Whether all ranks of another grid are in it.
--- @package
--- @param other ms_grid
--- @return boolean
function methods:has_all(other)
  local inside = {}
  for _, rank in ipairs(self.ranks) do inside[rank] = true end
  for _, rank in ipairs(other.ranks) do
    if not inside[rank] then return false end
  end
  return true
end

--- The numbers of the ranks that are not in it.
--- @package
--- @return integer[]
function methods:others()
  local inside, list = {}, {}
  for _, rank in ipairs(self.ranks) do inside[rank] = true end
  for rank = 0, self.world.size - 1 do
    if not inside[rank] then list[#list + 1] = rank end
  end
  return list
end

function class:__tostring()
  local some = self:is_whole() and '' or (' of %d: %s'):format(self.world.size,
    table.concat(self.ranks, ', '))
  return ('grid of %d rank%s%s: dp %d x tp %d'):format(#self.ranks, #self.ranks == 1 and '' or 's',
    some, self.shape.dp, self.shape.tp)
end

-- "0-3,6" as a list of numbers below `size`.
local function numbers_of(text, size)
  local list, seen = {}, {}
  for part in (tostring(text) .. ','):gmatch '([^,]*),' do
    local first, last = part:match '^%s*(%d+)%s*%-%s*(%d+)%s*$'
    if not first then
      first = part:match '^%s*(%d+)%s*$'
      last = first
    end
    first, last = tonumber(first), tonumber(last)
    if not first or first > last then
      fail("grid: ranks = '%s': '%s' is no number, nor a range such as 0-3", text, part)
    elseif last >= size then
      fail("grid: ranks = '%s', but there are %d ranks, 0 to %d", text, size, size - 1)
    end
    for rank = first, last do
      if seen[rank] then fail("grid: ranks = '%s' has rank %d twice", text, rank) end
      list[#list + 1], seen[rank] = rank, true
    end
  end
  return list
end

local function all_of(size)
  local list = {}
  for rank = 0, size - 1 do list[rank + 1] = rank end
  return list
end

-- Both numbers, so that together they are all ranks of the grid.
local function shape_of(o, count, whole)
  local tp, dp = o.tp, o.dp or math.floor(count / o.tp)
  if dp * tp == count then return { dp = dp, tp = tp } end
  local there = whole and ('there are %d'):format(count) or ("ranks = '%s' are %d"):format(o.ranks,
    count)
  if not o.dp then
    fail('grid: tp = %d does not divide the ranks: %s', tp, there)
  end
  fail('grid: dp %d x tp %d are %d ranks, and %s%s', dp, tp, dp * tp, there,
    whole and (': moonstill -n %d starts as many'):format(dp * tp) or '')
end

-- The groups of this rank. All ranks make the same splits, those that are in none as well.
local function split(world, list, shape)
  local mine, in_order = nil, true
  for i, rank in ipairs(list) do
    if rank == world.rank then mine = i - 1 end
    in_order = in_order and rank == i - 1
  end
  local function part(size, colour)
    if size == 1 then return mine and ranks.alone() or nil end
    if size == world.size and in_order then return world end
    return world:split(mine and colour or -1, mine or 0)
  end
  local at, all = mine or 0, part(#list, 0)
  local groups = { all = all, tp = all, dp = all }
  if shape.dp > 1 then groups.tp = part(shape.tp, math.floor(at / shape.tp)) end
  if shape.tp > 1 then groups.dp = part(shape.dp, at % shape.tp) end
  return groups
end

local made = {} -- groups by what they are of

local function groups_of(world, list, shape)
  local key = ('%d x %d: %s'):format(shape.dp, shape.tp, table.concat(list, ','))
  local known = made[key]
  if not known or known.world ~= world then
    known = split(world, list, shape)
    known.world, made[key] = world, known
    if #list < world.size or shape.tp > 1 then ranks.channels() end
  end
  return known
end

-- Refuses what grids are to have one day.
local function check_keys(options)
  for key in sorted.pairs(type(options) == 'table' and options or {}) do
    if NOT_YET[key] then fail('grid: %s', M.not_yet(key)) end
  end
end

--- Where the models of a grid would lie on so many ranks, which need not be there.
--- @package
--- @param options? table see `options`
--- @param size integer
--- @return { dp: integer, tp: integer, ranks: integer[] }
function M.layout(options, size)
  check_keys(options)
  local o = schema.take('grid', M.options, options)
  local list = o.ranks and numbers_of(o.ranks, size) or all_of(size)
  local shape = shape_of(o, #list, not o.ranks)
  return { dp = shape.dp, tp = shape.tp, ranks = list }
end

--- Ranks in words: "0-3, 8".
--- @package
--- @param list integer[]
--- @return string
function M.ranges(list)
  local parts, first = {}, list[1]
  for i, rank in ipairs(list) do
    if list[i + 1] ~= rank + 1 then
      parts[#parts + 1] = first == rank and tostring(rank) or ('%d-%d'):format(first, rank)
      first = list[i + 1]
    end
  end
  return table.concat(parts, ', ')
end

--- A layout in words: "dp 2 x tp 2 on ranks 0-3".
--- @package
--- @param layout { dp: integer, tp: integer, ranks: integer[] }
--- @return string
function M.shape_text(layout)
  return ('dp %d x tp %d on ranks %s'):format(layout.dp, layout.tp, M.ranges(layout.ranks))
end

--- A layout of the ranks that were launched: `ms.grid { tp = 2 }`. All ranks call it alike.
--- @param options? table see `options`
--- @return ms_grid
function M.open(options)
  local world = ranks.world()
  local layout = M.layout(options, world.size)
  local shape = { dp = layout.dp, tp = layout.tp }
  local groups = groups_of(world, layout.ranks, shape)
  return setmetatable({ dp = groups.dp, tp = groups.tp, all = groups.all, world = world,
    ranks = layout.ranks, holds = groups.all ~= nil, shape = shape }, class)
end

return callable(M, 'open')
