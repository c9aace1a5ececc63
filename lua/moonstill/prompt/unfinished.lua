--- The output of `moonstill generate` while it is not whole: OUTPUT.part, whose first line says
--- what was asked. Each further one is a prompt's row, or null where the answer is empty. So a call
--- that was stopped or killed goes on behind its last whole line, and OUTPUT appears as a whole.

local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local json = require 'moonstill.base.json'
local kinds = require 'moonstill.base.kinds'
local sorted = require 'moonstill.base.sorted'

local M = {}

local MEANING = { tokens = 'the prompts are other ones', model = 'the model is another one' }

-- What is asked otherwise than it was, or nil.
local function difference(was, asked)
  for _, key in ipairs(sorted.keys(was, asked)) do
    if json.encode(was[key]) ~= json.encode(asked[key]) then
      return MEANING[key] or ('%s was %s and is %s'):format(key, kinds.shown(was[key]),
        kinds.shown(asked[key]))
    end
  end
end

local function read_file(path)
  local file, why = io.open(path, 'rb')
  if not file then error(why, 0) end
  local text = file:read '*a'
  file:close()
  return text
end

local function write_file(path, text) check.file(C.ms_file_write(path, text, #text)) end

--- Takes a file of parts up, or begins one. Returns how many prompts are done.
--- @param path string
--- @param asked table what the call is about: another one does not go on with its rows
--- @return integer
function M.take_up(path, asked)
  local first = json.encode(asked) .. '\n'
  if C.ms_path_kind(path) == 0 then
    write_file(path, first)
    return 0
  end
  local text = read_file(path)
  local whole = text:match '^.*\n' or ''
  local ok, was = pcall(json.decode, whole:match '^[^\n]*')
  if not ok or not json.is_object(was) or not was.tokens then
    error(path .. ': is in the way, and no unfinished output of this command: remove it, or give '
      .. 'another -o', 0)
  end
  local why = difference(was, asked)
  if why then
    error(('%s: another call has left it: %s. Remove it, or give another -o'):format(path, why), 0)
  end
  if #whole < #text then write_file(path, whole) end -- a line that a kill cut off
  local _, lines = whole:gsub('\n', '')
  return lines - 1
end

--- Writes the output from the lines of its parts, which are then removed.
--- @param part string
--- @param output string where nothing is
--- @return { rows: integer, ended: integer, empty: integer }
function M.finish(part, output)
  local lines, report = {}, { rows = 0, ended = 0, empty = 0 }
  for number, text in json.text_lines(part) do
    if text == 'null' then
      report.empty = report.empty + 1
    elseif number > 1 then
      lines[#lines + 1] = text
      report.rows = report.rows + 1
      if json.decode(text).ended == true then report.ended = report.ended + 1 end
    end
  end
  lines[#lines + 1] = ''
  if C.ms_path_kind(output) ~= 0 then
    error(('%s: has come meanwhile; the answers are in %s'):format(output, part), 0)
  end
  write_file(output, table.concat(lines, '\n'))
  os.remove(part)
  return report
end

return M
