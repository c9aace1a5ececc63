--- A conversation with a model: its turns, how the next answer is drawn, and what of it is kept.
--- A model without turns goes on with a text, and each text stands alone.

local json = require 'moonstill.base.json'
local strict = require 'moonstill.base.strict'

local M = {}

--- @class ms_conversation
--- @package
--- @field model ms_model
--- @field chat ms_chat
--- @field settings table temperature, top_p, top_k, seed and max_new of the next answer
--- @field system? string the system message
--- @field turns { user: string, answer?: string, message?: table, ended?: boolean }[]
--- @field drawn integer answers begun since the seed was set: each has draws of its own
local methods = {}
local class = strict.class('conversation', methods, { system = true })

--- @param model ms_model
--- @param chat ms_chat
--- @param settings table
--- @return ms_conversation
function M.new(model, chat, settings)
  return setmetatable({ model = model, chat = chat, settings = settings, turns = {}, drawn = 0 },
    class)
end

--- Whether the model has turns, or goes on with texts.
--- @return boolean
function methods:has_turns() return self.chat.template_name ~= nil end

-- The messages of all turns; an answer that is to come has none.
local function messages_of(self)
  local list = json.array()
  if self.system then list[1] = { role = 'system', content = self.system } end
  for _, turn in ipairs(self.turns) do
    list[#list + 1] = { role = 'user', content = turn.user }
    list[#list + 1] = turn.message
  end
  return list
end

local function prompt_of(self)
  if self:has_turns() then return messages_of(self) end
  return self.turns[#self.turns].user
end

local function options_of(self)
  local s = self.settings
  self.drawn = self.drawn + 1
  return { temperature = s.temperature, top_p = s.top_p, top_k = s.top_k, seed = s.seed,
    max_new = s.max_new, first = self.drawn - 1 }
end

local TAIL = 12 -- tokens in which a thought may have been opened

-- What the template has written of the answer: some open its thinking.
local function opened(self, ids)
  local tail = {}
  for i = math.max(1, #ids - TAIL + 1), #ids do tail[#tail + 1] = ids[i] end
  return self.chat.tokenizer:decode(tail):match '<think>%s*$' or ''
end

-- Why an answer ended before its end, or nil.
local function reason(self, told)
  local context = self.model:info().context
  if told.ended then return nil end
  if told.halted then return 'stopped' end
  if told.prompt + told.count >= context then
    return ('the context of %d tokens is full%s'):format(context,
      self:has_turns() and ': /undo takes a turn back, /reset begins anew' or '')
  end
  return ('cut off after %d tokens; max-new = %d'):format(told.count, self.settings.max_new)
end

local function check_room(self, length)
  local context = self.model:info().context
  if length < context then return end
  if not self:has_turns() then
    error(('the text has %d tokens, and the context of the model is %d'):format(length, context), 0)
  end
  error(('the conversation has %d tokens, and the context of the model is %d: this turn is not '
    .. 'kept; /undo takes an earlier one back, /reset begins anew'):format(length, context), 0)
end

-- The answer to the last turn, which gets it.
local function answer(self, show, halt)
  local turn, ids, told = self.turns[#self.turns], self.chat:prompt(prompt_of(self)), nil
  check_room(self, #ids)
  show(opened(self, ids))
  turn.answer, turn.message, told = self.chat:reply(self.model, ids, options_of(self), show, halt)
  turn.ended = told.ended
  return reason(self, told)
end

--- Says something and shows the answer as it comes. A turn without an answer is not kept.
--- @param text string
--- @param show fun(piece: string)
--- @param halt? fun(): boolean asked before each token
--- @return string? why the answer is not whole
function methods:say(text, show, halt)
  self.turns[#self.turns + 1] = { user = text }
  local ok, why = pcall(answer, self, show, halt)
  local turn = self.turns[#self.turns]
  if not turn.answer or turn.answer == '' then self.turns[#self.turns] = nil end
  if not ok then error(why, 0) end
  if turn.answer == '' then return (why and why .. '; ' or '') .. 'an empty answer is not kept' end
  return why
end

--- Takes the last turn back. Returns what was said in it, nil where there is none.
--- @return string?
function methods:undo()
  local turn = table.remove(self.turns)
  return turn and turn.user
end

--- Answers the last turn again; its answer stays where there is no new one.
--- @param show fun(piece: string)
--- @param halt? fun(): boolean
--- @return string? why the answer is not whole
function methods:retry(show, halt)
  local old = table.remove(self.turns)
  if not old then error('there is no turn to answer again', 0) end
  local count = #self.turns
  local ok, why = pcall(self.say, self, old.user, show, halt)
  if #self.turns == count then self.turns[count + 1] = old end
  if not ok then error(why, 0) end
  return why
end

--- Forgets all turns.
function methods:reset() self.turns = {} end

--- Sets the seed: draws begin anew.
--- @param seed integer
function methods:sow(seed) self.settings.seed, self.drawn = seed, 0 end

-- Of an answer that was cut off nothing is to be learnt, unless it is the last: then no end is.
local function row_of_turns(self)
  local row = { messages = messages_of(self) }
  local at = self.system and 1 or 0
  for i, turn in ipairs(self.turns) do
    at = at + 2
    if not turn.ended and i == #self.turns then row.ended = false end
    if not turn.ended and i < #self.turns then row.messages[at].weight = 0 end
  end
  return { row }
end

--- The conversation as rows of data, which `ms.dataset` reads: one of messages, or one for each
--- text and what followed.
--- @return table[]
function methods:rows()
  if #self.turns == 0 then return {} end
  if self:has_turns() then return row_of_turns(self) end
  local rows = {}
  for i, turn in ipairs(self.turns) do
    rows[i] = { prompt = turn.user, answer = turn.answer, ended = turn.ended }
  end
  return rows
end

return M
