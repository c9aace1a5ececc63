--- Samples to tokens, many at a time: a chat says what their texts are and what of them is learnt,
--- and all texts become ids in one go over all threads.

local ffi = require 'ffi'
local arrays = require 'moonstill.data.arrays'
local check = require 'moonstill.base.check'
local cutting = require 'moonstill.data.cutting'
local fail = require 'moonstill.base.fail'
local one_text = require 'moonstill.text.prepare'.block
local tokenizer = require 'moonstill.text.tokenizer'

local M = {}

local ids_room, level_room = arrays.new 'int32_t', arrays.new 'uint8_t' -- scratch, read at once

-- What the levels of a chat are among those of the samples, of which there may be others. The list
-- grows as the chat meets other weights.
local function mapped(self)
  local map, levels = self.levels, self.chat.levels
  for l = #map + (map[0] and 1 or 0), #levels do
    map[l] = self.samples:level_of(levels[l].response, levels[l].all)
  end
  return map
end

-- A sample's weight multiplies those of its positions.
local function check_products(levels, level, n, weight)
  if weight == 1 or weight == 0 then return end
  for t = 0, n - 2 do
    for _, of in ipairs { levels.response, levels.all } do
      if of[level[t]] > 0 then
        check.weight("the sample's and its message's, multiplied", of[level[t]] * weight)
      end
    end
  end
end

-- One sample of a row: `count` ids with their levels, behind what begins every text where `p.bos`
-- says so. A position has the level of the token that it predicts.
local function add(self, entry, p, ids, levels, count)
  local bos = p.bos and self.chat.bos or {}
  local before, map, any = #bos, mapped(self), false
  local n = before + count
  ids_room:reserve(n)
  level_room:reserve(n)
  local to, level, response = ids_room.p, level_room.p, self.samples.levels.response
  for i = 1, before do to[i - 1] = bos[i] end
  ffi.copy(to + before, ids, 4 * count)
  for t = 0, before - 2 do level[t] = map[0] end
  for t = math.max(before, 1), n - 1 do
    level[t - 1] = map[levels[t - before]]
    any = any or response[level[t - 1]] > 0
  end
  if not any then fail('no token is supervised') end
  entry.ids, entry.level, entry.n = to, level, n
  check_products(self.samples.levels, level, n, entry.weight)
  cutting.add(self, entry)
end

local function note(self, p, crossing)
  local report = self.report
  if p.spelled then report:spell(p.spelled) end
  if crossing > 0 then report.crossing = report.crossing + 1 end
  report.thoughts = report.thoughts + (p.thoughts or 0)
end

-- What a row becomes; all or, where something is wrong, nothing.
local function add_all(self, entry, block)
  for _, p in ipairs(entry.prepared) do
    if p.ids then
      add(self, entry, p, p.ids, p.levels, p.n)
      note(self, p, 0)
    else
      local one, k = p.block or block, p.place - 1
      local from, to = tonumber(one.start[k]), tonumber(one.start[k + 1])
      add(self, entry, p, one.ids + from, one.level + from, to - from)
      note(self, p, one.crossing[k])
    end
  end
end

local function prepare(self, list)
  local texts = {}
  for _, entry in ipairs(list) do
    local ok, prepared = fail.pcall(self.chat.prepare, self.chat, entry.sample)
    if ok then entry.prepared = prepared else entry.why = prepared end
    for _, p in ipairs(entry.prepared or {}) do
      if not p.ids then
        texts[#texts + 1] = { text = p.text, plain = p.plain, marks = p.marks }
        p.place, p.entry = #texts, entry
      end
    end
  end
  return texts
end

-- The texts one by one, where one of them cannot be encoded.
local function encode_apart(self, list)
  for _, entry in ipairs(list) do
    for _, p in ipairs(entry.prepared or {}) do
      if p.place then
        local ok, block = fail.pcall(one_text, self.chat, p)
        if not ok then entry.why = block end
        p.block, p.place = block, 1
      end
    end
  end
end

--- Encodes the samples of rows, and adds them in their order. Of each row `done(entry)` or
--- `failed(entry, why)` is called.
--- @param self { chat: ms_chat, samples: ms_samples, report: ms_report, options: table,
---   levels: table } levels: empty at first
--- @param list { sample: table, weight: number, row: integer, place: string, text: boolean }[]
--- @param done function
--- @param failed function
function M.add(self, list, done, failed)
  local texts = prepare(self, list)
  local ok, block = fail.pcall(tokenizer.block, self.chat.tokenizer, texts)
  if not ok then encode_apart(self, list) end
  for _, entry in ipairs(list) do
    local fine, why = entry.why == nil, entry.why
    if fine then fine, why = fail.pcall(add_all, self, entry, block) end
    if fine then done(self, entry) else failed(self, entry, why) end
  end
  if ok then block:free() end
end

return M
