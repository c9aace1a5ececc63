--- Files of data, row by row: JSON lines (.jsonl, .ndjson), a JSON array of rows (.json), or one
--- plain text (.txt). Other files that people have in their place are named, with what to do.

local C = require 'moonstill.C'
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local paths = require 'moonstill.base.paths'
local sorted = require 'moonstill.base.sorted'

local M = {}

-- what is wrong ----------------------------------------------------------------------------------

local PYTHON = "this is Python's way to print, not JSON: json.dumps writes JSON"
local NUMBERS = 'JSON has no NaN and no Infinity: write null, or leave the key out'

-- What a parser says where it stands before something that people write.
local SAID = {
  { "near 'NaN", NUMBERS }, { "near 'Infinity", NUMBERS }, { "near '%-'$", NUMBERS },
  { "near '''$", PYTHON }, { "near 'None'$", PYTHON }, { "near 'True'$", PYTHON },
  { "near 'False'$", PYTHON },
  { 'unable to decode byte', 'it is not UTF-8: save it as UTF-8 (iconv -t UTF-8)' },
}

local function explain_message(message)
  for _, case in ipairs(SAID) do
    if message:find(case[1]) then return case[2] end
  end
end

local ARRAY = 'rows of an array: the name of such a file ends in .json'

-- A line that is no JSON. `ended`: it has its end, which the last of a file may lack.
local function explain_line(text, message, ended)
  if text:find '^%s*%[%s*$' or text:find '^%s*%[%s*{' then return ARRAY end
  if text:find '^%s*{%s*$' then
    return 'a row stands on one line, as json.dumps writes it without an indent'
  elseif text:find '}%s*,%s*$' then
    return 'rows stand on lines of their own, without commas behind them'
  elseif not text:find '^%s*[{%[]' then
    return 'rows of CSV or TSV are to be written as JSON, and a plain text is named .txt'
  elseif not ended and not text:find '}%s*$' then
    return 'the file ends in the middle of this row: was its download or copy cut off?'
  end
  return explain_message(message)
end

local function explain_array(message)
  if message:find 'end of file expected' then
    return 'more stands behind the first value: a file with a row on each line is named .jsonl'
  elseif message:find 'near end of file' or message:find 'premature end' then
    return 'the file ends too early: was its download or copy cut off?'
  elseif message:find 'bytes of JSON, limit' then
    return 'rows on lines of their own, in a .jsonl, have no limit together'
  end
  return explain_message(message)
end

local function with(message, reason) return reason and message .. '; ' .. reason or message end

-- rows -------------------------------------------------------------------------------------------

local function check_row(row)
  if json.is_object(row) then return row end
  error('a row is an object', 0)
end

local function decode(text, where, ended)
  local ok, row = fail.pcall(json.decode, text, where)
  if ok and json.is_object(row) then return row end
  if ok then error(with('a row is an object', text:find '^%s*%[%s*{' and ARRAY), 0) end
  -- The place names the line of the file; that a row is line 1 of itself would only confuse.
  local message = tostring(row):gsub(': line 1, column ', ': column ', 1)
  error(with(message, explain_line(text, message, ended)), 0)
end

local function decode_line(text, where) return decode(text, where, true) end
local function decode_last(text, where) return decode(text, where, false) end

local function decode_file(path)
  local file, why = io.open(path, 'rb')
  if not file then error(why, 0) end
  local text = file:read '*a'
  file:close()
  return json.without_mark(text)
end

-- files ------------------------------------------------------------------------------------------

local function read_lines(path, visit, self)
  for number, text, ended in json.text_lines(path) do
    local full = text:find '%S'
      and visit(self, path .. ':' .. number, text, ended and decode_line or decode_last)
    if full then return end
  end
end

local function what_of(value)
  if value == json.null then return 'a null' end
  if not json.is_object(value) then return 'a ' .. type(value) end
  local keys = sorted.keys(value)
  return ('an object with the keys %s%s'):format(table.concat(keys, ', ', 1, math.min(#keys, 10)),
    #keys > 10 and ', ..' or '')
end

local function read_array(path, visit, self)
  local ok, rows = fail.pcall(json.read, path)
  if not ok then error(with(tostring(rows), explain_array(tostring(rows))), 0) end
  if not json.is_array(rows) then
    error(('%s: not an array of rows but %s'):format(path, what_of(rows)), 0)
  end
  for i, row in ipairs(rows) do
    if visit(self, ('%s: row %d'):format(path, i), row, check_row) then return end
  end
end

local function read_text(path, visit, self) visit(self, path, path, decode_file) end

local READERS = { jsonl = read_lines, ndjson = read_lines, json = read_array, txt = read_text }
local ENDINGS = 'files end in .jsonl, .json or .txt'

-- What pandas reads other tables with.
local PANDAS = { csv = 'read_csv', tsv = 'read_table', parquet = 'read_parquet',
  arrow = 'read_feather', feather = 'read_feather', xlsx = 'read_excel' }

local function why_not(path, ending)
  local how = PANDAS[ending]
  if how then
    return ('%s; pandas makes one of it: %s(..).to_json("data.jsonl", orient="records", '
      .. 'lines=True)'):format(ENDINGS, how)
  end
  return with(ENDINGS, paths.guess(path))
end

local function why_no_folder(path)
  for _, name in ipairs(paths.list(path)) do
    if READERS[name:match '%.(%w+)$' or ''] then
      return ('is a folder: give its files, such as %s/%s'):format(path, name)
    end
  end
  return 'is a folder, where a file is expected'
end

-- Whether a file of rows begins as JSON does: then it is nothing else.
local function begins_as_json(path)
  local file = io.open(path, 'rb')
  local head = file and file:read(64) or ''
  if file then file:close() end
  return json.without_mark(head):find '^%s*[{%[][^%z]' ~= nil
end

local function reader_of(path)
  if type(path) ~= 'string' then error('dataset: a path is a ' .. type(path), 0) end
  local kind, ending = C.ms_path_kind(path), (path:match '%.(%w+)$' or ''):lower()
  local reader = READERS[ending]
  local why = kind == 0 and paths.missing(path) or kind == 2 and why_no_folder(path)
    or not reader and why_not(path, ending)
    or (reader == read_text or not begins_as_json(path)) and paths.guess(path)
  if why then error(('dataset: %s: %s'):format(path, why), 0) end
  return reader
end

--- Reads a file: for each row `visit(self, where, value, decode)`, where `decode(value, where)` is
--- the row, or the text of a file that is one. It ends early when `visit` returns true.
--- @param path string
--- @param visit fun(self: any, where: string, value: any, decode: function): boolean?
--- @param self any handed to `visit`
function M.read(path, visit, self)
  local ok, why = fail.pcall(reader_of(path), path, visit, self)
  if not ok then error(why, 0) end -- it names the file: the caller's line is not where to look
end

return M
