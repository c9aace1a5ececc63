--- Conversations as training samples: a tokenizer, how turns are written, and which tokens are
--- learnt.
---
---   local chat = ms.chat.open(student, { teacher })
---   local ids, n, weights, all = chat:encode { messages = {
---     { role = 'user', content = 'Hi' }, { role = 'assistant', content = 'Hello' } } }
---
--- A weight belongs to the position that *predicts* (as in `ms.batch`): weights[t] is that of
--- token t + 1. Supervised are the assistant's tokens and the token that ends its turn, in every
--- assistant turn; of a prompt with its answer, the answer and the token that ends the text; of
--- plain text, everything. A sample without any such token is an error, never a silent mask.
---
--- A message's own weight is that of its whole turn where prompts are learnt too (`on = "all"`);
--- where answers are, it counts for the assistant's.
---
--- Turns are written as ChatML where the tokenizer has <|im_start|> and <|im_end|>: <|im_start|>,
--- the role, a newline, the content, <|im_end|>, a newline (which nobody has to learn). Without
--- those there are no conversations, and a prompt and its answer are plain text. What the
--- tokenizer puts before a text (BOS) comes once, and so does the end of a text or an answer, also
--- where the text spells them. Other special tokens spelled in contents are letters, which
--- `ms.dataset` says.
---
--- A sample with `ended = false` is an answer that was cut off: no end is written or learnt.
--- `prompt_ids` and `answer_ids` are taken as they are: nothing comes before, between or behind.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local ends = require 'moonstill.text.ends'
local fail = require 'moonstill.base.fail'
local fields = require 'moonstill.data.fields'
local handles = require 'moonstill.base.handle'
local json = require 'moonstill.base.json'
local options_of = require 'moonstill.base.options'
local ranks = require 'moonstill.base.ranks'
local strict = require 'moonstill.base.strict'
local tokenizer = require 'moonstill.text.tokenizer'

local M = {}

local ints = ffi.typeof 'int32_t[?]'
local floats = ffi.typeof 'float[?]'
local PLAIN = { parse = false }
-- A role that nobody knows is a slip of the pen, and an answer that would not be learnt.
local ROLES, is_role = { 'system', 'developer', 'user', 'assistant', 'tool', 'function' }, {}
for _, role in ipairs(ROLES) do is_role[role] = true end

--- @class ms_chat
--- @field tokenizer ms_tokenizer
--- @field markup '"chatml"'|'"plain"'
--- @field bos integer[] what the tokenizer puts before a text
--- @field eos integer[] ids that end a text, the first of which is written
--- @field stop integer[] ids at which a generated answer ends
--- @field marks string[] how the special tokens of turns, beginnings and ends are spelled
local methods = {}
local class = strict.class('chat', methods, { start_id = true, end_id = true })

-- files ------------------------------------------------------------------------------------------

local function is_model(x)
  return handles.is('model', x) or (type(x) == 'table' and type(x.info) == 'function')
end

-- The folder of a model, which may be given as a path; nil when it has none.
local function folder_of(x)
  if type(x) == 'string' then return check.path('chat', x) end
  if not is_model(x) then
    fail('chat: a model or a folder expected, got ' .. type(x))
  end
  local path = x:info().path
  return type(path) == 'string' and path ~= '' and path or nil
end

local function has_tokenizer(folder)
  if not folder then return false end
  return C.ms_path_kind(folder) == 1 or C.ms_path_kind(folder .. '/tokenizer.json') == 1
end

-- growing a sample -------------------------------------------------------------------------------

-- One sample grows here at a time; what is handed out is a copy.
local room = 0
-- Weights of token t itself: label[t] where answers are learnt, share[t] where everything is.
local token, label, share, length
local turn -- the share of what is added now
local as_letters -- the first special token that a text spells, whose letters are learnt instead

local function reserve(n)
  if length + n <= room then return end
  room = math.max(4096, 2 * (length + n))
  local more_tokens, more_labels, more_shares = ints(room), floats(room), floats(room)
  if token then
    ffi.copy(more_tokens, token, 4 * length)
    ffi.copy(more_labels, label, 4 * length)
    ffi.copy(more_shares, share, 4 * length)
  end
  token, label, share = more_tokens, more_labels, more_shares
end

local function add_id(id, weight)
  reserve(1)
  token[length], label[length], share[length] = id, weight, turn
  length = length + 1
end

local function add_list(list, weight)
  for _, id in ipairs(list) do add_id(id, weight) end
end

local function begin(chat)
  length, turn, as_letters = 0, 1, nil
  add_list(chat.bos, 0)
end

local function add_ids(ids, from, to, weight)
  reserve(to - from)
  ffi.copy(token + length, ids + from, 4 * (to - from))
  for i = length, length + to - from - 1 do label[i], share[i] = weight, turn end
  length = length + to - from
end

local function note_spelled(chat, text)
  for _, mark in ipairs(chat.marks) do
    if not as_letters and text:find(mark, 1, true) then as_letters = mark end
  end
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
  fail('the answer cannot be cut from its prompt: they share a character')
end

-- turns ------------------------------------------------------------------------------------------

local function content_of(message, where)
  local content = message.content
  if type(content) == 'string' then return content end
  if not json.is_array(content) then fail(where .. ': content is not text') end
  local parts = {}
  for i, part in ipairs(content) do
    if type(part) ~= 'table' or part.type ~= 'text' or type(part.text) ~= 'string' then
      local kind = type(part) == 'table' and type(part.type) == 'string' and part.type ~= 'text'
      fail('%s: part %d of the content is not text%s', where, i,
        kind and (' but of type %s'):format(json.encode(part.type)) or '')
    end
    parts[i] = part.text
  end
  return table.concat(parts)
end

local function weight_of(value, where)
  if value == nil or value == json.null then return 1 end
  return check.weight(where, value)
end

-- `open`: the turn has no end.
local function add_turn(chat, role, content, weight, open)
  local tok, head = chat.tokenizer, role .. '\n'
  local learnt = role == 'assistant' and weight or 0
  turn = weight
  note_spelled(chat, content)
  add_id(chat.start_id, 0)
  if role == 'assistant' then
    local ids, n = tok:encode(head, PLAIN)
    add_ids(ids, 0, n, 0)
    local from
    ids, from, n = continue(chat, head, content)
    add_ids(ids, from, n, learnt)
  else
    local ids, n = tok:encode(head .. content, PLAIN)
    add_ids(ids, 0, n, 0)
  end
  if open then return end
  add_id(chat.end_id, learnt)
  add_ids(chat.newline, 0, chat.newline_count, 0)
end

-- An answer without the end that it spells: its turn has one.
local function answer_of(chat, content)
  return (ends.without(chat.tokenizer, chat.stop, content))
end

-- A message's role, content and weight.
local function read_message(chat, message, where)
  if type(message) ~= 'table' then fail(where .. ': no role') end
  local role = message.role
  if type(role) ~= 'string' or role == '' then
    fail(where .. ': no role' .. (message.from ~= nil
      and '; turns of "from" and "value" are not read' or ''))
  end
  if not is_role[role] then
    fail('%s: no role %s; %s', where, json.encode(role),
      options_of.instead(role, ROLES))
  end
  local unread = fields.unread(message)
  if #unread > 0 then
    fail('%s: what is learnt depends on "%s", which nothing reads', where,
      table.concat(unread, '", "'))
  end
  local content, weight = content_of(message, where), weight_of(message.weight, where)
  if role ~= 'assistant' then return role, content, weight end
  content = answer_of(chat, content)
  if weight > 0 and content == '' then fail(where .. ': empty answer') end
  return role, content, weight
end

local function add_messages(chat, messages, open)
  if chat.markup ~= 'chatml' then
    fail('messages are written as ChatML, and this tokenizer has no %s and %s: give prompts and '
      .. 'answers, or texts, in columns of their own', ends.turn.first, ends.turn.last)
  end
  if not json.is_array(messages) then fail('messages are no list') end
  if #messages == 0 then fail('messages are an empty list') end
  for i, message in ipairs(messages) do
    local role, content, weight = read_message(chat, message, 'message ' .. i)
    local last = open and i == #messages
    if last and role ~= 'assistant' then
      fail('ended is false, and the last message is no answer')
    end
    add_turn(chat, role, content, weight, last)
  end
end

local function need_eos(chat)
  if chat.eos[1] then return chat.eos[1] end
  fail('no token ends a text: generation_config.json, config.json and tokenizer_config.json name '
    .. 'none that the tokenizer has')
end

-- A text without the BOS and the end that it spells; the end to write behind it.
local function bare(chat, text)
  local eos = need_eos(chat)
  local rest, spelled = ends.without(chat.tokenizer, chat.eos, text)
  return rest, spelled or eos
end

local function add_pair(chat, prompt, answer, open)
  if type(prompt) ~= 'string' then fail('the prompt is not text') end
  if type(answer) ~= 'string' then fail('the answer is not text') end
  if chat.markup == 'chatml' then answer = answer_of(chat, answer) end
  if answer == '' then fail('empty answer') end
  if chat.markup == 'chatml' then
    add_turn(chat, 'user', prompt, 1)
    return add_turn(chat, 'assistant', answer, 1, open)
  end
  local rest, eos = bare(chat, answer)
  prompt = ends.behind(chat.tokenizer, chat.bos, prompt)
  note_spelled(chat, prompt .. rest)
  local ids, n = chat.tokenizer:encode(prompt, PLAIN)
  add_ids(ids, 0, n, 0)
  local from
  ids, from, n = continue(chat, prompt, rest)
  add_ids(ids, from, n, 1)
  if not open then add_id(eos, 1) end
end

local function add_text(chat, text, open)
  if type(text) ~= 'string' then fail('the text is not text') end
  if text == '' then fail('empty text') end
  local rest, eos = bare(chat, ends.behind(chat.tokenizer, chat.bos, text))
  note_spelled(chat, rest)
  local ids, n = chat.tokenizer:encode(rest, PLAIN)
  add_ids(ids, 0, n, 1)
  if not open then add_id(eos, 1) end
end

local function add_exact(chat, name, list, weight)
  local size = chat.tokenizer:size()
  if not json.is_array(list) then fail(name .. ' is no list') end
  if #list == 0 then fail(name .. ' is empty') end
  for i, id in ipairs(list) do
    if type(id) ~= 'number' or id % 1 ~= 0 or id < 0 or id >= size then
      fail('%s: id %d is %s; ids of this tokenizer are integers in 0..%d', name, i,
        tostring(id), size - 1)
    end
  end
  add_list(list, weight)
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
  local ids, weights, all, any = ints(length), floats(length), floats(length), false
  ffi.copy(ids, token, 4 * length)
  for t = 0, length - 2 do
    weights[t], all[t] = label[t + 1], share[t + 1]
    any = any or label[t + 1] > 0
  end
  if not any then fail('no token is supervised' .. why_nothing(messages)) end
  return ids, length, weights, all, as_letters
end

--- A sample's ids and the weights of its predicting positions: where answers are learnt, and where
--- everything is (`on = "all"`).
--- @param sample { messages?: table[], prompt?: string, answer?: string, text?: string,
---   prompt_ids?: integer[], answer_ids?: integer[], ended?: boolean } one of the four forms; a
---   message may have a `weight` (0: not learnt)
--- @return ffi.cdata* ids int32_t[n]
--- @return integer n
--- @return ffi.cdata* weights float[n]
--- @return ffi.cdata* all float[n]
--- @return string? as_letters a special token that a text spells and that is read as letters
function methods:encode(sample)
  if type(sample) ~= 'table' then fail('chat: a sample is a table') end
  local open = sample.ended == false
  begin(self)
  if sample.prompt_ids ~= nil or sample.answer_ids ~= nil then
    length = 0
    add_exact(self, 'prompt_ids', sample.prompt_ids, 0)
    add_exact(self, 'answer_ids', sample.answer_ids, 1)
  elseif sample.messages ~= nil then
    add_messages(self, sample.messages, open)
  elseif sample.prompt ~= nil or sample.answer ~= nil then
    add_pair(self, sample.prompt, sample.answer, open)
  elseif sample.text ~= nil then
    add_text(self, sample.text, open)
  else
    fail('no messages, no prompt and answer, no text')
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
  if type(text) ~= 'string' then fail('chat: this tokenizer has no turns; give a text') end
  if self.markup == 'plain' then text = ends.behind(self.tokenizer, self.bos, text) end
  local ids, n = self.tokenizer:encode(text, PLAIN)
  add_ids(ids, 0, n, 0)
  local list = {}
  for i = 1, length do list[i] = token[i - 1] end
  return list
end

--- How many ids the tokenizer and these models share: the V of a divergence between them. Rows that
--- a model has behind the tokenizer's last id have no meaning.
--- @param ... ms_model|integer models, or numbers of ids (0: any), such as a recipe's `kd.vocab`
--- @return integer
function methods:vocab(...)
  local least = self.tokenizer:size()
  for i = 1, select('#', ...) do
    local x = (select(i, ...))
    local n = type(x) == 'number' and x or x:info().vocab
    if n ~= 0 then least = math.min(least, n) end
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
    ranks.world():say(('note: max_tokens is %d, not %d: the context of the %s'):format(least, n,
      select('#', ...) > 1 and 'shorter model' or 'model'))
  end
  return least
end

local function compare(chat, others)
  for _, other in ipairs(others) do
    local folder = folder_of(other)
    if has_tokenizer(folder) and folder ~= chat.folder then
      local tok = tokenizer.open(folder)
      local ok, why = fail.pcall(tok.same, tok, chat.tokenizer)
      tok:free()
      if not ok then error('chat: student and teacher: ' .. why, 0) end
    end
  end
end

-- Spellings that no text has by chance.
local function marks_of(tok, ...)
  local list = {}
  for _, id in ipairs(ends.union(tok:size(), ...)) do
    if tok:is_special(id) then list[#list + 1] = tok:token(id) end
  end
  return list
end

local function find_folder(model, teachers)
  local first = folder_of(model)
  if has_tokenizer(first) then return first end
  for _, teacher in ipairs(teachers) do
    local folder = folder_of(teacher)
    if has_tokenizer(folder) then return folder end
  end
  return first or fail('chat: a model without a folder has no tokenizer')
end

function class:__tostring()
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
  teachers = teachers == nil and {} or check.table('chat', 'teachers', teachers)
  local folder = find_folder(model, teachers)
  local tok = tokenizer.open(folder)
  local chat = setmetatable({ tokenizer = tok, folder = folder }, class)
  chat.start_id, chat.end_id = ends.of_turn(tok)
  chat.markup = chat.start_id and 'chatml' or 'plain'
  chat.newline, chat.newline_count = tok:encode '\n'
  chat.bos, chat.eos = ends.bos(tok), ends.of_text(folder, tok)
  chat.stop = ends.of_answer(chat.eos, tok)
  chat.marks = marks_of(tok, chat.start_id, chat.stop, chat.bos)
  compare(chat, teachers)
  return chat
end

return M
