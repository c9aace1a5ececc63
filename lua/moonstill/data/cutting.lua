--- Samples that are longer than `max_tokens`: what becomes of them, each way counted in the report.
---
--- A sample is its tokens and the levels of their positions (see `data/samples.lua`): position t
--- has the weights with which token t + 1 is predicted.

local ffi = require 'ffi'
local arrays = require 'moonstill.data.arrays'

local M = {}

--- What may become of them: the values of `over_long`.
M.ways = { 'drop', 'truncate', 'truncate_left', 'split', 'error' }

-- The part of a piece that repeats the one before: what its first new words follow.
local CONTEXT = 1 / 4

local ids_room, level_room = arrays.new 'int32_t', arrays.new 'uint8_t' -- scratch, read at once

-- Whether positions from .. to - 1 learn anything by these weights.
local function any(weights, level, from, to)
  for t = from, to - 1 do
    if weights[level[t]] > 0 then return true end
  end
  return false
end

local function drop(self) self.report.dropped = self.report.dropped + 1 end

local function truncate(self, s)
  local most, response = self.options.max_tokens, self.samples.levels.response
  if not any(response, s.level, 0, most - 1) then return drop(self) end -- all is behind the cut
  local report = self.report
  report.truncated = report.truncated + 1
  if any(response, s.level, most - 1, s.n - 1) then report.endless = report.endless + 1 end
  self.samples:add(s.ids, s.level, 0, most, s)
end

-- How many tokens at the start of a sample are those that begin every text: they stay.
local function beginning(self, s)
  local bos = self.chat.bos
  for i, id in ipairs(bos) do
    if s.ids[i - 1] ~= id then return 0 end
  end
  return math.min(#bos, self.options.max_tokens - 1)
end

local function truncate_left(self, s)
  local most, keep = self.options.max_tokens, beginning(self, s)
  local tail = most - keep
  ids_room:reserve(most)
  level_room:reserve(most)
  local ids, level = ids_room.p, level_room.p
  ffi.copy(ids, s.ids, 4 * keep)
  ffi.copy(level, s.level, keep)
  ffi.copy(ids + keep, s.ids + s.n - tail, 4 * tail)
  ffi.copy(level + keep, s.level + s.n - tail, tail)
  if keep > 0 then level[keep - 1] = self.samples:level_of(0, 0) end -- another token follows it now
  if not any(self.samples.levels.response, level, 0, most - 1) then return drop(self) end
  self.report.truncated = self.report.truncated + 1
  self.samples:add(ids, level, 0, most, s)
end

-- Pieces of max_tokens. Each begins with the last tokens of the one before, which are not predicted
-- again.
local function split(self, s)
  local most, samples, levels = self.options.max_tokens, self.samples, self.samples.levels
  local context, none = math.max(1, math.floor(most * CONTEXT)), samples:level_of(0, 0)
  self.report.split = self.report.split + 1
  level_room:reserve(most)
  local level, from, known = level_room.p, 0, 0 -- positions below `known` were learnt before
  while known < s.n - 1 do
    local n = math.min(most, s.n - from)
    for t = 0, n - 1 do level[t] = from + t < known and none or s.level[from + t] end
    if any(levels.response, level, 0, n - 1) or any(levels.all, level, 0, n - 1) then
      self.report.pieces = self.report.pieces + 1
      samples:add(s.ids + from, level, 0, n, s)
    end
    known, from = from + n - 1, from + n - context
  end
end

local function refuse(self, s)
  error(('%d tokens, max_tokens is %d'):format(s.n, self.options.max_tokens), 0)
end

local HOW = { drop = drop, truncate = truncate, truncate_left = truncate_left, split = split,
  error = refuse }

-- Texts are cut into blocks of max_tokens, whatever their length: a block begins with the last
-- token of the one before.
local function add_blocks(self, s)
  local most, first = self.options.max_tokens, 0
  while first < s.n - 1 do
    self.samples:add(s.ids, s.level, first, math.min(most, s.n - first), s)
    first = first + most - 1
  end
end

--- Adds a sample, or what `over_long` makes of it.
--- @param self { samples: ms_samples, report: ms_report, options: table, chat: ms_chat }
--- @param s { ids: ffi.cdata*, level: ffi.cdata*, n: integer, text: boolean, weight: number,
---   row: integer, place: string } text: all of it is one text
function M.add(self, s)
  if s.text then return add_blocks(self, s) end
  if s.n > self.options.max_tokens then return HOW[self.options.over_long](self, s) end
  self.samples:add(s.ids, s.level, 0, s.n, s)
end

return M
