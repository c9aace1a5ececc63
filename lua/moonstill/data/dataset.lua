--- Datasets: samples read from files, tokenised once, held as bare arrays.
---
---   local data = ms.dataset.open('train.jsonl', chat, { max_tokens = 2048 })
---   for _, step in ipairs(data:steps(seed, epoch, { tokens = 8192, micro_tokens = 2048 })) do
---     for _, samples in ipairs(step) do local batch = data:batch(samples) end
---   end
---
--- Files are JSON lines (.jsonl), a JSON array of such rows (.json), or plain text (.txt). Rows
--- have `messages`, or a prompt and an answer, or a text, or token ids that are learnt as they are
--- (`prompt_ids` and `answer_ids`); which columns hold them is asked by name or found in the first
--- row, and said. Columns that nothing reads are said too, or an error where they change what is
--- learnt. `ended = false` says of an answer that it was cut off: no end is learnt. Texts are cut
--- into blocks of `max_tokens`; a block begins with the last token of the one before, so that each
--- token is predicted once.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local batch = require 'moonstill.data.batch'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local fields = require 'moonstill.data.fields'
local handles = require 'moonstill.base.handle'
local json = require 'moonstill.base.json'
local kinds = require 'moonstill.base.kinds'
local packing = require 'moonstill.data.packing'
local ranks = require 'moonstill.base.ranks'
local readers = require 'moonstill.data.readers'
local reading = require 'moonstill.data.reading'
local rows = require 'moonstill.data.rows'
local schema = require 'moonstill.base.schema'
local strict = require 'moonstill.base.strict'
local text_of = require 'moonstill.base.text'
local option, optional = schema.option, schema.optional

local M = {}

-- Tokens of a large dataset do not fit into LuaJIT's own memory, which ends at 1 or 2 GB.
ffi.cdef 'void *realloc(void *p, size_t bytes); void free(void *p);'

--- Pairs of columns, and columns of plain text, that are looked for in a first row.
M.pairs, M.texts = rows.pairs, rows.texts

-- arrays -----------------------------------------------------------------------------------------

-- A growing array outside LuaJIT's memory.
local function array(ctype)
  local pointer, size = ffi.typeof(ctype .. ' *'), ffi.sizeof(ctype)
  local a = { count = 0, room = 0, size = size }
  function a:reserve(n)
    if self.count + n <= self.room then return end
    local room = math.max(1024, self.count + n, math.floor(1.5 * self.room))
    local p = ffi.C.realloc(self.block, room * size)
    if p == nil then error(('dataset: no memory for %d bytes'):format(room * size), 0) end
    if self.block then ffi.gc(self.block, nil) end
    self.block, self.room = ffi.gc(p, ffi.C.free), room
    self.p = ffi.cast(pointer, p)
  end
  function a:add(value)
    self:reserve(1)
    self.p[self.count] = value
    self.count = self.count + 1
  end
  return a
end

-- A position's two weights (`response`, `all`) are one byte, the number of their pair in this
-- table: there are few different pairs.
local function new_levels()
  return { response = ffi.new('float[256]', 0, 1), all = ffi.new('float[256]', 1, 1), count = 2,
    find = { [0] = { [1] = 0 }, [1] = { [1] = 1 } } }
end

local function level_of(levels, response, all)
  local row = levels.find[response]
  local level = row and row[all]
  if level then return level end
  level = levels.count
  if level > 255 then error('more than 256 different weights', 0) end
  row = row or {}
  levels.find[response], row[all] = row, level
  levels.response[level], levels.all[level], levels.count = response, all, level + 1
  return level
end

-- Notes the largest value so far, and the place of its row.
local function note_extreme(self, name, value)
  local known = self.extremes[name]
  if value > known.value then known.value, known.place = value, self.place end
end

local function add_sample(self, ids, first, n, weights, all, weight)
  local token, level, largest = self.token, self.level, 0
  token:reserve(n)
  level:reserve(n)
  ffi.copy(token.p + token.count, ids + first, 4 * n)
  for t = first, first + n - 1 do largest = math.max(largest, ids[t]) end
  note_extreme(self, 'id', largest)
  note_extreme(self, 'length', n)
  for t = 0, n - 2 do
    level.p[level.count + t] = level_of(self.levels, weights[first + t], all[first + t])
  end
  level.p[level.count + n - 1] = 0
  token.count, level.count = token.count + n, level.count + n
  self.start:add(token.count)
  self.weight:add(weight)
  self.lengths[#self.lengths + 1] = n
end

-- samples ----------------------------------------------------------------------------------------

local function any_weight(weights, n)
  for t = 0, n - 2 do
    if weights[t] > 0 then return true end
  end
  return false
end

local function add_blocks(self, ids, n, weights, all, weight)
  local most, first = self.options.max_tokens, 0
  while first < n - 1 do
    add_sample(self, ids, first, math.min(most, n - first), weights, all, weight)
    first = first + most - 1
  end
end

-- A sample's weight multiplies those of its positions.
local function check_products(weights, n, weight)
  if weight == 1 then return end
  for t = 0, n - 2 do
    if weights[t] > 0 and weight > 0 then
      check.weight("the sample's and its message's, multiplied", weights[t] * weight)
    end
  end
end

local function add_row(self, sample, weight)
  local o, report = self.options, self.report
  local ids, n, weights, all, as_letters = self.chat:encode(sample)
  if as_letters then report:spell(as_letters) end
  check_products(weights, n, weight)
  check_products(all, n, weight)
  if sample.text then return add_blocks(self, ids, n, weights, all, weight) end
  if n > o.max_tokens then
    if o.over_long == 'error' then
      error(('%d tokens, max_tokens is %d'):format(n, o.max_tokens), 0)
    end
    if o.over_long == 'drop' then
      report.dropped = report.dropped + 1
      return
    end
    n = o.max_tokens
    if not any_weight(weights, n) then -- the answer was all behind the cut
      report.dropped = report.dropped + 1
      return
    end
    report.truncated = report.truncated + 1
  end
  add_sample(self, ids, 0, n, weights, all, weight)
end

local function take_row(self, row, where)
  local key = self.options.weight_key
  self.form = self.form or rows.detect(row)
  local form = self.form
  self.used = self.used or rows.used(form, key)
  self.fields:look(row, form.kind, self.used, row[form.messages])
  if not self.said and not self.options.quiet then
    ranks.world():say(('dataset: %s: %s'):format(where, rows.describe(form, key)))
  end
  self.said = true
  local weight, given = rows.weight(row, key)
  local sample = rows.sample(row, form)
  add_row(self, sample, weight)
  if not sample.ended then self.report.open = self.report.open + 1 end
  if key and not given then self.report.unweighted = self.report.unweighted + 1 end
end

local function take(self, where, value, decode)
  local row = decode(value, where)
  if type(row) == 'string' then return add_row(self, { text = row }, 1) end
  take_row(self, row, where)
end

local function full(self)
  local limit = self.options.limit
  return limit and self.report.rows >= limit
end

-- One row: what is wrong with it is said with its place, or counted. True when there are enough.
local function visit(self, where, value, decode)
  self.report.rows, self.place = self.report.rows + 1, where
  local ok, why = fail.pcall(take, self, where, value, decode)
  if ok then return full(self) end
  local message = tostring(why) -- which may come with the place already
  if message:sub(1, #where + 2) == where .. ': ' then message = message:sub(#where + 3) end
  if self.options.on_error ~= 'skip' then error(where .. ': ' .. message, 0) end
  self.report:skip(where, message)
  return full(self)
end

-- a dataset --------------------------------------------------------------------------------------

--- @class ms_dataset
--- @field paths string[] the files it was read from
--- @field report ms_reading what became of the rows
local methods = {}
local class = strict.class('dataset', methods, { form = true, said = true, used = true,
  place = true })

--- How many samples there are.
--- @return integer
function methods:count() return #self.lengths end

--- How many tokens all samples have.
--- @return integer
function methods:tokens() return self.token.count end

--- The longest sample: its tokens, and the place of its row ("train.jsonl:7"). A model whose
--- context is shorter cannot learn from it.
--- @return integer tokens
--- @return string place
function methods:longest() return self.extremes.length.value, self.extremes.length.place end

--- The largest token id of all samples, and the place of the first row that has it. A model with as
--- many rows in its vocabulary, or fewer, cannot read that row.
--- @return integer id
--- @return string place
function methods:largest_id() return self.extremes.id.value, self.extremes.id.place end

--- An error unless each of these models can read every sample: it names the row with the largest
--- id, which the model's vocabulary has not, or the longest, which is longer than its context.
--- @param ... ms_model
function methods:fits(...)
  local id, id_place = self:largest_id()
  local tokens, place = self:longest()
  for i = 1, select('#', ...) do
    local info = (select(i, ...)):info()
    local name = info.path ~= json.null and info.path or 'a model'
    if id >= info.vocab then
      error(('%s: token id %d, but %s has only the ids below %d: another tokenizer?')
        :format(id_place, id, name, info.vocab), 0)
    end
    if tokens > info.context then
      error(('%s: a sample of %d tokens, but the context of %s is %d: max_tokens = %d drops or '
        .. 'cuts such samples'):format(place, tokens, name, info.context, info.context), 0)
    end
  end
end

local function sample_counts(self, i, levels)
  if not (self.weight.p[i - 1] > 0) then return false end
  local from = tonumber(self.start.p[i - 1])
  for t = from, from + self.lengths[i] - 2 do
    if levels[self.level.p[t]] > 0 then return true end
  end
  return false
end

--- Whether any token counts for a term on these positions: a data set may have weights of 0 alone.
--- @param on '"response"'|'"all"'
--- @return boolean
function methods:counts(on)
  local levels = self.levels[on]
  if not levels then
    fail('dataset:counts: on = %s, not response or all', tostring(on))
  end
  for i = 1, #self.lengths do
    if sample_counts(self, i, levels) then return true end
  end
  return false
end

--- An error unless a token counts for a term on these positions.
--- @param on '"response"'|'"all"'
function methods:check_counts(on)
  if self:counts(on) then return end
  error(('%s: no token counts for on = "%s": all weights are 0 (those of samples, %s, and those of '
    .. 'messages)'):format(table.concat(self.paths, ', '), on,
    self.options.weight_key or 'which data.weight_key names'), 0)
end

local text_out = ffi.new 'char *[1]'

local function hash_of(data, bytes)
  check(C.ms_hash(data, bytes, text_out))
  return text_of(text_out[0])
end

--- A hash of all samples as they are learnt: their tokens, cuts and weights. So it changes with the
--- files, the tokenizer, the markup and the options that shape samples.
--- @return string
function methods:fingerprint()
  local parts = {}
  for _, levels in ipairs { self.levels.response, self.levels.all } do
    parts[#parts + 1] = hash_of(levels, ffi.sizeof(levels))
  end
  for _, name in ipairs { 'token', 'level', 'start', 'weight' } do
    local a = self[name]
    parts[#parts + 1] = hash_of(a.p, a.count * a.size)
  end
  local all = table.concat(parts)
  return hash_of(all, #all)
end

local function bounds(self, i)
  if type(i) ~= 'number' or i < 1 or i > #self.lengths or i ~= math.floor(i) then
    fail('dataset: sample %s of %d', tostring(i), #self.lengths)
  end
  return tonumber(self.start.p[i - 1]), self.lengths[i]
end

local function fill_weights(self, to, levels, at, from, n, scale)
  local level = self.level.p
  for t = 0, n - 1 do to[at + t] = levels[level[from + t]] * scale end
  to[at + n - 1] = 0
end

--- One sample: its ids (in the dataset's own memory), their number, and new arrays of the weights
--- of its predicting positions, the sample's own weight included: where answers are learnt, and
--- where everything is (`on = "all"`).
--- @param i integer from 1
--- @return ffi.cdata* ids int32_t[n], of the caller
--- @return integer n
--- @return ffi.cdata* weights float[n]
--- @return ffi.cdata* all float[n]
function methods:sample(i)
  local from, n = bounds(self, i)
  local weights, all, weight = ffi.new('float[?]', n), ffi.new('float[?]', n), self.weight.p[i - 1]
  fill_weights(self, weights, self.levels.response, 0, from, n, weight)
  fill_weights(self, all, self.levels.all, 0, from, n, weight)
  local ids = ffi.new('int32_t[?]', n)
  ffi.copy(ids, self.token.p + from, 4 * n)
  return ids, n, weights, all
end

--- A batch of some samples, in the order given. The caller frees it.
--- @param indices integer[] samples, from 1
--- @param first? integer where to begin in `indices`, default 1
--- @param last? integer default the end
--- @return ms_batch
function methods:batch(indices, first, last)
  check.table('dataset:batch', 'indices', indices)
  first = check.integer('dataset:batch', 'first', first or 1, 1, check.INT32)
  last = check.integer('dataset:batch', 'last', last or #indices, 0, check.INT32)
  local s, total = self.scratch, 0
  if last < first then fail('dataset: a batch of no samples') end
  for k = first, last do total = total + select(2, bounds(self, indices[k])) end
  s.token.count, s.start.count, s.response.count, s.all.count = 0, 0, 0, 0
  s.token:reserve(total)
  s.response:reserve(total)
  s.all:reserve(total)
  s.start:reserve(last - first + 2)
  local at = 0
  s.start.p[0] = 0
  for k = first, last do
    local i = indices[k]
    local from, n = bounds(self, i)
    local weight = self.weight.p[i - 1]
    ffi.copy(s.token.p + at, self.token.p + from, 4 * n)
    fill_weights(self, s.response.p, self.levels.response, at, from, n, weight)
    fill_weights(self, s.all.p, self.levels.all, at, from, n, weight)
    at = at + n
    s.start.p[k - first + 1] = at
  end
  return batch.new(s.token.p, total, s.start.p, last - first + 1, s.response.p, s.all.p)
end

--- The plan of an epoch: steps, each a list of micro-batches, each a list of samples for `batch`. A
--- function of (seed, epoch) and of the lengths; every sample occurs once.
--- @param seed integer
--- @param epoch integer
--- @param options? table a recipe's `batch`, see `ms.packing.options`
--- @return integer[][][]
function methods:steps(seed, epoch, options)
  local n = #self.lengths
  check.integer('dataset:steps', 'seed', seed, 0, check.EXACT)
  check.integer('dataset:steps', 'epoch', epoch, 0, check.EXACT)
  local order = ffi.new('int32_t[?]', n)
  check(C.ms_permutation(seed, epoch, n, order))
  for k = 0, n - 1 do order[k] = order[k] + 1 end
  return packing.plan(self.lengths, order, n, 0, options)
end

local function counted(n, what) return n > 0 and (', %d %s'):format(n, what) or '' end

function class:__tostring()
  local r = self.report
  return ('dataset of %d samples, %d tokens%s%s%s'):format(#self.lengths, self.token.count,
    counted(r.dropped, 'dropped as over long'), counted(r.truncated, 'truncated'),
    counted(r.skipped, 'skipped with errors'))
end

--- The `data` of a configuration. A data set looks at neither train nor valid: its files are an
--- argument.
M.options = schema.new('dataset', {
  train = schema.required('paths', 'training samples: .jsonl, .json or .txt files'),
  valid = optional('paths', 'validation samples'),
  max_tokens = option(2048, 'longest sample', 'integer >= 2 <= 2147483647'),
  over_long = schema.one_of({ 'drop', 'truncate', 'error' }, nil, 'what happens to longer ones'),
  on_error = schema.one_of({ 'error', 'skip' }, nil, 'what happens at a bad row'),
  prompt_key = optional('string', 'column of the prompts'),
  answer_key = optional('string', 'column of the answers'),
  text_key = optional('string', 'column of plain texts'),
  messages_key = optional('string', 'column of conversations'),
  weight_key = optional('string', 'column of the samples\' weights'),
  ignore = optional('list', 'columns and fields of messages to take as not there: [history]'),
  limit = optional('integer >= 1', 'rows to read'),
  quiet = option(false, 'nothing is printed: what would be said is in the data set\'s report'),
})

local NAMES = { 'prompt_key', 'answer_key', 'text_key', 'messages_key', 'weight_key' }

local function check_ignored(o)
  local list = o.ignore or {}
  for i = 1, #list do
    if type(list[i]) ~= 'string' then fail('dataset: ignore is a list of names') end
    for _, key in ipairs(NAMES) do
      if o[key] == list[i] then
        fail('dataset: ignore names "%s", which is the %s', list[i], key)
      end
    end
  end
end

local function new(chat, options)
  local o = schema.take('dataset', M.options, options)
  check_ignored(o)
  local self = { chat = chat, options = o, form = rows.asked(o), lengths = {},
    token = array 'int32_t', level = array 'uint8_t', start = array 'int64_t',
    weight = array 'float', levels = new_levels(), fields = fields.new(o.ignore),
    scratch = { token = array 'int32_t', start = array 'int32_t', response = array 'float',
      all = array 'float' },
    extremes = { id = { value = -1 }, length = { value = 0 } },
    report = reading.new() }
  self.start:add(0)
  return setmetatable(self, class)
end

-- Why there is nothing to learn from.
local function explain_none(self, paths)
  local report, first = self.report, self.report.errors[1]
  local words = ('no samples in %s: %d rows'):format(table.concat(paths, ', '), report.rows)
  if report.dropped > 0 then
    words = ('%s, %d dropped as longer than max_tokens = %d'):format(words, report.dropped,
      self.options.max_tokens)
  end
  if report.skipped == 0 then return words end
  return ('%s, %d skipped with errors, the first: %s'):format(words, report.skipped, first)
end

--- Reads and tokenises files.
--- @param path string|string[]
--- @param chat ms_chat
--- @param options? table a recipe's `data`, see `options`. Samples that are dropped and bad rows
---   that are skipped are counted; a bad row that is not is an error with its file and line
--- @return ms_dataset
function M.open(path, chat, options)
  if not kinds.of('paths', path) then
    fail('dataset: a path or a list of paths expected, got %s',
      type(path) == 'table' and #path == 0 and 'an empty list' or handles.what(path))
  end
  if type(chat) ~= 'table' then
    fail('dataset: what ms.chat.open gives expected, got %s', handles.what(chat))
  end
  local self = new(chat, options)
  local paths = type(path) == 'table' and path or { path }
  self.paths = paths
  for _, one in ipairs(paths) do
    if full(self) then break end
    readers.read(one, visit, self)
  end
  self.report:finish(self.fields:counted())
  if not self.options.quiet then
    for _, line in ipairs(self.report:lines(self.options)) do
      ranks.world():say('dataset: ' .. line)
    end
  end
  if #self.lengths == 0 then error('dataset: ' .. explain_none(self, paths), 0) end
  if not self.options.quiet then ranks.world():say(tostring(self)) end
  return self
end

return M
