--- Teacher targets: what a teacher says about the supervised positions of a batch, in three kinds
--- behind one handle. `teacher:targets(batch, cfg.kd)` makes one; here are those made of values.
---
--- topk: the k most probable ids, their log-probabilities and the log of what is left. hidden: the
--- teacher's last states, from which its logits are computed again, so the whole vocabulary counts.
--- logits: whole rows, for tests and small vocabularies.
---
---   -- one position: ids 5 and 9 with 0.7 and 0.2, the others together 0.1
---   local t = ms.target.topk({ { 5, 9 } }, { { math.log(0.7), math.log(0.2) } },
---     { math.log(0.1) }, { vocab = 32 })

local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local handles = require 'moonstill.base.handle'
local json = require 'moonstill.base.json'
local schema = require 'moonstill.base.schema'
local text = require 'moonstill.base.text'
local option = schema.option

local M = {}

local KIND = { topk = C.MS_TARGET_TOPK, hidden = C.MS_TARGET_HIDDEN, logits = C.MS_TARGET_LOGITS }
local ON = { response = C.MS_ON_RESPONSE, all = C.MS_ON_ALL }
local DTYPE = { f32 = C.MS_F32, bf16 = C.MS_BF16 }

--- The kinds, in the order in which help and configurations show them.
M.kinds = { 'topk', 'hidden', 'logits' }

--- The positions that a target, and a term, can look at.
M.positions = { 'response', 'all' }

local TEMPERATURE = 'number >= 0.001 <= 1000'

-- What targets made of values are told as well.
local COMMON = {
  on = schema.one_of(M.positions, nil, 'positions that count', {
    response = 'those that predict what is learnt: answers, with their ends',
    all = 'every position that predicts a token',
  }),
  temperature = schema.optional(TEMPERATURE,
    'T of both distributions; by default a term takes its target\'s, and a target has 1'),
  teacher_temperature = option(1, 'divides the teacher\'s logits once more', TEMPERATURE),
  vocab = option(0, 'ids that take part; 0: those that model and tokenizer have',
    'integer >= 0 <= 2147483647'),
}

--- What can be asked of a teacher. temperature: not given, it is 1 for topk, and that of the term
--- (by default 1) for the others. dtype: bf16 is half the memory: a KL is then off by 1.4e-6
--- (s / T)^2 in the mean and by less than 8e-6 (s / T)^2, s being the standard deviation of a row's
--- logits.
M.options = schema.new('target', {
  target = schema.one_of(M.kinds, nil, 'what the teacher gives', {
    topk = 'the k likeliest ids, their log-probabilities and the mass of all others',
    hidden = 'its last hidden states, from which the whole distribution is computed again',
    logits = 'whole rows of logits: for tests and small vocabularies',
  }),
  k = option(64, 'entries of a topk target', 'integer >= 1 <= 2147483647'):beside('target', 'topk'),
  dtype = schema.one_of({ 'f32', 'bf16' }, nil, 'of hidden states; bf16 is half the memory')
    :beside('target', 'hidden'),
}, COMMON)

local out = ffi.new 'ms_target *[1]' -- scratch, read at once
local string_out = ffi.new 'char *[1]'
local asked = ffi.new 'ms_target_options' -- scratch, the core copies it

--- What a teacher says about the supervised positions of a batch, for `ms.kd`. Free it once the
--- student has learnt from it.
--- @class ms_target
local target = handles.kind('target', 'ms_target', C.ms_target_free)
local methods, pointer = target.methods, target.pointer

local teachers = setmetatable({}, { __mode = 'k' }) -- by target

--- Takes over a target that the core handed out.
--- @package
--- @param p ffi.cdata* `ms_target *`
--- @param teacher? table who made it, see `ms.teacher`
--- @return ms_target
function M.wrap(p, teacher)
  local made = target.new(p)
  teachers[made] = teacher
  return made
end

--- Who made a target; nil for one made of values.
--- @package
--- @param of ms_target
--- @return table?
function M.teacher(of) return teachers[of] end

--- The options as the core takes them, in memory that the next call reuses.
--- @package
--- @param o table all of `options`, checked
--- @return ffi.cdata* `ms_target_options`
function M.pack(o)
  asked.kind, asked.k = KIND[o.target], o.target == 'topk' and o.k or 0
  asked.on, asked.hidden_dtype, asked.vocab = ON[o.on], DTYPE[o.dtype], o.vocab
  asked.temperature = o.temperature or 0 / 0 -- NaN: not given
  asked.teacher_temperature = o.teacher_temperature
  return asked
end

-- Numbers of a table of rows, in order.
local function flat(ctype, rows, cols, what)
  local values = ffi.new(ctype, math.max(#rows * cols, 1))
  for r, row in ipairs(rows) do
    check.table(what, 'row ' .. r, row)
    if #row ~= cols then
      fail('%s: row %d has %d values, the first one %d', what, r, #row, cols)
    end
    for c = 1, cols do
      if type(row[c]) ~= 'number' then
        fail('%s: row %d has a %s at %d', what, r, type(row[c]), c)
      end
      values[(r - 1) * cols + c - 1] = row[c]
    end
  end
  return values
end

--- The options of targets made of values.
M.value_options = schema.new('target', COMMON)

local function given(what, name, options)
  local o = schema.take(what, M.value_options, options)
  o.target, o.dtype, o.k = name, 'f32', 0
  return o
end

--- A topk target from values: for each supervised position the ids (from 0), their
--- log-probabilities and the log of the leftover mass (-math.huge for none).
--- @param ids integer[][] for each position as many ids, k of them
--- @param log_p number[][] their log-probabilities, in nats
--- @param log_rest number[] of each position
--- @param options table see `value_options`; vocab is needed
--- @return ms_target
function M.topk(ids, log_p, log_rest, options)
  local o = given('target.topk', 'topk', options)
  check.table('target.topk', 'ids', ids)
  check.table('target.topk', 'log_p', log_p)
  check.table('target.topk', 'log_rest', log_rest)
  if #log_p ~= #ids or #log_rest ~= #ids then
    fail('target.topk: %d rows of ids, %d of log_p, %d of log_rest', #ids, #log_p, #log_rest)
  end
  o.k = ids[1] and #check.table('target.topk', 'row 1 of ids', ids[1]) or 1
  for r = 1, #log_rest do
    if type(log_rest[r]) ~= 'number' then
      fail('target.topk: log_rest %d is a %s', r, type(log_rest[r]))
    end
  end
  for r, row in ipairs(ids) do
    check.integers('target.topk', ('row %d: id'):format(r), row, 0, check.INT32)
  end
  local rest = ffi.new('float[?]', math.max(#log_rest, 1), log_rest)
  check(C.ms_target_topk(M.pack(o), #ids, flat('int32_t[?]', ids, o.k, 'target.topk'),
    flat('float[?]', log_p, o.k, 'target.topk'), rest, out))
  return target.new(out[0])
end

--- A logits target: a row of logits for each supervised position.
--- @param rows number[][] a logit for each id
--- @param options? table see `value_options`
--- @return ms_target
function M.logits(rows, options)
  local o = given('target.logits', 'logits', options)
  check.table('target.logits', 'rows', rows)
  if o.vocab == 0 then
    o.vocab = rows[1] and #check.table('target.logits', 'row 1', rows[1]) or 1
  end
  check(C.ms_target_logits(M.pack(o), #rows, flat('float[?]', rows, o.vocab, 'target.logits'), out))
  return target.new(out[0])
end

--- How many positions it covers.
--- @return integer
function methods:rows() return tonumber(C.ms_target_rows(pointer(self))) end

--- Facts: `kind` ("topk", "hidden", "logits"), `rows` (positions), `on` (which), `vocab` (ids that
--- take part), `teacher_temperature`, `bytes`; `temperature` where it was given; `k` of a topk
--- target, `width` and `dtype` of one of hidden states.
--- @return table
function methods:info()
  check(C.ms_target_info(pointer(self), string_out))
  return json.decode(text(string_out[0]), 'target info')
end

--- The content of a topk target, as `ms.target.topk` takes it.
--- @return integer[][] ids
--- @return number[][] log_p
--- @return number[] log_rest
function methods:read()
  local p, info = pointer(self), self:info()
  local rows, k = info.rows, info.k or 0
  local n = math.max(rows * k, 1)
  local id, lp = ffi.new('int32_t[?]', n), ffi.new('float[?]', n)
  local rest = ffi.new('float[?]', math.max(rows, 1))
  check(C.ms_target_read(p, id, lp, rest))
  local ids, log_p, log_rest = {}, {}, {}
  for r = 1, rows do
    ids[r], log_p[r], log_rest[r] = {}, {}, rest[r - 1]
    for j = 1, k do
      ids[r][j], log_p[r][j] = id[(r - 1) * k + j - 1], lp[(r - 1) * k + j - 1]
    end
  end
  return ids, log_p, log_rest
end

function target.text(self)
  local info = self:info()
  local t, tt = info.temperature, info.teacher_temperature
  return ('target %s%s of %d positions (%s), %d ids, T = %s%s, %d bytes'):format(info.kind,
    info.k and ' ' .. info.k or '', info.rows, info.on, info.vocab,
    t and ('%g'):format(t) or 'the term\'s', tt ~= 1 and (' x %g'):format(tt) or '', info.bytes)
end

return M
