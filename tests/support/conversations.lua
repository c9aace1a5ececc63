--- Conversations made at random, as templates are given them: roles in turn and out of it, tools and
--- calls with nested arguments, lists of parts, reasoning, null contents.
local json = require 'moonstill.base.json'
local generator = require 'tests.support.tools'.random

local M = {}

local ROLES = { 'system', 'user', 'assistant', 'tool', 'developer', 'critic' }
local KEYS = { 'place', 'unit', 'a', 'zebra', 'nested', 'list' }

local Maker = {}
Maker.__index = Maker

function Maker:one_in(n) return self.random(n) == 1 end

function Maker:pick(list) return list[self.random(#list)] end

-- Any value, with texts of message `i`.
function Maker:value(i, field, depth)
  local kind = self.random(depth > 2 and 3 or 6)
  if kind <= 2 then return self.text(i, field) end
  if kind == 3 then return self:pick { 0, 7, -1.5, 0.5, true, false, json.null } end
  local t = kind == 4 and json.array() or {}
  for k = 1, self.random(4) - 1 do
    t[kind == 4 and k or self:pick(KEYS)] = self:value(i, field, depth + 1)
  end
  return t
end

function Maker:object(i, field)
  local t = {}
  for _ = 1, self.random(4) - 1 do t[self:pick(KEYS)] = self:value(i, field, 1) end
  return t
end

function Maker:tool()
  local properties = {}
  for _ = 1, self.random(3) do
    properties[self:pick(KEYS)] = { type = self:pick { 'string', 'integer' }, description = self.text(nil, 'tools') }
  end
  return { type = 'function', ['function'] = { name = 'find', description = self.text(nil, 'tools'),
    parameters = { type = 'object', properties = properties, required = json.array { 'place' } } } }
end

-- As Command-R has them.
function Maker:flat_tool()
  return { name = 'find', description = self.text(nil, 'tools'), parameter_definitions =
    { place = { description = self.text(nil, 'tools'), type = 'str', required = self:one_in(2) } } }
end

function Maker:content(i)
  local kind = self.random(self.odd and 10 or 7)
  if kind == 8 then return json.null end
  if kind < 8 and not (self.parts and kind > 3) then return self.text(i, 'content') end
  local parts = json.array()
  for k = 1, self.random(3) do parts[k] = { type = 'text', text = self.text(i, 'content') } end
  if self.odd and self:one_in(4) then parts[#parts + 1] = { type = 'image' } end
  return parts
end

function Maker:calls(i)
  local calls = json.array()
  for k = 1, self.random(2) do
    local arguments = self:object(i, 'tool_calls')
    if self.odd and self:one_in(4) then arguments = json.encode(arguments) end
    calls[k] = { type = 'function', id = 'abcdefgh' .. k, ['function'] = { name = 'find', arguments = arguments } }
  end
  return calls
end

function Maker:assistant(i, tools)
  local message = { role = 'assistant', content = self:content(i) }
  if self:one_in(5) then message.reasoning_content = self.text(i, 'reasoning_content') end
  if tools and self:one_in(2) then
    message.tool_calls = self:calls(i)
    if self:one_in(2) then message.content = self.odd and json.null or '' end
  end
  return message
end

function Maker:messages(tools)
  local list = json.array()
  local function add(message) list[#list + 1] = message end
  if self.odd and self:one_in(3) then
    for i = 1, self.random(5) - 1 do add { role = self:pick(ROLES), content = self:content(i) } end
    return list
  end
  if self:one_in(3) then add { role = 'system', content = self:content(1) } end
  if self:one_in(12) then add { role = 'functions', content = self.text(#list + 1, 'content') } end
  for _ = 1, self.random(3) do
    add { role = 'user', content = self:content(#list + 1) }
    add(self:assistant(#list + 1, tools))
    for _, call in ipairs(list[#list].tool_calls or {}) do
      add { role = 'tool', name = 'find', tool_call_id = call.id, content = self:content(#list + 1) }
    end
    if list[#list].role == 'tool' then add(self:assistant(#list + 1)) end
  end
  if self:one_in(3) then add { role = 'user', content = self:content(#list + 1) } end
  return list
end

--- Variables of a rendering.
--- @param random fun(below: integer): integer as tools.random makes it
--- @param text fun(message: integer?, field: string): string gives each text, for the message that holds it
--- @param odd? boolean with what a template may refuse: parts other than text, nulls, roles in any order
--- @return table
function M.make(random, text, odd)
  local maker = setmetatable({ random = random, text = text, odd = odd }, Maker)
  maker.parts = maker:one_in(4)
  local tools = maker:one_in(3) and json.array { maker:tool(), maker:tool() } or
    maker:one_in(6) and json.array { maker:flat_tool() } or nil
  local variables = { messages = maker:messages(tools), tools = tools or json.null, documents = json.null,
    add_generation_prompt = maker:one_in(2), bos_token = '<s>', eos_token = '</s>' }
  if maker:one_in(6) then variables.additional_special_tokens = json.array { '<a>', '<b>', '<c>', '<d>', '<e>' } end
  if maker:one_in(4) then variables.enable_thinking = maker:one_in(2) end
  if maker:one_in(10) then
    variables.documents = json.array { { title = text(nil, 'documents'), text = text(nil, 'documents') } }
  end
  return variables
end

local PIECES = { 'Hello', 'the sun', '22', ' ', '\n', '\n\n', '  ', 'caf\195\169', '\230\151\165\230\156\172', '"',
  "'", '\\', '<b>&', '{{ x }}', '<think>', '</think>', '<|im_end|>', '\240\159\166\153', '\t', '.', '[INST]',
  '\194\160', "I'm", '100%' }

--- Number `n` of the conversations that the fixture `templates.json` was made of; every second one
--- is odd.
--- @param n integer
--- @return table variables
function M.fixed(n)
  local random = generator(1000 + n)
  return M.make(random, function()
    local parts = {}
    for i = 1, random(8) - 1 do parts[i] = PIECES[random(#PIECES)] end
    return table.concat(parts)
  end, n % 2 == 0)
end

return M
