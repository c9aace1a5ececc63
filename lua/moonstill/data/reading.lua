--- What became of the rows of a data set, and how that is said.

local sorted = require 'moonstill.base.sorted'
local strict = require 'moonstill.base.strict'

local M = {}

local FIRST = 10   -- skipped rows whose message is kept
local REASONS = 50 -- reasons that are counted apart; a file may have a new one in each row

--- What became of the rows of a data set: counts, and what was said of them.
--- @class ms_report
--- @field rows integer rows that were read
--- @field dropped integer samples longer than max_tokens
--- @field truncated integer samples that were cut
--- @field endless integer samples cut behind the beginning of what is learnt, so that its end is
---   not learnt
--- @field split integer samples cut into pieces, of which there are `pieces`
--- @field pieces integer into which samples were cut
--- @field crossing integer samples with tokens that lie across the border of what is learnt
--- @field thoughts integer answers whose thinking the template leaves out
--- @field filtered integer rows that the caller's `filter` left out
--- @field skipped integer rows with errors
--- @field errors string[] the first ten of those, with file and line
--- @field reasons { reason: string, count: integer }[] all of them by reason, the most frequent
---   first; a reason's numbers are those of its first row
--- @field unweighted integer rows without the column of weights
--- @field open integer rows whose answer was cut off (`ended` is false)
--- @field spelled { count: integer, first?: string } rows that spell special tokens in their texts
--- @field fields { what: string, name: string, count: integer, ignored: boolean }[] columns and
---   fields of messages that were not used
local methods = {}
local class = strict.class('report', methods)

--- @return ms_report
function M.new()
  return setmetatable({ rows = 0, dropped = 0, truncated = 0, endless = 0, split = 0, pieces = 0,
    crossing = 0, thoughts = 0, filtered = 0, skipped = 0, unweighted = 0, open = 0,
    spelled = { count = 0 }, errors = {}, reasons = {}, of_reason = {}, fields = {} }, class)
end

--- A report that was kept, with all that one has.
--- @param kept table its fields
--- @return ms_report
function M.again(kept)
  local self = M.new()
  for key in sorted.pairs(self) do
    if kept[key] ~= nil then self[key] = kept[key] end
  end
  return self
end

-- Messages that differ in numbers, ids and in what a parser stood before are of one reason.
local function find_reason(self, message)
  local key = message:gsub("near '.*", ''):gsub('^duplicate id ".*', ''):gsub('%d+', '0')
  if not self.of_reason[key] and #self.reasons >= REASONS then
    key, message = '', 'other reasons'
  end
  local entry = self.of_reason[key]
  if not entry then
    entry = { reason = message, count = 0 }
    self.of_reason[key], self.reasons[#self.reasons + 1] = entry, entry
  end
  return entry
end

--- Counts a row that is skipped.
--- @package
--- @param place string its file and line
--- @param message string
function methods:skip(place, message)
  self.skipped = self.skipped + 1
  if #self.errors < FIRST then self.errors[#self.errors + 1] = place .. ': ' .. message end
  local entry = find_reason(self, message)
  entry.count = entry.count + 1
end

--- Counts a row that spells a special token.
--- @package
--- @param token string
function methods:spell(token)
  local spelled = self.spelled
  spelled.count, spelled.first = spelled.count + 1, spelled.first or token
end

--- Ends the reading.
--- @package
--- @param counted table what `fields:counted` gives
function methods:finish(counted)
  self.fields = counted
  table.sort(self.reasons, function(a, b)
    if a.count ~= b.count then return a.count > b.count end
    return a.reason < b.reason
  end)
end

--- "1 row", "2 rows".
--- @param n integer
--- @param what string
--- @return string
function M.counted(n, what)
  if n == 1 then return '1 ' .. what end
  return ('%d %s'):format(n, (what:gsub('^%a+', '%0s')))
end

-- A column of weights may have been forgotten.
local function hint(entry)
  local weights = entry.what == 'row' and entry.name == 'weight' and not entry.ignored
  return weights and ' (weight_key = "weight" uses it)' or ''
end

local function add_fields(lines, list, ignored, words)
  local parts = {}
  for _, entry in ipairs(list) do
    if entry.ignored == ignored then
      parts[#parts + 1] = ('%s %s "%s"%s'):format(M.counted(entry.count, entry.what),
        entry.count == 1 and 'has' or 'have', entry.name, hint(entry))
    end
  end
  if #parts > 0 then lines[#lines + 1] = table.concat(parts, ', ') .. ', which is ' .. words end
end

-- Names to ignore that nothing had.
local function add_idle(lines, list, ignore)
  local seen = {}
  for _, entry in ipairs(list) do seen[entry.name] = true end
  for _, name in ipairs(ignore or {}) do
    if not seen[name] then
      lines[#lines + 1] = ('ignore names "%s", which nothing has'):format(name)
    end
  end
end

local function add_skipped(lines, self)
  if self.skipped == 0 then return end
  lines[#lines + 1] = M.counted(self.skipped, 'row') .. ' skipped:'
  for _, message in ipairs(self.errors) do lines[#lines + 1] = '  ' .. message end
  if self.skipped <= #self.errors then return end
  lines[#lines + 1] = 'by reason:'
  for _, entry in ipairs(self.reasons) do
    lines[#lines + 1] = ('  %s: %s'):format(M.counted(entry.count, 'row'), entry.reason)
  end
end

--- What has to be said of it, a line each.
--- @package
--- @param options table the data set's
--- @return string[]
function methods:lines(options)
  local lines = {}
  add_fields(lines, self.fields, false, 'not used')
  add_fields(lines, self.fields, true, 'ignored as asked')
  add_idle(lines, self.fields, options.ignore)
  if self.unweighted > 0 then
    lines[#lines + 1] = ('%s without "%s" (weight_key), whose weight is 1'):format(
      M.counted(self.unweighted, 'row'), options.weight_key)
  end
  if self.spelled.count > 0 then
    lines[#lines + 1] = ('%s with special tokens spelled in text, such as "%s": those are read as '
      .. 'letters (spelled = tokens reads them as tokens)'):format(
      M.counted(self.spelled.count, 'row'), self.spelled.first)
  end
  if self.crossing > 0 then
    lines[#lines + 1] = ('%s with tokens that begin before what is learnt, or end behind it: they '
      .. 'are learnt'):format(M.counted(self.crossing, 'sample'))
  end
  if self.thoughts > 0 then
    lines[#lines + 1] = ('%s whose thinking the template does not write, so that it is not learnt; '
      .. 'turns = each makes a sample of each answer'):format(M.counted(self.thoughts, 'answer'))
  end
  if self.open > 0 then
    lines[#lines + 1] = ('%s with "ended": false, of which no end is learnt'):format(
      M.counted(self.open, 'row'))
  end
  if self.endless > 0 then
    lines[#lines + 1] = ('%s truncated before the end of what is learnt (max_tokens = %d): no end '
      .. 'is learnt of them; over_long = drop or split keeps ends'):format(
      M.counted(self.endless, 'sample'), options.max_tokens)
  end
  add_skipped(lines, self)
  return lines
end

return M
