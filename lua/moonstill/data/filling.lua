--- Rows of files and of Lua tables to samples: each row is decoded, may be left out or changed by
--- functions of the caller's, becomes a sample (`data/rows.lua`), and its tokens follow those
--- before.
---
--- Rows are encoded some at a time. What is wrong with one is said with its place, or counted, in
--- the order of the rows.

local encoding = require 'moonstill.data.encoding'
local fail = require 'moonstill.base.fail'
local fields = require 'moonstill.data.fields'
local identities = require 'moonstill.data.identities'
local json = require 'moonstill.base.json'
local literals = require 'moonstill.data.literals'
local progress = require 'moonstill.base.progress'
local ranks = require 'moonstill.base.ranks'
local readers = require 'moonstill.data.readers'
local reading = require 'moonstill.data.reading'
local rows = require 'moonstill.data.rows'
local samples = require 'moonstill.data.samples'
local sorted = require 'moonstill.base.sorted'
local sources_of = require 'moonstill.data.sources'

local M = {}

-- Rows that are encoded together, and what they are written in: more would take memory, and no less
-- time.
local BLOCK = { rows = 1024, bytes = 2 ^ 22 }

-- what is wrong ----------------------------------------------------------------------------------

-- A bad row: an error with its place, or counted.
local function reject(self, where, why)
  local message = tostring(why) -- which may come with the place already
  if message:sub(1, #where + 2) == where .. ': ' then message = message:sub(#where + 3) end
  if self.options.on_error ~= 'skip' then error(where .. ': ' .. message, 0) end
  self.report:skip(where, message)
end

local function count(self, entry)
  local report = self.report
  if entry.sample.ended == false then report.open = report.open + 1 end
  if entry.unweighted then report.unweighted = report.unweighted + 1 end
end

-- How far the reading is: "a.jsonl: 12.3 k rows, 45%, left 2m03s".
local function describe(self, seconds)
  local source = self.source
  local text = ('%s: %s rows'):format(source.name, progress.count(source.read))
  local part = source.bytes and source.bytes > 0 and source.seen / source.bytes or 0
  if part == 0 or part > 1 then return text end
  return ('%s, %.0f%%, left %s'):format(text, 100 * part,
    progress.duration(seconds * (1 - part) / part))
end

local function failed(self, entry, why) reject(self, entry.place, why) end

-- Encodes the rows that wait.
local function flush(self)
  self.progress:draw(describe, self)
  local list = self.pending
  self.pending, self.waiting = {}, 0
  if #list > 0 then encoding.add(self, list, count, failed) end
end

-- rows -------------------------------------------------------------------------------------------

local function say(self, line)
  self.lines[#self.lines + 1] = line
  self.progress:say(line)
end

local function wait(self, sample, weight, where, unweighted)
  self.pending[#self.pending + 1] = { sample = sample, text = sample.text ~= nil, weight = weight,
    row = self.report.rows, place = where, unweighted = unweighted }
end

local function take(self, row, where)
  if type(row) == 'string' then return wait(self, { text = row }, 1, where) end
  local key = self.options.weight_key
  self.form = self.form or rows.detect(row, self.options)
  local form = self.form
  self.used = self.used or rows.used(form, key)
  literals.check(row, self.used)
  rows.parse(row, form)
  self.fields:look(row, form.kind, self.used, rows.lists(row, form), self.reads)
  if not self.said then
    local turns = form.kind == 'messages' or form.kind == 'pair'
    say(self, ('dataset: %s: %s%s'):format(where, rows.describe(form, key),
      turns and ', ' .. self.chat:describe() or ''))
  end
  self.said = true
  local weight, given = rows.weight(row, key)
  local sample = rows.sample(row, form)
  if sample.id ~= nil then self.source.ids:add(sample.id, self.source.read) end
  wait(self, sample, weight, where, key and not given)
end

-- The caller's functions: what is wrong in them is no fault of the row's.
local function call(self, name, row, where)
  local ok, value = fail.pcall(self[name], row, self.report.rows)
  if not ok then error(('dataset: %s of %s: %s'):format(name, where, tostring(value)), 0) end
  return value
end

-- The row as the caller's functions leave it; nil where it is left out.
local function changed(self, row, where)
  if not (self.filter or self.map) then return row end
  if type(row) == 'string' then row = { text = row } end
  if self.filter and not call(self, 'filter', row, where) then
    self.report.filtered = self.report.filtered + 1
    return nil
  end
  if not self.map then return row end
  local value = call(self, 'map', row, where)
  if json.is_object(value) then return value end
  error(('dataset: map of %s gave %s, and a row is an object'):format(where,
    value == nil and 'nothing' or 'a ' .. type(value)), 0)
end

local function full(self)
  local all, own = self.options.limit, self.source.limit
  return all and self.report.rows >= all or own and self.source.read >= own
end

-- What the caller's functions leave of a row; nil where it is left out. `why`: it cannot be read.
local function read_row(self, where, value, decode)
  self.report.rows, self.source.read = self.report.rows + 1, self.source.read + 1
  local bytes = type(value) == 'string' and #value + 1 or 0
  self.source.seen, self.waiting = self.source.seen + bytes, self.waiting + bytes
  local ok, row = fail.pcall(decode, value, where)
  if not ok then return nil, row end
  row = changed(self, row, where)
  if self.digest then self.digest:add { where, row or false } end
  return row
end

-- Of a row that is read for its hash alone.
local function visit_hash(self, where, value, decode)
  local _, why = read_row(self, where, value, decode)
  if why then self.digest:add { where, tostring(why) } end
  return full(self)
end

-- One row. True when there are enough.
local function visit(self, where, value, decode)
  local row, why = read_row(self, where, value, decode)
  local ok = why == nil
  if row then ok, why = fail.pcall(take, self, row, where) end
  if not ok or #self.pending >= BLOCK.rows or self.waiting >= BLOCK.bytes then flush(self) end
  if not ok then reject(self, where, why) end
  return full(self)
end

-- A copy, since what is ignored is taken out of a row.
local function copy(value)
  if type(value) ~= 'table' or value == json.null then return value end
  local t = {}
  for key, each in sorted.pairs(value) do t[key] = copy(each) end
  return setmetatable(t, getmetatable(value))
end

local function read(self, source, visitor)
  self.source, source.read, source.seen = source, 0, 0
  source.bytes = source.path and sources_of.bytes(source.path)
  if source.path then return readers.read(source.path, visitor, self) end
  for i, row in ipairs(source.rows) do
    if visitor(self, 'row ' .. i, row, copy) then return end
  end
end

local function read_all(self, sources, visitor)
  for _, source in ipairs(sources) do
    source.first = self.samples.count
    self.form, self.used, self.said = rows.asked(self.options), nil, nil
    source.ids = identities.new()
    if not (self.options.limit and self.report.rows >= self.options.limit) then
      read(self, source, visitor)
      flush(self)
    end
    source.ids, source.count = nil, self.samples.count - source.first
  end
end

local function new(chat, options, s, digest)
  local function reads(name) return chat:takes(name) end
  return { chat = chat, reads = reads, options = options, filter = options.filter,
    map = options.map, samples = s, report = reading.new(), fields = fields.new(options.ignore),
    pending = {}, waiting = 0, levels = {}, lines = {}, digest = digest,
    progress = progress.new(ranks.world(), { quiet = options.quiet }) }
end

--- Whether the rows are not what files say, but what functions leave of them or a table has.
--- @param sources table[]
--- @param options table
--- @return boolean
function M.are_made(sources, options)
  for _, source in ipairs(sources) do
    if source.rows then return true end
  end
  return options.filter ~= nil or options.map ~= nil
end

--- Reads all rows for a hash of what the caller's functions leave of them.
--- @param sources table[]
--- @param options table
--- @param digest table see `cache.digest`
function M.hash(sources, options, digest)
  read_all(new(nil, options, samples.new(), digest), sources, visit_hash)
end

--- Reads all sources. Each gets `first` and `count`: its samples.
--- @param sources table[] what `sources.take` gives
--- @param chat ms_chat
--- @param options table a data set's, with `filter` and `map`
--- @param s ms_samples none yet: they are added
--- @param digest? table see `cache.digest`: the rows are added to it
--- @return ms_report
--- @return string[] lines what was said of the rows
function M.fill(sources, chat, options, s, digest)
  local self = new(chat, options, s, digest)
  local ok, why = pcall(read_all, self, sources, visit)
  self.progress:clear()
  if not ok then error(why, 0) end
  self.report:finish(self.fields:counted())
  return self.report, self.lines
end

return M
