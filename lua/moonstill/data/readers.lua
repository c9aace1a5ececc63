--- Files of data, row by row: JSON, in whatever way its rows follow each other (.jsonl, .ndjson,
--- .json), tables (.csv, .tsv) or one plain text (.txt), each also compressed (.gz, .zst). Other
--- files that people have in their place are named, with what to do.
---
--- JSON is a row on each line, an array of rows, or rows that span lines. An object that is alone
--- in its file is a row too, unless it holds a list of rows under a name that people give one.

local C = require 'moonstill.C'
local csv = require 'moonstill.data.csv'
local explain = require 'moonstill.data.explain'
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local literals = require 'moonstill.data.literals'
local paths = require 'moonstill.base.paths'
local stream = require 'moonstill.base.stream'
local values = require 'moonstill.data.values'

local M = {}

local ORDERED = { ordered = true }

-- rows -------------------------------------------------------------------------------------------

local function kind_of(value)
  if value == json.null then return 'null' end
  return json.is_array(value) and 'a list' or 'a ' .. type(value)
end

local function check_row(row)
  if json.is_object(row) then return row end
  error('a row is an object, not ' .. kind_of(row), 0)
end

-- The value of a text, whose literals that JSON has not stay as marks.
local function decode_row(text, where)
  local ok, value = fail.pcall(json.decode, text, where, ORDERED)
  local marked = not ok and literals.marked(text)
  if not marked then return ok, value end
  local fine, with_marks = fail.pcall(json.decode, marked, where, ORDERED)
  if fine then return true, with_marks end
  return ok, value
end

local function decode(text, where, ended)
  local ok, row = decode_row(text, where)
  if ok then return check_row(row) end
  -- The place names the line of the file; that a row is line 1 of itself would only confuse.
  local message = tostring(row):gsub(': line 1, column ', ': column ', 1)
  error(explain.line(message, text, ended), 0)
end

local function decode_line(text, where) return decode(text, where, true) end
local function decode_last(text, where) return decode(text, where, false) end

-- A row that may span lines: `where` says in which it begins.
local function decode_value(text, where)
  local ok, row = decode_row(text, where)
  if ok then return check_row(row) end
  local first = tonumber(where:match ':(%d+)')
  local message = tostring(row):gsub(': line (%d+), ', function(line)
    return line == '1' and ': ' or (': line %d, '):format(first + line - 1)
  end, 1)
  error(explain.value(message), 0)
end

local function decode_text(path)
  local file, parts = stream.open(path), {}
  for part in function() return file:read(2 ^ 20) end do parts[#parts + 1] = part end
  file:close()
  return json.without_mark(table.concat(parts))
end

-- JSON -------------------------------------------------------------------------------------------

-- Names under which an object holds a file's rows.
local LISTS = { 'data', 'train', 'rows', 'examples', 'samples', 'instances', 'records', 'items' }

-- The list of rows that an object holds, and its name; nil when it is a row itself.
local function rows_in(object, path)
  local found, name
  for _, key in ipairs(LISTS) do
    local list = object[key]
    if json.is_array(list) and json.is_object(list[1]) then
      if found then
        error(('%s: an object with two lists of rows, "%s" and "%s": write a file of its own for '
          .. 'each'):format(path, name, key), 0)
      end
      found, name = list, key
    end
  end
  return found, name
end

-- A value that is alone in its file.
local function visit_alone(row, path, visit, self)
  local ok, object = fail.pcall(row.decode, row.value, row.where)
  local list, name
  if ok then list, name = rows_in(object, path) end
  if not list then return visit(self, row.where, row.value, row.decode) end
  for i, one in ipairs(list) do
    if visit(self, ('%s: row %d of "%s"'):format(path, i, name), one, check_row) then return end
  end
end

-- Visits what `next_row` gives: place, value and its decoder. The first waits for a second one.
local function visit_each(next_row, path, visit, self)
  local where, value, decoder = next_row()
  if not where then return end
  local first = { where = where, value = value, decode = decoder }
  where, value, decoder = next_row()
  if not where then return visit_alone(first, path, visit, self) end
  if visit(self, first.where, first.value, first.decode) then return end
  while where do
    if visit(self, where, value, decoder) then return end
    where, value, decoder = next_row()
  end
end

local function lines_of(path)
  local next_line = json.text_lines(path)
  return function()
    while true do
      local number, text, ended = next_line()
      if not number then return nil end
      if text:find '%S' then
        return path .. ':' .. number, text, ended and decode_line or decode_last
      end
    end
  end
end

local function values_of(path)
  local next_value = values.each(path, false)
  return function()
    local text, line = next_value()
    if text then return path .. ':' .. line, text, decode_value end
  end
end

local function read_array(path, visit, self)
  local number = 0
  for text, line in values.each(path, true) do
    number = number + 1
    local where = ('%s:%d: row %d'):format(path, line, number)
    if visit(self, where, text, decode_value) then return end
  end
end

-- Whether the rows that begin with this text span lines.
local function spans_lines(head)
  local line, rest = head:match '^%s*([^\r\n]*)[\r\n]%s*(.*)$'
  if not line or rest == '' then return false end
  local depth, quoted = values.depth(line)
  return depth > 0 and not quoted and (line:find '%[%s*$' or rest:sub(1, 1) ~= '{')
end

local function read_json(path, visit, self, head)
  if head:find '^%s*%[' then return read_array(path, visit, self) end
  local next_row = spans_lines(head) and values_of(path) or lines_of(path)
  return visit_each(next_row, path, visit, self)
end

-- files ------------------------------------------------------------------------------------------

local function read_csv(path, visit, self) csv.read(path, ',', visit, self) end
local function read_tsv(path, visit, self) csv.read(path, '\t', visit, self) end
local function read_text(path, visit, self) visit(self, path, path, decode_text) end

local READERS = { jsonl = read_json, ndjson = read_json, json = read_json, csv = read_csv,
  tsv = read_tsv, txt = read_text }
local ENDINGS = 'files end in .jsonl, .json, .csv, .tsv or .txt, and .gz or .zst behind that'
local COMPRESSED = { gz = true, zst = true }

-- What pandas reads other tables with.
local PANDAS = { parquet = 'read_parquet', arrow = 'read_feather', feather = 'read_feather',
  xlsx = 'read_excel' }

local function ending_of(path)
  local rest, ending = path:lower():match '^(.*)%.(%w+)$'
  if COMPRESSED[ending] then ending = rest:match '%.(%w+)$' end
  return ending or ''
end

local function why_not(path, ending)
  local how = PANDAS[ending]
  if how then
    return ('%s; pandas makes one of it: %s(..).to_json("data.jsonl", orient="records", '
      .. 'lines=True)'):format(ENDINGS, how)
  end
  local guess = paths.guess(path)
  return guess and ENDINGS .. '; ' .. guess or ENDINGS
end

local function why_no_folder(path)
  for _, name in ipairs(paths.list(path)) do
    if READERS[ending_of(name)] then
      return ('is a folder: give its files, such as %s/%s'):format(path, name)
    end
  end
  return 'is a folder, where a file is expected'
end

local HEAD = 65536

-- How a file begins, and whether it is compressed.
local function head_of(path)
  local file, parts, bytes = stream.open(path), {}, 0
  while bytes < HEAD do
    local part = file:read(HEAD)
    if not part then break end
    parts[#parts + 1], bytes = part, bytes + #part
  end
  local compressed = file:compression() ~= nil
  file:close()
  return json.without_mark(table.concat(parts)), compressed
end

local function reader_of(path)
  if type(path) ~= 'string' then error('dataset: a path is a ' .. type(path), 0) end
  local kind, ending = C.ms_path_kind(path), ending_of(path)
  local reader = READERS[ending]
  local why = kind == 0 and paths.missing(path) or kind == 2 and why_no_folder(path)
    or not reader and why_not(path, ending)
  if why then error(('dataset: %s: %s'):format(path, why), 0) end
  return reader
end

local function read(path, visit, self)
  local reader = reader_of(path)
  local head, compressed = head_of(path)
  -- What begins as JSON does is nothing else.
  local is_json = reader == read_json and head:find '^%s*[{%[][^%z]'
  local why = not is_json and not compressed and paths.guess(path)
  if why then error(('dataset: %s: %s'):format(path, why), 0) end
  reader(path, visit, self, head)
end

--- Reads a file: for each row `visit(self, where, value, decode)`, where `decode(value, where)` is
--- the row, or the text of a file that is one. It ends early when `visit` returns true.
--- @param path string
--- @param visit fun(self: any, where: string, value: any, decode: function): boolean?
--- @param self any handed to `visit`
function M.read(path, visit, self)
  local ok, why = fail.pcall(read, path, visit, self)
  if not ok then error(why, 0) end -- it names the file: the caller's line is not where to look
end

return M
