--- Columns of rows and fields of messages that nothing here reads. Those that change what is learnt
--- in the formats people use are an error; the others are counted, so that they can be said.
---
--- A column or a field whose value is null or empty is not there.

local conversations = require 'moonstill.data.conversations'
local json = require 'moonstill.base.json'
local sorted = require 'moonstill.base.sorted'

local M = {}

-- Where a group's names change what is learnt: in a message, or beside what a row's form reads.
local IN_CHATS = { 'pair', 'messages', 'message' }
local IN_ALL = { 'pair', 'messages', 'text', 'message' }

local GROUPS = {
  -- Tools that could be called, and calls of them: OpenAI, TRL, LLaMA-Factory, ms-swift.
  { at = IN_CHATS, 'tools', 'functions', 'tool_choice', 'parallel_tool_calls', 'tool_calls',
    'function_call' },
  -- Who speaks, which call is answered, what is said instead of the content: OpenAI. To whom and
  -- where: gpt-oss.
  { at = { 'message' }, 'name', 'tool_call_id', 'refusal', 'recipient', 'channel' },
  -- What was thought before the answer: DeepSeek, vLLM, OpenRouter, gpt-oss.
  { at = IN_CHATS, 'reasoning', 'reasoning_content', 'reasoning_details', 'thinking', 'thoughts',
    'thought' },
  -- What goes before a row's messages or its prompt: Alpaca, LLaMA-Factory, ms-swift, RAG.
  { at = { 'pair', 'messages' }, 'system', 'system_prompt', 'history', 'documents' },
  -- What is to be done and what it is about, beside columns that do not say so: Dolly, SQuAD.
  { at = { 'pair' }, 'instruction', 'input', 'context' },
  -- Images and sounds that the text speaks of.
  { at = IN_ALL, 'image', 'images', 'video', 'videos', 'audio', 'audios', 'objects' },
  -- Answers to compare: DPO, and KTO, whose label says whether the answer is a good one.
  { at = { 'pair', 'messages', 'text' }, 'chosen', 'rejected', 'chosen_messages',
    'rejected_messages', 'rejected_response' },
  { at = { 'pair', 'messages' }, type = 'boolean', 'label' },
  -- What a chat template is given.
  { at = { 'pair', 'messages' }, 'chat_template', 'chat_template_kwargs', 'enable_thinking' },
  -- What is learnt of it and how much: axolotl, ms-swift, LLaMA-Factory, NeMo, TRL.
  { at = IN_ALL, 'train', 'training', 'train_detail', 'training_detail', 'train_on_inputs', 'mask',
    'loss', 'loss_mask', 'loss_weight', 'loss_scale', 'weights', 'completion_mask',
    'assistant_masks' },
  -- Rows that were tokenised.
  { at = { 'pair', 'messages', 'text' }, 'input_ids', 'labels', 'attention_mask', 'position_ids' },
}

local known = { pair = {}, messages = {}, text = {}, message = {}, part = {} }
for _, group in ipairs(GROUPS) do
  for _, place in ipairs(group.at) do
    for _, name in ipairs(group) do known[place][name] = group end
  end
end

known.ids = known.text -- they too are the whole of what is learnt
known.tokens = known.text

-- What a chat may read of rows, beside what their form reads, where it says so.
local OFFERED = { pair = {}, messages = {} }
for _, name in ipairs { 'tools', 'functions', 'documents', 'chat_template_kwargs',
  'enable_thinking' } do
  OFFERED.pair[name], OFFERED.messages[name] = true, true
end
for _, name in ipairs { 'system', 'system_prompt', 'history' } do OFFERED.pair[name] = true end

local MESSAGE = { role = true, content = true, weight = true }
local TURN = {} -- as ShareGPT and others write one
for name in sorted.pairs(MESSAGE) do TURN[name] = true end
for name in sorted.pairs(conversations.read) do TURN[name] = true end
local PART = { type = true, text = true, value = true }
local WHAT = { pair = 'row', messages = 'row', text = 'row', ids = 'row', tokens = 'row',
  message = 'message', part = 'part of a content' }
local CHOSEN = { chosen = true, chosen_messages = true }

--- Whether a value is null or says nothing: "", [], {}, and "[]", which is how LLaMA-Factory writes
--- no tools.
--- @param value any
--- @return boolean
function M.is_absent(value)
  if value == nil or value == json.null then return true end
  if type(value) == 'string' then return not value:find '[^%s%[%]{}]' end
  return type(value) == 'table' and next(value) == nil
end
local is_absent = M.is_absent

-- The name of the function that gave a result says nothing new: its call names it.
local function is_named_result(name, t)
  return name == 'name' and (t.role == 'tool' or t.role == 'function') and t.content ~= nil
end

local function changes(place, name, t)
  local group = known[place][name]
  if place == 'message' and is_named_result(name, t) then return false end
  return group and (not group.type or type(t[name]) == group.type)
end

--- The columns of a row that are known in some form, sorted.
--- @param row table
--- @return string[]
function M.known(row)
  local list = {}
  for name, value in sorted.pairs(row) do
    if (known.pair[name] or known.messages[name] or known.text[name]) and not is_absent(value) then
      list[#list + 1] = name
    end
  end
  return list
end

--- @class ms_fields
--- @package
local methods = {}
methods.__index = methods

--- A counter of what is not read. `ignore`: names that are taken as not there.
--- @param ignore? string[]
--- @return ms_fields
function M.new(ignore)
  local self = setmetatable({ ignored = {}, counts = {}, list = {} }, methods)
  for _, name in ipairs(ignore or {}) do self.ignored[name] = true end
  return self
end

local function count(self, what, name, ignored)
  local key = what .. '\0' .. name
  local entry = self.counts[key]
  if not entry then
    entry = { what = what, name = name, count = 0, ignored = ignored }
    self.counts[key], self.list[#self.list + 1] = entry, entry
  end
  entry.count = entry.count + 1
end

-- Whether the chat reads a name at a place. Whether turns are learnt has one name there.
local function is_read(reads, place, name)
  if not reads then return false end
  if place == 'message' then return reads(conversations.learning[name] and 'train' or name) end
  return OFFERED[place] ~= nil and OFFERED[place][name] ~= nil and reads(name)
end

-- Takes away what is ignored, counts what is not used; returns what may not be passed over.
local function look(self, place, t, used, reads)
  local found
  for name, value in sorted.pairs(t) do
    if self.ignored[name] then
      t[name] = nil
      if not is_absent(value) then count(self, WHAT[place], name, true) end
    elseif not used[name] and not is_absent(value) and not is_read(reads, place, name) then
      if changes(place, name, t) then
        found = found or {}
        found[#found + 1] = name
      else
        count(self, WHAT[place], tostring(name), false)
      end
    end
  end
  return found
end

local function add(all, names, where)
  for _, name in ipairs(names or {}) do
    if not all.seen[name] then
      all.seen[name] = true
      all.names[#all.names + 1] = name
      all.words[#all.words + 1] = ('"%s"%s'):format(name, where)
    end
  end
end

local function look_into(self, messages, all, reads)
  for i, message in ipairs(messages) do
    if json.is_object(message) then
      local used = message.role ~= nil and MESSAGE or TURN
      add(all, look(self, 'message', message, used, reads), ' of message ' .. i)
      for _, part in ipairs(json.is_array(message.content) and message.content or {}) do
        if json.is_object(part) then look(self, 'part', part, PART) end
      end
    end
  end
end

local function hint(all)
  for _, name in ipairs(all.names) do
    if CHOSEN[name] then return ('; data.answer_key=%s learns those answers'):format(name) end
  end
  return ''
end

--- Looks at a row: what is ignored is taken out of it and of its messages, what is not used is
--- counted. An error names what is not read and changes what is learnt.
--- @param row table
--- @param kind '"pair"'|'"messages"'|'"text"'|'"ids"'|'"tokens"' its form
--- @param used table<string, boolean> the columns that are read
--- @param lists table[][] the row's lists of messages, if it has some
--- @param reads? fun(name: string): boolean what the chat reads of rows and messages beside that:
---   columns such as `tools`, fields of messages such as `tool_calls`, and `train` for all names of
---   whether a message is learnt; default nothing
function methods:look(row, kind, used, lists, reads)
  local all = { seen = {}, names = {}, words = {} }
  add(all, look(self, kind, row, used, reads), '')
  for _, messages in ipairs(lists) do look_into(self, messages, all, reads) end
  if #all.names == 0 then return end
  error(('what is learnt depends on %s, which nothing reads: data.ignore=[%s] goes on without%s')
    :format(table.concat(all.words, ', '), table.concat(all.names, ','), hint(all)), 0)
end

--- What was counted, sorted: `what` has it ("row", "message", "part of a content"), its `name`, how
--- often (`count`), and whether it was `ignored` as asked.
--- @return { what: string, name: string, count: integer, ignored: boolean }[]
function methods:counted()
  table.sort(self.list, function(a, b)
    if a.what ~= b.what then return a.what > b.what end -- rows, parts, messages
    return a.name < b.name
  end)
  return self.list
end

return M
