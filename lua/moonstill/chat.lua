--- Conversations as training samples: a tokenizer, how turns are written, and which tokens are
--- learnt.
---
---   local chat = ms.chat.open(student, { teacher })
---   local ids, n, weights = chat:encode { messages = {
---     { role = 'user', content = 'Hi' }, { role = 'assistant', content = 'Hello' } } }
---
--- A weight belongs to the position that *predicts* (as in `ms.batch`): weights[t] is that of
--- token t + 1. Supervised are the assistant's tokens and the token that ends its turn, in every
--- assistant turn; of a prompt with its answer, the answer and the token that ends the text; of
--- plain text, everything. A sample without any such token is an error, never a silent mask.
---
--- Turns are written as ChatML where the tokenizer has <|im_start|> and <|im_end|>: <|im_start|>,
--- the role, a newline, the content, <|im_end|>, a newline (which nobody has to learn). Without
--- those there are no conversations, and a prompt and its answer are plain text. What the
--- tokenizer puts before a text (BOS) comes once. Special tokens spelled in contents are letters.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local json = require 'moonstill.json'
local options_of = require 'moonstill.options'
local tokenizer = require 'moonstill.tokenizer'

local M = {}

local ints = ffi.typeof 'int32_t[?]'
local floats = ffi.typeof 'float[?]'
local PLAIN = { parse = false }
-- A role that nobody knows is a slip of the pen, and an answer that would not be learnt.
local ROLES, is_role = { 'system', 'developer', 'user', 'assistant', 'tool', 'function' }, {}
for _, role in ipairs(ROLES) do is_role[role] = true end
local START, END = '<|im_start|>', '<|im_end|>'

--- @class ms_chat
--- @field tokenizer ms_tokenizer
--- @field markup '"chatml"'|'"plain"'
--- @field bos integer[] what the tokenizer puts before a text
--- @field eos integer[] ids that end a text, the first of which is written
--- @field stop integer[] ids at which a generated answer ends
local methods = {}

-- files ------------------------------------------------------------------------------------------

local function is_model(x) return type(x) == 'cdata' or (type(x) == 'table' and x.info ~= nil) end

-- The folder of a model, which may be given as a path; nil when it has none.
local function folder_of(x, level)
  if type(x) == 'string' then return x end
  if not is_model(x) then
    error('chat: a model or a folder expected, got ' .. type(x), level + 1)
  end
  local path = x:info().path
  return type(path) == 'string' and path ~= '' and path or nil
end

local function file_of(folder, name)
  if C.ms_path_kind(folder) ~= 2 then folder = folder:gsub('[^/]*$', ''):gsub('^$', '.') end
  return folder .. '/' .. name
end

local function settings(folder, name)
  local path = file_of(folder, name)
  return C.ms_path_kind(path) == 1 and json.read(path) or {}
end

local function has_tokenizer(folder)
  if not folder then return false end
  return C.ms_path_kind(folder) == 1 or C.ms_path_kind(folder .. '/tokenizer.json') == 1
end

-- Ids from a value of generation_config.json or config.json: a number, a list, or nothing of use.
local function ids_of(value, size)
  local list = {}
  for _, id in ipairs(type(value) == 'table' and value or { value }) do
    if type(id) == 'number' and id >= 0 and id < size then list[#list + 1] = id end
  end
  return list
end

local function find_eos(folder, tok)
  for _, name in ipairs { 'generation_config.json', 'config.json' } do
    local list = ids_of(settings(folder, name).eos_token_id, tok:size())
    if #list > 0 then return list end
  end
  local token = settings(folder, 'tokenizer_config.json').eos_token
  if type(token) == 'table' then token = token.content end
  local id = type(token) == 'string' and tok:id(token)
  return id and { id } or {}
end

-- What the post-processor puts before a text: what comes before the ids that the text has alone.
local function find_bos(tok)
  local with, plain = tok:ids('a', { special = true }), tok:ids 'a'
  for before = 0, #with - #plain do
    local same = true
    for i = 1, #plain do same = same and with[before + i] == plain[i] end
    if same then
      local list = {}
      for i = 1, before do list[i] = with[i] end
      return list
    end
  end
  error('chat: the tokenizer gives "a" other ids when its special tokens are added', 0)
end

-- growing a sample -------------------------------------------------------------------------------

-- One sample grows here at a time; what is handed out is a copy.
local room = 0
local token, label, length -- label[t]: the weight of token t itself

local function reserve(n)
  if length + n <= room then return end
  room = math.max(4096, 2 * (length + n))
  local more_tokens, more_labels = ints(room), floats(room)
  if token then
    ffi.copy(more_tokens, token, 4 * length)
    ffi.copy(more_labels, label, 4 * length)
  end
  token, label = more_tokens, more_labels
end

local function begin(chat)
  length = 0
  reserve(#chat.bos + 1)
  for _, id in ipairs(chat.bos) do
    token[length], label[length] = id, 0
    length = length + 1
  end
end

local function add_id(id, weight)
  reserve(1)
  token[length], label[length] = id, weight
  length = length + 1
end

local function add_ids(ids, from, to, weight)
  reserve(to - from)
  ffi.copy(token + length, ids + from, 4 * (to - from))
  for i = length, length + to - from - 1 do label[i] = weight end
  length = length + to - from
end

local function starts_with(ids, n, head, head_n)
  if n < head_n then return false end
  for i = 0, head_n - 1 do
    if ids[i] ~= head[i] then return false end
  end
  return true
end

local function joined(a, na, b, from, nb)
  local all = ints(na + nb - from)
  ffi.copy(all, a, 4 * na)
  ffi.copy(all + na, b + from, 4 * (nb - from))
  return all, na + nb - from
end

-- What a text is put behind when it cannot follow its head directly: tokenizers of SentencePiece's
-- kind put a space before every text that begins.
local ANCHORS = { '\n', '.', 'a' }

--- The ids of `tail` as it goes on behind `head`, such that the ids of `head` are those it has
--- alone, since that is what a model is asked to continue. Where the two would share a token they
--- are cut apart. Returns ids, the first and the last + 1 that belong to the tail.
local function continue(chat, head, tail)
  local tok = chat.tokenizer
  local a, na = tok:encode(head, PLAIN)
  local both, n = tok:encode(head .. tail, PLAIN)
  if starts_with(both, n, a, na) then return both, na, n end
  local want = tok:decode(both, n)
  local alone, m = tok:encode(tail, PLAIN)
  if tok:decode(joined(a, na, alone, 0, m)) == want then return alone, 0, m end
  for _, anchor in ipairs(ANCHORS) do
    local c, nc = tok:encode(anchor, PLAIN)
    local behind, k = tok:encode(anchor .. tail, PLAIN)
    if starts_with(behind, k, c, nc) and tok:decode(joined(a, na, behind, nc, k)) == want then
      return behind, nc, k
    end
  end
  error('the answer cannot be cut from its prompt: they share a character', 0)
end

-- turns ------------------------------------------------------------------------------------------

local function content_of(message, where)
  local content = message.content
  if type(content) == 'string' then return content end
  if not json.is_array(content) then error(where .. ': content is not text', 0) end
  local parts = {}
  for i, part in ipairs(content) do
    if type(part) ~= 'table' or part.type ~= 'text' or type(part.text) ~= 'string' then
      error(('%s: part %d of the content is not text'):format(where, i), 0)
    end
    parts[i] = part.text
  end
  return table.concat(parts)
end

local function weight_of(value, where)
  if value == nil or value == json.null then return 1 end
  if type(value) ~= 'number' or not (value >= 0 and value < math.huge) then
    error(('%s: weight %s is no number from 0 on'):format(where, tostring(value)), 0)
  end
  return value
end

local function add_turn(chat, role, content, weight)
  local tok, head = chat.tokenizer, role .. '\n'
  add_id(chat.start_id, 0)
  if weight then
    local ids, n = tok:encode(head, PLAIN)
    add_ids(ids, 0, n, 0)
    local from
    ids, from, n = continue(chat, head, content)
    add_ids(ids, from, n, weight)
  else
    local ids, n = tok:encode(head .. content, PLAIN)
    add_ids(ids, 0, n, 0)
  end
  add_id(chat.end_id, weight or 0)
  add_ids(chat.newline, 0, chat.newline_count, 0)
end

local function add_messages(chat, messages)
  if chat.markup ~= 'chatml' then
    error(('messages are written as ChatML, and this tokenizer has no %s and %s: give prompts and '
      .. 'answers, or texts, in columns of their own'):format(START, END), 0)
  end
  if not json.is_array(messages) then error('messages are no list', 0) end
  if #messages == 0 then error('messages are an empty list', 0) end
  for i, message in ipairs(messages) do
    local where = 'message ' .. i
    if type(message) ~= 'table' or type(message.role) ~= 'string' or message.role == '' then
      error(where .. ': no role', 0)
    end
    if not is_role[message.role] then
      error(('%s: no role %s; %s'):format(where, json.encode(message.role),
        options_of.instead(message.role, ROLES)), 0)
    end
    local content = content_of(message, where)
    local weight = message.role == 'assistant' and weight_of(message.weight, where) or nil
    if weight and weight > 0 and content == '' then error(where .. ': empty answer', 0) end
    add_turn(chat, message.role, content, weight)
  end
end

local function need_eos(chat)
  if chat.eos[1] then return chat.eos[1] end
  error('no token ends a text: generation_config.json, config.json and tokenizer_config.json name '
    .. 'none that the tokenizer has', 0)
end

local function add_pair(chat, prompt, answer)
  if type(prompt) ~= 'string' then error('the prompt is not text', 0) end
  if type(answer) ~= 'string' then error('the answer is not text', 0) end
  if answer == '' then error('empty answer', 0) end
  if chat.markup == 'chatml' then
    add_turn(chat, 'user', prompt)
    return add_turn(chat, 'assistant', answer, 1)
  end
  local eos = need_eos(chat)
  local ids, n = chat.tokenizer:encode(prompt, PLAIN)
  add_ids(ids, 0, n, 0)
  local from
  ids, from, n = continue(chat, prompt, answer)
  add_ids(ids, from, n, 1)
  add_id(eos, 1)
end

local function add_text(chat, text)
  if type(text) ~= 'string' then error('the text is not text', 0) end
  if text == '' then error('empty text', 0) end
  local eos = need_eos(chat)
  local ids, n = chat.tokenizer:encode(text, PLAIN)
  add_ids(ids, 0, n, 1)
  add_id(eos, 1)
end

-- Other names of the assistant (gpt, model) are not guessed.
local function why_nothing(messages)
  for _, message in ipairs(messages or {}) do
    if message.role == 'assistant' then return '' end
  end
  return messages and ': no message has the role "assistant"' or ''
end

-- From the weights of tokens to those of the positions that predict them.
local function finish(messages)
  local ids, weights, any = ints(length), floats(length), false
  ffi.copy(ids, token, 4 * length)
  for t = 0, length - 2 do
    weights[t] = label[t + 1]
    any = any or label[t + 1] > 0
  end
  if not any then error('no token is supervised' .. why_nothing(messages), 0) end
  return ids, length, weights
end

--- A sample's ids and the weights of its predicting positions.
--- @param sample { messages?: table[], prompt?: string, answer?: string, text?: string } one of the
---   three forms; a message may have a `weight` (0: not learnt)
--- @return ffi.cdata* ids int32_t[n]
--- @return integer n
--- @return ffi.cdata* weights float[n]
function methods:encode(sample)
  if type(sample) ~= 'table' then error('chat: a sample is a table', 2) end
  begin(self)
  if sample.messages ~= nil then
    add_messages(self, sample.messages)
  elseif sample.prompt ~= nil or sample.answer ~= nil then
    add_pair(self, sample.prompt, sample.answer)
  elseif sample.text ~= nil then
    add_text(self, sample.text)
  else
    error('no messages, no prompt and answer, no text', 0)
  end
  return finish(sample.messages)
end

--- The ids of a prompt whose answer is to be generated: the turns so far and the head of the
--- assistant's, or the text itself where there are no turns.
--- @param prompt string|table[] a user's text, or messages
--- @return integer[]
function methods:prompt(prompt)
  begin(self)
  if self.markup == 'chatml' then
    if type(prompt) == 'string' then prompt = { { role = 'user', content = prompt } } end
    add_messages(self, json.array(prompt))
    add_id(self.start_id, 0)
  end
  local text = self.markup == 'chatml' and 'assistant\n' or prompt
  if type(text) ~= 'string' then error('chat: this tokenizer has no turns; give a text', 2) end
  local ids, n = self.tokenizer:encode(text, PLAIN)
  add_ids(ids, 0, n, 0)
  local list = {}
  for i = 1, length do list[i] = token[i - 1] end
  return list
end

--- How many ids the tokenizer and these models share: the V of a divergence between them. Rows that
--- a model has behind the tokenizer's last id have no meaning.
--- @param ... ms_model|integer models, or their numbers of rows
--- @return integer
function methods:vocab(...)
  local least = self.tokenizer:size()
  for i = 1, select('#', ...) do
    local x = (select(i, ...))
    least = math.min(least, type(x) == 'number' and x or x:info().vocab)
  end
  return least
end

--- The longest sample that these models can take: `n`, or the least of their contexts where that is
--- less, which is said.
--- @param n integer what was asked for: a recipe's `data.max_tokens`
--- @param ... ms_model
--- @return integer
function methods:longest(n, ...)
  local least = n
  for i = 1, select('#', ...) do least = math.min(least, (select(i, ...)):info().context) end
  if least < n then
    io.stderr:write(('note: max_tokens is %d, not %d: the context of the %s\n'):format(least, n,
      select('#', ...) > 1 and 'shorter model' or 'model'))
  end
  return least
end

local function compare(chat, others)
  for _, other in ipairs(others) do
    local folder = folder_of(other, 3)
    if has_tokenizer(folder) and folder ~= chat.folder then
      local tok = tokenizer.open(folder)
      local ok, why = pcall(tok.same, tok, chat.tokenizer)
      tok:free()
      if not ok then error('chat: student and teacher: ' .. tostring(why), 0) end
    end
  end
end

local function find_folder(model, teachers)
  local first = folder_of(model, 3)
  if has_tokenizer(first) then return first end
  for _, teacher in ipairs(teachers) do
    local folder = folder_of(teacher, 3)
    if has_tokenizer(folder) then return folder end
  end
  error(('chat: no tokenizer.json in %s'):format(first or 'a model without a folder'), 0)
end

methods.__index = methods
methods.__tostring = function(self)
  return ('chat (%s) over %s'):format(self.markup, tostring(self.tokenizer))
end

--- Frees the tokenizer. A second call does nothing.
function methods:free() self.tokenizer:free() end

--- Opens the tokenizer of a model, after comparing it with those of its teachers: one id that means
--- another token is an error, which names the first. A model without a tokenizer of its own (a new
--- one) takes its first teacher's.
--- @param model ms_model|string a model, its folder, or a tokenizer.json
--- @param teachers? (ms_model|string)[]
--- @return ms_chat
function M.open(model, teachers)
  teachers = teachers or {}
  local folder = find_folder(model, teachers)
  local tok = tokenizer.open(folder)
  local chat = setmetatable({ tokenizer = tok, folder = folder }, methods)
  chat.start_id, chat.end_id = tok:id(START), tok:id(END)
  chat.markup = chat.start_id and chat.end_id and 'chatml' or 'plain'
  chat.newline, chat.newline_count = tok:encode '\n'
  chat.bos, chat.eos = find_bos(tok), find_eos(folder, tok)
  compare(chat, teachers)
  chat.stop = {}
  for i, id in ipairs(chat.eos) do chat.stop[i] = id end
  if chat.markup == 'chatml' then
    local known = false
    for _, id in ipairs(chat.stop) do known = known or id == chat.end_id end
    if not known then chat.stop[#chat.stop + 1] = chat.end_id end
  end
  return chat
end

return M
