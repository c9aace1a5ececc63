--- JSON values of a file, one at a time as text: the elements of one array, or values that follow
--- each other. Only brackets, quotes and commas are looked at; what stands between them is for a
--- parser. The file, which may be compressed, is never held as a whole.

local ffi = require 'ffi'
local stream = require 'moonstill.base.stream'

local M = {}

local CHUNK = 65536
local MOST = 256 * 2 ^ 20 -- bytes of a value: the core reads no longer ones
local bytes_of = ffi.typeof 'const uint8_t *'

local QUOTE, BACKSLASH, COMMA, NEWLINE = 34, 92, 44, 10
local OPEN, CLOSE, BRACE, END_BRACE = 91, 93, 123, 125

local methods = {}
methods.__index = methods

-- The next chunk in place of the one that has been gone through; false at the end of the file. What
-- of an open value is in the old one is kept.
local function refill(s)
  if s.from then
    s.parts[#s.parts + 1] = s.chunk:sub(s.from + 1)
    s.bytes, s.from = s.bytes + s.n - s.from, 0
    if s.bytes > MOST then s:fail('a value is longer than %d bytes, the limit', MOST) end
  end
  s.at, s.before = s.at - s.n, s.before + s.n -- an escape may go on in the next chunk
  s.chunk = s.file:read(CHUNK) or ''
  s.n, s.p = #s.chunk, ffi.cast(bytes_of, s.chunk)
  return s.n > 0
end

-- Goes on to the end of what is open, or of the chunk: true at the end. A value that is neither
-- object, list nor text ends before a comma, a bracket or a blank.
local function scan(s)
  local p, n, at, depth, quoted = s.p, s.n, s.at, s.depth, s.quoted
  local line, line_at, done = s.line, s.line_at, false
  while at < n do
    local c = p[at]
    if quoted then
      if c == BACKSLASH then
        at = at + 1
      elseif c == QUOTE then
        quoted = false
        done = depth == 0
      end
    elseif c == QUOTE then
      quoted = true
    elseif c == BRACE or c == OPEN then
      depth = depth + 1
    elseif c == END_BRACE or c == CLOSE then
      if depth == 0 then break end
      depth = depth - 1
      done = depth == 0
    elseif depth == 0 and (c == COMMA or c <= 32) then
      break
    end
    if c == NEWLINE then line, line_at = line + 1, s.before + at + 1 end
    at = at + 1
    if done then break end
  end
  done = done or at < n
  s.at, s.depth, s.quoted, s.line, s.line_at = at, depth, quoted, line, line_at
  return done
end

-- The next byte that is no blank, which stays where it is; nil at the end of the file.
local function next_byte(s)
  while true do
    while s.at < s.n do
      local c = s.p[s.at]
      if c > 32 then return c end
      if c == NEWLINE then s.line, s.line_at = s.line + 1, s.before + s.at + 1 end
      s.at = s.at + 1
    end
    if not refill(s) then return nil end
  end
end

-- The text of the value that begins here, and its line.
local function take(s)
  local line = s.line
  s.from, s.bytes, s.parts, s.depth, s.quoted = s.at, 0, {}, 0, false
  while not scan(s) do
    if not refill(s) then
      if s.depth == 0 and not s.quoted then break end -- a number may end where the file does
      s:fail_end()
    end
  end
  s.parts[#s.parts + 1] = s.chunk:sub(s.from + 1, s.at)
  s.from = nil
  return table.concat(s.parts), line
end

local function begin(path, is_array)
  local s = setmetatable({ path = path, file = stream.open(path), chunk = '', n = 0, at = 0,
    before = 0, line = 1, line_at = 0, is_array = is_array }, methods)
  refill(s)
  if s.chunk:sub(1, 3) == '\239\187\191' then s.at = 3 end
  return s
end

--- An error at the place that was come to.
function methods:fail(format, ...)
  error(('%s: line %d, column %d: '):format(self.path, self.line,
    self.before + self.at - self.line_at + 1) .. format:format(...), 0)
end

function methods:fail_end()
  self:fail 'the file ends too early: was its download or copy cut off?'
end

-- Between elements: whether another one follows.
local function goes_on(s)
  local c = next_byte(s)
  if s.count == 0 then
    if c ~= CLOSE then return c ~= nil or s:fail_end() end
  elseif c == COMMA then
    s.at = s.at + 1
    c = next_byte(s)
    if c == CLOSE then s:fail 'a comma stands behind the last row' end
    return c ~= nil or s:fail_end()
  elseif c ~= CLOSE then
    if c == nil then s:fail_end() end
    s:fail "a ',' or the end of the array is expected behind a row"
  end
  s.at = s.at + 1
  if next_byte(s) then s:fail 'more stands behind the array' end
  return false
end

local function next_value(s)
  if s.is_array then
    if not goes_on(s) then return nil end
  elseif not next_byte(s) then
    return nil
  end
  s.count = s.count + 1
  local text, line = take(s)
  if text == '' then s:fail 'a value is expected' end
  return text, line
end

--- Iterates over the elements of the array that a file is, or over the values that follow each
--- other in it: text and line.
--- @param path string
--- @param is_array boolean
--- @return fun(): string?, integer?
function M.each(path, is_array)
  local s = begin(path, is_array)
  s.count = 0
  if is_array then
    if next_byte(s) ~= OPEN then s:fail "a '[' is expected" end
    s.at = s.at + 1
  end
  return function()
    if not s then return nil end
    local text, line = next_value(s)
    if text then return text, line end
    s.file:close()
    s = nil
  end
end

--- How deep the brackets are at the end of a text, and whether it ends within quotes.
--- @param text string
--- @return integer depth
--- @return boolean quoted
function M.depth(text)
  local depth, quoted, at = 0, false, 1
  while true do
    at = text:find(quoted and '[\\"]' or '["%[%]{}]', at)
    if not at then return depth, quoted end
    local c = text:byte(at)
    if c == QUOTE then quoted = not quoted
    elseif c == BACKSLASH then at = at + 1
    elseif c == BRACE or c == OPEN then depth = depth + 1
    else depth = depth - 1 end
    at = at + 1
  end
end

return M
