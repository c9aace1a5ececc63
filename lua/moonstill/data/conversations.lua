--- The conversations that people's files hold, as lists of messages { role, content, .. }: those of
--- OpenAI's form, of ShareGPT's (`from` and `value`), and pairs of `human` and `assistant`.
---
--- Whether a turn is learnt and how much goes by many names; here it is `train` and `weight`. Calls
--- of tools are `tool_calls`, whatever a file calls them; tools have OpenAI's form.

local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local options = require 'moonstill.base.options'
local sorted = require 'moonstill.base.sorted'

local M = {}

local ORDERED = { ordered = true }

-- Who speaks in ShareGPT's form, and those of its kin: FastChat, LLaMA-Factory, axolotl, ms-swift.
local SPEAKERS = {
  human = 'user', user = 'user', gpt = 'assistant', assistant = 'assistant', chatgpt = 'assistant',
  bing = 'assistant', bard = 'assistant', model = 'assistant', system = 'system',
  developer = 'developer', tool = 'tool', observation = 'tool', ['function'] = 'tool',
  function_response = 'tool', tool_response = 'tool', function_call = 'call', tool_call = 'call',
}

--- Fields of messages that say whether a turn is learnt, or how much: axolotl (`train`,
--- `training`), ms-swift (`loss`), LLaMA-Factory (`loss_weight`).
M.learning = { train = true, training = true, loss = true, loss_weight = true, loss_scale = true }
local SWITCHES, SCALES = { 'train', 'training', 'loss' }, { 'loss_weight', 'loss_scale' }

--- Fields in which turns have what they say and who says it, where it is not `role` and `content`.
M.read = { from = true, value = true, human = true, assistant = true }

local function is_there(value) return value ~= nil and value ~= json.null end

--- The value of a JSON text that stands in the place of a list or an object.
--- @param text string
--- @param what string what errors begin with
--- @return any
function M.parse(text, what)
  local ok, value = fail.pcall(json.decode, text, what, ORDERED)
  if ok then return value end
  error(tostring(value), 0)
end

-- what is learnt ---------------------------------------------------------------------------------

local function switch_of(value, key, where)
  if type(value) == 'boolean' then return value end
  if value == 0 or value == 1 then return value == 1 end
  error(('%s: "%s" is neither true nor false'):format(where, key), 0)
end

local function scale_of(value, key, where)
  if type(value) == 'number' and value >= 0 then return value end
  error(('%s: "%s" is no number from 0 on'):format(where, key), 0)
end

local function set(message, key, value, where)
  if is_there(message[key]) and message[key] ~= value then
    error(('%s: it says of "%s" both %s and %s'):format(where, key, tostring(message[key]),
      tostring(value)), 0)
  end
  message[key] = value
end

-- Whether it is learnt by one name, how much by another one. A scale of 0 is no weight of the turn:
-- it takes no part where answers are learnt, and is not left out where everything is.
local function note_learning(message, where)
  for _, key in ipairs(SWITCHES) do
    local value = message[key]
    if is_there(value) then
      message[key] = nil
      set(message, 'train', switch_of(value, key, where), where)
    end
  end
  for _, key in ipairs(SCALES) do
    local value = message[key]
    if is_there(value) then
      message[key] = nil
      local scale = scale_of(value, key, where)
      set(message, 'train', scale > 0, where)
      if scale > 0 and scale ~= 1 then set(message, 'weight', scale, where) end
    end
  end
end

-- calls of tools ---------------------------------------------------------------------------------

-- A function in OpenAI's form, whose keys templates may write in their order.
local function wrapped(value)
  local tool = json.decode('{"type":"function","function":null}', 'tool', ORDERED)
  tool['function'] = value
  return tool
end

local function call_of(value, where)
  if not json.is_object(value) or type(value.name) ~= 'string' then
    error(where .. ': a call of a function has no "name"', 0)
  end
  return wrapped(value)
end

-- What LLaMA-Factory writes in a turn of function_call: one call, or a list.
local function calls_of(text, where)
  local value = text
  if type(text) == 'string' then value = M.parse(text, where .. ': function_call') end
  if not json.is_array(value) then return json.array { call_of(value, where) } end
  local list = json.array()
  for i, one in ipairs(value) do list[i] = call_of(one, where) end
  return list
end

--- Tools in OpenAI's form, of a list, or of a JSON text, of them or of bare functions.
--- @param tools any
--- @param what string the column
--- @return table[]
function M.tools(tools, what)
  if type(tools) == 'string' then tools = M.parse(tools, ('column "%s"'):format(what)) end
  if not json.is_array(tools) then error(('column "%s" is no list of tools'):format(what), 0) end
  local list = json.array()
  for i, tool in ipairs(tools) do
    if type(tool) == 'string' then
      tool = M.parse(tool, ('column "%s", tool %d'):format(what, i))
    end
    local bare = json.is_object(tool) and tool.name and not tool['function'] and not tool.type
    list[i] = bare and wrapped(tool) or tool
  end
  return list
end

-- messages ---------------------------------------------------------------------------------------

-- Parts whose text LLaMA-Factory calls `value`: it writes them one after the other.
local function read_parts(message)
  local parts, texts = message.content, {}
  if not json.is_array(parts) then return end
  for i, part in ipairs(parts) do
    local is_text = json.is_object(part) and part.type == 'text' and type(part.value) == 'string'
    if not is_text then return end
    texts[i] = part.value
  end
  if texts[1] then message.content = table.concat(texts) end
end

-- OpenAI's older way to call one function.
local function read_function_call(message, where)
  local call = message.function_call
  if not json.is_object(call) or is_there(message.tool_calls) then return end
  message.function_call, message.tool_calls = nil, calls_of(call, where)
end

local function of_openai(turn, where)
  note_learning(turn, where)
  read_parts(turn)
  read_function_call(turn, where)
  return turn
end

local function speaker_of(turn, where)
  local from = turn.from
  local role = type(from) == 'string' and SPEAKERS[from:lower()]
  if role then return role end
  if type(from) ~= 'string' then error(where .. ': "from" is no text', 0) end
  error(('%s: nobody speaks as %s; %s'):format(where, json.encode(from),
    options.instead(from, sorted.keys(SPEAKERS))), 0)
end

local function of_sharegpt(turn, where)
  local message = { role = speaker_of(turn, where) }
  for key, value in sorted.pairs(turn) do
    if key ~= 'from' and key ~= 'value' and key ~= 'role' then message[key] = value end
  end
  if turn.value ~= nil then message.content = turn.value end
  if message.role == 'call' then
    message.role, message.tool_calls = 'assistant', calls_of(message.content, where)
    message.content = ''
  end
  return of_openai(message, where)
end

local function is_pair(turn) return turn.human ~= nil and turn.assistant ~= nil end

--- How the turns of a list are written: "openai", "sharegpt" or "pairs"; nil when they are none.
--- @param list any
--- @return string?
function M.style(list)
  local turn = json.is_array(list) and list[1]
  if not json.is_object(turn) then return nil end
  return turn.role ~= nil and 'openai' or turn.from ~= nil and 'sharegpt'
    or is_pair(turn) and 'pairs' or nil
end

local function message_of(turn, where)
  if turn.from ~= nil and turn.role == nil then return of_sharegpt(turn, where) end
  return of_openai(turn, where)
end

local function add(messages, turn, where)
  if json.is_object(turn) and turn.role == nil and is_pair(turn) then
    messages[#messages + 1] = { role = 'user', content = turn.human }
    messages[#messages + 1] = { role = 'assistant', content = turn.assistant }
  else
    messages[#messages + 1] = json.is_object(turn) and message_of(turn, where) or turn
  end
end

--- The messages of a list of turns. What is no list, and what is no turn, is given back as it is.
--- @param list any
--- @return any
function M.messages(list)
  if not json.is_array(list) then return list end
  local messages = json.array()
  for i, turn in ipairs(list) do add(messages, turn, 'message ' .. i) end
  return messages
end

--- Puts a system prompt before messages, which may begin with the same one.
--- @param messages table[]
--- @param text string
--- @param what string its column
function M.put_system(messages, text, what)
  local first = messages[1]
  if json.is_object(first) and first.role == 'system' then
    if first.content == text then return end
    error(('column "%s" and a system message that says something else: data.ignore=[%s] goes on '
      .. 'without the column'):format(what, what), 0)
  end
  table.insert(messages, 1, { role = 'system', content = text })
end

return M
