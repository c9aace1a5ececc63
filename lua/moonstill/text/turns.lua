--- Samples as conversations: what their messages must have, and what a template is given of them.
---
--- A message's `weight` and `train` are the sample's own and taken out; a null is as if nothing
--- were there; thinking goes by all the names that templates know it by; the arguments of tool
--- calls, and tools, that are given as the text of JSON become what they say. The end that an
--- answer spells is left out, as its turn has one. Nobody's tables are changed.

local check = require 'moonstill.base.check'
local ends = require 'moonstill.text.ends'
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local options_of = require 'moonstill.base.options'
local sorted = require 'moonstill.base.sorted'

local M = {}

-- A role that nobody knows is a slip of the pen, and an answer that would not be learnt.
local ROLES, is_role = { 'system', 'developer', 'user', 'assistant', 'tool', 'function' }, {}
for _, role in ipairs(ROLES) do is_role[role] = true end
M.roles, M.is_role = ROLES, is_role

--- Fields that hold what was thought before an answer, in the order in which they are believed.
M.thoughts = { 'reasoning_content', 'thinking', 'reasoning' }
local THOUGHTS = M.thoughts
local NULLABLE = { 'content', 'tool_calls', 'function_call', 'name', 'tool_call_id', 'refusal',
  'weight', 'train', unpack(THOUGHTS) }
-- Nulls are not there, nor what is the sample's own, nor those of these that are empty.
local OWN = { weight = true, train = true }
local EMPTIABLE = { tool_calls = true, function_call = true }
for _, key in ipairs(THOUGHTS) do EMPTIABLE[key] = true end
local ORDERED = { ordered = true }

-- Whether there is something: no null, nothing empty, also written out ("[]").
local function is_there(value)
  if value == nil or value == json.null then return false end
  if type(value) == 'string' then return value:find '[^%s%[%]{}]' ~= nil end
  return type(value) ~= 'table' or next(value) ~= nil
end
M.is_there = is_there

-- contents ---------------------------------------------------------------------------------------

-- Parts of contents that people have beside texts, by their type, or by the field that has them.
local OTHERS = { image = 'images', image_url = 'images', input_image = 'images', video = 'videos',
  video_url = 'videos', audio = 'sounds', audio_url = 'sounds', input_audio = 'sounds',
  file = 'files', input_file = 'files' }

-- What a part is that is no text, in words to stand behind that it is none.
local function kind_of_part(part)
  if type(part) ~= 'table' then return '' end
  local named = type(part.type) == 'string' and part.type ~= 'text' and part.type
  local words = named and (' but of type %s'):format(json.encode(named)) or ''
  for _, name in ipairs { named or '', unpack(sorted.keys(part)) } do
    if OTHERS[name] then
      if not named then words = (' but has %s'):format(json.encode(name)) end
      return ('%s; %s are not read: rows without them can be learnt'):format(words, OTHERS[name])
    end
  end
  if not named and type(part.text) == 'string' then
    return '; its type is missing: {"type": "text", "text": ..}'
  end
  return words
end

local function check_parts(parts, where)
  for i, part in ipairs(parts) do
    if type(part) ~= 'table' or part.type ~= 'text' or type(part.text) ~= 'string' then
      fail('%s: part %d of the content is not text%s', where, i, kind_of_part(part))
    end
  end
end

local function check_content(message, where)
  local content = message.content
  if type(content) == 'string' then return end
  if content == nil and (message.tool_calls or message.function_call) then return end
  if not json.is_array(content) then fail(where .. ': content is not text') end
  check_parts(content, where)
end

local function says_nothing(content)
  if type(content) == 'string' then return content == '' end
  for _, part in ipairs(content or {}) do
    if part.text ~= '' then return false end
  end
  return true
end

-- Who speaks in other forms of conversations.
local MEANT = { human = 'user', gpt = 'assistant', chatgpt = 'assistant', bot = 'assistant',
  model = 'assistant', ai = 'assistant', observation = 'tool' }

local function check_role(message, where)
  if type(message) ~= 'table' then fail(where .. ': no role') end
  local role = message.role
  if type(role) ~= 'string' or role == '' then
    fail(where .. ': no role' .. (message.from ~= nil
      and '; turns of "from" and "value" are not read' or ''))
  end
  if is_role[role] then return end
  local meant = MEANT[role:lower()]
  fail('%s: no role %s; %s', where, json.encode(role),
    meant and ("did you mean '%s'?"):format(meant) or options_of.instead(role, ROLES))
end

-- tools ------------------------------------------------------------------------------------------

-- The value of a text of JSON; the text itself where it is none, or says no table.
local function parsed(text)
  if not text:find '^%s*[%[{]' then return text end
  local ok, value = fail.attempt(json.decode, text, 'JSON', ORDERED)
  return ok and value or text
end

local function parsed_call(call, as_text)
  local named = type(call) == 'table' and json.is_object(call['function']) and 'function'
  local inner = named and call[named] or call
  local given = type(inner) == 'table' and inner.arguments
  local arguments = given
  if type(given) == 'string' and not as_text then arguments = parsed(given) end
  if type(given) == 'table' and as_text then arguments = json.encode(given) end
  if arguments == given then return call end
  inner = sorted.copy(inner)
  inner.arguments = arguments
  if not named then return inner end
  call = sorted.copy(call)
  call[named] = inner
  return call
end

local function parsed_calls(calls, where, as_text)
  if type(calls) == 'string' then calls = parsed(calls) end
  if not json.is_array(calls) then fail(where .. ': tool_calls are no list') end
  local list = json.array()
  for i, call in ipairs(calls) do list[i] = parsed_call(call, as_text) end
  return list
end

--- Tools as templates take them: a list, of which texts of JSON are parsed; nil for none.
--- @param tools any
--- @return table[]?
function M.tools(tools)
  if type(tools) == 'string' then tools = parsed(tools) end
  if not is_there(tools) then return nil end
  if not json.is_array(tools) then fail('tools are no list') end
  local list = json.array()
  for i, tool in ipairs(tools) do list[i] = type(tool) == 'string' and parsed(tool) or tool end
  return list
end

-- messages ---------------------------------------------------------------------------------------

-- The message without what is not to be there: a copy where it has any of that.
local function bare(message)
  local copy
  for _, key in ipairs(NULLABLE) do
    local value = message[key]
    local gone = value == json.null or OWN[key] or EMPTIABLE[key] and not is_there(value)
    if value ~= nil and gone then
      copy = copy or sorted.copy(message)
      copy[key] = nil
    end
  end
  return copy or message
end

-- Thinking at the beginning of an answer, written out.
local function without_thinking(content)
  if type(content) ~= 'string' then return content end
  return (content:gsub('^%s*<think>.-</think>%s*', ''))
end

local function with_thoughts(message, drop)
  local thought
  for _, key in ipairs(THOUGHTS) do thought = thought or message[key] end
  if not thought and not (drop and message.role == 'assistant') then return message end
  local copy = sorted.copy(message)
  if drop then
    for _, key in ipairs(THOUGHTS) do copy[key] = nil end
    copy.content = without_thinking(copy.content)
  else
    copy.reasoning_content, copy.thinking = thought, copy.thinking or thought
  end
  return copy
end

-- An answer without the end that it spells.
local function without_end(chat, message)
  if type(message.content) ~= 'string' then return message end
  local content = ends.without(chat.tokenizer, chat.stop, message.content)
  if content == message.content then return message end
  local copy = sorted.copy(message)
  copy.content = content
  return copy
end

local function weight_of(value, where)
  if value == nil or value == json.null then return 1 end
  return check.weight(where, value)
end

local function trains(value, where)
  if value == nil or value == json.null then return true end
  if type(value) ~= 'boolean' then fail(where .. ': train is neither true nor false') end
  return value
end

-- An error where a message has what the template does not write.
local function check_written(template, message, where)
  for _, key in ipairs { 'tool_calls', 'function_call' } do
    if is_there(message[key]) and not template:mentions(key) then
      fail('%s: what is learnt depends on "%s", which the template does not write', where, key)
    end
  end
  for _, key in ipairs(THOUGHTS) do
    if is_there(message[key]) then
      for _, name in ipairs(THOUGHTS) do
        if template:mentions(name) then return end
      end
      fail('%s: what is learnt depends on "%s", which the template does not write: thinking = drop '
        .. 'goes on without', where, key)
    end
  end
end

local function read_message(chat, template, given, where)
  check_role(given, where)
  local message = bare(given)
  local drop = chat.options.thinking == 'drop'
  if not drop or is_there(message.tool_calls) then check_written(template, message, where) end
  if is_there(message.tool_calls) then
    local calls = parsed_calls(message.tool_calls, where, template.calls_as_text)
    message = sorted.copy(message)
    message.tool_calls = calls
  end
  check_content(message, where)
  message = with_thoughts(message, drop)
  if message.role == 'assistant' then message = without_end(chat, message) end
  return message
end

--- The messages of a conversation as a template is given them, with the weight of each and whether
--- it may be learnt.
--- @param chat ms_chat
--- @param template table the compiled one
--- @param given table[]
--- @return table[] messages
--- @return number[] weights
--- @return boolean[] trained
function M.messages(chat, template, given)
  if not json.is_array(given) then fail('messages are no list') end
  if #given == 0 then fail('messages are an empty list') end
  local messages, weights, trained = json.array(), {}, {}
  for i, message in ipairs(given) do
    local where = 'message ' .. i
    messages[i] = read_message(chat, template, message, where)
    weights[i], trained[i] = weight_of(message.weight, where), trains(message.train, where)
    local silent = says_nothing(messages[i].content) and not is_there(messages[i].tool_calls)
      and not is_there(messages[i].function_call)
    if message.role == 'assistant' and weights[i] > 0 and trained[i] and silent then
      fail(where .. ': empty answer')
    end
  end
  return messages, weights, trained
end

local function check_text(text, what)
  if type(text) ~= 'string' then fail(('the %s is not text'):format(what)) end
  return text
end

--- A prompt and its answer as messages: the system's, those of the history, which are not learnt
--- unless they say so, and the two. The answer may be missing (nil).
--- @param sample { prompt: string, answer?: string, system?: string, history?: table[] }
--- @return table[]
function M.of_pair(sample)
  local list = json.array()
  local function say(role, content, train)
    list[#list + 1] = { role = role, content = content, train = train }
  end
  if is_there(sample.system) then say('system', check_text(sample.system, 'system prompt')) end
  for i, pair in ipairs(is_there(sample.history) and sample.history or {}) do
    if type(pair) ~= 'table' then fail(('entry %d of the history is no pair'):format(i)) end
    local train = rawget(pair, 'train') == true
    say('user', check_text(pair[1], ('prompt %d of the history'):format(i)), train)
    say('assistant', check_text(pair[2], ('answer %d of the history'):format(i)), train)
  end
  say('user', check_text(sample.prompt, 'prompt'))
  say('assistant', check_text(sample.answer, 'answer'))
  return list
end

--- Whether a turn holds thinking that a template may leave out.
--- @param message table as `messages` gives it
--- @return boolean
function M.has_thoughts(message) return is_there(message.reasoning_content) end

return M
