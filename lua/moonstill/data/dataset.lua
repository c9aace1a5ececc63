--- Datasets: samples read from files, tokenised once, held as bare arrays.
---
---   local data = ms.dataset.open('train.jsonl', chat, { max_tokens = 2048 })
---   local plan = data:steps(seed, epoch, { tokens = 8192, micro_tokens = 2048 })
---   for step in plan:each() do
---     for _, samples in ipairs(step) do local batch = data:batch(samples) end
---   end
---
--- Files are JSON (.jsonl, .json), tables (.csv, .tsv) or plain text (.txt), also compressed.
--- Several come as a list, in which `{ path = 'a.jsonl', weight = 0.5, ['repeat'] = 2,
--- limit = 1000 }` says how much a file's samples count, how often an epoch has them (a fraction is
--- another part of them in each epoch) and how many of its rows are read. A list of rows is data
--- too.
---
--- Rows have `messages`, or a prompt and an answer, or a text, or token ids that are learnt as they
--- are (`prompt_ids` and `answer_ids`); which columns hold them is asked by name or found in the
--- first row of a file, and said. Columns that nothing reads are said too, or an error where they
--- change what is learnt. `ended = false` says of an answer that it was cut off: no end is learnt.
--- `filter = f` leaves out the rows of which f(row) is false, then `map = g` puts g(row) in the
--- place of each row. Both are also given the row's number: 1 is the first one of the first source.
---
--- Texts are cut into blocks of `max_tokens`; a block begins with the last token of the one before,
--- so that each token is predicted once. Of other samples that are longer `over_long` says what
--- becomes of them: `truncate` keeps their beginning, `truncate_left` their end (and the token that
--- begins every text), `split` makes pieces, of which each repeats the last quarter of the one
--- before for its context and learns nothing there again.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local callable = require 'moonstill.base.callable'
local arrays = require 'moonstill.data.arrays'
local batch = require 'moonstill.data.batch'
local cache = require 'moonstill.data.cache'
local chats = require 'moonstill.text.chat'
local check = require 'moonstill.base.check'
local cutting = require 'moonstill.data.cutting'
local fail = require 'moonstill.base.fail'
local filling = require 'moonstill.data.filling'
local handles = require 'moonstill.base.handle'
local json = require 'moonstill.base.json'
local kept = require 'moonstill.data.kept'
local mixture = require 'moonstill.data.mixture'
local options_of = require 'moonstill.base.options'
local packing = require 'moonstill.data.packing'
local progress = require 'moonstill.base.progress'
local ranks = require 'moonstill.base.ranks'
local rows = require 'moonstill.data.rows'
local samples_of = require 'moonstill.data.samples'
local schema = require 'moonstill.base.schema'
local shared = require 'moonstill.data.shared'
local sources = require 'moonstill.data.sources'
local strict = require 'moonstill.base.strict'
local option, optional = schema.option, schema.optional

local M = {}

--- Pairs of columns, and columns of plain text, that are looked for in a first row.
M.pairs, M.texts = rows.pairs, rows.texts

-- a dataset --------------------------------------------------------------------------------------

--- Samples, tokenised and held as arrays; they are numbered from 1.
--- @class ms_dataset
--- @field paths string[] the files it was read from
--- @field report ms_report what became of the rows
--- @field samples table all that were read; the data set may be a part of them
--- @field parts table[] what comes from each source: `name`, `first` (from 0) and `count` of its
---   samples, `weight`, `times`
local methods = {}
local class = strict.class('dataset', methods, { index = true, lengths = true })

--- How many samples there are.
--- @return integer
function methods:count() return self.size end

-- The place of sample `i`, of those there are, among all that were read.
local function place_of(self, i) return self.index and self.index.p[i - 1] or i end

-- The source of sample i.
local function part_of(self, i)
  local k = 1
  while i > self.parts[k].first + self.parts[k].count do k = k + 1 end
  return self.parts[k]
end

-- The weight of sample i.
local function weight_of(self, i)
  return self.samples.weight.p[place_of(self, i) - 1] * part_of(self, i).weight
end

--- How many tokens all samples have.
--- @return integer
function methods:tokens()
  if not self.index then return self.samples.tokens end
  local total = 0
  for i = 1, self.size do total = total + select(2, self.samples:range(place_of(self, i))) end
  return total
end

--- The longest sample: its tokens, and the place of its row ("train.jsonl:7"). A model whose
--- context is shorter cannot learn from it. Of a part of what was read it is that of all.
--- @return integer tokens
--- @return string place
function methods:longest()
  local longest = self.samples.extremes.length
  return longest.value, longest.place
end

--- The largest token id of all samples that were read, and the place of the first row that has it.
--- A model with as many rows in its vocabulary, or fewer, cannot read that row.
--- @return integer id
--- @return string place
function methods:largest_id()
  local largest = self.samples.extremes.id
  return largest.value, largest.place
end

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
  if not (weight_of(self, i) > 0) then return false end
  local from, n = self.samples:range(place_of(self, i))
  for t = from, from + n - 2 do
    if levels[self.samples.level.p[t]] > 0 then return true end
  end
  return false
end

--- Whether any token counts for a term on these positions: a data set may have weights of 0 alone.
--- @param on '"response"'|'"all"'
--- @return boolean
function methods:counts(on)
  local levels = self.samples.levels[on]
  if not levels or on == 'count' or on == 'find' then
    fail('dataset:counts: on = %s, not response or all', tostring(on))
  end
  for i = 1, self.size do
    if sample_counts(self, i, levels) then return true end
  end
  return false
end

--- An error unless a token counts for a term on these positions.
--- @param on '"response"'|'"all"'
function methods:check_counts(on)
  if self:counts(on) then return end
  error(('%s: no token counts for on = "%s": all weights are 0 (those of samples, %s, and those of '
    .. 'messages)'):format(table.concat(self.names, ', '), on,
    self.options.weight_key or 'which data.weight_key names'), 0)
end

-- What changes what is learnt beside the samples, in words; nil where nothing does.
local function beside(self)
  local words = {}
  for k, part in ipairs(self.parts) do
    if part.weight ~= 1 or part.times ~= 1 then
      words[#words + 1] = ('%d: %d %d %.17g %.17g'):format(k, part.first, part.count, part.weight,
        part.times)
    end
  end
  if self.index then words[#words + 1] = samples_of.hash(self.index.p, self.index:bytes()) end
  return words[1] and table.concat(words, '\n')
end

--- A hash of all samples as they are learnt: their tokens, cuts and weights. So it changes with the
--- files, the tokenizer, the markup and the options that shape samples.
--- @return string
function methods:fingerprint()
  local print, more = self.samples:fingerprint(), beside(self)
  if not more then return print end
  print = print .. more
  return samples_of.hash(print, #print)
end

--- The number of the row that a sample comes from: among all that were read, those of all sources,
--- as `filter` and `map` are given it. Pieces of one row have the same.
--- @param i integer a sample, from 1
--- @return integer
function methods:row(i)
  check.integer('dataset:row', 'i', i, 1, self.size)
  return self.samples.row.p[place_of(self, i) - 1]
end

-- A sample's place among all that were read, its first token and how many it has.
local function bounds(self, i)
  if type(i) ~= 'number' or i < 1 or i > self.size or i ~= math.floor(i) then
    fail('dataset: no sample %s: they are numbered from 1 to %d', tostring(i), self.size)
  end
  return self.samples:range(place_of(self, i))
end

local function fill_weights(self, to, levels, at, from, n, scale)
  local level = self.samples.level.p
  for t = 0, n - 1 do to[at + t] = levels[level[from + t]] * scale end
  to[at + n - 1] = 0
end

--- One sample: its ids, their number, and arrays of the weights of its predicting positions, the
--- sample's own weight included: where answers are learnt, and where everything is (`on = "all"`).
--- @param i integer from 1
--- @return ffi.cdata* ids int32_t[n], of the caller
--- @return integer n
--- @return ffi.cdata* weights float[n]
--- @return ffi.cdata* all float[n]
function methods:sample(i)
  local from, n = bounds(self, i)
  local weights, all, weight = ffi.new('float[?]', n), ffi.new('float[?]', n), weight_of(self, i)
  fill_weights(self, weights, self.samples.levels.response, 0, from, n, weight)
  fill_weights(self, all, self.samples.levels.all, 0, from, n, weight)
  local ids = ffi.new('int32_t[?]', n)
  ffi.copy(ids, self.samples.token.p + from, 4 * n)
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
    local weight = weight_of(self, i)
    ffi.copy(s.token.p + at, self.samples.token.p + from, 4 * n)
    fill_weights(self, s.response.p, self.samples.levels.response, at, from, n, weight)
    fill_weights(self, s.all.p, self.samples.levels.all, at, from, n, weight)
    at = at + n
    s.start.p[k - first + 1] = at
  end
  return batch.new(s.token.p, total, s.start.p, last - first + 1, s.response.p, s.all.p)
end

--- How many samples an epoch has: those of a source that repeats come more often.
--- @return integer
function methods:in_epoch() return mixture.total(self.parts) end

-- The lengths of samples, without an array of them.
local function lengths_of(self)
  self.lengths = self.lengths or setmetatable({}, { __index = function(_, i)
    return (select(2, self.samples:range(place_of(self, i))))
  end })
  return self.lengths
end

--- The plan of an epoch: steps, each a list of micro-batches, each a list of samples for `batch`. A
--- function of (seed, epoch) and of the lengths; every sample occurs once, or as often as its
--- source repeats.
--- @param seed integer
--- @param epoch integer
--- @param options? table a recipe's `batch`, see `ms.packing.options`
--- @return ms_plan
function methods:steps(seed, epoch, options)
  check.integer('dataset:steps', 'seed', seed, 0, check.EXACT)
  check.integer('dataset:steps', 'epoch', epoch, 0, check.EXACT)
  local order, n = mixture.order(self.parts, seed, epoch)
  return packing.plan(lengths_of(self), order, n, 0, options, 'dataset:steps')
end

local function counted(n, what) return n > 0 and (', %d %s'):format(n, what) or '' end

function class:__tostring()
  local r, of = self.report, self.index and self:tokens() or self.samples.tokens
  local epoch = mixture.repeats(self.parts) and self:in_epoch()
  return ('dataset of %d samples, %d tokens%s%s%s%s%s%s'):format(self.size, of,
    epoch and (', %d samples an epoch'):format(epoch) or '',
    counted(r.dropped, 'dropped as over long'), counted(r.truncated, 'truncated'),
    r.split > 0 and (', %d split into %d'):format(r.split, r.pieces) or '',
    counted(r.filtered, 'filtered out'), counted(r.skipped, 'skipped with errors'))
end

-- parts ------------------------------------------------------------------------------------------

-- A data set of some of the samples that were read: `index` has their places, in order; nil for
-- all.
local function over(self, index)
  local part = setmetatable({ chat = self.chat, options = self.options, paths = self.paths,
    names = self.names, report = self.report, samples = self.samples, scratch = self.scratch,
    index = index, size = index and index.count or self.samples.count, parts = {} }, class)
  local at = 0
  for k, source in ipairs(self.sources) do
    local first, past = at, source.first + source.count
    while at < part.size and place_of(part, at + 1) <= past do
      at = index and at + 1 or past
    end
    part.parts[k] = { name = source.name, first = first, count = at - first,
      weight = source.weight, times = source.times }
  end
  part.sources = self.sources
  return part
end

--- A data set of `n` of the samples, evenly apart; where there are no more it is this one.
--- @param n integer
--- @return ms_dataset
function methods:some(n)
  check.integer('dataset:some', 'n', n, 1, check.INT32)
  if n >= self.size then return self end
  local index = arrays.new 'int32_t'
  for k = 0, n - 1 do index:add(place_of(self, math.floor(k * self.size / n) + 1)) end
  return over(self, index)
end

local function check_share(share, count)
  if not schema.kind_of(M.options.split, share) then
    fail('dataset:split: the share is %s, expected %s', tostring(share),
      schema.kind_text(M.options.split))
  end
  return share < 1 and math.max(1, math.floor(share * count + 0.5)) or share
end

-- How many different rows the samples are of.
local function count_rows(self)
  local row, n = self.samples.row.p, 0
  for i = 0, self.samples.count - 1 do
    if i == 0 or row[i] ~= row[i - 1] then n = n + 1 end
  end
  return n
end

--- Two data sets of one: rows to learn from, and rows that are held out. Which ones depends on the
--- seed and on their tokens alone, wherever they stand: equal rows are on one side, so no held one
--- is learnt, and those that are added later move next to none of the others. All samples of a row
--- stay together.
--- @param share number below 1 the part that is held out, from 1 how many rows; equal rows may make
---   it a few more
--- @param seed? integer default 0
--- @return ms_dataset train
--- @return ms_dataset held
function methods:split(share, seed)
  if self.index then fail('dataset:split: this is a part already') end
  check.integer('dataset:split', 'seed', seed or 0, 0, check.EXACT)
  local s, rows_count = self.samples, count_rows(self)
  local count = check_share(share, rows_count)
  local held = ffi.new('uint8_t[?]', s.count)
  check(C.ms_split(seed or 0, s.count, s.start.p, s.row.p, s.token.p, count, held))
  local sides = { [0] = arrays.new 'int32_t', arrays.new 'int32_t' }
  for i = 0, s.count - 1 do sides[held[i]]:add(i + 1) end
  if sides[0].count == 0 then
    error(('%s: %d different rows, and split = %g leaves none to learn from'):format(
      table.concat(self.names, ', '), rows_count, share), 0)
  end
  return over(self, sides[0]), over(self, sides[1])
end

--- The `data` of a configuration. A data set looks at neither train nor valid: its files are an
--- argument.
M.options = schema.new('dataset', {
  train = schema.required('sources', 'training samples: .jsonl, .json, .csv, .tsv or .txt; of a '
    .. 'file in {} weight is how much its samples count, repeat how often an epoch has them, '
    .. 'limit how many rows are read'),
  valid = optional('sources', 'validation samples'),
  split = optional('number > 0 < 1|integer >= 1', 'without valid: the part of the training rows, '
    .. 'or how many of them, that are held out for validation'),
  max_tokens = option(2048, 'longest sample', 'integer >= 2 <= 2147483647'),
  over_long = schema.one_of(cutting.ways, nil, 'what happens to longer ones', {
    drop = 'they are left out, and counted', truncate = 'their beginning is kept',
    truncate_left = 'their end is kept, and the token that begins every text',
    split = 'pieces, each with the last quarter of the one before as its context',
    error = 'the first one is an error, with its file and line' }),
  on_error = schema.one_of({ 'error', 'skip' }, nil, 'what happens at a bad row', {
    error = 'it is an error, with its file and line',
    skip = 'it is left out, and counted by reason' }),
  prompt_key = optional('string', 'column of the prompts'),
  answer_key = optional('string', 'column of the answers; alone, as in answer_key=chosen, of those '
    .. 'to known prompts'),
  text_key = optional('string', 'column of plain texts'),
  messages_key = optional('string', 'column of conversations'),
  weight_key = optional('string', 'column of the samples\' weights'),
  ignore = optional('list', 'columns and fields of messages to take as not there: [history]'),
  limit = optional('integer >= 1', 'rows to read'),
  cache = cache.option,
  quiet = option(false, 'nothing is printed: what would be said is in the data set\'s report'),
}, chats.options)

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

-- What a call may give beside them, which no configuration can hold.
local functions = schema.new('dataset', {
  filter = optional('function', 'whether a row is used'),
  map = optional('function', 'the row in the place of a row'),
}, M.options)

-- Why there is nothing to learn from.
local function explain_none(self)
  local report, first = self.report, self.report.errors[1]
  local words = ('no samples in %s: %d rows'):format(table.concat(self.names, ', '), report.rows)
  if report.filtered > 0 then words = ('%s, %d filtered out'):format(words, report.filtered) end
  if report.dropped > 0 then
    words = ('%s, %d dropped as longer than max_tokens = %d'):format(words, report.dropped,
      self.options.max_tokens)
  end
  if report.skipped == 0 then return words end
  return ('%s, %d skipped with errors, the first: %s'):format(words, report.skipped, first)
end

-- What a list of several sources gives, a line each.
local function mixed(self)
  local lines = {}
  for _, part in ipairs(self.parts) do
    if part.weight ~= 1 or part.times ~= 1 then
      lines[#lines + 1] = ('%s: %d samples%s%s'):format(part.name, part.count,
        part.times ~= 1 and (', %d an epoch'):format(mixture.picks(part)) or '',
        part.weight ~= 1 and (', weight %g'):format(part.weight) or '')
    end
  end
  return lines
end

local function say(self, line)
  if not self.options.quiet then ranks.world():say(line) end
end

-- What became of the rows.
local function say_all(self)
  for _, line in ipairs(self.report:lines(self.options)) do say(self, 'dataset: ' .. line) end
  for _, line in ipairs(mixed(self)) do say(self, 'dataset: ' .. line) end
end

local function fill_cache(list, chat, o, path, rows_hash)
  local s, digest, notes = samples_of.new(), rows_hash and kept.digest(), {}
  s:keep_at(path, function(why) notes[#notes + 1] = why end)
  local ok, report, lines = pcall(filling.fill, list, chat, o, s, digest)
  if not ok then
    s:drop()
    error(report, 0)
  end
  if s.count == 0 or digest and digest:text() ~= rows_hash then
    s:forget(digest and 'filter or map gave other rows when it was called again')
  end
  local is_kept = kept.keep(s, report, lines, list)
  for _, why in ipairs(notes) do
    say({ options = o }, ('note: dataset: not kept in the cache: %s'):format(why))
  end
  if not is_kept then return s, report, lines end
  local bytes, count = cache.size(path:match '^(.*)/')
  local line = ('kept in %s (%s); all %d there have %s: ms.cache.clear() removes them'):format(path,
    progress.bytes(s:bytes()), count, progress.bytes(bytes))
  return s, report, lines, line
end

-- A hash of rows as functions leave them; nil where rows are what the files say.
local function hash_rows(list, o)
  if not filling.are_made(list, o) then return nil end
  local digest = kept.digest()
  filling.hash(list, o, digest)
  return digest:text()
end

-- The samples of sources, from the cache or read anew and then kept there. Returns them, their
-- report, what was said of the rows, a line about the cache, and the hash of rows, if any; where it
-- is asked for, there is one of all that functions have made.
local function obtain(list, chat, o, hashes)
  local folder = cache.folder(o.cache)
  if not folder or not kept.is_worth(list, o.cache) then
    local s, digest = samples_of.new(), hashes and filling.are_made(list, o) and kept.digest()
    local report, lines = filling.fill(list, chat, o, s, digest or nil)
    return s, report, lines, nil, digest and digest:text() or nil
  end
  local rows_hash = hash_rows(list, o)
  local path = ('%s/%s'):format(folder, kept.key(list, chat, o, rows_hash))
  local found, report, lines = kept.find(path, list)
  if found then
    for _, line in ipairs(lines) do say({ options = o }, line) end
    return found, report, lines, ('tokenised before: %s'):format(path), rows_hash
  end
  if report then say({ options = o }, 'note: dataset: made anew: ' .. report) end
  local s, line
  s, report, lines, line = fill_cache(list, chat, o, path, rows_hash)
  return s, report, lines, line, rows_hash
end

-- The same of ranks: one rank of each machine does it, and the others take what it has made.
local function obtain_together(list, chat, o)
  return shared.obtain(list, { name = 'dataset', obtain = function(hashes)
    return obtain(list, chat, o, hashes)
  end, hash = function() return hash_rows(list, o) end })
end

--- Reads and tokenises files, or takes rows as they are.
--- @param source string|table a path, `{ path =, weight =, repeat =, limit = }` or the same with
---   `rows`, a list of these, or a list of rows
--- @param chat ms_chat
--- @param options? table a recipe's `data`, see `options`, and `filter`, `map`: functions of a row.
---   Samples that are dropped and bad rows that are skipped are counted; a bad row that is not is
---   an error with its file and line
--- @return ms_dataset
function M.open(source, chat, options)
  local list = sources.take(source)
  if type(chat) ~= 'table' or rawget(chat, 'tokenizer') == nil then
    fail('dataset: what ms.chat.open gives expected, got %s', handles.what(chat))
  end
  local o = schema.take('dataset', functions, options)
  check_ignored(o)
  chat = chat:with(options)
  local all, report, line = obtain_together(list, chat, o)
  local names = {}
  for i, each in ipairs(list) do names[i] = each.name end
  local self = over({ chat = chat, options = o, sources = list, paths = sources.paths(list),
    names = names, samples = all, report = report,
    scratch = { token = arrays.new 'int32_t', start = arrays.new 'int32_t',
      response = arrays.new 'float', all = arrays.new 'float' } })
  say_all(self)
  for _, why in ipairs(chat:warnings()) do say(self, 'note: ' .. why) end
  if self.size == 0 then error('dataset: ' .. explain_none(self), 0) end
  say(self, tostring(self))
  if line then say(self, 'dataset: ' .. line) end
  return self
end

local MORE = { seed = true, filter = true, map = true }

--- The data sets that a recipe's `data` names: what is learnt and, where there is such a thing,
--- what validates: `valid`, or `split` of the training rows.
--- @param data table a recipe's `data`
--- @param chat ms_chat
--- @param more? { seed?: integer, filter?: function, map?: function } seed: of the split
--- @return ms_dataset train
--- @return ms_dataset? valid
function M.sets(data, chat, more)
  more = options_of.known('dataset.sets', MORE, more)
  local o = schema.plain(check.table('dataset.sets', 'data', data))
  if o == data then o = schema.part(M.options, data) end
  o.filter, o.map = more.filter, more.map
  local train = M.open(o.train, chat, o)
  if o.valid then
    if o.split then say(train, 'note: data.split is not used: data.valid is given') end
    return train, M.open(o.valid, chat, o)
  end
  if not o.split then return train, nil end
  local rest, held = train:split(o.split, more.seed)
  say(train, ('dataset: %d samples are held out for validation, %d are left'):format(held:count(),
    rest:count()))
  return rest, held
end

return callable(M, 'open')
