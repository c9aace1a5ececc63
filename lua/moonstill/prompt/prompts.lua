--- Files of prompts: a text with one on each line, or rows of data with `messages`, a prompt or a
--- text. An answer that a row has already is left out.

local json = require 'moonstill.base.json'
local readers = require 'moonstill.data.readers'
local rows = require 'moonstill.data.rows'

local M = {}

--- @class ms_prompt
--- @field prompt string|table[] a text, or messages
--- @field where string its file and line
--- @field id? string|number that of its row

-- Messages up to the last one that is no answer.
local function before_answer(messages)
  local last = #messages
  while last > 0 and type(messages[last]) == 'table' and messages[last].role == 'assistant' do
    last = last - 1
  end
  local list = json.array()
  for i = 1, last do list[i] = messages[i] end
  if last == 0 then error('no message before the answer', 0) end
  return list
end

-- What a row without the columns of prompts asks, by the forms that data sets know.
local function in_form(row)
  local sample = rows.sample(row, rows.detect(row))
  local prompt = sample.messages or sample.prompt or sample.text
  if prompt == nil then error('a row of tokens is no prompt', 0) end
  return prompt
end

local function prompt_in(row)
  local prompt = row
  if type(row) == 'table' then
    prompt = json.is_array(row.messages) and row.messages or row.prompt or row.text
    if prompt == nil or prompt == json.null then prompt = in_form(row) end
  end
  if type(prompt) ~= 'string' and not json.is_array(prompt) then
    error('the prompt is neither a text nor messages', 0)
  end
  if prompt == '' then error('the prompt is empty', 0) end
  return type(prompt) == 'string' and prompt or before_answer(prompt)
end

local function is_id(value) return type(value) == 'string' or type(value) == 'number' end

local function visit(list, where, value, decode)
  local ok, found = pcall(function()
    local row = decode(value, where)
    return { prompt = prompt_in(row), where = where, id = is_id(row.id) and row.id or nil }
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

return M
