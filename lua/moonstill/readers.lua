--- Files of data, row by row: JSON lines (.jsonl, .ndjson), a JSON array of rows (.json), or one
--- plain text (.txt).

local C = require 'moonstill.C'
local json = require 'moonstill.json'

local M = {}

-- rows -------------------------------------------------------------------------------------------

local function check_row(row)
  if type(row) == 'table' and row ~= json.null and not json.is_array(row) then return row end
  error('a row is an object', 0)
end

-- The place names the line of the file; that a row is line 1 of itself would only confuse.
local function decode_line(text, where)
  local ok, row = pcall(json.decode, text, where)
  if ok then return check_row(row) end
  error((tostring(row):gsub(': line 1, column ', ': column ', 1)), 0)
end

local function decode_file(path)
  local file, why = io.open(path, 'rb')
  if not file then error(why, 0) end
  local text = file:read '*a'
  file:close()
  return json.without_mark(text)
end

-- files ------------------------------------------------------------------------------------------

local function read_lines(path, visit, with)
  for number, text in json.text_lines(path) do
    local full = text:find '%S' and visit(with, path .. ':' .. number, text, decode_line)
    if full then return end
  end
end

local function read_array(path, visit, with)
  local rows = json.read(path)
  if not json.is_array(rows) then error(path .. ': not an array of rows', 0) end
  for i, row in ipairs(rows) do
    if visit(with, ('%s: row %d'):format(path, i), row, check_row) then return end
  end
end

local function read_text(path, visit, with) visit(with, path, path, decode_file) end

local READERS = { jsonl = read_lines, ndjson = read_lines, json = read_array, txt = read_text }

--- Reads a file: for each row `visit(with, where, value, decode)`, where `decode(value, where)` is
--- the row, or the text of a file that is one. It ends early when `visit` returns true.
--- @param path string
--- @param visit fun(with: any, where: string, value: any, decode: function): boolean?
--- @param with any
function M.read(path, visit, with)
  if type(path) ~= 'string' then error('dataset: a path is a ' .. type(path), 0) end
  local kind = path:match '%.(%w+)$'
  local reader = READERS[kind and kind:lower()]
  if not reader then
    error(('dataset: %s: files end in .jsonl, .json or .txt'):format(path), 0)
  end
  if C.ms_path_kind(path) ~= 1 then error(('dataset: %s: no such file'):format(path), 0) end
  local ok, why = pcall(reader, path, visit, with)
  if not ok then error(why, 0) end -- it names the file: the caller's line is not where to look
end

return M
