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
--- row, and said. `ended = false` says of an answer that it was cut off: no end is learnt. Texts
--- are cut into blocks of `max_tokens`; a block begins with the last token of the one before, so
--- that each token is predicted once.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local batch = require 'moonstill.batch'
local check = require 'moonstill.check'
local json = require 'moonstill.json'
local options_of = require 'moonstill.options'
local packing = require 'moonstill.packing'
local sorted = require 'moonstill.sorted'
local text_of = require 'moonstill.text'

local M = {}

-- Tokens of a large dataset do not fit into LuaJIT's own memory, which ends at 1 or 2 GB.
ffi.cdef 'void *realloc(void *p, size_t bytes); void free(void *p);'

--- Pairs of columns that are looked for in a first row, in this order.
M.pairs = { { 'prompt', 'completion' }, { 'prompt', 'response' }, { 'prompt', 'answer' },
  { 'question', 'answer' }, { 'question', 'response' }, { 'query', 'response' },
  { 'instruction', 'output' }, { 'instruction', 'response' }, { 'input', 'output' } }
--- Columns of plain text.
M.texts = { 'text', 'content' }

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

-- A weight is kept as the number of a level, in a byte; there are few different ones.
local function level_of(self, weight)
  local level = self.level_of[weight]
  if level then return level end
  if self.levels_count > 255 then error('more than 256 different weights', 0) end
  level = self.levels_count
  self.level_of[weight], self.levels[level] = level, weight
  self.levels_count = level + 1
  return level
end

-- Keeps where the largest of something is: `value` of the row at `self.place`.
local function note_extreme(self, name, value)
  local known = self.extremes[name]
  if value > known.value then known.value, known.place = value, self.place end
end

local function add_sample(self, ids, first, n, weights, weight)
  local token, level, largest = self.token, self.level, 0
  token:reserve(n)
  level:reserve(n)
  ffi.copy(token.p + token.count, ids + first, 4 * n)
  for t = first, first + n - 1 do largest = math.max(largest, ids[t]) end
  note_extreme(self, 'id', largest)
  note_extreme(self, 'length', n)
  for t = 0, n - 2 do level.p[level.count + t] = level_of(self, weights[first + t]) end
  level.p[level.count + n - 1] = 0
  token.count, level.count = token.count + n, level.count + n
  self.start:add(token.count)
  self.weight:add(weight)
  self.lengths[#self.lengths + 1] = n
end

-- rows -------------------------------------------------------------------------------------------

local function column_of(row, names)
  for _, name in ipairs(names) do
    if row[name] ~= nil then return name end
  end
end

local function asked(o)
  if o.messages_key then return { kind = 'messages', messages = o.messages_key } end
  if o.text_key then return { kind = 'text', text = o.text_key } end
  if not o.prompt_key and not o.answer_key then return nil end
  if not o.prompt_key or not o.answer_key then
    error('dataset: prompt_key and answer_key belong together', 3)
  end
  return { kind = 'pair', prompt = o.prompt_key, answer = o.answer_key }
end

local function detect(row)
  local ids = json.is_array(row.prompt_ids) and json.is_array(row.answer_ids)
  if ids then return { kind = 'ids' } end
  if json.is_array(row.messages) then return { kind = 'messages', messages = 'messages' } end
  for _, pair in ipairs(M.pairs) do
    if row[pair[1]] ~= nil and row[pair[2]] ~= nil then
      return { kind = 'pair', prompt = pair[1], answer = pair[2] }
    end
  end
  local name = column_of(row, M.texts)
  if name then return { kind = 'text', text = name } end
  error(('no known columns among %s: name them with prompt_key and answer_key, text_key or '
    .. 'messages_key'):format(table.concat(sorted.keys(row), ', ')), 0)
end

local function describe(form)
  if form.kind == 'ids' then return 'tokens in "prompt_ids" and "answer_ids"' end
  if form.kind == 'messages' then return ('conversations in "%s"'):format(form.messages) end
  if form.kind == 'text' then return ('text in "%s"'):format(form.text) end
  return ('prompts in "%s", answers in "%s"'):format(form.prompt, form.answer)
end

-- Of weights, when the first row has some.
local function describe_weights(row, key)
  if key then return (', weights in "%s"'):format(key) end
  return row.weight ~= nil and '; "weight" is not used (weight_key = "weight" uses it)' or ''
end

local function text_in(row, key)
  local value = row[key]
  if type(value) == 'string' then return value end
  error(('column "%s" is %s, not text'):format(key, value == nil and 'missing'
    or value == json.null and 'null' or 'a ' .. type(value)), 0)
end

-- Instructions may come with an input of their own (Alpaca's form).
local function prompt_in(row, form)
  local prompt = text_in(row, form.prompt)
  local input = form.prompt == 'instruction' and row.input
  if type(input) ~= 'string' or input == '' then return prompt end
  return prompt .. '\n\n' .. input
end

-- Whether an answer ended or was cut off, where a row says so.
local function ended_in(row)
  local value = row.ended
  if value == nil or value == json.null or type(value) == 'boolean' then return value ~= false end
  error('column "ended" is neither true nor false', 0)
end

local function sample_in(row, form)
  if form.kind == 'ids' then
    return { prompt_ids = row.prompt_ids or false, answer_ids = row.answer_ids or false }
  end
  if form.kind == 'messages' then
    if row[form.messages] == nil then error(('column "%s" is missing'):format(form.messages), 0) end
    return { messages = row[form.messages] }
  end
  if form.kind == 'text' then return { text = text_in(row, form.text) } end
  return { prompt = prompt_in(row, form), answer = text_in(row, form.answer) }
end

local function sample_of(row, form)
  local sample = sample_in(row, form)
  sample.ended = ended_in(row)
  return sample
end

local function weight_in(row, key)
  local value = key and row[key]
  if not key or value == nil or value == json.null then return 1 end
  if type(value) ~= 'number' or not (value >= 0 and value < math.huge) then
    error(('column "%s": a weight is a number from 0 on'):format(key), 0)
  end
  return value
end

-- samples ----------------------------------------------------------------------------------------

local function any_weight(weights, n)
  for t = 0, n - 2 do
    if weights[t] > 0 then return true end
  end
  return false
end

local function add_blocks(self, ids, n, weights, weight)
  local most, first = self.options.max_tokens, 0
  while first < n - 1 do
    add_sample(self, ids, first, math.min(most, n - first), weights, weight)
    first = first + most - 1
  end
end

local function add_row(self, sample, weight)
  local o, report = self.options, self.report
  local ids, n, weights = self.chat:encode(sample)
  if sample.text then return add_blocks(self, ids, n, weights, weight) end
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
  add_sample(self, ids, 0, n, weights, weight)
end

local function skip(self, message)
  local report = self.report
  report.skipped = report.skipped + 1
  if #report.errors < 10 then report.errors[#report.errors + 1] = message end
end

local function take(self, row, where)
  if type(row) ~= 'table' or row == json.null or json.is_array(row) then
    error('a row is an object', 0)
  end
  self.form = self.form or detect(row)
  if not self.said and not self.options.quiet then
    io.stderr:write(('dataset: %s: %s%s\n'):format(where, describe(self.form),
      describe_weights(row, self.options.weight_key)))
  end
  self.said = true
  add_row(self, sample_of(row, self.form), weight_in(row, self.options.weight_key))
end

-- One row: what is wrong with it is said with its place, or counted.
local function guarded(self, where, body, ...)
  self.report.rows, self.place = self.report.rows + 1, where
  local ok, why = pcall(body, self, ...)
  if ok then return end
  -- Messages may come with a line of ours, or with the place already.
  local message = tostring(why):gsub('^[^:\n]*%.lua:%d+: ', '')
  if message:sub(1, #where) ~= where then message = where .. ': ' .. message end
  if self.options.on_error ~= 'skip' then error(message, 0) end
  skip(self, message)
end

local function full(self)
  local limit = self.options.limit
  return limit and self.report.rows >= limit
end

-- files ------------------------------------------------------------------------------------------

local function take_line(self, text, where)
  local ok, row = pcall(json.decode, text, where)
  -- The place names the line of the file; that a row is line 1 of itself would only confuse.
  if not ok then error((tostring(row):gsub(': line 1, column ', ': column ', 1)), 0) end
  take(self, row, where)
end

local function read_lines(self, path)
  for number, text in json.text_lines(path) do
    if full(self) then return end
    local where = path .. ':' .. number
    if text:find '%S' then guarded(self, where, take_line, text, where) end
  end
end

local function read_array(self, path)
  local rows = json.read(path)
  if not json.is_array(rows) then error(path .. ': not an array of rows', 0) end
  for i, row in ipairs(rows) do
    if full(self) then return end
    local where = ('%s: row %d'):format(path, i)
    guarded(self, where, take, row, where)
  end
end

local function take_text(self, path)
  local file, why = io.open(path, 'rb')
  if not file then error(why, 0) end
  local text = file:read '*a'
  file:close()
  add_row(self, { text = json.without_mark(text) }, 1)
end

local function read_text(self, path) guarded(self, path, take_text, path) end

local READERS = { jsonl = read_lines, ndjson = read_lines, json = read_array, txt = read_text }

local function read(self, path)
  if type(path) ~= 'string' then error('dataset: a path is a ' .. type(path), 0) end
  local kind = path:match '%.(%w+)$'
  local reader = READERS[kind and kind:lower()]
  if not reader then
    error(('dataset: %s: files end in .jsonl, .json or .txt'):format(path), 0)
  end
  if C.ms_path_kind(path) ~= 1 then error(('dataset: %s: no such file'):format(path), 0) end
  reader(self, path)
end

-- a dataset --------------------------------------------------------------------------------------

--- @class ms_dataset
--- @field report { rows: integer, dropped: integer, truncated: integer, skipped: integer,
---   errors: string[] } what became of the rows; errors: the first ten of those skipped
local methods = {}
methods.__index = methods

--- How many samples there are.
--- @return integer
function methods:count() return #self.lengths end

--- How many tokens all samples have.
--- @return integer
function methods:tokens() return self.token.count end

--- The longest sample: its tokens, and the place of its row ("train.jsonl:7"). A model whose context
--- is shorter cannot learn from it.
--- @return integer tokens
--- @return string place
function methods:longest() return self.extremes.length.value, self.extremes.length.place end

--- The largest token id of all samples, and the place of the first row that has it. A model with as
--- many rows in its vocabulary, or fewer, cannot read that row.
--- @return integer id
--- @return string place
function methods:largest_id() return self.extremes.id.value, self.extremes.id.place end

local text_out = ffi.new 'char *[1]'

local function hash_of(data, bytes)
  check(C.ms_hash(data, bytes, text_out))
  return text_of(text_out[0])
end

--- A hash of all samples as they are learnt: their tokens, cuts and weights. So it changes with the
--- files, the tokenizer, the markup and the options that shape samples.
--- @return string
function methods:fingerprint()
  if self.hash then return self.hash end
  local parts = { hash_of(self.levels, ffi.sizeof(self.levels)) }
  for i, name in ipairs { 'token', 'level', 'start', 'weight' } do
    local a = self[name]
    parts[i + 1] = hash_of(a.p, a.count * a.size)
  end
  local all = table.concat(parts)
  self.hash = hash_of(all, #all)
  return self.hash
end

local function bounds(self, i, level)
  if type(i) ~= 'number' or i < 1 or i > #self.lengths or i ~= math.floor(i) then
    error(('dataset: sample %s of %d'):format(tostring(i), #self.lengths), level + 1)
  end
  return tonumber(self.start.p[i - 1]), self.lengths[i]
end

local function fill_weights(self, to, at, from, n, scale)
  local levels, level = self.levels, self.level.p
  for t = 0, n - 1 do to[at + t] = levels[level[from + t]] * scale end
end

--- One sample: its ids (in the dataset's own memory), their number, and a new array of the weights
--- of its predicting positions, the sample's own weight included.
--- @param i integer from 1
--- @return ffi.cdata* ids int32_t[n]
--- @return integer n
--- @return ffi.cdata* weights float[n]
function methods:sample(i)
  local from, n = bounds(self, i, 2)
  local weights = ffi.new('float[?]', n)
  fill_weights(self, weights, 0, from, n, self.weight.p[i - 1])
  return self.token.p + from, n, weights
end

--- A batch of some samples, in the order given. The caller frees it.
--- @param indices integer[] samples, from 1
--- @param first? integer where to begin in `indices`, default 1
--- @param last? integer default the end
--- @return ms_batch
function methods:batch(indices, first, last)
  first = check.integer('dataset:batch', 'first', first or 1, 1, check.INT32)
  last = check.integer('dataset:batch', 'last', last or #indices, 0, check.INT32)
  local s, total = self.scratch, 0
  if last < first then error('dataset: a batch of no samples', 2) end
  for k = first, last do total = total + select(2, bounds(self, indices[k], 2)) end
  s.token.count, s.start.count, s.response.count, s.all.count = 0, 0, 0, 0
  s.token:reserve(total)
  s.response:reserve(total)
  s.all:reserve(total)
  s.start:reserve(last - first + 2)
  local at = 0
  s.start.p[0] = 0
  for k = first, last do
    local i = indices[k]
    local from, n = bounds(self, i, 2)
    local weight = self.weight.p[i - 1]
    ffi.copy(s.token.p + at, self.token.p + from, 4 * n)
    fill_weights(self, s.response.p, at, from, n, weight)
    for t = at, at + n - 1 do s.all.p[t] = weight end
    at = at + n
    s.start.p[k - first + 1] = at
  end
  return batch.new(s.token.p, total, s.start.p, last - first + 1, s.response.p, s.all.p)
end

--- The plan of an epoch: steps, each a list of micro-batches, each a list of samples for `batch`. A
--- function of (seed, epoch) and of the lengths; every sample occurs once.
--- @param seed integer
--- @param epoch integer
--- @param options { tokens: integer, micro_tokens: integer, width?: number } see `ms.packing.plan`
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

methods.__tostring = function(self)
  local r = self.report
  return ('dataset of %d samples, %d tokens%s%s%s'):format(#self.lengths, self.token.count,
    counted(r.dropped, 'dropped as over long'), counted(r.truncated, 'truncated'),
    counted(r.skipped, 'skipped with errors'))
end

local CHOICES = { over_long = { drop = true, error = true, truncate = true },
  on_error = { error = true, skip = true } }

-- A recipe's `data` goes in as it is, so its paths are known, though they are not looked at.
local KEYS = { max_tokens = true, over_long = true, on_error = true, prompt_key = true,
  answer_key = true, text_key = true, messages_key = true, weight_key = true, limit = true,
  quiet = true, train = true, valid = true }

local function check_options(o)
  for name, choices in sorted.pairs(CHOICES) do
    if not choices[o[name]] then
      error(('dataset: %s = %s; there are %s'):format(name, tostring(o[name]),
        table.concat(sorted.keys(choices), ', ')), 3)
    end
  end
  check.integer('dataset', 'max_tokens', o.max_tokens, 2, check.INT32, 4)
  if o.limit ~= nil then check.integer('dataset', 'limit', o.limit, 1, check.EXACT, 4) end
end

local function new(chat, options)
  local o = { max_tokens = 2048, over_long = 'drop', on_error = 'error' }
  local given = options_of.known('dataset', KEYS, options, 3)
  for key, value in sorted.pairs(given) do o[key] = value end
  check_options(o)
  local self = { chat = chat, options = o, form = asked(o), lengths = {},
    token = array 'int32_t', level = array 'uint8_t', start = array 'int64_t',
    weight = array 'float',
    levels = ffi.new('float[256]', 0, 1), level_of = { [0] = 0, [1] = 1 }, levels_count = 2,
    scratch = { token = array 'int32_t', start = array 'int32_t', response = array 'float',
      all = array 'float' },
    extremes = { id = { value = -1 }, length = { value = 0 } },
    report = { rows = 0, dropped = 0, truncated = 0, skipped = 0, errors = {} } }
  self.start:add(0)
  return setmetatable(self, methods)
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
--- @param options? { max_tokens?: integer, over_long?: '"drop"'|'"error"'|'"truncate"',
---   on_error?: '"error"'|'"skip"', prompt_key?: string, answer_key?: string, text_key?: string,
---   messages_key?: string, weight_key?: string, limit?: integer, quiet?: boolean }
---   max_tokens: longest sample (2048). over_long: what happens to longer ones (they are dropped
---   and counted). on_error: whether a bad row ends everything, with its file and line, or is
---   counted. limit: rows to read. weight_key: the column of a sample's weight. A recipe's
---   `data` may be passed whole: train and valid are not looked at, any other key is an error.
--- @return ms_dataset
function M.open(path, chat, options)
  local self = new(chat, options)
  local paths = type(path) == 'table' and path or { path }
  for _, one in ipairs(paths) do
    local ok, why = pcall(read, self, one)
    if not ok then error(why, 0) end -- it names the file: the caller's line is not where to look
  end
  if #self.lengths == 0 then error('dataset: ' .. explain_none(self, paths), 0) end
  if not self.options.quiet then io.stderr:write(tostring(self), '\n') end
  return self
end

return M
