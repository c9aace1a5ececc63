--- What of a data set is kept in a cache (`data/cache.lua`), by what key, and how it is found
--- again.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local cache = require 'moonstill.data.cache'
local chats = require 'moonstill.text.chat'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local reading = require 'moonstill.data.reading'
local samples = require 'moonstill.data.samples'
local sorted = require 'moonstill.base.sorted'
local text_of = require 'moonstill.base.text'

local M = {}

local FORMAT = 2 -- another number where the same rows become other samples, or another file

local text_out = ffi.new 'char *[1]'

-- keys -------------------------------------------------------------------------------------------

local function put_number(put, t, key)
  local exact = json.exact(t, key)
  if exact then return put('i' .. tostring(exact)) end
  put((json.is_float(t, key) and 'f%.17g' or 'n%.17g'):format(t[key]))
end

-- A value in one spelling, in the order of its keys, piece by piece.
local function put_value(put, t, key)
  local value = t[key]
  if type(value) == 'string' then
    put(('s%d:'):format(#value))
    put(value)
  elseif type(value) == 'number' then
    put_number(put, t, key)
  elseif type(value) ~= 'table' or value == json.null then
    put(tostring(value))
  elseif json.is_array(value) then
    put '['
    for i = 1, #value do put_value(put, value, i) end
    put ']'
  else
    put '{'
    for _, name in ipairs(json.keys(value)) do
      put(('%d:'):format(#tostring(name)))
      put(tostring(name))
      put_value(put, value, name)
    end
    put '}'
  end
end

local PIECES = 2 ^ 20 -- bytes that are hashed together

--- A hash that values are added to, one after another.
--- @return { add: fun(self: table, value: any), text: fun(self: table): string }
function M.digest()
  local parts, bytes, state = {}, 0, ''
  local function fold()
    local text = state .. table.concat(parts)
    parts, bytes, state = {}, 0, samples.hash(text, #text)
  end
  local function put(piece)
    parts[#parts + 1], bytes = piece, bytes + #piece
    if bytes >= PIECES then fold() end
  end
  local digest = {}
  function digest.add(_, value) put_value(put, { value }, 1) end
  function digest.text()
    fold()
    return state
  end
  return digest
end

local function file_hash(path)
  if C.ms_path_kind(path) ~= 1 then return 'none' end
  check.file(C.ms_file_hash(path, text_out))
  return text_of(text_out[0])
end

-- What of a chat shapes samples.
local function put_chat(digest, chat)
  local tokenizer = C.ms_path_kind(chat.folder) == 1 and chat.folder
    or chat.folder .. '/tokenizer.json'
  digest:add(file_hash(tokenizer))
  for _, name in ipairs { 'bos', 'eos', 'stop' } do digest:add { chat[name] } end
  digest:add(chat:identity())
end

-- Options of a data set that do not shape its samples.
local BESIDE = { train = true, valid = true, split = true, quiet = true, cache = true,
  filter = true, map = true }

local function put_options(digest, options)
  for key, value in sorted.pairs(options) do
    if not BESIDE[key] and not chats.options[key] then digest:add { key, value } end
  end
end

--- The key of what is read from sources: a hash, as long as names of caches are.
--- @param list_of table[] what `sources.take` gives
--- @param chat ms_chat
--- @param options table
--- @param rows? string a hash of the rows, where they are not what the files say
--- @return string
function M.key(list_of, chat, options, rows)
  check(C.ms_version(0, text_out))
  local digest = M.digest()
  digest:add { FORMAT, text_of(text_out[0]) }
  put_chat(digest, chat)
  put_options(digest, options)
  for _, source in ipairs(list_of) do
    digest:add { source.name, source.limit or 0 }
    if not rows then digest:add(file_hash(source.path)) end
  end
  digest:add(rows or '')
  return digest:text()
end

-- what is kept -----------------------------------------------------------------------------------

-- JSON holds text alone, and paths and messages may be any bytes.
local function escape(text)
  return (text:gsub('[%%%c\128-\255]', function(c) return ('%%%02x'):format(c:byte()) end))
end

local function unescape(text)
  return (text:gsub('%%(%x%x)', function(hex) return string.char(tonumber(hex, 16)) end))
end

local function each_text(value, f)
  if type(value) == 'string' then return f(value) end
  if type(value) ~= 'table' or value == json.null then return value end
  local t = json.is_array(value) and json.array() or {}
  for key, inner in sorted.pairs(value) do t[each_text(key, f)] = each_text(inner, f) end
  return t
end

local function about(s, report, lines, list_of)
  local parts = json.array()
  for i, source in ipairs(list_of) do parts[i] = { source.first, source.count } end
  local said = {}
  for key, value in sorted.pairs(report) do said[key] = value end
  local body = json.encode(each_text({ format = FORMAT, count = s.count, tokens = s.tokens,
    levels = s:weights(), extremes = s.extremes, hashes = s.hashes, report = said,
    lines = json.array(lines), parts = parts }, escape))
  return samples.hash(body, #body) .. '\n' .. body
end

local function read_about(path)
  check.file(C.ms_cache_about(path, text_out))
  local hash, body = text_of(text_out[0]):match '^(%x+)\n(.*)$'
  if not hash or samples.hash(body, #body) ~= hash then
    error(path .. ': what it says of itself is damaged', 0)
  end
  local known = each_text(json.decode(body, path), unescape)
  if known.format ~= FORMAT then error(path .. ': is of another version', 0) end
  return known
end

local function open(path, list_of)
  local known = read_about(path)
  local s = samples.open(path, known)
  if #known.parts ~= #list_of then error(path .. ': has other sources', 0) end
  for i, source in ipairs(list_of) do
    source.first, source.count = known.parts[i][1], known.parts[i][2]
  end
  return s, reading.again(known.report), known.lines
end

--- What is kept under a key: its samples, report and lines that were said. nil where there is
--- nothing; nil and the reason where it is damaged.
--- @param path string
--- @param list_of table[] gets the first sample and the number of samples of each source
--- @return ms_samples?
--- @return ms_report|string|nil
--- @return string[]?
function M.find(path, list_of)
  if C.ms_path_kind(path) == 0 then return nil end
  local ok, s, report, lines = fail.pcall(open, path, list_of)
  if ok then return s, report, lines end
  return nil, tostring(s)
end

--- Ends samples that go to a cache: they are whole there, or in memory.
--- @param s ms_samples
--- @param report ms_report
--- @param lines string[]
--- @param list_of table[]
--- @return boolean # whether they are kept
function M.keep(s, report, lines, list_of)
  return s:seal(function() return about(s, report, lines, list_of) end)
end

--- Whether a data set of these files is worth to be kept.
--- @param list_of table[]
--- @param option string a data set's `cache`
--- @return boolean
function M.is_worth(list_of, option)
  if option ~= 'auto' then return true end
  local bytes = 0
  for _, source in ipairs(list_of) do
    local file = source.path and io.open(source.path, 'rb')
    bytes = bytes + (file and file:seek 'end' or 0)
    if file then file:close() end
  end
  return bytes >= cache.least
end

return M
