--- Files of prompts: a text with one on each line, or rows of any form that data sets read, with or
--- without answers. An answer that a row has already is left out.

local json = require 'moonstill.base.json'
local readers = require 'moonstill.data.readers'
local rows = require 'moonstill.data.rows'

local M = {}

--- @class ms_prompt
--- @package
--- @field prompt string|table[]|integer[]|table a text, messages, ids, or { messages, tools,
---   documents, args }
--- @field where string its file and line
--- @field id? string|number that of its row

-- rows -------------------------------------------------------------------------------------------

local function has(row, name) return row[name] ~= nil and row[name] ~= json.null end

-- A prompt alone is a pair whose answer is not there yet.
local function add_answer(row)
  for _, pair in ipairs(rows.pairs) do
    if has(row, pair[1]) and has(row, pair[2]) then return end
  end
  for _, pair in ipairs(rows.pairs) do
    if has(row, pair[1]) then
      row[pair[2]] = 'the answer'
      return
    end
  end
end

-- Messages up to the last one that is no answer.
local function before_answer(messages)
  local last = #messages
  while last > 0 and type(messages[last]) == 'table' and messages[last].role == 'assistant' do
    last = last - 1
  end
  if last == 0 then error('no message before the answer', 0) end
  local list = json.array()
  for i = 1, last do
    list[i] = messages[i]
    list[i].train = nil -- which says of an answer that is there whether it is learnt
  end
  return list
end

-- A text and what goes before it, as messages.
local function turns_of(sample)
  local list = json.array()
  if sample.system then list[1] = { role = 'system', content = sample.system } end
  for _, pair in ipairs(sample.history or {}) do
    list[#list + 1] = { role = 'user', content = pair[1] }
    list[#list + 1] = { role = 'assistant', content = pair[2] }
  end
  list[#list + 1] = { role = 'user', content = sample.prompt }
  return list
end

local function messages_of(sample)
  if sample.messages then
    if not json.is_array(sample.messages) then error('messages are no list', 0) end
    return before_answer(sample.messages)
  end
  local beside = sample.system or sample.history or sample.tools or sample.documents or sample.args
  return sample.prompt and beside and turns_of(sample) or nil
end

local function prompt_of(sample)
  local text = sample.prompt or sample.text
  if text == '' then error('the prompt is empty', 0) end
  local messages = messages_of(sample)
  if not messages then
    return sample.prompt_ids or text or error('a row of tokens is no prompt', 0)
  end
  if not (sample.tools or sample.documents or sample.args) then return messages end
  return { messages = messages, tools = sample.tools, documents = sample.documents,
    args = sample.args }
end

local function prompt_in(row)
  if type(row) == 'string' then return prompt_of { text = row } end
  add_answer(row)
  local form = rows.detect(row)
  rows.parse(row, form)
  return prompt_of(rows.sample(row, form))
end

-- files ------------------------------------------------------------------------------------------

-- A row's id; an integer that is too large for a number as its digits.
local function id_of(row)
  local id = type(row) == 'table' and row.id or nil
  local exact = type(id) == 'number' and json.exact(row, 'id')
  if exact then return (tostring(exact):gsub('U?LL$', '')) end
  return (type(id) == 'string' or type(id) == 'number') and id or nil
end

local function visit(list, where, value, decode)
  local ok, found = pcall(function()
    local row = decode(value, where)
    return { prompt = prompt_in(row), where = where, id = id_of(row) }
  end)
  if not ok then
    local message = tostring(found) -- which may come with the place already
    error(message:sub(1, #where + 2) == where .. ': ' and message or where .. ': ' .. message, 0)
  end
  list[#list + 1] = found
end

local function read_lines(path)
  local list = {}
  for number, text in json.text_lines(path) do
    text = text:gsub('\r$', '')
    if text:find '%S' then
      list[#list + 1] = { prompt = text, where = ('%s:%d'):format(path, number) }
    end
  end
  return list
end

--- Reads the prompts of a file; of a text (.txt) each line that is not blank.
--- @param path string
--- @return ms_prompt[]
function M.read(path)
  local list = {}
  if path:lower():gsub('%.gz$', ''):gsub('%.zst$', ''):find '%.txt$' then
    list = read_lines(path)
  else
    readers.read(path, visit, list)
  end
  if #list == 0 then error(path .. ': no prompts', 0) end
  return list
end

--- A prompt with a system message before it, unless it has one.
--- @param prompt string|table as read
--- @param system? string
--- @return string|table
function M.with_system(prompt, system)
  if not system or type(prompt) == 'table' and type(prompt[1]) == 'number' then return prompt end
  if type(prompt) == 'string' then prompt = { { role = 'user', content = prompt } } end
  local messages = prompt.messages or prompt
  local first = messages[1]
  if type(first) == 'table' and first.role == 'system' then return prompt end
  local all = json.array { { role = 'system', content = system } }
  for _, message in ipairs(messages) do all[#all + 1] = message end
  if not prompt.messages then return all end
  return { messages = all, tools = prompt.tools, documents = prompt.documents, args = prompt.args }
end

return M
