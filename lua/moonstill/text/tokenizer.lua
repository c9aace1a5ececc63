--- Tokenizers: text to token ids and back, from the tokenizer.json of a model folder.
---
---   local tok = ms.tokenizer.open 'models/small'
---   local ids, n = tok:encode 'Once upon a time'   -- int32_t[n], 0-based
---   print(tok:decode(ids, n))
---
--- Ids are those of Hugging Face's tokenizers for the same file. So are offsets, but that they
--- count bytes, and that they are exact where those are not: a token with a part of a character has
--- that part's bytes, not the character's; what a normalizer composed or replaced has all that it
--- was made of, not one character of it; an added token that takes the spaces beside it has its
--- spelling alone; nothing is trimmed; what is put around a text, which has 0 to 0 there, is empty
--- at the text's beginning or end. As there, a sign put before a word (a space, ▁) has the word's
--- first character.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local callable = require 'moonstill.base.callable'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local handles = require 'moonstill.base.handle'
local schema = require 'moonstill.base.schema'
local text_of = require 'moonstill.base.text'

local M = {}

--- What `encode` and `ids` take. parse: letters are right for text of users.
M.encode_options = schema.new('tokenizer', {
  special = schema.option(false, 'adds what the tokenizer puts around a text, such as BOS'),
  parse = schema.option(true, 'special tokens that the text spells become their ids, not letters'),
  plain = schema.optional('list', 'pairs of bytes {from, to, ..}, ascending, 0-based, `to` not '
    .. 'included: special tokens that have a byte there are letters'),
  offsets = schema.option(false, 'gives the first byte and the last + 1 of each token too'),
})
--- What `decode` and `decoder` take.
M.decode_options = schema.new('tokenizer', {
  skip_special = schema.option(false, 'special tokens are left out'),
})

local ints = ffi.typeof 'int32_t[?]'
local longs = ffi.typeof 'int64_t[?]'
local out = ffi.new 'ms_tokenizer *[1]' -- scratch, read at once
local detokenizer_out = ffi.new 'ms_detokenizer *[1]'
local string_out = ffi.new 'char *[1]'
local piece = ffi.new 'const char *[1]'
local count = ffi.new 'int64_t[1]'

--- The tokenizer of a model folder: text to ids and back. Ids count from 0.
--- @class ms_tokenizer
local tokenizer = handles.kind('tokenizer', 'ms_tokenizer', C.ms_tokenizer_free,
  { length = 'size' })
local methods, pointer = tokenizer.methods, tokenizer.pointer

local function is_text(s, what)
  if type(s) ~= 'string' then
    fail('tokenizer: %s is a %s, not a string', what, type(s))
  end
end

-- How many groups of `size` numbers a list has: their order is checked in the core.
local function check_groups(what, list, size, number)
  local where = number and ('tokenizer: text %d'):format(number) or 'tokenizer'
  check.integers(where, what, list, 0, check.EXACT)
  if #list % size == 0 then return #list / size end
  fail('%s: %s has %d numbers, expected %s', where, what, #list,
    size == 2 and 'pairs' or 'triples')
end

local function encode(self, text, options)
  local p = pointer(self)
  is_text(text, 'text')
  schema.check('tokenizer', M.encode_options, options)
  local special = options and rawget(options, 'special') and 1 or 0
  local parse = (not options or rawget(options, 'parse') ~= false) and 1 or 0
  local plain = options and rawget(options, 'plain') or nil
  local plains = plain and check_groups('plain', plain, 2) or 0
  if plain then plain = longs(#plain, plain) end
  local traced = options and rawget(options, 'offsets')
  local room = math.floor(#text / 3) + 16 -- often enough
  while true do
    local ids, offsets = ints(room), traced and ints(2 * room) or nil
    check(C.ms_tokenizer_encode(p, text, #text, special, parse, plain, plains, ids, offsets, room,
      count))
    local n = tonumber(count[0])
    if n <= room then return ids, n, offsets end
    room = n
  end
end

--- The ids of a text.
---
--- In its `plain` parts no special token is found, nor one that only ends there; other added tokens
--- are found everywhere. A special token between those parts takes the spaces beside it if that is
--- its way, also plain ones, as it does for Hugging Face.
--- @param text string UTF-8
--- @param options? table see `encode_options`
--- @return ffi.cdata* ids int32_t[n], 0-based
--- @return integer n
--- @return ffi.cdata*? offsets int32_t[2n]: first byte and last + 1 of each, where asked for
function methods:encode(text, options)
  return encode(self, text, options)
end

--- The ids of a text as a Lua array, from 1. For the prompt and for tests: `encode` costs less.
--- @param text string
--- @param options? table as for `encode`
--- @return integer[]
function methods:ids(text, options)
  local ids, n = encode(self, text, options)
  local t = {}
  for i = 1, n do t[i] = ids[i - 1] end
  return t
end

local function as_array(ids, n)
  if type(ids) == 'cdata' then
    if not n then fail('tokenizer: ids of the FFI need their number') end
    check.integer('tokenizer', 'the number of ids', n, 0, check.EXACT)
    return check.cells('tokenizer', 'ids', ids, 'int', n), n
  end
  if type(ids) ~= 'table' then fail('tokenizer: ids are a ' .. type(ids)) end
  check.integers('tokenizer', 'id', ids, 0, check.INT32)
  return ints(math.max(#ids, 1), ids), #ids
end

--- The text of ids: what is no character becomes U+FFFD, ids without a token become nothing.
--- @param ids ffi.cdata*|integer[] int32_t[n], or a Lua array
--- @param n? integer how many, for cdata
--- @param options? table see `decode_options`
--- @return string
function methods:decode(ids, n, options)
  local p = pointer(self)
  if type(n) == 'table' then n, options = nil, n end
  local array, length = as_array(ids, n)
  schema.check('tokenizer', M.decode_options, options)
  local skip = options and rawget(options, 'skip_special') and 1 or 0
  check(C.ms_tokenizer_decode(p, array, length, skip, string_out, count))
  return text_of(string_out[0], tonumber(count[0]))
end

--- The id of a token spelled as in tokenizer.json, or nil.
--- @param token string
--- @return integer?
function methods:id(token)
  local p = pointer(self)
  is_text(token, 'token')
  local id = C.ms_tokenizer_id(p, token, #token)
  return id >= 0 and id or nil
end

--- The spelling of an id in tokenizer.json, or nil when no token has it.
--- @param id integer
--- @return string?
function methods:token(id)
  check.integer('tokenizer', 'id', id, -check.INT32, check.INT32)
  local p = C.ms_tokenizer_token(pointer(self), id, count)
  return p ~= nil and ffi.string(p, tonumber(count[0])) or nil
end

--- Whether an id is a special token.
--- @param id integer
--- @return boolean
function methods:is_special(id)
  check.integer('tokenizer', 'id', id, -check.INT32, check.INT32)
  return C.ms_tokenizer_is_special(pointer(self), id) ~= 0
end

--- Whether an id is one of tokenizer.json's added tokens, special or not.
--- @param id integer
--- @return boolean
function methods:is_added(id)
  check.integer('tokenizer', 'id', id, -check.INT32, check.INT32)
  return C.ms_tokenizer_is_added(pointer(self), id) ~= 0
end

--- The largest id + 1, added tokens included.
--- @return integer
function methods:size() return C.ms_tokenizer_size(pointer(self)) end

--- An error that names the first difference unless both map every id below the smaller size alike.
--- @param other ms_tokenizer
--- @return ms_tokenizer self
function methods:same(other)
  check(C.ms_tokenizer_same(pointer(self), pointer(other)))
  return self
end

function tokenizer.text(self) return ('tokenizer of %d tokens'):format(self:size()) end

--- Opens a tokenizer, which the caller frees. One of a kind that is not read is an error.
--- @param path string a tokenizer.json, or the folder that holds it
--- @return ms_tokenizer
function M.open(path)
  check.path('tokenizer', path)
  check.file(C.ms_tokenizer_open(path, out))
  return tokenizer.new(out[0])
end

--- The same, but nil and why where the file is of a kind that is not read, or no tokenizer at all.
--- @param path string
--- @return ms_tokenizer?
--- @return string?
function M.try(path)
  check.path('tokenizer', path)
  local status = C.ms_tokenizer_open(path, out)
  if status == 0 then return tokenizer.new(out[0]) end
  if status == C.MS_ENOMEM then check.file(status) end
  return nil, ffi.string(C.ms_last_error())
end

-- blocks -----------------------------------------------------------------------------------------

local texts_type = ffi.typeof 'ms_token_texts'
local strings = ffi.typeof 'const char *[?]'
local bytes_type = ffi.typeof 'uint8_t[?]'
local block_out = ffi.new 'ms_token_block *[1]'

--- The ids of many texts, made in one go by `ms.tokenizer.block`. Its arrays live as long as it
--- does.
--- @class ms_block
--- @field count integer texts
--- @field start ffi.cdata* int64_t[count + 1]: text i has the tokens start[i] .. start[i + 1] - 1
--- @field ids ffi.cdata* int32_t[]
--- @field level ffi.cdata* uint8_t[] of each token
--- @field crossing ffi.cdata* int32_t[count]: tokens with bytes of several levels
local block = handles.kind('block', 'ms_token_block', C.ms_token_block_free, {
  length = 'texts',
  fields = 'int32_t count; int64_t *start; int32_t *ids; uint8_t *level; int32_t *crossing;',
})

--- How many texts it holds.
--- @return integer
function block.methods:texts()
  block.pointer(self) -- an error unless it is a block that is not freed
  return self.count
end

function block.text(self)
  return ('block of %d texts, %.0f tokens'):format(self.count, tonumber(self.start[self.count]))
end

-- The numbers of all texts under a key, and where those of each begin, counted in groups of `size`.
local function all_groups(texts, key, size)
  local start, n = longs(#texts + 1), 0
  for i, t in ipairs(texts) do
    local list = rawget(t, key)
    if list ~= nil then n = n + check_groups(key, list, size, i) end
    start[i] = n
  end
  local all, at = longs(size * n), 0
  for _, t in ipairs(texts) do
    local list = rawget(t, key)
    for k = 1, list and #list or 0 do
      all[at] = list[k]
      at = at + 1
    end
  end
  return all, start
end

--- The ids of many texts, with the level of each token, in one go over all threads. What is in no
--- mark has level 0. The level of a token is the highest that one of its bytes has: levels are
--- numbered so that higher ones count for more. Tokens that stand for no byte have level 0.
---
--- The arrays of a block live as long as it does: keep it while they are used.
--- @param tok ms_tokenizer
--- @param texts { text: string, special?: boolean, plain?: integer[], marks?: integer[] }[]
---   special, plain: as for `encode`; marks: triples {from, to, level, ..}, ascending, level 0..255
--- @return ms_block
function M.block(tok, texts)
  local p = pointer(tok)
  check.table('tokenizer', 'texts', texts)
  local n = #texts
  local text, bytes, special = strings(n), longs(n), bytes_type(n)
  for i, t in ipairs(texts) do
    check.table('tokenizer', ('text %d of %d'):format(i, n), t)
    is_text(rawget(t, 'text'), ('text %d of %d'):format(i, n))
    text[i - 1], bytes[i - 1] = t.text, #t.text
    special[i - 1] = rawget(t, 'special') and 1 or 0
  end
  local plain, plain_start = all_groups(texts, 'plain', 2)
  local mark, mark_start = all_groups(texts, 'marks', 3)
  local given = texts_type(n, text, bytes, special, plain, plain_start, mark, mark_start)
  check(C.ms_tokenizer_block(p, given, block_out))
  local b = block_out[0]
  return block.new(b, n, b.start, b.ids, b.level, b.crossing)
end

-- incremental decoding ---------------------------------------------------------------------------

--- Makes text of ids that come one by one: see `tokenizer:detokenizer`.
--- @class ms_detokenizer
local detokenizer = handles.kind('detokenizer', 'ms_detokenizer', C.ms_detokenizer_free)
local detokenizer_methods = detokenizer.methods

local function advance(self, id)
  check(C.ms_detokenizer_add(detokenizer.pointer(self), id, piece, count))
  return ffi.string(piece[0], tonumber(count[0]))
end

--- The text that became certain with this id: perhaps empty, never a part of a character.
--- @param id integer
--- @return string
function detokenizer_methods:add(id)
  return advance(self, check.integer('detokenizer', 'id', id, 0, check.INT32))
end

--- The text that was still held back; the detokenizer begins anew.
--- @return string
function detokenizer_methods:finish() return advance(self, -1) end

--- A detokenizer: it takes ids one by one, as they are generated. All it returns, put together, is
--- what `decode` gives. It outlives the tokenizer.
--- @param options? { skip_special?: boolean }
--- @return ms_detokenizer
function methods:detokenizer(options)
  schema.check('tokenizer', M.decode_options, options)
  local skip = options and rawget(options, 'skip_special') and 1 or 0
  check(C.ms_detokenizer_new(pointer(self), skip, detokenizer_out))
  return detokenizer.new(detokenizer_out[0])
end

return callable(M, 'open')
