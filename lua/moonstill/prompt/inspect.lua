--- `moonstill inspect FOLDER`: what a model folder holds, a fact a line.
local C = require 'moonstill.C'
local columns = require 'moonstill.base.columns'
local command = require 'moonstill.prompt.command'
local message_of = require 'moonstill.prompt.message'
local progress = require 'moonstill.base.progress'
local schema = require 'moonstill.base.schema'
local screen = require 'moonstill.base.screen'

local M = {}

--- The command, as `command.read` takes it.
M.command = { name = 'inspect', usage = 'FOLDER [--weights]', words = { 1, 1 },
  about = 'Says what a model folder holds.',
  options = schema.new('inspect', {
    weights = schema.option(false, 'every parameter with its shape as well'),
  }) }

-- In this order; what a model does not have is left out.
local FACTS = { 'family', 'parameters', 'layers', 'hidden_size', 'intermediate_size', 'heads',
  'kv_heads', 'head_dim', 'vocab', 'context', 'tied', 'dtype' }

-- How a fact is read: large numbers in short as well.
local function shown(name, value)
  if name == 'parameters' and value >= 10000 then
    return ('%d (%s)'):format(value, progress.count(value))
  end
  return tostring(value)
end

local function tokenizer_of(ms, folder)
  if C.ms_path_kind(folder .. '/tokenizer.json') ~= 1 then return 'none' end
  local ok, tokenizer = pcall(ms.tokenizer.open, folder)
  if not ok then return message_of(tokenizer) end
  local size = tokenizer:size()
  tokenizer:free()
  return size .. ' ids'
end

local function facts_of(ms, folder, model)
  local rows, facts, ends = {}, model:info(), model:ends()
  for _, name in ipairs(FACTS) do
    local value = rawget(facts, name)
    if value ~= nil then rows[#rows + 1] = { name, shown(name, value) } end
  end
  rows[#rows + 1] = { 'tokenizer', tokenizer_of(ms, folder) }
  rows[#rows + 1] = { 'ends', #ends > 0 and table.concat(ends, ' ') or 'none named' }
  return rows
end

local function weights_of(model)
  local rows = {}
  for name, weight in model:parameters() do
    local shape = table.concat({ weight:shape() }, ', ')
    rows[#rows + 1] = { name, weight:dtype(), '[' .. shape .. ']' }
    weight:free()
  end
  return rows
end

local function print_table(list, rows)
  local lines = columns.table(list, rows, screen.columns(1))
  for _, line in ipairs(lines) do print(line) end
end

local function print_facts(folder, weights)
  local ms = require 'moonstill'
  ms.scope(function(own)
    local model = own(ms.model.open(folder, { dtype = 'stored' }))
    print_table({ {}, { level = 0, wraps = 8 } }, facts_of(ms, folder, model))
    if not weights then return end
    print()
    print_table({ {}, { level = 1 }, { level = 0 } }, weights_of(model))
  end)
end

--- Prints the facts of a model folder.
--- @param args string[] the command line, whose second word is the first behind "inspect"
--- @return integer the exit status
function M.run(args)
  local words, given = command.read(M.command, args, 2)
  if words then print_facts(words[1], given.weights) end
  return 0
end

return M
