--- Batches: one flat run of tokens, cut into segments that do not see each other.
---
--- A weight belongs to the position that *predicts*: position t predicts token t + 1, and the last
--- position of a segment predicts nothing. `response` is what terms with `on = "response"` look at,
--- `all` what those with `on = "all"` do (1 everywhere unless given).

local ffi = require 'ffi'
local C = require 'moonstill.C'
local callable = require 'moonstill.base.callable'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local handles = require 'moonstill.base.handle'
local options_of = require 'moonstill.base.options'
local packing = require 'moonstill.data.packing'

local M = {}

local out = ffi.new 'ms_batch *[1]' -- scratch, read at once
local ints = ffi.typeof 'int32_t[?]'
local floats = ffi.typeof 'float[?]'
local ON = { response = C.MS_ON_RESPONSE, all = C.MS_ON_ALL }

--- Some samples as one flat run of tokens, on the side of the core: what models learn from. Free
--- it, or make it inside `ms.scope`; the batches of a step are freed by the step.
--- @class ms_batch
local batch = handles.kind('batch', 'ms_batch', C.ms_batch_free)
local methods, pointer = batch.methods, batch.pointer

--- How many tokens it has.
--- @return integer
function methods:tokens() return tonumber(C.ms_batch_tokens(pointer(self))) end

--- The sum of the weights of predicting positions: what a term's `norm` adds up.
--- @param on? '"response"'|'"all"' default "response"
--- @return number
function methods:weight(on)
  local which = ON[on or 'response']
  if not which then fail('batch: on = "%s", expected "response" or "all"', on) end
  return C.ms_batch_weight(pointer(self), which)
end

function batch.text(self)
  return ('batch of %d tokens, weight %g on responses'):format(self:tokens(), self:weight())
end

--- A batch from arrays of the FFI, which may be reused after the call.
--- @param token ffi.cdata* int32_t[tokens]
--- @param tokens integer
--- @param segment_start ffi.cdata* int32_t[segments + 1], from 0 to tokens
--- @param segments integer
--- @param response? ffi.cdata* float[tokens]; nil: nothing
--- @param all? ffi.cdata* float[tokens]; nil: 1 everywhere
--- @return ms_batch
function M.new(token, tokens, segment_start, segments, response, all)
  check.integer('batch', 'tokens', tokens, 0, check.EXACT)
  check.integer('batch', 'segments', segments, 0, check.EXACT)
  check.cells('batch', 'token', token, 'int', tokens)
  check.cells('batch', 'segment_start', segment_start, 'int', segments + 1)
  if response ~= nil then check.cells('batch', 'response', response, 'float', tokens) end
  if all ~= nil then check.cells('batch', 'all', all, 'float', tokens) end
  check(C.ms_batch_new(tokens, token, segments, segment_start, response, all, out))
  return batch.new(out[0])
end

local SEGMENT = { tokens = true, count = true, response = true, all = true, weight = true }

-- Lua arrays start at 1, those of the FFI at 0 and need their `count`.
local function length(segment, number)
  local what = 'batch: segment ' .. number
  if type(segment) ~= 'table' then fail('%s is a %s', what, type(segment)) end
  local tokens = segment.tokens or segment
  if segment.tokens then options_of.known(what, SEGMENT, segment) end
  if type(tokens) == 'cdata' then
    if segment.count == nil then fail(what .. ': cdata tokens need `count`') end
    local n = check.integer(what, 'count', tonumber(segment.count), 0, check.INT32)
    check.cells(what, 'tokens', tokens, 'int', n)
    return n
  end
  if type(tokens) ~= 'table' then fail('%s: tokens are a %s', what, type(tokens)) end
  return #tokens
end

local function fill(to, at, from, n, what, number)
  local base = type(from) == 'cdata' and 0 or 1
  if base == 1 and #from ~= n then
    fail('batch: segment %d: %d %s for %d tokens', number, #from, what, n)
  end
  if base == 1 and what == 'tokens' then
    check.integers('batch', ('segment %d: token'):format(number), from, 0, check.INT32)
  end
  for i = 0, n - 1 do to[at + i] = from[base + i] end
end

local function fill_weights(to, at, segment, name, missing, n, number)
  local given, weight = segment[name], segment.weight or 1
  local what = 'batch: segment ' .. number
  if type(weight) ~= 'number' then
    fail('%s: weight is a %s, expected a number', what, type(weight))
  end
  if type(given) == 'cdata' then
    check.cells(what, name, given, 'float', n)
  elseif type(given) == 'table' then
    for i = 1, #given do
      if type(given[i]) ~= 'number' then
        fail('%s: %s weight %d is a %s', what, name, i, type(given[i]))
      end
    end
  elseif given ~= nil then
    fail('%s: %s is a %s, expected a list of weights', what, name, type(given))
  end
  if given ~= nil then
    fill(to, at, given, n, name .. ' weights', number)
  else
    for i = 0, n - 1 do to[at + i] = missing end
  end
  for i = 0, n - 1 do to[at + i] = to[at + i] * weight end
end

local function pack(segments)
  local total = 0
  for i, segment in ipairs(segments) do total = total + length(segment, i) end
  local count = #segments
  local token, start = ints(math.max(total, 1)), ints(count + 1)
  local response, all = floats(math.max(total, 1)), floats(math.max(total, 1))
  local at = 0
  for i, segment in ipairs(segments) do
    local n = length(segment, i)
    fill(token, at, segment.tokens or segment, n, 'tokens', i)
    fill_weights(response, at, segment, 'response', 0, n, i)
    fill_weights(all, at, segment, 'all', 1, n, i)
    at = at + n
    start[i] = at
  end
  check(C.ms_batch_new(total, token, count, start, response, all, out))
  return batch.new(out[0])
end

local function check_pairs(prompts, answers, weights)
  check.table('batch', 'prompts', prompts)
  check.table('batch', 'answers', answers)
  if #prompts ~= #answers then
    fail('batch: %d prompts and %d answers', #prompts, #answers)
  end
  if weights ~= nil and #check.table('batch', 'weights', weights) ~= #prompts then
    fail('batch: %d prompts and %d weights', #prompts, #weights)
  end
  for i, prompt in ipairs(prompts) do
    check.integers('batch', ('prompt %d: id'):format(i), prompt, 0, check.INT32)
    check.integers('batch', ('answer %d: id'):format(i), answers[i], 0, check.INT32)
  end
end

--- A batch in which nothing counts, for a rank that has none while others have.
--- @package
--- @return ms_batch
function M.idle() return pack { { tokens = { 0 }, weight = 0 } } end

--- `ms.batch(prompts, answers, weights)`: prompts with their answers, such as `generate` gives. The
--- answers' tokens are supervised.
--- @param prompts integer[][]
--- @param answers integer[][]
--- @param weights? number[] of each sample; 1 where they are left out
--- @return ms_batch
function M.from(prompts, answers, ...)
  local weights = ...
  if select('#', ...) > 0 then check.table('batch', 'weights', weights) end -- nil is a slip
  check_pairs(prompts, answers, weights)
  local segments = {}
  for i, prompt in ipairs(prompts) do
    local tokens, response, from = {}, {}, #prompt
    for _, id in ipairs(prompt) do tokens[#tokens + 1] = id end
    for _, id in ipairs(answers[i]) do tokens[#tokens + 1] = id end
    for t = 1, #tokens do response[t] = t >= from and t < #tokens and 1 or 0 end
    segments[i] = { tokens = tokens, response = response, weight = weights and weights[i] }
  end
  return pack(segments)
end

-- The entries of a list at some places.
local function pick(list, places)
  local part = {}
  for k, i in ipairs(places) do part[k] = list and list[i] or 1 end
  return part
end

--- Prompts with their answers as several batches of at most `micro_tokens` tokens each and about
--- equal cost, as a step's planned ones are; what is longer has a batch of its own.
--- @param prompts integer[][]
--- @param answers integer[][]
--- @param micro_tokens integer
--- @param weights? number[] of each sample; 1 unless given
--- @return ms_batch[]
function M.cut(prompts, answers, micro_tokens, weights)
  check_pairs(prompts, answers, weights)
  check.integer('batch', 'micro_tokens', micro_tokens, 1, check.INT32)
  local all, lengths, batches = {}, {}, {}
  for i, prompt in ipairs(prompts) do all[i], lengths[i] = i, #prompt + #answers[i] end
  for m, places in ipairs(packing.micro_batches(all, lengths, micro_tokens)) do
    batches[m] = M.from(pick(prompts, places), pick(answers, places), pick(weights, places))
  end
  return batches
end

--- Makes a batch of segments; the caller frees it. With more arguments it is `ms.batch.from`.
---
---   ms.batch { { 5, 6, 7 }, { tokens = { 1, 2, 3 }, response = { 0, 1, 0 } } }
--- @param segments table[] each an array of token ids (from 0), or a table with `tokens` (an array,
---   or cdata with `count`), `response` and `all` (weights of the predicting positions, arrays or
---   cdata as long; not given: 0 for `response`, 1 for `all`), and `weight`, which multiplies both
--- @param ... any as for `from`
--- @return ms_batch
function M.of(segments, ...)
  if type(segments) ~= 'table' then fail('batch: a list of segments expected') end
  if select('#', ...) > 0 then return M.from(segments, ...) end
  return pack(segments)
end

return callable(M, 'of')
