--- Rows to samples, by their form (`data/forms.lua`).

local check = require 'moonstill.base.check'
local conversations = require 'moonstill.data.conversations'
local fail = require 'moonstill.base.fail'
local fields = require 'moonstill.data.fields'
local forms = require 'moonstill.data.forms'
local json = require 'moonstill.base.json'
local tokenised = require 'moonstill.data.tokenised'

local M = {}

M.pairs, M.texts, M.conversations = forms.pairs, forms.texts, forms.conversations
M.asked, M.detect, M.used, M.describe = forms.asked, forms.detect, forms.used, forms.describe

local has = forms.has

local function kind_of(value)
  if value == nil then return 'missing' end
  if value == json.null then return 'null' end
  return json.is_array(value) and 'a list' or type(value) == 'table' and 'an object'
    or 'a ' .. type(value)
end

local function refuse(key, value, wanted)
  error(('column "%s" is %s%s'):format(key, kind_of(value),
    value == nil and '' or ', not ' .. (wanted or 'text')), 0)
end

local function text_in(row, key)
  local value = row[key]
  if type(value) == 'string' then return value end
  refuse(key, value)
end

-- What a form reads as lists and objects.
local BESIDE = { 'history', 'documents', 'chat_template_kwargs' }
local LISTS = { ids = { 'prompt_ids', 'answer_ids' }, tokens = tokenised.columns, messages = BESIDE,
  pair = BESIDE, text = {} }
local is_turns_column = {}
for _, name in ipairs(M.conversations) do is_turns_column[name] = true end

-- The value of a JSON text; a text that is none is left to whoever reads it.
local function parse(row, name)
  local text = row[name]
  if type(text) ~= 'string' or not text:find '^%s*[%[{]' then return end
  local ok, value = fail.pcall(conversations.parse, text, ('column "%s"'):format(name))
  if ok then row[name] = value end
end

--- Parses what a form reads as lists and objects where a row has texts in their place, as those of
--- tables do.
--- @param row table
--- @param form table
function M.parse(row, form)
  for _, name in ipairs(LISTS[form.kind]) do parse(row, name) end
  if form.messages then parse(row, form.messages) end
  if is_turns_column[form.prompt] then parse(row, form.prompt) end
end

--- The lists of messages that a row of a form holds, for `fields`.
--- @param row table
--- @param form table
--- @return table[]
function M.lists(row, form)
  local lists = {}
  for _, part in ipairs { 'messages', 'prompt', 'answer' } do
    local value = form[part] and row[form[part]]
    if json.is_array(value) then lists[#lists + 1] = value end
  end
  return lists
end

-- ms-swift's rows have addresses of images in their texts.
local function check_images(form, text)
  if form.prompt == 'query' and text:find '<img>[^<]*</img>' then
    error(('column "%s" has an image in it (<img>..</img>), and images are not read')
      :format(form.prompt), 0)
  end
  return text
end

local function prompt_in(row, form)
  local prompt, key = check_images(form, text_in(row, form.prompt)), forms.input_key(form)
  local input = key and has(row, key) and text_in(row, key) or ''
  return input == '' and prompt or prompt .. '\n\n' .. input
end

-- Whether a prompt or an answer is turns: a list of them, or one.
local function is_turns(value)
  return conversations.style(value) ~= nil
    or json.is_object(value) and (value.role ~= nil or value.from ~= nil)
end

-- The turns of a prompt or an answer, which may be a text that somebody says.
local function turns_of(row, form, key, role)
  local value = row[key]
  if is_turns(value) then
    return conversations.messages(json.is_array(value) and value or json.array { value })
  end
  local text = role == 'user' and prompt_in(row, form) or text_in(row, key)
  return json.array { { role = role, content = text } }
end

-- Whether the messages of an answer are a conversation from its beginning, prompt included.
local function is_whole(messages)
  local first = messages[1]
  return json.is_object(first) and first.role ~= 'assistant' and first.role ~= 'tool'
end

-- A prompt's messages, of which nothing is learnt, and its answer's.
local function joined(row, form)
  local answer = turns_of(row, form, form.answer, 'assistant')
  if is_whole(answer) then return answer end
  local messages = json.array()
  for _, message in ipairs(turns_of(row, form, form.prompt, 'user')) do
    if json.is_object(message) then message.train = false end
    messages[#messages + 1] = message
  end
  for _, message in ipairs(answer) do messages[#messages + 1] = message end
  return messages
end

-- Turns before a prompt: pairs of texts, which are learnt as all answers of a conversation are.
local function history_in(row)
  local list = row.history
  if fields.is_absent(list) then return nil end
  if not json.is_array(list) then refuse('history', list, 'a list') end
  local history = {}
  for i, pair in ipairs(list) do
    if not json.is_array(pair) or #pair ~= 2 or type(pair[1]) ~= 'string'
      or type(pair[2]) ~= 'string' then
      error(('column "history": entry %d is no pair of texts'):format(i), 0)
    end
    history[i] = { pair[1], pair[2], train = true }
  end
  return history
end

local function system_in(row)
  for _, name in ipairs { 'system', 'system_prompt' } do
    if not fields.is_absent(row[name]) then return text_in(row, name), name end
  end
end

local function args_in(row)
  local args = row.chat_template_kwargs
  if fields.is_absent(args) then args = nil end
  if args ~= nil and not json.is_object(args) then
    refuse('chat_template_kwargs', args, 'an object')
  end
  if not has(row, 'enable_thinking') then return args end
  args = args or {}
  args.enable_thinking = row.enable_thinking
  return args
end

local function tools_in(row)
  for _, name in ipairs { 'tools', 'functions' } do
    if not fields.is_absent(row[name]) then return conversations.tools(row[name], name) end
  end
end

-- What goes with messages.
local function add_beside(sample, row)
  sample.tools, sample.args = tools_in(row), args_in(row)
  if not fields.is_absent(row.documents) then sample.documents = row.documents end
  return sample
end

local function conversation_in(row, form)
  local given = row[form.messages]
  if given == nil or type(given) == 'string' then refuse(form.messages, given, 'a list') end
  local messages = conversations.messages(given)
  local system, name = system_in(row)
  if system and json.is_array(messages) then conversations.put_system(messages, system, name) end
  return add_beside({ messages = messages }, row)
end

local function pair_sample(row, form)
  if is_turns(row[form.prompt]) or is_turns(row[form.answer]) then
    local messages = joined(row, form)
    local system, name = system_in(row)
    if system then conversations.put_system(messages, system, name) end
    return add_beside({ messages = messages }, row)
  end
  return add_beside({ prompt = prompt_in(row, form), answer = text_in(row, form.answer),
    system = (system_in(row)), history = history_in(row) }, row)
end

-- Whether an answer ended or was cut off, where a row says so.
local ENDED = { ['true'] = true, ['True'] = true, ['false'] = false, ['False'] = false,
  [''] = true }

local function ended_in(row)
  local value = row.ended
  if type(value) == 'string' and ENDED[value] ~= nil then return ENDED[value] end
  if value == nil or value == json.null or type(value) == 'boolean' then return value ~= false end
  error('column "ended" is neither true nor false', 0)
end

local function id_in(row)
  local id = row.id
  if type(id) == 'string' and id ~= '' then return id end
  return type(id) == 'number' and (json.exact(row, 'id') or id) or nil
end

local SAMPLES = {
  ids = function(row)
    return { prompt_ids = row.prompt_ids or false, answer_ids = row.answer_ids or false }
  end,
  tokens = tokenised.sample,
  messages = conversation_in,
  text = function(row, form) return { text = text_in(row, form.text) } end,
  pair = pair_sample,
}

--- The sample of a row, for `chat:encode`.
--- @param row table
--- @param form table
--- @return table
function M.sample(row, form)
  local sample = SAMPLES[form.kind](row, form)
  sample.ended = ended_in(row)
  sample.id = id_in(row)
  return sample
end

--- A row's weight, 1 where it has none; and whether it has one. A table has it as a text.
--- @param row table
--- @param key? string its column
--- @return number
--- @return boolean
function M.weight(row, key)
  local value = key and row[key]
  if not key or not has(row, key) or value == '' then return 1, false end
  if type(value) == 'string' then value = tonumber(value) or value end
  return check.weight(('column "%s"'):format(key), value), true
end

return M
