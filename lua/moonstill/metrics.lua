--- metrics.jsonl: a line of JSON for each step and each validation, in order of steps.
---
--- Lines are flushed as they are written. A run that goes on from a checkpoint cuts the file back
--- to that checkpoint's step, so that each step occurs once; what was measured after that step, and
--- is measured again with the same result, keeps its one line.

local C = require 'moonstill.C'
local check = require 'moonstill.check'
local json = require 'moonstill.json'

local M = {}

local ORDER = { order = { 'step', 'kind', 'epoch', 'loss', 'terms' } }

--- Drops lines of steps after `step`, and a last line that was cut off by a kill.
-- Returns the lines of `step` itself.
local function cut_back(path, step)
  local kept, last = {}, {}
  for _, line in json.text_lines(path) do
    local ok, entry = pcall(json.decode, line)
    if ok and type(entry) == 'table' and tonumber(entry.step) and entry.step <= step then
      kept[#kept + 1] = line
      if entry.step == step then last[line] = true end
    end
  end
  local text = table.concat(kept, '\n') .. (#kept > 0 and '\n' or '')
  check(C.ms_file_write(path, text, #text))
  return last
end

local methods = {}

--- Appends a line.
--- @param entry table with its `step`; numbers that JSON has not (NaN, infinity) become null
function methods:write(entry)
  local line = json.encode(entry, ORDER)
  if self.there[line] then return end
  local ok, why = self.file:write(line, '\n')
  if ok then ok, why = self.file:flush() end
  if not ok then error(('%s: cannot write: %s'):format(self.path, tostring(why)), 2) end
end

function methods:close()
  if self.file then self.file:close() end
  self.file = nil
end

local class = { __index = methods }

--- A number as JSON can have it.
--- @param x number
function M.number(x)
  if x ~= x or x == math.huge or x == -math.huge then return json.null end
  return x
end

--- Opens a file for a run that has `step` steps behind it.
--- @param path string
--- @param step integer
function M.open(path, step)
  local there = C.ms_path_kind(path) ~= 0 and cut_back(path, step) or {}
  local file, why = io.open(path, 'ab')
  if not file then error(why, 2) end
  return setmetatable({ path = path, file = file, there = there }, class)
end

return M
