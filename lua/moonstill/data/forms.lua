--- Forms of rows: which columns hold what.
---
--- A form says what a file's rows are: `kind` "messages", "pair", "text", "ids" or "tokens", and
--- the columns of its parts under `messages`, `prompt` and `answer`, or `text`; those of ids and
--- tokens have names of their own. A prompt and an answer may be texts or lists of messages.
--- `found` says in words which other columns the first row has that a sample takes.

local conversations = require 'moonstill.data.conversations'
local fail = require 'moonstill.base.fail'
local fields = require 'moonstill.data.fields'
local json = require 'moonstill.base.json'
local sorted = require 'moonstill.base.sorted'
local tokenised = require 'moonstill.data.tokenised'

local M = {}

--- Pairs of columns that are looked for in a first row, in this order.
M.pairs = { { 'prompt', 'completion' }, { 'prompt', 'response' }, { 'prompt', 'answer' },
  { 'question', 'answer' }, { 'question', 'response' }, { 'query', 'response' },
  { 'instruction', 'output' }, { 'instruction', 'response' }, { 'input', 'output' } }
--- Columns of plain text.
M.texts = { 'text', 'content' }
--- Columns of conversations.
M.conversations = { 'messages', 'conversations', 'conversation' }

local PROMPTS = { 'prompt', 'question', 'query', 'instruction', 'input' }
-- Columns that go with a form's own: in words, the names that are known, and whose they are.
local BESIDE = {
  { key = 'system', words = 'system prompts', 'system', 'system_prompt' },
  { key = 'history', words = 'turns before', 'history', pair = true },
  { key = 'tools', words = 'tools', 'tools', 'functions' },
  { key = 'documents', words = 'documents', 'documents' },
  { key = 'args', words = 'variables of the template', 'chat_template_kwargs', 'enable_thinking' },
}
local CHOICES = { 'rejected', 'rejected_messages', 'rejected_response' }
local WORDS = { sharegpt = 'ShareGPT conversations',
  pairs = 'conversations of human and assistant' }

--- Whether a row has a column: one that is null is not there.
--- @param row table
--- @param name string
--- @return boolean
function M.has(row, name) return row[name] ~= nil and row[name] ~= json.null end
local has = M.has

local function is_chosen(name) return name ~= nil and name:find '^chosen' ~= nil end

--- The column of the input that an instruction may have beside it, in Alpaca's form.
--- @param form table
--- @return string?
function M.input_key(form) return form.prompt == 'instruction' and 'input' or nil end

-- finding a form ---------------------------------------------------------------------------------

--- The form that a data set's options ask for, or nil.
--- @param o table prompt_key and answer_key, text_key or messages_key
--- @return table?
function M.asked(o)
  if o.messages_key then return { kind = 'messages', messages = o.messages_key } end
  if o.text_key then return { kind = 'text', text = o.text_key } end
  if not o.prompt_key then return nil end
  if not o.answer_key then fail('dataset: prompt_key and answer_key belong together') end
  return { kind = 'pair', prompt = o.prompt_key, answer = o.answer_key }
end

-- The first of some columns that a row has.
local function first_of(row, names)
  for _, name in ipairs(names) do
    if has(row, name) then return name end
  end
end

-- A column of turns: a list of them, or the JSON text of one.
local function turns_in(row, as_text)
  for _, name in ipairs(M.conversations) do
    local value = row[name]
    if conversations.style(value) then return name end
    if as_text and type(value) == 'string' and value:find '^%s*%[%s*{' then return name end
  end
  return json.is_array(row.messages) and 'messages' or nil
end

local function has_ids(row)
  return json.is_array(row.prompt_ids) and json.is_array(row.answer_ids)
end

local function tokens_in(row)
  local ids = row.input_ids
  return json.is_array(ids) or type(ids) == 'string' and ids:find '^%s*%[' ~= nil
end

local function pair_in(row)
  for _, pair in ipairs(M.pairs) do
    if has(row, pair[1]) and has(row, pair[2]) then
      return { kind = 'pair', prompt = pair[1], answer = pair[2] }
    end
  end
end

-- A response alone is a text; beside any prompt it is half of a pair.
local function text_in_row(row)
  local name = first_of(row, M.texts)
  if name then return { kind = 'text', text = name } end
  if not has(row, 'response') then return nil end
  for _, prompt in ipairs(PROMPTS) do
    if row[prompt] ~= nil then return nil end
  end
  return { kind = 'text', text = 'response' }
end

-- The form of a row whose answers are in a column that is named.
local function with_answer(row, answer)
  if not has(row, answer) then error(('column "%s" is missing'):format(answer), 0) end
  local prompt = turns_in(row, true) or first_of(row, PROMPTS)
  if prompt == answer then prompt = nil end
  if conversations.style(row[answer]) and not prompt then
    return { kind = 'messages', messages = answer }
  end
  if prompt then return { kind = 'pair', prompt = prompt, answer = answer } end
  error(('no prompts beside "%s": prompt_key names their column; text_key=%s learns all of "%s"')
    :format(answer, answer, answer), 0)
end

-- What to say of a row without columns to read.
local function explain(row)
  for _, name in ipairs(M.conversations) do
    if json.is_array(row[name]) then
      return ('; the turns of "%s" have no "role" and "content", and no "from" and "value"')
        :format(name)
    end
  end
  for _, name in ipairs { 'chosen', 'chosen_messages' } do
    if has(row, name) then
      return ('; data.answer_key=%s learns the better answers'):format(name)
    end
  end
  if json.is_array(row.instances) then
    return '; "instances" is a list, and a row holds one sample'
  end
  local prompt = first_of(row, PROMPTS)
  if prompt then return ('; there are no answers to "%s"'):format(prompt) end
  local names = fields.known(row)
  return #names > 0 and ('; nothing reads "%s"'):format(table.concat(names, '", "')) or ''
end

local MOST = 20 -- columns that are named

local function names_of(row)
  local names = sorted.keys(row)
  local words = table.concat(names, ', ', 1, math.min(#names, MOST))
  return #names > MOST and ('%s and %d more'):format(words, #names - MOST) or words
end

local function find(row, answer)
  if has_ids(row) then return { kind = 'ids' } end
  if tokens_in(row) then return { kind = 'tokens', words = tokenised.describe(row) } end
  if answer then return with_answer(row, answer) end
  local turns = turns_in(row, false)
  if turns then return { kind = 'messages', messages = turns } end
  local form = pair_in(row) or text_in_row(row)
  if form then return form end
  turns = turns_in(row, true)
  if turns then return { kind = 'messages', messages = turns } end
  error(('no known columns among %s: name them with prompt_key and answer_key, text_key or '
    .. 'messages_key%s'):format(names_of(row), explain(row)), 0)
end

-- The columns beside its own that a form reads and the row has something in.
local function find_beside(row, form, ignored)
  local found, left_out = {}, {}
  for _, name in ipairs(ignored or {}) do left_out[name] = true end
  for _, group in ipairs(BESIDE) do
    local fits = form.kind == 'pair' or form.kind == 'messages' and not group.pair
    for _, name in ipairs(fits and group or {}) do
      if not fields.is_absent(row[name]) and not left_out[name] then
        found[#found + 1] = ('%s in "%s"'):format(group.words, name)
      end
    end
  end
  return found
end

--- The form of a row, by the columns that are not null.
--- @param row table
--- @param o? table a data set's options: `answer_key` alone names the answers' column
--- @return table
function M.detect(row, o)
  local form = find(row, o and o.answer_key)
  form.found = find_beside(row, form, o and o.ignore)
  local input = M.input_key(form)
  form.input = input and row[input] ~= nil and input or nil
  form.style = form.messages and conversations.style(row[form.messages])
  return form
end

-- Token ids and, in what `ms.generate.write` writes, the text of the answer's.
local IDS = { 'prompt_ids', 'answer_ids', 'answer' }

--- The columns that are read of a form's rows, whatever the template.
--- @param form table
--- @param weight_key? string
--- @return table<string, boolean>
function M.used(form, weight_key)
  local used = { ended = true, id = true }
  local function use(name) if name then used[name] = true end end
  for _, part in ipairs { 'messages', 'prompt', 'answer', 'text' } do use(form[part]) end
  use(M.input_key(form))
  if form.messages then
    use 'system'
    use 'system_prompt'
  end
  for _, name in ipairs(form.kind == 'ids' and IDS or {}) do use(name) end
  for _, name in ipairs(form.kind == 'tokens' and tokenised.columns or {}) do use(name) end
  local chosen = is_chosen(form.answer) or is_chosen(form.messages)
  for _, name in ipairs(chosen and CHOICES or {}) do use(name) end
  use(weight_key)
  return used
end

--- A form in words.
--- @param form table
--- @param weight_key? string
--- @return string
function M.describe(form, weight_key)
  local words = form.kind == 'messages' and ('%s in "%s"'):format(WORDS[form.style]
      or 'conversations', form.messages)
    or form.kind == 'ids' and 'tokens in "prompt_ids" and "answer_ids"'
    or form.kind == 'tokens' and form.words
    or form.kind == 'text' and ('text in "%s"'):format(form.text)
    or ('prompts in "%s"%s, answers in "%s"'):format(form.prompt,
      form.input and (' and "%s"'):format(form.input) or '', form.answer)
  for _, found in ipairs(form.found or {}) do words = words .. ', ' .. found end
  return weight_key and ('%s, weights in "%s"'):format(words, weight_key) or words
end

return M
