--- Folders of models that say what a table says, for specs of what is done with a model's folder.
local json = require 'moonstill.base.json'
local models = require 'tests.support.models'
local small = require 'tests.support.tokenizers'
local tools = require 'tests.support.tools'

local M = {}

local VOCAB = 304
local TURNS = { small.added(300, '<|im_start|>'), small.added(301, '<|im_end|>'), small.added(302, '<|endoftext|>') }
local TEXTS = { small.added(300, '<s>'), small.added(301, '</s>') }

local function folder_of(tokens, eos, follows, changes, files)
  local folder = tools.folder()
  local model = models.chain(follows, VOCAB, changes)
  model:save(folder)
  model:free()
  tools.write(folder .. '/tokenizer.json', json.encode(small.byte_level { added = tokens }))
  tools.write(folder .. '/generation_config.json', json.encode { eos_token_id = eos })
  for name, content in pairs(files or {}) do tools.write(folder .. '/' .. name, json.encode(content)) end
  return folder
end

--- A folder with turns: after the newline behind "assistant" (10), and otherwise as the table says; 301 ends a
--- turn. Letters are their bytes.
--- @param follows table<integer, integer>
--- @param changes? table over its config
--- @param files? table<string, any> JSON files of the folder
function M.turns(follows, changes, files) return folder_of(TURNS, 302, follows, changes, files) end

--- A folder of a base model, whose texts end with 301.
function M.texts(follows, changes, files) return folder_of(TEXTS, 301, follows, changes, files) end

return M
