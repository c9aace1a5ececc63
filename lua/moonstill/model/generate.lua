--- Generation, with a cache of keys and values: ids in, ids out as `model:generate` and
--- `model:stream`; text in, text out here; and answers as rows of data.
---
---   print(ms.generate.text(model, tok, 'Once upon a time', { temperature = 0.8 }))
---   print(ms.generate.answer(model, chat, 'How many legs has a spider?'))
---   for piece in ms.generate.pieces(model, tok, 'Once') do io.write(piece) end
---   ms.generate.write('answers.jsonl', teacher, chat, prompts, { max_new = 512 })
---
--- Text that comes out holds no special tokens: neither those that tokenizer.json calls so, nor
--- what ends an answer, nor what the model's files name as BOS, padding and the like. An end that
--- is spelled at the end of a text is left out as well.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local ends = require 'moonstill.text.ends'
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local handles = require 'moonstill.base.handle'
local ranks = require 'moonstill.base.ranks'
local schema = require 'moonstill.base.schema'
local sorted = require 'moonstill.base.sorted'
local option = schema.option

local M = {}

local out = ffi.new 'ms_generator *[1]' -- scratch, read at once
local live = ffi.new 'int32_t[1]'
local ints = ffi.typeof 'int32_t[?]'

local COUNT = 'integer >= 0 <= 2147483647'

--- What `generate` and `stream` take. Where a stop comes it is given as the last token. Draws are a
--- function of the seed, the prompt's number and the step.
M.options = schema.new('generate', {
  max_new = option(64, 'longest answer in tokens', 'integer >= 1 <= 2147483647'),
  temperature = option(0, 'divides the logits; 0: the likeliest token', 'number >= 0'),
  top_k = option(0, 'draws from that many of the likeliest tokens; 0: from all', COUNT),
  top_p = option(1, 'draws from the likeliest tokens of that mass together', 'number > 0 <= 1'),
  seed = option(0, 'of the draws', 'integer >= 0'),
  first = option(0, 'number of the first prompt, for the draws', COUNT),
  stop = schema.optional(COUNT .. '|list',
    'ids that end an answer: one or a list, {} for none; by default those of the model'),
})

--- A generation that is under way, a token of each prompt at a time: see `ms.generate.open`.
--- @class ms_generator
local generators = handles.kind('generator', 'ms_generator', C.ms_generator_free,
  { fields = 'int32_t prompts;' })
local methods = generators.methods

--- The next token of each prompt, in `into` or a new table: -1 for those that have ended. nil once
--- all have; the generator frees itself then.
--- @param into? integer[]
--- @return integer[]?
function methods:next(into)
  if handles.is('generator', self) and self.p == nil then return nil end
  local p = generators.pointer(self)
  into = into == nil and {} or check.table('generate', 'into', into)
  local token = ints(self.prompts)
  check(C.ms_generator_next(p, token, live))
  local any = false
  for i = 1, self.prompts do
    into[i] = token[i - 1]
    any = any or into[i] >= 0
  end
  if live[0] == 0 then self:free() end
  return any and into or nil
end

function generators.text(self) return ('generator over %d prompts'):format(self.prompts) end

-- The prompts as the core takes them: all ids, and where each prompt starts.
local function flatten(prompts)
  local total = 0
  for i, prompt in ipairs(prompts) do
    if type(prompt) ~= 'table' then
      fail('generate: prompt %d is a %s, not a list of ids', i, type(prompt))
    end
    check.integers('generate', ('prompt %d: id'):format(i), prompt, 0, check.INT32)
    total = total + #prompt
  end
  local token, start, at = ints(math.max(total, 1)), ints(#prompts + 1), 0
  for i, prompt in ipairs(prompts) do
    for k, id in ipairs(prompt) do token[at + k - 1] = id end
    at = at + #prompt
    start[i] = at
  end
  return token, start
end

-- Where answers end: where it was asked, or where the model's files say.
local function stops_of(model, options)
  local stop = options and rawget(options, 'stop')
  if stop == nil then return model:ends() end
  return type(stop) == 'table' and stop or { stop }
end

--- Starts a generation: all prompts go through the model once.
--- @param model ms_model
--- @param prompts integer[][] lists of ids
--- @param options? table see `options`
--- @return ms_generator
function M.open(model, prompts, options)
  local p = handles.pointer('model', model)
  local o = schema.take('generate', M.options, options)
  if type(prompts) ~= 'table' then fail('generate: a list of prompts expected') end
  local token, start = flatten(prompts)
  local stop = stops_of(model, options)
  check.integers('generate', 'stop', stop, 0, check.INT32)
  check.integer('generate', 'first', o.first, 0, check.INT32 - #prompts)
  local stops = ints(math.max(#stop, 1), stop)
  local c = ffi.new('ms_generate_options', { temperature = o.temperature, top_p = o.top_p,
    top_k = o.top_k, max_new = o.max_new, stops = #stop, stop = stops, seed = o.seed,
    first = o.first })
  check(C.ms_generator_new(p, #prompts, token, start, c, out))
  return generators.new(out[0], #prompts)
end

--- Runs a generator to its end.
--- @param generator ms_generator
--- @param halt? fun(): boolean asked before each token: true gives it up, and frees the generator
--- @return integer[][]? for each prompt the ids that were made; nil when it was given up
function M.collect(generator, halt)
  generators.pointer(generator)
  local answers, step = {}, {}
  for i = 1, generator.prompts do answers[i] = {} end
  while generator:next(step) do
    if halt and halt() then
      generator:free()
      return nil
    end
    for i, answer in ipairs(answers) do
      if step[i] >= 0 then answer[#answer + 1] = step[i] end
    end
  end
  generator:free()
  return answers
end

-- text -------------------------------------------------------------------------------------------

--- What `pieces` and `text` take.
M.text_options = schema.new('generate', {
  special = option(false, 'special tokens are text, the stop included'),
}, M.options)

-- The options of text: those of ids, and what its tokens are. hidden: ids that are no text.
-- spelled: ends that are left out where a text ends with their letters.
local function text_options(model, tok, options)
  handles.pointer('model', model)
  handles.pointer('tokenizer', tok)
  schema.check('generate', M.text_options, options)
  options = options or {}
  local o, special = schema.part(M.options, options), rawget(options, 'special') or false
  local known = ends.of_answer(model:ends(), tok)
  if o.stop == nil then o.stop = known end
  local how = { ids = o, stop = stops_of(model, o), is_stop = {}, special = special }
  for _, id in ipairs(how.stop) do how.is_stop[id] = true end
  if special then
    how.hidden, how.spelled = {}, {}
  else
    local path = model:info().path
    how.hidden = ends.roles(type(path) == 'string' and path or nil, tok)
    for _, list in ipairs { known, how.stop } do
      for _, id in ipairs(list) do how.hidden[id] = true end
    end
    how.spelled = known
  end
  return how
end

-- Cuts `held .. piece` in two: what is text for certain, and what may be the beginning of an end
-- that is spelled.
local function release(tok, how, held, piece)
  local all = held .. piece
  local keep = ends.may_spell(tok, how.spelled, all)
  return all:sub(1, #all - keep), all:sub(#all - keep + 1)
end

-- The ids of a prompt, which may be some already.
local function begin(tok, prompt)
  if type(prompt) == 'string' then return ends.begin(tok, prompt) end
  if type(prompt) == 'table' then return prompt end
  fail('generate: prompt is a %s, not a string', type(prompt))
end

-- The pieces of an answer as an iterator, and what is told of it.
local function pieces(model, tok, prompt, how, halt)
  local told = { ended = false, halted = false, count = 0 }
  local generator, step = M.open(model, { begin(tok, prompt) }, how.ids), {}
  local detokenizer, held = tok:detokenizer { skip_special = not how.special }, ''
  local function finish()
    local last = held .. detokenizer:finish()
    generator:free()
    detokenizer:free()
    detokenizer = nil
    return (ends.without(tok, how.spelled, last))
  end
  local function next_piece()
    told.halted = halt ~= nil and halt()
    local id = not told.halted and generator:next(step) and step[1]
    if not id then return finish() end
    told.ended, told.count = how.is_stop[id] or false, told.count + 1
    if how.hidden[id] then return '' end
    local piece
    piece, held = release(tok, how, held, detokenizer:add(id))
    return piece
  end
  return function()
    while detokenizer do
      local piece = next_piece()
      if piece ~= '' then return piece end
    end
  end, told
end

--- Continues a text, piece by piece as it becomes certain: never half a character. BOS comes before
--- the prompt once, also where the prompt spells it; ids are taken as they are. Without `stop` it
--- ends at `model:ends()`, and at the end of a turn where the tokenizer has turns.
---
--- What is told at the end: whether a stop was reached (`ended`) or `halt` asked for the end
--- (`halted`), and how many tokens the answer has (`count`). Where it is neither, that is `max_new`
--- or the context is full.
--- @param model ms_model
--- @param tokenizer ms_tokenizer
--- @param prompt string|integer[]
--- @param options? table see `text_options`
--- @param halt? fun(): boolean asked before each token: true ends the answer
--- @return fun(): string?
--- @return { ended: boolean, halted: boolean, count: integer } told
function M.pieces(model, tokenizer, prompt, options, halt)
  local how = text_options(model, tokenizer, options)
  return pieces(model, tokenizer, prompt, how, halt)
end

--- Continues a text; returns what follows the prompt, and whether it ended (a stop was reached, and
--- not `max_new` or the end of the context). See `pieces`.
--- @param model ms_model
--- @param tokenizer ms_tokenizer
--- @param prompt string
--- @param options? table see `text_options`
--- @return string
--- @return boolean ended
function M.text(model, tokenizer, prompt, options)
  local parts = {}
  local next_piece, told = pieces(model, tokenizer, prompt, text_options(model, tokenizer, options))
  for piece in next_piece do parts[#parts + 1] = piece end
  return table.concat(parts), told.ended
end

-- rows of data -----------------------------------------------------------------------------------

--- What `rows` and `write` take. form: 'text' is for a reader without this tokenizer.
M.row_options = schema.new('generate', {
  form = schema.one_of({ 'ids', 'text' }, nil, 'rows hold the tokens themselves, or their text'),
  together = option(16, 'prompts that go through the model at once; draws do not depend on it',
    'integer >= 1 <= 2147483647'),
  from = option(1, 'number of the first prompt that is answered', 'integer >= 1 <= 2147483647'),
  quiet = option(false, 'nothing is printed'),
}, M.text_options)

-- The options of rows over their defaults, and those of text as they were given.
local function row_options(options)
  local o = schema.take('generate', M.row_options, options)
  return o, schema.part(M.text_options, options or {})
end

-- The text of generated ids.
local function visible(tok, how, ids)
  local list = {}
  for _, id in ipairs(ids) do
    if not how.hidden[id] then list[#list + 1] = id end
  end
  return (ends.without(tok, how.spelled, tok:decode(list, { skip_special = true })))
end

--- A function that gives the text of ids that a model answers with: without what ends it and
--- without special tokens, as `rows` writes it.
--- @package
--- @param model ms_model
--- @param tok ms_tokenizer
--- @return fun(ids: integer[]): string
function M.reader(model, tok)
  local how = text_options(model, tok)
  return function(ids) return visible(tok, how, ids) end
end

local function conversation(messages, answer)
  local all = json.array()
  for i, message in ipairs(messages) do
    all[i] = message
    if message.role == 'assistant' then -- said before: what was generated is learnt alone
      all[i] = sorted.copy(message)
      all[i].train = false
    end
  end
  all[#all + 1] = { role = 'assistant', content = answer }
  return all
end

-- A row in the form asked for; `prompt` as it was given.
local function row_of(form, prompt, prompt_ids, answer_ids, answer, ended)
  if form == 'ids' then
    return { prompt_ids = json.array(prompt_ids), answer_ids = json.array(answer_ids),
      answer = answer, ended = ended }
  end
  if type(prompt) == 'string' then return { prompt = prompt, answer = answer, ended = ended } end
  return { messages = conversation(prompt.messages or prompt, answer), tools = prompt.tools,
    documents = prompt.documents, chat_template_kwargs = prompt.args, ended = ended }
end

--- Whether a row trains the tokens that were generated, and no others.
local function trains(chat, row, prompt_ids, answer_ids)
  local ok, ids, n, weights = pcall(chat.encode, chat, row)
  local before, last = #prompt_ids, #prompt_ids + #answer_ids
  if not ok or n < last then return false end
  for t = 1, n do
    local want = t <= before and prompt_ids[t] or answer_ids[t - before]
    local learnt, answers = t > 1 and weights[t - 2] > 0, t > before and t <= last
    if learnt ~= answers or (t <= last and ids[t - 1] ~= want) then return false end
  end
  return true
end

local function check_chat(chat)
  check.table('generate', 'chat', chat)
  handles.pointer('tokenizer', chat.tokenizer)
end

-- answers ----------------------------------------------------------------------------------------

--- What `answer` takes.
M.answer_options = schema.new('generate', {
  max_new = option(512, 'longest answer in tokens', 'integer >= 1 <= 2147483647'),
}, M.text_options)

--- A model's answer to a question, or to a conversation so far; where the model has no turns, what
--- follows the text. `chat:reply` tells more of it, and shows it as it comes.
--- @param model ms_model
--- @param chat ms_chat of the model: `ms.chat.open(model)`
--- @param question string|table[] a user's text, or messages
--- @param options? table see `answer_options`
--- @return string
function M.answer(model, chat, question, options)
  handles.pointer('model', model)
  check_chat(chat)
  local text = chat:reply(model, question, schema.take('generate', M.answer_options, options))
  return text
end

--- The ids of a prompt, as `rows` takes it.
--- @param chat ms_chat
--- @param prompt string|table[]|integer[]|table
--- @return integer[]
function M.prompt_ids(chat, prompt)
  check_chat(chat)
  if type(prompt) ~= 'table' then return chat:prompt(prompt) end
  if type(prompt[1]) == 'number' then return prompt end
  if prompt.messages then return chat:prompt(prompt.messages, prompt) end
  return chat:prompt(prompt)
end

local function prompt_ids_of(chat, prompt, i, form)
  if form == 'text' and type(prompt) == 'table' and type(prompt[1]) == 'number' then
    error(("generate: prompt %d is a list of ids, which form = 'text' cannot write"):format(i), 0)
  end
  return M.prompt_ids(chat, prompt)
end

-- The row of an answer; false for an empty one.
local function answer_row(w, prompt, prompt_ids, answer_ids)
  local report, how, form = w.report, w.how, w.options.form
  local ended = how.is_stop[answer_ids[#answer_ids]] or false
  local answer = visible(w.chat.tokenizer, how, answer_ids)
  if #answer_ids == 0 or (form == 'text' and answer == '') then
    report.empty = report.empty + 1
    return false
  end
  local row = row_of(form, prompt, prompt_ids, answer_ids, answer, ended)
  report.ended = report.ended + (ended and 1 or 0)
  if not trains(w.chat, row, prompt_ids, answer_ids) then report.differ = report.differ + 1 end
  return row
end

-- The rows of the prompts first .. last; nil where that was given up.
local function rows_of(w, first, last)
  local given, rows = {}, {}
  for i = first, last do
    given[#given + 1] = prompt_ids_of(w.chat, w.prompts[i], i, w.options.form)
  end
  w.how.ids.first = w.first + first - 1
  local answers = M.collect(M.open(w.model, given, w.how.ids), w.halt)
  if not answers then return nil end
  for k, answer_ids in ipairs(answers) do
    rows[k] = answer_row(w, w.prompts[first + k - 1], given[k], answer_ids)
  end
  return rows
end

-- What `rows` and `write` are given.
local function check_rows(chat, prompts)
  check_chat(chat)
  check.table('generate', 'prompts', prompts)
end

--- What `rows` gives, part by part, as the prompts go through the model: an iterator over the
--- number of the last prompt answered and the rows of that part, of which an empty answer's is
--- false. The report grows as it goes.
--- @param model ms_model
--- @param chat ms_chat
--- @param prompts (string|table[]|integer[])[]
--- @param options? table see `row_options`
--- @param halt? fun(): boolean asked before each token: true gives the part up and ends
--- @return fun(): integer?, (table|false)[]
--- @return { ended: integer, empty: integer, differ: integer } report
function M.parts(model, chat, prompts, options, halt)
  check_rows(chat, prompts)
  local o, ids = row_options(options)
  local w = { model = model, chat = chat, prompts = prompts, options = o, halt = halt,
    how = text_options(model, chat.tokenizer, ids), first = ids.first or 0,
    report = { ended = 0, empty = 0, differ = 0 } }
  local done = o.from - 1
  return function()
    if done >= #prompts then return nil end
    local last = math.min(#prompts, done + o.together)
    local rows = rows_of(w, done + 1, last)
    done = rows and last or #prompts
    if rows then return last, rows end
  end, w.report
end

--- Generates an answer to each prompt, as rows that `ms.dataset` reads: { prompt_ids, answer_ids,
--- answer, ended } trains exactly the tokens that were generated, the end included where it came.
--- With form = 'text' rows are { prompt, answer, ended }, or { messages, ended }; the tokens of a
--- text may be others than were generated, which `differ` counts. `ended` is false where an answer
--- was cut off: then no end is learnt. An empty answer gives no row.
--- @param model ms_model
--- @param chat ms_chat
--- @param prompts (string|table[]|integer[]|table)[] as for `chat:prompt`, ids, or messages with
---   what their template is given: { messages, tools, documents, args }
--- @param options? table see `row_options`
--- @return table[] rows
--- @return { ended: integer, empty: integer, differ: integer } report
function M.rows(model, chat, prompts, options)
  local rows = {}
  local next_part, report = M.parts(model, chat, prompts, options)
  for _, part in next_part do
    for _, row in ipairs(part) do rows[#rows + 1] = row or nil end
  end
  return rows, report
end

local function summary(path, rows, report)
  local words = { ('%s: %d answers, %d of them ended'):format(path, #rows, report.ended) }
  if report.empty > 0 then words[2] = ('%d empty ones left out'):format(report.empty) end
  if report.differ > 0 then
    words[#words + 1] = ("the text of %d gives other tokens than were generated, which form = "
      .. "'ids' keeps"):format(report.differ)
  end
  return table.concat(words, ', ')
end

local ROW = { order = { 'id', 'prompt', 'prompt_ids', 'answer_ids', 'role' }, ordered = true }

--- A row as a line of JSON, with its end.
--- @param row table
--- @return string
function M.line(row) return json.encode(row, ROW) .. '\n' end

--- Writes what `rows` gives as JSON lines; what is in the file is said.
--- @param path string
--- @param model ms_model
--- @param chat ms_chat
--- @param prompts (string|table[]|integer[])[]
--- @param options? table see `row_options`
--- @return { ended: integer, empty: integer, differ: integer } report
function M.write(path, model, chat, prompts, options)
  check.path('generate', path)
  check_rows(chat, prompts)
  handles.pointer('model', model)
  local rows, report = M.rows(model, chat, prompts, options)
  local lines = {}
  for i, row in ipairs(rows) do
    lines[i] = M.line(row)
  end
  local text = table.concat(lines)
  ranks.write_file(path, text)
  local quiet = options and rawget(options, 'quiet')
  if not quiet then ranks.world():say(summary(path, rows, report)) end
  return report
end

return M
