--- `moonstill inspect FOLDER`: what a model folder holds, a fact a line.
local C = require 'moonstill.C'
local command = require 'moonstill.prompt.command'
local message_of = require 'moonstill.prompt.message'
local printable = require 'moonstill.base.printable'
local schema = require 'moonstill.base.schema'

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

local function line(name, value) print(('%-17s %s'):format(name, printable(tostring(value)))) end

local function describe_tokenizer(ms, folder)
  if C.ms_path_kind(folder .. '/tokenizer.json') ~= 1 then return line('tokenizer', 'none') end
  local ok, tokenizer = pcall(ms.tokenizer.open, folder)
  if not ok then return line('tokenizer', message_of(tokenizer)) end
  line('tokenizer', tokenizer:size() .. ' ids')
  tokenizer:free()
end

local function print_facts(folder, weights)
  local ms = require 'moonstill'
  ms.scope(function(own)
    local model = own(ms.model.open(folder, { dtype = 'stored' }))
    local facts = model:info()
    for _, name in ipairs(FACTS) do
      if rawget(facts, name) ~= nil then line(name, facts[name]) end
    end
    describe_tokenizer(ms, folder)
    local ends = model:ends()
    line('ends', #ends > 0 and table.concat(ends, ' ') or 'none named')
    if not weights then return end
    print()
    for name, weight in model:parameters() do
      print(('%-48s %s'):format(printable(name), tostring(weight):match '%l+%d* %[.-%]'))
    end
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
