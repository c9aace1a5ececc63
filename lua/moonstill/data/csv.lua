--- Tables of text, a record a row: RFC 4180 as Python's csv and pandas read it. A field in quotes
--- may hold delimiters, ends of lines and, doubled, quotes; quotes elsewhere are letters. Lines end
--- in \n, \r\n or \r; empty ones are passed over. The first record names the columns.

local json = require 'moonstill.base.json'
local stream = require 'moonstill.base.stream'

local M = {}

local CHUNK = 65536
local MOST = 256 * 2 ^ 20 -- bytes of a record
local QUOTE, RETURN, NEWLINE = 34, 13, 10

local methods = {}
methods.__index = methods

function methods:fail(line, format, ...)
  error(('%s:%d: '):format(self.path, line) .. format:format(...), 0)
end

-- More of the file behind what is left of the buffer, as much again at least: a record that is
-- begun anew each time costs no more than its length.
local function refill(r)
  local parts, bytes = { r.text:sub(r.at) }, 0
  local wanted = math.max(CHUNK, #parts[1])
  if #parts[1] > MOST then
    r:fail(r.line, 'a row of more than %d bytes: is a quote (") of it never closed?', MOST)
  end
  while bytes < wanted and not r.ended do
    local more = r.file:read(CHUNK)
    r.ended = more == nil
    parts[#parts + 1] = more
    bytes = bytes + (more and #more or 0)
  end
  r.text, r.at = table.concat(parts), 1
end

local function count_lines(text)
  local _, ends = text:gsub('\n', '')
  local _, returns = text:gsub('\r', '')
  local _, both = text:gsub('\r\n', '')
  return ends + returns - both
end

-- The field in quotes at `at`, and where it ends; nil where the buffer does before it.
local function quoted(r, at, line)
  local text, search, doubled = r.text, at + 1, false
  while true do
    local stop = text:find('"', search, true)
    if not stop and r.ended then
      r:fail(line, 'a quote (") that opens here is never closed')
    end
    if not stop or (stop == #text and not r.ended) then return nil end
    if text:byte(stop + 1) ~= QUOTE then
      local field = text:sub(at + 1, stop - 1)
      return doubled and field:gsub('""', '"') or field, stop + 1
    end
    search, doubled = stop + 2, true
  end
end

-- Where the next line begins: `stop` is where this one ends. nil where the buffer ends before that
-- is known.
local function behind(r, stop)
  if r.text:byte(stop) ~= RETURN then return stop + 1 end
  if stop == #r.text and not r.ended then return nil end
  return r.text:byte(stop + 1) == NEWLINE and stop + 2 or stop + 1
end

-- The record at r.at, and the line behind it; nil where the buffer ends before it does.
local function parse(r)
  local text, at, line, fields, n = r.text, r.at, r.line, {}, 0
  while true do
    local field = ''
    if text:byte(at) == QUOTE then
      field, at = quoted(r, at, line)
      if not field then return nil end
      if field:find '[\r\n]' then line = line + count_lines(field) end
    end
    local stop = text:find(r.stops, at)
    if not stop and not r.ended then return nil end
    stop = stop or #text + 1
    n = n + 1
    fields[n] = stop > at and field .. text:sub(at, stop - 1) or field
    at = stop + 1
    if text:byte(stop) ~= r.delimiter then
      at = behind(r, stop)
      if not at then return nil end
      r.at = at
      return fields, line + 1
    end
  end
end

local function is_end(r)
  while r.at > #r.text and not r.ended do refill(r) end
  return r.at > #r.text
end

-- Passes over empty lines. A \r at the end of the buffer may be half an end.
local function skip_empty(r)
  while not is_end(r) do
    local c = r.text:byte(r.at)
    if c ~= NEWLINE and c ~= RETURN then return true end
    local at = behind(r, r.at)
    if at then r.at, r.line = at, r.line + 1 else refill(r) end
  end
  return false
end

--- The next record and its line; nil at the end of the file.
--- @return string[]?
--- @return integer?
function methods:next()
  if not skip_empty(self) then return nil end
  local line, fields, after = self.line, nil, nil
  repeat
    fields, after = parse(self)
    if not fields then refill(self) end
  until fields
  self.line = after
  return fields, line
end

--- Opens a file for its records.
--- @param path string
--- @param delimiter string ',' or '\t'
function M.open(path, delimiter)
  local r = setmetatable({ path = path, file = stream.open(path), text = '', at = 1, line = 1,
    delimiter = delimiter:byte(), stops = '[' .. delimiter .. '\r\n]' }, methods)
  refill(r)
  r.text = json.without_mark(r.text)
  return r
end

local SIGNS = { [','] = { ';', '\t', '|' }, ['\t'] = { ',', ';', '|' } }

local function header_of(r, delimiter)
  local names, line = r:next()
  local seen = {}
  for i, name in ipairs(names or {}) do
    if seen[name] then
      r:fail(line, 'the columns %d and %d have one name, "%s"', seen[name], i, name)
    end
    seen[name] = i
  end
  for _, sign in ipairs(names and #names == 1 and SIGNS[delimiter] or {}) do
    if names[1]:find(sign, 1, true) then
      r:fail(line, "the columns seem to be separated by '%s': a comma separates those of .csv, a "
        .. 'tab those of .tsv', sign == '\t' and '\\t' or sign)
    end
  end
  return names
end

-- The row of a record: a column that it does not reach is not there.
local function row_of(fields, names)
  local row = {}
  if #fields > #names then
    error(('%d fields, and the header names %d columns'):format(#fields, #names), 0)
  end
  for i, field in ipairs(fields) do row[names[i]] = field end
  return row
end

--- Reads a table as `readers.read` does.
--- @param path string
--- @param delimiter string
--- @param visit fun(self: any, where: string, value: any, decode: function): boolean?
--- @param self any
function M.read(path, delimiter, visit, self)
  local r = M.open(path, delimiter)
  local names = header_of(r, delimiter)
  if not names then return end
  local function decode(fields) return row_of(fields, names) end
  for fields, line in r.next, r do
    if visit(self, path .. ':' .. line, fields, decode) then return end
  end
end

return M
