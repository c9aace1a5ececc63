--- How long samples are and how much of them is learnt: a table and a histogram, as lines of text.

local columns_of = require 'moonstill.base.columns'
local ends = require 'moonstill.text.ends'
local layout = require 'moonstill.base.layout'

local M = {}

local MOST = 12 -- bins, about
local NICE = { 1, 2, 5 }
local BLOCKS = { '▏', '▎', '▍', '▌', '▋', '▊', '▉' } -- eighths of a column
local FULL = '█'

-- The value below which a share of a sorted list lies.
local function quantile(list, share)
  return list[math.max(1, math.ceil(share * #list))]
end

local function median(list)
  local k = math.floor(#list / 2)
  return #list % 2 == 1 and list[k + 1] or (list[k] + list[k + 1]) / 2
end

--- Of a list of numbers: least, median, mean, the one that 95 in 100 do not exceed, most, and sum.
--- @param list number[] at least one
--- @return { min: number, median: number, mean: number, p95: number, max: number, sum: number }
function M.summary(list)
  local values, sum = {}, 0
  for i, value in ipairs(list) do values[i], sum = value, sum + value end
  table.sort(values)
  return { min = values[1], median = median(values), mean = sum / #values,
    p95 = quantile(values, 0.95), max = values[#values], sum = sum }
end

-- The least of 1, 2, 5, 10, 20, .. that is not less.
local function nice(width)
  local power = 1
  while true do
    for _, digit in ipairs(NICE) do
      if digit * power >= width then return digit * power end
    end
    power = power * 10
  end
end

--- Bins of equal width over a list of integers. Where a few values are far beyond the others, the
--- last bin is open.
--- @param list integer[]
--- @param s table what `summary` gives for it
--- @return { from: integer, to?: integer, count: integer }[] to: the last value that belongs to it
function M.bins(list, s)
  local high = math.min(s.max, math.max(3 * s.p95, s.min + MOST))
  local step = nice((high - s.min + 1) / MOST)
  local first = math.floor(s.min / step)
  local last = math.floor(high / step)
  local bins = {}
  for k = first, last do
    bins[#bins + 1] = { from = k * step, to = (k + 1) * step - 1, count = 0 }
  end
  if s.max > bins[#bins].to then bins[#bins].to = nil end
  for _, value in ipairs(list) do
    local bin = bins[math.min(math.floor(value / step) - first + 1, #bins)]
    bin.count = bin.count + 1
  end
  return bins
end

-- A bar of some columns and eighths.
local function bar(columns)
  local eighths = math.floor(8 * columns + 0.5)
  local whole = math.floor(eighths / 8)
  return FULL:rep(whole) .. (BLOCKS[eighths - 8 * whole] or '')
end

local function label_of(bin)
  if not bin.to then return bin.from .. '+' end
  return bin.from == bin.to and tostring(bin.from) or ('%d-%d'):format(bin.from, bin.to)
end

--- The histogram's lines, none wider than `columns`.
--- @param bins table what `bins` gives
--- @param columns integer
--- @return string[]
function M.histogram(bins, columns)
  local widest, most, lines = { 6, 7 }, 1, {}
  for _, bin in ipairs(bins) do
    widest[1] = math.max(widest[1], #label_of(bin))
    widest[2] = math.max(widest[2], #tostring(bin.count))
    most = math.max(most, bin.count)
  end
  local head = ('%%%ds  %%%ds  '):format(widest[1], widest[2])
  local room = math.max(1, columns - widest[1] - widest[2] - 4)
  lines[1] = head:format('tokens', 'samples'):gsub('%s+$', '')
  for _, bin in ipairs(bins) do
    local line = head:format(label_of(bin), tostring(bin.count)) .. bar(room * bin.count / most)
    lines[#lines + 1] = line:gsub('%s+$', '')
  end
  return lines
end

local KEYS = { 'min', 'median', 'mean', 'p95', 'max' }
local COLUMNS = { {}, { head = 'min', align = 'right', level = 5 },
  { head = 'median', align = 'right', level = 1 }, { head = 'mean', align = 'right', level = 4 },
  { head = 'p95', align = 'right', level = 3 }, { head = 'max', align = 'right', level = 2 } }

local function short(x) return ((x % 1 == 0) and '%d' or '%.1f'):format(x) end

local function row_of(name, s)
  local row = { name }
  for i, key in ipairs(KEYS) do row[i + 1] = short(s[key]) end
  return row
end

--- All that is said of the lengths of samples.
--- @param tokens integer[] of each sample
--- @param learnt integer[] how many of these
--- @param columns integer
--- @return string[]
function M.lines(tokens, learnt, columns)
  local all, part = M.summary(tokens), M.summary(learnt)
  local rows = { row_of('tokens', all), row_of('learnt', part) }
  local lines = columns_of.table(COLUMNS, rows, columns)
  lines[#lines + 1] = ''
  local samples = #tokens == 1 and '1 sample' or #tokens .. ' samples'
  local sums = ('%s of %d tokens, of which %d (%.1f %%) are learnt'):format(samples, all.sum,
    part.sum, 100 * part.sum / all.sum)
  for _, line in ipairs(layout.wrap(sums, columns)) do lines[#lines + 1] = line end
  lines[#lines + 1] = ''
  for _, line in ipairs(M.histogram(M.bins(tokens, all), columns)) do lines[#lines + 1] = line end
  return lines
end

--- The longest sample, as a recipe takes it: the context of a model may be less. Of models it is
--- enough to read what their config.json says.
--- @param chat ms_chat
--- @param cfg table a configuration with `data`, and perhaps `student` and `teacher`
--- @return integer
function M.longest(chat, cfg)
  local list = {}
  for _, folder in ipairs { cfg.student or false, cfg.teacher or false } do
    local context = folder and ends.settings(folder, 'config.json').max_position_embeddings
    if type(context) == 'number' and context >= 2 then
      list[#list + 1] = { info = function() return { context = context } end }
    end
  end
  return chat:longest(cfg.data.max_tokens, unpack(list))
end

return M
