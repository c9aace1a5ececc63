--- metrics.jsonl: a line of JSON for each step and each validation, in order of steps.
---
--- A line is there as soon as it is written; the file is opened for each, so that one which was
--- removed is made anew, and one that replaced it goes on. A run that goes on from a checkpoint
--- cuts the file back to that checkpoint's step, so that each step occurs once; what was measured
--- after that step, and is measured again with the same result, keeps its one line.

local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local json = require 'moonstill.base.json'

local M = {}

local ORDER = { order = { 'step', 'kind', 'epoch', 'loss', 'terms' } }

--- Drops lines of steps after `step`, and a last line that was cut off by a kill.
-- Returns the lines of `step` itself.
local function cut_back(path, step)
  local kept, last = {}, {}
  if step == 0 then -- the run begins anew, and measures again what was before its first step
    check.file(C.ms_file_write(path, '', 0))
    return last
  end
  for _, line in json.text_lines(path) do
    local ok, entry = pcall(json.decode, line)
    if ok and type(entry) == 'table' and tonumber(entry.step) and entry.step <= step then
      kept[#kept + 1] = line
      if entry.step == step then last[line] = true end
    end
  end
  local text = table.concat(kept, '\n') .. (#kept > 0 and '\n' or '')
  check.file(C.ms_file_write(path, text, #text))
  return last
end

local methods = {}

local function append(path, line)
  local file, why = io.open(path, 'ab')
  if not file then return nil, why end
  local ok
  ok, why = file:write(line)
  local closed, late = file:close() -- which writes what is left in its buffer
  if ok and closed then return true end
  return nil, ('%s: cannot write: %s'):format(path, tostring(not ok and why or late))
end

--- Appends a line.
--- @param entry table with its `step`; numbers that JSON has not (NaN, infinity) become null
function methods:write(entry)
  if not self.ranks.writes then return end
  local line = json.encode(entry, ORDER)
  if self.there[line] then return end
  if C.ms_path_kind(self.path) == 0 then
    self.say(('note: %s was removed: it begins anew with step %d'):format(self.path, entry.step))
  end
  local ok, why = append(self.path, line .. '\n')
  if not ok then error(why, 0) end
end

local class = { __index = methods }

--- A number as JSON can have it; nil, for what was not measured, stays nil.
--- @param x? number
function M.number(x)
  if x == nil then return nil end
  if x ~= x or x == math.huge or x == -math.huge then return json.null end
  return x
end

--- Opens a file for a run that has `step` steps behind it.
--- @param path string
--- @param step integer
--- @param ranks ms_ranks of which one writes
--- @param say fun(line: string) told what is worth a line
function M.open(path, step, ranks, say)
  local self = setmetatable({ path = path, there = {}, ranks = ranks, say = say }, class)
  if not ranks.writes then return self end
  if C.ms_path_kind(path) ~= 0 then self.there = cut_back(path, step) end
  local ok, why = append(path, '')
  if not ok then error(why, 0) end
  return self
end

return M
