--- Rows to samples: which columns hold what.
---
--- A form says what a file's rows are: `kind` "messages", "pair", "text" or "ids", and the columns
--- of its parts under `messages`, `prompt` and `answer`, or `text`; those of ids have one name.

local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local fields = require 'moonstill.data.fields'
local json = require 'moonstill.base.json'
local sorted = require 'moonstill.base.sorted'

local M = {}

--- Pairs of columns that are looked for in a first row, in this order.
M.pairs = { { 'prompt', 'completion' }, { 'prompt', 'response' }, { 'prompt', 'answer' },
  { 'question', 'answer' }, { 'question', 'response' }, { 'query', 'response' },
  { 'instruction', 'output' }, { 'instruction', 'response' }, { 'input', 'output' } }
--- Columns of plain text.
M.texts = { 'text', 'content' }

-- A column that is null is not there.
local function has(row, name) return row[name] ~= nil and row[name] ~= json.null end

--- The form that a data set's options ask for, or nil.
--- @param o table prompt_key and answer_key, text_key or messages_key
--- @return table?
function M.asked(o)
  if o.messages_key then return { kind = 'messages', messages = o.messages_key } end
  if o.text_key then return { kind = 'text', text = o.text_key } end
  if not o.prompt_key and not o.answer_key then return nil end
  if not o.prompt_key or not o.answer_key then
    fail('dataset: prompt_key and answer_key belong together')
  end
  return { kind = 'pair', prompt = o.prompt_key, answer = o.answer_key }
end

-- What to say of a row without columns to read.
local function explain(row)
  local turns = row.conversations or row.conversation
  if json.is_array(turns) then
    local name = row.conversations and 'conversations' or 'conversation'
    if type(turns[1]) == 'table' and turns[1].role then
      return ('; messages_key = "%s" reads its messages'):format(name)
    end
    return ('; the turns of "%s" have no "role" and "content", and other turns are not read')
      :format(name)
  end
  if type(row.messages) == 'string' then return '; "messages" is a text, not a list' end
  local names = fields.known(row)
  return #names > 0 and ('; nothing reads "%s"'):format(table.concat(names, '", "')) or ''
end

--- The form of a row, by the columns that are not null.
--- @param row table
--- @return table
function M.detect(row)
  local ids = json.is_array(row.prompt_ids) and json.is_array(row.answer_ids)
  if ids then return { kind = 'ids' } end
  if json.is_array(row.messages) then return { kind = 'messages', messages = 'messages' } end
  for _, pair in ipairs(M.pairs) do
    if has(row, pair[1]) and has(row, pair[2]) then
      return { kind = 'pair', prompt = pair[1], answer = pair[2] }
    end
  end
  for _, name in ipairs(M.texts) do
    if has(row, name) then return { kind = 'text', text = name } end
  end
  error(('no known columns among %s: name them with prompt_key and answer_key, text_key or '
    .. 'messages_key%s'):format(table.concat(sorted.keys(row), ', '), explain(row)), 0)
end

-- The input that an instruction may have beside it is of Alpaca's form.
local function input_key(form) return form.prompt == 'instruction' and 'input' or nil end

-- Token ids and, in what `ms.generate.write` writes, the text of the answer's.
local IDS = { 'prompt_ids', 'answer_ids', 'answer' }

--- The columns that are read of a form's rows.
--- @param form table
--- @param weight_key? string
--- @return table<string, boolean>
function M.used(form, weight_key)
  local used = {}
  local function use(name) if name then used[name] = true end end
  for _, part in ipairs { 'messages', 'prompt', 'answer', 'text' } do use(form[part]) end
  use(input_key(form))
  use 'ended'
  for _, name in ipairs(form.kind == 'ids' and IDS or {}) do use(name) end
  use(weight_key)
  return used
end

--- A form in words.
--- @param form table
--- @param weight_key? string
--- @return string
function M.describe(form, weight_key)
  local words = form.kind == 'messages' and ('conversations in "%s"'):format(form.messages)
    or form.kind == 'ids' and 'tokens in "prompt_ids" and "answer_ids"'
    or form.kind == 'text' and ('text in "%s"'):format(form.text)
    or ('prompts in "%s", answers in "%s"'):format(form.prompt, form.answer)
  return weight_key and ('%s, weights in "%s"'):format(words, weight_key) or words
end

local function kind_of(value)
  if value == nil then return 'missing' end
  if value == json.null then return 'null' end
  return json.is_array(value) and 'a list' or type(value) == 'table' and 'an object'
    or 'a ' .. type(value)
end

local function text_in(row, key)
  local value = row[key]
  if type(value) == 'string' then return value end
  error(('column "%s" is %s%s'):format(key, kind_of(value), value == nil and '' or ', not text'), 0)
end

local function prompt_in(row, form)
  local prompt, key = text_in(row, form.prompt), input_key(form)
  local input = key and has(row, key) and text_in(row, key) or ''
  return input == '' and prompt or prompt .. '\n\n' .. input
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

--- The sample of a row, for `chat:encode`.
--- @param row table
--- @param form table
--- @return table
function M.sample(row, form)
  local sample = sample_in(row, form)
  sample.ended = ended_in(row)
  return sample
end

--- A row's weight, 1 where it has none; and whether it has one.
--- @param row table
--- @param key? string its column
--- @return number
--- @return boolean
function M.weight(row, key)
  if not key or not has(row, key) then return 1, false end
  return check.weight(('column "%s"'):format(key), row[key]), true
end

return M
