--- How a model's turns are written: the Jinja templates of its folder, which of them is used, and
--- what they are given beside the messages.
---
--- They are looked for as transformers looks: chat_template.jinja and the files of
--- additional_chat_templates/ where there are any, else what tokenizer_config.json says (a text, or
--- a list of named ones), else chat_template.json. Of several, `tool_use` is taken where tools are
--- given, and `default` otherwise. A folder without any is written as ChatML where the tokenizer
--- has its tokens.

local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local ends = require 'moonstill.text.ends'
local fail = require 'moonstill.base.fail'
local jinja = require 'moonstill.jinja.jinja'
local json = require 'moonstill.base.json'
local options_of = require 'moonstill.base.options'
local paths = require 'moonstill.base.paths'
local sorted = require 'moonstill.base.sorted'
local strict = require 'moonstill.base.strict'

local M = {}

local MOST_BYTES = 2 ^ 20 -- of a template: the largest known ones have 20,000

--- The fallback. What the model says, and the token that ends its turn, is marked as such.
M.CHATML = [[
{%- macro text(content) %}
    {%- if content is string %}
        {{- content }}
    {%- else %}
        {%- for part in content %}
            {{- part.text }}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {{- text(message.content) }}
            {{- '<|im_end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- text(message.content) }}
        {{- '<|im_end|>' }}
    {%- endif %}
    {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
]]

-- The tokens that transformers gives to templates by name.
local TOKENS = { 'bos_token', 'eos_token', 'unk_token', 'sep_token', 'pad_token', 'cls_token',
  'mask_token' }

--- @class ms_template
--- @package
--- @field name string what it is called: "chatml", "default", a path
--- @field source string the text of the one that is used without tools
local methods = {}
local class = strict.class('template', methods)

-- files ------------------------------------------------------------------------------------------

local FILE, EXTRA = 'chat_template.jinja', 'additional_chat_templates'

local function read_text(path)
  local file, why = io.open(path, 'rb')
  if not file then error(why, 0) end
  local text = file:read(MOST_BYTES + 1) or ''
  file:close()
  if #text > MOST_BYTES then
    error(('%s: a template of more than %d bytes'):format(path, MOST_BYTES), 0)
  end
  return text
end

local function add(set, name, source, path)
  set.named[name] = { source = source, path = path }
  set.count = set.count + 1
end

-- Files of their own, before which nothing else counts.
local function add_files(set, folder)
  local path = ends.file_of(folder, FILE)
  if C.ms_path_kind(path) == 1 then add(set, 'default', read_text(path), path) end
  local extra = ends.file_of(folder, EXTRA)
  if C.ms_path_kind(extra) ~= 2 then return end
  for _, file in ipairs(paths.list(extra)) do
    local name = file:match '^(.+)%.jinja$'
    if name then add(set, name, read_text(extra .. '/' .. file), extra .. '/' .. file) end
  end
end

local function add_listed(set, list, path)
  for i, entry in ipairs(list) do
    local name, source = nil, nil
    if type(entry) == 'table' then name, source = entry.name, entry.template end
    if type(name) ~= 'string' or type(source) ~= 'string' then
      error(('%s: chat_template: entry %d has no name and template'):format(path, i), 0)
    end
    add(set, name, source, ('%s: chat_template "%s"'):format(path, name))
  end
end

-- What a JSON file says under chat_template.
local function add_said(set, folder, file)
  local value, path = ends.settings(folder, file).chat_template, ends.file_of(folder, file)
  if value == nil or value == json.null then return end
  if type(value) == 'string' then return add(set, 'default', value, path .. ': chat_template') end
  if not json.is_array(value) then
    error(path .. ': chat_template is neither a text nor a list of named ones', 0)
  end
  add_listed(set, value, path)
end

local function find(folder)
  local set = { named = {}, count = 0 }
  if not folder then return set end
  add_files(set, folder)
  if set.count == 0 then add_said(set, folder, 'tokenizer_config.json') end
  if set.count == 0 then add_said(set, folder, 'chat_template.json') end
  return set
end

-- which one --------------------------------------------------------------------------------------

local function only(name, source, path)
  local set = { named = {}, count = 0, chosen = name }
  add(set, name, source, path)
  return set
end

-- The tokenizer's BOS is written once, by the template, where the tokenizer puts one before texts.
local function chatml(tok, bos)
  if not ends.of_turn(tok) then return nil end
  local spelled = {}
  for i, id in ipairs(bos) do spelled[i] = tok:token(id) end
  local before = #bos > 0 and ("{{- %q }}\n"):format(table.concat(spelled)) or ''
  return only('chatml', before .. M.CHATML, 'chatml')
end

-- Whether a text is a template itself.
local function is_template(text)
  return text:find('{%', 1, true) ~= nil or text:find('{{', 1, true) ~= nil
end

-- What is wrong with the name of a template that there is not.
local function why_not(asked, set)
  local names = sorted.keys(set.named)
  names[#names + 1] = 'chatml'
  names[#names + 1] = 'none'
  return ("no template '%s': it is no file, and has no {%% or {{; %s"):format(asked,
    options_of.instead(asked, names))
end

--- What is wrong with the template that a recipe asks for, as far as it can be said without the
--- tokenizer; nil where nothing is.
--- @param asked string see `ms.chat.options`
--- @param folder string the model's
--- @return string?
function M.refused(asked, folder)
  if asked == 'none' or asked == 'chatml' or is_template(asked) then return nil end
  local set = find(folder)
  if set.named[asked] or C.ms_path_kind(asked) == 1 then return nil end
  return why_not(asked, set)
end

-- The template that a recipe asks for; nil where there are to be no turns.
local function asked_for(asked, set, tok, bos)
  if asked == 'none' then return nil end
  if asked == 'chatml' then
    return chatml(tok, bos) or fail('chat: this tokenizer has no %s and %s, which ChatML is '
      .. 'written with', ends.turn.first, ends.turn.last)
  end
  if is_template(asked) then
    return only('given', asked, 'template')
  end
  local own = set.named[asked]
  if own then return only(asked, own.source, own.path) end
  if C.ms_path_kind(asked) == 1 then return only(asked, read_text(asked), asked) end
  fail('chat: %s', why_not(asked, set))
end

local function text_of(value)
  if type(value) == 'table' then value = value.content end
  return type(value) == 'string' and value or nil
end

local function token_variables(folder)
  local vars = {}
  local config = folder and ends.settings(folder, 'tokenizer_config.json') or {}
  local map = folder and ends.settings(folder, 'special_tokens_map.json') or {}
  for _, name in ipairs(TOKENS) do
    local value = config[name]
    if value == nil then value = map[name] end
    vars[name] = text_of(value)
  end
  return vars
end

--- The time that a date names, YYYY-MM-DD or YYYY-MM-DD HH:MM:SS, as templates are told it; nil
--- where it names none.
--- @param date string
--- @return table?
function M.time_of(date)
  local year, month, day, rest = date:match '^(%d%d%d%d)%-(%d%d)%-(%d%d)(.*)$'
  if not year then return nil end
  local hour, min, sec = rest:match '^[ T](%d%d):(%d%d):(%d%d)$'
  if not hour and rest ~= '' then return nil end
  local t = { year = tonumber(year), month = tonumber(month), day = tonumber(day),
    hour = tonumber(hour or 0), min = tonumber(min or 0), sec = tonumber(sec or 0) }
  local back = os.date('*t', os.time { year = t.year, month = t.month, day = t.day, hour = 12 })
  local is = back.month == t.month and back.day == t.day and t.hour < 24 and t.min < 60
    and t.sec < 61
  return is and t or nil
end

-- one of them ------------------------------------------------------------------------------------

--- @class ms_template_entry
--- @package
--- @field source string
--- @field path string where it is from
--- @field compiled? table
local entry_methods = {}
local entry_class = { __index = entry_methods }

--- Whether the template names something anywhere.
--- @param name string
--- @return boolean
function entry_methods:mentions(name)
  local known = self.mentioned[name]
  if known == nil then
    known = self.compiled:mentions(name) and true or false
    self.mentioned[name] = known
  end
  return known
end

local CALL = { role = 'assistant', content = '' }

local function call_with(arguments)
  local call = { type = 'function', id = 'abcdefghi',
    ['function'] = { name = 'f', arguments = arguments } }
  local message = sorted.copy(CALL)
  message.tool_calls = { call }
  return { { role = 'user', content = 'a' }, message }
end

--- Whether the template takes the arguments of tool calls as the text of JSON, and nothing else.
--- @param variables table
--- @return boolean
function entry_methods:takes_text(variables)
  if self.as_text == nil then
    local function renders(arguments)
      variables.messages = call_with(arguments)
      return (fail.attempt(self.compiled.render, self.compiled, variables, {}))
    end
    self.as_text = not renders { x = 'y' } and renders '{"x": "y"}'
  end
  return self.as_text
end

-- a set of templates -----------------------------------------------------------------------------

local function entry_of(set, name)
  local entry = set.named[name]
  if not entry.compiled then
    entry.compiled, entry.mentioned = jinja.compile(entry.source, entry.path), {}
    setmetatable(entry, entry_class)
  end
  return entry
end

-- The name of the one for a conversation, as transformers chooses.
local function name_for(self, tools)
  if self.chosen then return self.chosen end
  if tools and self.named.tool_use then return 'tool_use' end
  if self.named.default then return 'default' end
  error(('%s has the chat templates %s, and none of them is the default: template = one of them')
    :format(self.folder, table.concat(sorted.keys(self.named), ', ')), 0)
end

--- The templates of a model's folder, or the one that is asked for; nil where there are none, and
--- the tokenizer has no tokens of ChatML.
--- @param folder? string or a file in it
--- @param tok ms_tokenizer
--- @param bos integer[] what the tokenizer puts before a text
--- @param asked? string see `ms.chat.options`
--- @return ms_template?
function M.open(folder, tok, bos, asked)
  local set = find(folder)
  if asked then
    set = asked_for(asked, set, tok, bos)
  elseif set.count == 0 then
    set = chatml(tok, bos)
  end
  if not set then return nil end
  set.chosen = set.chosen or false
  set.folder, set.variables = folder, token_variables(folder)
  local self = setmetatable(set, class)
  self.name = name_for(self, false)
  self.source = self.named[self.name].source
  entry_of(self, self.name)
  return self
end

--- The template for a conversation with or without tools.
--- @param tools? any
--- @return ms_template_entry
function methods:choose(tools) return entry_of(self, name_for(self, tools)) end

--- All that a rendering depends on beside the sample, by name; the date only where a template asks
--- for it.
--- @param date string
--- @return table
function methods:identity(date)
  local sources, dated = {}, false
  for name, entry in sorted.pairs(self.named) do
    sources[name] = entry.source
    dated = dated or entry_of(self, name):mentions 'strftime_now'
  end
  return { chosen = self.chosen or '', sources = sources, variables = self.variables,
    date = dated and date or nil }
end

--- What a rendering is given beside messages: `args`, a sample's `own_args` over those, tools,
--- documents, add_generation_prompt.
--- @param o table
--- @return table
function methods:given(o)
  local vars = {}
  for _, name in ipairs(TOKENS) do vars[name] = self.variables[name] end
  for _, args in ipairs { o.args or {}, o.own_args or {} } do
    for key, value in sorted.pairs(args) do vars[key] = value end
  end
  vars.tools, vars.documents = o.tools or json.null, o.documents or json.null
  vars.add_generation_prompt = o.add_generation_prompt or false
  return vars
end

-- saving -----------------------------------------------------------------------------------------

-- Where the value of a top-level member begins and ends in the text of a JSON object that parses.
local function member(text, key)
  local depth, at, name = 0, 1, nil
  while true do
    local from, to, sign = text:find('(["{}%[%]:,])', at)
    if not from then return nil end
    at = to + 1
    if sign == '"' then
      while true do -- to the quote that ends the text
        local slashes, quote = text:match('(\\*)()"', at)
        at = quote + 1
        if #slashes % 2 == 0 then break end
      end
      if depth == 1 then name = { text:sub(from, at - 1), at } end
    elseif sign == ':' and depth == 1 and json.decode('[' .. name[1] .. ']')[1] == key then
      return at
    elseif sign == '{' or sign == '[' then
      depth = depth + 1
    elseif sign == '}' or sign == ']' then
      depth = depth - 1
    end
  end
end

-- The end of the value that begins at `at`.
local function value_end(text, at)
  local depth = 0
  while true do
    local from, _, sign = text:find('(["{}%[%],])', at)
    at = from
    if sign == '"' then
      repeat
        local slashes, quote = text:match('(\\*)()"', at + 1)
        at = quote
      until #slashes % 2 == 0
    elseif sign == '{' or sign == '[' then
      depth = depth + 1
    elseif depth == 0 then
      return at - 1
    elseif sign ~= ',' then
      depth = depth - 1
    end
    at = at + 1
  end
end

--- The text of a JSON object with another value of one key; all else stays as it is written.
--- @param text string
--- @param key string
--- @param value any
--- @return string
function M.with_member(text, key, value)
  local new, at = json.encode(value), member(text, key)
  if at then
    local space = text:match('^%s*', at)
    local last = value_end(text, at)
    local old = text:sub(at, last)
    local after = old:sub(#(old:match '^.*%S' or '') + 1)
    return text:sub(1, at - 1) .. space .. new .. after .. text:sub(last + 1)
  end
  local body, close = text:match '^(.*[^%s])(%s*}%s*)$'
  local comma = body:sub(-1) == '{' and body:match '^%s*{$' and '' or ','
  return ('%s%s\n  %s: %s%s'):format(body, comma, json.encode(key), new, close)
end

local function listed(self)
  local list = json.array()
  for i, name in ipairs(sorted.keys(self.named)) do
    list[i] = { name = name, template = self.named[name].source }
  end
  return list
end

--- The files of a folder that say this template, by their names: a text, or '' for one that is not
--- to be there. `carry` is the folder whose other files go along.
--- @param carry? string
--- @return table<string, string>
function methods:files(carry)
  local path = carry and ends.file_of(carry, 'tokenizer_config.json')
  local config = path and C.ms_path_kind(path) == 1 and check.text('chat', path, read_text(path))
  local ok, value = fail.attempt(json.decode, config or '{}', path)
  if not ok or not json.is_object(value) then config = '{}' end
  local several = not self.chosen and self.count > 1
  return {
    ['chat_template.jinja'] = several and '' or self.source,
    ['chat_template.json'] = '',
    ['tokenizer_config.json'] = M.with_member(config or '{}', 'chat_template',
      several and listed(self) or self.source),
  }
end

return M
